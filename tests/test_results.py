"""docs/results.md: every number stands in the record that its row names, beside the command that prints it."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.paths import ROOT
from tests.test_docs import anchors

PAGE = ROOT / "docs" / "results.md"
TEXT = PAGE.read_text(encoding="utf-8")
NUMBER = re.compile(r"(?<![\w.,-])\d+(?:,\d{3})*(?:\.\d+)?(?:e\+?\d+)?(?![\w])")


def tables() -> Iterator[list[list[str]]]:
    """The rows of each table of the page, the header first."""
    for table in re.findall(r"(?:^\|.*\n)+", TEXT, re.M):
        header, _, *rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in table.splitlines()]
        yield [header, *rows]


RECORDS = [row for header, *rows in tables() if header[-2:] == ["command", "record"] for row in rows]


def section(target: str) -> str:
    """The text of a file, or of the section of a page that a link leads to."""
    name, _, anchor = target.partition("#")
    text = (PAGE.parent / name).read_text(encoding="utf-8")
    if not anchor:
        return text
    assert anchor in anchors(PAGE.parent / name)
    lines, found = text.splitlines(), []
    for line in lines:
        if heading := re.match(r"(#+) (.+)", line):
            if re.sub(r"[^\w\- ]", "", heading[2].lower()).replace(" ", "-") == anchor:
                found = [len(heading[1])]
            elif found and len(heading[1]) <= found[0]:
                break
        if found:
            found.append(line)
    return "\n".join(found[1:])


@pytest.mark.parametrize("row", RECORDS, ids=lambda row: f"{row[0]}, {row[1]}")
def test_a_record_has_the_numbers_of_its_row_and_their_command(row: list[str]) -> None:
    *cells, command, record = row
    ((link,),) = [re.findall(r"\[(?:page|experiment)\]\(([^)]+)\)$", record)]
    text = section(link)
    missing = [number for number in NUMBER.findall(" | ".join(cells)) if number not in NUMBER.findall(text)]
    assert not missing
    assert cells[0] and any(NUMBER.search(cell) for cell in cells[1:])
    program = re.fullmatch(r"`(?:python (benchmarks/\w+\.py)|plmjax \w+ ([\w:]+))\b.*`", command)
    experiment, _, function = (program[2] or "").partition(":")
    assert program[1] in text if program[1] else experiment in text or Path(link).stem == experiment
    assert not function or function in text


def test_the_words_have_no_number_that_the_records_lack() -> None:
    first = TEXT[: TEXT.index("\n## ")]
    recorded = {number for row in RECORDS for number in NUMBER.findall(" | ".join(row[:-2]))}
    assert set(NUMBER.findall(re.sub(r"\]\([^)]*\)", "]", first))) <= recorded


def test_the_page_names_every_system_of_the_table() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = readme[readme.index("<!-- systems: begin -->") : readme.index("<!-- systems: end -->")]
    systems = {name.partition(",")[0] for name in re.findall(r"^\| \[([^\]]+)\]", rows, re.M)}
    assert len(systems) > 25
    assert {name for name in systems if name not in TEXT} == set()
