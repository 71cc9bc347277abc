"""Preparing a dataset: the same from any number of processes, bounded in memory, whole or not at all."""

import contextlib
import gzip
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from plmjax.data import store, tokenizers
from plmjax.data.preparation import files, output_folder, prepare, run
from plmjax.data.preparation.conversion import Sizes
from tests.data.mistakes import refused
from tests.data.random_texts import CLEAN, document


@pytest.fixture
def corpus(tmp_path):
    """60 documents in two files."""
    (folder := tmp_path / "corpus").mkdir()
    for part in range(2):
        (folder / f"{part}.txt").write_text("\n\n".join(map(document, range(30 * part, 30 * part + 30))))
    return folder


@pytest.fixture
def units(corpus, monkeypatch):
    """The corpus, cut into several units a file."""
    monkeypatch.setattr(run, "UNIT_BYTES", 3000)
    return corpus


ALONE = {"processes": 1, "progress": False}


def manifest(folder: Path) -> dict:
    return json.loads((folder / store.MANIFEST).read_text())


def stop(*arguments, **named):
    raise KeyboardInterrupt


@contextlib.contextmanager
def stopped_at(where, name: str, function=stop):
    """A preparation is stopped by an interrupt from a part of it."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(where, name, function)
        yield


def contents(dataset: store.Dataset) -> dict[str, list[list[list[int]]]]:
    """Split -> documents -> sentences -> ids."""
    found = {}
    for name in store.SPLITS:
        split = dataset.split(name)
        starts, documents = split.sentence_offsets, split.document_offsets
        found[name] = [
            [split.tokens(starts[s], starts[s + 1]).tolist() for s in range(first, last)]
            for first, last in itertools.pairwise(documents)
        ]
    return found


def test_every_sentence_is_there_in_order(corpus, tokenizer, tmp_path, monkeypatch):
    """A document is held out by its text, not by its place."""
    dataset = prepare([corpus], "auto", tokenizer, tmp_path / "out", validation=0.2, **ALONE)
    found = contents(dataset)
    expected = [[tokenizer.encode(line) for line in document(seed).split("\n")] for seed in range(60)]
    assert 5 <= len(found["validation"]) <= 20
    rest = iter(expected)
    for document_ids in found["train"]:  # in the order of the input
        assert any(document_ids == candidate for candidate in rest)
    assert sorted(map(json.dumps, found["train"] + found["validation"])) == sorted(map(json.dumps, expected))
    assert dataset.tokenizer_fingerprint == tokenizer.fingerprint
    assert dataset.unigram_counts().sum() == dataset.split("train").token_count
    assert not (tmp_path / "out" / output_folder.BEGUN).exists()
    (tmp_path / "shuffled.txt.gz").write_bytes(gzip.compress("\n\n".join(map(document, reversed(range(60)))).encode()))
    monkeypatch.setattr(run, "SIZES", Sizes(batch_characters=2000, shard_tokens=1500))
    other = prepare([tmp_path / "shuffled.txt.gz"], "text", tokenizer, tmp_path / "other", validation=0.2, **ALONE)
    assert sorted(contents(other)["validation"]) == sorted(found["validation"])
    shards = manifest(tmp_path / "other")["splits"]["train"]["shards"]
    *full, last = (shard["streams"]["text"]["tokens"] for shard in shards)  # a file is closed as soon as it is full
    assert len(full) > 1 and all(1500 <= tokens < 2500 for tokens in full) and last < 2500


@pytest.mark.parametrize("clean", [("gopher", *CLEAN), pytest.param((), marks=pytest.mark.nightly)])
def test_units_are_the_same_on_any_number_of_processes(units, tokenizer, tmp_path, clean, monkeypatch):
    """Also where keys are compared in parts. The checksums of all files stand in the ledger."""
    (units / "2.txt").write_text("\n\n".join(map(document, range(15, 45))))  # copies
    (units / "3.jsonl").write_text(json.dumps({"text": "Short."}))  # a unit of which cleaning leaves nothing
    for name, processes, keys in (("one", 1, Sizes().compared_keys), ("parts", 2, 100)):
        monkeypatch.setattr(run, "SIZES", Sizes(compared_keys=keys))
        options = {"clean": clean, "processes": processes, "progress": False}
        dataset = prepare([units], "auto", tokenizer, tmp_path / name, **options)
        assert not (tmp_path / name / files.FOLDER).exists()
    assert manifest(tmp_path / "one") == manifest(tmp_path / "parts")
    assert len(manifest(tmp_path / "one")["splits"]["train"]["shards"]) > 8
    kept = sum(map(len, contents(dataset).values()))
    assert kept == (60 if clean else 91) or ("gopher" in clean and kept < 60)
    assert dataset.unigram_counts().sum() == dataset.split("train").token_count


def test_finished_units_are_not_converted_again(units, tokenizer, tmp_path):
    whole, output = tmp_path / "whole", tmp_path / "out"
    prepare([units], "auto", tokenizer, whole, clean=CLEAN, **ALONE)
    original, converted = run.Conversion.write, []

    def write(self, unit, *arguments, **more):
        if len(converted) == 4:
            raise KeyboardInterrupt
        converted.append(unit.index)
        original(self, unit, *arguments, **more)

    with stopped_at(run.Conversion, "write", write):
        prepare([units], "auto", tokenizer, output, clean=CLEAN, **ALONE)
    written = {path: path.stat().st_mtime_ns for path in output.glob("units/*/*")}
    assert {path.parent.name for path in written if path.name == files.WRITTEN} == {f"{n:05d}" for n in range(4)}
    refused(lambda: store.open_dataset(output), "with which a preparation ends")
    with stopped_at(store, "finish"):  # before the files are joined
        prepare([units], "auto", tokenizer, output, clean=CLEAN, **ALONE)
    assert {path: path.stat().st_mtime_ns for path in written} == written
    # A stop while they are joined: a file that was moved is made again.
    next(output.glob("units/00002/corpus-*")).rename(output / "corpus-train.tfrecord-00002")
    with stopped_at(output_folder, "tidy"):  # after the ledger: what is left is removed
        prepare([units], "auto", tokenizer, output, clean=CLEAN, **ALONE)
    assert manifest(output) == manifest(whole) and (output / files.FOLDER).exists()
    prepare([units], "auto", tokenizer, output, clean=CLEAN, **ALONE)
    assert not (output / files.FOLDER).exists() and not (output / output_folder.BEGUN).exists()


DAMAGED = {
    "cut": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "one bit": lambda content: content[:-9] + bytes([content[-9] ^ 1]) + content[-8:],
    "gone": None,
}


@pytest.fixture(scope="module")
def stopped(tokenizer, tmp_path_factory):
    """(the input, a preparation that was stopped while it compared the last stage, the same finished)."""
    folder = tmp_path_factory.mktemp("stopped")
    (folder / "text").mkdir()
    for part in range(3):
        texts = [document(seed) for seed in (*range(20 * part, 20 * part + 20), *range(5))]  # with copies
        (folder / "text" / f"{part}.txt").write_text("\n\n".join(texts))
    for name, where, room, most in (("compared", run.Conversion, "join", 1), ("finished", store, "finish", 0)):
        original, calls = getattr(where, room), []

        def until(*arguments, original=original, calls=calls, most=most, **named):
            calls.append(arguments)
            return original(*arguments, **named) if len(calls) <= most else stop()

        with pytest.MonkeyPatch.context() as patch, stopped_at(where, room, until):
            patch.setattr(run, "UNIT_BYTES", 3000)
            patch.setattr(run, "SIZES", Sizes(compared_keys=100))
            prepare([folder / "text"], "auto", tokenizer, folder / name, clean=CLEAN, **ALONE)
    return folder


def files_of_units(folder: Path) -> list[str]:
    """One file of each kind, in the first folder that has it."""
    kinds = {}
    for path in sorted(folder.glob("units/**/*")):
        if path.is_file():
            kinds.setdefault(re.sub(r"\d+", "N", path.name), path.relative_to(folder).as_posix())
    return sorted(kinds.values())


@pytest.mark.parametrize("state", [pytest.param("compared", marks=pytest.mark.nightly), "finished"])
def test_damaged_files_of_units_are_made_again(stopped, state, tokenizer, tmp_path, monkeypatch):
    """Each kind of file, with one of another kind: the dataset is that of a run that nothing stopped."""
    monkeypatch.setattr(run, "UNIT_BYTES", 3000)
    monkeypatch.setattr(run, "SIZES", Sizes(compared_keys=100))
    prepare([stopped / "text"], "auto", tokenizer, tmp_path / "whole", clean=CLEAN, **ALONE)
    found = files_of_units(stopped / state)
    assert len(found) == {"compared": 7, "finished": 9}[state], found
    ways = [*DAMAGED.values()]
    for number, name in enumerate(found):
        output = tmp_path / str(number)
        shutil.copytree(stopped / state, output)
        for damaged, damage in ((name, ways[number % 4]), (found[number - 3], ways[number // 4 % 4])):
            if damage is None:
                (output / damaged).unlink()
            else:
                (output / damaged).write_bytes(damage((output / damaged).read_bytes()))
        prepare([stopped / "text"], "auto", tokenizer, output, clean=CLEAN, **ALONE)
        assert manifest(output) == manifest(tmp_path / "whole"), (state, name)


@pytest.mark.parametrize(
    ("clean", "finished"),
    [
        ((), files.WRITTEN),
        pytest.param(CLEAN, files.screened_file(0), marks=pytest.mark.nightly),
        pytest.param(CLEAN, "stage-1.repeated.json", marks=pytest.mark.slow),
    ],
)
def test_a_killed_worker_costs_only_its_units(clean, finished, units, tokenizer, tmp_path, monkeypatch):
    """A process of the pool is killed in the middle, as a system without memory does; the next run continues.

    Also while documents are compared for near duplicates.
    """
    whole, output = tmp_path / "whole", tmp_path / "out"
    (units / "2.txt").write_text("\n\n".join(map(document, range(60, 120))))  # some work for later
    tokenizer.save(tmp_path / "words")
    code = f"""
import sys
from pathlib import Path
from plmjax.data import tokenizers
from plmjax.data.preparation import prepare, run
from plmjax.errors import UserError
if __name__ == "__main__":
    run.UNIT_BYTES = 3000
    words = tokenizers.load(Path({str(tmp_path / "words")!r}))
    try:
        prepare([{str(units)!r}], "auto", words, sys.argv[1], clean={clean!r}, processes=2, progress=False)
    except UserError as error:
        sys.exit(str(error))
"""
    (tmp_path / "code.py").write_text(code)
    command = [sys.executable, str(tmp_path / "code.py"), str(output)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while len(list(output.glob(f"units/*/{finished}"))) < 3:
        assert process.poll() is None
        time.sleep(0.005)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    workers = [child for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]
    os.kill(int(workers[0]), signal.SIGKILL)
    assert "found one ended by the system" in process.communicate()[1] and process.returncode == 1
    kept = len(list(output.glob(f"units/*/{finished}")))
    assert kept >= 3 and not (output / store.MANIFEST).exists()
    monkeypatch.setattr(run, "UNIT_BYTES", 3000)
    for folder in (output, whole):
        prepare([units], "auto", tokenizer, folder, clean=clean, processes=1, progress=False)
    assert (output / store.MANIFEST).read_text() == (whole / store.MANIFEST).read_text()


def test_a_finished_dataset_is_not_made_again_also_of_files_that_were_moved(corpus, tokenizer, tmp_path, capsys):
    output = tmp_path / "out"
    first = prepare([corpus], "auto", tokenizer, output, processes=1, validation=1e-9)
    assert "held-out   nothing" in capsys.readouterr().out
    stamp = (output / store.MANIFEST).stat().st_mtime_ns
    second = prepare([corpus.rename(tmp_path / "elsewhere")], "auto", tokenizer, output, processes=1, validation=1e-9)
    assert "prepared before" in capsys.readouterr().out
    assert (output / store.MANIFEST).stat().st_mtime_ns == stamp and first.fingerprint == second.fingerprint
    (output / "notes.txt").write_text("mine")
    shard = next(output.glob("corpus-train*"))  # a damaged one is made again, and what is no part of it is kept
    shard.write_bytes(shard.read_bytes()[:-9])
    refused(lambda: store.open_dataset(output), shard.name)
    again = prepare([tmp_path / "elsewhere"], "auto", tokenizer, output, validation=1e-9, **ALONE)
    assert again.fingerprint == first.fingerprint and (output / "notes.txt").exists()


def test_sentences_join_to_the_tokens_of_the_whole_text(tmp_path):
    """Byte-level pieces of a sentence in the middle begin with its space, as in the running text."""
    text = "One river sings. The old bridge never walks. A child reads."
    byte_level = tokenizers.train("byte-bpe", 300, [text], tmp_path / "tokenizer", lowercase=False)
    (tmp_path / "a.txt").write_text(text)
    dataset = prepare([tmp_path / "a.txt"], "text", byte_level, tmp_path / "out", validation=0)
    split = dataset.split("train")
    assert split.sentences == 3
    assert split.tokens(0, split.token_count).tolist() == byte_level.encode(text)


def test_text_of_which_the_tokenizer_knows_little_is_refused_early(tokenizer, tmp_path, monkeypatch, capsys):
    (tmp_path / "a.txt").write_text("\n\n".join(["今天天气很好，我们去公园散步吧。" * 20] * 100), encoding="utf-8")

    def prepared(name, **options):
        return prepare([tmp_path / "a.txt"], "text", tokenizer, tmp_path / name, language="zh", processes=1, **options)

    refused(lambda: prepared("out"), "100.0% of the first .. tokens unknown .. --max_unknown (0.2)")
    prepared("out", max_unknown=1)
    assert "unknown    100.00% of the tokens" in capsys.readouterr().out
    # early: the rest of the text is not read
    monkeypatch.setattr(run, "SIZES", Sizes(batch_characters=4000, judged_tokens=1000))
    said = refused(lambda: prepared("early"), "of the first ")
    assert int(said.split("of the first ")[1].split(" ")[0].replace(",", "")) < 6000


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of a process from /proc")
def test_memory_does_not_grow_with_the_input(tmp_path):
    """A line without an end, 32 MB and then 96 MB of it, in a process of its own."""
    code = """
import re, sys
from plmjax.data import formats
total = sum(len(document.text) for document in formats.documents([sys.argv[1]], format="text"))
print(total, re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1])
"""
    peaks = []
    for copies in (1, 3):
        path = tmp_path / "endless.txt.gz"
        with gzip.open(path, "wb", compresslevel=1) as file:
            for _ in range(copies * 32):
                file.write(b"word " * ((1 << 20) // 5))
        out = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True).stdout
        total, peak = map(int, out.split())
        assert total > copies * 30e6
        peaks.append(peak / 1024)
    assert peaks[1] < peaks[0] + 10 and peaks[1] < 200


def test_units_in_a_bucket_are_joined_there(units, tokenizer, tmp_path, object_store, monkeypatch):
    """They are uploaded one by one, and moved to their names in the dataset."""
    monkeypatch.setattr(run, "UNIT_BYTES", 10_000)
    object_store.create("units")
    for output in (tmp_path / "out", "gs://units/out"):
        prepare([units], "auto", tokenizer, output, clean=["exact_duplicates"], processes=1, progress=False)
    objects = object_store.buckets["units"]
    assert json.loads(objects["out/manifest.json"].contents) == json.loads(
        (tmp_path / "out" / store.MANIFEST).read_text()
    )
    assert not any(files.FOLDER in name or output_folder.BEGUN in name for name in objects)


def test_text_in_a_bucket_is_known_by_the_checksum_of_the_bucket(units, tokenizer, tmp_path, object_store, capsys):
    """Nothing is read to find out that nothing is to be done. A copy on a disk is the same text, another is not."""
    object_store.create("text")
    for path in units.iterdir():
        object_store.put("text", path.name, path.read_bytes())
    prepare(["gs://text"], "text", tokenizer, tmp_path / "out", processes=1)
    sources = json.loads((tmp_path / "out" / store.MANIFEST).read_text())["sources"]
    assert [source["digest"][:7] for source in sources] == ["crc32c:"] * 2
    del object_store.requests[:]
    prepare(["gs://text"], "text", tokenizer, tmp_path / "out", processes=1)
    paths = [path for _, path in object_store.requests]
    assert paths and not [path for path in paths if "/download/" in path or "alt=media" in path]
    prepare([units], "text", tokenizer, tmp_path / "out", processes=1)
    assert capsys.readouterr().out.count("nothing to do") == 2
    (units / "0.txt").write_bytes((units / "0.txt").read_bytes()[::-1])
    refused(lambda: prepare([units], "text", tokenizer, tmp_path / "out", processes=1), "with another text")
