"""FineWeb's rules at their thresholds."""

import pytest

from plmjax.data.cleaning import catalogue, cleaner
from plmjax.data.cleaning.rule import Dropped, Settings

LONG = "a line of more than thirty characters"


def drops(rule: str, text: str) -> bool:
    return isinstance(catalogue.RULES[rule].apply(text, Settings()), Dropped)


@pytest.mark.parametrize(
    ("rule", "dropped", "kept"),
    [
        ("fineweb_line_ends", ["a."] * 3 + ["a"] * 22, ["a."] * 3 + ["a"] * 21),
        ("fineweb_short_lines", ["a" * 30] * 67 + ["a" * 31] * 33, ["a" * 30] * 66 + ["a" * 31] * 34),
        ("fineweb_repeated_lines", ["a", "a", "b" * 98], ["a", "a", "b" * 99]),
        ("fineweb_lists", ["a b c"] * 11, ["a b c"] * 10),
    ],
)
def test_a_page_is_dropped_from_the_threshold_on(rule: str, dropped: list[str], kept: list[str]) -> None:
    assert drops(rule, "\n".join(dropped)) and not drops(rule, "\n".join(kept))


@pytest.mark.parametrize("mark", [".", "'", '"', "!", "?"])
def test_marks_that_end_a_line(mark: str) -> None:
    assert not drops("fineweb_line_ends", f"A line{mark}")


def test_the_variant_of_c4_keeps_lines_without_a_mark_and_of_three_words() -> None:
    text = "\n".join(["One two three", "One two", "First one. A second. A third one. A fourth. A fifth one."])
    left = catalogue.RULES["fineweb_few_words"].apply(text, Settings())
    assert left.split("\n") == [text.split("\n")[0], text.split("\n")[2]]
    assert not drops("fineweb_sentences", text) and drops("fineweb_sentences", "One. Two. Three. Four.")


def test_the_set_keeps_prose_and_drops_a_list() -> None:
    prose = [
        "The river has its source in the mountains and flows through the old town to the sea. It is the longest river "
        "of the country, and its valley has been settled for two thousand years.",
        "Most of the towns that stand on its banks live from trade with each other. In the spring the water rises, and "
        "the lower fields are flooded for a few weeks. People have built dams to hold it.",
        "Ships can go up to the first falls. Beyond them the goods have to be carried by land, which takes three days.",
    ]
    items = [f"Item {number} of the list" for number in range(60)]
    assert list(cleaner(["fineweb"]).texts(["\n".join(items), "\n".join(prose)])) == ["\n".join(prose)]
