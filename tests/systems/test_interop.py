"""Checkpoints in and out of every system that transformers has: it opens what is written, and what it wrote is read."""

from typing import Any

import chex
import flax.linen as nn
import jax
import pytest

from plmjax.interop import huggingface
from tests.families import IN_TRANSFORMERS
from tests.families.family import Family
from tests.optional import transformers
from tests.systems.comparison import architecture_name, in_json
from tests.systems.modules import random_params


def auto_class(name: str) -> Any:
    """transformers' class that finds the class of this name by config.json; the class itself where there is none."""
    known = getattr(transformers, name)
    task = name.removeprefix(known.config_class.__name__.removesuffix("Config"))
    task = {"Model": "", "LMHeadModel": "ForCausalLM"}.get(task, task)
    auto = getattr(transformers, f"AutoModel{task}", None)
    # Of XLNet's two classes for questions it knows the simple one.
    return auto if auto and auto._model_mapping[known.config_class] is known else known


# test_parity converts the parameters of every head by the same table, and the nightly tests/interop/
# test_every_architecture.py imports and exports every class; half a second to 3 s each here, by day for an encoder and
# for both sides: pytest -m nightly tests/systems/test_interop.py
BY_DAY = ("bert", "t5")
CASES = [
    pytest.param(
        (family, module), id=f"{name}-{number}-{type(module).__name__}", marks=() if day else pytest.mark.nightly
    )
    for name, family in IN_TRANSFORMERS.items()
    for number, module in enumerate(family.checkpoints)
    for day in [name in BY_DAY and module == family.heads[0].module]
]


# The tests of a module follow each other, and share its programs.
every_checkpoint = pytest.mark.parametrize("checkpoint", CASES, scope="module")


@every_checkpoint
def test_the_example_of_a_module_has_types_that_jax_keeps(checkpoint: tuple[Family, nn.Module]) -> None:
    """JAX warns of any other, which it cuts to 32 bits."""
    family, module = checkpoint
    for name, array in family.adapter.inputs(module).items():
        assert array.dtype == jax.dtypes.canonicalize_dtype(array.dtype), name


@every_checkpoint
def test_transformers_opens_what_is_written_and_nothing_is_lost(checkpoint: tuple[Family, nn.Module], tmp_path) -> None:
    """Its Auto class gives equal outputs and has every setting; reading and writing again changes no bit."""
    family, module = checkpoint
    params, name = random_params(module), architecture_name(family.adapter, module)
    huggingface.save(module, params, tmp_path)
    theirs = auto_class(name).from_pretrained(tmp_path)
    assert type(theirs).__name__ == name and theirs.config.architectures == [name]
    expected = family.reference_config(module)
    for field, value in in_json(expected).items():
        found = getattr(theirs.config, field, value)
        assert (list(found) if isinstance(found, tuple) else found) == value, field
    assert huggingface.compare(module, params, tmp_path) <= 1e-5

    again, loaded = huggingface.load(tmp_path)
    assert again == module.clone(config=expected)
    chex.assert_trees_all_equal(params, loaded)
    huggingface.save(again, loaded, tmp_path / "again")
    for file in ("model.safetensors", "config.json"):
        assert (tmp_path / "again" / file).read_bytes() == (tmp_path / file).read_bytes()


@every_checkpoint
def test_reads_a_transformers_model_with_equal_outputs(checkpoint: tuple[Family, nn.Module], tmp_path) -> None:
    family, module = checkpoint
    arguments = family.adapter.architectures[architecture_name(family.adapter, module)].arguments(module)
    family.transformers.model(module, arguments).save_pretrained(tmp_path)
    found, params = huggingface.load(tmp_path)
    assert found == module.clone(config=family.reference_config(module))
    assert huggingface.compare(found, params, tmp_path) <= 1e-5
