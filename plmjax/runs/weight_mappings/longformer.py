"""Longformers that start from other checkpoints: from a RoBERTa or a BART, or from a Longformer with global projections
copied from the local ones or with wider windows.

Source: Beltagy et al. 2020, sections 4.2, 5 and 7; allenai/longformer scripts/convert_model_to_long.ipynb and
scripts/convert_bart_to_longformerencoderdecoder.py.
"""

import dataclasses
import re
from typing import Any

import numpy as np

from plmjax.errors import FROM_1, UserError, check_ranges
from plmjax.experiment import WeightMapping
from plmjax.models.bart.bart import BartConfig
from plmjax.models.longformer.decoder import LongformerDecoderConfig
from plmjax.models.longformer.encoder_decoder import LedConfig
from plmjax.models.longformer.longformer import LongformerConfig
from plmjax.models.roberta import RobertaConfig

POSITIONS = "longformer/embeddings/position_embeddings/embedding"
SIDES = "led/encoder_positions/embedding", "led/decoder_positions/embedding"
_LOCAL = re.compile(r"((?:longformer/encoder/layers|led/encoder_layers)/attention/(?:query|key|value))(/\w+)")


def _with_global_projections(params: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the parameters with the global projections of each layer equal to its local ones."""
    local = {path: found for path in params if (found := _LOCAL.fullmatch(path))}
    return params | {f"{found[1]}_global{found[2]}": params[path] for path, found in local.items()}


def _check_length(length: int, positions: int, name: str) -> None:
    """Raise UserError unless `length` is a multiple of `positions`. name: the checkpoint's model, for the message."""
    if length % positions:
        raise UserError(
            f"Expected --weight_mapping.length to be a multiple of the {positions} positions of the {name}, which are "
            f"repeated, found {length}; change it."
        )


@dataclasses.dataclass(frozen=True)
class LongformerFromRoberta(WeightMapping):
    """A Longformer with the layers and the heads of a RoBERTa. The position embeddings are repeated to `length`."""

    length: int = 4096
    """Maximum sequence length of the Longformer, a multiple of the RoBERTa's."""
    attention_window: tuple[int, ...] = LongformerConfig.attention_window
    """Windows of the layers, as `--model.attention_window`."""
    max_global_tokens: int = LongformerConfig.max_global_tokens
    """Maximum number of global tokens in a row, as `--model.max_global_tokens`."""

    def __post_init__(self) -> None:
        check_ranges("weight_mapping", self, length=FROM_1)

    def model(self, origin: Any) -> LongformerConfig:
        """Return a Longformer of the same sizes.

        Raises:
            UserError: the checkpoint's model is not a RoBERTa, or `length` is no multiple of its positions.
        """
        if type(origin) is not RobertaConfig:
            raise UserError(
                f"Expected a RoBERTa, whose layers become a Longformer's, found {type(origin).__name__}; name another "
                f"checkpoint in --from, or leave {type(self).__name__} out."
            )
        _check_length(self.length, origin.longest, "RoBERTa")
        return LongformerConfig.above(origin, self.length, self.attention_window, self.max_global_tokens)

    def map(self, params: dict[str, np.ndarray], origin: Any, model: Any) -> dict[str, np.ndarray]:
        """Return the Longformer's parameters: new names, repeated positions, global projections equal to local ones."""
        params = {re.sub("^roberta/", "longformer/", path): array for path, array in params.items()}
        before, positions = np.split(params[POSITIONS], [-origin.longest])
        repeated = np.tile(positions, (model.longest // origin.longest, 1))
        return _with_global_projections(params | {POSITIONS: np.concatenate([before, repeated])})


@dataclasses.dataclass(frozen=True)
class LedFromBart(WeightMapping):
    """An LED with the layers of a BART. The encoder's position embeddings are repeated to `length`."""

    length: int = 16_384
    """Maximum length of a source of the LED, a multiple of the BART's maximum length."""
    attention_window: tuple[int, ...] = LedConfig.attention_window
    """Windows of the encoder's layers, as `--model.attention_window`."""
    max_global_tokens: int = LedConfig.max_global_tokens
    """Maximum number of global tokens in a source, as `--model.max_global_tokens`."""

    def __post_init__(self) -> None:
        check_ranges("weight_mapping", self, length=FROM_1)

    def model(self, origin: Any) -> LedConfig:
        """Return an LED of the same sizes.

        Raises:
            UserError: the checkpoint's model is not a BART, or `length` is no multiple of its positions.
        """
        if type(origin) is not BartConfig:
            raise UserError(
                f"Expected a BART, whose layers become an LED's, found {type(origin).__name__}; name another "
                f"checkpoint in --from, or leave {type(self).__name__} out."
            )
        _check_length(self.length, origin.longest, "BART")
        return LedConfig.above(origin, self.length, self.attention_window, self.max_global_tokens)

    def map(self, params: dict[str, np.ndarray], origin: Any, model: Any) -> dict[str, np.ndarray]:
        """Return the LED's parameters: new names, repeated positions, global projections equal to local ones."""
        params = {re.sub("^bart/", "led/", path): array for path, array in params.items()}
        sources, targets = (params[side][-origin.longest :] for side in SIDES)
        repeated = np.tile(sources, (model.longest // origin.longest, 1))
        return _with_global_projections(params | dict(zip(SIDES, (repeated, targets), strict=True)))


@dataclasses.dataclass(frozen=True)
class GlobalFromLocal(WeightMapping):
    """The checkpoint's Longformer, with global projections initialized as copies of its local ones.

    The masked language model has no global tokens, so pretraining does not train these projections.
    """

    def model(self, origin: Any) -> LongformerConfig:
        """Return the same config.

        Raises:
            UserError: the checkpoint's model is not a Longformer.
        """
        if not isinstance(origin, LongformerConfig):
            raise UserError(
                f"Expected a Longformer, which has projections of global tokens, found {type(origin).__name__}; name "
                f"another checkpoint in --from, or take an experiment of another system."
            )
        return origin

    def map(self, params: dict[str, np.ndarray], origin: Any, model: Any) -> dict[str, np.ndarray]:
        """Return the parameters with new global projections."""
        return _with_global_projections(params)


@dataclasses.dataclass(frozen=True)
class WiderWindows(WeightMapping):
    """The checkpoint's language model with wider windows, for the next stage of its training.

    No parameter depends on a window: relative positions are sinusoidal.
    """

    factor: int = 2
    """Factor of all windows."""

    def __post_init__(self) -> None:
        check_ranges("weight_mapping", self, factor=FROM_1)

    def model(self, origin: Any) -> LongformerDecoderConfig:
        """Return the config with wider windows.

        Raises:
            UserError: the checkpoint's model is not a Longformer language model.
        """
        if not isinstance(origin, LongformerDecoderConfig):
            raise UserError(
                f"Expected a language model of Longformer, whose windows grow from stage to stage, found "
                f"{type(origin).__name__}; name the run of the stage before in --from."
            )
        return origin.widen(self.factor)
