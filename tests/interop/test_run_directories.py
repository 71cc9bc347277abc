"""The run that an imported module becomes, and what an export writes of a run, without any file of weights."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plmjax.contracts.system import Purpose
from plmjax.data.layouts import Chunks
from plmjax.errors import UserError
from plmjax.experiment import Data
from plmjax.finetuning.tasks.label_sets import MultiLabelClassification
from plmjax.finetuning.tasks.sentences import Regression, SequenceClassification
from plmjax.generation.options import Generation
from plmjax.interop import run_directories

NAMES = {str(number): f"kind {number}" for number in range(11)}


@pytest.mark.parametrize(
    ("settings", "count", "names"),
    [
        ({"num_labels": 5}, 3, ("LABEL_0", "LABEL_1", "LABEL_2")),  # the module has the labels of its tensors
        ({}, 3, ("LABEL_0", "LABEL_1", "LABEL_2")),
        ({"id2label": NAMES, "num_labels": 2}, 11, tuple(NAMES.values())),
        ({"num_labels": 5}, None, ()),
    ],
)
def test_an_imported_classifier_has_the_labels_of_its_module(
    settings: dict, count: int | None, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = imported(monkeypatch, settings, count, tmp_path)
    assert found.objective.labels == names and (found.name, found.within) == ("Class", "inside")
    found = imported(monkeypatch, settings, count, tmp_path, "other files")
    default = tuple(f"LABEL_{number}" for number in range(count or 0))
    assert found.objective.labels == default  # config.json belongs to transformers


def imported(
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    count: int | None,
    folder: Path,
    library: str = "transformers",
    longest: int | None = 16,
    length: int = 128,
) -> Any:
    """The part of a run that a module of so many labels and positions becomes."""
    module = SimpleNamespace(
        config=SimpleNamespace(longest=longest), **({} if count is None else {"num_labels": count})
    )
    files = run_directories.huggingface
    monkeypatch.setattr(files, "architecture_of", lambda module: "Class")
    monkeypatch.setattr(files, "transformers_installed", lambda: False)
    monkeypatch.setattr(files, "read_settings", lambda folder: settings)
    adapter = SimpleNamespace(architectures={"Class": SimpleNamespace(within="inside")})
    monkeypatch.setattr(files, "adapter_of", lambda module: adapter)
    monkeypatch.setattr(run_directories, "_round_trip", lambda module, params: "")
    data = Data(Chunks(), sequence_length=length)
    monkeypatch.setattr(run_directories, "task_of", lambda module, names: (SimpleNamespace(labels=names), data))
    return run_directories._of_transformers(module, {}, library, folder, None, folder)


@pytest.mark.parametrize(("longest", "length", "expected"), [(16, 128, 16), (512, 128, 128), (None, 128, 128)])
def test_rows_of_an_imported_module_have_no_more_than_its_positions(
    longest: int | None, length: int, expected: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = imported(monkeypatch, {}, None, tmp_path, longest=longest, length=length)
    assert found.data.sequence_length == expected


@pytest.mark.parametrize(
    ("problem", "count", "kind"),
    [
        (None, 2, SequenceClassification),
        ("single_label_classification", 2, SequenceClassification),
        ("multi_label_classification", 2, MultiLabelClassification),
        ("multi_label_classification", 1, MultiLabelClassification),
        ("regression", 1, Regression),
        ("regression", 2, None),
        ("single_label_classification", 1, None),
    ],
)
def test_a_type_of_problem_fits_the_number_of_labels(problem: str | None, count: int, kind: type | None) -> None:
    names = ("a", "b")[:count]
    arguments = SequenceClassification(labels=("x", "y")), "data", names, problem
    if kind is None:
        with pytest.raises(UserError, match=f"problem_type '{problem}' with {count}"):
            run_directories.problem_types.with_problem_type(*arguments)
        return
    objective, _ = run_directories.problem_types.with_problem_type(*arguments)
    assert type(objective) is kind and run_directories.problem_types.problem_type_of(objective) == (
        problem or "single_label_classification"
    )
    if kind is not Regression:
        assert objective.labels == (names if problem else ("x", "y"))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"source_lang": "en", "target_lang": "de"}, {"source": "en", "target": "de"}),
        ({"source_lang": "en", "target_lang": ""}, {}),
        ({"target_lang": "de"}, {}),
        (None, {}),
    ],
)
def test_columns_of_a_translation_are_named_as_both_languages(
    options: dict | None, expected: dict, tmp_path: Path
) -> None:
    if options is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(options))
    assert run_directories._languages(tmp_path) == expected


def test_a_folder_with_other_files_is_no_export(tmp_path: Path) -> None:
    """An empty one, and one of an earlier export, may be written to."""
    folder = tmp_path / "out"
    folder.mkdir()
    run_directories.claim(folder, "One", 3)
    (folder / "more").write_text("more")
    run_directories.claim(folder, "Two", 4)
    assert json.loads((folder / run_directories.MARK).read_text()) == {"architecture": "Two", "step": 4}
    (folder / run_directories.MARK).unlink()
    with pytest.raises(UserError, match="found other files in"):
        run_directories.claim(folder, "Two", 4)
    with pytest.raises(UserError, match="found the file"):
        run_directories.claim(folder / "more", "Two", 4)


@dataclasses.dataclass(frozen=True)
class Sizes:
    """A model without windows or with them."""

    windows: bool = False
    system: Any = None


@pytest.mark.parametrize(
    ("own", "windows", "has_form", "expected"),
    [(None, False, True, True), (None, True, True, False), (None, False, False, False), ("files", True, False, True)],
)
def test_what_can_be_exported(
    own: str | None, windows: bool, has_form: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = SimpleNamespace(model=Sizes(windows), objective=SimpleNamespace(module=lambda model, execution: "module"))
    monkeypatch.setattr(run_directories.checkpoints, "find", lambda path: path)
    monkeypatch.setattr(run_directories.checkpoints, "describe", lambda path: SimpleNamespace(experiment=run))
    monkeypatch.setattr(run_directories.libraries, "own_files", lambda model: own)
    monkeypatch.setattr(run_directories.huggingface, "has_form", lambda module: has_form)
    assert run_directories.can_export("run") is expected


@pytest.mark.parametrize(("tokenizer", "end"), [({}, -1), ({"a": b""}, 7)])
def test_settings_of_an_export_are_those_of_the_run_and_of_its_end_token(
    tokenizer: dict, end: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A class that does not generate has none."""
    asked = []
    model = Sizes(system=SimpleNamespace(modules={Purpose.CAUSAL_LM: "writer"}))
    run = SimpleNamespace(model=model, objective=None, generation=Generation(beams=3))
    vocabulary = SimpleNamespace(document_end=7)
    read = SimpleNamespace(vocabulary=vocabulary)
    description = SimpleNamespace(experiment=run, tokenizer=tokenizer, load_tokenizer=lambda: read)
    classes = {"Writes": SimpleNamespace(module="writer"), "Reads": SimpleNamespace(module="reader")}
    monkeypatch.setattr(run_directories.huggingface, "adapter_of", lambda model: SimpleNamespace(architectures=classes))
    monkeypatch.setattr(
        run_directories.generation_settings,
        "write",
        lambda decoding, config, end: asked.append((decoding, config["windows"], end)) or ({"beams": 3}, "lost: one"),
    )
    assert run_directories._written_generation(description, None, "Reads") == (None, []) and not asked
    assert run_directories._written_generation(description, None, "Writes") == ({"beams": 3}, ["lost: one"])
    assert asked == [(run.generation, False, end)]
