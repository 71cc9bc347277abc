"""A mistake in a run is found before any text is read, by every command."""

import contextlib
import dataclasses
import types
from pathlib import Path

import pytest

from plmjax import experiment
from plmjax.commands import cli
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data.layouts import SentencePairs
from plmjax.data.mixing import Mixture
from plmjax.errors import UserError
from plmjax.experiment import Data, Finetuning, Phase, catalogue
from plmjax.models.bert import BertConfig
from plmjax.runs import checks
from plmjax.training.checkpoints import checkpoints, start
from tests.strangers import experiments

TEXT = ["--data.input", "no_such_text"]  # a command that reads text before it looks at the options trips over this
MISTAKES = [
    (["--training.steps", "-5"], "--training.steps of at least 0, found -5"),
    (["--training.steps", "0"], "at least one step, found 0"),
    (["--training.batch_size", "0"], "--training.batch_size of at least 1, found 0"),
    (["--training.accumulation", "0"], "--training.accumulation of at least 1, found 0"),
    (["--training.accumulation", "3"], "x 3 microbatches, found 32; take 24 or 48"),
    (["--training.batch_size", "12"], "divides by 8 devices x 1 microbatches, found 12; take 8 or 16"),
    (["--training.log_every", "0"], "--training.log_every of at least 1, found 0"),
    (["--training.dtype", "float17"], "Expected a known --training.dtype, found 'float17'"),
    (["--training.gradient_dtype", "bfloat"], "did you mean 'bfloat16'?"),
    (["--training.remat", "ful"], "did you mean 'full'?"),
    (["--training.attention", "blokwise"], "did you mean 'blockwise'?"),
    (["--training.dropout_generator", "rgb"], "did you mean 'rbg'?"),
    (["--training.platform", "cpuu"], "Expected a known --training.platform, found 'cpuu'; did you mean 'cpu'?"),
    (["--training.profile_steps", "5", "4"], "a first and a last step from 1 on, found 5 4"),
    (["--training.profile_steps", "5", "9000"], "within 1 and 4000, found 5 9000"),
    (["--optimizer", "bert_adam"], "did you mean 'bert_adamw'?"),
    (["--optimizer.schedule", "cosin"], "did you mean 'cosine'?"),
    (["--optimizer.learning_rate=-1"], "--optimizer.learning_rate of at least 0, found -1"),
    (["--optimizer.learning_rate", "nan"], "--optimizer.learning_rate of at least 0, found nan"),
    (["--optimizer.schedule.warmup_steps=-1"], "--optimizer.schedule.warmup_steps of at least 0, found -1"),
    (["--optimizer.beta2", "1"], "--optimizer.beta2 from 0 to below 1, found 1"),
    (["--optimizer.frozen", "bertt"], "--optimizer.frozen to name the beginning of a parameter's path, found 'bertt'"),
    (["--data.sequence_length", "3"], "rows of 5 to 65538 tokens for the layout SentencePairs"),
    (["--data.sequence_length", "4096"], "model's 128 positions, found a sequence length of 4096"),
    (["--objective.rate", "1.5"], "masking rate between 0 and 1"),
    (["--mesh.tensor", "3"], "number of devices, found ? x ? x 3 on 8"),
    (["--mesh.data=-1"], "--mesh.data of at least 0, found -1"),
    (["--checkpoint.best", "eval/los"], "found 'eval/los'; did you mean 'eval/loss'?"),
    (["--checkpoint.prefer", "newest"], "Expected a known --checkpoint.prefer, found 'newest'"),
]
OF_TEXT = [
    (["--data.held_out", "1.5"], "--data.held_out from 0 to below 1, found 1.5"),
    (["--data.held_out", "0"], "Expected held-out text to find the best checkpoint by, found none"),
    (["--data.format", "jsonn"], "did you mean 'jsonl'?"),
    (["--data.language", "e"], "Expected a language whose sentences can be split"),
    (["--tokenizer.kind", "wordpeace"], "did you mean 'wordpiece'?"),
    (["--tokenizer.vocab_size", "3"], "at least 7 tokens for wordpiece, 5 special ones and 2 of the text, found 3"),
    (["--tokenizer.vocab_size", "9000"], "the model's 4096 tokens, found --tokenizer.vocab_size 9000"),
    (["--model.pad_token_id", "7"], "whose padding token is the model's, 7, found 0; set --model.pad_token_id 0"),
    (["--tokenizer.kind", "byte-bpe"], "whose padding token is the model's, 0, found 1; set --model.pad_token_id 1"),
]


def written(value: list[str] | str) -> str:
    """A name for a case: its options."""
    return " ".join(value) if isinstance(value, list) else ""


@pytest.mark.parametrize(("options", "message"), [*MISTAKES, *OF_TEXT], ids=written)
def test_pretrain_refuses_it_before_it_reads_text(options, message, fails, tmp_path: Path) -> None:
    said = fails("pretrain", "bert_tiny", "--workdir", tmp_path / "run", *TEXT, *options)
    assert message in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", ["plan", "bench", "submit"])
@pytest.mark.parametrize(
    ("options", "message"),
    [*MISTAKES[3:5], *[mistake for mistake in MISTAKES if "Expected a known" in mistake[1]], *MISTAKES[-8:-6]],
    ids=written,
)
def test_the_other_commands_say_the_same(command, options, message, tmp_path: Path, monkeypatch) -> None:
    def nothing(*_, **__):
        raise AssertionError("something was made")

    from tpu import __main__ as submission

    for maker in ("plmjax.plan.compilation.place", "plmjax.training.placement.place", "tpu.package.pack"):
        monkeypatch.setattr(maker, nothing)
    monkeypatch.setattr("plmjax.plan.compilation.topologies.Slice.devices", nothing)
    place = ["--accelerator", "v5e", "--topology", "2x4", "--bucket", str(tmp_path), "--project", "p", "--zone", "z"]
    with pytest.raises(UserError) as raised:
        if command == "submit":
            submission.run(["submit", "bert_tiny", *place, "--dry-run", *options])
        else:
            cli.run([command, "bert_tiny", *(["--topology", "v5e:2x4"] if command == "plan" else []), *options])
    assert message in str(raised.value)


def test_finetune_refuses_it_before_it_reads_a_file(fails, tmp_path: Path, small_run: Path) -> None:
    command = ["finetune", "finetune_sentences", "--from", small_run, "--workdir", tmp_path / "run"]
    for options, message in (
        (["--optimizer.schedule", "cosin"], "did you mean 'cosine'?"),
        (["--training.dtype", "float17"], "Expected a known --training.dtype"),
        (["--data.pack", "0"], "--data.pack of at least 1, found 0"),
        (["--finetuning.warmup", "1"], "--finetuning.warmup from 0 to below 1, found 1"),
        (["--training.steps", "5"], "either --finetuning.epochs or --training.steps, found 3 and 5"),
        (["--training.evaluation_batches", "2"], "found 2"),
        (
            ["--training.evaluation_sequence_length", "64"],
            "Expected no --training.evaluation_sequence_length for a task",
        ),
        (["--data.sequence_length", "300"], "found a sequence length of 300; shorten --data.sequence_length."),
    ):
        assert message in fails(*command, "--data.train", "no_such_file", "--data.validation", "none", *options)
        assert not (tmp_path / "run").exists()


def test_text_is_asked_for_where_an_experiment_brings_none(fails, tmp_path: Path) -> None:
    from tpu import __main__ as submission

    message = "Expected text to train on, found none; name files or folders with --data.input, or a prepared dataset"
    assert message in fails("pretrain", "bert_base_4x4", "--workdir", tmp_path / "run")
    assert message in fails("pretrain", "bert_small", "--workdir", tmp_path / "run", "--data.format", "jsonl")
    assert not (tmp_path / "run").exists()
    place = ["--accelerator", "v5e", "--topology", "4x4", "--bucket", "gs://b", "--project", "p", "--zone", "z"]
    with pytest.raises(UserError, match=message):
        submission.run(["submit", "bert_base_4x4", *place, "--dry-run"])


def test_rules_of_a_cleaning_are_refused_before_text_is_read(fails, tmp_path: Path) -> None:
    command = ["pretrain", "bert_tiny", "--workdir", tmp_path / "run"]
    for options, message in (
        (
            ["--data.input", "none", "--data.clean", "c4_line"],
            "--data.clean, found 'c4_line'; did you mean 'c4_lines'?",
        ),
        (["--data.path", "none", "--data.clean", "c4"], "raw text for --data.clean, found the prepared dataset none"),
        (["--data.path", "none", "--data.special_names", "[SEP]"], "raw text for --data.special_names, found the prep"),
        (
            ["--data.input", "none", "--data.special_names", "[SEPP]"],
            "in --data.special_names, found '[SEPP]'; did you mean '[SEP]'?",
        ),
    ):
        assert message in fails(*command, *options)
        assert not (tmp_path / "run").exists()


def test_only_the_tiny_experiments_bring_the_documentation() -> None:
    names = [name for name in catalogue.names() if not name.startswith(("finetune", "comparison", "history", "ulmfit"))]
    runs = {name: experiment.load(name) for name in names}
    pretraining = {name: run for name, run in runs.items() if isinstance(run.data, Data)}
    assert len(pretraining) > 8
    brings = {name for name, run in pretraining.items() if run.data.format == "documentation"}
    encoders = ("bert", "roberta", "albert", "electra", "distilbert", "mobilebert", "longformer")
    decoders = ("gpt", "gpt2", "xlnet", "transformer_xl", "adaptive_span", "reformer", "bart", "t5", "lite_transformer")
    words, recurrent = ("nnlm", "word2vec", "glove"), ("elmo", "awd_lstm")
    assert brings == {
        f"{system}_tiny" for system in (*encoders, *decoders, *words, *recurrent, "longformer_characters")
    }


@pytest.mark.parametrize(
    ("name", "window", "rows"),
    [
        ("bert_tiny", "128", "64"),
        ("gpt2_tiny", "65", "64"),
        ("longformer_tiny", "256", "128"),
        ("longformer_characters_tiny", "32", "16"),
    ],
)
def test_a_window_longer_than_the_rows_is_named(fails, tmp_path: Path, name: str, window: str, rows: str) -> None:
    """By the command, with exit code 2, before any text is read."""
    message = f"Expected --model.attention_window of at most the {rows} tokens of a row, found {window}; lower it or"
    options = "--model.attention_window", window, "--data.sequence_length", rows
    assert message in fails("pretrain", name, "--workdir", tmp_path / "run", *options)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"checkpoint": {"prefer": "best", "best": ""}}, "found none; name one"),
        ({"training": {"patience": 2}, "checkpoint": {"best": "eval/loss"}}, "Expected --training.evaluate_every"),
        ({"training": {"evaluate_every": 3}, "checkpoint": {"best": "eval/loss", "prefer": "best"}}, "set both alike"),
        ({"checkpoint": {"best": "-eval/mlm_los"}}, "did you mean 'eval/mlm_loss'?"),
    ],
)
def test_a_rhythm_that_cannot_be_kept_is_named(groups, message) -> None:
    with pytest.raises(UserError, match=message):
        checks.pretraining(experiments.changed(experiments.bert(), **groups), devices=1)


def test_the_longest_rows_of_a_run_have_room_for_a_window() -> None:
    phases = (Phase(0.5, sequence_length=8), Phase(0.5, sequence_length=16))
    for window, fits in ((16, True), (18, False)):
        run = experiments.changed(experiments.longformer(), model={"attention_window": (4, window)})
        with contextlib.nullcontext() if fits else pytest.raises(UserError, match="at most the 16 tokens of a row"):
            checks.pretraining(dataclasses.replace(run, phases=phases), devices=1)


def test_slices_are_joined_by_data_alone() -> None:
    run = experiments.changed(experiments.gpt2(), mesh={"data": 1, "fsdp": 2})
    with pytest.raises(UserError, match="divides by the 2 slices, found 1"):
        checks.pretraining(run, devices=2, slices=2)


def test_a_published_run_is_what_its_slice_takes() -> None:
    run = experiment.load("bert_large_8x8")
    checks.pretraining(run, devices=128)
    with pytest.raises(UserError, match="divides by 96 devices x 1 microbatches, found 256; take 192 or 288"):
        checks.pretraining(run, devices=96)


def test_a_checkpoint_of_another_kind_of_model_is_named_by_its_kind(decoder_run: Path) -> None:
    description = checkpoints.describe(checkpoints.find(decoder_run))
    run = dataclasses.replace(description.experiment, model=BertConfig.tiny())
    with pytest.raises(
        UserError, match="Expected the experiment's model in the checkpoint, BertConfig, found Gpt2Conf"
    ):
        start.with_model(run, description)


BACKWARDS = dataclasses.replace(experiments.ulmfit().model, backwards=True)


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (
            dataclasses.replace(experiments.bert(), objective=None),
            "Expected an objective in the experiment, found none",
        ),
        (
            dataclasses.replace(experiments.bert(), optimizer=None),
            "Expected an optimizer of plmjax.training.optimizers",
        ),
        (dataclasses.replace(experiments.bert(), finetuning=Finetuning()), "Expected no `finetuning`"),
        (dataclasses.replace(experiments.awd_lstm(), model=BACKWARDS), "--data.layout.backwards True, as the model"),
        (
            experiments.changed(experiments.transformer_xl(), data={"layout": SentencePairs(pack=2)}),
            "--data.layout.pack 1 for TransformerXlConfig, which reads one sequence in a row, found 2",
        ),
    ],
    ids=["no objective", "no optimizer", "a task", "backwards", "packed"],
)
def test_parts_of_a_pretraining_that_do_not_fit_are_named(run: experiment.Experiment, message: str) -> None:
    with pytest.raises(UserError, match=message):
        checks.pretraining(run, devices=1)
    checks.packing(experiments.bert(), 2, "--data.layout.pack")
    checks.packing(experiments.transformer_xl(), 1, "--data.layout.pack")


@pytest.mark.parametrize(
    ("ids", "named"),
    [
        ({"pad": 0, "sep": 3, "end": 4}, ""),
        ({"pad": 1, "sep": 3, "end": 4}, "padding token is the model's, 0, found 1; set --model.padding_token 1"),
        ({"pad": 0, "sep": 5, "end": 4}, "separator token is the model's, 3, found 5; set --model.separator_token 5"),
        ({"pad": 0, "sep": 3, "end": 0}, "end token is the model's, 4, found 0; set --model.end_token 0"),
        ({"sep": 3, "end": 4}, ""),  # a tokenizer without a padding token
    ],
)
def test_special_tokens_are_those_of_the_tokenizer(ids: dict[str, int], named: str) -> None:
    model = types.SimpleNamespace(
        padding_token=0, separator_token=3, end_token=4, option=lambda name: f"--model.{name}"
    )
    with pytest.raises(UserError, match=named) if named else contextlib.nullcontext():
        checks.special_tokens(model, Vocabulary(9, **ids))
    checks.special_tokens(
        types.SimpleNamespace(**dict.fromkeys(("padding_token", "separator_token", "end_token"))), Vocabulary(9, **ids)
    )


@pytest.mark.parametrize(
    ("training", "checkpoint", "fits"),
    [
        ({"profile_steps": (7, 8)}, {}, True),
        ({"profile_steps": (7, 9)}, {}, False),
        ({"evaluate_every": 6}, {"every": 3}, True),
        ({"evaluate_every": 3}, {"every": 6}, False),
        ({"evaluate_every": 8}, {"every": 0}, True),  # the last step is saved in any case
        ({"evaluate_every": 4}, {"every": 0}, False),
        ({"evaluate_every": 8, "patience": 2}, {}, True),
        ({"patience": 2}, {}, False),
    ],
)
def test_steps_of_a_run_fit_together(training: dict, checkpoint: dict, fits: bool) -> None:
    run = experiments.changed(experiments.bert(), training={"steps": 8, "evaluate_every": 0} | training)
    run = experiments.changed(run, checkpoint={"best": "eval/loss", "prefer": "best", "every": 2} | checkpoint)
    with contextlib.nullcontext() if fits else pytest.raises(UserError):
        checks.evaluation_settings(run, ["loss"])


@pytest.mark.parametrize(
    ("data", "has_held_out"),
    [
        ({"held_out": 0.1}, True),
        ({"path": "dataset", "held_out": 0.0}, True),  # it may hold out rows of its own
        ({"mixture": Mixture(sources=("a=one", "b=two")), "held_out": 0.0}, True),
        ({"held_out": 0.0}, False),
    ],
)
def test_text_that_is_prepared_may_hold_out_rows(data: dict, has_held_out: bool, monkeypatch) -> None:
    known = []
    monkeypatch.setattr(checks.programs, "build", lambda *arguments: None)
    monkeypatch.setattr(checks.evaluation, "means", lambda program, coefficients: ["loss"])
    monkeypatch.setattr(checks, "evaluation_settings", lambda run, metrics: known.append(metrics))
    checks.pretraining(experiments.changed(experiments.bert(), data=data), devices=1)
    assert known == [["loss"] if has_held_out else []]
