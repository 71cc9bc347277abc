"""The input in ranges: each document in one of them, whatever their size; a changed file is noticed."""

import json

import numpy as np
import pytest

from plmjax.data import formats, text_files
from plmjax.data.formats import records
from tests.data.mistakes import refused


def texts(draws: np.random.Generator, count: int) -> list[str]:
    """Texts of ASCII, accents, Chinese and emoji, of 1 to 12 words in 1 to 3 lines."""
    words = np.array(["river", "café", "天气很好", "🦊", "walks", "the"])
    return ["\n".join(" ".join(draws.choice(words, draws.integers(1, 5))) for _ in range(draws.integers(1, 4)))
            for _ in range(count)]  # fmt: skip


def written(format: str, parts: list[str], draws: np.random.Generator) -> str:
    match format:
        case "text":
            ends = draws.choice(["\n\n", "\n \n", "\n\n\n\n", "\r\n\r\n", "\r\r", "\r \r\n"], len(parts))
            return "".join(f"{part}{end}" for part, end in zip(parts, ends, strict=True)).rstrip()
        case "lines":
            ends = draws.choice(["\n", "\r\n", "\r"], len(parts))
            return "".join(f"{part.replace(chr(10), ' ')}{end}" for part, end in zip(parts, ends, strict=True))
        case "jsonl":
            return "\n".join(json.dumps({"text": part}, ensure_ascii=False) for part in parts) + "\n"


def read(source: formats.Input, size: int) -> list[list[str]]:
    """The text of the documents of each range."""
    return [[document.text.strip() for document in source.documents(part)] for part in source.ranges(size)]


@pytest.mark.parametrize("format", ["text", "lines", "jsonl"])
def test_ranges_have_every_document_once(format, tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "BLOCK", 13)
    draws = np.random.default_rng(0)
    text = written(format, texts(draws, 60), draws)
    path = tmp_path / "a.txt"
    path.write_bytes(text.encode())
    whole = [document.text.strip() for document in formats.documents([path], format=format)]
    source = formats.Input((str(path),), format)
    assert len(whole) == 60
    counts = set()
    for size in [*range(1, 60, 7), 100, 333, 1000, len(text.encode()), 10**6]:
        found = read(source, size)
        assert [document for part in found for document in part] == whole, size
        sizes = [part.bytes for part in source.ranges(size)]
        assert sum(sizes) == path.stat().st_size and all(part >= size for part in sizes[:-1])
        counts.add(len(found))
    assert min(counts) == 1 and max(counts) > 40  # nearly a range for each document


def test_a_long_text_without_blank_lines_is_cut_at_a_line_or_a_word(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "WINDOW", 64)
    monkeypatch.setattr(text_files, "BLOCK", 16)
    path = tmp_path / "a.txt"
    for end in ("\n", " "):
        text = end.join(f"word{number}" for number in range(1000))
        path.write_text(text)
        found = read(formats.Input((str(path),), "text"), 1000)
        assert len(found) > 5 and end.join(part for (part,) in found) == text


def test_messages_name_the_range(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "One."}\n' * 20 + '{"txet": "Two."}\n' + '{"text": "One."}\n' * 20)
    source = formats.Input((str(path),))
    parts = source.ranges(100)
    said = "a.jsonl (from byte 306) line 3 .. txet"
    refused(lambda: (formats.prose(one) for part in parts for one in source.documents(part)), said)
    assert next(iter(source.documents(parts[0]))).place == f"{path} line 1"
    path.write_text("".join(json.dumps({"text": "No.", "body": f"Number {n}.", "n": n}) + "\n" for n in range(40)))
    parts = records.Parts({"source": "body"}, ("n",))  # every range is read with the settings of the whole
    source = formats.Input((str(path),), "jsonl", parts=parts)
    found = [document for part in source.ranges(200) for document in source.documents(part)]
    assert [formats.streams_of(one, parts)["source"] for one in found] == [[f"Number {n}."] for n in range(40)]
    assert [formats.fields_of(one, parts) for one in found] == [[n] for n in range(40)]


def test_a_file_that_changes_is_noticed_also_while_it_is_read(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("One.\n\n" * 20)
    source = formats.Input((str(path),))
    parts = source.ranges(50)
    found = source.documents(parts[-1])
    assert next(found).text == "One."
    path.write_text("Two.\n\n" * 20)
    for read in (source.documents(parts[1]), found):
        refused(lambda read=read: read, "a.txt to stay as it was .. changed")
    path.unlink()
    refused(lambda: source.documents(parts[1]), "removed .. run it again")
