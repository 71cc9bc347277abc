"""Scores of rows: in the order of the rows, and of the tokens asked for, whatever their batches are."""

import numpy as np
import pytest

from plmjax.inference import language_model
from plmjax.inference.language_model import LanguageModel
from tests.small_runs import DECODER_ROW


@pytest.mark.parametrize("given", [True, False])
def test_each_row_has_the_scores_of_its_last_tokens(given: bool, decoder_run, oracle, monkeypatch) -> None:
    """Thirteen rows of two widths in batches of three, as transformers scores each alone, without dropout."""
    monkeypatch.setattr(language_model, "ROWS", 3)
    model, draws = LanguageModel(decoder_run), np.random.default_rng(0)
    rows = [draws.integers(5, 300, 2 + 5 * row % 23).tolist() for row in range(1, 14)]
    counts = [1 + row % (len(tokens) - 1) for row, tokens in enumerate(rows)]
    found = model.score(rows, counts if given else None)
    for tokens, count, scores in zip(rows, counts, found, strict=True):
        asked = count if given else len(tokens) - 1
        expected = oracle(tokens[:-1])[-asked:]
        np.testing.assert_allclose(scores.nats, -expected[range(asked), tokens[-asked:]], rtol=1e-5, atol=1e-5)
        assert scores.likeliest.tolist() == (expected.argmax(axis=-1) == tokens[-asked:]).tolist()


def test_a_text_is_read_after_a_token_that_begins_it_in_the_window_of_the_run_or_that_asked_for(decoder_run) -> None:
    model = LanguageModel(decoder_run)
    assert model.begin == model.tokenizer.vocabulary.document_end >= 0
    assert (model.window, LanguageModel(decoder_run, 5).window) == (DECODER_ROW, 5)
