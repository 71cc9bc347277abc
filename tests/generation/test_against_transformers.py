"""Texts and their scores against transformers' generate on the same weights."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plmjax.generation.batch_generator import BatchGenerator, Settings
from plmjax.generation.beam_search import BeamSearch
from tests.generation import model as small
from tests.generation.model import END, PROMPTS
from tests.optional import torch

NEW = 12


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> tuple[BatchGenerator, Any]:
    return small.in_both("gpt2", tmp_path_factory.mktemp("gpt2"))


def expected(model: Any, **options: Any) -> list[list[tuple[list[int], float]]]:
    """(tokens, score) of the texts that transformers writes after each prompt, or of each source."""
    found = []
    for prompt in PROMPTS:
        before = 1 if model.config.is_encoder_decoder else len(prompt)
        output = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            return_dict_in_generate=True,
            output_scores=True,
            output_logits=True,
            eos_token_id=END,
            pad_token_id=-1,
            forced_eos_token_id=None,
            bad_words_ids=None,
            do_sample=False,
            max_new_tokens=NEW,
            **options,
        )
        texts = [[token for token in row[before:].tolist() if token >= 0] for row in output.sequences]
        if "num_beams" in options:
            scores = output.sequences_scores.tolist()
        else:
            logits = torch.log_softmax(torch.stack(output.logits)[:, 0], -1)
            scores = [sum(logits[place, token].item() for place, token in enumerate(texts[0]))]
        found.append(list(zip(texts, scores, strict=True)))
    return found


def check(both: tuple[BatchGenerator, Any], settings: Settings, **options: Any) -> None:
    """That both write the same, and that not all texts are of one length."""
    writer, model = both
    written = writer(PROMPTS, settings)
    for texts, others in zip(written, expected(model, **options), strict=True):
        assert [text.tokens for text in texts] == [tokens for tokens, _ in others]
        np.testing.assert_allclose([text.score for text in texts], [score for _, score in others], rtol=1e-5)
        assert [text.stopped for text in texts] == [tokens[-1] == END for tokens, _ in others]
    assert len({len(text.tokens) for texts in written for text in texts}) > 1


TWICE = {"min_new_tokens": 5, "no_repeat_ngram_size": 2}


def test_greedy(gpt2: tuple[BatchGenerator, Any]) -> None:
    """In batches of two prompts, the last of which is filled up."""
    check(gpt2, Settings(max_new_tokens=NEW, no_repeat_ngram_size=2, batch_size=2), no_repeat_ngram_size=2)


BEAMS = {
    "likely, with constraints": (BeamSearch(4, sequences=3), TWICE, {"early_stopping": False}),
    "full": (BeamSearch(4, length_penalty=-1.0, early_stopping="full", sequences=3), {}, {"early_stopping": True}),
}
"""The third way to stop, against all texts that there are: test_search.py."""


@pytest.mark.parametrize("case", BEAMS)
def test_beams(case: str, gpt2: tuple[BatchGenerator, Any]) -> None:
    strategy, rules, options = BEAMS[case]
    options = options | {"num_beams": 4, "num_return_sequences": 3, "length_penalty": strategy.length_penalty}
    check(gpt2, Settings(strategy, max_new_tokens=NEW, **rules), **rules, **options)


ONCE = {"no_repeat_ngram_size": 1}
OF_BEAMS = {"num_beams": 4, "num_return_sequences": 3, "length_penalty": 0.6, "early_stopping": False}


@pytest.mark.nightly  # 3 s each; their texts with all settings: test_settings_of_transformers.py
@pytest.mark.parametrize("strategy", ["greedy", "beams"])
@pytest.mark.parametrize("system", ["bart", "marian", "t5"])
def test_texts_of_sources(system: str, strategy: str, tmp_path: Path) -> None:
    """The first token of the BART is forced, at no cost in the score of a beam."""
    forced = {"forced_bos_token_id": 5} if system == "bart" else {}
    beams = {"strategy": BeamSearch(4, length_penalty=0.6, sequences=3)} if strategy == "beams" else {}
    settings, both = Settings(**beams, max_new_tokens=NEW, **ONCE, **forced), small.in_both(system, tmp_path)
    check(both, settings, **(OF_BEAMS if beams else {}), **ONCE, **forced)
    first = {text.tokens[0] for texts in both[0](PROMPTS, settings) for text in texts}
    assert not forced or first == {5}
