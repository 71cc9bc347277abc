"""Records with named parts: tables, JSON lines and Parquet as several streams; what lacks a part is named."""

import gzip
import json

import numpy as np
import pytest

from plmjax.data import formats, sentences, store, tokenizers
from plmjax.data.formats import records
from plmjax.data.preparation import prepare
from plmjax.errors import UserError

PAIRS = [(f"the {word} sings number {n}.", f"{word} {word} nine {n}") for n, word in enumerate(("river", "stone") * 40)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return tokenizers.train("wordpiece", 120, [" ".join(pair) for pair in PAIRS], tmp_path_factory.mktemp("tokenizer"))


def table(folder, header=("en", "de", "label")):
    lines = ["\t".join(header)] if header else []
    lines += [f"{source}\t{target}\t{number % 3}" for number, (source, target) in enumerate(PAIRS)]
    path = folder / "pairs.tsv.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return path


def texts_of(dataset, split, stream):
    text = dataset.split(split, stream)
    return [text.tokens(*text.document_tokens[n : n + 2]).tolist() for n in range(text.documents)]


def json_lines(folder):
    rows = [{"en": en, "de": de, "label": number % 3} for number, (en, de) in enumerate(PAIRS)]
    path = folder / "pairs.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def parquet(folder):
    import pyarrow
    from pyarrow import parquet

    path = folder / "pairs.parquet"
    columns = {"en": [en for en, _ in PAIRS], "de": [de for _, de in PAIRS], "label": np.arange(len(PAIRS)) % 3}
    parquet.write_table(pyarrow.table(columns), path)
    return path


@pytest.mark.parametrize(
    ("make", "format", "keys"),
    [
        (table, "tsv", ("en", "de", "label")),
        (lambda folder: table(folder, header=()), "tsv", ("1", "2", "3")),
        (json_lines, "auto", ("en", "de", "label")),
        (parquet, "auto", ("en", "de", "label")),
    ],
    ids=["table", "table-by-number", "jsonl", "parquet"],
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
    again = prepare([path], format, tokenizer, tmp_path / "out", **options)
    assert again.fingerprint == dataset.fingerprint
    with pytest.raises(UserError, match="another streams"):
        other = options | {"streams": {"source": keys[0]}}
        prepare([path], format, tokenizer, tmp_path / "out", **other)


def test_one_column_of_a_table_is_a_text(tmp_path):
    found = [formats.prose(document) for document in formats.documents([table(tmp_path)], "tsv", text_key="de")]
    assert found == [[de] for _, de in PAIRS]


def test_a_tokenizer_is_trained_on_all_streams(tmp_path):
    parts = records.Parts({"source": "en", "target": "de"})
    texts = list(formats.texts([table(tmp_path)], "tsv", parts=parts))
    assert texts == [f"{en}\n{de}" for en, de in PAIRS]


def test_a_pair_with_an_empty_side_is_left_out(tmp_path, tokenizer):
    path = tmp_path / "pairs.tsv"
    path.write_text("1\t2\nriver stone\t \nriver\tstone\n")
    streams = {"source": "1", "target": "2"}
    dataset = prepare(
        [path], "tsv", tokenizer, tmp_path / "out", streams=streams, validation=0, progress=False, max_unknown=1
    )
    assert dataset.split("train", "target").documents == 2


@pytest.mark.parametrize(
    ("line", "keys", "message"),
    [
        ("en\tde", ("en", "fr"), "Expected the column 'fr' in .*pairs.tsv, found en, de; name columns"),
        ("one\ttwo", ("1", "3"), "Expected the column '3' in .*pairs.tsv, found 1, 2;"),
        ("en\tde\na\tb\tc", ("en", "de"), "Expected 2 columns between tabs in .*pairs.tsv line 2, found 3;"),
    ],
)
def test_tables_that_lack_something_are_named(tmp_path, line, keys, message):
    path = tmp_path / "pairs.tsv"
    path.write_text(line + "\n")
    with pytest.raises(UserError, match=message):
        list(formats.documents([path], "tsv", parts=records.Parts(dict(zip("ab", keys, strict=True)))))


def test_records_that_lack_something_are_named(tmp_path, tokenizer):
    path = json_lines(tmp_path)

    def run(**options):
        prepare([path], "auto", tokenizer, tmp_path / "out", progress=False, processes=1, **options)

    with pytest.raises(UserError, match=r"string 'fr' in .* line 1, found the keys .*; name the one .* --streams"):
        run(streams={"source": "fr"})
    with pytest.raises(UserError, match=r"Expected a number 'en' in .* line 1, found 'the river sings number 0.'"):
        run(streams={"source": "en"}, fields=["en"])
    (tmp_path / "a.txt").write_text("A text.\n\nAnother one.\n")
    with pytest.raises(UserError, match=r"records with named parts in .* for --streams, found the format text"):
        list(formats.documents([tmp_path / "a.txt"], parts=records.Parts({"source": "en"})))


@pytest.mark.parametrize("options", [["=en"], ["source="], ["a=1", "a=2"]])
def test_streams_that_cannot_be_read_are_named(options):
    with pytest.raises(UserError, match="Expected --streams of the form NAME=KEY"):
        records.streams(options)
    assert records.streams(["source", "target=de"]) == {"source": "source", "target": "de"}


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ('{"a": "One.", "n": %s}' % ("9" * 5000), r"Expected a JSON object in .* line 1, .*4300 digits"),
        ('{"a": "One.", "n": %s}' % ("9" * 400), "Expected a number 'n' in .* line 1, found '9999"),
        ('{"a": "One.", "n": "1_0"}', "Expected a number 'n' in .* line 1, found '1_0'"),
        ('{"a": "One.", "n": "nan"}', "Expected a number 'n' in .* line 1, found 'nan'"),
        ('{"a": "One. \\ud800", "n": 1}', r"Expected a JSON object in .* line 1, .*half of a surrogate pair"),
    ],
    ids=["5,000 digits", "above every float", "underscore", "no number", "surrogate"],
)
def test_values_that_no_dataset_holds_are_named(tmp_path, record, message):
    path = tmp_path / "a.jsonl"
    path.write_text(f"{record}\n")
    parts = records.Parts({"text": "a"}, ("n",))
    with pytest.raises(UserError, match=message):
        for document in formats.documents([path], "jsonl", parts=parts):
            formats.streams_of(document, parts), formats.fields_of(document, parts)


def test_names_of_columns_may_be_numbers_and_lines_may_end_as_on_windows(tmp_path):
    """The first line has names unless all keys are numbers."""
    path = tmp_path / "pairs.tsv"
    path.write_bytes(b"1\tde\r\none\teins\r\ntwo\tzwei\r\n")
    for keys, expected in (
        (("1", "de"), [("one", "eins"), ("two", "zwei")]),
        (("1", "2"), [("1", "de"), ("one", "eins"), ("two", "zwei")]),
    ):
        parts = records.Parts(dict(zip("ab", keys, strict=True)))
        found = [formats.streams_of(document, parts) for document in formats.documents([path], "tsv", parts=parts)]
        assert found == [{"a": [a], "b": [b]} for a, b in expected]


@pytest.mark.parametrize("streams", [None, {"source": "en", "target": "de"}])
def test_every_text_of_a_document_is_split_by_the_rules_of_the_language(tmp_path, tokenizer, streams, monkeypatch):
    asked, split = [], sentences.split

    def spied(paragraphs, language="en"):
        asked.append(language)
        return split(paragraphs, language)

    monkeypatch.setattr(sentences, "split", spied)
    options = {"streams": streams, "text_key": "en", "language": "de", "validation": 0, "max_unknown": 1}
    prepare([json_lines(tmp_path)], "auto", tokenizer, tmp_path / "out", processes=1, progress=False, **options)
    assert asked == ["de"] * len(PAIRS) * (2 if streams else 1)


def test_numbers_stay_with_their_documents_where_one_has_no_token(tmp_path, tokenizer):
    """A control character is text, and a tokenizer of words makes no token of it."""
    sides = ["eins", "\x01", "drei", "vier"]
    rows = [{"en": "river stone.", "de": side, "label": number} for number, side in enumerate(sides)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for piece_tokens in (None, 1):
        dataset = prepare(
            [tmp_path / "a.jsonl"], "jsonl", tokenizer, tmp_path / str(piece_tokens), validation=0, progress=False,
            streams={"source": "en", "target": "de"}, fields=["label"], max_unknown=1, piece_tokens=piece_tokens,
            processes=1,
        )  # fmt: skip
        assert dataset.fields("train")["label"].tolist() == [0, 2, 3]
        expected = [tokenizer.encode(side) for side in ("eins", "drei", "vier")]
        assert texts_of(dataset, "train", "target") == expected
        pieces = [piece for shard in dataset.ledger["splits"]["train"]["shards"] for piece in shard["pieces"]]
        assert len(pieces) == (3 if piece_tokens else 1)
