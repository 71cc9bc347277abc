"""Multiply-adds of matrix products as XLA writes them."""

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
from plmjax.planning import compilation, hlo, products, refined

PRODUCTS = {
    # [B M K] x [B K N], the batch as a dimension with holes: B M K N
    "f32[8,32,16]{2,1,0} convolution(%a, %b), window={size=8 stride=7 pad=0_0 lhs_dilate=8}, dim_labels=0bf_0io->0bf": (
        ("f32[8,32,64]", "f32[8,64,16]"),
        8 * 32 * 64 * 16,
    ),
    # [M K] x [K N]
    "f32[32,16]{1,0} convolution(%a, %b), dim_labels=bf_io->bf": (("f32[32,64]", "f32[64,16]"), 32 * 64 * 16),
    # A gradient that sums over rows and positions, one of them as a window: [B T M] x [B T N] -> M N
    "f32[32,16,1]{2,1,0} convolution(%a, %b), window={size=8}, dim_labels=0fb_0io->bf0": (
        ("f32[8,64,32]", "f32[8,64,16]"),
        8 * 64 * 32 * 16,
    ),
    # Three taps over a length of ten, padded by one on each side: two products fall on the padding.
    "f32[4,10,6]{2,1,0} convolution(%a, %b), window={size=3 pad=1_1}, dim_labels=b0f_0io->b0f": (
        ("f32[4,10,5]", "f32[3,5,6]"),
        4 * 5 * 6 * 28,
    ),
    # The same taps three apart, at every second place, of a length of ten with a hole behind each number but the last:
    # places -2, 1, 4 | 0, 3, 6 | 2, 5, 8 | ... | 14, 17, 20, of which the even ones from 0 to 18 have a number.
    "f32[4,9,6]{2,1,0} convolution(%a, %b), window={size=3 stride=2 pad=2_2 lhs_dilate=2 rhs_dilate=3}, "
    "dim_labels=b0f_0io->b0f": (("f32[4,10,5]", "f32[3,5,6]"), 4 * 5 * 6 * 16),
    # Three taps at every second place of a length of eleven, padded on the left alone: one product falls on padding.
    "f32[4,5,6]{2,1,0} convolution(%a, %b), window={size=3 stride=2 pad=1_0}, dim_labels=b0f_0io->b0f": (
        ("f32[4,11,5]", "f32[3,5,6]"),
        4 * 5 * 6 * 14,
    ),
    # Two windows of unequal sizes, the second one without padding.
    "f32[4,3,5,6]{3,2,1,0} convolution(%a, %b), window={size=1x3 pad=0_0x0_0}, dim_labels=b01f_01io->b01f": (
        ("f32[4,3,7,2]", "f32[1,3,2,6]"),
        4 * 2 * 6 * 3 * 15,
    ),
    # Two axes are summed over.
    "f32[32,16]{1,0} dot(%a, %b), lhs_contracting_dims={1,2}, rhs_contracting_dims={0,1}": (
        ("f32[32,3,5]", "f32[3,5,16]"),
        32 * 16 * 15,
    ),
    "f32[2,32,16]{2,1,0} dot(%a, %b), lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}": (
        ("f32[2,32,64]", "f32[2,16,64]"),
        2 * 32 * 64 * 16,
    ),
}


@pytest.mark.parametrize("product", PRODUCTS)
def test_multiply_adds_are_those_of_the_formula(product):
    (left, right), expected = PRODUCTS[product]
    lines = [f"  %a = {left} parameter(0)", f"  %b = {right} parameter(1)", f"  ROOT %c = {product}"]
    program = hlo.Program("\n".join(["ENTRY %main (a: f32[], b: f32[]) -> f32[] {", *lines, "}"]))
    assert products.multiply_adds(program, program.roots["main"]) == expected


def test_products_of_integers_are_counted_apart():
    """One of integers and floats is none of them."""
    form = """ENTRY %main (a: s8[], b: s8[]) -> s32[] {{
  %a = {0}[32,64] parameter(0)
  %b = {1}[64,16] parameter(1)
  ROOT %c = {2}[32,16]{{1,0}} convolution(%a, %b), dim_labels=bf_io->bf
}}"""
    kinds = ("s8", "s8", "s32"), ("bf16", "bf16", "f32"), ("s8", "bf16", "f32")
    integers, floats, mixed = (hlo.Program(form.format(*each)) for each in kinds)
    assert products.multiply_adds(mixed, mixed.roots["main"], products.INTEGERS) == 0
    assert products.multiply_adds(mixed, mixed.roots["main"], {"s8", "bf16"}) == 32 * 64 * 16
    for program, share in ((integers, 1), (floats, 0)):
        count = products.multiply_adds(program, program.roots["main"])
        assert products.multiply_adds(program, program.roots["main"], products.INTEGERS) == share * count > -1
        (one,) = [one for one, _ in program.top_level if one.name == "c"]
        costs = [refined.Costs(program, {}, refined.Rates(8.0, 4.0, int8=rate))[one].products for rate in (0.0, 16.0)]
        assert costs == [count / 8, count / (16 if share else 8)]


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
        sum(times * products.multiply_adds(program, one, dtypes) for one, times in program.top_level)
        for dtypes in (None, products.INTEGERS)
    )
    width, inner, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    assert integers == ids.size * layers * (4 * width**2 + 2 * width * inner)
    assert total - integers == ids.size * layers * 2 * 128 * width  # scores and values of attention
