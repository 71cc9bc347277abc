"""NNLM's masks and its rule; tests/families has its row."""

import dataclasses

import flax.traverse_util
import jax
import numpy as np

from plmjax import experiment
from plmjax.models.nnlm import Nnlm
from tests.families.word_vectors import BOTH_LAYERS, NNLM
from tests.systems.modules import boxed_shapes, outputs, random_params

WITH_BOTH = dataclasses.replace(NNLM, **BOTH_LAYERS)
IDS = np.random.default_rng(1).integers(0, 23, (2, 9))


def test_a_mask_is_padding_and_a_row_of_one_sequence_needs_no_places() -> None:
    module, params = Nnlm(NNLM), random_params(Nnlm(NNLM))
    mask = np.arange(9) < np.array([[9], [4]])
    masked = outputs(module, params, {"input_ids": np.where(mask, IDS, 3), "attention_mask": mask.astype(np.int32)})
    packed = {"positions": mask * np.arange(9), "segment_ids": mask.astype(np.int32)}
    same = outputs(module, params, {"input_ids": IDS, **packed})
    for row, words in enumerate((9, 4)):
        np.testing.assert_allclose(masked.logits[row, :words], same.logits[row, :words], atol=1e-6)
    alone = outputs(module, params, {"input_ids": IDS})
    np.testing.assert_allclose(masked.logits[0], alone.logits[0], atol=1e-6)


def test_no_word_is_seen_across_a_gap_of_positions() -> None:
    module, params = Nnlm(NNLM), random_params(Nnlm(NNLM))
    places = np.tile(np.arange(9), (2, 1))
    gap = {"positions": places + 2 * (places >= 4), "segment_ids": np.ones_like(places)}
    apart = {"positions": places % 4, "segment_ids": 1 + places // 4}
    found, expected = (outputs(module, params, {"input_ids": IDS, **each}).logits for each in (gap, apart))
    np.testing.assert_allclose(found[:, :8], expected[:, :8], atol=1e-6)


def test_the_update_is_the_papers() -> None:
    """A step adds rate / (1 + r t) times the gradient of the log-likelihood less decay times weights, not biases."""
    run = experiment.load("experiments/nnlm_tiny.py")
    shapes = boxed_shapes(Nnlm(WITH_BOTH))
    settings = dataclasses.replace(run.optimizer, weight_decay=0.25)
    params, gradients = (random_params(Nnlm(WITH_BOTH), seed) for seed in (0, 1))
    update = settings.build(10, shapes)
    state = update.init(params)
    for step in range(3):
        found, state = jax.jit(update.update)(gradients, state, params)
        rate = settings.learning_rate / (1 + settings.schedule.decay * step)
        named = flax.traverse_util.flatten_dict(params, sep="/")
        for name, value in flax.traverse_util.flatten_dict(found, sep="/").items():
            gradient = flax.traverse_util.flatten_dict(gradients, sep="/")[name]
            decay = 0 if name in ("output_bias", "hidden/bias") else 0.25
            np.testing.assert_allclose(value, -rate * (gradient + decay * named[name]), rtol=1e-5, atol=1e-7)
