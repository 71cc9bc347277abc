"""The prepared dataset: what is written is read back, TFDS reads it too, and damage is named."""

import json
import subprocess
import sys

import numpy as np
import pytest

from plmjax.data import store
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
    dataset.verify()


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
        (damage_version, "format 1 but is in format 99"),
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


def test_verify_names_the_file_with_a_flipped_byte(tmp_path):
    dataset = write(tmp_path, documents(6, 300), documents(2, 300), 300)
    path = tmp_path / "corpus-validation.tfrecord-00000"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    store.open_dataset(tmp_path)
    with pytest.raises(UserError, match=r"corpus-validation.tfrecord-00000 .* checksum"):
        dataset.verify()


def test_reading_needs_no_tensorflow(tmp_path):
    write(tmp_path, documents(6, 300), [], 300)
    program = (
        "import sys; from plmjax.data import store; "
        f"assert store.open_dataset({str(tmp_path)!r}).split('train').tokens(0, 9).shape == (9,); "
        "sys.exit('tensorflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0
