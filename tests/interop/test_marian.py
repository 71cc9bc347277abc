"""Properties of Marian's checkpoints: the bias of the scores, what older versions wrote, settings."""

import json
from pathlib import Path

import chex
import numpy as np
import pytest
import safetensors.numpy

from plmjax.errors import UserError
from plmjax.finetuning.tasks.text_generation import Translation
from plmjax.interop import huggingface, marian
from plmjax.interop.default_tasks import task_of
from plmjax.layers.sinusoids import sinusoids
from plmjax.models.transformer import TransformerForConditionalGeneration, TransformerModel
from tests.families.encoder_decoders import MARIAN, TRANSFORMER
from tests.optional import transformers
from tests.systems.modules import outputs, random_params

PUBLISHED = {
    "activation_function": "swish",
    "add_bias_logits": False,
    "add_final_layer_norm": False,
    "architectures": ["MarianMTModel"],
    "d_model": 512,
    "decoder_attention_heads": 8,
    "decoder_ffn_dim": 2048,
    "decoder_layerdrop": 0.0,
    "decoder_layers": 6,
    "decoder_start_token_id": 58100,
    "encoder_attention_heads": 8,
    "encoder_ffn_dim": 2048,
    "encoder_layerdrop": 0.0,
    "encoder_layers": 6,
    "eos_token_id": 0,
    "is_encoder_decoder": True,
    "max_position_embeddings": 512,
    "model_type": "marian",
    "normalize_before": False,
    "normalize_embedding": False,
    "pad_token_id": 58100,
    "scale_embedding": True,
    "static_position_embeddings": True,
    "vocab_size": 58101,
}
"""Settings of the kind that Helsinki-NLP's translation models are published with."""


def test_settings_of_a_published_model_are_read() -> None:
    config = marian.read_config(PUBLISHED)
    assert (config.activation_function, config.longest, config.vocab_size) == ("swish", 512, 58101)
    assert config.scale_embedding and config.output_bias
    translation, _ = task_of(TransformerForConditionalGeneration(config))
    assert isinstance(translation, Translation)
    objective, data = task_of(TransformerModel(config))
    assert (objective.label_smoothing, data.layout.start, data.sequence_length) == (0.1, "pad", 128)


def test_settings_that_a_config_leaves_out_are_those_of_transformers() -> None:
    theirs, config = transformers.MarianConfig(), marian.read_config({})
    for name in marian.DEFAULTS:
        if hasattr(theirs, name) and hasattr(config, name):
            assert getattr(config, name) == getattr(theirs, name), name
    assert config.scale_embedding is theirs.scale_embedding is False


@pytest.mark.parametrize(
    ("name", "value"),
    [("normalize_before", True), ("decoder_vocab_size", 7), ("share_encoder_decoder_embeddings", False)],
)
def test_another_kind_of_model_is_refused(name: str, value: object) -> None:
    with pytest.raises(UserError, match=f"Expected {name} = .*TRANSFORMER implements, found {value}"):
        marian.read_config(PUBLISHED | {name: value})


def test_what_older_versions_wrote_is_read(tmp_path: Path) -> None:
    """They store every copy of the word table, and the sinusoids."""
    module = TransformerForConditionalGeneration(MARIAN)
    params = random_params(module)
    huggingface.save(module, params, tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = safetensors.numpy.load_file(file)
    assert tensors["final_logits_bias"].shape == (1, 53)
    table = {
        f"model.{side}.embed_positions.weight": sinusoids(np.arange(19), 24).copy() for side in ("encoder", "decoder")
    }
    copies = {name: tensors["model.shared.weight"].copy() for name in marian.COPIES}
    safetensors.numpy.save_file(tensors | table | copies, file)
    again, found = huggingface.load(tmp_path)
    assert again == module
    chex.assert_trees_all_equal(found, params)
    copies["lm_head.weight"][0] += 1
    safetensors.numpy.save_file(tensors | table | copies, file)
    with pytest.raises(UserError, match=r"lm_head\.weight tied to model\.shared\.weight"):
        huggingface.load(tmp_path)


def test_a_config_of_marians_own_has_the_bias_and_one_of_ours_says_so(tmp_path: Path) -> None:
    module = TransformerForConditionalGeneration(TRANSFORMER)
    huggingface.save(module, random_params(module), tmp_path)
    assert huggingface.load(tmp_path)[0] == module
    settings = json.loads((tmp_path / "config.json").read_text())
    assert settings.pop("output_bias") is False
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(UserError, match="final_logits_bias missing"):
        huggingface.load(tmp_path)


def test_the_bias_is_added_to_the_scores() -> None:
    biased, plain = (TransformerForConditionalGeneration(config) for config in (MARIAN, TRANSFORMER))
    params = random_params(biased)
    inputs = {"input_ids": np.ones((1, 3), np.int32), "decoder_input_ids": np.ones((1, 2), np.int32)}
    found = outputs(biased, params, inputs).logits
    without = outputs(plain, {"transformer": params["transformer"]}, inputs).logits
    expected = np.broadcast_to(params["final_logits_bias"], found.shape)
    np.testing.assert_allclose(found - without, expected, rtol=1e-4, atol=1e-5)
