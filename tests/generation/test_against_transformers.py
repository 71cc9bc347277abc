"""Texts and their scores against transformers' generate on the same weights."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.generation.batch_generator import BatchGenerator, Settings
from plmjax.generation.beam_search import BeamSearch
from plmjax.interop import huggingface
from tests.generation.model import (
    BART,
    CONFIG,
    END,
    PROMPTS,
    T5,
    TRANSLATOR,
    VOCABULARY,
    bart_parameters,
    parameters,
    t5_parameters,
    translator_parameters,
    writer,
)
from tests.optional import torch, transformers

NEW = 12


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """transformers' model with the parameters of `writer`."""
    folder = tmp_path_factory.mktemp("reference")
    huggingface.save(CONFIG.module(Purpose.CAUSAL_LM, Execution()), parameters(), folder)
    return transformers.GPT2LMHeadModel.from_pretrained(folder).eval()


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


def check(settings: Settings, model: Any, ours: BatchGenerator | None = None, **options: Any) -> None:
    """That both write the same, and that not all texts are of one length."""
    written = (ours or writer())(PROMPTS, settings)
    for texts, others in zip(written, expected(model, **options), strict=True):
        assert [text.tokens for text in texts] == [tokens for tokens, _ in others]
        np.testing.assert_allclose([text.score for text in texts], [score for _, score in others], rtol=1e-5)
        assert [text.stopped for text in texts] == [tokens[-1] == END for tokens, _ in others]
    assert len({len(text.tokens) for texts in written for text in texts}) > 1


GREEDY = [pytest.param(one, marks=pytest.mark.nightly) for one in ({}, {"min_new_tokens": 5})]


@pytest.mark.parametrize("options", [*GREEDY, {"no_repeat_ngram_size": 2}], ids=str)
def test_greedy(options: dict[str, int], reference: Any) -> None:
    check(Settings(max_new_tokens=NEW, **options), reference, **options)


BEAMS = {
    "likely": (BeamSearch(4, sequences=3), {"early_stopping": False}),
    "full": (BeamSearch(4, length_penalty=-1.0, early_stopping="full", sequences=3), {"early_stopping": True}),
    "never": (BeamSearch(4, early_stopping="never", sequences=3), {"early_stopping": "never"}),
}


@pytest.mark.parametrize("case", [pytest.param("likely", marks=pytest.mark.nightly), "full", "never"])
def test_beams(case: str, reference: Any) -> None:
    strategy, options = BEAMS[case]
    options |= {"num_beams": 4, "num_return_sequences": 3, "length_penalty": strategy.length_penalty}
    check(Settings(strategy, max_new_tokens=NEW), reference, **options)


def test_beams_with_constraints(reference: Any) -> None:
    options = {"min_new_tokens": 5, "no_repeat_ngram_size": 2}
    settings = Settings(BeamSearch(3, sequences=3), max_new_tokens=NEW, **options)
    check(settings, reference, num_beams=3, num_return_sequences=3, **options)


ONCE = {"no_repeat_ngram_size": 1}
OF_BEAMS = {"num_beams": 4, "num_return_sequences": 3, "length_penalty": 0.6, "early_stopping": False}
SYSTEMS = {
    "marian": (TRANSLATOR, translator_parameters, "MarianMTModel", {}),
    "t5": (T5, t5_parameters, "T5ForConditionalGeneration", {}),
    # Its first token is forced, at no cost in the score of a beam.
    "bart": (BART, bart_parameters, "BartForConditionalGeneration", {"forced_bos_token_id": 5}),
}


@pytest.mark.nightly  # 3 s each; their texts with all settings: test_settings_of_transformers.py
@pytest.mark.parametrize("strategy", ["greedy", "beams"])
@pytest.mark.parametrize("system", SYSTEMS)
def test_texts_of_sources(system: str, strategy: str, tmp_path: Path) -> None:
    config, params, kind, forced = SYSTEMS[system]
    huggingface.save(config.module(Purpose.CAUSAL_LM, Execution()), params(), tmp_path)
    model, ours = (
        getattr(transformers, kind).from_pretrained(tmp_path).eval(),
        BatchGenerator(config, params(), VOCABULARY),
    )
    beams = {"strategy": BeamSearch(4, length_penalty=0.6, sequences=3)} if strategy == "beams" else {}
    settings = Settings(**beams, max_new_tokens=NEW, **ONCE, **forced)
    check(settings, model, ours, **(OF_BEAMS if beams else {}), **ONCE, **forced)
    first = {text.tokens[0] for texts in ours(PROMPTS, settings) for text in texts}
    assert not forced or first == {5}
