"""Rows of several prepared datasets as batches for the training loop.

A row of a batch comes from the source that the pattern of the mixture names (`plmjax.data.mixing.Period`). Each source
has epochs of its own, and each epoch its own order. So the rows of a step follow from the seed, the step and the
history of the mixture, and a run resumes at any step without reading an earlier one.

A run may resume with other shares, with another source or without one. The history has a stage for each mixture. Each
source keeps its position from stage to stage, so no row is lost, and none is repeated before its epoch ends.
"""

import dataclasses
import functools
import hashlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from plmjax import json_text
from plmjax.data import order, store
from plmjax.data.layouts import Fields, Layout, LayoutRows
from plmjax.data.mixing import LONGEST_PERIOD, Mixture, Period, Portion
from plmjax.data.pipeline import Batch, Batches, DatasetSource, RowSource
from plmjax.data.store import Dataset
from plmjax.errors import UserError
from plmjax.json_text import COUNT
from plmjax.vocabulary import Vocabulary

Datasets = Mapping[str, Dataset]
"""The prepared dataset of each source, by name."""

_EVALUATION_KEY = 0
"""Key of the order of held-out rows, the same for every run."""
_CONTENTS = "the history of the run's mixture"
_SHAPE = {"sources": {str: str}, "stages": [{"first_step": COUNT, "rows": {str: range(1, LONGEST_PERIOD + 1)}}]}


def open_sources(mixture: Mixture, vocab_size: int, report: Callable[[str], None] = lambda line: None) -> Datasets:
    """Open the datasets of a mixture.

    Raises:
        UserError: an error of `store.open_dataset`; two sources have different tokenizers.
    """
    found = {
        name: store.open_dataset(path, vocab_size=vocab_size, report=report) for name, path in mixture.paths.items()
    }
    for first, name in itertools.pairwise(found):
        advice = f"prepare {name} again by plmjax prepare --tokenizer {found[first].directory / 'tokenizer'}"
        found[name].check_tokenizer(found[first].tokenizer_fingerprint, f"the source {first}'s", advice)
    return found


def source_of(
    layout: Layout, mixture: Mixture, datasets: Datasets, vocabulary: Vocabulary, seed: int
) -> "MixtureSource":
    """Return the source of a run that begins with a mixture."""
    return MixtureSource(layout, datasets, History.new(mixture, datasets), vocabulary, seed)


def shares(rows: Mapping[str, int]) -> dict[str, float]:
    """Return the share of each source, from its number of rows in a period."""
    total = sum(rows.values())
    return {name: count / total for name, count in rows.items()}


@dataclasses.dataclass(frozen=True)
class Stage:
    """The steps of a run that have one mixture.

    first_step: number of finished steps before it. rows: number of rows of each source in a period.
    """

    first_step: int
    rows: dict[str, int]


@dataclasses.dataclass(frozen=True)
class History:
    """The mixtures that a run has had.

    sources: fingerprint of each source that a stage names. stages: in the order of their steps, the first from step 0.
    """

    sources: dict[str, str]
    stages: tuple[Stage, ...]

    @classmethod
    def new(cls, mixture: Mixture, datasets: Datasets) -> "History":
        """Return the history of a run that begins with a mixture.

        Raises:
            UserError: an error of `Mixture.rows`.
        """
        rows = mixture.rows({name: dataset.train_tokens for name, dataset in datasets.items()})
        return cls({name: dataset.fingerprint for name, dataset in datasets.items()}, (Stage(0, rows),))

    def resumed(self, step: int, now: "History", where: str) -> "History":
        """Return the history of this run if it resumes after `step` steps as `now`, which has one stage.

        where: the run, for messages.

        Raises:
            UserError: a source has the name of an earlier one, and another text.
        """
        stages = tuple(stage for stage in self.stages if stage.first_step < step)
        read = {name: self.sources[name] for stage in stages for name in stage.rows}
        for name, fingerprint in now.sources.items():
            if read.get(name, fingerprint) != fingerprint:
                raise UserError(
                    f"Expected the text that {where} has read as the source {name}, found another one; name that, or "
                    f"give the new text another name."
                )
        if stages[-1].rows != now.stages[0].rows:
            stages = (*stages, Stage(step, now.stages[0].rows))
        return History(read | now.sources, stages)

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the sources that the run began with, which no change of the mixture changes."""
        first = {name: self.sources[name] for name in self.stages[0].rows}
        return hashlib.sha256(json.dumps(first, sort_keys=True).encode()).hexdigest()

    @property
    def shares(self) -> dict[str, float]:
        """The share of each source in the last stage."""
        return shares(self.stages[-1].rows)

    def to_json(self) -> str:
        """Return the history as JSON."""
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"

    @classmethod
    def read(cls, path: Path, advice: str) -> "History":
        """Read a history that was written as JSON.

        advice: the end of the message of an error.

        Raises:
            UserError: the file is missing, or holds something else.
        """
        found = json_text.read_object(path, _CONTENTS, advice)
        try:
            json_text.check(found, _SHAPE)
            stages = tuple(Stage(stage["first_step"], stage["rows"]) for stage in found["stages"])
            steps = [stage.first_step for stage in stages]
            if not stages or steps[0] or sorted(set(steps)) != steps:
                raise ValueError("its stages do not follow each other from step 0")
            if not all(0 < sum(stage.rows.values()) <= LONGEST_PERIOD for stage in stages):
                raise ValueError(f"a stage has no row, or more than {LONGEST_PERIOD}")
            if {name for stage in stages for name in stage.rows} != found["sources"].keys():
                raise ValueError("its stages have other sources than those with a fingerprint")
        except ValueError as error:
            raise UserError(
                f"Expected {_CONTENTS} in {path}, found another file ({json_text.reason(error)}); {advice}."
            ) from None
        return cls(found["sources"], stages)


class MixedRows(LayoutRows):
    """The rows of several datasets as one sequence: those of the first, then those of the second, ..."""

    def __init__(self, parts: Sequence[LayoutRows]):
        self._parts = parts
        self.counts = np.array([part.count for part in parts], np.int64)
        self.firsts = np.cumsum(self.counts) - self.counts
        self.count = int(self.counts.sum())

    def evaluation(self, step: int, batch_size: int, places: np.ndarray) -> np.ndarray:
        """Return the rows at `places` of evaluation batch `step`, int64; -1 where none is left.

        Every row occurs once, in an order that mixes the datasets: the first batches of an evaluation have rows of all.
        """
        numbers = super().evaluation(step, batch_size, places)
        exists = numbers >= 0
        numbers[exists] = order.permute(numbers[exists], self.count, _EVALUATION_KEY)
        return numbers

    def fields(self, rows: np.ndarray) -> Fields:
        found: Fields = {}
        for part, first, count in zip(self._parts, self.firsts, self.counts, strict=True):
            own = (rows >= first) & (rows < first + count)
            if not own.any():
                continue
            for name, array in part.fields(rows[own] - first).items():
                found.setdefault(name, np.empty((len(rows), *array.shape[1:]), array.dtype))[own] = array
        return found or self._parts[int(self.counts.argmax())].fields(rows)  # no rows, but all fields


class MixtureSource(RowSource):
    """Reads a mixture of prepared datasets for the training loop.

    datasets: those of the last stage of `history`.

    Raises:
        UserError: rows of the layout continue from batch to batch.
    """

    def __init__(self, layout: Layout, datasets: Datasets, history: History, vocabulary: Vocabulary, seed: int):
        check_layout(layout)
        super().__init__(layout, vocabulary, seed)
        self.history = history
        self._sources = {
            name: DatasetSource(layout, datasets[name], vocabulary, seed) for name in history.stages[-1].rows
        }

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the sources that the run began with (`History.fingerprint`)."""
        return self.history.fingerprint

    @property
    def unigram_counts(self) -> np.ndarray:
        """Number of times that each token is a target in as much text as the sources have, at their shares, int64 [V].

        The shares are those of the last stage.
        """
        counts = {name: source.unigram_counts for name, source in self._sources.items()}
        every = sum(int(count.sum()) for count in counts.values())
        parts = [share * counts[name] / max(counts[name].sum(), 1) for name, share in self.history.shares.items()]
        return np.rint(every * np.sum(parts, axis=0)).astype(np.int64)

    def train(self, phase: Any, start: int, places: np.ndarray | None = None) -> Batches:
        """Return the phase's global batches start, start + 1, ... without end, or only the rows `places` of each.

        phase: object with first_step, sequence_length, batch_size and index (0 for the first phase).

        Raises:
            UserError: the text of a source fills no row.
        """
        rows = self.rows("train", phase.sequence_length)
        places = np.arange(phase.batch_size) if places is None else places
        stages = self._stages(phase)
        names = {name: place for place, name in enumerate(self._sources)}
        keys = [order.fold(self._key(phase), _number(name)) for name in names]

        def make(step: int) -> Batch:
            stage = max((one for one in stages if one.first <= step), key=lambda one: one.first)
            sources, numbers = stage.period((step - stage.first) * phase.batch_size + places)
            which = np.empty(len(places), np.int64)
            for number, name in enumerate(stage.names):
                own = sources == number
                if own.any():
                    place = names[name]
                    earlier = stage.earlier[name] + numbers[own]
                    which[own] = rows.firsts[place] + order.shuffled(earlier, int(rows.counts[place]), keys[place])
            return self._batch(rows, which, True)

        return self._batches(make, phase, start, np.iinfo(np.int64).max)

    def portions(self, phases: Sequence[Any], step: int) -> dict[str, Portion]:
        """Return the portion of each source after `step` steps of a run with these phases.

        Before the first step a share is that of the mixture. Rows of all phases count alike, and passes over the rows
        of several phases add up.
        """
        taken, epochs = dict.fromkeys(self._sources, 0), dict.fromkeys(self._sources, 0.0)
        total = 0
        for phase in phases:
            done = min(step, phase.last_step) - phase.first_step
            if done <= 0:
                continue
            total += done * phase.batch_size
            rows, given = self.rows("train", phase.sequence_length), self._given(phase, done)
            for name, count in zip(self._sources, rows.counts.tolist(), strict=True):
                taken[name] += given.get(name, 0)
                epochs[name] += given.get(name, 0) / count
        read = {name: count / total for name, count in taken.items()} if total else self.history.shares
        return {name: Portion(read[name], epochs[name]) for name in self._sources}

    def _open_rows(self, split: str, sequence_length: int) -> MixedRows:
        found = MixedRows([source.rows(split, sequence_length) for source in self._sources.values()])
        for (name, source), count in zip(self._sources.items(), found.counts.tolist(), strict=True):
            if split == "train" and not count:
                raise UserError(
                    f"Expected text for a row of {sequence_length} tokens in the source {name}, found too little in "
                    f"{source.dataset.directory}; leave it out of the mixture, or prepare more text."
                )
        if found.count > np.iinfo(np.int32).max:
            raise UserError(
                f"Expected at most {np.iinfo(np.int32).max} rows, found that the mixture has {found.count} of "
                f"{sequence_length} tokens; lower --data.layout.duplicates or leave a source out."
            )
        return found

    def _given(self, phase: Any, steps: int) -> dict[str, int]:
        """Return the number of rows of each source in the first `steps` steps of a phase."""
        given: dict[str, int] = {}
        for stage in self._stages(phase):
            rows = (min(steps, stage.stop) - stage.first) * phase.batch_size
            if rows > 0:
                given |= stage.given(rows)
        return given

    def _stages(self, phase: Any) -> "list[_StageOfPhase]":
        """Return the stages that have steps of a phase, in order."""
        found: list[_StageOfPhase] = []
        stages = self.history.stages
        given: dict[str, int] = {}
        for stage, after in zip(stages, (*stages[1:], None), strict=True):
            first = max(stage.first_step - phase.first_step, 0)
            stop = np.iinfo(np.int64).max if after is None else after.first_step - phase.first_step
            if stop <= first:
                continue
            found.append(_StageOfPhase(first, int(stop), stage.rows, {name: given.get(name, 0) for name in stage.rows}))
            if after is not None:
                given |= found[-1].given((stop - first) * phase.batch_size)
        return found


@dataclasses.dataclass(frozen=True)
class _StageOfPhase:
    """The steps first..stop-1 of a phase that have one mixture.

    rows: number of rows of each source in a period. earlier: number of rows that each source has given in earlier
        stages of the phase.
    """

    first: int
    stop: int
    rows: dict[str, int]
    earlier: dict[str, int]

    @functools.cached_property
    def period(self) -> Period:
        return Period(tuple(self.rows.values()))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.rows)

    def given(self, rows: int) -> dict[str, int]:
        """Return the number of rows of each source in the phase, after `rows` rows of the stage."""
        taken = self.period.taken(rows).tolist()
        return {name: self.earlier[name] + count for name, count in zip(self.rows, taken, strict=True)}


def check_layout(layout: Layout) -> None:
    """Raise UserError if rows of the layout continue from batch to batch. Rows of a mixture are shuffled."""
    if layout.continues:
        raise UserError(
            f"Expected a layout of shuffled rows for a mixture, found {type(layout).__name__}, whose rows continue "
            f"from batch to batch; prepare one dataset of all texts and name it in --data.path, or take another layout."
        )


def _number(name: str) -> int:
    """Return a number for the key of a source, which does not depend on the other sources."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
