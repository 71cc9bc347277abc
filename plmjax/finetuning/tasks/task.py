"""The base of every downstream task: files of examples, and an objective that encodes, trains on and judges them.

Each kind of task is a file of this folder: sentences, label_sets, choices, tagging, questions. It has a `Task`, which
names the files and columns, and a `TaskObjective`, which turns examples into tokens, gives the loss, and makes
predictions and metrics from the model's outputs.

Fields of a batch (R rows of T tokens, K sequences packed in a row):

    input_ids, segment_ids, positions   int32 [R T]   segment_ids 0 is padding, 1.. the sequence
    token_type_ids  int32 [R T]   only where the model's template has types
    characters      uint16 [R T C]   of layers/words/characters.py, only for a model that reads them; 0 at padding
    cls_positions   int32 [R K]   the position that stands for each sequence: [CLS], or another of the model's template
    sequence_starts int32 [R K]   where each sequence begins
    example_ids     int32 [R K]   which sequence of the file it is; -1 where a row holds fewer
    row_ids         int32 [R]     which row of the epoch this is; -1 for a row that only fills the batch
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plmjax import storage
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.system import Purpose
from plmjax.contracts.template import Template
from plmjax.errors import FROM_1, UserError, check_ranges
from plmjax.finetuning.batches.encoded import Encoded
from plmjax.finetuning.batches.mixing import Mixing
from plmjax.generation.writer import Settings
from plmjax.objectives.objective import Batch, LossInputs, LossSums, Objective, apply, apply_and_collect
from plmjax.vocabulary import Vocabulary

Row = tuple[Any, ...]
"""One example as it is read: the line where it ends, then the values of the other fields of its `Examples`."""
Record = dict[str, Any]
"""The prediction of one example, as plain data for a line of JSON."""
Outputs = list[np.ndarray] | list[str]
"""The outputs that predictions are made from, one for every sequence."""
Answers = tuple[dict[str, float], dict[str, str]]
"""(metric -> value, name of a file of predictions -> its contents)."""


@dataclasses.dataclass(frozen=True, kw_only=True)  # so that the files of a task come first where it is written
class Task:
    """The examples of a downstream task, and how long its rows are."""

    prediction_settings: ClassVar[tuple[str, ...]] = ()
    """Fields that can be set for another file to predict, such as the names of its columns."""
    label_settings: ClassVar[tuple[str, ...]] = ()
    """Fields that can be set for another labelled file besides those, such as the names of the labels' columns."""

    folder: str = ""
    """Folder of the files; empty takes their paths as they are."""
    sequence_length: int = 128
    """Tokens in a row, special ones included."""
    pack: int = 1
    """Largest number of examples packed into one row, each attending only to itself; 1 gives every example a row."""

    target_length: ClassVar[int] = 0
    """Tokens in a row of the decoder of an encoder-decoder; 0: there is none."""

    def __post_init__(self) -> None:
        """Checks the numbers."""
        check_ranges("data", self, sequence_length=FROM_1, pack=FROM_1)

    def settings(self, labelled: bool) -> tuple[str, ...]:
        """Names of the fields that can be set for another file to predict or, if `labelled`, to evaluate.

        A field of one of several tasks has a dotted name, such as tasks.1.source.
        """
        return ("sequence_length", *self.prediction_settings, *(self.label_settings if labelled else ()))

    def tokens(self, batch_size: int, sequence_length: int) -> int:
        """Tokens of one global batch, padding included."""
        return batch_size * (sequence_length + self.target_length)

    def read(self, split: str) -> "Examples":
        """The examples of "train" or "validation"; UserError names the line that cannot be read."""
        raise NotImplementedError(f"{type(self).__name__} must say which examples it has.")

    def parts(self, path: str, size: int) -> Iterator["Examples"]:
        """The examples of a file without labels, `size` at a time, as they are read."""
        raise NotImplementedError(f"{type(self).__name__} must say how a file to predict is read.")

    def evaluated_on(self, data: str) -> Self:
        """The task with another validation file."""
        raise NotImplementedError(f"{type(self).__name__} must say how another file is evaluated.")

    def trained_and_evaluated(self) -> list[str]:
        """Files that are both trained on and evaluated on."""
        return []

    def unlabelled_examples(self) -> "Examples | None":
        """Examples whose labels are not known, which every second step is trained on; None: there are none."""
        return None

    def task_groups(self, train: "Examples") -> list["Examples"]:
        """The train examples in groups; a batch is of one group, which is drawn (batches/group_sampler.py)."""
        return [train]

    def mixing(self, train: "Examples") -> Mixing | None:
        """The rates at which an epoch draws from the train examples; None takes each once."""
        return None

    def texts(self, examples: "Examples") -> Iterator[str]:
        """The text of examples, to train a tokenizer on."""
        raise UserError(
            f"Expected a tokenizer for a task of {type(self).__name__}, found none; set tokenizer.path in the "
            f"experiment's file, or name a checkpoint that has one with --like."
        )


@dataclasses.dataclass(frozen=True)
class FileTask(Task):
    """A task with one file of examples to train on and one to evaluate on."""

    examples: ClassVar[type["Examples"]]
    """The class of its examples."""
    contents: ClassVar[str] = "labelled rows"
    """The contents of its files, in words, for messages."""

    train: str = ""
    """File of the examples to train on."""
    validation: str = ""
    """File of the examples to evaluate on."""

    def path(self, split: str) -> str:
        """The file of "train" or "validation"; UserError where it is not named."""
        path = getattr(self, split)
        if not path:
            raise UserError(f"Expected a file of examples in --data.{split}, found none; name one.")
        return f"{self.folder.rstrip('/')}/{path}" if self.folder else path

    def trained_and_evaluated(self) -> list[str]:
        """The file, if both names are of one."""
        train, validation = self.path("train"), self.path("validation")
        return [train] if storage.path(train) == storage.path(validation) else []

    def read(self, split: str) -> "Examples":
        """The examples of one of the two files."""
        path = self.path(split)
        rows = [row for row in self.rows(path) if split != "train" or self.is_trainable(row)]
        if not rows:
            raise UserError(f"Expected {self.contents} in {path}, found none; name another file in --data.{split}.")
        return self.to_examples(path, rows)

    def parts(self, path: str, size: int) -> Iterator["Examples"]:
        """The examples of a file like those two."""
        rows, empty = self.rows(path, labelled=False), True
        while part := list(itertools.islice(rows, size)):
            yield self.to_examples(path, part)
            empty = False
        if empty:
            raise UserError(f"Expected examples to predict in {path}, found none; name another file in --input.")

    def evaluated_on(self, data: str) -> Self:
        """The task with the validation file `data`, which may be in any folder."""
        return dataclasses.replace(self, validation=data, folder="")

    def rows(self, path: str, labelled: bool = True) -> Iterator[Row]:
        """The rows of a file for `to_examples`, in order; labels are None where the file has none."""
        raise NotImplementedError(f"{type(self).__name__} must say how its files are read.")

    def is_trainable(self, row: Row) -> bool:
        """Whether an example of the train file is trained on."""
        return True

    def to_examples(self, path: str, rows: list[Row]) -> "Examples":
        """Rows as the examples of a file: a row has a value for every field of `examples` after the path."""
        return self.examples(path, *map(list, zip(*rows, strict=True)))


@dataclasses.dataclass(frozen=True)
class Examples:
    """The examples of a file. lines: the line where each of them ends, from 1."""

    path: str
    lines: list[int]

    def __len__(self) -> int:
        return len(self.lines)

    def where(self, example: int) -> str:
        """`line 7 of dev.tsv`, for messages."""
        return f"line {self.lines[example]} of {self.path}"


@dataclasses.dataclass(frozen=True)
class TaskObjective(Objective):
    """Base of the objectives of downstream tasks."""

    task_class: ClassVar[type[Task]]
    """The kind of task that it is for."""
    purpose: ClassVar[Purpose]
    """The purpose of the model's module that it trains; models without one are refused."""
    per_token: ClassVar[bool] = False
    """Whether the model's outputs are [R T ...], of tokens, rather than [R K ...], of sequences."""
    generates: ClassVar[bool] = False
    """Whether predictions are made from text that the model writes (`writing`), rather than from its outputs."""
    metric_names: ClassVar[tuple[str, ...]] = ()
    """Metrics of a whole file, the same for every task of the kind."""
    prediction_settings: ClassVar[tuple[str, ...]] = ()
    """Fields that only choose the prediction made from the outputs, and can be set when predicting."""

    def reported(self, task: Task) -> tuple[str, ...]:
        """Metrics of an evaluation on a task; checkpoint.best can name one of them."""
        return self.metric_names

    def fit_labels(self, train: Examples) -> Self:
        """The objective with the labels of the train file, and all else that it takes from there."""
        return self

    def starting_from(self, generation: Any) -> Self:
        """The objective with what it takes from the checkpoint that a run starts from.

        generation: how that checkpoint's texts are written, a plmjax.generation.options.Decoding; or None.
        """
        return self

    def predicting(self, settings: Mapping[str, Any]) -> Self:
        """The objective with other values of `prediction_settings`."""
        return dataclasses.replace(self, **settings)

    def template(self, model: ModelConfig) -> Template:
        """The layout of the rows of its examples, by default the model's."""
        return model.template

    def check_model(self, config: Any) -> None:
        """Raises UserError where the settings do not fit a model that has the purpose."""

    def encode(self, examples: Examples, tokenizer: Any, model: ModelConfig, task: Task) -> Encoded:
        """The examples as rows of the model's template; UserError names a bad line.

        tokenizer: a plmjax.data.tokenizers.Tokenizer.
        """
        raise NotImplementedError(f"{type(self).__name__} must say how its examples become tokens.")

    def encode_unlabelled(self, examples: Examples, tokenizer: Any, model: ModelConfig, task: Task) -> Encoded:
        """The same for `Task.unlabelled_examples`; batches have the same fields."""
        raise NotImplementedError(f"{type(self).__name__} must say how it learns from examples without labels.")

    def losses(self, outputs: Any, batch: Batch) -> dict[str, jax.Array]:
        """Term -> float32 losses, of the shape of the term's `loss_weights`.

        What is trained on is the sum of the terms' weighted means, each times its factor in `coefficients`: GPT adds
        half of a language model's loss to the task's. The first term is what an evaluation reports as the loss.
        """
        raise NotImplementedError(f"{type(self).__name__} must say what it loses.")

    def loss_weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Term -> float32 weight of each of its losses; by default every sequence that is there counts once, [R K]."""
        return {"task": exists(batch)}

    def counts(self, outputs: Any, batch: Batch) -> dict[str, tuple[jax.Array, jax.Array]]:
        """Metric -> (sum, weight) of a batch, logged while training; other metrics come from `answer`."""
        return {}

    def collected(self, outputs: Any, batch: Batch) -> jax.Array:
        """The part of the outputs that predictions are made from: [R K ...] or, if `per_token`, [R T ...]."""
        return outputs.logits

    def writing(self) -> Settings:
        """Settings of the text that the model writes after a prompt (`Encoded.prompts`), if `generates`."""
        raise NotImplementedError(f"{type(self).__name__} must say how its model writes text.")

    def signatures(self, task: Task) -> dict[str, str]:
        """METRIC_signature -> the definition, in words, of a metric that others compute differently."""
        return {}

    def records(self, examples: Examples, encoded: Encoded, outputs: Outputs) -> list[Record]:
        """The prediction of every example.

        outputs: of every sequence an array, [tokens ...] if `per_token`; if `generates` the text that was written.
        """
        raise NotImplementedError(f"{type(self).__name__} must say how predictions are made.")

    def answer(self, examples: Examples, encoded: Encoded, outputs: Outputs) -> Answers:
        """Metrics and predictions of a labelled file; `outputs` as for `records`."""
        raise NotImplementedError(f"{type(self).__name__} must say how it is evaluated.")

    def averaged(self, outputs: Sequence[Outputs], encoded: Encoded) -> Outputs:
        """The outputs of several models of the same examples as those of one that predicts the mean of what they do.

        Raises:
            UserError: predictions of this kind have no mean.
        """
        raise UserError(
            f"Expected a task of labels, numbers or choices for --ensemble, found {type(self).__name__}; leave "
            "--ensemble out."
        )

    def official(self, records: Iterable[Record]) -> Iterator[str]:
        """Predictions in the format of the task's official scorer, piece by piece; by default GLUE's."""
        yield "index\tprediction\n"
        for index, record in enumerate(records):
            yield f"{index}\t{record['prediction']}\n"

    def corrupt(self, batch: Batch, key: jax.Array, vocabulary: Vocabulary, constants: Any = ()) -> Batch:
        """Nothing."""
        return batch

    def model_inputs(self, batch: Batch) -> dict[str, jax.Array]:
        """Tokens, the packed sequence that each belongs to, its position there, and its type where tokens have one.

        Of a model that reads characters also these.
        """
        names = ("input_ids", "characters", "segment_ids", "positions", "token_type_ids")
        return {name: batch[name] for name in names if name in batch}

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        """The sums of `loss_weights`; never 0, so that a batch of filling loses nothing."""
        return {term: jnp.maximum(jnp.sum(each), 1e-9) for term, each in self.loss_weights(batch).items()}

    def sums(self, module: nn.Module, given: LossInputs, batch: Batch, key: jax.Array, *, training: bool) -> LossSums:
        """The losses and metrics of a batch."""
        outputs, collections = apply_and_collect(self, module, given, batch, key, training=training)
        return self.sums_of(outputs, batch).replace(collections=collections)

    def sums_of(self, outputs: Any, batch: Batch) -> LossSums:
        """Losses and metrics of the model's outputs."""
        losses, weights = self.losses(outputs, batch), self.loss_weights(batch)
        chex.assert_trees_all_equal_shapes_and_dtypes(losses, weights)
        return LossSums(
            {term: jnp.sum(losses[term] * each) for term, each in weights.items()}, self.counts(outputs, batch)
        )

    def evaluation(
        self, module: nn.Module, given: LossInputs, batch: Batch, key: jax.Array
    ) -> tuple[LossSums, tuple[Any, jax.Array, jax.Array]]:
        """Losses and metrics; and (outputs as `collected`, numbers of their sequences, where these begin)."""
        sums, collected = self.evaluated(module, given, batch, key)
        return sums, (collected, batch["example_ids"], batch["sequence_starts"])

    def evaluated(self, module: nn.Module, given: LossInputs, batch: Batch, key: jax.Array) -> tuple[LossSums, Any]:
        """Losses and metrics of a batch without dropout, and the outputs that predictions are made from."""
        outputs = apply(self, module, given, batch, key, training=False)
        return self.sums_of(outputs, batch), () if self.generates else self.collected(outputs, batch)

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


def check_length(template: Template, vocabulary: Vocabulary, length: int) -> None:
    """Raises UserError where rows of at most `length` tokens have no room, or the tokenizer lacks a special token."""
    template.check(vocabulary)
    if length < template.specials(2) + 2:
        raise UserError(
            f"Expected --data.sequence_length of at least {template.specials(2) + 2}, found {length}; raise it."
        )
