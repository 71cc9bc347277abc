"""Documents of a line, between blank lines, and in files that mark no borders; texts that are too long to hold."""

import pytest

from plmjax.data import formats, text_files
from plmjax.data.formats import cutting
from plmjax.data.formats import text as text_format
from tests.data.formats.samples import read


def test_long_documents_are_cut_between_words(tmp_path, monkeypatch):
    """One is a line, a book, or what stands between blank lines."""
    monkeypatch.setattr(cutting, "LONGEST_DOCUMENT", 100)
    long = " ".join(f"word{n}" for n in range(40))
    for format, text in (("text", long), ("books", long), ("lines", f"One. And more.\n\nTwo.\n{long}\n")):
        (tmp_path / "a.txt").write_text(text)
        found = [document.text for document in formats.documents([tmp_path / "a.txt"], format=format)]
        short = 2 * (format == "lines")
        assert found[:short] == ["One. And more.", "Two."][:short]
        assert " ".join(found[short:]) == long and len(found) > 2 and max(map(len, found)) <= 100


@pytest.mark.parametrize(
    ("text", "first", "rest"),
    [
        ("a" * 60 + f"\n\nbbbbb\nccccc {'d' * 90}", "a" * 60, f"bbbbb\nccccc {'d' * 90}"),
        ("a" * 20 + "\n\n" + "b" * 40 + " " + "c" * 90, "a" * 20 + "\n\n" + "b" * 40, "c" * 90),
        ("a" * 49 + " " + "b" * 90, "a" * 49 + " " + "b" * 50, "b" * 40),
        ("a" * 50 + " " + "b" * 90, "a" * 50, "b" * 90),
        ("a" * 99 + " " + "b" * 90, "a" * 99, "b" * 90),
        ("a" * 100 + " " + "b" * 90, "a" * 100, " " + "b" * 90),
    ],
)
def test_a_cut_is_at_the_best_end_in_the_second_half(text: str, first: str, rest: str, monkeypatch) -> None:
    monkeypatch.setattr(cutting, "LONGEST_DOCUMENT", 100)
    assert cutting.cut(text) == (first, rest)


@pytest.mark.parametrize(("block", "ending"), [(7, "\n\n  \n"), (1 << 20, "")])
def test_a_long_file_without_a_blank_line_is_many_documents(tmp_path, monkeypatch, block, ending):
    """Its lines may be sentences or documents; the borders depend on the lines alone."""
    monkeypatch.setattr(text_files, "BLOCK", block)
    lines = [f"Sentence number {n} of a text." for n in range(1234)]
    path = tmp_path / "a.txt"
    path.write_text("\n\n" + "\n".join(lines) + ending)
    found = [paragraphs for _, paragraphs in read([path], "text")]
    assert [len(paragraphs) for paragraphs in found] == [50] * 24 + [34]
    assert [line for paragraphs in found for line in paragraphs] == lines


def test_borders_that_are_marked_are_kept(tmp_path, monkeypatch):
    """Kept whole: BERT's own format, a file that is a short document, a novel in one line."""
    monkeypatch.setattr(text_format, "UNMARKED", 100)
    long, short = ([f"Sentence {n}." for n in range(count)] for count in (300, 20))
    for text, expected in (
        ("\n".join(long) + "\n\n" + "\n".join(short), [long, short]),
        ("\n".join(short) + "\n \n" + "\n".join(long) + "\n\n", [short, long]),
        ("\n".join(long[:100]), [long[:100]]),
        (" ".join(long), [[" ".join(long)]]),
    ):
        (tmp_path / "a.txt").write_text(text)
        assert [paragraphs for _, paragraphs in read([tmp_path / "a.txt"], "text")] == expected


def test_a_long_document_between_blank_lines_is_cut_while_it_is_read(tmp_path, monkeypatch):
    """A document that spans several blocks keeps all of its lines. The next document starts after it."""
    monkeypatch.setattr(cutting, "LONGEST_DOCUMENT", 100)
    long = [f"Line {n} of a text." for n in range(40)]
    (tmp_path / "a.txt").write_text("\n".join(long) + "\n\nA short one.\n")
    for block in (64, 1 << 20):
        monkeypatch.setattr(text_files, "BLOCK", block)
        *parts, last = (paragraphs for _, paragraphs in read([tmp_path / "a.txt"], "text"))
        assert last == ["A short one."] and [line for part in parts for line in part] == long
        assert max(sum(map(len, part)) for part in parts) <= 100 < 40 * 17
