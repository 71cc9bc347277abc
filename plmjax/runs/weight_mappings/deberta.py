"""Replaced token detection that starts from a discriminator alone, such as a released DeBERTa-v3."""

import dataclasses
from typing import Any

import numpy as np

from plmjax.errors import UserError
from plmjax.experiment import WeightMapping
from plmjax.models.deberta.deberta import DebertaConfig

TABLES = tuple(f"embeddings/{name}_embeddings" for name in ("word", "position"))


@dataclasses.dataclass(frozen=True)
class BesideGenerator(WeightMapping):
    """The checkpoint's discriminator, and a generator that takes over its embedding tables.

    The residuals of the discriminator start at 0. The other parameters of the generator are random. A checkpoint of
    both networks does not change.
    """

    def model(self, origin: Any) -> DebertaConfig:
        """Return the model of the checkpoint.

        Raises:
            UserError: the checkpoint's model is not a DeBERTa.
        """
        if not isinstance(origin, DebertaConfig):
            raise UserError(
                f"Expected a DeBERTa, whose discriminator is trained on, found {type(origin).__name__}; name another "
                f"checkpoint in --from, or continue with experiments/continued.py."
            )
        return origin

    def map(self, params: dict[str, np.ndarray], origin: Any, model: Any) -> dict[str, np.ndarray]:
        """Return the parameters with the discriminator's tables moved to the generator, and residuals of zeros."""
        found = dict(params)
        for place in TABLES:
            own, shared = f"deberta/{place}/embedding", f"generator/{place}/embedding"
            if own in params and shared not in params:
                found |= {shared: found.pop(own), f"deberta/{place}/residual": np.zeros_like(params[own])}
        return found
