"""Classification by the biattentive network, upon the vectors of a checkpoint."""

import dataclasses
from typing import Any

import numpy as np

from plmjax.errors import FROM_1, SHARE, UserError, check_ranges
from plmjax.experiment import Start
from plmjax.finetuning.starts.token_embeddings import FromTokenEmbeddings
from plmjax.models.cove.biattentive_classification import BiattentiveConfig
from plmjax.models.cove.cove import CoveConfig


@dataclasses.dataclass(frozen=True)
class BiattentiveClassifier(Start):
    """The network upon the encoder of a translation model, beside the vectors of its words, or upon vectors alone.

    The checkpoint is a CoVe; or, where `contextual` is false, of any model with a table of tokens.
    """

    contextual: bool = True
    """Whether the network reads CoVe beside the vectors of words."""
    size: int = 300
    """Numbers of each of its cells in each direction."""
    dropout: float = 0.2
    """Dropout within the network."""

    def __post_init__(self) -> None:
        """Checks the numbers."""
        check_ranges("start", self, size=FROM_1, dropout=SHARE)

    def model(self, origin: Any) -> BiattentiveConfig:
        """The sizes of the vectors, and those of the network.

        Raises:
            UserError: the checkpoint's model gives no such vectors.
        """
        if isinstance(origin, BiattentiveConfig):
            return origin
        if self.contextual and not isinstance(origin, CoveConfig):
            raise UserError(
                f"Expected a checkpoint of CoVe, found {type(origin).__name__}; name another one, or read its vectors "
                f"of words alone with --start.contextual False."
            )
        vectors = origin if self.contextual else FromTokenEmbeddings().model(origin)
        return BiattentiveConfig(vectors, self.size, dropout=self.dropout)

    def map(self, params: dict[str, np.ndarray], origin: Any, model: Any) -> dict[str, np.ndarray]:
        """The encoder alone, or its table."""
        if not self.contextual and not isinstance(origin, BiattentiveConfig):
            return FromTokenEmbeddings().map(params, origin, model.vectors)
        return {name: array for name, array in params.items() if name.startswith(f"{model.system.name}/")}
