"""Replaced token detection that continues from a discriminator alone, such as a released DeBERTa-v3."""

import dataclasses
from typing import Any

import numpy as np

from plmjax.errors import UserError
from plmjax.experiment import WeightMapping
from plmjax.models.deberta.deberta import DebertaConfig

TABLES = tuple(f"embeddings/{name}_embeddings" for name in ("word", "position"))


@dataclasses.dataclass(frozen=True)
class BesideGenerator(WeightMapping):
    """The discriminator of the checkpoint beside a generator with its tables, whose other parameters are random.

    So the residuals of the discriminator begin with zeros. A checkpoint of both networks stays as it is.
    """

    def model(self, origin: Any) -> DebertaConfig:
        """Return the model of the checkpoint.

        Raises:
            UserError: it is no DeBERTa.
        """
        if not isinstance(origin, DebertaConfig):
            raise UserError(
                f"Expected a DeBERTa, whose discriminator is trained on, found {type(origin).__name__}; name another "
                f"checkpoint in --from, or continue with experiments/continued.py."
            )
        return origin

    def map(self, params: dict[str, np.ndarray], origin: Any, model: Any) -> dict[str, np.ndarray]:
        """Return the tables of the discriminator as those of the generator, with residuals of zeros."""
        found = dict(params)
        for place in TABLES:
            own, shared = f"deberta/{place}/embedding", f"generator/{place}/embedding"
            if own in params and shared not in params:
                found |= {shared: found.pop(own), f"deberta/{place}/residual": np.zeros_like(params[own])}
        return found
