"""The notebooks of docs/notebooks: their form by day, and every cell of theirs by night."""

import ast
import json
import re
from pathlib import Path

import matplotlib
import pytest

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
STEPS = 60
"""Steps of a run in the test, in place of those that a notebook sets."""


def cells(notebook: Path, kind: str) -> list[str]:
    found = json.loads(notebook.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in found["cells"] if cell["cell_type"] == kind]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_its_outputs_and_its_links_lead_to_pages(notebook: Path) -> None:
    """The outputs are of one run of all cells, and hold no path of the machine."""
    found = json.loads(notebook.read_text(encoding="utf-8"))
    assert (found["nbformat"], found["metadata"]["kernelspec"]["language"]) == (4, "python")
    code = [cell for cell in found["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    printed = json.dumps([cell["outputs"] for cell in code])
    assert printed.count("image/png") == 2 and "error" not in {
        part["output_type"] for cell in code for part in cell["outputs"]
    }
    assert not re.search(r"/(tmp|work|home|root|usr|opt|Users)\b/", re.sub(r'"image/png": "[^"]*"', "", printed))
    for program in cells(notebook, "code"):
        ast.parse(program)
    links = re.findall(r"\]\(([^)#]+)", "".join(cells(notebook, "markdown")))
    assert links and all((notebook.parent / link).exists() for link in links)
    assert notebook.name in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow  # pretrains, fine-tunes and plans, 2 minutes: pytest -m slow tests/test_notebooks.py
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_runs(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matplotlib.use("agg")
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for program in cells(notebook, "code"):
        program, count = re.subn(r"^STEPS = \d+$", f"STEPS = {STEPS}", program, flags=re.MULTILINE)
        assert count <= 1
        exec(compile(program, str(notebook), "exec"), names)
    assert names["STEPS"] == STEPS and names["result"].metrics["eval/mlm_loss"] > 0
    assert names["metrics"]["eval/accuracy"] > 0.5 and names["found"]["estimate"]["hours"] > 0
