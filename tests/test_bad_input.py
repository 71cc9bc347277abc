"""Every mistake a user makes through the command line: one sentence, exit code 2, and nothing saved is lost."""

import gzip
import io
import json
import logging
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

from plmjax.commands import cli, command_line
from plmjax.data.layouts import ContinuedPairs
from plmjax.errors import UserError
from plmjax.experiment import Data, Experiment, Training
from plmjax.models.xlnet.xlnet import XlnetConfig
from plmjax.objectives.permutation_language_model import PermutationLanguageModel
from plmjax.training import program
from plmjax.training.checkpoints import checkpoints
from tests.small_runs import SMALL_BERT

TINY = "experiments/bert_tiny.py"


BUCKETS = "at most the 512 tokens of the longest row, found 32 32, whose product is"
ASCENDING = "Expected cutoffs that ascend, from 1 to 4095 at most, for 4096 tokens, found {}; change --model.cutoffs."
MISTAKES = [
    ("pretran TINY", "did you mean 'pretrain'?"),
    ("pretrain experiments/bert_tny.py", "bert_tiny.py"),
    ("pretrain TINY:experimnt", "did you mean 'experiment'?"),
    ("pretrain TINY --training.stepz 60", "did you mean '--training.steps'?"),
    ("pretrain TINY --workdri x", "did you mean '--workdir'?"),
    ("pretrain TINY --batch_size 8", "did you mean '--training.batch_size'?"),
    ("plan TINY --batch_size 8", "did you mean '--training.batch_size'?"),
    ("bench TINY --batch_size 8", "did you mean '--training.batch_size'?"),
    ("pretrain TINY --learning-rate=0.1", "did you mean '--optimizer.learning_rate'?"),
    ("pretrain bert_small --batch-sise 8", "did you mean '--training.batch_size'?"),
    ("pretrain TINY --training.steps many", "Expected a value of type int for --training.steps, found 'many'"),
    ("pretrain TINY MADE --optimizer bert_adam", "did you mean 'bert_adamw'?"),
    # options without an effect
    ("pretrain TINY MADE --data.input PROSE", "found both"),
    ("pretrain TINY --workdir OUT/run --data.format jsonl", "--data.input"),
    # numbers out of range
    ("pretrain TINY MADE --training.unroll -1", "--training.unroll"),
    (
        "pretrain TINY MADE --training.evaluate_every -1",
        "--training.evaluate_every",
    ),
    ("pretrain TINY MADE --checkpoint.every -1", "--checkpoint.every"),
    (
        "pretrain TINY MADE --model.num_hidden_layers -1",
        "--model.num_hidden_layers",
    ),
    ("bench TINY --measured_steps 0", "--measured_steps"),
    ("pretrain deberta_v3_tiny MADE --model.pos_att_type c2q", "--model.pos_att_type of p2c and c2p"),
    ("pretrain deberta_v3_tiny MADE --model.position_buckets 1", "--model.position_buckets from 2"),
    # paths that cannot be written
    ("pretrain TINY --workdir FILE", "OUT"),
    ("tokenizer train --input README.md --vocab_size 300 --output FILE/tokenizer", "OUT"),
    ("prepare --input README.md --tokenizer RUN/tokenizer --output FILE", "OUT"),
    (f"embed RUN --input FILE --output OUT/{'x' * 300}.npz", "OUT"),
    ("embed RUN --input FILE/input --output OUT/x.npz", "OUT"),
    ("report RUN --output OUT", "OUT"),
    ("evaluate RUN --output FILE", "OUT"),
    ("import RUN/export RUN", "Expected no run in"),
    # an empty path
    *(
        (command, "found an empty one; name a file or folder")
        for command in (
            "pretrain bert_tiny --workdir ''",
            "evaluate ''",
            "prepare --input '' --tokenizer RUN/tokenizer --output OUT/out",
            "finetune finetune_sentences --from ''",
            "finetune finetune_sentences --from random --like ''",
            "report RUN --output ''",
        )
    ),
    ("pretrain bert_tiny --data.input ''", "found an empty name"),
    # word vectors, a slice, cutoffs
    ("evaluate VECTORS", "Expected --task similarity or analogy for the word vectors in VECTORS"),
    ("plan TINY --topology v12:4x4", "found the generation"),
    *(
        (f"pretrain transformer_xl_tiny --workdir OUT/run --model.cutoffs {cutoffs}", ASCENDING.format(found))
        for cutoffs, found in (("5000", "5000"), ("4096", "4096"), ("200 100", "200, 100"), ("0 100", "0, 100"))
    ),
    # axial tables that are not as long as a row, and buckets that are odd or more than the tokens
    *(
        (f"pretrain reformer_tiny --workdir OUT/run --{option}", said)
        for option, said in {
            "data.sequence_length 256": "512 tokens, the product of --model.axial_pos_shape 16 32, found a sequence",
            "model.axial_pos_shape 15 32": "480 tokens, the product of --model.axial_pos_shape 15 32, found a",
            "model.axial_pos_embds_dim 32 32": "whose sum is the hidden size 128, found 32 32, whose sum is 64; ",
            "model.num_buckets 15": "--model.num_buckets of even numbers from 2, found 15; change it.",
            "model.num_buckets 32 32": BUCKETS,
            "model.attn_layers global": "Expected a known --model.attn_layers, found 'global'",
        }.items()
    ),
    # rows too short for a permutation
    *(
        (f"pretrain xlnet_tiny --workdir OUT/run --data.sequence_length {options}", said)
        for options, said in {
            "8": "Expected rows of 10 to",
            "15": "Expected an even sequence length",
            "16 --objective.predictions 12": "than the 6 and 6 to predict, found 8 and 5; raise --data.sequence_length",
            "16 --objective.permutation_size 16": "of --objective.permutation_size 16 tokens, found rows of 16",
        }.items()
    ),
]
"""Command -> what its sentence has. OUT is a new folder, RUN a finished run, FILE a file of text."""


@pytest.mark.parametrize(("command", "sentence"), MISTAKES)
def test_a_mistake_is_named(command: str, sentence: str, fails, tmp_path: Path, small_run: Path, prose: Path) -> None:
    (tmp_path / "file").write_text("a line\n")
    (tmp_path / "vectors.txt").write_text("3 2\na 1 2\nb 3 4\nc 5 6\n")
    places = {"FILE": tmp_path / "file", "VECTORS": tmp_path / "vectors.txt", "PROSE": prose, "RUN": small_run}
    places = {"MADE": "--workdir OUT/run --data.path RUN/dataset"} | places | {"OUT": tmp_path, "TINY": TINY}
    before = sorted(small_run.glob("*.json")), (small_run / "experiment.json").read_bytes()
    for place, path in places.items():
        command, sentence = (re.sub(rf"\b{place}\b", str(path), text) for text in (command, sentence))
    assert sentence in fails(*shlex.split(command))
    assert not (tmp_path / "run").exists()
    assert before == (sorted(small_run.glob("*.json")), (small_run / "experiment.json").read_bytes())


@pytest.mark.parametrize("platform", ["tpu", "gpu"])
def test_absent_platform(fails, tmp_path: Path, small_run: Path, platform: str) -> None:
    run = "--workdir", tmp_path / "run", "--data.path", small_run / "dataset"
    assert f"--training.platform {platform}" in fails("pretrain", TINY, *run, "--training.platform", platform)


@pytest.mark.parametrize("command", ["tokenizer", "prepare", "pretrain"])
def test_bad_text(fails, tmp_path: Path, small_run: Path, command: str) -> None:
    def run(path: Path) -> str:
        out = tmp_path / "out"
        if command == "tokenizer":
            return fails("tokenizer", "train", "--input", path, "--output", out, "--vocab_size", 300)
        if command == "prepare":
            return fails("prepare", "--input", path, "--tokenizer", small_run / "tokenizer", "--output", out)
        return fails("pretrain", TINY, "--workdir", tmp_path / "run", "--data.input", path, *SMALL_BERT)

    assert "missing.txt" in run(tmp_path / "missing.txt")
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    assert "empty.txt" in run(empty)
    binary = tmp_path / "binary.txt"
    binary.write_bytes(bytes(range(256)) * 64)
    assert "binary.txt" in run(binary)
    latin = tmp_path / "latin.txt"
    latin.write_bytes("Une phrase tout à fait réelle, mais en latin-1.\n".encode("latin-1") * 50)
    assert "latin.txt" in run(latin) and "UTF-8" in run(latin).upper()
    cut = tmp_path / "cut.txt.gz"
    cut.write_bytes(gzip.compress(b"A sentence that was cut short. " * 5000)[:-40])
    assert "cut.txt.gz" in run(cut)


def test_dataset_that_does_not_fit(fails, tmp_path: Path, small_run: Path) -> None:
    def pretrain(dataset: Path, *more: object) -> str:
        workdir = tmp_path / "run"
        shutil.rmtree(workdir, ignore_errors=True)
        return fails("pretrain", TINY, "--workdir", workdir, *SMALL_BERT, "--data.path", dataset, *more)

    said = pretrain(tmp_path / "missing")
    assert str(tmp_path / "missing") in said and "tokenizer" not in said
    unfinished = tmp_path / "unfinished"
    shutil.copytree(small_run / "dataset", unfinished)
    (unfinished / "manifest.json").unlink()
    assert "no manifest.json, with which a preparation ends; run plmjax prepare, again if" in pretrain(unfinished)
    truncated = tmp_path / "truncated"
    shutil.copytree(small_run / "dataset", truncated)
    shard = next(truncated.glob("*train*tfrecord*"))
    shard.write_bytes(shard.read_bytes()[:-10])
    assert shard.name in pretrain(truncated)
    assert "vocab_size" in pretrain(small_run / "dataset", "--model.vocab_size", 100)
    assert "positions" in pretrain(small_run / "dataset", "--data.sequence_length", 4096)
    assert "padding token is the model's, 7, found 0" in pretrain(small_run / "dataset", "--model.pad_token_id", 7)
    assert "take 8 or 16" in pretrain(small_run / "dataset", "--training.batch_size", 15)
    other = tmp_path / "other"
    cli.run(["tokenizer", "train", "--input", "README.md", "--output", str(other), "--vocab_size", "300"])
    assert "another" in pretrain(small_run / "dataset", "--tokenizer.path", other)


def test_end_token_of_another_tokenizer(fails, tmp_path: Path, decoder_run: Path, prose: Path) -> None:
    """A text of training ends with the tokenizer's; exported, the model would look for its own."""
    same = ["--workdir", tmp_path / "run", "--tokenizer.path", decoder_run.parent / "tokenizer"]
    said = "Expected a tokenizer whose end token is the model's, {}, found 2; set --model.eos_token_id 2"
    assert said.format(0) in fails("pretrain", "experiments/gpt2_tiny.py", *same, "--data.input", prose)
    for name in ("train.en", "train.de", "val.en", "val.de"):
        (tmp_path / name).write_text("a line\n")
    pairs = ["--data.folder", tmp_path, "--data.train", "train.en", "--data.validation", "val.en"]
    same = ["finetune", "experiments/translate_multi30k.py", "--from", "random", *same, *pairs]
    assert said.format(5) in fails(*same, "--model.eos_token_id", 5)
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_changed_resume(fails, small_run: Path, prose: Path) -> None:
    same = ["pretrain", TINY, "--workdir", small_run, "--data.input", prose, *SMALL_BERT]
    before = sorted((small_run / "checkpoints").iterdir())
    assert "optimizer.learning_rate = 0.001, found 0.1" in fails(*same, "--optimizer.learning_rate", 0.1)
    assert sorted((small_run / "checkpoints").iterdir()) == before


def test_damaged_and_foreign_checkpoints(fails, tmp_path: Path, small_run: Path, prose: Path) -> None:
    assert "no finished checkpoint" in fails("evaluate", tmp_path)
    for damage in ("half", "flipped"):
        run = tmp_path / damage
        shutil.copytree(small_run, run)
        files = [
            file
            for file in (run / "checkpoints" / "6" / "params").rglob("*")
            if file.is_file() and file.stat().st_size > 1000
        ]
        for file in files:
            contents = bytearray(file.read_bytes())
            if damage == "flipped":
                contents[len(contents) // 2] ^= 1
            file.write_bytes(contents[: len(contents) // 2] if damage == "half" else contents)
        assert "checkpoints/6" in fails("evaluate", run)
        assert "checkpoints/6" in fails("export", run, tmp_path / "export")
    wider = ["--model.hidden_size", "48"]
    run = tmp_path / "wider"
    shutil.copytree(small_run, run)
    description = json.loads((run / "experiment.json").read_text())
    description["model"]["hidden_size"] = 48
    (run / "experiment.json").write_text(json.dumps(description))
    assert "Expected the model of the experiment" in fails(
        "pretrain", TINY, "--workdir", run, "--data.input", prose, *SMALL_BERT, *wider
    )


def test_memories_longer_than_the_text(fails, tmp_path: Path) -> None:
    documents = (f"Document {n} tells of {n * n} foxes in {n + 7} dens. " * 5 for n in range(100))
    (tmp_path / "short.txt").write_text("\n\n".join(documents))
    cases = (
        ("transformer_xl_tiny", "model.mem_len"),
        ("transformer_xl_tiny", "objective.evaluation_mem_len"),
        ("xlnet_tiny", "objective.memory_length"),
    )
    sizes = "--tokenizer.vocab_size 400 --model.vocab_size 400 --model.n_layer 1 --model.d_model 8".split()
    for experiment, option in cases:
        run = "--workdir", tmp_path / option, "--data.input", tmp_path / "short.txt", "--training.batch_size", 8
        said = fails("pretrain", experiment, *run, *sizes, f"--{option}", 20_000)
        assert f"tokens of the training text, found 20000; lower --{option}, or give more text." in said


def test_a_memory_is_asked_of_what_has_none(fails, tmp_path: Path, decoder_run: Path) -> None:
    """XLNet's rows remember in training alone."""
    config = XlnetConfig.tiny(vocab_size=800)
    run = Experiment(config, PermutationLanguageModel(), Data(ContinuedPairs(), sequence_length=16))
    checkpoints.save_parameters(tmp_path / "xlnet", {"none": np.zeros(1)}, run, tokenizer={})
    for run, name in ((decoder_run, "NextToken"), (tmp_path / "xlnet", "PermutationLanguageModel")):
        said = fails("evaluate", run, "--memory", 64)
        assert "Expected a run whose evaluations remember tokens, such as Transformer-XL's, for --memory" in said
        assert f"found a run of {name}; leave it out." in said


def test_attention_of_another_device(fails, tmp_path: Path) -> None:
    """A run with cuDNN's attention is evaluated on any device."""
    said = fails("pretrain", TINY, "--workdir", tmp_path / "run", "--training.attention", "cudnn")
    assert "Expected a GPU and bfloat16 for --training.attention cudnn, found cpu and float32; take" in said
    data, training = Data(ContinuedPairs(), sequence_length=16), Training(attention="cudnn")
    run = Experiment(XlnetConfig.tiny(), PermutationLanguageModel(), data, training=training)
    assert [program.execution(run, platform).attention for platform in ("cpu", "gpu")] == ["dense", "cudnn"]


def test_arguments_are_named_on_a_terminal_too(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout", terminal)
    with pytest.raises(UserError, match=r"Missing from plmjax fill-mask: RUN, TEXT; see plmjax fill-mask --help."):
        cli.run(["fill-mask"])
    with pytest.raises(UserError, match=r"--top.*'x'"):
        cli.run(["fill-mask", "run", "text", "--top", "x"])


def test_warnings_are_plain_words(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever handler a library has given to the root logger."""
    root, handler = logging.getLogger(), logging.StreamHandler(io.StringIO())
    handler.setFormatter(logging.Formatter(logging.BASIC_FORMAT))
    monkeypatch.setattr(root, "handlers", [handler])
    log = logging.getLogger("plmjax.runs.finetuning")
    command_line.run_command(lambda: log.warning("%s is given twice.", "dev.tsv"))
    assert capsys.readouterr().err == "dev.tsv is given twice.\n" and not handler.stream.getvalue()
    log.warning("without a command")
    assert handler.stream.getvalue() == "WARNING:plmjax.runs.finetuning:without a command\n"


def test_tasks(fails, tmp_path: Path, small_run: Path) -> None:
    train, dev = tmp_path / "train.tsv", tmp_path / "dev.tsv"
    train.write_text("sentence\tlabel\n" + "a good one\tgood\na bad one\tbad\n" * 8)
    dev.write_text("sentence\tlabel\nan odd one\todd\n")
    said = fails(
        "finetune", "experiments/finetune_sentences.py", "--from", small_run, "--workdir", tmp_path / "run",
        "--data.train", train, "--data.validation", dev, "--data.text", "sentence", "--data.label", "label",
    )  # fmt: skip
    assert "odd" in said and "dev.tsv" in said


KINDS = {
    "sentences": "experiments/finetune_sentences.py",
    "choices": "experiments/finetune_choices.py",
    "tagging": "experiments/finetune_tagging.py:entities",
    "questions": "experiments/finetune_questions.py:squad",
}
GOOD = {
    "sentences": ("tsv", "text\tlabel\na good one\tgood\na bad one\tbad\n"),
    "choices": ("jsonl", '{"context": "a", "choices": ["b", "c"], "label": 0}\n'),
    "tagging": ("conll", "a\tB-A\nb\tI-A\n\nc\tO\nd\tB-A\n"),
    "questions": (
        "json",
        '{"data": [{"paragraphs": [{"context": "a good one", "qas": [\n'
        '{"id": "q", "question": "which", "answers": [{"answer_start": 2, "text": "good"}]}]}]}]}\n',
    ),
}
FAR, SILENT = GOOD["questions"][1].replace("2, ", "20, "), GOOD["questions"][1].replace("which", " ")
BAD = {
    "unseen label": ("sentences", "text\tlabel\na\tgood\nb\todd\n", "'odd' in line 3 of"),
    "unseen tag": ("tagging", "a\tO\n\nb\tB-B\n", "'B-B' in line 3 of"),
    "missing column": ("sentences", "sentence\tlabel\na\tgood\n", "a column 'text' in the header of"),
    "few columns": ("sentences", "text\tlabel\na\tgood\nb\n", "Expected 2 columns (text, label) in line 3 of"),
    "few cells": ("tagging", "a\tO\nb\n", "Expected 2 columns (form, tag) in line 2 of"),
    "empty text": ("sentences", "text\tlabel\n \tgood\n", "Expected text in 'text' in line 2 of"),
    "empty choice": ("choices", '{"context": "a", "choices": ["b", ""], "label": 0}\n', "'choices' in line 1 of"),
    "no such choice": ("choices", '{"context": "a", "choices": ["b", "c"], "label": 2}\n', "choice in line 1 of"),
    "impossible labels": ("tagging", "a\tB-A\n\nb\tI-A\n", "'I-A' after 'O' in line 3"),
    "span outside": ("questions", FAR, "character 20 of its context of 10 in line 2 of"),
    "empty question": ("questions", SILENT, "Expected text in 'question' in line 2 of"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", BAD)
def test_files_of_tasks(fails, tmp_path: Path, small_run: Path, mistake: str) -> None:
    kind, text, message = BAD[mistake]
    suffix, good = GOOD[kind]
    (tmp_path / f"train.{suffix}").write_text(good)
    (tmp_path / f"dev.{suffix}").write_text(text)
    said = fails(
        "finetune", KINDS[kind], "--from", small_run, "--workdir", tmp_path / "run", "--data.folder", tmp_path,
        "--data.train", f"train.{suffix}", "--data.validation", f"dev.{suffix}", "--data.sequence_length", 128,
        *(["--data.question_length", 8, "--data.stride", 64] if kind == "questions" else []),
    )  # fmt: skip
    assert message in said and f"{tmp_path}/dev.{suffix}" in said
    assert not (tmp_path / "run").exists()


def test_tasks_of_another_kind(fails, caplog: pytest.LogCaptureFixture, tmp_path: Path, small_run: Path) -> None:
    mixed = tmp_path / "mixed.py"
    mixed.write_text(
        "import dataclasses\nfrom experiments.finetune_tagging import entities\n"
        "from plmjax.finetuning.tasks.sentences import SequenceClassification\n\n\n"
        "def experiment():\n    return dataclasses.replace(entities(), objective=SequenceClassification())\n"
    )
    said = fails("finetune", mixed, "--from", small_run, "--workdir", tmp_path / "run")
    assert "Expected Sentences for the objective SequenceClassification, found a task of Tagging" in said
    for kind, (suffix, good) in GOOD.items():
        (tmp_path / f"{kind}.{suffix}").write_text(good)
    for path in ("questions.json", "sentences.tsv"):
        said = fails(
            "finetune", KINDS["tagging"], "--from", small_run, "--workdir", tmp_path / "run",
            "--data.train", tmp_path / path, "--data.validation", tmp_path / path,
        )  # fmt: skip
        assert "Expected a .conll, .conllu or .jsonl file" in said and path in said
    file = str(tmp_path / "tagging.conll")
    run = ["finetune", KINDS["tagging"], "--from", str(small_run), "--workdir", str(tmp_path / "run")]
    short = "--finetuning.epochs 0 --finetuning.warmup 0 --finetuning.evaluations 0 --training.steps 1".split()
    short += ["--data.sequence_length", "16"]
    cli.run([*run, "--data.train", file, "--data.validation", file, *short])
    assert f"of examples that are trained on: {file} is --data.validation too." in caplog.text
    said = fails("evaluate", tmp_path / "run", "--data", tmp_path / "questions.json")
    assert "Expected a .conll, .conllu or .jsonl file" in said and "questions.json" in said
    said = fails("evaluate", tmp_path / "run", "--data", tmp_path / "choices.jsonl")
    assert "a key 'form' in line 1" in said and "choices.jsonl" in said
