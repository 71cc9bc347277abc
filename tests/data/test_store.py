"""The prepared dataset: what is written is read back, TFDS reads it too, and damage is named."""

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest

from plmjax.data import cache, store
from plmjax.data.store.manifest import manifest_checksum
from tests.data.corpora import Words, documents, write
from tests.data.mistakes import refused


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(store.writer, "PIECE_TOKENS", 1000)


@pytest.mark.parametrize("vocab_size", [300, 70_000])
def test_reads_what_was_written(tmp_path, small_pieces, vocab_size):
    train, validation = documents(40, vocab_size), documents(5, vocab_size, seed=1)
    dataset = write(tmp_path, train, validation, vocab_size=vocab_size)
    for name, texts in (("train", train), ("validation", validation)):
        split = dataset.split(name)
        tokens = [token for document in texts for sentence in document for token in sentence]
        assert (split.documents, split.token_count) == (len(texts), len(tokens))
        np.testing.assert_array_equal(split.tokens(0, len(tokens)), tokens)
        np.testing.assert_array_equal(split.tokens(777, 778), tokens[777:778])
        edges = np.cumsum(
            [piece["text/tokens"][1] for s in dataset.manifest["splits"][name]["shards"] for piece in s["pieces"]]
        )
        assert name == "validation" or len(edges) > 4
        for start, stop in ((3, edges[0] + 1), (edges[0] - 2, len(tokens) - 3), (edges[0], edges[0] + 2)):
            np.testing.assert_array_equal(split.tokens(start, stop), tokens[start:stop])
        with pytest.raises(IndexError, match=rf"within 0\.\.{len(tokens)}, found 5\.\.{len(tokens) + 1}"):
            split.tokens(5, len(tokens) + 1)
        sentences = [len(sentence) for document in texts for sentence in document]
        np.testing.assert_array_equal(split.sentence_offsets, np.cumsum([0, *sentences]))
        np.testing.assert_array_equal(split.document_offsets, np.cumsum([0, *map(len, texts)]))
        for document in range(split.documents):  # inside a document tokens are a view, aligned
            view = split.tokens(*split.document_tokens[document : document + 2])
            assert view.base is not None and view.flags.aligned
    counts = np.bincount([t for d in train for s in d for t in s], minlength=vocab_size)
    np.testing.assert_array_equal(dataset.unigram_counts(), counts)
    assert dataset.tokenizer_fingerprint == "f00d" and (tmp_path / "tokenizer/vocab.txt").is_file()
    assert (store.token_dtype(1 << 16), store.token_dtype((1 << 16) + 1)) == (np.uint16, np.int32)  # every id fits
    again = write(tmp_path / "again", train, validation, vocab_size=vocab_size)
    other = write(tmp_path / "other", train[1:], validation, vocab_size=vocab_size)
    assert dataset.fingerprint == again.fingerprint != other.fingerprint


def write_two_streams(folder, count=60, vocab_size=300):
    """Documents of two streams and their numbers, in two files; and the dataset of them."""
    texts = {name: documents(count, vocab_size, seed=seed, words=20) for seed, name in enumerate(("source", "target"))}
    numbers = {"label": np.arange(count) % 3, "score": np.arange(count) / 7}
    records = {"train": [], "validation": []}
    for index in range(2):
        writer = store.ShardWriter(
            folder, "train", index, vocab_size=vocab_size, streams=tuple(texts), fields=tuple(numbers)
        )
        for number in range(index * count // 2, (index + 1) * count // 2):
            document = {name: texts[name][number] for name in texts}
            writer.add(document, {name: values[number] for name, values in numbers.items()})
        records["train"].append(writer.close())
    store.finish(folder, records, Words(vocab_size), sources=[{"path": "a.tsv", "bytes": 7}], description={})
    return texts, numbers, store.open_dataset(folder)


def test_streams_and_numbers_of_the_same_documents_are_read_back(tmp_path, small_pieces):
    texts, numbers, dataset = write_two_streams(tmp_path)
    assert dataset.streams == ("source", "target")
    assert dataset.train_tokens == sum(len(sentence) for text in texts.values() for d in text for sentence in d)
    held_out = dataset.all_held_out()
    assert held_out.documents("validation") == 60 and dataset.documents("validation") == 0
    np.testing.assert_array_equal(held_out.fields("validation")["label"], dataset.fields("train")["label"])
    validation = held_out.split("validation", "source")
    assert validation.name == "validation" and validation.token_count == dataset.split("train", "source").token_count
    assert held_out.fingerprint != dataset.fingerprint  # an index of its rows is another one
    for name, stream in texts.items():
        split = dataset.split("train", name)
        assert split.documents == 60 == len(split.document_tokens) - 1
        for number, document in enumerate(stream):
            view = split.tokens(*split.document_tokens[number : number + 2])
            assert view.tolist() == [token for sentence in document for token in sentence]
            assert view.base is not None and view.flags.aligned
        tokens = [token for document in stream for sentence in document for token in sentence]
        np.testing.assert_array_equal(dataset.unigram_counts(name), np.bincount(tokens, minlength=300))
    for name, values in dataset.fields("train").items():
        np.testing.assert_array_equal(values, numbers[name])
    assert dataset.split("validation", "target").documents == 0 == len(dataset.fields("validation")["label"])
    refused(lambda: dataset.split("train"), "'text' .. source, target .. --streams")


@pytest.mark.parametrize("vocab_size", [300, 70_000])
def test_tfds_reads_the_folder(tmp_path, small_pieces, vocab_size):
    import tensorflow_datasets as tfds

    _, numbers, dataset = write_two_streams(tmp_path, vocab_size=vocab_size)
    builder = tfds.builder_from_directory(tmp_path)
    pieces = list(tfds.as_numpy(builder.as_dataset(split="train", shuffle_files=False)))
    assert len(pieces) == builder.info.splits["train"].num_examples > 3
    for name in dataset.streams:
        split = dataset.split("train", name)
        joined = {key: np.concatenate([piece[name][key] for piece in pieces]) for key in pieces[0][name]}
        np.testing.assert_array_equal(joined["tokens"], split.tokens(0, split.token_count))
        np.testing.assert_array_equal(joined["sentence_lengths"], np.diff(split.sentence_offsets))
        np.testing.assert_array_equal(joined["document_lengths"], np.diff(split.document_offsets))
    for name, values in numbers.items():
        np.testing.assert_array_equal(np.concatenate([piece["fields"][name] for piece in pieces]), values)


def test_empty_sentences_documents_and_files_are_left_out(tmp_path):
    dataset = write(tmp_path / "one", [[[], [5, 6]], [[]], [], [[7], []]], [], vocab_size=10, shards=4)
    split = dataset.split("train")
    assert (split.documents, split.sentences, split.token_count) == (2, 2, 3)
    assert [path.name[-5:] for path in sorted((tmp_path / "one").glob("corpus-*"))] == ["00000", "00001"]


def sealed(folder, checksum=False, **changes):
    """Changes the manifest, with its checksum if somebody does it who knows of that."""
    manifest = json.loads((folder / store.MANIFEST).read_text()) | changes
    manifest |= {"crc32c": manifest_checksum(manifest)} if checksum else {}
    (folder / store.MANIFEST).write_text(json.dumps(manifest))


def flip(path):
    """Changes one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


SHARD = "corpus-train.tfrecord-00001"
FILES = (SHARD, "validation.text.documents.npy", "unigram.text.npy", "tokenizer/vocab.txt", "dataset_info.json")
DAMAGE = {
    "missing": (lambda folder: (folder / SHARD).unlink(), f"{SHARD} .. no such file"),
    "truncated": (lambda folder: (folder / SHARD).write_bytes((folder / SHARD).read_bytes()[:-5]), f"{SHARD} .. bytes"),
    "unfinished": (lambda folder: (folder / store.MANIFEST).unlink(), "with which a preparation ends"),
    "half a manifest": (lambda folder: os.truncate(folder / store.MANIFEST, 100), "manifest.json .. damaged"),
    "a changed manifest": (lambda folder: sealed(folder, documents=1), "manifest.json .. checksum differs"),
    "another version": (lambda folder: sealed(folder, version=99), "format 3 .. format 99"),
    "a stream elsewhere": (
        lambda folder: sealed(folder, True, streams=["../text"]),
        "other than 'fields' .. '../text'",
    ),
    "an unknown stream": (lambda folder: sealed(folder, True, streams=["more"]), "train has no stream more"),
    **{
        f"a bit of {name}": (lambda folder, name=name: flip(folder / name), f"{name} .. checksum differs .. again")
        for name in FILES
    },
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_named_before_a_file_is_read(tmp_path, case):
    write(tmp_path / "set", documents(6, 300), documents(2, 300), vocab_size=300)
    damage, parts = DAMAGE[case]
    damage(tmp_path / "set")
    refused(lambda: store.open_dataset(tmp_path / "set"), parts)
    if case.startswith("a bit"):
        damage(tmp_path / "set")
        assert store.open_dataset(tmp_path / "set").split("train").documents == 6


def test_what_cannot_be_written(tmp_path):
    """Streams of names that no file can have, no text, and tokens beyond the vocabulary, here and in a model."""
    for name in ("a/b", "fields"):
        of = {"vocab_size": 10, "streams": (name,)}
        refused(lambda of=of: store.ShardWriter(tmp_path, "train", 0, **of), "a name of small letters")
    refused(lambda: write(tmp_path, [], [], vocab_size=300), "no document")
    writer = store.ShardWriter(tmp_path, "train", 0, vocab_size=300)
    writer.add({"text": [[5, 300]]})
    with pytest.raises(ValueError, match=r"0\.\.299, found 5\.\.300"):
        writer.close()
    dataset = write(tmp_path, documents(6, 300), [], vocab_size=300)
    assert store.open_dataset(tmp_path, vocab_size=300).vocab_size == 300
    refused(lambda: store.open_dataset(tmp_path, vocab_size=299), "at most 299 .. 300")
    places = np.load(tmp_path / "train.text.sentences.npy")
    for changed, parts in ((places[:-1], "numbers of int64"), ([1, *places[1:]], "offsets from 0 to")):
        np.save(tmp_path / "train.text.sentences.npy", changed)
        refused(lambda: dataset.split("train"), f"{parts} .. sentences.npy")


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC], ids=errno.errorcode.get)
def test_the_index_of_a_dataset_that_cannot_be_written_is_in_the_users_cache(tmp_path, monkeypatch, number):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    dataset, mkdir = tmp_path / "dataset", Path.mkdir

    def refuse(path, *arguments, **named):
        if dataset in path.parents:
            raise OSError(number, os.strerror(number))
        mkdir(path, *arguments, **named)

    monkeypatch.setattr(Path, "mkdir", refuse)

    def build():
        return cache.build_once(dataset / "index", {"split": "train"}, lambda folder: folder.joinpath("a").touch())

    if number == errno.ENOSPC:
        refused(build, os.strerror(number))
    else:
        assert build().is_relative_to(tmp_path / "cache") and build().joinpath("a").exists()
