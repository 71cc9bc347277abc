"""The prepared dataset: what is written is read back, TFDS reads it too, and damage is named."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from plmjax.data import checksums, store
from plmjax.errors import UserError
from tests.data.corpora import documents, write


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(store, "PIECE_TOKENS", 1000)


@pytest.mark.parametrize("vocab_size", [300, 70_000])
def test_reads_what_was_written(tmp_path, small_pieces, vocab_size):
    train, validation = documents(40, vocab_size), documents(5, vocab_size, seed=1)
    dataset = write(tmp_path, train, validation, vocab_size)
    for name, texts in (("train", train), ("validation", validation)):
        split = dataset.split(name)
        tokens = [token for document in texts for sentence in document for token in sentence]
        assert (split.documents, split.token_count) == (len(texts), len(tokens))
        np.testing.assert_array_equal(split.tokens(0, len(tokens)), tokens)
        np.testing.assert_array_equal(split.tokens(777, 778), tokens[777:778])
        sentences = [len(sentence) for document in texts for sentence in document]
        np.testing.assert_array_equal(split.sentence_offsets, np.cumsum([0, *sentences]))
        np.testing.assert_array_equal(split.document_offsets, np.cumsum([0, *map(len, texts)]))
        for document in range(split.documents):  # inside a document tokens are a view, aligned
            view = split.tokens(*split.document_tokens[document : document + 2])
            assert view.base is not None and view.flags.aligned
    counts = np.bincount([t for d in train for s in d for t in s], minlength=vocab_size)
    np.testing.assert_array_equal(dataset.unigram_counts, counts)
    assert dataset.tokenizer_fingerprint == "f00d" and (tmp_path / "tokenizer/vocab.txt").is_file()


def test_the_fingerprint_is_of_the_contents(tmp_path):
    first, second, other = (
        write(tmp_path / name, documents(6, 300, seed), [], 300) for name, seed in (("a", 0), ("b", 0), ("c", 1))
    )
    assert first.fingerprint == second.fingerprint != other.fingerprint


@pytest.mark.parametrize("vocab_size", [300, 70_000])
def test_tfds_reads_the_folder(tmp_path, small_pieces, vocab_size):
    import tensorflow_datasets as tfds

    train = documents(40, vocab_size)
    split = write(tmp_path, train, documents(5, vocab_size, seed=1), vocab_size).split("train")
    builder = tfds.builder_from_directory(tmp_path)
    assert set(builder.info.splits) == {"train", "validation"}
    pieces = list(tfds.as_numpy(builder.as_dataset(split="train", shuffle_files=False)))
    assert len(pieces) == builder.info.splits["train"].num_examples > 3
    joined = {key: np.concatenate([piece[key] for piece in pieces]) for key in pieces[0]}
    np.testing.assert_array_equal(joined["tokens"], split.tokens(0, split.token_count))
    np.testing.assert_array_equal(joined["sentence_lengths"], np.diff(split.sentence_offsets))
    np.testing.assert_array_equal(joined["document_lengths"], np.diff(split.document_offsets))


def test_empty_sentences_documents_and_files_are_left_out(tmp_path):
    dataset = write(tmp_path, [[[], [5, 6]], [[]], [], [[7], []]], [], 10, shards=4)
    split = dataset.split("train")
    assert (split.documents, split.sentences, split.token_count) == (2, 2, 3)
    assert dataset.split("validation").documents == 0
    assert sorted(path.name for path in tmp_path.glob("corpus-*")) == [
        "corpus-train.tfrecord-00000",
        "corpus-train.tfrecord-00001",
    ]


def test_files_left_by_an_interrupted_preparation_are_removed(tmp_path):
    writer = store.ShardWriter(tmp_path, "train", 17, 300)
    writer.add([[5, 6, 7]])
    writer.close()
    write(tmp_path, documents(4, 300), [], 300)
    assert not (tmp_path / "corpus-train.tfrecord-00017").exists()
    store.ShardWriter(tmp_path, "train", 0, 300).add([[5]])
    with pytest.raises(UserError, match="never finished"):
        store.open_dataset(tmp_path)


def test_ids_outside_the_vocabulary_are_refused(tmp_path):
    writer = store.ShardWriter(tmp_path, "train", 0, 300)
    writer.add([[5, 300]])
    with pytest.raises(ValueError, match=r"0\.\.299; found 5\.\.300"):
        writer.close()


def test_no_text_at_all_is_an_error(tmp_path):
    with pytest.raises(UserError, match="no document"):
        write(tmp_path, [], [], 300)
    with pytest.raises(UserError, match="never finished"):
        store.open_dataset(tmp_path)


def damage_missing(folder):
    (folder / "corpus-train.tfrecord-00001").unlink()


def damage_truncated(folder):
    path = folder / "corpus-train.tfrecord-00001"
    path.write_bytes(path.read_bytes()[:-5])


def damage_offsets(folder):
    (folder / "train.sentences.npy").unlink()


def damage_unfinished(folder):
    (folder / "ledger.json").unlink()


def damage_version(folder):
    ledger = json.loads((folder / "ledger.json").read_text())
    (folder / "ledger.json").write_text(json.dumps(ledger | {"version": 99}))


def damage_ledger(folder):
    (folder / "ledger.json").write_text((folder / "ledger.json").read_text()[:100])


@pytest.mark.parametrize(
    "damage, message",
    [
        (damage_missing, "tfrecord-00001 .* is missing"),
        (damage_truncated, "tfrecord-00001 .* bytes but has"),
        (damage_offsets, "train.sentences.npy .* is missing"),
        (damage_unfinished, "never finished"),
        (damage_version, "format 2 but is in format 99"),
        (damage_ledger, "ledger.json .* damaged"),
    ],
)
def test_damage_is_named(tmp_path, damage, message):
    write(tmp_path, documents(6, 300), documents(2, 300), 300)
    damage(tmp_path)
    with pytest.raises(UserError, match=message):
        store.open_dataset(tmp_path)


def test_a_missing_folder_and_a_small_model_are_named(tmp_path):
    with pytest.raises(UserError, match="no folder"):
        store.open_dataset(tmp_path / "nowhere")
    write(tmp_path, documents(6, 300), [], 300)
    assert store.open_dataset(tmp_path, vocab_size=300).vocab_size == 300
    with pytest.raises(UserError, match=r"at most 299 .* with 300"):
        store.open_dataset(tmp_path, vocab_size=299)


def flip(path):
    """Changes one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    "name",
    [
        "corpus-train.tfrecord-00001",
        "corpus-validation.tfrecord-00000",
        "train.sentences.npy",
        "validation.documents.npy",
        "unigram.npy",
        "tokenizer/vocab.txt",
        "dataset_info.json",
    ],
)
def test_a_flipped_bit_is_named_before_it_is_read(tmp_path, name):
    write(tmp_path, documents(6, 300), documents(2, 300), 300)
    flip(tmp_path / name)
    with pytest.raises(UserError, match=rf"{name} .* checksum differs.* copy the dataset again or prepare it again"):
        store.open_dataset(tmp_path)
    flip(tmp_path / name)
    assert store.open_dataset(tmp_path).split("train").documents == 6


def test_a_flipped_digit_of_the_ledger_is_named(tmp_path):
    write(tmp_path, documents(6, 300), documents(2, 300), 300)
    path = tmp_path / store.LEDGER
    ledger = json.loads(path.read_text())
    ledger["splits"]["train"]["shards"][0]["pieces"][0]["tokens"][0] += 2
    path.write_text(json.dumps(ledger))
    with pytest.raises(UserError, match=r"ledger.json .* checksum differs"):
        store.open_dataset(tmp_path)


def test_a_file_is_read_for_its_checksum_once_and_again_when_it_changes(tmp_path, monkeypatch):
    write(tmp_path, documents(6, 300), documents(2, 300), 300)
    read, sum_file = [], checksums.sum_file
    monkeypatch.setattr(checksums, "sum_file", lambda path: read.append(path.name) or sum_file(path))
    store.open_dataset(tmp_path)
    assert read == []  # since `write` opened it
    changed = tmp_path / "unigram.npy"
    times = changed.stat()
    changed.write_bytes(changed.read_bytes())
    os.utime(changed, ns=(times.st_atime_ns, times.st_mtime_ns))  # as a copy that keeps the times would
    store.open_dataset(tmp_path)
    assert read == ["unigram.npy"]
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(nodename="another-host"))
    read.clear()
    store.open_dataset(tmp_path)
    assert {"unigram.npy", "corpus-train.tfrecord-00000", "vocab.txt"} <= set(read)


def test_a_long_reading_is_told(tmp_path, monkeypatch):
    write(tmp_path, documents(6, 300), [], 300)
    shutil.rmtree(tmp_path / checksums.FOLDER)
    said = []
    store.open_dataset(tmp_path, say=said.append)
    assert said == []
    monkeypatch.setattr(checksums, "WORTH_SAYING", 1000)
    shutil.rmtree(tmp_path / checksums.FOLDER)
    store.open_dataset(tmp_path, say=said.append)
    assert len(said) == 1 and said[0].startswith("dataset    0.0 GB read and found sound in ")


def test_a_read_only_dataset_is_noted_in_the_cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write(tmp_path / "dataset", documents(6, 300), [], 300)
    shutil.rmtree(tmp_path / "dataset" / checksums.FOLDER)
    make = Path.mkdir

    def read_only(self, *arguments, **settings):  # the tests may run as root, whom no file mode stops
        if tmp_path / "dataset" in self.parents:
            raise PermissionError(13, os.strerror(13), str(self))
        return make(self, *arguments, **settings)

    monkeypatch.setattr(Path, "mkdir", read_only)
    store.open_dataset(tmp_path / "dataset")
    monkeypatch.setattr(checksums, "sum_file", None)  # would fail
    store.open_dataset(tmp_path / "dataset")


def test_reading_needs_no_tensorflow(tmp_path):
    write(tmp_path, documents(6, 300), [], 300)
    program = (
        "import sys; from plmjax.data import store; "
        f"assert store.open_dataset({str(tmp_path)!r}).split('train').tokens(0, 9).shape == (9,); "
        "sys.exit('tensorflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0
