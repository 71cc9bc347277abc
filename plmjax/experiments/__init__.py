"""The experiments that plmjax comes with, as modules: plmjax.experiments.bert_tiny.

Installed, their files lie in this folder. In a checkout they lie in experiments/ at its root.
"""

from pathlib import Path

_here = Path(__file__).resolve().parent
FOLDER = _here if any(_here.glob("[!_]*.py")) else _here.parents[1] / "experiments"
"""Folder of the files."""
__path__ = [str(FOLDER)]
