"""The values that the words of an option become, and the defaults in its help."""

import dataclasses
from pathlib import Path
from typing import Any, Literal

import pytest
import tyro

from plmjax import option_values

KINDS = Literal["linear", "cosine"]


def settings(kind: Any, **default: Any) -> type:
    return dataclasses.make_dataclass("Settings", [("value", kind, dataclasses.field(**default))])


@pytest.mark.parametrize(
    ("kind", "words", "value"),
    [
        (int | None, "none", None),
        (int | None, "None", None),
        (int | None, "0", 0),
        (float | None, "1e-3", 1e-3),
        (bool | None, "none", None),
        (bool | None, "False", False),
        (str | None, "none", "none"),  # a text may be the word
        (Path | None, "none", Path("none")),
        (KINDS | None, "cosine", "cosine"),
        (tuple[int, ...], "1 2 3", (1, 2, 3)),
        (tuple[str, ...], "none", ("none",)),
        (tuple[float, ...], "", ()),
        (str, "None", "None"),
    ],
)
def test_words_are_read_as_their_kind(kind: Any, words: str, value: Any) -> None:
    with option_values.PLAIN:
        found = tyro.cli(settings(kind), args=["--value", *words.split()]).value
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("kind", "default", "shown"),
    [
        (int | None, None, "--value INT|none (default: none)"),
        (int | None, 5, "--value INT|none (default: 5)"),
        (Path | None, None, "--value PATH (default: none)"),
        (str, "", "--value TEXT (default: empty)"),
        (str, "a", "--value TEXT (default: a)"),
        (tuple[int, ...], (), "--value INT ... (default: empty)"),
        (tuple[int, ...], (1, 2), "--value INT ... (default: 1 2)"),
    ],
)
def test_a_default_is_shown_as_a_user_would_write_it(kind: Any, default: Any, shown: str, capsys) -> None:
    with option_values.PLAIN, pytest.raises(SystemExit):
        tyro.cli(settings(kind, default=default), args=["--help"])
    assert shown in " ".join(capsys.readouterr().out.replace("│", " ").split())


@pytest.mark.parametrize(("kind", "word"), [(int | None, "many"), (bool | None, "perhaps"), (tuple[int, ...], "1.5")])
def test_another_word_is_refused(kind: Any, word: str, capsys) -> None:
    with option_values.PLAIN, pytest.raises(SystemExit) as stop:
        tyro.cli(settings(kind), args=["--value", word])
    assert stop.value.code == 2 and word in capsys.readouterr().err
