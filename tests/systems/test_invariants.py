"""What holds for every system whatever its weights are."""

import functools
from typing import Any

import chex
import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from plmjax.contracts.execution import REMAT_POLICIES, Execution
from plmjax.parallel import sharding
from tests.families import FAMILIES
from tests.families.family import Batch, Family, Head, side_of
from tests.systems.modules import boxed_shapes, outputs, random_params, taken_sides

HEADS = [
    pytest.param(family, head, id=f"{name}-{type(head.module).__name__}")
    for name, family in FAMILIES.items()
    for head in family.heads
]
every_head = pytest.mark.parametrize(("family", "head"), HEADS)
every_predicting_head = pytest.mark.parametrize(("family", "head"), [one for one in HEADS if one.values[1].predicts])
every_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)


def close(found: Any, expected: Any, name: str = "") -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5, err_msg=name)


def outputs_side(module: nn.Module) -> str:
    """The side whose tokens the last hidden state and the logits are of."""
    return taken_sides(module)[-1]


@every_head
def test_padding_changes_nothing(family: Family, head: Head) -> None:
    """Real tokens are as if there were no padding, and whatever ids it has; so are the outputs of whole sequences."""
    params, batch = random_params(head.module), family.batch(head.module)
    masks = {side: batch[f"{side}attention_mask"] for side in taken_sides(head.module)}
    real = masks[outputs_side(head.module)][..., None]
    padded = outputs(head.module, params, batch)
    cut = {name: field[1:2, : masks[side_of(name)][1].sum()] for name, field in batch.items()}
    short = outputs(head.module, params, cut)
    close(padded.last_hidden_state[1:2, : real[1].sum()], short.last_hidden_state)
    for name in head.of_sequences:
        close(getattr(padded, name)[1:2], getattr(short, name), name)
    ids = {f"{side}input_ids": np.where(mask == 1, batch[f"{side}input_ids"], 7) for side, mask in masks.items()}
    other = outputs(head.module, params, batch | ids)
    np.testing.assert_array_equal(other.last_hidden_state * real, padded.last_hidden_state * real)


PACKED = {"": (5, 7, 3), "decoder_": (4, 2, 6)}
"""Side -> lengths of the sequences that are packed into a row."""


@every_head
def test_packed_equals_unpacked(family: Family, head: Head) -> None:
    """Three sequences in one row, each as if it stood alone: hidden states, logits, and outputs of whole sequences."""
    params, batch = random_params(head.module), family.batch(head.module)
    row = {name: field[:1] for name, field in batch.items() if not name.endswith("attention_mask")}
    packing, places = {}, {}
    for side in taken_sides(head.module):
        length, sizes = row[f"{side}input_ids"].shape[1], PACKED[side]
        starts = np.cumsum((0, *sizes))
        places[side] = [slice(start, start + size) for start, size in zip(starts, sizes, strict=False)]
        filling = [0] * (length - starts[-1])
        packing[f"{side}segment_ids"] = np.array([[*np.repeat((1, 2, 3), sizes), *filling]])
        packing[f"{side}positions"] = np.array([[*np.concatenate([np.arange(size) for size in sizes]), *filling]])
    own = places[outputs_side(head.module)]
    if head.of_sequences:
        place = head.module.config.template.position
        packing["cls_positions"] = np.array([[one.start + place(one.stop - one.start) for one in own]])
    packed = outputs(head.module, params, row | packing)
    # Rows of one sequence each, padded: of the shapes of `batch`, so that one program serves this test and others.
    alone = {name: np.zeros_like(field) for name, field in batch.items()}
    for name, field in alone.items():
        if name.endswith("input_ids"):
            field[:] = head.module.config.padding_token or 0
        for k, place in enumerate(places[side_of(name)]):
            field[k, : place.stop - place.start] = 1 if name.endswith("attention_mask") else row[name][0, place]
    unpacked = outputs(head.module, params, alone)
    for k, place in enumerate(own):
        for name in {"last_hidden_state", "logits"} - set(head.of_sequences):
            close(getattr(packed, name)[0, place], getattr(unpacked, name)[k, : place.stop - place.start], name)
        for name in head.of_sequences:
            found = getattr(packed, name)
            assert found.shape[:2] == (1, 3)
            close(found[0, k], getattr(unpacked, name)[k], name)


SEGMENTS = {"": np.array([1, 1, 1, 2, 2, 0, 0]), "decoder_": np.array([1, 1, 2, 2, 2, 0])}


@every_family
def test_no_token_sees_what_it_must_not(family: Family) -> None:
    """The gradient of a token's output by another's word is zero iff the family says that it is not visible."""
    encoder = family.bodies[0]
    params, segments = random_params(encoder), {side: SEGMENTS[side] for side in taken_sides(encoder)}
    flat = flax.traverse_util.flatten_dict(params, sep="/")
    words = np.array([token for token in range(20) if token != encoder.config.padding_token])
    ends = np.cumsum([len(one) for one in segments.values()])
    ids = dict(zip(segments, np.split(words[: ends[-1]], ends[:-1]), strict=True))  # none is on both sides
    inputs = {f"{side}input_ids": one[None] for side, one in ids.items()}
    inputs |= {f"{side}segment_ids": one[None] for side, one in segments.items()}

    @jax.jit
    @jax.jacrev
    def jacobian(words: jax.Array) -> dict[str, jax.Array]:
        changed = flax.traverse_util.unflatten_dict(flat | {family.words: words}, sep="/")
        found = encoder.apply({"params": changed}, **inputs)
        return {view.output: getattr(found, view.output)[0].sum(-1) for view in family.views}

    gradients = jacobian(flat[family.words])
    for view in family.views:
        reach = np.abs(gradients[view.output][:, ids[view.keys]]).max(-1) > 0  # [T S]
        real = segments[view.queries] > 0
        expected = view.visible(segments[view.queries], segments[view.keys])
        np.testing.assert_array_equal(reach[real], expected[real], view.output)


@every_predicting_head
def test_logits_at_masked_positions_are_those_of_all_positions(family: Family, head: Head) -> None:
    """`masked_positions` chooses among the logits and changes none."""
    params, batch = random_params(head.module), family.batch(head.module)
    positions = np.array([[3, 0, 16], [5, 5, 1], [0, 0, 0]])
    everywhere = outputs(head.module, params, batch).logits
    there = outputs(head.module, params, batch | {"masked_positions": positions}).logits
    expected = np.take_along_axis(np.asarray(everywhere), positions[..., None], axis=1)
    np.testing.assert_allclose(there, expected, rtol=1e-6, atol=1e-6)


@every_head
def test_bfloat16_computes_close_by_with_float32_parameters(family: Family, head: Head) -> None:
    half = head.module.clone(execution=Execution(dtype=jnp.bfloat16))
    assert {leaf.dtype for leaf in jax.tree.leaves(boxed_shapes(half))} == {jnp.dtype(jnp.float32)}
    params, batch = random_params(head.module), family.batch(head.module)
    found, expected = (outputs(module, params, batch) for module in (half, head.module))
    assert found.last_hidden_state.dtype == jnp.bfloat16 and found.logits.dtype == jnp.float32
    difference = np.abs(found.logits - expected.logits)
    # bfloat16 keeps 8 bits: one part in 256, through three layers.
    assert 0 < difference.mean() < 0.02 * np.abs(expected.logits).mean() + 0.02


@functools.partial(jax.jit, static_argnums=(0, 1))
def loss_and_gradient(module: nn.Module, of_sequences: tuple[str, ...], params: Any, batch: Batch) -> Any:
    """Of a number that all logits, and the outputs `of_sequences`, go into; with dropout, always the same."""

    def loss(params: Any) -> jax.Array:
        found = module.apply({"params": params}, **batch, deterministic=False, rngs={"dropout": jax.random.key(5)})
        return jnp.mean(jnp.sin(found.logits)) + sum(jnp.sum(jnp.square(getattr(found, name))) for name in of_sequences)

    return jax.value_and_grad(loss)(params)


EXECUTIONS = {
    f"{one.remat}-{one.unroll}": one
    for one in (
        Execution(remat="full", unroll=2),
        Execution(unroll=2),
        *(Execution(remat=remat) for remat in REMAT_POLICIES if remat != "none"),
    )
}
# A program each, up to 5 s, of loops that another system's tests prove: pytest -m slow tests/systems
EXECUTED = [
    pytest.param(
        *(name, head, execution),
        id=f"{name}-{number}-{way}",
        marks=() if (family.own_loop and number == 0) or way == "full-2" else pytest.mark.slow,
    )
    for name, family in FAMILIES.items()
    for number, head in enumerate((family.trained, *family.executed))
    for way, execution in EXECUTIONS.items()
]


@functools.cache
def looped(name: str, head: Head) -> Any:
    """Loss and gradient of a plain loop over the layers on one device, for parameters and eight rows."""
    params, batch = random_params(head.module), FAMILIES[name].batch(head.module)
    lengths = {name: field.shape[1] // 4 * 4 for name, field in batch.items()}
    batch = {name: np.resize(field[:, : lengths[name]], (8, lengths[name])) for name, field in batch.items()}
    return params, batch, loss_and_gradient(head.module, head.of_sequences, params, batch)


@pytest.mark.parametrize(("name", "head", "execution"), EXECUTED)
def test_execution_changes_nothing(name: str, head: Head, execution: Execution) -> None:
    """The loop, unrolled or not, and every remat policy give one result, of a module with dropout."""
    params, batch, expected = looped(name, head)
    found = loss_and_gradient(head.module.clone(execution=execution), head.of_sequences, params, batch)
    chex.assert_trees_all_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_sharded_equals_unsharded(name: str) -> None:
    """Over a mesh of 2 x 2 x 2, dropout masks included."""
    head, (path, shape) = FAMILIES[name].trained, FAMILIES[name].sharded
    module, (params, batch, expected) = head.module, looped(name, head)
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2, 2), ("data", "fsdp", "tensor"))
    placed = jax.device_put(params, sharding.boxed(boxed_shapes(module), mesh))
    with jax.set_mesh(mesh), nn.logical_axis_rules(sharding.RULES):
        found = loss_and_gradient(module, head.of_sequences, placed, jax.device_put(batch, sharding.batch(batch, mesh)))
    chex.assert_trees_all_close(found, expected, rtol=1e-5, atol=1e-5)
    parameter = flax.traverse_util.flatten_dict(placed, sep="/")[path]
    assert parameter.sharding.shard_shape(parameter.shape) == shape
