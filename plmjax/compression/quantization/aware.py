"""Quantization-aware training (Q8BERT, Zafrir et al., arXiv 1910.06188; nlp-architect, quantization.py).

The model computes with fake-quantized values while it is trained, and its gradients pass the rounding unchanged.
Weights are scaled by their largest magnitude; the inputs and the results of projections by a moving average of their
largest magnitude, with a decay of 0.9999. Parameters stay float32, and the averages are a collection of the module's
variables.

Deviation: nlp-architect rounds the activations of the pooler too. Here they are float32, because the pooler computes
only one token of a row.
"""

import dataclasses
from typing import Any, ClassVar

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp

from plmjax.compression.compression import Compression, Params
from plmjax.compression.quantization.weights import GRANULARITIES, shared_axes, stored_form
from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.system import group_of
from plmjax.errors import UserError, check_choice
from plmjax.finetuning.tasks.task import TaskObjective
from plmjax.layers.int8 import PROJECTIONS, RANGES, SIMULATED, fake_quantize, quantization_scale
from plmjax.objectives.objective import Batch, LossInputs, LossSums, Objective
from plmjax.objectives.wrapper import ObjectiveWrapper
from plmjax.training.checkpoints import stored


@dataclasses.dataclass(frozen=True)
class QuantizationAware(Compression):
    """Training of a model that will be stored and computed in int8.

    Raises:
        UserError: an unknown granularity.
    """

    name: ClassVar[str] = "quantization_aware"
    verb: ClassVar[str] = "quantize"

    granularity: str = "tensor"
    """tensor for a scale for each matrix, channel for a scale for each output of a matrix."""

    def __post_init__(self) -> None:
        check_choice("--granularity", self.granularity, GRANULARITIES)

    def training_objective(self, objective: Objective, steps: int) -> Objective:
        return FakeQuantized(objective, self.granularity)

    def check(self, model: ModelConfig, objective: Objective) -> None:
        """Raise UserError unless the run trains on a task."""
        if not isinstance(objective, TaskObjective):
            raise UserError(
                f"Expected a run on a task for quantization-aware training, found one of {type(objective).__name__}; "
                f"name an experiment of a task, or take --method static."
            )

    def finish(self, params: Params, model: ModelConfig) -> tuple[Params, ModelConfig]:
        shared = shared_axes({path: array.shape for path, array in params.items()}, model, self.granularity)
        tree = flax.traverse_util.unflatten_dict(stored_form(params, shared), sep="/")
        return flax.traverse_util.flatten_dict(stored.decode(tree), sep="/"), model


@dataclasses.dataclass(frozen=True)
class FakeQuantized(ObjectiveWrapper):
    """An objective whose model computes with fake-quantized weights and activations, also in evaluations."""

    granularity: str

    def module(self, config: Any, execution: Execution) -> nn.Module:
        return self.inner.module(config, dataclasses.replace(execution, projection=PROJECTIONS[SIMULATED]))

    def init(self, module: nn.Module, key: jax.Array, batch: Batch, *, constants: Any, carry: Any) -> dict[str, Any]:
        """Initialize the variables of the inner objective and the ranges of activations.

        Raises:
            UserError: the model has no projections that compute in int8, or its layers share them.
        """
        variables = super().init(module, key, batch, constants=constants, carry=carry)
        ranges = flax.traverse_util.flatten_dict(variables.get(RANGES, {}), sep="/")
        groups = module.config.parameter_groups
        if not ranges:
            raise UserError(
                f"Expected a model with projections that compute in int8, found {module.config.system}; quantize "
                f"another checkpoint."
            )
        for path, value in ranges.items():
            place = group_of(path, groups)
            stacked = place is not None and place[1] is not None
            if value.ndim != stacked:
                raise UserError(
                    f"Expected layers with parameters of their own for quantization-aware training, found "
                    f"{module.config.system}, whose layers share them; take --method static."
                )
        return variables

    def sums(
        self, module: nn.Module, loss_inputs: LossInputs, batch: Batch, key: jax.Array, *, training: bool
    ) -> LossSums:
        return self.inner.sums(module, self._quantize(module, loss_inputs), batch, key, training=training)

    def evaluation(
        self, module: nn.Module, loss_inputs: LossInputs, batch: Batch, key: jax.Array
    ) -> tuple[LossSums, Any]:
        return self.inner.evaluation(module, self._quantize(module, loss_inputs), batch, key)

    def _quantize(self, module: nn.Module, loss_inputs: LossInputs) -> LossInputs:
        inner = self.inner_inputs(loss_inputs)
        flat = flax.traverse_util.flatten_dict(inner.params, sep="/")
        shared = shared_axes({path: array.shape for path, array in flat.items()}, module.config, self.granularity)
        for path, axes in shared.items():
            scale = quantization_scale(jnp.max(jnp.abs(flat[path]), axis=axes, keepdims=True))
            flat[path] = fake_quantize(flat[path], scale)
        return inner.replace(params=flax.traverse_util.unflatten_dict(flat, sep="/"))
