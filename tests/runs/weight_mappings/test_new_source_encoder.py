"""BART's translation in two stages: what each of them trains, and that the second goes on from the first."""

from pathlib import Path

import chex
import flax.traverse_util
import numpy as np
import pytest

from plmjax import experiment as experiments
from plmjax.models.bart.translation import SOURCE_ENCODER
from plmjax.runs.finetuning import finetune
from plmjax.training import loop
from plmjax.training.checkpoints import checkpoints
from tests.finetuning.conftest import WORDS, bart_run
from tests.finetuning.test_docs import Reached, saving
from tests.paths import ROOT

__all__ = ["bart_run"]

SHORT = (
    "--data.train train.de --data.validation dev.de --data.sequence_length 40 --data.target_length 40 --data.pack 2 "
    "--training.batch_size 8 --training.unroll 1 --training.steps 2 --finetuning.epochs 0 --checkpoint.minutes 0 "
    "--objective.beams 1 --objective.max_new_tokens 4"
).split()
PROJECTIONS = tuple(f"bart/encoder_layers/attention/{part}/" for part in ("query", "key", "value"))


def parameters(run: Path) -> dict[str, np.ndarray]:
    return flax.traverse_util.flatten_dict(checkpoints.load_parameters(run)[0], sep="/")


@pytest.mark.nightly
def test_the_stages_train_what_the_paper_says(
    bart_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Words that are written backwards are the other language."""
    draws = np.random.default_rng(0)
    for split, count in (("train", 16), ("dev", 4)):
        texts = [" ".join(draws.choice(WORDS, 3)) for _ in range(count)]
        (tmp_path / f"{split}.de").write_text("".join(f"{text[::-1]}\n" for text in texts))
        (tmp_path / f"{split}.en").write_text("".join(f"{text}\n" for text in texts))
    more, workdir = [*SHORT, "--data.folder", str(tmp_path)], tmp_path / "first"
    run = experiments.load(f"{ROOT}/experiments/translate_bart.py:new_source")
    finetune(experiments.override(run, more), bart_run, workdir)
    before, first = parameters(bart_run), parameters(workdir)
    assert {name for name in first if not name.startswith(f"{SOURCE_ENCODER}/")} == before.keys()
    assert f"as {bart_run} has none: {len(first) - len(before)} of {SOURCE_ENCODER}" in capsys.readouterr().out
    for name, array in before.items():
        changed = np.zeros(len(array), bool)
        if name in ("bart/encoder_positions/embedding", "bart/decoder_positions/embedding"):
            changed[:] = (first[name] != array).any(axis=1)  # rows that the texts are long enough for
            assert changed[2:8].all()
        if name.startswith(PROJECTIONS):
            changed[0] = True
        np.testing.assert_array_equal((first[name] != array).reshape(len(array), -1).any(axis=1), changed, name)

    monkeypatch.setattr(loop, "train", saving)  # in place of the training, the parameters that it would begin with
    run = experiments.load(f"{ROOT}/experiments/translate_bart.py:all_parameters")
    with pytest.raises(Reached):
        finetune(experiments.override(run, more), workdir, tmp_path / "second")
    params, description = checkpoints.load_parameters(tmp_path / "second")
    chex.assert_trees_all_equal(flax.traverse_util.flatten_dict(params, sep="/"), first)
    assert description.experiment.optimizer.frozen == () and description.experiment.model.source_layers == 2
