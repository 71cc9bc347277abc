"""Every command of docs/contextual_vectors.md on CoVe, on a few rows; only the training is left out."""

import contextlib
import gzip
import io
import re
import shlex
from pathlib import Path

import jax
import numpy as np
import pytest

from plmjax.commands import cli
from plmjax.data import tokenizers
from plmjax.interop import word2vec
from plmjax.training import loop
from plmjax.training.checkpoints import checkpoints
from tests.finetuning.test_docs import Reached
from tests.paths import ROOT

PAGE = (ROOT / "docs" / "contextual_vectors.md").read_text(encoding="utf-8")
COMMANDS = [
    shlex.split(line)
    for block in re.findall(r"```bash\n(.*?)```", PAGE[PAGE.index("## CoVe") :], re.DOTALL)
    for line in block.strip().splitlines()
]
SMALLER = {
    "cove_multi30k": "--model.vocab_size 20 --model.vector_size 6 --model.hidden_size 4 --objective.max_new_tokens 3",
    "cove_classification": "--weight_mapping.size 4",
}
VECTORS = np.random.default_rng(0).normal(size=(3, 6)).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the page takes for granted: vectors, and the files of the tasks as they are handed out."""
    folder = tmp_path_factory.mktemp("cove")
    (folder / "experiments").symlink_to(ROOT / "experiments")
    word2vec.write(folder / "vectors.txt", ["man", "runs", "elsewhere"], VECTORS)
    (folder / "lines.txt").write_text("a film\nA man runs.\n")
    texts = {"en": "A man runs.", "de": "Ein Mann rennt."}
    files = {f"multi30k_en_de/{name}.{side}.gz": text for name in ("train", "val") for side, text in texts.items()}
    for name in ("train", "dev"):
        files[f"subjectivity/{name}.tsv.gz"] = "label\tsentence\nobjective\ta man\nsubjective\ta film"
        files[f"snli/{name}.tsv"] = "premise\thypothesis\tlabel\na man\tA man runs.\tneutral\na man\ta film\tother"
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return folder


@pytest.fixture(scope="module")
def translating(folder: Path) -> Path:
    """The folder after the first two commands: with a tokenizer, and a translation model that begins to learn."""
    tokenizer, translation, *_ = COMMANDS
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(loop, "train", saving)
        run(tokenizer)
        with contextlib.redirect_stdout(io.StringIO()) as said:
            run(translation)
    (folder / "said.txt").write_text(said.getvalue())
    return folder


def run(command: list[str]) -> Path | None:
    """Runs a command as the page has it, a training with a smaller model; returns the run directory of a training."""
    program, verb, *arguments = command
    assert program == "plmjax"
    if verb != "finetune":
        cli.run([verb, *(argument.replace("10000", "20") for argument in arguments)])
        return None
    smaller = next(options for name, options in SMALLER.items() if name in arguments[0])
    with pytest.raises(Reached):
        cli.run([verb, *arguments, *smaller.split()])
    own = arguments.index("--workdir") if "--workdir" in arguments else None
    return Path(arguments[own + 1] if own else "runs/cove_multi30k")


@pytest.mark.nightly
def test_translation_begins_with_the_vectors(translating: Path) -> None:
    begun(translating, translating / "runs" / "cove_multi30k")
    found = r"^start      2 of \d+ words have a vector in vectors\.txt; the others are random$"
    assert re.search(found, (translating / "said.txt").read_text(), re.MULTILINE)


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, marks=pytest.mark.nightly if command[2] == "experiments/cove_classification.py" else ())
        for command in COMMANDS[2:]
    ],
    ids=lambda command: "-".join(command[1:3]),
)
def test_command(command: list[str], translating: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(translating)
    monkeypatch.setattr(loop, "train", saving)
    workdir = run(command)
    if workdir is None:
        assert np.load("cove.npz")["embeddings"].shape[1] == 8
    else:
        begun(translating, translating / workdir)


def begun(folder: Path, run: Path) -> None:
    """Checks the parameters that a run begins with."""
    params, _ = checkpoints.load_parameters(run)
    tokenizer = tokenizers.load(folder / "words")
    table = next(jax.tree.leaves(params[name]["words"]) for name in ("cove", "static_vectors") if name in params)[0]
    expected = np.zeros_like(table)
    for row, word in enumerate(("man", "runs")):
        expected[tokenizer.encode(word)] = VECTORS[row]
    np.testing.assert_array_equal(table, expected)
    if "classifier" in params and "cove" in params:
        origin, _ = checkpoints.load_parameters(folder / "runs" / "cove_multi30k")
        jax.tree.map(np.testing.assert_array_equal, params["cove"], origin["cove"])


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (
            "cove_multi30k.py --from random",
            "--optimizer.frozen cove/words needs --from with a checkpoint or a file of word vectors, found random",
        ),
        ("cove_multi30k.py --from vectors.txt --data.pack 2", "Expected --data.pack 1 for CoveConfig"),
        (
            "cove_multi30k.py --from vectors.txt --model.vector_size 5",
            "Expected vectors of size 5, the embedding size of",
        ),
        ("cove_multi30k.py --from vectors.txt --tokenizer.kind char", "Expected a tokenizer of words"),
    ],
)
def test_mistakes_are_one_sentence(command: str, said: str, translating: Path, fails, monkeypatch) -> None:
    monkeypatch.chdir(translating)
    name, *more = command.split()
    smaller = SMALLER["cove_multi30k"].split()
    own = "--workdir runs/mistake --data.folder multi30k_en_de --tokenizer.vocab_size 20".split()
    assert said in fails("finetune", f"experiments/{name}", *smaller, *own, *more)
