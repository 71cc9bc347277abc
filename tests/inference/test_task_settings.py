"""Another file of a task on the command line: other columns, a language of its own, and which options there are."""

import dataclasses
import json
from pathlib import Path
from typing import ClassVar

import pytest

from plmjax.commands import cli
from plmjax.errors import UserError
from plmjax.experiment import Experiment
from plmjax.finetuning.metrics.text_metrics import Rouge
from plmjax.finetuning.tasks.mixture import MixedTextGeneration, Mixture, TextTask
from plmjax.finetuning.tasks.questions import Questions, SpanExtraction
from plmjax.finetuning.tasks.sentences import Sentences
from plmjax.inference import task_settings
from plmjax.inference.evaluate import evaluate
from plmjax.inference.predict import predict
from plmjax.models.bert import BertConfig
from tests.inference.conftest import TEXTS


@pytest.fixture(scope="module")
def renamed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The examples of the runs, with other names of columns."""
    path = tmp_path_factory.mktemp("renamed") / "reviews.jsonl"
    rows = [json.dumps({"review": text["text"], "stars": text["label"]}) + "\n" for text in TEXTS]
    path.write_text("".join(rows))
    return path


def test_a_file_with_other_columns_is_evaluated(
    classifiers: Path, renamed: Path, capsys: pytest.CaptureFixture
) -> None:
    expected = evaluate(classifiers / "one")
    capsys.readouterr()
    options = ["--data", str(renamed), "--data.text", "review", "--data.label", "stars", "--json"]
    cli.run(["evaluate", str(classifiers / "one"), *options])
    assert json.loads(capsys.readouterr().out) == expected
    assert evaluate(classifiers / "one", renamed, text="review", label="stars") == expected
    cli.run(["evaluate", str(classifiers / "one"), *options, "--ensemble", str(classifiers / "two")])
    assert "eval/accuracy" in json.loads(capsys.readouterr().out)


def test_rows_can_be_longer(classifiers: Path, renamed: Path) -> None:
    longer = predict(classifiers / "one", renamed, text="review", sequence_length=64)
    assert [one["prediction"] for one in longer] == [
        one["prediction"] for one in predict(classifiers / "one", renamed, text="review")
    ]


@pytest.mark.nightly
def test_raw_text_has_a_key(small_run: Path, tmp_path: Path) -> None:
    (tmp_path / "text.jsonl").write_text(json.dumps({"body": "the value of an object is a list. " * 40}) + "\n")
    assert "eval/loss" in evaluate(small_run, tmp_path / "text.jsonl", text_key="body")


def test_a_task_among_several_has_options_of_its_own() -> None:
    tasks = [TextTask(name=name, prefix=f"{name}: ", judge=Rouge()) for name in ("one", "two")]
    mixture = Mixture(tasks=tuple(tasks))
    assert {"only", "sequence_length", "target_length", "tasks.1.source"} <= set(mixture.settings(False))
    assert set(mixture.settings(True)) - set(mixture.settings(False)) == {
        f"tasks.{place}.{name}" for place in (0, 1) for name in ("target", "words")
    }
    assert set(Sentences().settings(True)) - set(Sentences().settings(False)) == {"label", "unlabelled"}


def test_a_setting_of_data_and_objective_alike_is_given_by_its_full_name() -> None:
    """A setting may also have the name of an argument, as `stride` and a class of a user's own."""

    @dataclasses.dataclass(frozen=True)
    class Columns(Questions):
        prediction_settings: ClassVar[tuple[str, ...]] = ("best", "checkpoint", "output", "stride")
        best: str = "a"
        checkpoint: str = "b"
        output: str = "c"

    run = Experiment(model=BertConfig.tiny(), objective=SpanExtraction(), data=Columns())
    full = {f"data.{name}": name for name in ("best", "checkpoint", "output")} | {"objective.best": 7, "stride": 9}
    changed = task_settings.with_settings(run, full, labelled=False)
    assert changed.data == Columns(best="best", checkpoint="checkpoint", output="output", stride=9)
    assert changed.objective == SpanExtraction(best=7)
    with pytest.raises(UserError, match=r"found 'best', which is data\.best and objective\.best; name one"):
        task_settings.with_settings(run, {"best": 7}, labelled=False)
    options = ["--data.best", "x", "--objective.best", "3", "--data.stride=5"]
    found = task_settings.from_options(run, options, "plmjax predict", labelled=False)
    assert found == {"data.best": "x", "objective.best": 3, "data.stride": 5}


def test_rows_of_another_file_may_have_all_positions_of_the_model() -> None:
    """A setting of the objective beside it is taken too, and both leave all others as they were."""
    run = Experiment(
        model=BertConfig.tiny(max_position_embeddings=40),
        objective=SpanExtraction(impossible=True, best=7),
        data=Questions(sequence_length=32, stride=9),
    )
    changed = task_settings.with_settings(run, {"sequence_length": 40, "null_threshold": 1.5}, labelled=False)
    assert (changed.data, changed.objective) == (
        Questions(sequence_length=40, stride=9),
        SpanExtraction(impossible=True, best=7, null_threshold=1.5),
    )
    with pytest.raises(UserError, match=r"40 positions, found a sequence length of 41;"):
        task_settings.with_settings(run, {"sequence_length": 41}, labelled=False)
    tasks = tuple(TextTask(name=name, prefix=f"{name}: ") for name in ("one", "two"))
    mixture = Mixture(tasks=tasks, sequence_length=32)
    mixed = dataclasses.replace(run, data=mixture, objective=MixedTextGeneration(beams=3, max_new_tokens=5))
    changed = task_settings.with_settings(mixed, {"tasks.1.source": "x", "beams": 1, "target_length": 7}, labelled=True)
    assert [task.source for task in changed.data.tasks] == ["source", "x"] and changed.data.target_length == 7
    assert (changed.objective.beams, changed.objective.max_new_tokens) == (1, 5)
    with pytest.raises(UserError, match=r"a setting of predicting this task, found 'tasks\.1\.target'"):
        task_settings.with_settings(mixed, {"tasks.1.target": "x"}, labelled=False)
