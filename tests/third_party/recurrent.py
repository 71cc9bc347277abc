"""A small LSTM language model whose state goes from batch to batch, and its task: the second stranger, in one file."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.system import Kind, Purpose, System, declare
from plmjax.layers.dropout import Dropout
from plmjax.layers.projection import Projection
from plmjax.layers.words.embeddings import Embedding
from plmjax.objectives.objective import Batch, LossInputs, LossSums, Objective, apply, cross_entropy

INIT = nn.initializers.normal(0.1)


@dataclasses.dataclass(frozen=True)
class RecurrentConfig(ModelConfig):
    """Sizes."""

    vocab_size: int = 64
    width: int = 16
    depth: int = 2
    dropout: float = 0.1


class LongShortTermMemory(nn.Module):
    """One layer: [B T D] and its state (hidden [B D], cell [B D]) -> the same shapes."""

    config: RecurrentConfig
    execution: Execution
    deterministic: bool

    @nn.compact
    def __call__(self, x: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, Any]:
        size, axes = x.shape[-1], ("embed", None, "mlp")
        inputs = Projection((4, size), axes, INIT, self.execution.dtype, name="input")(x).astype(jnp.float32)
        kernel = self.param("kernel", nn.with_logical_partitioning(INIT, axes), (size, 4, size))

        def step(state: Any, x: jax.Array) -> Any:
            gates = x + jnp.einsum("BD,DGF->BGF", state[0], kernel)
            admit, forget, emit = (jax.nn.sigmoid(gates[:, gate]) for gate in range(3))
            cell = forget * state[1] + admit * jnp.tanh(gates[:, 3])
            hidden = emit * jnp.tanh(cell)
            return (hidden, cell), hidden

        state, outputs = jax.lax.scan(step, state, inputs.swapaxes(0, 1))
        return Dropout(self.config.dropout)(outputs.swapaxes(0, 1), self.deterministic), state


class RecurrentModel(nn.Module):
    """Logits of the next token and the state after it: int [B T], two [L B D] -> float32 [B T V], two [L B D]."""

    config: RecurrentConfig
    execution: Execution

    @nn.compact
    def __call__(self, input_ids: jax.Array, state: Any, *, deterministic: bool) -> tuple[jax.Array, Any]:
        config = self.config
        words = Embedding(config.vocab_size, config.width, "vocab", INIT, self.execution.dtype, name="words")
        layer = LongShortTermMemory(config, self.execution, deterministic, name="layers")
        rngs, named = {"params": True, "dropout": True}, {nn.PARTITION_NAME: "layers"}
        layers = nn.scan(lambda layer, *x: layer(*x), {"params": 0}, split_rngs=rngs, metadata_params=named)
        x, state = layers(layer, words(input_ids), state)
        return words.attend(x), state


SYSTEM = declare(System(RecurrentConfig, Kind.DECODER, {Purpose.PRETRAINING: RecurrentModel}))


@dataclasses.dataclass(frozen=True)
class NextTokenOfStream(Objective):
    """Mean nats of each token given all before it, those of earlier batches too; the gradient stays in the batch."""

    def model_inputs(self, batch: Batch) -> dict[str, jax.Array]:
        return {"input_ids": batch["input_ids"]}

    def carry_inputs(self, carry: Any) -> dict[str, Any]:
        return {"state": carry}

    def initial_carry(
        self, config: RecurrentConfig, batch_size: int, sequence_length: int, dtype: jnp.dtype = jnp.float32
    ) -> Any:
        zeros = jnp.zeros((config.depth, batch_size, config.width))
        return tuple(nn.LogicallyPartitioned(zeros, ("layers", "batch", "embed")) for _ in ("hidden", "cell"))

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        return {"next_token": jnp.maximum(jnp.sum(batch["next_weights"]), 1e-9)}

    def sums(
        self, module: nn.Module, loss_inputs: LossInputs, batch: Batch, key: jax.Array, *, training: bool
    ) -> LossSums:
        ids, weights = self.targets(batch)
        logits, after = apply(self, module, loss_inputs, batch=batch, key=key, training=training)
        loss = jnp.sum(weights * cross_entropy(logits, ids))
        return LossSums({"next_token": loss}, {"next_loss": (loss, jnp.sum(weights))}, after)

    def targets(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        return batch["next_ids"], batch["next_weights"]

    def train_flops(self, config: RecurrentConfig, batch: dict[str, jax.ShapeDtypeStruct]) -> float:
        layer, head = 8 * config.width**2, config.width * config.vocab_size
        return 6.0 * batch["input_ids"].size * (config.depth * layer + head)
