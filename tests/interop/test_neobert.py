"""NeoBERT's own files, against the formula that tests/families computes on their tensors."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import chex
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.data import tokenizers
from plmjax.errors import UserError
from plmjax.interop import libraries, neobert, run_directories, transformers_files
from tests.families import rotations
from tests.families.rotations import NEOBERT
from tests.optional import needs_torch, torch
from tests.systems.modules import outputs, random_params

RELEASED = {
    "model_type": "neobert", "architectures": ["NeoBERTLMHead"], "hidden_size": 768, "num_hidden_layers": 28,
    "num_attention_heads": 12, "intermediate_size": 3072, "norm_eps": 1e-5, "vocab_size": 30522, "pad_token_id": 0,
    "max_length": 4096, "embedding_init_range": 0.02, "decoder_init_range": 0.02, "hidden_act": "swiglu",
}  # fmt: skip


def tensors_in(folder: Path) -> dict[str, np.ndarray]:
    with transformers_files.open_tensors(folder) as tensors:
        return {name: tensors.read(name) for name in tensors.shapes}


@needs_torch
def test_files_hold_the_tensors_of_the_formula_and_are_read_again(tmp_path: Path) -> None:
    module = NEOBERT.module(Purpose.PRETRAINING, Execution())
    params = random_params(module)
    neobert.save(module, params, tmp_path)
    state = {name: torch.tensor(tensor).double() for name, tensor in tensors_in(tmp_path).items()}
    assert state["model.transformer_encoder.0.qkv.weight"].shape == (72, 24)
    assert state["model.transformer_encoder.1.ffn.w12.weight"].shape == (80, 24)

    ids = np.arange(17, dtype=np.int32) + 5
    hidden = rotations.neobert(NEOBERT, state, torch.tensor(ids).long())[-1]
    scores = torch.nn.functional.linear(hidden, state["decoder.weight"], state["decoder.bias"])
    found = libraries.load(tmp_path)
    assert found.library == "chandar-lab/NeoBERT" and found.module.config == NEOBERT
    chex.assert_trees_all_equal(found.params, params)
    logits = outputs(found.module, found.params, {"input_ids": ids[None]}).logits[0]
    np.testing.assert_allclose(logits, scores.numpy(), rtol=1e-5, atol=1e-5)


def test_the_released_config_is_the_published_size() -> None:
    found = neobert.read_config(RELEASED)
    assert dataclasses.replace(found, initializer_range=0.02) == rotations.NeoBertConfig.base(pad_token_id=0)
    again = neobert.write_config(found)
    assert again["intermediate_size"] == 3072 and neobert.read_config(again) == found


def test_a_run_is_imported_and_exported(tmp_path: Path) -> None:
    source = tmp_path / "source"
    tokenizers.train("wordpiece", 80, ["the quick brown fox jumps over the lazy dog"] * 4, source)
    module = dataclasses.replace(NEOBERT, vocab_size=80).module(Purpose.PRETRAINING, Execution())
    neobert.save(module, random_params(module), source)
    said = run_directories.import_checkpoint(source, tmp_path / "run")
    assert "chandar-lab/NeoBERT, by model_type neobert in config.json" in said
    said = run_directories.export_checkpoint(tmp_path / "run", tmp_path / "out", "NeoBERTLMHead")
    assert said.startswith("exported   NeoBERTLMHead of step 0 to ") and "reads back bit for bit" in said
    for file in ("model.safetensors", "config.json"):
        assert (tmp_path / "out" / file).read_bytes() == (source / file).read_bytes()


def written(**changes: Any) -> Any:
    return neobert.write_config(dataclasses.replace(NEOBERT, **changes))


REFUSED = {
    "another activation": (lambda: neobert.read_config(RELEASED | {"hidden_act": "gelu"}), "hidden_act = 'SwiGLU'"),
    "tied words": (lambda: neobert.read_config(RELEASED | {"tie_word_embeddings": True}), "tie_word_embeddings = "),
    "sizes": (lambda: neobert.read_config(RELEASED | {"intermediate_size": "3072"}), "intermediate_size, found '3072'"),
    "another theta": (lambda: written(global_rope_theta=160_000.0), "--model.global_rope_theta 10000.0"),
    "an odd size": (lambda: written(intermediate_size=37), "--model.intermediate_size that 8 divides"),
    "a class": (lambda: neobert.load(Path("anywhere"), "NeoBERT"), "--architecture NeoBERTLMHead"),
}  # fmt: skip


def test_what_does_not_fit_is_one_sentence() -> None:
    for refused, said in REFUSED.values():
        with pytest.raises(UserError, match=re.escape(said)):
            refused()
