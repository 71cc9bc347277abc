"""The base of all model configs: the sizes of a model that the rest of plmjax reads.

All other properties are declared for the system (plmjax/contracts/system.py). Training, fine-tuning, inference and the
plan use only the config and the declaration.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import flax.linen as nn
from jax.nn.initializers import Initializer

from plmjax.contracts.cache import Cache
from plmjax.contracts.execution import Execution
from plmjax.contracts.mask_terms import MaskTerm
from plmjax.contracts.system import ParameterGroup, Purpose, System, system_of
from plmjax.contracts.template import Template


class ModelConfig:
    """Base of the configs of all models. A subclass is a frozen dataclass of the model's settings.

    A subclass must define `vocab_size`, `width` and `depth`. All other names have defaults: a model without a maximum
    length, a padding token or dropout does not define them. A subclass defines a name as a field or as a property, or
    `field_names` maps it to a field with another name, such as the one in config.json.
    """

    vocab_size: int
    """Vocabulary size, V."""
    head_dropout: float = 0.0
    """Dropout rate of the input of a downstream task's head."""
    initializer: Initializer = staticmethod(nn.initializers.normal(0.02))
    """Initializer of the kernels of a downstream task's head."""
    decoder_start_token_id: int | None = None
    """First token id that the decoder of an encoder-decoder reads."""
    field_names: ClassVar[Mapping[str, str]] = {}
    """Dict from a name to the field of the config that has its value, for `width`, `depth`, `longest`,
    `longest_target`, `characters`, `padding_token`, `end_token` and `separator_token`.
    """

    @property
    def system(self) -> System:
        """The declaration of the model's system."""
        return system_of(type(self))

    def module(self, purpose: Purpose, execution: Execution, *args: Any, **options: Any) -> nn.Module:
        """Return the module for a purpose, with the sizes of this config, as `System.module` does."""
        return self.system.module(purpose, self, execution, *args, **options)

    @property
    def template(self) -> Template:
        """The layout of one text or a pair as a row, and the position that represents it.

        Raises:
            UserError: the system reads no texts.
        """
        if self.system.template is None:
            self.system.refuse("reads texts")
        return self.system.template(self)

    @property
    def parameter_groups(self) -> tuple[ParameterGroup, ...]:
        """All parameters below the head, from the bottom to the top."""
        return self.system.parts(self)

    @property
    def width(self) -> int:
        """Hidden size between the layers, D."""
        return getattr(self, self.field_names["width"])

    @property
    def depth(self) -> int:
        """Number of layers, L."""
        return getattr(self, self.field_names["depth"])

    @property
    def token_width(self) -> int:
        """Number of features of a token embedding, as in `System.vectors`."""
        return self.width

    @property
    def longest(self) -> int | None:
        """Maximum number of tokens in a row; None: there is no maximum."""
        return self._field("longest")

    @property
    def longest_target(self) -> int | None:
        """Maximum number of tokens in a row of the decoder; by default `longest`."""
        return self._field("longest_target") or self.longest

    @property
    def characters(self) -> int | None:
        """Number of characters per word, for a model that reads characters; None: the model reads token ids only.

        `layers.words.characters` encodes the characters.
        """
        return self._field("characters")

    @property
    def padding_token(self) -> int | None:
        """Token id that the model itself treats as padding; None: the model has no padding id."""
        return self._field("padding_token")

    @property
    def end_token(self) -> int | None:
        """Token id that ends a generated text, from config.json; None: config.json has none."""
        return self._field("end_token")

    @property
    def separator_token(self) -> int | None:
        """Token id by which the model itself finds the end of a text; None: it does not look for one."""
        return self._field("separator_token")

    @property
    def windows(self) -> tuple[MaskTerm, ...]:
        """Further mask terms of all layers, such as a window; none by default."""
        return ()

    @property
    def widest_window(self) -> int | None:
        """Number of tokens in the widest window of a layer (`--model.attention_window`); None: there are no windows."""
        return None

    def option(self, name: str) -> str:
        """Return the command-line option that sets one of these sizes in the model's config."""
        return f"--model.{self.field_names.get(name, name)}"

    def check_sequence_length(self, length: int) -> None:
        """Raise UserError if pretraining cannot have rows of `length` tokens for another reason than `longest`."""

    def with_dropout(self, rate: float) -> Self:
        """Return the same model with the dropout rate `rate` in all its layers."""
        self.system.refuse("has one dropout rate for all its layers")

    def with_depth(self, layers: int) -> Self:
        """Return the same model with this number of layers; in an encoder-decoder, on each side."""
        return dataclasses.replace(self, **{self.field_names["depth"]: layers})

    def with_tokens(self, size: int, padding: int) -> Self:
        """Return the same model with a vocabulary of `size` tokens and the padding id `padding`."""
        self.system.refuse("has room for further tokens")

    def train_flops(self, batch_size: int, sequence_length: int, predictions: int) -> float:
        """Return the model FLOPs of one training step (backward = 2 x forward).

        `predictions` is the number of gathered positions per row, for which a token is predicted. In an
        encoder-decoder, `sequence_length` is the number of tokens of the source, and `predictions` is the number of
        positions of the decoder. With 0 predictions only the encoder is counted.
        """
        self.system.refuse("has a count of its FLOPs")

    def empty_cache(self, batch: int, capacity: int, execution: Execution) -> Cache | None:
        """Return an empty cache, as `System.cache` does, for `batch` rows of up to `capacity` tokens.

        Raises:
            UserError: the system keeps no cache.
        """
        if self.system.cache is None:
            self.system.refuse("keeps a cache of the tokens it has read", advice=Purpose.CAUSAL_LM.advice)
        return self.system.cache(self, batch, capacity, execution)

    def _field(self, name: str) -> Any:
        return getattr(self, self.field_names[name]) if name in self.field_names else None
