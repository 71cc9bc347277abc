"""Properties of BART: vectors of its own, a text that the decoder reads shifted, and where a head looks."""

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
from plmjax.models.bart.bart import BartConfig, BartForConditionalGeneration, BartForSequenceClassification, BartModel
from tests.families.encoder_decoders import BART
from tests.families.family import ended_sources
from tests.systems.modules import boxed_shapes, outputs, random_params

CONFIG = dataclasses.replace(BART, encoder_layers=1, decoder_layers=1)
MODEL = BartModel(CONFIG)
SOURCE = {name: field for name, field in ended_sources(CONFIG).items() if not name.startswith("decoder_")}


@functools.cache
def parameters() -> Any:
    return random_params(MODEL)


def test_without_a_target_the_decoder_reads_the_source_behind_the_end_token() -> None:
    ids = SOURCE["input_ids"]
    shifted = np.concatenate([np.full((3, 1), CONFIG.decoder_start_token_id), ids[:, :-1]], axis=1)
    with_target = SOURCE | {"decoder_input_ids": shifted}
    found, expected = (outputs(MODEL, parameters(), given) for given in (SOURCE, with_target))
    np.testing.assert_array_equal(found.last_hidden_state, expected.last_hidden_state)


@pytest.mark.nightly
def test_a_classifier_looks_at_the_last_token_which_has_seen_all_of_the_text() -> None:
    module = BartForSequenceClassification(CONFIG, num_labels=2)
    params = random_params(module)
    row = jnp.asarray(SOURCE["input_ids"][1:2, :5])
    table = params["bart"]["words"]["embedding"]

    def logits(table: jax.Array) -> jax.Array:
        changed = {**params, "bart": {**params["bart"], "words": {"embedding": table}}}
        return module.apply({"params": changed}, row).logits.sum()

    reach = np.abs(np.asarray(jax.jit(jax.grad(logits))(table))).max(-1) > 0
    assert set(np.flatnonzero(reach)) == {*row[0].tolist(), CONFIG.decoder_start_token_id}
    assert CONFIG.template.single == "cls A sep" and CONFIG.template.position(5) == 4


def test_every_parameter_of_the_model_is_in_a_group() -> None:
    paths = flax.traverse_util.flatten_dict(boxed_shapes(BartForConditionalGeneration(CONFIG)), sep="/")
    prefixes = {prefix for group in CONFIG.parameter_groups for prefix in group.prefixes}
    assert all(any(path.startswith(f"{prefix}/") for prefix in prefixes) for path in paths)
    assert all(any(path.startswith(f"{prefix}/") for path in paths) for prefix in prefixes)
    assert len(BartConfig.large().parameter_groups) == 1 + 12 + 12


def test_a_checkpoint_whose_scores_have_a_bias_is_refused(tmp_path: Path) -> None:
    """A bias of one token is enough."""
    module = BartForConditionalGeneration(CONFIG)
    huggingface.save(module, random_params(module), tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = safetensors.numpy.load_file(file)
    safetensors.numpy.save_file(tensors | {"final_logits_bias": np.zeros((1, 53), np.float32)}, file)
    assert huggingface.load(tmp_path)[0] == module
    safetensors.numpy.save_file(tensors | {"final_logits_bias": np.eye(1, 53, dtype=np.float32)}, file)
    with pytest.raises(UserError, match="Expected a final_logits_bias of zeros"):
        huggingface.load(tmp_path)


def test_a_head_of_a_task_counts_both_sides() -> None:
    """6 FLOPs for each multiplication of the layers; the encoder alone would be less than half of them."""
    config = BartConfig.base()
    read, written = config.train_flops(2, 64, 0), config.train_flops(2, 64, 64)
    assert written - read == 6 * 2 * 64 * config.d_model * config.vocab_size
    of_encoder = 6 * 64 * 6 * (4 * 768**2 + 2 * 768 * 3072 + 2 * 64 * 768)
    of_decoder = 6 * 64 * 6 * (8 * 768**2 + 2 * 768 * 3072 + 4 * 64 * 768)
    assert read == 2 * (of_encoder + of_decoder)


def test_the_decoder_reads_packed_sources_where_they_are() -> None:
    """Each sequence begins with the start token, and is read as if it were alone."""
    ids = np.array([[7, 8, 9, 5, 6, 0]])
    packed = {"positions": np.array([[0, 1, 2, 0, 1, 0]]), "segment_ids": np.array([[1, 1, 1, 2, 2, 0]])}
    found = outputs(MODEL, parameters(), {"input_ids": ids} | packed).last_hidden_state[0]
    alone = {name: np.zeros_like(field) for name, field in SOURCE.items()}  # of its shapes, for one program
    sequences = slice(0, 3), slice(3, 5)
    for row, own in enumerate(sequences):
        alone["input_ids"][row, : own.stop - own.start] = ids[0, own]
        alone["attention_mask"][row, : own.stop - own.start] = 1
    expected = outputs(MODEL, parameters(), alone).last_hidden_state
    for row, own in enumerate(sequences):
        np.testing.assert_allclose(found[own], expected[row, : own.stop - own.start], rtol=1e-5, atol=1e-5)
