"""Pretraining that begins with the parameters of another checkpoint."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from plmjax import experiment as experiments
from plmjax.commands import cli
from plmjax.errors import UserError
from plmjax.experiment import Experiment, override
from plmjax.runs.pretraining import pretrain
from plmjax.training import loop
from plmjax.training.checkpoints import checkpoints
from tests.small_runs import SMALL_BERT

TINY = "experiments/bert_tiny.py"


@pytest.fixture(scope="module")
def run(small_run) -> Experiment:
    """The experiment of `small_run` on the same dataset, two steps long, without a model of its own."""
    composed = override(experiments.load(TINY), [*SMALL_BERT, "--data.path", str(small_run / "dataset")])
    training = dataclasses.replace(composed.training, steps=2, evaluate_every=0, seed=7)
    optimizer = dataclasses.replace(composed.optimizer, learning_rate=0.0)
    return dataclasses.replace(composed, model=None, training=training, optimizer=optimizer)


@pytest.mark.nightly
def test_begins_with_all_parameters_at_step_0_and_goes_on_from_there_alone(run, small_run, tmp_path):
    """The steps change nothing: their learning rate is 0."""
    result = pretrain(run, tmp_path / "more", small_run)
    params, before = checkpoints.load_parameters(small_run)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(result.state.params), params)
    assert int(result.state.step) == 2
    saved = checkpoints.describe(checkpoints.find(tmp_path / "more"))
    assert saved.experiment.model == before.experiment.model
    assert (tmp_path / "more" / "tokenizer" / "vocab.txt").read_bytes() == saved.tokenizer["vocab.txt"]
    assert json.loads((tmp_path / "more" / "start.json").read_text())["from"] == str(small_run)
    metrics = (tmp_path / "more" / "metrics.jsonl").read_bytes()
    pretrain(run, tmp_path / "more", small_run)
    assert (tmp_path / "more" / "metrics.jsonl").read_bytes() == metrics  # it resumed
    own = dataclasses.replace(run, model=before.experiment.model)
    for where, start, part in (("more", "random", "found random"), ("more", tmp_path / "more", "found .*/more")):
        with pytest.raises(UserError, match=f"the parameters of .*small, .*, {part}.*--from"):
            pretrain(own, tmp_path / where, start)
    with pytest.raises(UserError, match=r"random parameters, .*, found the parameters of"):
        pretrain(run, small_run, tmp_path / "more")


@pytest.mark.nightly
def test_before_a_step_is_trained_another_text_in_the_same_file_is_prepared(prose, tmp_path, monkeypatch, capsys):
    """What an unstopped run would have made of it. A text that is gone leaves what was made of it."""
    text, workdir = tmp_path / "text.txt", tmp_path / "run"

    def stop(*arguments, **named):
        raise UserError("Expected no training, found some; stop.")

    def stopped(*arguments):
        """Runs a command that stops where it would begin to train; what it has said."""
        capsys.readouterr()
        with pytest.raises(UserError, match="Expected no training"):
            cli.run([*map(str, arguments)])
        return capsys.readouterr().out

    monkeypatch.setattr(loop, "train", stop)
    texts = prose.read_text(encoding="utf-8").split("\n\n")
    same = ("--data.input", text, *SMALL_BERT)
    made = {}
    for name, documents in (("first", texts[:30]), ("changed", texts[30:60])):
        text.write_text("\n\n".join(documents), encoding="utf-8")
        said = stopped("pretrain", TINY, "--workdir", workdir, *same)
        assert ("prepared again, as an earlier command had other text in the same files" in said) == (name == "changed")
        stopped("pretrain", TINY, "--workdir", tmp_path / name, *same)
        made[name] = [
            (tmp_path / name / file).read_bytes() for file in ("tokenizer/tokenizer.json", "dataset/manifest.json")
        ]
        assert made[name] == [
            (workdir / file).read_bytes() for file in ("tokenizer/tokenizer.json", "dataset/manifest.json")
        ]
    assert made["first"] != made["changed"]
    text.unlink()
    assert "prepared again" not in stopped("pretrain", TINY, "--workdir", workdir, *same)
