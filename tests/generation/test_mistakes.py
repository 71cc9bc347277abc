"""Every mistake of whoever generates text is one sentence: (what was given, what the sentence names)."""

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plmjax.commands.generate import settings_with
from plmjax.contracts.execution import Execution
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.errors import UserError
from plmjax.experiment import Mesh
from plmjax.finetuning.tasks.text_generation import Translation
from plmjax.generation.batch_generator import BatchGenerator, Settings, settings_of
from plmjax.generation.beam_search import BeamSearch
from plmjax.generation.generate import Generator, generate
from plmjax.generation.options import Decoding, Generation, Options
from plmjax.models.bert import BertConfig
from plmjax.models.ulmfit import UlmfitConfig
from tests.finetuning import parity
from tests.generation.model import AWD_LSTM, CONFIG, VOCABULARY, of_task, parameters, translator, writer

OUT_OF_RANGE = (
    "--temperature -1", "--temperature nan", "--top_k -1", "--top_p 0", "--top_p 1.1", "--sequences 0", "--beams 0",
    "--max_new_tokens 0", "--min_new_tokens -1", "--min_new_tokens 65", "--no_repeat_ngram_size -1", "--seed -1",
    "--seed 4294967296", "--repetition_penalty 0", "--bad_words_ids x", "--bad_words_ids \u00b2", "--max_length 0",
    "--min_length -1", "--forced_eos_token_id -2", "--forced_bos_token_id -2", "--eos_token_id -1", "--batch_size 0",
    "--beams 2 --sequences 3", "--beams 2 --length_penalty inf", "--mesh.tensor 64", "--max_unknown 2",
    "--max_new_tokens 7 --min_new_tokens 8", "--max_length 7 --min_length 8",
)  # fmt: skip
WITHOUT_EFFECT = (
    "--beams 2 --temperature 1", "--beams 2 --seed 1", "--length_penalty 2", "--early_stopping full",
    "--temperature 0 --top_k 2", "--temperature 0 --top_p 0.5", "--temperature 0 --sequences 2",
    "--temperature 0 --seed 1", "--beams 1 --length_penalty 2", "--beams 1 --sequences 2",
)  # fmt: skip


@pytest.mark.parametrize("options", OUT_OF_RANGE + WITHOUT_EFFECT)
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
    "no file": (["--input", "absent"], ("{}/absent", "no file")),
    "no text": (["--input", "binary"], ("{}/binary",)),
    "empty file": (["--input", "empty"], ("{}/empty",)),
    "no folder for the output": (["a", "--output", "absent/x.jsonl"], ("--output", "{}/absent")),
}


@pytest.mark.parametrize("case", PROMPTS)
def test_prompts(case: str, fails: Callable, tmp_path: Path, decoder_run: Path) -> None:
    (tmp_path / "long.txt").write_text(f"The class\n{LONG}\n")
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    (tmp_path / "empty").write_bytes(b"")
    given, names = PROMPTS[case]
    files = ("long.txt", "absent", "binary", "empty", "absent/x.jsonl")
    said = fails("generate", decoder_run, *(tmp_path / one if one in files else one for one in given))
    for name in names:
        assert name.format(tmp_path) in said


@pytest.mark.parametrize(
    ("given", "names"), [(b"", "none"), (b"\xff\xfe", "the standard input")], ids=["none", "bytes"]
)
def test_the_standard_input(given: bytes, names: str, fails: Callable, monkeypatch, decoder_run: Path) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
    assert names in fails("generate", decoder_run, "--input", "-")


class Bare(parity.Numbers):
    vocabulary = Vocabulary(CONFIG.vocab_size)


PYTHON: dict[str, tuple[Callable[[], Any], str]] = {
    "an encoder": (lambda: BatchGenerator(BertConfig.tiny(), {}, VOCABULARY), "writes text.*BertConfig"),
    "a model that reads from the end": (
        lambda: BatchGenerator(UlmfitConfig.tiny(vocab_size=29, backwards=True), {}, VOCABULARY),
        "writes text.*UlmfitConfig.*from their end",
    ),
    "a language model alone that translates": (
        lambda: Translation().module(AWD_LSTM, Execution()),
        "writes a text given another.*AwdLstmConfig",
    ),
    "too many devices": (
        lambda: BatchGenerator(CONFIG, parameters(), VOCABULARY, mesh=Mesh(data=1, fsdp=1, tensor=64)),
        "mesh.tensor",
    ),
    "an empty prompt": (
        lambda: writer().check([[5], []], Settings(max_new_tokens=4), ["line 1", "line 2"]),
        "at least one token in line 2",
    ),
    "no token to begin with": (
        lambda: Generator(CONFIG, parameters(), Bare()).check(["11", ""], Settings(), ["line 1", "line 2"]),
        "line 2.*token between documents",
    ),
    "a source with its prefix": (
        lambda: of_task(CONFIG, sequence_length=12, target_length=0, prefix="7 8 ")(["7 8 9"]),
        r"--data\.prefix '7 8 '.*line 1 of the prompts",
    ),
    "an empty source": (lambda: of_task(CONFIG, sequence_length=12, target_length=0)([""]), "a text to read"),
    "a source too long": (lambda: translator()([[1] * 49], Settings(max_new_tokens=4)), "encoder's 48 .*found 49"),
    "a text of a source too long": (
        lambda: translator()([[1]], Settings(max_new_tokens=48)),
        "--max_new_tokens of at most 47.*found 48",
    ),
    "several texts shown at once": (lambda: next(writer().stream([5], Settings(BeamSearch()))), "BeamSearch"),
    "one beam": (lambda: BeamSearch(beams=1), "--beams.*found 1.*--temperature 0"),
    "a prompt as long as the text": (
        lambda: settings_of(Generation(max_length=50, min_length=9)).lengths(before=50),
        "--max_length above the 50 .*found 50",
    ),
    "more tokens than the default": (
        lambda: settings_of(Decoding(min_new_tokens=65)).lengths(before=1),
        "--min_new_tokens of at most the 64 .*found 65",
    ),
    "a seed with a stored greedy search": (
        lambda: settings_with(Options(seed=1), Generation(temperature=0.0)),
        "no --seed with --temperature 0",
    ),
    "a penalty with a stored greedy search": (
        lambda: settings_with(Options(length_penalty=1.0), Generation(temperature=0.0)),
        "no --length_penalty with no --beams",
    ),
    "ids that the model lacks": (
        lambda: Settings(bad_words_ids=("1", "2,3")).constraints(Vocabulary(3, end=1), 3),
        "model's 3 .*found 3",
    ),
    "a negative seed": (lambda: Settings(seed=-1), "--seed.*found -1"),
}


@pytest.mark.parametrize("case", PYTHON)
def test_calls(case: str) -> None:
    call, names = PYTHON[case]
    with pytest.raises(UserError, match=names):
        call()


@pytest.mark.parametrize(
    ("load", "names"),
    [
        (lambda run: generate(run, ["a"], mesh=Mesh(data=1, fsdp=1, tensor=64)), "mesh.tensor"),
        (lambda run: Generator.load(run, max_unknown=2), "--max_unknown from 0 to 1.*2"),
    ],
    ids=["devices", "share"],
)
def test_a_checkpoint(load: Callable[[Path], Any], names: str, decoder_run: Path) -> None:
    with pytest.raises(UserError, match=names):
        load(decoder_run)
