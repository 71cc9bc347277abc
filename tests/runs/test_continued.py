"""Pretraining that begins with the parameters of another checkpoint."""

import dataclasses
import json
import shutil
from pathlib import Path

import flax.traverse_util
import jax
import numpy as np
import pytest

from plmjax import experiment as experiments
from plmjax.commands import cli
from plmjax.data import store, tokenizers
from plmjax.data.layouts import Chunks
from plmjax.errors import UserError
from plmjax.experiment import Experiment, override
from plmjax.objectives.next_token import NextToken
from plmjax.runs.pretraining import pretrain
from plmjax.training import loop
from plmjax.training.checkpoints import checkpoints
from tests.small_runs import SMALL_BERT

TINY = "experiments/bert_tiny.py"


def flat(params) -> dict[str, np.ndarray]:
    return flax.traverse_util.flatten_dict(params, sep="/")


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
def test_heads_that_are_missing_are_sampled_and_named_and_nothing_else(run, small_run, tmp_path):
    params, description = checkpoints.load_parameters(small_run)
    kept = {name: leaf for name, leaf in flat(params).items() if "predictions" not in name and "pooler" not in name}
    own = (description.experiment, description.tokenizer)
    checkpoints.save_parameters(tmp_path / "bare", flax.traverse_util.unflatten_dict(kept, sep="/"), *own)
    said: list[str] = []
    begun = flat(jax.device_get(pretrain(run, tmp_path / "more", tmp_path / "bare", report=said.append).state.params))
    assert [line for line in said if line.startswith(f"start      initialized at random, as {tmp_path / 'bare'} has")]
    assert all(np.array_equal(begun[name], leaf) for name, leaf in kept.items())
    weights = [name for name in flat(params).keys() - kept.keys() if name.endswith("kernel")]
    assert weights and all(begun[name].std() > 0.01 for name in weights)
    del kept["bert/embeddings/word_embeddings/embedding"]
    checkpoints.save_parameters(tmp_path / "torn", flax.traverse_util.unflatten_dict(kept, sep="/"), *own)
    with pytest.raises(UserError, match="bert/embeddings/word_embeddings/embedding"):
        pretrain(run, tmp_path / "other", tmp_path / "torn")


@pytest.mark.nightly
def test_a_finished_run_is_given_more_steps_by_the_command(small_run, prose, tmp_path, capsys, fails):
    shutil.copytree(small_run, tmp_path / "run")
    before = flat(checkpoints.load_parameters(tmp_path / "run" / "checkpoints" / "6")[0])
    same = ["pretrain", TINY, "--workdir", str(tmp_path / "run"), "--data.input", str(prose), *SMALL_BERT]
    cli.run([*same, "--training.steps", "9"])
    said = capsys.readouterr().out
    assert "6 become 9: after step 6 the learning rate (linear) stays at 3.00e-05" in said  # still warming up
    assert checkpoints.describe(checkpoints.find(tmp_path / "run")).step == 9
    after = flat(checkpoints.load_parameters(tmp_path / "run" / "checkpoints" / "6")[0])
    assert all(np.array_equal(before[name], leaf) for name, leaf in after.items())
    assert "training.steps = 9, found 6" in fails(*map(Path, same))


CONTINUED = "experiments/continued.py"
SHORT = (
    "--data.sequence_length 24 --training.steps 1 --training.batch_size 8 --training.evaluation_batches 1 "
    "--training.evaluate_every 0 --checkpoint.every 0"
).split()


@pytest.mark.nightly
def test_a_decoder_is_continued_by_the_command_with_options_of_its_task(decoder_run, prose, tmp_path):
    same = ["pretrain", CONTINUED, "--from", str(decoder_run), "--workdir", str(tmp_path / "run")]
    cli.run([*same, "--data.input", str(prose), "--data.layout.overlap", "3", *SHORT])
    saved = checkpoints.describe(checkpoints.find(tmp_path / "run"))
    assert saved.step == 1 and saved.experiment.objective == NextToken()
    assert saved.experiment.data.layout == Chunks(overlap=3)


@pytest.fixture
def stopped(monkeypatch, capsys):
    """Runs a command that stops where it would begin to train; what it has said."""

    def stop(*arguments, **named):
        raise UserError("Expected no training, found some; stop.")

    def run(*arguments):
        monkeypatch.setattr(loop, "train", stop)
        capsys.readouterr()
        with pytest.raises(UserError, match="Expected no training"):
            cli.run([*map(str, arguments)])
        return capsys.readouterr().out

    return run


@pytest.mark.nightly
def test_before_a_step_is_trained_what_other_options_prepared_is_prepared_again(prose, tmp_path, stopped):
    text, workdir = tmp_path / "text.txt", tmp_path / "run"
    text.write_text("\n\n".join(prose.read_text(encoding="utf-8").split("\n\n")[:30]), encoding="utf-8")
    same = ("pretrain", TINY, "--workdir", workdir, "--data.input", text, *SMALL_BERT)
    stopped(*same)
    before = (workdir / "dataset" / store.MANIFEST).read_bytes()
    other = ("--data.held_out", "0.5", "--data.special_names", "[SEP]", "--tokenizer.vocab_size", "700")
    said = stopped(*same, *other)
    for made in ("tokenizer", "dataset"):
        assert f"{made:<10} prepared again, as an earlier command had other options: data.held_out, data.sp" in said
    assert before != (workdir / "dataset" / store.MANIFEST).read_bytes()
    assert tokenizers.load(workdir / "tokenizer").vocabulary.size == 700
    assert "prepared again" not in stopped(*same, *other, "--training.steps", "3")


@pytest.mark.nightly
def test_before_a_step_is_trained_another_text_in_the_same_file_is_prepared(prose, tmp_path, stopped):
    """What an unstopped run would have made of it. A text that is gone leaves what was made of it."""
    text, workdir = tmp_path / "text.txt", tmp_path / "run"
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


def test_a_tokenizer_and_a_dataset_that_the_run_names_stay(small_run, tmp_path, stopped):
    workdir = tmp_path / "run"
    for made in ("tokenizer", "dataset"):
        shutil.copytree(small_run / made, workdir / made)
    experiments.write(override(experiments.load(TINY), SMALL_BERT), workdir / "experiment.json")
    named = ("--tokenizer.path", workdir / "tokenizer", "--data.path", workdir / "dataset")
    said = stopped("pretrain", TINY, "--workdir", workdir, *SMALL_BERT, *named, "--data.held_out", "0.5")
    assert "prepared again" not in said
    assert (workdir / "dataset" / store.MANIFEST).read_bytes() == (small_run / "dataset" / store.MANIFEST).read_bytes()
