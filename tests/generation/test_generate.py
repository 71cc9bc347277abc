"""From texts to the tokens that a writer reads, and back; settings that come first, and those without effect."""

import dataclasses
from typing import Any

import pytest

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.errors import UserError
from plmjax.finetuning.tasks.text_generation import Translation
from plmjax.generation.batch_generator import Settings, settings_of
from plmjax.generation.beam_search import BeamSearch
from plmjax.generation.constraints import Constraints
from plmjax.generation.generate import Generator, Text, default_decoding, settings_with
from plmjax.generation.options import Decoding, Generation, Options
from plmjax.generation.sampling import Greedy, Sampling
from tests.generation.model import (
    CONFIG,
    END,
    TRANSLATOR,
    Numbers,
    of_task,
    parameters,
    translator,
    translator_parameters,
    writer,
)
from tests.third_party import experiments


def test_the_settings_are_those_of_the_checkpoint_and_greedy_where_it_leaves_that_open() -> None:
    run = experiments.gpt2()
    assert default_decoding(run) == (Generation(), "the checkpoint")
    stored = dataclasses.replace(run, generation=Generation(max_length=9))
    assert default_decoding(stored) == (Generation(max_length=9, temperature=0.0), "the checkpoint")
    warm = Generation(temperature=0.7, top_k=3)
    assert default_decoding(dataclasses.replace(run, generation=warm))[0] == warm
    task = dataclasses.replace(stored, objective=Translation(max_new_tokens=5))
    decoding, owner = default_decoding(task)
    assert (decoding.beams, decoding.max_new_tokens, owner) == (4, 5, "the task")


def test_a_call_without_settings_has_those_of_the_run() -> None:
    run = dataclasses.replace(experiments.gpt2(), generation=Generation(temperature=0.7, max_new_tokens=3))
    generator = Generator(CONFIG, parameters(), Numbers(), run=run)
    assert generator(["11"]) == generator(["11"], Settings(Sampling(0.7), max_new_tokens=3))


LAYOUTS: dict[str, tuple[Any, dict[str, Any] | None, str, list[int]]] = {
    "a prompt": (CONFIG, None, "11 12", [11, 12]),
    "an empty prompt": (CONFIG, None, "", [6]),
    "a source": (TRANSLATOR, None, "11 12", [11, 12, END]),
    "a source of a task": (
        TRANSLATOR, {"sequence_length": 6, "target_length": 8, "prefix": "7 8 "}, "14 " * 9, [7, 8, *[14] * 9, END],
    ),
    "a prompt of a task": (CONFIG, {"sequence_length": 12, "target_length": 0}, "11 12", [24, 11, 12, 25]),
}  # fmt: skip
"""Case -> the model, the data of its task, a text, and the tokens that the model reads before it writes."""


@pytest.mark.parametrize("case", LAYOUTS)
def test_a_text_is_laid_out_as_the_model_or_its_task_reads_it(case: str) -> None:
    model, task, text, tokens = LAYOUTS[case]
    params, own = (parameters, writer) if model is CONFIG else (translator_parameters, translator)
    generator = Generator(model, params(), Numbers()) if task is None else of_task(model, **task)
    ((expected,),) = own()([tokens], Settings(max_new_tokens=6))
    ((found,),) = generator([text], Settings(max_new_tokens=6))
    assert generator.continues == (model is CONFIG and task is None)
    space = generator.continues * " "  # a text that goes on with its prompt has the space between them
    assert found == Text(
        text, space + Numbers().decode(expected.tokens), len(expected.tokens), expected.stopped,
        expected.log_probability, expected.score, 0,
    )  # fmt: skip


def test_characters_of_several_tokens_are_shown_whole() -> None:
    """Every token is half of a character of two bytes, the first or the second half."""

    class Halves(Numbers):
        vocabulary = Vocabulary(29, end=END)

        def decode(self, ids: list[int]) -> str:
            return bytes(0xC3 if one < 15 else 0xA9 for one in ids).decode(errors="replace")

    pieces: list[str] = []
    settings = Settings(Sampling(temperature=5.0), max_new_tokens=40, min_new_tokens=40)
    text = Generator(CONFIG, parameters(), Halves()).stream("11", settings, pieces.append)
    assert "".join(pieces) == text.text and text.tokens == len(pieces) == 40
    assert "\u00e9" in text.text and not any(piece.endswith("\ufffd") for piece in pieces[:-1])
    assert "" in pieces


BEAMS = Generation(
    beams=4, length_penalty=2.0, length_normalization="tokens", early_stopping="full", max_length=50, min_length=9,
    no_repeat_ngram_size=3,
)  # fmt: skip


STORED = [
    (Options(), Generation(), Sampling()),
    (Options(length_penalty=0.5), BEAMS, BeamSearch(4, length_penalty=0.5, early_stopping="full")),
    (Options(beams=2), BEAMS, BeamSearch(2, length_penalty=2.0, early_stopping="full")),
    (Options(beams=1), BEAMS, Greedy()),
    (Options(temperature=0.5, sequences=2), BEAMS, Sampling(temperature=0.5, sequences=2)),
    (Options(top_p=0.5), Generation(temperature=0.0), Sampling(top_p=0.5)),
    (Options(temperature=0.0), Generation(top_k=5, top_p=0.5), Greedy()),
]
LENGTHS = [
    (Options(), BEAMS, {1: (8, 49), 5: (4, 45), 9: (0, 41), 10: (0, 40), 49: (0, 1)}),
    (Options(max_new_tokens=5), BEAMS, {1: (5, 5), 50: (0, 5)}),
    (Options(max_new_tokens=5), Generation(min_new_tokens=9), {1: (5, 5)}),
    (Options(max_length=12), Generation(max_new_tokens=20, min_new_tokens=9), {2: (9, 10)}),
    (Options(min_length=5), Generation(max_new_tokens=20, min_new_tokens=9), {2: (3, 20)}),
    (Options(), Generation(), {1: (0, 64)}),
]
"""Options, stored settings, and tokens before a text -> the least and the most tokens of it."""


def test_options_take_the_place_of_stored_settings() -> None:
    """Those of another way to choose tokens, or of lengths that are counted in another way, are left out."""
    for options, stored, strategy in STORED:
        assert settings_with(options, stored).strategy == strategy
    for options, stored, lengths in LENGTHS:
        assert {before: settings_with(options, stored).lengths(before) for before in lengths} == lengths


def test_the_constraints_are_those_of_the_settings() -> None:
    """The tokens are the tokenizer's, of a table with two rows more; its own end gives way to the ends asked for.

    A token that ends texts is never banned by itself.
    """
    settings = Settings(
        no_repeat_ngram_size=2, repetition_penalty=1.5, bad_words_ids=("1", "0", "2,3"), forced_bos_token_id=2,
        forced_eos_token_id=3, renormalize_logits=True, eos_token_id=(0, 2),
    )  # fmt: skip
    assert settings.constraints(Vocabulary(4, end=1), 6) == Constraints(
        tokens=4, stop=(0, 2), no_repeat_ngram_size=2, repetition_penalty=1.5, bad_words=((1,), (2, 3)), first=2,
        last=3, renormalize=True,
    )  # fmt: skip
    none = {"bad_words_ids": ("none",), "forced_bos_token_id": -1}
    assert Settings(**none).constraints(Vocabulary(4, end=1), 6) == Constraints(tokens=4, stop=(1,))
    assert Settings().constraints(Vocabulary(4), 6) == Constraints(tokens=4)


def test_a_beams_option_asks_for_a_beam_search_that_a_task_has_by_default() -> None:
    asked = Decoding(length_penalty=1.0).with_defaults(Generation(temperature=0.0))
    task = asked.with_defaults(Decoding(beams=3, length_penalty=0.6))
    assert settings_of(task).strategy == BeamSearch(3, length_penalty=1.0)


def test_a_source_and_its_text_fit_the_positions() -> None:
    for source, new, names in ((49, 4, "encoder's 48 .*found 49"), (1, 48, "--max_new_tokens of at most 47.*found 48")):
        translator().check([[1] * 48], Settings(max_new_tokens=47))
        with pytest.raises(UserError, match=names):
            translator().check([[1] * source], Settings(max_new_tokens=new))
