"""Text of UTF-8 blocks."""

from pathlib import Path

from plmjax.data import text_files


def test_a_byte_order_mark_is_left_out_at_the_beginning_alone() -> None:
    blocks = [b"\xef\xbb\xbfa\xc3", b"\xa9", b"\xef\xbb\xbfb"]
    assert "".join(text_files.characters(Path("text"), iter(blocks))) == "aé\ufeffb"


def test_a_line_ends_as_on_any_system() -> None:
    assert text_files.divided("a\r\nb\rc\n\nd\n") == ["a", "b", "c", "", "d"]
    assert text_files.divided("a\n\n") == ["a", ""] and text_files.divided("") == [""]
