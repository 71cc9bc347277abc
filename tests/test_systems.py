"""README.md's table of systems and docs/systems.md: what they say is there, and every mark has its proof."""

import ast
import functools
import importlib.util
import re
import sys
from pathlib import Path

import pytest

from plmjax.commands import cli
from plmjax.experiment import catalogue
from plmjax.interop import huggingface, libraries
from tests.families import FAMILIES, STEPS

FILE = Path(__file__).parents[1] / "docs" / "systems.py"
SPECIFICATION = importlib.util.spec_from_file_location("systems_page", FILE)
systems = sys.modules["systems_page"] = importlib.util.module_from_spec(SPECIFICATION)
SPECIFICATION.loader.exec_module(systems)
ROOT = systems.ROOT
FACTS = systems.load()
PROOFS = [*FACTS.common, *(proof for system in FACTS.system for proof in system.proof)]
SHOWN = sorted({shown for proof in PROOFS for shown in proof.by})
RECORDS = {
    "pretrained": r"\bResult\b(?! to expect)",
    "fine-tuned": r"\bResult\b(?! to expect)",
    "planned": r"(?m)^Plans?\b",
}
"""Mark -> what the docstring of an experiment says that is a record of it."""


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def constant(path: Path, name: str) -> set[str]:
    """The keys of a dict of constants in a file, which is not imported."""
    (found,) = [
        node.value
        for node in tree(path).body
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [name]
    ]
    return set(ast.literal_eval(found))


def rows(path: str) -> set[str]:
    """The rows that the tests of a file are parametrized by: the first words of their ids."""
    if path == "tests/test_experiments.py":
        return constant(ROOT / path, "PUBLISHED")
    return set(STEPS if path == "tests/training/test_step.py" else FAMILIES)


def record(name: str) -> str:
    """The docstring of an experiment file."""
    return ast.get_docstring(tree(ROOT / name)) or ""


def marked_in_table() -> dict[str, set[str]]:
    """System -> the columns that have a mark, in the table of docs/systems.md."""
    text = systems.PAGE.read_text(encoding="utf-8")
    header, _, *lines = text.partition(systems.BEGIN)[2].partition("\n## ")[0].strip().splitlines()
    names = [cell.strip().replace("-<br>", "-" if "fine" in cell else "") for cell in header.split("|")[2:-1]]
    found = {}
    for line in lines:
        system, *cells = [cell.strip() for cell in line.split("|")[1:-1]]
        found[re.match(r"\[(.+?)\]", system)[1]] = {name for name, cell in zip(names, cells, strict=True) if cell}
    return found


def proved_on_page() -> dict[str, dict[str, list[str]]]:
    """System -> mark -> what shows it, as docs/systems.md has them."""
    text = systems.PAGE.read_text(encoding="utf-8").partition(systems.BEGIN)[2]
    found: dict[str, dict[str, list[str]]] = {}
    for section in text.split("\n## ")[2:]:
        marks = found.setdefault(section.splitlines()[0], {})
        for mark, items in re.findall(r"^- \*\*([\w-]+)\*\*: .+\n((?:    - .+\n)+)", section, re.M):
            marks.setdefault(mark, []).extend(items.splitlines())
    return found


def test_both_pages_are_those_of_the_facts() -> None:
    for page, text in systems.pages().items():
        assert page.read_text(encoding="utf-8") == text, f"run python docs/systems.py: {page.name} is another"


def test_every_mark_of_the_table_has_its_proof_on_the_page() -> None:
    proved = {name: set(marks) for name, marks in proved_on_page().items()}
    assert marked_in_table() == proved
    assert set(proved) == {system.name for system in FACTS.system} and len(proved) == len(FACTS.system)


def is_there(shown: str) -> bool:
    """Tell if a file has the test, and the test the row; or if there is such an experiment or page."""
    path, _, test = shown.partition("::")
    if not test:
        return (ROOT / path.partition("#")[0]).is_file()
    name, _, row = test.removesuffix("]").partition("[")
    found = [node for node in tree(ROOT / path).body if isinstance(node, ast.FunctionDef) and node.name == name]
    return len(found) == 1 and (not row or (bool(found[0].decorator_list) and row in rows(path)))


def test_what_shows_a_claim_is_there() -> None:
    """test_docs.py checks the sections of pages."""
    assert len(SHOWN) > 100 and [shown for shown in SHOWN if not is_there(shown)] == []
    assert not is_there("tests/test_systems.py::test_nothing")
    assert not is_there("tests/systems/test_parity.py::test_outputs_and_gradients_equal_the_reference[nobody]")


@pytest.mark.parametrize("system", FACTS.system, ids=lambda system: system.name)
def test_each_mark_is_shown_by_what_can_show_it(system: "systems.System") -> None:
    """Parity and checkpoints by tests, all else by the record of a run or a plan; and the command is there."""
    for proof in system.proof:
        tests = [shown for shown in proof.by if "::" in shown]
        records = [shown for shown in proof.by if "::" not in shown]
        if proof.mark in RECORDS:
            assert records, proof.claim
            for name in records:
                assert name.startswith("docs/") or re.search(RECORDS[proof.mark], record(name)), name
        elif proof.mark:
            assert tests, proof.claim
    verb, reference = system.command.split()
    file, function = catalogue.find(reference)
    assert verb in cli.OF_EXPERIMENTS and function in catalogue.functions(file)


def test_every_system_and_every_adapter_is_in_the_table() -> None:
    for folder, listed, shared in (
        ("models", [name for system in FACTS.system for name in system.models], FACTS.shared_models),
        ("interop", [name for system in FACTS.system for name in system.adapters], FACTS.shared_interop),
    ):
        room = ROOT / "plmjax" / folder
        files = {file.relative_to(room).with_suffix("").as_posix() for file in room.rglob("[!_]*.py")}
        assert files == {*listed, *shared} and not set(listed) & set(shared)
    assert {system.row for system in FACTS.system} - {""} == set(FAMILIES)
    with_row = {system.row for system in FACTS.system if any(proof.mark == "transformers" for proof in system.proof)}
    assert with_row == {name for name, row in FAMILIES.items() if row.adapter in huggingface.ADAPTERS.values()}
    assert len(with_row) == len(huggingface.ADAPTERS)
    loaded = {library.load.__module__.rpartition(".")[2] for library in libraries.LIBRARIES.values() if library.load}
    assert loaded - {*FACTS.shared_interop} <= {name for system in FACTS.system for name in system.adapters}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"claim": "Equal.", "by": (), "mark": "parity"}, "what shows it"),
        ({"claim": "", "by": ("tests/test_x.py::test_y",)}, "Expected a claim"),
        ({"claim": "Equal.", "by": ("tests/test_x.py::test_y",), "mark": "equal"}, "found the mark 'equal'"),
    ],
)
def test_a_mark_without_a_proof_is_refused(fields: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        systems.Proof(**fields)


@pytest.mark.parametrize("text", ["", systems.BEGIN, systems.END + systems.BEGIN, (systems.BEGIN + systems.END) * 2])
def test_a_page_without_its_marks_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="once each"):
        systems.between(text, "new")
