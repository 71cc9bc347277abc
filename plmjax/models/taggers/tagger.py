"""A tagger of words: bidirectional recurrent layers over words and their characters.

    x_k = [c_k ; w_k]     c_k from the characters of the word, w_k its vector
    h_k = biRNN(biRNN(x))_k                             (Peters et al., ACL 2017, arXiv 1705.00108, section 2.2)

The paper's chunker has LSTMs, and c_k = max over the word of tanh(convolution of its characters) (Ma and Hovy 2016,
arXiv 1603.01354). Its model for named entities has GRUs, also for the characters: c_k is the last states of both
directions of two bidirectional GRUs.

This file has the encoder of a tagger. The head is a linear layer and a conditional random field
(models/families/task_heads.py). TagLM (models/taglm.py) and ELMo as features (models/taggers/elmo_tagger.py) add the
states of language models.
"""

import dataclasses
import functools
import math
from typing import Any, ClassVar, Self

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.sizes import Size
from plmjax.contracts.system import Kind, ParameterGroup, Purpose, System, declare
from plmjax.contracts.template import Template
from plmjax.errors import FRACTION, FROM_1, UserError, check_choice, check_ranges
from plmjax.layers.dropout import Dropout
from plmjax.layers.initializers import uniform
from plmjax.layers.recurrent import gru, lstm
from plmjax.layers.recurrent.gru import BidirectionalGru
from plmjax.layers.recurrent.lstm import FORGET, BidirectionalLstm
from plmjax.layers.recurrent.masks import recurrent_masks
from plmjax.layers.tokens import check_token_inputs
from plmjax.layers.words.character_filters import character_filters
from plmjax.layers.words.characters import CHARACTERS, PADDING
from plmjax.layers.words.embeddings import Embedding
from plmjax.models.elmo import ElmoConfig
from plmjax.models.families.task_heads import TokenClassification


@dataclasses.dataclass(frozen=True)
class TaggerConfig(ModelConfig):
    """Sizes; the defaults are those of the paper's chunker, as far as the paper gives them."""

    vocab_size: int = 8192
    """Vocabulary size; all other words share the embedding of the unknown word."""
    word_dim: int = 50
    """Embedding size."""
    max_characters_per_token: int = 50
    """Maximum number of characters of a word, including its two marks; longer words are truncated."""
    character_dim: int = 25
    """Embedding size of a character."""
    character_features: int = 30
    """Number of filters over the characters of a word; or hidden size, in each direction, of the GRUs that read
    characters.
    """
    filter_width: int = 3
    """Number of characters that a filter covers; 0: two bidirectional GRUs read the characters instead."""
    cell: str = "lstm"
    """Kind of the recurrent layers over words: lstm or gru."""
    hidden_size: int = 200
    """Hidden size of the recurrent layers over words, in each direction."""
    dropout: float = 0.25
    """Dropout rate of the inputs of all recurrent layers."""

    depth: ClassVar[int] = 2
    field_names: ClassVar[dict[str, str]] = {"characters": "max_characters_per_token"}

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "word_dim", "character_dim", "character_features", "hidden_size")
        check_ranges("model", self, **dict.fromkeys(sizes, FROM_1), dropout=FRACTION)
        check_ranges("model", self, max_characters_per_token=(3, math.inf))
        check_ranges("model", self, filter_width=(0, self.max_characters_per_token))
        check_choice("--weight_mapping.tagger.cell", self.cell, tuple(CELLS))

    named_entities = Size(
        "The paper's sizes for named entities: GRUs, of the characters too.",
        cell="gru",
        hidden_size=300,
        character_features=80,
        filter_width=0,
    )

    @property
    def width(self) -> int:
        """Size of the head's input for a word."""
        return 2 * self.hidden_size

    @property
    def token_width(self) -> int:
        return self.word_dim

    @property
    def initializer(self) -> Initializer:
        """Initializer of the head."""
        return nn.initializers.glorot_uniform()

    def with_dropout(self, rate: float) -> Self:
        return dataclasses.replace(self, dropout=rate)

    def train_flops(self, batch_size: int, sequence_length: int, predictions: int) -> float:
        """Return the model FLOPs of one training step, 6 for every multiplication."""
        return 6.0 * batch_size * sequence_length * self.multiplications()

    def multiplications(self, first: int = 0, second: int = 0) -> int:
        """Return the number of multiplications for one word.

        `first` and `second` are the numbers of additional inputs of the first and the second layer.
        """
        features, width = self.character_features, self.filter_width
        if width == 0:
            places, spelling = self.max_characters_per_token, 2 * features
            words = places * sum(
                recurrent_multiplications("gru", size, features) for size in (self.character_dim, spelling)
            )
        else:
            places, spelling = self.max_characters_per_token - width + 1, features
            words = places * width * self.character_dim * features
        sizes = (self.word_dim + spelling + first, 2 * self.hidden_size + second)
        return words + sum(recurrent_multiplications(self.cell, size, self.hidden_size) for size in sizes)


@dataclasses.dataclass(frozen=True)
class LanguageModelTaggerConfig(TaggerConfig):
    """Base of the configs of taggers that read the states of a language model for each direction.

    Raises:
        UserError: as for `TaggerConfig`; or the tagger and the language models differ in the maximum length of a word.
    """

    language_model: ElmoConfig = ElmoConfig()
    """The language models; those of the checkpoint from which a run starts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        own, theirs = self.max_characters_per_token, self.language_model.max_characters_per_token
        if own != theirs:
            raise UserError(
                f"Expected --weight_mapping.tagger.max_characters_per_token {theirs}, as the language models read "
                f"words, found {own}; set it."
            )

    def train_flops(self, batch_size: int, sequence_length: int, predictions: int) -> float:
        """Return the FLOPs of the tagger, and a third of those of the language models.

        The language models are not trained, so only their forward pass counts.
        """
        own = super().train_flops(batch_size, sequence_length, predictions)
        return own + self.language_model.train_flops(batch_size, sequence_length, 0) / 3


@flax.struct.dataclass
class TaggerOutput:
    """The output of the taggers.

    last_hidden_state: [B T D].
    hidden_states: the inputs of each of the two layers, then the last hidden state; their widths may differ. None
        unless requested.
    """

    last_hidden_state: jax.Array
    hidden_states: tuple[jax.Array, ...] | None = None


def _open_forget_gate(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
    """Return 1 for the forget gate's bias and 0 for the others, [4 H] (Ma and Hovy 2016, section 3.2)."""
    return jnp.zeros(shape, dtype).at[FORGET].set(1.0)


CELLS = {
    "lstm": (functools.partial(BidirectionalLstm, bias_init=_open_forget_gate), lstm.GATES),
    "gru": (BidirectionalGru, gru.GATES),
}
"""Dict from the name of a cell to its bidirectional layer and its number of gates."""
KERNEL_INIT = nn.initializers.glorot_uniform(in_axis=0, out_axis=(1, 2))
"""Initializer of the recurrent layers."""


def recurrent_multiplications(cell: str, inputs: int, hidden_size: int) -> int:
    """Return the number of multiplications of a bidirectional layer for one token."""
    _, gates = CELLS[cell]
    return 2 * gates * hidden_size * (inputs + hidden_size)


class Words(nn.Module):
    """The vectors [c_k ; w_k] of words, from their characters and their ids."""

    config: TaggerConfig
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, input_ids: jax.Array, characters: jax.Array, deterministic: bool) -> jax.Array:
        """Map ids int [B T] and characters int [B T C] (layers/words/characters.py) to [B T F + W].

        If GRUs read the characters, the result is [B T 2 F + W].
        """
        config, bound = self.config, math.sqrt(3 / self.config.character_dim)
        # Id 0 is for padding. Every word is long enough for the filters, because it is padded to C characters.
        sizes = (CHARACTERS + 1, config.character_dim, None, uniform(bound), self.dtype)
        x = Embedding(*sizes, name="characters")(characters.astype(jnp.int32))
        x = x.reshape(-1, *x.shape[-2:])  # [B T C E] -> [N C E]
        if config.filter_width == 0:
            spelled = self._read(x, characters.reshape(-1, characters.shape[-1]), deterministic)
        else:
            init = nn.initializers.glorot_uniform()
            filtered = character_filters(
                self.param, x, config.filter_width, count=config.character_features, kernel_init=init
            )
            spelled = jnp.tanh(filtered)
        bound = math.sqrt(3 / config.word_dim)
        word = Embedding(config.vocab_size, config.word_dim, "vocab", uniform(bound), self.dtype, name="vectors")
        return jnp.concatenate([spelled.reshape(*input_ids.shape, -1), word(input_ids)], axis=-1)

    def _read(self, x: jax.Array, characters: jax.Array, deterministic: bool) -> jax.Array:
        """Map [N C E] and int [N C] to [N 2 F].

        The result is the last states of both directions, after the word and its marks.
        """
        visible, dropout = (characters > 0) & (characters != PADDING + 1), Dropout(self.config.dropout)
        for number in (1, 2):
            layer = BidirectionalGru(
                self.config.character_features, KERNEL_INIT, dtype=self.dtype, name=f"character_layer_{number}"
            )
            x, last = layer(dropout(x, deterministic), visible=visible)
        return jnp.concatenate(last, axis=-1).astype(self.dtype)


class TaggerModule(nn.Module):
    """Base of the taggers: their common layers."""

    config: Any
    execution: Execution = Execution()

    def setup(self) -> None:
        config, dtype = self.config, self.execution.dtype
        layer, _ = CELLS[config.cell]
        self.words = Words(config, dtype)
        self.dropout = Dropout(config.dropout)
        self.layer_1 = layer(config.hidden_size, KERNEL_INIT, dtype=dtype)
        self.layer_2 = layer(config.hidden_size, KERNEL_INIT, dtype=dtype)

    def reads(
        self,
        input_ids: jax.Array,
        attention_mask: jax.Array | None,
        positions: jax.Array | None,
        segment_ids: jax.Array | None,
    ) -> dict[str, jax.Array | None]:
        """Return the masks `visible` and `starts` of the layers.

        Raises:
            ValueError: an input's shape does not fit the others'.
        """
        check_token_inputs(None, "", input_ids, attention_mask, positions, segment_ids)
        return recurrent_masks(attention_mask, segment_ids)


class Tagger(TaggerModule):
    """The tagger without a language model."""

    def __call__(
        self,
        input_ids: jax.Array,
        characters: jax.Array,
        attention_mask: jax.Array | None = None,
        *,
        positions: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        deterministic: bool = True,
        output_hidden_states: bool = False,
    ) -> TaggerOutput:
        """Return the states of the second layer, [B T 2 H].

        Args:
            input_ids: int [B T], words.
            characters: int [B T C], the characters of the same words (layers/words/characters.py).
            attention_mask: [B T], the padding mask, 0 for padding; None: no padding.
            positions: int [B T], the position of each word in its sentence, which has no effect here.
            segment_ids: int [B T], the packed sentence of each word, 0 for padding; no state passes from one to
                another.

        Raises:
            ValueError: an input's shape does not fit the others'.
        """
        reads = self.reads(input_ids, attention_mask, positions, segment_ids)
        words = self.words(input_ids, characters, deterministic)
        first, _ = self.layer_1(self.dropout(words, deterministic), **reads)
        last, _ = self.layer_2(self.dropout(first, deterministic), **reads)
        return TaggerOutput(last, (words, first, last) if output_hidden_states else None)


def tagger_parts(config: TaggerConfig) -> tuple[ParameterGroup, ...]:
    """Return the parameter groups: the words, then both layers."""
    return tuple(ParameterGroup((f"{config.system.name}/{part}",)) for part in ("words", "layer_1", "layer_2"))


def upon_language_models(config: type, name: str, encoder: type[TaggerModule]) -> System:
    """Return the system of a tagger that reads the states of a language model for each direction.

    Its parameter groups are the language models, then the tagger. The mixes belong to the task, as the head does.
    Sentences have marks at both ends, as in the language models.
    """
    return System(
        config,
        Kind.ENCODER,
        {Purpose.ENCODING: encoder, Purpose.TOKEN_CLASSIFICATION: TokenClassification},
        name=name,
        reads=("input_ids", "characters"),
        template=lambda config: config.language_model.template,
        parts=lambda config: (ParameterGroup((f"{name}/language_model",)), *tagger_parts(config)),
    )


SYSTEM = declare(
    System(
        TaggerConfig,
        Kind.ENCODER,
        {Purpose.ENCODING: Tagger, Purpose.TOKEN_CLASSIFICATION: TokenClassification},
        name="tagger",
        reads=("input_ids", "characters"),
        template=lambda config: Template("A", "A B"),
        parts=tagger_parts,
        token_table="tagger/words/vectors/embedding",
    )
)
