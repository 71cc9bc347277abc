"""Buckets: a run there ends as a run on a disk does, whenever it is killed; what cannot be used is one sentence.

The service is `tests/object_store.py`, reached by the clients that reach the real one.
"""

import errno
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import flax.traverse_util
import numpy as np
import pytest

from plmjax import platform
from plmjax.commands import cli
from plmjax.data import store, tokenizers
from plmjax.data.preparation import prepare
from plmjax.data.store import manifest as ledgers
from plmjax.errors import Unavailable, UserError
from plmjax.files import storage
from plmjax.inference.embed import embed_file
from plmjax.inference.evaluate import evaluate
from plmjax.training import metrics
from plmjax.training.checkpoints import checkpoints, items
from tests.object_store import Object, ObjectStore
from tests.paths import ROOT
from tests.small_runs import SMALL_BERT
from tests.training.checkpoints.test_checkpoints import describe, keeper, make_state, shapes

TINY = "experiments/bert_tiny.py"
pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture(scope="module")
def run(object_store: ObjectStore, prose: Path) -> Iterator[tuple[str, list[dict[str, Object]]]]:
    """`small_run` again with text and run directory in the bucket "running", and what the bucket held at any moment."""
    object_store.create("running")
    object_store.put("running", "text/reference.txt", prose.read_bytes())
    moments = object_store.moments["running"] = []
    pretrain("gs://running/run")
    yield "gs://running/run", moments


def pretrain(workdir: str) -> None:
    cli.run(["pretrain", TINY, "--workdir", workdir, "--data.input", "gs://running/text/reference.txt", *SMALL_BERT])


def parameters(run: str | Path) -> dict[str, np.ndarray]:
    return flax.traverse_util.flatten_dict(checkpoints.load_parameters(run)[0], sep="/")


def assert_same_run(found: str, expected: Path) -> None:
    """Every bit of the parameters and every logged number but time and rates, which no two runs have alike."""
    ours, theirs = parameters(found), parameters(expected)
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name], name)

    def logged(run: str | Path) -> list[dict]:
        lines = metrics.read(storage.path(run) / "metrics.jsonl")
        return [
            {name: line[name] for name in line if "/" in name or name in ("step", "learning_rate")} for line in lines
        ]

    assert logged(found) == logged(expected)


def test_a_run_in_a_bucket_is_the_run_on_a_disk(run, small_run: Path, object_store: ObjectStore) -> None:
    workdir, _ = run
    assert_same_run(workdir, small_run)
    names = {name.removeprefix("run/") for name in object_store.buckets["running"]}
    for name in ("experiment.json", "tokenizer/vocab.txt", "dataset/manifest.json", "checkpoints/6/manifest.json"):
        assert name in names
    assert any(name.startswith("tensorboard/events") for name in names)
    exported = object_store.buckets["running"]["run/export/model.safetensors"].contents
    assert exported == (small_run / "export" / "model.safetensors").read_bytes()


def test_whatever_is_there_when_a_run_is_killed_is_whole(run, object_store: ObjectStore) -> None:
    _, moments = run
    assert len(moments) > 100
    logged = [line["step"] for line in metrics.read(storage.path("gs://running/run/metrics.jsonl"))]
    seen: set[tuple[int, ...]] = set()
    for moment in moments:
        if "run/tokenizer/tokenizer.json" in moment:
            assert "run/tokenizer/vocab.txt" in moment
        if "run/dataset/manifest.json" in moment:
            manifest = json.loads(moment["run/dataset/manifest.json"].contents)
            assert {f"run/dataset/{name}" for name in ledgers.all_files(manifest)} <= moment.keys()
        steps = tuple(step for step in (3, 6) if f"run/checkpoints/{step}/commit_success.txt" in moment)
        for step in steps:
            lines = map(json.loads, moment["run/metrics.jsonl"].contents.splitlines())
            assert [line["step"] for line in lines if line["step"] <= step] == [
                known for known in logged if known <= step
            ]
        if steps not in seen:
            seen.add(steps)
            object_store.create("killed", moment)
            assert storage.finished_steps(storage.path("gs://killed/run/checkpoints")) == [*steps]
            for step in steps:
                found = storage.path(f"gs://killed/run/checkpoints/{step}")
                items.verify(found, ("params", "training", "description", "tokenizer"))
    assert seen == {(), (3,), (3, 6)}


@pytest.mark.nightly
def test_a_killed_run_goes_on_to_the_same_end(run, small_run: Path, object_store: ObjectStore) -> None:
    """Killed when all of the second checkpoint but the object that makes it one was written."""
    _, moments = run
    committed = [index for index, moment in enumerate(moments) if "run/checkpoints/6/commit_success.txt" in moment]
    object_store.create("resumed", moments[committed[0] - 1])
    assert checkpoints.find(storage.path("gs://resumed/run")).name == "3"
    pretrain("gs://resumed/run")
    assert_same_run("gs://resumed/run", small_run)


def test_a_dataset_whose_upload_was_killed_is_prepared_anew(run, small_run: Path, object_store: ObjectStore) -> None:
    _, moments = run
    begun = [moment for moment in moments if any("dataset/corpus" in name for name in moment)]
    assert "run/dataset/manifest.json" not in begun[0]
    object_store.create("unprepared", begun[0])
    target = "gs://unprepared/run/dataset"
    with pytest.raises(UserError, match="with which a preparation ends"):
        store.open_dataset(target)
    text, tokenizer = "gs://running/text/reference.txt", tokenizers.load("gs://running/run/tokenizer")
    made = prepare([text], "auto", tokenizer, target, validation=0.05, processes=1, progress=False)
    assert made.fingerprint == store.open_dataset(small_run / "dataset").fingerprint
    assert "run/dataset/begun.json" not in object_store.buckets["unprepared"]


@pytest.mark.nightly
def test_a_run_in_a_bucket_is_evaluated_embedded_and_reported(
    run, small_run: Path, tmp_path: Path, bucket: str
) -> None:
    workdir, _ = run
    assert evaluate(workdir) == evaluate(small_run)
    lines = storage.path(f"gs://{bucket}/lines.txt")
    storage.write(lines, "a class\nan attribute of it\n")
    cli.run(["embed", workdir, "--input", str(lines), "--output", f"gs://{bucket}/vectors.npz"])
    embed_file(small_run, lines, tmp_path / "vectors.npz")
    with storage.local(storage.path(f"gs://{bucket}/vectors.npz")) as copy:
        np.testing.assert_array_equal(np.load(copy)["embeddings"], np.load(tmp_path / "vectors.npz")["embeddings"])
    cli.run(["report", workdir, "--output", f"gs://{bucket}/report.html"])
    assert storage.path(f"gs://{bucket}/report.html").read_text().startswith("<!doctype html>")


@pytest.fixture(scope="module")
def saved(object_store: ObjectStore) -> dict[str, Object]:
    """A bucket's objects with checkpoints 2 and 3, of three."""
    object_store.create("saved")
    object_store.moments["saved"] = []
    writer = keeper("gs://saved/checkpoints", keep=2)
    for step in (1, 2, 3):
        writer.save(make_state(step), describe(step))
    writer.close()
    return dict(object_store.buckets["saved"])


def test_checkpoints_in_a_bucket_are_kept_and_removed_and_damage_is_named(saved, object_store, bucket: str) -> None:
    assert storage.finished_steps(storage.path("gs://saved/checkpoints")) == [2, 3]
    assert not [name for name in saved if name.startswith("checkpoints/1/")]
    params, description = checkpoints.load_parameters("gs://saved")
    np.testing.assert_array_equal(params["kernel"], make_state(3).params["kernel"])
    assert description == describe(3, cores=platform.cores())
    object_store.create(bucket, saved)
    name = max((name for name in saved if "/3/params/" in name), key=lambda name: len(saved[name].contents))
    changed = bytearray(saved[name].contents)
    changed[len(changed) // 2] ^= 1
    for contents in (changed, changed[:-1], None):
        object_store.put(bucket, name, bytes(contents or b""))
        if contents is None:
            del object_store.buckets[bucket][name]
        with pytest.raises(UserError, match=rf"gs://{bucket}/checkpoints/3, found that it cannot be read"):
            checkpoints.load_parameters(f"gs://{bucket}")


def test_a_removal_that_was_killed_is_finished(saved, object_store: ObjectStore, bucket: str) -> None:
    moments = object_store.moments["saved"]
    fewer = [after for before, after in itertools.pairwise(moments) if len(after) < len(before)]
    assert len(fewer) > 10
    object_store.create(bucket, fewer[len(fewer) // 2])
    assert any(name.startswith("checkpoints/1/") for name in object_store.buckets[bucket])
    writer = keeper(f"gs://{bucket}/checkpoints", keep=2)
    state, _ = writer.restore(writer.latest(), shapes(make_state(3)))
    np.testing.assert_array_equal(state.params["kernel"], make_state(3).params["kernel"])
    writer.save(make_state(4), describe(4))
    writer.close()
    assert {name.split("/")[1] for name in object_store.buckets[bucket]} == {"3", "4"}


def test_checkpoints_are_verified_after_they_were_copied(saved, bucket: str, tmp_path: Path) -> None:
    storage.fetch(storage.path("gs://saved/checkpoints"), tmp_path / "checkpoints")
    params, _ = checkpoints.load_parameters(tmp_path)
    np.testing.assert_array_equal(params["kernel"], make_state(3).params["kernel"])
    writer = keeper(tmp_path / "written" / "checkpoints")
    writer.save(make_state(5), describe(5))
    writer.close()
    with storage.output(storage.path(f"gs://{bucket}/run")) as folder:
        shutil.copytree(tmp_path / "written", folder, dirs_exist_ok=True)
    params, _ = checkpoints.load_parameters(f"gs://{bucket}/run/checkpoints/5")
    np.testing.assert_array_equal(params["kernel"], make_state(5).params["kernel"])


def test_parameters_are_imported_into_a_bucket_once(bucket: str) -> None:
    run, params = describe(0).experiment, make_state(0).params
    checkpoints.save_parameters(f"gs://{bucket}/run", params, run, tokenizer={"vocab.txt": b"a\nb\n"})
    found, description = checkpoints.load_parameters(f"gs://{bucket}/run")
    np.testing.assert_array_equal(found["kernel"], params["kernel"])
    assert description.tokenizer == checkpoints.tokenizer_files(storage.path(f"gs://{bucket}/run/tokenizer"))
    with pytest.raises(UserError, match=f"Expected no run in gs://{bucket}/run"):
        checkpoints.save_parameters(f"gs://{bucket}/run", params, run, tokenizer={})


def test_a_dataset_is_copied_once_and_whole(run, object_store: ObjectStore, cache: Path) -> None:
    shutil.rmtree(cache / "datasets", ignore_errors=True)
    unfinished = cache / "datasets" / f"{_fingerprint()}.copying"
    unfinished.mkdir(parents=True)
    (unfinished / "manifest.json").write_text("{}")  # an earlier copy was killed
    object_store.requests.clear()
    with ThreadPoolExecutor(3) as threads:
        found = [*threads.map(store.open_dataset, ["gs://running/run/dataset"] * 3)]
    assert len({dataset.directory for dataset in found}) == 1 and not unfinished.exists()
    shards = [path for _, path in object_store.requests if "alt=media" in path and "corpus-train" in path]
    assert len(shards) == 1
    copy = found[0].directory / "unigram.text.npy"
    sound = copy.read_bytes()
    copy.write_bytes(sound[:-8])
    assert np.array_equal(store.open_dataset("gs://running/run/dataset").unigram_counts(), found[0].unigram_counts())
    copy.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    store.open_dataset("gs://running/run/dataset")
    assert copy.read_bytes() == sound


def _fingerprint() -> str:
    manifest = json.loads(storage.path("gs://running/run/dataset/manifest.json").read_bytes())
    return store.Dataset(Path(), manifest).fingerprint


def test_a_damaged_dataset_is_not_copied(run, object_store: ObjectStore, bucket: str, cache: Path) -> None:
    shutil.rmtree(cache / "datasets", ignore_errors=True)
    object_store.create(bucket, object_store.buckets["running"])
    name = "run/dataset/corpus-train.tfrecord-00000"
    contents = bytearray(object_store.buckets[bucket][name].contents)
    contents[100] ^= 1
    object_store.put(bucket, name, bytes(contents))
    with pytest.raises(UserError, match=f"gs://{bucket}/{name} .* checksum differs"):
        store.open_dataset(f"gs://{bucket}/run/dataset")
    object_store.put(bucket, name, bytes(contents[:-1]))
    with pytest.raises(UserError, match=f"gs://{bucket}/{name} .* bytes"):
        store.open_dataset(f"gs://{bucket}/run/dataset")


def test_what_a_disk_refuses_is_one_sentence() -> None:
    """Errors of other languages quote the system's, as those of safetensors, HDF5 and XLA; a text is no such error."""
    for number, found in (
        (errno.ENOSPC, "found the disk full (run/file); free some space and"),
        (errno.EFBIG, "found a limit on the size of a file (run/file); raise it (ulimit -f) or name a folder"),
        (errno.EACCES, "Expected to read or write run/file, found: "),
    ):
        assert found in str(storage.explain(OSError(number, os.strerror(number), "run/file")))
        assert (storage.explain(OSError(number, os.strerror(number))) is None) == (number == errno.EACCES)
    for text in ("I/O error: No space left on device (os error 28)", "(errno = 27, File too large)"):
        for error in (RuntimeError(text), OSError(text)):
            assert "Expected room for what is written, found " in str(storage.explain(error))
    for error in (RuntimeError("no space"), UserError("Expected a file, found: No space left on device; free some.")):
        assert storage.explain(error) is None


def test_two_processes_that_write_a_file_have_a_beginning_each(tmp_path: Path) -> None:
    """The last one stays, whole. What a killed process left is removed, and what a living one writes is not."""
    path, code = tmp_path / "file", "import sys, time; from pathlib import Path; from plmjax.files import storage\n"
    code += "with storage.replace_file(Path(sys.argv[1])) as file:\n"
    code += "    file.write_bytes(b'theirs'); print(file, flush=True); sys.stdin.read()"
    started = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
    with (
        subprocess.Popen([sys.executable, "-c", code, path], **started) as killed,
        subprocess.Popen([sys.executable, "-c", code, path], **started) as living,
    ):
        left, other = Path(killed.stdout.readline().strip()), Path(living.stdout.readline().strip())
        killed.kill(), killed.wait()
        (tmp_path / f"file{storage.WRITING}").write_bytes(b"of an older version")
        storage.write(path, b"ours")
        assert path.read_bytes() == b"ours" and {*tmp_path.iterdir()} == {path, other} and left != other
        living.communicate()
    assert path.read_bytes() == b"theirs" and [*tmp_path.iterdir()] == [path]


def test_files_are_the_same_on_a_disk_and_in_a_bucket(bucket: str, tmp_path: Path) -> None:
    names = {"a/b.txt": b"text\r", "a/c/d": bytes(6 << 20), "e": b""}
    for root in (tmp_path / "root", storage.path(f"gs://{bucket}/root")):
        for name, contents in names.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            storage.write(root / name, b"before")
            storage.write(root / name, contents)
        with pytest.raises(ZeroDivisionError), storage.replace_file(root / "e") as file:
            file.write_bytes(b"half")
            raise ZeroDivisionError
        assert {name: (root / name).read_bytes() for name in storage.files(root)} == names
        assert {name: storage.size(root / name) for name in names} == {name: len(names[name]) for name in names}
        assert {name: storage.file(root / name) for name in names} == storage.files(root)
        before = storage.state(root / "a/b.txt")
        assert before == storage.state(root / "a/b.txt")
        storage.write(root / "a/b.txt", names["a/b.txt"])
        assert before != storage.state(root / "a/b.txt")
    here, there = storage.files(tmp_path / "root"), storage.files(storage.path(f"gs://{bucket}/root"))
    for name, file in here.items():
        assert file.size == there[name].size and file.digest(like="crc32c:") == there[name].digest()
        assert file.digest() == there[name].digest(like=file.digest())
    for root in (tmp_path / "root", storage.path(f"gs://{bucket}/root")):
        storage.remove(root / "a")
        storage.remove(root / "missing")
        assert list(storage.files(root)) == ["e"]


def test_what_grows_appears_without_an_upload_a_line(
    object_store: ObjectStore, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    workdir = storage.path(f"gs://{bucket}/run")
    object_store.requests.clear()
    file = metrics.MetricsFile(workdir, 0)
    for step in range(1, 201):
        file.write(step, {"train/loss": 1.0})
    file.flush()
    assert [line["step"] for line in metrics.read(workdir / "metrics.jsonl")] == [*range(1, 201)]
    assert len([path for method, path in object_store.requests if method == "POST"]) == 2  # and the event file
    file.close()
    monkeypatch.setattr(storage.Mirror, "REST", 0.01)
    file = metrics.MetricsFile(workdir, 120)
    file.write(121, {"train/loss": 2.0})
    until = time.monotonic() + 60
    while len(found := metrics.read(workdir / "metrics.jsonl")) != 121 and time.monotonic() < until:
        time.sleep(0.01)
    assert [line["step"] for line in found] == [*range(1, 122)]
    file.close()
    assert not file.folder.exists()


def test_what_was_written_last_is_there_when_a_mirror_is_closed(
    bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(storage.Mirror, "REST", 3600.0)  # nothing is copied before
    for target in (storage.path(f"gs://{bucket}/run"), tmp_path):
        mirror = storage.Mirror(target)
        (mirror.folder / "log").write_text("the last line\n")
        mirror.close()
        assert (target / "log").read_text() == "the last line\n"


def test_every_byte_of_a_long_file_counts_in_its_digest(tmp_path: Path) -> None:
    for last in (b"0", b"1"):  # a byte more than is read at once
        (tmp_path / last.decode()).write_bytes(bytes(1 << 24) + last)
    for like in ("", "crc32c:"):
        assert len({file.digest(like) for file in storage.files(tmp_path).values()}) == 2


def test_a_file_that_says_a_folder_is_whole_is_copied_last(object_store: ObjectStore, bucket: str) -> None:
    moments, names = [], ("a.json", "b.txt", "c/d.txt")
    object_store.moments[bucket] = moments
    with storage.output(storage.path(f"gs://{bucket}/folder"), "a.json") as folder:
        for name in names:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(name)
    whole = {f"folder/{name}" for name in names}
    assert object_store.buckets[bucket].keys() == whole
    assert all(moment.keys() == whole for moment in moments if "folder/a.json" in moment)


def test_a_file_of_a_library_has_the_usual_mode_and_an_error_names_the_file_that_was_to_be_written(tmp_path) -> None:
    before = os.umask(0o022)
    try:
        with storage.replace_file(tmp_path / "file") as file:
            file.unlink()
            os.close(os.open(file, os.O_CREAT, 0o600))  # as one for its user alone
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644
    with pytest.raises(OSError, match="No such file") as error:
        storage.write(tmp_path / "none" / "file", b"")
    assert error.value.filename == str(tmp_path / "none" / "file")


def test_a_file_is_on_the_disk_before_it_takes_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a machine that loses its power leaves an empty file where a whole one was."""
    path, fsync, synced = tmp_path / "file", os.fsync, []

    def spy(descriptor: int) -> None:
        fsync(descriptor)
        synced.append((os.fstat(descriptor).st_ino, os.pread(descriptor, 10, 0), path.read_text()))

    storage.write(path, "before")
    monkeypatch.setattr(os, "fsync", spy)
    storage.write(path, "after")
    assert synced == [(path.stat().st_ino, b"after", "before")]


def test_a_path_of_nowhere(fails: Callable[..., str]) -> None:
    assert "did you mean gs://bucket/x?" in fails("evaluate", "gs:/bucket/x")
    assert "found s3://bucket/x" in fails("evaluate", "s3://bucket/x")
    assert "name of 3 letters" in fails("evaluate", "gs://")
    assert "gs://Bucket" in fails("pretrain", TINY, "--workdir", "gs://Bucket/x")


def test_a_save_that_fails_says_what_is_kept(object_store: ObjectStore, saved, bucket: str) -> None:
    object_store.create(bucket, saved)
    writer = keeper(f"gs://{bucket}/checkpoints", keep=2)
    object_store.denied[bucket] = (("POST", "PUT"), 403, "caller does not have storage.objects.create access")
    with pytest.raises(Unavailable, match=rf"gs://{bucket}"):
        writer.save(make_state(4), describe(4))
        writer.wait()
    assert storage.finished_steps(storage.path(f"gs://{bucket}/checkpoints")) == [2, 3]
    del object_store.denied[bucket]
    assert checkpoints.describe(storage.path(f"gs://{bucket}/checkpoints/2")) == describe(2, cores=platform.cores())
