"""The bytes that the pieces of some lanes need on the disk at once."""

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest

from plmjax.data import order, store
from plmjax.data.remote import TwoLevelOrder, dataset, reader
from plmjax.data.remote.reader import check_limit
from plmjax.errors import UserError


def test_the_limit_holds_the_largest_windows_of_each_order() -> None:
    """The limit is that of the pieces that an order visits, whatever the others have."""
    sizes = [900, 10, 70, 30, 60, 20, 50]
    key = order.fold(0, 0)
    orders = [
        TwoLevelOrder(np.array([0, 1, 1, 1, 0, 0, 0]), 2, key),  # two windows of 1 and 2 pieces
        TwoLevelOrder(np.array([0, 0, 0, 0, 1, 1, 1]), 1, key),
    ]
    dataset = SimpleNamespace(pieces=[SimpleNamespace(range=SimpleNamespace(size=size)) for size in sizes], copied=7)
    least = 7 + (70 + 30 + 10) + (60 + 50)
    check_limit(SimpleNamespace(**vars(dataset), limit=least), orders)
    with pytest.raises(
        UserError, match=rf"at least {least:,} bytes .*text \(7\) and two windows of 3 pieces .*found {least - 1:,};"
    ):
        check_limit(SimpleNamespace(**vars(dataset), limit=least - 1), orders)


@pytest.mark.parametrize(("limit", "opened"), [(100, "whole"), (99, "in pieces"), (20, "in pieces"), (19, "")])
def test_a_dataset_that_the_limit_holds_is_copied_whole(limit: int, opened: str, monkeypatch) -> None:
    """So is the held-out text of another one, without the training text and its offsets and numbers."""
    shards = [{"file": "train", "pieces": [{store.RECORD: [0, 70, 1]}]}]
    ledger = {"splits": {"train": {"shards": shards}}, "fields": ["label"], "streams": ["text"]}
    sizes = {"train": 70, "held_out": 20, store.field_file("train", "label"): 4}
    sizes |= dict.fromkeys(store.offset_files("train", "text"), 3)
    whole = SimpleNamespace(check_size=lambda size: None, fingerprint="print")
    monkeypatch.setattr(dataset.storage, "in_bucket", lambda path: True)
    monkeypatch.setattr(store, "read_ledger", lambda path: ledger)
    monkeypatch.setattr(store, "all_files", lambda read: {name: {"bytes": size} for name, size in sizes.items()})
    monkeypatch.setattr(store, "open_dataset", lambda path, **options: "whole")
    monkeypatch.setattr(store, "Dataset", lambda *given: whole)
    copied = []
    monkeypatch.setattr(store, "local_copy", lambda given, name, expected, report: copied.append([name, *expected]))
    monkeypatch.setattr(dataset, "RemoteDataset", lambda *given: "in pieces" if given[-1] == limit else "")
    with (
        contextlib.nullcontext() if opened else pytest.raises(UserError, match=r"more than 20 bytes, .* found 19; rai")
    ):
        assert dataset.open_dataset("folder", limit) == opened
    assert copied == ([["print.held_out", "held_out"]] if opened == "in pieces" else [])


def test_a_piece_has_the_tokens_of_its_longest_stream() -> None:
    pieces = [
        {store.RECORD: [0, 70, 1], "source/tokens": [8, 3], "target/tokens": [20, 5]},
        {store.RECORD: [70, 90, 2], "source/tokens": [78, 9], "target/tokens": [110, 4]},
    ]
    ledger = {"tokenizer": {"vocab_size": 9, "fingerprint": ""}, "streams": ["source", "target"]}
    ledger["splits"] = {"train": {"shards": [{"file": "a", "pieces": pieces[:1]}, {"file": "b", "pieces": pieces[1:]}]}}
    found = dataset.RemoteDataset(None, ledger, None, 0).pieces
    assert [(piece.tokens, tuple(piece.range)) for piece in found] == [(5, ("a", 0, 70, 1)), (9, ("b", 70, 90, 2))]


def test_the_disk_is_filled_to_the_limit_and_knows_how_full_it_was(monkeypatch) -> None:
    folder = SimpleNamespace(add=lambda piece, data: (piece, data), remove=lambda piece: None)
    monkeypatch.setattr(reader, "_Folder", lambda parent: folder)
    disk = reader.Disk(SimpleNamespace(limit=20, copied=5, fingerprint="print"))
    assert disk.add(0, b"x" * 9) == (0, b"x" * 9) and disk.add(1, b"x" * 6) and disk.bytes == 20
    with pytest.raises(AssertionError, match="21 bytes would exceed the limit 20"):
        disk.add(2, b"x")
    disk.remove(0, 9)
    assert disk.add(2, b"xx") and (disk.bytes, disk.most_bytes) == (13, 20)
