"""Every option of `plmjax generate` shows in the texts that a small decoder of characters writes."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from plmjax.commands import cli
from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.data import tokenizers
from plmjax.data.layouts import Chunks
from plmjax.experiment import Data, Experiment
from plmjax.generation.options import Devices, Options
from plmjax.models.gpt2 import Gpt2Config
from plmjax.objectives.next_token import NextToken
from plmjax.training.checkpoints import checkpoints
from tests.effects import Effects

EFFECTS = Effects("tests/generation/test_effects_of_options.py")
Record = dict[str, Any]


@dataclasses.dataclass
class Decoder:
    """A run of characters, so that the text tells the tokens."""

    folder: Path

    def __call__(self, options: str, prompt: str = "abcd") -> list[Record]:
        """What the command writes to a file for a prompt."""
        output = self.folder / "texts.jsonl"
        cli.run(["generate", str(self.folder / "run"), prompt, "--output", str(output), *options.split()])
        return [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]

    def id(self, character: str) -> int:
        (found,) = tokenizers.load(self.folder / "tokenizer").encode(character)
        return found


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    folder = tmp_path_factory.mktemp("characters")
    tokenizer = tokenizers.train("char", 40, ["abcdefghijklmnopqrstuvwxyz"] * 3, folder / "tokenizer")
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32, "initializer_range": 0.5}
    config = Gpt2Config(vocab_size=tokenizer.vocabulary.size, bos_token_id=None, eos_token_id=None, **sizes)
    module = config.module(Purpose.PRETRAINING, Execution())
    params = nn.meta.unbox(jax.jit(module.init)(jax.random.key(1), jnp.zeros((1, 2), jnp.int32)))["params"]
    run = Experiment(model=config, objective=NextToken(), data=Data(layout=Chunks(), sequence_length=16))
    checkpoints.save_parameters(
        folder / "run", params, run, tokenizer=checkpoints.tokenizer_files(folder / "tokenizer")
    )
    return Decoder(folder)


@pytest.fixture(scope="module")
def greedy(decoder: Decoder) -> Record:
    (found,) = decoder("--temperature 0 --max_new_tokens 8")
    assert len(found["text"]) == found["tokens"] == 8
    return found


OF_A_TEXT: dict[str, tuple[str, Callable[[list[Record], Record], Any]]] = {
    "max_new_tokens": ("--temperature 0 --max_new_tokens 5", lambda texts, greedy: texts[0]["tokens"] == 5),
    # with the four of the prompt
    "max_length": ("--temperature 0 --max_length 10", lambda texts, greedy: texts[0]["tokens"] == 6),
    "eos_token_id": ("{plain} --eos_token_id {second}", lambda texts, greedy: texts[0]["text"] == greedy["text"][:2]),
    "min_new_tokens": ("{late} --max_new_tokens 8 --min_new_tokens 5", lambda texts, greedy: texts[0]["tokens"] > 5),
    "min_length": ("{late} --max_length 12 --min_length 9", lambda texts, greedy: texts[0]["tokens"] > 5),
    "no_repeat_ngram_size": ("{plain} --no_repeat_ngram_size 1", lambda texts, greedy: once(texts[0], greedy)),
    "repetition_penalty": ("{plain} --repetition_penalty 1e6", lambda texts, greedy: once(texts[0], greedy)),
    "bad_words_ids": ("{plain} --bad_words_ids {first}",
                      lambda texts, greedy: greedy["text"][0] not in texts[0]["text"]),
    # behind one token
    "forced_bos_token_id": ("{eight} --forced_bos_token_id {q}", lambda texts, greedy: texts[0]["text"][0] == "q"),
    "forced_eos_token_id": ("--temperature 0 --max_new_tokens 4 --forced_eos_token_id {q}",
                            lambda texts, greedy: texts[0]["text"] == f"{greedy['text'][:3]}q"),
    # without the probability of the token that is banned
    "renormalize_logits": ("--beams 3 --max_new_tokens 6 --bad_words_ids {first} --renormalize_logits True",
                           lambda texts, greedy: texts[0]["log_probability"] > -6),
    "temperature": ("{eight} --temperature 1e-4", lambda texts, greedy: texts[0]["text"] == greedy["text"]),
    "top_k": ("{eight} --top_k 1", lambda texts, greedy: texts[0]["text"] == greedy["text"]),
    "top_p": ("{eight} --top_p 1e-6", lambda texts, greedy: texts[0]["text"] == greedy["text"]),
    "sequences": ("{eight} --sequences 3", lambda texts, greedy: len({text["text"] for text in texts}) == 3),
    "beams": ("{eight} --beams 3 --sequences 3",
              lambda texts, greedy: texts[0]["score"] >= texts[1]["score"] >= texts[2]["score"]),
    "length_penalty": ("--beams 3 --max_new_tokens 6 --length_penalty 2",
                       lambda texts, greedy: texts[0]["score"] == pytest.approx(texts[0]["log_probability"] / 6**2)),
    "length_normalization": (
        "--beams 3 --max_new_tokens 6 --length_penalty 1 --length_normalization gnmt",
        lambda texts, greedy: texts[0]["score"] == pytest.approx(texts[0]["log_probability"] * 6 / 11),
    ),
}  # fmt: skip
"""Option -> the options of a command, with ids of characters, and what its texts show."""


def once(text: Record, greedy: Record) -> bool:
    """Whether no character comes twice, unlike in the plain text."""
    first, second = (len({*one["text"]}) == len(one["text"]) for one in (text, greedy))
    return first and not second


BY_DAY = ("max_new_tokens", "max_length", "eos_token_id", "min_new_tokens", "beams")
"""The scores of the others are compared in test_search.py, and test_generate.py shows their way to them; one to two
seconds each."""


@pytest.mark.parametrize(
    "option", [pytest.param(one, marks=() if one in BY_DAY else pytest.mark.nightly) for one in OF_A_TEXT]
)
@EFFECTS.of(*OF_A_TEXT, "checkpoint", "prompt", "output")
def test_a_text_shows(option: str, decoder: Decoder, greedy: Record) -> None:
    options, shows = OF_A_TEXT[option]
    ids = {"first": decoder.id(greedy["text"][0]), "second": decoder.id(greedy["text"][1]), "q": decoder.id("q")}
    ids |= {"eight": "--max_new_tokens 8", "plain": "--temperature 0 --max_new_tokens 8"}
    ids |= {"late": f"--temperature 0 --eos_token_id {ids['second']}"}
    texts = decoder(options.format(**ids), prompt="a" if option == "forced_bos_token_id" else "abcd")
    assert shows(texts, greedy), texts


EFFECTS.shown_by("tests/generation/test_against_transformers.py::test_beams", "early_stopping")


@EFFECTS.of("seed")
def test_a_seed_draws_its_texts(decoder: Decoder) -> None:
    one, same, other = (decoder(f"--max_new_tokens 8 --seed {seed}")[0]["text"] for seed in (1, 1, 2))
    assert one == same != other


@EFFECTS.of("max_unknown", "input")
def test_prompts_of_unknown_characters_are_refused_unless_allowed(decoder: Decoder, fails, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("ab\nab\N{SNOWMAN}\n", encoding="utf-8")
    command = ["generate", decoder.folder / "run", "--input", tmp_path / "prompts.txt", "--max_new_tokens", "2"]
    assert "found 33.3% of the first 3 tokens unknown" in fails(*command)
    cli.run([*map(str, command), "--max_unknown", "1", "--output", str(tmp_path / "texts.jsonl")])
    records = [json.loads(line) for line in (tmp_path / "texts.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [record["unknown_tokens"] for record in records] == [0, 1]


@EFFECTS.of("batch_size", "mesh.data", "mesh.fsdp", "mesh.tensor")
def test_batches_and_devices_that_cannot_be_are_refused(decoder: Decoder, fails) -> None:
    command = ("generate", decoder.folder / "run", "abcd", "--max_new_tokens", "2")
    assert "--batch_size of at least 1, found 0" in fails(*command, "--batch_size", "0")
    for axis, message in (("data", "64 x 1 x 1 on 8"), ("fsdp", "1 x 64 x 1 on 8"), ("tensor", "1 x 1 x 64 on 8")):
        assert f"found {message}" in fails(*command, f"--mesh.{axis}", "64")


def test_every_option_has_a_row() -> None:
    options = {field.name for field in dataclasses.fields(Options)}
    devices = {f"mesh.{field.name}" for field in dataclasses.fields(Devices)}
    EFFECTS.check(options | devices | {"checkpoint", "prompt", "input", "output", "max_unknown"})
