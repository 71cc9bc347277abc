"""What a config.json leaves out has the default of transformers' own class."""

import dataclasses
import types

import pytest

from plmjax.interop import led, reformer, xlnet
from plmjax.interop.adapter import Adapter
from tests.optional import transformers

OWN = {"num_buckets", "attention_window"}
"""Fields of another form: buckets that follow from the longest row, and a window for each layer."""


@pytest.mark.parametrize(
    ("adapter", "name", "count"),
    [(led.ADAPTER, "LEDConfig", 19), (reformer.ADAPTER, "ReformerConfig", 28), (xlnet.ADAPTER, "XLNetConfig", 16)],
    ids=["led", "reformer", "xlnet"],
)
def test_defaults_are_those_of_transformers(adapter: Adapter, name: str, count: int) -> None:
    theirs, found = getattr(transformers, name)(), adapter.read_config({})
    shared = {field.name for field in dataclasses.fields(found)} & set(dir(theirs)) - OWN
    assert len(shared) == count
    for field in shared:
        value = getattr(theirs, field)
        assert getattr(found, field) == (tuple(value) if isinstance(value, list) else value), field


@pytest.mark.parametrize("chunk", [8, 64])
@pytest.mark.parametrize("length", [64, 1000, 4096, 65_536])
def test_buckets_that_a_config_leaves_open_are_those_of_transformers(length: int, chunk: int) -> None:
    """For rows as long as the positions, which may be chosen by two factors."""
    theirs = types.SimpleNamespace(chunk_length=chunk, max_position_embeddings=length, config=types.SimpleNamespace())
    transformers.models.reformer.modeling_reformer.LSHSelfAttention._set_num_buckets(theirs, length)
    expected = theirs.num_buckets if isinstance(theirs.num_buckets, list) else [theirs.num_buckets]
    assert reformer.fitting_buckets(length, chunk) == tuple(expected)
