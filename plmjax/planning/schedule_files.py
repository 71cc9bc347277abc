"""The files in which libtpu writes the schedules of the programs that it compiles (`topologies.schedules`)."""

import dataclasses
import re
from pathlib import Path

from plmjax.planning import schedules, top_level
from plmjax.planning.schedules import Schedule


def read(folder: Path) -> dict[str, Schedule]:
    """Return instruction -> its schedule, for the one program whose files are in the folder. The files are removed."""
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
    """Remove all files, so that the next program does not find those of another one."""
    for path in folder.iterdir():
        path.unlink()
