"""`plmjax compress prune`: each method from a checkpoint to a run that the other commands take."""

import dataclasses
import json
from pathlib import Path

import flax.traverse_util
import numpy as np
import pytest

from plmjax import experiment as experiments
from plmjax.commands import cli
from plmjax.compression.pruning import command
from plmjax.compression.pruning.command import _ticket
from plmjax.compression.pruning.pruned import MovementPruning, TicketTraining
from plmjax.compression.run import Source, write
from plmjax.contracts.model_config import ModelConfig
from plmjax.errors import UserError
from plmjax.experiment import Experiment, Start
from plmjax.objectives.distilbert import DistilBertPretraining
from plmjax.training.checkpoints import checkpoints

TRAINED = ["--training.steps", "4", "--training.evaluate_every", "0", "--checkpoint.every", "0"]


def flat(run: Path) -> dict[str, np.ndarray]:
    return flax.traverse_util.flatten_dict(checkpoints.load_parameters(run)[0], sep="/")


def density(params: dict[str, np.ndarray]) -> float:
    kernels = [value for path, value in params.items() if "/layers/" in path and path.endswith("/kernel")]
    return sum(np.count_nonzero(value) for value in kernels) / sum(value.size for value in kernels)


@pytest.mark.nightly
def test_a_pruned_run_is_a_run(small_run: Path, tmp_path: Path, capsys) -> None:
    """Evaluated, exported, and pruned again, with the record of both commands."""
    output = tmp_path / "sparse"
    cli.run(["compress", "prune", str(small_run), "--output", str(output), "--sparsity", "0.25"])
    assert "parameters became" in capsys.readouterr().out
    assert density(flat(output)) == pytest.approx(0.75, abs=0.01)
    cli.run(["evaluate", str(output), "--data", str(small_run / "dataset"), "--json"])
    assert json.loads(capsys.readouterr().out)["eval/loss"] > 0
    cli.run(["export", str(output), str(tmp_path / "exported")])
    again = tmp_path / "sparser"
    cli.run(["compress", "prune", str(output), "--output", str(again), "--method", "two_of_four"])
    assert density(flat(again)) <= 0.5
    record = json.loads((again / "ancestry.json").read_text())["ancestors"]
    assert [one["settings"]["method"] for one in record] == ["magnitude", "two_of_four"]
    assert record[0]["from"] == str(small_run) and record[1]["from"] == str(output) and len(record[1]["sha256"]) == 64


@pytest.mark.nightly
@pytest.mark.parametrize("method", ["block_movement", "lottery"])
def test_methods_that_train(method: str, small_run: Path, tmp_path: Path, capsys) -> None:
    output = tmp_path / "pruned"
    command = ["compress", "prune", str(small_run), "--output", str(output), "--method", method, *TRAINED]
    cli.run(command)
    capsys.readouterr()
    params, run = flat(output), checkpoints.describe(checkpoints.find(output)).experiment
    assert run.compression is None and not any(path.startswith("compression") for path in params)
    assert "compression/scores" not in run.optimizer.decay_exclude
    trained = flat(output / "training")
    assert any(path.startswith("compression/scores/") for path in trained) == ("movement" in method)
    optimizer = checkpoints.describe(checkpoints.find(output / "training")).experiment.optimizer
    assert ("compression/scores" in optimizer.decay_exclude) == ("movement" in method)
    if method == "block_movement":
        assert run.model.layer_heads == (1,) and run.model.layer_widths == (32,)
    else:
        assert density(params) == pytest.approx(0.5, abs=0.01)
    again = ["compress", "prune", str(output / "training"), "--output", str(tmp_path / "again")]
    with pytest.raises(UserError, match="found the run that trains it"):
        cli.run(again)
    cli.run(["evaluate", str(output), "--data", str(small_run / "dataset")])
    cli.run(["fill-mask", str(output), "the [MASK] of"])


def test_a_command_trains_with_its_settings(small_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the checkpoint itself, or from a ticket of that sparsity; options come after the command's own settings."""
    asked = []

    def train(source: Source, run: Experiment, output: Path, start: Path | None) -> tuple[dict, Experiment]:
        asked.append((run, start))
        return source.params, dataclasses.replace(run, compression=None)

    monkeypatch.setattr(command, "train", train)
    options = {"experiment": "bert_tiny", "overrides": ["--compression.begin", "0.25", "--training.steps", "7"]}
    command.prune(small_run, tmp_path / "moved", "movement", 0.3, **options)
    command.prune(small_run, tmp_path / "won", "lottery", 0.3)
    (moved, start), (won, ticket) = asked
    assert moved.compression == MovementPruning(sparsity=0.3, begin=0.25) and start is None
    assert moved.training.steps == 7 and moved.training.batch_size == experiments.load("bert_tiny").training.batch_size
    assert moved.model == won.model == checkpoints.describe(checkpoints.find(small_run)).experiment.model
    # On the dataset of the checkpoint's run, or on that of the named experiment.
    assert (won.data.path, won.data.input) == (str(small_run / "dataset"), ()) and won.start == Start()
    assert moved.data == experiments.load("bert_tiny").data
    assert won.compression == TicketTraining() and density(flat(ticket)) == pytest.approx(0.7, abs=0.01)
    (record,) = json.loads((tmp_path / "moved" / "ancestry.json").read_text())["ancestors"]
    assert (record["settings"]["sparsity"], record["settings"]["begin"]) == (0.3, 0.25)


def test_heads_are_measured_as_often_as_the_command_says(small_run: Path, tmp_path: Path, monkeypatch) -> None:
    asked = []

    def measured(source: Source, run: Experiment, share: float, **counts: int) -> tuple[dict, ModelConfig]:
        asked.append((share, counts))
        return source.params, run.model

    monkeypatch.setattr(command.heads, "without_least_important", measured)
    command.prune(small_run, tmp_path / "one", "heads", 0.25, rows=3, rounds=2)
    command.prune(small_run, tmp_path / "two", "heads")
    assert asked == [(0.25, {"rows": 3, "rounds": 2}), (0.5, {"rows": 256, "rounds": 1})]


@pytest.mark.parametrize(
    ("method", "read"),
    [
        ("magnitude", {"sparsity"}), ("two_of_four", set()), ("heads", {"sparsity", "rows", "rounds"}),
        ("gradual", {"sparsity"}), ("movement", {"sparsity"}), ("soft_movement", set()),
        ("block_movement", {"sparsity"}), ("lottery", {"sparsity", "rewind"}),
    ],
)  # fmt: skip
def test_a_method_reads_its_own_options_alone(method: str, read: set[str]) -> None:
    options = {"sparsity": 0.3, "rows": 3, "rounds": 2, "rewind": Path("run")}
    command._check_options(method, {name: value if name in read else None for name, value in options.items()})
    for name in options.keys() - read:
        with pytest.raises(UserError, match=f"Expected --{name} only with --method"):
            command._check_options(method, {name: options[name]})


def test_scores_learn_at_their_own_rate() -> None:
    """Beside a rate of 2e-3 a factor of 5 makes 1e-2."""
    assert MovementPruning(scores_learning_rate=1e-2).rates(2e-3) == {"compression/scores": pytest.approx(5.0)}


def test_a_ticket_has_the_weights_of_an_earlier_checkpoint(small_run: Path, tmp_path: Path) -> None:
    """Those that were the largest in the end."""
    early, late = sorted((small_run / "checkpoints").iterdir(), key=lambda folder: int(folder.name))
    source = Source.read(late)
    found = flat(_ticket(source, source.description.experiment, 0.5, early, tmp_path))
    before, trained = flat(early), flat(late)
    assert density(found) == pytest.approx(0.5, abs=0.01)
    for path, value in found.items():
        if "/layers/" in path and path.endswith("/kernel"):
            kept = value != 0
            np.testing.assert_array_equal(value[kept], before[path][kept])
            assert np.abs(trained[path][kept]).min() > np.abs(trained[path][~kept]).max()
        else:
            np.testing.assert_array_equal(value, before[path])


@pytest.mark.nightly
def test_heads_are_removed(small_run: Path, tmp_path: Path) -> None:
    command = ["compress", "prune", str(small_run), "--output", str(tmp_path / "heads"), "--method", "heads"]
    cli.run([*command, "--sparsity", "0.5", "--rows", "3"])
    run = checkpoints.describe(checkpoints.find(tmp_path / "heads")).experiment
    assert run.model.layer_heads == (1,) and run.model.layer_widths == (64,)


def test_the_constants_of_a_run_stay_with_it(small_run: Path, tmp_path: Path) -> None:
    """The weights by which an objective hides tokens; without them the result could not be evaluated."""
    params, description = checkpoints.load_parameters(small_run)
    run = dataclasses.replace(description.experiment, objective=DistilBertPretraining())
    constants = {"log_weights": np.arange(run.model.vocab_size, dtype=np.float32)}
    checkpoints.save_parameters(tmp_path / "run", params, run, description.tokenizer, constants=constants)
    cli.run(["compress", "prune", str(tmp_path / "run"), "--output", str(tmp_path / "sparse")])
    kept = checkpoints.read_constants(tmp_path / "sparse")
    np.testing.assert_array_equal(kept["log_weights"], constants["log_weights"])
    # Those of the run that trained the result come before those of its source.
    own = {"log_weights": constants["log_weights"] + 1}
    checkpoints.save_parameters(tmp_path / "own" / "training", params, run, description.tokenizer, constants=own)
    source = Source.read(tmp_path / "run")
    write(tmp_path / "own", source, source.params, run, "prune", {})
    kept = checkpoints.read_constants(tmp_path / "own")
    np.testing.assert_array_equal(kept["log_weights"], own["log_weights"])


@pytest.mark.nightly
def test_mistakes(fails, small_run: Path, decoder_run: Path, tmp_path: Path) -> None:
    def said(*arguments: object, checkpoint: Path = small_run) -> str:
        return fails("compress", "prune", checkpoint, "--output", tmp_path / "out", *arguments)

    assert "found 'magnitud'; did you mean 'magnitude'?" in said("--method", "magnitud")
    assert "--sparsity above 0 and below 1, found 1.5" in said("--sparsity", 1.5)
    assert "--rewind only with --method lottery" in said("--rewind", small_run)
    assert "--rows only with --method heads, found --method magnitude" in said("--rows", 3)
    assert "--sparsity only with --method magnitude, heads" in said("--method", "two_of_four", "--sparsity", 0.3)
    assert "--rows and --rounds of at least 1, found 0" in said("--method", "heads", "--rows", 0)
    assert "found '--compression.begin'" in said("--method", "lottery", "--compression.begin", 0.2)
    assert "with --method magnitude, which does not train" in said("--training.steps", 3)
    assert "Expected a BERT, a DistilBERT or a RoBERTa" in said("--method", "heads", checkpoint=decoder_run)
    assert "Expected a checkpoint with the settings of a training" in said(
        "--method", "gradual", checkpoint=decoder_run
    )
    assert "begin and --compression.end in their order" in said("--method", "gradual", "--compression.begin", 0.9)
    assert "found no finished checkpoint" in said(checkpoint=tmp_path)
    assert "prune" in fails("compress", "prun")
    cli.run(["compress", "prune", str(small_run), "--output", str(tmp_path / "half")])
    assert "above that of the checkpoint, 0.500, found 0.2" in said("--sparsity", 0.2, checkpoint=tmp_path / "half")
    assert "found one; name another folder" in fails("compress", "prune", small_run, "--output", tmp_path / "half")
