"""ELMo: word vectors from the layers of two language models, one for each direction (Peters et al., NAACL 2018, arXiv
1802.05365; allenai/bilm-tf bilm/training.py and bilm/model.py).

A word is read as its characters, so every word has an embedding. Two stacks of projected LSTMs read the words, one
forward, the other backward. Each predicts the next word in its direction. They share the words' embeddings and the
softmax. A task uses a mix of all layers of both stacks (equation 1):

    ELMo_k = gamma * sum over layers j of s_j h_kj,   s = softmax(w),   h_kj = [forward_kj ; backward_kj]

where layer 0 is the word's own embedding, twice. The mix is in layers/scalar_mix.py, the characters are in
layers/words/characters.py. The embedding of a word is computed by

    characters -> convolutions of several widths -> maximum over the word -> highway layers -> projection

Deviation: the paper mentions a residual connection between layers. Here, as in the released code, there is one around
each LSTM layer except the first.
Deviation: a residual connection adds the inputs of a layer after their dropout, as in the released code.
"""

import dataclasses
import math
from typing import Any, ClassVar

import chex
import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.parameters import as_bias
from plmjax.contracts.sizes import Size
from plmjax.contracts.system import Kind, ParameterGroup, Purpose, System, declare
from plmjax.contracts.template import Template
from plmjax.errors import FRACTION, FROM_0, FROM_1, UserError, check_ranges
from plmjax.layers.dropout import Dropout
from plmjax.layers.initializers import uniform
from plmjax.layers.partitioning import shard_hidden
from plmjax.layers.projection import Projection
from plmjax.layers.recurrent.lstm import Lstm, LstmState
from plmjax.layers.recurrent.masks import recurrent_masks
from plmjax.layers.words.character_filters import character_filters
from plmjax.layers.words.characters import CHARACTERS
from plmjax.layers.words.vocabulary_scores import VocabularyScores
from plmjax.models.families.task_heads import TokenClassification

DIRECTIONS = ("forward", "backward")

States = dict[str, tuple[LstmState, ...]]
"""Dict from direction to the states of every layer."""


@dataclasses.dataclass(frozen=True)
class ElmoConfig(ModelConfig):
    """Sizes of an ELMo; the defaults are those of the published elmo_2x4096_512_2048cnn_2xhighway."""

    vocab_size: int = 793_471
    """Vocabulary size of the softmax; words outside the vocabulary can still be read."""
    max_characters_per_token: int = 50
    """Maximum number of characters of a word, including its two marks; longer words are truncated."""
    character_dim: int = 16
    """Embedding size of a character."""
    filter_widths: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7)
    """Number of characters that a filter covers, for each group of filters."""
    filter_counts: tuple[int, ...] = (32, 32, 64, 128, 256, 512, 1024)
    """Number of filters in each group."""
    n_highway: int = 2
    """Number of highway layers."""
    n_layers: int = 2
    """Number of LSTM layers in each direction, L."""
    dim: int = 4096
    """Hidden size of an LSTM's cell."""
    projection_dim: int = 512
    """Embedding size, also the size of an LSTM's output, P."""
    cell_clip: float = 3.0
    """Largest absolute value in a cell."""
    proj_clip: float = 3.0
    """Largest absolute value in an LSTM's output."""
    use_skip_connections: bool = True
    """True to add the inputs of every LSTM layer, except the first, to its outputs."""
    dropout: float = 0.1
    """Dropout rate of the inputs of every LSTM layer, and of the output of the last layer."""

    field_names: ClassVar[dict[str, str]] = {"depth": "n_layers", "characters": "max_characters_per_token"}

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "character_dim", "n_layers", "dim", "projection_dim")
        check_ranges("model", self, **dict.fromkeys(sizes, FROM_1), n_highway=FROM_0, dropout=FRACTION)
        check_ranges("model", self, max_characters_per_token=(3, math.inf))
        check_ranges("model", self, **dict.fromkeys(("cell_clip", "proj_clip"), (1e-6, math.inf)))
        widths, counts = self.filter_widths, self.filter_counts
        if not widths or len(widths) != len(counts) or min(*widths, *counts) < 1:
            raise UserError(
                f"Expected as many --model.filter_counts as --model.filter_widths, all of at least 1, found "
                f"{len(counts)} and {len(widths)}; change one of them."
            )
        if max(widths) > self.max_characters_per_token:
            raise UserError(
                f"Expected --model.filter_widths of at most the {self.max_characters_per_token} characters of a word, "
                f"found {max(widths)}; lower it."
            )

    original = Size("93,600,848 parameters, with the softmax 500,651,471.")
    tiny = Size(
        "Filters of four widths, 64 numbers a word, cells of 128.",
        vocab_size=8192,
        max_characters_per_token=24,
        character_dim=8,
        filter_widths=(1, 2, 3, 4),
        filter_counts=(16, 16, 32, 32),
        n_highway=1,
        dim=128,
        projection_dim=64,
    )

    @property
    def width(self) -> int:
        """Hidden size of a word, both directions together."""
        return 2 * self.projection_dim

    @property
    def filters(self) -> int:
        """Number of filters of all widths."""
        return sum(self.filter_counts)

    def zero_states(self, batch_size: int) -> States:
        """Return the states before a text."""
        state = LstmState.zeros(batch_size, self.dim, self.projection_dim)
        return {way: (state,) * self.n_layers for way in DIRECTIONS}

    def train_flops(self, batch_size: int, sequence_length: int, predictions: int) -> float:
        """Return the model FLOPs of one training step, matrix products only (backward = 2 x forward).

        In pretraining each direction reads different words, and a prediction computes the scores of all words. With 0
        predictions both directions read the same words, and their embeddings are computed once.
        """
        kernels = zip(self.filter_widths, self.filter_counts, strict=True)
        longest = self.max_characters_per_token
        word = sum((longest - width + 1) * width * self.character_dim * count for width, count in kernels)
        word += self.n_highway * 2 * self.filters**2 + self.filters * self.projection_dim
        layer = 2 * self.projection_dim * 4 * self.dim + self.dim * self.projection_dim
        words = (2 if predictions else 1) * word + 2 * self.n_layers * layer
        softmax = 2 * predictions * self.projection_dim * self.vocab_size
        return 6.0 * batch_size * (sequence_length * words + softmax)


@flax.struct.dataclass
class ElmoOutput:
    """The output of the encoder.

    last_hidden_state: [B T 2 P], both directions of the last layer.
    hidden_states: [L+1 B T 2 P], the words' embeddings twice, then both directions of each layer; None unless
        requested.
    states: states after the last word in each direction.
    """

    last_hidden_state: jax.Array
    hidden_states: jax.Array | None
    states: States


@flax.struct.dataclass
class ElmoScores:
    """The output of the pretraining module.

    scores: dict from direction to the scores of the word after each word in that direction.
    states: states after the last words.
    """

    scores: dict[str, VocabularyScores]
    states: States


class Highway(nn.Module):
    """g relu(W x + b) + (1 - g) x with g = sigmoid(V x + c) (Srivastava et al., arXiv 1505.00387).

    The bias c is -2 at first, so that g is small. The released code calls this gate `carry`, although g is the weight
    of the transformation.
    """

    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Map [... F] to [... F]."""
        sizes, shut = (x.shape[-1:], ("embed", "mlp"), _scaled_normal, self.dtype), nn.initializers.constant(-2.0)
        gate = nn.sigmoid(Projection(*sizes, bias_init=shut, name="gate")(x))
        return gate * nn.relu(Projection(*sizes, name="transform")(x)) + (1 - gate) * x


class WordEncoder(nn.Module):
    """The embedding of a word, computed from its characters (Kim et al. 2016, arXiv 1508.06615)."""

    config: ElmoConfig
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, characters: jax.Array) -> jax.Array:
        """Map characters (layers/words/characters.py), int [B T C], to [B T P]."""
        config = self.config
        table = self.param("characters", _named(uniform(1.0), None, None), (CHARACTERS, config.character_dim))
        table = jnp.pad(table, ((1, 0), (0, 0)))  # id 0 is padding
        x = jnp.take(table, characters, axis=0, mode="clip").astype(self.dtype)
        x = x.reshape(-1, *x.shape[-2:])  # [B T C E] -> [N C E]
        found = []
        for number, (width, count) in enumerate(zip(config.filter_widths, config.filter_counts, strict=True)):
            filtered = character_filters(
                self.param, x, width, count=count, kernel_init=uniform(0.05), suffix=f"_{number}"
            )
            found.append(nn.relu(filtered))
        x = jnp.concatenate(found, axis=-1)  # [N F]
        for number in range(config.n_highway):
            x = Highway(self.dtype, name=f"highway_{number}")(x)
        x = Projection((config.projection_dim,), ("mlp", "embed"), _scaled_normal, self.dtype, name="projection")(x)
        x = x.reshape(*characters.shape[:-1], -1)
        return shard_hidden(x)


class LanguageModel(nn.Module):
    """The LSTM layers of one direction. They read the words in the order of that direction."""

    config: ElmoConfig
    dtype: jnp.dtype

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        states: tuple[LstmState, ...],
        *,
        starts: jax.Array | None = None,
        visible: jax.Array | None = None,
        deterministic: bool = True,
    ) -> tuple[list[jax.Array], tuple[LstmState, ...]]:
        """Map [B T P] to the outputs of every layer [B T P], and their states after the last word that is read.

        starts, visible: as in `plmjax.layers.recurrent.lstm.recurrence`.
        """
        config, outputs, after = self.config, [], []
        for layer, before in enumerate(states):
            lstm = Lstm(
                config.dim,
                _joint_glorot(config.projection_dim),
                projected=config.projection_dim,
                cell_clip=config.cell_clip,
                projection_clip=config.proj_clip,
                forget_bias=1.0,
                dtype=self.dtype,
                name=f"layer_{layer}",
            )
            x = Dropout(config.dropout)(x, deterministic)
            y, state = lstm(x, before, starts=starts, visible=visible)
            x = x + y if config.use_skip_connections and layer > 0 else y
            outputs.append(x)
            after.append(state)
        return outputs, tuple(after)


class ElmoModel(nn.Module):
    """The two language models without their softmax."""

    config: ElmoConfig
    execution: Execution = Execution()

    def setup(self) -> None:
        dtype = self.execution.dtype
        self.words = WordEncoder(self.config, dtype)
        self.forward = LanguageModel(self.config, dtype)
        self.backward = LanguageModel(self.config, dtype)

    def __call__(
        self,
        characters: jax.Array,
        attention_mask: jax.Array | None = None,
        *,
        states: States | None = None,
        positions: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        deterministic: bool = True,
        output_hidden_states: bool = False,
    ) -> ElmoOutput:
        """Run both directions over the same words.

        Args:
            characters: int [B T C], sentences with their marks, as defined in layers/words/characters.py.
            attention_mask: [B T], the padding mask, 0 for padding; None: no padding.
            states: states before the first word of each direction; None: zero.
            positions: int [B T], the position of each word in its sentence, which has no effect here.
            segment_ids: int [B T], the packed sentence of each word, 0 for padding; every sentence begins with states
                of zeros.
            output_hidden_states: returns the embeddings and all layers.

        Raises:
            AssertionError: an input other than `characters` does not have the shape [B T].
        """
        for x in (attention_mask, positions, segment_ids):
            if x is not None:
                chex.assert_shape(x, characters.shape[:2])
        read = attention_mask, segment_ids
        reversed_ = (None if x is None else x[:, ::-1] for x in read)
        states = self.config.zero_states(len(characters)) if states is None else states
        words = self.words(characters)
        forward, after = self.forward(words, states["forward"], **recurrent_masks(*read), deterministic=deterministic)
        backward, before = self.backward(
            words[:, ::-1], states["backward"], **recurrent_masks(*reversed_), deterministic=deterministic
        )
        layers = [(words, words), *((one, other[:, ::-1]) for one, other in zip(forward, backward, strict=True))]
        hidden = [jnp.concatenate(both, axis=-1) for both in layers]
        all_layers = jnp.stack(hidden) if output_hidden_states else None
        return ElmoOutput(hidden[-1], all_layers, {"forward": after, "backward": before})

    def read(self, way: str, characters: jax.Array, states: tuple[LstmState, ...], **reads: Any) -> Any:
        """Run one direction, as `LanguageModel` does.

        characters: int [B T C], words in the order of that direction.
        """
        return getattr(self, way)(self.words(characters), states, **reads)


class ElmoForPreTraining(nn.Module):
    """Both directions, each over a different part of a text, with a shared softmax."""

    config: ElmoConfig
    execution: Execution = Execution()

    @nn.compact
    def __call__(
        self,
        characters: dict[str, jax.Array],
        starts: dict[str, jax.Array],
        visible: dict[str, jax.Array],
        states: States,
        *,
        deterministic: bool = True,
    ) -> ElmoScores:
        """Compute the scores that each direction gives to the next word, in the order of that direction.

        Each direction reads its own part of a text.

        Args:
            characters: dict from direction to int [B T C].
            starts: dict from direction to bool [B T], true at the first word of a document in the order of that
                direction.
            visible: dict from direction to bool [B T], the padding mask, false for padding.
            states: states before the first word of each direction.
        """
        config = self.config
        elmo = ElmoModel(config, self.execution, name=config.system.name)
        table = self.param(
            "softmax_kernel", _named(_scaled_normal_rows, "vocab", "embed"), (config.vocab_size, config.projection_dim)
        )
        bias = self.param("softmax_bias", as_bias(nn.initializers.zeros, ("vocab",)), (config.vocab_size,))
        scores, after = {}, {}
        for way in DIRECTIONS:
            reads = {"starts": starts[way], "visible": visible[way], "deterministic": deterministic}
            layers, after[way] = elmo.read(way, characters[way], states[way], **reads)
            hidden = Dropout(config.dropout, name=f"{way}_dropout")(layers[-1], deterministic)
            scores[way] = VocabularyScores(hidden, table, bias)
        return ElmoScores(scores, after)


def _named(init: Initializer, *axes: str | None) -> Initializer:
    return nn.with_logical_partitioning(init, axes)


def _scaled_normal(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
    """Sample normal values [inputs outputs]; the standard deviation is 1 / sqrt(inputs)."""
    return jax.random.normal(key, shape, dtype) / math.sqrt(shape[0])


def _scaled_normal_rows(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
    """Sample as `_scaled_normal` does, for a table whose rows are the outputs."""
    return jax.random.normal(key, shape, dtype) / math.sqrt(shape[1])


def _joint_glorot(inputs: int) -> Initializer:
    """Return Glorot's uniform initializer for two kernels that the released code initializes as one.

    The one kernel is [inputs + outputs, 4 cells], with as many outputs as inputs.
    """

    def init(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
        fans = 2 * inputs + math.prod(shape[1:]) if len(shape) == 3 else sum(shape)
        return uniform(math.sqrt(6 / fans))(key, shape, dtype)

    return init


def _parts(config: ElmoConfig) -> tuple[ParameterGroup, ...]:
    """Return the parameter groups: the words' embeddings, then the layers of both directions."""
    layers = [tuple(f"elmo/{way}/layer_{layer}" for way in DIRECTIONS) for layer in range(config.n_layers)]
    return tuple(ParameterGroup(prefixes) for prefixes in [("elmo/words",), *layers])


SYSTEM = declare(
    System(
        ElmoConfig,
        Kind.ENCODER,
        {
            Purpose.PRETRAINING: ElmoForPreTraining,
            Purpose.ENCODING: ElmoModel,
            Purpose.EMBEDDING: ElmoModel,
            Purpose.TOKEN_CLASSIFICATION: TokenClassification,
        },
        name="elmo",
        reads=("characters",),
        template=lambda config: Template("begin A end", "begin A end begin B end"),
        parts=_parts,
        instead="tag words with it, or take its vectors from plmjax embed",
    )
)
