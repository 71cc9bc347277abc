"""Muon against its formula in NumPy and float64."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.parameters import BIAS, Declared
from plmjax.errors import UserError
from plmjax.training.optimizers import Muon
from plmjax.training.optimizers.schedules import Constant

AXES = {
    "words": ("vocab", "embed"),
    "positions": (None, "embed"),
    "query": ("layers", "embed", "heads", "head"),
    "output": ("layers", "heads", "head", "embed"),
    "inner": ("layers", "embed", "mlp"),
    "classifier": ("embed", None),
    "transform": ("embed", "mlp"),
}
SIZES = {"vocab": 9, "embed": 6, "heads": 2, "head": 3, "mlp": 8, "layers": 3, None: 5}
MATRICES = {"query": (6, 6), "output": (6, 6), "inner": (6, 8), "transform": (6, 8)}


def arrays(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    found = {name: rng.normal(size=[SIZES[axis] for axis in axes]).astype(np.float32) for name, axes in AXES.items()}
    return found | {"bias": rng.normal(size=(3, 8)).astype(np.float32)}


def boxed(tree):
    boxes = {name: nn.LogicallyPartitioned(tree[name], axes) for name, axes in AXES.items()}
    return boxes | {"bias": Declared(tree["bias"], ("layers", "mlp"), kinds=(BIAS,))}


def orthogonal(matrix: np.ndarray) -> np.ndarray:
    """Five steps of the quintic iteration (Jordan et al. 2024)."""
    x = matrix / np.linalg.norm(matrix)
    x = x.T if x.shape[0] > x.shape[1] else x
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


def expected(gradients: list[dict[str, np.ndarray]], rate: float, decay: float) -> dict[str, np.ndarray]:
    """The parameters after updates by Muon of every matrix of every layer, and by AdamW of all else."""
    params = {name: array.astype(np.float64) for name, array in arrays(0).items()}
    momentum = {name: np.zeros(array.shape) for name, array in params.items()}
    squares = {name: np.zeros(array.shape) for name, array in params.items()}
    for step, gradient in enumerate(gradients, start=1):
        for name, g in gradient.items():
            b1 = 0.95 if name in MATRICES else 0.9
            m = momentum[name] = b1 * momentum[name] + (1 - b1) * g
            if name in MATRICES:
                # Nesterov's step ahead; each of the two terms without its bias.
                ahead = b1 * m / (1 - b1 ** (step + 1)) + (1 - b1) * g / (1 - b1**step)
                matrices = ahead.reshape(-1, *MATRICES[name])
                size = 0.2 * np.sqrt(max(MATRICES[name]))
                direction = size * np.stack([orthogonal(one) for one in matrices]).reshape(g.shape)
            else:
                v = squares[name] = 0.999 * squares[name] + 0.001 * np.square(g)
                direction = m / (1 - b1**step) / (np.sqrt(v / (1 - 0.999**step)) + 0.01)
            params[name] -= rate * (direction + (0 if name == "bias" else decay * params[name]))
    return params


@pytest.mark.parametrize("box", [False, True])
def test_muon_is_its_formula_for_the_matrices_of_every_layer_and_adamw_for_all_else(box):
    form = boxed if box else lambda tree: tree
    rule = Muon(learning_rate=0.05, schedule=Constant(), weight_decay=0.1, clip_norm=0.0, epsilon=0.01)
    update = rule.build(10, boxed(arrays(0)))
    params, gradients = form(arrays(0)), [arrays(seed) for seed in (1, 2, 3)]
    state = update.init(params)
    for gradient in gradients:
        updates, state = jax.jit(update.update)(form(gradient), state, params)
        params = jax.tree.map(jnp.add, params, updates)
    for name, array in expected(gradients, 0.05, 0.1).items():
        np.testing.assert_allclose(nn.meta.unbox(params)[name], array, rtol=2e-4, atol=2e-5, err_msg=name)


def test_a_model_without_matrices_is_named():
    tables = {name: nn.LogicallyPartitioned(arrays(0)[name], AXES[name]) for name in ("words", "positions")}
    with pytest.raises(UserError, match="--optimizer muon needs a model with matrices"):
        Muon().build(10, tables)
