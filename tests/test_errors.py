"""Values of a user as a message shows them: enough to find it, and never all of a text."""

import contextlib
import time
import types

import pytest

from plmjax.errors import (
    ABOVE_0,
    FRACTION,
    FROM_0,
    FROM_1,
    PROBABILITY,
    UserError,
    beginning,
    check_ranges,
    in_file,
    listed,
    nearest,
    options_named,
    quoted,
)
from plmjax.finetuning.files import tables
from plmjax.finetuning.tasks.sentences import label_numbers

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
        lambda: label_numbers(["good", LONG], ("bad", "good"), lambda row: f"line {row + 2} of test.tsv"),
        lambda: label_numbers(["good"], (LONG, f"{LONG}!"), lambda row: f"line {row + 2} of test.tsv"),
        lambda: tables.cell({LONG: "", "text": ""}, "label", "label", "train.tsv"),
        lambda: tables.cell({"text": ""}, LONG, "label", "train.tsv"),
    ):
        with pytest.raises(UserError, match=r"(test|train)\.tsv") as caught:
            call()
        assert len(str(caught.value)) < 1000


def test_names_stand_on_one_line() -> None:
    """Columns of a table may hold whatever ends a line."""
    assert listed(["a", "b\rc", "d\u2028e", "\u65e5\u672c x"]) == r"a, 'b\rc', 'd\u2028e', 日本 x"


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("Expected --model.size of 2.", "Expected size of 2 (in run/config.json)."),
        ("Expected size of 2 in run/config.json; fix it.", "Expected size of 2 in run/config.json; fix it."),
        ("Expected a run in run ; name one.", "Expected a run in run ; name one."),
        ("Expected --data.size of a runner.", "Expected --data.size of a runner (in run/config.json)."),
    ],
)
def test_a_mistake_in_a_file_names_the_file_once_and_a_field_in_place_of_an_option(said: str, meant: str) -> None:
    with pytest.raises(UserError) as caught, in_file("run/config.json"):
        raise UserError(said)
    assert str(caught.value) == meant


def test_a_part_of_an_option_is_answered_with_the_whole_option() -> None:
    parts = {"--batch_size": "--training.batch_size"}
    assert nearest("--batch_siz", ["--workdir"], parts) == "did you mean '--training.batch_size'?"
    assert nearest("--workdri", ["--workdir"], parts) == "did you mean '--workdir'?"
    assert nearest("quite another", ["a", "b"]) == "known: a, b."


@pytest.mark.parametrize(
    ("limits", "fitting", "others", "said"),
    [
        (FROM_0, (0, 0.5, 1e9), (-1, float("inf"), float("nan")), "of at least 0"),
        (FROM_1, (1, 2), (0, 0.5), "of at least 1"),
        (FRACTION, (0, 0.999), (1, -0.1), "from 0 to below 1"),
        (ABOVE_0, (5e-324, 1), (0, -1), "above 0"),
        (PROBABILITY, (0, 0.5, 1), (-0.1, 1.01), "from 0 to 1"),
    ],
)
def test_a_range_has_its_least_number_and_not_its_bound(limits, fitting, others, said: str) -> None:
    for value in (*fitting, *others):
        wrong = pytest.raises(UserError, match=f"Expected --group.size {said}, found {value}; change it")
        with contextlib.nullcontext() if value in fitting else wrong:
            check_ranges("group", types.SimpleNamespace(size=value), size=limits)
