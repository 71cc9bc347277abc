"""`plmjax compress prune`: each method from a checkpoint to a run that the other commands take."""

import dataclasses
import json
from pathlib import Path

import flax.traverse_util
import numpy as np
import pytest

from plmjax.commands import cli
from plmjax.compression.pruning.pruned import MovementPruning
from plmjax.compression.run import Source, write
from plmjax.errors import UserError
from plmjax.objectives.distilbert import DistilBertPretraining
from plmjax.training.checkpoints import checkpoints

TRAINED = ["--training.steps", "4", "--training.evaluate_every", "0", "--checkpoint.every", "0"]


def flat(run: Path) -> dict[str, np.ndarray]:
    return flax.traverse_util.flatten_dict(checkpoints.load_parameters(run)[0], sep="/")


def density(params: dict[str, np.ndarray]) -> float:
    kernels = [value for path, value in params.items() if "/layers/" in path and path.endswith("/kernel")]
    return sum(np.count_nonzero(value) for value in kernels) / sum(value.size for value in kernels)


@pytest.mark.nightly  # by day each rule has its steps in pruning, and distillation/test_distil.py trains by a command
@pytest.mark.parametrize("method", ["movement", "block_movement", "lottery"])
def test_methods_that_train(method: str, small_run: Path, tmp_path: Path) -> None:
    output, early, late = tmp_path / "pruned", *(small_run / "checkpoints" / step for step in ("3", "6"))
    options = {
        "movement": ["--sparsity", "0.3", "--compression.begin", "0.25"], "lottery": ["--rewind", str(early)],
    }.get(method, [])  # fmt: skip
    cli.run(["compress", "prune", str(small_run), "--output", str(output), "--method", method, *options, *TRAINED])
    params, run = flat(output), checkpoints.describe(checkpoints.find(output)).experiment
    (record,) = json.loads((output / "ancestry.json").read_text())["ancestors"]
    assert run.compression is None and not any(path.startswith("compression") for path in params)
    assert "compression/scores" not in run.optimizer.decay_exclude
    trained = flat(output / "training")
    assert any(path.startswith("compression/scores/") for path in trained) == ("movement" in method)
    optimizer = checkpoints.describe(checkpoints.find(output / "training")).experiment.optimizer
    assert ("compression/scores" in optimizer.decay_exclude) == ("movement" in method)
    if method == "block_movement":
        assert run.model.layer_heads == (1,) and run.model.layer_widths == (32,)
    elif method == "movement":
        assert density(params) == pytest.approx(0.7, abs=0.01)
        assert (record["settings"]["sparsity"], record["settings"]["begin"]) == (0.3, 0.25)
        own = checkpoints.describe(late).experiment
        assert (run.model, run.optimizer, run.weight_mapping) == (own.model, own.optimizer, own.weight_mapping)
        assert run.training.steps == 4 and run.data.path == str(small_run / "dataset")
    else:
        assert density(params) == density(flat(output / "ticket")) == pytest.approx(0.5, abs=0.01)
        before = flat(early)
        for path, value in flat(output / "ticket").items():
            np.testing.assert_array_equal(value[value != 0], before[path][value != 0])
    again = ["compress", "prune", str(output / "training"), "--output", str(tmp_path / "again")]
    with pytest.raises(UserError, match="found the run that trains it"):
        cli.run(again)
    if method != "movement":  # whose result has the form of the one above
        cli.run(["evaluate", str(output), "--data", str(small_run / "dataset")])
        cli.run(["fill-mask", str(output), "the [MASK] of"])


def test_scores_learn_at_their_own_rate() -> None:
    """Beside a rate of 2e-3 a factor of 5 makes 1e-2."""
    assert MovementPruning(scores_learning_rate=1e-2).rate_factors(2e-3) == {"compression/scores": pytest.approx(5.0)}


def test_a_run_is_pruned_twice_and_its_constants_stay_with_it(small_run: Path, tmp_path: Path) -> None:
    """The weights by which an objective hides tokens; without them the result could not be evaluated."""
    params, description = checkpoints.load_parameters(small_run)
    run = dataclasses.replace(description.experiment, objective=DistilBertPretraining())
    constants = {"log_weights": np.arange(run.model.vocab_size, dtype=np.float32)}
    checkpoints.save_parameters(tmp_path / "run", params, run, tokenizer=description.tokenizer, constants=constants)
    for source, sparsity in (("run", 0.25), ("0.25", 0.5)):
        named = ["--output", str(tmp_path / str(sparsity)), "--sparsity", str(sparsity)]
        cli.run(["compress", "prune", str(tmp_path / source), *named])
        assert density(flat(tmp_path / str(sparsity))) == pytest.approx(1 - sparsity, abs=0.01)
    kept = checkpoints.read_constants(tmp_path / "0.5")
    np.testing.assert_array_equal(kept["log_weights"], constants["log_weights"])
    record = json.loads((tmp_path / "0.5" / "ancestry.json").read_text())["ancestors"]
    assert [one["settings"] for one in record] == [{"method": "magnitude", "sparsity": share} for share in (0.25, 0.5)]
    assert [one["from"] for one in record] == [str(tmp_path / name) for name in ("run", "0.25")]
    # Those of the run that trained the result come before those of its source.
    own, trained = {"log_weights": constants["log_weights"] + 1}, tmp_path / "own" / "training"
    checkpoints.save_parameters(trained, params, run, tokenizer=description.tokenizer, constants=own)
    source = Source.read(tmp_path / "run")
    write(tmp_path / "own", source, source.params, run=run, by="prune", settings={})
    np.testing.assert_array_equal(checkpoints.read_constants(tmp_path / "own")["log_weights"], own["log_weights"])
