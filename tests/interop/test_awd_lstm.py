"""fastai's files of an AWD-LSTM: read, written and read again, as a run; and mistakes in them."""

from __future__ import annotations

from pathlib import Path

import chex
import numpy as np
import pytest

from plmjax.commands import cli
from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.data import tokenizers
from plmjax.errors import UserError
from plmjax.interop import awd_lstm, libraries
from plmjax.models.ulmfit import UlmfitConfig
from plmjax.training.checkpoints import checkpoints
from tests.optional import torch
from tests.systems.modules import outputs

SIZES = {"embedding_size": 6, "hidden_size": 10, "num_layers": 2}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("words") / "tokenizer"
    tokenizers.train("word", 40, ["a film of the plot and a scene"], folder)
    return folder


def named_by_fastai(size: int) -> dict[str, torch.Tensor]:
    """The names of an older state_dict of fastai, where tied weights share their numbers."""
    draws = np.random.default_rng(0)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.tensor(draws.normal(size=shape), dtype=torch.float32)

    table = drawn(size, 6)
    state = {"0.encoder.weight": table, "0.encoder_dp.emb.weight": table, "1.decoder.weight": table}
    state["1.decoder.bias"] = drawn(size)
    for layer, (below, own) in enumerate(((6, 10), (10, 6))):
        prefix = f"0.rnns.{layer}"
        state[f"{prefix}.weight_hh_l0_raw"] = drawn(4 * own, own)
        state[f"{prefix}.module.weight_ih_l0"] = drawn(4 * own, below)
        state |= {f"{prefix}.module.bias_{kind}_l0": drawn(4 * own) for kind in ("ih", "hh")}
        state[f"{prefix}.module.weight_hh_l0"] = drawn(4 * own, own)
    return state


def numbers(state: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in state.items() if not name.endswith("module.weight_hh_l0")}


def test_a_file_becomes_a_run_that_scores_as_torch_does(tokenizer: Path, tmp_path: Path) -> None:
    """The file has the format of torch before 1.6."""
    size = tokenizers.load(tokenizer).vocabulary.size
    state = named_by_fastai(size)
    torch.save(state, tmp_path / "lm.pth", _use_new_zipfile_serialization=False)
    assert libraries.recognise(tmp_path / "lm.pth")[0] == "fastai"
    cli.run(["import", str(tmp_path / "lm.pth"), str(tmp_path / "run"), "--tokenizer", str(tokenizer)])
    params, description = checkpoints.load_parameters(tmp_path / "run")
    config = description.experiment.model
    assert config == UlmfitConfig.base(vocab_size=size, **SIZES)
    ids = np.array([[1, 5, 3, 2, 4]])
    found = outputs(config.module(Purpose.PRETRAINING, Execution()), params, {"input_ids": ids})
    x = state["0.encoder.weight"][torch.tensor(ids)]
    for layer, (below, own) in enumerate(((6, 10), (10, 6))):
        module, prefix = torch.nn.LSTM(below, own, batch_first=True), f"0.rnns.{layer}"
        tensors = {name: state[f"{prefix}.module.{name}"] for name in ("weight_ih_l0", "bias_ih_l0", "bias_hh_l0")}
        module.load_state_dict(tensors | {"weight_hh_l0": state[f"{prefix}.weight_hh_l0_raw"]})
        x, _ = module(x)
    expected = x @ state["1.decoder.weight"].T + state["1.decoder.bias"]
    np.testing.assert_allclose(found.logits, expected.detach().numpy(), rtol=1e-5, atol=1e-5)
    cli.run(["export", str(tmp_path / "run"), str(tmp_path / "out")])
    written = torch.load(tmp_path / "out" / awd_lstm.FILE, weights_only=True)
    chex.assert_trees_all_equal(numbers(written), numbers(state))
    assert tokenizers.load(tmp_path / "out").fingerprint == tokenizers.load(tokenizer).fingerprint


def test_other_files_are_one_sentence(tmp_path: Path) -> None:
    state, inputs = named_by_fastai(9), "0.rnns.0.module.weight_ih_l0"
    for without, more, said in (
        ("1.decoder.bias", {}, r"found 1\.decoder\.bias missing"),
        (
            "",
            {"1.decoder.weight": state["1.decoder.weight"] + 1},
            r"Expected 1\.decoder\.weight to be 0\.encoder\.weight in .*lm\.pth, found another",
        ),
        ("", {f"{inputs}_reverse": state[inputs]}, r"found .*weight_ih_l0_reverse that the model has no parameter for"),
        ("0.rnns.0.weight_hh_l0_raw", {}, r"from N = 0 on in .*, found layers \[1\]"),
    ):
        torch.save({name: one for name, one in (state | more).items() if name != without}, tmp_path / "lm.pth")
        with pytest.raises(UserError, match=said):
            awd_lstm.load(tmp_path / "lm.pth")


def test_what_import_needs_besides(tokenizer: Path, tmp_path: Path) -> None:
    torch.save(named_by_fastai(9), tmp_path / "lm.pth")
    command = ["import", str(tmp_path / "lm.pth"), str(tmp_path / "run")]
    with pytest.raises(UserError, match="Expected --architecture AwdLstmForCausalLM"):
        cli.run([*command, "--architecture", "AWD_LSTM", "--tokenizer", str(tokenizer)])
    with pytest.raises(UserError, match="Expected a tokenizer of at most the model's 9 tokens"):
        cli.run([*command, "--tokenizer", str(tokenizer)])
    with pytest.raises(UserError, match="Expected --tokenizer with a folder"):
        cli.run(command)
