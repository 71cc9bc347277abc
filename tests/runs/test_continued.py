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
from plmjax.data import mixture, remote, store, tokenizers
from plmjax.data.layouts import Blocks
from plmjax.data.mixing import Mixture
from plmjax.errors import UserError
from plmjax.experiment import Experiment, override
from plmjax.finetuning.tasks.sentences import Sentences, SequenceClassification
from plmjax.models.bert import BertConfig
from plmjax.objectives.next_token import NextToken
from plmjax.objectives.prefix_language_model import PrefixLanguageModel
from plmjax.runs import checks
from plmjax.runs.pretraining import pretrain
from plmjax.training import loop
from plmjax.training.checkpoints import checkpoints, start
from plmjax.training.checkpoints.checkpoints import Description
from tests.small_runs import SMALL_BERT

TINY = "experiments/bert_tiny.py"


def flat(params) -> dict[str, np.ndarray]:
    return flax.traverse_util.flatten_dict(params, sep="/")


@pytest.fixture(scope="module")
def run(small_run) -> Experiment:
    """The experiment of `small_run` on the same dataset, two steps long, without a model of its own."""
    composed = override(experiments.load(TINY), [*SMALL_BERT, "--data.path", str(small_run / "dataset")])
    training = dataclasses.replace(composed.training, steps=2, evaluate_every=0, seed=7)
    return dataclasses.replace(composed, model=None, training=training)


@pytest.fixture(scope="module")
def beginnings():
    """Every first state that a run was given, as it began."""
    kept, transfer = [], start.transfer

    def keeping(*arguments):
        params = transfer(*arguments)
        kept.append(jax.tree.map(np.array, params))  # copies: the first step is given the arrays to overwrite
        return params

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(start, "transfer", keeping)
        patch.setattr("plmjax.runs.summary.show", lambda *_: None)
        yield kept


@pytest.mark.nightly
def test_begins_with_all_parameters_at_step_0_with_a_new_optimizer(run, small_run, beginnings, tmp_path):
    result = pretrain(run, tmp_path / "more", checkpoint=small_run)
    before = checkpoints.load_parameters(small_run)[0]
    begun, ended = flat(beginnings[-1]), flat(jax.device_get(result.state.params))
    assert begun.keys() == flat(before).keys()
    assert all(np.array_equal(begun[name], leaf) for name, leaf in flat(before).items())
    assert any(not np.array_equal(ended[name], leaf) for name, leaf in begun.items())
    assert int(result.state.step) == 2
    saved = checkpoints.describe(checkpoints.find(tmp_path / "more"))
    assert saved.experiment.model == checkpoints.describe(checkpoints.find(small_run)).experiment.model
    assert (tmp_path / "more" / "tokenizer" / "vocab.txt").read_bytes() == saved.tokenizer["vocab.txt"]
    assert json.loads((tmp_path / "more" / "start.json").read_text())["from"] == str(small_run)


@pytest.mark.nightly
def test_goes_on_from_the_same_beginning_alone(run, small_run, beginnings, tmp_path):
    pretrain(run, tmp_path / "more", checkpoint=small_run)
    count = len(beginnings)
    pretrain(run, tmp_path / "more", checkpoint=small_run)
    assert len(beginnings) == count  # it resumed
    own = checkpoints.describe(checkpoints.find(small_run)).experiment.model
    with pytest.raises(UserError, match=r"Expected the parameters of .*small, .*, found random parameters; .*--from"):
        pretrain(dataclasses.replace(run, model=own), tmp_path / "more")
    with pytest.raises(UserError, match=r"Expected the parameters of .*small, .*, found the parameters of .*/more"):
        pretrain(run, tmp_path / "more", checkpoint=tmp_path / "more")
    with pytest.raises(UserError, match=r"Expected random parameters, .*, found the parameters of"):
        pretrain(run, small_run, checkpoint=tmp_path / "more")


@pytest.mark.nightly
def test_heads_that_are_missing_are_drawn_and_named_and_nothing_else(run, small_run, beginnings, tmp_path):
    params, description = checkpoints.load_parameters(small_run)
    kept = {name: leaf for name, leaf in flat(params).items() if "predictions" not in name and "pooler" not in name}
    own = (description.experiment, description.tokenizer)
    bare = flax.traverse_util.unflatten_dict(kept, sep="/")
    checkpoints.save_parameters(tmp_path / "bare", bare, *own)
    said: list[str] = []
    pretrain(run, tmp_path / "more", said.append, tmp_path / "bare")
    drawn = sorted(flat(params).keys() - kept.keys())
    assert f"start      initialized at random, as {tmp_path / 'bare'} has none: {start.abbreviated(drawn)}" in said
    begun = flat(beginnings[-1])
    assert all(np.array_equal(begun[name], leaf) for name, leaf in kept.items())
    weights = [name for name in drawn if name.endswith("kernel")]
    assert weights and all(begun[name].std() > 0.01 for name in weights)
    del kept["bert/embeddings/word_embeddings/embedding"]
    checkpoints.save_parameters(tmp_path / "torn", flax.traverse_util.unflatten_dict(kept, sep="/"), *own)
    with pytest.raises(UserError, match=r"Expected bert/embeddings/word_embeddings/embedding"):
        pretrain(run, tmp_path / "other", checkpoint=tmp_path / "torn")


def test_mistakes_are_named(run, small_run, fails, tmp_path):
    same = ("pretrain", TINY, *SMALL_BERT, "--workdir", tmp_path / "run", "--data.path", small_run / "dataset")
    assert "whose hidden_size is 32, found model.hidden_size = 64" in fails(
        *same, "--from", small_run, "--model.hidden_size", "64"
    )
    assert "no finished checkpoint" in fails(*same, "--from", tmp_path)
    with pytest.raises(UserError, match=r"Expected a model in the experiment, found none; .*--from"):
        pretrain(run, tmp_path / "run")
    other = tmp_path / "tokenizer"
    cli.run(["tokenizer", "train", "--input", "README.md", "--output", str(other), "--vocab_size", "300"])
    assert "Expected the tokenizer of the checkpoint" in fails(*same, "--from", small_run, "--tokenizer.path", other)
    assert not (tmp_path / "run" / "start.json").exists() and not (tmp_path / "run" / "experiment.json").exists()


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


@pytest.mark.parametrize("name", [name for name in experiments.catalogue.names() if name.endswith("_tiny")])
def test_a_run_of_any_system_goes_on_with_its_own_task(name):
    """The step of each is traced by tests/test_experiments.py, under the name of its own experiment."""
    origin = experiments.load(name)
    continued = experiments.load(CONTINUED)
    run = start.with_task(start.with_model(continued, Description(origin, 0, {})), Description(origin, 0, {}))
    checks.complete(run)
    assert (run.model, run.objective, run.data.layout) == (origin.model, origin.objective, origin.data.layout)
    assert (run.optimizer, run.training) == (continued.optimizer, continued.training)
    assert run.data.streams == origin.data.streams and run.data.sequence_length == continued.data.sequence_length


def test_what_an_experiment_says_of_its_task_comes_before_the_run(decoder_run):
    description = checkpoints.describe(checkpoints.find(decoder_run))
    own = dataclasses.replace(experiments.load(CONTINUED), objective=PrefixLanguageModel())
    run = start.with_task(own, description)
    assert run.objective == PrefixLanguageModel() and run.data.layout == description.experiment.data.layout


@pytest.mark.nightly
def test_a_decoder_is_continued_by_the_command_with_options_of_its_task(decoder_run, prose, tmp_path):
    same = ["pretrain", CONTINUED, "--from", str(decoder_run), "--workdir", str(tmp_path / "run")]
    cli.run([*same, "--data.input", str(prose), "--data.layout.overlap", "3", *SHORT])
    saved = checkpoints.describe(checkpoints.find(tmp_path / "run"))
    assert saved.step == 1 and saved.experiment.objective == NextToken()
    assert saved.experiment.data.layout == Blocks(overlap=3)


def test_a_run_of_another_kind_is_named_with_the_kind_that_is_needed(decoder_run, fails, tmp_path):
    same = ("--workdir", tmp_path / "run", "--data.input", "README.md")
    said = fails("pretrain", "roberta_tiny", "--from", decoder_run, *same)
    assert "Expected a run of RobertaConfig, an encoder, in --from" in said
    assert "found a run of Gpt2Config, a decoder; name another run" in said and "experiments/continued.py" in said
    assert "Expected a model in the experiment, found none; set it there, or name a run" in fails(
        "pretrain", CONTINUED, *same
    )
    assert "Expected a model in the experiment" in fails("plan", CONTINUED, "--topology", "v3:2x2")
    labels = Experiment(BertConfig.tiny(), SequenceClassification(labels=("no", "yes")), Sentences())
    checkpoints.save_parameters(tmp_path / "labels", {"bert": np.zeros(1)}, labels, {})
    said = fails("pretrain", CONTINUED, "--from", tmp_path / "labels", *same)
    assert "Expected a pretraining run in --from" in said and "name the run that it started from" in said
    assert "found a fine-tuned one, with SequenceClassification on Sentences" in said


@pytest.fixture
def stopped(monkeypatch, capsys):
    """Runs a command that stops where it would begin to train; what it has said."""

    def stop(*arguments):
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
    before = (workdir / "dataset" / store.LEDGER).read_bytes()
    other = ("--data.held_out", "0.5", "--data.special_names", "[SEP]", "--tokenizer.vocab_size", "700")
    said = stopped(*same, *other)
    for made in ("tokenizer", "dataset"):
        assert f"{made:<10} prepared again, as an earlier command had other options: data.held_out, data.sp" in said
    assert before != (workdir / "dataset" / store.LEDGER).read_bytes()
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
            (tmp_path / name / file).read_bytes() for file in ("tokenizer/tokenizer.json", "dataset/ledger.json")
        ]
        assert made[name] == [
            (workdir / file).read_bytes() for file in ("tokenizer/tokenizer.json", "dataset/ledger.json")
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
    assert (workdir / "dataset" / store.LEDGER).read_bytes() == (small_run / "dataset" / store.LEDGER).read_bytes()


def test_before_a_step_is_trained_another_beginning_is_accepted(tmp_path):
    assert not start.check(tmp_path, "random", None)
    assert start.check(tmp_path, "runs/other", {"kernel": np.ones(3)})
    assert json.loads((tmp_path / start.RECORD).read_text())["from"] == "runs/other"
    (tmp_path / "checkpoints" / "4").mkdir(parents=True)
    with pytest.raises(UserError, match=r"Expected the parameters of runs/other, .*, found random parameters"):
        start.check(tmp_path, "random", None)


@pytest.mark.parametrize("mixed", [False, True])
def test_rows_are_drawn_by_the_seed_and_in_the_window_of_the_run(run, small_run, tmp_path, monkeypatch, mixed):
    """Every source of a mixture is prepared for the layout, such as a count of its words."""
    given, prepared = [], []

    def source(*arguments):
        given.extend(arguments)
        raise UserError("Expected no rows, found some; stop.")

    monkeypatch.setattr(mixture, "MixtureSource", source)
    monkeypatch.setattr(remote, "source", source)
    monkeypatch.setattr(type(run.data.layout), "prepare", lambda _, dataset, words: prepared.append(dataset.directory))
    dataset = small_run / "dataset"
    place = {"path": "", "mixture": Mixture((f"a={dataset}", f"b={dataset}"))} if mixed else {}
    run = dataclasses.replace(run, data=dataclasses.replace(run.data, shuffle_window=5, **place))
    with pytest.raises(UserError, match="Expected no rows"):
        pretrain(run, tmp_path / "run", checkpoint=small_run)
    assert given[0] == run.data.layout and given[-2:] == [7, 5]
    assert prepared == [dataset] * (1 + mixed)
    assert [*given[1]] == ["a", "b"] if mixed else given[1].directory == dataset
