"""A tagger of words from two bidirectional LSTMs over characters and words: what language models are added to.

    x_k = [c_k ; w_k]     c_k = max over the word of tanh(convolution of its characters), w_k the vector of the word
    h_k = biLSTM(biLSTM(x))_k                           (Peters et al., ACL 2017, arXiv 1705.00108, section 2.2;
                                                         characters as in Ma and Hovy 2016, arXiv 1603.01354)

It is the encoder of a tagger: a linear layer and a conditional random field stand on it (models/heads.py). TagLM
(models/taglm.py) and ELMo as features (models/elmo_tagger.py) are the same with the states of a language model.

Deviation: LSTMs of the size that the paper has for chunking; its named entities are found by GRUs.
"""

import dataclasses
import math
from typing import Any, ClassVar, Self

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from plmjax.errors import FROM_1, SHARE, UserError, check_ranges
from plmjax.layers.character_filters import strongest
from plmjax.layers.dropout import Dropout
from plmjax.layers.embeddings import Embedding
from plmjax.layers.execution import Execution
from plmjax.layers.initializers import uniform
from plmjax.layers.lstm import FORGET, BidirectionalLstm
from plmjax.layers.model_config import ModelConfig, ParameterGroup
from plmjax.layers.spelling import CHARACTERS
from plmjax.layers.template import Template
from plmjax.layers.tokens import check_token_inputs, first_of_each
from plmjax.models.elmo import ElmoConfig


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
    character_filters: int = 30
    """Numbers of a word that come from its characters."""
    filter_width: int = 3
    """Characters that a filter covers."""
    hidden_size: int = 200
    """Numbers of an LSTM's cell."""
    dropout: float = 0.25
    """Of the inputs of both LSTMs."""

    depth: ClassVar[int] = 2
    encoder_name: ClassVar[str] = "tagger"
    token_inputs: ClassVar[tuple[str, ...]] = ("input_ids", "characters")
    token_table: ClassVar[str | None] = "tagger/words/vectors/embedding"
    template: ClassVar[Template] = Template("A", "A B")

    def __post_init__(self) -> None:
        """Checks the sizes."""
        sizes = ("vocab_size", "word_dim", "character_dim", "character_filters", "hidden_size")
        check_ranges("model", self, **dict.fromkeys(sizes, FROM_1), dropout=SHARE)
        check_ranges("model", self, max_characters_per_token=(3, math.inf))
        check_ranges("model", self, filter_width=(1, self.max_characters_per_token))

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

    @property
    def characters(self) -> int:
        """The model reads spellings, of so many characters a word."""
        return self.max_characters_per_token

    @property
    def parameter_groups(self) -> tuple[ParameterGroup, ...]:
        """The words, then both LSTMs."""
        return tuple(ParameterGroup((f"{self.encoder_name}/{part}",)) for part in ("words", "lstm_1", "lstm_2"))

    def with_dropout(self, rate: float) -> Self:
        """The same model with another dropout of the LSTMs' inputs."""
        return dataclasses.replace(self, dropout=rate)

    def train_flops(self, batch_size: int, sequence_length: int, predictions: int) -> float:
        """6 for every multiplication of a word."""
        return 6.0 * batch_size * sequence_length * self.multiplications()

    def multiplications(self, first: int = 0, second: int = 0) -> int:
        """Multiplications for one word, where so many numbers more go into the first and the second LSTM."""
        places = self.max_characters_per_token - self.filter_width + 1
        words = places * self.filter_width * self.character_dim * self.character_filters
        sizes = (self.word_dim + self.character_filters + first, 2 * self.hidden_size + second)
        return words + sum(2 * 4 * self.hidden_size * (size + self.hidden_size) for size in sizes)

    def encoder(self, execution: Execution) -> "Tagger":
        """The tagger without its labels."""
        return Tagger(self, execution, name=self.encoder_name)


@dataclasses.dataclass(frozen=True)
class LanguageModelTaggerConfig(TaggerConfig):
    """What the taggers have in common that are given the states of a language model for each direction."""

    language_model: ElmoConfig = ElmoConfig()
    """The language models; those of the checkpoint that a run starts from."""

    token_table: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        """Checks the sizes."""
        super().__post_init__()
        own, theirs = self.max_characters_per_token, self.language_model.max_characters_per_token
        if own != theirs:
            raise UserError(
                f"Expected --model.max_characters_per_token {theirs}, as the language models read words, found {own}; "
                f"set it."
            )

    @property
    def parameter_groups(self) -> tuple[ParameterGroup, ...]:
        """The language models, then the tagger; the mixes are of the task, as the head is."""
        return ParameterGroup((f"{self.encoder_name}/language_model",)), *super().parameter_groups

    @property
    def template(self) -> Template:
        """Sentences are marked at both ends, as the language models know them."""
        return self.language_model.template

    def train_flops(self, batch_size: int, sequence_length: int, predictions: int) -> float:
        """The tagger's, and of the language models, which are not trained, a third: the forward pass."""
        own = super().train_flops(batch_size, sequence_length, predictions)
        return own + self.language_model.train_flops(batch_size, sequence_length, 0) / 3


@flax.struct.dataclass
class TaggerOutput:
    """What the taggers return.

    last_hidden_state: [B T D].
    hidden_states: what each of the LSTMs reads, then the last one; they may differ in width. None unless asked for.
    """

    last_hidden_state: jax.Array
    hidden_states: tuple[jax.Array, ...] | None = None


class WordsAndCharacters(nn.Module):
    """[c_k ; w_k] of every word."""

    config: TaggerConfig
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, input_ids: jax.Array, characters: jax.Array) -> jax.Array:
        """int [B T], int [B T C] of layers/spelling.py -> [B T F + W]."""
        config, bound = self.config, math.sqrt(3 / self.config.character_dim)
        # Id 0 is of no word. A word with its two marks has room for the filters, however short it is.
        sizes = (CHARACTERS + 1, config.character_dim, None, uniform(bound), self.dtype)
        x = Embedding(*sizes, name="characters")(characters.astype(jnp.int32))
        x = x.reshape(-1, *x.shape[-2:])  # [B T C E] -> [N C E]
        shape = (config.filter_width, config.character_dim, config.character_filters)
        kernel = self.param(
            "filters", nn.with_logical_partitioning(nn.initializers.glorot_uniform(), (None, None, "embed")), shape
        )
        bias = self.param("filter_bias", nn.with_logical_partitioning(nn.initializers.zeros, ("embed",)), shape[2:])
        spelled = jnp.tanh(strongest(x, kernel, bias))
        bound = math.sqrt(3 / config.word_dim)
        word = Embedding(config.vocab_size, config.word_dim, "vocab", uniform(bound), self.dtype, name="vectors")
        return jnp.concatenate([spelled.reshape(*input_ids.shape, -1), word(input_ids)], axis=-1)


def _open_forget_gate(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
    """1 for the forget gate's bias and 0 for the others, [4 H] (Ma and Hovy 2016, section 3.2)."""
    return jnp.zeros(shape, dtype).at[FORGET].set(1.0)


class TaggerModule(nn.Module):
    """Base of the taggers: the parts that all of them have."""

    config: Any
    execution: Execution = Execution()

    def setup(self) -> None:
        """The words, and the two LSTMs with dropout before them."""
        config, dtype = self.config, self.execution.dtype
        init = nn.initializers.glorot_uniform(in_axis=0, out_axis=(1, 2))
        self.words = WordsAndCharacters(config, dtype)
        self.dropout = Dropout(config.dropout)
        self.lstm_1 = BidirectionalLstm(config.hidden_size, init, _open_forget_gate, dtype=dtype)
        self.lstm_2 = BidirectionalLstm(config.hidden_size, init, _open_forget_gate, dtype=dtype)

    def chain(
        self,
        input_ids: jax.Array,
        attention_mask: jax.Array | None,
        positions: jax.Array | None,
        segment_ids: jax.Array | None,
    ) -> dict[str, jax.Array]:
        """Where the LSTMs begin anew, and which tokens they pass over, as `Lstm` has them.

        Raises:
            ValueError: an input's shape does not fit the others'.
        """
        check_token_inputs(None, "", input_ids, attention_mask, positions, segment_ids)
        visible = jnp.ones(input_ids.shape, bool) if attention_mask is None else attention_mask > 0
        if segment_ids is None:
            return {"visible": visible}
        return {"visible": visible & (segment_ids > 0), "starts": first_of_each(segment_ids)}


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
        """The states of the second LSTM, [B T 2 H].

        Args:
            input_ids: int [B T], words.
            characters: int [B T C], the same words as layers/spelling.py spells them.
            attention_mask: [B T], 0 for padding; None: there is none.
            positions: int [B T], a word's place in its sentence, which changes nothing here.
            segment_ids: int [B T], which of the packed sentences a word belongs to, 0 for padding; no state goes from
                one to another.

        Raises:
            ValueError: an input's shape does not fit the others'.
        """
        chain = self.chain(input_ids, attention_mask, positions, segment_ids)
        words = self.words(input_ids, characters)
        first, _ = self.lstm_1(self.dropout(words, deterministic), **chain)
        last, _ = self.lstm_2(self.dropout(first, deterministic), **chain)
        return TaggerOutput(last, (words, first, last) if output_hidden_states else None)
