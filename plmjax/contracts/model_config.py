"""The base of all model configs: the sizes that the rest of the project asks of a model.

All other facts are declared for the system (plmjax/contracts/system.py). Training, fine-tuning, inference and the plan
use only the config and the declaration.
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
    length, a padding token or dropout does not define them. A subclass defines a name as a field, as a property, or as
    a field of another name (such as one of config.json) that `field_names` maps to.
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
    """Dict from `width`, `depth`, `longest`, `longest_target`, `characters`, `padding_token`, `end_token` and
    `separator_token` to the field of the config, where the names differ.
    """

    @property
    def system(self) -> System:
        """The declaration of the model's system."""
        return system_of(type(self))

    def module(self, purpose: Purpose, execution: Execution, *args: Any, **options: Any) -> nn.Module:
        """Return the module of this size for a purpose, as `System.module` does."""
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
        """Embedding size, as in `System.vectors`."""
        return self.width

    @property
    def longest(self) -> int | None:
        """Maximum number of tokens in a row; None: there is no maximum."""
        return self._field("longest")

    @property
    def longest_target(self) -> int | None:
        """Maximum number of tokens in a row of the decoder; `longest` unless the config sets another one."""
        return self._field("longest_target") or self.longest

    @property
    def characters(self) -> int | None:
        """Number of characters per word for a model that reads characters; None: it reads ids only.

        The characters are those of `layers.words.characters`.
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
        """Tokens in the widest window of a layer (`--model.attention_window`); None: tokens see whole rows."""
        return None

    def option(self, name: str) -> str:
        """Return the command-line option that sets one of these sizes in the model's config."""
        return f"--model.{self.field_names.get(name, name)}"

    def check_sequence_length(self, length: int) -> None:
        """Raise UserError if a pretraining cannot have rows of `length` tokens for a reason other than `longest`."""

    def with_dropout(self, rate: float) -> Self:
        """Return the same model with the dropout rate `rate` in all its layers."""
        self.system.refuse("has one dropout rate for all its layers")

    def with_depth(self, layers: int) -> Self:
        """Return the same model with this number of layers, in an encoder-decoder on each side."""
        return dataclasses.replace(self, **{self.field_names["depth"]: layers})

    def with_tokens(self, size: int, padding: int) -> Self:
        """Return the same model with a vocabulary of `size` tokens and the padding id `padding`."""
        self.system.refuse("has room for further tokens")

    def train_flops(self, batch_size: int, sequence_length: int, predictions: int) -> float:
        """Return the model FLOPs of one training step (backward = 2 x forward).

        `predictions` is the number of gathered positions per row. In an encoder-decoder, `sequence_length` counts the
        tokens of the source and `predictions` the positions of the decoder. Each of these predicts a token. With 0
        predictions only the encoder is counted.
        """
        self.system.refuse("has a count of its FLOPs")

    def empty_cache(self, batch: int, capacity: int, execution: Execution) -> Cache | None:
        """Return the cache of a module that generates text, for rows of up to `capacity` tokens, as `System.cache`.

        Raises:
            UserError: the system keeps no cache.
        """
        if self.system.cache is None:
            self.system.refuse("keeps a cache of the tokens it has read", advice=Purpose.CAUSAL_LM.advice)
        return self.system.cache(self, batch, capacity, execution)

    def _field(self, name: str) -> Any:
        return getattr(self, self.field_names[name]) if name in self.field_names else None
