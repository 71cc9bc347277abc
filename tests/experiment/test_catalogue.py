"""Experiments by name: in a checkout, and in an installation that has nothing else beside it."""

import io
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from plmjax import experiment
from plmjax.commands import cli
from plmjax.errors import UserError
from plmjax.experiment import catalogue
from tests.paths import ROOT


def test_a_name_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert catalogue.find("bert_tiny") == (ROOT / "experiments" / "bert_tiny.py", "experiment")
    assert experiment.load("bert_base_4x4:lamb_4096").training.batch_size == 4096
    assert experiment.load("bert_tiny") == experiment.load(str(ROOT / "experiments" / "bert_tiny.py:experiment"))


def test_words_choose_from_the_list(fails, capsys) -> None:
    cli.run(["experiments", "bert", "TINY"])
    listed = re.findall(r"^  ([a-z]\S+)", capsys.readouterr().out, re.M)
    assert "bert_tiny" in listed and "albert_tiny" not in listed
    assert "found 'elecktra'; did you mean 'electra'?" in fails("experiments", "elecktra")
    assert "found 'electra 8x8 tiny'; name fewer words" in fails("experiments", "electra", "8x8", "tiny")


def test_the_list_names_what_can_be_loaded(tmp_path: Path, monkeypatch, capsys) -> None:
    """Each is loaded, written and read in test_record.py."""
    monkeypatch.chdir(tmp_path)
    cli.run(["experiments"])
    lines = capsys.readouterr().out.splitlines()
    listed = [line.split()[0] for line in lines if re.match("  [a-z]", line)]
    assert max(map(len, lines)) <= 80 and listed.index("bert_tiny") < listed.index("albert_base_8x8")
    functions = {f"{name}:{one}" for name in catalogue.names() for one in catalogue.functions(catalogue.find(name)[0])}
    assert {name if ":" in name else f"{name}:experiment" for name in listed} == functions
    assert str(ROOT / "experiments") in lines[-1]


REFERENCES = [
    ("bert_tny", "found none named 'bert_tny'; did you mean 'bert_tiny'?"),
    ("something_else", "found none named 'something_else'; plmjax experiments lists all of them."),
    ("finetune_glue", "found only cola, sst2, mrpc, stsb, "),
    ("bert_base_4x4:lamb", "found 'lamb'; did you mean 'lamb_4096'?"),
    ("somewhere/bert_tny.py", "found no file 'somewhere/bert_tny.py'; did you mean 'bert_tiny'?"),
    ("experiments/bert_tiny", "did you mean 'experiments/bert_tiny.py'?"),
    ("nowhere/x.py", "give the path of a Python file"),
    ("README.md", "found a file of another kind at 'README.md'"),
    ("docs", "found a folder at 'docs'"),
]
BROKEN = [
    (
        "import math\n\n\ndef experiment():\n    return maths.pi\n",
        "found NameError in broken.py, line 5: name 'maths' is",
    ),
    ("def experiment():\n    return 3\n", "to return a plmjax.experiment.Experiment, found int"),
    ("def experiment(:\n", "line 1"),
]


@pytest.mark.parametrize(("reference", "message"), REFERENCES)
def test_a_wrong_reference_is_answered_with_what_is_there(reference: str, message: str, monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(UserError) as raised:
        experiment.load(reference)
    assert message in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(("contents", "message"), BROKEN)
def test_a_broken_file_is_one_sentence(contents: str, message: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.py").write_text(contents)
    with pytest.raises(UserError) as raised:
        experiment.load("broken.py")
    assert message in str(raised.value) and "\n" not in str(raised.value) and "broken.py" in str(raised.value)


def test_an_older_python_is_named_before_any_requirement() -> None:
    program = "import runpy, sys; sys.version_info = (3, 10, 12); runpy.run_path('setup.py')"
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 1
    assert ran.stderr.startswith("Expected Python 3.11 or later for plmjax, found 3.10 at ")


def installed(folder: Path) -> Path:
    """A folder with what a wheel of the project installs."""
    for name in ("plmjax", "experiments", "tpu"):
        shutil.copytree(ROOT / name, folder / "project" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, folder / "project")
    build = "from setuptools import build_meta; import sys; build_meta.build_wheel(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", build, str(folder)], cwd=folder / "project", check=True, capture_output=True, timeout=300
    )
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site-packages")
    shutil.rmtree(folder / "project")
    return folder / "site-packages"


@pytest.mark.nightly
def test_a_wheel_brings_the_experiments_and_submits_a_folder_of_a_users_own(tmp_path: Path) -> None:
    """The hosts get the files of the folder, and a wheel of the installation."""
    library, folder = installed(tmp_path / "wheel"), tmp_path / "mine"
    folder.mkdir()
    (folder / "mine.py").write_text("from plmjax.experiments.bert_tiny import experiment\n")
    environment = os.environ | {"PYTHONPATH": str(library), "PYTHONSAFEPATH": "1"}

    def python(*arguments: str) -> bytes:
        ran = subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, capture_output=True)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    program = "from plmjax import experiment as e; print(e.load('bert_base_4x4:lamb_4096').training.batch_size)"
    assert python("-c", program) == b"4096\n"
    *_, last = python("-m", "plmjax", "experiments").decode().splitlines()
    assert str(library / "plmjax" / "experiments") in last
    assert {file.name for file in (library / "plmjax" / "experiments").glob("*.py")} == {
        "__init__.py",
        *(file.name for file in (ROOT / "experiments").glob("*.py")),
    }
    command = (
        "-m tpu submit mine.py --project p --zone z --bucket gs://b --accelerator v5e --topology 4x4 --dry_run "
        "--verbose --data.path gs://b/text"
    )
    said = python(*command.split()).decode().splitlines()
    packed = [line.split()[1] for line in said if line.startswith("pack ")]
    assert packed[1:] == [".plmjax/versions.txt", "mine.py"]
    assert f"LIBRARY='./{packed[0]}[tpu]'" in said
    program = (
        "import importlib.metadata as m, sys; from tpu import package\n"
        "sys.stdout.buffer.write(package.wheel(m.distribution('plmjax'))[1])"
    )
    with zipfile.ZipFile(io.BytesIO(python("-c", program))) as archive:
        assert archive.testzip() is None
        names = {path.relative_to(library).as_posix() for path in library.rglob("*") if path.is_file()}
        assert set(archive.namelist()) == {name for name in names if "__pycache__" not in name}
