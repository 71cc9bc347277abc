"""A name that stands in a file from elsewhere names no file of another folder: none is written or read there."""

import base64
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from plmjax.errors import UserError
from plmjax.files import storage
from plmjax.interop import transformers_files
from plmjax.training.checkpoints import items


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
        transformers_files.open_tensors(tmp_path / "model").__enter__()


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
@pytest.mark.parametrize(
    "absolute", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["relative", "absolute"]
)
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
