"""Batches from several prepared datasets for the training loop.

The pattern of the mixture gives the source of every row (`plmjax.data.mixing.Period`). Each source has separate epochs,
and each epoch a new order. So the rows of a step follow from the seed, the step and the history of the mixture, and a
run resumes at any step without reading an earlier one.

A run may resume with other fractions, with another source or without one. The history has a stage for each mixture.
Each source keeps its position from stage to stage, so no row is lost, and none is repeated before its epoch ends.
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

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data import order, remote
from plmjax.data.layouts import Fields, Layout, LayoutRows
from plmjax.data.mixing import LONGEST_PERIOD, Mixture, Period, Portion
from plmjax.data.pipeline import Batch, Batches, RowSource
from plmjax.data.store import Dataset
from plmjax.errors import UserError
from plmjax.files import json_text, storage
from plmjax.files.json_text import COUNT

Datasets = Mapping[str, Dataset]
"""The prepared dataset of each source, by name."""

_EVALUATION_KEY = 0
"""Key of the order of held-out rows, the same for every run."""
_CONTENTS = "the history of the run's mixture"
_SHAPE = {"sources": {str: str}, "stages": [{"first_step": COUNT, "rows": {str: range(1, LONGEST_PERIOD + 1)}}]}


def open_sources(
    mixture: Mixture, limit: int | None, vocab_size: int, report: Callable[[str], None] = lambda line: None
) -> Datasets:
    """Open the datasets of a mixture.

    limit: bytes that each dataset in a bucket may take on the disk of a host; None for no limit.

    Raises:
        UserError: an error of `remote.open_dataset`; a limit although no dataset is in a bucket; two sources have
            different tokenizers.
    """
    remote_paths = [path for path in mixture.paths.values() if storage.in_bucket(storage.path(path))]
    found = {
        name: remote.open_dataset(
            path,
            limit if path in remote_paths or not remote_paths else None,
            vocab_size=vocab_size,
            report=report,
        )
        for name, path in mixture.paths.items()
    }
    for first, name in itertools.pairwise(found):
        advice = f"prepare {name} again by plmjax prepare --tokenizer {found[first].directory / 'tokenizer'}"
        found[name].check_tokenizer(found[first].tokenizer_fingerprint, f"the source {first}'s", advice)
    return found


def new_source(
    layout: Layout, mixture: Mixture, datasets: Datasets, *, vocabulary: Vocabulary, seed: int, window: int
) -> "MixtureSource":
    """Return the source of a new run with a mixture."""
    return MixtureSource(
        layout, datasets, History.new(mixture, datasets), vocabulary=vocabulary, seed=seed, window=window
    )


def fractions(rows: Mapping[str, int]) -> dict[str, float]:
    """Return the fraction of each source from its number of rows in a period."""
    total = sum(rows.values())
    return {name: count / total for name, count in rows.items()}


@dataclasses.dataclass(frozen=True)
class Stage:
    """Consecutive steps of a run with the same mixture.

    first_step: number of finished steps before it. rows: number of rows of each source in a period.
    """

    first_step: int
    rows: dict[str, int]


@dataclasses.dataclass(frozen=True)
class History:
    """All mixtures of a run.

    sources: fingerprint of each source that a stage names. stages: in the order of their steps, the first from step 0.
    """

    sources: dict[str, str]
    stages: tuple[Stage, ...]

    @classmethod
    def new(cls, mixture: Mixture, datasets: Datasets) -> "History":
        """Return the history of a new run with a mixture.

        Raises:
            UserError: an error of `Mixture.rows`.
        """
        rows = mixture.rows({name: dataset.train_tokens for name, dataset in datasets.items()})
        return cls({name: dataset.fingerprint for name, dataset in datasets.items()}, (Stage(0, rows),))

    def resume(self, step: int, now: "History", where: str) -> "History":
        """Return the history of a run that resumes after `step` steps with the mixture of `now`, which has one stage.

        where: the run, for messages.

        Raises:
            UserError: a source has the name of an earlier one, but another text.
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
        """Fingerprint of the first sources of the run; changes of the mixture do not change it."""
        first = {name: self.sources[name] for name in self.stages[0].rows}
        return hashlib.sha256(json.dumps(first, sort_keys=True).encode()).hexdigest()

    @property
    def fractions(self) -> dict[str, float]:
        """The fraction of each source in the last stage."""
        return fractions(self.stages[-1].rows)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"

    @classmethod
    def read(cls, path: Path, advice: str) -> "History":
        """Read a history from JSON.

        advice: end of the error message.

        Raises:
            UserError: the file is missing, or has other contents.
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
    """The concatenated rows of several datasets."""

    def __init__(self, parts: Sequence[LayoutRows]):
        self._parts = parts
        self.counts = np.array([part.count for part in parts], np.int64)
        self.firsts = np.cumsum(self.counts) - self.counts
        self.count = int(self.counts.sum())

    def evaluation(self, step: int, batch_size: int, places: np.ndarray) -> np.ndarray:
        """Return the rows at `places` of evaluation batch `step`, int64; -1 where none is left.

        Every row occurs once, in an order that mixes the datasets, so the first batches have rows of every dataset.
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

    A source that is larger than its limit is read in pieces by every host. Its rows are not divided into lanes, because
    it has different places in each batch.

    datasets: the datasets of the last stage of `history`. window: number of pieces of a source whose rows are shuffled
    together.

    Raises:
        UserError: rows of the layout continue from batch to batch.
    """

    def __init__(
        self, layout: Layout, datasets: Datasets, history: History, *, vocabulary: Vocabulary, seed: int, window: int
    ):
        check_layout(layout)
        super().__init__(layout, vocabulary, seed)
        self.history = history
        self._sources = {
            name: remote.source(layout, datasets[name], vocabulary, seed=seed, window=window)
            for name in history.stages[-1].rows
        }
        self._in_pieces = {name: one for name, one in self._sources.items() if isinstance(one, remote.RemoteSource)}
        self._whole = {name: one for name, one in self._sources.items() if name not in self._in_pieces}
        self._batches_of_phase: remote.RemoteBatches | None = None

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the first sources of the run (`History.fingerprint`)."""
        return self.history.fingerprint

    @property
    def unigram_counts(self) -> np.ndarray:
        """Number of times that each token is a target, weighted by the fractions of the last stage, int64 [V].

        The total is the number of targets in all sources, up to rounding.
        """
        counts = {name: source.unigram_counts for name, source in self._sources.items()}
        every = sum(int(count.sum()) for count in counts.values())
        parts = [
            fraction * counts[name] / max(counts[name].sum(), 1) for name, fraction in self.history.fractions.items()
        ]
        return np.rint(every * np.sum(parts, axis=0)).astype(np.int64)

    def train(self, phase: Any, start: int, places: np.ndarray | None = None) -> Batches:
        """Return the phase's global batches start, start + 1, ... without end, or only the rows `places` of each.

        phase: object with first_step, sequence_length, batch_size and index (0 for the first phase).

        If a source is read in pieces, the batches of an earlier call end, because all calls share the disk limit.

        Raises:
            UserError: the text of a source fills no row, or an error of `remote.PieceRows`.
        """
        if self._batches_of_phase is not None:
            self._batches_of_phase.close()
        rows = self.rows("train", phase.sequence_length)
        places = np.arange(phase.batch_size) if places is None else places
        stages, given = self._stages(phase), self._rows_given(phase, start)
        keys = {name: order.fold_in(self._key(phase), _number(name)) for name in self._sources}
        whole = {name: place for place, name in enumerate(self._whole)}
        in_pieces = {
            name: source.rows_from(phase, keys[name], given.get(name, 0)) for name, source in self._in_pieces.items()
        }

        def make(step: int) -> Batch:
            stage = max((one for one in stages if one.first <= step), key=lambda one: one.first)
            sources, numbers = stage.period((step - stage.first) * phase.batch_size + places)
            which = np.full(len(places), -1)
            batch: Batch = {}

            def put(here: np.ndarray, found: Batch) -> None:
                for name, array in found.items():
                    batch.setdefault(name, np.empty((len(places), *array.shape[1:]), array.dtype))[here] = array

            for number, name in enumerate(stage.names):
                own = np.flatnonzero(sources == number)
                earlier = stage.earlier[name] + numbers[own]
                if name in whole:
                    place = whole[name]
                    which[own] = rows.firsts[place] + order.shuffle(earlier, int(rows.counts[place]), keys[name])
                elif len(own):
                    put(own, in_pieces[name].batch(earlier))
            here = np.flatnonzero(which >= 0)
            if len(here):
                put(here, self._batch(rows, which[here], True))
            return batch

        stop = np.iinfo(np.int64).max
        if not in_pieces:
            return self._batches(make, phase, start, stop)
        parts = list(in_pieces.values())
        self._batches_of_phase = remote.RemoteBatches(make, self.batch(phase), start, stop=stop, parts=parts)
        return self._batches_of_phase

    def portions(self, phases: Sequence[Any], step: int) -> dict[str, Portion]:
        """Return the portion of each source after `step` steps of a run with these phases.

        Before the first step the fractions are those of the mixture. Rows of all phases count equally, and passes over
        the rows of several phases add up.
        """
        taken, epochs = dict.fromkeys(self._sources, 0), dict.fromkeys(self._sources, 0.0)
        total = 0
        for phase in phases:
            done = min(step, phase.last_step) - phase.first_step
            if done <= 0:
                continue
            total += done * phase.batch_size
            given = self._rows_given(phase, done)
            for name, source in self._sources.items():
                taken[name] += given.get(name, 0)
                epochs[name] += given.get(name, 0) / source.epoch_rows(phase.sequence_length)
        read = {name: count / total for name, count in taken.items()} if total else self.history.fractions
        return {name: Portion(read[name], epochs[name]) for name in self._sources}

    def _open_rows(self, split: str, sequence_length: int) -> MixedRows:
        """Return the rows of all sources; for the training text, without the sources that are read in pieces."""
        sources = self._whole if split == "train" else self._sources
        found = MixedRows([source.rows(split, sequence_length) for source in sources.values()])
        for (name, source), count in zip(sources.items(), found.counts.tolist(), strict=True):
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

    def _rows_given(self, phase: Any, steps: int) -> dict[str, int]:
        """Return the number of rows of each source in the first `steps` steps of a phase."""
        given: dict[str, int] = {}
        for stage in self._stages(phase):
            rows = (min(steps, stage.stop) - stage.first) * phase.batch_size
            if rows > 0:
                given |= stage.rows_given(rows)
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
                given |= found[-1].rows_given((stop - first) * phase.batch_size)
        return found


@dataclasses.dataclass(frozen=True)
class _StageOfPhase:
    """The steps first..stop-1 of a phase with the same mixture.

    rows: number of rows of each source in a period. earlier: number of rows of each source in earlier stages of the
        phase.
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

    def rows_given(self, rows: int) -> dict[str, int]:
        """Return the number of rows of each source in the phase, after `rows` rows of the stage."""
        taken = self.period.counts_after(rows).tolist()
        return {name: self.earlier[name] + count for name, count in zip(self.rows, taken, strict=True)}


def check_layout(layout: Layout) -> None:
    """Raise UserError if rows of the layout continue from batch to batch. Rows of a mixture are shuffled."""
    if layout.continues:
        raise UserError(
            f"Expected a layout of shuffled rows for a mixture, found {type(layout).__name__}, whose rows continue "
            f"from batch to batch; prepare one dataset of all texts and name it in --data.path, or take another layout."
        )


def _number(name: str) -> int:
    """Return a number for the random key of a source, which does not depend on the other sources."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
