"""Every --help reads as what a user types."""

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest

from plmjax import experiment as experiments
from plmjax.commands import cli
from plmjax.experiment import catalogue, fields
from plmjax.training.checkpoints import checkpoints
from tpu import __main__ as submission

COMMANDS = [
    *(f"plmjax {verb}" for verb in cli.VERBS),
    *(f"plmjax {verb} bert_base_4x4" for verb in ("pretrain", "plan", "bench")),
    "plmjax finetune finetune_questions:squad",
    *(f"tpu {verb}" for verb in submission.VERBS),
]
WITH_ALL = ("plmjax pretrain t5_mixture --help all", "plmjax finetune cvt:joint --help all")


def page(command: str, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, columns: int = 80) -> str:
    """Return the text that a command with --help prints on a terminal of this width."""
    monkeypatch.setenv("COLUMNS", str(columns))
    program, *arguments = command.split()
    with pytest.raises(SystemExit) as stop:
        (cli if program == "plmjax" else submission).run(arguments if "--help" in arguments else [*arguments, "--help"])
    assert not stop.value.code
    return capsys.readouterr().out


def options(shown: str) -> list[str]:
    """The options of a page, in its order."""
    return re.findall(r"^[│ ] (--[\w.]+)", shown, re.M)


@pytest.mark.parametrize("command", [*COMMANDS, *WITH_ALL])
def test_help_shows_plain_values_on_80_columns(command: str, capsys, monkeypatch) -> None:
    shown = page(command, capsys, monkeypatch)
    usage, *lines = shown.splitlines()
    assert usage.startswith("usage: ") and (command.startswith("tpu") or max(map(len, lines)) <= 80)
    text = re.sub(r"[\s│]+", " ", shown)
    for odd in ("{None}", "None)", "(default: )", "(default: '')", "[["):
        assert odd not in text, text[max(text.find(odd) - 80, 0) : text.find(odd) + 40]


@pytest.mark.parametrize(
    ("command", "first", "further", "absent"),
    [
        ("pretrain bert_tiny", "--workdir", "--data.input --training.steps --optimizer.learning_rate", "--data.label"),
        ("finetune finetune_sentences", "--from", "--data.train --data.label --finetuning.epochs", "--data.input"),
        ("plan bert_base_4x4", "--from", "--topology --mesh.fsdp", "--mesh.zero"),
        ("bench t5_tiny", "--json", "--training.batch_size", "--training.unroll"),
    ],
)
def test_help_after_an_experiment_begins_with_what_is_usual(
    command: str, first: str, further: str, absent: str, capsys, monkeypatch
) -> None:
    shown = page(f"plmjax {command}", capsys, monkeypatch)
    found = options(shown)
    assert found[0] == first and {*further.split()} <= {*found} and absent not in found
    assert shown.count("\n") < 80 and "--help all shows" in shown


def test_help_shows_the_options_of_a_class_of_ones_own_with_the_usual_ones(tmp_path: Path, capsys, monkeypatch) -> None:
    """The fields that it inherits are shown only if they are among the usual options."""
    own = """
class CosineRates(MaskedLanguageModel):
    largest: float = 0.5
    '''Largest fraction of masked tokens of a row.'''


def experiment():
    return dataclasses.replace(experiments.load("bert_tiny"), objective=CosineRates())
"""
    imports = ("import dataclasses", "from plmjax import experiment as experiments")
    imports += (
        "from plmjax.objectives.masked_language_model import MaskedLanguageModel",
        "@dataclasses.dataclass(frozen=True)",
    )
    (tmp_path / "rates.py").write_text("\n".join(imports) + own)
    found = options(page(f"plmjax pretrain {tmp_path / 'rates.py'}", capsys, monkeypatch))
    assert {"--objective.largest", "--training.steps"} <= {*found} and "--objective.rate" not in found


def test_help_all_shows_every_option_in_the_order_of_use(capsys, monkeypatch) -> None:
    """Those of another class too, after an option that chooses it."""
    run, found = (
        experiments.load("bert_tiny"),
        options(page("plmjax pretrain bert_tiny --help all", capsys, monkeypatch)),
    )
    assert {*experiments.options(run), "--workdir", "--coordinator", "--optimizer", "--optimizer.schedule"} <= {*found}
    groups = list(dict.fromkeys(option[2:].partition(".")[0] for option in found if "." in option))
    assert groups[:7] == ["data", "tokenizer", "model", "objective", "optimizer", "training", "checkpoint"]
    sgd = options(page("plmjax pretrain bert_tiny --optimizer sgd --help all", capsys, monkeypatch))
    assert "--optimizer.momentum" in sgd and "--optimizer.beta2" in found and "--optimizer.beta2" not in sgd


QUANTITIES = re.compile(r"(Dropout|Fraction|Share|Probability|(Random s|S)eed|Factor|Padding|.*[Tt]oken id|.* sum)")
"""Openings of descriptions of numbers of which 0 is the least, and of ids and seeds."""


def test_help_says_what_0_and_none_do_where_they_are_values() -> None:
    found = {}
    for name in catalogue.names():
        for reference in catalogue.Listed.read(name).lines:
            for one in fields.of(experiments.load(reference)):
                is_zero = type(one.value) in (int, float) and not one.value and not QUANTITIES.match(one.text)
                if (is_zero or one.value is None) and not re.search(r"\b0\b" if is_zero else r"\bNone\b", one.text):
                    found[one.text] = one.name
    assert not found


@pytest.mark.parametrize("verb", ["pretrain", "finetune", "plan", "bench", "evaluate", "predict", "compress prune"])
def test_help_says_where_further_options_are(verb: str, capsys, monkeypatch) -> None:
    shown = " ".join(page(f"plmjax {verb}", capsys, monkeypatch).split())
    assert f"plmjax {verb} " in shown.partition("further options")[2] and "--help shows" in shown


def test_help_after_a_run_shows_the_options_of_its_task(tmp_path: Path, capsys, monkeypatch) -> None:
    tuned = tmp_path / "tuned"
    run = dataclasses.replace(experiments.load("finetune_sentences"), model=experiments.load("bert_tiny").model)
    checkpoints.save_parameters(tuned, {"kernel": np.zeros(1, np.float32)}, run, tokenizer={})
    of_evaluate = options(page(f"plmjax evaluate {tuned}", capsys, monkeypatch))
    of_predict = options(page(f"plmjax predict {tuned}", capsys, monkeypatch))
    assert {"--data.text", "--data.sequence_length"} <= {*of_evaluate} & {*of_predict}
    assert "--data.label" in of_evaluate and "--data.label" not in of_predict
    prune = f"plmjax compress prune {tuned} --method"
    of_training = options(page(f"{prune} gradual", capsys, monkeypatch))
    assert {"--compression.begin", "--training.steps", "--data.train"} <= {*of_training}
    assert not [option for option in options(page(f"{prune} magnitude", capsys, monkeypatch)) if "." in option]


def test_the_commands_fit_into_80_columns(capsys) -> None:
    cli.run(["--help"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80 and {*cli.VERBS, "--version"} <= {line[2:20].strip() for line in lines}


def test_a_group_of_commands_lists_them(capsys) -> None:
    cli.run(["compress", "--help"])
    shown = capsys.readouterr().out
    assert shown.startswith("usage: plmjax compress COMMAND") and "compress distil" in shown and "pretrain" not in shown


def test_what_is_left_out_and_what_is_several(capsys, monkeypatch) -> None:
    shown = page("plmjax finetune", capsys, monkeypatch)
    assert "--workdir PATH " in shown and "(default: runs/NAME)" in shown and "--seeds INT ... " in shown
    assert "EXPERIMENT" in shown
    shown = " ".join(page("plmjax pretrain bert_tiny --help all", capsys, monkeypatch).replace("│", " ").split())
    assert "--data.input TEXT ..." in shown and "(default: empty)" in shown and "(default: documentation)" in shown
    assert "--model.classifier_dropout FLOAT|none" in shown and "--tokenizer.lowercase {True,False}|none" in shown
