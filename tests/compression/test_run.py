"""From a checkpoint to the run that trains the smaller model, and to its result; the training itself is replaced."""

import dataclasses
import types
from pathlib import Path
from typing import Any

import flax.traverse_util
import numpy as np
import pytest

from plmjax import experiment as experiments
from plmjax.compression import run as compressions
from plmjax.compression.distillation.students import TakenLayers
from plmjax.compression.pruning.pruned import MovementPruning, TicketTraining
from plmjax.compression.run import Source, composed, train
from plmjax.errors import UserError
from plmjax.experiment import Experiment, Mixture, Start
from plmjax.finetuning.tasks.sentences import Sentences
from plmjax.models.bert import BertConfig
from plmjax.training.checkpoints import ancestry, checkpoints


def trained(source: Source, params: dict[str, np.ndarray], run: Experiment, workdir: Path) -> None:
    """Write what a training leaves in its folder."""
    tree = flax.traverse_util.unflatten_dict(params, sep="/")
    checkpoints.save_parameters(workdir, tree, run, source.description.tokenizer)


def test_scores_are_neither_decayed_nor_part_of_the_result(small_run: Path, tmp_path: Path, monkeypatch) -> None:
    """The half of the weights with the lower scores becomes 0; the settings are those of the experiment again."""
    source, draws, asked = Source.read(small_run), np.random.default_rng(0), []
    kernels = [path for path in source.params if "/layers/" in path and path.endswith("/kernel")]
    scores = {path: draws.normal(size=source.params[path].shape).astype(np.float32) for path in kernels}

    def pretrain(run: Experiment, workdir: Path, report: Any, start: Any) -> None:
        asked.append((run, start))
        added = {f"compression/scores/{path}": one for path, one in scores.items()}
        trained(source, source.params | added, run, workdir)

    monkeypatch.setattr(compressions, "pretrain", pretrain)
    own = source.description.experiment
    params, result = train(source, dataclasses.replace(own, compression=MovementPruning(sparsity=0.5)), tmp_path)
    ((run, start),) = asked
    assert start == source.directory
    assert run.optimizer.decay_exclude == (*own.optimizer.decay_exclude, "compression/scores")
    assert result == own and params.keys() == source.params.keys()
    for path in kernels:
        (kernel,), (score,) = params[path], scores[path]
        kept = score >= np.sort(score, axis=None)[score.size // 2]
        np.testing.assert_array_equal(kernel, np.where(kept, source.params[path][0], 0))


def test_a_task_begins_with_the_checkpoint_that_is_named(small_run: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    source, asked = Source.read(small_run), []

    def finetune(run: Experiment, start: Any, workdir: Path) -> dict[str, float]:
        asked.append((start, workdir))
        trained(source, source.params, run, workdir)
        return {"eval/accuracy": 0.51237}

    monkeypatch.setattr(compressions, "finetune", finetune)
    run = dataclasses.replace(source.description.experiment, data=Sentences(), compression=TicketTraining())
    _, result = train(source, run, tmp_path / "out", tmp_path / "ticket")
    assert asked == [(tmp_path / "ticket", tmp_path / "out" / "training")]
    assert result.compression is None and '"eval/accuracy": 0.5124' in capsys.readouterr().out


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
    (tmp_path / "training" / compressions.SOURCE).write_text("{")
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
    own = dataclasses.replace(own, model=BertConfig.tiny(hidden_size=24), start=TakenLayers((0,)), compression=method)
    own = dataclasses.replace(own, data=dataclasses.replace(own.data, input=("raw.txt",)))
    source, compression = source_of(own), MovementPruning(sparsity=0.5)
    found = composed(source, compression, None, ["--training.steps", "3"], "command")
    data = dataclasses.replace(own.data, path="/runs/one/dataset", input=())
    training = dataclasses.replace(own.training, steps=3)
    changes = {"data": data, "training": training, "start": Start(), "compression": compression}
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


@pytest.mark.parametrize(
    ("given", "trained", "expected"),
    [
        ({}, None, ("its statistics", "its constants")),
        ({}, "those of its training", ("its statistics", "those of its training")),
        ({"constants": ()}, "those of its training", ("its statistics", ())),
        ({"collections": "others", "constants": "given"}, "those of its training", ("others", "given")),
    ],
)
def test_statistics_and_constants_of_a_result(given: dict, trained: Any, expected: tuple, monkeypatch) -> None:
    """They are those that are given, of the run that trained it, or of the source; scores are left out."""
    written = []
    monkeypatch.setattr(
        compressions.checkpoints,
        "read_constants",
        lambda folder: trained if folder == Path("/out/training") else "of another folder",
    )
    monkeypatch.setattr(compressions.checkpoints, "save_parameters", lambda *arguments: written.append(arguments))
    run = experiments.load("bert_tiny")
    source = source_of(run)
    params = {"bert/kernel": np.float32([0, 0, 5]), "compression/scores": np.ones(9)}
    said = compressions.write(Path("/out"), source, params, run, "prune", {"sparsity": 0.5}, **given)
    ((output, tree, *rest, (record,)),) = written
    assert output == Path("/out") and tree.keys() == {"bert"}
    assert rest == [run, source.description.tokenizer, *expected]
    assert (record.checkpoint, record.step, record.by, record.settings) == ("named", 7, "prune", {"sparsity": 0.5})
    assert said == "4 parameters became 3, of which 1 are not zero (33.3% of 3)"


def test_the_record_of_a_result_goes_back_to_the_first_checkpoint() -> None:
    first = ancestry.Ancestor("first", 3, "digest", "prune", {"method": "heads"})
    source = dataclasses.replace(source_of(Experiment(BertConfig.tiny(), None, None)), ancestors=[first])
    before, last = source.described("quantize", {"method": "dynamic"})
    assert before is first and source.ancestors == [first]
    digest = ancestry.digest(source.params)
    assert last == ancestry.Ancestor("named", 7, digest, "quantize", {"method": "dynamic"})
