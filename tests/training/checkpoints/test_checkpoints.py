"""Checkpoints: what is saved is what was there, what is kept is what was promised, and damage is named, not read."""

import dataclasses
import json
import math
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from plmjax import experiment, platform
from plmjax.data.layouts import FullSentences
from plmjax.errors import UserError
from plmjax.experiment import Data, Experiment
from plmjax.files import storage
from plmjax.parallel import mesh as meshes
from plmjax.runs import folder
from plmjax.training.checkpoints import checkpoints, items, stored
from plmjax.training.checkpoints.best import Best
from plmjax.training.checkpoints.checkpoints import Checkpoints, Description
from plmjax.training.state import TrainState
from tests.paths import ROOT
from tests.third_party import experiments

ITEMS = ("params", "training", "description", "tokenizer")


def make_state(step: int, sizes: experiment.Mesh | None = None, rows: int = 64) -> TrainState:
    """A state whose every number tells its step; the kernel lies over fsdp and tensor where there is a mesh."""
    place = None
    if sizes is not None:
        devices = jax.devices()[: max(sizes.data, 1) * max(sizes.fsdp, 1) * max(sizes.tensor, 1)]
        mesh = meshes.make(sizes, devices)
        place = NamedSharding(mesh, PartitionSpec("fsdp", "tensor"))
    kernel = jax.device_put(np.arange(rows * 16, dtype=np.float32).reshape(rows, 16) / 7 + step, place)
    flat = None if place is None else NamedSharding(place.mesh, PartitionSpec())
    small = [jax.device_put(x, flat) for x in (np.full(3, step, np.float32), np.int32(step), np.arange(2, dtype="u4"))]
    params = {"kernel": kernel, "bias": small[0]}
    moments = {"mean": jax.tree.map(lambda x: x * 2, params)}
    return TrainState(step=small[1], params=params, optimizer_state=moments, carry=(), key=small[2])


def shapes(state: TrainState) -> TrainState:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)


def describe(step: int, **fields) -> Description:
    return Description(experiments.gpt2(), step, {"vocab.txt": b"a\nb\n"}, "data", **fields)


def keeper(directory: Path, **settings) -> Checkpoints:
    return Checkpoints(directory, experiment.Checkpoint(**({"every": 1, "keep": 0} | settings)))


def assert_equal(expected, found):
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(expected), jax.device_get(found))


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """Checkpoints of steps 1 and 2, to be copied before they are harmed."""
    directory = tmp_path_factory.mktemp("saved") / "checkpoints"
    writer = keeper(directory)
    for step in (1, 2):
        state = make_state(step, experiment.Mesh(data=8))
        writer.save(state, describe(step, metrics={"eval/loss": 1.5}, window={"loss": (2.25, 3)}))
    writer.close()
    return directory


@pytest.mark.parametrize("sizes", [None, experiment.Mesh(data=2, fsdp=2, tensor=2)])
def test_the_arrays_saved_are_those_of_the_step_though_the_next_steps_overwrite_them(tmp_path, sizes):
    made = jax.jit(lambda state: jax.tree.map(jnp.copy, state))
    overwrite = jax.jit(lambda state: jax.tree.map(lambda x: x * 0, state), donate_argnums=0)
    expected = make_state(5, sizes, rows=1 << 14)
    donated = made(expected)
    overwrite(donated)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(donated)), "a step takes over memory that nobody reads"
    state, writer = made(expected), keeper(tmp_path / "checkpoints")
    writer.save(state, describe(5))
    for _ in range(3):
        state = overwrite(state)
    jax.block_until_ready(state)
    writer.close()
    found, _ = keeper(tmp_path / "checkpoints").restore(5, shapes(expected))
    assert_equal(expected, found)


@pytest.mark.parametrize("sizes", [(4, 1, 2), (1, 1, 1), (1, 8, 1)])
def test_restores_onto_another_mesh(saved, sizes):
    """Its parameters, without a mesh, and a description of itself."""
    other = make_state(0, experiment.Mesh(*sizes))
    found, description = keeper(saved).restore(2, shapes(other))
    assert_equal(make_state(2), found)
    assert found.params["kernel"].sharding.is_equivalent_to(other.params["kernel"].sharding, 2)
    assert description == describe(2, metrics={"eval/loss": 1.5}, window={"loss": (2.25, 3)}, cores=platform.cores())
    assert_equal(make_state(2).params, checkpoints.load_parameters(saved.parent)[0])


def test_keeps_the_newest_the_multiples_and_the_best_also_after_a_resume(tmp_path):
    losses = {2: 3.0, 3: 9.0, 4: 1.0, 6: 2.0, 7: 5.0, 8: 4.0, 9: 6.0}
    kept = []
    for steps in ((2, 3, 4, 6), (7, 8, 9)):  # the second part goes on in a folder that it has to read
        writer = keeper(tmp_path / "checkpoints", every=2, keep=2, best="eval/loss")
        for step in steps:
            writer.save(make_state(step), describe(step, metrics={"eval/loss": losses[step]}))
            writer.wait()
            kept.append(storage.finished_steps(writer.directory))
        writer.close()
    assert kept == [[2], [2, 3], [2, 4], [4, 6], [4, 6, 7], [4, 6, 8], [4, 6, 8, 9]]


def test_a_file_that_is_missing_cut_or_flipped_is_named_however_small_it_is_before_orbax_reads_it(
    saved, tmp_path, capfd
):
    """Orbax reads on without some of them: the shardings, for one. A checkpoint beside them is not touched."""
    shutil.copytree(saved, copy := tmp_path / "checkpoints")
    names = [name for name in storage.files(copy / "2") if name.partition("/")[0] in ITEMS and "/" in name]
    assert {name.partition("/")[0] for name in names} == set(ITEMS) and "params/_sharding" in names
    for name in names:
        file, contents = copy / "2" / name, (copy / "2" / name).read_bytes()
        middle = len(contents) // 2
        flipped = contents[:middle] + bytes(byte ^ 1 for byte in contents[middle : middle + 1]) + contents[middle + 1 :]
        for harmed in {None, contents[:-1], flipped} - {contents}:
            file.unlink() if harmed is None else file.write_bytes(harmed)
            with pytest.raises(UserError, match=f"cannot be read: {re.escape(name)} [^\n]*; remove that folder"):
                items.verify(copy / "2", (name.partition("/")[0],))
        with pytest.raises(UserError, match=r"checkpoints/2, found that it cannot be read"):
            keeper(copy).restore(2, shapes(make_state(2)))
        file.write_bytes(contents)
    assert_equal(make_state(2), keeper(copy).restore(2, shapes(make_state(2)))[0])
    (copy / "2" / "manifest.json").unlink()
    with pytest.raises(UserError, match=r"checkpoints/2, found that it cannot be read"):
        keeper(copy).restore(2, shapes(make_state(2)))
    assert capfd.readouterr().err == ""
    assert_equal(make_state(1), keeper(copy).restore(1, shapes(make_state(1)))[0])


def test_a_checkpoint_of_another_size_or_model_is_named(saved):
    with pytest.raises(UserError, match=r"params/kernel of shape \(32, 16\), found \(64, 16\)"):
        keeper(saved).restore(2, shapes(make_state(2, rows=32)))
    other = make_state(2)
    other = other.replace(params=other.params | {"pooler": jnp.zeros(3)})
    with pytest.raises(UserError, match=r"params/pooler of shape \(3,\), found none at all"):
        keeper(saved).restore(2, shapes(other))


@pytest.mark.nightly
def test_killed_anywhere_in_a_save_it_leaves_a_checkpoint_that_is_whole(tmp_path):
    # Python tells its audit hooks of every file it opens and renames; the process kills itself at one of them.
    script = """
        import os, signal, sys
        from pathlib import Path
        from tests.training.checkpoints.test_checkpoints import describe, keeper, make_state
        directory, fatal = Path(sys.argv[1]), sys.argv[2]
        writer = keeper(directory, keep=1)
        writer.save(make_state(1), describe(1))
        writer.wait()
        seen = 0

        def hook(event, arguments):
            global seen
            if event in ("open", "os.mkdir", "os.rename", "shutil.rmtree") and str(directory) in str(arguments[0]):
                seen += 1
                if fatal in (str(seen), event):
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        writer.save(make_state(2), describe(2))
        writer.close()
        print(seen)
    """

    def run(directory: Path, fatal: object) -> subprocess.CompletedProcess:
        command = [sys.executable, "-c", textwrap.dedent(script), str(directory), str(fatal)]
        return subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=300)

    whole = run(tmp_path / "whole", 0)
    events = int(whole.stdout)
    assert storage.finished_steps(tmp_path / "whole") == [2]
    found = []
    # The last is the removal of the checkpoint before, of which only one is kept.
    for number, fatal in enumerate([2, events // 2, "os.rename", "shutil.rmtree"]):
        directory = tmp_path / str(number)
        killed = run(directory, fatal)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        reader = keeper(directory)
        latest = reader.latest()
        state, _ = reader.restore(latest, shapes(make_state(0)))
        assert_equal(make_state(latest), state)
        reader.close()
        found.append(latest)
    assert found[0] == 1 and found[-1] == 2


def test_a_full_disk_costs_one_sentence_and_no_earlier_checkpoint(tmp_path, capfd):
    writer = keeper(tmp_path / "checkpoints")
    writer.save(make_state(1, rows=1 << 15), describe(1))
    writer.wait()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, limits[1]))
    try:
        with pytest.raises(UserError, match=r"^Expected to write a checkpoint .*\(steps: 1\)[^\n]*$"):
            writer.save(make_state(2, rows=1 << 15), describe(2))
            writer.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert capfd.readouterr().err == ""
    reader = keeper(tmp_path / "checkpoints")
    assert storage.finished_steps(reader.directory) == [1]
    found, _ = reader.restore(1, shapes(make_state(1, rows=1 << 15)))
    assert_equal(make_state(1, rows=1 << 15), found)


def imported(folder: Path, kernel: float = 1.0) -> None:
    checkpoints.save_parameters(
        folder, {"kernel": np.full((2, 3), kernel)}, experiments.gpt2(), tokenizer={"vocab.txt": b"a\n"}
    )


@pytest.mark.parametrize("killed", ["the checkpoint", "the experiment", "the tokenizer"])
def test_what_a_killed_import_left_is_cleared_by_its_repetition(killed: str, tmp_path: Path, monkeypatch) -> None:
    class Killed(BaseException):
        pass

    def kill(*arguments: object) -> None:
        raise Killed

    def kill_in_a_save(writer: Checkpoints) -> None:
        close(writer)  # or its threads would go on writing, as those of a killed process do not
        (writer.directory / "0").rename(writer.directory / "0.orbax-checkpoint-tmp")  # as Orbax names an unfinished one
        raise Killed

    close = Checkpoints.close
    owner, name, end = {
        "the checkpoint": (Checkpoints, "close", kill_in_a_save),
        "the experiment": (experiment, "write", kill),
        "the tokenizer": (Description, "write_tokenizer", kill),
    }[killed]
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(owner, name, end)
        imported(tmp_path / "run")
    with pytest.raises(UserError, match=r"found what an import or an average left when it was killed; run that"):
        folder.record_experiment(tmp_path / "run", experiments.gpt2())
    imported(tmp_path / "run", kernel=2.0)
    params, description = checkpoints.load_parameters(tmp_path / "run")
    assert (params["kernel"] == 2.0).all() and description.tokenizer == {"vocab.txt": b"a\n"}
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["checkpoints", "experiment.json", "tokenizer"]
    with pytest.raises(UserError, match=r"Expected no run in .*, found one; name another folder"):
        imported(tmp_path / "run")


def test_a_run_does_not_go_on_from_a_checkpoint_that_is_a_link_nor_is_one_written_through_a_link(saved, tmp_path):
    folder = tmp_path / "checkpoints"
    shutil.copytree(saved, folder)
    (folder / "2").rename(tmp_path / "elsewhere")
    (folder / "2").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"found the link .*checkpoints/2 to .*elsewhere; put the folder itself there"):
        keeper(folder)
    assert checkpoints.describe(checkpoints.find(folder / "2")).step == 2
    with pytest.raises(UserError, match=r"Expected a new folder to write, found the link .*2 to .*elsewhere; name"):
        imported(folder / "2")


UNREADABLE = "a whole checkpoint in .*/2, found that it cannot be read: .*"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"step": "2"}, f"{UNREADABLE}step is no number"),
        ({"experiment": {"type": "plmjax.experiment.settings:Training"}}, f"{UNREADABLE}its experiment is a Training"),
        ({"objective": [None]}, r"Expected Experiment\.objective of type .*Objective.* \(in .*/2\)\."),
        ({"format": 1, "version": "0.1"}, r"a checkpoint of format 2 in .*, found 1; read it with plmjax 0\.1\."),
    ],
)
def test_a_description_that_is_none_is_one_sentence_whatever_its_digest(saved, tmp_path, changes, sentence) -> None:
    """`objective` is a field of the experiment."""
    folder = shutil.copytree(saved / "2", tmp_path / "2")
    file = folder / "description" / "metadata"
    found = json.loads(file.read_text())
    (found["experiment"] if "objective" in changes else found).update(changes)
    file.write_text(json.dumps(found))
    items.write_manifest(folder)
    with pytest.raises(UserError, match=sentence):
        checkpoints.describe(folder)
    shutil.rmtree(folder / "tokenizer")
    items.write_manifest(folder)
    with pytest.raises(UserError, match="it has no tokenizer"):
        checkpoints.describe(folder)


@pytest.mark.parametrize(("metric", "sign"), [("eval/loss", 1), ("-eval/f1", -1)])
def test_only_a_better_score_ends_the_waiting(metric: str, sign: int) -> None:
    """An equal one does not; nor does an evaluation without the metric count, and NaN is the worst score."""
    best, record, found = Best(metric, patience=2), None, []
    for value in (3.0, 2.0, 2.0, None, math.nan, 1.0):
        record = best.after(record, {} if value is None else {best.name: sign * value})
        found.append((*record, best.out_of_patience(record)))
    assert found == [(3, 0, False), (2, 0, False), (2, 1, False), (2, 1, False), (2, 2, True), (1, 0, False)]
    assert best.describe_wait((2.0, 3)) == f"{best.name} has not been better than {2 * sign:.4f} for 3 evaluations"
    assert best.describe_wait((math.inf, 2)).endswith("has not had a finite value for 2 evaluations")
    assert not Best(metric).out_of_patience((1.0, 99)) and not best.out_of_patience(None)


@pytest.mark.parametrize(("metric", "best"), [("eval/f1", 4), ("-eval/f1", 6)])
def test_a_value_that_is_not_finite_is_never_the_best(metric: str, best: int) -> None:
    for value in (math.nan, math.inf, -math.inf):
        found = {2: {"eval/f1": value}, 4: {"eval/f1": -0.5}, 6: {"eval/f1": 0.5}, 8: {}, 10: {"eval/f1": value}}
        assert Best(metric).step(found) == best and Best(metric).step({2: {"eval/f1": value}, 12: None}) is None


def test_the_best_checkpoint_is_the_one_of_the_metric_that_a_run_prefers(tmp_path) -> None:
    """The earliest of equals; one without an evaluation is none; the last one where nothing was evaluated."""
    writer = keeper(tmp_path / "checkpoints", best="eval/loss")
    for step, loss in {1: 3.0, 2: 1.0, 3: 1.0, 4: None}.items():
        writer.save(make_state(step), describe(step, metrics={} if loss is None else {"eval/loss": loss}))
    writer.close()
    for best, prefer, chosen in (
        ("eval/loss", "best", "2"), ("-eval/loss", "best", "1"), ("eval/loss", "last", "4"), ("eval/f1", "best", "4"),
    ):  # fmt: skip
        settings = experiment.Checkpoint(best=best, prefer=prefer)
        experiment.write(dataclasses.replace(experiments.gpt2(), checkpoint=settings), tmp_path / "experiment.json")
        assert checkpoints.find(tmp_path).name == chosen


def test_constants_that_are_not_beside_the_checkpoints_are_named(saved: Path, tmp_path: Path) -> None:
    """A run without constants needs none."""
    assert checkpoints.load_constants(saved / "2", ()) == () == checkpoints.read_constants(saved.parent)
    with pytest.raises(UserError, match=r"Expected the constants of the run in .*constants, found none; keep that"):
        checkpoints.load_constants(saved / "2", {"table": jax.ShapeDtypeStruct((3,), jnp.float32)})


VALUES = np.random.default_rng(0).normal(size=(2, 5, 3)).astype(np.float32)


@pytest.mark.parametrize("shared", [(1, 2), (1,), (0, 1, 2)])
def test_the_published_rule(shared: tuple[int, ...]) -> None:
    form = stored.encode(VALUES, shared)
    scale = 127 / np.abs(VALUES).max(axis=shared, keepdims=True)
    assert form["int8"].dtype == np.int8 and form["scale"].dtype == np.float32
    np.testing.assert_array_equal(form["int8"], np.round(VALUES * scale))
    assert np.abs(form["int8"]).max(axis=shared).min() == 127
    back = stored.decode({"a": {"kernel": form}})["a"]["kernel"]
    assert back.dtype == np.float32 and np.all(np.abs(back - VALUES) <= 0.5001 / scale)
    again = stored.encode(back, shared)
    np.testing.assert_array_equal(again["int8"], form["int8"])


def test_other_arrays_are_left_as_they_are_and_zeros_stay_zeros() -> None:
    tree = {"norm": {"scale": VALUES}, "layer": {"kernel": stored.encode(np.zeros((2, 3)), (1,)), "bias": VALUES}}
    assert stored.paths(tree) == ["layer/kernel"] and stored.paths((VALUES, VALUES)) == []
    found = stored.decode(tree)
    assert found["norm"]["scale"] is VALUES and found["layer"]["bias"] is VALUES
    assert np.all(tree["layer"]["kernel"]["scale"] == 1) and not np.any(found["layer"]["kernel"])


def in_int8(tmp_path, form) -> tuple:
    run = Experiment(None, None, Data(FullSentences()))
    checkpoints.save_parameters(tmp_path / "run", {"kernel": form, "bias": VALUES[0]}, run, tokenizer={})
    return checkpoints.find(tmp_path / "run"), {"bias": VALUES[0].shape, "kernel": VALUES.shape}


def described(shapes) -> dict:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("data",))
    place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    places = {"kernel": place, "bias": whole}
    return {name: jax.ShapeDtypeStruct(shape, np.float32, sharding=places[name]) for name, shape in shapes.items()}


def test_a_checkpoint_gives_float32_on_any_mesh(tmp_path) -> None:
    form = stored.encode(VALUES, (1,))
    directory, shapes = in_int8(tmp_path, form)
    assert items.int8_paths(directory, "params") == ["kernel"]
    expected = {"kernel": form["int8"] / form["scale"], "bias": VALUES[0]}
    found, placed = (items.restore(directory, "params", abstract) for abstract in (None, described(shapes)))
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)
        np.testing.assert_array_equal(placed[name], value)
        assert placed[name].sharding == described(shapes)[name].sharding
    with pytest.raises(UserError, match=r"expected params/kernel of shape \(2, 5, 4\), found \(2, 5, 3\)"):
        items.restore(directory, "params", described(shapes | {"kernel": (2, 5, 4)}))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"int8": VALUES}, "kernel is stored as float32 with scales of float32"),
        ({"scale": np.ones((2, 1, 4), np.float32)}, r"kernel of shape \(2, 5, 3\) has scales of shape \(2, 1, 4\)"),
        ({"scale": np.zeros((2, 1, 3), np.float32)}, "kernel has a scale that is not above 0"),
    ],
)
def test_a_form_that_nobody_wrote_is_a_damaged_checkpoint(tmp_path, changes, sentence) -> None:
    directory, _ = in_int8(tmp_path, stored.encode(VALUES, (1,)) | changes)
    with pytest.raises(UserError, match=f"Expected a whole checkpoint in .*{sentence}; remove that folder"):
        items.restore(directory, "params", None)
