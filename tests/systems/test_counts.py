"""The parameters of every published size, and what new ones are drawn from."""

import math
import re
from typing import Any

import jax
import numpy as np
import pytest

from tests.families import FAMILIES, REPRESENTATIVES
from tests.families.family import Count, Family
from tests.systems.modules import count, initial_params

# The first size proves what each layer has; the parameters of published experiments are recorded in test_goldens.py.
# A quarter of a second to 1.5 s for each other size: pytest -m nightly tests/systems/test_counts.py
LONG = ("lite_transformer", "lite_transformer_decoder", "longformer_decoder", "deberta")
"""Systems of which all sizes are nightly: their layers are traced one by one, and a tiny one is recorded by day."""
SIZES = [
    pytest.param(config, counts, id=f"{name}-{size}", marks=pytest.mark.nightly if number or name in LONG else ())
    for name, family in FAMILIES.items()
    for number, (size, (config, counts)) in enumerate(family.counts.items())
]


@pytest.mark.parametrize(("config", "counts"), SIZES)
def test_published_parameter_counts(config: Any, counts: tuple) -> None:
    for one in counts:
        module, expected, paths = Count(*one)
        assert count(module(config), paths) == expected


# Layers draw their own first values: one to three seconds for each system that has those of another. The two more
# that the day has have initializers of their own, and take half a second each.
SHARED = ("gpt2", "longformer", "xlnet")
"""Representatives whose layers draw as BERT's do."""
DRAWN_BY_DAY = (*(name for name in REPRESENTATIVES if name not in SHARED), "adaptive_span", "taglm")
DRAWN = [
    pytest.param(family, id=name, marks=() if name in DRAWN_BY_DAY else pytest.mark.nightly)
    for name, family in FAMILIES.items()
]


@pytest.mark.parametrize("family", DRAWN)
def test_initial_values(family: Family) -> None:
    """Kernels and tables have a deviation of 0.02 or the row's: normal, cut at two or not, or uniform.

    Biases are 0, scales 1, if the row has no others.
    """
    for path, value in jax.tree_util.tree_leaves_with_path(initial_params(family.initial)):
        name, value = jax.tree_util.keystr(path, simple=True, separator="/"), np.asarray(value)
        if not re.search(family.drawn, name):
            constant = next((one for part, one in family.constants.items() if re.search(part, name)), None)
            assert (value == (name.endswith("scale") if constant is None else constant)).all(), name
            continue
        deviation = next((one for part, one in family.deviations.items() if re.search(part, name)), 0.02)
        assert abs(value.mean()) < 5 * value.std() / value.size**0.5, name
        if family.uniform is not None and re.search(family.uniform, name):
            bound, largest = math.sqrt(3) * deviation, np.abs(value).max()
            assert largest <= bound * (1 + 1e-6) and (value.size <= 1000 or largest > 0.98 * bound), (
                f"{name} is uniform"
            )
            assert value.size <= 10_000 or abs(value.std() / deviation - 1) < 0.02, name
            continue
        if family.truncated:
            assert np.abs(value).max() <= 2 * deviation, f"{name} is cut at two standard deviations"
        if value.size > 10_000:
            assert abs(value.std() / deviation - (0.8796 if family.truncated else 1)) < 0.02, name
            if not family.truncated:
                assert abs((np.abs(value) > 2 * deviation).mean() - 0.0455) < 0.01, name
