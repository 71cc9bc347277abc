"""A module of ours beside the class of transformers that computes the same."""

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.interop.adapter import Adapter, mask_of
from plmjax.interop.conversion import read_parameters
from plmjax.interop.tensors import Tensors
from tests.optional import torch, transformers

LAST = {"hidden_states": "last_hidden_state", "encoder_hidden_states": "encoder_last_hidden_state"}
"""Name of the states of all layers -> name of the last layer's."""


def reference(name: str, config: Any, arguments: Mapping[str, Any] | None = None, **extra: Any) -> Any:
    """A transformers model with large random weights, biases and scales, so that every parameter matters.

    extra: what its config has besides. arguments: what its class is told besides the config.
    """
    known = getattr(transformers, name)
    made = known.config_class(**dataclasses.asdict(config), **extra)
    torch.manual_seed(0)
    model = known._from_config(made, attn_implementation="eager", **(arguments or {})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:  # not a constant, such as sinusoids
                parameter.add_(torch.randn_like(parameter) * 0.15)
    return model


def architecture_name(adapter: Adapter, module: nn.Module) -> str:
    """The class of transformers that computes what the module does."""
    (name,) = (name for name, known in adapter.architectures.items() if known.module is type(module))
    return name


def converted(adapter: Adapter, tensors: Iterable[tuple[str, Any]], module: nn.Module) -> dict:
    """Named tensors of a transformers model, weights or gradients alike -> the module's tree."""
    arrays = {name: tensor.detach().numpy() for name, tensor in tensors}
    shapes = {name: array.shape for name, array in arrays.items()}
    found = Tensors("transformers", shapes, {name: "float32" for name in arrays}, arrays.__getitem__)
    known = adapter.architecture(architecture_name(adapter, module))
    tensors = adapter.canonical(found, known.of(dataclasses.asdict(module.config)))
    return read_parameters(
        module, adapter.inputs(module), known.conversions_of(module.config), tensors, adapter.optional
    )[0]


@functools.partial(jax.jit, static_argnums=0)
def outputs_and_gradient(module: nn.Module, params: Any, batch: dict[str, Any], cotangents: dict[str, Any]) -> Any:
    """What the module says of a batch, and the gradient of the sum of its outputs times cotangents: one program."""

    def scalar(params: Any) -> tuple[jax.Array, Any]:
        outputs = module.apply({"params": params}, **batch, output_hidden_states=True)
        return sum(jnp.sum(getattr(outputs, name) * cotangent) for name, cotangent in cotangents.items()), outputs

    gradient, outputs = jax.grad(scalar, has_aux=True)(params)
    return outputs, gradient


def assert_equals_transformers(adapter: Adapter, module: nn.Module, model: Any, batch: dict[str, np.ndarray]) -> Any:
    """Outputs and hidden states within 1e-5, the gradient of every parameter within 1e-4.

    Choices are an axis of their own there, and one with the questions here.
    Nothing is asked of the tokens at padding in the gradients. Returns the parameters.
    """

    known = adapter.architectures[architecture_name(adapter, module)]
    batch = known.batch(batch)
    arguments = {name: torch.tensor(array).long() for name, array in batch.items()}
    expected = model(**arguments, output_hidden_states=True)
    params = converted(adapter, model.named_parameters(), module)
    random, cotangents, scalar = np.random.default_rng(1), {}, 0
    for ours, theirs in known.outputs.items():
        output = expected[theirs]
        cotangent = random.normal(size=output.shape).astype(np.float32)
        mask = mask_of(ours, batch)
        if mask is not None and output.shape[:2] == mask.shape:
            cotangent *= mask.reshape(*mask.shape, *[1] * (output.ndim - 2))
        cotangents[ours] = cotangent
        scalar = scalar + (output * torch.tensor(cotangent)).sum()
    scalar.backward()

    found, gradient = outputs_and_gradient(module, params, batch, cotangents)
    both_sides = {"hidden_states": "decoder_hidden_states", "encoder_hidden_states": "encoder_hidden_states"}
    states = both_sides if "decoder_hidden_states" in expected else {"hidden_states": "hidden_states"}
    for ours, theirs in states.items():
        for own, there in zip(getattr(found, ours), expected[theirs], strict=True):
            np.testing.assert_allclose(own, there.detach().reshape(own.shape), rtol=1e-5, atol=1e-5, err_msg=ours)
        # One number, which XLA may compute twice, in two orders.
        np.testing.assert_allclose(getattr(found, ours)[-1], getattr(found, LAST[ours]), rtol=1e-6, atol=1e-6)
    for ours, theirs in known.outputs.items():
        output = getattr(found, ours)
        there = expected[theirs].detach().reshape(output.shape)
        np.testing.assert_allclose(output, there, rtol=1e-5, atol=1e-5, err_msg=ours)
    trained = ((name, parameter.grad) for name, parameter in model.named_parameters() if parameter.requires_grad)
    gradients = converted(adapter, trained, module)
    chex.assert_trees_all_close(gradient, gradients, rtol=1e-4, atol=1e-4)
    return params
