"""Fine-tuning that starts from the vectors of tokens of another model, and from nothing else of it."""

import dataclasses
from typing import Any

import numpy as np

from plmjax.contracts.model_config import ModelConfig
from plmjax.experiment import Start
from plmjax.models.baselines.static_vectors import StaticVectorsConfig


@dataclasses.dataclass(frozen=True)
class FromTokenEmbeddings(Start):
    """The rows of the checkpoint's table of tokens, as a model of static vectors.

    The checkpoint is of any model with vectors of tokens, such as word2vec, GloVe, NNLM, CoVe or GPT-2.
    """

    def model(self, origin: Any) -> StaticVectorsConfig:
        """The sizes of the table.

        Raises:
            UserError: the checkpoint's model has no vectors of tokens.
        """
        check_vectors(origin)
        if isinstance(origin, StaticVectorsConfig):
            return origin
        return StaticVectorsConfig(origin.vocab_size, origin.token_width)

    def map(self, params: dict[str, np.ndarray], origin: Any, model: Any) -> dict[str, np.ndarray]:
        """The table alone; rows that are of no token, such as those of positions, are left out."""
        return {model.system.token_table: origin.system.vectors(params)[: model.vocab_size]}


def check_vectors(origin: ModelConfig) -> None:
    """Raises UserError for a model that has no vector for each token."""
    if origin.system.vectors is None:
        origin.system.refuse("has a vector for each token", advice="name another checkpoint")
