"""The files of docs/extending.md and the commands under them, in their order, on a little text."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from plmjax.commands import cli
from tests.paths import ROOT
from tests.small_runs import SMALL_BERT

PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^`(\w+\.py)`:\n\n```python\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE))
COMMANDS = [line for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
SHORTER = {"pretrain": SMALL_BERT, "finetune": ["--training.batch_size", "8", "--data.sequence_length", "16"]}
"""Options that turn minutes into seconds; nothing else is added to a command."""
LATER = [line for line in COMMANDS if line.startswith(("plmjax evaluate runs/ratings", "plmjax export"))]
"""Commands that run in another process and another folder than those that made their runs."""
# A second and a third pretraining of the same model.
NIGHTLY = ("runs/row_rates", "runs/fortunes")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, prose: Path) -> Path:
    """A folder of a user with the files of the page, and the text that its commands name."""
    folder = tmp_path_factory.mktemp("user")
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    text = prose.read_text(encoding="utf-8")
    for name in ("my_text/a.txt", "sayings/b", "sayings/c"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(
            text if name.endswith(".txt") else text.replace("\n\n", "\n\t-- Anonymous\n%\n"), encoding="utf-8"
        )
    rows = "a poor text\t1\na fine text\t5\na text\t3\n"
    for name in ("reviews.tsv", "held_out.tsv"):
        (folder / name).write_text("text\tstars\n" + rows * 8, encoding="utf-8")
    (folder / "new.txt").write_text("a fine text\n", encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(line, marks=pytest.mark.nightly if any(run in line for run in NIGHTLY) else ())
        for line in COMMANDS
        if line not in LATER
    ],
)
def test_command(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    program, *arguments = shlex.split(command)
    assert program == "plmjax"
    more = list(SHORTER.get(arguments[0], []))
    if "row_rates.py" in arguments:  # whose layout makes no duplicates
        at = more.index("--data.layout.duplicates")
        del more[at : at + 2]
    cli.run([*arguments, *more])


def test_another_process_in_another_folder_reads_the_runs(folder: Path, tmp_path: Path) -> None:
    """A class and an activation are in files that it must find."""
    lines = [
        [str(folder / word) if (folder / word).exists() else word for word in shlex.split(line)[1:]] for line in LATER
    ]
    program = (
        "import json, sys\nfrom plmjax.commands import cli\nfor line in json.loads(sys.argv[1]):\n    cli.run(line)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, json.dumps(lines)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    assert "eval/mean_absolute_error" in ran.stdout
    assert json.loads((tmp_path / "exported" / "config.json").read_text())["hidden_act"] == "relu2"


def test_the_files_do_what_the_page_says(folder: Path) -> None:
    assert json.loads((folder / "ratings.jsonl").read_text())["prediction"] in range(1, 6)
    words = (folder / "tokenizers" / "sayings" / "vocab.txt").read_text().split()
    assert "the" in words and "anonymous" not in words
