"""The run that trains the smaller model, and the data on which a checkpoint is measured."""

import dataclasses
import itertools
import types
from pathlib import Path

import numpy as np
import pytest

from plmjax import experiment as experiments
from plmjax.compression.distillation.students import TakenLayers
from plmjax.compression.examples import examples_of
from plmjax.compression.pruning.pruned import MovementPruning, TicketTraining
from plmjax.compression.run import Source, composed
from plmjax.errors import UserError
from plmjax.experiment import Experiment, Mixture, WeightMapping
from plmjax.models.bert import BertConfig
from plmjax.training.checkpoints import ancestry


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


@pytest.mark.parametrize("path", ["", "elsewhere"])
def test_the_dataset_is_that_of_the_run_or_the_one_in_its_directory(path: str, small_run: Path) -> None:
    source = Source.read(small_run)
    run = source.description.experiment
    run = dataclasses.replace(run, data=dataclasses.replace(run.data, path=path))
    assert source.dataset(run) == (path or str(small_run / "dataset"))


def source_of(run: Experiment) -> Source:
    """A checkpoint of a run, with running statistics and constants."""
    description = types.SimpleNamespace(experiment=run, tokenizer={"files": b""}, step=7)
    params = {"bert/kernel": np.float32([1, 0, 2, 3])}
    return Source("named", Path("/runs/one/checkpoints/7"), params, "its statistics", "its constants", description, [])


def test_the_run_that_trains_is_that_of_the_checkpoint_or_the_named_one() -> None:
    """With the sizes of the checkpoint unless there are others, and its own dataset; it starts from no mapping."""
    own, method = experiments.load("bert_tiny"), TicketTraining()
    own = dataclasses.replace(
        own, model=BertConfig.tiny(hidden_size=24), weight_mapping=TakenLayers((0,)), compression=method
    )
    own = dataclasses.replace(own, data=dataclasses.replace(own.data, input=("raw.txt",)))
    source, compression = source_of(own), MovementPruning(sparsity=0.5)
    found = composed(source, compression, None, ["--training.steps", "3"], "command")
    data = dataclasses.replace(own.data, path="/runs/one/dataset", input=())
    training = dataclasses.replace(own.training, steps=3)
    changes = {"data": data, "training": training, "weight_mapping": WeightMapping(), "compression": compression}
    assert found == dataclasses.replace(own, **changes)
    named, smaller = experiments.load("finetune_sentences"), BertConfig.tiny(hidden_size=8)
    found = composed(source, compression, "finetune_sentences", [], "command", smaller)
    assert found.model == smaller and found.data == named.data and found.optimizer == named.optimizer
    assert composed(source, compression, "finetune_sentences", [], "command").model == own.model
    steps = dataclasses.replace(named.training, steps=50, evaluate_every=25)  # its epochs are counted anew
    tuned = dataclasses.replace(named, model=own.model, training=steps)
    assert named.finetuning.epochs and named.training.steps == 0
    assert composed(source_of(tuned), compression, None, [], "command").training.steps == 0
    mixed = dataclasses.replace(own, data=dataclasses.replace(own.data, mixture=Mixture(sources=("a=/a",))))
    assert composed(source_of(mixed), compression, None, [], "command").data.path == ""


def test_the_record_of_a_result_goes_back_to_the_first_checkpoint() -> None:
    first = ancestry.Ancestor("first", 3, "digest", "prune", {"method": "heads"})
    source = dataclasses.replace(source_of(Experiment(BertConfig.tiny(), None, None)), ancestors=[first])
    before, last = source.described("quantize", {"method": "dynamic"})
    assert before is first and source.ancestors == [first]
    digest = ancestry.digest(source.params)
    assert last == ancestry.Ancestor("named", 7, digest, "quantize", {"method": "dynamic"})


def test_examples_are_the_rows_of_the_run_in_its_own_order(small_run: Path) -> None:
    """Those of a mixture of one source are the same rows."""
    source = Source.read(small_run)
    run = source.description.experiment
    mixed = dataclasses.replace(run.data, mixture=Mixture(sources=(f"one={small_run / 'dataset'}",)))
    found = []
    for one in (run, run, experiments.override(run, ["--training.seed", "9"]), dataclasses.replace(run, data=mixed)):
        (phase,) = one.resolved_phases
        feed = examples_of(source, one)
        assert feed.vocabulary.size == run.model.vocab_size
        found.append(next(iter(feed.train(phase, 0, np.arange(phase.batch_size))))["input_ids"])
    np.testing.assert_array_equal(found[0], found[1])
    assert not np.array_equal(found[0], found[2]) and found[3].shape == found[0].shape


def test_examples_of_a_task_are_its_rows(task_run: Path) -> None:
    source = Source.read(task_run)
    run = source.description.experiment
    feed, (phase,) = examples_of(source, run), run.resolved_phases
    seen = {name for batch in itertools.islice(feed.train(phase, 0), 10) for name in np.ravel(batch["example_ids"])}
    assert seen - {-1} <= set(range(200)) and len(seen) > 100
