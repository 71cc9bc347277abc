"""What every parameter of every system is, on which weight decay depends: a bias, a scale, or a kernel or table."""

import functools
import re
from typing import Any

import flax.linen as nn
import jax
import pytest

from plmjax.contracts.parameters import BIAS, NORM, kinds_of
from plmjax.training import paths
from tests.families import FAMILIES, REPRESENTATIVES
from tests.families.family import Family

BIAS_OF_SEVERAL_AXES = (
    r"(query|key|value|distance)(_global)?/bias|(content|position|distance|segment)_bias|recurrent_bias|(input|gates)/bias"
    r"|maxout_\d/bias|relative_positions/embedding"
)
"""Biases of heads, of gates and of pieces, and T5's biases of distances."""
VECTORS_THAT_DECAY = r"mask_embedding|crf/(start|end)"
SCALES = r"scale|word_scale|scalar_mix\w*/weights|span_shares"


def parameters(family: Family) -> dict[str, Any]:
    """Path -> box of all modules of a row."""
    found: dict[str, Any] = {}
    for module in dict.fromkeys([head.module for head in family.heads] + list(family.bodies)):
        boxed = jax.eval_shape(functools.partial(module.init, jax.random.key(0)), **family.batch(module))["params"]
        paths.map_named(lambda name, box: found.setdefault(name, box), boxed)
    return found


def ends_with(pattern: str, name: str) -> bool:
    return bool(re.search(f"(^|/)({pattern})$", name))


# A second each, of parameters that test_goldens.py records by day: pytest -m nightly
# tests/systems/test_kinds_of_parameters.py
BY_DAY = tuple(
    name for name in REPRESENTATIVES if name not in ("reformer", "longformer", "gpt2", "lite_transformer_decoder")
)
CASES = [
    pytest.param(row, id=name, marks=() if name in BY_DAY else pytest.mark.nightly) for name, row in FAMILIES.items()
]


@pytest.mark.parametrize("family", CASES)
def test_every_parameter_is_what_it_declares(family: Family) -> None:
    """A vector is added or scales; an array of several axes is a kernel or a table, unless it is named above."""
    kinds = {NORM: set(), BIAS: set()}
    for name, box in parameters(family).items():
        assert isinstance(box, nn.LogicallyPartitioned), name
        axes = [axis for axis in box.names if axis != paths.LAYERS]
        several = len(axes) > 1
        expected = ends_with(BIAS_OF_SEVERAL_AXES, name) if several else not ends_with(VECTORS_THAT_DECAY, name)
        assert bool(kinds_of(box)) == expected, (name, box.names, kinds_of(box))
        for kind in kinds_of(box):
            kinds[kind].add(name)
    for name in kinds[NORM]:
        assert ends_with(SCALES, name) or re.search(r"norm(_\d)?/bias$", name), name
    assert not any(ends_with(SCALES, name) for name in kinds[BIAS])
