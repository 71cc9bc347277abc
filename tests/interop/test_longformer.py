"""Properties of Longformer's checkpoints alone."""

import json
from pathlib import Path
from typing import Any

import pytest

from plmjax.errors import UserError
from plmjax.interop import huggingface
from plmjax.interop.longformer import read_config, write_config
from plmjax.models.longformer.longformer import LongformerConfig, LongformerForMaskedLM
from tests.families.long_texts import LONGFORMER
from tests.optional import needs_torch
from tests.systems.modules import random_params


@pytest.mark.parametrize("windows", [(512,), (512, 256), (64, 64)])
def test_a_window_is_a_number_or_a_list(windows: tuple[int, ...]) -> None:
    config = LongformerConfig.base(num_hidden_layers=2, attention_window=windows)
    written = write_config(LongformerForMaskedLM(config), [])
    assert written["attention_window"] == (512 if len(windows) == 1 else list(windows))
    assert read_config(json.loads(json.dumps(written))) == config


@needs_torch
def test_one_window_for_all_layers_is_read_by_transformers(tmp_path: Path) -> None:
    module = LongformerForMaskedLM(LongformerConfig.tiny(vocab_size=40, hidden_size=8, intermediate_size=8))
    params = random_params(module)
    huggingface.save(module, params, tmp_path)
    assert huggingface.compare(module, params, tmp_path) <= 1e-5
    assert huggingface.load(tmp_path)[0] == module


def test_short_models_of_transformers_have_fewer_global_tokens() -> None:
    """It has no limit of them: the default is lowered to a quarter of the longest row."""
    found = write_config(LongformerForMaskedLM(LONGFORMER), [])
    del found["max_global_tokens"]
    assert read_config(found).max_global_tokens == 16
    assert read_config(found | {"max_position_embeddings": 4100}).max_global_tokens == 128


@pytest.mark.parametrize("window", ["512", [512, None], [2.0], 2**40, True])
def test_other_windows_are_refused(window: Any) -> None:
    with pytest.raises(UserError, match="a number or a list of numbers as the config's attention_window"):
        read_config({"attention_window": window})
