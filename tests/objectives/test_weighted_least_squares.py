"""GloVe's task: batches of one cell against a transcription of glove.c, larger ones, and what fills a batch."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data.layouts import Cooccurrences
from plmjax.experiment import Data, Experiment, Training
from plmjax.models.glove import GloveConfig
from plmjax.objectives.objective import ConstantSources, LossInputs
from plmjax.objectives.weighted_least_squares import WeightedLeastSquares
from plmjax.parallel import mesh as meshes
from plmjax.training import program as programs
from plmjax.training.optimizers import GloveAdagrad
from plmjax.training.optimizers.schedules import Linear

SIZE, WIDTH = 9, 6
VOCABULARY = Vocabulary.placeholder(SIZE)
COUNTS = np.arange(SIZE) * 10
SOURCES = ConstantSources(VOCABULARY, COUNTS, lambda: [], lambda path, init: None)
OBJECTIVE = WeightedLeastSquares(x_max=20.0, power=0.6)
CONFIG = GloveConfig(vocab_size=SIZE, vector_size=WIDTH)
NAMES = ("words", "contexts", "word_biases", "context_biases")


def numbers(params) -> list[np.ndarray]:
    """The two tables and the two biases, float64."""
    tables = [params[name]["embedding"] for name in NAMES[:2]]
    return [np.array(array, np.float64) for array in (*tables, *(params[name] for name in NAMES[2:]))]


def glove_c(parameters, accumulators, cells, rate) -> float:
    """The rule of glove.c for cells one after the other, in place; the sum of their costs."""
    words, contexts, word_biases, context_biases = parameters
    total = 0.0
    for i, j, x in cells:
        difference = words[i] @ contexts[j] + word_biases[i] + context_biases[j] - np.log(x)
        weighted = difference if x > 20.0 else (x / 20.0) ** 0.6 * difference
        total += 0.5 * weighted * difference
        gradients = (weighted * contexts[j], weighted * words[i], weighted, weighted)
        for array, sums, place, gradient in zip(parameters, accumulators, (i, j, i, j), gradients, strict=True):
            update = rate * gradient
            array[place] -= update / np.sqrt(sums[place])
            sums[place] += update**2
    return total


def cells_of(random: np.random.Generator, count: int) -> list[tuple[int, int, float]]:
    places = zip(random.integers(5, SIZE, count), random.integers(5, SIZE, count), strict=True)
    return [(int(i), int(j), float(np.float32(np.exp(random.normal(1, 2))))) for i, j in places]


def batch_of(cells) -> dict[str, np.ndarray]:
    i, j, x = zip(*cells, strict=True)
    fields = {"input_ids": np.int32([i]), "context_ids": np.int32([j]), "cooccurrences": np.float32([x])}
    return fields | {"row_ids": np.zeros(1, np.int32)}


def program_of(cells: int, steps: int, rate: float) -> programs.Program:
    run = Experiment(
        CONFIG,
        OBJECTIVE,
        Data(layout=Cooccurrences(), sequence_length=cells),
        optimizer=GloveAdagrad(learning_rate=rate, schedule=Linear()),
        training=Training(steps=steps, batch_size=1),
    )
    (phase,) = run.resolved_phases
    shapes = lambda phase: run.data.layout.batch(1, cells)  # noqa: E731
    return programs.build(run, phase, meshes.make(run.mesh, jax.devices()[:1]), vocabulary=VOCABULARY, shapes=shapes)


def test_batches_of_one_cell_are_the_sequential_rule():
    """The rule is that of the authors' code, over 40 compiled steps with a falling rate, with cells of one word too."""
    steps, rate = 40, 0.5
    program = program_of(1, steps, rate)
    state = program.initialize(0, SOURCES)
    parameters = numbers(state.params)
    assert all(0.05 < np.abs(array).max() <= 0.5 / (WIDTH + 1) for array in parameters)
    accumulators = [np.ones_like(array) for array in parameters]
    for number, cell in enumerate([(7, 7, 3.0), *cells_of(np.random.default_rng(0), steps - 1)]):
        cost = glove_c(parameters, accumulators, [cell], rate * (1 - number / steps))
        state, metrics = program.train(state, batch_of([cell]))
        assert float(metrics["loss"]) == pytest.approx(cost, rel=1e-4, abs=1e-6)
    for found, expected in zip(numbers(state.params), parameters, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_a_batch_moves_by_the_sum_of_its_cells():
    """From the same first values, as the module says; the next step is divided by the square of that sum."""
    program, cells = program_of(8, 2, 0.1), cells_of(np.random.default_rng(1), 8)
    state = program.initialize(0, SOURCES)
    first = numbers(state.params)
    state, metrics = program.train(state, batch_of(cells))
    moved, costs = [np.zeros_like(array) for array in first], []
    for cell in cells:
        alone = [array.copy() for array in first]
        costs.append(glove_c(alone, [np.ones_like(array) for array in first], [cell], 0.1))
        for total, after, before in zip(moved, alone, first, strict=True):
            total += after - before
    assert float(metrics["loss"]) == pytest.approx(np.mean(costs), rel=1e-5)
    for found, before, total in zip(numbers(state.params), first, moved, strict=True):
        np.testing.assert_allclose(found, before + total, rtol=1e-5, atol=1e-6)


def test_what_fills_a_batch_counts_nothing_and_chance_is_known():
    module = CONFIG.module(Purpose.PRETRAINING, Execution())
    cells = cells_of(np.random.default_rng(2), 5)
    batch = batch_of(cells)
    filled = {name: np.pad(array, ((0, 1), (0, 0))) if array.ndim == 2 else array for name, array in batch.items()}
    tables = jax.tree.map(jnp.asarray, nn.meta.unbox(OBJECTIVE.constants(None, SOURCES)))
    key = jax.random.key(0)
    params = nn.meta.unbox(jax.jit(module.init)(key, batch["input_ids"], batch["context_ids"]))["params"]

    @jax.jit
    def read(one: dict) -> tuple:
        one = OBJECTIVE.corrupt(one, key, VOCABULARY, tables)
        sums = OBJECTIVE.sums(module, LossInputs(params, tables), one, key, training=False)
        return sums.losses["least_squares"], *sums.metrics["unigram_loss"], *OBJECTIVE.weights(one).values()

    found = [read(one) for one in (batch, filled)]
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6)
    m = np.maximum(COUNTS, 1)
    chance = sum(0.5 * min(1, (x / 20) ** 0.6) * np.log(m[i] * m[j] / m.sum() / x) ** 2 for i, j, x in cells)
    assert found[0][1] == pytest.approx(chance, rel=1e-5) and found[0][2] == 5
