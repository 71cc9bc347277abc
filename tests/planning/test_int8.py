"""Products in int8 in a program that is compiled for a TPU."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.layers.int8 import INT8_DYNAMIC, INT8_STATIC, PROJECTIONS
from plmjax.models.bert import BertConfig
from plmjax.parallel import topologies
from plmjax.planning import compilation, hlo
from plmjax.planning.products import INTEGERS, multiply_adds


@pytest.mark.nightly
@pytest.mark.parametrize("precision", [INT8_DYNAMIC, INT8_STATIC])
def test_all_projections_of_the_layers_multiply_integers(precision: str) -> None:
    config = BertConfig.tiny(vocab_size=256, num_attention_heads=2)
    module = config.module(Purpose.ENCODING, Execution(dtype=jnp.bfloat16, projection=PROJECTIONS[precision]))
    (device,) = topologies.parse("v5e:1x1").devices()
    place = NamedSharding(jax.sharding.Mesh([device], ("data",)), PartitionSpec())
    ids = jax.ShapeDtypeStruct((8, 128), jnp.int32)
    shapes = nn.meta.unbox(jax.eval_shape(module.init, jax.random.key(0), ids)), ids
    shapes = jax.tree.map(lambda one: jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=place), shapes)
    function = jax.jit(lambda variables, ids: module.apply(variables, ids).last_hidden_state)
    program = hlo.Program(compilation.compile_for_slice(function.lower(*shapes))[1])
    total, integers = (
        sum(times * multiply_adds(program, one, dtypes) for one, times in program.top_level)
        for dtypes in (None, INTEGERS)
    )
    width, inner, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    assert integers == ids.size * layers * (4 * width**2 + 2 * width * inner)
    assert total - integers == ids.size * layers * 2 * 128 * width  # scores and values of attention
