"""Cross-view training: one encoder learns several tasks together, from labelled and unlabelled sentences.

Clark et al., EMNLP 2018, arXiv 1809.08370, sections 2 and 3; tensorflow/models research/cvt_text. Every task has
labelled sentences of its own.

Steps alternate between a labelled and an unlabelled batch. A labelled batch belongs to one task, which is sampled in
proportion to the square root of the task's number of sentences. The task's primary module learns the labels:

    L = - sum over classes of q log p,   q is 1 for the right class, else 0; it is smoothed in tagging

On an unlabelled batch, every task's auxiliary modules v learn the predictions of its primary module:

    L = - sum over tasks, over v and over classes of p log p_v

Here p is computed without dropout and is a constant. In translation, a generated text replaces it (translation.py).

Fields of a batch, besides those of plmjax/finetuning/tasks/task.py: TASK/labels, TASK/label_weights and so on, the
fields of each task's own objective (tagging.py, parsing.py, translation.py); and `view_weights` float32 [R T], 1 at the
words of unlabelled sentences. In a batch, either the weights of one task or the view weights are above 0; all others
are 0.

Deviation: in a batch, the loss of the modules `future` and `past` is divided by the number of all words. The released
code divides it by the number of words that have a word before or after them in their row.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.system import Purpose
from plmjax.errors import FRACTION, FROM_0, UserError, check_ranges, listed
from plmjax.finetuning.batches.encoded import Encoded, concatenate
from plmjax.finetuning.cross_view.tasks import CrossViewTask, TaskModules
from plmjax.finetuning.tasks.joint import (
    JointExamples,
    JointTask,
    NamedTask,
    join_examples,
    joint_answer,
    joint_metric_names,
    options_of,
    qualify_names,
)
from plmjax.finetuning.tasks.parsing import DependencyParsing, Parsing, TreeColumns
from plmjax.finetuning.tasks.tagging import TagColumns, Tagging, TokenTagging
from plmjax.finetuning.tasks.task import Answers, FileTask, Outputs, Record, Task, TaskObjective
from plmjax.finetuning.tasks.text_generation import Translation, encode_rows
from plmjax.finetuning.tasks.text_pairs import PairColumns, TextPairs
from plmjax.models.cvt.cvt import PRIMARY, CvtConfig, CvtForTasks, Head, States, ViewScores
from plmjax.objectives.objective import Batch, LossInputs, LossSums

NONE = "none"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskOnWords(NamedTask):
    """Base class of the tasks on words."""

    kind: ClassVar[type[FileTask]]
    """The class of such a task outside of cross-view training."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggingTask(TagColumns, TaskOnWords):
    """A task with a label for every word."""

    kind: ClassVar[type[FileTask]] = Tagging


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParsingTask(TreeColumns, TaskOnWords):
    """A task with the head of every word and their relation."""

    kind: ClassVar[type[FileTask]] = Parsing


@dataclasses.dataclass(frozen=True, kw_only=True)
class TranslationTask(PairColumns, TaskOnWords):
    """A task with sentences and their translations, such as train.en and train.de."""

    kind: ClassVar[type[FileTask]] = TextPairs


@dataclasses.dataclass(frozen=True)
class TasksWithText(JointTask):
    """Tasks on words, and a file of unlabelled sentences. Training alternates between them."""

    tasks: tuple[TaskOnWords, ...] = ()
    """The tasks, each with a different name."""
    target_length: int = 0
    """Number of words in a row of targets, including the marks at their ends; 0 where no task is a translation."""
    unlabelled: str = ""
    """File of unlabelled sentences, which are held in memory; `none` trains on labelled sentences only.

    The sentences are the lines of a .txt file, with words separated by white space, or a file in the format of the
    first task, whose labels are not read.
    """

    def __post_init__(self) -> None:
        check_ranges("data", self, target_length=FROM_0)
        super().__post_init__()

    def single_task(self, task: TaskOnWords) -> FileTask:
        return task.kind(**options_of(task, self, task.kind))

    def task_groups(self, train: JointExamples) -> list[JointExamples]:
        """Return the sentences of each task: a batch belongs to one task."""
        pairs = zip(train.tasks, train.parts, strict=True)
        return [join_examples(part.path, [part], (task,)) for task, part in pairs]

    def unlabelled_examples(self) -> JointExamples | None:
        """Return the sentences of the file `unlabelled`, as sentences of the first task."""
        if self.unlabelled == NONE:
            return None
        if not self.unlabelled:
            raise UserError(
                f"Expected a file of sentences without labels in --data.unlabelled, found nothing; name one, or {NONE}."
            )
        path = f"{self.folder.rstrip('/')}/{self.unlabelled}" if self.folder else self.unlabelled
        first = self.single_task(self.selected[0])
        rows = list(first.rows(path, labelled=False))
        if not any(words for _, words, *_ in rows):
            raise UserError(f"Expected sentences in {path}, found none; name another file in --data.unlabelled.")
        return join_examples(path, [first.to_examples(path, rows)], self.selected[:1])


@dataclasses.dataclass(frozen=True)
class CrossViewLearning(TaskObjective):
    """Nats of the labels, and nats of all auxiliary modules on unlabelled sentences.

    The targets of an auxiliary module are the predictions of its primary module.
    """

    task_class: ClassVar[type[Task]] = TasksWithText
    per_token: ClassVar[bool] = True
    purpose: ClassVar[Purpose] = Purpose.MULTI_VIEW

    tasks: tuple[CrossViewTask, ...] = ()
    """The objectives of the data's tasks."""
    label_smoothing: float = 0.1
    """Fraction of the probability that is spread evenly over all labels of a tagging task, in training."""

    def __post_init__(self) -> None:
        check_ranges("objective", self, label_smoothing=FRACTION)

    def fit_labels(self, train: JointExamples) -> Self:
        own = {task.name: task for task in self.tasks}
        learned = []
        for task, part in zip(train.tasks, train.parts, strict=True):
            if task.name not in own or own[task.name].task_class is not task.kind:
                raise UserError(
                    f"Expected the modules of the task {task.name}, a {type(task).__name__}, in the objective's tasks, "
                    f"found {listed(f'{one.name} ({type(one).__name__})' for one in self.tasks)}; add them to the "
                    f"experiment's file."
                )
            learned.append(own[task.name].fit_labels(part))
        return dataclasses.replace(self, tasks=tuple(learned))

    def evaluation_metrics(self, task: TasksWithText) -> tuple[str, ...]:
        chosen = [one.name for one in task.selected]
        return joint_metric_names({one.name: one.metric_names for one in self.tasks if one.name in chosen})

    def module(self, config: CvtConfig, execution: Execution) -> nn.Module:
        heads = [
            Head(task.name, functools.partial(task.modules, config, execution.dtype), task.views) for task in self.tasks
        ]
        return config.module(Purpose.MULTI_VIEW, execution, tuple(heads))

    def encode(self, examples: JointExamples, tokenizer: Any, model: ModelConfig, task: TasksWithText) -> Encoded:
        """Encode the sentences of all tasks, one task after the other. Fields of the other tasks are 0."""
        parts = []
        for one, part in zip(examples.tasks, examples.parts, strict=True):
            with task.named_options(one):
                made = self._task(one.name).encode(part, tokenizer, model, task.single_task(one))
            fields, decoder = self._fields(one.name, made), self._decoder(one.name, made)
            parts.append(dataclasses.replace(made, token_fields=fields, decoder=decoder))
        return concatenate(parts)

    def _task(self, name: str) -> CrossViewTask:
        return next(task for task in self.tasks if task.name == name)

    def _fields(self, name: str, encoded: Encoded) -> dict[str, np.ndarray]:
        """Return the token fields of one task's sentences."""
        count = len(encoded.tokens)
        fields = {"characters": encoded.token_fields["characters"], "view_weights": np.zeros(count, np.float32)}
        return fields | self._task_fields(name, encoded, decodes=False)

    def _decoder(self, name: str, encoded: Encoded) -> Encoded | None:
        """Return the decoder rows of a task's sentences, empty if the task has no decoder; None if no task has one."""
        if not any(task.decodes for task in self.tasks):
            return None
        decoder = encode_rows([[]] * len(encoded)) if encoded.decoder is None else encoded.decoder
        return dataclasses.replace(decoder, token_fields=self._task_fields(name, decoder, decodes=True))

    def _task_fields(self, name: str, encoded: Encoded, decodes: bool) -> dict[str, np.ndarray]:
        """Return the fields of all tasks with a decoder, or of all without: 0 except for the task `name`."""
        return {
            f"{task.name}/{field}": encoded.token_fields[field]
            if task.name == name
            else np.zeros(len(encoded.tokens), dtype)
            for task in self.tasks
            if task.decodes == decodes
            for field, dtype in task.fields.items()
        }

    def encode_unlabelled(
        self, examples: JointExamples, tokenizer: Any, model: ModelConfig, task: TasksWithText
    ) -> Encoded:
        """Encode unlabelled sentences: the fields of all tasks are 0, and `view_weights` is 1."""
        encoded = self.encode(examples, tokenizer, model, task)
        fields = {name: np.zeros_like(array) for name, array in encoded.token_fields.items()}
        fields["characters"] = encoded.token_fields["characters"]
        fields["view_weights"] += 1
        unread = dataclasses.replace(encoded, decoder=None)
        return dataclasses.replace(encoded, token_fields=fields, decoder=self._decoder("", unread))

    def model_inputs(self, batch: Batch) -> dict[str, jax.Array]:
        """Return the inputs of the encoder and of the decoders."""
        names = ("decoder_input_ids", "decoder_segment_ids")
        return _words(batch) | {name: batch[name] for name in names if name in batch}

    def sums(
        self, module: nn.Module, loss_inputs: LossInputs, batch: Batch, key: jax.Array, *, training: bool
    ) -> LossSums:
        """Return the losses and metrics of a batch. In training, only those of the batch's kind are computed."""
        if not training:
            return self.evaluate_batch(module, loss_inputs, batch, key)[0]
        modules = functools.partial(self._modules, module, loss_inputs, jax.random.fold_in(key, 2))
        read = functools.partial(module.apply, loss_inputs.variables, **_words(batch), method="read")
        states = read(deterministic=False, rngs={"dropout": key})

        def labelled(task: CrossViewTask) -> Callable[[States], LossSums]:
            def sums(states: States) -> LossSums:
                own = _task_batch(batch, task)
                scores = modules(task)(states, own, (PRIMARY,), training=True)[PRIMARY]
                return self._fill(
                    {task.name: task.label_nats(scores, own, self.label_smoothing)}, _counts(task, scores, own)
                )

            return sums

        def unlabelled(states: States) -> LossSums:
            taught = read(deterministic=True)
            losses = {
                task.name: task.view_nats(modules(task), taught, states, _task_batch(batch, task))
                for task in self.tasks
            }
            return self._fill(
                {name: nats for name, (nats, _) in losses.items()},
                {f"{name}/view_nats": pair for name, pair in losses.items()},
            )

        kinds = [jnp.sum(task.label_weights(_task_batch(batch, task))) for task in self.tasks]
        kind = jnp.argmax(jnp.stack([*kinds, jnp.sum(batch["view_weights"])]))
        return jax.lax.switch(kind, [*map(labelled, self.tasks), unlabelled], states)

    def evaluate_batch(
        self, module: nn.Module, loss_inputs: LossInputs, batch: Batch, key: jax.Array
    ) -> tuple[LossSums, jax.Array]:
        """Return the loss sums, and the outputs for every task's predictions, concatenated.

        The sums are the nats of the labels of each task and TASK/METRIC of its primary module.
        """
        states = module.apply(loss_inputs.variables, **_words(batch), deterministic=True, method="read")
        losses, metrics, predicted = {}, {}, []
        for task in self.tasks:
            own, modules = _task_batch(batch, task), self._modules(module, loss_inputs, key, task)
            scores = modules(states, own, (PRIMARY,), training=False)[PRIMARY]
            losses[task.name] = task.label_nats(scores, own, 0.0)
            metrics |= _counts(task, scores, own)
            predicted.append(task.predictions(modules, scores, states, own).astype(jnp.float32))
        return LossSums(losses, metrics), jnp.concatenate(predicted, axis=-1)

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Return a dict from task to the number of its labels and of unlabelled words; never 0."""
        others = jnp.sum(batch["view_weights"])
        labels = {task.name: jnp.sum(task.label_weights(_task_batch(batch, task))) for task in self.tasks}
        return {name: jnp.maximum(count + others, 1e-9) for name, count in labels.items()}

    def signatures(self, task: TasksWithText) -> dict[str, str]:
        """Return the signatures of every task's own objective, as TASK/METRIC_signature."""
        chosen = [one.name for one in task.selected]
        return qualify_names({one.name: one.signatures(task) for one in self.tasks if one.name in chosen})

    def evaluate_outputs(self, examples: JointExamples, encoded: Encoded, outputs: Outputs) -> Answers:
        """Return metrics and predictions.TASK.tsv, .conllu or .jsonl of every task, as its own objective does."""
        parts = self._parts(examples, encoded, outputs)
        answers = {task: task.evaluate_outputs(*its) for task, *its in parts}
        compared = [task.main_metric(scores) for task, (scores, _) in answers.items()]
        return joint_answer({task.name: answer for task, answer in answers.items()}, compared)

    def records(self, examples: JointExamples, encoded: Encoded, outputs: Outputs) -> list[Record]:
        return [record for task, *its in self._parts(examples, encoded, outputs) for record in task.records(*its)]

    def submission(self, records: Iterable[Record]) -> Iterator[str]:
        """Yield the format of the predicted task: CoNLL-U for a parser, CoNLL for a tagger, else lines of text."""
        for record in records:
            kind = DependencyParsing if "heads" in record else TokenTagging if "words" in record else Translation
            yield from kind().submission([record])

    def head_flops(self, config: CvtConfig, batch: dict[str, jax.ShapeDtypeStruct]) -> float:
        """Return the mean model FLOPs of a labelled and an unlabelled step, if all tasks have equally many steps.

        It counts 6 for every multiplication of the trained modules, and 2 for every multiplication of the encoder and
        the primary modules that compute their targets.
        """
        counts = np.array([task.multiplications(config, batch) for task in self.tasks])
        labelled, without = 6 * counts[:, 0].mean(), 6 * counts[:, 1].sum() + 2 * counts[:, 2].sum()
        rows, length = batch["input_ids"].shape
        return float(labelled + without + config.train_flops(rows, length, 0) / 3) / 2

    def _modules(
        self, module: CvtForTasks, loss_inputs: LossInputs, key: jax.Array, task: CrossViewTask
    ) -> TaskModules:
        return TaskModules(module, loss_inputs.variables, task.name, key)

    def _fill(self, losses: dict[str, jax.Array], metrics: dict[str, tuple[jax.Array, jax.Array]]) -> LossSums:
        """Return the sums of a batch, with 0 for the terms of other kinds of batches."""
        zero = jnp.zeros(())
        names = [f"{task.name}/{one}" for task in self.tasks for one in (*task.counted, "view_nats")]
        return LossSums(
            {task.name: losses.get(task.name, zero) for task in self.tasks},
            {name: metrics.get(name, (zero, zero)) for name in names},
        )

    def _parts(self, examples: JointExamples, encoded: Encoded, outputs: Outputs) -> Iterator[tuple]:
        """Yield (task, its examples, their encoding, outputs for its predictions) of every task."""
        sizes = np.cumsum([0, *(task.prediction_size for task in self.tasks)]).tolist()
        columns = {task.name: slice(*sizes[place : place + 2]) for place, task in enumerate(self.tasks)}
        first = 0
        for one, part in zip(examples.tasks, examples.parts, strict=True):
            task, end = self._task(one.name), first + len(part)
            names = () if task.decodes else task.fields
            fields = {field: encoded.token_fields[f"{one.name}/{field}"] for field in names}
            own = dataclasses.replace(encoded, offsets=encoded.offsets[first : end + 1], token_fields=fields)
            yield task, part, own, [output[:, columns[one.name]] for output in outputs[first:end]]
            first = end


def _task_batch(batch: Batch, task: CrossViewTask) -> Batch:
    """Return a batch with the fields of one task's own objective."""
    return batch | {field: batch[f"{task.name}/{field}"] for field in task.fields}


def _counts(task: CrossViewTask, scores: ViewScores, own: Batch) -> dict[str, tuple[jax.Array, jax.Array]]:
    """Return TASK/METRIC -> (sum, weight) of a batch with the task's own fields."""
    return qualify_names({task.name: task.counts(scores, own)})


def _words(batch: Batch) -> dict[str, jax.Array]:
    """Return the inputs of the encoder; `unlabelled` is true for rows of unlabelled sentences."""
    names = ("input_ids", "characters", "segment_ids", "positions")
    return {name: batch[name] for name in names} | {"unlabelled": jnp.any(batch["view_weights"] > 0, axis=1)}
