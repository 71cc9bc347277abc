"""Every module of every system equals the class of transformers: outputs, hidden states, gradients."""

import dataclasses
from typing import Any

import flax.linen as nn
import pytest

from tests.families import FAMILIES
from tests.families.family import Family
from tests.systems.comparison import architecture_name, assert_equals_transformers, reference


def compared(family: Family) -> dict[str, nn.Module]:
    """Name -> module: all of the row's, and its first two that predict with every published switch."""
    modules = [head.module for head in family.heads] + list(family.bodies)
    named = {type(module).__name__: module for module in modules}
    switched = [head.module for head in family.heads if head.predicts or head is family.heads[0]]
    for module in switched[: 2 if len(family.heads) > 3 else 1]:
        for switch in family.switches:
            changed = module.clone(config=dataclasses.replace(module.config, **switch))
            named[f"{type(module).__name__} {' '.join(map(str, switch.values()))}"] = changed
    return named


CASES = [
    pytest.param(family, module, batch, id=f"{name}-{case}-{kind}")
    for name, family in FAMILIES.items()
    for case, module in compared(family).items()
    for kind, batch in family.batches.items()
]


@pytest.mark.parametrize(("family", "module", "batch"), CASES)
def test_outputs_and_gradients_equal_transformers(family: Family, module: nn.Module, batch: Any) -> None:
    name = architecture_name(family.adapter, module)
    extra = family.settings(family.reference_config(module))
    extra |= {"num_labels": module.num_labels} if hasattr(module, "num_labels") else {}
    model = reference(name, family.reference_config(module), **extra)
    assert_equals_transformers(family.adapter, module, model, batch(module.config))
