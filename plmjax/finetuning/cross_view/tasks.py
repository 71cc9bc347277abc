"""The tasks of cross-view training: their modules, losses and predictions.

They follow Clark et al., EMNLP 2018, arXiv 1809.08370, section 3. Translation is in
plmjax/finetuning/cross_view/translation.py. The train step and the combination of tasks are in
plmjax/finetuning/cross_view/cross_view.py.
"""

import abc
import dataclasses
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.errors import UserError
from plmjax.finetuning.tasks.parsing import DependencyParsing
from plmjax.finetuning.tasks.tagging import TokenTagging
from plmjax.finetuning.tasks.task import TaskObjective
from plmjax.models.cvt.cvt import PRIMARY, TAGGING_VIEWS, CvtConfig, CvtForTasks, States, TaggingModules, ViewScores
from plmjax.models.cvt.parsing import PARSING_VIEWS, ParsingModules
from plmjax.objectives.objective import Batch, cross_entropy


@dataclasses.dataclass(frozen=True)
class TaskModules:
    """The modules of one task as functions of hidden states.

    key: key of dropout.
    """

    module: CvtForTasks
    variables: Any
    task: str
    key: jax.Array

    def __call__(
        self, states: States, batch: Batch, names: tuple[str, ...], *, training: bool
    ) -> dict[str, ViewScores]:
        """Return a dict from name to scores, of the modules with these names."""
        rngs = {"dropout": self.key} if training else {}
        asked = {"names": names, "deterministic": not training}
        return self.module.apply(self.variables, self.task, states, batch, **asked, rngs=rngs, method="view_scores")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CrossViewTask(TaskObjective, abc.ABC):
    """Base class of the tasks of cross-view training.

    Its methods receive batches in which the fields of the task have no prefix: `labels`, not TASK/labels.
    """

    views: ClassVar[tuple[str, ...]]
    """Names of its auxiliary modules."""
    fields: ClassVar[dict[str, type]]
    """Its fields of a batch and their dtypes: [R T] for the words, or [R U] for the words that a decoder reads."""
    decodes: ClassVar[bool] = False
    """True if its fields belong to the words that a decoder reads."""
    counted: ClassVar[tuple[str, ...]]
    """The metrics of `counts`, logged in training."""

    name: str
    """Name of a task of the data."""

    @abc.abstractmethod
    def main_metric(self, metrics: dict[str, float]) -> float:
        """Return the task's main metric, from 0 to 1, for the mean over tasks."""

    @property
    @abc.abstractmethod
    def prediction_size(self) -> int:
        """Return the number of values per word in `predictions`."""

    @abc.abstractmethod
    def modules(self, config: CvtConfig, dtype: jnp.dtype, name: str) -> nn.Module:
        """Return the Flax module with all modules of the task."""

    @abc.abstractmethod
    def multiplications(self, config: CvtConfig, batch: dict[str, jax.ShapeDtypeStruct]) -> tuple[int, int, int]:
        """Return the multiplications of a batch: for labels, for the views, and for the targets of the views."""

    def label_weights(self, batch: Batch) -> jax.Array:
        """Return 1 for every label of the task, else 0: float32, with the shape of its fields."""
        return batch["label_weights"]

    @abc.abstractmethod
    def label_nats(self, scores: ViewScores, batch: Batch, smoothing: float) -> jax.Array:
        """Return the loss of the primary module, summed over the labels: float32 scalar."""

    @abc.abstractmethod
    def view_nats(
        self, modules: TaskModules, read: States, states: States, batch: Batch
    ) -> tuple[jax.Array, jax.Array]:
        """Return the loss of the auxiliary modules on unlabelled sentences, and the number of words in the sum.

        Args:
            read: states without dropout, from which the primary module computes the targets.
            states: states with dropout, from which the auxiliary modules predict.
        """

    @abc.abstractmethod
    def predictions(self, modules: TaskModules, scores: ViewScores, states: States, batch: Batch) -> jax.Array:
        """Return the outputs for the task's `records`, [R T n]."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CrossViewClasses(CrossViewTask):
    """Base class of tasks with a class for every word: the views learn the primary module's probabilities."""

    smoothed: ClassVar[bool]
    """True if its labels are smoothed in training."""

    @abc.abstractmethod
    def classes(self, batch: Batch) -> jax.Array:
        """Return the right class of every word, int [R T]."""

    @abc.abstractmethod
    def hits(self, logits: jax.Array, batch: Batch) -> dict[str, jax.Array]:
        """Return a dict from metric to bool [R T], true at words that are right."""

    def sees(self, view: str, words: jax.Array, segment_ids: jax.Array) -> jax.Array:
        """Return bool [R T]: the words that a view predicts."""
        return words

    @abc.abstractmethod
    def multiplications_of_word(self, config: CvtConfig, length: int) -> tuple[int, int]:
        """Return the multiplications per word in the primary module and in all others, for rows of `length` words."""

    def multiplications(self, config: CvtConfig, batch: dict[str, jax.ShapeDtypeStruct]) -> tuple[int, int, int]:
        """Return the multiplications; the primary module has the same number for targets as for labels."""
        rows, length = batch["input_ids"].shape
        primary, others = (rows * length * count for count in self.multiplications_of_word(config, length))
        return primary, others, primary

    def label_nats(self, scores: jax.Array, batch: Batch, smoothing: float) -> jax.Array:
        nats, smoothing = cross_entropy(scores, self.classes(batch)), smoothing if self.smoothed else 0.0
        if smoothing:
            nats = (1 - smoothing) * nats - smoothing * jnp.mean(jax.nn.log_softmax(scores), axis=-1)
        return jnp.sum(self.label_weights(batch) * nats)

    def view_nats(
        self, modules: TaskModules, read: States, states: States, batch: Batch
    ) -> tuple[jax.Array, jax.Array]:
        """Return the cross entropy to the primary module's probabilities, summed over words and modules.

        The sum has only the words that a module predicts (`sees`).
        """
        taught = jax.lax.stop_gradient(jax.nn.softmax(modules(read, batch, (PRIMARY,), training=False)[PRIMARY]))
        words, total = batch["view_weights"] > 0, jnp.zeros(())
        for view, logits in modules(states, batch, self.views, training=True).items():
            nats = -jnp.sum(taught * jax.nn.log_softmax(logits), axis=-1)
            total += jnp.sum(jnp.where(self.sees(view, words, batch["segment_ids"]), nats, 0.0))
        return total, jnp.sum(batch["view_weights"])

    def counts(self, outputs: jax.Array, batch: Batch) -> dict[str, tuple[jax.Array, jax.Array]]:
        """Return the sums of `hits` over labelled words, with the number of these words."""
        weights = self.label_weights(batch)
        return {name: (jnp.sum(hit * weights), jnp.sum(weights)) for name, hit in self.hits(outputs, batch).items()}


@dataclasses.dataclass(frozen=True)
class CrossViewTagging(TokenTagging, CrossViewClasses):
    """Labels of words."""

    views: ClassVar[tuple[str, ...]] = TAGGING_VIEWS
    fields: ClassVar[dict[str, type]] = {"labels": np.int32, "label_weights": np.float32}
    counted: ClassVar[tuple[str, ...]] = ("accuracy",)
    smoothed: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Reject options that have no effect here."""
        if self.mix or self.mix_penalty:
            raise UserError(
                f"Expected no learned mix of layers in cross-view training, found mix {self.mix} and mix_penalty "
                f"{self.mix_penalty:g}; leave them out."
            )

    def main_metric(self, metrics: dict[str, float]) -> float:
        """Return the accuracy, or F1 for entities."""
        return metrics["f1" if self.entities else "accuracy"]

    @property
    def prediction_size(self) -> int:
        return len(self.labels)

    def modules(self, config: CvtConfig, dtype: jnp.dtype, name: str) -> nn.Module:
        return TaggingModules(config, dtype, len(self.labels), name=name)

    def classes(self, batch: Batch) -> jax.Array:
        return batch["labels"]

    def sees(self, view: str, words: jax.Array, segment_ids: jax.Array) -> jax.Array:
        """Return the words that a view predicts: `future` needs a word before, `past` a word after."""
        if view not in ("future", "past"):
            return words
        pairs = words[:, 1:] & words[:, :-1] & (segment_ids[:, 1:] == segment_ids[:, :-1])
        return jnp.pad(pairs, ((0, 0), (1, 0) if view == "future" else (0, 1)))

    def hits(self, logits: jax.Array, batch: Batch) -> dict[str, jax.Array]:
        return {"accuracy": jnp.argmax(logits, axis=-1) == batch["labels"]}

    def counts(self, outputs: jax.Array, batch: Batch) -> dict[str, tuple[jax.Array, jax.Array]]:
        return CrossViewClasses.counts(self, outputs, batch)

    def predictions(self, modules: TaskModules, scores: jax.Array, states: States, batch: Batch) -> jax.Array:
        return scores

    def multiplications_of_word(self, config: CvtConfig, length: int) -> tuple[int, int]:
        size, (first, _) = config.projection_size, config.lstm_outputs
        labels = size * len(self.labels)
        return size * config.width + labels, size * (config.width + 4 * first) + len(self.views) * labels


@dataclasses.dataclass(frozen=True)
class CrossViewParsing(DependencyParsing, CrossViewClasses):
    """Heads and relations of words; a class is a head and a relation."""

    views: ClassVar[tuple[str, ...]] = PARSING_VIEWS
    fields: ClassVar[dict[str, type]] = {"heads": np.int32, "relations": np.int32, "label_weights": np.float32}
    counted: ClassVar[tuple[str, ...]] = ("las", "uas")
    smoothed: ClassVar[bool] = False
    prediction_size: ClassVar[int] = 3

    def main_metric(self, metrics: dict[str, float]) -> float:
        """Return the labelled attachment score."""
        return metrics["las"]

    def modules(self, config: CvtConfig, dtype: jnp.dtype, name: str) -> nn.Module:
        return ParsingModules(config, dtype, len(self.relations), name=name)

    def classes(self, batch: Batch) -> jax.Array:
        """Return the head times the number of relations, plus the relation.

        The head is a position in the row, from 1, or 0 for the root.
        """
        place = jnp.where(batch["heads"] > 0, _starts(batch) + batch["heads"], 0)
        return place * len(self.relations) + batch["relations"]

    def hits(self, logits: jax.Array, batch: Batch) -> dict[str, jax.Array]:
        found, right = jnp.argmax(logits, axis=-1), self.classes(batch)
        return {"las": found == right, "uas": found // len(self.relations) == right // len(self.relations)}

    def predictions(self, modules: TaskModules, scores: jax.Array, states: States, batch: Batch) -> jax.Array:
        """Return [R T 3]: the head's number in its sentence, the id of the relation, and the probability of both."""
        place, relation = jnp.divmod(jnp.argmax(scores, axis=-1), len(self.relations))
        head = jnp.where(place > 0, place - _starts(batch), 0)
        return jnp.stack([head, relation, jnp.max(jax.nn.softmax(scores), axis=-1)], axis=-1)

    def multiplications_of_word(self, config: CvtConfig, length: int) -> tuple[int, int]:
        """Count the hidden layers, and the scores of all pairs of a head and a relation."""
        size, small, (first, _) = config.projection_size, config.parser_size, config.lstm_outputs
        scores = size * small + small * len(self.relations) * (size + length + 1)
        return 2 * size * config.width + scores, 2 * size * (config.width + 4 * first) + len(self.views) * scores


def _starts(batch: Batch) -> jax.Array:
    """Return the position in the row where each word's sentence starts, int [R T]."""
    return jnp.arange(batch["positions"].shape[1]) - batch["positions"]
