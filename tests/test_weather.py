"""A run in a bucket goes on in bad weather, and ends with the same parameters.

The service refuses, breaks connections or is slow for some time, from a chosen moment on. Time is simulated: waits
between tries take none, so an hour of weather takes seconds. Where a command ends with UNAVAILABLE, it is run again, as
the worker of a slice does.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from plmjax.commands import cli, command_line
from plmjax.data.remote import ranges
from plmjax.errors import UNAVAILABLE
from plmjax.files import patience, storage
from plmjax.training import metrics
from plmjax.training.checkpoints import checkpoints
from tests.object_store import ObjectStore, Weather
from tests.small_runs import SMALL_BERT

TINY = "experiments/bert_tiny.py"
KINDS: dict[str, Weather] = {"503": 503, "401": 401, "403": 403, "reset": "reset", "slow": 0.02}
MOMENTS = {
    "the start": "",
    "locking": r"lock\.json",
    "listing checkpoints": r"GET .*/o\?.*prefix=\S*checkpoints",
    "reading a piece": r"corpus-train\S*alt=media",
    "logging": r"metrics\.jsonl",
    "saving": r"(PUT|POST) .*upload.*checkpoints",
}
"""Work of a run -> pattern of the request at which the weather begins."""
SECONDS = {"30 s": 30.0, "5 min": 300.0, "1 h": 3600.0}
SLOW_SECONDS = 5.0
"""Simulated seconds of each answer of a slow service."""


class Storm:
    """Weather from the first request that matches `moment`, for some seconds of simulated time.

    now: the simulated time. met: number of requests that met the weather.
    """

    def __init__(self, kind: Weather, moment: str, seconds: float) -> None:
        self.kind, self.moment, self.seconds = kind, moment, seconds
        self.now, self.met, self._since = 0.0, 0, None

    def __call__(self, method: str, path: str) -> Weather:
        if self._since is None and re.search(self.moment, f"{method} {path}"):
            self._since = self.now
        if self._since is None or self.now - self._since >= self.seconds:
            return None
        self.met += 1
        self.now += SLOW_SECONDS if isinstance(self.kind, float) else 0.0
        return self.kind

    def sleep(self, seconds: float) -> bool:
        self.now += seconds
        return False


@pytest.fixture
def storm(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Storm]]:
    """Begins a storm."""
    from gcsfs import retry
    from orbax.checkpoint._src.serialization import tensorstore_utils

    def begin(kind: Weather, moment: str, seconds: float) -> Storm:
        storm = Storm(kind, moment, seconds)

        async def sleep(seconds: float) -> None:
            storm.sleep(seconds)

        clock = SimpleNamespace(monotonic=lambda: storm.now, sleep=storm.sleep)
        monkeypatch.setattr(patience, "time", clock)
        monkeypatch.setattr(retry, "asyncio", SimpleNamespace(sleep=sleep))
        monkeypatch.setattr(
            ranges, "read", lambda folder, part, wait, read=ranges.read: read(folder, part, storm.sleep)
        )
        # tensorstore waits outside of Python: it gives up after a quarter of an hour, here at once.
        for context in (tensorstore_utils._BASE_TS_CONTEXT, tensorstore_utils._DEFAULT_OCDBT_TS_CONTEXT):
            retries = {"max_retries": 1, "initial_delay": "1ms", "max_delay": "1ms"}
            monkeypatch.setitem(context, "gcs_request_retries", retries)
        object_store.weather = storm
        return storm

    yield begin
    object_store.weather = None


@pytest.fixture(scope="module")
def served(
    object_store: ObjectStore, prose: Path, small_run: Path, tmp_path_factory: pytest.TempPathFactory, cache: Path
) -> list[str]:
    """The options of a run whose text is read in pieces from a bucket."""
    folder = tmp_path_factory.mktemp("prepared") / "dataset"
    pieces = ["--piece_tokens", "2000", "--held_out", "0.02", "--processes", "1"]
    tokenizer = ["--tokenizer", str(small_run / "tokenizer")]
    cli.run(["prepare", "--input", str(prose), *tokenizer, "--output", str(folder), *pieces])
    object_store.create("text")
    files = storage.files(folder)
    for name, file in files.items():
        object_store.put("text", f"set/{name}", file.path.read_bytes())
    limit = sum(file.size for name, file in files.items() if "corpus" in name) // 2
    settings = ["--data.cache_limit", str(limit), "--data.shuffle_window", "4", "--checkpoint.every", "2"]
    return [*SMALL_BERT, "--data.path", "gs://text/set", *settings, "--checkpoint.keep", "2"]


def trained(workdir: str, served: list[str], storm: Storm | None = None) -> int:
    """Runs the command until it has ended well; returns how often it ended with UNAVAILABLE."""
    for number, pause in enumerate(patience.waits(10.0, 600.0)):
        try:
            cli.run(["pretrain", TINY, "--workdir", workdir, *served])
        except Exception as error:
            code, sentence = command_line.exit_status(error)
            assert code == UNAVAILABLE, (code, error)
            assert sentence.startswith("Expected ") and "\n" not in sentence
            storm.sleep(pause)
        else:
            return number
    raise AssertionError


def result(workdir: str) -> tuple[object, list[tuple[int, float]]]:
    parameters, _ = checkpoints.load_parameters(workdir)
    records = metrics.read(storage.path(workdir) / "metrics.jsonl")
    return parameters, [(record["step"], record.get("train/loss", record.get("eval/loss"))) for record in records]


@pytest.fixture(scope="module")
def undisturbed(object_store: ObjectStore, served: list[str]) -> tuple[object, list[tuple[int, float]]]:
    object_store.create("calm")
    assert trained("gs://calm/run", served) == 0
    return result("gs://calm/run")


def weathered(storm, bucket: str, served, *, undisturbed, kind: str, moment: str, seconds: str) -> int:
    storm = storm(KINDS[kind], MOMENTS[moment], SECONDS[seconds])
    restarts = trained(f"gs://{bucket}/run", served, storm)
    assert storm.met
    parameters, lines = result(f"gs://{bucket}/run")
    jax.tree.map(np.testing.assert_array_equal, parameters, undisturbed[0])
    assert lines == undisturbed[1]
    return restarts


BY_DAY = [
    ("503", "saving", "1 h"),
    ("403", "reading a piece", "1 h"),
    pytest.param("401", "the start", "5 min", marks=pytest.mark.nightly),
    pytest.param("reset", "logging", "30 s", marks=pytest.mark.nightly),
]


@pytest.mark.parametrize(("kind", "moment", "seconds"), BY_DAY)
def test_a_run_ends_as_if_there_had_been_no_weather(
    storm, bucket: str, served, undisturbed, kind: str, moment: str, seconds: str
) -> None:
    weathered(storm, bucket, served, undisturbed=undisturbed, kind=kind, moment=moment, seconds=seconds)


@pytest.mark.slow  # ninety runs of a few seconds each
@pytest.mark.parametrize("seconds", SECONDS)
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_weather_at_every_moment(storm, bucket, served, undisturbed, kind, moment, seconds) -> None:
    weathered(storm, bucket, served, undisturbed=undisturbed, kind=kind, moment=moment, seconds=seconds)
