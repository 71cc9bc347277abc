"""The files in which libtpu writes the schedules of the programs that it compiles (`topologies.schedules`)."""

import dataclasses
import re
from pathlib import Path

from plmjax.planning import schedules, top_level
from plmjax.planning.schedules import Schedule


def read(folder: Path) -> dict[str, Schedule]:
    """Return a dict from instruction to schedule for the program whose files are in the folder. Remove the files."""
    found: dict[str, Schedule] = {}
    before: dict[str, int] = {}
    for path in sorted(folder.iterdir()):
        name = re.fullmatch(r"\d+-(.+)-\d+-final_bundles\.txt", path.name)
        if not name or name[1].endswith("-schedule-analysis"):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        if name[1] == "TLP":
            before = top_level.between_calls(text)
        else:
            found[name[1]] = schedules.parse(text)
    clear(folder)
    for name, cycles in before.items():
        found[name] = dataclasses.replace(found.get(name, Schedule(None)), before=cycles)
    return found


def clear(folder: Path) -> None:
    """Remove all files, so that they are not taken for those of the next program."""
    for path in folder.iterdir():
        path.unlink()
