"""plmjax generate: what it shows and writes, and every mistake in one sentence."""

import io
import json
import sys
from pathlib import Path

import pytest

from plmjax.commands import cli
from plmjax.commands import generate as command
from plmjax.errors import UserError
from plmjax.generation.generate import Generator, generate, printable
from plmjax.generation.options import Options

SHORT = ["--max_new_tokens", "8"]


def shown(capsys: pytest.CaptureFixture, *arguments: object) -> str:
    capsys.readouterr()
    cli.run(["generate", *map(str, arguments)])
    return capsys.readouterr().out


@pytest.mark.nightly
def test_the_terminal_shows_the_text_of_the_seed(capsys, decoder_run: Path) -> None:
    first = shown(capsys, decoder_run, "Returns the", *SHORT)
    assert first.startswith("Returns the") and first.endswith("\n") and len(first) > 14
    assert shown(capsys, decoder_run, "Returns the", *SHORT, "--seed", 0) == first
    assert shown(capsys, decoder_run, "Returns the", *SHORT, "--seed", 1) != first
    ((text,),) = generate(decoder_run, ["Returns the"], temperature=1.0, max_new_tokens=8)
    assert printable(text.prompt + text.text + "\n") == first


@pytest.mark.nightly
def test_files(capsys, tmp_path: Path, decoder_run: Path) -> None:
    prompts = ["Returns the", "", "The object of a class"]
    (tmp_path / "prompts.txt").write_text("\n".join(prompts) + "\n")
    common = [decoder_run, "--input", tmp_path / "prompts.txt", *SHORT]
    shown(capsys, *common, "--output", tmp_path / "texts.jsonl", "--temperature", 0)
    records = [json.loads(line) for line in (tmp_path / "texts.jsonl").read_text().splitlines()]
    assert [record["prompt"] for record in records] == prompts
    for record in records:
        assert record.keys() == {"prompt", "text", "tokens", "stopped", "log_probability", "score", "unknown_tokens"}
        assert 1 <= record["tokens"] <= 8 and record["score"] == record["log_probability"] < 0
    streamed = shown(capsys, *common, "--temperature", 0)
    assert streamed == printable("".join(record["prompt"] + record["text"] + "\n" for record in records))


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


def test_ctrl_c_ends_the_line_of_the_text(monkeypatch, capsys, decoder_run: Path) -> None:
    def stopped(self, prompt, settings, show):
        show(" a beginning")
        raise KeyboardInterrupt

    monkeypatch.setattr(Generator, "stream", stopped)
    capsys.readouterr()
    with pytest.raises(KeyboardInterrupt):
        command.generate(decoder_run, prompt="The class", writing=Options(max_new_tokens=8))
    assert capsys.readouterr().out == "The class a beginning\n"


def test_control_characters_do_not_reach_the_terminal(capsys, decoder_run: Path) -> None:
    said = shown(capsys, decoder_run, "Returns\x1b[2J\tthe\x07", *SHORT, "--temperature", 0)
    assert said.startswith("Returns\\x1b[2J\tthe\\x07") and "\x1b" not in said
    assert printable("a\x9bb\x7f\r\n") == "a\\x9bb\\x7f\\x0d\n"
