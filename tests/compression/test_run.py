"""The run that trains the smaller model, and the data on which a checkpoint is measured."""

import dataclasses
import types
from pathlib import Path

import numpy as np
import pytest

from plmjax import experiment as experiments
from plmjax.compression.examples import examples_of
from plmjax.compression.pruning.pruned import MovementPruning
from plmjax.compression.run import Source, compose_experiment
from plmjax.errors import UserError
from plmjax.experiment import Experiment, Mixture
from plmjax.models.bert import BertConfig


def test_a_training_goes_on_with_the_checkpoint_that_it_began_with(tmp_path: Path) -> None:
    """Before its first step it may be another one."""
    run = Experiment(BertConfig.tiny(), None, None)
    first, checkpoint = source_of(run), tmp_path / "training" / "checkpoints" / "3"
    other = dataclasses.replace(first, params={"bert/kernel": np.float32([2])})
    elsewhere = dataclasses.replace(other, name="elsewhere")
    for source in (other, first, first):
        source.claim(tmp_path)
    checkpoint.mkdir(parents=True)
    first.claim(tmp_path)
    with pytest.raises(UserError, match=r"the parameters of 'named', with which .* found other parameters there; name"):
        other.claim(tmp_path)
    with pytest.raises(UserError, match=r"the parameters of 'named', with which .*, found elsewhere; name that"):
        elsewhere.claim(tmp_path)
    (tmp_path / "training" / "source.json").write_text("{")
    with pytest.raises(UserError, match=r"Expected JSON in .*source\.json"):
        first.claim(tmp_path)


def source_of(run: Experiment) -> Source:
    """A checkpoint of a run, with running statistics and constants."""
    description = types.SimpleNamespace(experiment=run, tokenizer={"files": b""}, step=7)
    params = {"bert/kernel": np.float32([1, 0, 2, 3])}
    return Source("named", Path("/runs/one/checkpoints/7"), params, "its statistics", "its constants", description, [])


def test_a_named_experiment_trains_the_model_of_the_checkpoint_or_a_smaller_one(small_run: Path) -> None:
    """On data of its own, and without the mapping that the checkpoint started with; test_prune.py has the own run."""
    source, compression, named = Source.read(small_run), MovementPruning(), experiments.load("finetune_sentences")
    for smaller in (None, BertConfig.tiny(hidden_size=8)):
        options = {"overrides": ["--training.steps", "3"], "model": smaller}
        found = compose_experiment(source, compression, "finetune_sentences", **options)
        model, training = smaller or source.description.experiment.model, dataclasses.replace(named.training, steps=3)
        assert found == dataclasses.replace(named, model=model, training=training, compression=compression)


def test_examples_are_the_rows_of_the_run_in_its_own_order(small_run: Path) -> None:
    """Those of a mixture of one source are the same rows."""
    source = Source.read(small_run)
    run = source.description.experiment
    mixed = dataclasses.replace(run.data, mixture=Mixture(sources=(f"one={small_run / 'dataset'}",)))
    found = []
    for one in (run, experiments.override(run, ["--training.seed", "9"]), dataclasses.replace(run, data=mixed)):
        (phase,) = one.resolved_phases
        feed = examples_of(source, one)
        assert feed.vocabulary.size == run.model.vocab_size
        found.append(next(iter(feed.train(phase, 0, np.arange(phase.batch_size))))["input_ids"])
    assert not np.array_equal(found[0], found[1]) and found[2].shape == found[0].shape
