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
