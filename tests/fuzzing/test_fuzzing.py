"""Every reader either reads a changed file or refuses it in one sentence that names it, and writes nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuzzing import fuzzer
from tests.fuzzing.fuzzer import Outcome, Reader
from tests.fuzzing.readers import READERS

QUICK = 4
"""Cases of a reader in the quick tests."""
MORE = 25
"""Cases in the slow ones."""


def run(reader: Reader, cases: range, sample: Path, *, scratch: Path, count: Callable[[Outcome], None]) -> None:
    """Runs cases and shows all that were wrong."""
    outcomes = [fuzzer.run(reader, number, sample, scratch) for number in cases]
    for outcome in outcomes:
        count(outcome)
    wrong = [str(outcome) for outcome in outcomes if outcome.fault]
    if wrong:
        pytest.fail(f"{len(wrong)} of {len(outcomes)} cases\n\n" + "\n\n".join(wrong), pytrace=False)


@pytest.fixture
def asked(reader: Reader, request: pytest.FixtureRequest) -> Reader:
    """The reader, where the command line asks for no other."""
    name = request.config.getoption("--reader", None)
    if name and not reader.name.startswith(name):
        pytest.skip("another reader was asked for")
    return reader


@pytest.mark.parametrize(
    "reader",
    [pytest.param(reader, marks=pytest.mark.nightly if reader.name == "report" else ()) for reader in READERS],
    ids=str,
)
def test_a_changed_file_is_read_or_refused(asked: Reader, numbers: range | None, sample, count, tmp_path: Path) -> None:
    run(asked, range(QUICK) if numbers is None else numbers, sample(asked), scratch=tmp_path / "scratch", count=count)


# 2,000 cases take five minutes; each quick run has the first ones of every reader.
@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS, ids=str)
def test_two_thousand_changed_files_are_read_or_refused(asked: Reader, sample, count, tmp_path: Path) -> None:
    run(asked, range(QUICK, QUICK + MORE), sample(asked), scratch=tmp_path / "scratch", count=count)
