"""A row of the table of systems, and the inputs of its modules."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import numpy as np

from plmjax.experiment import Experiment
from plmjax.interop.adapter import Adapter
from plmjax.models.families.task_heads import QuestionAnswering, TokenClassification
from tests.families.oracles import Oracle, TransformersOracle
from tests.systems.modules import taken_sides, takes
from tests.third_party.source import ChainSource

SIZES = {
    "vocab_size": 53,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 37,
    "type_vocab_size": 3,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
"""Odd ones, so that no axis is mistaken for another; with room for `LENGTH` positions beside them."""
DROPOUT = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.2}
LARGER = {"initializer_range": 0.1}
"""Initializer range of narrow models, which learn faster with larger first values."""
WIDER = {"hidden_size": 32, "intermediate_size": 64, **LARGER}
ROWS, LENGTH = 3, 17

Batch = dict[str, np.ndarray]


def random_tokens(config: Any) -> Batch:
    """Rows of 17, 11 and 1 real tokens; none is the padding token, whose table row torch never gives a gradient."""
    random = np.random.default_rng(0)
    ids = random.integers(0, config.vocab_size - 1, (ROWS, LENGTH), np.int32)
    return {
        "input_ids": ids + (ids >= config.pad_token_id),
        "attention_mask": (np.arange(LENGTH)[None] < np.array([[17], [11], [1]])).astype(np.int32),
        "token_type_ids": random.integers(0, config.type_vocab_size, (ROWS, LENGTH), np.int32),
    }


def untyped_tokens(config: Any) -> Batch:
    """Rows of the same lengths for a model without types of tokens and without a padding token."""
    ids = np.random.default_rng(0).integers(0, config.vocab_size, (ROWS, LENGTH), np.int32)
    mask = np.arange(LENGTH)[None] < np.array([[17], [11], [1]])
    return {"input_ids": ids, "attention_mask": mask.astype(np.int32)}


def padded_untyped_tokens(config: Any) -> Batch:
    """The same with the padding token where there is padding and nowhere else: transformers finds a row's end by it."""
    batch = untyped_tokens(dataclasses.replace(config, vocab_size=config.vocab_size - 1))
    ids, pad = batch["input_ids"], config.pad_token_id
    return batch | {"input_ids": np.where(batch["attention_mask"] == 1, ids + (ids >= pad), pad)}


def padded_tokens(config: Any) -> Batch:
    """The same with the padding token where there is padding, from which RoBERTa's positions know it."""
    batch = random_tokens(config)
    return batch | {"input_ids": np.where(batch["attention_mask"] == 1, batch["input_ids"], config.pad_token_id)}


def both_sides(config: Any) -> Batch:
    """Sources of 17, 11 and 1 real tokens with targets of 13, 6 and 2; the padding token is as in `random_tokens`."""
    random, batch = np.random.default_rng(0), {}
    for side, length, lengths in (("", LENGTH, (17, 11, 1)), ("decoder_", 13, (13, 6, 2))):
        ids = random.integers(0, config.vocab_size - 1, (ROWS, length), np.int32)
        batch[f"{side}input_ids"] = ids + (ids >= config.pad_token_id)
        batch[f"{side}attention_mask"] = (np.arange(length) < np.array(lengths)[:, None]).astype(np.int32)
    return batch


def ended_sources(config: Any) -> Batch:
    """The same with the end token where a source ends and nowhere else: transformers' BART finds the end by it."""
    batch = both_sides(config)
    ids, end = batch["input_ids"], config.eos_token_id
    ids = np.where(ids == end, end + 1, ids)
    ids[np.arange(ROWS), batch["attention_mask"].sum(axis=1) - 1] = end
    return batch | {"input_ids": ids}


def side_of(name: str) -> str:
    """The prefix of the names of the fields of its side: of a decoder beside an encoder, with decoder_."""
    return "decoder_" if name.startswith("decoder_") else ""


def same_sequence(queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """int [T], int [S] of segments -> bool [T S]: a token sees those of its own sequence; 0 is padding."""
    return (queries[:, None] == keys) & (queries[:, None] > 0)


def earlier_in_sequence(queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """As `same_sequence`, but of a decoder's token: it sees none that comes after it."""
    return same_sequence(queries, keys) & np.tri(len(queries), dtype=bool)


def later_in_sequence(queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """As `same_sequence`, but of what reads from the end: it sees none that comes before it."""
    return same_sequence(queries, keys) & np.tri(len(queries), dtype=bool).T


def nothing(queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """No token is seen."""
    return np.zeros((len(queries), len(keys)), bool)


@dataclasses.dataclass(frozen=True)
class View:
    """The tokens that reach an output.

    queries, keys: the sides that output and tokens are of: what the names of their fields begin with.
    visible: segments of both, int [T] and int [S] -> bool [T S].
    """

    visible: Callable[[np.ndarray, np.ndarray], np.ndarray]
    output: str = "last_hidden_state"
    queries: str = ""
    keys: str = ""


READS_BOTH_WAYS = (View(same_sequence),)
READS_FORWARD = (View(earlier_in_sequence),)
READS_AND_WRITES = (
    View(same_sequence, "encoder_last_hidden_state"),
    View(nothing, "encoder_last_hidden_state", "", "decoder_"),
    View(same_sequence, "last_hidden_state", "decoder_", ""),
    View(earlier_in_sequence, "last_hidden_state", "decoder_", "decoder_"),
)
"""Views of encoders, decoders, and encoder-decoders."""


WORDS = 16
"""Words of which each text repeats one, that the systems learn from."""


def knows_more_than_the_words(metrics: Mapping[str, float]) -> bool:
    """Whoever knows the words of those texts alone loses log(WORDS)."""
    return metrics["eval/loss"] < math.log(WORDS) - 1


@dataclasses.dataclass(frozen=True)
class Head:
    """A module that is held to every invariant.

    of_sequences: its outputs of a whole sequence, [B ...], or [B K ...] of packed ones.
    predicts: whether `masked_positions` chooses among its logits.
    outputs: its other outputs that are compared; the gradient of the last one is compared too. Logits are float32
        whatever the module computes in.
    packs: whether a row may hold several sequences.
    """

    module: nn.Module
    of_sequences: tuple[str, ...] = ()
    predicts: bool = False
    outputs: tuple[str, ...] = ("last_hidden_state", "logits")
    packs: bool = True

    @property
    def of_tokens(self) -> tuple[str, ...]:
        """Its outputs of every token, [B T ...]."""
        return tuple(name for name in self.outputs if name not in self.of_sequences)


class Count(NamedTuple):
    """A published number of parameters: of a module of the config, or of its parameters whose paths match a pattern."""

    module: Callable[[Any], nn.Module]
    parameters: int
    paths: str = ""


@dataclasses.dataclass(frozen=True)
class Family:
    """A system.

    adapter: its checkpoints in transformers, where there are any.
    oracle: the reference of its modules, where it is not transformers.
    transformers_oracle: class of the models of transformers, where it compares in a way of its own.
    heads: modules that equal the reference and keep the invariants.
    bodies: modules that equal the reference; the first is the encoder, whose tokens' view is proved.
    switches: fields of the config that change what is computed -> compared with the reference for the first head.
    trained: the module whose loss, gradients included, every execution and every mesh leaves as it is, with dropout;
        two devices divide its sizes.
    stored: other modules that a checkpoint may hold: without pooler, with other settings.
    loops: whether an execution says how its layers are looped over.
    executed: modules beside `trained` whose layers are looped over in another way.
    sharded: one parameter's path and its shape on a device of a 2 x 2 x 2 mesh.
    counts: name of a published size -> its config and its numbers of parameters, each a `Count` or its fields.
    initial: a module with tables large enough to measure what its parameters are drawn from.
    own_loop: whether its loop over the layers is its own; one that it has from another system is proved there, and here
        in the slow tests.
    drawn: pattern of the paths of parameters that begin with random values.
    constants: pattern of the paths of the others -> the value that they begin with, where that is not 1 for a scale
        and 0 for all else.
    truncated: whether random values are of a normal distribution cut at two standard deviations.
    deviations: pattern of a parameter's path -> its standard deviation, where that is not 0.02.
    uniform: pattern of the paths of parameters that are drawn from a uniform distribution instead.
    words: the path of the word table in the first of the bodies; of each side, where both have one.
    token_heads: whether transformers has it with the heads for tagging and for questions.
    step: its pretraining in milliseconds a step.
    source: where the batches of that run come from.
    learning: fields of that run, by group, that it learns faster with; None where another test has it learn.
    repeats: whether each text that it learns from repeats one word; otherwise it learns from the source's own.
    learned: the metrics of an evaluation -> whether it learned.
    batches: name -> what the modules of a config are given.
    views: which tokens reach which; none where its modules read no texts.
    reference_config: module -> the config of transformers' class, where it is not the module's own.
    settings: config -> what transformers' config has besides its fields.
    """

    heads: tuple[Head, ...]
    bodies: tuple[nn.Module, ...]
    switches: tuple[dict[str, Any], ...]
    trained: Head
    sharded: tuple[str, tuple[int, ...]]
    counts: Mapping[str, tuple[Any, tuple[tuple, ...]]]
    initial: nn.Module
    step: Callable[[], Experiment]
    adapter: Adapter | None = None
    oracle: Oracle | None = None
    transformers_oracle: type[TransformersOracle] = TransformersOracle
    source: type[ChainSource] = ChainSource
    learning: Mapping[str, Mapping[str, Any]] | None = dataclasses.field(default_factory=lambda: {"model": WIDER})
    repeats: bool = True
    learned: Callable[[Mapping[str, float]], bool] = knows_more_than_the_words
    stored: tuple[nn.Module, ...] = ()
    loops: bool = True
    executed: tuple[Head, ...] = ()
    own_loop: bool = False
    drawn: str = "(kernel|embedding)$"
    constants: Mapping[str, float] = dataclasses.field(default_factory=dict)
    truncated: bool = True
    deviations: Mapping[str, float] = dataclasses.field(default_factory=dict)
    uniform: str | None = None
    words: str | Mapping[str, str] = "embeddings/word_embeddings/embedding"
    token_heads: bool = True
    batches: Mapping[str, Callable[[Any], Batch]] = dataclasses.field(default_factory=lambda: {"tokens": random_tokens})
    views: tuple[View, ...] = READS_BOTH_WAYS
    reference_config: Callable[[nn.Module], Any] = lambda module: module.config
    settings: Callable[[Any], dict[str, Any]] = lambda config: {}

    def __post_init__(self) -> None:
        """Refuses a row without exactly one reference."""
        if (self.adapter is None) == (self.oracle is None):
            raise ValueError("Expected either an adapter of transformers or an oracle.")

    @property
    def reference(self) -> Oracle:
        """The reference of its modules."""
        return self.oracle or self.transformers

    @property
    def transformers(self) -> TransformersOracle:
        """The models of transformers; of rows with an adapter alone."""
        return self.transformers_oracle(self.adapter, self.reference_config, self.settings)

    @property
    def shared_heads(self) -> list[nn.Module]:
        """The modules for tagging and for questions, where transformers has the system with them."""
        config = self.heads[0].module.config
        return [TokenClassification(config, num_labels=4), QuestionAnswering(config)] if self.token_heads else []

    @property
    def checkpoints(self) -> list[nn.Module]:
        """Every module that a checkpoint of the system in transformers may hold."""
        return [head.module for head in self.heads] + [*self.bodies, *self.stored, *self.shared_heads]

    def batch(self, module: nn.Module, kind: str | None = None) -> Batch:
        """The inputs of the module of a kind, or of the first one; a head that takes no target has none."""
        batch = self.batches[kind or next(iter(self.batches))](module.config)
        sides = taken_sides(module)
        return {name: field for name, field in batch.items() if side_of(name) in sides and takes(module, name)}

    def word_tables(self, module: nn.Module) -> dict[str, str]:
        """Side of the module -> the path of its word table."""
        sides = taken_sides(module)
        return dict.fromkeys(sides, self.words) if isinstance(self.words, str) else dict(self.words)
