"""A module of ours beside what computes the same: a class of transformers, or any other reference."""

import dataclasses
import functools
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.attentions import HeadAttentions
from plmjax.interop.adapter import Adapter, mask_of
from plmjax.interop.conversion import read_parameters
from plmjax.interop.tensors import Tensors
from tests.optional import torch, transformers
from tests.systems.modules import takes

LAST = {"hidden_states": "last_hidden_state", "encoder_hidden_states": "encoder_last_hidden_state"}
"""Name of the states of all layers -> name of the last layer's."""
ATTENTIONS = tuple(field.name for field in dataclasses.fields(HeadAttentions))
"""Names of the weights of attention, here and in transformers."""
ReadAttentions = Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, list[np.ndarray]]]
"""A function as `attentions_in`."""


def in_json(config: Any) -> dict[str, Any]:
    """The fields of a config as config.json has them, with lists instead of tuples."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def reference(name: str, config: Any, arguments: Mapping[str, Any] | None = None, **extra: Any) -> Any:
    """A transformers model with large random weights, biases and scales, so that every parameter matters.

    extra: what its config has besides. arguments: what its class is told besides the config.
    """
    known = getattr(transformers, name)
    made = known.config_class(**in_json(config), **extra)
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
    tensors = adapter.names.canonical(found, known.of(dataclasses.asdict(module.config)))
    return read_parameters(
        module,
        adapter.inputs(module),
        known.conversions_of(module.config),
        tensors=tensors,
        optional=adapter.names.optional,
    )[0]


@dataclasses.dataclass(frozen=True)
class Reference:
    """All that a module is compared with.

    params: the module's parameters.
    inputs: the module's inputs.
    outputs: name -> an array, or a tuple with an array a layer; NaN where the reference computes nothing.
    weights: name -> factors of the cotangents, 0 at padding; these outputs the gradient is of.
    gradient: cotangents by name -> the gradient of the sum of outputs times cotangents, a tree as `params`.
    gradient_tolerance: absolute, of every number of the gradient.
    """

    params: Any
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    weights: Mapping[str, Any]
    gradient: Callable[[Mapping[str, Any]], Any]
    gradient_tolerance: float = 1e-4


@functools.partial(jax.jit, static_argnames=("module", "asked"))
def outputs_and_gradient(
    module: nn.Module, params: Any, inputs: dict[str, Any], *, cotangents: dict[str, Any], asked: tuple[str, ...] = ()
) -> Any:
    """The outputs for these inputs, and the gradient of the sum of outputs times cotangents: one program.

    asked: inputs that ask for further outputs.
    """
    settings = dict.fromkeys(asked, True)

    def scalar(params: Any) -> tuple[jax.Array, Any]:
        outputs = module.apply({"params": params}, **inputs, **settings)
        total = 0.0
        for name, of_output in cotangents.items():
            for own, cotangent in _pairs(getattr(outputs, name), of_output):
                total += jnp.sum(own * cotangent.reshape(own.shape))
        return total, outputs

    gradient, outputs = jax.grad(scalar, has_aux=True)(params)
    return outputs, gradient


def assert_equals_reference(module: nn.Module, reference: Reference) -> None:
    """Outputs and hidden states within 1e-5, the gradient of every parameter within 1e-4."""
    random, cotangents = np.random.default_rng(1), {}
    for name, weights in reference.weights.items():
        cotangents[name] = jax.tree.map(
            lambda output, weight: random.normal(size=output.shape).astype(np.float32) * weight,
            reference.outputs[name],
            weights,
        )
    asked = ["output_hidden_states"] if takes(module, "output_hidden_states") else []
    asked += ["output_attentions"] if reference.outputs.keys() & set(ATTENTIONS) else []
    inputs = dict(reference.inputs)
    found, gradient = outputs_and_gradient(module, reference.params, inputs, cotangents=cotangents, asked=tuple(asked))
    for name, output in reference.outputs.items():
        for own, expected in _pairs(getattr(found, name), output):
            expected = np.asarray(expected).reshape(own.shape)
            own = np.where(np.isnan(expected), np.nan, own)
            np.testing.assert_allclose(own, expected, rtol=1e-5, atol=1e-5, err_msg=name)
    for states, last in LAST.items():
        if states in reference.outputs:
            # One number, which XLA may compute twice, in two orders.
            np.testing.assert_allclose(getattr(found, states)[-1], getattr(found, last), rtol=1e-6, atol=1e-6)
    expected = reference.gradient(cotangents)
    chex.assert_trees_all_close(gradient, expected, rtol=1e-4, atol=reference.gradient_tolerance)


def _pairs(found: Any, expected: Any) -> Iterable[tuple[Any, Any]]:
    """The arrays of two outputs side by side: one, or one a layer."""
    return zip(found, expected, strict=True) if isinstance(expected, tuple) else [(found, expected)]


def attentions_in(outputs: Mapping[str, Any], batch: Mapping[str, Any]) -> dict[str, list[np.ndarray]]:
    """Name -> the weights of attention of each layer, [B N T S], of the outputs of a transformers model."""
    return {name: [one.detach().numpy() for one in outputs[name]] for name in ATTENTIONS if outputs.get(name)}


def transformers_reference(
    adapter: Adapter,
    module: nn.Module,
    model: Any,
    *,
    batch: Mapping[str, Any],
    attentions: ReadAttentions = attentions_in,
) -> Reference:
    """The outputs of a transformers model for a batch, with its parameters.

    Choices are an axis of their own there, and one with the questions here.
    Nothing is asked of the tokens at padding in the gradients, nor of their weights of attention.

    attentions: the outputs of the model and the batch -> its weights of attention, as `attentions_in`.
    """
    known = adapter.architectures[architecture_name(adapter, module)]
    batch = known.batch(dict(batch))
    inputs = {name: torch.tensor(array).long() for name, array in batch.items()}
    expected = model(**inputs, output_hidden_states=True, output_attentions=True)
    both_sides = {"hidden_states": "decoder_hidden_states", "encoder_hidden_states": "encoder_hidden_states"}
    states = both_sides if "decoder_hidden_states" in expected else {"hidden_states": "hidden_states"}
    outputs = {ours: tuple(one.detach().numpy() for one in expected[theirs]) for ours, theirs in states.items()}
    outputs |= {ours: expected[theirs].detach().numpy() for ours, theirs in known.outputs.items()}
    for name, layers in attentions(expected, batch).items():
        mask = mask_of(name, batch)  # of the queries
        real = True if mask is None else mask.reshape(len(layers[0]), 1, -1, 1) > 0
        outputs[name] = tuple(np.where(real, one, np.nan) for one in layers)
    weights = {}
    for ours in known.outputs:
        mask, shape = mask_of(ours, batch), outputs[ours].shape
        masked = mask is not None and shape[:2] == mask.shape
        weights[ours] = np.float32(mask.reshape(*mask.shape, *[1] * (len(shape) - 2)) if masked else 1)

    def gradient(cotangents: Mapping[str, Any]) -> Any:
        named = {name: one for name, one in model.named_parameters() if one.requires_grad}
        found = torch.autograd.grad(
            [expected[theirs] for theirs in known.outputs.values()],
            list(named.values()),
            [torch.tensor(cotangents[ours]) for ours in known.outputs],
            allow_unused=True,
        )
        pairs = zip(named.items(), found, strict=True)
        return converted(
            adapter, [(name, torch.zeros_like(one) if of_it is None else of_it) for (name, one), of_it in pairs], module
        )

    return Reference(converted(adapter, model.named_parameters(), module), batch, outputs, weights, gradient)


def assert_equals_transformers(
    adapter: Adapter,
    module: nn.Module,
    model: Any,
    *,
    batch: Mapping[str, Any],
    attentions: ReadAttentions = attentions_in,
) -> Any:
    """As `assert_equals_reference`, of a transformers model. Returns the parameters."""
    expected = transformers_reference(adapter, module, model, batch=batch, attentions=attentions)
    assert_equals_reference(module, expected)
    return expected.params
