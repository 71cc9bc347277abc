"""Properties of Reformer alone: its backward pass, streams, FLOPs, and the settings of its layers."""

import dataclasses
import functools

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.layers import reversible_stack
from plmjax.models.reformer.attention import LshAttention
from plmjax.models.reformer.chunked_attention import Chunks
from plmjax.models.reformer.heads import ReformerForCausalLM, ReformerForSequenceClassification
from plmjax.models.reformer.layers import ReformerLayer
from plmjax.models.reformer.reformer import ReformerConfig, ReformerModel
from tests.families.hashes import CHUNKED, ENCODER, REFORMER, REFORMER_ROW, TRAINED, hashed, hashing_with, rows
from tests.optional import needs_torch, torch
from tests.products import flops
from tests.systems.modules import drawn, outputs, random_params

BATCH = rows(REFORMER)


def gradient(module: nn.Module, params, **inputs):
    """Return that of a number of all hidden states of real tokens."""

    def score(params) -> jax.Array:
        found = module.apply({"params": params}, **BATCH, **inputs)
        return jnp.sum(jnp.sin(found.last_hidden_state) * BATCH["attention_mask"][..., None])

    return jax.jit(jax.grad(score))(params)


@pytest.mark.nightly
def test_the_backward_pass_gives_the_gradients_of_plain_autodiff(monkeypatch: pytest.MonkeyPatch) -> None:
    """With dropout and new hashes; also where hidden states are asked for, which is no reversible loop."""
    module = hashed(ReformerForCausalLM, TRAINED, attn_layers=("local", "lsh") * 2)
    random = {"dropout": jax.random.key(1), "sampling": jax.random.key(2)}
    params = random_params(module)
    certain, uncertain = gradient(module, params), gradient(module, params, deterministic=False, rngs=random)
    kept = gradient(module, params, output_hidden_states=True)
    chex.assert_trees_all_close(certain, kept, rtol=1e-4, atol=1e-4)
    monkeypatch.setattr(reversible_stack, "_run", lambda *arguments: reversible_stack._run_forward(*arguments)[0])
    expected = gradient(module, params, deterministic=False, rngs=random)
    chex.assert_trees_all_close(uncertain, expected, rtol=1e-4, atol=1e-4)


@needs_torch
def test_the_second_stream_is_transformers_hidden_state() -> None:
    module = hashed(ReformerModel, REFORMER)
    oracle = REFORMER_ROW.transformers
    model = oracle.model(module).double()
    params = oracle(module, BATCH).params
    with hashing_with(module.config), torch.no_grad():
        given = {name: torch.tensor(array).long() for name, array in BATCH.items()}
        expected = model(**given, output_hidden_states=True).hidden_states
    found = jax.jit(lambda params: module.apply({"params": params}, **BATCH, output_hidden_states=True))(params)
    assert len(found.hidden_states) == module.config.depth + 1 == len(expected)
    for own, states in zip(found.hidden_states[:-1], expected, strict=False):
        np.testing.assert_allclose(own[..., module.config.hidden_size :], states.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.nightly
def test_memory_of_a_step_grows_with_depth_by_parameters_and_buckets_alone() -> None:
    config = dataclasses.replace(
        ReformerConfig.tiny(vocab_size=64), hidden_size=32, feed_forward_size=64, axial_pos_embds_dim=(16, 16)
    )

    def step_bytes(layers: int) -> tuple[int, int]:
        module = ReformerForCausalLM(dataclasses.replace(config, attn_layers=("local", "lsh") * layers))
        ids = jnp.zeros((2, 512), jnp.int32)
        params = jax.eval_shape(lambda: nn.meta.unbox(module.init(jax.random.key(0), ids))["params"])

        def loss(params) -> jax.Array:
            return module.apply({"params": params}, ids).scores.weighted_cross_entropy(ids, jnp.ones(ids.shape))[0]

        compiled = jax.jit(jax.grad(loss)).lower(params).compile()
        return compiled.memory_analysis().temp_size_in_bytes, sum(4 * leaf.size for leaf in jax.tree.leaves(params))

    (few, smaller), (many, larger) = step_bytes(2), step_bytes(8)
    stream = 4 * 2 * 512 * 32
    buckets = 6 * 2 * 512 * 2 * 2  # a byte for each head, round and token of six LSH layers
    assert many - few <= (larger - smaller) + buckets + 0.2 * stream


def test_documents_of_a_row_do_not_see_each_other() -> None:
    module = hashed(ReformerForCausalLM, REFORMER)
    params, ids = random_params(module), BATCH["input_ids"][:1]
    segments = np.repeat(np.array([[1, 2]], np.int32), [20, 12], axis=1)
    positions = np.concatenate([np.arange(20, dtype=np.int32), np.arange(12, dtype=np.int32)])[None]
    packed = {"input_ids": ids, "segment_ids": segments, "positions": positions}
    found = outputs(module, params, packed)
    changed = outputs(module, params, packed | {"input_ids": np.where(segments == 1, 7, ids)})
    whole = dataclasses.replace(module.config, lsh_attn_chunk_length=32, local_attn_chunk_length=32)
    alone = outputs(module.clone(config=whole), params, {"input_ids": ids[:, 20:]})
    beside = outputs(module.clone(config=whole), params, packed)
    np.testing.assert_allclose(beside.logits[:, 20:], alone.logits, rtol=1e-5, atol=1e-5)
    assert np.abs(found.logits[:, :20] - changed.logits[:, :20]).max() > 1e-3


@pytest.mark.parametrize(
    ("changes", "length"), [({}, 11), (CHUNKED, 11), (CHUNKED | {"num_hashes": 1, "lsh_num_chunks_before": 2}, 32)]
)
def test_flops_are_those_of_the_products(changes: dict, length: int) -> None:
    """The product with the rotations has no backward pass."""
    config = dataclasses.replace(REFORMER, **changes)
    module, ids = ReformerForCausalLM(config), jnp.zeros((2, length), jnp.int32)
    variables = jax.eval_shape(lambda: module.init(jax.random.key(0), ids))
    forward = flops(lambda variables: module.apply(variables, ids).logits, variables)
    inner = config.num_attention_heads * config.attention_head_size
    tokens = 2 * config.padded_length(length) * config.attn_layers.count("lsh")
    hashing = 2 * tokens * inner * config.num_hashes * sum(config.num_buckets) // 2
    assert 3 * (forward - hashing) + hashing == config.train_flops(2, length, length)


UNLIKE = dataclasses.replace(
    ENCODER, attn_layers=("lsh", "local", "lsh") * 2, local_attn_chunk_length=6, lsh_attn_chunk_length=4,
    axial_pos_shape=(4, 9), local_num_chunks_before=3, local_num_chunks_after=1, lsh_num_chunks_before=2,
    lsh_num_chunks_after=0, local_attention_probs_dropout_prob=0.25, lsh_attention_probs_dropout_prob=0.5, num_hashes=3,
    hash_seed=11,
)  # fmt: skip
"""Settings of which no two are alike, and chunks of which neither length divides the other."""


def test_rows_are_padded_to_where_both_chunks_end() -> None:
    assert [UNLIKE.padded_length(length) for length in (3, 4, 5, 12, 13)] == [3, 4, 12, 12, 24]
    local = dataclasses.replace(UNLIKE, attn_layers=("local",), num_buckets=(64,))  # which hashes nothing
    assert [local.padded_length(length) for length in (6, 7, 13)] == [6, 12, 18]


def test_a_layer_has_the_settings_of_its_kind() -> None:
    local, lsh = (ReformerLayer(UNLIKE, Execution(), kind, True).bind({}).attention for kind in ("local", "lsh"))
    assert (local.chunks, local.dropout, local.causal) == (Chunks(6, 3, 1), 0.25, False)
    assert (lsh.chunks, lsh.dropout, lsh.causal) == (Chunks(4, 2, 0), 0.5, False)
    assert (lsh.rounds, lsh.buckets, lsh.seed, lsh.num_heads, lsh.head_size) == (3, (2, 4), 11, 3, 5)
    assert ReformerLayer(REFORMER, Execution(), "local", True).bind({}).attention.causal


def test_a_layer_feeds_forward_a_few_tokens_at_a_time() -> None:
    """Rows of 11 tokens, four at a time; a length that is the number of tokens is all of them."""
    x = np.random.default_rng(0).normal(size=(2, 11, REFORMER.hidden_size)).astype(np.float32)
    layers = [
        ReformerLayer(dataclasses.replace(REFORMER, chunk_size_feed_forward=size), Execution(), "local", True)
        for size in (4, 11, 0)
    ]
    init = functools.partial(layers[0].init, method="feed")
    params = {"params": drawn(jax.eval_shape(init, jax.random.key(0), x)["params"])}
    feeds = [functools.partial(layer.apply, params, x, method="feed") for layer in layers]
    assert [str(jax.make_jaxpr(feed)()).count("scan[") for feed in feeds] == [1, 0, 0]
    np.testing.assert_allclose(feeds[0](), feeds[2](), rtol=1e-5, atol=1e-6)


def test_hashes_are_those_of_a_seed_or_are_drawn() -> None:
    query, real = jax.random.normal(jax.random.key(0), (1, 2, 40, 3)), np.ones((1, 40), bool)

    def buckets(seed: int, sampling: int | None = None, number: int = 0) -> np.ndarray:
        settings = {"rounds": 2, "buckets": (8,), "seed": seed}
        layer = LshAttention(6, 2, 3, Chunks(4, 1, 0), True, 0.0, nn.initializers.ones, Execution(), **settings)
        rngs = None if sampling is None else {"sampling": jax.random.key(sampling)}
        return np.asarray(layer.apply({}, query, real, number, method="hash", rngs=rngs))

    fixed, drawn, again = buckets(0), buckets(0, 1), buckets(7, 1)
    np.testing.assert_array_equal(drawn, again)  # whatever the seed
    np.testing.assert_array_equal(fixed, buckets(0))
    for other in (buckets(7), drawn, buckets(0, 2), buckets(0, number=1)):  # every layer has hashes of its own
        assert np.mean(fixed != other) > 0.5
    assert np.mean(drawn != buckets(0, 2)) > 0.5


def test_heads_of_an_encoder_look_at_the_tokens_asked_for() -> None:
    """At the first token of a sequence; tests/systems has the positions of predictions."""
    ids = {"input_ids": rows(ENCODER)["input_ids"][:2]}
    module = ReformerForSequenceClassification(ENCODER)
    params = random_params(module)
    named = [outputs(module, params, ids | {"cls_positions": np.full((2, 1), place)}).logits for place in (0, 3)]
    np.testing.assert_allclose(outputs(module, params, ids).logits, named[0][:, 0], rtol=1e-5, atol=1e-5)
    assert np.abs(named[0] - named[1]).max() > 1e-3
