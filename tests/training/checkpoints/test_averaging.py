"""The mean of a run's checkpoints, and the record of the checkpoints that a run was made from."""

import json
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.commands import cli
from plmjax.errors import UserError
from plmjax.training.checkpoints import ancestry, checkpoints
from plmjax.training.checkpoints.ancestry import Ancestor
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
    assert average(small_run, tmp_path / "2024", 1) == steps[1:]  # a run may have a number as its name
    assert checkpoints.find(tmp_path / "2024") == tmp_path / "2024" / "checkpoints" / "0"
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
    record = [Ancestor("run", 3, "digest", "prune", {"layers": (0, 1)})]
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
    for run, output, last, best, sentence in (
        (small_run, "mean", 99, 0, r"Expected 99 checkpoints in .*, found \d+; lower --last"),
        (small_run, "mean", 0, 0, "one checkpoint in all, found 0 and 0"),
        (small_run, "mean", 1, 9, r"Expected 9 evaluated checkpoints before the last ones in .*, found \d+ by ev"),
        (tmp_path / "nothere", "mean", 5, 0, r"run directory with checkpoints at .*nothere, found no finished"),
    ):
        with pytest.raises(UserError, match=sentence):
            average(run, tmp_path / output, last, best)


def test_records_of_ancestors_are_read_as_they_were_written_the_oldest_first(tmp_path: Path) -> None:
    made = [Ancestor("runs/a", 1200, "abc", "prune", {"density": 0.5}), Ancestor("runs/b", 0, "def", "distil", {})]
    assert ancestry.read(tmp_path) == []
    ancestry.write(tmp_path, made)
    assert ancestry.read(tmp_path) == made
    first, _ = json.loads((tmp_path / "ancestry.json").read_text())["ancestors"]
    assert first == {"from": "runs/a", "step": 1200, "sha256": "abc", "by": "prune", "settings": {"density": 0.5}}
    for contents, sentence in (
        ({}, r"found another file \(it has no ancestors\); restore the file"),
        ({"ancestors": [first | {"step": "1"}]}, "step of a part of ancestors"),
    ):
        (tmp_path / "ancestry.json").write_text(json.dumps(contents))
        with pytest.raises(UserError, match=sentence):
            ancestry.read(tmp_path)


def test_a_digest_is_of_paths_and_values_in_any_order() -> None:
    kernel = np.arange(6, dtype=np.float32).reshape(2, 3)
    params = {"a/kernel": kernel, "b/kernel": kernel + 1}
    own = ancestry.digest(params)
    assert own == ancestry.digest(dict(reversed(params.items())))
    assert own == ancestry.digest({name: np.asfortranarray(array) for name, array in params.items()})
    turned, renamed = dict(zip(params, [kernel + 1, kernel], strict=True)), {"a/kernel": kernel, "c/kernel": kernel + 1}
    others = [turned, renamed, params | {"b/kernel": kernel + 2}, {"a/kernel": kernel}]
    assert len({own, *map(ancestry.digest, others)}) == 5
