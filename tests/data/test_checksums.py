"""Checksums of files: each is read once on a machine, and again as soon as it or its checksum is another one."""

import os
from pathlib import Path

import pytest

from plmjax.data import checksums
from plmjax.files import storage

NAMES = ("a.bin", "b.bin", "c.bin")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    for number, name in enumerate(NAMES):
        (tmp_path / "data" / name).write_bytes(bytes([number]) * 10)
    return tmp_path / "data"


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are read, in order, in parts of four bytes."""
    found, original = [], checksums.sum_file
    monkeypatch.setattr(checksums, "_CHUNK", 4)
    monkeypatch.setattr(checksums, "sum_file", lambda path: found.append(path.name) or original(path))
    return found


def expected_of(folder: Path) -> dict[str, dict[str, int]]:
    return {name: checksums.sum_file(folder / name) for name in NAMES}


def test_only_what_is_new_is_read(folder: Path, read: list[str]) -> None:
    """A file that was written again, also with its former time; or a checksum that was not asked for before."""
    expected = expected_of(folder)
    assert expected["b.bin"] == {"bytes": 10, "crc32c": checksums.crc32c(b"\x01" * 10)}
    read.clear()
    assert checksums.find_damaged(folder, expected) is None and read == [*NAMES]
    read.clear()
    assert checksums.find_damaged(folder, expected) is None and not read
    times = (folder / "b.bin").stat()
    (folder / "b.bin").write_bytes(b"\x01" * 10)
    os.utime(folder / "b.bin", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert checksums.find_damaged(folder, expected) is None and read == ["b.bin"]
    read.clear()
    assert checksums.find_damaged(folder, expected) is None and not read  # the others are known as before
    other = expected | {"c.bin": {"bytes": 10, "crc32c": expected["c.bin"]["crc32c"] ^ 1}}
    assert checksums.find_damaged(folder, other) == "c.bin" and read == ["c.bin"]


def test_the_first_file_that_differs_is_named_and_not_noted(folder) -> None:
    expected = expected_of(folder)
    for change in ({"bytes": 9}, {"crc32c": 1}):
        wrong = expected | {name: expected[name] | change for name in NAMES[1:]}
        for _ in range(2):
            assert checksums.find_damaged(folder, wrong) == "b.bin" == checksums.first_difference(folder, wrong)
    assert checksums.find_damaged(folder, expected) is None


def test_a_folder_that_may_not_be_written_to_is_noted_in_the_cache_folder(folder, read, monkeypatch) -> None:
    write = storage.write

    def read_only(path: Path, contents: str) -> None:
        if folder in path.parents:
            raise PermissionError(13, os.strerror(13))
        write(path, contents)

    monkeypatch.setattr(storage, "write", read_only)
    expected = expected_of(folder)
    assert checksums.find_damaged(folder, expected) is None
    read.clear()
    assert checksums.find_damaged(folder, expected) is None and not read
    assert len([*storage.cache(checksums.FOLDER).iterdir()]) == 1 and not [*(folder / checksums.FOLDER).iterdir()]


def test_a_long_reading_is_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, lines = expected_of(folder), []
    for least, count in ((31, 0), (30, 1)):
        monkeypatch.setattr(checksums, "REPORTED_BYTES", least)
        assert checksums.find_damaged(folder, expected, lines.append) is None and len(lines) == count
        (folder / checksums.FOLDER / f"{os.uname().nodename}.json").unlink()
    assert "read and found sound" in lines[0]
