"""What the tests of the encoders share: the comparison with transformers, and what holds whatever the weights are.

A module is compared with the class of transformers that has its name. Batches are those of `inputs`.
"""

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from plmjax.interop.adapter import Adapter, Tensors, read_parameters
from plmjax.layers.encoder import EncoderConfig
from plmjax.layers.execution import REMAT_POLICIES, Execution
from plmjax.parallel import sharding

SIZES = {
    "vocab_size": 53,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 37,
    "type_vocab_size": 3,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
"""Odd ones, so that no axis is mistaken for another; with room for `LENGTH` positions beside them."""
DROPOUT = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.2}
ROWS, LENGTH = 3, 17


def inputs(config: EncoderConfig) -> dict[str, np.ndarray]:
    """Rows of 17, 11 and 1 real tokens; none is the padding token, whose table row torch never gives a gradient."""
    random = np.random.default_rng(0)
    ids = random.integers(0, config.vocab_size - 1, (ROWS, LENGTH), np.int32)
    mask = (np.arange(LENGTH)[None] < np.array([[17], [11], [1]])).astype(np.int32)
    return {
        "input_ids": ids + (ids >= config.pad_token_id),
        "attention_mask": mask,
        "token_type_ids": random.integers(0, config.type_vocab_size, (ROWS, LENGTH), np.int32),
    }


# ------------------------------------------------------------------------------------------------- transformers


def reference(name: str, config: EncoderConfig, arguments: Mapping[str, Any] = {}, **extra: Any) -> Any:
    """A transformers model with large random weights, biases and scales, so that every parameter matters.

    extra: what its config has besides. arguments: what its class is told besides the config.
    """
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    made = getattr(transformers, type(config).__name__)(**dataclasses.asdict(config), **extra)
    torch.manual_seed(0)
    model = getattr(transformers, name)._from_config(made, attn_implementation="eager", **(arguments or {})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.15)
    return model


def converted(adapter: Adapter, tensors: Iterable[tuple[str, Any]], module: nn.Module) -> dict:
    """Named tensors of a transformers model, weights or gradients alike -> the module's tree."""
    arrays = {name: tensor.detach().numpy() for name, tensor in tensors}
    shapes = {name: array.shape for name, array in arrays.items()}
    found = Tensors("transformers", shapes, {name: "float32" for name in arrays}, arrays.__getitem__)
    (name,) = (name for name, known in adapter.architectures.items() if known.module is type(module))
    known = adapter.architecture(name)
    return read_parameters(module, known.parameters, adapter.canonical(found, known), adapter.optional)[0]


def assert_equals_transformers(
    adapter: Adapter, module: nn.Module, model: Any, batch: dict[str, np.ndarray], outputs: Mapping[str, str]
) -> Any:
    """Outputs (ours -> theirs) and hidden states within 1e-5, the gradient of every parameter within 1e-4.

    Nothing is asked of the tokens at padding in the gradients. Returns the parameters.
    """
    import torch

    arguments = {name: torch.tensor(array).long() for name, array in batch.items()}
    expected = model(**arguments, output_hidden_states=True)
    params = converted(adapter, model.named_parameters(), module)
    found = jax.jit(lambda params: module.apply({"params": params}, **batch, output_hidden_states=True))(params)
    assert len(found.hidden_states) == len(expected.hidden_states)
    for ours, theirs in zip(found.hidden_states, expected.hidden_states, strict=True):
        np.testing.assert_allclose(ours, theirs.detach(), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(found.hidden_states[-1], found.last_hidden_state)

    random, cotangents, scalar = np.random.default_rng(1), {}, 0
    for ours, theirs in outputs.items():
        output = expected[theirs]
        np.testing.assert_allclose(getattr(found, ours), output.detach(), rtol=1e-5, atol=1e-5, err_msg=ours)
        cotangent = random.normal(size=output.shape).astype(np.float32)
        if output.shape[:2] == batch["attention_mask"].shape:
            cotangent *= batch["attention_mask"].reshape(ROWS, LENGTH, *[1] * (output.ndim - 2))
        cotangents[ours] = cotangent
        scalar = scalar + (output * torch.tensor(cotangent)).sum()
    scalar.backward()

    @jax.jit
    @jax.grad
    def gradient(params: Any) -> jax.Array:
        outputs = module.apply({"params": params}, **batch)
        return sum(jnp.sum(getattr(outputs, name) * cotangent) for name, cotangent in cotangents.items())

    gradients = converted(adapter, ((name, parameter.grad) for name, parameter in model.named_parameters()), module)
    assert_trees_close(gradient(params), gradients, 1e-4)
    return params


def assert_trees_close(found: Any, expected: Any, tolerance: float) -> None:
    """Every leaf within a tolerance, relative and absolute, and named where it is not."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for (path, x), y in zip(jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(expected), strict=True):
        name = jax.tree_util.keystr(path)
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance, err_msg=name)


# --------------------------------------------------------------------------------------------------- invariants


def random_params(module: nn.Module, seed: int = 0) -> Any:
    """Parameters far from their initial values, biases included."""
    leaves, structure = jax.tree.flatten(initial_params(module, seed))
    keys = jax.random.split(jax.random.key(seed + 1), len(leaves))
    noisy = [leaf + 0.15 * jax.random.normal(key, leaf.shape) for leaf, key in zip(leaves, keys, strict=True)]
    return structure.unflatten(noisy)


def initial_params(module: nn.Module, seed: int = 0) -> Any:
    """The module's own initial values."""
    return nn.meta.unbox(jax.jit(module.init)(jax.random.key(seed), jnp.zeros((1, 4), jnp.int32)))["params"]


def loss_and_gradient(module: nn.Module, params: Any, batch: dict, *of_sequences: str) -> Any:
    """Of a number that all logits, and the outputs `of_sequences`, go into; with dropout, always the same."""

    def loss(params: Any, batch: dict) -> jax.Array:
        outputs = module.apply({"params": params}, **batch, deterministic=False, rngs={"dropout": jax.random.key(5)})
        return jnp.mean(jnp.sin(outputs.logits)) + sum(
            jnp.sum(jnp.square(getattr(outputs, name))) for name in of_sequences
        )

    return jax.jit(jax.value_and_grad(loss))(params, batch)


EXECUTIONS = (
    Execution(unroll=2),
    Execution(unroll=3),
    Execution(remat="full", unroll=3),
    *(Execution(remat=remat) for remat in REMAT_POLICIES if remat != "none"),
)
every_execution = pytest.mark.parametrize("execution", EXECUTIONS, ids=lambda one: f"{one.remat}-{one.unroll}")


@functools.cache
def _looped(module: nn.Module, *of_sequences: str) -> Any:
    """Parameters, and loss and gradient of a plain loop."""
    params = random_params(module)
    return params, loss_and_gradient(module, params, inputs(module.config), *of_sequences)


def assert_execution_changes_nothing(module: nn.Module, execution: Execution, *of_sequences: str) -> None:
    """The loop, unrolled or not, and every remat policy give one result, of a module with dropout."""
    params, expected = _looped(module, *of_sequences)
    found = loss_and_gradient(module.clone(execution=execution), params, inputs(module.config), *of_sequences)
    assert_trees_close(found, expected, 1e-5)


def assert_sharded_equals_unsharded(module: nn.Module, *of_sequences: str) -> Any:
    """Over a mesh of 2 x 2 x 2, dropout masks included. Returns the parameters as they lie on it."""
    boxed = jax.eval_shape(module.init, jax.random.key(0), jnp.zeros((4, 8), jnp.int32))["params"]
    params = random_params(module)
    batch = {name: np.resize(field[:, :16], (8, 16)) for name, field in inputs(module.config).items()}
    expected = loss_and_gradient(module, params, batch, *of_sequences)
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2, 2), ("data", "fsdp", "tensor"))
    placed = jax.device_put(params, sharding.boxed(boxed, mesh))
    with mesh, nn.logical_axis_rules(sharding.RULES):
        found = loss_and_gradient(module, placed, jax.device_put(batch, sharding.batch(batch, mesh)), *of_sequences)
    assert_trees_close(found, expected, 1e-5)
    return placed


def assert_padding_changes_nothing(module: nn.Module, batch: dict[str, np.ndarray], *of_sequences: str) -> None:
    """Real tokens are as if there were no padding, and whatever ids it has; so are the outputs `of_sequences`."""
    params = random_params(module)
    whole = module.apply({"params": params}, **batch)
    short = module.apply({"params": params}, **{name: field[1:2, :11] for name, field in batch.items()})
    np.testing.assert_allclose(whole.last_hidden_state[1:2, :11], short.last_hidden_state, atol=1e-5, rtol=1e-5)
    for name in of_sequences:
        np.testing.assert_allclose(getattr(whole, name)[1:2], getattr(short, name), atol=1e-5, rtol=1e-5)
    other = batch | {"input_ids": np.where(batch["attention_mask"] == 1, batch["input_ids"], 7)}
    kept = batch["attention_mask"][..., None]
    changed = module.apply({"params": params}, **other)
    np.testing.assert_array_equal(changed.last_hidden_state * kept, whole.last_hidden_state * kept)


def assert_packed_equals_unpacked(module: nn.Module, batch: dict[str, np.ndarray], *of_sequences: str) -> None:
    """Three sequences in one row, each as if it stood alone: hidden states, logits, and the outputs `of_sequences`."""
    params = random_params(module)
    lengths, starts = (5, 7, 3), (0, 5, 12)
    row = {name: batch[name][:1] for name in ("input_ids", "token_type_ids")}
    packed = module.apply(
        {"params": params},
        **row,
        segment_ids=np.array([[1] * 5 + [2] * 7 + [3] * 3 + [0] * 2]),
        positions=np.array([[*range(5), *range(7), *range(3), 0, 0]]),
        **({"cls_positions": np.array([starts])} if of_sequences else {}),
    )
    for k, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        piece = {name: field[:, start : start + length] for name, field in row.items()}
        alone = module.apply({"params": params}, **piece)
        for name in {"last_hidden_state", "logits"} - set(of_sequences):
            found = getattr(packed, name)[:, start : start + length]
            np.testing.assert_allclose(found, getattr(alone, name), atol=1e-5, rtol=1e-5, err_msg=name)
        for name in of_sequences:
            found = getattr(packed, name)
            assert found.shape[:2] == (1, 3)
            np.testing.assert_allclose(found[:, k], getattr(alone, name), atol=1e-5, rtol=1e-5, err_msg=name)


def assert_packed_sequences_do_not_leak(encoder: nn.Module) -> None:
    """The gradient of a token's output by another's word is zero iff they are of different sequences."""
    params = random_params(encoder)
    segments = jnp.array([[1, 1, 1, 2, 2, 0, 0]])
    ids = jnp.arange(7)[None] + 2

    def last(words: jax.Array) -> jax.Array:
        embeddings = params["embeddings"] | {"word_embeddings": {"embedding": words}}
        outputs = encoder.apply({"params": params | {"embeddings": embeddings}}, ids, segment_ids=segments)
        return outputs.last_hidden_state[0].sum(-1)

    jacobian = jax.jacrev(last)(params["embeddings"]["word_embeddings"]["embedding"])
    reach = np.abs(jacobian[:5, ids[0]]).max(-1) > 0
    np.testing.assert_array_equal(reach, (segments[0, :5, None] == segments[0][None]))


def assert_logits_at_masked_positions_are_those_of_all(module: nn.Module, batch: dict[str, np.ndarray]) -> None:
    """`masked_positions` chooses among the logits and changes none."""
    positions = np.array([[3, 0, 16], [5, 5, 1], [0, 0, 0]])
    params = random_params(module)
    everywhere = module.apply({"params": params}, **batch).logits
    there = module.apply({"params": params}, **batch, masked_positions=positions).logits
    expected = np.take_along_axis(np.asarray(everywhere), positions[..., None], axis=1)
    np.testing.assert_allclose(there, expected, rtol=1e-6, atol=1e-6)


def assert_bfloat16_is_close(module: nn.Module, batch: dict[str, np.ndarray]) -> None:
    """The same module computing in bfloat16: float32 parameters and logits, and close to what float32 gives."""
    half = module.clone(execution=Execution(dtype=jnp.bfloat16))
    shapes = jax.eval_shape(half.init, jax.random.key(0), jnp.zeros((1, 4), jnp.int32))
    assert {x.dtype for x in jax.tree.leaves(shapes)} == {jnp.dtype(jnp.float32)}
    params = random_params(module)
    found, expected = (one.apply({"params": params}, **batch) for one in (half, module))
    assert found.last_hidden_state.dtype == jnp.bfloat16 and found.logits.dtype == jnp.float32
    difference = np.abs(found.logits - expected.logits)
    # bfloat16 keeps 8 bits: one part in 256, through three layers.
    assert 0 < difference.mean() < 0.02 * np.abs(expected.logits).mean() + 0.02


def initial_weights(module: nn.Module) -> Iterator[tuple[str, np.ndarray]]:
    """Name and value of every kernel and table of the module, once all else is seen to be zero, or one for scales."""
    for path, value in jax.tree_util.tree_leaves_with_path(initial_params(module)):
        name, value = jax.tree_util.keystr(path), np.asarray(value)
        if "kernel" in name or "embedding" in name.split("'")[-2]:
            assert abs(value.mean()) < 5 * value.std() / value.size**0.5, name
            yield name, value
        else:
            assert (value == ("scale" in name)).all(), name


def count(module: nn.Module) -> int:
    """Parameters of a module, computing none."""
    shapes = jax.eval_shape(module.init, jax.random.key(0), jax.ShapeDtypeStruct((1, 8), jnp.int32))
    return sum(x.size for x in jax.tree.leaves(shapes))
