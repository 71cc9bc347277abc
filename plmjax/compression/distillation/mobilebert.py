"""MobileBERT's knowledge transfer from its teacher, an IB-BERT.

Sun et al., ACL 2020, arXiv 2004.02984, sections 3.4 and 3.5; released code: google-research/mobilebert.

The student has as many layers as its teacher, an IB-BERT, and hidden states of the same size between them. It begins
with random layers, and with the embeddings and heads of its teacher. Stage `layers` transfers one layer after the
other, each for `steps_per_layer` steps S. The losses of layer l compare the hidden states h after the layer and its
attention probabilities a with the teacher's, h' and a':

    hidden     x  mean (norm(h) - norm(h'))^2          norm without scale and bias
    means      x  mean (mean(h) - mean(h'))^2          mean and variance over the features
    variances  x  mean |variance(h) - variance(h')|
    attention  x  mean over heads of  - sum_s a'_s log a_s

divided by the number of layers. At step t of a layer's steps, the learning rate has the factor

    3 min(10 t / S, 0.9 + 0.1 sqrt(1 - t / S))  x  1 for layer l, `below` for the layers below it, 0 for all else

so that errors of the layers below can still be corrected a little; with 0 they are frozen. Stage `prediction` then
trains the whole model: half of the loss of masked tokens comes from the labels and half from the distributions of the
teacher, at T = 1 (`--compression.hard 0.5`).

Deviation: means are over the tokens that are not padding, and attention is over the tokens that a token sees. In the
released code padding counts as well, and the teacher's means and variances are those of all layers at once.
Deviation: after the last layer's steps, stage `layers` goes on with the last layer; in the released code its loss is 0.
Deviation: the optimizer keeps its moments from layer to layer; in the released code all are 0 again after the first
step of each layer, whose learning rate is 0.
Deviation: in stage `prediction` the next sentence loss has the factor `hard` too; in the released code it is 1.
"""

import dataclasses
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from plmjax.compression.distillation import losses
from plmjax.compression.distillation.attention_scores import scores_of
from plmjax.compression.distillation.captured_activations import Activations
from plmjax.compression.distillation.distilled import Distillation
from plmjax.compression.distillation.terms import (
    Shapes,
    SoftTargets,
    Term,
    check_encoders,
    encoder_segments,
    positive,
    rows_and_length,
    token_mask,
)
from plmjax.contracts.model_config import ModelConfig
from plmjax.errors import ABOVE_0, FROM_0, UserError, check_choice, check_ranges
from plmjax.layers.kinks import absolute
from plmjax.models.mobilebert import MobileBertConfig, norm
from plmjax.objectives.objective import Batch, Objective
from plmjax.training.optimizers.layer_rates import Factor

STAGES = ("layers", "prediction")
LAYERS = "mobilebert/encoder/layers"
"""Path of the stacked layers."""
EPSILON = 1e-12
"""Added to the variance of hidden states, as tf.contrib.layers.layer_norm does."""


@dataclasses.dataclass(frozen=True)
class LayerTransfer(Term):
    """A distance between the same layer of both models, a mean over all tokens but padding.

    steps_per_layer: number of steps after which the next layer is compared.
    """

    needs_hidden_states: ClassVar[bool] = True

    steps_per_layer: int = 1

    def weight(self, objective: Objective, batch: Batch) -> jax.Array:
        return positive(jnp.sum(token_mask(batch)))

    def sum(
        self, objective: Objective, student: Activations, teacher: Activations, *, batch: Batch, added: Any
    ) -> jax.Array:
        """Return the sum over tokens of the distance of the current layer, divided by the number of layers."""
        depth = student.config.depth
        layer = jnp.minimum(student.step // self.steps_per_layer, depth - 1)
        return jnp.sum(token_mask(batch) * self.distance(student, teacher, layer, batch)) / depth

    def distance(self, student: Activations, teacher: Activations, layer: jax.Array, batch: Batch) -> jax.Array:
        """Return the distance of each token, float32 [B T]. layer: index from 0, int32 scalar."""
        raise NotImplementedError(f"{type(self).__name__} must define `distance`.")

    def check(self, student: ModelConfig, teacher: ModelConfig, objective: Objective) -> None:
        """Raise UserError for models whose layers cannot be compared one by one."""
        for config, role in ((student, "student"), (teacher, "teacher")):
            if not isinstance(config, MobileBertConfig):
                raise UserError(
                    f"Expected a MobileBERT and its teacher IB-BERT for --method mobilebert, found {config.system} as "
                    f"the {role}; take --method tinybert."
                )
        check_encoders(student, teacher, objective, widths=True)
        if (student.depth, student.heads) != (teacher.depth, teacher.heads):
            raise UserError(
                f"Expected a student of its teacher's {teacher.depth} layers and {teacher.heads} heads, found "
                f"{student.depth} and {student.heads}; change {student.option('depth')} or {student.option('heads')}."
            )


@dataclasses.dataclass(frozen=True)
class FeatureMaps(LayerTransfer):
    """The squared distance between normalized hidden states."""

    name: ClassVar[str] = "feature_maps"

    def distance(self, student: Activations, teacher: Activations, layer: jax.Array, batch: Batch) -> jax.Array:
        mine, taught = (standardize(one.hidden_states[layer + 1]) for one in (student, teacher))
        return losses.squared_distance(mine, taught)


@dataclasses.dataclass(frozen=True)
class Means(LayerTransfer):
    """The squared distance between the means of hidden states over their features."""

    name: ClassVar[str] = "means"

    def distance(self, student: Activations, teacher: Activations, layer: jax.Array, batch: Batch) -> jax.Array:
        (mine, _), (taught, _) = (moments(one.hidden_states[layer + 1]) for one in (student, teacher))
        return jnp.square(mine - taught)


@dataclasses.dataclass(frozen=True)
class Variances(LayerTransfer):
    """The absolute distance between the variances of hidden states over their features."""

    name: ClassVar[str] = "variances"

    def distance(self, student: Activations, teacher: Activations, layer: jax.Array, batch: Batch) -> jax.Array:
        (_, mine), (_, taught) = (moments(one.hidden_states[layer + 1]) for one in (student, teacher))
        return absolute(mine - taught)


@dataclasses.dataclass(frozen=True)
class AttentionTransfer(LayerTransfer):
    """The cross-entropy of the attention probabilities, a mean over heads."""

    name: ClassVar[str] = "attention"

    def distance(self, student: Activations, teacher: Activations, layer: jax.Array, batch: Batch) -> jax.Array:
        segments = encoder_segments(batch)
        seen = (segments[:, :, None] == segments[:, None])[:, None]  # [B 1 T S]; padding sees padding
        mine, taught = (jnp.where(seen, layer_scores(one, layer), -jnp.inf) for one in (student, teacher))
        log_mine = jnp.where(seen, jax.nn.log_softmax(mine), 0.0)
        return jnp.mean(-jnp.sum(jax.nn.softmax(taught) * log_mine, axis=-1), axis=1)

    def flops(self, student: ModelConfig, teacher: ModelConfig, batch: Shapes) -> float:
        """Return the FLOPs of the attention scores of one layer of both models."""
        rows, length = rows_and_length(batch)
        return 2.0 * rows * length * (3 * student.scores_products(length) + teacher.scores_products(length))


@dataclasses.dataclass(frozen=True)
class MobileBertDistillation(Distillation):
    """A MobileBERT learns the layers of an IB-BERT one by one, and then its predictions."""

    name: ClassVar[str] = "mobilebert"
    random_layers: ClassVar[bool] = True

    hard: float = 0.0
    """Factor of the experiment's own loss, without the teacher; 0 leaves it out."""
    stage: str = "layers"
    """layers compares hidden states and attention, layer by layer; prediction compares the distributions of tokens."""
    steps_per_layer: int = 10_000
    """Number of steps after which the next layer is compared."""
    hidden: float = 100.0
    """Factor of the distance between normalized hidden states."""
    means: float = 5000.0
    """Factor of the distance between means of hidden states."""
    variances: float = 5.0
    """Factor of the distance between variances of hidden states."""
    attention: float = 1.0
    """Factor of the cross-entropy of attention."""
    below: float = 0.1
    """Factor from the learning rate of the compared layer to that of the layers below it; 0 freezes them."""
    soft: float = 0.5
    """Factor of the cross-entropy with the teacher's distributions."""
    temperature: float = 1.0
    """Temperature T of both distributions."""

    def __post_init__(self) -> None:
        super().__post_init__()
        factors = dict.fromkeys(("hidden", "means", "variances", "attention", "below", "soft"), FROM_0)
        check_ranges("compression", self, **factors, temperature=ABOVE_0, steps_per_layer=(2, math.inf))
        check_choice("--compression.stage", self.stage, STAGES)

    def terms(self) -> tuple[Term, ...]:
        if self.stage == "prediction":
            terms = (SoftTargets(self.soft, self.temperature, cross_entropy=True),)
        else:
            terms = (
                FeatureMaps(self.hidden, self.steps_per_layer),
                Means(self.means, self.steps_per_layer),
                Variances(self.variances, self.steps_per_layer),
                AttentionTransfer(self.attention, self.steps_per_layer),
            )
        return tuple(term for term in terms if term.factor)

    def rate_factors(self, learning_rate: float) -> dict[str, Factor]:
        """Return the factors of the layers, with all other parameters frozen, in stage `layers`."""
        return {LAYERS: self.layer_factors, "": 0.0} if self.stage == "layers" else {}

    def layer_factors(self, step: jax.Array, layers: int) -> jax.Array:
        """Return the factor of the learning rate of each layer at a step, float32 [L]."""
        each, current = jnp.arange(layers), jnp.minimum(step // self.steps_per_layer, layers - 1)
        done = (step % self.steps_per_layer) / self.steps_per_layer
        rate = 3 * jnp.minimum(10 * done, 0.9 + 0.1 * jnp.sqrt(1 - done))
        return rate * jnp.where(each == current, 1.0, jnp.where(each < current, self.below, 0.0))


def moments(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the mean and the variance of each vector over its features, [... D] -> two float32 [...]."""
    x = x.astype(jnp.float32)
    mean = jnp.mean(x, axis=-1)
    return mean, jnp.mean(jnp.square(x - mean[..., None]), axis=-1)


def standardize(x: jax.Array) -> jax.Array:
    """Return vectors with mean 0 and variance 1, [... D] -> float32 [... D]."""
    mean, variance = moments(x)
    return (x.astype(jnp.float32) - mean[..., None]) * jax.lax.rsqrt(variance + EPSILON)[..., None]


def layer_scores(activations: Activations, layer: jax.Array) -> jax.Array:
    """Return Q K^T / sqrt(H) of one layer, counted from 0: float32 [B N T S]. Masked pairs have scores, too."""
    config = activations.config
    layers = jax.tree.map(lambda leaf: leaf[layer], activations.params[config.system.name]["encoder"]["layers"])
    x = activations.hidden_states[layer]
    if name := config.queries_bottleneck:
        kernel, bias = (layers[name][part].astype(x.dtype) for part in ("kernel", "bias"))
        x = norm(config, x.dtype).apply({"params": layers[f"{name}_layer_norm"]}, x @ kernel + bias)
    return scores_of(layers["attention"], x)
