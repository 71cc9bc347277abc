"""Pretraining on a mixture: interrupted, resumed with another mixture, evaluated, and every mistake in one sentence."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import numpy as np
import pytest

from plmjax.commands import cli
from plmjax.compression.examples import examples_of
from plmjax.compression.pruning.pruned import Pruning
from plmjax.compression.run import Source, compose_experiment
from plmjax.data.mixture import MixtureSource
from plmjax.runs import bench, mixtures
from plmjax.training.checkpoints import checkpoints
from plmjax.training.metrics import read
from tests.conftest import on_one_device
from tests.metric_names import undocumented
from tests.small_runs import SMALL_BERT

TINY = "experiments/bert_tiny.py"
pytestmark = pytest.mark.usefixtures("without_export_and_masks")


class Preempted(Exception):
    """Ends a run from within."""


@pytest.fixture(scope="module")
def folder(prose: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two datasets of one tokenizer, a third and a fourth of another one each."""
    folder = tmp_path_factory.mktemp("sources")
    texts = prose.read_text(encoding="utf-8").split("\n\n")
    parts = {"manual": texts[: len(texts) // 2], "more": texts[len(texts) // 2 :], "late": texts[:150]}
    for name, part in parts.items():
        (folder / f"{name}.txt").write_text("\n\n".join(part), encoding="utf-8")
    for tokenizer, size in (("own", "800"), ("other", "700")):
        text = ["--input", str(prose), "--output", str(folder / tokenizer)]
        cli.run(["tokenizer", "train", "--kind", "wordpiece", "--vocab_size", size, *text])
    for name, tokenizer in (("manual", "own"), ("more", "own"), ("late", "own"), ("foreign", "other")):
        text = ["--input", str(folder / f"{'late' if name == 'foreign' else name}.txt"), "--output", str(folder / name)]
        cli.run(["prepare", *text, "--tokenizer", str(folder / tokenizer)])
    return folder


def command(folder: Path, workdir: Path, *options: str, sources: tuple[str, ...] = ("manual", "more")) -> list[str]:
    named = [f"{name}={folder / name}" for name in sources]
    small = ["--data.mixture.sources", *named, *SMALL_BERT, "--training.log_every", "1"]
    return ["pretrain", TINY, "--workdir", str(workdir), *small, *options]


def weights(manual: float, more: float) -> list[str]:
    return ["--data.mixture.weights", f"manual={manual:g}", f"more={more:g}"]


def preempted(run: Callable[[], None], steps: int) -> None:
    """Run a command that is stopped after a number of batches, without a checkpoint of its last steps."""
    train = MixtureSource.train

    def short(*arguments: object) -> Iterator[dict[str, np.ndarray]]:
        batches = train(*arguments)
        for _ in range(steps):
            yield next(batches)
        batches.close()
        raise Preempted

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Preempted), on_one_device():
        patch.setattr(MixtureSource, "train", short)
        run()


@pytest.fixture(scope="module")
def stopped(folder: Path) -> Path:
    """A run with weights 3 and 1 whose last checkpoint is of step 3 of 6."""
    preempted(lambda: cli.run(command(folder, folder / "stopped", *weights(3, 1))), 5)
    assert checkpoints.describe(checkpoints.find(folder / "stopped")).step == 3
    return folder / "stopped"


@pytest.mark.nightly
def test_a_resumed_run_is_the_run_that_nothing_stopped(stopped: Path, folder: Path, tmp_path: Path, capsys) -> None:
    shutil.copytree(stopped, tmp_path / "resumed")
    with on_one_device():
        cli.run(command(folder, tmp_path / "resumed", *weights(3, 1)))
        assert "changed after step" not in capsys.readouterr().out
        cli.run(command(folder, tmp_path / "whole", *weights(3, 1)))
    said = capsys.readouterr().out
    assert "mixture    manual 75.00% of the rows, 0 epochs read; more 25.00% of the rows, 0 epochs read\n" in said
    ended = [checkpoints.load_parameters(checkpoints.find(tmp_path / name))[0] for name in ("resumed", "whole")]
    for one, other in zip(*map(jax.tree.leaves, ended), strict=True):
        np.testing.assert_array_equal(one, other)
    for name in ("resumed", "whole"):
        logged = [record for record in read(tmp_path / name / "metrics.jsonl") if "train/loss" in record]
        assert [record["step"] for record in logged] == [1, 2, 3, 4, 5, 6]
        assert not undocumented(logged[0])
        for record in logged:
            assert record["mixture/manual/share"] == 0.75 and record["mixture/more/share"] == 0.25
        epochs = [record["mixture/more/epochs"] for record in logged]
        np.testing.assert_allclose(np.divide(epochs, epochs[0]), range(1, 7))


@pytest.mark.nightly
def test_a_run_that_resumes_with_another_mixture(stopped: Path, folder: Path, tmp_path: Path, capsys, fails) -> None:
    run = tmp_path / "run"
    shutil.copytree(stopped, run)
    capsys.readouterr()
    with on_one_device():
        cli.run(command(folder, run, *weights(1, 3)))
        said = capsys.readouterr().out
        assert "mixture    changed after step 3: manual 75.00% -> 25.00%, more 25.00% -> 75.00%\n" in said
        assert "mixture    manual 50.00% of the rows" in said  # at the end, of all six steps
        logged = {record["step"]: record for record in read(run / "metrics.jsonl") if "train/loss" in record}
        assert logged[3]["mixture/manual/share"] == 0.75 and logged[6]["mixture/manual/share"] == 0.5
        assert logged[6]["mixture/manual/epochs"] / logged[3]["mixture/manual/epochs"] == pytest.approx(48 / 36)
        assert logged[6]["mixture/more/epochs"] / logged[3]["mixture/more/epochs"] == pytest.approx(48 / 12)
        others = ["--training.steps", "8", "--data.mixture.temperature", "inf"]
        cli.run(command(folder, run, *others, sources=("more", "late")))
    said = capsys.readouterr().out
    assert "changed after step 6: manual leaves with 25.00%, more 75.00% -> 50.00%, late joins with 50.00%\n" in said
    record = json.loads((run / "mixture.json").read_text())
    assert [stage["first_step"] for stage in record["stages"]] == [0, 3, 6]
    assert record["stages"][2]["rows"] == {"more": 1, "late": 1}
    assert set(record["sources"]) == {"manual", "more", "late"}
    assert checkpoints.describe(checkpoints.find(run)).step == 8
    last = [record for record in read(run / "metrics.jsonl") if "train/loss" in record][-1]
    assert last["mixture/more/share"] == (48 + 16) / 128 and last["mixture/late/share"] == 16 / 128
    again = command(folder, run, "--training.steps", "9", sources=())
    swapped = ["--data.mixture.sources", f"more={folder / 'late'}"]
    assert "has read as the source more, found another one; name that" in fails(*again[:4], *swapped, *again[5:])
    shutil.move(run / "mixture.json", tmp_path / "away.json")
    assert "Expected a run on a mixture in" in fails(*command(folder, run, *weights(1, 3)))
    said = fails("pretrain", TINY, *SMALL_BERT, "--workdir", stopped, "--data.path", folder / "manual")
    assert "Expected --data.mixture.sources for the run in" in said and "found none" in said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (weights(0, 1), "Expected --data.mixture.weights above 0, found 'manual=0'"),
        (["--data.mixture.weights", "manual=1", "mode=1"], "found 'mode=1'; did you mean 'more'?"),
        (["--data.mixture.weights", "manual=1"], "of every source, found none of more"),
        (["--data.mixture.temperature", "0.5"], "--data.mixture.temperature of at least 1, found 0.5"),
        (["--data.path", "x"], "Expected --data.mixture.sources alone, found --data.path too"),
        (["--data.mixture.sources", "manual"], "form NAME=FOLDER, every name once, found 'manual'"),
        (["--data.mixture.sources", "manual=none"], "Expected a prepared dataset at none, found no folder"),
    ],
    ids=str,
)
def test_mistakes(options: list[str], message: str, folder: Path, tmp_path: Path, fails) -> None:
    whole = command(folder, tmp_path / "run", *options)
    if options[0] == "--data.mixture.sources":
        del whole[4:7]
    assert message in fails(*whole)
    assert not (tmp_path / "run" / "experiment.json").exists()


def test_sources_that_do_not_fit_together(folder: Path, tmp_path: Path, fails) -> None:
    said = fails(*command(folder, tmp_path / "run", sources=("manual", "foreign")))
    assert "Expected a dataset made with the source manual's tokenizer, found" in said
    streams = ["pretrain", "experiments/transformer_xl_tiny.py", "--workdir", tmp_path / "run"]
    said = fails(*streams, "--data.mixture.sources", f"manual={folder / 'manual'}")
    assert "Expected a layout of shuffled rows for a mixture, found ContiguousStreams" in said


@pytest.mark.nightly
def test_other_commands_read_the_mixture_of_a_run(stopped: Path, folder: Path, capsys) -> None:
    capsys.readouterr()
    cli.run(["evaluate", str(stopped), "--json"])
    mixed = json.loads(capsys.readouterr().out)
    assert np.isfinite(mixed["eval/loss"]) and mixed["eval/unknown_tokens"] == 0
    whole = [record for record in read(stopped / "metrics.jsonl") if "eval/loss" in record][-1]
    assert whole["step"] == 3 and whole["eval/loss"] == pytest.approx(mixed["eval/loss"], rel=0.05)
    origin = Source.read(stopped)
    run = compose_experiment(origin, Pruning(), None, overrides=[])
    assert run.data.path == "" and list(run.data.mixture.paths) == ["manual", "more"]
    rows = examples_of(origin, run)
    assert rows.fingerprint == mixtures.read(stopped).fingerprint
    (record,) = bench.bench(origin.description.experiment, steps=1, warmup=0)
    assert record["input"] == "dataset"
