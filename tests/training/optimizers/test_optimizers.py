"""Update rules against the formulas of their releases, written out in NumPy and float64; frozen layers."""

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from plmjax.contracts.parameters import BIAS, NORM, Declared
from plmjax.errors import UserError
from plmjax.training.optimizers import AdamW, BertAdamW, Lamb, StableAdamW, StochasticGradientDescent, gradient_norm
from plmjax.training.optimizers.schedules import Constant, Linear

LAYERS, STEPS = 3, 6
SHAPES = {
    "embeddings": {"words": (7, 4), "layer_norm": {"scale": (4,), "bias": (4,)}},
    "layers": {"query": {"kernel": (LAYERS, 4, 4), "bias": (LAYERS, 4)}, "output_layer_norm": {"scale": (LAYERS, 4)}},
    "predictions": {"output_bias": (7,), "dense": {"kernel": (4, 4)}},
}
SETTINGS = {"learning_rate": 0.05, "schedule": Linear(warmup_steps=2), "weight_decay": 0.1}
RULES = [BertAdamW, AdamW, Lamb]


def tree(seed: int, scale: float = 1.0):
    """Random float32 arrays of SHAPES."""
    rng = np.random.default_rng(seed)
    is_shape = lambda node: isinstance(node, tuple)  # noqa: E731
    return jax.tree.map(lambda s: rng.normal(0, scale, s).astype(np.float32), SHAPES, is_leaf=is_shape)


KINDS = {"scale": (NORM,), "bias": (BIAS,), "output_bias": (BIAS,)}


def boxed(params):
    """The same tree boxed with logical axes and kinds, as a module's init gives it."""

    def box(path, leaf):
        names = ("layers",) if path[0].key == "layers" else ()
        axes = names + (None,) * (leaf.ndim - len(names))
        kinds = KINDS.get(path[-1].key)
        return Declared(leaf, axes, kinds=kinds) if kinds else nn.LogicallyPartitioned(leaf, axes)

    return jax.tree_util.tree_map_with_path(box, params)


def flat(params) -> dict[str, np.ndarray]:
    found = flax.traverse_util.flatten_dict(nn.meta.unbox(params), sep="/")
    return {name: np.array(leaf, np.float64) for name, leaf in found.items()}


def run(transformation, params, gradients):
    @jax.jit
    def step(params, state, gradient):
        updates, state = transformation.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    state = transformation.init(params)
    for gradient in gradients:
        params, state = step(params, state, gradient)
    return params, state


GRADIENTS = [tree(seed, scale=0.02 if seed == 3 else 1.0) for seed in range(1, STEPS + 1)]


def decayed(name: str) -> bool:
    return not any(word in name for word in ("layer_norm", "bias"))


def oracle(
    rule: type, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-6, *, correct_bias: bool = False
) -> dict[str, np.ndarray]:
    """The updates of GRADIENTS, one array at a time; stacked layers one layer at a time for LAMB."""
    params = flat(tree(0))
    mean = {name: np.zeros_like(value) for name, value in params.items()}
    square = {name: np.zeros_like(value) for name, value in params.items()}
    for step, gradient in enumerate(map(flat, GRADIENTS)):
        norm = np.sqrt(sum((g**2).sum() for g in gradient.values()))
        rate = 0.05 * (step / 2 if step < 2 else 1 - step / STEPS)
        for name, g in gradient.items():
            g = g / max(norm, 1.0)
            mean[name] = beta1 * mean[name] + (1 - beta1) * g
            square[name] = beta2 * square[name] + (1 - beta2) * g**2
            m, v = mean[name], square[name]
            if rule is AdamW or correct_bias:
                m, v = m / (1 - beta1 ** (step + 1)), v / (1 - beta2 ** (step + 1))
            update = m / (np.sqrt(v) + epsilon) + (0.1 * params[name] if decayed(name) else 0)
            if rule is Lamb and decayed(name):
                parts = range(LAYERS) if name.startswith("layers") else [slice(None)]
                for part in parts:
                    ratio = np.linalg.norm(params[name][part]) / np.linalg.norm(update[part])
                    update[part] = ratio * update[part]
            params[name] = params[name] - rate * update
    return params


@pytest.mark.parametrize(
    ("rule", "settings"),
    [
        *((rule, settings) for rule in RULES for settings in ({}, {"beta1": 0.6, "beta2": 0.95, "epsilon": 0.1})),
        (Lamb, {"correct_bias": True}),  # MLPerf's
    ],
)
def test_rule_is_its_formula(rule, settings):
    """With published settings the parameters are boxed, too."""
    box = (lambda params: params) if settings else boxed
    transformation = rule(**SETTINGS, **settings).build(STEPS, boxed(tree(0)))
    params, _ = run(transformation, box(tree(0)), [box(gradient) for gradient in GRADIENTS])
    for name, expected in oracle(rule, **settings).items():
        np.testing.assert_allclose(flat(params)[name], expected, rtol=2e-5, atol=2e-6, err_msg=name)


def test_lambs_ratio_for_parameters_that_are_zero_is_1():
    rule = Lamb(epsilon=0.0, learning_rate=1.0, schedule=Constant(), weight_decay=0.0, clip_norm=0.0)
    boxes, zeros = {"kernel": nn.LogicallyPartitioned(jnp.zeros(2), ("embed",))}, {"kernel": jnp.zeros(2)}
    updated, _ = run(rule.build(10, boxes), zeros, [{"kernel": jnp.array([1.0, -1.0])}])
    np.testing.assert_allclose(updated["kernel"], np.array([-1, 1]) * 0.1 / np.sqrt(0.001), rtol=1e-5)


@pytest.mark.parametrize("settings", [{}, {"beta1": 0.6, "beta2": 0.9, "epsilon": 0.1, "weight_decay": 0.02}])
def test_stable_adamw_is_its_formula(settings):
    """In the order of the release: averages, the size of a gradient, decay, then the update; a layer at a time."""
    made = StableAdamW(learning_rate=0.05, schedule=Linear(warmup_steps=2), **settings)
    params, mean, square = flat(tree(0)), flat(tree(0)), flat(tree(0))
    for average in (*mean.values(), *square.values()):
        average[...] = 0
    sizes = []
    for step, gradient in enumerate(map(flat, GRADIENTS)):
        rate = 0.05 * (step / 2 if step < 2 else 1 - step / STEPS)
        beta1, beta2 = ((b ** (step + 1) - b) / (b ** (step + 1) - 1) for b in (made.beta1, made.beta2))
        for name, g in gradient.items():
            mean[name] += (1 - beta1) * (g - mean[name])
            square[name] = beta2 * square[name] + (1 - beta2) * g**2
            for part in range(LAYERS) if name.startswith("layers") else [...]:
                ratios = g[part] ** 2 / np.maximum(square[name][part], made.epsilon**2)
                sizes.append(np.sqrt(ratios.mean()))
                own = rate / max(1, sizes[-1])
                if decayed(name):
                    params[name][part] *= 1 - own / 0.05 * made.weight_decay
                params[name][part] -= own * mean[name][part] / (np.sqrt(square[name][part]) + made.epsilon)
    assert max(sizes) > 1.1  # some updates are clipped
    found, _ = run(made.build(STEPS, boxed(tree(0))), boxed(tree(0)), [boxed(gradient) for gradient in GRADIENTS])
    for name, expected in params.items():
        np.testing.assert_allclose(flat(found)[name], expected, rtol=2e-5, atol=2e-6, err_msg=name)


def test_decay_goes_by_what_a_parameter_is_and_not_by_its_name():
    """And by words of paths that a run adds."""
    params = {
        "bias": nn.LogicallyPartitioned(jnp.zeros((2, 3)), (None, None)),
        "layer_norm": {"kernel": nn.LogicallyPartitioned(jnp.zeros(3), (None,))},
        "gain": Declared(jnp.zeros(3), (None,), kinds=(NORM,)),
        "shift": Declared(jnp.zeros((2, 3)), (None, None), kinds=(NORM, BIAS)),
    }

    def left_out(*words: str) -> set[str]:
        flat = flax.traverse_util.flatten_dict(AdamW(decay_exclude=words).decay_mask(params), sep="/")
        return {name for name, decays in flat.items() if not decays}

    assert left_out("layer_norm", "bias") == left_out("layer_norm") == {"gain", "shift"}
    assert left_out("bias") == {"shift"} and left_out() == set()
    assert left_out("bias", "norm/k") == {"shift", "layer_norm/kernel"}
    dense = nn.Dense(3).init(jax.random.key(0), jnp.zeros((1, 2)))["params"]  # whose vectors have no boxes
    assert AdamW().decay_mask(dense) == {"kernel": True, "bias": False}


@pytest.mark.parametrize(("clip", "factor"), [(1.0, 1 / 5), (0.0, 1.0), (10.0, 1.0)])
def test_clip_scales_to_the_norm_and_the_state_tells_it(clip, factor):
    """A gradient that is not finite spoils every parameter, so that it shows."""
    params, rule = {"a": jnp.ones(1), "b": jnp.ones(1)}, BertAdamW(clip_norm=clip, schedule=Constant())
    _, state = run(rule.build(10, params), params, [{"a": jnp.array([3.0]), "b": jnp.array([4.0])}])
    assert float(gradient_norm(state)) == pytest.approx(5.0)
    np.testing.assert_allclose(optax.tree.get(state, "mean")["b"], 0.1 * 4.0 * factor, rtol=1e-6)
    updated, _ = run(rule.build(10, params), params, [{"a": jnp.array([np.inf]), "b": jnp.ones(1)}])
    assert not np.isfinite(updated["a"]).all() and np.isnan(updated["b"]).all() == (clip > 0)


def test_moments_are_float32_and_bfloat16_gradients_are_summed_in_float32():
    params = {"kernel": jnp.zeros(4096)}
    _, state = run(BertAdamW().build(10, params), params, [{"kernel": jnp.full(4096, 0.1, jnp.bfloat16)}])
    assert float(gradient_norm(state)) == pytest.approx(64 * float(jnp.bfloat16(0.1)), rel=1e-5)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(state) if leaf.ndim)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clip_norm": -1.0}, "clip_norm of at least 0"),
        ({"frozen": ("embedings",)}, "did you mean 'embeddings'"),
        ({"frozen": ("quite another",)}, "parameter's path, found 'quite another'; known: .{,80}$"),
        ({"frozen": ("embeddings", "layers", "predictions")}, "leave parameters to train"),
        ({"frozen": ("embeddings[1:]",)}, "the path of stacked layers before .., found 'embeddings'"),
        ({"frozen": ("layers[]",)}, r"layers such as \[0\] or \[1:3\] in --optimizer.frozen, found 'layers\[\]'"),
    ],
)
def test_settings_that_cannot_be_are_named(settings, message):
    with pytest.raises(UserError, match=message):
        BertAdamW(**settings).build(STEPS, boxed(tree(0)))


QUERY = ("layers/query/kernel", "layers/query/bias")


@pytest.mark.parametrize(
    ("rule", "layers", "frozen"),
    [(AdamW, "[1:]", [1, 2]), (Lamb, "[:2]", [0, 1]), (AdamW, "[1]", [1]), (BertAdamW, "[-1]", [2]), (Lamb, "", None)],
)
def test_frozen_layers_keep_their_bits_and_have_no_part_in_the_norm(rule, layers: str, frozen: list[int]) -> None:
    """Beside a path that is frozen as a whole, of which there is no state."""
    settings = rule(frozen=(f"layers/query{layers}", "embeddings"), **SETTINGS)
    params, state = run(settings.build(STEPS, boxed(tree(0))), tree(0), GRADIENTS)
    before, after, last = flat(tree(0)), flat(params), flat(GRADIENTS[-1])
    norm, kept = 0.0, 0
    for name in before:
        whole = name.startswith(("embeddings/", "layers/query/")[: 1 if layers else 2])
        changed = np.full(before[name].shape, not whole)
        if name in QUERY:
            changed[frozen] = False
        np.testing.assert_array_equal(before[name] != after[name], changed, err_msg=name)
        norm += np.sum(last[name] ** 2 * changed)
        kept += 0 if whole else 2 * changed.size
    assert float(gradient_norm(state)) == pytest.approx(np.sqrt(norm), rel=1e-5)
    assert sum(leaf.size for leaf in jax.tree.leaves(state) if leaf.ndim) == kept


def test_the_other_layers_are_trained_as_they_would_be() -> None:
    """Their update is that of a run whose gradient has nothing for the frozen layers."""
    rules = [Lamb(learning_rate=0.05, weight_decay=0.1, clip_norm=0.0, frozen=one) for one in ((), ("layers[1:]",))]
    whole, found = (flat(run(rule.build(STEPS, boxed(tree(0))), tree(0), GRADIENTS)[0]) for rule in rules)
    for name, array in found.items():
        first = slice(1) if name.startswith("layers/") else slice(None)
        np.testing.assert_allclose(array[first], whole[name][first], rtol=1e-6, err_msg=name)


def test_the_mean_of_frozen_layers_is_what_they_are() -> None:
    settings = StochasticGradientDescent(averaging="always", learning_rate=0.1, frozen=("layers[:1]",))
    _, state = run(settings.build(STEPS, boxed(tree(0))), tree(0), GRADIENTS)
    mean = flat(optax.tree.get(state, "mean"))["layers/query/kernel"]
    np.testing.assert_allclose(mean[:1], flat(tree(0))["layers/query/kernel"][:1], rtol=1e-6)
