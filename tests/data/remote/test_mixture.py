"""A mixture with a source that is read in pieces, beside one that is whole: the same for any hosts and any start."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from plmjax.data import mixture, remote
from plmjax.data.layouts import Chunks, SentencePairs
from plmjax.data.mixing import Mixture
from plmjax.data.mixture import MixtureSource
from plmjax.files import storage
from tests.data import corpora
from tests.data.remote.conftest import V, limit_of

PHASE = SimpleNamespace(index=0, first_step=0, last_step=10_000, sequence_length=32, batch_size=8)
SEED = 5


@pytest.fixture
def mixed(served: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mixture:
    """Return a mixture of a dataset in pieces and a small one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    texts = corpora.documents(12, V, seed=2), corpora.documents(3, V, seed=3)
    corpora.write(tmp_path / "small", *texts, vocab_size=V)
    return Mixture((f"large={served}", f"small={tmp_path / 'small'}"), weights=("large=3", "small=1"))


def opened(mixed: Mixture, limit: int | None, layout: Chunks | SentencePairs) -> MixtureSource:
    datasets = mixture.open_sources(mixed, limit, V)
    return mixture.new_source(layout, mixed, datasets, vocabulary=corpora.Words(V).vocabulary, seed=SEED, window=4)


def taken(source: MixtureSource, start: int, count: int, places: np.ndarray | None = None) -> list[dict]:
    return corpora.take(source.train(PHASE, start, places), count)


def test_rows_of_any_host_and_any_start_are_those_of_the_whole_run(mixed, written) -> None:
    limit, layout = limit_of(written), SentencePairs(duplicates=2)
    source = opened(mixed, limit, layout)
    assert isinstance(mixture.open_sources(mixed, limit, V)["large"], remote.RemoteDataset)
    every = taken(source, 0, 24)
    for start, places in ((17, np.arange(8)), (3, np.arange(4)), (3, np.arange(4, 8))):
        one = source if start == 17 else opened(mixed, limit, layout)
        for batch, expected in zip(taken(one, start, 24 - start, places), every[start:], strict=True):
            corpora.assert_same(batch, expected, places)


def test_the_source_that_is_whole_gives_the_same_rows_beside_it(mixed, written) -> None:
    """So does the pattern of the sources; the other source has an order of its own."""
    found, whole = (taken(opened(mixed, limit, Chunks()), 0, 12) for limit in (limit_of(written), None))
    rows = opened(mixed, None, Chunks()).rows("train", PHASE.sequence_length)
    same = np.array([batch["row_ids"] >= rows.firsts[1] for batch in whole])
    assert same.mean() == pytest.approx(1 / 4, abs=0.02)
    for index, batch in enumerate(found):
        equal = (batch["input_ids"] == whole[index]["input_ids"]).all(axis=1)
        assert equal[same[index]].all() and not equal[~same[index]].all()


def test_the_source_in_pieces_gives_the_rows_of_its_order(mixed, written) -> None:
    """An epoch has nearly all of them once."""
    source = opened(mixed, limit_of(written), Chunks())
    rows = source._sources["large"].epoch_rows(PHASE.sequence_length)
    steps = 2 * rows // (PHASE.batch_size * 3 // 4) + 1
    batches = taken(source, 0, steps)
    small = source.rows("train", PHASE.sequence_length).count  # numbers of its rows, beside hashes of 31 bits
    ids = [int(row) for batch in batches for row in batch["row_ids"] if row >= small]
    portions = source.portions([PHASE], steps)
    assert portions["large"].epochs == pytest.approx(len(ids) / rows, rel=1e-3)
    first, second = ids[:rows], ids[rows : 2 * rows]
    assert len(set(first)) > 0.9 * rows and len(set(first) & set(second)) > 0.8 * rows
    for start in (0, 6):  # batches of an earlier call end, with their pieces: the limit is that of all
        batches = source.train(PHASE, start)
        next(batches)
        found = storage.cache() / "pieces" / written.fingerprint
        assert len([path for path in found.iterdir() if path.is_dir()]) == 1
    batches.close()
