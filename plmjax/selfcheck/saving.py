"""Checks of checkpoints: a checkpoint is saved and restored, and then restored on another mesh."""

from typing import Any

import jax
import jax.numpy as jnp

from plmjax import experiment as experiments
from plmjax.experiment import Mesh
from plmjax.files import storage
from plmjax.parallel import mesh as meshes
from plmjax.selfcheck.arithmetic import LOSS_TOLERANCE, relative
from plmjax.selfcheck.ground import Ground, Step
from plmjax.selfcheck.verdicts import DIFFERS, OK, Found, Skipped
from plmjax.training.checkpoints.checkpoints import Checkpoints, Description
from plmjax.training.state import TrainState


def restore(ground: Ground) -> Found:
    """Save the state after one step, restore it, and compare the bits."""
    step = ground.plain
    state, keeper = _after_one_step(step), _keeper(ground)
    keeper.save(state, Description(ground.measured, 1, {}))
    keeper.close()
    found, _ = _keeper(ground).restore(1, step.program.state)
    same = jax.jit(lambda a, b: jax.tree.map(lambda a, b: jnp.all(bits(a) == bits(b)), a, b))(state, found)
    wrong = [
        jax.tree_util.keystr(path, simple=True, separator="/")
        for path, leaf in jax.tree_util.tree_leaves_with_path(same)
        if not bool(leaf)
    ]
    count = len(jax.tree.leaves(same))
    sentence = f"{count - len(wrong)} of {count} arrays are equal to the bit in {ground.folder}"
    return Found(DIFFERS if wrong else OK, sentence, {"arrays": count, "different": wrong})


def on_another_mesh(ground: Ground) -> Found:
    """Restore the checkpoint of `restore` on another mesh, and compare the parameters and the loss of the next step."""
    count = len(ground.devices)
    if count % 2:
        raise Skipped(f"{count} device(s) make no other mesh")
    other = ground.step(meshes.make(Mesh(data=count // 2, fsdp=2), ground.devices), rings="off")
    keeper = _keeper(ground)
    if keeper.latest() != 1:
        raise Skipped("there is no checkpoint to restore")
    states = [keeper.restore(1, step.program.state)[0] for step in (ground.plain, other)]
    digests = [digest(state.params) for state in states]
    losses = [
        float(step.run(state, step.batch())[1]["loss"])
        for step, state in zip((ground.plain, other), states, strict=True)
    ]
    dtype, difference = ground.dtype, relative(*losses)
    equal = digests[0] == digests[1]
    fits = equal and difference <= LOSS_TOLERANCE[dtype]
    sizes = " x ".join(f"{axis} {size}" for axis, size in other.program.mesh.shape.items())
    told = "equal" if equal else "different"
    return Found(
        OK if fits else DIFFERS,
        f"{sizes}: {told} parameters, next loss within {difference:.1e} (at most {LOSS_TOLERANCE[dtype]:.0e}, {dtype})",
        {"mesh": dict(other.program.mesh.shape), "digests": digests, "losses": losses, "difference": difference},
    )


def _after_one_step(step: Step) -> TrainState:
    state, _ = step.run(step.state(), step.batch())
    return state


def _keeper(ground: Ground) -> Checkpoints:
    if ground.folder is None:
        raise Skipped("several hosts need a folder that all share; give --output gs://BUCKET/FILE.json")
    return Checkpoints(storage.absolute(ground.folder) / "checkpoints", experiments.Checkpoint(every=1, keep=1))


def bits(array: jax.Array) -> jax.Array:
    """Return the bits of a floating-point array as uint32; integers are only cast."""
    if not jnp.issubdtype(array.dtype, jnp.floating):
        return array.astype(jnp.uint32)
    kind = {2: jnp.uint16, 4: jnp.uint32}[array.dtype.itemsize]
    return jax.lax.bitcast_convert_type(array, kind).astype(jnp.uint32)


def digest(tree: Any) -> list[int]:
    """Return a checksum for each leaf, from its bits and their positions. It does not depend on the leaf's sharding."""

    @jax.jit
    def numbers(tree: Any) -> Any:
        def number(leaf: jax.Array) -> jax.Array:
            places = jax.lax.iota(jnp.uint32, leaf.size).reshape(leaf.shape)
            return jnp.sum(bits(leaf) * (places * jnp.uint32(2654435761) | 1), dtype=jnp.uint32)

        return jax.tree.map(number, tree)

    return [int(number) for number in jax.tree.leaves(numbers(tree))]
