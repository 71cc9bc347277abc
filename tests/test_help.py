"""Every --help reads as what a user types."""

import re

import pytest

from plmjax.commands import cli
from tpu import __main__ as submission

COMMANDS = [
    *(["plmjax", *(["tokenizer", "train"] if verb == "tokenizer" else [verb])] for verb in cli.VERBS),
    *(["plmjax", verb, "bert_base_4x4"] for verb in ("pretrain", "plan")),
    ["plmjax", "finetune", "finetune_questions:squad"],
    *(["tpu", verb] for verb in submission.VERBS),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_shows_plain_values(command, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    program, *arguments = command
    with pytest.raises(SystemExit) as stop:
        (cli if program == "plmjax" else submission).run([*arguments, "--help"])
    shown = capsys.readouterr().out
    assert stop.value.code == 0 and "usage:" in shown
    text = re.sub(r"[\s│]+", " ", shown)
    for odd in ("{None}", "None)", "(default: )", "(default: '')", "[["):
        assert odd not in text, text[max(text.find(odd) - 80, 0) : text.find(odd) + 40]


def test_a_group_of_commands_lists_them(capsys) -> None:
    cli.run(["compress", "--help"])
    shown = capsys.readouterr().out
    assert shown.startswith("usage: plmjax compress COMMAND") and "compress distil" in shown and "pretrain" not in shown


def test_what_is_left_out_and_what_is_several(capsys) -> None:
    with pytest.raises(SystemExit):
        cli.run(["finetune", "--help"])
    shown = capsys.readouterr().out
    assert "--workdir PATH " in shown and "--seeds INT ... " in shown and "EXPERIMENT" in shown
    with pytest.raises(SystemExit):
        cli.run(["pretrain", "bert_tiny", "--help"])
    shown = capsys.readouterr().out
    assert "--data.input TEXT ..." in shown and "(default: none)" in shown and "(default: documentation)" in shown
