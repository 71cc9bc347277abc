"""Recipes in stages: phases that change the rate of masks, theta, schedule and text; a decay from a kept checkpoint."""

import dataclasses
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from plmjax.commands import cli
from plmjax.errors import UserError
from plmjax.experiment import Checkpoint, Data, Experiment, Phase, Tokenizer, load
from plmjax.runs.pretraining import pretrain
from plmjax.training import metrics
from plmjax.training.checkpoints import checkpoints
from plmjax.training.optimizers import StableAdamW
from plmjax.training.optimizers.schedules import WarmupStableDecay
from tests.third_party import experiments

pytestmark = pytest.mark.usefixtures("without_export_and_masks")  # but for `staged`, whose export is read
DECAY = "optimizer.schedule.decay_fraction=1"


def stages(prose: Path, *phases: Phase, steps: int = 0) -> Experiment:
    run = experiments.changed(
        experiments.modernbert(),
        model={"vocab_size": 80, "num_hidden_layers": 1, "num_attention_heads": 1},
        training={"steps": steps, "log_every": 1, "batch_size": 4, "evaluation_batches": 2, "platform": "cpu"},
        mesh={"data": 1},
    )
    return dataclasses.replace(
        run,
        tokenizer=Tokenizer(kind="byte-bpe", vocab_size=300),
        model=dataclasses.replace(run.model, vocab_size=300, pad_token_id=1, bos_token_id=0, eos_token_id=2),
        data=dataclasses.replace(run.data, input=(str(prose),)),
        optimizer=StableAdamW(1e-3, WarmupStableDecay(warmup_steps=2)),
        checkpoint=Checkpoint(every=2, keep=0),
        phases=phases,
    )


@pytest.fixture(scope="module")
def staged(prose: Path, tmp_path_factory) -> Path:
    """A run of three phases: masks, theta, and a decay."""
    workdir = tmp_path_factory.mktemp("staged")
    phases = (
        Phase(steps=4),
        Phase(steps=2, changes=("model.global_rope_theta=90000", "objective.rate=0.4", "optimizer.learning_rate=1e-4")),
        Phase(steps=4, changes=("model.global_rope_theta=90000", DECAY, "optimizer.schedule.warmup_steps=0")),
    )
    pretrain(stages(prose, *phases), workdir, report=lambda line: None)
    return workdir


def test_every_phase_has_its_rate_and_its_model(staged: Path) -> None:
    rates = [line["learning_rate"] for line in metrics.read(staged / "metrics.jsonl") if "learning_rate" in line]
    stable, restarted, decay = [0, 5e-4, 1e-3, 1e-3], [0, 5e-5], [1e-3, 7.5e-4, 5e-4, 2.5e-4]
    np.testing.assert_allclose(rates, stable + restarted + decay, rtol=1e-6)
    thetas = {step: checkpoints.describe(staged / "checkpoints" / str(step)).experiment.model for step in (4, 6, 10)}
    assert {step: model.global_rope_theta for step, model in thetas.items()} == {4: 160_000, 6: 90_000, 10: 90_000}
    assert '"rope_theta": 90000' in (staged / "export" / "config.json").read_text()


@pytest.mark.parametrize("step", [8, *(pytest.param(step, marks=pytest.mark.nightly) for step in (2, 4, 6))])
def test_a_run_that_is_killed_in_any_phase_ends_in_the_same_bits(staged: Path, tmp_path: Path, step: int) -> None:
    again = tmp_path / "again"
    shutil.copytree(staged, again)
    for later in (again / "checkpoints").iterdir():
        if int(later.name) > step:
            shutil.rmtree(later)
    pretrain(load(str(staged)), again, report=lambda line: None)
    assert_same(staged, again)


def assert_same(first: Path, second: Path) -> None:
    """The parameters of the last checkpoints are equal to the bit."""
    one, other = (checkpoints.load_parameters(each)[0] for each in (first, second))
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_a_kept_checkpoint_is_continued_to_the_bit_and_decays_later(prose: Path, tmp_path: Path, fails, capsys) -> None:
    stable = tmp_path / "stable"
    pretrain(stages(prose, steps=6), stable, report=lambda line: None)
    same, again = tmp_path / "same", ["--continue_from", str(stable / "checkpoints" / "4")]
    cli.run(["pretrain", str(stable), *again, "--workdir", str(same)])
    assert_same(stable, same)

    decayed = ["--training.steps", "8", "--optimizer.schedule.decay_steps", "4", "--workdir", str(tmp_path / "decay")]
    capsys.readouterr()
    cli.run(["pretrain", str(stable), *again, *decayed])
    said = capsys.readouterr().out
    assert "to step 8, learning rate 1.00e-03 -> 1.00e-03; optimizer.schedule.decay_steps 0 -> 4\n" in said
    lines = metrics.read(tmp_path / "decay" / "metrics.jsonl")
    found = {line["step"]: line["learning_rate"] for line in lines if "learning_rate" in line}
    assert found == pytest.approx({5: 1e-3, 6: 7.5e-4, 7: 5e-4, 8: 2.5e-4})

    started = ["pretrain", tmp_path / "decay", "--workdir", tmp_path / "other", "--continue_from"]
    assert "ends at step 4, found step 6, which already decays" in fails(*started, tmp_path / "decay/checkpoints/6")
    assert "--training.steps above 6, the step of" in fails(*started, stable, "--training.steps", "5")
    assert "take that one, or start a new optimizer with --from" in fails(*started, stable, "--optimizer", "adamw")
    assert "--from and --continue_from exclude each other" in fails(*started, stable, "--from", stable)
    assert f"(--continue_from {stable / 'checkpoints' / '4'})" in fails("pretrain", stable, "--workdir", same)


@pytest.mark.nightly
def test_a_phase_reads_a_text_of_its_own(staged: Path, prose: Path, tmp_path: Path, fails) -> None:
    text = tmp_path / "words.txt"
    text.write_text("\n\n".join(f"again and again the same words {n % 9}" for n in range(900)), encoding="utf-8")
    where = ["--held_out", "0.2", "--tokenizer", staged / "tokenizer", "--output", tmp_path / "words"]
    cli.run(["prepare", "--format", "text", "--input", str(text), *map(str, where)])
    own = Phase(steps=4, changes=(f"data.path={tmp_path / 'words'}",))
    run = dataclasses.replace(stages(prose, Phase(steps=2), own), tokenizer=Tokenizer(path=str(staged / "tokenizer")))
    result = pretrain(run, tmp_path / "run", report=lambda line: None)
    evaluated = [line for line in metrics.read(tmp_path / "run" / "metrics.jsonl") if "eval/unigram_entropy" in line]
    assert evaluated[-1]["eval/unigram_entropy"] < 3.5  # of the words; that of the prose is above 4.5
    assert result.program.experiment.data.path == str(tmp_path / "words")
    missing = dataclasses.replace(run, phases=(Phase(steps=2), Phase(steps=2, changes=("data.path=nowhere",))))
    with pytest.raises(UserError, match="nowhere"):
        pretrain(missing, tmp_path / "none", report=lambda line: None)


def test_a_phase_keeps_the_shapes_of_its_state(prose: Path, tmp_path: Path) -> None:
    changes = {
        "model.hidden_size=32": r"found params/\S+ of shape .*32.*, before .*16",
        "optimizer.schedule=plateau": r"found optimizer_state/\S+ of shape ",
    }
    for change, found in changes.items():
        run = stages(prose, Phase(steps=2), Phase(steps=2, changes=(change,)))
        with pytest.raises(UserError, match=f"changes that keep parameters and optimizer state, {found}"):
            pretrain(run, tmp_path / "run", report=lambda line: None)
        assert isinstance(run.data, Data) and not (tmp_path / "run" / "dataset").exists()
