"""The selfcheck on simulated devices: it passes, and a planted fault makes its own row fail and no other."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from plmjax.errors import Unavailable
from plmjax.layers import dropout
from plmjax.layers.attention import shifted_product
from plmjax.parallel import topologies
from plmjax.parallel.rings import Rings
from plmjax.selfcheck import arithmetic, planned, saving, selfcheck, speed
from plmjax.selfcheck.ground import Ground, experiment, slice_name
from plmjax.selfcheck.verdicts import DIFFERS, FAILED, OK, SKIPPED, SLOWER, UNAVAILABLE, Found, Report, Row
from plmjax.training.checkpoints import checkpoints
from tests.object_store import ObjectStore
from tests.paths import ROOT
from tests.xla_flags import cpu_flags

Patch = pytest.MonkeyPatch
ROWS = [
    "products", "rings", "kernel shifted_product", "dropout threefry2x32", "dropout rbg", "checkpoint", "another mesh",
    "step", "feed",
]  # fmt: skip


def wrong_shard(patch: Patch) -> None:
    """The rings add the shard of the next device to a sum."""
    along = Rings._scatter_along
    patch.setattr(
        Rings, "_scatter_along", lambda self, blocks, axis, *cut: along(self, jnp.roll(blocks, 1, axis), axis, *cut)
    )


def one_too_many(patch: Patch) -> None:
    """The kernel moves every row by one place too many."""
    shift = shifted_product._Settings.shift
    patch.setattr(shifted_product._Settings, "shift", lambda settings, x: jnp.roll(shift(settings, x), 1, axis=-1))


def nothing_dropped(patch: Patch) -> None:
    """The chip's generator drops nothing."""
    draw = dropout.keep_mask

    def keep(key: jax.Array, *given: Any, **how: Any) -> jax.Array:
        mask = draw(key, *given, **how)
        return mask if dropout.is_threefry(key) else jnp.ones_like(mask)

    patch.setattr(dropout, "keep_mask", keep)


def same_masks(patch: Patch, devices: int = 8) -> None:
    """All devices draw with one key."""
    draw = dropout._random_words

    def words(key: jax.Array, shape: tuple[int, ...], axes: Any) -> jax.Array:
        if dropout.is_threefry(key):
            return draw(key, shape, axes)
        one = jax.random.bits(key, (shape[0] // devices, *shape[1:]), jnp.uint32)
        return jnp.tile(one, (devices, *[1] * (len(shape) - 1)))

    patch.setattr(dropout, "_random_words", words)


def last_bit(patch: Patch) -> None:
    """A checkpoint comes back with another last bit in its parameters."""
    restore = checkpoints.items.restore

    def nearly(directory: Path, name: str, abstract: Any) -> Any:
        found = restore(directory, name, abstract)
        return jax.tree.map(lambda x: jnp.nextafter(x, jnp.inf), found) if name == "params" else found

    patch.setattr(checkpoints.items, "restore", nearly)


def found_by(patch: Patch, plant: Callable[[Patch], None] | None = None, count: int = 8) -> tuple[Report, list[str]]:
    """The report of a selfcheck with a planted fault on so many devices, and the lines that it prints."""
    lines: list[str] = []
    here = jax.devices()[:count]
    patch.setattr(jax, "devices", lambda *_: here)
    if plant is not None:
        plant(patch)
    return selfcheck.selfcheck(report=lines.append), lines


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("plant", "row"),
    [
        (wrong_shard, "rings differs"),
        (one_too_many, "kernel shifted_product differs"),
        (nothing_dropped, "dropout rbg differs"),
        (same_masks, "dropout rbg differs"),
        (last_bit, "checkpoint differs"),
    ],
)
def test_a_planted_fault_makes_its_own_row_fail(plant: Callable, row: str, monkeypatch: Patch) -> None:
    made, lines = found_by(monkeypatch, plant)
    assert [one.name for one in made.rows] == ROWS
    assert made.wrong == [row] and made.verdict == "failed"
    assert lines[-1] == f"failed: {row}"


@pytest.mark.nightly
def test_the_command_prints_a_table_and_writes_a_file(tmp_path: Path) -> None:
    environment = os.environ | {"XLA_FLAGS": cpu_flags(8), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "plmjax", "selfcheck", "--output", str(tmp_path / "new" / "found.json")]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    *rows, last = done.stdout.splitlines()
    assert [row[:22].strip() for row in rows] == ROWS
    assert last.startswith("passed: step skipped")
    found = json.loads((tmp_path / "new" / "found.json").read_text())
    assert found["verdict"] == "passed" and found["wrong"] == []
    machine = found["machine"]
    assert (machine["platform"], machine["devices"], machine["topology"]) == ("cpu", 8, None)
    assert machine["libraries"]["jax"] == jax.__version__
    figures = {row["name"]: row["figures"] for row in found["rows"]}
    assert figures["rings"]["shape"] == [2, 4] and figures["rings"]["gradient_difference"] < 1e-5
    assert figures["step"]["measured"]["step_seconds"] > 0 and figures["feed"]["rows_per_second"] > 0
    assert len(figures["dropout rbg"]["rates"]) == 8


@pytest.mark.nightly
def test_two_hosts_check_a_slice_together(object_store: ObjectStore, bucket: str) -> None:
    """Host 0 prints and writes the report; checkpoints are written beside it, and removed."""
    output = f"gs://{bucket}/jobs/x/selfcheck/1.json"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"XLA_FLAGS": cpu_flags(4), "JAX_PLATFORMS": "cpu"}
    joined = ["--coordinator", f"127.0.0.1:{port}", "--hosts", "2"]
    command = [sys.executable, "-m", "plmjax", "selfcheck", "--output", output, *joined]
    started = [
        subprocess.Popen([*command, "--host", str(host)], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
        for host in range(2)
    ]
    printed = [one.communicate()[0].splitlines() for one in started]
    assert [one.returncode for one in started] == [0, 0], printed
    assert [row[:22].strip() for row in printed[0] if row.startswith(tuple(ROWS))] == ROWS
    assert not any(row.startswith(tuple(ROWS)) for row in printed[1])
    assert list(object_store.buckets[bucket]) == ["jobs/x/selfcheck/1.json"]
    found = json.loads(object_store.buckets[bucket]["jobs/x/selfcheck/1.json"].contents)
    assert found["verdict"] == "passed" and found["machine"]["hosts"] == 2


def test_a_kernel_and_dropout_are_compared_in_a_second(monkeypatch: Patch) -> None:
    two = Ground(jax.devices()[:2], None)
    assert arithmetic.kernel(two).verdict == OK
    for generator in ("threefry2x32", "rbg"):
        found = arithmetic.dropout_check(generator, two)
        assert found.verdict == OK and "2 devices draw different masks" in found.sentence
    same_masks(monkeypatch, devices=2)
    assert "two devices drop" in arithmetic.dropout_check("rbg", two).sentence


@pytest.mark.nightly  # two programs for a TPU
def test_the_products_of_a_step_for_a_tpu_are_in_bfloat16(monkeypatch: Patch) -> None:
    there = Ground(topologies.parse("v5e:2x2").devices(), None)
    tiny = experiment("cpu", 4, dtype="bfloat16")
    monkeypatch.setattr("plmjax.selfcheck.ground.experiment", lambda *_, **settings: tiny)
    found = arithmetic.products(there)
    assert found.verdict == OK and found.figures["expected"] == "bf16" and found.figures["products"]["bf16 x bf16"] > 30
    monkeypatch.undo()
    tiny = experiment("cpu", 4, dtype="float32")
    monkeypatch.setattr("plmjax.selfcheck.ground.experiment", lambda *_, **settings: tiny)
    monkeypatch.setattr(Ground, "dtype", "bfloat16")
    assert arithmetic.products(Ground(there.devices, None)).verdict == DIFFERS


def test_a_digest_sees_every_bit_and_every_place() -> None:
    x = jnp.arange(12, dtype=jnp.float32).reshape(3, 4)
    same = jax.device_put(
        jnp.tile(x, (8, 1)), jax.sharding.NamedSharding(Ground(jax.devices(), None).mesh, jax.P("data"))
    )
    assert saving.digest([jnp.tile(x, (8, 1))]) == saving.digest([same])
    (before,) = saving.digest([x])
    others = [x.at[2, 3].set(jnp.nextafter(x[2, 3], jnp.inf)), x[::-1], x.at[0, 0].set(-0.0)]
    assert before not in [saving.digest([other])[0] for other in others]


@pytest.mark.parametrize("name", ["v4:2x2x1", "v3:2x2", "v5e:4x4*2"])
def test_a_slice_has_the_name_that_a_plan_reads(name: str) -> None:
    assert slice_name(topologies.parse(name).devices()) == name
    assert slice_name(topologies.parse(name).devices()[:3]) is None
    assert slice_name(jax.devices()) is None


@pytest.mark.parametrize(
    ("seconds", "verdict", "said"), [(1.0, OK, "faster than"), (3.0, OK, "within"), (5.0, SLOWER, "slower than")]
)
def test_a_step_is_slower_than_planned_above_the_interval(seconds, verdict, said, monkeypatch: Patch) -> None:
    monkeypatch.setattr(speed, "_plan", lambda name, count: {"fast_seconds": 2.0, "slow_seconds": 4.0})
    there = Ground(topologies.parse("v5e:2x4").devices(), None)
    record = {"step_seconds": seconds, "batch_size": 8, "sequence_length": 128, "device": "TPU v5 lite"}
    found = speed.step(there, record)
    assert found.verdict == verdict and f"{said} the plan's 2000.0 to 4000.0 ms for v5e:2x4" in found.sentence
    monkeypatch.setattr(speed, "_plan", lambda name, count: "the plan failed")
    assert speed.step(there, record).verdict == SKIPPED


@pytest.mark.nightly
def test_the_plan_of_a_step_has_two_ends() -> None:
    found = planned.interval("v5e:2x2", 4, platform="cpu")
    assert 0 < found["fast_seconds"] < found["slow_seconds"] < 1


def test_slow_and_skipped_rows_fail_nothing_and_what_may_pass_is_told_apart() -> None:
    """Nor does a row whose bucket does not answer, but one that raises."""

    def report_of(*verdicts: str) -> Report:
        return Report({}, [Row(str(i), Found(verdict, ""), 0.0) for i, verdict in enumerate(verdicts)], finished=True)

    def failing(error: Exception) -> Found:
        def raises(ground: Any) -> None:
            raise error

        return selfcheck._outcome(raises, Ground(jax.devices(), None))

    assert failing(Unavailable("Expected the bucket to answer, found 503; try again.")).verdict == UNAVAILABLE
    failed = failing(RuntimeError("\nthe disk is gone\nand more"))
    assert (failed.verdict, failed.sentence) == (FAILED, "RuntimeError: the disk is gone")
    assert report_of(OK, SLOWER, SKIPPED).verdict == "passed"
    assert report_of(OK, UNAVAILABLE).verdict == "unavailable"
    assert report_of(UNAVAILABLE, DIFFERS, FAILED).verdict == "failed"
    assert report_of(UNAVAILABLE, DIFFERS, FAILED).wrong == ["1 differs", "2 failed"]
