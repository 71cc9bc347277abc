"""experiment.json: read as it was written, and refused in one sentence where somebody changed it."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest

from plmjax import experiment, experiments
from plmjax.data.cooccurrence import Counting
from plmjax.errors import UserError
from plmjax.experiment import Checkpoint, Data, Phase, Tokenizer, catalogue
from tests.paths import ROOT
from tests.third_party import experiments as strangers

MESH = {"type": "plmjax.experiment.settings:Mesh"}
RUNS = [
    f"{path}:{function}"
    for path in (experiments.FOLDER / f"{name}.py" for name in catalogue.names())
    for function in catalogue.functions(path)
]
FOREIGN = "Expected an experiment that plmjax wrote"
WRONG: dict[str, tuple[str, Any, str]] = {
    "a group that is text": ("checkpoint", "often", "Expected Experiment.checkpoint of type Checkpoint"),
    "a group of another class": ("training", MESH, "Experiment.training of type"),
    "a number that is text": ("training.steps", "60", "Expected Training.steps of type int .*, found '60'"),
    "a whole number with a fraction": ("training.steps", 60.5, "Training.steps of type int"),
    "a number that is true": ("training.batch_size", True, "Training.batch_size of type int"),
    "a list of numbers": ("data.input", [1], r"input of type .*, found \(1,\)"),
    "no class": ("model", {}, "found: no 'type'; name another run"),
    "a class that is gone": ("model.type", "gone.models:Lost", "'gone.models:Lost'"),
    "a field that does not exist": ("training.stepps", 1, "found 'stepps'; did you mean 'steps'?"),
    "nested too deeply": ("data.input", None, "nested too deeply"),
}  # fmt: skip


@pytest.mark.parametrize("field, value, sentence", WRONG.values(), ids=WRONG)
def test_a_changed_experiment_is_one_sentence_that_names_the_file(
    field: str, value: Any, sentence: str, tmp_path: Path
) -> None:
    record = experiment.to_dict(experiment.load("bert_tiny"))
    *groups, name = field.split(".")
    place = record
    for group in groups:
        place = place[group]
    place[name] = value
    text = json.dumps(record)
    refused(tmp_path, text.replace("null", "[" * 50_000 + "]" * 50_000) if value is None else text, sentence)


def refused(folder: Path, text: str, sentence: str) -> None:
    file = folder / "experiment.json"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match=sentence) as raised:
        experiment.read(file)
    assert str(file) in str(raised.value) and "\n" not in str(raised.value)


def test_a_file_that_is_no_experiment_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"Expected experiment\.json in .*, found none"):
        experiment.read(tmp_path / "experiment.json")
    for text in (json.dumps(experiment.to_dict(experiment.load("bert_tiny")))[:-20], "[]", "\x00\xff"):
        refused(tmp_path, text, FOREIGN)


def test_every_experiment_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Classes of a user's own file and infinity too. Every prefix of a free field is one of some experiment."""
    names: set[str] = set()
    for name in (*RUNS, *(f"{ROOT}/tests/third_party/experiments.py:{own}" for own in ("bert", "gpt2", "recurrent"))):
        run = experiment.load(name)
        experiment.write(run, tmp_path / "experiment.json")
        assert experiment.read(tmp_path / "experiment.json") == run
        names |= experiment.flatten(run).keys()
    run = experiment.override(experiment.load("t5_mixture"), ["--data.temperature", "inf"])
    experiment.write(run, tmp_path / "experiment.json")
    assert experiment.read(tmp_path / "experiment.json") == run
    assert all(any(name.startswith(free) for name in names) for free in experiment.FREE)


def test_nothing_is_imported_because_a_file_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A class of a user's own file is found once that file has been loaded, and not before; nor is any other thing."""
    file = tmp_path / "mine_alone.py"
    file.write_text(
        "import dataclasses\n\n\n@dataclasses.dataclass(frozen=True)\nclass Mine:\n    size: int = 3\n\n\n"
        "def experiment():\n    return None\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    named = {"type": "mine_alone:Mine", "size": 4}
    with pytest.raises(UserError, match="Expected a class of plmjax or of a loaded experiment file, found 'mine_alone"):
        experiment.from_dict(named)
    assert "mine_alone" not in sys.modules
    catalogue.load_classes(str(file))
    assert experiment.from_dict(named).size == 4
    for other in ("subprocess:Popen", "plmjax.files.storage:remove"):
        with pytest.raises(UserError, match="Expected a class of plmjax"):
            experiment.from_dict({"type": other})


CLASSES = (
    "import dataclasses\nfrom beside import SIZE\nfrom plmjax import experiment as experiments\n"
    "from plmjax.models.bert import BertConfig\n\n\n@dataclasses.dataclass(frozen=True)\n"
    "class Wide(BertConfig):\n    width: int = SIZE\n\n\ndef experiment():\n"
    "    run = experiments.load('bert_tiny')\n    return dataclasses.replace(run, model=Wide(vocab_size=4096))\n"
)
READ = (
    "import sys\nfrom pathlib import Path\nfrom plmjax import experiment\nfrom plmjax.errors import UserError\n"
    "for name in sys.argv[2:]:\n"
    "    if name.endswith('.py'):\n        experiment.catalogue.load_classes(name)\n        continue\n"
    "    try:\n        print(experiment.read(Path(sys.argv[1]) / name).model.width)\n"
    "    except UserError as error:\n        print(error)\n"
)


def test_the_file_of_a_class_is_imported_again_only_where_it_was_named(tmp_path: Path, monkeypatch) -> None:
    """By another process, from another folder, under a name that the working directory does not give it."""
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    for folder in (here / "mine", elsewhere, tmp_path / "forged" / "mine"):
        folder.mkdir(parents=True)
    (here / "beside.py").write_text("SIZE = 3\n")
    for name in ("kept", "changed", "moved"):
        (here / "mine" / f"{name}.py").write_text(CLASSES)
    forged = tmp_path / "forged" / "mine" / "kept.py"
    forged.write_text(f"import pathlib\npathlib.Path({str(tmp_path / 'ran')!r}).touch()\n{CLASSES}")

    def python(program: str, folder: Path, *arguments: object) -> list[str]:
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", program, *map(str, arguments)]
        ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout.splitlines()

    with monkeypatch.context() as patch:
        patch.chdir(here)
        patch.syspath_prepend(here)
        for name in ("kept", "changed", "moved"):
            experiment.write(experiment.load(f"mine/{name}.py"), Path(f"{name}.json"))
    for name in [name for name in sys.modules if name.partition(".")[0] in ("mine", "beside")]:
        del sys.modules[name]
    text = (here / "kept.json").read_text()
    (here / "forged.json").write_text(text.replace(str(here), str(tmp_path / "forged")))
    (here / "renamed.json").write_text(text.replace('"mine.kept": ', '"kept": '))
    (here / "mine" / "changed.py").write_text(CLASSES.replace("Wide", "Wider"))
    (here / "mine" / "moved.py").rename(elsewhere / "moved.py")
    names = ("forged", "renamed", "changed", "moved", "kept")
    with_option = ("moved.py", "moved.json")
    *alone, named = python(READ, elsewhere, here, *(f"{name}.json" for name in names), *with_option)
    for said, (file, expected) in zip(
        alone,
        (
            (forged, "Expected a class of a file that you have named as an experiment on this machine, found"),
            (here / "mine" / "kept.py", "which runs only if you name it; read it, then name the file that defines it"),
            (here / "mine" / "changed.py", "found a file that has changed and lacks it; restore the class"),
            (here / "mine" / "moved.py", "found no such file on this machine; name the file that defines it with --ex"),
        ),
        strict=False,
    ):
        assert expected in said and str(file) in said
    assert alone[-1] == named == "3" and not (tmp_path / "ran").exists()


def test_differences_leave_free_fields_out() -> None:
    """A field that only one experiment has is None in the other."""
    before = strangers.gpt2()
    training = dataclasses.replace(before.training, seed=4)
    after = dataclasses.replace(before, checkpoint=Checkpoint(every=9), training=training)
    assert experiment.differences(before, after, experiment.FREE) == {"training.seed": (0, 4)}
    assert set(experiment.differences(before, after)) == {"training.seed", "checkpoint.every", "checkpoint.minutes"}
    phased = dataclasses.replace(before, phases=(Phase(1.0),))
    fewer, more = experiment.differences(phased, before), experiment.differences(before, phased)
    assert fewer["phases.0.fraction"] == (1.0, None) and more["phases.0.fraction"] == (None, 1.0)


@dataclasses.dataclass(frozen=True)
class Shapes:
    """Fields of the kinds that no list of one length has."""

    size: tuple[int, str] = (1, "a")
    names: tuple[str, ...] = ()
    kind: Literal["small", "large"] = "small"


@pytest.mark.parametrize(
    ("field", "right", "wrong"),
    [
        ("size", [2, "b"], [[1], [1, "a", "b"], ["a", "a"], [1, 2], 1]),
        ("names", ["a", "b"], [["a", 1], [1, "a"], "a"]),
        ("kind", "large", ["tiny", 1]),
    ],
)
def test_every_item_of_a_list_has_its_type(field: str, right: Any, wrong: list) -> None:
    name = f"{Shapes.__module__}:{Shapes.__qualname__}"
    found = getattr(experiment.from_dict({"type": name, field: right}), field)
    assert found == (tuple(right) if isinstance(right, list) else right)
    for value in wrong:
        with pytest.raises(UserError, match=f"Expected Shapes.{field} of type"):
            experiment.from_dict({"type": name, field: value})


def test_all_that_makes_a_dataset_or_a_count_makes_it_again() -> None:
    """The rest of the settings of a text are where it is, how much of it may be unknown, and how rows are cut of it."""
    rest = "layout path mixture max_unknown sequence_length cache_limit shuffle_window".split()
    fields = [field.name for field in dataclasses.fields(Data)]
    assert [name for name in fields if not f"data.{name}".startswith(experiment.PREPARED)] == [
        name for name in fields if name in rest
    ]
    for field in dataclasses.fields(Counting):
        assert f"data.layout.{field.name}".startswith(experiment.PREPARED)
    assert all(f"tokenizer.{field.name}".startswith(experiment.PREPARED) for field in dataclasses.fields(Tokenizer))
