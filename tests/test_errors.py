"""What a message shows of what a user gave: enough to find it, and never all of a text."""

import time

import pytest

from plmjax.errors import UserError, beginning, listed, nearest, options_named, quoted
from plmjax.finetuning.files import tables
from plmjax.finetuning.tasks.sentences import numbered

LONG = "a sentence in the wrong place, " * 2600


def test_what_is_short_is_shown_whole() -> None:
    assert quoted("a\tb") == "'a\\tb'" and quoted(3.5) == "3.5" and quoted(None) == "None"
    assert listed([]) == "none" and listed(["a", "b"]) == "a, b"
    assert nearest("lable", ["label", "text"]) == "did you mean 'label'?"
    path = "/folder" * 20 + "/train.tsv"
    assert nearest(path.replace("train", "trian"), [path]) == f"did you mean {path!r}?"


def test_options_have_the_names_of_the_command_that_runs() -> None:
    names = {"--format": "--data.format", "--input": "--data"}
    for said, meant in (
        ("check --format.", "check --data.format."),
        (
            "give --input or --data.input, --inputs or --format.x;",
            "give --data or --data.input, --inputs or --format.x;",
        ),
    ):
        with pytest.raises(UserError) as caught, options_named(names):
            raise UserError(said)
        assert str(caught.value) == meant


def test_what_is_long_is_cut_and_measured() -> None:
    assert quoted(LONG).startswith("'a sentence in") and quoted(LONG).endswith("(80,600 characters)")
    assert len(quoted(LONG)) < 120 and len(quoted([LONG])) < 120 and beginning("null") == "null"
    names = [f"name {number}" for number in range(10_000)]
    assert len(listed(names)) < 4100 and listed(names).startswith("name 0, name 1, ")
    shown = listed(names).split(" and ")[0].count(",") + 1
    assert listed(names).endswith(f" and {10_000 - shown:,} more")
    assert len(listed([LONG, LONG])) < 700


def test_a_sentence_among_sentences_is_looked_for_in_no_time() -> None:
    start = time.monotonic()
    said = nearest(LONG, [f"{LONG}{number}" for number in range(50)])
    assert len(said) < 5000 and time.monotonic() - start < 5  # comparing them would take hours


def test_a_sentence_in_place_of_a_label_or_a_column_is_not_repeated() -> None:
    for call in (
        lambda: numbered(["good", LONG], ("bad", "good"), lambda row: f"line {row + 2} of test.tsv"),
        lambda: numbered(["good"], (LONG, f"{LONG}!"), lambda row: f"line {row + 2} of test.tsv"),
        lambda: tables.cell({LONG: "", "text": ""}, "label", "label", "train.tsv"),
        lambda: tables.cell({"text": ""}, LONG, "label", "train.tsv"),
    ):
        with pytest.raises(UserError, match=r"(test|train)\.tsv") as caught:
            call()
        assert len(str(caught.value)) < 1000


def test_names_stand_on_one_line() -> None:
    """Columns of a table may hold whatever ends a line."""
    assert listed(["a", "b\rc", "d\u2028e", "\u65e5\u672c x"]) == r"a, 'b\rc', 'd\u2028e', 日本 x"
