"""What pretraining shows when it has ended: texts that were written, by a decoder after a prompt or of a source."""

import json
import shutil
from pathlib import Path

import pytest

from plmjax.pretraining import summary
from tests.finetuning.conftest import bart_run  # noqa: F401 (a fixture)

TEXTS = ["the film was a fine scene and a plot", "a poor actor was the awful plot"]


def test_an_encoder_decoder_shows_what_it_makes_of_held_out_texts(
    bart_run: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(summary, "_held_out", lambda *_: TEXTS)
    workdir, said = shutil.copytree(bart_run, tmp_path / "run"), []
    summary._generate(None, None, workdir, said.append)
    samples = [json.loads(line) for line in (workdir / summary.SAMPLES).read_text().splitlines()]
    assert [sample["prompt"] for sample in samples] == [" ".join(text.split()[:8]) for text in TEXTS]
    assert len(said) == 2 and said[0].startswith(f"generate   {samples[0]['prompt']} -> ")
