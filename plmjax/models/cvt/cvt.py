"""Cross-view training: an encoder with modules for several tasks, which learns from sentences without labels too (Clark
et al., EMNLP 2018, arXiv 1809.08370; tensorflow/models research/cvt_text).

The encoder reads characters and words; its first LSTM has a state for each direction, the second reads both:

    x_t = [c_t ; s w_t]     c_t = relu(max over the word of convolutions of its characters), s a learned number
    f_t, b_t = biLSTM_1(x)_t          h_t = biLSTM_2([f ; b])_t

Every task has a primary module, which sees all of it, and auxiliary modules, which see restricted views, in which a
part of the sentence is hidden. Those of tagging (of parsing: plmjax/models/cvt/parsing.py; of translation:
plmjax/models/cvt/translation.py):

    primary     softmax(U relu(W [f_t ; b_t ; h_t]))
    full        softmax(U W [f_t ; b_t ; h_t])       no relu; everything
    forwards    softmax(U relu(W f_t))               the word and those before it
    backwards   softmax(U relu(W b_t))               the word and those after it
    future      softmax(U relu(W f_{t-1}))           only words before it
    past        softmax(U relu(W b_{t+1}))           only words after it

On labelled sentences a primary module learns the labels of its task; on others the auxiliary modules of every task
learn what its primary one says there, which is not changed by that (plmjax/finetuning/cross_view/cross_view.py). So the
encoder learns from all sentences.

Deviation: sentences have no marks at their ends, which the released code gives them.
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
from plmjax.contracts.scores import TokenScores
from plmjax.contracts.system import Kind, ParameterGroup, Purpose, System, declare
from plmjax.contracts.template import Template
from plmjax.errors import FROM_1, SHARE, check_ranges
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
Said = jax.Array | TokenScores
"""The scores of a module, float32 [B T classes] of every word, or those of the words of a translation."""


@dataclasses.dataclass(frozen=True)
class CvtConfig(ModelConfig):
    """Sizes; the defaults are those of the released code."""

    vocab_size: int = 400_000
    """Words that have a vector; all others share that of the unknown one."""
    word_dim: int = 300
    """Numbers of a word's vector."""
    max_characters_per_token: int = 22
    """Characters of a word, its two marks included; longer words are cut."""
    character_dim: int = 50
    """Numbers of a character's vector."""
    filter_widths: tuple[int, ...] = (2, 3, 4)
    """Characters that a filter covers, of each group of filters."""
    filter_count: int = 100
    """Filters of each width."""
    first_size: int = 1024
    """Numbers of a cell of the first LSTM."""
    second_size: int = 512
    """Numbers of a cell of the second LSTM."""
    projection_size: int = 512
    """Numbers of an LSTM's output in each direction, if its cell has more; of a module's hidden layer, and of a cell
    of the LSTM that reads translations."""
    parser_size: int = 128
    """Numbers of a dependent in the parser's products."""
    dropout: float = 0.5
    """Of words, of what their characters say, of the LSTMs' outputs, and within parsers, in sentences with labels."""
    unlabelled_dropout: float = 0.2
    """The same in sentences without labels."""
    attention_dropout: float = 0.5
    """Of the weights of attention, in the view of translation that sees a part of the source."""

    depth: ClassVar[int] = 2
    field_names: ClassVar[dict[str, str]] = {"characters": "max_characters_per_token"}

    def __post_init__(self) -> None:
        """Checks the sizes."""
        sizes = ("vocab_size", "word_dim", "character_dim", "filter_count", "first_size", "second_size")
        check_ranges("model", self, **dict.fromkeys((*sizes, "projection_size", "parser_size"), FROM_1))
        check_ranges("model", self, dropout=SHARE, unlabelled_dropout=SHARE, attention_dropout=SHARE)
        widest = max(self.filter_widths, default=1)
        check_ranges("model", self, max_characters_per_token=(max(3, widest), math.inf))

    @property
    def width(self) -> int:
        """Numbers of a word that the primary module is given."""
        return 2 * sum(self.lstm_outputs)

    @property
    def token_width(self) -> int:
        """Numbers of a word's vector."""
        return self.word_dim

    @property
    def lstm_outputs(self) -> tuple[int, int]:
        """Numbers of both LSTMs' outputs in each direction."""
        return min(self.first_size, self.projection_size), min(self.second_size, self.projection_size)

    @property
    def initializer(self) -> Initializer:
        """Glorot's, of everything but the tables."""
        return nn.initializers.glorot_uniform()

    def with_dropout(self, rate: float) -> Self:
        """The same sizes with another rate, for both kinds of sentences; what views see stays as it is."""
        return dataclasses.replace(self, dropout=rate, unlabelled_dropout=rate)

    def train_flops(self, batch_size: int, sequence_length: int, predictions: int) -> float:
        """6 for every multiplication of a word."""
        places = sum((self.characters - width + 1) * width for width in self.filter_widths)
        words = places * self.character_dim * self.filter_count
        inputs = self.word_dim + len(self.filter_widths) * self.filter_count
        first, second = self.lstm_outputs
        layers = (inputs, self.first_size, first), (2 * first, self.second_size, second)
        lstms = sum(2 * (4 * cell * (below + out) + cell * out) for below, cell, out in layers)
        return 6.0 * batch_size * sequence_length * (words + lstms)


class DropoutOfKind(nn.Module):
    """Dropout with a rate for labelled rows and one for the others."""

    config: CvtConfig

    @nn.compact
    def __call__(self, x: jax.Array, unlabelled: jax.Array, deterministic: bool) -> jax.Array:
        """[B ...], bool [B] -> [B ...]."""
        labelled = Dropout(self.config.dropout)(x, deterministic)
        others = Dropout(self.config.unlabelled_dropout)(x, deterministic)
        return jnp.where(unlabelled.reshape(-1, *[1] * (x.ndim - 1)), others, labelled)


class Cvt(nn.Module):
    """The words, their spelling, and two LSTMs of both directions."""

    config: CvtConfig
    execution: Execution = Execution()

    @nn.compact
    def __call__(
        self,
        input_ids: jax.Array,
        characters: jax.Array,
        unlabelled: jax.Array | None = None,
        attention_mask: jax.Array | None = None,
        positions: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        *,
        deterministic: bool = True,
    ) -> States:
        """The states of all words.

        Args:
            input_ids: int [B T], words.
            characters: int [B T C], the same words as layers/words/characters.py spells them.
            unlabelled: bool [B], the rows whose dropout is that of sentences without labels; None: there are none.
            attention_mask: [B T], 0 for padding; None: there is none.
            positions: int [B T], a word's place in its sentence, which changes nothing here.
            segment_ids: int [B T], which of the packed sentences a word belongs to, 0 for padding; no state goes from
                one to another.
            deterministic: without dropout.

        Raises:
            ValueError: an input's shape does not fit the others'.
        """
        check_token_inputs(None, "", input_ids, attention_mask, positions, segment_ids)
        config, dtype = self.config, self.execution.dtype
        kind = jnp.zeros(len(input_ids), bool) if unlabelled is None else unlabelled
        reads = recurrent_masks(attention_mask, segment_ids)

        bound = math.sqrt(3 / config.word_dim)
        words = Embedding(config.vocab_size, config.word_dim, "vocab", uniform(bound), dtype, name="words")(input_ids)
        scale = self.param("word_scale", nn.with_logical_partitioning(nn.initializers.ones, ()), ())
        words = DropoutOfKind(config)(words, kind, deterministic) * scale.astype(dtype)
        x = jnp.concatenate([words, *self._spelled(characters, kind, deterministic)], axis=-1)

        outputs = []
        for layer, size in enumerate((config.first_size, config.second_size), start=1):
            init = nn.initializers.glorot_uniform(in_axis=0, out_axis=-1)
            sizes = {"projected": min(size, config.projection_size), "forget_bias": 1.0}
            x, _ = BidirectionalLstm(size, init, **sizes, dtype=dtype, name=f"lstm_{layer}")(x, **reads)
            x = DropoutOfKind(config)(x, kind, deterministic)
            outputs.append(x)
        return *jnp.split(outputs[0], 2, axis=-1), outputs[1]

    def _spelled(self, characters: jax.Array, kind: jax.Array, deterministic: bool) -> list[jax.Array]:
        """c, the filters of each width: [B T F]."""
        config, dtype = self.config, self.execution.dtype
        sizes = (CHARACTERS + 1, config.character_dim, None, self.config.initializer, dtype)
        table = Embedding(*sizes, name="characters")
        x = table(characters.reshape(-1, characters.shape[-1]).astype(jnp.int32))
        found = []
        for number, width in enumerate(config.filter_widths):
            filtered = character_filters(self.param, x, width, config.filter_count, config.initializer, f"_{number}")
            spelled = nn.relu(filtered).reshape(*characters.shape[:2], -1)
            found.append(DropoutOfKind(config)(spelled, kind, deterministic))
        return found


class PredictionModule(nn.Module):
    """U activation(W r + a) + c of a view r."""

    config: CvtConfig
    dtype: jnp.dtype
    labels: int
    activated: bool = True

    @nn.compact
    def __call__(self, view: jax.Array) -> jax.Array:
        """[B T D] -> float32 [B T labels]."""
        init = self.config.initializer
        hidden = Projection((self.config.projection_size,), ("embed", "mlp"), init, self.dtype, name="hidden")(view)
        hidden = nn.relu(hidden) if self.activated else hidden
        return Projection((self.labels,), ("mlp", None), init, self.dtype, logits=True, name="labels")(hidden)


class TaggingModules(nn.Module):
    """The primary module of a tagging task and those of `TAGGING_VIEWS`."""

    config: CvtConfig
    dtype: jnp.dtype
    labels: int

    @nn.compact
    def __call__(
        self, states: States, tokens: dict[str, jax.Array], names: tuple[str, ...], deterministic: bool
    ) -> dict[str, jax.Array]:
        """Scores of every word's label by the modules of these names, float32 [B T labels].

        `future` of a first word, and `past` of a last one, mean nothing.
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
    """The modules of a task: its name, how they are made, and the names of the auxiliary ones."""

    task: str
    make: Callable[..., nn.Module]
    views: tuple[str, ...]


class Heads(nn.Module):
    """The modules of all tasks."""

    heads: tuple[Head, ...]

    @nn.compact
    def __call__(self, task: str, *given: Any, method: str = "__call__") -> Any:
        """A method of the modules of one task."""
        (head,) = (head for head in self.heads if head.task == task)
        return getattr(head.make(name=task), method)(*given)


class CvtForTasks(nn.Module):
    """The encoder and the modules of every task."""

    config: CvtConfig
    execution: Execution
    heads: tuple[Head, ...]

    def setup(self) -> None:
        """The encoder below its own name, all modules below that of a task's head."""
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
    ) -> dict[str, dict[str, Said]]:
        """As `Cvt`: task -> module -> what it says.

        decoder_input_ids, decoder_segment_ids: int [B U], what decoders read, where a task is a translation.
        """
        states = self.read(input_ids, characters, segment_ids=segment_ids, deterministic=deterministic, **inputs)
        tokens = {
            "segment_ids": segment_ids,
            "decoder_input_ids": decoder_input_ids,
            "decoder_segment_ids": decoder_segment_ids,
        }
        return {
            head.task: self.say(head.task, states, tokens, (PRIMARY, *head.views), deterministic) for head in self.heads
        }

    def read(self, input_ids: jax.Array, characters: jax.Array, **inputs: jax.Array | bool) -> States:
        """As `Cvt`."""
        return self.cvt(input_ids, characters, **inputs)

    def say(
        self, task: str, states: States, tokens: dict[str, jax.Array], names: tuple[str, ...], deterministic: bool
    ) -> dict[str, Said]:
        """What the modules of one task with these names say, by name.

        tokens: what rows hold, by the names of `__call__`; a task takes what it needs.
        """
        return self.classifier(task, states, tokens, names, deterministic)

    def write(self, task: str, *given: Any) -> Any:
        """As `TranslationModules.write`, of one task."""
        return self.classifier(task, *given, method="write")


def _parts(config: CvtConfig) -> tuple[ParameterGroup, ...]:
    """The words with their characters, then both LSTMs."""
    filters = range(len(config.filter_widths))
    parts = (f"{part}_{number}" for number in filters for part in ("filters", "filter_bias"))
    words = ParameterGroup(tuple(f"cvt/{part}" for part in ("words", "word_scale", "characters", *parts)))
    return words, *(ParameterGroup((f"cvt/lstm_{layer}",)) for layer in (1, 2))


SYSTEM = declare(
    System(
        CvtConfig,
        Kind.ENCODER,
        {Purpose.VIEWS: CvtForTasks, Purpose.ENCODING: Cvt, Purpose.TOKEN_LABELS: TokenClassification},
        name="cvt",
        reads=("input_ids", "characters"),
        template=lambda config: Template("A", "A B"),
        parts=_parts,
        token_table="cvt/words/embedding",
    )
)
