"""Every mistake a user makes through the command line: one sentence, exit code 2, and nothing saved is lost."""

import gzip
import io
import json
import logging
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


def test_misspelt_names(fails, small_run: Path) -> None:
    assert "did you mean 'pretrain'?" in fails("pretran", TINY)
    assert "bert_tiny.py" in fails("pretrain", "experiments/bert_tny.py")
    assert "did you mean 'experiment'?" in fails("pretrain", f"{TINY}:experimnt")
    assert "did you mean '--training.steps'?" in fails("pretrain", TINY, "--training.stepz", "60")
    assert "did you mean '--workdir'?" in fails("pretrain", TINY, "--workdri", "x")
    for verb in ("pretrain", "plan", "bench"):
        assert "did you mean '--training.batch_size'?" in fails(verb, TINY, "--batch_size", "8")
    assert "did you mean '--optimizer.learning_rate'?" in fails("pretrain", TINY, "--learning-rate=0.1")
    assert "did you mean '--training.batch_size'?" in fails("pretrain", "bert_small", "--batch-sise", "8")
    assert "Expected a value of type int for --training.steps, found 'many'" in fails(
        "pretrain", TINY, "--training.steps", "many"
    )
    assert "did you mean 'bert_adamw'?" in fails(
        "pretrain", TINY, "--workdir", small_run.with_name("o"), "--data.path", small_run / "dataset",
        "--optimizer", "bert_adam",
    )  # fmt: skip


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
    assert "finished" in pretrain(unfinished)
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


def test_options_without_effect(fails, tmp_path: Path, small_run: Path, prose: Path) -> None:
    same = ["pretrain", TINY, "--workdir", tmp_path / "run"]
    assert "found both" in fails(*same, "--data.path", small_run / "dataset", "--data.input", prose)
    assert "--data.input" in fails(*same, "--data.format", "jsonl")
    assert not (tmp_path / "run").exists()


def test_absent_platform(fails, tmp_path: Path, small_run: Path) -> None:
    for platform in ("tpu", "gpu"):
        said = fails(
            "pretrain", TINY, "--workdir", tmp_path / "run", "--training.platform", platform,
            "--data.path", small_run / "dataset",
        )  # fmt: skip
        assert f"--training.platform {platform}" in said


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


def test_paths_that_cannot_be_written(fails, tmp_path: Path, small_run: Path) -> None:
    file = tmp_path / "file"
    file.write_text("a line\n")
    for command in (
        ["pretrain", TINY, "--workdir", file],
        ["tokenizer", "train", "--input", "README.md", "--vocab_size", 300, "--output", file / "tokenizer"],
        ["prepare", "--input", "README.md", "--tokenizer", small_run / "tokenizer", "--output", file],
        ["embed", small_run, "--input", file, "--output", tmp_path / ("x" * 300 + ".npz")],
        ["embed", small_run, "--input", file / "input", "--output", tmp_path / "x.npz"],
        ["report", small_run, "--output", tmp_path],
        ["evaluate", small_run, "--output", file],
    ):
        assert str(tmp_path) in fails(*command)


def test_an_empty_path_is_none(fails, tmp_path: Path, small_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for command in (
        ["pretrain", "bert_tiny", "--workdir", ""],
        ["evaluate", ""],
        ["prepare", "--input", "", "--tokenizer", small_run / "tokenizer", "--output", "out"],
        ["finetune", "finetune_sentences", "--from", ""],
        ["finetune", "finetune_sentences", "--from", "random", "--like", ""],
        ["report", small_run, "--output", ""],
    ):
        assert "found an empty one; name a file or folder" in fails(*command)
    assert "found an empty name" in fails("pretrain", "bert_tiny", "--data.input", "")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_run_is_not_imported_over(fails, small_run: Path) -> None:
    before = (small_run / "experiment.json").read_bytes()
    assert "Expected no run in" in fails("import", small_run / "export", small_run)
    assert (small_run / "experiment.json").read_bytes() == before


def test_numbers_out_of_range(fails, tmp_path: Path, small_run: Path) -> None:
    same = ["pretrain", TINY, "--workdir", tmp_path / "run", "--data.path", small_run / "dataset", *SMALL_BERT]
    for option in ("--training.unroll", "--training.evaluate_every", "--checkpoint.every", "--model.num_hidden_layers"):
        assert option in fails(*same, option, -1)
    assert "--measured_steps" in fails("bench", TINY, "--measured_steps", 0)


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
    checkpoints.save_parameters(tmp_path / "xlnet", {"none": np.zeros(1)}, run, {})
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


def test_cutoffs_that_cut_no_vocabulary(fails, tmp_path: Path) -> None:
    same = "pretrain", "transformer_xl_tiny", "--workdir", tmp_path / "run", "--model.cutoffs"
    expected = "Expected cutoffs that ascend, from 1 to 4095 at most, for 4096 tokens, found"
    for cutoffs in ((5000,), (4096,), (200, 100), (100, 100), (0, 100)):
        said = fails(*same, *cutoffs)
        assert f"{expected} {', '.join(map(str, cutoffs))}; change --model.cutoffs." in said


def test_sizes_that_do_not_fit_a_reformer(fails, tmp_path: Path) -> None:
    """Axial tables that are not as long as a row, and buckets that are odd or more than the tokens."""
    same = "pretrain", "reformer_tiny", "--workdir", tmp_path / "run"
    cases = {
        ("--data.sequence_length", 256): "512 tokens, the product of --model.axial_pos_shape 16 32, found a sequence",
        ("--model.axial_pos_shape", 15, 32): "480 tokens, the product of --model.axial_pos_shape 15 32, found a",
        ("--model.axial_pos_embds_dim", 32, 32): "whose sum is the hidden size 128, found 32 32, whose sum is 64; ",
        ("--model.num_buckets", 15): "--model.num_buckets of even numbers from 2, found 15; change it.",
        ("--model.num_buckets", 32, 32): "at most the 512 tokens of the longest row, found 32 32, whose product is",
        ("--model.attn_layers", "global"): "Expected a known --model.attn_layers, found 'global'",
    }
    for options, expected in cases.items():
        assert expected in fails(*same, *options), options
    assert not (tmp_path / "run").exists()


def test_rows_too_short_for_a_permutation(fails, tmp_path: Path) -> None:
    def pretrain(*options: object) -> str:
        return fails("pretrain", "xlnet_tiny", "--workdir", tmp_path / "run", *options)

    assert "Expected rows of 10 to" in (said := pretrain("--data.sequence_length", 8)) and "found a sequence" in said
    assert "Expected an even sequence length" in pretrain("--data.sequence_length", 15)
    said = pretrain("--data.sequence_length", 16, "--objective.predictions", 12)
    assert "halves hold more tokens than the 6 and 6 to predict, found 8 and 5; raise --data.sequence_length" in said
    said = pretrain("--data.sequence_length", 16, "--objective.permutation_size", 16)
    assert "divide into parts of --objective.permutation_size 16 tokens, found rows of 16; change" in said


def test_arguments_are_named_on_a_terminal_too(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout", terminal)
    with pytest.raises(UserError, match="Missing from plmjax fill-mask"):
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


def test_word_vectors_are_evaluated_on_a_task(fails, tmp_path: Path) -> None:
    (tmp_path / "vectors.txt").write_text("3 2\na 1 2\nb 3 4\nc 5 6\n")
    said = fails("evaluate", tmp_path / "vectors.txt")
    assert f"Expected --task similarity or analogy for the word vectors in {tmp_path / 'vectors.txt'}" in said


def test_plan_of_what_is_not(fails) -> None:
    assert "v5e" in fails("plan", TINY, "--topology", "v5e:3x3")
    assert "found the generation" in fails("plan", TINY, "--topology", "v12:4x4")


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
    "missing column": ("sentences", "sentence\tlabel\na\tgood\n", "a column 'text' in line 2 of"),
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
    assert "a column 'form' in line 1" in said and "choices.jsonl" in said
