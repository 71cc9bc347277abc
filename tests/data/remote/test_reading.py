"""Training text that is read in pieces: what lies on the disk, what is asked of the store, and what it may answer."""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from plmjax.data import layouts, order, remote, store
from plmjax.data.pipeline import DatasetSource
from plmjax.data.remote import RemoteSource, ranges
from plmjax.data.store import manifest as ledgers
from plmjax.errors import Unavailable
from plmjax.files import patience, storage
from tests.data import corpora
from tests.data.mistakes import refused
from tests.data.remote.conftest import V, limit_of, upload
from tests.object_store import ObjectStore

PAIRS = layouts.SentencePairs(duplicates=2)
SHARD = "set/corpus-train.tfrecord-00000"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return storage.cache()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries follow each other at once, those of the client too."""
    retry = pytest.importorskip("gcsfs.retry")
    monkeypatch.setattr(patience, "FIRST_WAIT", 1e-3)
    monkeypatch.setattr(patience, "LONGEST_WAIT", 1e-2)
    monkeypatch.setattr(retry, "asyncio", SimpleNamespace(sleep=lambda seconds: _nothing()))


async def _nothing() -> None:
    pass


def opened(
    address: str, written: store.Dataset, *, layout: layouts.Layout = PAIRS, window=4, seed=0, limit=0
) -> RemoteSource:
    dataset = remote.open_dataset(address, limit or limit_of(written))
    assert isinstance(dataset, remote.RemoteDataset)
    return remote.source(layout, dataset, corpora.Words(V).vocabulary, seed=seed, window=window)


def take(source: RemoteSource, phase: Any, start: int, *, count: int, places: np.ndarray | None = None) -> list[dict]:
    return corpora.take(source.train(phase, start, places), count)


def equal(first: list[dict], second: list[dict]) -> bool:
    return all(np.array_equal(a[name], b[name]) for a, b in zip(first, second, strict=True) for name in {*a, *b})


@pytest.mark.parametrize(
    "layout", [layouts.Chunks(), pytest.param(layouts.SentencePairs(pack=3), marks=pytest.mark.nightly)], ids=repr
)
def test_a_row_is_that_of_its_piece_as_a_dataset(layout: layouts.Layout, served, written, tmp_path) -> None:
    """Every row of one piece in the first epoch, from rows of a dataset that holds the documents of that piece."""
    source, phase = opened(served, written, layout=layout), corpora.phase(32, 8)
    plan, chosen = source.order(phase), 17
    counts = [piece.arrays["text/document_lengths"][1] for piece in source.dataset.pieces]
    text, first = written.split("train"), sum(counts[:chosen])
    documents = [
        [text.tokens(*text.sentence_offsets[s : s + 2]).tolist() for s in range(*text.document_offsets[d : d + 2])]
        for d in range(first, first + counts[chosen])
    ]
    assert sum(counts) == text.documents
    made = corpora.write(tmp_path / "piece", documents, [], vocab_size=V, shards=1)
    alone = layout.rows(made, "train", 32, vocabulary=source.vocabulary, seed=0)
    key = order.fold_in(order.fold_in(order.fold_in(order.fold_in(0, 1), 0), 1), chosen)
    compared = 0
    for step, batch in enumerate(take(source, phase, 0, count=plan.rows // 8)):
        _, (_, pieces, numbers) = plan.places(np.arange(8) + step * 8)
        here = np.flatnonzero(pieces == chosen)
        compared += len(here)
        for name, array in alone.fields(order.shuffle(numbers[here], alone.count, key)).items():
            assert np.array_equal(batch[name][here], array), name
    assert compared >= source.dataset.pieces[chosen].tokens // 32 - 8


def test_rows_depend_on_seed_phase_and_step_and_on_no_host(served: str, written: store.Dataset) -> None:
    phase = corpora.phase(32, 8)
    source = opened(served, written)
    assert source.order(phase).rows == source.epoch_rows(32) == sum(p.tokens // 32 for p in source.dataset.pieces)
    through = take(source, phase, 0, count=63)
    assert equal(take(source, phase, 60, count=3), through[60:])
    for places in (np.arange(3), np.arange(3, 8)):
        own = take(opened(served, written), phase, 50, count=13, places=places)
        assert equal(own, [{name: array[places] for name, array in batch.items()} for batch in through[50:]])
    assert not equal(through[:1], take(opened(served, written, seed=1), phase, 0, count=1))
    assert not equal(through[:1], take(source, corpora.phase(32, 8, index=1), 0, count=1))
    local = DatasetSource(PAIRS, written, source.vocabulary, 0)  # held-out rows are those of the whole dataset
    assert (source.fingerprint, source.held_out(32)) == (local.fingerprint, local.held_out(32))
    assert equal(list(source.evaluation(phase)), list(local.evaluation(phase)))
    assert np.array_equal(source.unigram_counts, local.unigram_counts)


def test_each_of_several_hosts_reads_pieces_of_its_own(served, written, object_store) -> None:
    """Four hosts with two rows of a batch each: no piece is read by two of them, and every piece by one."""
    phase, read = corpora.phase(32, 8), []
    plan = opened(served, written).order(phase)
    for host in range(4):
        source = opened(served, written, limit=limit_of(written, 0.36))  # less than one host needs for all lanes
        object_store.ranges.clear()
        take(source, phase, 0, count=plan.rows // 8 + 16, places=np.arange(2) + 2 * host)
        read.append({place for place in object_store.ranges if place[0].startswith(SHARD[:-1])})
    assert sum(map(len, read)) == len(set.union(*read)) == len(source.dataset.pieces)
    sizes = [sum(last + 1 - first for _, first, last in places) for places in read]
    assert max(sizes) < 1.5 * min(sizes)
    refused(lambda: source.train(phase, 0), "two windows of 4 pieces")


def watched(folder: Path, stop: threading.Event) -> Iterator[int]:
    """The bytes in a folder, again and again."""
    while not stop.is_set():
        total = 0
        for path in folder.rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                total += path.stat().st_size if path.is_file() else 0
        yield total
        time.sleep(0.01)


def test_the_limit_is_never_exceeded_and_each_piece_is_read_once_an_epoch(served, written, object_store, cache) -> None:
    source, phase = opened(served, written), corpora.phase(32, 8)
    stop, sizes = threading.Event(), []
    watcher = threading.Thread(target=lambda: sizes.extend(watched(cache, stop)), daemon=True)
    watcher.start()
    object_store.ranges.clear()
    plan = source.order(phase)
    batches = source.train(phase, 0)
    for _ in range(plan.rows // 8 - 16):  # before a piece of the next epoch is due
        next(batches)
    read = [place for place in object_store.ranges if place[0].startswith(SHARD[:-1])]
    (disk,) = [part.disk for part in batches.parts]
    most = disk.most_bytes
    for _ in range(plan.rows // 8):
        next(batches)
    stop.set()
    watcher.join()
    batches.close()
    limit = limit_of(written)
    assert most <= disk.most_bytes <= limit and len(sizes) > 20
    assert limit / 2 < max(sizes) <= disk.most_bytes
    pieces = source.dataset.pieces
    asked = [(f"set/{p.range.file}", p.range.start, p.range.start + p.range.size - 1) for p in pieces]
    assert plan.lanes == 4 and len(set(read)) > 0.8 * len(pieces)
    for lane in plan.orders:
        first = [asked[piece] for window in range(lane.windows) for piece in lane.pieces(window)]
        of_lane = [place for place in read if place in first]
        assert len(of_lane) > 4 and of_lane[: len(first)] == first[: len(of_lane)]
    files = {path.name.split("-")[0] for path in (cache / "datasets").rglob("*") if path.is_file()}
    assert "corpus" in files and not any(path.name.startswith(("corpus-train", "train.")) for path in cache.rglob("*"))


@pytest.mark.nightly
def test_a_run_begins_at_any_step_with_the_pieces_of_its_window(served, written, object_store) -> None:
    source, phase = opened(served, written), corpora.phase(32, 8)
    plan = source.order(phase)
    through = take(source, phase, 0, count=150)
    step = 125
    object_store.ranges.clear()
    object_store.requests.clear()
    assert equal(take(source, phase, step, count=3), through[step : step + 3])
    read = list(object_store.ranges)
    for lane in plan.orders:
        window = int(lane.places(np.array([step * 8 // plan.lanes])).windows[0])
        ahead = [source.dataset.pieces[piece].range for w in range(window, window + 3) for piece in lane.pieces(w)]
        asked = [(f"set/{part.file}", part.start, part.start + part.size - 1) for part in ahead]
        of_lane = [place for place in read if place in asked]
        assert of_lane[0] == asked[0] and of_lane == asked[: len(of_lane)]
    assert len(read) <= 3 * plan.lanes  # the last where a window ends meanwhile
    media = [path for _, path in object_store.requests if "alt=media" in path]
    assert len(media) == len(read)  # the held-out text is there already


def test_a_folder_of_a_killed_process_is_removed_and_one_in_use_is_not(served, written, cache) -> None:
    """Batches of a source end with its next ones, and take their pieces with them."""
    source, phase = opened(served, written), corpora.phase(32, 8)
    pieces = cache / "pieces" / source.dataset.fingerprint
    (pieces / "left").mkdir(parents=True)
    (pieces / "left" / "3").write_bytes(b"piece")

    def folders() -> set[str]:
        return {path.name for path in pieces.iterdir() if path.is_dir()}

    next(source.train(phase, 5))
    batches = source.train(phase, 0)
    next(batches)
    assert len(folders()) == 1 and "left" not in folders()
    other = opened(served, written).train(phase, 0)
    next(other)
    assert len(folders()) == 2
    assert equal([next(batches) for _ in range(50)], [next(other) for _ in range(50)])
    batches.close()
    assert len(folders()) == 1
    other.close()
    assert not folders()


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda data: data[:50] + bytes([data[50] ^ 1]) + data[51:], "checksum differs in 6 tries"),
        (None, "the object is shorter or gone"),
    ],
    ids=["damaged", "gone"],
)
def test_a_piece_that_is_not_as_it_was_prepared_is_refused(change, part, served, written, object_store) -> None:
    source, phase = opened(served, written, window=8, limit=limit_of(written, 0.8)), corpora.phase(32, 8)
    bucket = served.split("/")[2]
    for name, known in list(object_store.buckets[bucket].items()):
        if "corpus-train" in name and change is None:
            object_store.delete(bucket, name)
        elif "corpus-train" in name:
            object_store.put(bucket, name, change(known.contents))
    refused(lambda: take(source, phase, 0, count=source.order(phase).rows // 8), part)


@pytest.mark.parametrize(
    ("status", "sentence"),
    [(403, "forbidden; ask for the roles"), (503, "Expected an answer of the bucket")],
)
def test_a_service_that_is_busy_or_refuses_is_tried_again_and_then_one_sentence(
    status: int, sentence: str, served: str, written: store.Dataset, object_store: ObjectStore, monkeypatch, capfd
) -> None:
    source, phase = opened(served, written), corpora.phase(32, 8)
    expected = take(source, phase, 0, count=5)
    tries = iter(range(20))
    object_store.weather = lambda method, path: status if "alt=media" in path and next(tries, None) else None
    try:
        assert equal(take(source, phase, 0, count=5), expected)
        assert next(tries, None) is None
        monkeypatch.setattr(ranges, "PATIENCE_SECONDS", 0.0)
        object_store.weather = status
        with pytest.raises(Unavailable, match=sentence):
            take(source, phase, 0, count=1000)
        assert "Traceback" not in capfd.readouterr().err
    finally:
        object_store.weather = None


def test_limits_and_windows_that_are_too_small_are_refused_with_what_suffices(served, written) -> None:
    phase = corpora.phase(32, 8)

    def number_after(words: str, sentence: str) -> int:
        return int(sentence.split(words)[1].split(" bytes")[0].replace(",", ""))

    little = opened(served, written, limit=limit_of(written, 0.3))
    enough = number_after("at least ", refused(lambda: little.train(phase, 0), "two windows of 4 pieces"))
    assert len(take(opened(served, written, limit=enough), phase, 0, count=2)) == 2
    less = opened(served, written, limit=enough - 1)
    refused(lambda: less.train(phase, 0), f"at least {enough:,} bytes .. {enough - 1:,}")
    held_out = number_after("more than ", refused(lambda: remote.open_dataset(served, 1000), "the held-out text"))
    refused(lambda: remote.open_dataset(served, held_out - 1), f"{held_out - 1:,};")
    dataset = remote.open_dataset(served, held_out)
    assert isinstance(dataset, remote.RemoteDataset) and dataset.limit == held_out
    source = opened(served, written)
    refused(lambda: source.train(corpora.phase(32, 500), 0), "500 rows of 32 tokens .. --data.shuffle_window")
    refused(lambda: source.train(corpora.phase(10**6, 1), 0), "1 rows .. 0 in 4 pieces")
    refused(lambda: remote.open_dataset(written.directory, 10**6), "a bucket .. --data.cache_limit")
    refused(lambda: remote.open_dataset(served, held_out, vocab_size=V - 1), f"at most {V - 1} .. {V}")
    for layout in (layouts.ContiguousStreams(), layouts.ContinuedPairs(), layouts.Cooccurrences()):
        name = type(layout).__name__
        refused(lambda layout=layout: opened(served, written, layout=layout), f"{name} .. the whole text")
    size = limit_of(written, 1.0)
    for limit in (None, size, size - 1):  # what fits is copied whole and fully shuffled
        dataset = remote.open_dataset(served, limit, vocab_size=V)
        source = remote.source(PAIRS, dataset, corpora.Words(V).vocabulary, seed=0, window=4)
        assert (type(source) is RemoteSource) == isinstance(dataset, remote.RemoteDataset) == (limit == size - 1)


def test_a_range_that_cuts_a_record_is_refused(served, written, object_store) -> None:
    """A dataset of an earlier version, without ranges, is read whole only."""
    change_ledger(object_store, served, lambda pieces: pieces[-1]["record"].__setitem__(1, 8))
    refused(lambda: remote.open_dataset(served, 25_000), "manifest.json .. a range cuts a record of")
    upload(object_store, served.split("/")[2], written.directory)
    change_ledger(object_store, served, lambda pieces: [piece.pop("record") for piece in pieces], 3)
    refused(lambda: remote.open_dataset(served, limit_of(written)), "an earlier version; prepare it again")
    assert remote.open_dataset(served, None).fingerprint == written.fingerprint


def change_ledger(object_store: ObjectStore, address: str, change: Callable[[list], object], count: int = 1) -> None:
    """Changes the pieces of the first training files, as somebody does who knows of the checksum."""
    bucket = address.split("/")[2]
    manifest = json.loads(object_store.buckets[bucket]["set/manifest.json"].contents)
    for shard in manifest["splits"]["train"]["shards"][:count]:
        change(shard["pieces"])
    manifest["crc32c"] = ledgers.manifest_checksum(manifest)
    object_store.put(bucket, "set/manifest.json", json.dumps(manifest).encode())
