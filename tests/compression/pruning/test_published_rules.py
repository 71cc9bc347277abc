"""Losses, weights and scores of twenty steps against a transcription of the released rules on transformers' BERT."""

import functools
from pathlib import Path
from typing import Any

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.compression.kernels import input_axes, layer_kernels
from plmjax.compression.pruning.pruned import GradualPruning, MovementPruning, Pruned, SoftMovementPruning, scores_of
from plmjax.contracts.execution import Execution
from plmjax.finetuning.tasks.sentences import SequenceClassification
from plmjax.interop import huggingface
from plmjax.models.bert import BertConfig, BertForSequenceClassification
from plmjax.objectives.objective import LossInputs
from plmjax.objectives.wrapper import ADDED, model_parameters
from plmjax.training.step import total_loss
from tests.optional import torch, transformers

STEPS, ROWS, LENGTH = 20, 4, 10
COMPARED = (0, 2, 3, 7, 13, 14, 19)
"""Steps that both take from the same parameters; masks begin to be smaller at step 2, and are the last from 14 on."""
RATE, SCORES_RATE = 0.02, 1.0
CONFIG = BertConfig(
    50, 12, 2, 3, 20, max_position_embeddings=16, hidden_act="gelu", initializer_range=0.3, hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)  # fmt: skip
RULES = {
    "gradual": GradualPruning(sparsity=0.7, begin=0.1, end=0.7),
    "movement": MovementPruning(sparsity=0.7, begin=0.1, end=0.7),
    "soft_movement": SoftMovementPruning(begin=0.1, end=0.7, threshold=0.49, penalty_weight=3.0),
}


def batch_of(step: int) -> dict[str, np.ndarray]:
    """The rows of a step: one text in each."""
    draws = np.random.default_rng(step)
    return {
        "input_ids": draws.integers(0, 50, (ROWS, LENGTH), np.int32),
        "segment_ids": np.ones((ROWS, LENGTH), np.int32),
        "positions": np.tile(np.arange(LENGTH, dtype=np.int32), (ROWS, 1)),
        "cls_positions": np.zeros((ROWS, 1), np.int32),
        "sequence_starts": np.zeros((ROWS, 1), np.int32),
        "example_ids": np.arange(ROWS, dtype=np.int32)[:, None],
        "labels": draws.integers(0, 2, (ROWS, 1), np.int32),
    }


def ours(pruning: Any, params: Any) -> tuple[list[Any], list[float]]:
    """(parameters before each step and after the last, loss of each step) of plain gradient descent."""
    objective = Pruned(SequenceClassification(labels=("a", "b")), pruning, STEPS)
    module = objective.module(CONFIG, Execution())
    boxed = jax.eval_shape(
        lambda: objective.init(module, jax.random.key(0), batch_of(0), constants=(), carry=())["params"]
    )
    state = dict(params)
    if ADDED in boxed:
        added = nn.meta.unbox(boxed[ADDED])
        state[ADDED] = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), added)

    @jax.jit
    def step(params: Any, batch: Any, number: jax.Array) -> tuple[Any, jax.Array]:
        def loss(params: Any) -> jax.Array:
            sums = objective.sums(module, LossInputs(params, step=number), batch, jax.random.key(0), training=True)
            return total_loss(objective, sums.losses, objective.weights(batch))

        value, gradient = jax.value_and_grad(loss)(params)
        moved = jax.tree.map(lambda weight, change: weight - RATE * change, params, gradient)
        if ADDED in params:
            moved[ADDED] = jax.tree.map(lambda s, g: s - SCORES_RATE * g, params[ADDED], gradient[ADDED])
        return moved, value

    states, losses = [state], []
    for number in range(STEPS):
        state, value = step(state, batch_of(number), jnp.asarray(number))
        states.append(state)
        losses.append(float(value))
    return [flax.traverse_util.flatten_dict(jax.device_get(state), sep="/") for state in states], losses


class Released:
    """A step of the released code: binarizer.py and `MaskedLinear` of movement pruning, transcribed."""

    def __init__(self, pruning: Any, folder: Path):
        self.pruning, self.soft = pruning, isinstance(pruning, SoftMovementPruning)
        self.model = transformers.AutoModelForSequenceClassification.from_pretrained(
            folder, attn_implementation="eager"
        )
        encoder = self.model.bert.encoder
        self.linears = {name: part for name, part in encoder.named_modules() if isinstance(part, torch.nn.Linear)}
        self.scores = {name: torch.zeros_like(part.weight) for name, part in self.linears.items()}
        for name, part in self.linears.items():
            part.forward = functools.partial(self._masked, name, part)

    def _masked(self, name: str, part: Any, x: Any) -> Any:
        class TopK(torch.autograd.Function):
            @staticmethod
            def forward(ctx, scores, share):
                kept, mask = max(int(share * scores.numel()), 1), torch.ones(scores.numel())
                mask[scores.flatten().sort(descending=True).indices[kept:]] = 0
                return mask.view_as(scores)

            @staticmethod
            def backward(ctx, gradient):
                return gradient, None

        class Threshold(torch.autograd.Function):
            @staticmethod
            def forward(ctx, scores, threshold):
                probabilities = torch.sigmoid(scores)
                mask = (probabilities > threshold).type(scores.type())
                least = max(int(0.005 * scores.numel()), 1)
                if mask.sum() < least:
                    mask.view(-1)[probabilities.flatten().sort(descending=True).indices[:least]] = 1
                return mask

            @staticmethod
            def backward(ctx, gradient):
                return gradient, None

        if not isinstance(self.pruning, GradualPruning):
            mask = (Threshold if self.soft else TopK).apply(self.scores[name], self.share)
        else:
            mask = TopK.apply(part.weight.detach().abs(), self.share)
        return torch.nn.functional.linear(x, part.weight * mask, part.bias)

    def step(self, number: int, weights: dict[str, Any], scores: dict[str, np.ndarray]) -> float:
        """Take a step from these weights and scores, and return its loss."""
        self.model.load_state_dict(weights)
        self.scores = {name: torch.tensor(scores.get(name, 0.0), requires_grad=True) for name in self.linears}
        begin, end = self.pruning.begin * STEPS, self.pruning.end * STEPS
        left = 1 - min(max((number - begin) / (end - begin), 0), 1)
        first, last = (0.0, self.pruning.threshold) if self.soft else (1.0, 1 - self.pruning.sparsity)
        self.share = last + (first - last) * left**3
        batch = {name: torch.tensor(value.astype(np.int64)) for name, value in batch_of(number).items()}
        loss = self.model(batch["input_ids"], labels=batch["labels"][:, 0]).loss
        if self.soft:
            means = [torch.sigmoid(one).mean() for one in self.scores.values()]
            loss = loss + self.pruning.penalty_weight * self.share / self.pruning.threshold * sum(means) / len(means)
        self.model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter -= RATE * parameter.grad
            for score in self.scores.values():
                if score.grad is not None:
                    score -= SCORES_RATE * score.grad
        return float(loss.detach())


def by_linear(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Name of a linear layer in transformers -> [out in], from kernels or scores by path."""
    names = {
        "attention/query": "attention.self.query",
        "attention/key": "attention.self.key",
        "attention/value": "attention.self.value",
        "attention/output": "attention.output.dense",
        "feed_forward/intermediate": "intermediate.dense",
        "feed_forward/output": "output.dense",
    }
    found = {}
    for path, stack in arrays.items():
        name = names["/".join(path.split("/")[-3:-1])]
        for layer, kernel in enumerate(stack):
            inputs = int(np.prod(kernel.shape[: input_axes(path, kernel.ndim)]))
            found[f"layer.{layer}.{name}"] = kernel.reshape(inputs, -1).T
    return found


@pytest.mark.parametrize(
    "rule", [pytest.param(rule, marks=() if rule == "movement" else pytest.mark.nightly) for rule in RULES]
)
def test_steps_are_those_of_the_released_rule(rule: str, tmp_path: Path) -> None:
    """Every step begins with the same weights and scores: a rounding error could turn a mask and everything after."""
    pruning = RULES[rule]
    module = BertForSequenceClassification(CONFIG, Execution())
    params = nn.meta.unbox(jax.jit(module.init)(jax.random.key(1), batch_of(0)["input_ids"])["params"])
    states, losses = ours(pruning, params)
    kernels = layer_kernels(model_parameters(states[0]), CONFIG)

    def weights_of(state: dict[str, np.ndarray]) -> dict[str, Any]:
        tree = flax.traverse_util.unflatten_dict(model_parameters(state), sep="/")
        huggingface.save(module, tree, tmp_path)
        return transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path).state_dict()

    weights_of(states[0])
    released = Released(pruning, tmp_path)
    for number in COMPARED:
        before, after = states[number : number + 2]
        expected = released.step(number, weights_of(before), by_linear(scores_of(before)))
        np.testing.assert_allclose(losses[number], expected, rtol=1e-5)
        for name, kernel in by_linear({path: after[path] for path in kernels}).items():
            np.testing.assert_allclose(kernel, released.linears[name].weight.detach(), rtol=1e-5, atol=1e-5)
        for name, score in by_linear(scores_of(after)).items():
            np.testing.assert_allclose(score, released.scores[name].detach(), rtol=1e-4, atol=1e-4)
    finished, _ = pruning.finish(states[-1], CONFIG)
    kept = [np.count_nonzero(matrix) / matrix.size for path in kernels for matrix in finished[path]]
    if rule == "soft_movement":
        assert 0.05 < np.mean(kept) < 0.95
    else:
        assert max(kept) <= 1 - pruning.sparsity and min(kept) > 1 - pruning.sparsity - 0.01
