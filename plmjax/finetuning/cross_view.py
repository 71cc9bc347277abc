"""Cross-view training: tasks that one encoder learns at once, with sentences of their own and sentences without labels
(Clark et al., EMNLP 2018, arXiv 1809.08370, sections 2 and 3; tensorflow/models research/cvt_text).

Steps take a batch with labels and one without in turn. That with labels is of one task, drawn in proportion to the root
of the task's number of sentences; its primary module learns the labels:

    L = - sum over classes of q log p,   q the right class, smoothed in tagging

On that without, every task's auxiliary modules v learn what its primary module says:

    L = - sum over tasks, over v and over classes of p log p_v

p is computed without dropout and is a constant there.

Fields of a batch, besides those of plmjax/finetuning/task.py: TASK/labels, TASK/label_weights and so on, the fields of
each task's own objective (tagging.py, parsing.py); and `view_weights` float32 [R T], 1 at the words of sentences
without labels. The weights of one task, or these, are above 0 in a batch, and no others.

Deviation: what the modules `future` and `past` lose in a batch is divided by all of its words; in the released code by
those that have a word before or after them in their row.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.errors import SHARE, UserError, check_ranges, listed
from plmjax.finetuning.cross_view_tasks import CrossViewTask
from plmjax.finetuning.joint import (
    MEAN,
    JointExamples,
    JointTask,
    NamedTask,
    joined_examples,
    joined_sequences,
    options_of,
)
from plmjax.finetuning.parsing import DependencyParsing, Parsing, TreeColumns
from plmjax.finetuning.tagging import TagColumns, Tagging, TokenTagging
from plmjax.finetuning.task import Answers, Encoded, FileTask, Outputs, Record, Task, TaskObjective
from plmjax.layers.execution import Execution
from plmjax.layers.model_config import ModelConfig
from plmjax.models.cvt import PRIMARY, CvtConfig, CvtForTasks, Head, States
from plmjax.objectives.objective import Batch, Given, Sums, apply, cross_entropy

NONE = "none"
Logits = dict[str, jax.Array]
"""Module -> its scores, float32 [R T classes]."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggingTask(TagColumns, NamedTask):
    """A label of every word."""

    kind: ClassVar[type[FileTask]] = Tagging


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParsingTask(TreeColumns, NamedTask):
    """The head of every word and their relation."""

    kind: ClassVar[type[FileTask]] = Parsing


@dataclasses.dataclass(frozen=True)
class TasksWithText(JointTask):
    """Tasks on words, and a file of sentences without labels that are trained on in turn with them."""

    tasks: tuple[TaggingTask | ParsingTask, ...] = ()
    """The tasks, each with a name of its own."""
    unlabelled: str = ""
    """File of further sentences: the lines of a .txt file, with words separated by white space, or one such as those
    of the tasks, whose labels are not read. They are held in memory. `none` trains on sentences with labels alone."""

    def alone(self, task: TaggingTask | ParsingTask) -> Tagging | Parsing:
        """One of the tasks as a task of its own."""
        return task.kind(**options_of(task, self, task.kind))

    def apart(self, train: JointExamples) -> list[JointExamples]:
        """Every task's sentences: a batch is of one task."""
        pairs = zip(train.tasks, train.parts, strict=True)
        return [joined_examples(part.path, [part], (task,)) for task, part in pairs]

    def without_labels(self) -> JointExamples | None:
        """The sentences of the file `unlabelled`, as sentences of the first task."""
        if self.unlabelled == NONE:
            return None
        if not self.unlabelled:
            raise UserError(
                f"Expected a file of sentences without labels in --data.unlabelled, found nothing; name one, or {NONE}."
            )
        path = f"{self.folder.rstrip('/')}/{self.unlabelled}" if self.folder else self.unlabelled
        first = self.alone(self.chosen[0])
        rows = list(first.rows(path, labelled=False))
        if not any(words for _, words, *_ in rows):
            raise UserError(f"Expected sentences in {path}, found none; name another file in --data.unlabelled.")
        return joined_examples(path, [first.to_examples(path, rows)], self.chosen[:1])


@dataclasses.dataclass(frozen=True)
class CrossViewLearning(TaskObjective):
    """Nats of the labels, and of what the primary modules say of sentences without labels to all others."""

    task_class: ClassVar[type[Task]] = TasksWithText
    per_token: ClassVar[bool] = True
    spells: ClassVar[bool] = True

    tasks: tuple[CrossViewTask, ...] = ()
    """What the modules of each of the data's tasks learn."""
    label_smoothing: float = 0.1
    """Share of the probability that goes to all labels of a tagging task alike, in training."""

    def __post_init__(self) -> None:
        """Checks the numbers."""
        check_ranges("objective", self, label_smoothing=SHARE)

    def learn(self, train: JointExamples) -> Self:
        """The objective with the labels of the train files."""
        own = {task.name: task for task in self.tasks}
        learned = []
        for task, part in zip(train.tasks, train.parts, strict=True):
            if task.name not in own or own[task.name].task_class is not task.kind:
                raise UserError(
                    f"Expected the modules of the task {task.name}, a {type(task).__name__}, in the objective's tasks, "
                    f"found {listed(f'{one.name} ({type(one).__name__})' for one in self.tasks)}; add them to the "
                    f"experiment's file."
                )
            learned.append(own[task.name].learn(part))
        return dataclasses.replace(self, tasks=tuple(learned))

    def reported(self, task: TasksWithText) -> tuple[str, ...]:
        """TASK/METRIC, and mean."""
        chosen = [one.name for one in task.chosen]
        return (
            *(f"{one.name}/{metric}" for one in self.tasks if one.name in chosen for metric in one.metric_names),
            MEAN,
        )

    def check_model(self, config: Any) -> None:
        """Raises UserError for a model without restricted views."""
        if not isinstance(config, CvtConfig):
            raise UserError(
                f"Expected a model with restricted views of a sentence, found {type(config).__name__}; begin with "
                f"experiments/cvt.py."
            )

    def module(self, config: CvtConfig, execution: Execution) -> nn.Module:
        """The encoder and the modules of all tasks."""
        heads = [
            Head(task.name, functools.partial(task.modules, config, execution.dtype), task.views) for task in self.tasks
        ]
        return CvtForTasks(config, execution, tuple(heads))

    def encode(self, examples: JointExamples, tokenizer: Any, model: ModelConfig, task: TasksWithText) -> Encoded:
        """The sentences of one task after the other, in the fields of their own; those of other tasks are 0."""
        parts = []
        for one, part in zip(examples.tasks, examples.parts, strict=True):
            with task.named_options(one):
                made = self._task(one.name).encode(part, tokenizer, model, task.alone(one))
            parts.append(dataclasses.replace(made, token_fields=self._fields(one.name, made)))
        return joined_sequences(parts)

    def _task(self, name: str) -> CrossViewTask:
        return next(task for task in self.tasks if task.name == name)

    def _fields(self, name: str, encoded: Encoded) -> dict[str, np.ndarray]:
        """The fields of tokens of one task's sentences."""
        made, count = encoded.token_fields, len(encoded.tokens)
        fields = {"characters": made["characters"], "view_weights": np.zeros(count, np.float32)}
        for task in self.tasks:
            for field, dtype in task.fields.items():
                fields[f"{task.name}/{field}"] = made[field] if task.name == name else np.zeros(count, dtype)
        return fields

    def encode_without_labels(
        self, examples: JointExamples, tokenizer: Any, model: ModelConfig, task: TasksWithText
    ) -> Encoded:
        """The fields of all tasks are 0, `view_weights` is 1."""
        encoded = self.encode(examples, tokenizer, model, task)
        fields = {name: np.zeros_like(array) for name, array in encoded.token_fields.items()}
        fields["characters"] = encoded.token_fields["characters"]
        fields["view_weights"] += 1
        return dataclasses.replace(encoded, token_fields=fields)

    def model_inputs(self, batch: Batch) -> dict[str, jax.Array]:
        """As `TaskObjective`, with the rows that have no labels."""
        return super().model_inputs(batch) | {"unlabelled": jnp.any(batch["view_weights"] > 0, axis=1)}

    def sums(self, module: nn.Module, given: Given, batch: Batch, key: jax.Array, *, training: bool) -> Sums:
        """The losses and metrics of a batch; in training what its kind needs is computed alone."""
        if not training:
            return self.sums_of(apply(self, module, given, batch, key, training=False), batch)
        states = apply(self, module, given, batch, key, training=True, method="read")

        def say(task: CrossViewTask, states: States, names: tuple[str, ...], training: bool) -> Logits:
            rngs = {"dropout": jax.random.fold_in(key, 2)} if training else {}
            inputs = task.name, states, batch["segment_ids"], names, not training
            return module.apply(given.variables, *inputs, rngs=rngs, method="say")

        def labelled(task: CrossViewTask) -> Callable[[States], Sums]:
            def sums(states: States) -> Sums:
                own, logits = _own(batch, task), say(task, states, (PRIMARY,), True)[PRIMARY]
                loss = jnp.sum(own["label_weights"] * self.labelled_nats(task, logits, own))
                return self._filled({task.name: loss}, _counts(task, logits, own))

            return sums

        def without_labels(states: States) -> Sums:
            read = apply(self, module, given, batch, key, training=False, method="read")
            losses = {}
            for task in self.tasks:
                taught = jax.lax.stop_gradient(jax.nn.softmax(say(task, read, (PRIMARY,), False)[PRIMARY]))
                losses[task.name] = self.view_nats(task, taught, say(task, states, task.views, True), batch)
            words = jnp.sum(batch["view_weights"])
            return self._filled(losses, {f"{name}/view_nats": (loss, words) for name, loss in losses.items()})

        kinds = [_own(batch, task)["label_weights"] for task in self.tasks] + [batch["view_weights"]]
        kind = jnp.argmax(jnp.stack([jnp.sum(weights) for weights in kinds]))
        return jax.lax.switch(kind, [*map(labelled, self.tasks), without_labels], states)

    def labelled_nats(self, task: CrossViewTask, logits: jax.Array, own: Batch) -> jax.Array:
        """Of the right classes of words, smoothed: float32 [R T]."""
        nats, share = cross_entropy(logits, task.classes(own)), self.label_smoothing if task.smoothed else 0.0
        if not share:
            return nats
        return (1 - share) * nats - share * jnp.mean(jax.nn.log_softmax(logits), axis=-1)

    def view_nats(self, task: CrossViewTask, taught: jax.Array, said: Logits, batch: Batch) -> jax.Array:
        """Of the primary module's probabilities, summed over the words and the modules that see them: float32."""
        words, total = batch["view_weights"] > 0, 0.0
        for view, logits in said.items():
            nats = -jnp.sum(taught * jax.nn.log_softmax(logits), axis=-1)
            total += jnp.sum(jnp.where(task.sees(view, words, batch["segment_ids"]), nats, 0.0))
        return total

    def losses(self, outputs: dict[str, Logits], batch: Batch) -> dict[str, jax.Array]:
        """Nats of every word's label by the primary module of each task."""
        found = {}
        for task in self.tasks:
            found[task.name] = cross_entropy(outputs[task.name][PRIMARY], task.classes(_own(batch, task)))
        return found

    def loss_weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Every word counts once, [R T]."""
        return {task.name: _own(batch, task)["label_weights"] + batch["view_weights"] for task in self.tasks}

    def counts(self, outputs: dict[str, Logits], batch: Batch) -> dict[str, tuple[jax.Array, jax.Array]]:
        """TASK/METRIC of words."""
        found = {}
        for task in self.tasks:
            found |= _counts(task, outputs[task.name][PRIMARY], _own(batch, task))
        return found

    def collected(self, outputs: dict[str, Logits], batch: Batch) -> jax.Array:
        """What every task's predictions are made from, side by side."""
        said = [task.predictions(outputs[task.name][PRIMARY], batch) for task in self.tasks]
        return jnp.concatenate(said, axis=-1)

    def answer(self, examples: JointExamples, encoded: Encoded, outputs: Outputs) -> Answers:
        """predictions.TASK.tsv or .conllu of every task, as its own objective writes them."""
        found, files, judged = {}, {}, []
        for task, *its in self._parts(examples, encoded, outputs):
            scores, written = task.answer(*its)
            found |= {f"{task.name}/{metric}": score for metric, score in scores.items()}
            files |= {name.replace(".", f".{task.name}.", 1): text for name, text in written.items()}
            judged.append(scores[task.judged_by])
        return found | {MEAN: float(np.mean(judged))}, files

    def records(self, examples: JointExamples, encoded: Encoded, outputs: Outputs) -> list[Record]:
        """Those of each task's own objective."""
        return [record for task, *its in self._parts(examples, encoded, outputs) for record in task.records(*its)]

    def official(self, records: Iterable[Record]) -> Iterator[str]:
        """The format of the one task that is predicted: CoNLL-U of a parser, CoNLL's of a tagger."""
        for record in records:
            kind = DependencyParsing if "heads" in record else TokenTagging
            yield from kind().official([record])

    def head_flops(self, config: CvtConfig, batch: dict[str, jax.ShapeDtypeStruct]) -> float:
        """Of the mean step of two in turn, each task's labels in the same number of steps.

        6 for every multiplication of the modules that learn, and 2 for those of the primary ones and of the encoder
        that say what they learn.
        """
        rows, length = batch["input_ids"].shape
        counts = np.array([task.multiplications(config, length) for task in self.tasks])
        labelled, without = 6 * counts[:, 0].mean(), 6 * counts[:, 1].sum() + 2 * counts[:, 0].sum()
        return float(rows * length * (labelled + without) + config.train_flops(rows, length, 0) / 3) / 2

    def _filled(self, losses: dict[str, jax.Array], metrics: dict[str, tuple[jax.Array, jax.Array]]) -> Sums:
        """The sums of a batch, with 0 for those of other kinds."""
        zero = jnp.zeros(())
        names = [f"{task.name}/{one}" for task in self.tasks for one in (*task.counted, "view_nats")]
        return Sums(
            {task.name: losses.get(task.name, zero) for task in self.tasks},
            {name: metrics.get(name, (zero, zero)) for name in names},
        )

    def _parts(self, examples: JointExamples, encoded: Encoded, outputs: Outputs) -> Iterator[tuple]:
        """(task, its examples, these in its own fields, what its own predictions are made from) of every task."""
        sizes = np.cumsum([0, *(task.prediction_size for task in self.tasks)]).tolist()
        columns = {task.name: slice(*sizes[place : place + 2]) for place, task in enumerate(self.tasks)}
        first = 0
        for one, part in zip(examples.tasks, examples.parts, strict=True):
            task, end = self._task(one.name), first + len(part)
            fields = {field: encoded.token_fields[f"{one.name}/{field}"] for field in task.fields}
            own = dataclasses.replace(encoded, offsets=encoded.offsets[first : end + 1], token_fields=fields)
            yield task, part, own, [output[:, columns[one.name]] for output in outputs[first:end]]
            first = end


def _own(batch: Batch, task: CrossViewTask) -> Batch:
    """A batch in the fields of one task's own objective."""
    return batch | {field: batch[f"{task.name}/{field}"] for field in task.fields}


def _counts(task: CrossViewTask, logits: jax.Array, own: Batch) -> dict[str, tuple[jax.Array, jax.Array]]:
    """TASK/METRIC -> (sum, weight) of a batch in the task's own fields."""
    weights = own["label_weights"]
    hits = task.hits(logits, own)
    return {f"{task.name}/{name}": (jnp.sum(hit * weights), jnp.sum(weights)) for name, hit in hits.items()}
