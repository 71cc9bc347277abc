"""Sources of reference outputs and gradients: models of transformers, and formulas that are written in the tests."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.interop.adapter import Adapter
from tests.optional import torch
from tests.systems.comparison import Reference, architecture_name, attentions_in, reference, transformers_reference
from tests.systems.modules import random_params

Inputs = Mapping[str, np.ndarray]
Formula = Callable[[Any, Mapping[str, Any], Inputs], Mapping[str, Any]]
"""(config, parameters by path, inputs of one text without padding) -> outputs by name, [T ...] each.

A tuple is an output with an array a layer. Arrays are those of jax or of torch, in float64. A formula shares no code
with the model.
"""


class Oracle(Protocol):
    """A source of references, which skips a test with the reason where it cannot give any."""

    def __call__(self, module: nn.Module, batch: Inputs) -> Reference:
        """Parameters for a module, and its outputs and gradients for a batch."""
        ...


@dataclasses.dataclass(frozen=True)
class TransformersOracle:
    """The models of transformers that an adapter knows; needs torch.

    config: module -> the config of transformers' class, where it is not the module's own.
    settings: config -> what transformers' config has besides its fields.
    """

    adapter: Adapter
    config: Callable[[nn.Module], Any] = lambda module: module.config
    settings: Callable[[Any], dict[str, Any]] = lambda config: {}

    def model(self, module: nn.Module, arguments: Mapping[str, Any] | None = None) -> Any:
        """The model that computes what the module does, with random weights. arguments: those of its class."""
        config = self.config(module)
        extra = self.settings(config) | ({"num_labels": module.num_labels} if hasattr(module, "num_labels") else {})
        return reference(architecture_name(self.adapter, module), config, arguments, **extra)

    def __call__(self, module: nn.Module, batch: Inputs) -> Reference:
        return self.of_model(module, self.model(module), batch)

    def of_model(self, module: nn.Module, model: Any, batch: Inputs) -> Reference:
        """What the module is compared with for a model of transformers."""
        return transformers_reference(self.adapter, module, model, batch=batch, attentions=self.attentions)

    def attentions(self, outputs: Mapping[str, Any], batch: Inputs) -> Mapping[str, list[np.ndarray]]:
        """The weights of attention among a model's outputs; a class whose models have another form overrides it."""
        return attentions_in(outputs, batch)


@dataclasses.dataclass(frozen=True)
class FormulaOracle:
    """Formulas in jax.numpy: class of a module -> its formula. Gradients are those of the formula.

    deviation: standard deviation of the parameters.
    forward: whether no token sees a later one, so that one program computes all rows, with their padding, at once.
    """

    formulas: Mapping[type[nn.Module], Formula]
    deviation: float = 0.15
    forward: bool = False

    def __call__(self, module: nn.Module, batch: Inputs) -> Reference:
        params, texts = random_params(module, deviation=self.deviation), list(unpadded(batch))
        formula = self.formulas[type(module)]
        rows = {name: batch[name] for name in texts[0]}

        def run(named: Mapping[str, jax.Array]) -> Mapping[str, Any]:
            if self.forward:
                found = jax.vmap(lambda text: formula(module.config, named, text))(rows)
                return jax.tree.map(lambda x: jnp.where(batch["attention_mask"][..., None] > 0, x, np.nan), found)
            return padded([formula(module.config, named, text) for text in texts], jnp.pad, jnp.stack)

        @jax.jit
        def run_and_pull(named: Mapping[str, jax.Array], cotangents: Mapping[str, Any]) -> Any:
            outputs, pull = jax.vjp(run, named)
            return outputs, pull(cotangents)[0]

        # One program for both: each of the formulas' many small operations would be one, and so would the outputs.
        with jax.enable_x64(True):
            named = {path: np.float64(one) for path, one in by_path(params).items()}
            none = jax.tree.map(lambda one: np.zeros(one.shape), jax.eval_shape(run, named))
            outputs, _ = run_and_pull(named, none)

        def gradient(cotangents: Mapping[str, Any]) -> Any:
            with jax.enable_x64(True):
                _, found = run_and_pull(named, jax.tree.map(np.float64, dict(cotangents)))
            return as_tree({path: np.float32(one) for path, one in found.items()})

        return compared(params, batch, jax.device_get(outputs), gradient)


@dataclasses.dataclass(frozen=True)
class TorchOracle:
    """Formulas in torch, for layers that torch has too: class of a module -> its formula; needs torch.

    deviation: standard deviation of the parameters.
    """

    formulas: Mapping[type[nn.Module], Formula]
    deviation: float = 0.15

    def __call__(self, module: nn.Module, batch: Inputs) -> Reference:
        params, texts = random_params(module, deviation=self.deviation), list(unpadded(batch))
        named = {path: torch.tensor(one).double().requires_grad_() for path, one in by_path(params).items()}
        texts = [{name: torch.tensor(one).long() for name, one in text.items()} for text in texts]
        found = [self.formulas[type(module)](module.config, named, text) for text in texts]
        outputs = padded(found, pad_in_torch, torch.stack)

        def gradient(cotangents: Mapping[str, Any]) -> Any:
            of_outputs = [one for name in cotangents for one in jax.tree.leaves(outputs[name])]
            given = [torch.tensor(one).double() for one in jax.tree.leaves(list(cotangents.values()))]
            leaves = torch.autograd.grad(of_outputs, list(named.values()), given)
            return as_tree({path: one.float().numpy() for path, one in zip(named, leaves, strict=True)})

        numbers = {
            name: tuple(one.detach().numpy() for one in output)
            if isinstance(output, tuple)
            else output.detach().numpy()
            for name, output in outputs.items()
        }
        return compared(params, batch, numbers, gradient)


def by_path(params: Any) -> dict[str, np.ndarray]:
    return flax.traverse_util.flatten_dict(params, sep="/")


def as_tree(named: Mapping[str, Any]) -> Any:
    return flax.traverse_util.unflatten_dict(dict(named), sep="/")


def unpadded(batch: Inputs) -> Iterator[dict[str, np.ndarray]]:
    """The texts of a batch, each without the padding and the mask of its side."""
    names = [name for name in batch if not name.endswith("attention_mask")]
    for row in range(len(batch[names[0]])):
        text = {}
        for name in names:
            side = "decoder_" if name.startswith("decoder_") else ""
            mask = batch.get(f"{side}attention_mask")
            text[name] = batch[name][row] if mask is None else batch[name][row, : mask[row].sum()]
        yield text


def padded(texts: list[Mapping[str, Any]], pad: Callable, stack: Callable) -> dict[str, Any]:
    """The outputs of texts, [T ...] each -> [B T ...] by name, NaN behind a text's end; the longest fills its row."""

    def joined(outputs: list[Any]) -> Any:
        if isinstance(outputs[0], tuple):
            return tuple(joined(list(layer)) for layer in zip(*outputs, strict=True))
        length = max(len(output) for output in outputs)
        widths = [[(0, length - len(output)), *[(0, 0)] * (output.ndim - 1)] for output in outputs]
        return stack([pad(one, each, constant_values=np.nan) for one, each in zip(outputs, widths, strict=True)])

    return {name: joined([text[name] for text in texts]) for name in texts[0]}


def pad_in_torch(x: Any, widths: list[tuple[int, int]], constant_values: float) -> Any:
    """As `numpy.pad`."""
    return torch.nn.functional.pad(x, [size for axis in reversed(widths) for size in axis], value=constant_values)


def compared(params: Any, batch: Inputs, outputs: Mapping[str, Any], gradient: Callable) -> Reference:
    """The reference of a formula: the gradient is of all outputs where there are texts."""
    weights = jax.tree.map(lambda output: np.float32(~np.isnan(output)), dict(outputs))
    return Reference(params, batch, outputs, weights, gradient, gradient_tolerance=1e-5)
