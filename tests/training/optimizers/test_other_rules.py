"""Adagrad, gradient descent and Adafactor against torch and transformers; averages; evaluations that rules follow."""

import math

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from plmjax.errors import UserError
from plmjax.training import optimizers
from plmjax.training.optimizers import Adafactor, Adagrad, BertAdamW, StochasticGradientDescent
from plmjax.training.optimizers.schedules import Constant, Plateau
from tests.optional import torch, transformers

SHAPES = {"kernel": (6, 8), "bias": (8,)}
STEPS = 7
PLAIN = {"clip_norm": 0.0, "schedule": Constant()}


def tree(seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}


def boxed(params):
    return {name: nn.LogicallyPartitioned(array, (None,) * array.ndim) for name, array in params.items()}


def descend(optimizer, gradients, values=()):
    """(parameters, state) after every gradient; values: the evaluation after each step."""
    transformation = optimizer.build(STEPS, boxed(tree(0)))
    params, found = tree(0), []
    state = transformation.init(params)
    update = jax.jit(transformation.update)
    for number, gradient in enumerate(gradients):
        updates, state = update(gradient, state, params)
        params = optax.apply_updates(params, updates)
        if values:
            state = optimizers.on_evaluation(optimizer, state, values[number])
        found.append((params, state))
    return found


def reference(make, gradients) -> list[dict[str, np.ndarray]]:
    """Parameters after every gradient with an optimizer of torch."""
    params = {name: torch.nn.Parameter(torch.tensor(array)) for name, array in tree(0).items()}
    optimizer, found = make(list(params.values())), []
    for gradient in gradients:
        for name, parameter in params.items():
            parameter.grad = torch.tensor(gradient[name])
        optimizer.step()
        found.append({name: parameter.detach().numpy().copy() for name, parameter in params.items()})
    return found


GRADIENTS = [tree(seed) for seed in range(1, STEPS + 1)]


@pytest.mark.parametrize(
    ("optimizer", "make"),
    [
        (Adagrad(learning_rate=0.05, **PLAIN), lambda params: torch.optim.Adagrad(params, lr=0.05)),
        (
            Adagrad(learning_rate=0.05, initial_accumulator=1.0, epsilon=1e-3, **PLAIN),
            lambda params: torch.optim.Adagrad(params, lr=0.05, initial_accumulator_value=1.0, eps=1e-3),
        ),
        (StochasticGradientDescent(learning_rate=0.1, **PLAIN), lambda params: torch.optim.SGD(params, lr=0.1)),
        (
            StochasticGradientDescent(learning_rate=0.1, momentum=0.9, weight_decay=0.1, **PLAIN),
            lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=0.1),
        ),
        (
            StochasticGradientDescent(learning_rate=0.1, momentum=0.9, nesterov=True, **PLAIN),
            lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True),
        ),
        (
            Adafactor(factored_from=2),
            lambda params: transformers.Adafactor(params, relative_step=True, scale_parameter=True, warmup_init=False),
        ),
        (
            Adafactor(learning_rate=1e-3, factored_from=2, relative=False, clip_update=0.5, schedule=Constant()),
            lambda params: transformers.Adafactor(
                params, lr=1e-3, clip_threshold=0.5, relative_step=False, scale_parameter=False
            ),
        ),
    ],
    ids=["Adagrad", "Adagrad from 1", "SGD", "momentum", "Nesterov", "Adafactor, relative", "Adafactor, clipped"],
)
def test_rule_is_the_librarys(optimizer, make):
    found = [params for params, _ in descend(optimizer, GRADIENTS)]
    chex.assert_trees_all_close(found, reference(make, GRADIENTS), rtol=1e-5, atol=1e-6)


def test_adagrad_leaves_what_never_had_a_gradient():
    gradients = [gradient | {"bias": np.zeros(8, np.float32)} for gradient in GRADIENTS]
    params, _ = descend(Adagrad(), gradients)[-1]
    np.testing.assert_array_equal(params["bias"], tree(0)["bias"])


@pytest.mark.parametrize(
    "settings",
    [
        {"factored_from": 6},
        {"factored_from": 7},
        {"factored_from": 7, "smallest_size": 2.0, "decay_exponent": 0.5, "epsilon": 0.1},
    ],
)
def test_adafactor_is_mesh_tensorflows_step_by_step(settings):
    """`AdafactorOptimizer` of mesh_tensorflow/optimize.py written in NumPy, float64; the matrix is 6 x 8."""
    params = {name: array.astype(np.float64) for name, array in tree(0).items()}
    moments = {name: [0.0, 0.0] for name in params}
    found = descend(Adafactor(**settings), GRADIENTS)
    published = {"smallest_size": 1e-3, "decay_exponent": 0.8, "epsilon": 1e-30}
    smallest, exponent, epsilon, factored_from = (published | settings).values()

    def size(x):
        return np.sqrt(np.mean(np.square(x)))

    for step, gradients in enumerate(GRADIENTS):
        fade, rate = 1 - (step + 1) ** -exponent, 1 / np.sqrt(max(step, 10_000))
        for name, gradient in gradients.items():
            square, kept = np.square(gradient.astype(np.float64)) + epsilon, moments[name]
            if gradient.ndim == 2 and min(gradient.shape) >= factored_from:
                kept[:] = (fade * old + (1 - fade) * square.mean(axis) for axis, old in zip((1, 0), kept, strict=True))
                rows, columns = kept
                second = np.outer(rows / rows.mean(), columns)
            else:
                kept[0] = second = fade * kept[0] + (1 - fade) * square
            update = gradient / np.sqrt(second)
            update = update / max(1.0, size(update))
            params[name] = params[name] - update * max(size(params[name]), smallest) * rate
        chex.assert_trees_all_close(found[step][0], params, rtol=1e-5)


def test_adafactor_keeps_rows_and_columns_instead_of_matrices():
    params = {"kernel": jax.ShapeDtypeStruct((3, 256, 512), jnp.float32)}
    box = {"kernel": nn.LogicallyPartitioned(params["kernel"], ("layers", "embed", "mlp"))}
    state = jax.eval_shape(Adafactor().build(STEPS, box).init, params)
    assert sum(leaf.size for leaf in jax.tree.leaves(state)) < 3 * (256 + 512) + 10


def test_adafactor_of_stacked_layers_equals_adafactor_of_separate_layers():
    layers = [tree(seed)["kernel"] * size for seed, size in ((0, 1.0), (1, 10.0), (2, 1e-5))]
    gradients = [tree(seed)["kernel"] for seed in (3, 4, 5)]

    def updates(params, gradients, names):
        boxes = jax.tree.map(lambda leaf: nn.LogicallyPartitioned(leaf, names), params)
        rule = Adafactor(factored_from=6).build(STEPS, boxes)
        return jax.jit(lambda: rule.update(gradients, rule.init(params), params)[0])()

    (together,) = updates([np.stack(layers)], [np.stack(gradients)], ("layers", "embed", "mlp"))
    np.testing.assert_allclose(together, np.stack(updates(layers, gradients, ("embed", "mlp"))), rtol=1e-5)


# ----------------------------------------------------------------------------------------------------- averages


def merity(values: list[float], patience: int) -> int | None:
    """salesforce/awd-lstm-lm main.py: the evaluation, from 0, after which averaging begins."""
    best: list[float] = []
    for number, value in enumerate(values):
        if len(best) > patience and value > min(best[:-patience]):
            return number
        best.append(value)
    return None


@pytest.mark.parametrize(("patience", "seed"), [(1, 0), (2, 1), (3, 2)])
def test_non_monotone_averaging_begins_where_its_authors_begin_it(patience, seed):
    values = [5.0, 4.0, *np.random.default_rng(seed).normal(3, 1, STEPS - 2).tolist()]
    optimizer = StochasticGradientDescent(averaging="non-monotone", patience=patience, **PLAIN)
    begins = merity(values, patience)
    averaged = []
    for number, (params, state) in enumerate(descend(optimizer, GRADIENTS, values)):
        if begins is None or number <= begins:
            chex.assert_trees_all_equal(optimizers.evaluation_params(state, params), params)
        else:
            averaged.append(params)
            mean = jax.tree.map(lambda *each: np.mean(each, axis=0), *averaged)
            chex.assert_trees_all_close(optimizers.evaluation_params(state, params), mean, rtol=1e-5, atol=1e-6)


def test_a_mean_may_forget():
    """That of all steps while each of them has a quarter or more; then an exponential mean of decay 0.75."""
    optimizer, mean = StochasticGradientDescent(averaging="always", average_fraction=0.25, **PLAIN), None
    for count, (params, state) in enumerate(descend(optimizer, GRADIENTS), start=1):
        share = max(1 / count, 0.25)
        mean = params if mean is None else jax.tree.map(lambda m, p, s=share: (1 - s) * m + s * p, mean, params)
        chex.assert_trees_all_close(optimizers.evaluation_params(state, params), mean, rtol=1e-5, atol=1e-6)
    assert count > 4


def test_frozen_parameters_are_not_averaged():
    optimizer = StochasticGradientDescent(averaging="always", frozen=("bias",), **PLAIN)
    params, state = descend(optimizer, GRADIENTS)[-1]
    evaluated = optimizers.evaluation_params(state, params)
    np.testing.assert_array_equal(evaluated["bias"], tree(0)["bias"])
    assert not np.array_equal(evaluated["kernel"], params["kernel"])


# ------------------------------------------------------------------------------------------ evaluations


def test_a_plateau_lowers_the_rate_of_the_update_and_of_the_log():
    optimizer = StochasticGradientDescent(
        learning_rate=0.1, clip_norm=0.0, schedule=Plateau(reduction=0.5, patience=0), frozen=("bias",)
    )
    gradients = [GRADIENTS[0]] * 4
    before, rates = tree(0)["kernel"], []
    for params, state in descend(optimizer, gradients, [3.0, 4.0, 2.0, 5.0]):
        rates.append(np.median((before - params["kernel"]) / GRADIENTS[0]["kernel"]))
        before, last = params["kernel"], state
    np.testing.assert_allclose(rates, [0.1, 0.1, 0.05, 0.05], rtol=1e-4)
    assert float(optimizers.learning_rate(optimizer, last, optimizer.rates(STEPS), 4)) == pytest.approx(0.025)


@pytest.mark.parametrize(
    ("values", "starts"), [([3.0, 4.0, 5.0], 2), ([math.nan, 4.0, 3.0, 5.0], 3), ([3.0, 2.0, math.nan], 2)]
)
def test_an_evaluation_without_a_number_is_worse_than_any_other(values: list[float], starts: int) -> None:
    """It starts averaging as a larger loss does, and does not end the search for a better one."""
    optimizer = StochasticGradientDescent(averaging="non-monotone", patience=1)
    found = descend(optimizer, GRADIENTS[:1] * len(values), values)
    averaging = [bool(optax.tree.get(state, "averaging")) for _, state in found]
    assert averaging == [number >= starts for number in range(len(values))]


@pytest.mark.parametrize(
    "optimizer",
    [
        StochasticGradientDescent(averaging="non-monotone", patience=1, schedule=Plateau(patience=0)),
        BertAdamW(schedule=Plateau(patience=0), layer_decay=1.0),
    ],
)
def test_an_evaluation_keeps_the_form_of_the_state(optimizer):
    """So that the compiled step takes the state on, and a checkpoint of it resumes bit for bit."""
    values = [3.0, 2.0, 4.0, 5.0, 1.0, 6.0, 7.0]
    transformation = optimizer.build(STEPS, boxed(tree(0)))
    evaluated = jax.jit(lambda state, value: optimizers.on_evaluation(optimizer, state, value))
    update, params, state = jax.jit(transformation.update), tree(0), transformation.init(tree(0))
    for gradient, value in zip(GRADIENTS, values, strict=True):
        updates, after = update(gradient, state, params)
        params, found = optax.apply_updates(params, updates), evaluated(after, value)
        chex.assert_trees_all_equal_shapes_and_dtypes(found, state)
        state = found
    chex.assert_trees_all_close(state, descend(optimizer, GRADIENTS, values)[-1][1], rtol=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"averaging": "non-monoton"}, "--optimizer.averaging, found 'non-monoton'; did you mean 'non-monotone'"),
        ({"momentum": 1.0}, "momentum from 0 to below 1"),
    ],
)
def test_settings_that_cannot_be_are_named(settings, message):
    with pytest.raises(UserError, match=message):
        StochasticGradientDescent(**settings)


def test_adagrad_clips_each_layer_for_itself() -> None:
    """As torch, after `clip_grad_norm_` of every array alone: a stack of layers is several arrays."""
    params = {"kernel": np.ones((2, 3, 4), np.float32), "bias": np.ones(3, np.float32)}
    names = {"kernel": ("layers", None, None), "bias": (None,)}
    rule = Adagrad(learning_rate=0.1, clip_each=0.5, **PLAIN)
    transformation = rule.build(2, {name: nn.LogicallyPartitioned(params[name], names[name]) for name in params})
    random = np.random.default_rng(3)
    gradients = [{name: random.normal(size=x.shape).astype(np.float32) for name, x in params.items()} for _ in range(2)]
    gradients[1]["bias"] *= 1e-3  # short enough
    state, found, squares = transformation.init(params), params, {"kernel": 0.0, "bias": 0.0}
    expected, update = dict(params), jax.jit(transformation.update)
    for gradient in gradients:
        updates, state = update(gradient, state, found)
        found = optax.apply_updates(found, updates)
        for name, x in gradient.items():
            axes = (1, 2) if name == "kernel" else (0,)
            norm = np.sqrt((x**2).sum(axes, keepdims=True))
            clipped = x * np.minimum(1, 0.5 / norm)
            squares[name] = squares[name] + clipped**2
            expected[name] = expected[name] - 0.1 * clipped / (np.sqrt(squares[name]) + 1e-10)
    chex.assert_trees_all_close(found, expected, rtol=1e-5)
    assert not rule.by_rows and Adagrad().by_rows
