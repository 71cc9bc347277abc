"""Properties of Reformer alone: its backward pass, streams, positions, FLOPs and refused sizes."""

import dataclasses
import functools
from types import SimpleNamespace

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.errors import UserError
from plmjax.layers import reversible_stack
from plmjax.models.families.task_heads import ClassificationHead
from plmjax.models.reformer.attention import LshAttention
from plmjax.models.reformer.axial_positions import AxialPositions
from plmjax.models.reformer.chunked_attention import Chunks
from plmjax.models.reformer.heads import (
    OutputLayer,
    ReformerForCausalLM,
    ReformerForMaskedLM,
    ReformerForSequenceClassification,
    ReformerOutput,
)
from plmjax.models.reformer.layers import ReformerBlock, ReformerLayer
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
    monkeypatch.setattr(reversible_stack, "_run", lambda *arguments: reversible_stack._forward(*arguments)[0])
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


@pytest.mark.nightly
def test_hashes_are_drawn_in_training_and_fixed_elsewhere() -> None:
    module = hashed(ReformerForCausalLM, REFORMER)
    params, ids = random_params(module), BATCH["input_ids"]
    apply = jax.jit(module.apply)
    read = lambda **rngs: apply({"params": params}, ids, **rngs).last_hidden_state  # noqa: E731
    fixed = read()
    np.testing.assert_array_equal(fixed, read())
    drawn = [read(rngs={"sampling": jax.random.key(seed)}) for seed in (1, 1, 2)]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert np.abs(drawn[0] - drawn[2]).max() > 1e-3 and np.abs(drawn[0] - fixed).max() > 1e-3
    seeded = module.clone(config=dataclasses.replace(module.config, hash_seed=5))
    assert np.abs(outputs(seeded, params, {"input_ids": ids}).last_hidden_state - fixed).max() > 1e-3


def test_every_layer_has_fixed_hashes_of_its_own() -> None:
    chunks = Chunks(4, 1, 0)
    layer = LshAttention(6, 2, 3, chunks, True, 0.0, nn.initializers.ones, Execution(), rounds=2, buckets=(8,))
    query, real = jax.random.normal(jax.random.key(0), (1, 2, 40, 3)), np.ones((1, 40), bool)
    first, again, second = (layer.apply({}, query, real, number, method="hash") for number in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.mean(first != second) > 0.5


@pytest.mark.nightly
def test_a_few_tokens_at_a_time_are_fed_forward_as_all_at_once() -> None:
    module = ReformerForCausalLM(REFORMER)
    params, ids = random_params(module), {"input_ids": BATCH["input_ids"]}
    expected = outputs(module, params, ids).logits
    for size in (4, 5):
        parts = module.clone(config=dataclasses.replace(REFORMER, chunk_size_feed_forward=size))
        np.testing.assert_allclose(outputs(parts, params, ids).logits, expected, rtol=1e-5, atol=1e-5)
    chex.assert_trees_all_close(gradient(parts, params), gradient(module, params), rtol=1e-4, atol=1e-4)


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


def test_axial_positions_are_sums_of_small_tables() -> None:
    module = AxialPositions((3, 4), (2, 5), 1.0, 0.5)
    positions = np.arange(12)[None].repeat(2, axis=0)
    params = nn.meta.unbox(module.init(jax.random.key(0), positions, True))["params"]
    found = module.apply({"params": params}, positions, True)
    expected = [np.concatenate([params["axis_0"][p // 4], params["axis_1"][p % 4]]) for p in range(12)]
    np.testing.assert_array_equal(found, np.stack([expected] * 2))
    dropped = module.apply({"params": params}, positions, False, rngs={"dropout": jax.random.key(0)})
    gone = (dropped == 0).all(-1).reshape(2, 3, 4)
    assert (gone == gone[:, :1]).all() and (gone[0] != gone[1]).any()
    np.testing.assert_allclose(dropped[~gone.reshape(2, 12)], 2 * found[~gone.reshape(2, 12)], rtol=1e-6)


@pytest.mark.parametrize("length", [11, 32])
@pytest.mark.parametrize("changes", [{}, CHUNKED, CHUNKED | {"num_hashes": 1, "lsh_num_chunks_before": 2}], ids=str)
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


def test_equal_layers_of_all_periods_are_one_stack() -> None:
    assert ReformerConfig.enwik8().period == ("local", "local", "lsh", "local")
    assert dataclasses.replace(REFORMER, attn_layers=("lsh", "local", "lsh")).period == ("lsh", "local", "lsh")
    assert dataclasses.replace(REFORMER, attn_layers=("lsh",) * 4).period == ("lsh",)


@pytest.mark.parametrize(
    ("config", "purpose", "message"),
    [
        (
            REFORMER,
            Purpose.MASKED_TOKENS,
            r"masked tokens, found ReformerConfig, a decoder, .* --model.is_decoder False",
        ),
        (REFORMER, Purpose.TEXT_LABELS, r"labels texts, found ReformerConfig, a decoder, .* --model.is_decoder False"),
        (ENCODER, Purpose.WRITING, r"writes text, found ReformerConfig, an encoder, which"),
    ],
)
def test_a_decoder_does_not_do_what_an_encoder_does(config, purpose, message) -> None:
    with pytest.raises(UserError, match=message):
        config.module(purpose, Execution())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attn_layers": ()}, r"--model.attn_layers of local or lsh, one for each layer, found none"),
        ({"attn_layers": ("local", "global")}, r"known --model.attn_layers, found 'global'"),
        ({"axial_pos_embds_dim": (7, 12)}, r"sum is the hidden size 18, found 7 12, whose sum is 19; "),
        ({"axial_pos_shape": (32,)}, r"as many numbers from 1, at least two, found 32 and 7 11; "),
        ({"axial_pos_shape": (32,), "axial_pos_embds_dim": (18,)}, r"numbers from 1, at least two, found 32 and 18; "),
        ({"axial_pos_shape": (-4, -8)}, r"numbers from 1, at least two, found -4 -8 and 7 11; "),
        ({"axial_pos_embds_dim": (0, 18)}, r"numbers from 1, at least two, found 4 8 and 0 18; "),
        (CHUNKED | {"axial_pos_shape": (5, 6)}, r"a multiple of 8, in which all chunks end, found 5 6, whose product"),
        ({"num_buckets": (2, 3)}, r"even numbers from 2, found 2 3; "),
        ({"num_buckets": (0,)}, r"even numbers from 2, found 0; "),
        ({"num_buckets": ()}, r"even numbers from 2, found none; "),
        ({"num_buckets": (8, 8)}, r"at most the 32 tokens of the longest row, found 8 8, whose product is 64; "),
        ({"lsh_num_chunks_after": 1}, r"no chunks after a token's own in a decoder, found .*_after 0 and .*_after 1"),
        ({"num_hashes": 0}, r"--model.num_hashes of at least 1"),
        ({"local_attention_probs_dropout_prob": 1.0}, r"--model.local_attention_probs_dropout_prob"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        dataclasses.replace(REFORMER, **changes)


UNLIKE = dataclasses.replace(
    ENCODER,
    attn_layers=("lsh", "local", "lsh") * 2,
    local_attn_chunk_length=6,
    lsh_attn_chunk_length=4,
    axial_pos_shape=(4, 9),
    local_num_chunks_before=3,
    local_num_chunks_after=1,
    lsh_num_chunks_before=2,
    lsh_num_chunks_after=0,
    local_attention_probs_dropout_prob=0.25,
    lsh_attention_probs_dropout_prob=0.5,
    hidden_dropout_prob=0.125,
    num_hashes=3,
    hash_seed=11,
)
"""Settings of which no two are alike, and chunks of which neither length divides the other."""


def test_rows_are_padded_to_where_both_chunks_end() -> None:
    assert [UNLIKE.padded_length(length) for length in (3, 4, 5, 12, 13)] == [3, 4, 12, 12, 24]
    local = dataclasses.replace(UNLIKE, attn_layers=("local",), num_buckets=(64,))  # which hashes nothing
    assert [local.padded_length(length) for length in (6, 7, 13)] == [6, 12, 18]
    assert dataclasses.replace(REFORMER, num_buckets=(4, 8)).num_buckets == (
        4,
        8,
    )  # as many as the longest row has tokens
    with pytest.raises(UserError, match="a multiple of 12, in which all chunks end, found 4 8, whose product is 32"):
        dataclasses.replace(UNLIKE, axial_pos_shape=(4, 8))


def test_chunks_before_and_after_cost_alike_and_those_of_a_kind_are_its_own() -> None:
    flops_of = lambda **changes: dataclasses.replace(UNLIKE, **changes).train_flops(2, 36, 0)  # noqa: E731
    assert flops_of(local_num_chunks_before=1, local_num_chunks_after=3) == flops_of()
    assert flops_of(lsh_num_chunks_before=0, lsh_num_chunks_after=2) == flops_of()
    inner = UNLIKE.num_attention_heads * UNLIKE.attention_head_size
    assert flops_of(local_num_chunks_after=2) - flops_of() == 6 * 2 * 36 * 2 * 6 * inner * 2  # two local layers
    assert (
        flops_of(lsh_num_chunks_after=1) - flops_of() == 6 * 2 * 36 * 2 * 3 * 4 * inner * 4
    )  # three rounds, four layers


def test_a_layer_has_the_settings_of_its_kind() -> None:
    local, lsh = (ReformerLayer(UNLIKE, Execution(), kind, True).bind({}).attention for kind in ("local", "lsh"))
    assert (local.chunks, local.dropout, local.causal) == (Chunks(6, 3, 1), 0.25, False)
    assert (lsh.chunks, lsh.dropout, lsh.causal) == (Chunks(4, 2, 0), 0.5, False)
    assert (lsh.rounds, lsh.buckets, lsh.seed, lsh.num_heads, lsh.head_size) == (3, (2, 4), 11, 3, 5)
    assert ReformerLayer(REFORMER, Execution(), "local", True).bind({}).attention.causal


def test_a_block_hashes_with_the_number_among_the_layers_that_hash() -> None:
    """Two blocks of lsh, local, lsh: each layer has a place of its own in the cache."""
    seen = []
    layers = [
        SimpleNamespace(
            decode_step=lambda x, cache, layer, hashing: (seen.append((int(layer), hashing)), (x, cache))[1],
            feed=lambda x: x,
        )
    ] * 3
    block = SimpleNamespace(config=UNLIKE, layer=layers)
    for numbers in (np.arange(3), np.arange(3, 6)):
        ReformerBlock.read(block, (np.ones((1, 1, 2)),) * 2, "cache", None, numbers)
    assert [number for number, _ in seen] == list(range(6))
    assert [seen[number][1] for number in (0, 2, 3, 5)] == [0, 1, 2, 3]


def test_the_parameters_of_a_layer_are_a_part_of_its_place_in_the_period() -> None:
    groups = [(group.prefixes, group.index) for group in UNLIKE.parameter_groups]
    places = [("reformer/layers/layer_0", 0), ("reformer/layers/layer_1", 0), ("reformer/layers/layer_2", 0)]
    places += [(name, 1) for name, _ in places]
    assert groups[1:-1] == [((name,), index) for name, index in places]
    assert groups[0][0] == ("reformer/word_embeddings", "reformer/position_embeddings")
    assert groups[-1] == (("reformer/layer_norm",), None)


def test_rates_are_changed_together_and_a_head_may_have_none() -> None:
    changed = UNLIKE.with_dropout(0.75)
    rates = changed.hidden_dropout_prob, changed.local_attention_probs_dropout_prob
    assert (*rates, changed.lsh_attention_probs_dropout_prob) == (0.75,) * 3
    heads = [dataclasses.replace(UNLIKE, classifier_dropout=rate).head_dropout for rate in (None, 0.0, 0.5)]
    assert heads == [0.125, 0.0, 0.5]
    tokens = UNLIKE.with_tokens(70, 5)
    assert (tokens.vocab_size, tokens.pad_token_id, tokens.padding_token) == (70, 5, None)
    with pytest.raises(UserError, match=r"found --model.local_num_chunks_after 1 and --model.lsh_num_chunks_after 0"):
        dataclasses.replace(UNLIKE, is_decoder=True)


def test_a_layer_feeds_forward_a_few_tokens_at_a_time() -> None:
    """Rows of 11 tokens, four at a time; a length that is the number of tokens is all of them."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 11, REFORMER.hidden_size)), jnp.float32)

    def layer(size: int) -> ReformerLayer:
        return ReformerLayer(dataclasses.replace(REFORMER, chunk_size_feed_forward=size), Execution(), "local", True)

    shapes = jax.eval_shape(lambda: layer(0).init(jax.random.key(0), x, method="feed")["params"])
    params = {"params": drawn(shapes)}
    feed = lambda size, x: layer(size).apply(params, x, method="feed")  # noqa: E731
    loops = [
        sum(one.primitive.name == "scan" for one in jax.make_jaxpr(functools.partial(feed, size))(x).eqns)
        for size in (4, 10, 11, 0)
    ]
    assert loops == [1, 1, 0, 0]
    np.testing.assert_allclose(jax.jit(lambda: feed(4, x))(), jax.jit(lambda: feed(0, x))(), rtol=1e-5, atol=1e-6)


def test_hashes_are_those_of_a_seed_or_are_drawn() -> None:
    query, real = jax.random.normal(jax.random.key(0), (1, 2, 40, 3)), np.ones((1, 40), bool)

    def buckets(seed: int, sampling: int | None = None) -> np.ndarray:
        layer = LshAttention(
            6, 2, 3, Chunks(4, 1, 0), True, 0.0, nn.initializers.ones, Execution(), rounds=2, buckets=(8,), seed=seed
        )
        rngs = None if sampling is None else {"sampling": jax.random.key(sampling)}
        return np.asarray(layer.apply({}, query, real, 0, method="hash", rngs=rngs))

    fixed, drawn, again = buckets(0), buckets(0, 1), buckets(7, 1)
    np.testing.assert_array_equal(drawn, again)  # whatever the seed
    for other in (buckets(7), drawn, buckets(0, 2)):
        assert np.mean(fixed != other) > 0.5
    assert np.mean(drawn != buckets(0, 2)) > 0.5


def test_heads_of_an_encoder_look_at_the_tokens_asked_for() -> None:
    """At three positions of each row, or at the first token of a sequence."""
    ids, places = jnp.zeros((2, 32), jnp.int32), jnp.asarray([[5, 1, 9], [0, 2, 31]])
    states = jnp.arange(64.0).reshape(2, 32, 1) + jnp.zeros(2 * ENCODER.hidden_size)

    def looked_at(module: nn.Module, **inputs) -> tuple[ReformerOutput, list[np.ndarray]]:
        """The output, and what the layer behind the encoder reads."""
        seen = []

        def intercepted(method, given, named, context):
            if isinstance(context.module, ReformerModel):
                return ReformerOutput(states)
            if isinstance(context.module, OutputLayer | ClassificationHead) and context.method_name == "__call__":
                seen.append(given[0])
                return SimpleNamespace(logits=lambda: "scores") if isinstance(context.module, OutputLayer) else "labels"
            return method(*given, **named)

        with nn.intercept_methods(intercepted):
            output = module.apply({}, ids, **inputs)
        return output, [np.asarray(one)[..., 0].tolist() for one in seen]

    output, seen = looked_at(ReformerForMaskedLM(ENCODER), masked_positions=places)
    assert output.head_logits == "scores" and seen == [[[5, 1, 9], [32, 34, 63]]]
    assert np.shape(looked_at(ReformerForMaskedLM(ENCODER))[1]) == (1, 2, 32)
    labels = ReformerForSequenceClassification(ENCODER)
    output, seen = looked_at(labels)
    assert output.head_logits == "labels" and seen == [[0, 32]]
    assert looked_at(labels, cls_positions=jnp.asarray([[3], [4]]))[1] == [[[3], [36]]]


def test_rows_of_a_pretraining_have_all_positions() -> None:
    REFORMER.check_sequence_length(32)
    for length in (31, 33):
        with pytest.raises(UserError, match=f"rows of 32 tokens, .* found a sequence length of {length}; change it"):
            REFORMER.check_sequence_length(length)


def test_a_row_that_is_one_chunk_may_have_any_length() -> None:
    chunks = {"local_attn_chunk_length": 24, "lsh_attn_chunk_length": 32, "num_buckets": (4,)}
    assert dataclasses.replace(REFORMER, **chunks, axial_pos_shape=(4, 5)).longest == 20
    with pytest.raises(UserError, match="a multiple of 96, in which all chunks end, found 5 5, whose product is 25"):
        dataclasses.replace(REFORMER, **chunks, axial_pos_shape=(5, 5))


def test_rows_behind_a_cache_have_one_document() -> None:
    ids, cache = jnp.zeros((2, 3), jnp.int32), REFORMER.empty_cache(2, 8, Execution())
    with pytest.raises(ValueError, match="rows of one sequence with a cache, found segment_ids"):
        ReformerModel(REFORMER).apply({}, ids, segment_ids=ids + 1, cache=cache)
