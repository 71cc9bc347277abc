"""plmjax generate: what it shows and writes, and every mistake in one sentence."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from plmjax.commands import cli
from plmjax.commands import generate as command
from plmjax.contracts.system import Purpose
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data.unknown_tokens import UnknownTokens
from plmjax.errors import UserError
from plmjax.generation.batch_generator import Settings, Tokens
from plmjax.generation.beam_search import BeamSearch
from plmjax.generation.generate import Generator, Text, generate, printable
from plmjax.generation.options import Options
from plmjax.generation.sampling import Sampling
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


def test_characters_of_several_tokens_are_shown_whole(decoder_run: Path) -> None:
    """A snowman is three bytes, which are three tokens of a tokenizer that has never seen one."""
    generator = Generator.load(decoder_run)
    tokenizer = checkpoints.describe(checkpoints.find(decoder_run)).load_tokenizer()
    prompt, snowman = tokenizer.encode("a"), tokenizer.encode("\N{SNOWMAN}")
    assert len(snowman) == 3

    def fixed(ids: list[int], settings: Settings) -> Any:
        for count in (1, 2, 3):
            yield Tokens(snowman[:count], False, -1.0, -1.0), count == 3

    generator._writer.stream, pieces = fixed, []
    text = generator.stream("a", Settings(), pieces.append)
    assert pieces == ["", "", "\N{SNOWMAN}"] and text.text == "\N{SNOWMAN}" and text.tokens == 3 and len(prompt) == 1


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


def test_prompts_that_cannot_be(fails, monkeypatch, tmp_path: Path, decoder_run: Path, small_run: Path) -> None:
    assert "a model that writes text, found BertConfig" in fails("generate", small_run, "The class")
    said = fails("generate", decoder_run, "The class " * 30)
    assert "at most the model's 64 positions together, found" in said and "64 tokens" in said
    (tmp_path / "long.txt").write_text("The class\n" + "The class " * 30 + "\n")
    said = fails("generate", decoder_run, "--input", tmp_path / "long.txt", *SHORT)
    assert f"positions together in line 2 of {tmp_path / 'long.txt'}, found" in said
    assert "and 64 tokens" in fails("generate", decoder_run, "The")
    assert "found neither" in fails("generate", decoder_run)
    assert "found both" in fails("generate", decoder_run, "a", "--input", tmp_path / "x")
    said = fails("generate", decoder_run, "a", "b", "c")
    assert (
        f"nothing more after plmjax generate {decoder_run} a, found 'b'; put a text of several words in quotes" in said
    )
    assert "found no file" in fails("generate", decoder_run, "--input", tmp_path / "x")
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    assert "binary" in fails("generate", decoder_run, "--input", tmp_path / "binary")
    (tmp_path / "empty").write_bytes(b"")
    assert "empty file" in fails("generate", decoder_run, "--input", tmp_path / "empty")
    for given, message in ((b"", "found none"), (b"\xff\xfe", "the standard input")):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        assert message in fails("generate", decoder_run, "--input", "-")
    assert "--output" in fails("generate", decoder_run, "a", "--output", tmp_path / "no" / "x.jsonl")


def test_nothing_is_shown_before_every_prompt_fits(capsys, tmp_path: Path, decoder_run: Path) -> None:
    (tmp_path / "prompts.txt").write_text("The class\n" + "The class " * 30 + "\n")
    capsys.readouterr()
    with pytest.raises(UserError, match="at most the model's 64 positions together"):
        command.generate(decoder_run, input=tmp_path / "prompts.txt")
    assert not capsys.readouterr().out


class Told:
    """A generator that keeps what the command tells it; its texts do not go on with their prompts."""

    continues = False

    def check(self, prompts: list[str], settings: Settings, places: list[str]) -> None:
        self.checked = prompts, settings, places

    def unknown(self, prompts: list[str]) -> UnknownTokens:
        found = UnknownTokens(Vocabulary(100, unknown=1))
        found.add([1, *range(2, 100)])
        return found

    def stream(self, prompt: str, settings: Settings, write: Any) -> None:
        write(f"of {prompt}")

    def __call__(self, prompts: list[str], settings: Settings) -> list[list[Text]]:
        return [[Text(one, f"{one}{rank}", 2, True, -2.0, -rank, 0) for rank in (1, 2)] for one in prompts]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    generator = Told()

    def load(*arguments: Any) -> Told:
        generator.loaded = arguments
        return generator

    monkeypatch.setattr(command.Generator, "load", load)
    return generator


def test_prompts_are_one_text_or_the_lines_of_a_file_or_of_the_standard_input(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "prompts.txt").write_text("one\n\nand two\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("one\r\n\nand tw\u00f6".encode())))
    assert command.prompts_of("one\ntwo", None) == ["one\ntwo"]
    assert command.prompts_of(None, tmp_path / "prompts.txt") == ["one", "", "and two"]
    assert command.prompts_of(None, Path("-")) == ["one", "", "and tw\u00f6"]


def test_several_texts_are_shown_and_written_each_with_its_score(
    capsys, told: Told, decoder_run: Path, tmp_path: Path
) -> None:
    options, file = ("--beams", 3, "--sequences", 2), tmp_path / "texts.jsonl"
    assert shown(capsys, decoder_run, "a", *options) == "-1.0000  a1\n-2.0000  a2\n"
    assert told.checked[1].strategy == BeamSearch(3, sequences=2) and told.checked[2] == [""]
    assert shown(capsys, decoder_run, "a", *options, "--output", file) == f"2 texts in {file}\n"
    assert [json.loads(line)["text"] for line in file.read_text().splitlines()] == ["a1", "a2"]


def test_ctrl_c_ends_the_line_of_the_text(monkeypatch, capsys, decoder_run: Path) -> None:
    def stopped(self, prompt, settings, show):
        show(" a beginning")
        raise KeyboardInterrupt

    monkeypatch.setattr(Generator, "stream", stopped)
    capsys.readouterr()
    with pytest.raises(KeyboardInterrupt):
        command.generate(decoder_run, "The class", writing=Options(max_new_tokens=8))
    assert capsys.readouterr().out == "The class a beginning\n"


def test_control_characters_do_not_reach_the_terminal(capsys, decoder_run: Path) -> None:
    said = shown(capsys, decoder_run, "Returns\x1b[2J\tthe\x07", *SHORT, "--temperature", 0)
    assert said.startswith("Returns\\x1b[2J\tthe\\x07") and "\x1b" not in said
    assert printable("a\x9bb\x7f\r\n") == "a\\x9bb\\x7f\\x0d\n"


OUT_OF_RANGE = (
    "--temperature -1", "--temperature nan", "--top_k -1", "--top_p 0", "--top_p 1.1", "--sequences 0", "--beams 0",
    "--max_new_tokens 0", "--min_new_tokens -1", "--min_new_tokens 65", "--no_repeat_ngram_size -1", "--seed -1",
    "--repetition_penalty 0", "--bad_words_ids x", "--max_length 0", "--forced_eos_token_id -2", "--eos_token_id -1",
    "--batch_size 0", "--beams 2 --sequences 3", "--beams 2 --length_penalty inf", "--mesh.tensor 64",
    "--max_unknown 2",
)  # fmt: skip
WITHOUT_EFFECT = (
    "--beams 2 --temperature 1", "--beams 2 --seed 1", "--length_penalty 2", "--early_stopping full",
    "--temperature 0 --top_k 2", "--temperature 0 --top_p 0.5", "--temperature 0 --sequences 2",
    "--temperature 0 --seed 1", "--beams 1 --length_penalty 2",
)  # fmt: skip


def test_numbers_out_of_range(fails, decoder_run: Path) -> None:
    for options in OUT_OF_RANGE:
        assert options.split()[-2] in fails("generate", decoder_run, "a", *options.split()), options
    for options in WITHOUT_EFFECT:
        assert options.split()[-2] in fails("generate", decoder_run, "a", *options.split()), options


@pytest.mark.nightly
def test_a_tokenizer_that_lacks_characters(fails, capsys, tmp_path: Path, prose: Path) -> None:
    """Words of a small vocabulary, without the byte fallback that GPT-2's tokenizer has."""
    import flax.linen as nn
    import jax
    import jax.numpy as jnp

    from plmjax.contracts.execution import Execution
    from plmjax.data import tokenizers
    from plmjax.data.layouts import Chunks
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
    run = Experiment(model=config, objective=NextToken(), data=Data(layout=Chunks(), sequence_length=8))
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
