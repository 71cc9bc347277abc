"""What a config.json leaves out has the default of transformers' own class."""

import dataclasses
import importlib
import types
from typing import Any

import pytest

from plmjax.errors import UserError
from plmjax.interop import encoder, reformer
from plmjax.interop.huggingface import ADAPTERS
from tests.optional import transformers

OWN = {"num_buckets", "attention_window"}
"""Fields of another form: buckets that follow from the longest row, and a window for each layer."""
LONGEST = {"longformer": {"max_position_embeddings": 4098}}
"""Rows as long as those of released files: the default window does not fit in the default row."""
SHARED = {
    "albert": 19, "bart": 19, "bert": 16, "distilbert": 11, "electra": 18, "gpt2": 16, "led": 19, "longformer": 16,
    "marian": 17, "mobilebert": 21, "openai-gpt": 12, "reformer": 28, "roberta": 16, "t5": 16, "xlnet": 16,
}  # fmt: skip
"""Number of fields of the config that transformers has too."""


@pytest.mark.parametrize("name", ADAPTERS)
def test_defaults_are_those_of_transformers(name: str) -> None:
    given = LONGEST.get(name, {})
    theirs, found = transformers.AutoConfig.for_model(name, **given), ADAPTERS[name].read_config(given)
    shared = {field.name for field in dataclasses.fields(found) if hasattr(theirs, field.name)} - OWN
    assert len(shared) == SHARED[name]
    for field in shared:
        value = getattr(theirs, field)
        assert getattr(found, field) == (tuple(value) if isinstance(value, list) else value), field


PUBLISHED = {
    "bart": {
        "add_bias_logits": False, "add_final_layer_norm": False, "normalize_before": False, "normalize_embedding": True,
        "scale_embedding": False, "static_position_embeddings": False,
    },
    "marian": {"add_final_layer_norm": False, "normalize_before": False, "static_position_embeddings": True},
}  # fmt: skip
"""Settings of published files that transformers' class has no more."""
OTHERS = {float: 0.5, str: "other", dict: {"0": [1]}, type(None): {"bits": 8}}
"""Type of a setting's one value -> another value."""


def required(name: str) -> dict[str, Any]:
    """The settings of a system that have one value."""
    module = importlib.import_module(ADAPTERS[name].read_config.__module__)
    return getattr(module, "REQUIRED", encoder.REQUIRED)


@pytest.mark.parametrize("name", ADAPTERS)
def test_settings_of_one_value_have_that_of_transformers_and_no_other(name: str) -> None:
    """Each is looked at: another value is refused, in one sentence that names it."""
    given = LONGEST.get(name, {})
    theirs = transformers.AutoConfig.for_model(name, **given)
    for setting, value in required(name).items():
        known = PUBLISHED.get(name, {}).get(setting, getattr(theirs, setting, value))
        assert (known or None) == (value or None), setting
        other = OTHERS[type(value)] if type(value) is not bool else not value
        with pytest.raises(UserError, match=f"Expected {setting} = .*, which is all that this"):
            ADAPTERS[name].read_config(given | {setting: other})
        ADAPTERS[name].read_config(given | {setting: value})


@pytest.mark.parametrize("chunk", [8, 64])
@pytest.mark.parametrize("length", [64, 1000, 4096, 65_536])
def test_buckets_that_a_config_leaves_open_are_those_of_transformers(length: int, chunk: int) -> None:
    """For rows as long as the positions, which may be chosen by two factors."""
    theirs = types.SimpleNamespace(chunk_length=chunk, max_position_embeddings=length, config=types.SimpleNamespace())
    transformers.models.reformer.modeling_reformer.LSHSelfAttention._set_num_buckets(theirs, length)
    expected = theirs.num_buckets if isinstance(theirs.num_buckets, list) else [theirs.num_buckets]
    assert reformer.fitting_buckets(length, chunk) == tuple(expected)
