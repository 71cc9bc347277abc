"""The state, the packed rows and the dropouts of CoVe's translation model; tests/families has its row."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.generation.batch_generator import BatchGenerator, Settings
from plmjax.generation.beam_search import BeamSearch
from plmjax.models.cove.cove import CoveForTranslation, MtLstm
from tests.families.recurrent import COVE
from tests.systems.modules import outputs, random_params, recorded_draws

SIZE, LENGTHS, TARGET_LENGTHS = COVE.width, [7, 4, 1], [5, 6, 2]
RANDOM = np.random.default_rng(3)
IDS, TARGETS = (RANDOM.integers(0, 19, (3, length), np.int32) for length in (7, 6))
MASK, TARGET_MASK = (
    (np.arange(length) < np.array(lengths)[:, None]).astype(np.int32)
    for length, lengths in ((7, LENGTHS), (6, TARGET_LENGTHS))
)
BATCH = {"input_ids": IDS, "attention_mask": MASK, "decoder_input_ids": TARGETS, "decoder_attention_mask": TARGET_MASK}


@pytest.fixture(scope="module")
def params() -> Any:
    return jax.tree.map(lambda leaf: 3 * leaf, random_params(CoveForTranslation(COVE)))


def test_the_state_passes_by_padding_in_a_target(params: Any) -> None:
    """Padding between two words, and behind them, changes neither the cells nor the vector that is fed back."""
    module = CoveForTranslation(COVE)
    source = {name: BATCH[name][:1] for name in ("input_ids", "attention_mask")}
    padded, expected = (
        outputs(module, params, source | {"decoder_input_ids": ids, "decoder_attention_mask": ids > 1})
        for ids in (np.array([[7, 1, 16, 1]]), np.array([[7, 16]]))
    )
    np.testing.assert_allclose(padded.logits[:, [0, 2]], expected.logits, atol=1e-6)
    chex.assert_trees_all_close(padded.cache, expected.cache, atol=1e-6)


@pytest.mark.nightly
def test_the_texts_of_a_beam_search_have_the_probability_of_reading_them_at_once(params: Any) -> None:
    """Beams share a source, change places, and go on from the state of the cells."""
    vocabulary = Vocabulary(19, pad=0, begin=2, end=3)
    writer = BatchGenerator(COVE, params, vocabulary)
    settings = Settings(BeamSearch(3, sequences=3), max_new_tokens=5, batch_size=3)
    prompts = [IDS[row, :length].tolist() for row, length in enumerate(LENGTHS)]
    texts = writer(prompts, settings)
    found = [text for own in texts for text in own]
    assert all(len({tuple(text.tokens) for text in own}) == 3 for own in texts) and len({*map(str, texts)}) == 3
    asked = np.zeros((9, 5), np.int32)
    for row, text in zip(asked, found, strict=True):
        row[: len(text.tokens)] = text.tokens
    batch = {"input_ids": np.repeat(IDS, 3, axis=0), "attention_mask": np.repeat(MASK, 3, axis=0)}
    given = np.concatenate([np.full((9, 1), COVE.decoder_start_token_id), asked[:, :-1]], axis=1)
    logits = outputs(CoveForTranslation(COVE), params, batch | {"decoder_input_ids": given}).logits
    nats = np.take_along_axis(np.asarray(jax.nn.log_softmax(logits)), asked[..., None], axis=-1)[..., 0]
    for row, text in zip(nats, found, strict=True):
        np.testing.assert_allclose(text.log_probability, row[: len(text.tokens)].sum(), rtol=1e-5)


def test_the_weights_of_the_decoder_sum_the_source(params: Any) -> None:
    """The first half of what the last projection of its attention reads is the sum, for each word of the target."""
    sums: list[np.ndarray] = []

    def watch(call: Any, given: tuple, keywords: Any, context: nn.module.InterceptorContext) -> Any:
        if context.module.path[-2:] == ("attention", "output") and context.method_name == "__call__":
            jax.debug.callback(lambda both: sums.append(both[:, 0]), given[0], ordered=True)
        return call(*given, **keywords)

    with nn.intercept_methods(watch):
        apply = jax.jit(functools.partial(CoveForTranslation(COVE).apply, output_attentions=True))
        found = jax.block_until_ready(apply({"params": params}, **BATCH))
        jax.effects_barrier()
    (weights,), mask = np.asarray(found.cross_attentions)[:, :, 0], BATCH["attention_mask"]
    assert weights.shape == (*BATCH["decoder_input_ids"].shape, mask.shape[1])
    context = np.einsum("bts,bsd->btd", weights, found.encoder_last_hidden_state)
    expected = np.stack(sums, axis=1)[..., : context.shape[-1]]
    np.testing.assert_allclose(context, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-6)
    assert not (weights * (1 - mask[:, None])).any()


def test_the_encoder_reads_packed_texts_and_both_texts_of_a_pair_each_by_itself(params: Any) -> None:
    encoder = MtLstm(COVE)
    apply = jax.jit(functools.partial(encoder.apply, {"params": params["cove"]}, output_hidden_states=True))
    alone = [apply(IDS[:, part]).last_hidden_state for part in (slice(0, 3), slice(3, 5), slice(5, 7))]
    numbers = np.tile([1, 1, 1, 2, 2, 2, 2], (3, 1))
    packed = apply(IDS, segment_ids=numbers, token_type_ids=np.tile([0, 0, 0, 0, 0, 1, 1], (3, 1)))
    np.testing.assert_allclose(packed.last_hidden_state, jnp.concatenate(alone, axis=1), atol=1e-6)
    assert [layer.shape[-1] for layer in packed.hidden_states] == [6, SIZE, SIZE]
    np.testing.assert_array_equal(packed.hidden_states[0], params["cove"]["words"]["embedding"][IDS])


def test_dropout_falls_on_words_and_states_and_twice_on_what_a_step_reads(params: Any) -> None:
    module = CoveForTranslation(dataclasses.replace(COVE.with_dropout(0.5), num_layers=1))
    rngs = {"dropout": jax.random.key(0)}
    with recorded_draws() as found:
        jax.eval_shape(lambda: module.apply({"params": params}, **BATCH, deterministic=False, rngs=rngs))
    assert {(draw.path[-1], draw.rate, draw.shape[-1]) for draw in found} == {
        ("Dropout_0", 0.5, 6), ("dropout", 0.5, SIZE), ("Dropout_1", 0.75, 6 + SIZE), ("Dropout_0", 0.5, SIZE)
    }  # fmt: skip


def test_a_target_goes_on_from_its_state_beside_others_of_the_same_source(params: Any) -> None:
    """Two words, then two more, of three targets for each of two sources of unlike lengths."""
    module, (ids, mask) = CoveForTranslation(COVE), (IDS[:2, :5], MASK[:2, :5])
    targets = RANDOM.integers(0, 19, (6, 4), np.int32)

    @jax.jit
    def read(params: Any) -> Any:
        source = module.apply({"params": params}, ids, mask, method="encode")
        source = source.replace(states=jax.tree.map(lambda state: jnp.repeat(state, 3, axis=0), source.states))
        first = module.apply({"params": params}, targets[:, :2], source, method="decode")
        second = module.apply({"params": params}, targets[:, 2:], source, None, first.cache, method="decode")
        both = {"input_ids": np.repeat(ids, 3, axis=0), "attention_mask": np.repeat(mask, 3, axis=0)}
        whole = module.apply({"params": params}, **both, decoder_input_ids=targets)
        return first.logits, second.logits, whole.logits

    first, second, whole = read(params)
    np.testing.assert_allclose(np.concatenate([first, second], axis=1), whole, rtol=1e-5, atol=1e-5)
    assert np.abs(whole[:3] - whole[3:]).max() > 1e-2
