"""A generator hands prompts as tokens, the devices and the settings in force to its writer."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data import tokenizers
from plmjax.errors import UserError
from plmjax.experiment import Experiment, Mesh
from plmjax.finetuning.tasks.text_generation import Translation
from plmjax.finetuning.tasks.text_pairs import TextPairs
from plmjax.generation import generate as generation
from plmjax.generation.generate import Generator, decoding_of, generate
from plmjax.generation.options import Generation
from plmjax.generation.sampling import Greedy, Sampling
from plmjax.generation.writer import Settings, Tokens
from plmjax.models.gpt2 import Gpt2Config
from plmjax.models.transformer import TransformerConfig
from plmjax.training import program as programs
from plmjax.training.checkpoints import checkpoints
from tests.finetuning import parity
from tests.strangers import experiments

END = parity.VOCABULARY.end
DECODER = Gpt2Config.tiny(vocab_size=97, n_positions=24, n_embd=16, n_layer=1)
TRANSLATOR = TransformerConfig.tiny(vocab_size=97, max_position_embeddings=24, d_model=16)


class Numbers(parity.Numbers):
    vocabulary = dataclasses.replace(parity.VOCABULARY, others={"start": 90, "delimiter": 91, "extract": 92})

    def decode(self, ids: list[int]) -> str:
        return " ".join(map(str, ids))


class Recorder:
    """A writer that writes 50 51 after every prompt, and keeps what it is given."""

    made: ClassVar[list["Recorder"]] = []

    def __init__(self, config: Any, params: Any, vocabulary: Vocabulary, *rest: Any) -> None:
        self.execution, self.mesh, self.source, self.reads_prefix = rest
        self.reads_sources = isinstance(config, TransformerConfig)
        self.made.append(self)

    def __call__(self, prompts: Sequence[list[int]], settings: Settings) -> list[list[Tokens]]:
        self.prompts, self.settings = list(prompts), settings
        return [[Tokens([50, 51], False, -2.0, -1.0)] for _ in prompts]

    def check(self, prompts: Sequence[list[int]], settings: Settings, places: Sequence[str]) -> None:
        self.prompts, self.settings, self.places = list(prompts), settings, list(places)


@pytest.fixture(autouse=True)
def writers(monkeypatch: pytest.MonkeyPatch) -> list[Recorder]:
    monkeypatch.setattr(generation, "Writer", Recorder)
    monkeypatch.setattr(Recorder, "made", [])
    return Recorder.made


def of_task(model: Any, **task: Any) -> Generator:
    """A generator of a run that was fine-tuned to write texts."""
    run = Experiment(model=model, objective=Translation(beams=1, max_new_tokens=6), data=TextPairs(**task))
    return Generator(model, {}, Numbers(), run=run)


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


def test_a_call_without_settings_has_those_of_the_run(writers: list[Recorder]) -> None:
    for stored, strategy in ((None, Greedy()), (Generation(temperature=0.7, max_new_tokens=3), Sampling(0.7))):
        run = dataclasses.replace(experiments.gpt2(), generation=stored)
        generator = Generator(run.model, {}, Numbers(), run=run)
        generator(["11"])
        assert writers[-1].settings == generator.settings
        assert generator.settings.strategy == strategy
        assert generator.settings.max_new_tokens == (None if stored is None else 3)
    assert Generator(DECODER, {}, Numbers()).settings.strategy == Greedy()


def test_a_checkpoint_is_loaded_onto_the_devices_asked_for(decoder_run: Path, writers: list[Recorder]) -> None:
    mesh = Mesh(data=2, fsdp=1, tensor=3)
    ((text,),) = generate(decoder_run, ["a"], Settings(seed=7), mesh)
    (writer,) = writers
    assert (writer.mesh, writer.source, writer.reads_prefix) == (mesh, decoder_run, False)
    run = checkpoints.describe(checkpoints.find(decoder_run)).experiment
    assert writer.execution == programs.execution(run, "cpu") is not None
    assert writer.settings.seed == 7 and (text.tokens, text.log_probability, text.score) == (2, -2.0, -1.0)
    with pytest.raises(UserError, match="--max_unknown from 0 to 1, found 2"):
        Generator.load(decoder_run, max_unknown=2)


def test_sources_are_read_in_the_layout_of_the_model_and_prompts_as_they_are(writers: list[Recorder]) -> None:
    source, prompt = Generator(TRANSLATOR, {}, Numbers()), Generator(DECODER, {}, Numbers())
    ((of_source,),), ((after,),) = source(["11 12"]), prompt(["11 12"])
    assert [writer.prompts for writer in writers] == [[[11, 12, END]], [[11, 12]]]
    assert (of_source.text, after.text) == ("50 51", " 50 51")  # of which only one goes on
    assert prompt.continues and not source.continues


def test_an_empty_prompt_begins_behind_the_token_between_documents(writers: list[Recorder]) -> None:
    class Separated(Numbers):
        vocabulary = Vocabulary(97, end=5, others={"between": 6})

    Generator(DECODER, {}, Separated())(["", "11"])
    assert writers[0].prompts == [[6], [11]]

    class Alone(Numbers):
        vocabulary = Vocabulary(97)

    bare = Generator(DECODER, {}, Alone())
    assert bare(["11"]) and writers[1].prompts == [[11]]
    with pytest.raises(
        UserError, match="a prompt in line 2, found an empty one and a tokenizer without a token between"
    ):
        bare.check(["11", ""], Settings(), ["line 1", "line 2"])


def test_prompts_of_a_task_are_its_sources_and_no_text_goes_on_with_them(writers: list[Recorder]) -> None:
    translator = of_task(TRANSLATOR, sequence_length=6, target_length=8, prefix="7 8 ")
    decoder = of_task(DECODER, sequence_length=12, target_length=0)
    ((first,), (longer,)), ((written,),) = translator(["11 12", "14 " * 9]), decoder(["11 12"])
    assert writers[0].prompts == [[7, 8, 11, 12, END], [7, 8, *[14] * 9, END]]  # longer than the rows of the training
    assert writers[1].prompts == [[90, 11, 12, 91]]
    assert [first.prompt, written.prompt] == ["11 12"] * 2
    assert {text.text for text in (first, longer, written)} == {"50 51"} and not decoder.continues
    with pytest.raises(UserError, match="a text to read, found an empty one"):
        decoder([""])


def test_what_the_tokenizer_lacks_is_counted_in_every_prompt_and_named_by_its_place(
    tmp_path: Path, writers: list[Recorder]
) -> None:
    words = tokenizers.train("word", 12, ["one two one two"], tmp_path / "tokenizer")
    generator = Generator(DECODER, {}, words, max_unknown=0.4)
    found = generator.unknown(["one", "two three", "four"])
    assert (found.count, found.total) == (2, 4)
    lenient = Generator(DECODER, {}, words, max_unknown=1.0)
    assert [text.unknown_tokens for (text,) in lenient(["one", "two three", "four five six"])] == [0, 1, 3]
    generator.check(["one", "one two"], Settings(seed=3), ["line 1", "line 2"])
    writer = writers[0]
    assert writer.places == ["line 1", "line 2"] and writer.settings.seed == 3
    with pytest.raises(UserError, match=r"knows in line 2 of x, found 50\.0% .* than --max_unknown \(0\.4\)"):
        generator.check(["one", "one three"], Settings(), ["line 1 of x", "line 2 of x"])
