"""Ettin's cross-objective training: a decoder that starts from an encoder, and the reverse (Weller et al. 2025).

Both have the same layers and the same head (`plmjax.models.modernbert.decoder`). All parameters are taken unchanged.
"""

import dataclasses
from typing import Any

import numpy as np

from plmjax.errors import UserError
from plmjax.experiment import WeightMapping
from plmjax.models.modernbert.decoder import ModernBertDecoderConfig
from plmjax.models.modernbert.modernbert import ModernBertConfig

ENCODERS_HEAD, DECODERS_HEAD = "masked_language_model/", "language_model/"


def _rename(params: dict[str, np.ndarray], before: str, after: str) -> dict[str, np.ndarray]:
    """Return the parameters with the prefix `before` of the language model's head replaced by `after`."""
    return {after + path.removeprefix(before) if path.startswith(before) else path: x for path, x in params.items()}


@dataclasses.dataclass(frozen=True)
class DecoderFromEncoder(WeightMapping):
    """A decoder with the layers and the head of a ModernBERT."""

    def model(self, origin: Any) -> ModernBertDecoderConfig:
        """Return a decoder of the same sizes.

        Raises:
            UserError: the checkpoint's model is not a ModernBERT, or has a setting that the decoder does not support.
        """
        if type(origin) is not ModernBertConfig:
            raise UserError(
                f"Expected a ModernBERT, whose layers become a decoder's, found {type(origin).__name__}; name another "
                f"checkpoint in --from, or leave {type(self).__name__} out."
            )
        shared = {field.name for field in dataclasses.fields(ModernBertDecoderConfig)}
        for field in dataclasses.fields(origin):
            name = field.name
            if name in shared or name == "classifier_pooling":
                continue
            own, fixed = getattr(origin, name), getattr(ModernBertDecoderConfig, name)
            if own != fixed:
                raise UserError(
                    f"Expected a ModernBERT with {name} {fixed}, as its decoder has it, found {own}; name another "
                    f"checkpoint in --from."
                )
        return ModernBertDecoderConfig(**{name: getattr(origin, name) for name in shared})

    def map(self, params: dict[str, np.ndarray], origin: Any, model: Any) -> dict[str, np.ndarray]:
        return _rename(params, ENCODERS_HEAD, DECODERS_HEAD)


@dataclasses.dataclass(frozen=True)
class EncoderFromDecoder(WeightMapping):
    """A ModernBERT with the layers and the head of a decoder."""

    def model(self, origin: Any) -> ModernBertConfig:
        """Return an encoder of the same sizes.

        Raises:
            UserError: the checkpoint's model is not a decoder of ModernBERT's layers.
        """
        if type(origin) is not ModernBertDecoderConfig:
            raise UserError(
                f"Expected a decoder of ModernBERT's layers, found {type(origin).__name__}; name another checkpoint in "
                f"--from, or leave {type(self).__name__} out."
            )
        names = (field.name for field in dataclasses.fields(ModernBertConfig))
        return ModernBertConfig(**{name: getattr(origin, name) for name in names})

    def map(self, params: dict[str, np.ndarray], origin: Any, model: Any) -> dict[str, np.ndarray]:
        return _rename(params, DECODERS_HEAD, ENCODERS_HEAD)
