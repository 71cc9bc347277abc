"""The files that a change touches, and the tests by night that it brings back by day.

What a test of the night proves slowly, another one proves by day of a part, or of a system alike. Where somebody
changed the room of the test, it is worth its seconds: pytest takes it with the quick ones.
"""

import subprocess
from collections.abc import Iterable
from pathlib import Path, PurePosixPath


def changed_files(root: Path, since: str) -> list[str]:
    """Paths from `root` on, of files that differ from a commit or are new; none where there is no repository.

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
"""Rooms of plmjax that all systems are made of."""
OF_SYSTEMS = ("layers", "models", "systems")
"""Rooms of tests that prove systems."""


def brings_back(test: str, files: Iterable[str]) -> bool:
    """Whether one of the files is what a test is about.

    That is: the test's own file; a file of the room of plmjax, or of the folder beside it, that has the name of the
    test's room; a benchmark of that name; a page of that name, for the tests of the page; a file of a system, for the
    cases that have its name; and what all systems are made of, for the tests of systems.

    Args:
        test: pytest's name of it, from tests/ on.
        files: paths from the root of the repository on.
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
        if top != "plmjax" or not inner:
            continue
        changed, system = inner[0].removesuffix(".py").strip("_"), {part.removesuffix(".py") for part in inner[1:]}
        if changed == "models" and system & words:
            return True
        if changed == room != "models" or (changed in SHARED and room in OF_SYSTEMS):
            return True
    return False
