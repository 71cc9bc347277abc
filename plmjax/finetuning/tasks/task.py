"""The base classes of every downstream task: files of examples, and an objective for encoding, training and evaluation.

Each kind of task is a file of this folder, such as sentences, choices, tagging or questions. It has a `Task`, which
names the files and columns, and a `TaskObjective`, which turns examples into tokens, computes the loss, and makes
predictions and metrics from the model's outputs.

Fields of a batch (R rows of T tokens, K sequences packed in a row):

    input_ids, segment_ids, positions   int32 [R T]   segment_ids is 0 at padding, else the sequence, from 1
    token_type_ids  int32 [R T]   only where the model's template has types
    characters      uint16 [R T C]   of layers/words/characters.py, only for a model that reads them; 0 at padding
    cls_positions   int32 [R K]   the summary position of each sequence: [CLS], or another of the model's template
    sequence_starts int32 [R K]   the position where each sequence starts
    example_ids     int32 [R K]   number of the sequence in the file; -1 where a row holds fewer
    row_ids         int32 [R]     number of the row in the epoch; -1 for a row that only fills the batch
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

from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.system import Purpose
from plmjax.contracts.template import Template
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.errors import FROM_1, UserError, check_ranges
from plmjax.files import storage
from plmjax.finetuning.batches.encoded import Encoded
from plmjax.finetuning.batches.mixing import Mixing
from plmjax.generation.batch_generator import Settings
from plmjax.objectives.objective import Batch, LossInputs, LossSums, Objective, apply, apply_and_collect

Row = tuple[Any, ...]
"""One example as it is read: the line where it ends, then its values of the other fields of `Examples`."""
Record = dict[str, Any]
"""The prediction of one example, as plain data for a line of JSON."""
Outputs = list[np.ndarray] | list[str]
"""The outputs from which predictions are made: an array or a generated text for every sequence."""
Answers = tuple[dict[str, float], dict[str, str]]
"""(metric -> value, name of a file of predictions -> its contents)."""


@dataclasses.dataclass(frozen=True, kw_only=True)  # so that the files of a task come first in written settings
class Task:
    """The examples of a downstream task, and the length of its rows."""

    prediction_settings: ClassVar[tuple[str, ...]] = ()
    """Fields that can be set for another file to predict, such as the names of its columns."""
    label_settings: ClassVar[tuple[str, ...]] = ()
    """Further fields that can be set for another labelled file, such as the names of the labels' columns."""

    folder: str = ""
    """Folder of the files; empty takes their paths unchanged."""
    sequence_length: int = 128
    """Number of tokens in a row, including special ones."""
    pack: int = 1
    """Largest number of examples packed into one row, each attending only to itself; 1 gives every example a row."""

    target_length: ClassVar[int] = 0
    """Number of tokens in a row of the decoder of an encoder-decoder; 0 without a decoder."""

    def __post_init__(self) -> None:
        check_ranges("data", self, sequence_length=FROM_1, pack=FROM_1)

    def settings(self, labelled: bool) -> tuple[str, ...]:
        """Return the fields that can be set for another file to predict or, if `labelled`, to evaluate.

        A field of one of several tasks has a dotted name, such as tasks.1.source.
        """
        return ("sequence_length", *self.prediction_settings, *(self.label_settings if labelled else ()))

    def tokens(self, batch_size: int, sequence_length: int) -> int:
        """Return the number of tokens of one global batch, including padding."""
        return batch_size * (sequence_length + self.target_length)

    def read(self, split: str) -> "Examples":
        """Read the examples of "train" or "validation". A UserError names a line that cannot be read."""
        raise NotImplementedError(f"{type(self).__name__} must define `read`.")

    def parts(self, path: str, size: int) -> Iterator["Examples"]:
        """Yield the examples of a file without labels, `size` at a time, while reading."""
        raise NotImplementedError(f"{type(self).__name__} must define `parts`.")

    def with_validation_file(self, data: str) -> Self:
        """Return a copy of the task that is evaluated on the file `data`."""
        raise NotImplementedError(f"{type(self).__name__} must define `with_validation_file`.")

    def files_in_both_splits(self) -> list[str]:
        """Return the files that are both train and validation file."""
        return []

    def unlabelled_examples(self) -> "Examples | None":
        """Return the unlabelled examples that every second step trains on, or None."""
        return None

    def task_groups(self, train: "Examples") -> list["Examples"]:
        """Return the train examples in groups; each batch takes one sampled group (batches/group_sampler.py)."""
        return [train]

    def mixing(self, train: "Examples") -> Mixing | None:
        """Return the rates at which an epoch samples the train examples; None for every example once."""
        return None

    def texts(self, examples: "Examples") -> Iterator[str]:
        """Yield the text of the examples, to train a tokenizer on."""
        raise UserError(
            f"Expected a tokenizer for a task of {type(self).__name__}, found none; set tokenizer.path in the "
            f"experiment's file, or name a checkpoint that has one with --like."
        )


@dataclasses.dataclass(frozen=True)
class FileTask(Task):
    """A task with one train file and one validation file of examples."""

    examples: ClassVar[type["Examples"]]
    """The class of its examples."""
    contents: ClassVar[str] = "labelled rows"
    """The contents of its files, in words, for messages."""

    train: str = ""
    """File of the examples to train on."""
    validation: str = ""
    """File of the examples to evaluate on."""

    def path(self, split: str) -> str:
        """Return the path of the "train" or "validation" file. Raise UserError if it is not named."""
        path = getattr(self, split)
        if not path:
            raise UserError(f"Expected a file of examples in --data.{split}, found none; name one.")
        return f"{self.folder.rstrip('/')}/{path}" if self.folder else path

    def files_in_both_splits(self) -> list[str]:
        """Return the file, if train and validation name the same one."""
        train, validation = self.path("train"), self.path("validation")
        return [train] if storage.path(train) == storage.path(validation) else []

    def read(self, split: str) -> "Examples":
        path = self.path(split)
        rows = [row for row in self.rows(path) if split != "train" or self.is_trainable(row)]
        if not rows:
            raise UserError(f"Expected {self.contents} in {path}, found none; name another file in --data.{split}.")
        return self.to_examples(path, rows)

    def parts(self, path: str, size: int) -> Iterator["Examples"]:
        """Yield the examples of a file without labels, in the format of the train and validation files."""
        rows, empty = self.rows(path, labelled=False), True
        while part := list(itertools.islice(rows, size)):
            yield self.to_examples(path, part)
            empty = False
        if empty:
            raise UserError(f"Expected examples to predict in {path}, found none; name another file in --input.")

    def with_validation_file(self, data: str) -> Self:
        """Return the task with the validation file `data`, which may be in any folder."""
        return dataclasses.replace(self, validation=data, folder="")

    def rows(self, path: str, labelled: bool = True) -> Iterator[Row]:
        """Yield the rows of a file for `to_examples`, in order; labels are None where the file has none."""
        raise NotImplementedError(f"{type(self).__name__} must define `rows`.")

    def is_trainable(self, row: Row) -> bool:
        """Return whether an example of the train file is used in training."""
        return True

    def to_examples(self, path: str, rows: list[Row]) -> "Examples":
        """Return rows as examples. A row has a value for every field of `examples` after the path."""
        return self.examples(path, *map(list, zip(*rows, strict=True)))


@dataclasses.dataclass(frozen=True)
class Examples:
    """The examples of a file. lines: the last line of each example, from 1."""

    path: str
    lines: list[int]

    def __len__(self) -> int:
        return len(self.lines)

    def where(self, example: int) -> str:
        """Return the place of an example for messages, such as `line 7 of dev.tsv`."""
        return f"line {self.lines[example]} of {self.path}"


@dataclasses.dataclass(frozen=True)
class TaskObjective(Objective):
    """Base class of the objectives of downstream tasks."""

    task_class: ClassVar[type[Task]]
    """The kind of task of this objective."""
    purpose: ClassVar[Purpose]
    """The purpose of the model's module that it trains; models without such a module are rejected."""
    per_token: ClassVar[bool] = False
    """True if the model's outputs belong to tokens, [R T ...]; false if they belong to sequences, [R K ...]."""
    packs: ClassVar[bool] = True
    """True if a row may hold several examples (`Task.pack`)."""
    generates: ClassVar[bool] = False
    """True if predictions are generated text (`generation_settings`); false if they come from the outputs."""
    metric_names: ClassVar[tuple[str, ...]] = ()
    """Metrics of a whole file, the same for every task of the kind."""
    prediction_settings: ClassVar[tuple[str, ...]] = ()
    """Fields that only affect the prediction made from the outputs, and can be set when predicting."""
    evaluates_losses: ClassVar[bool] = True
    """False if the examples of an evaluation have no loss, only the metrics of the whole file."""

    def evaluation_metrics(self, task: Task) -> tuple[str, ...]:
        """Return the names of the metrics of an evaluation; checkpoint.best can name one of them."""
        return self.metric_names

    def fit_labels(self, train: Examples) -> Self:
        """Return the objective with the labels and other values that it takes from the train file."""
        return self

    def text_vectors(self, task: Task, model: ModelConfig) -> Any:
        """Return the recipe of the trained text vectors, a plmjax.layers.text_vectors.TextVectors; None without any."""
        return None

    def with_generation_defaults(self, generation: Any) -> Self:
        """Return the objective with generation settings of the checkpoint from which a run starts.

        generation: that checkpoint's settings, a plmjax.generation.options.Decoding; or None.
        """
        return self

    def with_prediction_settings(self, settings: Mapping[str, Any]) -> Self:
        """Return the objective with other values of `prediction_settings`."""
        return dataclasses.replace(self, **settings)

    def template(self, model: ModelConfig) -> Template:
        """Return the layout of the rows of its examples, by default the model's."""
        return model.template

    def check_model(self, config: Any) -> None:
        """Raise UserError if the settings do not fit a model that has the purpose."""

    def encode(self, examples: Examples, tokenizer: Any, model: ModelConfig, task: Task) -> Encoded:
        """Encode the examples as rows of the model's template. A UserError names a line that does not fit.

        tokenizer: a plmjax.data.tokenizers.Tokenizer.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `encode`.")

    def encode_unlabelled(self, examples: Examples, tokenizer: Any, model: ModelConfig, task: Task) -> Encoded:
        """Encode the examples of `Task.unlabelled_examples`, with the same fields as in `encode`."""
        raise NotImplementedError(f"{type(self).__name__} must define `encode_unlabelled`.")

    def losses(self, outputs: Any, batch: Batch) -> dict[str, jax.Array]:
        """Return a dict from term to losses, float32 with the shape of the term's `loss_weights`.

        The training loss is the sum of the terms' weighted means, each times its factor in `coefficients`. For example
        GPT adds half of a language model's loss to the task's. An evaluation reports the first term as the loss.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `losses`.")

    def loss_weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Return a dict from term to the float32 weights of its losses; by default 1 for every sequence, [R K]."""
        return {"task": exists(batch)}

    def counts(self, outputs: Any, batch: Batch) -> dict[str, tuple[jax.Array, jax.Array]]:
        """Return a dict from metric to (sum, weight) of a batch, for training; `evaluate_outputs` has other metrics."""
        return {}

    def outputs_for_prediction(self, outputs: Any, batch: Batch) -> jax.Array:
        """Return the outputs that predictions are made from: [R K ...] or, if `per_token`, [R T ...]."""
        return outputs.logits

    def generation_settings(self) -> Settings:
        """Return the settings of the text generated after a prompt (`Encoded.prompts`), if `generates`."""
        raise NotImplementedError(f"{type(self).__name__} must define `generation_settings`.")

    def signatures(self, task: Task) -> dict[str, str]:
        """Return a dict from METRIC_signature to the definition, in words, of a metric that has several variants."""
        return {}

    def records(self, examples: Examples, encoded: Encoded, outputs: Outputs) -> list[Record]:
        """Return the prediction of every example.

        outputs: an array for every sequence, [tokens ...] if `per_token`; if `generates`, the generated texts.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `records`.")

    def evaluate_outputs(self, examples: Examples, encoded: Encoded, outputs: Outputs) -> Answers:
        """Return metrics and prediction files for a labelled file; `outputs` as for `records`."""
        raise NotImplementedError(f"{type(self).__name__} must define `evaluate_outputs`.")

    def average_outputs(self, outputs: Sequence[Outputs], encoded: Encoded) -> Outputs:
        """Return outputs whose prediction is the mean of the predictions of several models.

        outputs: the outputs of each model for the same examples.

        Raises:
            UserError: predictions of this kind have no mean.
        """
        raise UserError(
            f"Expected a task of labels, numbers or choices for --ensemble, found {type(self).__name__}; leave "
            "--ensemble out."
        )

    def submission(self, records: Iterable[Record]) -> Iterator[str]:
        """Yield predictions in the format of the task's official scorer, piece by piece; by default GLUE's."""
        yield "index\tprediction\n"
        for index, record in enumerate(records):
            yield f"{index}\t{record['prediction']}\n"

    def corrupt(self, batch: Batch, key: jax.Array, vocabulary: Vocabulary, constants: Any = ()) -> Batch:
        return batch

    def model_inputs(self, batch: Batch) -> dict[str, jax.Array]:
        """Return the tokens with their segments and positions, and token types or characters if the model has them."""
        names = ("input_ids", "characters", "segment_ids", "positions", "token_type_ids")
        return {name: batch[name] for name in names if name in batch}

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Return the sums of `loss_weights`; never 0, so that the loss of a batch of padding is 0."""
        return {term: jnp.maximum(jnp.sum(each), 1e-9) for term, each in self.loss_weights(batch).items()}

    def sums(
        self, module: nn.Module, loss_inputs: LossInputs, batch: Batch, key: jax.Array, *, training: bool
    ) -> LossSums:
        outputs, collections = apply_and_collect(self, module, loss_inputs, batch=batch, key=key, training=training)
        return self.sums_of(outputs, batch).replace(collections=collections)

    def sums_of(self, outputs: Any, batch: Batch) -> LossSums:
        """Return losses and metrics of the model's outputs."""
        losses, weights = self.losses(outputs, batch), self.loss_weights(batch)
        chex.assert_trees_all_equal_shapes_and_dtypes(losses, weights)
        return LossSums(
            {term: jnp.sum(losses[term] * each) for term, each in weights.items()}, self.counts(outputs, batch)
        )

    def evaluation(
        self, module: nn.Module, loss_inputs: LossInputs, batch: Batch, key: jax.Array
    ) -> tuple[LossSums, tuple[Any, jax.Array, jax.Array]]:
        """Return losses and metrics, and (outputs for predictions, example ids, sequence starts)."""
        sums, collected = self.evaluate_batch(module, loss_inputs, batch, key)
        return sums, (collected, batch["example_ids"], batch["sequence_starts"])

    def evaluate_batch(
        self, module: nn.Module, loss_inputs: LossInputs, batch: Batch, key: jax.Array
    ) -> tuple[LossSums, Any]:
        """Return losses and metrics of a batch without dropout, and the outputs for predictions."""
        outputs = apply(self, module, loss_inputs, batch=batch, key=key, training=False)
        return self.sums_of(outputs, batch), () if self.generates else self.outputs_for_prediction(outputs, batch)

    def head_flops(self, config: Any, batch: dict[str, jax.ShapeDtypeStruct]) -> float:
        """Return the model FLOPs of the head in one training step."""
        raise NotImplementedError(f"{type(self).__name__} must define `head_flops`.")

    def train_flops(self, config: Any, batch: dict[str, jax.ShapeDtypeStruct]) -> float:
        """Return the FLOPs of the model and the head. Frozen parameters count too."""
        *rows, length = batch["input_ids"].shape
        return config.train_flops(int(np.prod(rows)), length, 0) + self.head_flops(config, batch)


def exists(batch: Batch) -> jax.Array:
    """Return float32 [R K], 1 where a row holds a sequence."""
    return (batch["example_ids"] >= 0).astype(jnp.float32)


def check_length(template: Template, vocabulary: Vocabulary, length: int) -> None:
    """Raise UserError if rows of at most `length` tokens are too short, or the tokenizer lacks a special token."""
    template.check(vocabulary)
    if length < template.specials(2) + 2:
        raise UserError(
            f"Expected --data.sequence_length of at least {template.specials(2) + 2}, found {length}; raise it."
        )
