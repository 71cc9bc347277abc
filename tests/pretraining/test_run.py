"""Pretraining end to end, where its text is not what it is in the other tests."""

import json
from pathlib import Path

from plmjax import cli
from plmjax.training import checkpoints
from tests.conftest import SMALL

TINY = "experiments/bert_tiny.py"


def test_text_of_which_nothing_is_held_out_is_trained_on_without_evaluation(
    fails, prose: Path, tmp_path: Path, capsys
) -> None:
    lines = [line for line in prose.read_text(encoding="utf-8").split("\n") if line][:60]
    (tmp_path / "lines.txt").write_text("\n".join(lines), encoding="utf-8")
    same = ["pretrain", TINY, "--workdir", tmp_path / "run", "--data.input", tmp_path / "lines.txt", *SMALL]
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
    cli.run(["report", str(tmp_path / "run"), "--output", str(tmp_path / "report.html")])
    assert "held-out" in fails("evaluate", tmp_path / "run")
