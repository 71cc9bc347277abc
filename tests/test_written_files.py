"""Every place that writes a file, and what names the file there.

A name that stands in a file from elsewhere passes `storage.plain_name` before it is joined with a folder.
"""

import ast
import base64
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plmjax.errors import UserError
from plmjax.files import storage
from plmjax.interop import transformers_files
from plmjax.training.checkpoints import items
from tests.paths import ROOT

WRITING = set(
    "copy copy2 copyfile copytree extract extractall link_to makedirs mkdir move open_memmap pipe_file put put_file "
    "rename replacing savez symlink_to touch unlink write_bytes write_text writestr rmtree remove rmdir".split()
)
"""Names of functions and methods that make, move or remove a file."""
OF_STORAGE = {"write", "replace"}
"""The same, where they are called on `storage`, `seals` or `os`."""
REVIEWED = {
    "plmjax/data/cache.py": "the index's split and a digest of its settings",
    "plmjax/data/cooccurrence/cells.py": "shards that this process named by their numbers",
    "plmjax/data/preparation/conversion.py": "stages of a cleaning by their numbers",
    "plmjax/data/remote/reader.py": "pieces that this process named by their numbers",
    "plmjax/data/store/writer.py": "shards that this process named by split and number; streams' names are checked",
    "plmjax/data/tokenizers/tokenizer.py": "the fixed names of a kind's files",
    "plmjax/inference/embed.py": "parts that this process named by their numbers",
    "plmjax/interop/tokenizer_files.py": "the fixed names of a tokenizer's files",
    "plmjax/files/storage.py": "the last file to copy, a literal wherever it is given",
    "plmjax/runs/folder.py": "the fixed names of a run's records",
    "plmjax/training/checkpoints/checkpoints.py": "files of a tokenizer, whose names `describe` has checked",
    "plmjax/training/metrics.py": "fixed names, and those of tasks, which are letters, digits, - and _",
    "tpu/bucket.py": "the folder of a job, whose name `tpu.job.NAME` matches",
}
"""File -> the names, other than literals and constants, that it joins with a folder to write there."""


def calls_that_write(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        owner = getattr(getattr(called, "value", None), "id", "")
        modes = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
        opened = name == "open" and any(isinstance(mode, str) and set(mode) & set("wxa+") for mode in modes)
        if name in WRITING or opened or (name in OF_STORAGE and owner in ("storage", "seals", "os")):
            yield node


def joined_names(call: ast.Call) -> Iterator[str]:
    """The names joined with a folder in a call that are neither literals nor constants of a module."""
    for node in ast.walk(call):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            name = node.right
            constant = getattr(name, "id", getattr(name, "attr", "")).isupper()
            if not isinstance(name, ast.Constant | ast.JoinedStr) and not constant:
                yield ast.unparse(name)


def test_a_name_that_is_joined_to_write_a_file_was_looked_at() -> None:
    found: dict[str, list[str]] = {}
    for file in sorted([*ROOT.glob("plmjax/**/*.py"), *ROOT.glob("tpu/**/*.py")]):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        names = [name for call in calls_that_write(tree) for name in joined_names(call)]
        if names:
            found[file.relative_to(ROOT).as_posix()] = names
    assert found.keys() == REVIEWED.keys(), found


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "/x", "a/b", "a\\b", "C:x", "a\0", 3, None])
def test_only_plain_names_are_taken_from_a_file(name: object) -> None:
    with pytest.raises(UserError, match=r"Expected plain file names in list\.json, found .*; do not use this file"):
        storage.plain_name(name, "list.json")
    assert storage.plain_name("..vocab-1.txt", "list.json") == "..vocab-1.txt"


def test_an_index_of_shards_names_no_file_of_another_folder(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    index = tmp_path / "model" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"table": "../secret.safetensors"}}), encoding="utf-8")
    (tmp_path / "secret.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match=r"plain file names in .*index\.json, found '\.\./secret\.safetensors'"):
        transformers_files.opened(tmp_path / "model").__enter__()


@pytest.fixture(scope="module")
def hostile(small_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """name -> a copy of `small_run` with a further tokenizer file of that name in its checkpoints and manifests."""

    def make(name: str) -> Path:
        folder = tmp_path_factory.mktemp("hostile") / "run"
        shutil.copytree(small_run, folder)
        for checkpoint in (folder / "checkpoints").iterdir():
            (file,) = (path for path in (checkpoint / "tokenizer").iterdir() if path.name == "metadata")
            files = json.loads(file.read_text(encoding="utf-8"))
            files[name] = base64.b64encode(b"overwritten").decode()
            file.write_text(json.dumps(files), encoding="utf-8")
            items.write_manifest(checkpoint)
        return folder

    return make


VERBS = {
    "evaluate": "evaluate RUN",
    "embed": "embed RUN --input TEXT --output OUT.npz",
    "fill-mask": "fill-mask RUN [MASK]",
    "from": "pretrain experiments/continued.py --from RUN --workdir OUT --data.input TEXT",
    "finetune": "finetune experiments/finetune_sentences.py --from RUN --workdir OUT --data.train TEXT "
    "--data.validation TEXT",
    "export": "export RUN OUT",
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("absolute", [False, True], ids=["relative", "absolute"])
def test_a_checkpoint_writes_no_file_of_its_choice(
    verb: str, absolute: bool, hostile: Callable[[str], Path], fails: Callable[..., str], tmp_path: Path
) -> None:
    target = tmp_path / "target.txt"
    name = str(target) if absolute else "../../../../../../../../../.." + str(target)
    run = hostile(name)
    (tmp_path / "text.txt").write_text("sentence\tlabel\nRed\ta\nBlue\tb\n", encoding="utf-8")
    places = {"RUN": run, "TEXT": tmp_path / "text.txt", "OUT": tmp_path / "out", "OUT.npz": tmp_path / "out.npz"}
    said = fails(*(places.get(word, word) for word in VERBS[verb].split()))
    assert "Expected plain file names in" in said and "/tokenizer, found" in said
    assert not target.exists() and not (tmp_path / "out").exists() and not (tmp_path / "out.npz").exists()
