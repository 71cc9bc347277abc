"""BERT against transformers, and what must hold whatever the weights are."""

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from plmjax.errors import UserError
from plmjax.interop.adapter import Tensors, read_parameters
from plmjax.interop.bert import ADAPTER
from plmjax.layers.execution import REMAT_POLICIES, Execution
from plmjax.models.bert import (
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    BertForSequenceClassification,
    BertModel,
)
from plmjax.parallel import sharding

ODD = BertConfig(
    vocab_size=53,
    hidden_size=24,
    num_hidden_layers=3,
    num_attention_heads=3,
    intermediate_size=37,
    max_position_embeddings=19,
    type_vocab_size=3,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
EVEN = dataclasses.replace(ODD, vocab_size=56, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32)
ROWS, LENGTH = 3, 17


def inputs() -> dict[str, np.ndarray]:
    """Rows of 17, 11 and 1 real tokens; none is id 0, whose table row torch never gives a gradient."""
    random = np.random.default_rng(0)
    mask = (np.arange(LENGTH)[None] < np.array([[17], [11], [1]])).astype(np.int32)
    return {
        "input_ids": random.integers(1, ODD.vocab_size, (ROWS, LENGTH), np.int32),
        "attention_mask": mask,
        "token_type_ids": random.integers(0, ODD.type_vocab_size, (ROWS, LENGTH), np.int32),
    }


def reference(name: str, config: BertConfig, **extra: Any) -> Any:
    """A transformers model with large random weights, biases and scales, so that every parameter matters."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    settings = transformers.BertConfig(**dataclasses.asdict(config), attn_implementation="eager", **extra)
    torch.manual_seed(0)
    model = getattr(transformers, name)(settings).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.15)
    return model


def converted(tensors: Iterable[tuple[str, Any]], module: nn.Module) -> dict:
    """Named tensors of a transformers model, weights or gradients alike -> the module's tree."""
    arrays = {name: tensor.detach().numpy() for name, tensor in tensors}
    found = Tensors("transformers", {name: array.shape for name, array in arrays.items()}, arrays.__getitem__)
    name = type(module).__name__
    parameters = ADAPTER.architecture(name).parameters
    return read_parameters(module, parameters, ADAPTER.canonical(found, name), ADAPTER.optional)[0]


def torch_inputs() -> dict[str, Any]:
    import torch

    return {name: torch.tensor(array).long() for name, array in inputs().items()}


def assert_trees_close(found: Any, expected: Any, tolerance: float) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for (path, x), y in zip(jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(expected), strict=True):
        name = jax.tree_util.keystr(path)
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("activation", ["gelu_new", "gelu", "relu"])
def test_pretraining_outputs_and_gradients_equal_transformers(activation: str) -> None:
    """With "gelu" this also shows the deviation named in the module: the two forms of GELU differ by far more."""
    import torch

    config = dataclasses.replace(ODD, hidden_act=activation)
    model = reference("BertForPreTraining", config)
    expected = model(**torch_inputs(), output_hidden_states=True)
    random = np.random.default_rng(1)
    token_cotangent = random.normal(size=(ROWS, LENGTH, config.vocab_size)).astype(np.float32)
    pair_cotangent = random.normal(size=(ROWS, 2)).astype(np.float32)
    scalar = (expected.prediction_logits * torch.tensor(token_cotangent)).sum()
    (scalar + (expected.seq_relationship_logits * torch.tensor(pair_cotangent)).sum()).backward()

    module = BertForPreTraining(config)
    params = converted(model.named_parameters(), module)

    @jax.jit
    @jax.grad
    def gradient(params: Any) -> jax.Array:
        outputs = module.apply({"params": params}, **inputs())
        return jnp.sum(outputs.logits * token_cotangent) + jnp.sum(outputs.seq_relationship_logits * pair_cotangent)

    found = jax.jit(lambda p: module.apply({"params": p}, **inputs(), output_hidden_states=True))(params)
    assert found.hidden_states.shape[0] == config.num_hidden_layers + 1
    for i, hidden in enumerate(expected.hidden_states):
        np.testing.assert_allclose(found.hidden_states[i], hidden.detach(), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(found.hidden_states[-1], found.last_hidden_state)
    np.testing.assert_allclose(found.logits, expected.prediction_logits.detach(), rtol=1e-5, atol=1e-5)
    relation = expected.seq_relationship_logits.detach()
    np.testing.assert_allclose(found.seq_relationship_logits, relation, rtol=1e-5, atol=1e-5)
    gradients = converted(((name, p.grad) for name, p in model.named_parameters()), module)
    assert_trees_close(gradient(params), gradients, 1e-4)
    if activation == "gelu":
        tanh = BertForPreTraining(ODD).apply({"params": params}, **inputs()).logits
        assert np.abs(tanh - found.logits).max() > 1e-4


@pytest.mark.parametrize("name", ["BertModel", "BertForMaskedLM", "BertForSequenceClassification"])
def test_other_heads_equal_transformers(name: str) -> None:
    model = reference(name, ODD, **({"num_labels": 5} if name == "BertForSequenceClassification" else {}))
    expected = model(**torch_inputs())
    module = {
        "BertModel": BertModel(ODD),
        "BertForMaskedLM": BertForMaskedLM(ODD),
        "BertForSequenceClassification": BertForSequenceClassification(ODD, num_labels=5),
    }[name]
    params = converted(model.named_parameters(), module)
    found = module.apply({"params": params}, **inputs())
    if name == "BertModel":
        pairs = [(found.last_hidden_state, expected.last_hidden_state), (found.pooler_output, expected.pooler_output)]
    else:
        pairs = [(found.logits, expected.logits)]
    for ours, theirs in pairs:
        np.testing.assert_allclose(ours, theirs.detach(), rtol=1e-5, atol=1e-5)


def random_params(module: nn.Module, seed: int = 0) -> Any:
    """Parameters far from their initial values, biases included."""
    params = nn.meta.unbox(jax.jit(module.init)(jax.random.key(seed), jnp.zeros((1, 4), jnp.int32)))["params"]
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(seed + 1), len(leaves))
    noisy = [leaf + 0.15 * jax.random.normal(key, leaf.shape) for leaf, key in zip(leaves, keys, strict=True)]
    return structure.unflatten(noisy)


def test_padding_changes_nothing() -> None:
    module = BertForPreTraining(ODD)
    params, batch = random_params(module), inputs()
    whole = module.apply({"params": params}, **batch)
    short = module.apply({"params": params}, **{name: field[1:2, :11] for name, field in batch.items()})
    np.testing.assert_allclose(whole.last_hidden_state[1:2, :11], short.last_hidden_state, atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(whole.seq_relationship_logits[1:2], short.seq_relationship_logits, atol=1e-5, rtol=1e-5)
    other = batch | {"input_ids": np.where(batch["attention_mask"] == 1, batch["input_ids"], 7)}
    kept = batch["attention_mask"][..., None]
    changed = module.apply({"params": params}, **other)
    np.testing.assert_array_equal(changed.last_hidden_state * kept, whole.last_hidden_state * kept)


def test_packed_equals_unpacked() -> None:
    """Deviation named in the module: a row may hold several sequences, and each is as if it stood alone."""
    module = BertForPreTraining(ODD)
    params, batch = random_params(module), inputs()
    lengths, starts = (5, 7, 3), (0, 5, 12)
    row = {name: batch[name][:1] for name in ("input_ids", "token_type_ids")}
    packed = module.apply(
        {"params": params},
        **row,
        segment_ids=np.array([[1] * 5 + [2] * 7 + [3] * 3 + [0] * 2]),
        positions=np.array([[*range(5), *range(7), *range(3), 0, 0]]),
        cls_positions=np.array([starts]),
    )
    assert packed.pooler_output.shape == (1, 3, ODD.hidden_size)
    for k, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        piece = {name: field[:, start : start + length] for name, field in row.items()}
        alone = module.apply({"params": params}, **piece)
        for name in ("last_hidden_state", "logits"):
            found = getattr(packed, name)[:, start : start + length]
            np.testing.assert_allclose(found, getattr(alone, name), atol=1e-5, rtol=1e-5)
        relation = packed.seq_relationship_logits[:, k]
        np.testing.assert_allclose(relation, alone.seq_relationship_logits, atol=1e-5, rtol=1e-5)


def test_packed_sequences_do_not_leak() -> None:
    module = BertModel(ODD)
    params = random_params(module)
    segments = jnp.array([[1, 1, 1, 2, 2, 0, 0]])

    def last(words: jax.Array) -> jax.Array:
        embeddings = params["embeddings"] | {"word_embeddings": {"embedding": words}}
        return module.apply({"params": params | {"embeddings": embeddings}}, jnp.arange(7)[None], segment_ids=segments)

    jacobian = jax.jacrev(lambda words: last(words).last_hidden_state[0].sum(-1))(
        params["embeddings"]["word_embeddings"]["embedding"]
    )
    reach = np.abs(jacobian[:5, :7]).max(-1) > 0
    np.testing.assert_array_equal(reach, (segments[0, :5, None] == segments[0][None]))


def test_logits_at_masked_positions_are_those_of_all_positions() -> None:
    positions = np.array([[3, 0, 16], [5, 5, 1], [0, 0, 0]])
    for module in (BertForPreTraining(ODD), BertForMaskedLM(ODD)):
        params = random_params(module)
        everywhere = module.apply({"params": params}, **inputs()).logits
        there = module.apply({"params": params}, **inputs(), masked_positions=positions).logits
        expected = np.take_along_axis(np.asarray(everywhere), positions[..., None], axis=1)
        np.testing.assert_allclose(there, expected, rtol=1e-6, atol=1e-6)


def loss_and_gradient(config: BertConfig, execution: Execution, params: Any, batch: dict) -> Any:
    module = BertForPreTraining(config, execution)

    def loss(params: Any, batch: dict) -> jax.Array:
        outputs = module.apply({"params": params}, **batch, deterministic=False, rngs={"dropout": jax.random.key(5)})
        return jnp.mean(jnp.sin(outputs.logits)) + jnp.sum(jnp.square(outputs.seq_relationship_logits))

    return jax.jit(jax.value_and_grad(loss))(params, batch)


@functools.cache
def looped() -> tuple[BertConfig, Any, Any]:
    """A config with dropout, its parameters, and loss and gradient of a plain loop."""
    config = dataclasses.replace(ODD, hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.2)
    params = random_params(BertForPreTraining(config))
    return config, params, loss_and_gradient(config, Execution(), params, inputs())


@pytest.mark.parametrize(
    "execution",
    [Execution(unroll=2), Execution(unroll=3), Execution(remat="full", unroll=3)]
    + [Execution(remat=remat) for remat in REMAT_POLICIES if remat != "none"],
    ids=lambda execution: f"{execution.remat}-{execution.unroll}",
)
def test_execution_changes_nothing(execution: Execution) -> None:
    """The loop, partly or wholly unrolled, and every remat policy give one result, with dropout."""
    config, params, expected = looped()
    assert_trees_close(loss_and_gradient(config, execution, params, inputs()), expected, 1e-5)


def test_sharded_equals_unsharded() -> None:
    """Over a mesh of 2 x 2 x 2, dropout masks included."""
    config = dataclasses.replace(EVEN, hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.2)
    module = BertForPreTraining(config)
    boxed = jax.eval_shape(module.init, jax.random.key(0), jnp.zeros((4, 8), jnp.int32))["params"]
    params = random_params(module)
    batch = {name: np.resize(field[:, :16], (8, 16)) for name, field in inputs().items()}
    expected = loss_and_gradient(config, Execution(), params, batch)

    mesh = Mesh(np.array(jax.devices()).reshape(2, 2, 2), ("data", "fsdp", "tensor"))
    placed = jax.device_put(params, sharding.boxed(boxed, mesh))
    kernel = placed["bert"]["encoder"]["layers"]["attention"]["query"]["kernel"]
    assert kernel.sharding.shard_shape(kernel.shape) == (2, 12, 2, 6)
    with mesh, nn.logical_axis_rules(sharding.RULES):
        found = loss_and_gradient(config, Execution(), placed, jax.device_put(batch, sharding.batch(batch, mesh)))
    assert_trees_close(found, expected, 1e-5)


def test_bfloat16_computes_close_by_with_float32_parameters() -> None:
    module = BertForPreTraining(ODD, Execution(dtype=jnp.bfloat16))
    shapes = jax.eval_shape(module.init, jax.random.key(0), jnp.zeros((1, 4), jnp.int32))
    assert {x.dtype for x in jax.tree.leaves(shapes)} == {jnp.dtype(jnp.float32)}
    params = random_params(module)
    found = module.apply({"params": params}, **inputs())
    expected = BertForPreTraining(ODD).apply({"params": params}, **inputs())
    assert found.last_hidden_state.dtype == jnp.bfloat16 and found.logits.dtype == jnp.float32
    difference = np.abs(found.logits - expected.logits)
    # bfloat16 keeps 8 bits: one part in 256, through three layers.
    assert 0 < difference.mean() < 0.02 * np.abs(expected.logits).mean() + 0.02


def count(module: nn.Module) -> int:
    shapes = jax.eval_shape(module.init, jax.random.key(0), jax.ShapeDtypeStruct((1, 8), jnp.int32))
    return sum(x.size for x in jax.tree.leaves(shapes))


@pytest.mark.parametrize(
    ("config", "encoder", "pretraining"),
    [
        (BertConfig.base(), 109_482_240, 110_106_428),
        (BertConfig.large(), 335_141_888, 336_226_108),
        (BertConfig.base_cased(), 108_310_272, 108_932_934),
        (BertConfig.large_cased(), 333_579_264, 334_661_958),
        (BertConfig.base_chinese(), 109_482_240 - (30522 - 21128) * 768, 110_106_428 - (30522 - 21128) * 769),
        (BertConfig.tiny(), 4_385_920, None),
        (BertConfig.mini(), 11_170_560, None),
        (BertConfig.small(), 28_763_648, None),
        (BertConfig.medium(), 41_373_184, None),
    ],
    ids=["base", "large", "base_cased", "large_cased", "base_chinese", "tiny", "mini", "small", "medium"],
)
def test_published_parameter_counts(config: BertConfig, encoder: int, pretraining: int | None) -> None:
    assert count(BertModel(config)) == encoder
    if pretraining:
        assert count(BertForPreTraining(config)) == pretraining


def test_initial_values() -> None:
    module = BertForPreTraining(BertConfig.mini(vocab_size=2000))
    params = nn.meta.unbox(jax.jit(module.init)(jax.random.key(0), jnp.zeros((1, 4), jnp.int32)))["params"]
    for path, value in jax.tree_util.tree_leaves_with_path(params):
        name, value = jax.tree_util.keystr(path), np.asarray(value)
        if "kernel" in name or "embedding" in name.split("'")[-2]:
            assert np.abs(value).max() <= 0.04, f"{name} is cut at two standard deviations"
            if value.size > 10_000:
                assert abs(value.std() / 0.02 - 0.8796) < 0.02, f"{name}: the cut is not made up for"
                assert abs(value.mean()) < 5 * 0.02 / value.size**0.5
        else:
            assert (value == ("scale" in name)).all(), name
    kernel = params["bert"]["encoder"]["layers"]["feed_forward"]["output"]["kernel"]
    assert len({layer.tobytes() for layer in np.asarray(kernel)}) == 4, "every layer is drawn for itself"


def test_train_flops() -> None:
    """6 (L (4 D^2 + 2 D F + 2 T D) + (D^2 + D V) P / T) a token: 0.546 GFLOP for Base at 128 with 20 predictions."""
    assert BertConfig.base().train_flops(1, 128, 20) == pytest.approx(69.9e9, rel=1e-3)
    assert BertConfig.large().train_flops(2, 512, 76) == pytest.approx(2 * 1019.8e9, rel=1e-3)


def test_mistakes_are_named() -> None:
    with pytest.raises(UserError, match="type_vocab_size of at least 1, found 0"):
        BertConfig.tiny(type_vocab_size=0)
    with pytest.raises(UserError, match="hidden_dropout_prob from 0 to below 1, found 1"):
        BertConfig.tiny(hidden_dropout_prob=1.0)
    with pytest.raises(UserError, match="divides by the heads"):
        BertConfig.base(num_attention_heads=7)
    with pytest.raises(UserError, match="did you mean 'gelu_new'"):
        BertConfig.base(hidden_act="gelu_nwe")
    with pytest.raises(UserError, match="at most 19 tokens"):
        jax.eval_shape(BertModel(ODD).init, jax.random.key(0), jnp.zeros((1, 20), jnp.int32))
    with pytest.raises(ValueError, match=r"shape \[B T\]"):
        jax.eval_shape(BertModel(ODD).init, jax.random.key(0), jnp.zeros((1, 9), jnp.int32), jnp.ones((1, 8)))
