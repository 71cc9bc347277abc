"""Evaluations of a run and of another file, with the columns and settings of that file, and the programs that run."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest

from plmjax.commands import cli
from plmjax.errors import UserError
from plmjax.experiment import Experiment, Phase
from plmjax.finetuning.tasks.mixture import MixedTextGeneration, Mixture, TextTask
from plmjax.finetuning.tasks.questions import Questions, SpanExtraction
from plmjax.inference import task_settings
from plmjax.inference.evaluate import evaluate
from plmjax.inference.fill_mask import fill_mask
from plmjax.inference.predict import predict
from plmjax.inference.program import adapted_program, program_of
from plmjax.models.bert import BertConfig
from plmjax.training.checkpoints import checkpoints
from plmjax.training.metrics import read
from tests.inference.conftest import TEXTS
from tests.metric_names import undocumented
from tests.third_party import experiments
from tests.third_party.source import ChainSource


def test_evaluates_as_the_run_itself_did(small_run):
    """The run looked at two batches only of what is evaluated here."""
    metrics = evaluate(small_run)
    assert metrics["eval/perplexity"] == pytest.approx(math.exp(metrics["eval/loss"]))
    last = [line for line in read(small_run / "metrics.jsonl") if "eval/loss" in line][-1]
    own = {name for name in last if name.startswith("eval/")}
    assert metrics.keys() == own | {"eval/perplexity", "eval/unknown_tokens"}
    assert metrics["eval/loss"] == pytest.approx(last["eval/loss"], abs=0.3)
    assert not any(map(undocumented, read(small_run / "metrics.jsonl")))


def test_rows_are_as_long_as_those_of_the_last_phase() -> None:
    phases = Phase(fraction=0.5, sequence_length=8), Phase(fraction=0.5, sequence_length=12)
    run = dataclasses.replace(experiments.recurrent(), phases=phases)
    assert program_of(run, ChainSource(run.data)).phase.sequence_length == 12


@pytest.mark.parametrize(("shares", "span"), [((0.1, 0.2), 64), ((0.95, 0.1), None)])
def test_a_program_computes_what_its_parameters_need(shares: tuple[float, ...], span: int | None) -> None:
    """An Adaptive-Span of 200 tokens; other models have one program for all parameters."""
    run = experiments.changed(experiments.adaptive_span(), model={"attn_span": 200, "ramp": 8, "computed_span": None})
    source, params = ChainSource(run.data), {"adaptive_span": {"layers": {"span_shares": np.float32([shares])}}}
    whole = program_of(run, source)
    found = adapted_program(whole, run, source, params)
    assert found.experiment.model.computed_span == span and (found is whole) == (span is None)
    assert adapted_program(whole, experiments.gpt2(), source, params) is whole


def test_a_checkpoint_computes_in_the_dtype_of_its_run(small_run: Path, tmp_path: Path) -> None:
    params, description = checkpoints.load_parameters(small_run)
    run = experiments.changed(description.experiment, training={"dtype": "bfloat16"})
    checkpoints.save_parameters(tmp_path / "run", params, run, tokenizer=description.tokenizer)
    exact, found = ([share for _, share in fill_mask(one, "the [MASK]", 1)[0]] for one in (small_run, tmp_path / "run"))
    assert exact != found
    np.testing.assert_allclose(found, exact, rtol=0.1, atol=0.1)


def test_a_file_with_other_columns_is_evaluated(
    classifiers: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    renamed, expected = tmp_path / "reviews.jsonl", evaluate(classifiers / "one")
    rows = [json.dumps({"review": text["text"], "stars": text["label"]}) + "\n" for text in TEXTS]
    renamed.write_text("".join(rows))
    capsys.readouterr()
    options = ["--data", str(renamed), "--data.text", "review", "--data.label", "stars", "--json"]
    cli.run(["evaluate", str(classifiers / "one"), *options])
    assert json.loads(capsys.readouterr().out) == expected
    cli.run(["evaluate", str(classifiers / "one"), *options, "--ensemble", str(classifiers / "two")])
    assert "eval/accuracy" in json.loads(capsys.readouterr().out)
    (longer, *_) = predict(classifiers / "one", renamed, text="review", sequence_length=64)
    assert longer["prediction"] in "abc"


def test_settings_change_the_data_or_the_objective_and_nothing_else() -> None:
    """Rows may have all positions of the model; a task among several has settings of its own."""
    run = Experiment(
        model=BertConfig.tiny(max_position_embeddings=40), objective=SpanExtraction(impossible=True, best=7),
        data=Questions(sequence_length=32, stride=9),
    )  # fmt: skip
    settings = {"sequence_length": 40, "objective.null_threshold": 1.5}
    changed = task_settings.with_settings(run, settings, labelled=False)
    assert changed.data == Questions(sequence_length=40, stride=9)
    assert changed.objective == SpanExtraction(impossible=True, best=7, null_threshold=1.5)
    options = ["--objective.best", "3", "--data.stride=5"]
    found = task_settings.from_options(run, options, "plmjax predict", labelled=False)
    assert found == {"objective.best": 3, "data.stride": 5}
    with pytest.raises(UserError, match=r"40 positions, found a sequence length of 41;"):
        task_settings.with_settings(run, {"sequence_length": 41}, labelled=False)

    mixture = Mixture(tasks=tuple(TextTask(name=name, prefix=f"{name}: ") for name in ("one", "two")))
    assert set(mixture.settings(True)) - set(mixture.settings(False)) == {
        f"tasks.{place}.{name}" for place in (0, 1) for name in ("target", "words")
    }
    mixed = dataclasses.replace(
        run, data=dataclasses.replace(mixture, sequence_length=32), objective=MixedTextGeneration()
    )
    changed = task_settings.with_settings(mixed, {"tasks.1.source": "x", "target_length": 7}, labelled=True)
    assert [task.source for task in changed.data.tasks] == ["source", "x"] and changed.data.target_length == 7
    with pytest.raises(UserError, match=r"a setting of predicting this task, found 'tasks\.1\.target'"):
        task_settings.with_settings(mixed, {"tasks.1.target": "x"}, labelled=False)
