"""What the rest of the project asks of a model: one short list of names that the config of every model answers.

Training, fine-tuning, inference and the plan read nothing else of a config, so a new model is known to all of them.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, NoReturn, Self

import flax.linen as nn
from jax.nn.initializers import Initializer

from plmjax.contracts.execution import Execution
from plmjax.contracts.template import Template
from plmjax.errors import UserError


@dataclasses.dataclass(frozen=True)
class ParameterGroup:
    """Parameters that have one learning rate and are unfrozen together.

    prefixes: what their paths begin with (`bert/embeddings`); a parameter belongs to the group with the longest prefix.
    index: the index along the logical axis "layers" of parameters that hold a stack of layers; None takes all of them.
    """

    prefixes: tuple[str, ...]
    index: int | None = None


class ModelConfig:
    """Base of the configs of all models. A subclass is a frozen dataclass of the model's own settings.

    A subclass must answer `vocab_size`, `width` and `depth`, and make a module `for_pretraining`. All else has a
    default: a model without a limit, a padding token or a head does not mention them. A name is answered by a field of
    its own, by a field of another name that `field_names` gives (such as that of config.json), or by a property.
    """

    vocab_size: int
    """Tokens of the vocabulary, V."""
    head_dropout: float = 0.0
    """Dropout of the input of a downstream task's head."""
    initializer: Initializer = staticmethod(nn.initializers.normal(0.02))
    """Initializer of the kernels of a downstream task's head."""
    encoder_name: str | None = None
    """First name in the paths of the encoder's parameters; None: the model has no encoder apart from its heads."""
    parameter_groups: tuple[ParameterGroup, ...] = ()
    """All parameters below the head, from the bottom to the top; parameters of no group belong to the head.

    Stacked layers are one group for each index, separate layers one for each prefix, shared layers one group.
    """
    scores_next_token: bool = False
    """Whether its modules with a head also return the `scores` of the next token, given those before it."""
    characters: int | None = None
    """Characters of a word in `layers.spelling`, for a model that reads these; None: it reads ids of tokens alone."""
    token_inputs: tuple[str, ...] = ("input_ids",)
    """What its encoder is given of every token: `input_ids`, `characters` or both."""
    backwards: bool = False
    """Whether it reads texts from their end to their beginning."""
    labels_tokens: bool = True
    """Whether its vectors of tokens can be labelled one by one; not those of a model that reads a text in one
    direction and has no head for them."""
    decoder_start_token_id: int | None = None
    """Token that the decoder of an encoder-decoder is given first; None: the model is no encoder-decoder."""
    encoder_needs_target: bool = False
    """Whether the module of `encoder` reads no row without a second one for the decoder, `decoder_input_ids`."""
    packs: bool = True
    """Whether a row may hold several packed sequences, each of which is read by itself."""
    token_table: str | None = None
    """Path of the parameter whose first V rows are the vectors of tokens; None: no tokens can be added to the model."""
    field_names: ClassVar[Mapping[str, str]] = {}
    """`width`, `depth`, `longest`, `padding_token`, `end_token` -> the field of the config, where the names differ."""

    @property
    def width(self) -> int:
        """Features of a token between the layers, D."""
        return getattr(self, self.field_names["width"])

    @property
    def depth(self) -> int:
        """Layers, L."""
        return getattr(self, self.field_names["depth"])

    @property
    def longest(self) -> int | None:
        """Tokens of the longest row; None: there is no limit."""
        return getattr(self, self.field_names["longest"]) if "longest" in self.field_names else None

    @property
    def padding_token(self) -> int | None:
        """Id that the model itself takes for padding; None: it takes none."""
        return getattr(self, self.field_names["padding_token"]) if "padding_token" in self.field_names else None

    @property
    def end_token(self) -> int | None:
        """Id that ends a text which the model writes, as its config.json says; None: it says none."""
        return getattr(self, self.field_names["end_token"]) if "end_token" in self.field_names else None

    @property
    def reads_texts(self) -> bool:
        """Whether it has a `template`, and so a place in a row for a text."""
        return self._has("template")

    @property
    def kind(self) -> str:
        """What the model is, for messages: `BertConfig, an encoder`."""
        if self.decoder_start_token_id is not None:
            noun = "an encoder-decoder"
        elif self._has("for_generation"):
            noun = "a decoder"
        elif self._has("encoder"):
            noun = "an encoder"
        else:
            noun = "word vectors" if self.has_token_vectors else "a model of another kind"
        return f"{type(self).__name__}, {noun}"

    @property
    def template(self) -> Template:
        """How one text or a pair is laid out as a row, and which position stands for it."""
        self._lacks("a layout of rows for texts")

    @property
    def token_width(self) -> int:
        """Numbers of a token's vector, as `token_vectors` gives it."""
        return self.width

    @property
    def has_token_vectors(self) -> bool:
        """Whether `token_vectors` gives a vector for each token: that of the table, or one made from several."""
        return self.token_table is not None

    def option(self, name: str) -> str:
        """The command line's option that sets one of these five."""
        return f"--model.{self.field_names.get(name, name)}"

    def with_dropout(self, rate: float) -> Self:
        """The same model with the dropout `rate` throughout its layers."""
        self._lacks("one dropout rate for all its layers")

    def with_tokens(self, size: int, padding: int) -> Self:
        """The same model with `size` tokens, for rows that are filled with the id `padding`."""
        self._lacks("room for further tokens")

    def train_flops(self, batch_size: int, sequence_length: int, predictions: int) -> float:
        """Model FLOPs of one training step (backward = 2 x forward) with `predictions` gathered positions a row.

        Of an encoder-decoder, `sequence_length` counts the source and `predictions` the positions of the decoder, each
        of which predicts a token; with 0 it is the encoder alone.
        """
        self._lacks("a count of its FLOPs")

    def token_vectors(self, params: Mapping[str, Any]) -> Any:
        """The vectors of tokens, the first V of [rows D], from the parameters by path."""
        if self.token_table is None:
            self._lacks("a vector for each token")
        return params[self.token_table]

    def for_pretraining(self, execution: Execution) -> nn.Module:
        """The module that the model's own pretraining task trains."""
        self._lacks("a pretraining task")

    def for_masked_language_model(self, execution: Execution) -> nn.Module:
        """The module that gives every token, or those at `masked_positions`, scores over the vocabulary."""
        self._lacks("a masked language model's head")

    def for_generation(self, execution: Execution) -> nn.Module:
        """The module that reads tokens after those in a `cache` and gives the next one `scores`
        (layers/attention/cache.py).

        Raises:
            UserError: the model writes no text, or reads it from its end.
        """
        self._lacks("a decoder that writes text")

    def empty_cache(self, batch: int, room: int, execution: Execution) -> Any:
        """The cache of that module for rows of up to `room` tokens; None where it begins one with its source."""
        self._lacks("a decoder that writes text")

    def encoder(self, execution: Execution, *, pooling: bool = False) -> nn.Module:
        """The model without a head, named `encoder_name`."""
        self._lacks("an encoder")

    def for_sequence_classification(self, outputs: int, execution: Execution) -> nn.Module:
        """The module that gives every row `outputs` numbers."""
        self._lacks("a head for whole sequences")

    def for_multiple_choice(self, execution: Execution) -> nn.Module:
        """The module that gives every choice of a question one number."""
        self._lacks("a head for choices")

    def _has(self, method: str) -> bool:
        """Whether the model answers a method that has no default."""
        return getattr(type(self), method) is not getattr(ModelConfig, method)

    def _lacks(self, what: str) -> NoReturn:
        raise UserError(f"Expected a model with {what}, found {self.kind}; use another model.")
