"""Every command of the pages of families, in its order, from raw text to an exported and imported model."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from plmjax.commands import cli
from tests.paths import ROOT

PAGES = ("recurrent", "encoders", "decoders", "encoder_decoders")
FEW_EXAMPLES = "--data.sequence_length 32 --finetuning.epochs 1 --training.batch_size 8 --training.unroll 1"
SHORTER = {
    "pretrain": "--training.steps 2 --training.batch_size 4 --training.evaluate_every 2 --training.unroll 1 "
    "--training.evaluation_batches 1",
    "finetune": FEW_EXAMPLES,
    "summarize_dialogues": f"{FEW_EXAMPLES} --data.target_length 32 --objective.max_new_tokens 6 "
    "--objective.min_new_tokens 0 --objective.beams 2",
}
"""Options that turn a run of minutes into one of seconds, by experiment or by verb; they replace those of a command."""


def commands(page: str) -> list[list[str]]:
    """The commands of a page as words, without `plmjax`."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8").replace("\\\n", " ")
    blocks = re.findall(r"^```bash\n(.*?)^```$", text, re.M | re.S)
    return [shlex.split(line)[1:] for block in blocks for line in block.splitlines()]


def shortened(command: list[str]) -> list[str]:
    """A command with the options of `SHORTER` in place of its own."""
    verb, experiment = command[0], Path(command[1].partition(":")[0]).stem
    words, options = list(command), SHORTER.get(experiment, SHORTER.get(verb, "")).split()
    for name in options[::2]:
        if name in words:
            del words[words.index(name) : words.index(name) + 2]
    return [*words, *options]


@pytest.fixture
def folder(tmp_path: Path, prose: Path) -> Path:
    """The files that the pages take for granted: some text, and a task."""
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    (tmp_path / "my_text").mkdir()
    shutil.copy(prose, tmp_path / "my_text")
    for name in ("new.txt", "sentences.txt", "prompts.txt"):
        (tmp_path / name).write_text("The first line of a text.\nAnd a second one.\n")
    rows = "a fine example\tgood\na poor example\tbad\n"
    for name in ("train.tsv", "dev.tsv", "new.tsv"):
        (tmp_path / name).write_text("sentence\tlabel\n" + rows * 8)
    pair = json.dumps({"dialogue": "A: Shall we go?\nB: Yes, now.", "summary": "They go now."})
    for name in ("train.jsonl", "validation.jsonl"):
        (tmp_path / name).write_text(f"{pair}\n" * 8)
    return tmp_path


# A minute or two each; by day tests/test_readme.py runs these verbs for an encoder and a decoder, tests/exchange and
# tests/generation for the others: pytest -m slow tests/test_walks.py
@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_walk_of_a_page(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    found = commands(page)
    verbs = [command[0] for command in found]
    assert {"tokenizer", "prepare", "pretrain", "evaluate", "export", "import"} <= set(verbs)
    for command in found:
        cli.run(shortened(command))
    assert (folder / "runs" / "imported" / "checkpoints").is_dir()
