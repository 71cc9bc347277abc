"""Twenty optimizer steps of a tiny BERT against the published recipe, written here a second time.

The other side is transformers' BertForPreTraining in float64 for loss and gradients, and google-research/bert's
optimization.py in NumPy; it shares no code with plmjax but the names of parameters. Parameters, batches and masked
positions are the same.
"""

import re

import flax.linen as nn
import jax
import numpy as np
import pytest

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data.layouts import SentencePairs
from plmjax.experiment import Data, Experiment, Mesh, Training
from plmjax.interop.bert import ADAPTER
from plmjax.models.bert import BertConfig
from plmjax.objectives.bert import BertPretraining
from plmjax.parallel import mesh as meshes
from plmjax.training import program as programs
from plmjax.training.optimizers import BertAdamW
from plmjax.training.optimizers.schedules import Linear
from tests.optional import torch, transformers
from tests.systems.comparison import converted

STEPS, WARMUP, PEAK, ROWS, LENGTH, PREDICTIONS = 20, 5, 1e-3, 8, 24, 4
CONFIG = BertConfig(
    vocab_size=61,
    hidden_size=24,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=40,
    max_position_embeddings=32,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)


class Corrupted(BertPretraining):
    """BERT's objective on batches that were corrupted beforehand, so that both sides see the same."""

    def corrupt(self, batch, key, vocabulary, constants=()):
        """The batch as it is."""
        return batch


def make_batches() -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    batches = []
    for _ in range(STEPS):
        lengths = rng.integers(10, LENGTH + 1, (ROWS, 1))
        place = np.arange(LENGTH)[None]
        batch = {
            "input_ids": np.where(place < lengths, rng.integers(5, CONFIG.vocab_size, (ROWS, LENGTH)), 0),
            "segment_ids": np.broadcast_to(place < lengths, (ROWS, LENGTH)),
            "positions": np.broadcast_to(place, (ROWS, LENGTH)),
            "row_ids": np.arange(ROWS),
            "token_type_ids": (place >= lengths // 2) & (place < lengths),
            "cls_positions": np.zeros((ROWS, 1)),
            "next_sentence_labels": rng.integers(0, 2, (ROWS, 1)),
            "masked_positions": np.sort(np.array([rng.permutation(9)[:PREDICTIONS] + 1 for _ in range(ROWS)]), axis=1),
            "masked_ids": rng.integers(5, CONFIG.vocab_size, (ROWS, PREDICTIONS)),
        }
        batch = {name: values.astype(np.int32) for name, values in batch.items()}
        batch["masked_weights"] = (np.arange(PREDICTIONS) < rng.integers(1, PREDICTIONS + 1, (ROWS, 1))) * np.float32(1)
        batch["next_sentence_weights"] = np.ones((ROWS, 1), np.float32)
        batches.append(batch)
    return batches


class PublishedRecipe:
    """The released optimizer around a float64 model."""

    def __init__(self) -> None:
        names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
        sizes = {name: getattr(CONFIG, name) for name in (*names, "max_position_embeddings")}
        config = transformers.BertConfig(
            **sizes, hidden_act="gelu_new", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
        )
        torch.manual_seed(0)
        self.model = transformers.BertForPreTraining(config).double().train()
        self.params = dict(self.model.named_parameters())
        with torch.no_grad():  # float32 values, none of them zero, for both sides
            for param in self.params.values():
                param.add_(0.05 * torch.randn(param.shape)).copy_(param.float())
        self.mean = {name: np.zeros(param.shape) for name, param in self.params.items()}
        self.square = {name: np.zeros(param.shape) for name, param in self.params.items()}
        self.norms = []

    def loss(self, batch: dict[str, np.ndarray]) -> "torch.Tensor":
        rows = {name: torch.tensor(values).long() for name, values in batch.items()}
        weights = torch.tensor(batch["masked_weights"]).double()
        outputs = self.model(rows["input_ids"], rows["segment_ids"], rows["token_type_ids"])
        logits = outputs.prediction_logits[torch.arange(ROWS)[:, None], rows["masked_positions"]]
        nats = -torch.log_softmax(logits, -1).gather(-1, rows["masked_ids"][..., None])[..., 0]
        masked = (weights * nats).sum() / (weights.sum() + 1e-5)
        labels = rows["next_sentence_labels"][:, 0]
        return masked + torch.nn.functional.cross_entropy(outputs.seq_relationship_logits, labels)

    def step(self, number: int, batch: dict[str, np.ndarray]) -> float:
        """One step; the loss before it."""
        loss = self.loss(batch)
        gradients = dict(zip(self.params, torch.autograd.grad(loss, list(self.params.values())), strict=True))
        self.norms.append(float(torch.sqrt(sum((g**2).sum() for g in gradients.values()))))
        rate = PEAK * number / WARMUP if number < WARMUP else PEAK * (1 - number / STEPS)
        for name, gradient in gradients.items():
            param = self.params[name].data.numpy()  # a view of the model's own memory
            gradient = gradient.numpy() / max(1.0, self.norms[-1])
            self.mean[name] = 0.9 * self.mean[name] + 0.1 * gradient
            self.square[name] = 0.999 * self.square[name] + 0.001 * gradient**2
            update = self.mean[name] / (np.sqrt(self.square[name]) + 1e-6)
            if not re.search("LayerNorm|layer_norm|bias", name):
                update = update + 0.01 * param
            param -= rate * update
        return loss.item()

    def arranged(self, module: nn.Module) -> dict:
        """The parameters in the shape of ours."""
        return converted(ADAPTER, self.model.named_parameters(), module)


# 3 s each: pytest -m nightly tests/training/test_recipe.py
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("devices", "accumulation"),
    [pytest.param(1, 1, id="whole"), pytest.param(2, 2, id="two devices, two microbatches")],
)
def test_twenty_steps_equal_the_published_recipe(devices, accumulation):
    recipe, batches = PublishedRecipe(), make_batches()
    run = Experiment(
        model=CONFIG,
        objective=Corrupted(),
        data=Data(layout=SentencePairs(), sequence_length=LENGTH),
        optimizer=BertAdamW(learning_rate=PEAK, schedule=Linear(warmup_steps=WARMUP)),
        training=Training(steps=STEPS, batch_size=ROWS, accumulation=accumulation, dtype="float32"),
    )
    shapes = {name: jax.ShapeDtypeStruct(values.shape, values.dtype) for name, values in batches[0].items()}
    mesh = meshes.make(Mesh(), jax.devices()[:devices])
    program = programs.build(
        run, run.resolved_phases[0], mesh, vocabulary=Vocabulary.placeholder(CONFIG.vocab_size), shapes=lambda _: shapes
    )
    # The first state is the recipe's parameters among zeros, which is quicker than to compile an initialisation.
    start = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), program.state)
    start = start.replace(params=jax.tree.map(np.float32, recipe.arranged(program.module)))
    state = jax.tree.map(lambda value, leaf: jax.device_put(value, leaf.sharding), start, program.state)
    for number, batch in enumerate(batches):
        placed = {name: jax.device_put(values, program.batch[name].sharding) for name, values in batch.items()}
        state, metrics = program.train(state, placed)
        assert float(metrics["loss"]) == pytest.approx(recipe.step(number, batch), rel=1e-5), f"step {number}"
        assert float(metrics["gradient_norm"]) == pytest.approx(recipe.norms[-1], rel=1e-5), f"step {number}"
    assert max(recipe.norms) > 1, "the clipping was never tried"

    expected = dict(jax.tree_util.tree_leaves_with_path(recipe.arranged(program.module)))
    found = dict(jax.tree_util.tree_leaves_with_path(jax.device_get(state.params)))
    assert found.keys() == expected.keys()
    for path, value in expected.items():
        error = np.abs(found[path] - value).max() / np.abs(value).max()
        assert error < 1e-5, f"{jax.tree_util.keystr(path)}: {error:.1e}"
