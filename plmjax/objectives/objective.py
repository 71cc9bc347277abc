"""The interface between a pretraining objective and the train step.

A step calls an objective in this order: `corrupt` for the batch, `weights` for the corrupted batch, then `sums` for
each microbatch. The loss is

    sum over terms of  coefficient * (global sum of the term) / (global weight of the term)

over the global batch, the mesh and all microbatches. So weights depend on the corrupted batch only and are known
before the first forward pass. With gradient accumulation the gradient equals that of the global batch.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import chex
import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import ParameterGroup, Purpose
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.layers.words.embeddings import ROWS

Batch = dict[str, jax.Array]


@flax.struct.dataclass
class LossInputs:
    """The inputs of a loss besides a batch and a key.

    In a step with rings (`plmjax.parallel.rings`) a matrix of stacked layers is a
    `plmjax.contracts.sharded_parameter.ShardedParameter`. A module gathers it; `nn.meta.unbox` does so too.

    params: the trained parameters.
    constants: the result of `Objective.constants`: neither differentiated nor updated.
    collections: further collections of the module's variables, name -> tree, such as running statistics.
    carry: state carried from step to step, such as a memory or a recurrent state.
    rows: rows of tables that have been looked up already (`ReadsRows`), in the tree structure of the parameters.
    step: int32 scalar, number of finished optimizer steps, for schedules.
    """

    params: Any
    constants: Any = ()
    collections: Any = flax.struct.field(default_factory=dict)
    carry: Any = ()
    rows: Any = flax.struct.field(default_factory=dict)
    step: Any = 0

    @property
    def variables(self) -> dict[str, Any]:
        """Return the variables for `module.apply`."""
        return {"params": self.params, ROWS: self.rows, **self.collections}


@flax.struct.dataclass
class LossSums:
    """The contribution of one microbatch to the loss and the metrics.

    losses: term -> differentiable sum over the microbatch, float32 scalar, for the terms of `Objective.weights`.
    metrics: name -> (sum, weight), reported as sum / weight. Names TERM_loss are reserved for the means of the terms.
    carry, collections: the values for the next step, with the structure and shapes of the inputs.
    """

    losses: dict[str, jax.Array]
    metrics: dict[str, tuple[jax.Array, jax.Array]]
    carry: Any = ()
    collections: Any = flax.struct.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class ConstantSources:
    """The arguments that `Objective.constants` may use.

    vocabulary: the tokenizer's vocabulary.
    token_counts: int64 [V], occurrences of every token in the training text.
    texts: () -> the text of every token.
    parameters: (checkpoint, init) -> the parameters of a checkpoint. `init` makes parameters from a key, boxed with
        their logical axes; the result has the same names, shapes and boxes.
    """

    vocabulary: Vocabulary
    token_counts: np.ndarray
    texts: Callable[[], Sequence[str]]
    parameters: Callable[[str, Callable[[jax.Array], Any]], Any]


@dataclasses.dataclass(frozen=True)
class Objective:
    """Base class of every objective. A subclass is a frozen dataclass of its settings and overrides some methods."""

    perplexity: ClassVar[bool] = True
    """True if exp(loss) is a perplexity.

    This holds for the mean nats of tokens over the whole vocabulary. It does not hold for choices between two classes,
    for squares, and for a decoder that restores a corrupted text.
    """

    def module(self, config: Any, execution: Execution) -> nn.Module:
        """Return the linen module that this objective trains, built from the model's config."""
        return config.module(Purpose.PRETRAINING, execution)

    def in_evaluation(self) -> Self:
        """Return the objective of evaluations: the same module, perhaps with another corruption."""
        return self

    def model_inputs(self, batch: Batch) -> dict[str, jax.Array]:
        """Return keyword arguments of the module's `__call__`, taken from a corrupted batch."""
        raise NotImplementedError(f"{type(self).__name__} must define `model_inputs`.")

    def carry_inputs(self, carry: Any) -> dict[str, Any]:
        """Return keyword arguments of the module's `__call__`, taken from the carry; none by default."""
        return {}

    def init(self, module: nn.Module, key: jax.Array, batch: Batch, *, constants: Any, carry: Any) -> dict[str, Any]:
        """Initialize the module's variables, boxed with their logical axes.

        "params" is trained, other collections are kept. batch, carry: a corrupted batch and its carry, with the shapes
        of training.
        """
        inputs = self.model_inputs(batch) | self.carry_inputs(carry)
        return module.init({"params": key}, **inputs, deterministic=True)

    def constants(self, config: Any, sources: ConstantSources) -> Any:
        """Return arrays that losses need and no step changes, boxed with logical axes.

        Examples are a teacher, a mask, a table of counts. They are made once for a run and stored beside its
        checkpoints. Their shapes must not depend on the counts: a plan is made without any counts.
        """
        return ()

    def initial_carry(self, config: Any, batch_size: int, sequence_length: int, dtype: jnp.dtype = jnp.float32) -> Any:
        """Return the carry before the first step: arrays, boxed with logical axes if they have a "batch" axis.

        A row with `begins` 1 does not continue the previous batch. Its part of the carry is first reset to these
        values.

        dtype: dtype of the module's hidden states, for a memory of hidden states. Sums over many steps are float32.
        """
        return ()

    def evaluation_carry(
        self, config: Any, batch_size: int, sequence_length: int, dtype: jnp.dtype = jnp.float32
    ) -> Any:
        """Return the initial carry of an evaluation. Its shapes may differ, for example for a longer memory."""
        return self.initial_carry(config, batch_size, sequence_length, dtype)

    def corrupt(self, batch: Batch, key: jax.Array, vocabulary: Vocabulary, constants: Any = ()) -> Batch:
        """Return the model's input and targets, made from the clean batch inside the jitted step."""
        return batch

    def parameter_groups(self, config: Any) -> tuple[ParameterGroup, ...]:
        """Return the parameters below the head from bottom to top, for learning rates by layer."""
        return config.parameter_groups

    def longest(self, tokens: int) -> int:
        """Return the length of the longest row that the module reads, for clean rows of `tokens` tokens."""
        return tokens

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Return term -> weight of a corrupted batch, float32 scalars. The weights of microbatches add up."""
        raise NotImplementedError(f"{type(self).__name__} must define `weights`.")

    def coefficients(self) -> dict[str, float]:
        """Return term -> its factor in the total loss; 1 for other terms."""
        return {}

    def target_term(self, batch: Batch) -> str:
        """Return the term whose mean is "nats a target", reported as eval/loss: the first of `weights`."""
        return next(iter(self.weights(batch)))

    def sums(
        self, module: nn.Module, loss_inputs: LossInputs, batch: Batch, key: jax.Array, *, training: bool
    ) -> LossSums:
        """Return losses and metrics of a corrupted (micro)batch, with dropout if `training` is true."""
        raise NotImplementedError(f"{type(self).__name__} must define `sums`.")

    def evaluation(
        self, module: nn.Module, loss_inputs: LossInputs, batch: Batch, key: jax.Array
    ) -> tuple[LossSums, Any]:
        """Return the sums of a corrupted batch without dropout, and the outputs for the predictions of a task."""
        return self.sums(module, loss_inputs, batch, key, training=False), ()

    def constrain(self, params: Any) -> Any:
        """Clip parameters that have bounds, after an update.

        By default no parameter has bounds. The method must be elementwise, because devices hold parts of each array.
        """
        return params

    def targets(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """Return the ids and the weights of a corrupted batch's target tokens, for the unigram entropy."""
        raise NotImplementedError(f"{type(self).__name__} must define `targets`.")

    def train_flops(self, config: Any, batch: dict[str, jax.ShapeDtypeStruct]) -> float:
        """Return the model FLOPs of one training step (forward and backward, no recomputation), in closed form."""
        raise NotImplementedError(f"{type(self).__name__} must define `train_flops`.")


def apply(
    objective: Objective,
    module: nn.Module,
    loss_inputs: LossInputs,
    *,
    batch: Batch,
    key: jax.Array,
    training: bool,
    method: str = "__call__",
) -> Any:
    """Apply the module, or one of its methods, to a corrupted batch and the carry before it.

    The random collection "dropout" exists in training only, "sampling" (hashes, draws) in evaluation too.
    """
    return apply_and_collect(objective, module, loss_inputs, batch=batch, key=key, training=training, method=method)[0]


def apply_and_collect(
    objective: Objective,
    module: nn.Module,
    loss_inputs: LossInputs,
    *,
    batch: Batch,
    key: jax.Array,
    training: bool,
    method: str = "__call__",
) -> tuple[Any, dict[str, Any]]:
    """Return the outputs as `apply` does, and the updated collections, which change in training only."""
    rngs = {"sampling": jax.random.fold_in(key, 1)} | ({"dropout": key} if training else {})
    kept = {"deterministic": not training, "rngs": rngs, "method": method}
    inputs = objective.model_inputs(batch) | objective.carry_inputs(loss_inputs.carry)
    if not training:
        return module.apply(loss_inputs.variables, **inputs, **kept), loss_inputs.collections
    outputs, after = module.apply(loss_inputs.variables, **inputs, **kept, mutable=list(loss_inputs.collections))
    return outputs, nn.meta.unbox(dict(after))


def cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Return -log softmax(logits)[targets] in float32: logits [... V], targets int [...] -> nats [...]."""
    chex.assert_shape(logits, (*targets.shape, None))
    chex.assert_type(targets, int)
    logits = logits.astype(jnp.float32)
    chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits, axis=-1) - chosen
