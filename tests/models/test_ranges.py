"""Every number of every config has a range: one outside it is refused in a sentence that names its option."""

import dataclasses
import importlib
import pkgutil

import pytest

from plmjax import models
from plmjax.contracts.model_config import ModelConfig
from plmjax.errors import UserError
from plmjax.models.deberta.deberta import DebertaConfig
from plmjax.models.nnlm import NnlmConfig

FILES = [importlib.import_module(found.name) for found in pkgutil.walk_packages(models.__path__, "plmjax.models.")]
CONFIGS = [file.SYSTEM.config() for file in FILES if hasattr(file, "SYSTEM")]
UNBOUNDED = {"clamp_len", "max_relative_positions", "position_buckets"}
"""Numbers of which those below 0 mean that there is no limit."""
FROM_0 = {
    "axial_norm_std", "chunk_size_feed_forward", "dilated_heads", "filter_width", "initial_fraction",
    "lsh_num_chunks_after", "lsh_num_chunks_before", "local_num_chunks_after", "local_num_chunks_before", "mem_len",
    "generator_hidden_size", "generator_intermediate_size", "generator_num_attention_heads", "n_highway",
    "persistent_size", "conv_kernel_size", "generator_num_hidden_layers", "initializer_range", "initializer_factor",
    "init_std",
}  # fmt: skip
"""Numbers that may be 0; all others but rates are above it."""


OF_ONE = ((NnlmConfig, "hidden_size"), (DebertaConfig, "type_vocab_size"))


def numbers(config: ModelConfig) -> list[str]:
    """The fields of a config that are numbers, but for those of special tokens."""
    found = [field.name for field in dataclasses.fields(config) if type(getattr(config, field.name)) in (int, float)]
    return [name for name in found if not name.endswith("_token_id") and name not in UNBOUNDED]


def may_be_0(config: ModelConfig, name: str) -> bool:
    return name in FROM_0 or "drop" in name or (type(config), name) in OF_ONE


@pytest.mark.parametrize("config", CONFIGS, ids=[type(config).__name__ for config in CONFIGS])
def test_a_number_outside_of_its_range_is_refused(config: ModelConfig) -> None:
    """A rate is below 1."""
    assert numbers(config)
    for name in numbers(config):
        kind = type(getattr(config, name))
        outside = [kind(-1), *([] if may_be_0(config, name) else [kind(0)]), *([1.0] if "drop" in name else [])]
        for number in outside:
            with pytest.raises(UserError, match=rf"--model\.{name}\b"):
                dataclasses.replace(config, **{name: number})
