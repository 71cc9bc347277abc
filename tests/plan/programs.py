"""Programs to read: one that is written by hand, and a train step that is compiled for a TPU."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from plmjax.parallel import topologies
from plmjax.plan.hlo import Program

# A loop of five trips that counts down by two, with a loop of three inside it whose limit is carried along.
WRITTEN = """HloModule written, is_scheduled=true, num_partitions=8

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%inner_body (p: (s32[], f32[4,8], s32[])) -> (s32[], f32[4,8], s32[]) {
  %p = (s32[], f32[4,8]{1,0}, s32[]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[4,8]{1,0} get-tuple-element(%p), index=1
  %limit = s32[] get-tuple-element(%p), index=2
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %r = f32[4,8]{1,0} all-reduce(%x), channel_id=1, replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add
  ROOT %t = (s32[], f32[4,8]{1,0}, s32[]) tuple(%next, %r, %limit)
}

%inner_condition (p: (s32[], f32[4,8], s32[])) -> pred[] {
  %p = (s32[], f32[4,8]{1,0}, s32[]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %limit = s32[] get-tuple-element(%p), index=2
  ROOT %less = pred[] compare(%i, %limit), direction=LT
}

%outer_body (p: (s32[], f32[4,8])) -> (s32[], f32[4,8]) {
  %p = (s32[], f32[4,8]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[4,8]{1,0} get-tuple-element(%p), index=1
  %two = s32[] constant(2)
  %next = s32[] subtract(%i, %two)
  %zero = s32[] constant(0)
  %three = s32[] constant(3)
  %start = (s32[], f32[4,8]{1,0}, s32[]) tuple(%zero, %x, %three)
  %inner = (s32[], f32[4,8]{1,0}, s32[]) while(%start), condition=%inner_condition, body=%inner_body
  %y = f32[4,8]{1,0} get-tuple-element(%inner), index=1
  %z = f32[4,8]{1,0} negate(%y), backend_config={"estimated_cycles":"10"}
  ROOT %t = (s32[], f32[4,8]{1,0}) tuple(%next, %z)
}

%outer_condition (p: (s32[], f32[4,8])) -> pred[] {
  %p = (s32[], f32[4,8]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %zero = s32[] constant(0)
  ROOT %greater = pred[] compare(%i, %zero), direction=GT
}

%sliced (stack: f32[16,8], i: s32[]) -> f32[2,8] {
  %stack = f32[16,8]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %zero = s32[] constant(0)
  ROOT %piece = f32[2,8]{1,0} dynamic-slice(%stack, %i, %zero), dynamic_slice_sizes={2,8}
}

ENTRY %main (x: f32[4,8], stack: f32[16,8]) -> (f32[4,8], f32[2,8]) {
  %x = f32[4,8]{1,0} parameter(0)
  %stack = f32[16,8]{1,0} parameter(1)
  %nine = s32[] constant(9)
  %start = (s32[], f32[4,8]{1,0}) tuple(%nine, %x)
  %loop = (s32[], f32[4,8]{1,0}) while(%start), condition=%outer_condition, body=%outer_body
  %y = f32[4,8]{1,0} get-tuple-element(%loop), index=1
  %moved = f32[4,8]{1,0:S(1)} copy(%y), backend_config={"estimated_cycles":"7"}
  %gathered = f32[32,8]{1,0} all-gather(%moved), channel_id=2, replica_groups=[1,8]<=[8], dimensions={0}
  %piece = f32[2,8]{1,0:S(1)} fusion(%stack, %nine), kind=kLoop, calls=%sliced
  ROOT %t = (f32[4,8]{1,0}, f32[2,8]{1,0}) tuple(%moved, %piece)
}
"""


@functools.cache
def compiled(topology: str, layers: int, dtype: str = "bfloat16") -> Program:
    """One gradient step of a scanned residual network in pure data parallelism, compiled for a TPU."""
    mesh = Mesh(np.array(topologies.parse(topology).devices()), ("data",))
    whole, rows = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
    width, hidden = 256, 1024
    weights = {
        "into": jax.ShapeDtypeStruct((layers, width, hidden), jnp.float32, sharding=whole),
        "out": jax.ShapeDtypeStruct((layers, hidden, width), jnp.float32, sharding=whole),
    }
    x = jax.ShapeDtypeStruct((8 * mesh.size, 128, width), jnp.dtype(dtype), sharding=rows)

    def loss(weights, x):
        def layer(x, weights):
            hidden = jax.nn.relu(x @ weights["into"].astype(dtype))
            return x + hidden @ weights["out"].astype(dtype), None

        return jnp.mean(jnp.square(jax.lax.scan(layer, x, weights)[0].astype(jnp.float32)))

    def step(weights, x):
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights, x))

    jitted = jax.jit(step, donate_argnums=0, out_shardings=whole)
    return Program(jitted.lower(weights, x).compile().as_text())
