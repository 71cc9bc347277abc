"""What every downstream task is: files of examples, and an objective that reads, trains on and judges them.

A kind of task is a file of this folder: sentences, choices, tagging, questions. Each has a `Task`, which names the
files and columns, and a `TaskObjective`, which turns examples into tokens, says what is lost, and makes predictions and
metrics of the model's outputs.

Fields of a batch (R rows of T tokens, K sequences packed in a row):

    input_ids, segment_ids, positions, token_type_ids   int32 [R T]   segment_ids 0 is padding, 1.. the sequence
    cls_positions   int32 [R K]   where each sequence begins
    example_ids     int32 [R K]   which sequence of the file it is; -1 where a row holds fewer
    row_ids         int32 [R]     which row of the epoch this is; -1 for a row that only fills the batch
"""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.errors import UserError, check_ranges
from plmjax.experiment import FROM_0, FROM_1, SHARE
from plmjax.layers.execution import Execution
from plmjax.objectives.objective import Batch, Objective, Sums, apply
from plmjax.vocabulary import Vocabulary

Row = tuple[Any, ...]
"""One example as its file is read: the line where it ends, then what the kind of task makes of it."""
Record = dict[str, Any]
"""What is predicted of one example, as plain data for a line of JSON."""
Answers = tuple[dict[str, float], dict[str, str]]
"""(metric -> value, name of a file of predictions -> its contents)."""


@dataclasses.dataclass(frozen=True)
class Task:
    """The files of a downstream task, and how long its rows and its training are."""

    examples: ClassVar[type["Examples"]]
    """What its files are read into."""
    holds: ClassVar[str] = "labelled rows"
    """What its files have, in words."""
    asked: ClassVar[tuple[str, ...]] = ()
    """Fields that another file to predict may need set anew, such as the names of its columns."""

    train: str = ""
    """File of the examples to train on."""
    validation: str = ""
    """File of the examples to evaluate on."""
    folder: str = ""
    """Folder of the two files; empty takes their paths as they are."""
    sequence_length: int = 128
    """Tokens in a row, special ones included."""
    pack: int = 1
    """Most examples packed into one row, each attending only to itself; 1 pads every example to the row."""
    epochs: float = 0.0
    """Passes over the train file, resolved into training.steps; 0 leaves training.steps as it is."""
    warmup: float = 0.0
    """Share of the steps that warms up, resolved into optimizer.warmup_steps; 0 leaves that as it is."""
    evaluations: float = 0.0
    """Evaluations, each with a checkpoint, in an epoch; 0 leaves training.evaluate_every as it is."""
    dropout: float = -1.0
    """Dropout within the encoder, of hidden states and of attention; below 0 leaves what it was pretrained with."""

    def __post_init__(self) -> None:
        """Checks the numbers."""
        check_ranges("data", self, sequence_length=FROM_1, pack=FROM_1)
        check_ranges("data", self, epochs=FROM_0, warmup=SHARE, evaluations=FROM_0, dropout=(-math.inf, 1))

    def path(self, split: str) -> str:
        """The file of "train" or "validation"; UserError where it is not named."""
        path = getattr(self, split)
        if not path:
            raise UserError(f"Expected a file of examples in --data.{split}, found none; name one.")
        return f"{self.folder.rstrip('/')}/{path}" if self.folder else path

    def read(self, split: str) -> "Examples":
        """The examples of "train" or "validation"; UserError names the line that cannot be read."""
        path = self.path(split)
        rows = [row for row in self.rows(path) if split != "train" or self.teaches(row)]
        if not rows:
            raise UserError(f"Expected {self.holds} in {path}, found none; name another file in --data.{split}.")
        return self.gathered(path, rows)

    def parts(self, path: str, size: int) -> Iterator["Examples"]:
        """The examples of a file without labels, so many at a time, as they are read."""
        rows, empty = self.rows(path, labelled=False), True
        while part := list(itertools.islice(rows, size)):
            yield self.gathered(path, part)
            empty = False
        if empty:
            raise UserError(f"Expected examples to predict in {path}, found none; name another file in --input.")

    def rows(self, path: str, labelled: bool = True) -> Iterator[Row]:
        """Of every example of a file, in order, what `gathered` takes; without labels they are None."""
        raise NotImplementedError(f"{type(self).__name__} must say how its files are read.")

    def teaches(self, row: Row) -> bool:
        """Whether an example of the train file can be learned from."""
        return True

    def gathered(self, path: str, rows: list[Row]) -> "Examples":
        """Rows as the examples of a file: each is a value for every field of `examples` after the path."""
        return self.examples(path, *map(list, zip(*rows, strict=True)))


@dataclasses.dataclass(frozen=True)
class Examples:
    """What a file holds. lines: where each example ends in the file, from 1."""

    path: str
    lines: list[int]

    def __len__(self) -> int:
        return len(self.lines)

    def where(self, example: int) -> str:
        """`line 7 of dev.tsv`, for messages."""
        return f"line {self.lines[example]} of {self.path}"


@dataclasses.dataclass(frozen=True)
class Encoded:
    """Sequences of tokens back to back, and what is to be learned of them.

    tokens, token_types: int32 [N]. offsets: int64 [S + 1], where each sequence begins.
    sequence_fields: field of a batch -> [S ...], numbers of a sequence. token_fields: field -> [N], one per token.
    choices: so many neighbouring sequences are one example, laid out side by side: batches are [R choices T].
    """

    tokens: np.ndarray
    token_types: np.ndarray
    offsets: np.ndarray
    sequence_fields: dict[str, np.ndarray]
    token_fields: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    choices: int = 1

    def __len__(self) -> int:
        """Sequences."""
        return len(self.offsets) - 1


@dataclasses.dataclass(frozen=True)
class TaskObjective(Objective):
    """Base of the objectives of downstream tasks."""

    reads: ClassVar[type[Task]]
    """The kind of task that it learns."""
    per_token: ClassVar[bool] = False
    """Whether the model's outputs are [R T ...], of tokens, rather than [R K ...], of sequences."""
    metric_names: ClassVar[tuple[str, ...]] = ()
    """Metrics of a whole file; of them one can be named in checkpoint.best."""
    asked: ClassVar[tuple[str, ...]] = ()
    """Fields that only say which prediction is made of the outputs, and may be set anew to predict."""

    def learn(self, train: Examples) -> Self:
        """The objective with what it takes from the train file, such as the labels, filled in."""
        return self

    def encode(self, examples: Examples, tokenizer: Any, model: Any, task: Task) -> Encoded:
        """The examples as tokens (`tokenizer` is a plmjax.data.tokenizers.Tokenizer); UserError names a bad line."""
        raise NotImplementedError(f"{type(self).__name__} must say how its examples become tokens.")

    def losses(self, outputs: Any, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """(float32 losses, their weights): the loss of a batch is the sum of the products over the sum of weights."""
        raise NotImplementedError(f"{type(self).__name__} must say what it loses.")

    def counts(self, outputs: Any, batch: Batch) -> dict[str, tuple[jax.Array, jax.Array]]:
        """Metric -> (sum, weight) of a batch, logged while training; those that are no sums come from `answer`."""
        return {}

    def collected(self, outputs: Any) -> jax.Array:
        """What of the model's outputs predictions are made from: [R K ...] or, `per_token`, [R T ...]."""
        return outputs.logits

    def records(self, examples: Examples, encoded: Encoded, outputs: list[np.ndarray]) -> list[Record]:
        """The prediction of every example; `outputs` has one array a sequence, [tokens ...] if `per_token`."""
        raise NotImplementedError(f"{type(self).__name__} must say what its outputs mean.")

    def answer(self, examples: Examples, encoded: Encoded, outputs: list[np.ndarray]) -> Answers:
        """Metrics and predictions of a labelled file."""
        raise NotImplementedError(f"{type(self).__name__} must say how it is judged.")

    def official(self, records: Iterable[Record]) -> Iterator[str]:
        """Predictions piece by piece in the form that the task's own judges read; GLUE's for whole sequences."""
        yield "index\tprediction\n"
        for index, record in enumerate(records):
            yield f"{index}\t{record['prediction']}\n"

    def corrupt(self, batch: Batch, key: jax.Array, vocabulary: Vocabulary) -> Batch:
        """Nothing."""
        return batch

    def model_inputs(self, batch: Batch) -> dict[str, jax.Array]:
        """Tokens, which of the packed sequences they belong to, and which to the second text of a pair."""
        names = ("input_ids", "segment_ids", "positions", "token_type_ids")
        return {name: batch[name] for name in names}

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Every sequence that is there counts once; never 0, so that a batch of filling loses nothing."""
        return {"task": jnp.maximum(jnp.sum(exists(batch)), 1e-9)}

    def sums(self, module: nn.Module, params: Any, carry: Any, batch: Batch, dropout: jax.Array | None) -> Sums:
        """The losses of what there is."""
        return self.judged(apply(self, module, params, batch, dropout), batch, carry)

    def judged(self, outputs: Any, batch: Batch, carry: Any) -> Sums:
        """Losses and metrics of the model's outputs."""
        losses, weights = self.losses(outputs, batch)
        return Sums({"task": jnp.sum(losses * weights)}, self.counts(outputs, batch), carry)

    def head_flops(self, config: Any, batch: dict[str, jax.ShapeDtypeStruct]) -> float:
        """Model FLOPs of the head in one training step."""
        raise NotImplementedError(f"{type(self).__name__} must count its FLOPs.")

    def train_flops(self, config: Any, batch: dict[str, jax.ShapeDtypeStruct]) -> float:
        """The encoder's and the head's; all of it where parameters are frozen."""
        *rows, length = batch["input_ids"].shape
        return config.train_flops(int(np.prod(rows)), length, 0) + self.head_flops(config, batch)


def exists(batch: Batch) -> jax.Array:
    """float32 [R K], 1 where a row holds a sequence."""
    return (batch["example_ids"] >= 0).astype(jnp.float32)


def sequence_module(config: Any, outputs: int, execution: Execution) -> nn.Module:
    """The model with the head for whole sequences, or a UserError where it has none."""
    if not hasattr(config, "for_sequence_classification"):
        raise UserError(
            f"Expected a model that classifies sequences, found {type(config).__name__}; fine-tune another one."
        )
    return config.for_sequence_classification(outputs, execution)


def check_vocabulary(vocabulary: Vocabulary, length: int) -> None:
    """Raises UserError where no row of at most `length` tokens can be built."""
    if vocabulary.cls < 0 or vocabulary.sep < 0:
        raise UserError(
            "Expected a tokenizer with tokens that begin and end a text ([CLS] and [SEP]), found none; use the one of "
            "a BERT."
        )
    if length < 5:
        raise UserError(f"Expected --data.sequence_length of at least 5, found {length}; raise it.")


def concatenated(rows: list[list[int]], seconds: list[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(tokens, token types, offsets) of rows whose second text begins at `seconds`."""
    offsets = np.cumsum([0, *(len(row) for row in rows)])
    tokens = np.fromiter((token for row in rows for token in row), np.int32, offsets[-1])
    within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets))
    return tokens, (within >= np.repeat(seconds, np.diff(offsets))).astype(np.int32), offsets
