"""Books: their headers and the language of their lines."""

from tests.data.formats.samples import read


def test_chinese_books(tmp_path):
    (tmp_path / "a.txt").write_text(
        "第一回 宴桃园豪杰\n\n    滚滚长江东逝水，惯\n\n    看秋月春风。\n\n    话说天下大势。\n"
    )
    assert read([tmp_path / "a.txt"], "books") == [("books", ["滚滚长江东逝水，惯看秋月春风。", "话说天下大势。"])]


def test_older_gutenberg_headers():
    from plmjax.data.formats import books

    text = "Etext of X\n*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*\n\nIt begins.\n\nIt ends.\n\n"
    assert books.prose(text + "End of the Project Gutenberg Etext of X\n") == ["It begins.", "It ends."]


def test_an_indent_begins_a_paragraph_unless_the_line_before_has_one():
    """The lines of an indented block keep together."""
    from plmjax.data.formats import books

    lines = ["He came to the shore and", "found nobody, only", "  the wind that rose on", "  the waves and went", "on."]
    assert books.prose("\n".join(lines)) == [
        "He came to the shore and found nobody, only",
        "the wind that rose on the waves and went on.",
    ]
