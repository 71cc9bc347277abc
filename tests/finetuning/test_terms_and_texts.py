"""A task whose loss has several terms, as GPT's, and one whose predictions are text, both on GPT-2."""

import dataclasses
import functools
from types import SimpleNamespace
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.contracts.template import Template
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.experiment import Experiment, Training
from plmjax.finetuning.batches.source import ExampleRows, TaskSource
from plmjax.finetuning.evaluation import Forward, TaskEvaluation
from plmjax.finetuning.tasks.sentences import SentenceExamples, Sentences, SequenceClassification
from plmjax.generation.writer import Settings
from plmjax.inference.program import program_of
from plmjax.layers.dropout import Dropout
from plmjax.layers.projection import Projection
from plmjax.layers.tokens import gather_tokens
from plmjax.models.gpt2 import Gpt2Config
from plmjax.objectives.objective import LossInputs, cross_entropy
from plmjax.training import step
from plmjax.training.optimizers import StochasticGradientDescent
from tests.finetuning.parity import Numbers as NumberTexts

TEMPLATE = Template("start A extract", "start A delimiter B extract", summary="last")
VOCABULARY = Vocabulary(size=64, pad=0, others={"start": 61, "delimiter": 62, "extract": 63})
WRITTEN = 4
"""Tokens that the model writes after a text."""


class Numbers(NumberTexts):
    vocabulary = VOCABULARY

    def decode(self, ids: list[int]) -> str:
        return " ".join(map(str, ids))


class GPTClassifier(nn.Module):
    """Next tokens, and labels at the position that stands for each sequence."""

    config: Gpt2Config
    labels: int

    @nn.compact
    def __call__(self, input_ids, positions, segment_ids, cls_positions, *, deterministic):
        inputs = {"positions": positions, "segment_ids": segment_ids, "deterministic": deterministic}
        tokens = self.config.module(Purpose.ENCODING, Execution())(input_ids, **inputs).logits
        hidden = Dropout(0.0)(gather_tokens(tokens, cls_positions), deterministic)
        init = self.config.initializer
        head = Projection((self.labels,), ("embed", None), init, jnp.float32, logits=True, name="classifier")
        return SimpleNamespace(logits=head(hidden), token_logits=tokens)


@dataclasses.dataclass(frozen=True)
class GPTClassification(SequenceClassification):
    """The task's loss and half of the language model's (Radford et al. 2018, equation 5)."""

    def module(self, config, execution):
        return GPTClassifier(config, self.outputs)

    def model_inputs(self, batch):
        inputs = super().model_inputs(batch)
        return {name: inputs[name] for name in inputs if name != "token_type_ids"}

    def coefficients(self):
        return {"language_model": 0.5}

    def losses(self, outputs, batch):
        following = jnp.roll(batch["input_ids"], -1, axis=1)
        return super().losses(outputs, batch) | {"language_model": cross_entropy(outputs.token_logits, following)}

    def loss_weights(self, batch):
        segments = batch["segment_ids"]
        continued = (segments == jnp.roll(segments, -1, axis=1)) & (segments > 0)
        return super().loss_weights(batch) | {"language_model": continued.at[:, -1].set(False).astype(jnp.float32)}

    def head_flops(self, config, batch):
        return 0.0


@dataclasses.dataclass(frozen=True)
class Continuation(GPTClassification):
    """The text that the model writes greedily after each text."""

    generates: ClassVar[bool] = True
    metric_names: ClassVar[tuple[str, ...]] = ("words",)

    def writing(self):
        return Settings(max_new_tokens=WRITTEN)

    def records(self, examples, encoded, outputs):
        return [{"line": line, "prediction": text} for line, text in zip(examples.lines, outputs, strict=True)]

    def answer(self, examples, encoded, outputs):
        return {"words": float(np.mean([len(text.split()) for text in outputs]))}, {"texts": "\n".join(outputs)}


@dataclasses.dataclass(frozen=True)
class GPTConfig(Gpt2Config):
    """A GPT-2 whose rows are GPT's."""

    template: ClassVar[Template] = TEMPLATE

    def train_flops(self, batch_size, sequence_length, predictions):
        return 0.0


def made(
    objective: SequenceClassification, pack: int
) -> tuple[Experiment, SentenceExamples, TaskSource, Any, LossInputs]:
    """(experiment, examples, source, program, random parameters)."""
    texts = [(" ".join(str(10 + (7 * row + i) % 50) for i in range(3 + row % 3)),) for row in range(5)]
    examples = SentenceExamples("rows.tsv", list(range(1, 6)), texts, ["no", "yes", "yes", "no", "yes"])
    run = Experiment(
        model=GPTConfig(vocab_size=64, n_positions=32, n_embd=16, n_layer=2, n_head=2).with_dropout(0.0),
        objective=objective,
        data=Sentences(sequence_length=16, pack=pack),
        optimizer=StochasticGradientDescent(clip_norm=0.0, learning_rate=1.0),
        training=Training(batch_size=8, unroll=1),
    )
    encoded = objective.encode(examples, Numbers(), run.model, run.data)
    rows = ExampleRows(encoded, 16, pack, 0)
    source = TaskSource([rows], rows, VOCABULARY, 0)
    program = program_of(run, source)
    state = program.initialize(3)
    # Embeddings of another size than their small first values tell the texts apart.
    params = jax.tree.map(lambda leaf: 5 * leaf, state.params)
    return run, examples, source, program, LossInputs(params)


def logits_of(program: Any, params: Any, ids: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """The logits of labels [labels] and of tokens [T V] for one text alone, in a row of 16 with nothing behind it."""
    row = np.zeros((1, 16), np.int32)
    row[0, : len(ids)] = ids
    logits = _logits(program.module, params, row, row > 0, np.array([[len(ids) - 1]]))
    return np.asarray(logits[0][0, 0]), np.asarray(logits[1][0, : len(ids)])


@functools.partial(jax.jit, static_argnums=0)
def _logits(module: nn.Module, params: Any, ids: Any, real: Any, last: Any) -> tuple[jax.Array, jax.Array]:
    places = jnp.arange(ids.shape[1])[None]
    found = module.apply({"params": params}, ids, places, real.astype(jnp.int32), last, deterministic=True)
    return found.logits, found.token_logits


@pytest.mark.parametrize("pack", [pytest.param(1, marks=pytest.mark.nightly), 3])
def test_gpts_loss_is_the_tasks_and_half_of_the_language_models(pack):
    objective = GPTClassification(labels=("no", "yes"))
    run, examples, source, program, loss_inputs = made(objective, pack)
    task, language_model = [], []
    for text, label in zip(examples.texts, examples.labels, strict=True):
        ids = [61, *map(int, text[0].split()), 63]
        of_labels, of_tokens = logits_of(program, loss_inputs.params, ids)
        task.append(-log_softmax(of_labels)[objective.labels.index(label)])
        nats = -log_softmax(of_tokens, axis=-1)
        language_model += [float(nats[place, following]) for place, following in enumerate(ids[1:])]
    evaluation = TaskEvaluation(run, examples, source, Numbers())
    found = evaluation(program, loss_inputs)
    assert found["loss"] == found["task_loss"] == pytest.approx(np.mean(task), rel=1e-4)
    assert found["language_model_loss"] == pytest.approx(np.mean(language_model), rel=1e-4)
    assert found["joint_loss"] == pytest.approx(np.mean(task) + 0.5 * np.mean(language_model), rel=1e-4)
    assert set(found) == set(evaluation.names(program))
    # The first training step loses the joint loss: all five examples, in some order.
    batch = next(source.evaluation(program.phase))
    sums = jax.jit(functools.partial(objective.sums, program.module, training=True))(
        loss_inputs, batch, jax.random.key(0)
    )
    total = step.total_loss(objective, sums.losses, objective.weights(batch))
    assert float(total) == pytest.approx(found["joint_loss"], rel=1e-5)


@pytest.mark.nightly
def test_predictions_are_the_texts_that_the_model_writes():
    objective = Continuation(labels=("no", "yes"))
    run, examples, source, program, loss_inputs = made(objective, 1)
    expected = []
    for (text,) in examples.texts:
        ids = [61, *map(int, text.split()), 63]
        for _ in range(WRITTEN):
            ids.append(int(logits_of(program, loss_inputs.params, ids)[1][-1].argmax()))
        expected.append(" ".join(map(str, ids[-WRITTEN:])))
    evaluation = TaskEvaluation(run, examples, source, Numbers())
    assert evaluation(program, loss_inputs)["words"] == WRITTEN
    assert evaluation.predictions["texts"].split("\n") == expected and len(set(expected)) > 1
    _, outputs = Forward(run, Numbers())(program, loss_inputs, source)
    records = objective.records(examples, source.validation_rows.encoded, outputs)
    assert [record["prediction"] for record in records] == expected
