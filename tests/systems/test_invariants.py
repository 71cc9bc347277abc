"""Invariants of every system, whatever its weights are."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import chex
import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _pytest.mark import ParameterSet
from jax.sharding import Mesh

from plmjax.contracts.execution import REMAT_POLICIES, Execution
from plmjax.parallel import sharding
from tests.families import FAMILIES, REPRESENTATIVES
from tests.families.family import Batch, Family, Head, side_of
from tests.systems.modules import boxed_shapes, outputs, random_params, taken_sides, takes

HEADS = [
    pytest.param(family, head, id=f"{name}-{type(head.module).__name__}")
    for name, family in FAMILIES.items()
    for head in family.heads
]
READERS = [one for one in HEADS if any("attention_mask" in name for name in one.values[0].batch(one.values[1].module))]
"""Heads whose texts may be padded."""


def by_day(
    heads: list[ParameterSet],
    also: Callable[[Head], bool] = lambda head: False,
    names: tuple[str, ...] = REPRESENTATIVES,
) -> pytest.MarkDecorator:
    """The first head of each named system, one for each kind of layers, and those of BERT that the day needs `also`."""
    # The others are a product or two upon the same layers, and a program of 1 to 3 s each: pytest -m nightly
    # tests/systems/test_invariants.py
    day = [FAMILIES[name].heads[0] for name in names] + [head for head in FAMILIES["bert"].heads if also(head)]
    marked = [
        pytest.param(family, head, id=one.id, marks=() if head in day else pytest.mark.nightly)
        for one in heads
        for family, head in [one.values]
    ]
    return pytest.mark.parametrize(("family", "head"), marked)


# Rows of test_parity.py are padded, too, and equal texts that are not: by day three more, with dictated padding.
every_reading_head = by_day(READERS, lambda head: bool(head.of_sequences), names=("bert", "elmo", "t5"))
# Segments are a condition of the mask, and a start of a recurrence: by day a system for each of both, for convolutions
# and for windows with global tokens.
every_packing_head = by_day(
    [one for one in READERS if one.values[1].packs],
    lambda head: bool(head.of_sequences),
    names=("bert", "t5", "awd_lstm", "elmo", "longformer", "lite_transformer_decoder"),
)
# Attention and a recurrence: test_traces.py has the types of all others by day.
two_heads_by_day = by_day(READERS, names=("bert", "elmo"))
every_predicting_head = by_day([one for one in HEADS if one.values[1].predicts])
# Masks are a layer's, and what a system adds to them is compared with its reference: 1 to 4 s for each other one. By
# day both directions of attention and of recurrences, both sides, windows, and hashes; test_nnlm.py and
# test_transformer_xl.py have what their systems see.
every_reading_family = pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, id=name, marks=() if name in seeing else pytest.mark.nightly)
        for seeing in [("bert", "gpt2", "t5", "awd_lstm", "elmo", "longformer", "reformer")]
        for name, family in FAMILIES.items()
        if family.views
    ],
)
CONTENT = "input_ids", "characters"
"""The inputs whose values at padding must not count."""


def close(found: Any, expected: Any, name: str = "") -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5, err_msg=name)


def expanded(mask: np.ndarray, like: Any) -> np.ndarray:
    """[B T] with as many axes as the other array, [B T ...]."""
    return mask.reshape(*mask.shape, *[1] * (like.ndim - 2))


def outputs_side(module: nn.Module) -> str:
    """The side whose tokens the last hidden state and the logits are of."""
    return taken_sides(module)[-1]


@every_reading_head
def test_padding_changes_nothing(family: Family, head: Head) -> None:
    """Real tokens are as if there were no padding, and whatever ids it has; so are the outputs of whole sequences."""
    params, batch = random_params(head.module), family.batch(head.module)
    masks = {side: batch[f"{side}attention_mask"] for side in taken_sides(head.module)}
    real = masks[outputs_side(head.module)]
    padded = outputs(head.module, params, batch)
    cut = {name: field[1:2, : masks[side_of(name)][1].sum()] for name, field in batch.items()}
    short = outputs(head.module, params, cut)
    for name in head.of_tokens:
        close(getattr(padded, name)[1:2, : real[1].sum()], getattr(short, name), name)
    for name in head.of_sequences:
        close(getattr(padded, name)[1:2], getattr(short, name), name)
    fields = {name: field for name, field in batch.items() if name.endswith(CONTENT)}
    changed = {name: np.where(expanded(masks[side_of(name)], field) == 1, field, 7) for name, field in fields.items()}
    other = outputs(head.module, params, batch | changed)
    for name in head.of_tokens[:1]:
        found, expected = getattr(other, name), getattr(padded, name)
        np.testing.assert_array_equal(found * expanded(real, found), expected * expanded(real, found), name)


PACKED = {"": (5, 7, 3), "decoder_": (4, 2, 6)}
"""Side -> lengths of the sequences that are packed into a row."""


@every_packing_head
def test_packed_equals_unpacked(family: Family, head: Head) -> None:
    """Three sequences in one row, each as if it stood alone: hidden states, logits, and outputs of whole sequences."""
    params, batch = random_params(head.module), family.batch(head.module)
    row = {name: field[:1] for name, field in batch.items() if not name.endswith("attention_mask")}
    packing, places = {}, {}
    for side in taken_sides(head.module):
        length, sizes = batch[f"{side}attention_mask"].shape[1], PACKED[side]
        starts = np.cumsum((0, *sizes))
        places[side] = [slice(start, start + size) for start, size in zip(starts, sizes, strict=False)]
        filling = [0] * (length - starts[-1])
        packing[f"{side}segment_ids"] = np.array([[*np.repeat((1, 2, 3), sizes), *filling]])
        packing[f"{side}positions"] = np.array([[*np.concatenate([np.arange(size) for size in sizes]), *filling]])
    own = places[outputs_side(head.module)]
    if head.of_sequences:
        place = head.module.config.template.position
        packing["cls_positions"] = np.array([[one.start + place(one.stop - one.start) for one in own]])
    packing = {name: field for name, field in packing.items() if takes(head.module, name)}
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
        for name in head.of_tokens:
            close(getattr(packed, name)[0, place], getattr(unpacked, name)[k, : place.stop - place.start], name)
        for name in head.of_sequences:
            found = getattr(packed, name)
            assert found.shape[:2] == (1, 3)
            close(found[0, k], getattr(unpacked, name)[k], name)


SEGMENTS = {"": np.array([1, 1, 1, 2, 2, 0, 0]), "decoder_": np.array([1, 1, 2, 2, 2, 0])}


@every_reading_family
def test_no_token_sees_what_it_must_not(family: Family) -> None:
    """The gradient of a token's output by another's word is zero iff the family says that it is not visible."""
    encoder = family.bodies[0]
    params, sides = random_params(encoder), taken_sides(encoder)
    packs = takes(encoder, "segment_ids") and all(head.packs for head in family.heads if head.module == encoder)
    segments = {side: SEGMENTS[side] if packs else np.minimum(SEGMENTS[side], 1) for side in sides}
    flat, tables = flax.traverse_util.flatten_dict(params, sep="/"), family.word_tables(encoder)
    words = np.array([token for token in range(20) if token != encoder.config.padding_token])
    ends = np.cumsum([len(one) for one in segments.values()])
    ids = dict(zip(segments, np.split(words[: ends[-1]], ends[:-1]), strict=True))  # none is on both sides
    told = "segment_ids" if packs else "attention_mask"
    inputs = {f"{side}input_ids": one[None] for side, one in ids.items()}
    inputs |= {f"{side}{told}": one[None] for side, one in segments.items()}
    if (
        "characters" in encoder.config.system.reads
    ):  # a word is as many times the character of its row in a table without the id 0
        longest = encoder.config.max_characters_per_token
        inputs["characters"] = np.repeat(ids[""][None, :, None] + 1, longest, axis=-1)
    inputs = {name: field for name, field in inputs.items() if takes(encoder, name)}

    @jax.jit
    @jax.jacrev
    def jacobian(words: dict[str, jax.Array]) -> dict[str, jax.Array]:
        found = encoder.apply({"params": flax.traverse_util.unflatten_dict(flat | words, sep="/")}, **inputs)
        return {view.output: getattr(found, view.output)[0].sum(-1) for view in family.views}

    gradients = jacobian({path: flat[path] for path in tables.values()})
    for view in family.views:
        reach = np.abs(gradients[view.output][tables[view.keys]][:, ids[view.keys]]).max(-1) > 0  # [T S]
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


@two_heads_by_day
def test_bfloat16_computes_close_by_with_float32_parameters(family: Family, head: Head) -> None:
    half = head.module.clone(execution=Execution(dtype=jnp.bfloat16))
    assert {leaf.dtype for leaf in jax.tree.leaves(boxed_shapes(half))} == {jnp.dtype(jnp.float32)}
    params, batch = random_params(head.module), family.batch(head.module)
    found, expected = (outputs(module, params, batch) for module in (half, head.module))
    types = {"logits": jnp.float32}
    assert all(getattr(found, name).dtype == types.get(name, jnp.bfloat16) for name in head.outputs)
    found, expected = (np.asarray(getattr(one, head.outputs[-1]), np.float32) for one in (found, expected))
    # bfloat16 keeps 8 bits: one part in 256, through three layers.
    assert 0 < np.abs(found - expected).mean() < 0.02 * np.abs(expected).mean() + 0.002


@functools.partial(jax.jit, static_argnums=0)
def loss_and_gradient(head: Head, params: Any, batch: Batch) -> Any:
    """Those of a number that depends on the head's last output and its `of_sequences`; dropout is always the same."""

    def loss(params: Any) -> jax.Array:
        rngs = {"dropout": jax.random.key(5)}
        found = head.module.apply({"params": params}, **batch, deterministic=False, rngs=rngs)
        of_sequences = sum(jnp.sum(jnp.square(getattr(found, name))) for name in head.of_sequences)
        return jnp.mean(jnp.sin(getattr(found, head.outputs[-1]))) + of_sequences

    return jax.value_and_grad(loss)(params)


EXECUTIONS = {
    f"{one.remat}-{one.unroll}": one
    for one in (
        Execution(remat="full", unroll=2),
        Execution(unroll=2),
        *(Execution(remat=remat) for remat in REMAT_POLICIES if remat != "none"),
    )
}


def executed_by_day(name: str, number: int, way: str) -> bool:
    """The way that has all others in it, of BERT, whose loop most systems have."""
    return name == "bert" and number == 0 and way == "full-2"


# A program each, up to 8 s, of loops that the tests of another system prove, or tests/layers/test_stack.py, which has
# every execution of both loops: pytest -m nightly tests/systems
EXECUTED = [
    pytest.param(
        *(name, head, execution),
        id=f"{name}-{number}-{way}",
        marks=() if executed_by_day(name, number, way) else pytest.mark.nightly,
    )
    for name, family in FAMILIES.items()
    if family.loops
    for number, head in enumerate((family.trained, *family.executed))
    for way, execution in EXECUTIONS.items()
]


@functools.cache
def looped(name: str, head: Head) -> Any:
    """Loss and gradient of a plain loop over the layers on one device, for parameters and eight rows."""
    params, batch = random_params(head.module), FAMILIES[name].batch(head.module)
    lengths = {name: field.shape[1] // 4 * 4 for name, field in batch.items()}
    batch = {
        name: np.resize(field[:, : lengths[name]], (8, lengths[name], *field.shape[2:]))
        for name, field in batch.items()
    }
    return params, batch, loss_and_gradient(head, params, batch)


@pytest.mark.parametrize(("name", "head", "execution"), EXECUTED)
def test_execution_changes_nothing(name: str, head: Head, execution: Execution) -> None:
    """The loop, unrolled or not, and every remat policy give one result, of a module with dropout."""
    params, batch, expected = looped(name, head)
    changed = dataclasses.replace(head, module=head.module.clone(execution=execution))
    found = loss_and_gradient(changed, params, batch)
    chex.assert_trees_all_close(found, expected, rtol=1e-5, atol=1e-5)


# test_step.py proves the whole step of a system on this mesh, without dropout. The program of a module alone, with
# dropout, takes 2 to 8 s more, and most draw it as the stack of BERT does: pytest -m nightly
# tests/systems/test_invariants.py
SHARDED = [pytest.param(name, marks=() if name == "bert" else pytest.mark.nightly) for name in FAMILIES]


@pytest.mark.parametrize("name", SHARDED)
def test_sharded_equals_unsharded(name: str) -> None:
    """Over a mesh of 2 x 2 x 2, dropout masks included."""
    head, (path, shape) = FAMILIES[name].trained, FAMILIES[name].sharded
    module, (params, batch, expected) = head.module, looped(name, head)
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2, 2), ("data", "fsdp", "tensor"))
    placed = jax.device_put(params, sharding.shardings_of(boxed_shapes(module), mesh))
    with jax.set_mesh(mesh), nn.logical_axis_rules(sharding.RULES):
        found = loss_and_gradient(head, placed, jax.device_put(batch, sharding.batch(batch, mesh)))
    chex.assert_trees_all_close(found, expected, rtol=1e-5, atol=1e-5)
    parameter = flax.traverse_util.flatten_dict(placed, sep="/")[path]
    assert parameter.sharding.shard_shape(parameter.shape) == shape
