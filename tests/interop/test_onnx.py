"""ONNX: an exported folder goes through optimum-onnx, and onnxruntime computes what the run does.

optimum-onnx wants an older transformers, so it has an environment of its own. ONNX_PYTHON names the Python of it:

    python3 -m venv onnx && onnx/bin/pip install 'optimum-onnx[onnxruntime]'
    ONNX_PYTHON=onnx/bin/python python -m pytest tests/interop/test_onnx.py
"""

import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.data import tokenizers
from plmjax.interop.run_directories import export_checkpoint
from plmjax.training.checkpoints import checkpoints
from tests.paths import ROOT

PYTHON = os.environ.get("ONNX_PYTHON")
TEXTS = "The function returns a list.", "Classes have methods"
COMPUTE = """
import sys
import numpy, onnxruntime
model, rows, found = sys.argv[1:]
session = onnxruntime.InferenceSession(model)
rows, names = numpy.load(rows), [one.name for one in session.get_inputs()]
numpy.save(found, session.run(["logits"], {name: rows[name] for name in names})[0])
"""
"""onnxruntime alone: the logits of a model for rows of token ids."""
needs_optimum = pytest.mark.skipif(
    PYTHON is None, reason="optimum-onnx wants an older transformers: ONNX_PYTHON names the Python of its environment"
)


def in_its_environment(*arguments: str | Path) -> None:
    """Run the other Python, which finds nothing of this project and needs no network."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [Path(PYTHON).absolute(), *arguments]
    done = subprocess.run(command, env=environment | {"HF_HUB_OFFLINE": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@needs_optimum
@pytest.mark.parametrize(
    ("run", "architecture", "purpose", "task"),
    [
        ("small_run", "BertForMaskedLM", Purpose.MASKED_TOKENS, "fill-mask"),
        ("decoder_run", "GPT2LMHeadModel", Purpose.CAUSAL_LM, "text-generation"),
    ],
)
def test_onnxruntime_computes_the_logits_of_the_run(run, architecture, purpose, task, request, tmp_path) -> None:
    workdir = request.getfixturevalue(run)
    export_checkpoint(workdir, tmp_path / "exported", architecture)
    page = (ROOT / "docs" / "exports.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^optimum-cli (export onnx .+)$", page, re.MULTILINE)
    given = {"exported/": tmp_path / "exported", "onnx/": tmp_path / "onnx", "fill-mask": task}
    arguments = [given.get(word, word) for word in command.split()]
    in_its_environment("-m", "optimum.commands.optimum_cli", *arguments)

    tokenizer = tokenizers.load(tmp_path / "exported")
    ids = [tokenizer.encode(text) for text in TEXTS]
    length = max(map(len, ids))
    rows = {
        "input_ids": np.array([each + [0] * (length - len(each)) for each in ids]),
        "attention_mask": np.array([[1] * len(each) + [0] * (length - len(each)) for each in ids]),
    }
    rows |= {"token_type_ids": np.zeros((2, length), int), "position_ids": np.arange(length) + np.zeros((2, 1), int)}
    np.savez(tmp_path / "rows.npz", **rows)
    in_its_environment("-c", COMPUTE, tmp_path / "onnx" / "model.onnx", tmp_path / "rows.npz", tmp_path / "found.npy")

    params, description = checkpoints.load_parameters(workdir)
    module = description.experiment.model.module(purpose, Execution())
    output = module.apply({"params": params}, rows["input_ids"], attention_mask=rows["attention_mask"])
    expected, real = np.asarray(output.logits), rows["attention_mask"] > 0
    found = np.load(tmp_path / "found.npy")
    assert found.shape == expected.shape and np.ptp(expected) > 0.1
    np.testing.assert_allclose(found[real], expected[real], rtol=0, atol=1e-5 * np.abs(expected).max())
