"""Texts by a generation_config.json, token by token against transformers' generate with the same file."""

import functools
import itertools
from typing import Any

import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.generation.batch_generator import BatchGenerator, settings_of
from plmjax.interop import generation_settings, huggingface
from tests.generation import model as small
from tests.optional import torch, transformers

SYSTEMS = {
    "bart": (small.BART, small.bart_parameters, "BartForConditionalGeneration"),
    "marian": (small.TRANSLATOR, small.translator_parameters, "MarianMTModel"),
    "t5": (small.T5, small.t5_parameters, "T5ForConditionalGeneration"),
    "gpt2": (small.CONFIG, small.parameters, "GPT2LMHeadModel"),
}
WITH_END = {"eos_token_id": small.END, "pad_token_id": 28, "max_new_tokens": 12}
"""The tests' GPT-2 has no token of either kind; every text ends."""
ALONE = {
    "forced_eos": {"forced_eos_token_id": small.END, "max_new_tokens": 4},
    "forced_bos": {"forced_bos_token_id": 5},
    "bad_words": {},  # of the texts that are written without
    "ngrams": {"no_repeat_ngram_size": 2},
    "repetition": {"repetition_penalty": 1.4},
    "new_tokens": {"min_new_tokens": 3, "max_new_tokens": 6},
    "lengths": {"min_length": 8, "max_length": 14, "max_new_tokens": None},
}
TOGETHER = {
    "bad_words_ids": [[28], [11], [19, 4]], "forced_bos_token_id": 5, "forced_eos_token_id": small.END,
    "max_length": 13, "max_new_tokens": None, "min_length": 4, "no_repeat_ngram_size": 3, "renormalize_logits": True,
    "repetition_penalty": 1.2,
}  # fmt: skip
STRATEGIES = {
    "greedy": {"do_sample": False, "num_beams": 1},
    "beams": {"num_beams": 3, "length_penalty": 2.0, "early_stopping": True},
}


@functools.cache
def ours(system: str) -> BatchGenerator:
    config, parameters, _ = SYSTEMS[system]
    return BatchGenerator(config, parameters(), small.VOCABULARY)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """System -> transformers' model with the same parameters."""

    @functools.cache
    def of(system: str) -> Any:
        config, parameters, kind = SYSTEMS[system]
        folder = tmp_path_factory.mktemp(system)
        huggingface.save(config.module(Purpose.CAUSAL_LM, Execution()), parameters(), folder)
        return getattr(transformers, kind).from_pretrained(folder).eval()

    return of


def check(system: str, file: dict[str, Any], model: Any) -> list[list[int]]:
    """That both write the same texts by the file; returns them."""
    file = {name: value for name, value in (WITH_END | file).items() if value is not None}
    config = SYSTEMS[system][0]
    whole = config.decoder_start_token_id is None
    read = generation_settings.read(file, {}, whole=whole, end=small.END)
    assert not read.unsupported
    texts = [text.tokens for (text,) in ours(system)(small.PROMPTS, settings_of(read.generation))]
    if not whole:
        file = file | {"decoder_start_token_id": config.decoder_start_token_id}
    expected = []
    for prompt in small.PROMPTS:
        row = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            generation_config=transformers.GenerationConfig(**file),
        )[0, len(prompt) if whole else 1 :].tolist()
        expected.append(row)
    assert texts == expected
    return texts


def plain(system: str, strategy: str) -> list[list[int]]:
    """The texts that we write without any of the settings."""
    file, whole = WITH_END | STRATEGIES[strategy], system == "gpt2"
    read = generation_settings.read(file, {}, whole=whole, end=small.END)
    return [text.tokens for (text,) in ours(system)(small.PROMPTS, settings_of(read.generation))]


# T5 and the two others read a source and write from the same token on; two programs of 3 to 5 s each for those, and for
# beams, whose texts test_against_transformers.py has: pytest -m nightly tests/generation
@pytest.mark.parametrize(
    ("system", "strategy"),
    [
        pytest.param(*case, marks=() if case == ("t5", "greedy") else pytest.mark.nightly)
        for case in itertools.product(SYSTEMS, STRATEGIES)
    ],
)
def test_all_settings_together(system: str, strategy: str, theirs: Any) -> None:
    texts = check(system, TOGETHER | STRATEGIES[strategy], theirs(system))
    assert texts != plain(system, strategy)
    if system != "gpt2":  # whose prompts have more than one token
        assert {text[0] for text in texts} == {5}


# 28 programs to compile; test_constraints compares every setting alone at the scores, in milliseconds.
@pytest.mark.nightly
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("setting", ALONE)
@pytest.mark.parametrize("system", ["bart", "gpt2"])
def test_each_setting_alone(system: str, setting: str, strategy: str, theirs: Any) -> None:
    without, case = plain(system, strategy), ALONE[setting]
    if setting == "bad_words":
        case = {"bad_words_ids": [[small.END], without[0][:1], without[1][:2], without[2][1:4]]}
    assert check(system, case | STRATEGIES[strategy], theirs(system)) != without
