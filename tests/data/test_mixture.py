"""Batches of a mixture: the same for any hosts and any start, each source in epochs of its own, through any change."""

import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data import layouts, mixture, store
from plmjax.data.mixing import Mixture
from plmjax.data.mixture import History, MixtureSource, Stage
from plmjax.data.pipeline import DatasetSource
from tests.data.corpora import Words, assert_same, documents, take, write
from tests.data.mistakes import refused

V = 300
SIZES = {"wiki": 12, "books": 5, "news": 3}

RUN = SimpleNamespace(index=0, first_step=0, last_step=10_000, sequence_length=32, batch_size=8)


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, store.Dataset]:
    folder = tmp_path_factory.mktemp("mixture")
    return {
        name: write(folder / name, documents(size, V, seed=seed), documents(1 + seed, V, seed=10 + seed), vocab_size=V)
        for seed, (name, size) in enumerate(SIZES.items())
    }


def history(*stages: tuple[int, dict[str, int]]) -> History:
    names = {name for _, rows in stages for name in rows}
    return History({name: f"digest of {name}" for name in sorted(names)}, tuple(itertools.starmap(Stage, stages)))


def source(
    datasets: dict[str, store.Dataset], *stages: tuple[int, dict[str, int]], layout=layouts.Chunks(), seed: int = 3
) -> MixtureSource:
    own = {name: datasets[name] for name in stages[-1][1]}
    return MixtureSource(layout, own, history(*stages), vocabulary=Vocabulary.placeholder(V), seed=seed, window=4)


def given(mixed: MixtureSource, start: int, count: int, phase=RUN) -> dict[str, list[int]]:
    """The rows that each source gives in some steps, in order, by their numbers in the source."""
    rows = mixed.rows("train", phase.sequence_length)
    ids = np.concatenate([batch["row_ids"] for batch in take(mixed.train(phase, start), count)])
    owners = np.searchsorted(rows.firsts, ids, side="right") - 1
    names = list(mixed.history.stages[-1].rows)
    return {name: (ids[owners == place] - rows.firsts[place]).tolist() for place, name in enumerate(names)}


@pytest.mark.parametrize("layout", [layouts.Chunks(), layouts.SentencePairs(duplicates=2, pack=3)], ids=repr)
def test_a_batch_is_the_same_for_any_hosts_and_any_start(datasets, layout) -> None:
    stage = (0, {"wiki": 3, "books": 2})
    whole = take(source(datasets, stage, layout=layout).train(RUN, 0), 9)
    for name, field in layout.batch(8, 32).items():
        assert (whole[0][name].shape, whole[0][name].dtype) == (field.shape, field.dtype), name
    resumed = take(source(datasets, stage, layout=layout).train(RUN, 6), 3)
    for batch, expected in zip(resumed, whole[6:], strict=True):
        assert_same(batch, expected)
    rows = source(datasets, stage, layout=layout).rows("train", 32)  # a row has the text of its source
    for place, name in enumerate(stage[1]):
        own = whole[0]["row_ids"] - rows.firsts[place]
        mine = (own >= 0) & (own < rows.counts[place])
        alone = DatasetSource(layout, datasets[name], Vocabulary.placeholder(V), 3).rows("train", 32)
        for field, values in alone.fields(own[mine].astype(np.int64)).items():
            np.testing.assert_array_equal(whole[0][field][mine], values, err_msg=field)
        assert mine.any()
    held_out = list(source(datasets, stage, layout=layout).evaluation(RUN))
    ids = np.concatenate([batch["row_ids"] for batch in held_out])  # every row once, and soon of every source
    count = source(datasets, stage, layout=layout).held_out(32)
    assert sorted(ids[ids >= 0].tolist()) == list(range(count)) and (np.diff(ids[:8]) != 1).any()
    for places in np.random.default_rng(2).permutation(8).reshape(2, -1):
        own = take(source(datasets, stage, layout=layout).train(RUN, 0, places), 9)
        for batch, expected in zip(own, whole, strict=True):
            assert_same(batch, expected, places)
        own = source(datasets, stage, layout=layout).evaluation(RUN, places)
        for batch, expected in zip(own, held_out, strict=True):
            assert_same(batch, expected, places)


def test_orders_depend_on_seed_phase_and_source(datasets) -> None:
    twins = {"a": datasets["wiki"], "b": datasets["wiki"]}
    later = SimpleNamespace(**{**vars(RUN), "index": 1})
    made = [source(twins, (0, {"a": 1, "b": 1}), seed=seed) for seed in (0, 1)]
    orders = [tuple(given(one, 0, 4, phase)[name]) for one in made for phase in (RUN, later) for name in "ab"]
    assert len(set(orders)) == 8


def test_a_changed_mixture_loses_and_repeats_no_row(datasets) -> None:
    """A source continues where it was: after other weights, beside a new source, and after it was away."""
    first, second = {"wiki": 2, "books": 1}, {"wiki": 1, "books": 3, "news": 4}
    third, fourth = {"wiki": 1, "news": 1}, {"news": 1, "books": 2, "wiki": 2}
    stages = [(0, first), (7, second), (12, third), (20, fourth)]
    found: dict[str, list[int]] = {name: [] for name in SIZES}
    for number, ((start, _), stop) in enumerate(zip(stages, (7, 12, 20, 33), strict=True), start=1):
        for name, rows in given(source(datasets, *stages[:number]), start, stop - start).items():
            found[name] += rows
    mixed = source(datasets, *stages)
    counts = dict(zip(mixed.history.stages[-1].rows, mixed.rows("train", 32).counts.tolist(), strict=True))
    for name, rows in found.items():  # as the source alone, which nothing interrupted, in epochs of its own
        alone = given(source(datasets, (0, {name: 1})), 0, len(rows) // 8 + 1)[name]
        assert rows == alone[: len(rows)] and len(rows) > 40
        epochs = [rows[first : first + counts[name]] for first in range(0, len(rows), counts[name])]
        assert all(len(set(epoch)) == len(epoch) for epoch in epochs)
        assert name != "news" or (len(epochs) > 2 and epochs[0] != epochs[1])
    wiki, books, news = (datasets[name].unigram_counts().astype(float) for name in SIZES)
    expected = (wiki.sum() + books.sum() + news.sum()) * sum(
        share * counts / counts.sum() for share, counts in ((0.4, wiki), (0.4, books), (0.2, news))
    )
    np.testing.assert_allclose(mixed.unigram_counts, expected, atol=0.5 + 1e-9, rtol=0)
    portions = mixed.portions([RUN], 33)
    for name, rows in found.items():
        assert portions[name].fraction == pytest.approx(len(rows) / (33 * 8))
        assert portions[name].epochs == pytest.approx(len(rows) / counts[name])


def test_positions_of_a_later_phase_begin_there(datasets) -> None:
    """A phase with longer rows has an order of its own. A change of the mixture in it keeps the positions."""
    first = SimpleNamespace(**{**vars(RUN), "last_step": 10})
    phase = SimpleNamespace(index=1, first_step=10, last_step=40, sequence_length=64, batch_size=4)
    begin, early, late = (0, {"wiki": 2, "books": 1}), (4, {"wiki": 1, "books": 2}), (13, {"wiki": 3, "books": 1})
    before = given(source(datasets, begin, early), 0, 3, phase)
    mixed = source(datasets, begin, early, late)
    after = given(mixed, 3, 5, phase)
    portions, opening = mixed.portions([first, phase], 18), mixed.portions([first], 10)
    short, long = (dict(zip(begin[1], mixed.rows("train", length).counts.tolist(), strict=True)) for length in (32, 64))
    for name in begin[1]:
        rows, earlier = before[name] + after[name], opening[name].epochs
        assert rows == given(source(datasets, (0, {name: 1})), 0, 8, phase)[name][: len(rows)]
        assert portions[name].epochs == pytest.approx(earlier + len(rows) / long[name])
        assert portions[name].fraction == pytest.approx((earlier * short[name] + len(rows)) / (10 * 8 + 8 * 4))


def now(datasets, *names: str, **settings) -> History:
    mix = Mixture(tuple(f"{name}={datasets[name].directory}" for name in names), **settings)
    return History.new(mix, {name: datasets[name] for name in names})


def test_a_history_grows_by_what_changes(datasets, tmp_path: Path) -> None:
    begun = now(datasets, "wiki", "books", weights=("wiki=2", "books=1"))
    assert begun.stages == (Stage(0, {"wiki": 2, "books": 1}),)
    assert begun.resume(5, begun, "the run") == begun
    reordered = now(datasets, "books", "wiki", weights=("books=1", "wiki=2"))
    assert begun.resume(5, reordered, "the run").stages == begun.stages
    other = now({"wiki": datasets["wiki"], "books": datasets["news"]}, "wiki", "books")
    refused(lambda: begun.resume(5, other, "the run in x"), "the run in x .. the source books .. another")
    assert begun.fingerprint != other.fingerprint
    joined = now(datasets, "wiki", "news", temperature=float("inf"))
    grown = begun.resume(5, joined, "the run")
    assert grown.stages == (*begun.stages, Stage(5, {"wiki": 1, "news": 1}))
    assert grown.sources.keys() == {"wiki", "books", "news"} and grown.fingerprint == begun.fingerprint
    # A command that failed before a further checkpoint leaves no trace, nor does a checkpoint that was removed.
    assert grown.resume(5, begun, "the run") == begun
    assert grown.resume(3, begun, "the run") == begun
    assert grown.resume(9, begun, "the run").stages == (*grown.stages, Stage(9, begun.stages[0].rows))
    path = tmp_path / "mixture.json"
    refused(lambda: History.read(path, "restore it"), "no file; restore it")
    path.write_text(grown.to_json())
    assert History.read(path, "restore it") == grown
    one = {"sources": {"a": "f"}, "stages": [{"first_step": 0, "rows": {"a": 1}}]}
    for contents, part in (
        ([], "a JSON object"),
        (one | {"stages": []}, "do not follow each other from step 0"),
        (one | {"stages": [{"first_step": 0, "rows": {"a": 0}}]}, "a of rows"),
        (one | {"stages": [*one["stages"], {"first_step": 5, "rows": {}}]}, "a stage has no row"),
        (one | {"stages": [{"first_step": 0, "rows": {"a": 65537}}]}, "a of rows .. 65537"),
        (one | {"sources": {"b": "f"}}, "other sources than those with"),
    ):
        path.write_text(json.dumps(contents))
        refused(lambda: History.read(path, "restore it"), part)


def test_what_cannot_be_mixed(datasets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = SimpleNamespace(**{**vars(RUN), "sequence_length": 3000})
    refused(lambda: source(datasets, (0, {"wiki": 1, "news": 1})).train(long, 0), "3000 tokens in the source news")
    for layout in (layouts.ContiguousStreams(), layouts.ContinuedPairs()):
        refused(lambda layout=layout: source(datasets, (0, {"wiki": 1}), layout=layout), type(layout).__name__)
    mix = Mixture((f"wiki={datasets['wiki'].directory}",))
    refused(lambda: mixture.open_sources(mix, 10**9, V), "a bucket .. --data.cache_limit")
    refused(lambda: mixture.open_sources(mix, None, V - 1), f"at most {V - 1} .. {V}")
    opened, words = mixture.open_sources(mix, None, V), Vocabulary.placeholder(V)
    read = mixture.new_source(layouts.Chunks(), mix, opened, vocabulary=words, seed=3, window=4)  # what can be
    for found, expected in zip(
        take(read.train(RUN, 4), 3), take(source(datasets, (0, {"wiki": 1})).train(RUN, 4), 3), strict=True
    ):
        assert_same(found, expected)
    monkeypatch.setattr(Words, "fingerprint", "beef")
    another = write(tmp_path / "other", documents(2, V), [], vocab_size=V)
    several = Mixture((*mix.sources, f"other={another.directory}"))
    refused(lambda: mixture.open_sources(several, None, V), "the source wiki's tokenizer .. other")
