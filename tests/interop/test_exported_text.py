"""transformers writes the same text from an export as `plmjax generate` from the run."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.data import tokenizers
from plmjax.errors import UserError
from plmjax.experiment import Experiment
from plmjax.finetuning.tasks.text_generation import DECODER_ROW, TextGeneration
from plmjax.finetuning.tasks.text_pairs import TextPairs
from plmjax.generation.batch_generator import Settings
from plmjax.generation.generate import generate
from plmjax.interop import huggingface, written
from plmjax.interop.default_tasks import task_of
from plmjax.interop.run_directories import export_checkpoint, import_checkpoint
from plmjax.models.gpt2 import Gpt2Config
from plmjax.training.checkpoints import checkpoints
from tests.generation.model import T5, TRANSLATOR
from tests.optional import needs_torch, transformers

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
    checkpoints.save_parameters(folder / "run", params, run, checkpoints.tokenizer_files(folder / "tokenizer"))
    return folder / "run"


@needs_torch
# T5's texts are those of tests/generation/test_settings_of_transformers.py; 5 s: pytest -m nightly tests/interop
@pytest.mark.parametrize(
    "config",
    [pytest.param(TRANSLATOR, id="transformer"), pytest.param(T5, id="t5", marks=pytest.mark.nightly)],
)
def test_a_translation_is_ours(config: Any, tmp_path: Path) -> None:
    """The tokenizer was made for a BERT: a source ends with its [SEP], and no [CLS] stands before it."""
    run = a_run(tmp_path, dataclasses.replace(config, **IDS))
    said = export_checkpoint(run, tmp_path / "out")
    assert "the ids of 8 texts and pairs are the run's, so are 16 tokens that transformers writes" in said
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out")
    options = {"num_beams": 1, "do_sample": False, "forced_eos_token_id": None, "max_new_tokens": NEW, **ONCE}
    theirs = [model.generate(**tokenizer(source, return_tensors="pt"), **options)[0] for source in SOURCES]
    ours = [texts[0].text for texts in generate(run, SOURCES, Settings(max_new_tokens=NEW, **ONCE))]
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
    module, tokenizer = (
        config.module(Purpose.CAUSAL_LM, Execution()),
        tokenizers.from_words(WORDS, tmp_path),
    )
    params = parameters(module, ("", "decoder_"))
    huggingface.save(module, params, tmp_path)
    file = tmp_path / "config.json"
    before = json.loads(file.read_text())
    file.write_text(json.dumps(before | {"decoder_start_token_id": 20}))
    with pytest.raises(UserError, match="found other scores of the 8 tokens of a text"):
        written.compare(module, params, tmp_path, tokenizer, config.template)
    (tmp_path / "generation_config.json").write_text('{"max_length": 9}')
    with pytest.raises(
        UserError, match=r"to write with .*, found: `decoder_start_token_id`.* Correct generation_config"
    ):
        written.compare(module, params, tmp_path, tokenizer, config.template)
