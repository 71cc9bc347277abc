"""Writes the tables of systems in README.md and docs/systems.md from the facts in docs/systems.toml.

    python docs/systems.py

Only the text between two marks changes, `<!-- systems: begin -->` and `<!-- systems: end -->`. tests/test_systems.py
checks the facts, and that both pages are as this program writes them.
"""

import dataclasses
import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
README, PAGE = ROOT / "README.md", ROOT / "docs" / "systems.md"
MARKS = {
    "parity": "parity",
    "pretrained": "pre-<br>trained",
    "fine-tuned": "fine-<br>tuned",
    "transformers": "trans-<br>formers",
    "planned": "planned",
}
"""Mark -> the heading of its column, broken so that the columns are narrow."""
BEGIN, END = "<!-- systems: begin -->", "<!-- systems: end -->"


@dataclasses.dataclass(frozen=True)
class Proof:
    """A claim, the column that it marks, if any, and the tests and records that show it."""

    claim: str
    by: tuple[str, ...]
    mark: str = ""

    def __post_init__(self) -> None:
        if not self.claim or not self.by:
            raise ValueError(f"Expected a claim and what shows it, found {self.claim!r} and {list(self.by)}.")
        if self.mark not in ("", *MARKS):
            raise ValueError(f"Expected one of {', '.join(MARKS)}, found the mark {self.mark!r} of {self.claim!r}.")


@dataclasses.dataclass(frozen=True)
class System:
    """A row of the table and a section of the page; docs/systems.toml says what each field is."""

    name: str
    year: int
    nature: str
    command: str
    page: str
    proof: tuple[Proof, ...]
    missing: tuple[str, ...]
    models: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    row: str = ""

    def cell(self, mark: str) -> str:
        """The cell of a column."""
        return "✓" if any(proof.mark == mark for proof in self.proof) else ""


@dataclasses.dataclass(frozen=True)
class Facts:
    """All of docs/systems.toml."""

    system: tuple[System, ...]
    common: tuple[Proof, ...]
    shared_models: tuple[str, ...]
    shared_interop: tuple[str, ...]


def load() -> Facts:
    """The facts.

    Raises:
        TypeError: a field that is unknown or absent.
        ValueError: a mark that is no column, or a claim that nothing shows.
    """
    found = tomllib.loads((ROOT / "docs" / "systems.toml").read_text(encoding="utf-8"))
    for system in found["system"]:
        system["proof"] = tuple(_made(Proof, proof) for proof in system["proof"])
    systems = tuple(_made(System, system) for system in found.pop("system"))
    common = tuple(_made(Proof, proof) for proof in found.pop("common"))
    return _made(Facts, found | {"system": systems, "common": common})


def _made(kind: type, fields: dict[str, Any]) -> Any:
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()})


def commands(facts: Facts) -> str:
    """The table of README.md: a short row for each system."""
    lines = ["| system | | `plmjax` |", "|---|---|---|"]
    for system in facts.system:
        lines.append(f"| [{system.name}](docs/{system.page}), {system.year} | {system.nature} | `{system.command}` |")
    return "\n".join(lines)


def table(facts: Facts) -> str:
    """The table of docs/systems.md: the marks of each system."""
    lines = [f"| system | {' | '.join(MARKS.values())} |", f"|---|{':-:|' * len(MARKS)}"]
    for system in facts.system:
        anchor = re.sub(r"[^\w -]", "", system.name.lower()).replace(" ", "-")
        lines.append(f"| [{system.name}](#{anchor}) | {' | '.join(map(system.cell, MARKS))} |")
    return "\n".join(lines)


def sections(facts: Facts) -> str:
    """The sections of docs/systems.md: what all systems of the tests' table have in common, then each system."""
    rows = [system.name for system in facts.system if system.row]
    text = [
        "## In common",
        f"{', '.join(rows[:-1])} and {rows[-1]} have rows in tests/families. Each of these tests holds for all of them "
        "that it applies to:",
        "\n".join(_item(proof) for proof in facts.common),
    ]
    for system in facts.system:
        text += [
            f"## {system.name}",
            _facts_of(system),
            "\n".join(_item(proof) for proof in sorted(system.proof, key=_column)),
        ]
        if system.missing:
            text.append("Falls short:\n\n" + "\n".join(f"- {sentence}" for sentence in system.missing))
    return "\n\n".join(text)


def _facts_of(system: System) -> str:
    """Year, nature, command and files of a system."""
    files = [f"plmjax/models/{name}.py" for name in system.models]
    files += [f"plmjax/interop/{name}.py" for name in system.adapters]
    links = ", ".join(f"[{file}](../{file})" for file in files)
    told = f"{system.year}, {system.nature}. `plmjax {system.command}`, [page]({system.page})"
    return f"{told}; {links}." if links else f"{told}."


def _column(proof: Proof) -> int:
    return [*MARKS, ""].index(proof.mark)


def _item(proof: Proof) -> str:
    """One proof as an item of a list; the rows of the same test stand together."""
    rows: dict[str, list[str]] = {}
    for shown in proof.by:
        name, row = re.fullmatch(r"([^\[]+)(?:\[(.+)\])?", shown).groups()
        rows.setdefault(name, []).extend([row] if row else [])
    shown = [_shown(name) + "".join(f", `{row}`" for row in found) for name, found in rows.items()]
    mark = f"**{proof.mark}**: " if proof.mark else ""
    # Python-Markdown, which the site is built with, takes an item for a nested one from four spaces on.
    return "\n".join([f"- {mark}{proof.claim}", *(f"    - {one}" for one in shown)])


def _shown(name: str) -> str:
    """A test by its name; a record or a page as a link."""
    if "::" in name:
        return f"`{name}`"
    target = name.removeprefix("docs/") if name.startswith("docs/") else f"../{name}"
    return f"[{name}]({target})"


def between(text: str, new: str) -> str:
    """The text with other lines between the two marks.

    Raises:
        ValueError: the marks are not there, once each and in this order.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in after:
        raise ValueError(f"Expected {BEGIN} and then {END}, once each; write them again.")
    return f"{before}{BEGIN}\n{new}\n{END}{after}"


def pages() -> dict[Path, str]:
    """Page -> its text as the facts have it."""
    facts = load()
    made = {README: commands(facts), PAGE: f"{table(facts)}\n\n{sections(facts)}"}
    return {page: between(page.read_text(encoding="utf-8"), new) for page, new in made.items()}


if __name__ == "__main__":
    for page, text in pages().items():
        page.write_text(text, encoding="utf-8")
