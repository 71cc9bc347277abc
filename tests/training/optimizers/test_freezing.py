"""Layers of a stack that are not trained, while the others are."""

import numpy as np
import optax
import pytest

from plmjax.errors import UserError
from plmjax.training.optimizers import AdamW, Lamb, StochasticGradientDescent, gradient_norm
from tests.training.optimizers.test_optimizers import GRADIENTS, SETTINGS, STEPS, boxed, flat, run, tree

QUERY = ("layers/query/kernel", "layers/query/bias")


@pytest.mark.parametrize(
    ("layers", "frozen"), [("[1:]", [1, 2]), ("[:2]", [0, 1]), ("[1]", [1]), ("[-1]", [2]), ("[:]", [0, 1, 2])]
)
def test_frozen_layers_keep_their_bits_and_have_no_part_in_the_norm(layers: str, frozen: list[int]) -> None:
    """Beside a path that is frozen as a whole."""
    settings = AdamW(frozen=(f"layers/query{layers}", "embeddings"), **SETTINGS)
    params, state = run(settings.build(STEPS, boxed(tree(0))), tree(0), GRADIENTS)
    before, after, last = flat(tree(0)), flat(params), flat(GRADIENTS[-1])
    norm = 0.0
    for name in before:
        changed = np.full(before[name].shape, not name.startswith("embeddings/"))
        if name in QUERY:
            changed[frozen] = False
        np.testing.assert_array_equal(before[name] != after[name], changed, err_msg=name)
        norm += np.sum(last[name] ** 2 * changed)
    assert float(gradient_norm(state)) == pytest.approx(np.sqrt(norm), rel=1e-5)


def test_the_other_layers_are_trained_as_they_would_be() -> None:
    """Their update is that of a run whose gradient has nothing for the frozen layers."""
    settings = Lamb(learning_rate=0.05, weight_decay=0.1, clip_norm=0.0)
    partly = Lamb(learning_rate=0.05, weight_decay=0.1, clip_norm=0.0, frozen=("layers[1:]",))
    whole, _ = run(settings.build(STEPS, boxed(tree(0))), tree(0), GRADIENTS)
    found, _ = run(partly.build(STEPS, boxed(tree(0))), tree(0), GRADIENTS)
    for name, array in flat(found).items():
        first = slice(1) if name.startswith("layers/") else slice(None)
        np.testing.assert_allclose(array[first], flat(whole)[name][first], rtol=1e-6, err_msg=name)


def test_the_mean_of_frozen_layers_is_what_they_are() -> None:
    settings = StochasticGradientDescent(averaging="always", learning_rate=0.1, frozen=("layers[:1]",))
    _, state = run(settings.build(STEPS, boxed(tree(0))), tree(0), GRADIENTS)
    mean = flat(optax.tree.get(state, "mean"))["layers/query/kernel"]
    np.testing.assert_allclose(mean[:1], flat(tree(0))["layers/query/kernel"][:1], rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("embeddings[1:]", "the path of stacked layers before .., found 'embeddings'"),
        ("layer[1:]", "found 'layer'; did you mean 'layers'"),
        ("quite another", "parameter's path, found 'quite another'; known: .{,80}$"),
        ("layers[]", r"layers such as \[0\] or \[1:3\] in --optimizer.frozen, found 'layers\[\]'"),
    ],
)
def test_mistakes_are_named(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        AdamW(frozen=(name,)).build(STEPS, boxed(tree(0)))
