"""Pruning while a model is trained: the model computes with W' = W * M, and the mask M may change at every step.

W keeps its value where the mask is 0, so that a weight may come back. The gradient of W is that of W' times M. The
scores S of movement pruning are extra parameters, trained by the straight-through gradient

    dL/dS = dL/dW' * W

Masks are computed from the weights or the scores in each step and are never stored.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.compression.compression import Compression, Params
from plmjax.compression.kernels import layer_kernels
from plmjax.compression.pruning.masks import above, top_fraction
from plmjax.compression.pruning.schedule import Cubic
from plmjax.contracts.model_config import ModelConfig
from plmjax.errors import ABOVE_0, UserError, check_ranges
from plmjax.objectives.objective import Batch, LossInputs, LossSums, Objective
from plmjax.objectives.wrapper import ADDED, ObjectiveWrapper, model_parameters

Arrays = Mapping[str, jax.Array]
SCORES = "scores"
PENALTY = "penalty"


@dataclasses.dataclass(frozen=True)
class Pruning(Compression):
    """Base class of methods that prune a model while it is trained. A subclass defines `masks`."""

    verb: ClassVar[str] = "prune"

    def training_objective(self, objective: Objective, steps: int) -> Objective:
        return Pruned(objective, self, steps)

    def evaluation_objective(self, objective: Objective, steps: int) -> Objective:
        """Return the objective with masked kernels, without a penalty."""
        return Pruned(objective, self, steps, penalized=False)

    def scores(self, path: str, kernel: nn.LogicallyPartitioned) -> nn.LogicallyPartitioned | None:
        """Return the initial scores of a kernel, boxed with the kernel's logical axes; None without scores."""
        return None

    def masks(self, kernels: Arrays, scores: Arrays, stacks: Mapping[str, bool], *, step: Any, steps: int) -> Arrays:
        """Return path -> mask of each kernel at a step, float32. Gradients pass through a mask to its scores, if any.

        stacks: path -> true if the kernel is a stack of the layers' matrices.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `masks`.")

    def penalty(self, scores: Arrays, step: Any, steps: int) -> jax.Array | None:
        """Return the penalty that is added to the loss, a float32 scalar; None without one."""
        return None

    def finish(self, params: Params, model: ModelConfig) -> tuple[Params, ModelConfig]:
        own = model_parameters(params)
        stacks = layer_kernels(own, model)
        kernels = {path: jnp.asarray(own[path]) for path in stacks}
        masks = self.masks(kernels, scores_of(params), stacks, step=1, steps=1)
        masked = {path: np.asarray(kernel * masks[path]) for path, kernel in kernels.items()}
        return {path: masked.get(path, value) for path, value in own.items()}, model


@dataclasses.dataclass(frozen=True)
class Scheduled(Pruning):
    """Base class of methods whose pruning increases between two points of the run.

    Raises:
        UserError: the points are out of order.
    """

    begin: float = 0.1
    """Share of the run before the first weight is pruned."""
    end: float = 0.8
    """Share of the run after which no further weight is pruned."""

    def __post_init__(self) -> None:
        Cubic(1.0, 0.5, self.begin, self.end)


@dataclasses.dataclass(frozen=True)
class ByFraction(Scheduled):
    """Base class of methods that keep a fraction of each matrix.

    Raises:
        UserError: the sparsity is not above 0 and below 1.
    """

    sparsity: float = 0.5
    """Share of the weights of the layers that become 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sparsity(self.sparsity)

    def kept_fraction(self, step: Any, steps: int) -> jax.Array:
        """Return the fraction of each matrix that is kept at a step, float32 scalar."""
        return Cubic(1.0, 1 - self.sparsity, self.begin, self.end).at(step, steps)


@dataclasses.dataclass(frozen=True)
class Scored(Scheduled):
    """Base class of methods that train a score for every weight, or for every block of weights."""

    scores_learning_rate: float = 1e-2
    """Peak learning rate of the scores."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges("compression", self, scores_learning_rate=ABOVE_0)

    def rate_factors(self, learning_rate: float) -> dict[str, float]:
        return {f"{ADDED}/{SCORES}": self.scores_learning_rate / learning_rate}

    def without_weight_decay(self) -> tuple[str, ...]:
        """Return the scores: decay would move them towards the threshold."""
        return (f"{ADDED}/{SCORES}",)

    def scores(self, path: str, kernel: nn.LogicallyPartitioned) -> nn.LogicallyPartitioned | None:
        """Return a score of 0 for every weight."""
        return kernel.replace_boxed(jnp.zeros_like(kernel.value))


@dataclasses.dataclass(frozen=True)
class GradualPruning(ByFraction):
    """Magnitude pruning while the model is trained: the weights of the largest magnitude in each matrix are kept."""

    name: ClassVar[str] = "gradual"

    def masks(self, kernels: Arrays, scores: Arrays, stacks: Mapping[str, bool], *, step: Any, steps: int) -> Arrays:
        fraction = self.kept_fraction(step, steps)
        return {
            path: top_fraction(jnp.abs(kernel), fraction, stacked=stacks[path]).astype(jnp.float32)
            for path, kernel in kernels.items()
        }


@dataclasses.dataclass(frozen=True)
class TicketTraining(Pruning):
    """Training of the weights that a pruned model has kept (Frankle and Carbin, ICLR 2019, arXiv 1803.03635).

    Weights of the layers that are 0 stay 0; the mask is W != 0. The run starts from a pruned model.
    """

    name: ClassVar[str] = "lottery"

    def masks(self, kernels: Arrays, scores: Arrays, stacks: Mapping[str, bool], *, step: Any, steps: int) -> Arrays:
        return {path: (kernel != 0).astype(jnp.float32) for path, kernel in kernels.items()}


@dataclasses.dataclass(frozen=True)
class MovementPruning(ByFraction, Scored):
    """Movement pruning (Sanh et al., NeurIPS 2020, arXiv 2005.07683): the highest scores in each matrix are kept.

    The scores begin at 0. A score rises while training moves its weight away from 0.
    """

    name: ClassVar[str] = "movement"

    def masks(self, kernels: Arrays, scores: Arrays, stacks: Mapping[str, bool], *, step: Any, steps: int) -> Arrays:
        fraction = self.kept_fraction(step, steps)
        return {
            path: straight_through(top_fraction(score, fraction, stacked=stacks[path]), score)
            for path, score in scores.items()
        }


@dataclasses.dataclass(frozen=True)
class SoftMovementPruning(Scored):
    """Soft movement pruning: weights whose sigmoid(score) is above a threshold are kept.

    The threshold rises from 0, and a penalty on the mean of sigmoid(score) rises with it. Both determine the sparsity.
    At least 0.5 % of each matrix is kept.
    """

    name: ClassVar[str] = "soft_movement"

    threshold: float = 0.1
    """Threshold of sigmoid(score) at the end."""
    penalty_weight: float = 10.0
    """Factor of the penalty at the end."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges("compression", self, threshold=ABOVE_0, penalty_weight=ABOVE_0)

    def masks(self, kernels: Arrays, scores: Arrays, stacks: Mapping[str, bool], *, step: Any, steps: int) -> Arrays:
        threshold = self._threshold(step, steps)
        return {
            path: straight_through(above(jax.nn.sigmoid(score), threshold, stacked=stacks[path]), score)
            for path, score in scores.items()
        }

    def penalty(self, scores: Arrays, step: Any, steps: int) -> jax.Array:
        means = [jnp.mean(jax.nn.sigmoid(score.astype(jnp.float32))) for score in scores.values()]
        return self.penalty_weight * self._threshold(step, steps) / self.threshold * jnp.mean(jnp.stack(means))

    def _threshold(self, step: Any, steps: int) -> jax.Array:
        return Cubic(0.0, self.threshold, self.begin, self.end).at(step, steps)


def check_sparsity(sparsity: float) -> None:
    """Raise UserError unless the sparsity is above 0 and below 1."""
    if not 0 < sparsity < 1:
        raise UserError(f"Expected --sparsity above 0 and below 1, found {sparsity}; change it.")


def straight_through(mask: jax.Array, score: jax.Array) -> jax.Array:
    """Return the mask as float32, with a gradient of 1 for the score."""
    score = score.astype(jnp.float32)
    return mask.astype(jnp.float32) + (score - jax.lax.stop_gradient(score))


@dataclasses.dataclass(frozen=True)
class Pruned(ObjectiveWrapper):
    """An objective whose model computes with masked kernels, in training and in evaluations.

    Deviation: where a step computes in bfloat16, masks compare bfloat16 copies of weights and scores, so that more of
    them are equal and kept together; the masks of the result are those of the float32 parameters.
    """

    pruning: Pruning
    steps: int
    penalized: bool = True

    def extra_parameters(self, module: nn.Module, params: Any, key: jax.Array) -> dict[str, Any]:
        flat = flax.traverse_util.flatten_dict(params, sep="/")
        found = {path: self.pruning.scores(path, flat[path]) for path in layer_kernels(flat, module.config)}
        found = {path: scores for path, scores in found.items() if scores is not None}
        return {SCORES: flax.traverse_util.unflatten_dict(found, sep="/")} if found else {}

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Return the weights of the inner objective; the penalty has the weight of its first term."""
        weights = self.inner.weights(batch)
        return weights | {PENALTY: next(iter(weights.values()))} if self._has_penalty else weights

    def sums(
        self, module: nn.Module, loss_inputs: LossInputs, batch: Batch, key: jax.Array, *, training: bool
    ) -> LossSums:
        """Return the sums of the inner objective with masked kernels, the penalty, and the fraction of kept weights."""
        masked, density = self._mask(module, loss_inputs)
        sums = self.inner.sums(module, masked, batch, key, training=training)
        return self._with_penalty(sums, loss_inputs, batch, density)

    def evaluation(
        self, module: nn.Module, loss_inputs: LossInputs, batch: Batch, key: jax.Array
    ) -> tuple[LossSums, Any]:
        masked, density = self._mask(module, loss_inputs)
        sums, outputs = self.inner.evaluation(module, masked, batch, key)
        return self._with_penalty(sums, loss_inputs, batch, density), outputs

    @property
    def _has_penalty(self) -> bool:
        return self.penalized and type(self.pruning).penalty is not Pruning.penalty

    def _with_penalty(self, sums: LossSums, loss_inputs: LossInputs, batch: Batch, density: jax.Array) -> LossSums:
        sums = sums.replace(metrics=sums.metrics | {"density": (density, jnp.float32(1.0))})
        if not self._has_penalty:
            return sums
        penalty = self.pruning.penalty(scores_of(_flat(loss_inputs.params)), loss_inputs.step, self.steps)
        weight = next(iter(self.inner.weights(batch).values()))
        return sums.replace(losses=sums.losses | {PENALTY: penalty * weight})

    def _mask(self, module: nn.Module, loss_inputs: LossInputs) -> tuple[LossInputs, jax.Array]:
        """Return the inputs of the inner loss with masked kernels, and the fraction of kept weights."""
        params = _flat(loss_inputs.params)
        rest = model_parameters(params)
        stacks = layer_kernels(rest, module.config)
        kernels = {path: rest[path] for path in stacks}
        masks = self.pruning.masks(kernels, scores_of(params), stacks, step=loss_inputs.step, steps=self.steps)
        rest |= {path: kernel * masks[path].astype(kernel.dtype) for path, kernel in kernels.items()}
        whole = [jnp.broadcast_to(masks[path], kernel.shape) for path, kernel in kernels.items()]
        kept = sum(jnp.sum(jax.lax.stop_gradient(mask)) for mask in whole) / sum(mask.size for mask in whole)
        inner = self.inner_inputs(loss_inputs).replace(params=flax.traverse_util.unflatten_dict(rest, sep="/"))
        return inner, kept


def scores_of(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return path of a kernel -> its scores, from all parameters by path."""
    prefix = f"{ADDED}/{SCORES}/"
    return {path.removeprefix(prefix): value for path, value in params.items() if path.startswith(prefix)}


def _flat(params: Any) -> dict[str, Any]:
    return flax.traverse_util.flatten_dict(params, sep="/")
