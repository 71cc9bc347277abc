"""The files that a change touches, and the tests with the mark `nightly` that run because of it.

These tests take seconds each, for what quick tests prove of a part or of another system. If a change touches the code
that such a test is about, pytest runs it with the quick tests.
"""

import subprocess
from collections.abc import Iterable
from pathlib import Path, PurePosixPath


def changed_files(root: Path, since: str) -> list[str]:
    """Return the files that differ from a commit or are new, relative to `root`; none if it is no repository.

    Raises:
        ValueError: `since` names no commit.
    """
    if not (root / ".git").exists():
        return []

    def git(*arguments: str) -> list[str]:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True)
        if done.returncode:
            raise ValueError(f"Expected a commit in --changed-since, found {since!r}: {done.stderr.strip()}")
        return [name for name in done.stdout.split("\0") if name]

    return git("diff", "--name-only", "-z", since) + git("ls-files", "--others", "--exclude-standard", "-z")


SHARED = ("contracts", "layers")
"""Folders of plmjax that all systems are made of."""
OF_SYSTEMS = ("layers", "models", "systems")
"""Folders of tests that prove systems."""


def brings_back(test: str, files: Iterable[str]) -> bool:
    """Return true if a test is about one of the files.

    tests/FOLDER/ and tests/test_FOLDER.py are about:

    - plmjax/FOLDER/, FOLDER/ beside plmjax/, and benchmarks/FOLDER.py;
    - docs/FOLDER.md, if the test is in test_docs.py;
    - plmjax/models/SYSTEM, for the cases and files with the name of the system;
    - plmjax/contracts/, plmjax/layers/ and tests/families/, if the tests are those of systems;
    - the test's own file.

    Args:
        test: pytest's name of it, without `tests/`.
        files: paths relative to the root of the repository.
    """
    file, _, case = test.partition("[")
    path = PurePosixPath(file.partition("::")[0])
    room = path.parts[0] if len(path.parts) > 1 else path.stem.removeprefix("test_")
    words = {*case.rstrip("]").split("-")} | {path.stem.removeprefix("test_"), *path.parts[1:-1]}
    for name in map(PurePosixPath, files):
        top, *inner = name.parts
        if name == "tests" / path:
            return True
        beside = top == "benchmarks" or (top == "docs" and path.stem == "test_docs")
        if room == top or (beside and name.stem == room):
            return True
        if (top, *inner[:1]) == ("tests", "families") and room in OF_SYSTEMS:
            return True
        if top != "plmjax" or not inner:
            continue
        changed, system = inner[0].removesuffix(".py").strip("_"), {part.removesuffix(".py") for part in inner[1:]}
        if changed == "models" and system & words:
            return True
        if changed == room != "models" or (changed in SHARED and room in OF_SYSTEMS):
            return True
    return False
