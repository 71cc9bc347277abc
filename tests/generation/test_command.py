"""plmjax generate: what it shows and writes, and every mistake in one sentence."""

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plmjax.commands import cli
from plmjax.commands import generate as command
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.errors import UserError
from plmjax.generation.batch_generator import BatchGenerator, Settings, settings_of
from plmjax.generation.beam_search import BeamSearch
from plmjax.generation.generate import Generator, printable
from plmjax.generation.options import Generation, Options
from plmjax.models.bert import BertConfig
from plmjax.models.ulmfit import UlmfitConfig
from tests.finetuning import parity
from tests.generation.model import CONFIG, VOCABULARY, of_task, parameters, writer

SHORT = ["--max_new_tokens", "8"]


def shown(capsys: pytest.CaptureFixture, *arguments: object) -> str:
    capsys.readouterr()
    cli.run(["generate", *map(str, arguments)])
    return capsys.readouterr().out


def test_several_texts_are_shown_each_with_its_score(capsys, monkeypatch, decoder_run: Path) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Returns the\r\n")))
    beams = shown(
        capsys, decoder_run, "--input", "-", "--max_new_tokens", 2, "--beams", 3, "--sequences", 2
    ).splitlines()
    scores = [float(line.split()[0]) for line in beams if "  Returns the" in line]
    assert len(scores) == 2 and scores == sorted(scores, reverse=True)


def test_nothing_is_shown_before_every_prompt_fits(capsys, tmp_path: Path, decoder_run: Path) -> None:
    (tmp_path / "prompts.txt").write_text("The class\n" + "The class " * 30 + "\n")
    capsys.readouterr()
    with pytest.raises(UserError, match="at most the model's 64 positions together"):
        command.generate(decoder_run, input=tmp_path / "prompts.txt")
    assert not capsys.readouterr().out


def test_prompts_are_one_text_or_the_lines_of_a_file_or_of_the_standard_input(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "prompts.txt").write_text("one\n\nand two\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("one\r\n\nand tw\u00f6".encode())))
    assert command.prompts_of("one\ntwo", None) == ["one\ntwo"]
    assert command.prompts_of(None, tmp_path / "prompts.txt") == ["one", "", "and two"]
    assert command.prompts_of(None, Path("-")) == ["one", "", "and tw\u00f6"]


def test_control_characters_do_not_reach_the_terminal(capsys, decoder_run: Path) -> None:
    said = shown(capsys, decoder_run, "Returns\x1b[2J\tthe\x07", *SHORT, "--temperature", 0)
    assert said.startswith("Returns\\x1b[2J\tthe\\x07") and "\x1b" not in said
    assert printable("a\x9bb\x7f\r\n") == "a\\x9bb\\x7f\\x0d\n"


def test_one_line_names_what_is_in_force() -> None:
    stored = Generation(temperature=0.0, repetition_penalty=1.5)
    assert command.in_force(Options(max_new_tokens=20), stored, "the task") == (
        "decoding   repetition_penalty 1.5, temperature 0 of the task; max_new_tokens 20 of the command line"
    )
    assert command.in_force(Options(), Generation(), "here") == "decoding   temperature 1, max_new_tokens 64 by default"


OPTIONS = (
    # out of range
    "--temperature nan", "--top_k -1", "--top_p 0", "--top_p 1.1", "--sequences 0", "--max_new_tokens 0",
    "--min_new_tokens 65", "--seed -1", "--seed 4294967296", "--repetition_penalty 0", "--bad_words_ids x",
    "--bad_words_ids \u00b2", "--eos_token_id -1", "--beams 2 --sequences 3", "--beams 2 --length_penalty inf",
    "--max_unknown 2", "--max_new_tokens 7 --min_new_tokens 8", "--max_length 7 --min_length 8",
    # without effect
    "--beams 2 --temperature 1", "--beams 2 --seed 1", "--length_penalty 2", "--temperature 0 --top_k 2",
    "--temperature 0 --sequences 2", "--temperature 0 --seed 1", "--beams 1 --sequences 2",
)  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS)
def test_options(options: str, fails: Callable, decoder_run: Path) -> None:
    assert options.split()[-2] in fails("generate", decoder_run, "a", *options.split())


LONG = "The class " * 30
PROMPTS = {
    "too long": ([LONG], ("64 positions", "64 tokens")),
    "with its text too long": (["The"], ("64 positions", "and 64 tokens")),
    "too long in a file": (["--input", "long.txt", "--max_new_tokens", 8], ("64 positions", "line 2 of {}/long.txt")),
    "none": ([], ("neither",)),
    "text and file": (["a", "--input", "absent"], ("both",)),
    "without quotes": (["a", "b", "c"], ("found 'b'", "quotes")),
    "no text": (["--input", "binary"], ("{}/binary",)),
    "empty file": (["--input", "empty"], ("{}/empty",)),
}


@pytest.mark.parametrize("case", PROMPTS)
def test_prompts(case: str, fails: Callable, tmp_path: Path, decoder_run: Path) -> None:
    (tmp_path / "long.txt").write_text(f"The class\n{LONG}\n")
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    (tmp_path / "empty").write_bytes(b"")
    given, names = PROMPTS[case]
    files = ("long.txt", "absent", "binary", "empty")
    said = fails("generate", decoder_run, *(tmp_path / one if one in files else one for one in given))
    for name in names:
        assert name.format(tmp_path) in said


class Bare(parity.Numbers):
    vocabulary = Vocabulary(CONFIG.vocab_size)


TASK = {"sequence_length": 12, "target_length": 0}
PYTHON: list[tuple[Callable[[], Any], str]] = [
    (lambda: BatchGenerator(BertConfig.tiny(), {}, VOCABULARY), "writes text.*BertConfig"),
    (lambda: BatchGenerator(UlmfitConfig.tiny(vocab_size=29, backwards=True), {}, VOCABULARY), "Ulmfit.*their end"),
    (lambda: writer().check([[5], []], Settings(max_new_tokens=4), ["line 1", "line 2"]), "one token in line 2"),
    (lambda: Generator(CONFIG, parameters(), Bare()).check(["11", ""], Settings(), ["line 1", "line 2"]),
     "line 2.*token between documents"),
    (lambda: of_task(CONFIG, **TASK, prefix="7 8 ")(["7 8 9"]), r"--data\.prefix '7 8 '.*line 1 of the prompts"),
    (lambda: of_task(CONFIG, **TASK)([""]), "a text to read"),
    (lambda: next(writer().stream([5], Settings(BeamSearch()))), "BeamSearch"),
    (lambda: settings_of(Generation(max_length=50, min_length=9)).lengths(before=50), "above the 50 .*found 50"),
    (lambda: command.settings_with(Options(seed=1), Generation(temperature=0.0)), "no --seed with --temperature 0"),
    (lambda: Settings(bad_words_ids=("1", "2,3")).constraints(Vocabulary(3, end=1), 3), "model's 3 .*found 3"),
]  # fmt: skip


def test_calls() -> None:
    for call, names in PYTHON:
        with pytest.raises(UserError, match=names):
            call()
