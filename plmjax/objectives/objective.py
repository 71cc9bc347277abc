"""What a pretraining task is to the train step.

A step asks an objective, in this order: `corrupt` the batch, give the `weights` of the corrupted batch, then for each
microbatch the `sums`. The loss is

    sum over terms of  coefficient * (global sum of the term) / (global weight of the term)

over the whole batch, the whole mesh and every microbatch. Weights therefore come from the corrupted batch alone and are
known before the first forward pass, and gradient accumulation gives the gradient of the big batch.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import chex
import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import ParameterGroup, Purpose
from plmjax.layers.words.embeddings import ROWS
from plmjax.vocabulary import Vocabulary

Batch = dict[str, jax.Array]


@flax.struct.dataclass
class LossInputs:
    """The inputs of a loss besides a batch and a key.

    params: the trained parameters.
    constants: what `Objective.constants` made: neither differentiated nor updated.
    collections: further collections of the module's variables, name -> tree, such as running statistics.
    carry: what travels from step to step, such as a memory or a recurrent state.
    rows: rows of tables that have been looked up already (`ReadsRows`), as the tables lie in the parameters.
    """

    params: Any
    constants: Any = ()
    collections: Any = flax.struct.field(default_factory=dict)
    carry: Any = ()
    rows: Any = flax.struct.field(default_factory=dict)

    @property
    def variables(self) -> dict[str, Any]:
        """What `module.apply` takes."""
        return {"params": self.params, ROWS: self.rows, **self.collections}


@flax.struct.dataclass
class LossSums:
    """The contribution of one microbatch to the loss and the metrics.

    losses: term -> differentiable sum over the microbatch, float32 scalars; the terms of `Objective.weights`.
    metrics: name -> (sum, weight), reported as sum / weight; TERM_loss is a name of the terms' means alone.
    carry, collections: what the next step starts from, with the structure and shapes of those that were given.
    """

    losses: dict[str, jax.Array]
    metrics: dict[str, tuple[jax.Array, jax.Array]]
    carry: Any = ()
    collections: Any = flax.struct.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class ConstantSources:
    """The sources of constants.

    vocabulary: of the tokenizer.
    token_counts: int64 [V], occurrences of every token in the training text.
    texts: () -> the text of every token.
    parameters: (checkpoint, init) -> the parameters of a checkpoint. `init` makes parameters from a key, boxed with
        their logical axes; its names, shapes and boxes are those of the result.
    """

    vocabulary: Vocabulary
    token_counts: np.ndarray
    texts: Callable[[], Sequence[str]]
    parameters: Callable[[str, Callable[[jax.Array], Any]], Any]


@dataclasses.dataclass(frozen=True)
class Objective:
    """Base of every task. A subclass is a frozen dataclass of its settings and overrides what differs."""

    perplexity: ClassVar[bool] = True
    """Whether exp(loss) is a perplexity, as of the mean nats of tokens over the whole vocabulary. It is none of choices
    between two classes, of squares, and of a decoder that restores a damaged text."""

    def module(self, config: Any, execution: Execution) -> nn.Module:
        """The linen module that this task trains, built from the model's config."""
        return config.module(Purpose.PRETRAINING, execution)

    def model_inputs(self, batch: Batch) -> dict[str, jax.Array]:
        """Keyword arguments of the module's `__call__`, taken from a corrupted batch."""
        raise NotImplementedError(f"{type(self).__name__} must say what its model is given.")

    def carry_inputs(self, carry: Any) -> dict[str, Any]:
        """Keyword arguments of the module's `__call__`, taken from the carry; none by default."""
        return {}

    def init(self, module: nn.Module, key: jax.Array, batch: Batch, constants: Any, carry: Any) -> dict[str, Any]:
        """The module's variables, boxed with their logical axes: "params" is trained, other collections are kept.

        batch: corrupted, of the shapes of a training batch; so is the carry.
        """
        inputs = self.model_inputs(batch) | self.carry_inputs(carry)
        return module.init({"params": key}, **inputs, deterministic=True)

    def constants(self, config: Any, sources: ConstantSources) -> Any:
        """Arrays that losses need and no step changes, boxed with logical axes: a teacher, a mask, a table of counts.

        Made once a run and kept beside its checkpoints. Their shapes must not depend on the counts: a plan is made
        without any.
        """
        return ()

    def initial_carry(self, config: Any, batch_size: int, sequence_length: int) -> Any:
        """The carry before the first step: arrays, boxed with logical axes where they have a "batch" axis.

        Rows of a batch whose field `begins` is 1 do not continue the batch before; their rows of the carry are reset
        to these values first.
        """
        return ()

    def evaluation_carry(self, config: Any, batch_size: int, sequence_length: int) -> Any:
        """The carry that an evaluation begins with; its shapes may differ, a longer memory for example."""
        return self.initial_carry(config, batch_size, sequence_length)

    def corrupt(self, batch: Batch, key: jax.Array, vocabulary: Vocabulary, constants: Any = ()) -> Batch:
        """What the model sees and what it must predict, made from the clean batch inside the jitted step."""
        return batch

    def parameter_groups(self, config: Any) -> tuple[ParameterGroup, ...]:
        """The parameters below the head from the bottom to the top, for rates of layers: by default the model's."""
        return config.parameter_groups

    def longest(self, tokens: int) -> int:
        """Positions of the longest row that the module is given, from clean rows of so many tokens."""
        return tokens

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Term -> weight of a corrupted batch (or of any part of it), float32 scalars that add up over parts."""
        raise NotImplementedError(f"{type(self).__name__} must say how its loss is weighted.")

    def coefficients(self) -> dict[str, float]:
        """Term -> its factor in the total loss; terms left out count once."""
        return {}

    def target_term(self, batch: Batch) -> str:
        """The term whose mean is "nats a target", reported as eval/loss: the first of `weights`."""
        return next(iter(self.weights(batch)))

    def sums(self, module: nn.Module, given: LossInputs, batch: Batch, key: jax.Array, *, training: bool) -> LossSums:
        """Losses and metrics of a corrupted (micro)batch; `training` is with dropout."""
        raise NotImplementedError(f"{type(self).__name__} must say what it loses.")

    def evaluation(self, module: nn.Module, given: LossInputs, batch: Batch, key: jax.Array) -> tuple[LossSums, Any]:
        """(sums of a corrupted batch without dropout, outputs that a downstream task makes predictions from)."""
        return self.sums(module, given, batch, key, training=False), ()

    def targets(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """(ids, weights) of the tokens that a corrupted batch asks for: what the unigram entropy is taken over."""
        raise NotImplementedError(f"{type(self).__name__} must name its targets.")

    def train_flops(self, config: Any, batch: dict[str, jax.ShapeDtypeStruct]) -> float:
        """Model FLOPs of one training step (forward and backward, no recomputation), in closed form."""
        raise NotImplementedError(f"{type(self).__name__} must count its FLOPs.")


def apply(
    objective: Objective,
    module: nn.Module,
    given: LossInputs,
    batch: Batch,
    key: jax.Array,
    *,
    training: bool,
    method: str = "__call__",
) -> Any:
    """The outputs of the module, or of one of its methods, for a corrupted batch and the carry before it.

    The random collection "dropout" is there in training alone, "sampling" (hashes, draws) in evaluation too.
    """
    return apply_and_collect(objective, module, given, batch, key, training=training, method=method)[0]


def apply_and_collect(
    objective: Objective,
    module: nn.Module,
    given: LossInputs,
    batch: Batch,
    key: jax.Array,
    *,
    training: bool,
    method: str = "__call__",
) -> tuple[Any, dict[str, Any]]:
    """As `apply`, and the module's further collections after it: as they were given, but for training."""
    rngs = {"sampling": jax.random.fold_in(key, 1)} | ({"dropout": key} if training else {})
    kept = {"deterministic": not training, "rngs": rngs, "method": method}
    inputs = objective.model_inputs(batch) | objective.carry_inputs(given.carry)
    if not training:
        return module.apply(given.variables, **inputs, **kept), given.collections
    outputs, after = module.apply(given.variables, **inputs, **kept, mutable=list(given.collections))
    return outputs, nn.meta.unbox(dict(after))


def cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """-log softmax(logits)[targets] in float32: logits [... V], targets int [...] -> nats [...]."""
    chex.assert_shape(logits, (*targets.shape, None))
    chex.assert_type(targets, int)
    logits = logits.astype(jnp.float32)
    chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits, axis=-1) - chosen
