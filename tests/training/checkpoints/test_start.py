"""The parts of a checkpoint in --from that an experiment takes, and the kinds that are refused."""

import dataclasses
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plmjax import experiment as experiments
from plmjax.commands import cli
from plmjax.data.layouts import Blocks
from plmjax.errors import UserError
from plmjax.experiment import Data, Experiment
from plmjax.generation.options import Generation
from plmjax.models.bart.bart import BartConfig
from plmjax.models.bert import BertConfig
from plmjax.models.t5 import T5Config
from plmjax.models.word2vec import Word2VecConfig
from plmjax.objectives.next_token import NextToken
from plmjax.objectives.text_to_text.span_corruption import SpanCorruption
from plmjax.runs import finetuning
from plmjax.runs.weight_mappings.new_source_encoder import NewSourceEncoder
from plmjax.training.checkpoints import checkpoints, start
from tests.training.checkpoints.test_checkpoints import describe, make_state


def saved(folder: Path, model: Any) -> Path:
    """A run of a model, with one parameter in place of its own."""
    run = Experiment(model, NextToken(), Data(layout=Blocks()))
    checkpoints.save_parameters(folder, {"kernel": np.zeros(1, np.float32)}, run, {})
    return folder


@pytest.mark.parametrize(
    ("name", "model"), [("t5_mixture", T5Config.tiny(vocab_size=77)), ("translate_multi30k", BartConfig.tiny())]
)
def test_the_model_of_a_checkpoint_takes_the_place_of_that_for_random_parameters(name, model, tmp_path) -> None:
    said: list[str] = []
    own = experiments.load(name)
    run = start.composed(own, saved(tmp_path, model), said.append)
    assert run == dataclasses.replace(own, model=model) and own.model != model
    assert said == [f"model      {type(model).__name__} of {tmp_path}, in place of the experiment's own"]
    assert start.with_model(run, checkpoints.describe(checkpoints.find(tmp_path))) == run
    assert start.composed(own, "random", said.append) == own and len(said) == 1


def test_the_model_of_a_random_twin_is_that_of_like(tmp_path, monkeypatch) -> None:
    """By the command, for an experiment that names sizes of its own."""
    trained, model = [], BartConfig.tiny()
    monkeypatch.setattr(finetuning, "finetune", lambda run, *rest: trained.append((run.model, *rest)) or {})
    like = saved(tmp_path / "like", model)
    cli.run(["finetune", "translate_multi30k", "--from", "random", "--like", str(like), "--workdir", str(tmp_path)])
    assert trained == [(model, "random", tmp_path, like)]


def test_a_start_that_maps_the_model_is_asked_later(tmp_path) -> None:
    own = dataclasses.replace(experiments.load("translate_multi30k"), start=NewSourceEncoder())
    assert start.composed(own, saved(tmp_path, BartConfig.tiny())) == own


def test_a_file_of_word_vectors_changes_nothing(tmp_path) -> None:
    (tmp_path / "vectors.txt").write_text("a 1 2\n")
    own = experiments.load("translate_multi30k")
    assert start.composed(own, tmp_path / "vectors.txt") == own


def test_an_option_that_changes_the_model_of_a_checkpoint_is_named(tmp_path, fails) -> None:
    said = fails("finetune", "t5_mixture", "--from", saved(tmp_path / "t5", T5Config.tiny()), "--model.d_ff", "7")
    assert "found model.d_ff = 7; leave the option --model.d_ff out" in said


@pytest.mark.parametrize(
    ("name", "model", "expected", "found"),
    [
        ("finetune_sentences", Word2VecConfig.tiny(), "a model that labels texts", "Word2VecConfig, word vectors"),
        (
            "summarize_dialogues",
            BertConfig.tiny(),
            "a model that writes a text given another",
            "BertConfig, an encoder",
        ),
        ("finetune_tagging", BartConfig.tiny(), "a model that labels words", "BartConfig, an encoder-decoder"),
    ],
)
def test_a_task_names_its_kind_and_that_of_the_checkpoint(name, model, expected, found, tmp_path, fails) -> None:
    said = fails("finetune", name, "--from", saved(tmp_path / "run", model), "--workdir", tmp_path / "task")
    assert expected in said and f"found {found}, which " in said


def test_a_run_on_text_wants_a_checkpoint_of_its_own_class(tmp_path) -> None:
    with pytest.raises(
        UserError, match=r"Expected a run of BertConfig, an encoder, in --from, .* T5Config, an encoder-"
    ):
        start.composed(experiments.load("bert_tiny"), saved(tmp_path, T5Config.tiny()))


def test_what_an_experiment_has_of_its_own_is_kept_and_the_rest_comes_from_the_checkpoint(tmp_path) -> None:
    """The layout of the checkpoint's run brings the texts of a document that it reads, and its model how it writes."""
    origin = Experiment(
        T5Config.tiny(),
        NextToken(),
        Data(layout=Blocks(), streams=("source", "target")),
        generation=Generation(beams=3),
    )
    checkpoints.save_parameters(tmp_path, {"kernel": np.zeros(1, np.float32)}, origin, {})
    description = checkpoints.describe(checkpoints.find(tmp_path))
    bare = Experiment(T5Config.tiny(), None, Data(layout=None))
    found = start.with_task(bare, description)
    assert (found.objective, found.data.layout, found.data.streams) == (NextToken(), Blocks(), ("source", "target"))
    own = dataclasses.replace(bare, data=Data(layout=None, streams=("text",)), objective=SpanCorruption())
    found = start.with_task(own, description)
    assert (found.objective, found.data.layout, found.data.streams) == (SpanCorruption(), Blocks(), ("text",))
    assert start.with_task(own, description).data.streams == ("text",)
    assert start.with_model(bare, description).generation == Generation(beams=3)
    chosen = dataclasses.replace(bare, generation=Generation(beams=1))
    assert start.with_model(chosen, description).generation == Generation(beams=1)


def test_the_best_checkpoint_is_the_one_of_the_metric_that_a_run_prefers(tmp_path) -> None:
    """The earliest of equals; one without an evaluation is none; the last one where nothing was evaluated."""
    losses = {1: 3.0, 2: 1.0, 3: 1.0, 4: None}
    writer = checkpoints.Checkpoints(
        tmp_path / "checkpoints", experiments.Checkpoint(every=1, keep=0, best="eval/loss")
    )
    for step, loss in losses.items():
        writer.save(make_state(step), describe(step, metrics={} if loss is None else {"eval/loss": loss}))
    writer.close()
    for best, prefer, chosen in (
        ("eval/loss", "best", "2"),
        ("-eval/loss", "best", "1"),
        ("eval/loss", "last", "4"),
        ("eval/f1", "best", "4"),
    ):
        settings = experiments.Checkpoint(best=best, prefer=prefer)
        run = dataclasses.replace(describe(0).experiment, checkpoint=settings)
        experiments.write(run, tmp_path / "experiment.json")
        assert checkpoints.find(tmp_path).name == chosen


def test_heads_are_what_is_outside_the_encoder_and_its_pooler() -> None:
    table = {"kernel": np.zeros(1)}
    params = {"bert": {"encoder": table, "pooler": table}, "classifier": table, "pooled": {"encoder": table}}
    named, nameless = (types.SimpleNamespace(system=types.SimpleNamespace(name=name)) for name in ("bert", None))
    missing = start.missing_head_parameters({"other": table}, params, named)
    assert missing == ["bert/pooler/kernel", "classifier/kernel", "pooled/encoder/kernel"]
    assert start.missing_head_parameters({"bert": {"pooler": table}}, params, named) == missing[1:]
    assert start.missing_head_parameters({}, params, nameless) == []
    assert start.abbreviated(missing) == "bert/pooler/kernel, classifier/kernel, pooled/encoder/kernel"
    more = ["head/a/kernel", "head/a/bias", "head/b/bias", "other/c/bias"]
    assert start.abbreviated(more) == "3 of head, 1 of other/c/bias"
