"""The mean of a run's checkpoints."""

from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.commands import cli
from plmjax.errors import UserError
from plmjax.training.checkpoints import ancestry, checkpoints
from plmjax.training.checkpoints.averaging import average
from tests.training.checkpoints.test_checkpoints import describe, keeper, make_state


def test_the_mean_of_the_last_checkpoints_is_a_checkpoint(small_run: Path, tmp_path: Path, capsys) -> None:
    steps = sorted(int(folder.name) for folder in (small_run / "checkpoints").iterdir())[-2:]
    cli.run(["average", str(small_run), "--last", "2", "--output", str(tmp_path / "mean")])
    assert f"steps {steps[0]}, {steps[1]} in" in capsys.readouterr().out
    parts = [checkpoints.load_parameters(small_run / "checkpoints" / str(step))[0] for step in steps]
    found, description = checkpoints.load_parameters(tmp_path / "mean")
    expected = jax.tree.map(lambda one, other: ((np.float64(one) + other) / 2).astype(np.float32), *parts)
    chex.assert_trees_all_equal(found, expected)
    assert average(small_run, tmp_path / "last", 1) == steps[1:]
    original = checkpoints.describe(small_run / "checkpoints" / str(steps[-1]))
    assert description.experiment == original.experiment and description.tokenizer == original.tokenizer


def test_the_same_mean_is_written_once_and_another_one_is_refused(small_run: Path, tmp_path: Path) -> None:
    """As after a kill at the end. A run with another record, tokenizer or a damaged file is another one."""
    mean = tmp_path / "mean"
    average(small_run, mean, 2)
    files = {path: path.stat().st_mtime_ns for path in mean.glob("**/*")}
    average(small_run, mean, 2)
    assert {path: path.stat().st_mtime_ns for path in mean.glob("**/*")} == files
    with pytest.raises(UserError, match=r"Expected no run in .*mean, found one; name another"):
        average(small_run, mean, 1)
    params, description = checkpoints.load_parameters(mean)
    own = params, description.experiment, description.tokenizer
    record = [ancestry.Ancestor("run", 3, "digest", "prune", {"layers": (0, 1)})]
    for changed in ((*own[:2], own[2] | {"more": b""}), (jax.tree.map(lambda leaf: leaf + 1, params), *own[1:])):
        with pytest.raises(UserError, match="found one"):
            checkpoints.save_parameters(mean, *changed)
    with pytest.raises(UserError, match="found one"):
        checkpoints.save_parameters(mean, *own, constants={"one": np.ones(2)})
    checkpoints.save_parameters(mean, *own, ancestors=record)  # an older version was killed before it wrote them
    checkpoints.save_parameters(mean, *own, ancestors=record)
    assert ancestry.same(ancestry.read(mean), record)
    with pytest.raises(UserError, match="found one"):
        checkpoints.save_parameters(mean, *own)
    (mean / "checkpoints" / "0" / "tokenizer" / "metadata").write_text("{}")
    with pytest.raises(UserError, match="found one"):
        checkpoints.save_parameters(mean, *own, ancestors=record)


def test_a_run_may_have_a_number_as_its_name(small_run: Path, tmp_path: Path) -> None:
    average(small_run, tmp_path / "2024", 1)
    assert checkpoints.find(tmp_path / "2024") == checkpoints.find(tmp_path / "2024" / "checkpoints" / "0")


def test_running_statistics_are_averaged_too(tmp_path: Path) -> None:
    """In float64: the mean of the last two of three."""
    writer = keeper(tmp_path / "run" / "checkpoints")
    for step in (1, 2, 3):
        collections = {"statistics": {"mean": jnp.array([step, 2.0**24 + 2 * step])}}
        writer.save(make_state(step).replace(collections=collections), describe(step))
        writer.wait()
    writer.close()
    assert average(tmp_path / "run", tmp_path / "mean", 2) == [2, 3]
    found = checkpoints.load_collections(tmp_path / "mean" / "checkpoints" / "0")
    np.testing.assert_array_equal(found["statistics"]["mean"], np.array([2.5, 2.0**24 + 4], np.float32))


def test_the_best_checkpoints_are_averaged_with_the_last(small_run: Path, tmp_path: Path) -> None:
    """By hand, of the run's evaluations."""
    folder = small_run / "checkpoints"
    scores = {int(each.name): checkpoints.describe(each).metrics.get("eval/loss") for each in folder.iterdir()}
    *earlier, last = sorted(scores)
    best = min((step for step in earlier if scores[step] is not None), key=lambda step: scores[step])
    assert average(small_run, tmp_path / "mean", 1, best=1) == [best, last]
    one, other = (checkpoints.load_parameters(folder / str(step))[0] for step in (best, last))
    found, _ = checkpoints.load_parameters(tmp_path / "mean")
    jax.tree.map(lambda a, b, c: np.testing.assert_allclose(a, (b + c) / 2, rtol=1e-6, atol=1e-9), found, one, other)


def test_what_cannot_be_averaged(small_run: Path, tmp_path: Path, fails) -> None:
    assert "Expected 5 checkpoints" in fails("average", small_run, "--output", tmp_path / "mean")  # by default
    with pytest.raises(UserError, match=r"Expected 99 checkpoints in .*, found \d+; lower --last"):
        average(small_run, tmp_path / "mean", 99)
    with pytest.raises(UserError, match="one checkpoint in all, found 0 and 0"):
        average(small_run, tmp_path / "mean", 0)
    with pytest.raises(
        UserError, match=r"Expected 9 evaluated checkpoints before the last ones in .*, found \d+ by ev"
    ):
        average(small_run, tmp_path / "mean", 1, best=9)
    with pytest.raises(UserError, match=r"Expected no run in .*, found one; name another folder"):
        average(small_run, small_run, 1)
    with pytest.raises(UserError, match=r"Expected a run directory with checkpoints at .*nothere, found no finished"):
        average(tmp_path / "nothere", tmp_path / "mean")
