"""The biattentive classification network on the vectors of a checkpoint."""

import dataclasses
from typing import Any

import numpy as np

from plmjax.errors import FRACTION, FROM_1, UserError, check_ranges
from plmjax.experiment import WeightMapping
from plmjax.models.cove.biattentive_classification import BiattentiveConfig
from plmjax.models.cove.cove import CoveConfig
from plmjax.runs.weight_mappings.token_embeddings import FromTokenEmbeddings


@dataclasses.dataclass(frozen=True)
class BiattentiveClassifier(WeightMapping):
    """The biattentive network, on word embeddings and the encoder of a translation model, or on word embeddings only.

    The checkpoint is a CoVe or, where `contextual` is false, any model with an embedding table.
    """

    contextual: bool = True
    """If true, the network reads CoVe vectors besides word embeddings."""
    size: int = 300
    """Hidden size of the network in each direction."""
    dropout: float = 0.2
    """Dropout within the network."""

    def __post_init__(self) -> None:
        check_ranges("weight_mapping", self, size=FROM_1, dropout=FRACTION)

    def model(self, origin: Any) -> BiattentiveConfig:
        """Return the sizes of the embeddings and of the network.

        Raises:
            UserError: the checkpoint's model has no such embeddings.
        """
        if isinstance(origin, BiattentiveConfig):
            return origin
        if self.contextual and not isinstance(origin, CoveConfig):
            raise UserError(
                f"Expected a checkpoint of CoVe, found {type(origin).__name__}; name another one, or use only its "
                f"word vectors with --weight_mapping.contextual False."
            )
        vectors = origin if self.contextual else FromTokenEmbeddings().model(origin)
        return BiattentiveConfig(vectors, self.size, dropout=self.dropout)

    def map(self, params: dict[str, np.ndarray], origin: Any, model: Any) -> dict[str, np.ndarray]:
        """Return only the parameters of the encoder, or of its embedding table."""
        if not self.contextual and not isinstance(origin, BiattentiveConfig):
            return FromTokenEmbeddings().map(params, origin, model.vectors)
        return {name: array for name, array in params.items() if name.startswith(f"{model.system.name}/")}
