"""Pretraining end to end, where its text is not what it is in the other tests."""

import html
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from plmjax import experiment as experiments
from plmjax.commands import cli
from plmjax.data import cleaning, formats, preparation, store, tokenizers
from plmjax.data.layouts import Blocks
from plmjax.experiment import Checkpoint, Data, Experiment, Phase, Tokenizer, Training
from plmjax.generation.generate import printable
from plmjax.objectives.next_token import NextToken
from plmjax.report import page
from plmjax.runs import pretraining
from plmjax.runs.pretraining import pretrain
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
    assert "Expected held-out text to find the best checkpoint by" in said and "set --checkpoint.best ''" in said
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
from plmjax import cli, errors

cli.run(sys.argv[3:])
try:
    cli.run(["prepare", "--format", "text", "--input", sys.argv[1], "--tokenizer", sys.argv[2], "--output", "dataset"])
except errors.UserError as error:
    print(error)
"""


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


@pytest.mark.nightly
def test_a_decoder_writes_texts_for_the_report(decoder_run: Path, prose: Path, tmp_path: Path) -> None:
    run = Experiment(
        model=None,
        objective=NextToken(),
        data=Data(layout=Blocks(), input=(str(prose),), sequence_length=24),
        optimizer=AdamW(),
        training=Training(steps=1, batch_size=8, log_every=1, evaluation_batches=1),
        checkpoint=Checkpoint(every=0),
    )
    said: list[str] = []
    pretrain(run, tmp_path / "run", said.append, decoder_run)
    samples = [json.loads(line) for line in (tmp_path / "run" / "samples.jsonl").read_text().splitlines()]
    assert len(samples) == 4 and samples[0]["prompt"] == "" and all(0 < one["tokens"] <= 32 for one in samples)
    assert any(line.startswith("generate ") and printable(samples[0]["text"]) in line for line in said)
    page.report([tmp_path / "run"], tmp_path / "page.html")
    assert html.escape(samples[1]["text"]).encode() in (tmp_path / "page.html").read_bytes()


def test_the_tokenizer_and_the_dataset_are_made_of_what_a_cleaning_leaves(tmp_path: Path) -> None:
    lines = ["The river walks under the old green bridge.", "A line without a mark that holds a ☃"]
    (tmp_path / "a.txt").write_text("\n\n".join("\n".join(lines * (1 + at)) for at in range(4)), encoding="utf-8")
    data = Data(layout=Blocks(), input=(str(tmp_path / "a.txt"),), clean=("c4_end_marks", "c4_duplicate_lines"))
    run = Experiment(
        model=None, objective=NextToken(), data=data, optimizer=AdamW(), tokenizer=Tokenizer(kind="word", vocab_size=40)
    )
    tokenizer = pretraining._tokenizer(run, tmp_path, None, print)
    unknown = tokenizer.vocabulary.unknown
    assert unknown not in tokenizer.encode("bridge") and tokenizer.encode("☃") == [unknown]
    report = json.loads((pretraining._dataset(run, tmp_path, tokenizer, print) / "cleaning.json").read_text())
    assert [rule["name"] for rule in report["rules"]] == list(data.clean)
    assert report["read"]["documents"] == 4 and report["kept"] == {"documents": 1, "characters": 43, "tokens": 9}


def test_all_that_a_run_says_of_its_text_is_told_to_the_preparation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.jsonl").write_text('{"body": "text"}\n', encoding="utf-8")
    told = {"language": "zh", "text_key": "body", "max_unknown": 0.25, "clean": ("c4_lines",), "bad_words": "words.txt"}
    told |= {"special_names": ("[SEP]",)}
    found: dict = {}
    monkeypatch.setattr(preparation, "prepare", lambda *_, **options: found.update(options))
    data = Data(
        layout=Blocks(), input=(str(tmp_path / "a.jsonl"),), held_out=0.125, streams=("source=en", "target=de"), **told
    )
    run = Experiment(model=None, objective=NextToken(), data=data, optimizer=AdamW())
    pretraining._dataset(run, tmp_path, None, print)
    assert found == told | {"validation": 0.125, "streams": {"source": "en", "target": "de"}}


def test_names_of_special_tokens_are_read_in_the_text_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("A river. <|endoftext|> A bridge.", encoding="utf-8")
    kind = Tokenizer(kind="gpt2-bpe", vocab_size=270)
    for names, count in (((), 0), (("<|endoftext|>",), 1)):
        data = Data(layout=Blocks(), input=(str(tmp_path / "a.txt"),), held_out=0.0, special_names=names)
        run = Experiment(model=None, objective=NextToken(), data=data, optimizer=AdamW(), tokenizer=kind)
        workdir = tmp_path / f"run{count}"
        tokenizer = pretraining._tokenizer(run, workdir, None, print)
        split = store.open_dataset(pretraining._dataset(run, workdir, tokenizer, print)).split("train")
        assert [*split.tokens(0, split.token_count)].count(tokenizer.vocabulary.end) == count


def test_all_that_a_run_says_of_its_text_is_told_to_the_training_of_its_tokenizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict = {}

    def cleaner(*given):
        told["cleaner"] = given
        return SimpleNamespace(names=given[0], texts=lambda texts: [f"clean {text}" for text in texts])

    def train(kind, size, texts, folder, lowercase):
        told["train"] = (kind, size, list(texts), folder, lowercase)

    monkeypatch.setattr(formats, "texts", lambda *given: told.update(texts=given) or ["text"])
    monkeypatch.setattr(cleaning, "cleaner", cleaner)
    monkeypatch.setattr(tokenizers, "train", train)
    monkeypatch.setattr(tokenizers, "load", lambda folder: folder)
    data = Data(
        layout=Blocks(), input=("a.jsonl",), format="jsonl", text_key="body", streams=("source=en",), language="zh",
        clean=("c4_lines",), bad_words="words.txt",
    )  # fmt: skip
    run = Experiment(
        model=None,
        objective=NextToken(),
        data=data,
        tokenizer=Tokenizer("", kind="byte", vocab_size=40, lowercase=True),
    )
    parts = ({"source": "en"}, ())
    assert pretraining._tokenizer(run, tmp_path, None, print) == tmp_path / "tokenizer"
    assert told["texts"] == (["a.jsonl"], "jsonl", None, "body", parts)  # bytes are counted in all of the text
    assert told["cleaner"] == (("c4_lines",), "words.txt", "zh", "jsonl", parts)
    assert told["train"] == ("byte", 40, ["clean text"], tmp_path / "tokenizer", True)


@pytest.mark.parametrize(
    ("lengths", "evaluated", "rows", "evaluates"),
    [
        ((24, 48), 0, {24: 3, 48: 1}, True),
        ((24, 48), 0, {24: 3, 48: 0}, False),
        ((48, 24), 0, {24: 3, 48: 0}, False),
        ((24, 48), 16, {16: 3}, True),
    ],
)
def test_a_run_is_evaluated_if_the_held_out_text_fills_a_row_of_every_phase(
    lengths: tuple[int, ...], evaluated: int, rows: dict[int, int], evaluates: bool
) -> None:
    phases = tuple(Phase(0.5, length, batch_size=length // 6) for length in lengths)
    training = Training(steps=4, batch_size=2, evaluation_sequence_length=evaluated)
    run = Experiment(model=None, objective=NextToken(), data=Data(Blocks()), training=training, phases=phases)
    said: list[str] = []
    found = pretraining._evaluation(run, SimpleNamespace(held_out=rows.__getitem__), said.append)
    assert (found is None) == evaluates == (not said)
    assert evaluates or said[0].startswith("evaluation none: no held-out text fills a row")
    assert pretraining._batch(run)["input_ids"].shape == (lengths[0] // 6, lengths[0])


@pytest.mark.parametrize(
    ("named", "removed"),
    [
        ({}, ["tokenizer", "dataset"]),
        ({"tokenizer": "tokenizer"}, ["dataset"]),
        ({"data": "dataset"}, ["tokenizer"]),
        ({"tokenizer": "dataset/tokenizer"}, ["tokenizer"]),
        ({"tokenizer": "."}, ["tokenizer", "dataset"]),
    ],
)
def test_folders_that_the_run_names_are_not_removed_nor_those_around_them(
    named: dict[str, str], removed: list[str], tmp_path: Path
) -> None:
    for made in ("tokenizer", "dataset/tokenizer"):
        (tmp_path / made).mkdir(parents=True)
    paths = {name: str(tmp_path / path) for name, path in named.items()}
    run = Experiment(
        model=None,
        objective=NextToken(),
        data=Data(layout=Blocks(), path=paths.get("data", "")),
        tokenizer=Tokenizer(path=paths.get("tokenizer", "")),
    )
    experiments.write(run, tmp_path / "experiment.json")
    said: list[str] = []
    pretraining._remove_outdated(run, tmp_path, True, said.append)
    assert [line.split()[0] for line in said] == removed
    assert [name for name in ("tokenizer", "dataset") if not (tmp_path / name).exists()] == removed
