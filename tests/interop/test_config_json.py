"""A value that config.json leaves out has the default of transformers' own class."""

import contextlib
import dataclasses
import importlib
import json
import types
from collections.abc import Callable
from typing import Any

import pytest

from plmjax.errors import UserError
from plmjax.interop import encoder, reformer
from plmjax.interop.huggingface import ADAPTERS
from tests.optional import transformers

OWN = {"num_buckets", "attention_window"}
"""Fields of another form: buckets that follow from the longest row, and a window for each layer."""
GIVEN: dict[str, dict[str, Any]] = {
    "deberta-v2": {
        "relative_attention": True, "share_att_key": True, "norm_rel_ebd": "layer_norm", "pos_att_type": ["p2c", "c2p"],
    },
    "longformer": {"max_position_embeddings": 4098},
}  # fmt: skip
"""Settings of released files without which the defaults are refused: of the attention that a DeBERTa has, and rows that
are as long as the default window."""
SHARED = {
    "albert": 19, "bart": 19, "bert": 16, "deberta-v2": 20, "distilbert": 11, "electra": 18, "eurobert": 16, "gpt2": 16,
    "led": 19, "longformer": 16, "marian": 17, "mobilebert": 21, "modernbert": 23, "modernbert-decoder": 21,
    "openai-gpt": 12, "reformer": 28, "roberta": 16, "t5": 16, "xlnet": 16,
}  # fmt: skip
"""Number of fields of the config that transformers has too."""


@pytest.mark.parametrize("name", ADAPTERS)
def test_defaults_are_those_of_transformers(name: str) -> None:
    given = GIVEN.get(name, {})
    theirs, found = transformers.AutoConfig.for_model(name, **given), ADAPTERS[name].read_config(given)
    shared = {field.name for field in dataclasses.fields(found) if hasattr(theirs, field.name)} - OWN
    assert len(shared) == SHARED[name]
    for field in shared:
        value = getattr(theirs, field)
        assert getattr(found, field) == (tuple(value) if isinstance(value, list) else value), field


DERIVED = {
    "num_decoder_layers", "max_global_tokens", "num_buckets", "decoder_vocab_size", "num_key_value_heads",
    "decoder_bias",
}  # fmt: skip
"""Fields whose default follows from another one."""
WORDS = {"hidden_act": "relu", "activation_function": "relu", "activation": "relu", "ff_activation": "relu"}
WORDS |= {"pooler_hidden_act": "relu"}


SETTABLE = {
    "albert": 19, "bart": 19, "bert": 16, "deberta-v2": 19, "distilbert": 11, "electra": 18, "eurobert": 14, "gpt2": 16,
    "led": 19, "longformer": 16, "marian": 17, "mobilebert": 18, "modernbert": 20, "modernbert-decoder": 20,
    "openai-gpt": 12, "reformer": 24, "roberta": 16, "t5": 14, "xlnet": 16,
}  # fmt: skip
"""Number of fields with one value each of which another one is accepted."""


def other_value(read: Callable[[dict[str, Any]], Any], config: Any, field: str) -> Any:
    """Another value of a field that a config may have; None if there is none."""
    value = getattr(config, field)
    if isinstance(value, str):
        return WORDS.get(field)
    if isinstance(value, bool):
        several = (not value,)
    elif isinstance(value, float):
        several = (value * 0.75 + 0.01,)
    else:
        several = (7, 0.375) if value is None else (value * 2, value * 3, value // 2, value + 1, value - 1)
    for other in several:
        with contextlib.suppress(UserError, ValueError):
            dataclasses.replace(config, **{field: other})
            read({field: other})
            return other
    return None


@pytest.mark.parametrize("name", ADAPTERS)
def test_each_setting_is_read_and_written_under_its_own_name(name: str) -> None:
    """And changes no other one."""
    adapter, given = ADAPTERS[name], GIVEN.get(name, {})
    plain, looked_at = adapter.read_config(given), 0
    module = next(iter(adapter.architectures.values())).module
    theirs = transformers.AutoConfig.for_model(name, **given)
    for field in (field.name for field in dataclasses.fields(plain)):
        if not hasattr(theirs, field) or isinstance(getattr(plain, field), tuple):
            continue  # lists have tests of their own
        other = other_value(lambda changed: adapter.read_config(given | changed), plain, field)
        if other is None:
            continue
        expected = dataclasses.replace(plain, **{field: other})
        found = adapter.read_config(given | {field: other})
        for one in dataclasses.fields(plain):
            if one.name not in DERIVED - {field}:
                assert getattr(found, one.name) == getattr(expected, one.name), (field, one.name)
        written = json.loads(json.dumps(adapter.write_config(module(found), [])))
        assert adapter.read_config(written) == found, field
        if field == "tie_word_embeddings":  # T5's: transformers 5 calls every one tied
            continue
        opened = transformers.AutoConfig.for_model(**{"model_type": name} | written)
        assert getattr(opened, field) == other, field
        looked_at += 1
    assert looked_at == SETTABLE[name]


PUBLISHED = {
    "bart": {
        "add_bias_logits": False, "add_final_layer_norm": False, "normalize_before": False, "normalize_embedding": True,
        "scale_embedding": False, "static_position_embeddings": False,
    },
    "marian": {"add_final_layer_norm": False, "normalize_before": False, "static_position_embeddings": True},
}  # fmt: skip
"""Settings of published files that transformers' class has no more."""
ENCODERS = (
    "add_cross_attention is_decoder is_encoder_decoder position_embedding_type pruned_heads quantization_config "
    "tie_word_embeddings"
)
TWO_SIDES = "decoder_layerdrop encoder_layerdrop is_encoder_decoder quantization_config tie_word_embeddings"
ORDERS = "add_final_layer_norm is_decoder normalize_before normalize_embedding static_position_embeddings"
NAMES_OF_ONE_VALUE = dict.fromkeys(("albert", "bert", "distilbert", "electra", "longformer", "roberta"), ENCODERS) | {
    "bart": f"{TWO_SIDES} {ORDERS} add_bias_logits scale_embedding",
    "deberta-v2": "norm_rel_ebd quantization_config relative_attention share_att_key tie_word_embeddings",
    "eurobert": "quantization_config",
    "gpt2": "add_cross_attention is_encoder_decoder pruned_heads quantization_config reorder_and_upcast_attn "
    "scale_attn_by_inverse_layer_idx scale_attn_weights tie_word_embeddings",
    "led": TWO_SIDES,
    "marian": f"{TWO_SIDES} {ORDERS} share_encoder_decoder_embeddings",
    "mobilebert": f"{ENCODERS} normalization_type trigram_input use_bottleneck",
    "modernbert": "classifier_activation classifier_bias quantization_config tie_word_embeddings",
    "modernbert-decoder": "classifier_activation classifier_bias quantization_config tie_word_embeddings",
    "openai-gpt": "is_encoder_decoder pruned_heads quantization_config summary_activation summary_proj_to_labels "
    "summary_type summary_use_proj tie_word_embeddings",
    "reformer": "axial_pos_embds pruned_heads quantization_config tie_word_embeddings",
    "t5": "is_encoder_decoder quantization_config",
    "xlnet": "attn_type bi_data pruned_heads quantization_config same_length summary_activation summary_type "
    "summary_use_proj tie_word_embeddings",
}
"""System -> the settings of transformers that change what it computes, and of which it has one value here."""
OTHERS = {float: 0.5, str: "other", dict: {"0": [1]}, type(None): {"bits": 8}}
"""Type of a setting's one value -> another value."""


def required(name: str) -> dict[str, Any]:
    """The settings of a system that have one value."""
    module = importlib.import_module(ADAPTERS[name].read_config.__module__)
    return getattr(module, "REQUIRED", encoder.REQUIRED)


@pytest.mark.parametrize("name", ADAPTERS)
def test_settings_of_one_value_have_that_of_transformers_and_no_other(name: str) -> None:
    """Each is looked at: another value is refused, in one sentence that names it."""
    given = GIVEN.get(name, {})
    theirs = transformers.AutoConfig.for_model(name, **given)
    assert required(name).keys() == {*NAMES_OF_ONE_VALUE[name].split()}
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
    assert reformer.choose_buckets(length, chunk) == tuple(expected)


@pytest.mark.parametrize(
    ("system", "settings", "expected"),
    [
        ("t5", {"num_layers": 3}, {"num_layers": 3, "num_decoder_layers": 3}),
        ("t5", {"num_layers": 3, "num_decoder_layers": None}, {"num_layers": 3, "num_decoder_layers": 3}),
        ("t5", {"num_layers": 3, "num_decoder_layers": 5}, {"num_layers": 3, "num_decoder_layers": 5}),
        ("t5", {"num_decoder_layers": 5}, {"num_layers": 6, "num_decoder_layers": 5}),
        ("t5", {"tie_word_embeddings": False}, {"tie_word_embeddings": False}),
        ("openai-gpt", {}, {"activation_function": "gelu_new"}),
        ("openai-gpt", {"afn": "gelu"}, {"activation_function": "gelu_new"}),
        ("openai-gpt", {"afn": "relu", "both_orders": True}, {"activation_function": "relu", "both_orders": False}),
        ("gpt2", {"hidden_size": 24, "max_position_embeddings": 11, "num_attention_heads": 3, "num_hidden_layers": 5},
         {"n_embd": 24, "n_positions": 11, "n_head": 3, "n_layer": 5}),
        ("led", {"max_encoder_position_embeddings": 3072, "max_decoder_position_embeddings": 77},
         {"max_position_embeddings": 3072, "max_decoder_position_embeddings": 77}),
        ("led", {"attention_window": [8, 6], "encoder_layers": 2, "max_encoder_position_embeddings": 24},
         {"attention_window": (8, 6), "max_global_tokens": 6}),
        ("marian", {"vocab_size": 60000, "decoder_vocab_size": 60000}, {"vocab_size": 60000, "output_bias": True}),
        ("reformer", {"axial_pos_shape": [8, 32], "lsh_attn_chunk_length": 16, "local_attn_chunk_length": 8},
         {"axial_pos_shape": (8, 32), "num_buckets": (32,)}),
        ("distilbert", {"hidden_size": 100, "dim": 24, "n_heads": 3, "hidden_dim": 50, "dropout": 0.2},
         {"hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 50, "hidden_dropout_prob": 0.2}),
        ("electra", {"architectures": ["ElectraForMaskedLM"], "hidden_size": 24, "num_attention_heads": 3,
                     "intermediate_size": 50, "num_hidden_layers": 5},
         {"generator_hidden_size": 24, "generator_num_attention_heads": 3, "generator_intermediate_size": 50,
          "hidden_size": 24, "num_hidden_layers": 5}),
        ("reformer", {"num_buckets": 6}, {"num_buckets": (6,)}),
        ("reformer", {"num_buckets": [4, 6]}, {"num_buckets": (4, 6)}),
        ("longformer", {**GIVEN["longformer"], "attention_window": [8] * 12, "attention_dilation": [1] * 12},
         {"attention_window": (8,) * 12, "max_global_tokens": 128}),
    ],
    ids=str,
)  # fmt: skip
def test_settings_with_names_and_defaults_of_transformers(
    system: str, settings: dict[str, Any], expected: dict[str, Any]
) -> None:
    found = ADAPTERS[system].read_config(settings)
    assert {name: getattr(found, name) for name in expected} == expected
