"""Texts and their scores against transformers' generate on the same weights."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from plmjax.generation.beam_search import BeamSearch
from plmjax.generation.writer import Settings, Writer
from plmjax.layers.execution import Execution
from plmjax.models.gpt2 import Gpt2Config
from plmjax.vocabulary import Vocabulary
from tests.generation.reference import transformers_gpt2

CONFIG = Gpt2Config(vocab_size=29, n_positions=48, n_embd=24, n_layer=2, n_head=3, initializer_range=0.3)
"""Initial weights so large that the scores of tokens differ clearly."""
PROMPTS = [[5, 9, 2, 7, 7], [11], [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]]
END = 0


@functools.cache
def model() -> tuple[Any, Any]:
    """The parameters, and transformers' model with them."""
    module = CONFIG.for_generation(Execution())
    params = nn.meta.unbox(module.init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32)))["params"]
    positions = params["gpt2"]["position_embeddings"]
    positions["embedding"] = 60 * positions["embedding"]  # otherwise every text soon repeats one token
    return params, transformers_gpt2(CONFIG, params)


def expected(**options: Any) -> list[list[tuple[list[int], float]]]:
    """(tokens, score) of the texts that transformers writes after each prompt."""
    found = []
    for prompt in PROMPTS:
        output = model()[1].generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            return_dict_in_generate=True,
            output_scores=True,
            output_logits=True,
            eos_token_id=END,
            pad_token_id=-1,
            do_sample=False,
            **options,
        )
        texts = [[token for token in row[len(prompt) :].tolist() if token >= 0] for row in output.sequences]
        if "num_beams" in options:
            scores = output.sequences_scores.tolist()
        else:
            logits = torch.log_softmax(torch.stack(output.logits)[:, 0], -1)
            scores = [sum(logits[place, token].item() for place, token in enumerate(texts[0]))]
        found.append(list(zip(texts, scores, strict=True)))
    return found


def check(settings: Settings, **options: Any) -> None:
    """That both write the same, and that the texts are not all of the greatest length."""
    writer = Writer(CONFIG, model()[0], Vocabulary(size=CONFIG.vocab_size, end=END))
    written, wanted = writer(PROMPTS, settings), expected(max_new_tokens=settings.max_new_tokens, **options)
    for texts, others in zip(written, wanted, strict=True):
        assert [text.tokens for text in texts] == [tokens for tokens, _ in others]
        np.testing.assert_allclose([text.score for text in texts], [score for _, score in others], rtol=1e-5)
        assert [text.stopped for text in texts] == [tokens[-1] == END for tokens, _ in others]
    assert len({len(text.tokens) for texts in written for text in texts}) > 1


GREEDY = {
    "plain": (Settings(max_new_tokens=12), {}),
    "at least": (Settings(max_new_tokens=12, min_new_tokens=5), {"min_new_tokens": 5}),
    "no repeats": (Settings(max_new_tokens=12, no_repeat_ngram_size=2), {"no_repeat_ngram_size": 2}),
}


@pytest.mark.parametrize("case", GREEDY)
def test_greedy(case: str) -> None:
    settings, options = GREEDY[case]
    check(settings, **options)


BEAMS = {
    "likely": ({}, {}),
    "full": ({"early_stopping": "full", "length_penalty": -1.0}, {"early_stopping": True}),
    "never": ({"early_stopping": "never"}, {}),
}


@pytest.mark.parametrize("case", BEAMS)
def test_beams(case: str) -> None:
    own, others = BEAMS[case]
    own = {"beams": 4, "sequences": 3} | own
    others = own | others
    options = {"num_beams": others.pop("beams"), "num_return_sequences": others.pop("sequences"), **others}
    check(Settings(BeamSearch(**own), max_new_tokens=12), **options)


def test_beams_with_constraints() -> None:
    settings = Settings(BeamSearch(3, sequences=3), max_new_tokens=12, min_new_tokens=5, no_repeat_ngram_size=2)
    check(settings, num_beams=3, num_return_sequences=3, min_new_tokens=5, no_repeat_ngram_size=2)
