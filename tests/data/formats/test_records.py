"""Records with named parts: tables, JSON lines and Parquet as several streams; what lacks a part is named."""

import gzip
import json

import pyarrow
import pytest

from plmjax.data import formats, store, tokenizers
from plmjax.data.formats import records
from plmjax.data.preparation import prepare
from tests.data.formats.samples import write_table
from tests.data.mistakes import refused

PAIRS = [(f"the {word} sings number {n}.", f"{word} {word} nine {n}") for n, word in enumerate(("river", "stone") * 40)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return tokenizers.train("wordpiece", 120, [" ".join(pair) for pair in PAIRS], tmp_path_factory.mktemp("tokenizer"))


ROWS = [{"en": en, "de": de, "label": number % 3} for number, (en, de) in enumerate(PAIRS)]


def table(folder, header=True):
    lines = ["en\tde\tlabel"] * header + ["\t".join(map(str, row.values())) for row in ROWS]
    (folder / "pairs.tsv.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    return folder / "pairs.tsv.gz"


def parquet(folder):
    return write_table(folder / "pairs.parquet", pyarrow.Table.from_pylist(ROWS))


def texts_of(dataset, split, stream):
    text = dataset.split(split, stream)
    return [text.tokens(*text.document_tokens[n : n + 2]).tolist() for n in range(text.documents)]


@pytest.mark.parametrize(
    ("make", "format", "keys"),
    [
        (table, "tsv", ("en", "de", "label")),
        (lambda folder: table(folder, header=False), "tsv", ("1", "2", "3")),
        (parquet, "auto", ("en", "de", "label")),
    ],
    ids=["table", "table-by-number", "parquet"],
)
def test_parallel_text_becomes_two_streams_of_the_same_documents(tmp_path, tokenizer, make, format, keys):
    path = make(tmp_path)
    streams = records.streams([f"source={keys[0]}", f"target={keys[1]}"])
    fields = () if keys[2] == "3" else (keys[2],)
    options = {"validation": 0.2, "streams": streams, "fields": fields, "progress": False, "processes": 1}
    dataset = prepare([path], format, tokenizer, tmp_path / "out", **options)
    found = []
    for split in store.SPLITS:
        sides = [texts_of(dataset, split, stream) for stream in ("source", "target")]
        found += zip(*sides, strict=True)
        for label, pair in zip(dataset.fields(split).get("label", ()), zip(*sides, strict=True), strict=False):
            assert label == next(n % 3 for n, (en, _) in enumerate(PAIRS) if tokenizer.encode(en) == pair[0])
    assert len(dataset.split("validation", "source").document_tokens) > 5
    expected = [(tokenizer.encode(en), tokenizer.encode(de)) for en, de in PAIRS]
    assert sorted(found) == sorted(expected)
    assert set(dataset.fields("train")) == set(fields)
    parts = records.Parts(streams)  # a tokenizer is trained on all streams
    assert list(formats.texts([path], format=format, parts=parts)) == [f"{en}\n{de}" for en, de in PAIRS]
    other = options | {"streams": {"source": keys[0]}}
    refused(lambda: prepare([path], format, tokenizer, tmp_path / "out", **other), "another streams")


def test_numbers_stay_with_their_documents_where_one_has_no_token(tmp_path, tokenizer):
    """A side is empty, or has a control character alone, which is text without a token."""
    sides = ["eins", "\x01", "drei", "", "vier"]
    rows = [{"en": "river stone.", "de": side, "label": number} for number, side in enumerate(sides)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    options = {"streams": {"source": "en", "target": "de"}, "fields": ["label"], "max_unknown": 1, "validation": 0}
    for piece_tokens in (None, 1):
        options |= {"piece_tokens": piece_tokens, "processes": 1, "progress": False}
        dataset = prepare([tmp_path / "a.jsonl"], "jsonl", tokenizer, tmp_path / str(piece_tokens), **options)
        assert dataset.fields("train")["label"].tolist() == [0, 2, 4]
        expected = [tokenizer.encode(side) for side in ("eins", "drei", "vier")]
        assert texts_of(dataset, "train", "target") == expected
        pieces = [piece for shard in dataset.manifest["splits"]["train"]["shards"] for piece in shard["pieces"]]
        assert len(pieces) == (3 if piece_tokens else 1)
