"""README.md, CONTRIBUTING.md and docs/: links lead to what is there, and commands are commands of this version.

Here commands are parsed, their experiments loaded and the options set, but nothing is computed: other tests run the
commands of README.md, finetuning.md, contextual_vectors.md, word_vectors.md and tpu.md.
"""

import ast
import functools
import inspect
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from plmjax import experiment as experiments
from plmjax.commands import cli
from plmjax.errors import UserError
from plmjax.files import storage
from tests.paths import ROOT
from tpu import __main__ as submission

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
PYTHON = ("python", "python3", ".venv/bin/python")
INSTALLED = (
    "jupyter",
    "pip",
    "pre-commit",
    "spacy",
    *(f".venv/bin/{name}" for name in ("mkdocs", "pip", "pre-commit", "ruff")),
)
"""Programs of others, whose options are theirs."""
load = functools.cache(experiments.load)


def name(page: Path) -> str:
    """The path of a page without its suffix, as pytest shows it."""
    return page.relative_to(DOCS if page.is_relative_to(DOCS) else ROOT).with_suffix("").as_posix()


def blocks(page: Path) -> list[str]:
    """The commands of a page in blocks of code, fenced or indented."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    fenced = [line for language, body in FENCE.findall(text) if language == "bash" for line in body.splitlines()]
    indented = re.findall(r"^ {4}([^\s-].*)$", FENCE.sub("", text), re.M)  # with a dash, it is an item of a list
    return [part for line in [*fenced, *indented] if line.strip() for part in line.split(" && ")]


def in_sentences(page: Path) -> list[str]:
    """The commands of a page within sentences, which may leave out what the sentence is not about."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    text = re.sub(r"^ {4}.*$", "", text, flags=re.M)
    found = re.findall(r"`((?:plmjax|python) [^`]+)`", text)
    return [" ".join(command.split()).replace("EXPERIMENT", "bert_tiny") for command in found if "..." not in command]


def dry(verb: Callable) -> Callable:
    """A command that sets the options of its experiment and does nothing else."""

    @functools.wraps(verb)
    def told(*positional: object, **named: object) -> None:
        given = inspect.signature(verb).bind(*positional, **named).arguments
        if isinstance(given.get("experiment"), str):
            run = load(given["experiment"])
            if overrides := given.get("overrides"):
                experiments.override(run, overrides)

    return told


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Parses a command; raises UserError for a mistake in it, AssertionError where what it names is not there."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(storage, "path", Path)  # a bucket is not asked for
    chosen = cli.verb
    monkeypatch.setattr(cli, "verb", lambda name: dry(chosen(name)))
    monkeypatch.setattr(submission, "VERBS", {name: dry(verb) for name, verb in submission.VERBS.items()})
    monkeypatch.setattr(submission, "submit", submission.VERBS["submit"])

    def parse(command: str) -> None:
        alone = re.sub(r"^taskset -c \S+ ", "", command.removesuffix(" ..."))
        program, *words = shlex.split(alone, comments=True)
        if program in ("plmjax", ".venv/bin/plmjax"):
            try:
                cli.run(words)
            except SystemExit as stop:  # after --help
                assert not stop.code
        elif program in PYTHON:
            of_python(words)
        else:
            assert program in INSTALLED, command

    return parse


def of_python(words: list[str]) -> None:
    """Checks the arguments of Python: a module of this project or of others, or a file with its options."""
    match words:
        case ["-m", "tpu", *rest]:
            submission.run(rest)
        case ["-m", "pytest", *rest]:
            assert all((ROOT / word).exists() for word in rest if word.startswith("tests/"))
        case ["-m", "venv", _] | ["-m", "venv", "--upgrade-deps", _] | ["-m", "build", "--outdir", _, _]:
            pass
        case ["-c", program]:
            ast.parse(program)
        case [file, *options]:
            known = options_of(ROOT / file)
            unknown = {option.partition("=")[0] for option in options if option.startswith("--")} - known
            assert not unknown, f"{file} has no {unknown}"


def options_of(file: Path) -> set[str]:
    """The options of a program: of every word in it and in the files beside it that it imports."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    beside = {
        alias.name for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names
    }
    beside |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    files = [path for path in file.parent.glob("*.py") if path == file or path.stem in beside]
    found = set()
    for path in files:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "add_argument":
                match call.args[0]:
                    case ast.Constant(value=str(option)):
                        found.add(option)
                    case ast.JoinedStr():  # f"--{name}" of every name in the file
                        names = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
                        names |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.keyword)}
                        found |= {f"--{name}" for name in names if isinstance(name, str) and name.isidentifier()}
    return found


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = [re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", heading) for heading in re.findall(r"^#+ (.+)$", text, re.M)]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text(encoding="utf-8"))):
        if link.startswith("http"):
            continue
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.nightly if page == DOCS / "finetuning.md" else ())
        for page in PAGES
        if page != DOCS / "extending.md"  # whose commands need its files: test_extending.py
    ],
    ids=name,
)
def test_commands_in_blocks_are_whole(page: Path, parsed: Callable[[str], None]) -> None:
    for command in blocks(page):
        try:
            parsed(command)
        except UserError as error:
            pytest.fail(f"{command}\n{error}")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_in_sentences_have_their_verbs_and_options(page: Path, parsed: Callable[[str], None]) -> None:
    for command in in_sentences(page):
        try:
            parsed(command)
        except UserError as error:
            assert str(error).startswith("Missing from"), f"{command}\n{error}"


@pytest.mark.parametrize("page", [page for page in PAGES if page.is_relative_to(DOCS)], ids=name)
def test_tables_fit_a_narrow_window(page: Path) -> None:
    rules = re.findall(r"^\|[ :|-]+\|$", FENCE.sub("", page.read_text(encoding="utf-8")), re.M)
    assert [rule for rule in rules if rule.count("|") > 7] == [], "more than six columns: split the table, or turn it"


@pytest.mark.parametrize(
    "command",
    [
        "plmjax pretrian bert_tiny",
        "plmjax pretrain experiments/bert_tny.py",
        "plmjax pretrain bert_tiny --data.inputs my_text/",
        "plmjax pretrain bert_tiny --training.steps many",
        "plmjax evaluate runs/bert_tiny --tsk blimp",
        "plmjax plan bert_tiny --topologies v3:8x8",
        "python -m tpu submit experiments/bert_base_4x4.py --bukket gs://my-bucket",
        "python benchmarks/bert_step.py",
        "python benchmarks/steps.py bert --repeat 4",
        "tensorbord --logdir runs",
    ],
)
def test_a_wrong_command_is_found(command: str, parsed: Callable[[str], None]) -> None:
    with pytest.raises((UserError, AssertionError, FileNotFoundError)):
        parsed(command)


def test_pages_have_commands() -> None:
    assert sum(len(blocks(page)) for page in PAGES) > 120 and sum(len(in_sentences(page)) for page in PAGES) > 30
