"""Fine-tuning that takes only the token embeddings of another model."""

import dataclasses
from typing import Any

import numpy as np

from plmjax.contracts.model_config import ModelConfig
from plmjax.experiment import WeightMapping
from plmjax.models.baselines.static_vectors import StaticVectorsConfig


@dataclasses.dataclass(frozen=True)
class FromTokenEmbeddings(WeightMapping):
    """The rows of the checkpoint's token embedding table, as a model of static vectors.

    The checkpoint is any model with token embeddings, such as word2vec, GloVe, NNLM, CoVe or GPT-2.
    """

    def model(self, origin: Any) -> StaticVectorsConfig:
        """Return the sizes of the table.

        Raises:
            UserError: the checkpoint's model has no token embeddings.
        """
        check_vectors(origin)
        if isinstance(origin, StaticVectorsConfig):
            return origin
        return StaticVectorsConfig(origin.vocab_size, origin.token_width)

    def map(self, params: dict[str, np.ndarray], origin: Any, model: Any) -> dict[str, np.ndarray]:
        """Return only the embedding table, without rows that are not for tokens, such as those for positions."""
        return {model.system.token_table: origin.system.vectors(params)[: model.vocab_size]}


def check_vectors(origin: ModelConfig) -> None:
    """Raise UserError for a model that has no embedding for each token."""
    if origin.system.vectors is None:
        origin.system.refuse("has a vector for each token", advice="name another checkpoint")
