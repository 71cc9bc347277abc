"""transformers writes the same text from an export as `plmjax generate`, and settings of generation travel along."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import pytest

from plmjax.commands import cli
from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.data import tokenizers
from plmjax.errors import UserError
from plmjax.experiment import Experiment, read
from plmjax.finetuning.tasks.text_generation import DECODER_ROW, TextGeneration, Translation
from plmjax.finetuning.tasks.text_pairs import TextPairs
from plmjax.generation.generate import generate, printable
from plmjax.generation.options import Generation
from plmjax.inference.predict import describe_decoding
from plmjax.interop import generated_texts, huggingface
from plmjax.interop.default_tasks import task_of
from plmjax.interop.run_directories import export_checkpoint, import_checkpoint
from plmjax.models.gpt2 import Gpt2Config
from plmjax.runs import summary
from plmjax.training.checkpoints import checkpoints
from plmjax.training.checkpoints.checkpoints import describe, find
from tests.generation.model import T5, TRANSLATOR
from tests.optional import needs_torch, torch, transformers

WORDS = "a b c d e f g h i j k l m n o p q r s t u v w x".split()
"""With the five special tokens of a BERT these are the 29 tokens of the models."""
IDS = {"pad_token_id": 0, "eos_token_id": 3, "decoder_start_token_id": 2}
SOURCES = ("a b c d", "x w v u t s r", "q")
NEW = 6
ONCE = {"no_repeat_ngram_size": 1}
"""One that nobody trained repeats itself: its texts are written without any token twice."""


def parameters(module: nn.Module, sides: tuple[str, ...]) -> Any:
    """Large ones, so that texts depend on every token of the source."""
    token = {f"{side}input_ids": jnp.zeros((1, 1), jnp.int32) for side in sides}
    params = nn.meta.unbox(jax.jit(module.init)(jax.random.key(1), **token))["params"]
    flat = flax.traverse_util.flatten_dict(params, sep="/")
    flat = {name: 2 * array if name.endswith("kernel") else array for name, array in flat.items()}
    return flax.traverse_util.unflatten_dict(flat, sep="/")


def a_run(folder: Path, config: Any, run: Any = None) -> Path:
    """The run directory of an encoder-decoder or, given its experiment, of a decoder."""
    tokenizer = tokenizers.from_words(WORDS, folder / "tokenizer")
    if run is not None:
        tokenizer = tokenizer.with_special(["start", "delimiter", "extract"])
        tokenizer.save(folder / "tokenizer")
    module = config.module(Purpose.CAUSAL_LM, Execution())
    params = parameters(module, ("", "decoder_") if run is None else ("",))
    objective, data = task_of(module)
    run = run or Experiment(model=config, objective=objective, data=data)
    checkpoints.save_parameters(
        folder / "run", params, run, tokenizer=checkpoints.tokenizer_files(folder / "tokenizer")
    )
    return folder / "run"


@needs_torch
# by day texts are those of tests/generation/test_settings_of_transformers.py; 5 s: pytest -m nightly tests/interop
@pytest.mark.nightly
@pytest.mark.parametrize("config", [TRANSLATOR, T5], ids=["transformer", "t5"])
def test_a_translation_is_ours(config: Any, tmp_path: Path) -> None:
    """The tokenizer was made for a BERT: a source ends with its [SEP], and no [CLS] stands before it."""
    run = a_run(tmp_path, dataclasses.replace(config, **IDS))
    said = export_checkpoint(run, tmp_path / "out")
    assert "the ids of 8 texts and pairs are the run's, so are 16 tokens that transformers writes" in said
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out")
    options = {"num_beams": 1, "do_sample": False, "forced_eos_token_id": None, "max_new_tokens": NEW, **ONCE}
    theirs = [model.generate(**tokenizer(source, return_tensors="pt"), **options)[0] for source in SOURCES]
    ours = [texts[0].text for texts in generate(run, SOURCES, max_new_tokens=NEW, beams=1, **ONCE)]
    assert tokenizer.batch_decode(theirs, skip_special_tokens=True) == ours and len(set(ours)) == len(SOURCES)

    if config is T5:
        said = import_checkpoint(tmp_path / "out", tmp_path / "again")
        assert "its tokenizer gives the ids of transformers, its generated texts equal those of transformers" in said


@pytest.mark.nightly
@needs_torch
def test_a_decoder_that_answers_reads_the_row_of_its_task(tmp_path: Path) -> None:
    """Its classes in transformers begin to write where the target began; without the task a text stands alone."""
    config = Gpt2Config(
        vocab_size=32, n_positions=40, n_embd=24, n_layer=1, n_head=3, bos_token_id=None, eos_token_id=None,
        initializer_range=0.3,
    )  # fmt: skip
    run = Experiment(model=config, objective=TextGeneration(max_new_tokens=NEW), data=TextPairs(sequence_length=32))
    directory = a_run(tmp_path, config, run)
    assert "so are 16 tokens" in export_checkpoint(directory, tmp_path / "out")
    tokenizer = checkpoints.describe(checkpoints.find(directory)).load_tokenizer()
    row = DECODER_ROW.lay_out((tokenizer.encode(SOURCES[0]),), tokenizer.vocabulary).tokens
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert theirs(SOURCES[0])["input_ids"] == row and tokenizer.tokens(row)[0] == "_start_"


@pytest.mark.nightly
@needs_torch
def test_a_text_that_begins_otherwise_is_found(tmp_path: Path) -> None:
    """No output of one batch tells it."""
    config = dataclasses.replace(TRANSLATOR, **IDS)
    module, tokenizer = (config.module(Purpose.CAUSAL_LM, Execution()), tokenizers.from_words(WORDS, tmp_path))
    params = parameters(module, ("", "decoder_"))
    huggingface.save(module, params, tmp_path)
    file = tmp_path / "config.json"
    before = json.loads(file.read_text())
    file.write_text(json.dumps(before | {"decoder_start_token_id": 20}))
    with pytest.raises(UserError, match="found other scores of the 8 tokens of a text"):
        generated_texts.compare(module, params, tmp_path, tokenizer=tokenizer, template=config.template)
    (tmp_path / "generation_config.json").write_text('{"max_length": 9}')
    with pytest.raises(
        UserError, match=r"to write with .*, found: `decoder_start_token_id`.* Correct generation_config"
    ):
        generated_texts.compare(module, params, tmp_path, tokenizer=tokenizer, template=config.template)


PROMPT = "Returns the name of a"
SETTINGS = {"repetition_penalty": 1.3, "num_beams": 3, "length_penalty": 0.5, "max_length": 20, "typical_p": 0.9}


@pytest.fixture(scope="module")
def published(decoder_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of transformers with a generation_config.json of somebody else."""
    folder = tmp_path_factory.mktemp("published") / "gpt2"
    export_checkpoint(decoder_run, folder)
    tokens = json.loads((folder / "generation_config.json").read_text())
    assert tokens.keys() == {"eos_token_id"}  # a run of ours has no settings: the tokenizer's end alone
    (folder / "generation_config.json").write_text(json.dumps(tokens | SETTINGS))
    return folder


@pytest.fixture(scope="module")
def imported(published: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("imported") / "run"
    import_checkpoint(published, run)
    return run


def test_the_run_keeps_them_and_the_export_has_them_again(imported: Path, tmp_path: Path) -> None:
    generation = read(imported / "experiment.json").generation
    assert generation == describe(find(imported)).experiment.generation == Generation(
        beams=3, length_penalty=0.5, length_normalization="tokens", early_stopping="likely", max_length=20,
        repetition_penalty=1.3,
    )  # fmt: skip
    export_checkpoint(imported, tmp_path / "out")
    import_checkpoint(tmp_path / "out", tmp_path / "again")
    assert read(tmp_path / "again" / "experiment.json").generation == generation
    written = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    kept = {name: value for name, value in SETTINGS.items() if name != "typical_p"}
    assert written.items() >= kept.items() and written.keys() - kept.keys() == {
        "do_sample",
        "early_stopping",
        "eos_token_id",
    }


def test_the_import_names_them_and_what_it_leaves_out(published: Path, tmp_path: Path, caplog) -> None:
    said = import_checkpoint(published, tmp_path / "run")
    assert "writes with repetition_penalty 1.3, " in said and "beams 3" in said and "max_length 20" in said
    assert "plmjax does not support and leaves out, so that texts may differ: typical_p = 0.9." in caplog.text


@pytest.mark.nightly
def test_the_command_writes_what_transformers_does(published: Path, imported: Path, capsys) -> None:
    tokenizer = describe(find(imported)).load_tokenizer()
    ids = tokenizer.encode(PROMPT)
    theirs = transformers.GPT2LMHeadModel.from_pretrained(published).eval()
    row = theirs.generate(torch.tensor([ids]), pad_token_id=0, typical_p=1.0)[0].tolist()
    assert len(row) <= 20
    ((text,),) = generate(imported, [PROMPT])
    assert text.prompt + text.text == tokenizer.decode(row)
    capsys.readouterr()
    cli.run(["generate", str(imported), PROMPT])
    shown, noted = capsys.readouterr()
    assert shown == printable(f"{text.score:.4f}  {text.prompt}{text.text}\n")
    assert noted.splitlines()[-1].startswith("decoding   ") and "beams 3" in noted and "of the checkpoint" in noted
    cli.run(["generate", str(imported), PROMPT, "--temperature", "0", "--max_new_tokens", "4"])
    shown, noted = capsys.readouterr()
    assert "beams" not in noted and "repetition_penalty 1.3 of the checkpoint; " in noted
    assert "max_new_tokens 4, temperature 0 of the command line" in noted


@pytest.mark.nightly
def test_the_texts_at_the_end_of_a_run_are_written_by_them(imported: Path, tmp_path: Path, monkeypatch) -> None:
    shutil.copytree(imported, tmp_path / "run")
    monkeypatch.setattr(summary, "_held_out", lambda *_: iter([PROMPT]))
    said: list[str] = []
    summary._generate(None, None, tmp_path / "run", said.append)
    samples = [json.loads(line) for line in (tmp_path / "run" / "samples.jsonl").read_text().splitlines()]
    expected = [text for of_prompt in generate(imported, ["", PROMPT], max_new_tokens=32) for text in of_prompt]
    assert [sample["text"] for sample in samples] == [text.text for text in expected] and len(said) == 2


def test_a_run_that_was_fine_tuned_to_write_exports_the_settings_of_its_task(decoder_run: Path, tmp_path: Path) -> None:
    params, description = checkpoints.load_parameters(decoder_run)
    objective = Translation(beams=2, length_penalty=0.6)
    run = dataclasses.replace(
        description.experiment,
        objective=objective,
        data=TextPairs(target_length=0, sequence_length=64),
        generation=Generation(beams=5),  # of the checkpoint that it began from
    )
    checkpoints.save_parameters(tmp_path / "run", params, run, tokenizer=description.tokenizer)
    assert "another length than length_normalization gnmt" in export_checkpoint(tmp_path / "run", tmp_path / "out")
    written = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert written["num_beams"] == 2 and written["max_new_tokens"] == 128
    assert describe_decoding(tmp_path / "run", {"beams": 1}) == "max_new_tokens 128, beams 1"
    assert describe_decoding(tmp_path / "run", {}).startswith("max_new_tokens 128, beams 2, length_penalty 0.6, ")
