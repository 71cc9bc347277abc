"""Mistakes in a run are one sentence, before any text is read and any file is written, by every command."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from plmjax import experiment
from plmjax.commands import cli
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data.layouts import Chunks, SentencePairs
from plmjax.errors import UserError
from plmjax.experiment import Data, Experiment, Finetuning, Phase, Tokenizer, WeightMapping
from plmjax.finetuning.tasks.sentences import Sentences, SequenceClassification
from plmjax.interop import word2vec
from plmjax.models.bart.bart import BartConfig
from plmjax.models.bert import BertConfig
from plmjax.models.gpt2 import Gpt2Config
from plmjax.models.longformer.longformer import LongformerConfig
from plmjax.models.t5 import T5Config
from plmjax.models.word2vec import Word2VecConfig
from plmjax.objectives.next_token import NextToken
from plmjax.runs import checks
from plmjax.runs.init_from import InitFrom
from plmjax.runs.resolve import resolve
from plmjax.training.checkpoints import checkpoints
from tests.small_runs import SMALL_BERT
from tests.third_party import experiments

DEVICES = ("--training.accumulation 3", "x 3 microbatches, found 32; take 24 or 48")
PRETRAIN = [
    DEVICES,
    ("--training.steps 0", "at least one step, found 0"),
    ("--training.dtype float17", "'float17'"),
    ("--training.platform cpuu", "'cpuu'; did you mean 'cpu'?"),
    ("--training.attention blokwise", "did you mean 'blockwise'?"),
    ("--training.dropout_prng rgb", "did you mean 'rbg'?"),
    ("--training.matmul_precision int8_dynamic", "float for a training, found int8_dynamic"),
    ("--optimizer.learning_rate nan", "--optimizer.learning_rate of at least 0, found nan"),
    ("--optimizer.frozen bertt", "--optimizer.frozen to name the beginning of a parameter's path, found 'bertt'"),
    ("--data.sequence_length 3", "5 to 65538 tokens for the layout SentencePairs"),
    ("--data.sequence_length 4096", "128 positions, found a sequence length of 4096"),
    ("--mesh.tensor 3", "? x ? x 3 on 8"),
    ("--checkpoint.best '' --training.patience 2", "--training.patience needs --checkpoint.best"),
    ("--data.format jsonn", "did you mean 'jsonl'?"),
    ("--data.language e", "language whose sentences can be split"),
    ("--data.clean c4_line", "--data.clean, found 'c4_line'; did you mean 'c4_lines'?"),
    ("--data.special_names [SEPP]", "--data.special_names, found '[SEPP]'; did you mean '[SEP]'?"),
    ("--tokenizer.vocab_size 3", "at least 7 tokens for wordpiece, 5 special ones and 2 of the text, found 3"),
    ("--tokenizer.vocab_size 9000", "4096 tokens, found --tokenizer.vocab_size 9000"),
    ("--tokenizer.kind byte-bpe", "padding token is the model's, 0, found 1; set --model.pad_token_id 1"),
]
FINETUNE = [
    ("--optimizer.schedule slanted_triangular", "--finetuning.warmup needs a schedule with a warm-up"),
    ("--finetuning.epochs 0", "--finetuning.epochs or --training.steps, found 0 and 0"),
    ("--training.steps 5", "--finetuning.epochs and --training.steps exclude each other, found 3 and 5"),
    ("--training.evaluation_batches 2", "found 2"),
    ("--training.evaluation_sequence_length 64", "--training.evaluation_sequence_length does not apply to a task"),
    ("--data.sequence_length 300", "found a sequence length of 300; shorten --data.sequence_length"),
    ("--like runs/other", "--like needs --from random"),
]


@pytest.fixture(scope="module", autouse=True)
def devices_of_runs() -> None:
    """All eight: a batch is cut for them."""


def words(options: str) -> list[str]:
    return [word.strip("'") for word in options.split()]


@pytest.mark.parametrize(("options", "part"), PRETRAIN, ids=[options for options, _ in PRETRAIN])
def test_pretrain(options: str, part: str, fails, tmp_path: Path) -> None:
    text = ["--data.input", "no_such_text"]  # a command that reads text before it looks at the options trips over this
    assert part in fails("pretrain", "bert_tiny", "--workdir", tmp_path / "run", *text, *words(options))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", ["plan", "bench", "submit"])
def test_the_other_commands_say_the_same(command: str, tmp_path: Path) -> None:
    from tpu import __main__ as submission

    place = ["--accelerator", "v5e", "--topology", "2x4", "--bucket", str(tmp_path), "--project", "p", "--zone", "z"]
    options, part = DEVICES
    with pytest.raises(UserError) as raised:
        if command == "submit":
            submission.run(["submit", "bert_tiny", *place, "--dry_run", *words(options)])
        else:
            cli.run([command, "bert_tiny", *(["--topology", "v5e:2x4"] if command == "plan" else []), *words(options)])
    assert part in str(raised.value)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(("options", "part"), FINETUNE, ids=[options for options, _ in FINETUNE])
def test_finetune(options: str, part: str, fails, tmp_path: Path, small_run: Path) -> None:
    command = ["finetune", "finetune_sentences", "--from", small_run, "--workdir", tmp_path / "run"]
    said = fails(*command, "--data.train", "no_such_file", "--data.validation", "none", *words(options))
    assert part in said and not (tmp_path / "run").exists()


TEXT = "name files or folders with --data.input, or a prepared dataset with --data.path"


@pytest.mark.parametrize(
    ("command", "part"),
    [
        ("bert_base_4x4", TEXT),
        ("bert_tiny --data.path none --data.clean c4", "--data.clean needs raw text, found the prepared dataset none"),
        ("bert_tiny --data.path none --data.input other", "--data.path or --data.input, found both"),
        ("continued --data.input README.md", "no model; set it there"),
        ("finetune_sentences", "found one on Sentences"),
        ("gpt2_tiny --model.attention_window 65 --data.sequence_length 64", "found 65; lower it"),
        ("longformer_tiny --model.attention_window 256 --data.sequence_length 128", "found 256; lower it"),
    ],
)
def test_pretrain_of_other_experiments(command: str, part: str, fails, tmp_path: Path) -> None:
    name, *options = command.split()
    assert part in fails("pretrain", name, "--workdir", tmp_path / "run", *options)
    assert not (tmp_path / "run").exists()


def test_a_job_without_text_or_a_plan_without_a_model_is_refused(fails) -> None:
    from tpu import __main__ as submission

    place = ["--accelerator", "v5e", "--topology", "4x4", "--bucket", "gs://b", "--project", "p", "--zone", "z"]
    with pytest.raises(UserError, match=TEXT):
        submission.run(["submit", "bert_base_4x4", *place, "--dry_run"])
    assert "has no model; set it there" in fails("plan", "continued", "--topology", "v3:2x2")


def saved(folder: Path, model) -> Path:
    """A run of a model on text, or of one with labels, with one parameter in place of its own."""
    run = Experiment(model, NextToken(), Data(layout=Chunks()))
    if isinstance(model, SequenceClassification):
        run = Experiment(BertConfig.tiny(), model, Sentences())
    checkpoints.save_parameters(folder, {"kernel": np.zeros(1, np.float32)}, run, tokenizer={})
    return folder


@pytest.mark.parametrize(
    ("model", "command", "parts"),
    [
        (Gpt2Config.tiny(), "pretrain roberta_tiny", (
            "a run of RobertaConfig, an encoder", "a run of Gpt2Config, a decoder", "experiments/continued.py")),
        (BertConfig.tiny(hidden_size=32), "pretrain bert_tiny --model.hidden_size 64", ("model.hidden_size = 64",)),
        (T5Config.tiny(), "finetune t5_mixture --model.d_ff 7", ("model.d_ff = 7", "--model.d_ff out")),
        (SequenceClassification(labels=("no", "yes")), "pretrain continued", (
            "SequenceClassification on Sentences", "name the run that it started from")),
        (Word2VecConfig.tiny(), "finetune finetune_sentences", ("labels texts", "Word2VecConfig, word vectors")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_checkpoint_of_another_kind(model, command: str, parts: tuple[str, ...], tmp_path: Path, fails) -> None:
    start = ("--from", saved(tmp_path / "start", model), "--workdir", tmp_path / "run", "--data.input", "README.md")
    said = fails(*command.split(), *(start if command.startswith("pretrain") else start[:4]))
    assert all(part in said for part in parts), said
    assert not (tmp_path / "run").exists()


def test_a_start_that_fits_no_dataset_or_tokenizer(small_run: Path, fails, tmp_path: Path) -> None:
    """What a first command wrote before it was refused is gone."""
    same = ("pretrain", "bert_tiny", *SMALL_BERT, "--workdir", tmp_path / "run", "--data.path", small_run / "dataset")
    assert "no finished checkpoint" in fails(*same, "--from", tmp_path)
    other = tmp_path / "tokenizer"
    cli.run(["tokenizer", "train", "--input", "README.md", "--output", str(other), "--vocab_size", "300"])
    assert "tokenizer of the checkpoint" in fails(*same, "--from", small_run, "--tokenizer.path", other)
    assert not (tmp_path / "run" / "start.json").exists() and not (tmp_path / "run" / "experiment.json").exists()


def test_word_vectors_that_do_not_fit(fails, tmp_path: Path) -> None:
    word2vec.write(tmp_path / "vectors", ["red", "blue"], np.ones((2, 6), np.float32))
    (tmp_path / "text.txt").write_text("a red house and a blue house beside a green one\n\n" * 40)
    sizes = "--tokenizer.vocab_size 13 --model.vocab_size 13 --model.vector_size 6 --data.sequence_length 16"
    same = ("--from", tmp_path / "vectors", "--workdir", tmp_path / "run", "--data.input", tmp_path / "text.txt")
    same = ("pretrain", "nnlm_tiny", *same, *sizes.split(), "--data.held_out", "0")
    said = fails(*same, "--model.vector_size", "5")
    assert "size 5" in said and "words/embedding, found 6" in said
    assert "of the kind wordpiece" in fails(*same, "--tokenizer.kind", "wordpiece")
    assert not (tmp_path / "run" / "experiment.json").exists()
    (tmp_path / "vectors").write_text("2 2\na 1 2\n")
    assert "2 words" in fails(*same)


def check(run: Experiment, devices: int = 1, slices: int = 1) -> None:
    checks.on_devices(resolve(run).experiment, devices, slices)


BERT, LONGFORMER = experiments.bert(), experiments.longformer()
BEST = {"checkpoint": {"best": "eval/loss", "prefer": "best"}}
PHASES = (Phase(0.5, sequence_length=8), Phase(0.5, sequence_length=16))
BACKWARDS = dataclasses.replace(experiments.ulmfit().model, backwards=True)


@pytest.mark.parametrize(
    ("run", "part"),
    [
        (dataclasses.replace(BERT, objective=None), "no objective"),
        (dataclasses.replace(BERT, finetuning=Finetuning()), "no `finetuning`"),
        (dataclasses.replace(experiments.awd_lstm(), model=BACKWARDS), "--data.layout.backwards True, as the model"),
        (experiments.changed(experiments.transformer_xl(), data={"layout": SentencePairs(pack=2)}), "pack 1 for Tran"),
        (experiments.changed(BERT, checkpoint={"prefer": "best", "best": ""}), "prefer best needs --checkpoint.best"),
        (experiments.changed(BERT, checkpoint={"best": "-eval/mlm_los"}), "did you mean 'eval/mlm_loss'?"),
        (experiments.changed(BERT, training={"patience": 2}, **BEST), "patience needs --training.evaluate_every"),
        (experiments.changed(BERT, training={"steps": 8, "profile_steps": (7, 9)}), "1 to 8, found 7 9"),
        (experiments.changed(BERT, data={"held_out": 0.0}, **BEST), "needs held-out documents"),
        # a dataset may hold out rows of its own
        (experiments.changed(BERT, data={"path": "dataset", "held_out": 0.0}, **BEST), ""),
        (
            dataclasses.replace(experiments.changed(LONGFORMER, model={"attention_window": (4, 18)}), phases=PHASES),
            "at most the 16 tokens of a sequence, found 18",
        ),
    ],
)
def test_parts_of_a_pretraining_that_do_not_fit(run: Experiment, part: str) -> None:
    """No part: they fit."""
    if not part:
        return check(run)
    with pytest.raises(UserError) as raised:
        check(run)
    assert part in str(raised.value)


def test_a_checkpoint_is_saved_at_every_evaluation_that_may_be_the_best() -> None:
    """The last step is saved in any case."""

    def run(evaluate_every: int, every: int) -> Experiment:
        changed = experiments.changed(BERT, training={"steps": 8, "evaluate_every": evaluate_every})
        return experiments.changed(changed, checkpoint={"every": every} | BEST["checkpoint"])

    check(run(6, 3)), check(run(8, 0))
    with pytest.raises(UserError, match=r"found --checkpoint.every 6 and --training.evaluate_every 3"):
        check(run(3, 6))


def test_devices_and_slices_that_a_batch_is_cut_for() -> None:
    run = experiment.load("bert_large_8x8")
    check(run, devices=128)
    with pytest.raises(UserError, match="96 devices x 1 microbatches, found 256; take 192 or 288"):
        check(run, devices=96)
    with pytest.raises(UserError, match="2 slices, found 1"):
        check(experiments.changed(experiments.gpt2(), mesh={"data": 1, "fsdp": 2}), devices=2, slices=2)


def test_special_tokens_of_a_tokenizer() -> None:
    longformer, bart = LongformerConfig.tiny(pad_token_id=1, sep_token_id=2), BartConfig.tiny(eos_token_id=3)
    checks.special_tokens(longformer, Vocabulary(9, sep=2, end=3))  # a tokenizer without a padding token
    with pytest.raises(UserError, match=r"separator token is the model's, 2, found 4; set --model.sep_token_id 4"):
        checks.special_tokens(longformer, Vocabulary(9, pad=1, sep=4, end=3))
    with pytest.raises(UserError, match=r"end token is the model's, 3, found 0; set --model.eos_token_id 0"):
        checks.special_tokens(bart, Vocabulary(9, pad=1, sep=2, end=0))


def test_parameters_of_another_shape_or_none(small_run: Path) -> None:
    """A tokenizer that the run names may be that of the checkpoint."""
    params, description = checkpoints.load_parameters(small_run)
    run, start = description.experiment, InitFrom.find(small_run)
    initial = start.initialize(
        dataclasses.replace(run, weight_mapping=WeightMapping()), params, None, report=lambda line: None
    )
    with pytest.raises(UserError, match=r"word_embeddings/embedding of shape \(3, 3\).*found \(800, 32\)"):
        initial.from_sampled({"bert": {"embeddings": {"word_embeddings": {"embedding": np.ones((3, 3))}}}})
    with pytest.raises(UserError, match=r"bert/adapter of shape .* found no such parameter"):
        initial.from_sampled({"bert": {"adapter": np.ones(2)}})
    named = dataclasses.replace(run, tokenizer=Tokenizer(path=str(small_run / "tokenizer")))
    assert start.tokenizer(named).fingerprint == description.load_tokenizer().fingerprint
