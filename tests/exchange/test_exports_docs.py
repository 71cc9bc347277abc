"""The commands and programs of docs/exports.md, in their order, on a small run."""

import dataclasses
import re
import shlex
from pathlib import Path

import pytest

from plmjax import cli, experiment
from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.exchange.run_directories import import_checkpoint
from plmjax.interop import huggingface
from plmjax.models.bert import BertConfig
from plmjax.training import metrics
from plmjax.training.optimizers import BertAdamW
from tests.exchange.test_import_export import VOCABULARY
from tests.interop.odd_bert import SIZES, random_params
from tests.optional import needs_sentence_transformers
from tests.report.test_page import records

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "exports.md").read_text(encoding="utf-8")
SPEED = {"tokens_per_second": 4000.0, "model_flops_per_second": 3e9}


@needs_sentence_transformers
def test_every_command_and_program_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = BertConfig(**(SIZES | {"max_position_embeddings": 32})).module(Purpose.ENCODING, Execution())
    huggingface.save(model, random_params(model), tmp_path / "there")
    (tmp_path / "there" / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    monkeypatch.chdir(tmp_path)
    import_checkpoint("there", "runs/bert_tiny")
    run = experiment.read(Path("runs/bert_tiny/experiment.json"))
    experiment.write(dataclasses.replace(run, optimizer=BertAdamW()), Path("runs/bert_tiny/experiment.json"))
    Path("runs/bert_tiny/metrics.jsonl").write_text("".join(map(metrics.to_line, records(**SPEED))), encoding="utf-8")
    Path("exported").mkdir()
    blocks = re.findall(r"```(bash|python)\n(.*?)```", PAGE, re.DOTALL)
    assert [kind for kind, _ in blocks] == ["bash", "python", "bash", "python", "bash"]
    names: dict = {}
    for kind, block in blocks:
        if kind == "python":
            exec(compile(block, "docs/exports.md", "exec"), names)
            continue
        for line in block.splitlines():
            program, *arguments = shlex.split(line)
            if program == "plmjax":
                monkeypatch.setattr("sys.argv", ["plmjax", *arguments])
                cli.main()
            else:
                assert line == "pip install 'plmjax[sentences]'"
    assert names["vectors"].shape == (2, SIZES["hidden_size"])
    assert names["outputs"]["last_hidden_state"].shape == (8, 32, SIZES["hidden_size"])
    assert Path("exported/README.md").read_text(encoding="utf-8").startswith("---\n")
