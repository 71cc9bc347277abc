"""Experiments by name: in a checkout, and in an installation that has nothing else beside it."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from plmjax import experiment, experiments
from plmjax.commands import cli
from plmjax.errors import UserError
from plmjax.experiment import catalogue
from plmjax.models.bert import BertConfig
from tests.paths import ROOT


def test_a_name_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert catalogue.find("bert_tiny") == (ROOT / "experiments" / "bert_tiny.py", "experiment")
    assert experiment.load("bert_base_4x4:lamb_4096").training.batch_size == 4096
    assert experiment.load("bert_tiny") == experiment.load(str(ROOT / "experiments" / "bert_tiny.py:experiment"))


@pytest.mark.parametrize(
    ("words", "found", "absent"),
    [("bert TINY", "bert_tiny", "albert_tiny"), ("led", "summarize_long:tiny", "cvt"), ("Vaswani", "", "")],
)
def test_words_choose_from_the_list(words: str, found: str, absent: str, capsys) -> None:
    cli.run(["experiments", *words.split()])
    listed = re.findall(r"^  ([a-z]\S+)", capsys.readouterr().out, re.M)
    assert listed and (not found or found in listed) and absent not in listed


def test_words_of_no_experiment_are_told(fails) -> None:
    assert "found 'elecktra'; did you mean 'electra'?" in fails("experiments", "elecktra")
    assert "found 'electra 8x8 tiny'; name fewer words" in fails("experiments", "electra", "8x8", "tiny")


def test_the_list_names_what_can_be_loaded(tmp_path: Path, monkeypatch, capsys) -> None:
    """Each is loaded, written and read in test_record.py."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    cli.run(["experiments"])
    lines = capsys.readouterr().out.splitlines()
    listed = [line.split()[0] for line in lines if re.match("  [a-z]", line)]
    assert max(map(len, lines)) <= 80 and listed.index("bert_tiny") < listed.index("albert_base_8x8")
    listed = {*listed}
    assert {"bert_tiny", "bert_base_4x4:lamb_4096", "finetune_glue:mrpc"} <= listed
    functions = {f"{name}:{one}" for name in catalogue.names() for one in catalogue.functions(catalogue.find(name)[0])}
    assert {name if ":" in name else f"{name}:experiment" for name in listed} == functions
    assert "  bert_large_8x8            336 million parameters on 64 chips." in lines
    assert str(ROOT / "experiments") in lines[-1]


REFERENCES = [
    ("bert_tny", "found none named 'bert_tny'; did you mean 'bert_tiny'?"),
    ("something_else", "found none named 'something_else'; plmjax experiments lists all of them."),
    ("finetune_glue", "found only cola, sst2, mrpc, stsb, "),
    ("bert_base_4x4:lamb", "found 'lamb'; did you mean 'lamb_4096'?"),
    ("somewhere/bert_tny.py", "found no file 'somewhere/bert_tny.py'; did you mean 'bert_tiny'?"),
    ("experiments/bert_tny.py", "found no file 'experiments/bert_tny.py'; did you mean 'experiments/bert_tiny.py'?"),
    ("experiments/bert_tiny", "did you mean 'experiments/bert_tiny.py'?"),
    ("nowhere/x.py", "give the path of a Python file"),
    ("tests/third_party/experiments.py:recurent", "found 'recurent'; did you mean 'recurrent'?"),
    ("tests/third_party/experiments.py", "Expected a function 'experiment'"),
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
    ("import no_such_module\n", "no_such_module"),
    ("def experiment(size):\n    return size\n", "size"),
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


def test_classes_of_a_named_file_are_found_again_elsewhere(tmp_path: Path, monkeypatch) -> None:
    """experiment.json names them by the package, so that another command in another folder can import them."""
    shipped, user = tmp_path / "shipped", tmp_path / "user"
    shipped.mkdir(), user.mkdir()
    (shipped / "wide.py").write_text(
        "import dataclasses\nfrom plmjax.experiments import bert_tiny\nfrom plmjax.models.bert import BertConfig\n\n"
        "@dataclasses.dataclass(frozen=True)\nclass WideConfig(BertConfig):\n    width: int = 3\n\n"
        "def experiment():\n    return dataclasses.replace(bert_tiny.experiment(), model=WideConfig(vocab_size=4096))\n"
    )
    shutil.copy(ROOT / "experiments" / "bert_tiny.py", shipped)
    monkeypatch.setattr(experiments, "FOLDER", shipped)
    monkeypatch.setattr(experiments, "__path__", [str(shipped)])
    monkeypatch.chdir(user)
    run = experiment.load("wide")
    assert isinstance(run.model, BertConfig) and run.model.width == 3
    written = experiment.to_dict(run)
    assert written["model"]["type"] == "plmjax.experiments.wide:WideConfig"
    del sys.modules["plmjax.experiments.wide"]
    again = experiment.from_dict(json.loads(json.dumps(written)))
    assert again.model.width == 3 and experiment.to_dict(again) == written


def test_an_older_python_is_named_before_any_requirement() -> None:
    program = "import runpy, sys; sys.version_info = (3, 10, 12); runpy.run_path('setup.py')"
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 1
    assert ran.stderr.startswith("Expected Python 3.11 or later for plmjax, found 3.10 at ")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what a wheel of the project installs."""
    folder = tmp_path_factory.mktemp("wheel")
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
def test_a_wheel_brings_the_experiments(installed: Path, tmp_path: Path) -> None:
    program = (
        "from plmjax import experiment\nfrom plmjax.commands import cli\n"
        "run = experiment.load('bert_base_4x4:lamb_4096')\n"
        "print(run.training.batch_size)\n"
        "cli.run(['experiments'])\n"
    )
    environment = os.environ | {"PYTHONPATH": str(installed), "PYTHONSAFEPATH": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert lines[0] == "4096"
    assert [line for line in lines if line.split()[:1] == ["bert_tiny"]]
    assert str(installed / "plmjax" / "experiments") in lines[-1]
    assert {file.name for file in (installed / "plmjax" / "experiments").glob("*.py")} == {
        "__init__.py",
        *(file.name for file in (ROOT / "experiments").glob("*.py")),
    }


@pytest.mark.nightly
def test_a_wheel_submits_a_folder_of_a_users_own(installed: Path, tmp_path: Path) -> None:
    """The hosts get the files of the folder, and a wheel of the installation."""
    (tmp_path / "mine.py").write_text("from plmjax.experiments.bert_tiny import experiment\n")
    command = (
        "-m tpu submit mine.py --project p --zone z --bucket gs://b --accelerator v5e --topology 4x4 --dry_run "
        "--verbose --data.path gs://b/text"
    )
    environment = os.environ | {"PYTHONPATH": str(installed), "PYTHONSAFEPATH": "1"}
    ran = subprocess.run(
        [sys.executable, *command.split()], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    packed = [line.split()[1] for line in ran.stdout.splitlines() if line.startswith("pack ")]
    assert packed[1:] == [".plmjax/versions.txt", "mine.py"]
    assert f"LIBRARY='./{packed[0]}[tpu]'" in ran.stdout.splitlines()
    program = (
        "import importlib.metadata as m, sys; from tpu import package\n"
        "sys.stdout.buffer.write(package.wheel(m.distribution('plmjax'))[1])"
    )
    made = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True).stdout
    with zipfile.ZipFile(io.BytesIO(made)) as archive:
        assert archive.testzip() is None
        names = {path.relative_to(installed).as_posix() for path in installed.rglob("*") if path.is_file()}
        assert set(archive.namelist()) == {name for name in names if "__pycache__" not in name}
