"""Scores of rows: in the order of the rows, and of the tokens asked for, whatever their batches are."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.errors import UserError
from plmjax.inference import language_model
from plmjax.inference.language_model import LanguageModel
from plmjax.objectives.objective import LossInputs
from tests.strangers import experiments


@pytest.mark.parametrize("given", [True, False])
def test_each_row_has_the_scores_of_its_last_tokens(given: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirteen rows of two widths in batches of three."""
    batches = []

    def score(task, module, loss_inputs, batch):
        batches.append(batch | {"carry": loss_inputs.carry})
        return batch["next_ids"].astype(jnp.float32), batch["next_ids"] % 2 == 0

    monkeypatch.setattr(language_model, "ROWS", 3)
    monkeypatch.setattr(language_model, "_score", score)
    model = LanguageModel.__new__(LanguageModel)
    model._task = SimpleNamespace(evaluation_carry=lambda config, rows, length: (config, rows, length))
    model._config, model._module, model._params, model.window = "config", None, {}, 40
    model.tokenizer = SimpleNamespace(vocabulary=SimpleNamespace(pad=7))
    rows = [list(range(100 * row, 100 * row + 2 + 5 * row % 23)) for row in range(1, 14)]
    counts = [1 + row % (len(tokens) - 1) for row, tokens in enumerate(rows)]
    found = model.score(rows, counts if given else None)
    for tokens, count, scores in zip(rows, counts, found, strict=True):
        asked = tokens[-count:] if given else tokens[1:]
        assert scores.nats.tolist() == asked and scores.likeliest.tolist() == [token % 2 == 0 for token in asked]
    assert {batch["input_ids"].shape for batch in batches} == {(3, 16), (3, 24)}
    for batch in batches:
        assert batch["carry"] == ("config", *batch["input_ids"].shape)
        for ids, following, weights, segments, positions in zip(
            *(batch[name] for name in ("input_ids", "next_ids", "next_weights", "segment_ids", "positions")),
            strict=True,
        ):
            number = int(ids[0]) // 100 - 1
            size = len(rows[number]) - 1
            assert ids.tolist() == [*rows[number][:-1], *[7] * (len(ids) - size)]
            repeated = (following == 7).all()  # a row that fills the batch, of which nothing is asked
            assert repeated or following[:size].tolist() == rows[number][1:]
            assert segments.tolist() == [1] * size + [0] * (len(ids) - size)
            assert positions[:size].tolist() == [*range(size)]
            wanted = np.flatnonzero(weights).tolist()
            assert wanted == [*range(size - counts[number] if given else 0, size)] or wanted == [*range(size)]


class Asked:
    """A task that scores a token by its id, in evaluations alone."""

    def score(self, module: str, loss_inputs: LossInputs, batch: dict, key: jax.Array, *, training: bool) -> tuple:
        assert module == "module" and not training
        return batch["next_ids"] + loss_inputs.params, batch["next_weights"] > 0


def test_scores_are_computed_without_dropout_and_with_what_is_before_a_text() -> None:
    batch = language_model._batch(np.array([[5, 6, 7]]), np.array([[True, True, False]]), np.array([[6, 8, 7]]))
    nats, likeliest = language_model._score(Asked(), "module", LossInputs(jnp.float32(0.5)), batch)
    assert nats.tolist() == [[6.5, 8.5, 7.5]] and likeliest.tolist() == [[True, True, False]]
    assert batch["positions"].tolist() == [[0, 1, 0]] and batch["segment_ids"].tolist() == [[1, 1, 0]]


def test_a_text_is_read_forward_after_a_token_that_begins_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The window is that of the run, or the one asked for."""
    tokenizer = SimpleNamespace(vocabulary=Vocabulary(9, end=4))
    monkeypatch.setattr(
        language_model.checkpoints, "load_parameters", lambda path: ({}, SimpleNamespace(experiment=run))
    )
    monkeypatch.setattr(language_model.start, "tokenizer_of", lambda description: tokenizer)
    monkeypatch.setattr(language_model.start, "check_parameters", lambda *given: None)
    run = experiments.gpt2()
    model = LanguageModel("run")
    assert (model.begin, model.window, LanguageModel("run", 5).window) == (4, 16, 5)
    tokenizer.vocabulary = Vocabulary(9)
    with pytest.raises(UserError, match="an end or separator token to begin a text in run, found one with neither"):
        LanguageModel("run")
    backwards = SimpleNamespace(system=SimpleNamespace(backwards=True))
    run = SimpleNamespace(model=backwards, objective=run.objective)
    with pytest.raises(UserError, match="reads a text forward, found one in run that reads it backward; name another"):
        LanguageModel("run")
