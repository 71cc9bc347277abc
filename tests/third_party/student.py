"""A student that learns from a teacher's scores: the teacher's parameters are constants; a fourth stranger."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.experiment import WeightMapping
from plmjax.models.gpt2 import Gpt2Config
from plmjax.objectives.next_token import NextToken
from plmjax.objectives.objective import Batch, ConstantSources, LossInputs, LossSums, apply, cross_entropy


@dataclasses.dataclass(frozen=True)
class EveryOtherLayer(WeightMapping):
    """A student begins with the layers 0, 2, ... of its teacher and with its tables."""

    def model(self, origin: Gpt2Config) -> Gpt2Config:
        return dataclasses.replace(origin, n_layer=origin.n_layer // 2)

    def map(self, params: dict[str, np.ndarray], origin: Any, model: Any) -> dict[str, np.ndarray]:
        return {path: value[::2] if path.startswith("gpt2/layers/") else value for path, value in params.items()}


@dataclasses.dataclass(frozen=True)
class Distillation(NextToken):
    """The next token's nats and the cross entropy with the teacher's softened choice, half each."""

    teacher: Gpt2Config = Gpt2Config()
    checkpoint: str = ""
    temperature: float = 2.0

    def constants(self, config: Gpt2Config, sources: ConstantSources) -> Any:
        """The teacher's parameters."""
        token = jnp.zeros((1, 1), jnp.int32)

        def init(key: jax.Array) -> Any:
            return self._teacher.init(key, token)["params"]

        return sources.parameters(self.checkpoint, init)

    @property
    def _teacher(self) -> nn.Module:
        return self.teacher.module(Purpose.PRETRAINING, Execution())

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        weight = super().weights(batch)["next_token"]
        return {"next_token": weight, "distillation": weight}

    def coefficients(self) -> dict[str, float]:
        return {"next_token": 0.5, "distillation": 0.5}

    def sums(
        self, module: nn.Module, loss_inputs: LossInputs, batch: Batch, key: jax.Array, *, training: bool
    ) -> LossSums:
        ids, weights = self.targets(batch)
        logits = apply(self, module, loss_inputs, batch=batch, key=key, training=training).logits
        taught = self._teacher.apply({"params": loss_inputs.constants}, **self.model_inputs(batch)).logits
        soft = jax.nn.softmax(taught / self.temperature)
        nats = -jnp.sum(soft * jax.nn.log_softmax(logits / self.temperature), axis=-1)
        agreed = jnp.sum(weights * (jnp.argmax(logits, -1) == jnp.argmax(taught, -1)))
        losses = {
            "next_token": jnp.sum(weights * cross_entropy(logits, ids)),
            "distillation": self.temperature**2 * jnp.sum(weights * nats),
        }
        return LossSums(losses, {"agreement": (agreed, jnp.sum(weights))})

    def train_flops(self, config: Gpt2Config, batch: dict[str, jax.ShapeDtypeStruct]) -> float:
        """The student's, and a forward pass of the teacher."""
        return super().train_flops(config, batch) + super().train_flops(self.teacher, batch) / 3
