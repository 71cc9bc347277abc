"""The files of .github: they name commands, files, extras and Pythons that the repository has."""

import re
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import setuptools
import yaml

from tests.paths import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROGRAMS = {"codespell", "mkdocs", "pip", "pytest", "ruff", "venv"}
"""What a step may run: from the extras `test` and `docs`, installed by the job itself, or beside Python."""
ACTIONS = {"actions/checkout", "actions/setup-python"}


def jobs() -> Iterator:
    """Every job of every workflow, with both names as its own."""
    for file in WORKFLOWS:
        for name, job in yaml.safe_load(file.read_text(encoding="utf-8"))["jobs"].items():
            yield pytest.param(job, id=f"{file.stem}-{name}")


every_job = pytest.mark.parametrize("job", list(jobs()))


def pythons(job: dict) -> list[str]:
    """The Pythons of a job: those of its matrix, or its only one."""
    (asked,) = [step["with"]["python-version"] for step in job["steps"] if "setup-python" in step.get("uses", "")]
    found = job["strategy"]["matrix"]["python"] if asked == "${{ matrix.python }}" else [asked]
    assert all(isinstance(python, str) for python in found), "YAML reads 3.10 as 3.1 without quotes"
    return found


def commands(job: dict) -> list[list[str]]:
    """The commands of a job as words, for each of its Pythons; `python -m` is left out."""
    lines = [line for step in job["steps"] for line in step.get("run", "").splitlines()]
    filled = [line.replace("${{ matrix.python }}", python) for line in lines for python in pythons(job)]
    return [shlex.split(line.removeprefix("python -m ")) for line in filled]


@pytest.fixture(scope="module")
def extras() -> dict[str, list[str]]:
    found: dict = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(setuptools, "setup", found.update)
        runpy.run_path(str(ROOT / "setup.py"))
    return found["extras_require"]


@every_job
def test_a_job_runs_on_a_public_machine_with_known_actions(job: dict) -> None:
    assert job["runs-on"] == "ubuntu-latest"
    used = [step["uses"].split("@") for step in job["steps"] if "uses" in step]
    assert {name for name, _ in used} == ACTIONS and all(re.fullmatch(r"v\d+", version) for _, version in used)


@every_job
def test_the_commands_of_a_job_are_of_this_repository(job: dict, extras: dict[str, list[str]]) -> None:
    for program, *words in commands(job):
        assert program in PROGRAMS
        for word in words:
            assert not word.startswith(("/", "~")) and "${{" not in word, word
            for name in re.findall(r"\[(.*)\]", word if word.startswith(".") else ""):
                assert set(name.split(",")) <= extras.keys(), word
        if "-c" in words:
            assert (ROOT / words[words.index("-c") + 1]).is_file(), words
        if program == "pytest" and "-m" in words:
            markers = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
            assert all(f'"{marker}: ' in markers for marker in words[words.index("-m") + 1].split(" or "))


def test_every_python_is_tested_as_the_readme_tests(extras: dict[str, list[str]]) -> None:
    """With the extras of the README's command, and with its Pythons."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (installed,) = re.findall(r"<!-- test command -->\n```bash\n.*?('\.\[\S+\]').*?\n```", readme)
    first, last = re.search(r"Python (3\.\d+), .* or (3\.\d+)", readme).groups()
    named = [f"3.{minor}" for minor in range(int(first[2:]), int(last[2:]) + 1)]
    every = [job.values[0] for job in jobs()]
    whole = [job for job in every if ["pip", "install", shlex.split(installed)[0]] in commands(job)]
    quick = ["pytest", "-n", "auto"]
    assert any(pythons(job) == named and quick in commands(job) for job in whole)
    assert any(command[-3:] == ["slow or nightly", "-n", "auto"] for job in whole for command in commands(job))
    assert any(command[0] == "ruff" for job in every for command in commands(job))
    files = {"beam.txt", *(f"python-{python}.txt" for python in named)}
    assert {path.name for path in (ROOT / "constraints").iterdir()} == files


FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


@pytest.mark.parametrize("file", FORMS, ids=lambda file: file.stem)
def test_a_form_of_an_issue_has_what_github_asks_for(file: Path) -> None:
    form = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert form["name"] and form["description"] and form.keys() == {"name", "description", "labels", "body"}
    ids = [question["id"] for question in form["body"]]
    assert len(ids) == len(set(ids)) and all(question["attributes"]["label"] for question in form["body"])
    assert any(question.get("validations") == {"required": True} for question in form["body"])


def test_the_hooks_of_a_commit_are_the_programs_of_the_lint_job() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    hooks = {hook["id"].partition("-")[0] for repository in config["repos"] for hook in repository["hooks"]}
    (lint,) = [job.values[0] for job in jobs() if job.id == "tests-lint"]
    assert hooks == {command[0] for command in commands(lint)} - {"pip"}
