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
from plmjax.data.store.ledger import sum_ledger
from plmjax.errors import UserError
from tests.data.corpora import Words, documents, write


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(store.writer, "PIECE_TOKENS", 1000)


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
        edges = np.cumsum([len(piece) for piece in split._pieces])
        assert name == "validation" or len(edges) > 4
        for start, stop in ((3, edges[0] + 1), (edges[0] - 2, len(tokens) - 3), (edges[0], edges[0] + 2)):
            np.testing.assert_array_equal(split.tokens(start, stop), tokens[start:stop])
        for start, stop in ((5, len(tokens) + 1), (len(tokens), len(tokens) + 1)):
            with pytest.raises(IndexError, match=rf"within 0\.\.{len(tokens)}, found {start}\.\.{stop}"):
                split.tokens(start, stop)
        sentences = [len(sentence) for document in texts for sentence in document]
        np.testing.assert_array_equal(split.sentence_offsets, np.cumsum([0, *sentences]))
        np.testing.assert_array_equal(split.document_offsets, np.cumsum([0, *map(len, texts)]))
        for document in range(split.documents):  # inside a document tokens are a view, aligned
            view = split.tokens(*split.document_tokens[document : document + 2])
            assert view.base is not None and view.flags.aligned
    counts = np.bincount([t for d in train for s in d for t in s], minlength=vocab_size)
    np.testing.assert_array_equal(dataset.unigram_counts(), counts)
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
    joined = {key: np.concatenate([piece["text"][key] for piece in pieces]) for key in pieces[0]["text"]}
    np.testing.assert_array_equal(joined["tokens"], split.tokens(0, split.token_count))
    np.testing.assert_array_equal(joined["sentence_lengths"], np.diff(split.sentence_offsets))
    np.testing.assert_array_equal(joined["document_lengths"], np.diff(split.document_offsets))


def write_two_streams(folder, count=60, vocab_size=300):
    """Documents of two streams and their numbers, in two files; and the dataset of them."""
    texts = {name: documents(count, vocab_size, seed, words=20) for seed, name in enumerate(("source", "target"))}
    numbers = {"label": np.arange(count) % 3, "score": np.arange(count) / 7}
    records = {"train": [], "validation": []}
    for index in range(2):
        writer = store.ShardWriter(folder, "train", index, vocab_size, tuple(texts), tuple(numbers))
        for number in range(index * count // 2, (index + 1) * count // 2):
            document = {name: texts[name][number] for name in texts}
            writer.add(document, {name: values[number] for name, values in numbers.items()})
        records["train"].append(writer.close())
    store.finish(folder, records, Words(vocab_size), [{"path": "a.tsv", "bytes": 7}], {})
    return texts, numbers, store.open_dataset(folder)


def test_streams_and_numbers_of_the_same_documents_are_read_back(tmp_path, small_pieces):
    texts, numbers, dataset = write_two_streams(tmp_path)
    assert dataset.streams == ("source", "target")
    assert dataset.train_tokens == sum(len(sentence) for text in texts.values() for d in text for sentence in d)
    held_out = dataset.all_held_out()
    assert held_out.documents("validation") == 60 and dataset.documents("validation") == 0
    np.testing.assert_array_equal(held_out.fields("validation")["label"], dataset.fields("train")["label"])
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
    with pytest.raises(UserError, match=r"Expected the stream 'text' in .*, found source, target; .* --streams"):
        dataset.split("train")


def test_tfds_reads_streams_and_numbers(tmp_path, small_pieces):
    import tensorflow_datasets as tfds

    _, numbers, dataset = write_two_streams(tmp_path)
    builder = tfds.builder_from_directory(tmp_path)
    pieces = list(tfds.as_numpy(builder.as_dataset(split="train", shuffle_files=False)))
    assert len(pieces) > 3
    for name in dataset.streams:
        split = dataset.split("train", name)
        tokens = np.concatenate([piece[name]["tokens"] for piece in pieces])
        np.testing.assert_array_equal(tokens, split.tokens(0, split.token_count))
        lengths = np.concatenate([piece[name]["document_lengths"] for piece in pieces])
        np.testing.assert_array_equal(lengths, np.diff(split.document_offsets))
    for name, values in numbers.items():
        np.testing.assert_array_equal(np.concatenate([piece["fields"][name] for piece in pieces]), values)


def test_a_document_without_one_of_its_streams_is_left_out(tmp_path):
    writer = store.ShardWriter(tmp_path, "train", 0, 10, ("source", "target"))
    for source, target in (([[5]], [[]]), ([[6]], [[7], []]), ([], [[8]])):
        writer.add({"source": source, "target": target})
    store.finish(tmp_path, {"train": [writer.close()]}, Words(10), [], {})
    dataset = store.open_dataset(tmp_path)
    assert [dataset.split("train", name).tokens(0, 1).tolist() for name in dataset.streams] == [[6], [7]]
    assert dataset.split("train", "source").documents == 1


@pytest.mark.parametrize("name", ["Source", "a/b", "fields", ""])
def test_names_that_no_file_can_have_are_refused(tmp_path, name):
    with pytest.raises(UserError, match="Expected a name of small letters"):
        store.ShardWriter(tmp_path, "train", 0, 10, (name,))


def test_all_of_a_dataset_may_be_held_out(tmp_path):
    dataset = write(tmp_path, documents(6, 300), documents(2, 300, seed=1), 300)
    held_out = dataset.all_held_out()
    train, validation = dataset.split("train"), held_out.split("validation")
    assert (validation.name, validation.documents) == ("validation", 6)
    np.testing.assert_array_equal(validation.tokens(0, validation.token_count), train.tokens(0, train.token_count))
    assert held_out.fingerprint != dataset.fingerprint  # an index of its rows is another one


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
    writer.add({"text": [[5, 6, 7]]})
    writer.close()
    write(tmp_path, documents(4, 300), [], 300)
    assert not (tmp_path / "corpus-train.tfrecord-00017").exists()
    store.ShardWriter(tmp_path, "train", 0, 300).add({"text": [[5]]})
    with pytest.raises(UserError, match="never finished"):
        store.open_dataset(tmp_path)


def test_ids_outside_the_vocabulary_are_refused(tmp_path):
    writer = store.ShardWriter(tmp_path, "train", 0, 300)
    writer.add({"text": [[5, 300]]})
    with pytest.raises(ValueError, match=r"0\.\.299, found 5\.\.300"):
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
    (folder / "train.text.sentences.npy").unlink()


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
        (damage_missing, "tfrecord-00001 .* found no such file"),
        (damage_truncated, "tfrecord-00001 to have .* bytes, found"),
        (damage_offsets, "train.text.sentences.npy .* found no such file"),
        (damage_unfinished, "never finished"),
        (damage_version, "in dataset format 3, found format 99"),
        (damage_ledger, "ledger.json, found a damaged file"),
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
        "train.text.sentences.npy",
        "validation.text.documents.npy",
        "unigram.text.npy",
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
    ledger["splits"]["train"]["shards"][0]["pieces"][0]["text/tokens"][0] += 2
    path.write_text(json.dumps(ledger))
    with pytest.raises(UserError, match=r"ledger.json .* checksum differs"):
        store.open_dataset(tmp_path)


def test_a_file_is_read_for_its_checksum_once_and_again_when_it_changes(tmp_path, monkeypatch):
    write(tmp_path, documents(6, 300), documents(2, 300), 300)
    read, sum_file = [], checksums.sum_file
    monkeypatch.setattr(checksums, "sum_file", lambda path: read.append(path.name) or sum_file(path))
    store.open_dataset(tmp_path)
    assert read == []  # since `write` opened it
    changed = tmp_path / "unigram.text.npy"
    times = changed.stat()
    changed.write_bytes(changed.read_bytes())
    os.utime(changed, ns=(times.st_atime_ns, times.st_mtime_ns))  # as a copy that keeps the times would
    store.open_dataset(tmp_path)
    assert read == ["unigram.text.npy"]
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(nodename="another-host"))
    read.clear()
    store.open_dataset(tmp_path)
    assert {"unigram.text.npy", "corpus-train.tfrecord-00000", "vocab.txt"} <= set(read)


def test_a_long_reading_is_told(tmp_path, monkeypatch):
    write(tmp_path, documents(6, 300), [], 300)
    shutil.rmtree(tmp_path / checksums.FOLDER)
    said = []
    store.open_dataset(tmp_path, report=said.append)
    assert said == []
    monkeypatch.setattr(checksums, "REPORTED_BYTES", 1000)
    shutil.rmtree(tmp_path / checksums.FOLDER)
    store.open_dataset(tmp_path, report=said.append)
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
    assert subprocess.run([sys.executable, "-c", program], timeout=300).returncode == 0


def sealed(folder, change):
    """Changes a ledger as somebody does who knows of its checksum."""
    path = folder / store.LEDGER
    ledger = json.loads(path.read_text())
    change(ledger)
    path.write_text(json.dumps(ledger | {"crc32c": sum_ledger(ledger)}))


SEALED = {
    "no splits": (lambda ledger: ledger.pop("splits"), "it has no splits"),
    "splits a list": (lambda ledger: ledger.update(splits=[]), "splits is no object but"),
    "documents negative": (
        lambda ledger: ledger["splits"]["train"].update(documents=-1),
        "documents of train .* but -1",
    ),
    "documents a text": (
        lambda ledger: ledger["splits"]["train"].update(documents="6"),
        "documents of train .* but '6'",
    ),
    "vocabulary empty": (lambda ledger: ledger["tokenizer"].update(vocab_size=0), "vocab_size of tokenizer .* but 0"),
    "no fingerprint": (lambda ledger: ledger["tokenizer"].pop("fingerprint"), "tokenizer has no fingerprint"),
    "streams of numbers": (lambda ledger: ledger.update(streams=[1]), "a part of streams is 1"),
    "a stream elsewhere": (lambda ledger: ledger.update(streams=["../text"]), "other than 'fields', found '../text'"),
    "an unknown stream": (lambda ledger: ledger.update(streams=["more"]), "train has no stream more"),
    "a file of a number": (lambda ledger: ledger["files"].update({"unigram.text.npy": 1}), "npy of files is no object"),
    "a file of a long name": (
        lambda ledger: ledger["files"].update({"x" * 300: {"bytes": 1, "crc32c": 1}}),
        "is named 'x",
    ),
    "a piece beyond its file": (
        lambda ledger: ledger["splits"]["train"]["shards"][0]["pieces"][0].update({"text/tokens": [10**9, 2]}),
        "a piece of 'corpus-train.* is at .1000000000, 2.",
    ),
    "a piece left out": (
        lambda ledger: ledger["splits"]["train"]["shards"][0].update(pieces=[]),
        "the pieces of train have [0-9]+ tokens",
    ),
}


@pytest.mark.parametrize("change, reason", SEALED.values(), ids=SEALED)
def test_a_ledger_of_other_types_is_one_sentence_whatever_its_checksum(tmp_path, change, reason):
    write(tmp_path, documents(6, 300), documents(2, 300), 300)
    sealed(tmp_path, change)
    with pytest.raises(UserError, match=rf"Expected a ledger as plmjax writes it at .*ledger\.json, found .*{reason}"):
        store.open_dataset(tmp_path)


def test_arrays_that_contradict_the_ledger_are_named(tmp_path):
    write(tmp_path, documents(6, 300), documents(2, 300), 300)
    dataset = store.open_dataset(tmp_path)
    places = tmp_path / "train.text.sentences.npy"
    whole = np.load(places)
    for found, message in (
        (whole[:-1], "numbers of int64 in .*sentences.npy, found others"),
        (whole.astype(np.float32), "numbers of int64 in .*sentences.npy, found others"),
        (whole + 1, "offsets from 0 to .* in .*sentences.npy, found others"),
        ([1, *whole[1:]], "offsets from 0 to .* in .*sentences.npy, found others"),
        ([*whole[:-1], whole[-1] + 1], "offsets from 0 to .* in .*sentences.npy, found others"),
    ):
        np.save(places, found)
        with pytest.raises(UserError, match=message):
            dataset.split("train")
    places.write_bytes(b"text")
    with pytest.raises(UserError, match=r"sentences\.npy, found others"):
        dataset.split("train")
    np.save(tmp_path / "unigram.text.npy", np.zeros(299, np.int64))
    with pytest.raises(UserError, match=r"Expected 300 numbers of int64 in .*unigram\.text\.npy"):
        dataset.unigram_counts()


def test_ids_take_two_bytes_as_long_as_every_one_fits() -> None:
    assert store.token_dtype(1 << 16) == np.uint16 and store.token_dtype((1 << 16) + 1) == np.int32
