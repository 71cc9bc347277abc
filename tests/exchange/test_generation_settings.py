"""Settings of generation travel: import, the run, what is written by them, export, import."""

import json
from pathlib import Path

import pytest
import torch
import transformers

from plmjax import cli
from plmjax.exchange.run_directories import export_checkpoint, import_checkpoint
from plmjax.experiment import read
from plmjax.generation.generate import generate, printable
from plmjax.generation.options import Generation
from plmjax.training import start
from plmjax.training.checkpoints import describe, find

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


def test_the_command_writes_what_transformers_does(published: Path, imported: Path, capsys) -> None:
    tokenizer = start.tokenizer_of(describe(find(imported)))
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
