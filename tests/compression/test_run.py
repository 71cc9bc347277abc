"""From a checkpoint to the run that trains the smaller model, and to its result; the training itself is replaced."""

import dataclasses
from pathlib import Path
from typing import Any

import flax.traverse_util
import numpy as np
import pytest

from plmjax.compression import run as compressions
from plmjax.compression.pruning.pruned import MovementPruning, TicketTraining
from plmjax.compression.run import Source, train
from plmjax.experiment import Experiment
from plmjax.finetuning.tasks.sentences import Sentences
from plmjax.training.checkpoints import checkpoints


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


@pytest.mark.parametrize("path", ["", "elsewhere"])
def test_the_dataset_is_that_of_the_run_or_the_one_in_its_directory(path: str, small_run: Path) -> None:
    source = Source.read(small_run)
    run = source.description.experiment
    run = dataclasses.replace(run, data=dataclasses.replace(run.data, path=path))
    assert source.dataset(run) == (path or str(small_run / "dataset"))
