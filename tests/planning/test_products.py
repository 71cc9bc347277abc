"""Multiply-adds of matrix products as XLA writes them."""

import pytest

from plmjax.planning import hlo, products, refined

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
    form = "ENTRY %main (a: s8[], b: s8[]) -> s32[] {{\n{}\n}}"
    lines = ["  %a = s8[32,64] parameter(0)", "  %b = s8[64,16] parameter(1)"]
    lines.append("  ROOT %c = s32[32,16]{1,0} convolution(%a, %b), dim_labels=bf_io->bf")
    integers = hlo.Program(form.format("\n".join(lines)))
    floats = hlo.Program(form.format("\n".join(lines).replace("s8", "bf16").replace("s32[32", "f32[32")))
    for program, share in ((integers, 1), (floats, 0)):
        count = products.multiply_adds(program, program.roots["main"])
        assert products.multiply_adds(program, program.roots["main"], products.INTEGERS) == share * count > -1
        (one,) = [one for one, _ in program.top_level if one.name == "c"]
        costs = [refined.Costs(program, {}, refined.Rates(8.0, 4.0, int8=rate))[one].products for rate in (0.0, 16.0)]
        assert costs == [count / 8, count / (16 if share else 8)]


def test_a_product_of_integers_and_floats_is_none_of_integers():
    lines = ["  %a = s8[32,64] parameter(0)", "  %b = bf16[64,16] parameter(1)"]
    lines.append("  ROOT %c = f32[32,16]{1,0} convolution(%a, %b), dim_labels=bf_io->bf")
    program = hlo.Program("\n".join(["ENTRY %main (a: s8[], b: bf16[]) -> f32[] {", *lines, "}"]))
    assert products.multiply_adds(program, program.roots["main"], products.INTEGERS) == 0
    assert products.multiply_adds(program, program.roots["main"], {"s8", "bf16"}) == 32 * 64 * 16
