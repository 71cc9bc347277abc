"""Gopher's and FineWeb's rules at their thresholds."""

import pytest

from plmjax.data.cleaning import catalogue, gopher
from plmjax.data.cleaning.rule import Dropped, Settings

DIFFERENT = [f"word{chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(260)]


def drops(rule: str, text: str) -> bool:
    return isinstance(catalogue.RULES[rule].apply(text, Settings()), Dropped)


@pytest.mark.parametrize(
    ("rule", "dropped", "kept"),
    [
        ("c4_sentences", "One. Two.", "One. Two. Three."),
        ("gopher_length", "word " * 49 + ", . !", "word " * 50),
        ("gopher_length", "a " * 100_001, "a " * 100_000),
        ("gopher_word_length", "abc ab", "abc abc , . !"),
        ("gopher_word_length", "a" * 10 + " " + "a" * 11, "a" * 10),
        ("gopher_symbols", "# # " + "word " * 8, "# " + "word " * 9),
        ("gopher_symbols", "… ... " + "word " * 8, "… " + "word " * 9),
        ("gopher_bullets", "• a\n" * 10 + "  - a", "• a\n" * 9 + "a"),
        ("gopher_ellipses", "a...\na…\na\na", "a...\na\na\na"),
        ("gopher_letters", "a a a a 1 2", "a a a a 1"),
        ("gopher_stop_words", "the river sings", "the river and stone"),
        ("fineweb_sentences", "One. Two. Three. Four.", "One. Two. Three. Four. Five."),
        ("gopher_repeated_lines", "a\na\na\nbb\ncccccccccccccccccccc", "a\na\nbb\ncccccccccccccccccccc"),
        ("gopher_repeated_lines", "aaaa\naaaa\nbbbb\ncccc", "aaaa\naaaa\nbbbb\nccccc"),
        ("gopher_top_grams", " ".join(["old stone", *DIFFERENT[:3]] * 4), " ".join(DIFFERENT)),
        ("gopher_repeated_grams", " ".join(DIFFERENT[:10] * 2), " ".join(DIFFERENT)),
        ("fineweb_line_ends", "a.\n" * 3 + "a\n" * 22, "a.\n" * 3 + "a\n" * 21),
        ("fineweb_line_ends", "A line", "A line'"),
        (
            "fineweb_short_lines",
            f"{30 * 'a'}\n" * 67 + f"{31 * 'a'}\n" * 33,
            f"{30 * 'a'}\n" * 66 + f"{31 * 'a'}\n" * 34,
        ),
        ("fineweb_repeated_lines", "a\na\n" + "b" * 98, "a\na\n" + "b" * 99),
        ("fineweb_lists", "a b c\n" * 11, "a b c\n" * 10),
    ],
)
def test_a_page_is_dropped_beyond_the_threshold(rule: str, dropped: str, kept: str) -> None:
    assert drops(rule, dropped.strip()) and not drops(rule, kept.strip())


def test_stop_words_and_shares_are_those_of_the_paper() -> None:
    """Rae et al. 2021, appendix A.1.1 and table A1."""
    for word in "the be to of and that have with".split():
        assert not drops("gopher_stop_words", f"river {word} a {word}") and drops("gopher_stop_words", f"river {word}")
    assert gopher.TOP_GRAMS == {2: 0.20, 3: 0.18, 4: 0.16}
    assert gopher.REPEATED_GRAMS == {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("gopher_length", "the ... " * 25),  # more than a mark
        ("gopher_ellipses", "a...\n" * 3 + "a\n" * 7),
        ("gopher_letters", "a1 b-2 3c d4 5"),
        ("gopher_symbols", "#" + " word" * 9),
        ("gopher_word_length", "abc abc"),
        ("gopher_word_length", "a" * 10),
        ("gopher_repeated_lines", "\n".join("aaabbcdefg") + "h" * 99),  # three of ten lines
        ("gopher_repeated_lines", "aaaaa\naaaaa\nbbbbbb\ncccccc"),  # 5 of 25 characters
        ("gopher_top_grams", "a b c stone river d e f stone river g ".ljust(110, "h")),  # 22 of 110 characters
        ("gopher_repeated_grams", ("the fox dug six big " * 2).ljust(100, "h")),  # 15 of 100 characters
    ],
)
def test_a_page_at_the_threshold_is_kept(rule: str, text: str) -> None:
    assert not drops(rule, text.strip())
