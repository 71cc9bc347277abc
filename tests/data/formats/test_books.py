"""Books: their headers and the language of their lines."""

from plmjax.data.formats import books


def test_an_indent_begins_a_paragraph_unless_the_line_before_has_one():
    """The lines of an indented block keep together. Fewer than half of the lines of a text have an indent."""
    lines = ["He came to the shore and", "found nobody, only", "  the wind that rose on", "  the waves and went", "on."]
    found = ["He came to the shore and found nobody, only", "the wind that rose on the waves and went on."]
    assert books.prose("\n".join(lines)) == found
    lines = ["He came to the shore and,", "  found nobody there,", "but the wind and,", "  the waves,"]
    assert len(books.prose("\n".join(lines))) == 1 and len(books.prose("\n".join([*lines, "and more,"]))) == 3


LEFT_OUT = [
    *("CHAPTER IV", "Part the First", "Volume II.", "Scene 2: In a wood", "XIV.", "12", "Preface", "The Prologue"),
    *"The End|Finis|第十二回 刘备|第3章|第一节|第〇卷|《红楼梦》卷一".split("|"),
    *("A STORM AT SEA", "WIND", "THE STORM " * 6 + "AND MORE A", "Chapter " + "x" * 92),
]
KEPT = [
    *("I came to the end.", "Part of it was lost,", "第一次见面很好。", "USA AND ITS COAST, OFTEN;" * 5, "WAR"),
    *("THE STORM " * 6 + "AND MORE AT", "Chapter " + "x" * 93, "Chapter 1;", "Chapter 1,"),
]


def test_a_hyphen_after_a_letter_divides_a_word_and_chinese_lines_are_joined() -> None:
    for lines in ("he said -\nand went,", "pages 1-\nand 2,"):
        assert books.prose(lines) == [lines.replace("\n", " ")]
    assert books.prose("a well-\nknown wind,") == ["a well-known wind,"]
    text = "第一回 宴桃园豪杰\n\n    滚滚长江东逝水，惯\n\n    看秋月春风。\n\n    话说天下大势。\n"
    assert books.prose(text) == ["滚滚长江东逝水，惯看秋月春风。", "话说天下大势。"]


def test_headings_are_left_out_and_lines_like_them_kept() -> None:
    for line in LEFT_OUT + KEPT:
        expected = ["It was dark.", *([line] if line in KEPT else []), "It rained."]
        assert books.prose(f"It was dark.\n\n{line}\n\nIt rained.") == expected


CREDITS = [
    *("Produced by Somebody", "E-text prepared by Somebody", "Etext prepared by Somebody", "Transcribed from a book"),
    *("Transcribed by Somebody", "This etext was produced here", "This e-book was prepared here"),
    *("Transcriber's Note: none", "Transcribers Note: none", "[Illustration: a fox]", "[Transcriber: none]"),
]
STARTS = ["*** START OF THE PROJECT GUTENBERG EBOOK X ***", "*** start of this project gutenberg ebook\nX ***"]
ENDS = [
    *("*** END OF THE PROJECT GUTENBERG EBOOK X ***", "***END OF THIS PROJECT GUTENBERG EBOOK X***"),
    *("End of Project Gutenberg's X", "End of the Project Gutenberg Etext", "*** End of this Project Gutenberg"),
]


def test_a_licence_and_what_a_transcriber_added_are_left_out() -> None:
    for start, end in [*((start, ENDS[0]) for start in STARTS), *((STARTS[0], end) for end in ENDS[1:])]:
        assert books.prose(f"A licence.\n\n{start}\n\nIt was dark.\n\n{end}\n\nMore of it.") == ["It was dark."]
    for credit in CREDITS:
        assert books.prose(f"{credit}.\n\nIt was dark.\n\nIt rained.") == ["It was dark.", "It rained."], credit
    text = "Etext of X\n*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*\n\nIt begins.\n\nIt ends.\n\n"
    assert books.prose(text + "End of the Project Gutenberg Etext of X\n") == ["It begins.", "It ends."]
    assert books.prose("\n  \n\n") == []


def test_a_short_line_that_ends_a_sentence_ends_a_paragraph() -> None:
    """A line is short below four fifths of the second widest of eleven lines, which has 60 characters."""
    long = "The rain fell in torrents, except at occasional intervals, when it was"
    for mark in ".!?:;\"'”’)]…。！？：；”’」』）":
        lines = [long, f"checked{mark}", long, "so,", "and so on."]
        assert books.prose("\n".join(lines)) == [f"{long} checked{mark}", f"{long} so, and so on."]
    lines = [f"It was dark and {'x' * width}"[:width] for width in (70, 60, *[57] * 8)]
    for length, ends in ((48, False), (47, True)):
        closed = f"It rained and {'x' * length}"[: length - 1] + "."
        assert len(books.prose("\n".join([closed, *lines]))) == 1 + ends
