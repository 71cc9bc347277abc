"""Every command and snippet of README.md and docs/getting_started.md, in their order in a folder of a user's own."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from plmjax.commands import cli
from tests.paths import ROOT
from tests.small_runs import SMALL_BERT
from tpu import __main__ as submission

TEXT = "".join((ROOT / page).read_text(encoding="utf-8") for page in ("README.md", "docs/getting_started.md"))
BLOCKS = re.findall(r"(<!--.*?-->\n)?```(\w+)\n(.*?)```", TEXT, re.DOTALL)
COMMANDS = [
    line
    for comment, language, block in BLOCKS
    for line in block.strip().splitlines()
    if language == "bash" and not comment
]
SHORTER = {
    "pretrain": SMALL_BERT,
    "tokenizer": ["--vocab_size", "800"],
    "finetune": ["--training.batch_size", "16", "--data.sequence_length", "16"],
    "plan": (
        "--model.num_hidden_layers 2 --model.hidden_size 128 --model.num_attention_heads 2 --model.vocab_size 2048 "
        "--model.intermediate_size 256 --training.batch_size 128"
    ).split(),
    "bench": [*SMALL_BERT, "--measured_steps", "2"],
}
"""Options that turn a run of minutes into one of seconds; nothing else is added to a command."""
FEW_STEPS = ["--training.steps", "2", "--training.evaluate_every", "0", "--checkpoint.every", "0"]
NIGHTLY = (
    "--workdir runs/mine", "report runs/bert_tiny", "--seeds", "-m tpu", "evaluate runs/bert_tiny", "compress prune",
    "generate runs/", "--stride", "--task blimp",
)  # fmt: skip
"""Parts of commands that quick tests run too: `small_run` is runs/mine, and each of the others has a file of tests."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, prose: Path, small_run: Path, decoder_run: Path) -> Path:
    """The files that the pages take for granted: the experiments, some text, two finished runs, a labelled task."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "experiments").symlink_to(ROOT / "experiments")
    for name in ("bert_tiny", "mine"):  # what the command of each of them makes of such a text
        shutil.copytree(small_run, folder / "runs" / name)
    shutil.copytree(decoder_run, folder / "runs" / "gpt2_tiny")
    (folder / "my_text").mkdir()
    shutil.copy(prose, folder / "my_text")
    (folder / "sentences.txt").write_text("The first line.\nAnd a second one.\n")
    (folder / "blimp").mkdir()
    pair = {"sentence_good": "He runs.", "sentence_bad": "He run.", "field": "morphology", "UID": "agreement"}
    (folder / "blimp" / "agreement.jsonl").write_text(json.dumps(pair) + "\n")
    rows = "a fine example\tgood\na poor example\tbad\n"
    (folder / "train.tsv").write_text("sentence\tlabel\n" + rows * 16)
    (folder / "dev.tsv").write_text("sentence\tlabel\n" + rows * 4)
    return folder


def marks(command: str) -> tuple[pytest.MarkDecorator, ...]:
    # Two programs that the TPU's compiler takes 11 s each for; tests/planning/test_estimate.py plans such a BERT, and
    # tests/third_party/test_windowed.py by the command: pytest -m slow tests/test_readme.py
    if command.startswith("plmjax plan"):
        return (pytest.mark.slow,)
    return (pytest.mark.nightly,) if any(part in command for part in NIGHTLY) else ()


@pytest.mark.parametrize("command", [pytest.param(command, marks=marks(command)) for command in COMMANDS])
def test_command(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    program, verb, *arguments = shlex.split(command)
    if program == "python" and verb == "-c":
        exec(arguments[0])
        return
    if program == "python":
        assert (verb, arguments[0]) == ("-m", "tpu") and "--dry_run" in arguments
        submission.run(arguments[1:])
        return
    assert program == "plmjax"
    more = list(SHORTER.get(verb, []))
    if "experiments/continued.py" in arguments:  # whose model is the checkpoint's
        options = zip(SMALL_BERT[::2], SMALL_BERT[1::2], strict=True)
        more = [word for option in options if not option[0].startswith("--model.") for word in option]
    if "--workdir runs/mine" in command:
        shutil.rmtree(folder / "runs" / "mine")  # the copy
    elif verb == "pretrain":
        more += FEW_STEPS
    cli.run([verb, *arguments, *more])


def test_snippets(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    if not (folder / "exported").exists():
        cli.run(["export", "runs/bert_tiny", "exported/"])
    snippets = [block for _, language, block in BLOCKS if language == "python"]
    assert snippets
    for snippet in snippets:
        names: dict = {}
        exec(snippet, names)
        assert names["outputs"].last_hidden_state.shape[0::2] == (2, 32)


def test_commands_were_found() -> None:
    assert len(COMMANDS) >= 14
