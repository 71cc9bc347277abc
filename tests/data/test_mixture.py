"""Batches of a mixture: the same for any hosts and any start, each source in epochs of its own, through any change."""

import dataclasses
import itertools
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data import mixture, store
from plmjax.data.layouts import Blocks, ContinuedPairs, Segments, SentencePairs, Streams, TwoWayStreams, Windows
from plmjax.data.mixing import Mixture
from plmjax.data.mixture import History, MixtureSource, Stage
from plmjax.data.pipeline import DatasetSource
from plmjax.errors import UserError
from tests.data.corpora import Words, documents, write

V = 300
SIZES = {"wiki": 12, "books": 5, "news": 3}
LAYOUTS = [Blocks(), SentencePairs(duplicates=2, pack=3), Segments(pack=2)]
RUN = SimpleNamespace(index=0, first_step=0, last_step=10_000, sequence_length=32, batch_size=8)


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, store.Dataset]:
    folder = tmp_path_factory.mktemp("mixture")
    return {
        name: write(folder / name, documents(size, V, seed), documents(1 + seed, V, 10 + seed), V)
        for seed, (name, size) in enumerate(SIZES.items())
    }


def history(*stages: tuple[int, dict[str, int]]) -> History:
    names = {name for _, rows in stages for name in rows}
    return History({name: f"digest of {name}" for name in sorted(names)}, tuple(itertools.starmap(Stage, stages)))


def source(
    datasets: dict[str, store.Dataset], *stages: tuple[int, dict[str, int]], layout=Blocks(), seed: int = 3
) -> MixtureSource:
    own = {name: datasets[name] for name in stages[-1][1]}
    return MixtureSource(layout, own, history(*stages), Vocabulary.placeholder(V), seed, 4)


def take(batches, count: int) -> list[dict[str, np.ndarray]]:
    found = [next(batches) for _ in range(count)]
    batches.close()
    return found


def assert_same(batch: dict, expected: dict) -> None:
    assert batch.keys() == expected.keys()
    for name, array in batch.items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


def given(mixed: MixtureSource, start: int, count: int, phase=RUN) -> dict[str, list[int]]:
    """The rows that each source gives in some steps, in order, by their numbers in the source."""
    rows = mixed.rows("train", phase.sequence_length)
    ids = np.concatenate([batch["row_ids"] for batch in take(mixed.train(phase, start), count)])
    owners = np.searchsorted(rows.firsts, ids, side="right") - 1
    names = list(mixed.history.stages[-1].rows)
    return {name: (ids[owners == place] - rows.firsts[place]).tolist() for place, name in enumerate(names)}


@pytest.mark.parametrize("layout", LAYOUTS, ids=repr)
def test_a_batch_is_the_same_for_any_hosts_and_any_start(datasets, layout) -> None:
    stage = (0, {"wiki": 3, "books": 2})
    whole = take(source(datasets, stage, layout=layout).train(RUN, 0), 9)
    for name, field in layout.batch(8, 32).items():
        assert (whole[0][name].shape, whole[0][name].dtype) == (field.shape, field.dtype), name
    resumed = take(source(datasets, stage, layout=layout).train(RUN, 6), 3)
    for batch, expected in zip(resumed, whole[6:], strict=True):
        assert_same(batch, expected)
    held_out = list(source(datasets, stage, layout=layout).evaluation(RUN))
    for hosts in (2, 4):
        for places in np.random.default_rng(hosts).permutation(8).reshape(hosts, -1):
            own = take(source(datasets, stage, layout=layout).train(RUN, 0, places), 9)
            for batch, expected in zip(own, whole, strict=True):
                assert_same(batch, {name: values[places] for name, values in expected.items()})
            own = source(datasets, stage, layout=layout).evaluation(RUN, places)
            for batch, expected in zip(own, held_out, strict=True):
                assert_same(batch, {name: values[places] for name, values in expected.items()})


def test_a_row_has_the_text_of_its_source(datasets) -> None:
    mixed = source(datasets, (0, {"books": 1, "wiki": 1, "news": 1}))
    rows = mixed.rows("train", 32)
    for batch in take(mixed.train(RUN, 5), 4):
        for place, name in enumerate(("books", "wiki", "news")):
            own = batch["row_ids"] - rows.firsts[place]
            mine = (own >= 0) & (own < rows.counts[place])
            alone = DatasetSource(Blocks(), datasets[name], Vocabulary.placeholder(V), 3).rows("train", 32)
            expected = alone.fields(own[mine].astype(np.int64))
            assert mine.any()
            for field, values in expected.items():
                np.testing.assert_array_equal(batch[field][mine], values, err_msg=field)


def test_every_source_walks_epochs_of_its_own(datasets) -> None:
    mixed = source(datasets, (0, {"wiki": 1, "news": 4}))
    counts = dict(zip(("wiki", "news"), mixed.rows("train", 32).counts.tolist(), strict=True))
    found = given(mixed, 0, 5 * counts["news"] // 8 + 1)
    assert abs(len(found["news"]) - 4 * len(found["wiki"])) < 5
    for name, count in counts.items():
        epochs = [found[name][first : first + count] for first in range(0, len(found[name]), count)]
        assert all(len(set(epoch)) == len(epoch) for epoch in epochs)
        assert name != "news" or (len(epochs) > 3 and epochs[0] != epochs[1])


def test_orders_depend_on_seed_phase_and_source(datasets) -> None:
    twins = {"a": datasets["wiki"], "b": datasets["wiki"]}
    orders = [
        tuple(given(source(twins, (0, {"a": 1, "b": 1}), seed=seed), 0, 4, phase)[name])
        for seed in (0, 1)
        for phase in (RUN, SimpleNamespace(**{**vars(RUN), "index": 1}))
        for name in ("a", "b")
    ]
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
    for name, rows in found.items():  # as the source alone, which nothing interrupted
        alone = given(source(datasets, (0, {name: 1})), 0, len(rows) // 8 + 1)[name]
        assert rows == alone[: len(rows)] and len(rows) > 40
        assert len(set(rows[: counts[name]])) == min(len(rows), counts[name])
    portions = mixed.portions([RUN], 33)
    for name, rows in found.items():
        assert portions[name].share == pytest.approx(len(rows) / (33 * 8))
        assert portions[name].epochs == pytest.approx(len(rows) / counts[name])


def test_positions_of_a_later_phase_begin_there(datasets) -> None:
    """A phase with longer rows has an order of its own. A change of the mixture in it keeps the positions."""
    phase = SimpleNamespace(index=1, first_step=10, last_step=40, sequence_length=64, batch_size=4)
    early, late = (4, {"wiki": 1, "books": 2}), (13, {"wiki": 3, "books": 1})
    begin = (0, {"wiki": 2, "books": 1})
    before = given(source(datasets, begin, early), 0, 3, phase)
    after = given(source(datasets, begin, early, late), 3, 5, phase)
    for name in before:
        rows = before[name] + after[name]
        assert rows == given(source(datasets, (0, {name: 1})), 0, 8, phase)[name][: len(rows)]
    first = SimpleNamespace(**{**vars(RUN), "last_step": 10})
    mixed = source(datasets, begin, early, late)
    portions = mixed.portions([first, phase], 18)
    short, long = (dict(zip(begin[1], mixed.rows("train", length).counts.tolist(), strict=True)) for length in (32, 64))
    gave = {name: len(before[name] + after[name]) for name in before}
    for name in begin[1]:
        opening = mixed.portions([first], 10)[name]
        assert portions[name].epochs == pytest.approx(opening.epochs + gave[name] / long[name])
        assert portions[name].share == pytest.approx((opening.epochs * short[name] + gave[name]) / (10 * 8 + 8 * 4))


def test_portions_before_the_first_step_are_the_shares_of_the_mixture(datasets) -> None:
    portions = source(datasets, (0, {"wiki": 3, "books": 1})).portions([RUN], 0)
    assert portions == {"wiki": (0.75, 0.0), "books": (0.25, 0.0)}


def test_an_evaluation_has_every_row_once_and_soon_of_every_source(datasets) -> None:
    mixed = source(datasets, (0, {"wiki": 8, "books": 1, "news": 1}))
    batches = list(mixed.evaluation(RUN))
    ids = np.concatenate([batch["row_ids"] for batch in batches])
    rows = mixed.rows("validation", 32)
    assert rows.count % 8 and mixed.held_out(32) == rows.count
    assert sorted(ids[ids >= 0].tolist()) == list(range(rows.count)) and (ids[rows.count :] == -1).all()
    first = np.searchsorted(rows.firsts, ids[:32], side="right")
    assert set(first.tolist()) == {1, 2, 3}
    assert not batches[-1]["input_ids"][batches[-1]["row_ids"] < 0].any()
    other_seed = list(source(datasets, (0, {"wiki": 8, "books": 1, "news": 1}), seed=9).evaluation(RUN))
    for batch, expected in zip(other_seed, batches, strict=True):
        assert_same(batch, expected)


def test_counts_of_tokens_are_at_the_shares(datasets) -> None:
    mixed = source(datasets, (0, {"wiki": 1, "news": 3}))
    wiki, news = (datasets[name].unigram_counts().astype(float) for name in ("wiki", "news"))
    expected = (wiki.sum() + news.sum()) * (0.25 * wiki / wiki.sum() + 0.75 * news / news.sum())
    assert mixed.unigram_counts.dtype == np.int64
    np.testing.assert_allclose(mixed.unigram_counts, expected, atol=0.5 + 1e-9, rtol=0)


def now(datasets, *names: str, **settings) -> History:
    mix = Mixture(tuple(f"{name}={datasets[name].directory}" for name in names), **settings)
    return History.new(mix, {name: datasets[name] for name in names})


def test_a_history_grows_by_what_changes(datasets, tmp_path: Path) -> None:
    begun = now(datasets, "wiki", "books", weights=("wiki=2", "books=1"))
    assert begun.stages == (Stage(0, {"wiki": 2, "books": 1}),)
    assert begun.resumed(5, begun, "the run") == begun
    reordered = now(datasets, "books", "wiki", weights=("books=1", "wiki=2"))
    assert begun.resumed(5, reordered, "the run").stages == begun.stages
    joined = now(datasets, "wiki", "news", temperature=float("inf"))
    grown = begun.resumed(5, joined, "the run")
    assert grown.stages == (*begun.stages, Stage(5, {"wiki": 1, "news": 1}))
    assert grown.sources.keys() == {"wiki", "books", "news"} and grown.fingerprint == begun.fingerprint
    # A command that failed before a further checkpoint leaves no trace, nor does a checkpoint that was removed.
    assert grown.resumed(5, begun, "the run") == begun
    assert grown.resumed(3, begun, "the run") == begun
    assert grown.resumed(9, begun, "the run").stages == (*grown.stages, Stage(9, begun.stages[0].rows))
    (tmp_path / "mixture.json").write_text(grown.to_json())
    assert History.read(tmp_path / "mixture.json", "restore it") == grown


def test_another_text_by_the_name_of_an_earlier_one(datasets) -> None:
    begun = now(datasets, "wiki", "books")
    other = now({"wiki": datasets["wiki"], "books": datasets["news"]}, "wiki", "books")
    with pytest.raises(UserError, match="text that the run in x has read as the source books, found another one"):
        begun.resumed(5, other, "the run in x")
    assert begun.fingerprint != other.fingerprint


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (None, "found no file; restore it"),
        ("[]", "a JSON object"),
        ('{"sources": {}, "stages": []}', "do not follow each other from step 0"),
        ('{"sources": {"a": "f"}, "stages": [{"first_step": 3, "rows": {"a": 1}}]}', "from step 0"),
        ('{"sources": {"a": "f"}, "stages": [{"first_step": 0, "rows": {"a": 0}}]}', "a of rows"),
        ('{"sources": {}, "stages": [{"first_step": 0, "rows": {}}]}', "a stage has no row"),
        *(
            (
                f'{{"sources": {{"a": "f"}}, "stages": [{{"first_step": 0, "rows": {first}}}, '
                f'{{"first_step": 5, "rows": {second}}}]}}',
                "a stage has no row",
            )
            for first, second in (('{"a": 1}', "{}"), ("{}", '{"a": 1}'))
        ),
        (
            '{"sources": {"a": "f", "b": "e"}, "stages": [{"first_step": 0, "rows": {"a": 65536, "b": 1}}]}',
            "or more than 65536",
        ),
        ('{"sources": {"a": "f"}, "stages": [{"first_step": 0, "rows": {"b": 1}}]}', "other sources than those with"),
    ],
)
def test_a_history_that_is_damaged(contents: str | None, message: str, tmp_path: Path) -> None:
    if contents is not None:
        (tmp_path / "mixture.json").write_text(contents)
    with pytest.raises(UserError, match=message):
        History.read(tmp_path / "mixture.json", "restore it")


def test_sources_of_several_tokenizers(datasets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Words, "fingerprint", "beef")
    other = write(tmp_path / "other", documents(2, V), [], V)
    mix = Mixture((f"wiki={datasets['wiki'].directory}", f"other={other.directory}"))
    with pytest.raises(UserError, match=r"made with the source wiki's tokenizer, found .*other made with another; pre"):
        mixture.open_sources(mix, None, V)
    assert list(mixture.open_sources(dataclasses.replace(mix, sources=mix.sources[:1]), None, V)) == ["wiki"]
    with pytest.raises(UserError, match=r"Expected a prepared dataset at .*none, found no folder"):
        mixture.open_sources(Mixture((f"wiki={tmp_path / 'none'}",)), None, V)


def test_a_source_that_fills_no_row(datasets) -> None:
    long = SimpleNamespace(**{**vars(RUN), "sequence_length": 3000})
    with pytest.raises(UserError, match=r"row of 3000 tokens in the source news, found too little in .*; leave it out"):
        source(datasets, (0, {"wiki": 1, "news": 1})).train(long, 0)


@pytest.mark.parametrize("layout", [Streams(), TwoWayStreams(), Windows(), ContinuedPairs()], ids=repr)
def test_rows_that_continue_from_batch_to_batch_cannot_be_mixed(datasets, layout) -> None:
    with pytest.raises(UserError, match=f"shuffled rows for a mixture, found {type(layout).__name__}, whose rows cont"):
        source(datasets, (0, {"wiki": 1, "news": 1}), layout=layout)


def test_a_limit_without_a_dataset_in_a_bucket_is_refused(datasets) -> None:
    mix = Mixture((f"wiki={datasets['wiki'].directory}",))
    with pytest.raises(UserError, match=r"Expected a dataset in a bucket for --data\.cache_limit"):
        mixture.open_sources(mix, 10**9, V)
    with pytest.raises(UserError, match=rf"at most {V - 1} tokens, the model's vocabulary, .* prepared with {V}"):
        mixture.open_sources(mix, None, V - 1)


def test_each_source_is_opened_and_read_with_the_settings_of_the_run(datasets, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is that of sources in buckets, if there is one."""
    asked: list[tuple] = []
    opened = SimpleNamespace(tokenizer_fingerprint="", directory=Path(), check_tokenizer=lambda *given: None)
    monkeypatch.setattr(mixture.storage, "path", str)
    monkeypatch.setattr(mixture.storage, "in_bucket", lambda path: path.startswith("gs://"))
    monkeypatch.setattr(
        mixture.remote, "open_dataset", lambda path, limit, **options: asked.append((path, limit, options)) or opened
    )
    options = {"vocab_size": V, "report": print}
    mix = Mixture(("near=folder", "far=gs://bucket/set"))
    assert list(mixture.open_sources(mix, 9, V, print)) == ["near", "far"]
    assert asked == [("folder", None, options), ("gs://bucket/set", 9, options)]
    asked.clear()
    mixture.open_sources(Mixture(("near=folder",)), 9, V, print)
    assert asked == [("folder", 9, options)]

    made: list[tuple] = []
    monkeypatch.setattr(mixture.remote, "source", lambda *given: made.append(given))
    mix = Mixture(tuple(f"{name}={datasets[name].directory}" for name in ("wiki", "news")))
    own = {name: datasets[name] for name in ("wiki", "news")}
    mixture.source_of(Blocks(), mix, own, "vocabulary", 5, 4)
    assert made == [(Blocks(), own[name], "vocabulary", 5, 4) for name in own]


def test_batches_of_a_source_in_pieces_end_those_of_an_earlier_call(datasets, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source goes on after the rows that it has given."""
    mixed = source(datasets, (0, {"wiki": 1, "books": 3}))
    numbered: list[int] = []
    closed: list[int] = []
    in_pieces = SimpleNamespace(numbered=lambda phase, key, first: numbered.append(first))
    mixed._in_pieces, mixed._whole = {"wiki": in_pieces}, {"books": mixed._sources["books"]}
    monkeypatch.setattr(
        mixture.remote,
        "RemoteBatches",
        lambda make, shapes, start, *rest: SimpleNamespace(close=lambda: closed.append(start)),
    )
    for start in (0, 6):
        mixed.train(RUN, start)
    assert numbered == [0, 6 * 8 // 4] and closed == [0]


def test_a_run_is_known_by_the_sources_that_it_began_with(datasets) -> None:
    mixed = source(datasets, (0, {"wiki": 2}), (5, {"wiki": 1, "books": 1}))
    assert mixed.fingerprint == history((0, {"wiki": 9})).fingerprint != history((0, {"books": 9})).fingerprint


def test_rows_of_all_sources_have_numbers_of_32_bits(datasets, monkeypatch: pytest.MonkeyPatch) -> None:
    mixed = source(datasets, (0, {"wiki": 1, "books": 1}))
    for count in (2**31 - 1, 2**31):
        found = SimpleNamespace(counts=np.array([5, count - 5]), count=count)
        monkeypatch.setattr(mixture, "MixedRows", lambda parts, found=found: found)
        if count < 2**31:
            assert mixed._open_rows("train", 32) is found
            continue
        with pytest.raises(UserError, match="at most 2147483647 rows, found that the mixture has 2147483648 of 32"):
            mixed._open_rows("train", 32)
