"""BART, and BART behind a source encoder: as two of transformers' BARTs, one of which reads the other's states."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from plmjax.errors import UserError
from plmjax.interop import huggingface
from plmjax.models.bart.bart import BartConfig, BartForConditionalGeneration, BartModel
from plmjax.models.bart.translation import SOURCE_ENCODER, BartForTranslation, BartTranslationConfig
from tests.families.encoder_decoders import BART as ROW
from tests.families.encoder_decoders import WRITER_SIZES
from tests.families.family import ended_sources
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


@pytest.mark.nightly
def test_outputs_and_gradients_are_those_of_two_barts(params: dict, tmp_path: Path) -> None:
    """The source encoder is the encoder of one BART; the other BART reads its output."""
    own, first = params[SOURCE_ENCODER], BartModel.first_position
    positions = np.pad(own["positions"]["embedding"], ((first, 0), (0, 0)))
    encoder = {"encoder_layer_norm": own["layer_norm"], "encoder_layers": own["layers"]}
    encoder |= {"words": own["words"], "encoder_positions": {"embedding": positions}}
    deeper, barts = dataclasses.replace(BART, encoder_layers=3), []
    for config, tree in ((deeper, params["bart"] | encoder), (BART, params["bart"])):
        huggingface.save(BartForConditionalGeneration(config), {"bart": tree}, tmp_path / f"{config.encoder_layers}")
        load = transformers.BartForConditionalGeneration.from_pretrained
        barts.append(load(tmp_path / f"{config.encoder_layers}").eval())
    before, bart = barts
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


SMALL = dataclasses.replace(ROW, encoder_layers=1, decoder_layers=1)
ENCODING = BartModel(SMALL)
ENDED = {name: field for name, field in ended_sources(SMALL).items() if not name.startswith("decoder_")}


@functools.cache
def parameters() -> Any:
    return random_params(ENCODING)


def test_without_a_target_the_decoder_reads_the_source_behind_the_end_token() -> None:
    ids = ENDED["input_ids"]
    shifted = np.concatenate([np.full((3, 1), SMALL.decoder_start_token_id), ids[:, :-1]], axis=1)
    with_target = ENDED | {"decoder_input_ids": shifted}
    found, expected = (outputs(ENCODING, parameters(), given) for given in (ENDED, with_target))
    np.testing.assert_array_equal(found.last_hidden_state, expected.last_hidden_state)


def test_a_checkpoint_whose_scores_have_a_bias_is_refused(tmp_path: Path) -> None:
    """A bias of one token is enough."""
    module = BartForConditionalGeneration(SMALL)
    huggingface.save(module, random_params(module), tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = safetensors.numpy.load_file(file)
    safetensors.numpy.save_file(tensors | {"final_logits_bias": np.zeros((1, 53), np.float32)}, file)
    assert huggingface.load(tmp_path)[0] == module
    safetensors.numpy.save_file(tensors | {"final_logits_bias": np.eye(1, 53, dtype=np.float32)}, file)
    with pytest.raises(UserError, match="Expected a final_logits_bias of zeros"):
        huggingface.load(tmp_path)


def test_the_decoder_reads_packed_sources_where_they_are() -> None:
    """Each sequence begins with the start token, and is read as if it were alone."""
    ids = np.array([[7, 8, 9, 5, 6, 0]])
    packed = {"positions": np.array([[0, 1, 2, 0, 1, 0]]), "segment_ids": np.array([[1, 1, 1, 2, 2, 0]])}
    found = outputs(ENCODING, parameters(), {"input_ids": ids} | packed).last_hidden_state[0]
    alone = {name: np.zeros_like(field) for name, field in ENDED.items()}  # of its shapes, for one program
    sequences = slice(0, 3), slice(3, 5)
    for row, own in enumerate(sequences):
        alone["input_ids"][row, : own.stop - own.start] = ids[0, own]
        alone["attention_mask"][row, : own.stop - own.start] = 1
    expected = outputs(ENCODING, parameters(), alone).last_hidden_state
    for row, own in enumerate(sequences):
        np.testing.assert_allclose(found[own], expected[row, : own.stop - own.start], rtol=1e-5, atol=1e-5)
