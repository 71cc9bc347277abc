"""A tagger of words from bidirectional recurrent layers over words and their characters, for language models to add to.

    x_k = [c_k ; w_k]     c_k from the characters of the word, w_k its vector
    h_k = biRNN(biRNN(x))_k                             (Peters et al., ACL 2017, arXiv 1705.00108, section 2.2)

The paper's chunker has LSTMs, and c_k = max over the word of tanh(convolution of its characters) (Ma and Hovy 2016,
arXiv 1603.01354). Its model for named entities has GRUs, for the characters too: c_k is the last states of both
directions of two bidirectional GRUs.

It is the encoder of a tagger: a linear layer and a conditional random field stand on it
(models/families/task_heads.py). TagLM (models/taglm.py) and ELMo as features (models/taggers/elmo_tagger.py) are the
same with the states of a language model.
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
from plmjax.errors import FROM_1, SHARE, UserError, check_choice, check_ranges
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
    """Sizes; the defaults are those of the paper's chunker where it tells them."""

    vocab_size: int = 8192
    """Words that have a vector; all others share that of the unknown one."""
    word_dim: int = 50
    """Numbers of a word's vector."""
    max_characters_per_token: int = 50
    """Characters of a word, its two marks included; longer words are cut."""
    character_dim: int = 25
    """Numbers of a character's vector."""
    character_features: int = 30
    """Filters over the characters of a word; or numbers of the state of the GRUs that read them, in each direction."""
    filter_width: int = 3
    """Characters that a filter covers; 0: two bidirectional GRUs read the characters instead."""
    cell: str = "lstm"
    """The recurrent layers over words: lstm or gru."""
    hidden_size: int = 200
    """Numbers of their cells, in each direction."""
    dropout: float = 0.25
    """Of the inputs of all recurrent layers."""

    depth: ClassVar[int] = 2
    field_names: ClassVar[dict[str, str]] = {"characters": "max_characters_per_token"}

    def __post_init__(self) -> None:
        """Checks the sizes."""
        sizes = ("vocab_size", "word_dim", "character_dim", "character_features", "hidden_size")
        check_ranges("model", self, **dict.fromkeys(sizes, FROM_1), dropout=SHARE)
        check_ranges("model", self, max_characters_per_token=(3, math.inf))
        check_ranges("model", self, filter_width=(0, self.max_characters_per_token))
        check_choice("--start.tagger.cell", self.cell, tuple(CELLS))

    named_entities = Size(
        "The paper's sizes for named entities: GRUs, of the characters too.",
        cell="gru",
        hidden_size=300,
        character_features=80,
        filter_width=0,
    )

    @property
    def width(self) -> int:
        """Numbers of a word that the head is given."""
        return 2 * self.hidden_size

    @property
    def token_width(self) -> int:
        """Numbers of a word's vector."""
        return self.word_dim

    @property
    def initializer(self) -> Initializer:
        """Of the head."""
        return nn.initializers.glorot_uniform()

    def with_dropout(self, rate: float) -> Self:
        """The same model with another dropout of the layers' inputs."""
        return dataclasses.replace(self, dropout=rate)

    def train_flops(self, batch_size: int, sequence_length: int, predictions: int) -> float:
        """6 for every multiplication of a word."""
        return 6.0 * batch_size * sequence_length * self.multiplications()

    def multiplications(self, first: int = 0, second: int = 0) -> int:
        """Multiplications for one word, where so many numbers more go into the first and the second layer."""
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
    """What the taggers have in common that are given the states of a language model for each direction."""

    language_model: ElmoConfig = ElmoConfig()
    """The language models; those of the checkpoint that a run starts from."""

    def __post_init__(self) -> None:
        """Checks the sizes."""
        super().__post_init__()
        own, theirs = self.max_characters_per_token, self.language_model.max_characters_per_token
        if own != theirs:
            raise UserError(
                f"Expected --start.tagger.max_characters_per_token {theirs}, as the language models read words, found "
                f"{own}; set it."
            )

    def train_flops(self, batch_size: int, sequence_length: int, predictions: int) -> float:
        """The tagger's, and of the language models, which are not trained, a third: the forward pass."""
        own = super().train_flops(batch_size, sequence_length, predictions)
        return own + self.language_model.train_flops(batch_size, sequence_length, 0) / 3


@flax.struct.dataclass
class TaggerOutput:
    """What the taggers return.

    last_hidden_state: [B T D].
    hidden_states: what each of the two layers reads, then the last; they may differ in width. None unless asked for.
    """

    last_hidden_state: jax.Array
    hidden_states: tuple[jax.Array, ...] | None = None


def _open_forget_gate(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
    """1 for the forget gate's bias and 0 for the others, [4 H] (Ma and Hovy 2016, section 3.2)."""
    return jnp.zeros(shape, dtype).at[FORGET].set(1.0)


CELLS = {
    "lstm": (functools.partial(BidirectionalLstm, bias_init=_open_forget_gate), lstm.GATES),
    "gru": (BidirectionalGru, gru.GATES),
}
"""Name of a cell -> its layer of both directions, and how many gates it has."""
KERNEL_INIT = nn.initializers.glorot_uniform(in_axis=0, out_axis=(1, 2))
"""Of the recurrent layers."""


def recurrent_multiplications(cell: str, inputs: int, hidden_size: int) -> int:
    """Multiplications of a layer of both directions for one token."""
    _, gates = CELLS[cell]
    return 2 * gates * hidden_size * (inputs + hidden_size)


class Words(nn.Module):
    """[c_k ; w_k] of every word."""

    config: TaggerConfig
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, input_ids: jax.Array, characters: jax.Array, deterministic: bool) -> jax.Array:
        """int [B T], int [B T C] of words/characters.py -> [B T F + W], or [B T 2 F + W] where GRUs read characters."""
        config, bound = self.config, math.sqrt(3 / self.config.character_dim)
        # Id 0 is of no word. A word with its two marks has room for the filters, however short it is.
        sizes = (CHARACTERS + 1, config.character_dim, None, uniform(bound), self.dtype)
        x = Embedding(*sizes, name="characters")(characters.astype(jnp.int32))
        x = x.reshape(-1, *x.shape[-2:])  # [B T C E] -> [N C E]
        if config.filter_width == 0:
            spelled = self._read(x, characters.reshape(-1, characters.shape[-1]), deterministic)
        else:
            init = nn.initializers.glorot_uniform()
            filtered = character_filters(self.param, x, config.filter_width, config.character_features, init)
            spelled = jnp.tanh(filtered)
        bound = math.sqrt(3 / config.word_dim)
        word = Embedding(config.vocab_size, config.word_dim, "vocab", uniform(bound), self.dtype, name="vectors")
        return jnp.concatenate([spelled.reshape(*input_ids.shape, -1), word(input_ids)], axis=-1)

    def _read(self, x: jax.Array, characters: jax.Array, deterministic: bool) -> jax.Array:
        """[N C E], int [N C] -> [N 2 F]: what both directions know when they have read the word and its marks."""
        visible, dropout = (characters > 0) & (characters != PADDING + 1), Dropout(self.config.dropout)
        for number in (1, 2):
            layer = BidirectionalGru(
                self.config.character_features, KERNEL_INIT, dtype=self.dtype, name=f"character_layer_{number}"
            )
            x, last = layer(dropout(x, deterministic), visible=visible)
        return jnp.concatenate(last, axis=-1).astype(self.dtype)


class TaggerModule(nn.Module):
    """Base of the taggers: the parts that all of them have."""

    config: Any
    execution: Execution = Execution()

    def setup(self) -> None:
        """The words, and the two layers with dropout before them."""
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
        """The `visible` and `starts` of the layers.

        Raises:
            ValueError: an input's shape does not fit the others'.
        """
        check_token_inputs(None, "", input_ids, attention_mask, positions, segment_ids)
        return recurrent_masks(attention_mask, segment_ids)


class Tagger(TaggerModule):
    """Without any language model."""

    def __call__(
        self,
        input_ids: jax.Array,
        characters: jax.Array,
        attention_mask: jax.Array | None = None,
        positions: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        *,
        deterministic: bool = True,
        output_hidden_states: bool = False,
    ) -> TaggerOutput:
        """The states of the second layer, [B T 2 H].

        Args:
            input_ids: int [B T], words.
            characters: int [B T C], the same words as layers/words/characters.py spells them.
            attention_mask: [B T], 0 for padding; None: there is none.
            positions: int [B T], a word's place in its sentence, which changes nothing here.
            segment_ids: int [B T], which of the packed sentences a word belongs to, 0 for padding; no state goes from
                one to another.

        Raises:
            ValueError: an input's shape does not fit the others'.
        """
        reads = self.reads(input_ids, attention_mask, positions, segment_ids)
        words = self.words(input_ids, characters, deterministic)
        first, _ = self.layer_1(self.dropout(words, deterministic), **reads)
        last, _ = self.layer_2(self.dropout(first, deterministic), **reads)
        return TaggerOutput(last, (words, first, last) if output_hidden_states else None)


def tagger_parts(config: TaggerConfig) -> tuple[ParameterGroup, ...]:
    """The words, then both layers."""
    return tuple(ParameterGroup((f"{config.system.name}/{part}",)) for part in ("words", "layer_1", "layer_2"))


def upon_language_models(config: type, name: str, encoder: type[TaggerModule]) -> System:
    """The system of a tagger that is given the states of a language model for each direction.

    Its parts are the language models, then the tagger; the mixes are of the task, as the head is. Sentences are marked
    at both ends, as the language models know them.
    """
    return System(
        config,
        Kind.ENCODER,
        {Purpose.ENCODING: encoder, Purpose.TOKEN_LABELS: TokenClassification},
        name=name,
        reads=("input_ids", "characters"),
        template=lambda config: config.language_model.template,
        parts=lambda config: (ParameterGroup((f"{name}/language_model",)), *tagger_parts(config)),
    )


SYSTEM = declare(
    System(
        TaggerConfig,
        Kind.ENCODER,
        {Purpose.ENCODING: Tagger, Purpose.TOKEN_LABELS: TokenClassification},
        name="tagger",
        reads=("input_ids", "characters"),
        template=lambda config: Template("A", "A B"),
        parts=tagger_parts,
        token_table="tagger/words/vectors/embedding",
    )
)
