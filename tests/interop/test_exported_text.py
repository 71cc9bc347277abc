"""transformers writes the same text from an export as `plmjax generate`, and settings of generation travel along.

They are those of generation_config.json, or fields of an old config.json.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import flax.traverse_util
import pytest

from plmjax import experiment
from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.data import tokenizers
from plmjax.errors import UserError
from plmjax.experiment import Experiment
from plmjax.finetuning.tasks.text_generation import Translation
from plmjax.finetuning.tasks.text_pairs import TextPairs
from plmjax.generation.generate import generate
from plmjax.generation.options import Generation
from plmjax.inference.predict import describe_decoding
from plmjax.interop.default_tasks import task_of
from plmjax.interop.generation_settings import NEUTRAL, SUPPORTED, WITHOUT_EFFECT, read, write
from plmjax.interop.run_directories import export_checkpoint, import_checkpoint
from plmjax.models.t5 import T5Config
from plmjax.training.checkpoints import checkpoints
from plmjax.training.checkpoints.checkpoints import describe, find
from tests.generation.model import T5, TRANSLATOR, initial
from tests.optional import transformers

WORDS = "a b c d e f g h i j k l m n o p q r s t u v w x".split()
"""With the five special tokens of a BERT these are the 29 tokens of the models."""
IDS = {"pad_token_id": 0, "eos_token_id": 3, "decoder_start_token_id": 2}
SOURCES = ("a b c d", "x w v u t s r", "q")
NEW = 6
ONCE = {"no_repeat_ngram_size": 1}
"""One that nobody trained repeats itself: its texts are written without any token twice."""


# by day texts are those of tests/generation/test_settings_of_transformers.py; 5 s: pytest -m nightly tests/interop
@pytest.mark.nightly
@pytest.mark.parametrize("config", [TRANSLATOR, T5], ids=["transformer", "t5"])
def test_a_translation_is_ours(config: Any, tmp_path: Path) -> None:
    """The tokenizer was made for a BERT: a source ends with its [SEP], and no [CLS] stands before it."""
    tokenizers.from_words(WORDS, tmp_path / "tokenizer")
    config = dataclasses.replace(config, **IDS)
    objective, data = task_of(config.module(Purpose.CAUSAL_LM, Execution()))
    params = flax.traverse_util.unflatten_dict(initial(config, 1, kernels=2), sep="/")
    run, files = Experiment(config, objective, data), checkpoints.tokenizer_files(tmp_path / "tokenizer")
    checkpoints.save_parameters(tmp_path / "run", params, run, files)
    said = export_checkpoint(tmp_path / "run", tmp_path / "out")
    assert "the ids of 8 texts and pairs are the run's, so are 16 tokens that transformers writes" in said
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out")
    options = {"num_beams": 1, "do_sample": False, "forced_eos_token_id": None, "max_new_tokens": NEW, **ONCE}
    theirs = [model.generate(**tokenizer(source, return_tensors="pt"), **options)[0] for source in SOURCES]
    ours = [texts[0].text for texts in generate(tmp_path / "run", SOURCES, max_new_tokens=NEW, beams=1, **ONCE)]
    assert tokenizer.batch_decode(theirs, skip_special_tokens=True) == ours and len(set(ours)) == len(SOURCES)
    if isinstance(config, T5Config):
        said = import_checkpoint(tmp_path / "out", tmp_path / "again")
        assert "its tokenizer gives the ids of transformers, its generated texts equal those of transformers" in said


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


def test_the_run_keeps_them_and_the_export_has_them_again(published: Path, tmp_path: Path, caplog) -> None:
    """The import names them, and what it leaves out."""
    imported = tmp_path / "run"
    said = import_checkpoint(published, imported)
    assert "writes with repetition_penalty 1.3, " in said and "beams 3" in said and "max_length 20" in said
    assert "plmjax does not support and leaves out, so that texts may differ: typical_p = 0.9." in caplog.text
    generation = experiment.read(imported / "experiment.json").generation
    assert generation == describe(find(imported)).experiment.generation == Generation(
        beams=3, length_penalty=0.5, length_normalization="tokens", early_stopping="likely", max_length=20,
        repetition_penalty=1.3,
    )  # fmt: skip
    export_checkpoint(imported, tmp_path / "out")
    written = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    kept = {name: value for name, value in SETTINGS.items() if name != "typical_p"}
    assert written == kept | {"do_sample": False, "early_stopping": False, "eos_token_id": written["eos_token_id"]}


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


BART = {
    "bos_token_id": 0, "decoder_start_token_id": 2, "early_stopping": True, "eos_token_id": 2,
    "forced_bos_token_id": 0, "forced_eos_token_id": 2, "length_penalty": 2.0, "max_length": 142, "min_length": 56,
    "no_repeat_ngram_size": 3, "num_beams": 4, "pad_token_id": 1, "transformers_version": "4.27.0",
}  # fmt: skip
"""As published for summaries."""
MARIAN = {
    "bad_words_ids": [[58100]], "bos_token_id": 0, "decoder_start_token_id": 58100, "eos_token_id": 0,
    "forced_eos_token_id": 0, "max_length": 512, "num_beams": 6, "pad_token_id": 58100, "renormalize_logits": True,
}  # fmt: skip
DRAWN = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "max_length": 50, "eos_token_id": [7, 9]}


START = "decoder_start_token_id"
PUBLISHED = [
    (BART, False, 2, Generation(
        beams=4, length_penalty=2.0, length_normalization="tokens", early_stopping="full", max_new_tokens=141,
        min_new_tokens=55, no_repeat_ngram_size=3, forced_bos_token_id=0, forced_eos_token_id=2,
    )),
    (MARIAN, False, 0, Generation(
        beams=6, length_penalty=1.0, length_normalization="tokens", early_stopping="likely", max_new_tokens=511,
        bad_words_ids=("58100",), renormalize_logits=True, forced_eos_token_id=0,
    )),
    (DRAWN, True, 9, Generation(temperature=0.6, top_k=50, top_p=0.9, max_length=50, eos_token_id=(7, 9))),
]  # fmt: skip


def test_what_was_published() -> None:
    for file, whole, end, expected in PUBLISHED:
        found = read(file, {START: file.get(START)}, whole=whole, end=end)
        assert found.generation == expected and not found.unsupported


EACH = {
    "bad_words_ids": [[5]], "do_sample": True, "early_stopping": True, "eos_token_id": 7, "forced_bos_token_id": 3,
    "forced_eos_token_id": 3, "length_penalty": 2.0, "max_length": 9, "max_new_tokens": 9, "min_length": 9,
    "min_new_tokens": 9, "no_repeat_ngram_size": 2, "num_beams": 3, "renormalize_logits": True,
    "repetition_penalty": 2.0, "temperature": 0.5, "top_k": 3, "top_p": 0.5,
}  # fmt: skip
"""Setting -> a value that changes the text."""


def test_every_option_of_generation_is_read() -> None:
    assert EACH.keys() == SUPPORTED
    for name, value in EACH.items():
        without: dict[str, Any] = {"transformers_version": "4.27.0"}
        without |= {"do_sample": True} if name in ("temperature", "top_k", "top_p") else {}
        without |= {"num_beams": 2} if name in ("early_stopping", "length_penalty") else {}
        found, default = (read(file, {}, whole=False, end=0) for file in ({**without, name: value}, without))
        assert found.generation != default.generation, name


def test_values_at_their_bounds() -> None:
    """The new tokens count before the length, of which a decoder's first token is a part."""
    new, whole = {"max_new_tokens": 9, "min_new_tokens": 3}, {"max_length": 40, "min_length": 7}
    several = {"eos_token_id": [2, 0], "forced_bos_token_id": [3], "repetition_penalty": 1}
    never = {"beams": 2, "early_stopping": "never", "length_penalty": 1.0, "length_normalization": "tokens"}
    for file, expected in (
        ({"max_length": 1, "min_length": 0}, {"max_length": 1}),
        (whole | new, new),
        ({"top_k": 5, "eos_token_id": 2}, {}),
        ({"num_beams": 1}, {"temperature": 0.0}),
        ({"do_sample": True}, {"temperature": 1.0, "top_k": 50, "top_p": 1.0}),
        (several, {"eos_token_id": (2, 0), "forced_bos_token_id": 3}),
        ({"num_beams": 2, "early_stopping": "never"}, never),
    ):
        assert read(file, {}, whole=True, end=2).generation == Generation(**expected)
    for length in (1, 2):
        file = {"max_length": length, "min_length": 1}
        assert read(file, {}, whole=False, end=2).generation == Generation(max_new_tokens=1, min_new_tokens=0)


def test_what_is_written_has_transformers_names() -> None:
    chosen = {"bad_words_ids": ("5,60", "7"), "forced_bos_token_id": -1, "forced_eos_token_id": 0}
    written, lost = write(Generation(temperature=0.0, max_length=9, **chosen), {"pad_token_id": 0}, end=0)
    assert not lost and written == {
        "pad_token_id": 0, "eos_token_id": 0, "num_beams": 1, "do_sample": False, "bad_words_ids": [[5, 60], [7]],
        "forced_eos_token_id": 0, "max_length": 9,
    }  # fmt: skip
    drawn, _ = write(Generation(temperature=0.5, top_p=0.9), {}, end=-1)
    assert drawn == {"num_beams": 1, "do_sample": True, "top_k": 0, "temperature": 0.5, "top_p": 0.9}
    for ours, theirs in (("full", True), ("likely", False), ("never", "never")):
        written, _ = write(Generation(beams=3, early_stopping=ours), {}, end=-1)
        assert written == {"num_beams": 3, "do_sample": False, "early_stopping": theirs}
    # The three tokens of a model, and the end of the tokenizer unless there are others.
    own = {"pad_token_id": 3, "bos_token_id": 0, "decoder_start_token_id": 4}
    assert write(None, own | {"vocab_size": 9}, end=-1) == (own, "")
    assert write(None, {"pad_token_id": 3, "bos_token_id": None}, end=2) == ({"pad_token_id": 3, "eos_token_id": 2}, "")
    assert write(Generation(eos_token_id=(7, 9)), own, end=2)[0] == own | {"eos_token_id": [7, 9]}
    assert write(Generation(eos_token_id=(7,)), own, end=2)[0] == own | {"eos_token_id": 7}


@pytest.mark.parametrize("whole", [True, False], ids=["decoder", "encoder-decoder"])
def test_settings_come_back_as_they_were(whole: bool) -> None:
    for file in (BART, MARIAN, DRAWN, {"repetition_penalty": 1.2}, {"num_beams": 1}, {}):
        first = read(file, {}, whole=whole, end=2).generation
        written, lost = write(first, {"pad_token_id": 3}, end=2)
        assert not lost and written["pad_token_id"] == 3
        assert read(written, {}, whole=whole, end=2).generation == first
        transformers.GenerationConfig(**written).validate(strict=True)


def test_an_old_config_counts_where_there_is_no_other_file() -> None:
    """As transformers reads both."""
    old = {"num_beams": 4, "no_repeat_ngram_size": 3, "vocab_size": 9, "num_beam_groups": 1, "diversity_penalty": 0.0}
    found = read({}, old, whole=False, end=2)
    assert found.generation.beams == 4 and found.generation.no_repeat_ngram_size == 3 and not found.unsupported
    assert read({"max_length": 9}, old, whole=False, end=2).generation == Generation(max_new_tokens=8)
    first = {"force_bos_token_to_be_generated": True, "bos_token_id": 6}
    assert read({}, first, whole=False, end=2).generation.forced_bos_token_id == 6
    found = read({}, {"encoder_no_repeat_ngram_size": 4, "suppress_tokens": [3]}, whole=False, end=2)
    assert found.unsupported.startswith("config.json has") and "suppress_tokens = [3]" in found.unsupported


def test_what_is_not_supported_is_named() -> None:
    """And another token to begin with than the model's."""
    lacking = {"typical_p": 0.5, "num_return_sequences": 3, "made_up": 1}
    for named in (*({name: value} for name, value in lacking.items()), {START: 3}, {"do_sample": True}):
        ((name, value),) = named.items()
        assert read(named | {"num_beams": 2}, {}, whole=True, end=2).unsupported == (
            "generation_config.json has settings that plmjax does not support and leaves out, so that texts may "
            f"differ: {name} = {json.dumps(value)}."
        )
    for file in ({START: 2}, {"max_length": 9}):
        assert not read(file, {START: 2}, whole=False, end=2).unsupported


def test_every_setting_of_transformers_is_known() -> None:
    """A setting that transformers has and this table lacks would be named as unsupported even with its default."""
    theirs = transformers.GenerationConfig()
    known = {*SUPPORTED, *NEUTRAL, *WITHOUT_EFFECT}
    assert {name for name, value in vars(theirs).items() if name not in known and value is not None} == set()
    defaults = {name: value for name, value in theirs._get_default_generation_params().items() if value is not None}
    assert not read(defaults, {}, whole=True, end=2).unsupported


def test_values_of_another_type() -> None:
    for name, value in (
        ("num_beams", "4"), ("early_stopping", "soon"), ("bad_words_ids", [7]), ("forced_eos_token_id", [1, 2]),
        ("eos_token_id", "</s>"), ("no_repeat_ngram_size", 2.5), ("repetition_penalty", float("nan")),
    ):  # fmt: skip
        with pytest.raises(UserError, match=f"as {name} of the settings of generation"):
            read({"num_beams": 2, name: value}, {}, whole=True, end=2)
