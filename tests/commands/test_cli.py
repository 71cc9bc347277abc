"""The environment of a command before JAX is imported, whatever the machine has."""

from pathlib import Path

import pytest

from plmjax import platform
from plmjax.commands import cli


@pytest.mark.parametrize(
    ("verb", "tpu", "gpu", "keeps"),
    [
        ("pretrain", False, False, True),
        ("finetune", False, False, True),
        ("bench", False, False, True),
        ("evaluate", False, False, False),
        ("pretrain", True, False, False),
        ("pretrain", False, True, False),
    ],
)
def test_a_training_on_a_cpu_keeps_its_memory(
    verb: str, tpu: bool, gpu: bool, keeps: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    monkeypatch.setattr(cli.os, "environ", environment)
    monkeypatch.setattr("sys.argv", ["plmjax", verb])
    monkeypatch.setattr(platform, "has_tpu", lambda: tpu)
    monkeypatch.setattr(platform, "has_gpu", lambda: gpu)
    monkeypatch.setattr(platform, "keep_freed_memory", lambda: done.append("kept"))
    monkeypatch.setattr(cli, "run_command", lambda command: done.append("run"))
    cli.main()
    assert done == [*(["kept"] if keeps else []), "run"]
    assert environment["JAX_COMPILATION_CACHE_DIR"] == str(tmp_path / "plmjax" / "compilation")
    assert environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] == "0.2"
    assert environment["PYTHONWARNINGS"] == "ignore:resource_tracker:UserWarning"


def test_variables_that_the_user_has_set_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = (
        "JAX_COMPILATION_CACHE_DIR",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS",
        "PYTHONWARNINGS",
    )
    environment = {"XDG_CACHE_HOME": str(tmp_path)} | dict.fromkeys(own, "the user's own")
    monkeypatch.setattr(cli.os, "environ", environment)
    monkeypatch.setattr("sys.argv", ["plmjax", "evaluate"])
    monkeypatch.setattr(cli, "run_command", lambda command: None)
    cli.main()
    assert {name: environment[name] for name in own} == dict.fromkeys(own, "the user's own")
