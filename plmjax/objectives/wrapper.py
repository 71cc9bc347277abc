"""An objective around another one: compression changes the parameters that the model computes with, or adds terms.

The train step uses the outer objective. Predictions, generation and the metrics of a task use the inner one, which the
experiment names.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import ParameterGroup
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.objectives.objective import Batch, ConstantSources, LossInputs, LossSums, Objective

ADDED = "compression"
"""Name of the parameters that an outer objective adds to those of the model: scores of pruning, maps to a teacher."""


def model_parameters(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of the model, without extra ones; parameters are nested or by path."""
    return {name: part for name, part in params.items() if name.split("/")[0] != ADDED}


@dataclasses.dataclass(frozen=True)
class ObjectiveWrapper(Objective):
    """An objective whose methods are those of `inner`. A subclass overrides some of them."""

    perplexity: ClassVar[bool] = False
    inner: Objective

    def module(self, config: Any, execution: Execution) -> nn.Module:
        return self.inner.module(config, execution)

    def model_inputs(self, batch: Batch) -> dict[str, jax.Array]:
        return self.inner.model_inputs(batch)

    def carry_inputs(self, carry: Any) -> dict[str, Any]:
        return self.inner.carry_inputs(carry)

    def init(self, module: nn.Module, key: jax.Array, batch: Batch, *, constants: Any, carry: Any) -> dict[str, Any]:
        """Initialize the variables of the inner objective, with extra parameters if there are any."""
        variables = dict(self.inner.init(module, key, batch, constants=self.inner_constants(constants), carry=carry))
        if added := self.extra_parameters(module, variables["params"], key):
            variables["params"] = dict(variables["params"]) | {ADDED: added}
        return variables

    def extra_parameters(self, module: nn.Module, params: Any, key: jax.Array) -> dict[str, Any]:
        """Return the extra parameters, boxed with logical axes; `params` are the boxed parameters of the model."""
        return {}

    def inner_constants(self, constants: Any) -> Any:
        """Return the constants of the inner objective."""
        return constants

    def constants(self, config: Any, sources: ConstantSources) -> Any:
        return self.inner.constants(config, sources)

    def initial_carry(self, config: Any, batch_size: int, sequence_length: int, dtype: jnp.dtype = jnp.float32) -> Any:
        return self.inner.initial_carry(config, batch_size, sequence_length, dtype)

    def evaluation_carry(
        self, config: Any, batch_size: int, sequence_length: int, dtype: jnp.dtype = jnp.float32
    ) -> Any:
        return self.inner.evaluation_carry(config, batch_size, sequence_length, dtype)

    def corrupt(self, batch: Batch, key: jax.Array, vocabulary: Vocabulary, constants: Any = ()) -> Batch:
        return self.inner.corrupt(batch, key, vocabulary, self.inner_constants(constants))

    def parameter_groups(self, config: Any) -> tuple[ParameterGroup, ...]:
        return self.inner.parameter_groups(config)

    def longest(self, tokens: int) -> int:
        return self.inner.longest(tokens)

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        return self.inner.weights(batch)

    def coefficients(self) -> dict[str, float]:
        return self.inner.coefficients()

    def target_term(self, batch: Batch) -> str:
        return self.inner.target_term(batch)

    def sums(
        self, module: nn.Module, loss_inputs: LossInputs, batch: Batch, key: jax.Array, *, training: bool
    ) -> LossSums:
        return self.inner.sums(module, self.inner_inputs(loss_inputs), batch, key, training=training)

    def evaluation(
        self, module: nn.Module, loss_inputs: LossInputs, batch: Batch, key: jax.Array
    ) -> tuple[LossSums, Any]:
        return self.inner.evaluation(module, self.inner_inputs(loss_inputs), batch, key)

    def inner_inputs(self, loss_inputs: LossInputs) -> LossInputs:
        """Return the loss inputs of the inner objective: without the extra parameters."""
        params = model_parameters(loss_inputs.params)
        return loss_inputs.replace(params=params, constants=self.inner_constants(loss_inputs.constants))

    def constrain(self, params: Any) -> Any:
        inner = self.inner.constrain(model_parameters(params))
        return inner | {ADDED: params[ADDED]} if ADDED in params else inner

    def targets(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        return self.inner.targets(batch)

    def train_flops(self, config: Any, batch: dict[str, jax.ShapeDtypeStruct]) -> float:
        return self.inner.train_flops(config, batch)
