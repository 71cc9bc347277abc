"""What the tasks of cross-view training are: their modules, classes and predictions (Clark et al., EMNLP 2018, arXiv
1809.08370, section 3). How they learn is in plmjax/finetuning/cross_view.py.
"""

import abc
import dataclasses
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.errors import UserError
from plmjax.finetuning.parsing import DependencyParsing
from plmjax.finetuning.tagging import TokenTagging
from plmjax.finetuning.task import TaskObjective
from plmjax.models.cvt import TAGGING_VIEWS, CvtConfig, TaggingModules
from plmjax.models.cvt_parsing import PARSING_VIEWS, ParsingModules
from plmjax.objectives.objective import Batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class CrossViewTask(TaskObjective, abc.ABC):
    """What a task is to cross-view training, besides what its own objective says of it."""

    views: ClassVar[tuple[str, ...]]
    """Its auxiliary modules."""
    fields: ClassVar[dict[str, type]]
    """Its fields of a batch, [R T] each, and their dtypes."""
    counted: ClassVar[tuple[str, ...]]
    """The metrics of `hits`, logged while training."""
    smoothed: ClassVar[bool]
    """Whether its labels are smoothed in training."""

    name: str
    """That of a task of the data."""

    @property
    @abc.abstractmethod
    def judged_by(self) -> str:
        """The metric that stands for the task in the mean of all."""

    @property
    @abc.abstractmethod
    def prediction_size(self) -> int:
        """Numbers of a word in `predictions`."""

    @abc.abstractmethod
    def modules(self, config: CvtConfig, dtype: jnp.dtype, name: str) -> nn.Module:
        """Its modules."""

    @abc.abstractmethod
    def multiplications(self, config: CvtConfig, length: int) -> tuple[int, int]:
        """Of a word, in the primary module and in all others; the rows have `length` words."""

    @abc.abstractmethod
    def classes(self, batch: Batch) -> jax.Array:
        """The right class of every word, int [R T]."""

    @abc.abstractmethod
    def hits(self, logits: jax.Array, batch: Batch) -> dict[str, jax.Array]:
        """Metric -> whether each word is right, bool [R T]."""

    @abc.abstractmethod
    def predictions(self, logits: jax.Array, batch: Batch) -> jax.Array:
        """What the task's `records` are made from, [R T n]."""

    def sees(self, view: str, words: jax.Array, segment_ids: jax.Array) -> jax.Array:
        """Which of the words a view says something of, bool [R T]."""
        return words


@dataclasses.dataclass(frozen=True)
class CrossViewTagging(TokenTagging, CrossViewTask):
    """Labels of words."""

    views: ClassVar[tuple[str, ...]] = TAGGING_VIEWS
    fields: ClassVar[dict[str, type]] = {"labels": np.int32, "label_weights": np.float32}
    counted: ClassVar[tuple[str, ...]] = ("accuracy",)
    smoothed: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuses what has no meaning here."""
        if self.mix or self.mix_penalty:
            raise UserError(
                f"Expected no learned mix of layers in cross-view training, found mix {self.mix} and mix_penalty "
                f"{self.mix_penalty:g}; leave them out."
            )

    @property
    def judged_by(self) -> str:
        """Entities by their F1."""
        return "f1" if self.entities else "accuracy"

    @property
    def prediction_size(self) -> int:
        """Labels."""
        return len(self.labels)

    def modules(self, config: CvtConfig, dtype: jnp.dtype, name: str) -> nn.Module:
        """A label of every word."""
        return TaggingModules(config, dtype, len(self.labels), name=name)

    def classes(self, batch: Batch) -> jax.Array:
        """The labels."""
        return batch["labels"]

    def sees(self, view: str, words: jax.Array, segment_ids: jax.Array) -> jax.Array:
        """`future` needs a word before, `past` one behind."""
        if view not in ("future", "past"):
            return words
        pairs = words[:, 1:] & words[:, :-1] & (segment_ids[:, 1:] == segment_ids[:, :-1])
        return jnp.pad(pairs, ((0, 0), (1, 0) if view == "future" else (0, 1)))

    def hits(self, logits: jax.Array, batch: Batch) -> dict[str, jax.Array]:
        """accuracy."""
        return {"accuracy": jnp.argmax(logits, axis=-1) == batch["labels"]}

    def predictions(self, logits: jax.Array, batch: Batch) -> jax.Array:
        """The scores of all labels."""
        return logits

    def multiplications(self, config: CvtConfig, length: int) -> tuple[int, int]:
        """Those of both layers."""
        size, (first, _) = config.projection_size, config.lstm_outputs
        labels = size * len(self.labels)
        return size * config.width + labels, size * (config.width + 4 * first) + len(self.views) * labels


@dataclasses.dataclass(frozen=True)
class CrossViewParsing(DependencyParsing, CrossViewTask):
    """Heads and relations of words; a class is a head and a relation."""

    views: ClassVar[tuple[str, ...]] = PARSING_VIEWS
    fields: ClassVar[dict[str, type]] = {"heads": np.int32, "relations": np.int32, "label_weights": np.float32}
    counted: ClassVar[tuple[str, ...]] = ("las", "uas")
    smoothed: ClassVar[bool] = False
    judged_by: ClassVar[str] = "las"
    prediction_size: ClassVar[int] = 3

    def modules(self, config: CvtConfig, dtype: jnp.dtype, name: str) -> nn.Module:
        """A head and a relation of every word."""
        return ParsingModules(config, dtype, len(self.relations), name=name)

    def classes(self, batch: Batch) -> jax.Array:
        """head's place in the row, from 1, or 0 for the root, times the relations, plus the relation's number."""
        place = jnp.where(batch["heads"] > 0, _starts(batch) + batch["heads"], 0)
        return place * len(self.relations) + batch["relations"]

    def hits(self, logits: jax.Array, batch: Batch) -> dict[str, jax.Array]:
        """las, uas."""
        found, right = jnp.argmax(logits, axis=-1), self.classes(batch)
        return {"las": found == right, "uas": found // len(self.relations) == right // len(self.relations)}

    def predictions(self, logits: jax.Array, batch: Batch) -> jax.Array:
        """The number of the head in the sentence, that of the relation, and the probability of both together."""
        place, relation = jnp.divmod(jnp.argmax(logits, axis=-1), len(self.relations))
        head = jnp.where(place > 0, place - _starts(batch), 0)
        return jnp.stack([head, relation, jnp.max(jax.nn.softmax(logits), axis=-1)], axis=-1)

    def multiplications(self, config: CvtConfig, length: int) -> tuple[int, int]:
        """Those of hidden layers, of words with relations, and of words with words."""
        size, small, (first, _) = config.projection_size, config.parser_size, config.lstm_outputs
        scores = size * small + small * len(self.relations) * (size + length + 1)
        return 2 * size * config.width + scores, 2 * size * (config.width + 4 * first) + len(self.views) * scores


def _starts(batch: Batch) -> jax.Array:
    """The place in the row where each word's sentence begins, int [R T]."""
    return jnp.arange(batch["positions"].shape[1]) - batch["positions"]
