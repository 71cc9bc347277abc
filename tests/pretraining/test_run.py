"""Pretraining end to end, where its text is not what it is in the other tests."""

import html
import json
from pathlib import Path

from plmjax import cli
from plmjax.data.layouts import Blocks
from plmjax.experiment import Checkpoint, Data, Experiment, Training
from plmjax.generation.generate import printable
from plmjax.objectives.next_token import NextToken
from plmjax.pretraining.run import pretrain
from plmjax.report import page
from plmjax.training.checkpoints import checkpoints
from plmjax.training.optimizers import AdamW
from tests.small_runs import SMALL_BERT

TINY = "experiments/bert_tiny.py"


def test_text_of_which_nothing_is_held_out_is_trained_on_without_evaluation(
    fails, prose: Path, tmp_path: Path, capsys
) -> None:
    lines = [line for line in prose.read_text(encoding="utf-8").split("\n") if line][:60]
    (tmp_path / "lines.txt").write_text("\n".join(lines), encoding="utf-8")
    same = ["pretrain", TINY, "--workdir", tmp_path / "run", "--data.input", tmp_path / "lines.txt", *SMALL_BERT]
    said = fails(*same, "--checkpoint.best", "eval/loss")
    assert "Expected held-out text to find the best checkpoint by" in said and "set --checkpoint.best ''" in said
    capsys.readouterr()
    cli.run([*map(str, same), "--checkpoint.best", "", "--checkpoint.prefer", "last"])
    said = capsys.readouterr().out.splitlines()
    assert len([line for line in said if line.startswith("evaluation none: no held-out text")]) == 1
    logged = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in logged] == [2, 4, 6]
    assert not [name for record in logged for name in record if name.startswith("eval/")]
    assert checkpoints.describe(checkpoints.find(tmp_path / "run")).step == 6
    cli.run(["report", str(tmp_path / "run"), "--output", str(tmp_path / "page.html")])
    assert "held-out" in fails("evaluate", tmp_path / "run")


def test_a_decoder_writes_texts_for_the_report(decoder_run: Path, prose: Path, tmp_path: Path) -> None:
    run = Experiment(
        model=None,
        objective=NextToken(),
        data=Data(layout=Blocks(), input=(str(prose),), sequence_length=24),
        optimizer=AdamW(),
        training=Training(steps=1, batch_size=8, log_every=1, evaluation_batches=1),
        checkpoint=Checkpoint(every=0),
    )
    said: list[str] = []
    pretrain(run, tmp_path / "run", said.append, decoder_run)
    samples = [json.loads(line) for line in (tmp_path / "run" / "samples.jsonl").read_text().splitlines()]
    assert len(samples) == 4 and samples[0]["prompt"] == "" and all(0 < one["tokens"] <= 32 for one in samples)
    assert any(line.startswith("generate ") and printable(samples[0]["text"]) in line for line in said)
    page.report([tmp_path / "run"], tmp_path / "page.html")
    assert html.escape(samples[1]["text"]).encode() in (tmp_path / "page.html").read_bytes()
