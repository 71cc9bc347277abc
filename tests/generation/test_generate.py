"""From texts to the tokens that a writer reads, and back."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data import tokenizers
from plmjax.errors import UserError
from plmjax.finetuning.tasks.text_generation import Translation
from plmjax.generation.batch_generator import Settings
from plmjax.generation.generate import Generator, Text, decoding_of
from plmjax.generation.options import Generation
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
    assert decoding_of(run) == (Generation(), "the checkpoint")
    stored = dataclasses.replace(run, generation=Generation(max_length=9))
    assert decoding_of(stored) == (Generation(max_length=9, temperature=0.0), "the checkpoint")
    warm = Generation(temperature=0.7, top_k=3)
    assert decoding_of(dataclasses.replace(run, generation=warm))[0] == warm
    task = dataclasses.replace(stored, objective=Translation(max_new_tokens=5))
    decoding, owner = decoding_of(task)
    assert (decoding.beams, decoding.max_new_tokens, owner) == (4, 5, "the task")


@pytest.mark.parametrize(
    ("stored", "strategy"),
    [(Generation(max_new_tokens=3), Greedy()), (Generation(temperature=0.7, max_new_tokens=3), Sampling(0.7))],
    ids=["greedy", "sampling"],
)
def test_a_call_without_settings_has_those_of_the_run(stored: Generation, strategy: object) -> None:
    run = dataclasses.replace(experiments.gpt2(), generation=stored)
    generator = Generator(CONFIG, parameters(), Numbers(), run=run)
    assert generator.settings.strategy == strategy
    assert generator(["11"]) == generator(["11"], Settings(strategy, max_new_tokens=3))


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


def test_what_the_tokenizer_lacks_is_counted_in_every_prompt_and_named_by_its_place(tmp_path: Path) -> None:
    words = tokenizers.train("word", 12, ["one two one two"], tmp_path / "tokenizer")
    generator = Generator(CONFIG, parameters(), words, max_unknown=0.4)
    found = generator.unknown(["one", "two three", "four"])
    assert (found.count, found.total) == (2, 4)
    lenient, settings = Generator(CONFIG, parameters(), words, max_unknown=1.0), Settings(max_new_tokens=2)
    texts = lenient(["one", "two three", "four five six"], settings)
    assert [text.unknown_tokens for (text,) in texts] == [0, 1, 3]
    generator.check(["one", "one two"], settings, ["line 1", "line 2"])
    with pytest.raises(UserError, match=r"line 2 of x, found 50\.0% .*--max_unknown \(0\.4\)"):
        generator.check(["one", "one three"], settings, ["line 1 of x", "line 2 of x"])


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
