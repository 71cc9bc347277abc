"""Published corpora: their files, splits and sizes, and no byte or word changed."""

import gzip

import numpy as np
import pytest

from plmjax.data import formats, text_files, text_size, tokenizers
from plmjax.data.formats import corpora
from plmjax.data.formats.corpora import CORPORA, SPLITS
from plmjax.data.layouts import Chunks
from plmjax.data.layouts.joined_text import JoinedText
from plmjax.data.preparation import prepare
from tests.data.formats.published import BYTES, LETTERS, WIKITEXT, WORDS, write


def prepared(name, kind, tmp_path, **options):
    """A dataset of a small corpus, and its tokenizer."""
    path = write(name, tmp_path / name)
    texts = formats.texts([path], format=name, limit_bytes=tokenizers.sample(kind))
    tokenizer = tokenizers.train(kind, 300, texts, tmp_path / kind)
    return prepare([path], name, tokenizer, tmp_path / "dataset", progress=False, **options), tokenizer


def joined(dataset, split, tokenizer):
    """All ids of a split as its rows join them."""
    text = JoinedText(dataset.split(split), tokenizer.vocabulary.document_end)
    ids = np.zeros((1, text.size), np.int32)
    text.copy(np.array([0]), np.array([text.size]), ids)
    return ids[0]


def test_the_sizes_are_the_published_ones():
    for name in ("enwik8", "text8"):
        assert CORPORA[name].sizes == {"train": 90_000_000, "validation": 5_000_000, "test": 5_000_000}
        assert CORPORA[name].counted == SPLITS
    held_out = {"validation": 217_646, "test": 245_569}
    assert CORPORA["wikitext-103"].sizes == {"train": 103_227_021, **held_out}
    assert CORPORA["wikitext-2"].sizes == {"train": 2_088_628, **held_out}
    assert CORPORA["wikitext-103"].counted == CORPORA["wikitext-2"].counted == ("train",)
    assert set(CORPORA) < set(formats.FORMATS)


def test_every_byte_is_kept(small_corpora, tmp_path):
    """A character that a cut divides stays whole; half of one at the end is left out."""
    path = write("enwik8", tmp_path)
    documents = list(formats.documents([path], format="enwik8"))
    assert [document.split for document in documents] == ["train", "validation"]
    (test,) = formats.documents([tmp_path], format="enwik8", split="test")
    assert not test.split
    texts = [document.text.encode() for document in (*documents, test)]
    assert b"".join(texts) == BYTES[:-1] and list(map(len, texts)) == [901, 49, 49]
    size = text_size.measure([path], "enwik8", split="train")
    assert (size.bytes, size.characters, size.words) == (901, 900, len(BYTES[:901].split()))


@pytest.mark.parametrize(("name", "data"), [("enwik8", BYTES), ("text8", LETTERS)])
def test_a_file_of_bytes_is_two_streams_of_bytes(small_corpora, tmp_path, name, data, monkeypatch):
    """No token is added, whatever the units of the preparation are."""
    monkeypatch.setattr(corpora, "units", lambda text: [text[start : start + 7] for start in range(0, len(text), 7)])
    dataset, tokenizer = prepared(name, "byte", tmp_path)
    assert tokenizer.vocabulary.size == len(set(data[:-1]))  # of all three splits
    train = 901 if name == "enwik8" else 900
    for split, expected in (("train", data[:train]), ("validation", data[train:950])):
        assert tokenizer.decode(joined(dataset, split, tokenizer)).encode() == expected
        assert dataset.split(split).documents == 1
    rows = Chunks().rows(dataset, "validation", 16, vocabulary=tokenizer.vocabulary, seed=0)
    asked = rows.fields(np.arange(rows.count))["next_weights"]
    assert asked.sum() == 950 - train - 1  # each byte but the first


@pytest.mark.parametrize("block", [7, 1 << 20])
def test_the_words_of_wikitext_are_those_of_its_lines_and_an_end_for_each(small_corpora, tmp_path, monkeypatch, block):
    monkeypatch.setattr(text_files, "BLOCK", block)
    dataset, tokenizer = prepared("wikitext-103", "whitespace", tmp_path)
    for split in ("train", "validation"):
        words = [word for line in WIKITEXT[split].split("\n")[:-1] for word in (*line.split(), "<eos>")]
        assert tokenizer.tokens(joined(dataset, split, tokenizer)) == words
        assert len(words) == WORDS[split]
    assert dataset.split("train").documents == 2 and dataset.split("validation").documents == 1
    known = {word for line in WIKITEXT["train"].split("\n") for word in line.split()}
    assert set(tokenizer.tokens(range(tokenizer.vocabulary.size))) == known | {"<eos>"}  # of the training split alone
    size = text_size.measure([tmp_path / "wikitext-103"], "wikitext-103", split="test")
    text = WIKITEXT["test"]
    assert (size.bytes, size.characters, size.words) == (len(text.encode()), len(text), WORDS["test"])
    path = write("text8", tmp_path / "text8")  # whose vocabulary is that of all three splits
    assert [len(text) for text in formats.texts([path], format="text8")] == [900, 50, 50]


def test_a_file_may_be_compressed_or_have_the_name_of_a_mirror(small_corpora, tmp_path):
    for name in ("train", "valid"):
        text = WIKITEXT["validation" if name == "valid" else name].encode()
        (tmp_path / f"{name}.txt.gz").write_bytes(gzip.compress(text))
    assert len(list(formats.documents([tmp_path], format="wikitext-2"))) == 3
    assert [source["path"] for source in formats.sources([tmp_path], "wikitext-2", "validation")] == [
        str(tmp_path / "valid.txt.gz")
    ]
    (tmp_path / "enwik8.gz").write_bytes(gzip.compress(BYTES))
    assert len(list(formats.documents([tmp_path], format="enwik8"))) == 2


def test_the_held_out_text_of_wikitext_2_is_whole(shared_data, tmp_path):
    """217,646 words and line ends in 60 articles, as published; the real declaration reads it."""
    folder = shared_data / "pretrain" / "wikitext2"
    articles = [document.text for document in formats.documents([folder], format="wikitext-2", split="validation")]
    text = gzip.decompress((folder / "valid.txt.gz").read_bytes()).decode()
    assert "\n".join(articles) + "\n" == text and len(articles) == 60
    assert text_size.measure([folder], "wikitext-2", split="validation") == text_size.TextSize(
        bytes=len(text.encode()), characters=len(text), words=217_646
    )
    tokenizer = tokenizers.train("whitespace", 33_278, [text], tmp_path / "tokenizer")
    dataset = prepare(
        [folder], "wikitext-2", tokenizer, tmp_path / "dataset", validation=0, split="validation", progress=False
    ).all_held_out()
    words = [word for line in text.split("\n")[:-1] for word in (*line.split(), "<eos>")]
    assert tokenizer.tokens(joined(dataset, "validation", tokenizer)) == words and len(words) == 217_646
