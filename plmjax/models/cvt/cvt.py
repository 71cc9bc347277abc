"""Cross-view training: an encoder with modules for several tasks, which also learns from unlabelled sentences (Clark
et al., EMNLP 2018, arXiv 1809.08370; tensorflow/models research/cvt_text).

The encoder reads characters and words. The first LSTM has a state for each direction, and the second LSTM reads both:

    x_t = [s w_t ; c_t]     c_t = relu(max over the word of convolutions of its characters), s a learned number
    f_t, b_t = biLSTM_1(x)_t          h_t = biLSTM_2([f ; b])_t

Every task has a primary module and auxiliary modules. The primary module sees the whole sentence. The auxiliary modules
except `full` see restricted views, in which a part of the sentence is hidden. The modules of tagging are listed here
(for parsing see plmjax/models/cvt/parsing.py, for translation plmjax/models/cvt/translation.py):

    primary     softmax(U relu(W [f_t ; b_t ; h_t]))
    full        softmax(U W [f_t ; b_t ; h_t])       everything, without relu
    forwards    softmax(U relu(W f_t))               the word and those before it
    backwards   softmax(U relu(W b_t))               the word and those after it
    future      softmax(U relu(W f_{t-1}))           only words before it
    past        softmax(U relu(W b_{t+1}))           only words after it

On labelled sentences a primary module learns the labels of its task. On unlabelled sentences the auxiliary modules of
every task learn the predictions of its primary module, through which no gradient passes
(plmjax/finetuning/cross_view/cross_view.py). So the encoder learns from all sentences.

Deviation: sentences have no marks at their ends; the released code adds them.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.parameters import as_scale
from plmjax.contracts.scores import TokenScores
from plmjax.contracts.system import Kind, ParameterGroup, Purpose, System, declare
from plmjax.contracts.template import Template
from plmjax.errors import FRACTION, FROM_1, UserError, check_ranges
from plmjax.layers.dropout import Dropout
from plmjax.layers.initializers import uniform
from plmjax.layers.projection import Projection
from plmjax.layers.recurrent.lstm import BidirectionalLstm
from plmjax.layers.recurrent.masks import recurrent_masks
from plmjax.layers.tokens import check_token_inputs
from plmjax.layers.words.character_filters import character_filters
from plmjax.layers.words.characters import CHARACTERS
from plmjax.layers.words.embeddings import Embedding
from plmjax.models.families.task_heads import TokenClassification

PRIMARY = "primary"
TAGGING_VIEWS = ("full", "forwards", "backwards", "future", "past")
"""The auxiliary modules of tagging."""
States = tuple[jax.Array, jax.Array, jax.Array]
"""f and b, [B T P] each, and h [B T 2 P]."""
ViewScores = jax.Array | TokenScores
"""The scores of a module: float32 [B T classes] for every word, or scores of the next word of a translation."""


@dataclasses.dataclass(frozen=True)
class CvtConfig(ModelConfig):
    """Sizes and dropout rates of a CVT model; the defaults are those of the released code."""

    vocab_size: int = 400_000
    """Vocabulary size; all other words share the embedding of the unknown word."""
    word_dim: int = 300
    """Embedding size."""
    max_characters_per_token: int = 22
    """Maximum number of characters of a word, including its two marks; longer words are truncated."""
    character_dim: int = 50
    """Embedding size of a character."""
    filter_widths: tuple[int, ...] = (2, 3, 4)
    """Number of characters that a filter covers, for each group of filters."""
    filter_count: int = 100
    """Number of filters of each width."""
    first_size: int = 1024
    """Hidden size of a cell of the first LSTM."""
    second_size: int = 512
    """Hidden size of a cell of the second LSTM."""
    projection_size: int = 512
    """Output size of an LSTM in each direction, if its cell is larger. It is also the size of a module's hidden layer,
    and of a cell of the LSTM that reads translations.
    """
    parser_size: int = 128
    """Size of a dependent's vector in the parser's products."""
    dropout: float = 0.5
    """Dropout rate in sentences with labels. It applies to words, to the features of their characters, to the LSTMs'
    outputs, and within parsers.
    """
    unlabelled_dropout: float = 0.2
    """Dropout rate in sentences without labels, in the same places."""
    attention_dropout: float = 0.5
    """Dropout rate of the weights of attention, in the view of translation that sees a part of the source."""

    depth: ClassVar[int] = 2
    field_names: ClassVar[dict[str, str]] = {"characters": "max_characters_per_token"}

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "word_dim", "character_dim", "filter_count", "first_size", "second_size")
        check_ranges("model", self, **dict.fromkeys((*sizes, "projection_size", "parser_size"), FROM_1))
        check_ranges("model", self, dropout=FRACTION, unlabelled_dropout=FRACTION, attention_dropout=FRACTION)
        if min(self.filter_widths, default=1) < 1:
            raise UserError(
                f"Expected --model.filter_widths of at least 1, found {min(self.filter_widths)}; change it."
            )
        widest = max(self.filter_widths, default=1)
        check_ranges("model", self, max_characters_per_token=(max(3, widest), math.inf))

    @property
    def width(self) -> int:
        """Size of the primary module's input for a word."""
        return 2 * sum(self.lstm_outputs)

    @property
    def token_width(self) -> int:
        return self.word_dim

    @property
    def lstm_outputs(self) -> tuple[int, int]:
        """Output sizes of both LSTMs in each direction."""
        return min(self.first_size, self.projection_size), min(self.second_size, self.projection_size)

    @property
    def initializer(self) -> Initializer:
        """Glorot's initializer, for everything except the tables."""
        return nn.initializers.glorot_uniform()

    def with_dropout(self, rate: float) -> Self:
        """Return the same sizes with another dropout rate for both kinds of sentence.

        The attention dropout of the views is unchanged.
        """
        return dataclasses.replace(self, dropout=rate, unlabelled_dropout=rate)

    def train_flops(self, batch_size: int, sequence_length: int, predictions: int) -> float:
        """Return the model FLOPs of the encoder in one training step (backward = 2 x forward), matrix products only."""
        places = sum((self.characters - width + 1) * width for width in self.filter_widths)
        words = places * self.character_dim * self.filter_count
        inputs = self.word_dim + len(self.filter_widths) * self.filter_count
        first, second = self.lstm_outputs
        layers = (inputs, self.first_size, first), (2 * first, self.second_size, second)
        lstms = sum(2 * (4 * cell * (below + out) + cell * out) for below, cell, out in layers)
        return 6.0 * batch_size * sequence_length * (words + lstms)


class DropoutOfKind(nn.Module):
    """Dropout with separate rates for labelled and unlabelled rows."""

    config: CvtConfig

    @nn.compact
    def __call__(self, x: jax.Array, unlabelled: jax.Array, deterministic: bool) -> jax.Array:
        """Map [B ...] and bool [B] to [B ...]."""
        labelled = Dropout(self.config.dropout)(x, deterministic)
        others = Dropout(self.config.unlabelled_dropout)(x, deterministic)
        return jnp.where(unlabelled.reshape(-1, *[1] * (x.ndim - 1)), others, labelled)


class Cvt(nn.Module):
    """The words, their characters, and two bidirectional LSTMs."""

    config: CvtConfig
    execution: Execution = Execution()

    @nn.compact
    def __call__(
        self,
        input_ids: jax.Array,
        characters: jax.Array,
        *,
        unlabelled: jax.Array | None = None,
        attention_mask: jax.Array | None = None,
        positions: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        deterministic: bool = True,
    ) -> States:
        """Return the states of all words.

        Args:
            input_ids: int [B T], words.
            characters: int [B T C], the characters of the same words (layers/words/characters.py).
            unlabelled: bool [B], true for rows of unlabelled sentences, which have their own dropout rate; None: all
                rows are labelled.
            attention_mask: [B T], the padding mask, 0 for padding; None: no padding.
            positions: int [B T], the position of each word in its sentence, which has no effect here.
            segment_ids: int [B T], the packed sentence of each word, 0 for padding; no state passes from one to
                another.
            deterministic: disables dropout.

        Raises:
            ValueError: the inputs except `characters` do not all have the shape [B T].
        """
        check_token_inputs(None, "", input_ids, attention_mask, positions, segment_ids)
        config, dtype = self.config, self.execution.dtype
        kind = jnp.zeros(len(input_ids), bool) if unlabelled is None else unlabelled
        reads = recurrent_masks(attention_mask, segment_ids)

        bound = math.sqrt(3 / config.word_dim)
        words = Embedding(config.vocab_size, config.word_dim, "vocab", uniform(bound), dtype, name="words")(input_ids)
        scale = self.param("word_scale", as_scale(nn.initializers.ones, ()), ())
        words = DropoutOfKind(config)(words, kind, deterministic) * scale.astype(dtype)
        x = jnp.concatenate([words, *self._character_features(characters, kind, deterministic)], axis=-1)

        outputs = []
        for layer, size in enumerate((config.first_size, config.second_size), start=1):
            init = nn.initializers.glorot_uniform(in_axis=0, out_axis=-1)
            sizes = {"projected": min(size, config.projection_size), "forget_bias": 1.0}
            x, _ = BidirectionalLstm(size, init, **sizes, dtype=dtype, name=f"lstm_{layer}")(x, **reads)
            x = DropoutOfKind(config)(x, kind, deterministic)
            outputs.append(x)
        return *jnp.split(outputs[0], 2, axis=-1), outputs[1]

    def _character_features(self, characters: jax.Array, kind: jax.Array, deterministic: bool) -> list[jax.Array]:
        """Compute c as a list with the features of each filter width, [B T F] each."""
        config, dtype = self.config, self.execution.dtype
        sizes = (CHARACTERS + 1, config.character_dim, None, self.config.initializer, dtype)
        table = Embedding(*sizes, name="characters")
        x = table(characters.reshape(-1, characters.shape[-1]).astype(jnp.int32))
        found = []
        for number, width in enumerate(config.filter_widths):
            filtered = character_filters(
                self.param, x, width, count=config.filter_count, kernel_init=config.initializer, suffix=f"_{number}"
            )
            spelled = nn.relu(filtered).reshape(*characters.shape[:2], -1)
            found.append(DropoutOfKind(config)(spelled, kind, deterministic))
        return found


class PredictionModule(nn.Module):
    """U activation(W r + a) + c of a view r.

    activated: true for relu, false for no activation.
    """

    config: CvtConfig
    dtype: jnp.dtype
    labels: int
    activated: bool = True

    @nn.compact
    def __call__(self, view: jax.Array) -> jax.Array:
        """Map [B T D] to float32 [B T labels]."""
        init = self.config.initializer
        hidden = Projection((self.config.projection_size,), ("embed", "mlp"), init, self.dtype, name="hidden")(view)
        hidden = nn.relu(hidden) if self.activated else hidden
        return Projection((self.labels,), ("mlp", None), init, self.dtype, logits=True, name="labels")(hidden)


class TaggingModules(nn.Module):
    """The primary module of a tagging task and the auxiliary modules, `TAGGING_VIEWS`."""

    config: CvtConfig
    dtype: jnp.dtype
    labels: int

    @nn.compact
    def __call__(
        self, states: States, tokens: dict[str, jax.Array], names: tuple[str, ...], deterministic: bool
    ) -> dict[str, jax.Array]:
        """Return a dict from each of these modules' names to the scores of every word's labels, float32 [B T labels].

        The scores of `future` at a first word, and of `past` at a last word, have no meaning.
        """
        forward, backward, _ = states
        everything = jnp.concatenate(states, axis=-1)
        seen = {
            PRIMARY: everything,
            "full": everything,
            "forwards": forward,
            "backwards": backward,
            "future": jnp.pad(forward[:, :-1], ((0, 0), (1, 0), (0, 0))),
            "past": jnp.pad(backward[:, 1:], ((0, 0), (0, 1), (0, 0))),
        }
        sizes = self.config, self.dtype, self.labels
        return {name: PredictionModule(*sizes, activated=name != "full", name=name)(seen[name]) for name in names}


@dataclasses.dataclass(frozen=True)
class Head:
    """A task: its name, the function that makes its modules, and the names of the auxiliary modules."""

    task: str
    make: Callable[..., nn.Module]
    views: tuple[str, ...]


class Heads(nn.Module):
    """The modules of all tasks."""

    heads: tuple[Head, ...]

    @nn.compact
    def __call__(self, task: str, *given: Any, method: str = "__call__", **named: Any) -> Any:
        """Call a method of the modules of one task."""
        (head,) = (head for head in self.heads if head.task == task)
        return getattr(head.make(name=task), method)(*given, **named)


class CvtForTasks(nn.Module):
    """The encoder and the modules of every task."""

    config: CvtConfig
    execution: Execution
    heads: tuple[Head, ...]

    def setup(self) -> None:
        self.cvt = Cvt(self.config, self.execution)
        self.classifier = Heads(self.heads)

    def __call__(
        self,
        input_ids: jax.Array,
        characters: jax.Array,
        *,
        segment_ids: jax.Array,
        decoder_input_ids: jax.Array | None = None,
        decoder_segment_ids: jax.Array | None = None,
        deterministic: bool = True,
        **inputs: jax.Array,
    ) -> dict[str, dict[str, ViewScores]]:
        """Take the same as `Cvt` and return a dict from task to a dict from module to its scores.

        decoder_input_ids, decoder_segment_ids: int [B U], the inputs of decoders, if a task is a translation.
        """
        states = self.read(input_ids, characters, segment_ids=segment_ids, deterministic=deterministic, **inputs)
        tokens = {
            "segment_ids": segment_ids,
            "decoder_input_ids": decoder_input_ids,
            "decoder_segment_ids": decoder_segment_ids,
        }
        return {
            head.task: self.view_scores(
                head.task, states, tokens, names=(PRIMARY, *head.views), deterministic=deterministic
            )
            for head in self.heads
        }

    def read(self, input_ids: jax.Array, characters: jax.Array, **inputs: jax.Array | bool) -> States:
        """Take and return the same as `Cvt`."""
        return self.cvt(input_ids, characters, **inputs)

    def view_scores(
        self, task: str, states: States, tokens: dict[str, jax.Array], *, names: tuple[str, ...], deterministic: bool
    ) -> dict[str, ViewScores]:
        """Return a dict from name to scores, for the named modules of one task.

        tokens: the fields of the rows, named as in `__call__`; a task takes the fields that it needs.
        """
        return self.classifier(task, states, tokens, names, deterministic)

    def write(self, task: str, *given: Any, **named: Any) -> Any:
        """Call `TranslationModules.write` for one task."""
        return self.classifier(task, *given, **named, method="write")


def _parts(config: CvtConfig) -> tuple[ParameterGroup, ...]:
    """Return the parameter groups: the words with their characters, then both LSTMs."""
    filters = range(len(config.filter_widths))
    parts = (f"{part}_{number}" for number in filters for part in ("filters", "filter_bias"))
    words = ParameterGroup(tuple(f"cvt/{part}" for part in ("words", "word_scale", "characters", *parts)))
    return words, *(ParameterGroup((f"cvt/lstm_{layer}",)) for layer in (1, 2))


SYSTEM = declare(
    System(
        CvtConfig,
        Kind.ENCODER,
        {Purpose.MULTI_VIEW: CvtForTasks, Purpose.ENCODING: Cvt, Purpose.TOKEN_CLASSIFICATION: TokenClassification},
        name="cvt",
        reads=("input_ids", "characters"),
        template=lambda config: Template("A", "A B"),
        parts=_parts,
        token_table="cvt/words/embedding",
    )
)
