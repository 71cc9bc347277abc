"""plmjax generate: what it shows and writes, and every mistake in one sentence."""

import io
import json
import sys
from pathlib import Path

import pytest

from plmjax.commands import cli
from plmjax.commands import generate as command
from plmjax.contracts.system import Purpose
from plmjax.errors import UserError
from plmjax.generation.generate import generate, printable
from plmjax.generation.options import Devices, Options
from plmjax.generation.sampling import Sampling
from plmjax.generation.writer import Settings
from plmjax.training.checkpoints import checkpoints

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
    settings = Settings(Sampling(), max_new_tokens=8)
    ((text,),) = generate(decoder_run, ["Returns the"], settings)
    assert printable(text.prompt + text.text + "\n") == first


@pytest.mark.nightly
def test_files(capsys, monkeypatch, tmp_path: Path, decoder_run: Path) -> None:
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

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Returns the\r\n")))
    beams = shown(capsys, decoder_run, "--input", "-", *SHORT, "--beams", 3, "--sequences", 2).splitlines()
    scores = [float(line.split()[0]) for line in beams if "  Returns the" in line]
    assert len(scores) == 2 and scores == sorted(scores, reverse=True)


def test_nothing_is_shown_before_every_prompt_fits(tmp_path: Path, decoder_run: Path) -> None:
    (tmp_path / "prompts.txt").write_text("The class\n" + "The class " * 30 + "\n")
    said: list[str] = []
    with pytest.raises(UserError, match="at most the model's 64 positions together"):
        command.run(decoder_run, None, tmp_path / "prompts.txt", None, Options(), Devices(), said.append, print)
    assert not said


def test_prompts_are_one_text_or_the_lines_of_a_file_or_of_the_standard_input(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "prompts.txt").write_text("one\n\nand two\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("one\r\n\nand tw\u00f6".encode())))
    assert command.prompts_of("one\ntwo", None) == ["one\ntwo"]
    assert command.prompts_of(None, tmp_path / "prompts.txt") == ["one", "", "and two"]
    assert command.prompts_of(None, Path("-")) == ["one", "", "and tw\u00f6"]


def test_several_texts_are_shown_and_written_each_with_its_score(decoder_run: Path, tmp_path: Path) -> None:
    said, options, file = [], Options(beams=3, sequences=2, max_new_tokens=4), tmp_path / "texts.jsonl"
    command.run(decoder_run, "a", None, file, options, Devices(), said.append, print)
    assert said == [f"2 texts in {file}\n"]
    texts = [json.loads(line) for line in file.read_text().splitlines()]
    said.clear()
    command.run(decoder_run, "a", None, None, options, Devices(), said.append, print)
    assert said == [printable(f"{text['score']:.4f}  a{text['text']}\n") for text in texts]
    assert len(texts) == 2 and texts[0]["score"] > texts[1]["score"]


def test_ctrl_c_ends_the_line_of_the_text(decoder_run: Path) -> None:
    said: list[str] = []

    def write(piece: str) -> None:
        said.append(piece)
        if len(said) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        command.run(decoder_run, "The class", None, None, Options(max_new_tokens=8), Devices(), write, print)
    assert said[0] == "The class" and said[3:] == ["\n"]


def test_control_characters_do_not_reach_the_terminal(capsys, decoder_run: Path) -> None:
    said = shown(capsys, decoder_run, "Returns\x1b[2J\tthe\x07", *SHORT, "--temperature", 0)
    assert said.startswith("Returns\\x1b[2J\tthe\\x07") and "\x1b" not in said
    assert printable("a\x9bb\x7f\r\n") == "a\\x9bb\\x7f\\x0d\n"


@pytest.mark.nightly
def test_a_tokenizer_that_lacks_characters(fails, capsys, tmp_path: Path, prose: Path) -> None:
    """Words of a small vocabulary, without the byte fallback that GPT-2's tokenizer has."""
    import flax.linen as nn
    import jax
    import jax.numpy as jnp

    from plmjax.contracts.execution import Execution
    from plmjax.data import tokenizers
    from plmjax.data.layouts import Blocks
    from plmjax.experiment import Data, Experiment
    from plmjax.models.gpt2 import Gpt2Config
    from plmjax.objectives.next_token import NextToken

    tokenizer = tokenizers.train("wordpiece", 200, [prose.read_text(encoding="utf-8")], tmp_path / "tokenizer")
    config = Gpt2Config.tiny(
        vocab_size=tokenizer.vocabulary.size, n_embd=8, n_layer=1, n_positions=40, bos_token_id=None, eos_token_id=None
    )
    params = nn.meta.unbox(
        config.module(Purpose.PRETRAINING, Execution()).init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
    )
    run = Experiment(model=config, objective=NextToken(), data=Data(layout=Blocks(), sequence_length=8))
    files = checkpoints.tokenizer_files(tmp_path / "tokenizer")
    checkpoints.save_parameters(tmp_path / "run", params["params"], run, files)
    said = fails("generate", tmp_path / "run", "a \N{SNOWMAN}", *SHORT)
    assert "Expected text that the tokenizer knows, found 50.0% of the first 2 tokens unknown" in said
    (tmp_path / "prompts.txt").write_text("a class\na \N{SNOWMAN}\n", encoding="utf-8")
    from_file = ["generate", tmp_path / "run", "--input", tmp_path / "prompts.txt", *SHORT]
    said = fails(*from_file)
    assert f"knows in line 2 of {tmp_path / 'prompts.txt'}, found 50.0%" in said and "--max_unknown (0.2)" in said
    shown(capsys, *from_file[1:], "--max_unknown", 0.5, "--output", tmp_path / "texts.jsonl")
    records = [json.loads(line) for line in (tmp_path / "texts.jsonl").read_text().splitlines()]
    assert [record["unknown_tokens"] for record in records] == [0, 1]
