"""Checksums of files: each is read once on a machine, and again as soon as it or its checksum is another one."""

import os
from pathlib import Path

import pytest

from plmjax.data import checksums

NAMES = ("a.bin", "b.bin", "c.bin")
Files = dict[str, dict[str, int]]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Files]:
    """A folder and the checksums of its files, which are read in parts of four bytes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(checksums, "_CHUNK", 4)
    (folder := tmp_path / "data").mkdir()
    for number, name in enumerate(NAMES):
        (folder / name).write_bytes(bytes([number]) * 10)
    return folder, {name: checksums.sum_file(folder / name) for name in NAMES}


@pytest.fixture
def read(files, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are read, in order."""
    found, original = [], checksums.sum_file
    monkeypatch.setattr(checksums, "sum_file", lambda path: found.append(path.name) or original(path))
    return found


def test_only_what_is_new_is_read_and_a_long_reading_is_told(files, read: list[str], monkeypatch) -> None:
    """A file that was written again, also with its former time; or a checksum that was not asked for before."""
    folder, expected = files
    assert expected["b.bin"] == {"bytes": 10, "crc32c": checksums.crc32c(b"\x01" * 10)}

    def found(expected: Files = expected, **report) -> tuple[str | None, list[str]]:
        read.clear()
        return checksums.find_damaged(folder, expected, **report), [*read]

    monkeypatch.setattr(checksums, "REPORTED_BYTES", 30)
    lines: list[str] = []
    assert found(report=lines.append) == (None, [*NAMES]) and "read and found sound" in lines[0]
    assert found() == (None, [])
    times = (folder / "b.bin").stat()
    (folder / "b.bin").write_bytes(b"\x01" * 10)
    os.utime(folder / "b.bin", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert found(report=lines.append) == (None, ["b.bin"]) and len(lines) == 1
    assert found() == (None, [])  # the others are known as before
    assert found(expected | {"c.bin": {"bytes": 10, "crc32c": 1}}) == ("c.bin", ["c.bin"])
    for change in ({"bytes": 9}, {"crc32c": 2}):  # the first that differs, which is not noted
        wrong = expected | {name: expected[name] | change for name in NAMES[1:]}
        assert checksums.first_difference(folder, wrong) == "b.bin"
    for _ in range(2):
        assert found(wrong)[0] == "b.bin"
