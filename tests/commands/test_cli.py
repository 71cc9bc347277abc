"""The environment of a command before JAX is imported, whatever the machine has."""

import itertools
from pathlib import Path

import pytest

from plmjax import platform
from plmjax.commands import cli

OWN = {
    "JAX_COMPILATION_CACHE_DIR": "{folder}/plmjax/compilation", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
    "PYTHONWARNINGS": "ignore:resource_tracker:UserWarning",
}  # fmt: skip
"""Variable -> what a command sets where the user has not."""


@pytest.mark.parametrize("users", [{}, dict.fromkeys(OWN, "the user's own")], ids=["none", "set"])
def test_a_command_sets_variables_that_the_user_has_not_set(users: dict, tmp_path: Path, monkeypatch, capsys) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path)} | users
    monkeypatch.setattr(cli.os, "environ", environment)
    monkeypatch.setattr("sys.argv", ["plmjax", "experiments"])
    cli.main()
    assert "bert_tiny" in capsys.readouterr().out
    expected = {name: value.format(folder=tmp_path) for name, value in OWN.items()} | users
    assert {name: environment[name] for name in OWN} == expected


def test_a_training_on_a_cpu_keeps_its_memory(fails, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[tuple] = []
    for verb, tpu, gpu in itertools.product(
        ("pretrain", "finetune", "bench", "evaluate"), (True, False), (True, False)
    ):
        monkeypatch.setattr(platform, "has_tpu", lambda found=tpu: found)
        monkeypatch.setattr(platform, "has_gpu", lambda found=gpu: found)
        monkeypatch.setattr(platform, "keep_freed_memory", lambda case=(verb, tpu, gpu): kept.append(case))
        fails(verb, "nowhere", "--nothing")
    assert kept == [(verb, False, False) for verb in ("pretrain", "finetune", "bench")]
