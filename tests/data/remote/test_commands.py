"""Commands on a dataset in a bucket that is larger than the disk may hold."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from plmjax.commands import cli
from plmjax.data import remote, store
from plmjax.files import storage
from tests.data.mistakes import refused
from tests.small_runs import SMALL_BERT

TINY = "experiments/bert_tiny.py"
pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture(scope="module")
def served(object_store, prose: Path, small_run: Path, tmp_path_factory) -> tuple[str, int]:
    """The address of a dataset of many small pieces, and the number of its bytes."""
    folder = tmp_path_factory.mktemp("prepared") / "set"
    tokenizer = ["--tokenizer", str(small_run / "tokenizer")]
    pieces = ["--piece_tokens", "2000", "--held_out", "0.02", "--processes", "1"]
    cli.run(["prepare", "--input", str(prose), *tokenizer, "--output", str(folder), *pieces])
    object_store.create("large")
    for name, file in storage.files(folder).items():
        object_store.put("large", f"set/{name}", file.path.read_bytes())
    return "gs://large/set", sum(entry["bytes"] for entry in store.all_files(store.read_manifest(folder)).values())


@pytest.fixture(scope="module")
def options(served: tuple[str, int]) -> list[str]:
    address, size = served
    return ["--data.path", address, "--data.cache_limit", f"{size // 2}", "--data.shuffle_window", "4", *SMALL_BERT]


@pytest.fixture(scope="module")
def trained(options: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a finished run on the dataset, which was read in pieces."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    cli.run(["pretrain", TINY, "--workdir", str(folder), *options])
    return folder


@pytest.mark.nightly
def test_a_run_that_is_stopped_goes_on_to_the_same_end(trained: Path, options: list[str], tmp_path, cache) -> None:
    assert "eval/loss" in (trained / "metrics.jsonl").read_text()
    stopped = tmp_path / "run"
    shutil.copytree(trained, stopped)
    shutil.rmtree(stopped / "checkpoints" / "6")
    shutil.rmtree(stopped / "export")
    cli.run(["pretrain", TINY, "--workdir", str(stopped), *options])
    whole, parts = (folder / "export" / "model.safetensors" for folder in (trained, stopped))
    assert whole.read_bytes() == parts.read_bytes()


@pytest.mark.nightly
def test_bench_and_evaluate_read_no_more_than_the_limit(trained: Path, options: list[str], cache, capsys) -> None:
    cli.run(["bench", TINY, *options, "--json"])
    assert '"input": "dataset"' in capsys.readouterr().out
    cli.run(["evaluate", str(trained)])
    assert not list((cache / "datasets").rglob("corpus-train*"))


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        (["--data.cache_limit", "1kB"], "cache_limit of more than"),
        (["--data.cache_limit", "plenty"], "a size such as 10GB"),
        (["--data.shuffle_window", "0"], "--data.shuffle_window of at least 1"),
    ],
)
def test_mistakes(changed: list[str], part: str, options: list[str], tmp_path: Path, fails: Callable[..., str]) -> None:
    assert part in fails("pretrain", TINY, "--workdir", tmp_path, *options, *changed)
    for text, size in {"10GB": 10**10, "512MiB": 2**29, "1.5e9": 1_500_000_000, "3 kB": 3000, "7": 7}.items():
        assert remote.parse_bytes("--data.cache_limit", text) == size
    for text in ("-1GB", "10 apples", "1e999"):
        refused(lambda text=text: remote.parse_bytes("--data.cache_limit", text), "10GB or 512MiB")


@pytest.mark.nightly
def test_a_mixture_is_read_within_the_limit(small_run, options, served, tmp_path, monkeypatch) -> None:
    """One source is in a bucket and exceeds the limit, one is on the disk. A stopped run ends in the same bytes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    place = options.index("--data.path")
    rest = [*options[:place], *options[place + 2 :], "--training.steps", "4", "--checkpoint.every", "2"]
    local = f"local={small_run / 'dataset'}"
    rest += ["--data.mixture.sources", f"pieces={served[0]}", local, "--data.mixture.temperature", "inf"]
    for name in ("whole", "parts"):
        cli.run(["pretrain", TINY, "--workdir", str(tmp_path / name), *rest])
    assert not list((storage.cache() / "datasets").rglob("corpus-train*"))
    shutil.rmtree(tmp_path / "parts" / "checkpoints" / "4")
    shutil.rmtree(tmp_path / "parts" / "export")
    cli.run(["pretrain", TINY, "--workdir", str(tmp_path / "parts"), *rest])
    whole, parts = (tmp_path / name / "export" / "model.safetensors" for name in ("whole", "parts"))
    assert whole.read_bytes() == parts.read_bytes()
