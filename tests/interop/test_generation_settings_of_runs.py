"""Settings of generation travel: import, the run, what is written by them, export, import."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from plmjax.commands import cli
from plmjax.experiment import read
from plmjax.finetuning.tasks.text_generation import Translation
from plmjax.finetuning.tasks.text_pairs import TextPairs
from plmjax.generation.batch_generator import settings_of
from plmjax.generation.generate import generate, printable
from plmjax.generation.options import Generation, Options
from plmjax.inference.predict import decoding
from plmjax.interop.run_directories import export_checkpoint, import_checkpoint
from plmjax.runs import summary
from plmjax.training.checkpoints import checkpoints
from plmjax.training.checkpoints.checkpoints import describe, find
from tests.optional import torch, transformers

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
    beams = settings_of(Options(max_new_tokens=32).over(read(imported / "experiment.json").generation))
    expected = [text for of_prompt in generate(imported, ["", PROMPT], beams) for text in of_prompt]
    assert [sample["text"] for sample in samples] == [text.text for text in expected] and len(said) == 2


def test_a_run_that_was_fine_tuned_to_write_exports_the_settings_of_its_task(decoder_run: Path, tmp_path: Path) -> None:
    params, description = checkpoints.load_parameters(decoder_run)
    objective = Translation(beams=2, length_penalty=0.6)
    run = dataclasses.replace(
        description.experiment, objective=objective, data=TextPairs(target_length=0, sequence_length=64)
    )
    checkpoints.save_parameters(tmp_path / "run", params, run, description.tokenizer)
    assert "another length than length_normalization gnmt" in export_checkpoint(tmp_path / "run", tmp_path / "out")
    written = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert written["num_beams"] == 2 and written["max_new_tokens"] == 128
    assert decoding(tmp_path / "run", {"beams": 1}) == "max_new_tokens 128, beams 1"
    assert decoding(tmp_path / "run", {}).startswith("max_new_tokens 128, beams 2, length_penalty 0.6, ")
