"""Pretraining end to end, where its text is not what it is in the other tests."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from plmjax.commands import cli
from plmjax.data import store
from plmjax.data.layouts import Chunks, ContinuedPairs, PairedStreams
from plmjax.errors import UserError
from plmjax.experiment import Data, Experiment, Phase, Tokenizer, Training
from plmjax.files import storage
from plmjax.models.gpt2 import Gpt2Config
from plmjax.objectives.next_token import NextToken
from plmjax.runs import text
from plmjax.runs.inputs import Inputs
from plmjax.runs.resolve import resolve
from plmjax.training.checkpoints import checkpoints
from plmjax.training.optimizers import AdamW
from tests.paths import ROOT
from tests.small_runs import SMALL_BERT
from tests.xla_flags import cpu_flags

TINY = "experiments/bert_tiny.py"


@pytest.mark.nightly
def test_text_of_which_nothing_is_held_out_is_trained_on_without_evaluation(
    fails, prose: Path, tmp_path: Path, capsys
) -> None:
    lines = [line for line in prose.read_text(encoding="utf-8").split("\n") if line][:60]
    (tmp_path / "lines.txt").write_text("\n".join(lines), encoding="utf-8")
    same = ["pretrain", TINY, "--workdir", tmp_path / "run", "--data.input", tmp_path / "lines.txt", *SMALL_BERT]
    said = fails(*same, "--checkpoint.best", "eval/loss")
    assert "--checkpoint.best eval/loss needs held-out documents" in said and "set --checkpoint.best ''" in said
    capsys.readouterr()
    cli.run([*map(str, same), "--checkpoint.best", "", "--checkpoint.prefer", "last"])
    said = capsys.readouterr().out.splitlines()
    assert len([line for line in said if line.startswith("evaluation none: no held-out text")]) == 1
    logged = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in logged] == [2, 4, 6]
    assert not [name for record in logged for name in record if name.startswith("eval/")]
    assert checkpoints.describe(checkpoints.find(tmp_path / "run")).step == 6
    cli.run(["report", str(tmp_path / "run"), "--output", str(tmp_path / "page.html")])
    assert "held-out" in fails("evaluate", tmp_path / "run")


WITHOUT_TENSORFLOW = """
import sys

sys.modules["tensorflow"] = None
from plmjax import errors
from plmjax.commands import cli

cli.run(sys.argv[3:])
try:
    cli.run(["prepare", "--format", "text", "--input", sys.argv[1], "--tokenizer", sys.argv[2], "--output", "dataset"])
except errors.UserError as error:
    print(error)
"""


@pytest.mark.nightly  # a process and a run; tests/data has the batches of the thread by day
def test_without_tensorflow_a_run_from_a_prepared_dataset_is_the_same(
    small_run: Path, prose: Path, tmp_path: Path
) -> None:
    own = [str(prose), str(small_run / "tokenizer")]
    command = ["pretrain", str(ROOT / TINY), "--workdir", "run", "--data.path", str(small_run / "dataset"), *SMALL_BERT]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "XLA_FLAGS": cpu_flags(devices=1)}
    program = [sys.executable, "-c", WITHOUT_TENSORFLOW, *own, *command]
    done = subprocess.run(program, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("batches    from a thread of Python: TensorFlow is not installed\n") == 1
    assert "Expected TensorFlow, which describes a prepared dataset" in done.stdout.splitlines()[-1]
    losses, others = (
        [{name: value for name, value in json.loads(line).items() if "loss" in name} for line in file.open()]
        for file in (tmp_path / "run" / "metrics.jsonl", small_run / "metrics.jsonl")
    )
    assert losses == others and any("eval/loss" in record for record in losses)


def inputs(folder: Path, texts: list[dict[str, str]], said: list[str] | None = None, **settings: Any) -> Inputs:
    """The inputs of a run on a file of texts. Settings are those of its data, `tokenizer`, `training` or `phases`."""
    (folder / "texts.jsonl").write_text("".join(json.dumps(text) + "\n" for text in texts), encoding="utf-8")
    tokenizer = {"kind": "word", "vocab_size": 40} | settings.pop("tokenizer", {})
    data = {"layout": Chunks(), "input": (str(folder / "texts.jsonl"),), "held_out": 0.0, "sequence_length": 8}
    run = Experiment(
        model=Gpt2Config.tiny(vocab_size=300, eos_token_id=None), objective=NextToken(),
        tokenizer=Tokenizer(**tokenizer), training=Training(steps=4, batch_size=2, **settings.pop("training", {})),
        phases=settings.pop("phases", ()), optimizer=AdamW(), data=Data(**data | settings),
    )  # fmt: skip
    return text.inputs(resolve(run), storage.path(folder / "run"), [].append if said is None else said.append)


RIVER, SNOW = "The river walks under the old green bridge.", "A line without a mark that holds a ☃"


def words(made: Inputs, folder: Path, split: str = "train") -> list[str]:
    tokens = store.open_dataset(folder / "run" / "dataset").split(split)
    return made.tokenizer.tokens([*tokens.tokens(0, tokens.token_count)])


def test_the_tokenizer_and_the_dataset_are_made_of_what_a_cleaning_leaves(tmp_path: Path) -> None:
    texts = [{"text": "\n".join([RIVER, SNOW] * (1 + at))} for at in range(4)]
    made = inputs(tmp_path, texts, clean=("c4_end_marks", "c4_duplicate_lines"))
    unknown = made.tokenizer.vocabulary.unknown
    assert unknown not in made.tokenizer.encode("bridge") and made.tokenizer.encode("☃") == [unknown]
    report = json.loads((tmp_path / "run" / "dataset" / "cleaning.json").read_text())
    assert [rule["name"] for rule in report["rules"]] == ["c4_end_marks", "c4_duplicate_lines"]
    assert report["read"]["documents"] == 4 and report["kept"] == {"documents": 1, "characters": 43, "tokens": 9}
    (tmp_path / "bad.txt").write_text("bridge\n")
    texts = [{"text": RIVER}, {"text": "A green field."}]
    made = inputs(tmp_path, texts, clean=("c4_bad_words",), bad_words=str(tmp_path / "bad.txt"), max_unknown=1.0)
    assert "field" in words(made, tmp_path) and made.tokenizer.encode("bridge") == [made.tokenizer.vocabulary.unknown]


def test_the_text_of_a_document_is_under_its_key(tmp_path: Path) -> None:
    made = inputs(tmp_path, [{"body": RIVER, "text": SNOW}], text_key="body", tokenizer={"lowercase": True})
    assert "bridge" in words(made, tmp_path) and made.tokenizer.encode("The") == made.tokenizer.encode("the")
    assert made.tokenizer.kind == "word" and "mark" not in words(made, tmp_path)


def test_streams_are_the_texts_of_a_document(tmp_path: Path) -> None:
    """The tokenizer is trained on both."""
    settings = {"layout": PairedStreams(), "streams": ("source=en", "target=de"), "format": "jsonl"}
    made = inputs(tmp_path, [{"en": "The river.", "de": "Der Fluss."}] * 9, **settings)
    dataset = store.open_dataset(tmp_path / "run" / "dataset")
    assert set(dataset.streams) == {"source", "target"}
    assert made.tokenizer.vocabulary.unknown not in made.tokenizer.encode("river Fluss")


def test_sentences_are_those_of_the_language(tmp_path: Path) -> None:
    counts, texts = {}, [{"text": "Am 3. Oktober ist z.B. Feiertag. Ja, bzgl. Arbeit."}] * 9
    for language in ("en", "de"):
        (tmp_path / language).mkdir()
        inputs(tmp_path / language, texts, language=language)
        train = store.open_dataset(tmp_path / language / "run" / "dataset").split("train")
        counts[language] = len(train.sentence_offsets)
    assert counts["de"] < counts["en"]


def test_text_of_which_the_tokenizer_knows_too_little_is_refused(tmp_path: Path) -> None:
    texts = [{"text": f"{RIVER} word{number}"} for number in range(9)]
    with pytest.raises(UserError, match=r"--data\.max_unknown"):
        inputs(tmp_path, texts, max_unknown=0.05, tokenizer={"vocab_size": 14})


def test_names_of_special_tokens_are_read_in_the_text_of_a_run(tmp_path: Path) -> None:
    text, kind = "A river. <|endoftext|> A bridge.", {"kind": "gpt2-bpe", "vocab_size": 270}
    made = inputs(tmp_path, [{"text": text}], special_names=("<|endoftext|>",), tokenizer=kind)
    split = store.open_dataset(tmp_path / "run" / "dataset").split("train")
    assert [*split.tokens(0, split.token_count)].count(made.tokenizer.vocabulary.end) == 1


@pytest.mark.parametrize(
    ("lengths", "evaluated", "evaluates"), [((16, 24), 0, True), ((900, 16), 0, False), ((16, 900), 16, True)]
)
def test_a_run_is_evaluated_if_the_held_out_text_fills_a_row_of_every_phase(
    lengths: tuple[int, ...], evaluated: int, evaluates: bool, tmp_path: Path
) -> None:
    texts, said = [{"text": f"{RIVER} {number}"} for number in range(40)], []
    settings = {"phases": tuple(Phase(0.5, length) for length in lengths), "layout": ContinuedPairs()}
    settings["training"] = {"evaluation_sequence_length": evaluated}
    made = inputs(tmp_path, texts, said, held_out=0.5, **settings)
    assert (made.evaluation is None) == evaluates
    assert evaluates != any(line.startswith("evaluation none: no held-out text fills a row") for line in said)


@pytest.mark.parametrize(
    ("named", "again"),
    [
        ({}, ["tokenizer", "dataset"]),
        ({"path": "dataset", "input": ()}, ["tokenizer"]),
        ({"tokenizer": "dataset/tokenizer"}, ["tokenizer"]),
    ],
    ids=str,
)
def test_folders_that_the_run_names_are_not_prepared_again_nor_those_around_them(
    named: dict[str, Any], again: list[str], tmp_path: Path
) -> None:
    """Before a step is trained, what other options have made is made again."""
    texts, said = [{"text": f"{RIVER} {number}"} for number in range(9)], []
    inputs(tmp_path, texts)
    own = {"tokenizer": {"path": str(tmp_path / "run" / named["tokenizer"])}} if "tokenizer" in named else {}
    own |= {"path": str(tmp_path / "run" / "dataset"), "input": ()} if "path" in named else {}
    inputs(tmp_path, texts, said, **own | {"held_out": 0.5})
    assert [line.split()[0] for line in said if "prepared again" in line] == again
