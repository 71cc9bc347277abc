"""Batches of a dataset in pieces: what their parts are made of, and how they end."""

import importlib
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import ShapeDtypeStruct

from plmjax.data import remote, store
from plmjax.data.pipeline import Batches
from plmjax.data.remote import RemoteBatches, RemoteDataset, RemoteSource, dataset, ranges, reader
from plmjax.errors import UserError
from tests.data.corpora import phase

sources = importlib.import_module("plmjax.data.remote.source")  # the package has a function of that name
LAYOUT = SimpleNamespace(continues=False, in_pieces=True, rows=lambda *given: given, batch=lambda *sizes: {})


class Pieces(RemoteDataset):
    """A dataset of eight pieces of 64 tokens. No piece is read."""

    def __init__(self) -> None:
        self.pieces = [SimpleNamespace(tokens=64)] * 8
        self.address = "gs://bucket/set"


def test_rows_of_a_piece_are_drawn_with_the_seed_of_the_run() -> None:
    found = remote.source(LAYOUT, Pieces(), "vocabulary", 5, 3)
    assert isinstance(found, RemoteSource) and found.window == 3
    assert found.rows_of_piece("piece", 32) == ("piece", "train", 32, "vocabulary", 5)
    assert type(remote.source(LAYOUT, "whole", "vocabulary", 5, 3)) is not RemoteSource


def test_a_run_reads_its_lanes_from_its_step_on_and_ends_what_it_read_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight rows of a batch are four lanes of two: step 5 begins with row 10 of each."""
    made: list[Any] = []
    closed: list[int] = []
    monkeypatch.setattr(sources, "PieceRows", lambda *given: made.append(given[-2:]))
    monkeypatch.setattr(
        sources, "RemoteBatches", lambda make, shapes, start, *rest: SimpleNamespace(close=lambda: closed.append(start))
    )
    source = remote.source(LAYOUT, Pieces(), "vocabulary", 5, 4)
    source.train(phase(32, 8), 0)
    source.train(phase(32, 8), 5, np.array([0, 1, 6]))
    assert made == [([0, 1, 2, 3], 0), ([0, 3], 10)] and closed == [0]
    source.numbered(phase(32, 8), np.zeros(1, np.uint64), 17)
    assert made[2:] == [([0], 17)]


def test_a_window_holds_a_batch_and_each_lane_has_a_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []
    checked: list[Any] = []
    monkeypatch.setattr(sources, "check_limit", lambda *given: checked.append(given))
    monkeypatch.setattr(sources, "Disk", lambda dataset: "disk")
    monkeypatch.setattr(sources, "Reader", lambda *given: read.append(given))

    def lane(number: int, rows: int = 4, windows: int = 2) -> Any:
        def places(numbers: np.ndarray) -> Any:
            return SimpleNamespace(windows=numbers + number)

        return SimpleNamespace(window_rows=rows, windows=windows, places=places, number=number)

    source = remote.source(LAYOUT, Pieces(), "vocabulary", 5, 3)
    key = np.zeros(1, np.uint64)
    orders = [lane(0), lane(1), lane(2, rows=9)]
    sources.PieceRows(source, phase(32, 12), SimpleNamespace(orders=orders, lanes=3), key, [0, 2], 7)
    assert checked == [(source.dataset, [orders[0], orders[2]])]
    assert [(given[0], given[1].number, given[2], given[4]) for given in read] == [
        (source.dataset, 0, 7, "disk"), (source.dataset, 2, 9, "disk"),
    ]  # fmt: skip
    assert read[0][3]("piece") == ("piece", "train", 32, "vocabulary", 5)
    with pytest.raises(UserError, match="windows of at least 13 rows of 32 tokens, a batch, found 12 in 3 pieces"):
        sources.PieceRows(source, phase(32, 13), SimpleNamespace(orders=orders, lanes=3), key, [0], 0)
    with pytest.raises(UserError, match="found 0 in 3 pieces"):
        orders[1] = lane(1, windows=0)
        sources.PieceRows(source, phase(32, 1), SimpleNamespace(orders=orders, lanes=3), key, [0], 0)


def test_an_error_of_any_part_ends_the_batches_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[Exception] = []
    ended: list[str] = []

    def part(name: str) -> Any:
        def check() -> None:
            if errors and name == "second":
                raise errors[0]

        return SimpleNamespace(fail=errors.append, check=check, close=lambda: ended.append(name))

    def make(step: int) -> dict[str, np.ndarray]:
        if step == 2:
            raise UserError("Expected a piece, found none; copy it.")
        return {"numbers": np.array([step], np.int32)}

    def init(self: Any, make: Any, shapes: Any, start: int, stop: int, ending: Any) -> None:
        self.made, self.close = map(make, range(start, stop)), ending

    monkeypatch.setattr(Batches, "__init__", init)  # without TensorFlow
    monkeypatch.setattr(Batches, "__next__", lambda self: next(self.made))
    shapes = {"numbers": ShapeDtypeStruct((1,), jnp.int32)}
    batches = RemoteBatches(make, shapes, 1, 5, [part("first"), part("second")])
    assert next(batches)["numbers"].tolist() == [1]
    with pytest.raises(UserError, match="Expected a piece, found none; copy it"):
        for _ in batches:
            pass
    batches.close()
    assert ended == ["first", "second"]


def test_the_first_error_of_a_reader_counts_and_none_after_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader.Reader, "_fetch_all", lambda self: None)
    found = reader.Reader("dataset", "order", 0, None, "disk")
    found.check()
    for text in ("first", "second"):
        found.fail(UserError(text))
    with pytest.raises(UserError, match="first"):
        found.rows(np.array([0]), np.array([3]))
    closed = reader.Reader("dataset", "order", 0, None, "disk")
    closed.close()
    closed.fail(UserError("late"))
    closed.check()
    with pytest.raises(ranges.Stopped):
        closed.rows(np.array([0]), np.array([3]))


@pytest.mark.parametrize("limit", [None, 100, 20])
def test_the_vocabulary_of_the_model_and_the_report_reach_a_dataset_of_any_size(
    limit: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    report = told.append
    ledger = {"splits": {"train": {"shards": [{"file": "train", "pieces": []}]}}, "fields": [], "streams": []}
    whole = SimpleNamespace(check_size=lambda size: told.append(("checked", size)), fingerprint="print")
    monkeypatch.setattr(dataset.storage, "in_bucket", lambda path: True)
    monkeypatch.setattr(store, "read_ledger", lambda path: ledger)
    sizes = {"held_out": 20, "train": 80 if limit == 100 else 81}
    monkeypatch.setattr(store, "all_files", lambda read: {name: {"bytes": size} for name, size in sizes.items()})
    monkeypatch.setattr(store, "open_dataset", lambda path, **options: told.append((path, options)))
    monkeypatch.setattr(store, "Dataset", lambda *given: whole)
    monkeypatch.setattr(store, "local_copy", lambda given, name, expected, report: told.append((given, name, report)))
    monkeypatch.setattr(dataset, "RemoteDataset", lambda *given: given)
    remote.open_dataset("folder", limit, vocab_size=7, report=report)
    expected = [("folder", {"vocab_size": 7, "report": report})]
    assert told == ([("checked", 7), (whole, "print.held_out", report)] if limit == 20 else expected)


def test_each_part_of_a_dataset_in_pieces_has_one_split() -> None:
    """The whole has the held-out text, a piece its own documents, whose sentences hold all of its tokens."""
    lengths = {"sentence": [2, 3], "document": [2]}
    record = np.concatenate(
        [np.array(lengths[part], "<i4").view(np.uint8) for part in lengths] + [np.arange(5, dtype="<u2").view(np.uint8)]
    )  # fmt: skip
    place = {"text/sentence_lengths": [0, 2], "text/document_lengths": [8, 1], "text/tokens": [12, 5]}
    ledger = {"tokenizer": {"vocab_size": 9, "fingerprint": ""}, "streams": ["text"]}
    entry = {"file": "train", "pieces": [place | {store.RECORD: [0, 22, 1]}]}
    ledger["splits"] = {"train": {"shards": [entry], "documents": 1}, "validation": {"shards": [], "documents": 3}}
    whole = RemoteDataset(None, ledger, "gs://bucket/set", 0)
    piece = whole.piece(0, record)
    assert piece.documents("train") == 1 and piece.documents("validation") == 0
    assert piece.split("train").tokens(0, 5).tolist() == [0, 1, 2, 3, 4] and piece.split("train").documents == 1
    with pytest.raises(ValueError, match="the split validation of gs://bucket/set, found train"):
        whole.split("train")
    with pytest.raises(ValueError, match="the split train of a piece, found validation"):
        piece.split("validation")
    for part, wrong in ((0, 3), (8, 1)):  # a token that no sentence holds, a sentence that no document holds
        damaged = record.copy()
        damaged[part] = wrong
        with pytest.raises(UserError, match="5 tokens in the sentences of a piece of train, found"):
            whole.piece(0, damaged).split("train")
