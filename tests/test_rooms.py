"""The rooms of the house: who may import whom, and what the core needs to be installed."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "plmjax"
MODELS = {"layers", "models"}
CORE = {*MODELS, "objectives", "data", "parallel", "training", "experiment"}
MAY_IMPORT = {
    "layers": {"layers"},
    "models": MODELS,
    "objectives": {*MODELS, "objectives"},
    "data": {"data", "experiment"},
    "parallel": {"parallel", "experiment"},
    "training": CORE,
    "finetuning": {*CORE, "finetuning"},
    "interop": {*CORE, "finetuning", "interop"},
}
"""Room -> what of plmjax it may import, besides `BESIDE`; imports go one way."""
BESIDE = {"errors", "locks", "storage", "vocabulary", "__version__"}

OPTIONAL = (
    "tensorflow tensorflow_datasets tokenizers sentencepiece sentencex safetensors matplotlib tensorboard sklearn "
    "scipy seqeval chex google_crc32c tyro transformers torch fsspec gcsfs aiohttp wandb"
)
WITHOUT = f"""
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {OPTIONAL.split()}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
import dataclasses
import plmjax.models.bert, plmjax.objectives.bert, plmjax.training.loop, plmjax.plan
import plmjax.objectives.roberta, plmjax.objectives.albert, plmjax.objectives.electra
import plmjax.models.roberta, plmjax.models.albert, plmjax.models.electra
from plmjax import bench, experiment
run = experiment.load("experiments/bert_tiny.py")
run = dataclasses.replace(run, training=dataclasses.replace(run.training, batch_size=8))
assert bench.bench(run, 1, 1)[0]["step_seconds"] > 0
"""


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_imports_go_one_way(room: str) -> None:
    for file in (PACKAGE / room).glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "plmjax":
                found = {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("plmjax."):
                found = {node.module.split(".")[1]}
            else:
                continue
            assert found <= MAY_IMPORT[room] | BESIDE, (file.name, found)


def test_the_package_knows_nothing_of_the_programs_beside_it() -> None:
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.partition(".")[0] for name in names} & {"tpu", "experiments", "benchmarks"}, file


def test_jax_flax_optax_orbax_and_numpy_are_enough_to_import_and_to_measure() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], cwd=PACKAGE.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_command_line_is_there_before_jax() -> None:
    """JAX reads the environment when it is imported: what `plmjax.cli.main` sets must be there by then."""
    check = "import sys, plmjax.__main__, plmjax.cli; print(sorted({'jax', 'numpy', 'tensorflow'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", check], cwd=PACKAGE.parent, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
