"""Options of the fuzzer, and its counts."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuzzing import fuzzer

OUTCOMES: list[fuzzer.Outcome] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of `python -m pytest tests/fuzzing`."""
    parser.addoption("--cases", type=int, default=None, help="cases of every reader, from --case on")
    parser.addoption("--case", type=int, default=None, help="one case, or the first of --cases")
    parser.addoption("--reader", default=None, help="one reader, by its name or the beginning of it")


@pytest.fixture(scope="session")
def numbers(request: pytest.FixtureRequest) -> range | None:
    """The cases that the command line asks for; None: it asks for none."""
    first, cases = (request.config.getoption(f"--{name}", None) for name in ("case", "cases"))
    if first is None and cases is None:
        return None
    return range(first or 0, (first or 0) + (1 if cases is None else cases))


@pytest.fixture(scope="session")
def sample(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[fuzzer.Reader], Path]:
    """Reader -> its sample, made once."""
    made: dict[str, Path] = {}

    def of(reader: fuzzer.Reader) -> Path:
        if reader.name not in made:
            folder = tmp_path_factory.mktemp("sample") / "sample"
            folder.mkdir()
            reader.make(folder, request.getfixturevalue)
            fuzzer.read_whole(reader, folder, folder.parent / "scratch")
            made[reader.name] = folder
        return made[reader.name]

    return of


@pytest.fixture(scope="session")
def count() -> Callable[[fuzzer.Outcome], None]:
    """Remembers an outcome for the table at the end."""
    return OUTCOMES.append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The table of counts, where the command line asks for cases."""
    with contextlib.suppress(ValueError):
        if OUTCOMES and config.getoption("--cases", None) is not None:
            terminalreporter.write_line("\n".join(fuzzer.table(OUTCOMES)))
