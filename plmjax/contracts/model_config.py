"""The base of the configs of all models: the numbers that the rest of the project asks a model for.

All else is declared for the system (plmjax/contracts/system.py); training, fine-tuning, inference and the plan read
nothing but these two.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import flax.linen as nn
from jax.nn.initializers import Initializer

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import ParameterGroup, Purpose, System, system_of
from plmjax.contracts.template import Template


class ModelConfig:
    """Base of the configs of all models. A subclass is a frozen dataclass of the model's own settings.

    A subclass must answer `vocab_size`, `width` and `depth`. All else has a default: a model without a limit, a padding
    token or dropout does not mention them. A name is answered by a field of its own, by a field of another name that
    `field_names` gives (such as that of config.json), or by a property.
    """

    vocab_size: int
    """Tokens of the vocabulary, V."""
    head_dropout: float = 0.0
    """Dropout of the input of a downstream task's head."""
    initializer: Initializer = staticmethod(nn.initializers.normal(0.02))
    """Initializer of the kernels of a downstream task's head."""
    decoder_start_token_id: int | None = None
    """Token that the decoder of an encoder-decoder is given first."""
    field_names: ClassVar[Mapping[str, str]] = {}
    """`width`, `depth`, `longest`, `characters`, `padding_token`, `end_token` -> the field of the config, where the
    names differ."""

    @property
    def system(self) -> System:
        """The declaration of the model's system."""
        return system_of(type(self))

    def module(self, purpose: Purpose, execution: Execution, *args: Any, **options: Any) -> nn.Module:
        """The module of this size for a purpose, as `System.module`."""
        return self.system.module(purpose, self, execution, *args, **options)

    @property
    def template(self) -> Template:
        """The layout of one text or a pair as a row, and the position that stands for it.

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
        """Features of a token between the layers, D."""
        return getattr(self, self.field_names["width"])

    @property
    def depth(self) -> int:
        """Layers, L."""
        return getattr(self, self.field_names["depth"])

    @property
    def token_width(self) -> int:
        """Features of a token's vector, as `System.vectors` gives it."""
        return self.width

    @property
    def longest(self) -> int | None:
        """Tokens of the longest row; None: there is no limit."""
        return self._field("longest")

    @property
    def characters(self) -> int | None:
        """Characters of a word in `layers.words.characters`, for a model that reads these; None: it reads ids alone."""
        return self._field("characters")

    @property
    def padding_token(self) -> int | None:
        """Id that the model itself takes for padding; None: it takes none."""
        return self._field("padding_token")

    @property
    def end_token(self) -> int | None:
        """Id that ends a text which the model writes, as its config.json says; None: it says none."""
        return self._field("end_token")

    def option(self, name: str) -> str:
        """The command line's option that sets one of these numbers."""
        return f"--model.{self.field_names.get(name, name)}"

    def with_dropout(self, rate: float) -> Self:
        """The same model with the dropout `rate` throughout its layers."""
        self.system.refuse("has one dropout rate for all its layers")

    def with_tokens(self, size: int, padding: int) -> Self:
        """The same model with `size` tokens, for rows that are filled with the id `padding`."""
        self.system.refuse("has room for further tokens")

    def train_flops(self, batch_size: int, sequence_length: int, predictions: int) -> float:
        """Model FLOPs of one training step (backward = 2 x forward) with `predictions` gathered positions a row.

        Of an encoder-decoder, `sequence_length` counts the source and `predictions` the positions of the decoder, each
        of which predicts a token; with 0 it is the encoder alone.
        """
        self.system.refuse("has a count of its FLOPs")

    def empty_cache(self, batch: int, room: int, execution: Execution) -> Any:
        """The cache of a module that writes, for rows of up to `room` tokens; None where it begins one with its source.

        Raises:
            UserError: the model writes no text.
        """
        self.system.refuse(Purpose.WRITING.words)

    def _field(self, name: str) -> Any:
        return getattr(self, self.field_names[name]) if name in self.field_names else None
