"""Gopher's rules at their thresholds."""

import pytest

from plmjax.data.cleaning import catalogue
from plmjax.data.cleaning.rule import Dropped, Settings

DIFFERENT = [f"word{chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(200)]


def drops(rule: str, text: str) -> bool:
    return isinstance(catalogue.RULES[rule].apply(text, Settings()), Dropped)


@pytest.mark.parametrize(
    ("rule", "dropped", "kept"),
    [
        ("gopher_length", "word " * 49 + ", . !", "word " * 50),
        ("gopher_length", "a " * 100_001, "a " * 100_000),
        ("gopher_word_length", "abc ab", "abc abc , . !"),
        ("gopher_word_length", "a" * 10 + " " + "a" * 11, "a" * 10),
        ("gopher_symbols", "# # " + "word " * 8, "# " + "word " * 9),
        ("gopher_symbols", "… ... " + "word " * 8, "… " + "word " * 9),
        ("gopher_bullets", "- a\n" * 10 + "• a", "- a\n" * 9 + "a"),
        ("gopher_ellipses", "a...\na…\na\na", "a...\na\na\na"),
        ("gopher_letters", "a a a a 1 2", "a a a a 1"),
        ("gopher_stop_words", "the river sings", "the river and stone"),
        ("gopher_repeated_lines", "a\na\na\nbb\ncccccccccccccccccccc", "a\na\nbb\ncccccccccccccccccccc"),
        ("gopher_repeated_lines", "aaaa\naaaa\nbbbb\ncccc", "aaaa\naaaa\nbbbb\nccccc"),
        ("gopher_top_grams", " ".join(["old stone", *DIFFERENT[:3]] * 4), " ".join(DIFFERENT)),
        ("gopher_repeated_grams", " ".join(DIFFERENT[:10] * 2), " ".join(DIFFERENT)),
    ],
)
def test_a_page_is_dropped_beyond_the_threshold(rule: str, dropped: str, kept: str) -> None:
    assert drops(rule, dropped.strip()) and not drops(rule, kept.strip())


def test_repeated_sequences_do_not_count_a_character_twice() -> None:
    """The last six of 12 words repeat the first six: one sequence of five words is counted, 30 of 83 characters."""
    rule = catalogue.RULES["gopher_repeated_grams"].apply(" ".join(DIFFERENT[:6] * 2), Settings())
    assert rule.reason == "0.36 of the characters in repeated sequences of 5 words"
