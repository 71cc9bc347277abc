"""Fine-tuning that starts from the vectors of tokens of another model, and from nothing else of it."""

import dataclasses
from typing import Any

import numpy as np

from plmjax.errors import UserError
from plmjax.experiment import Start
from plmjax.models.static_vectors import StaticVectorsConfig


@dataclasses.dataclass(frozen=True)
class FromTable(Start):
    """The rows of the checkpoint's table of tokens, as a model of static vectors.

    The checkpoint is of any model with such a table, such as word2vec, NNLM, CoVe or GPT-2.
    """

    def model(self, origin: Any) -> StaticVectorsConfig:
        """The sizes of the table.

        Raises:
            UserError: the checkpoint's model has no table of tokens.
        """
        if origin.token_table is None:
            raise UserError(
                f"Expected a model with a table of tokens, found {type(origin).__name__}; name another checkpoint."
            )
        if isinstance(origin, StaticVectorsConfig):
            return origin
        return StaticVectorsConfig(origin.vocab_size, origin.token_width)

    def map(self, params: dict[str, np.ndarray], origin: Any, model: Any) -> dict[str, np.ndarray]:
        """The table alone; rows that are of no token, such as those of positions, are left out."""
        return {model.token_table: params[origin.token_table][: model.vocab_size]}
