"""The fuzzer finds what it looks for: readers that do each thing wrong, and changes that are the same each time."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from plmjax.errors import UserError
from tests.fuzzing import fuzzer
from tests.fuzzing.fuzzer import Outcome, Reader

CHANGES_A = 3
"""A case that changes the file a.txt of the sample, and leaves it there."""


def refuse(sentence: str) -> Callable[[Path], None]:
    """A reader that refuses every folder in this sentence."""

    def read(folder: Path) -> None:
        raise UserError(sentence.format(folder=folder))

    return read


def fail(folder: Path) -> None:
    """A traceback."""
    raise ValueError("invalid literal")


def leave(folder: Path) -> None:
    """A panic of Rust is no Exception either."""
    raise BaseException("panicked")


WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "error": (fail, "raised ValueError"),
    "panic": (leave, "raised BaseException"),
    "lines": (refuse("Expected text in {folder}, found\nnone."), "said more than one line"),
    "separator": (refuse("Expected text in {folder}, found \u2028."), "said more than one line"),
    "no sentence": (refuse("Expected text in {folder}, found none"), "said no sentence"),
    "no name": (refuse("Expected text, found none; check it."), "did not name"),
    "option": (refuse("Expected text in {folder}; set --model.size."), "advised an option of the model"),
    "surrogate": (refuse("Expected text in {folder}, found \ud800."), "said what no terminal can show"),
    "long": (refuse("Expected text in {folder}, found " + "x" * 9000 + "."), "said 9,"),
    # Far above the limit, because the system may take back pages of a large process meanwhile.
    "memory": (lambda folder: np.ones(150_000_000).sum(), "MiB of memory for"),
    "written": (lambda folder: (folder / "more.txt").write_text("a"), "wrote or removed"),
    "written above": (lambda folder: (folder.parent / "more.txt").write_text("a"), "wrote or removed"),
    "written here": (lambda folder: Path("more.txt").write_text("a"), "wrote or removed"),
    "changed": (lambda folder: (folder / "b.txt").write_text("a"), "wrote or removed"),
    "removed": (lambda folder: (folder / "b.txt").unlink(), "wrote or removed"),
}
RIGHT: dict[str, Callable[[Path], object]] = {
    "read": lambda folder: [file.read_bytes() for file in folder.iterdir() if file.is_file()],
    "refused": refuse("Expected text in {folder}/a.txt, found none; check it."),
    "output": lambda folder: (folder.parents[1] / "output" / "page.html").write_text("a"),
    "notes": lambda folder: (folder / "checked").mkdir(),
    "own": lambda folder: (folder / "own.json").write_text("a"),
}


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Outcome]:
    """Runs a case of a reader on a sample of two files."""
    sample = tmp_path / "sample"
    sample.mkdir()
    for name in ("a.txt", "b.txt"):
        (sample / name).write_text("One line.\nAnother one.\n" * 20)

    def of(read: Callable[[Path], object], number: int = 0) -> Outcome:
        reader = Reader("texts", lambda folder, given: None, read, owns=("own.json",))
        return fuzzer.run(reader, number, sample, tmp_path / "scratch")

    return of


@pytest.mark.parametrize("read, fault", WRONG.values(), ids=WRONG)
def test_what_a_reader_does_wrong_is_found(run: Callable[..., Outcome], read, fault: str) -> None:
    outcome = run(read, CHANGES_A)
    assert outcome.fault.startswith(fault) or fault in outcome.fault
    assert f"--reader 'texts' --case {CHANGES_A}" in str(outcome) and outcome.change.startswith("a.txt: ")


@pytest.mark.parametrize("read", RIGHT.values(), ids=RIGHT)
def test_what_a_reader_may_do_is_no_fault(run: Callable[..., Outcome], read) -> None:
    assert run(read, CHANGES_A).fault == ""


def test_a_reader_that_computes_or_waits_for_ever_is_stopped(run: Callable[..., Outcome], monkeypatch) -> None:
    def compute(folder: Path) -> None:
        end = time.process_time() + 0.2
        while time.process_time() < end:
            pass

    monkeypatch.setattr(fuzzer, "SECONDS", 0.1)
    assert run(compute).fault.startswith("took 0.")
    monkeypatch.setattr(fuzzer, "PATIENCE", 0.2)
    assert run(lambda folder: time.sleep(60)).fault == "raised Hang"


def test_a_case_is_the_same_each_time_and_cases_differ(run: Callable[..., Outcome]) -> None:
    seen = {}
    for number in range(40):
        for _ in range(2):
            contents: list[tuple[str, bytes]] = []
            outcome = run(
                lambda folder, contents=contents: contents.extend(
                    (file.name, file.read_bytes()) for file in sorted(folder.iterdir()) if file.is_file()
                ),
                number,
            )
            assert seen.setdefault(number, (outcome.change, contents)) == (outcome.change, contents)
    assert len({change for change, _ in seen.values()}) > 15
    assert len({str(contents) for _, contents in seen.values()}) > 30


def test_the_table_counts_every_outcome() -> None:
    outcomes = [Outcome("a", 0, "cut", ""), Outcome("a", 1, "cut", "Refused."), Outcome("b", 0, "cut", "", "took 11 s")]
    rows = fuzzer.table(outcomes)
    assert rows[2:] == ["| a | 2 | 1 | 1 | 0 |", "| b | 1 | 0 | 0 | 1 |", "| all | 3 | 1 | 1 | 1 |"]
