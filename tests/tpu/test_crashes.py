"""The files of a crash, on the machine and in the bucket."""

import os
from pathlib import Path

from tpu import crashes
from tpu.bucket import Bucket


def test_each_start_has_a_folder_and_the_last_three_stay(tmp_path: Path) -> None:
    made = []
    for number in range(5):
        made.append(crashes.folder(tmp_path / "logs"))
        (made[-1] / "stderr").write_text(str(number))
    assert sorted((tmp_path / "logs").iterdir()) == made[-3:]


def test_the_ends_of_the_newest_files_are_copied(tmp_path: Path, bucket: Path) -> None:
    folder = crashes.folder(tmp_path / "logs")
    for number in range(crashes.FILES + 3):
        (folder / f"tpu_driver.{number}").write_text(f"{number}\n")
        os.utime(folder / f"tpu_driver.{number}", (number, number))
    (folder / "tpu_driver.INFO").symlink_to(folder / "tpu_driver.12")
    (folder / "empty").touch()
    (folder / "of a process").mkdir()
    (folder / "of a process" / "stderr").write_bytes(b"first" + b"x" * crashes.LARGEST + b"last")
    names = crashes.copy(folder, Bucket(str(bucket)), "crashes/0/now")
    assert names == ["of a process/stderr", *(f"tpu_driver.{number}" for number in range(12, 3, -1))]
    assert (bucket / "crashes" / "0" / "now" / "tpu_driver.7").read_text() == "7\n"
    contents = (bucket / "crashes" / "0" / "now" / "of a process" / "stderr").read_bytes()
    assert len(contents) == crashes.LARGEST and contents.endswith(b"xlast")
