"""BART behind a source encoder: the same as two of transformers' BARTs, one of which reads the other's states."""

import dataclasses

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.interop import huggingface
from plmjax.models.bart import translation
from plmjax.models.bart.bart import BartConfig, BartForConditionalGeneration, BartModel
from plmjax.models.bart.translation import SOURCE_ENCODER, BartForTranslation, BartTranslationConfig
from tests.families.encoder_decoders import WRITER_SIZES
from tests.optional import torch, transformers
from tests.systems.modules import outputs, random_params

BART = BartConfig(**WRITER_SIZES, activation_function="gelu")
CONFIG = BartTranslationConfig.before(BART, 3)
MODEL = BartForTranslation(CONFIG)
SOURCE = np.array([[5, 9, 2, 7, 7, 11, 4], [13, 1, 14, 4, 3, 3, 3]])
MASK = np.array([[1] * 7, [1] * 4 + [0] * 3])
TARGET = np.array([[4, 8, 17, 21, 6], [4, 30, 31, 32, 33]])


@pytest.fixture(scope="module")
def params() -> dict:
    return random_params(MODEL)


@pytest.fixture(scope="module")
def reference(params: dict, tmp_path_factory: pytest.TempPathFactory) -> tuple:
    """(a BART whose encoder is the source encoder, the BART that reads it), in transformers."""
    own, bart = params[SOURCE_ENCODER], {"bart": params["bart"]}
    before = {
        **params["bart"],
        "words": own["words"],
        "encoder_positions": {
            "embedding": np.pad(own["positions"]["embedding"], ((BartModel.first_position, 0), (0, 0)))
        },
        "encoder_layer_norm": own["layer_norm"],
        "encoder_layers": own["layers"],
    }
    folder = tmp_path_factory.mktemp("reference")
    made = (("source", dataclasses.replace(BART, encoder_layers=3), {"bart": before}), ("bart", BART, bart))
    for name, config, tree in made:
        huggingface.save(BartForConditionalGeneration(config), tree, folder / name)
    load = transformers.BartForConditionalGeneration.from_pretrained
    return tuple(load(folder / name).eval() for name, _, _ in made)


@pytest.mark.nightly
def test_outputs_and_gradients_are_those_of_two_barts(params: dict, reference: tuple) -> None:
    before, bart = reference
    mask = torch.tensor(MASK)
    words = before.model.encoder(torch.tensor(SOURCE), attention_mask=mask).last_hidden_state
    logits = bart(inputs_embeds=words, attention_mask=mask, decoder_input_ids=torch.tensor(TARGET)).logits

    def scores(params: dict) -> jax.Array:
        inputs = {"attention_mask": jnp.array(MASK), "decoder_input_ids": jnp.array(TARGET)}
        return MODEL.apply({"params": params}, jnp.array(SOURCE), **inputs).logits

    factors = np.random.default_rng(0).standard_normal(logits.shape).astype(np.float32)

    def loss(params: dict) -> tuple[jax.Array, jax.Array]:
        found = scores(params)
        return jnp.sum(found * factors), found

    (_, found), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    np.testing.assert_allclose(found, logits.detach().numpy(), rtol=1e-5, atol=1e-5)
    (logits * torch.tensor(factors)).sum().backward()
    flat = flax.traverse_util.flatten_dict(gradients, sep="/")
    projection = lambda layer: layer.self_attn.q_proj.weight.grad.numpy().T  # noqa: E731
    width, heads = CONFIG.d_model, CONFIG.encoder_attention_heads
    pairs = {
        f"{SOURCE_ENCODER}/words/embedding": before.model.shared.weight.grad.numpy(),
        "bart/words/embedding": bart.model.shared.weight.grad.numpy(),
        "bart/encoder_positions/embedding": bart.model.encoder.embed_positions.weight.grad.numpy(),
        "bart/encoder_layers/attention/query/kernel": np.stack(
            [projection(layer).reshape(width, heads, -1) for layer in bart.model.encoder.layers]
        ),
    }
    for name, expected in pairs.items():
        scale = np.abs(expected).max()
        np.testing.assert_allclose(flat[name] / scale, expected / scale, atol=1e-4, err_msg=name)


@pytest.mark.nightly
def test_what_is_read_once_is_what_is_read_with_the_target(params: dict) -> None:
    """And packed pairs say what each says alone."""
    inputs = {"input_ids": SOURCE, "attention_mask": MASK}
    together = outputs(MODEL, params, inputs | {"decoder_input_ids": TARGET}).logits

    @jax.jit
    def once() -> jax.Array:
        source = MODEL.apply({"params": params}, **inputs, method="encode")
        return MODEL.apply({"params": params}, TARGET, source, method="decode").logits

    np.testing.assert_allclose(once(), together, atol=1e-5)
    rows = {
        "input_ids": np.concatenate([SOURCE[0], SOURCE[1, :4]])[None],
        "positions": np.array([[*range(7), *range(4)]]),
        "segment_ids": np.array([[1] * 7 + [2] * 4]),
        "decoder_input_ids": TARGET.reshape(1, -1),
        "decoder_positions": np.array([[*range(5)] * 2]),
        "decoder_segment_ids": np.array([[1] * 5 + [2] * 5]),
    }
    packed = outputs(MODEL, params, rows).logits
    np.testing.assert_allclose(packed.reshape(together.shape), together, atol=1e-5)


def test_a_bart_keeps_its_names_and_the_first_stage_trains_what_the_paper_says(params: dict) -> None:
    shapes = flax.traverse_util.flatten_dict(nn.meta.unbox(params), sep="/")
    bart = flax.traverse_util.flatten_dict(random_params(BartForConditionalGeneration(BART)), sep="/")
    assert {name for name in shapes if not name.startswith(SOURCE_ENCODER)} == bart.keys()
    whole = [name for name in translation.FROZEN_AT_FIRST if "[" not in name]
    trained = {name for name in bart if not any(f"{name}/".startswith(f"{frozen}/") for frozen in whole)}
    inputs = {
        f"bart/encoder_layers/attention/{part}/{kind}"
        for part in ("query", "key", "value")
        for kind in ("kernel", "bias")
    }
    assert trained == {"bart/encoder_positions/embedding", "bart/decoder_positions/embedding"} | inputs
    covered = [prefix for group in CONFIG.parameter_groups for prefix in group.prefixes]
    assert all(any(f"{name}/".startswith(f"{prefix}/") for prefix in covered) for name in shapes)


def test_the_source_encoder_adds_its_layers() -> None:
    layer = 4 * 24**2 + 2 * 24 * 37 + 2 * 7 * 24
    assert CONFIG.layers_products(7, 5) == BART.layers_products(7, 5) + 3 * 7 * layer
