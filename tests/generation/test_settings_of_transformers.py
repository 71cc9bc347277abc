"""Texts by a generation_config.json, token by token against transformers' generate with the same file."""

import itertools
from pathlib import Path

import pytest

from plmjax.generation.batch_generator import settings_of
from plmjax.interop import generation_settings
from tests.generation import model as small
from tests.optional import torch, transformers

WITH_END = {"eos_token_id": small.END, "pad_token_id": 28, "max_new_tokens": 12}
"""The tests' GPT-2 has no token of either kind; every text ends."""
TOGETHER = {
    "bad_words_ids": [[28], [11], [19, 4]], "forced_bos_token_id": 5, "forced_eos_token_id": small.END,
    "max_length": 13, "max_new_tokens": None, "min_length": 4, "no_repeat_ngram_size": 3, "renormalize_logits": True,
    "repetition_penalty": 1.2,
}  # fmt: skip
STRATEGIES = {
    "greedy": {"do_sample": False, "num_beams": 1},
    "beams": {"num_beams": 3, "length_penalty": 2.0, "early_stopping": True},
}


# T5 and the two others read a source and write from the same token on; two programs of 3 to 5 s each for those, and for
# beams, whose texts test_against_transformers.py has: pytest -m nightly tests/generation
@pytest.mark.parametrize(
    ("system", "strategy"),
    [
        pytest.param(*case, marks=() if case == ("t5", "greedy") else pytest.mark.nightly)
        for case in itertools.product(small.SYSTEMS, STRATEGIES)
    ],
)
def test_all_settings_together(system: str, strategy: str, tmp_path: Path) -> None:
    writer, model = small.in_both(system, tmp_path)
    file = {name: value for name, value in (WITH_END | TOGETHER | STRATEGIES[strategy]).items() if value is not None}
    start = small.SYSTEMS[system][0].decoder_start_token_id
    read = generation_settings.read(file, {}, whole=start is None, end=small.END)
    assert not read.unsupported
    texts = [text.tokens for (text,) in writer(small.PROMPTS, settings_of(read.generation))]
    theirs = transformers.GenerationConfig(**file, **({} if start is None else {"decoder_start_token_id": start}))
    for prompt, text in zip(small.PROMPTS, texts, strict=True):
        given = {"attention_mask": torch.ones(1, len(prompt), dtype=torch.long), "generation_config": theirs}
        row = model.generate(torch.tensor([prompt]), **given)[0].tolist()
        assert row[len(prompt) if start is None else 1 :] == text
        assert not {28, 11} & {*text}
        assert start is None or text[0] == 5  # the prompts of a GPT-2 have more than one token
