"""Products in int8."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.layers import int8
from plmjax.layers.int8 import CALIBRATED, FLOAT, INT8_DYNAMIC, INT8_STATIC, PROJECTIONS, SIMULATED
from plmjax.layers.projection import Projection
from plmjax.models.albert import AlbertConfig
from plmjax.models.bert import BertConfig
from plmjax.models.gpt2 import Gpt2Config

DRAWS = np.random.default_rng(0)
SHAPES = {"one": ((4, 6), 1), "heads": ((4, 2, 3), 1), "joining": ((2, 3, 4), 2)}


def projected(precision: str, shape: tuple[int, ...], contracted: int, **changes) -> Projection:
    outputs = shape[contracted:]
    axes = (None,) * len(shape)
    return (PROJECTIONS[precision] or Projection)(outputs, axes, nn.initializers.normal(1.0), **changes)


def expected_integers(values: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return np.clip(np.round(values.astype(np.float32) * scale), -127, 127).astype(np.int64)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("precision", [INT8_DYNAMIC, INT8_STATIC])
def test_products_are_those_of_integers(precision: str, shape: str) -> None:
    sizes, contracted = SHAPES[shape]
    x = jnp.asarray(DRAWS.normal(size=(2, 5, *sizes[:contracted])), jnp.float32)
    module = projected(precision, sizes, contracted)
    params = nn.meta.unbox(jax.jit(module.init)(jax.random.key(0), x))["params"]
    kernel, outputs = np.asarray(params["kernel"]), sizes[contracted:]
    of_kernel = 127 / np.abs(kernel).max(axis=tuple(range(contracted)))
    params = params | {"kernel_scale": of_kernel.reshape(-1), "bias": DRAWS.normal(size=outputs).astype(np.float32)}
    inputs = tuple(range(2, 2 + contracted))
    of_x = 127 / np.abs(x).max(axis=inputs, keepdims=True)
    if precision == INT8_STATIC:
        params |= {"input_range": np.float32(2.0), "output_range": np.float32(3.0)}
        of_x = np.full_like(of_x, 127 / 2)
    sums = np.tensordot(expected_integers(np.asarray(x), of_x), expected_integers(kernel, of_kernel), contracted)
    expected = sums / (of_x.reshape(2, 5, *(1,) * len(outputs)) * of_kernel) + params["bias"]
    if precision == INT8_STATIC:
        expected = expected_integers(expected, np.float32(127 / 3)) / (127 / 3)
    apply = jax.jit(lambda params: module.apply({"params": params}, x))
    np.testing.assert_allclose(apply(params), expected, rtol=1e-5, atol=1e-5)
    program = str(jax.make_jaxpr(apply)(params))
    assert "i8[" in program and "preferred_element_type=int32" in program


def test_bfloat16_kernels_keep_their_integers() -> None:
    """A kernel whose values are integers over a scale is rounded to bfloat16 before a product."""
    integers = DRAWS.integers(-127, 128, size=(64, 32)).astype(np.float32)
    scale = DRAWS.uniform(50, 5000, size=32).astype(np.float32)
    kernel = jnp.asarray(integers / scale).astype(jnp.bfloat16)
    np.testing.assert_array_equal(int8.quantize(kernel, scale), integers)


def test_rounding_passes_the_gradient() -> None:
    x, scale = jnp.asarray([-3.0, 0.26, 0.5, 9.0]), jnp.float32(127 / 2)
    values, pull = jax.vjp(int8.fake_quantize, x, scale)
    np.testing.assert_allclose(values, [-2.0, 17 / 63.5, 32 / 63.5, 2.0], rtol=1e-6)
    cotangent = jnp.arange(4.0)
    of_x, of_scale = pull(cotangent)
    np.testing.assert_array_equal(of_x, cotangent)
    assert of_scale == 0
    assert int8.quantization_scale(jnp.float32(0.0)) == 1


@pytest.mark.parametrize(("precision", "kept"), [(CALIBRATED, [2.0, 3.0, 3.0]), (SIMULATED, [2.0, 2.0001, 2.0])])
def test_ranges_follow_the_data(precision: str, kept: list[float]) -> None:
    module = projected(precision, (4, 6), 1)
    x = jnp.eye(4)[None]
    variables = nn.meta.unbox(jax.jit(module.init)(jax.random.key(0), x))
    ranges, calibrate = variables["ranges"], jax.jit(functools.partial(module.apply, mutable=["ranges"]))
    assert not any(jax.tree.leaves(ranges))
    for largest, expected in zip([2.0, 3.0, 1.0], kept, strict=True):
        _, after = calibrate(variables | {"ranges": ranges}, largest * x)
        ranges = after["ranges"]
        np.testing.assert_allclose(ranges["input_range"], expected, rtol=1e-6)
    fixed = module.apply(variables | {"ranges": ranges}, 5.0 * x)
    plain = projected(FLOAT, (4, 6), 1).apply({"params": variables["params"]}, 5.0 * x)
    if precision == CALIBRATED:
        np.testing.assert_array_equal(fixed, plain)
    else:  # both ends of the range: the inputs of 5 became 2
        assert np.abs(fixed).max() <= ranges["output_range"] < np.abs(plain).max()


SMALL = {
    "bert": (BertConfig(60, 16, 2, 2, 24, max_position_embeddings=16, initializer_range=0.3), 2),
    "albert": (
        AlbertConfig(60, 16, 3, 2, 24, max_position_embeddings=16, initializer_range=0.3, embedding_size=8), 0
    ),
    "gpt2": (Gpt2Config(vocab_size=60, n_positions=16, n_embd=16, n_layer=2, n_head=2, initializer_range=0.3), 2),
}  # fmt: skip


# The three have the same layers: pytest -m nightly tests/layers/test_int8.py
@pytest.mark.parametrize(
    "system", ["albert", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("bert", "gpt2"))]
)
def test_models_have_scales_for_the_kernels_of_their_layers(system: str) -> None:
    config, layers = SMALL[system]
    ids = jnp.asarray(DRAWS.integers(0, 60, size=(2, 12)))

    def made(precision: str):
        module = config.module(Purpose.PRETRAINING, Execution(projection=PROJECTIONS[precision]))
        return module, nn.meta.unbox(jax.eval_shape(module.init, jax.random.key(1), ids))

    def names(tree) -> dict[str, tuple[int, ...]]:
        leaves = jax.tree_util.tree_leaves_with_path(tree)
        return {"/".join(str(part.key) for part in path): leaf.shape for path, leaf in leaves}

    (_, plain), (_, of_tokens), (_, static) = (made(one) for one in (FLOAT, INT8_DYNAMIC, INT8_STATIC))
    scales = names(of_tokens["params"]).keys() - names(plain["params"]).keys()
    assert len(scales) == 6 and all(name.endswith("/kernel_scale") for name in scales)
    ranges = names(static["params"]).keys() - names(of_tokens["params"]).keys()
    assert len(ranges) == 12
    assert {names(static["params"])[name] for name in ranges} == {(layers,) if layers else ()}
    calibrated, variables = made(CALIBRATED)
    after = jax.eval_shape(lambda each: calibrated.apply(each, ids, mutable=["ranges"])[1], plain)
    assert names(after["ranges"]).keys() == names(variables["ranges"]).keys() == ranges


@pytest.mark.nightly
def test_a_token_depends_on_no_other_row_and_on_no_later_token() -> None:
    config, _ = SMALL["gpt2"]
    module = config.module(Purpose.PRETRAINING, Execution(projection=PROJECTIONS[INT8_DYNAMIC]))
    ids = jnp.asarray(DRAWS.integers(0, 60, size=(2, 12)))
    apply, variables = jax.jit(module.apply), nn.meta.unbox(jax.jit(module.init)(jax.random.key(1), ids))
    states = apply(variables, ids).last_hidden_state
    changed = ids.at[1].set(3).at[0, 6:].set(5)
    np.testing.assert_array_equal(apply(variables, changed).last_hidden_state[0, :6], states[0, :6])
