"""The rooms of the house: who may import whom, and what the core needs to be installed."""

import ast
import graphlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.xla_flags import cpu_flags

PACKAGE = Path(__file__).resolve().parents[1] / "plmjax"
READER = PACKAGE / "interop" / "tensorflow_checkpoint.py"
MODELS = {"contracts", "layers", "models"}
CORE = {*MODELS, "objectives", "data", "parallel", "training", "experiment"}
MAY_IMPORT = {
    "files": {"files"},
    "contracts": {"contracts"},
    "layers": {"contracts", "layers"},
    "models": MODELS,
    "objectives": {*MODELS, "objectives"},
    "data": {"contracts", "data"},
    "experiment": {"contracts", "objectives", "data", "experiments", "experiment"},
    "parallel": {"experiment", "parallel"},
    "training": CORE,
    "generation": {*CORE, "generation"},
    "finetuning": {*CORE, "generation", "finetuning"},
    "interop": {*CORE, "generation", "finetuning", "interop"},
    "inference": {*CORE, "generation", "finetuning", "interop", "inference"},
    "runs": {*CORE, "generation", "finetuning", "interop", "inference", "runs"},
    "report": {*CORE, "runs", "report"},
    "planning": {*CORE, "runs", "planning"},
    "selfcheck": {*CORE, "runs", "planning", "selfcheck"},
    "compression": {*CORE, "finetuning", "interop", "runs", "compression"},
    "commands": {
        *CORE,
        "generation",
        "finetuning",
        "interop",
        "inference",
        "report",
        "runs",
        "planning",
        "selfcheck",
        "compression",
        "commands",
    },
    "__init__.py": {"experiment", "generation", "inference", "planning", "runs"},
    "__main__.py": {"commands", "parallel"},
}
"""Room, or module of the package's top -> what of plmjax it may import, besides `BESIDE`; imports go one way.

Other modules of the top import `BESIDE` alone.
"""
BESIDE = set("errors files libraries option_values platform".split())

OPTIONAL = (
    "tensorflow tensorflow_datasets tokenizers sentencepiece sentencex safetensors matplotlib tensorboard sklearn "
    "scipy seqeval sacrebleu rouge_score google_crc32c tyro transformers torch fsspec gcsfs aiohttp wandb"
)
WITHOUT = f"""
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {OPTIONAL.split()}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
import dataclasses
import plmjax.models.bert, plmjax.objectives.bert, plmjax.training.loop, plmjax.planning.plan
import plmjax.objectives.roberta, plmjax.objectives.albert, plmjax.objectives.electra
import plmjax.models.roberta, plmjax.models.albert, plmjax.models.electra
from plmjax import experiment
from plmjax.runs import bench
from plmjax.runs.resolve import resolve
run = experiment.load("experiments/bert_tiny.py")
training, model = dataclasses.replace(run.training, batch_size=8), dataclasses.replace(run.model, num_hidden_layers=1)
run = dataclasses.replace(run, training=training, model=model)
assert bench.bench(resolve(run).experiment, 1, 1)[0]["step_seconds"] > 0
"""


@pytest.mark.parametrize(
    "room", [*MAY_IMPORT, *(file.name for file in PACKAGE.glob("*.py") if file.name not in MAY_IMPORT)]
)
def test_imports_go_one_way(room: str) -> None:
    files, allowed = (PACKAGE / room).rglob("*.py"), MAY_IMPORT.get(room, set())
    for file in [PACKAGE / room] if room.endswith(".py") else files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "plmjax":
                found = {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("plmjax."):
                found = {node.module.split(".")[1]}
            else:
                continue
            assert found <= allowed | BESIDE, (file.name, found)


@pytest.mark.parametrize(("folder", "part"), [("", "training"), ("finetuning", "tasks")])
def test_no_circle_of_imports_goes_through_several_parts_of_a_folder(folder: str, part: str) -> None:
    imports = imports_between_parts(PACKAGE / folder)
    assert len(imports[part]) > 2
    list(graphlib.TopologicalSorter(imports).static_order())  # raises CycleError, which names the circle


def imports_between_parts(folder: Path) -> dict[str, set[str]]:
    """Part -> the others that it imports; a part is a module or a folder of `folder`, which is in the package."""
    inside = ".".join(folder.relative_to(PACKAGE.parent).parts)
    parts: dict[str, set[str]] = {}
    for file in folder.rglob("*.py"):
        part = Path(file.relative_to(folder).parts[0]).stem
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == inside:
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{inside}."):
                names = [node.module.removeprefix(f"{inside}.").split(".")[0]]
            else:
                continue
            parts.setdefault(part, set()).update(set(names) - {part})
    return parts


def test_the_table_of_the_rooms_has_their_imports() -> None:
    """docs/architecture.md describes each room, and names the imports that no other imports lead to, which stand below.

    Rooms that are open to all are not named.
    """
    page = (PACKAGE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    found = imports_between_parts(PACKAGE)
    imports = {room: others & rooms - BESIDE for room, others in found.items() if room in rooms - BESIDE}

    def reached(room: str) -> set[str]:
        return {other for next_room in imports.get(room, ()) for other in (next_room, *reached(next_room))}

    direct = {
        room: {other for other in others if not any(other in reached(between) for between in others)}
        for room, others in imports.items()
    }
    named = dict(re.findall(r"^\| `(\w+)/` \| .* \| (.*)\|$", page, re.M))
    assert named.keys() == rooms - {"experiments"}
    for room, cell in named.items():
        assert set(re.findall(r"`(\w+)/`", cell)) == direct.get(room, set()), room
        below = list(named)[list(named).index(room) :]
        assert direct.get(room, set()) <= {*below, "experiments"}, room


def test_the_files_that_the_page_names_are_there() -> None:
    page = (PACKAGE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    present = page.partition("## Places for the next systems")[0]
    named = re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", present)
    parts = {path.name for path in PACKAGE.rglob("*") if path.is_dir()}
    for name in named:
        assert (PACKAGE / name).exists() or name.strip("/") in parts or name == "plmjax/", name


def test_every_folder_is_a_room() -> None:
    folders = {path.parent.name for path in PACKAGE.glob("*/*.py")}
    assert folders - {"experiments"} == {name for name in MAY_IMPORT if not name.endswith(".py")}


def test_the_package_knows_nothing_of_the_programs_beside_it() -> None:
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.partition(".")[0] for name in names} & {"tpu", "experiments", "benchmarks"}, file


FIELDS_OF_SYSTEMS = {
    "attention_probs_dropout_prob",
    "hidden_act",
    "hidden_dropout_prob",
    "hidden_size",
    "initializer_range",
    "intermediate_size",
    "layer_norm_eps",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "pad_token_id",
    "type_vocab_size",
}
"""Fields of config.json: the model files and their adapters know them; all else asks for `ModelConfig`'s names."""


def test_configs_are_asked_by_the_short_list_of_names() -> None:
    for file in PACKAGE.rglob("*.py"):
        if file.relative_to(PACKAGE).parts[0] in ("models", "interop"):
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            found = set()
            if isinstance(node, ast.Attribute):
                found = {node.attr}
            elif isinstance(node, ast.keyword | ast.arg):
                found = {node.arg}
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found = set(re.findall(r"\w+", node.value)) if "\n" not in node.value else set()
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                of_config = node.args and ast.unparse(node.args[0]).split(".")[-1] in ("config", "model")
                found = {node.func.id} if of_config else set()
            assert not found & (FIELDS_OF_SYSTEMS | {"hasattr", "getattr"}), (file, node.lineno, found)


@pytest.mark.nightly
def test_jax_flax_optax_orbax_and_numpy_are_enough_to_import_and_to_measure() -> None:
    environment = os.environ | {"XLA_FLAGS": cpu_flags(1)}
    command = [sys.executable, "-c", WITHOUT]
    done = subprocess.run(command, cwd=PACKAGE.parent, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_command_line_is_there_before_jax() -> None:
    """JAX reads the environment when it is imported: what `plmjax.commands.cli.main` sets must be there by then."""
    check = "import sys, plmjax.commands.cli; print(sorted({'jax', 'numpy', 'tensorflow'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", check], cwd=PACKAGE.parent, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_tensorflow_is_used_in_data_and_by_one_reader_inside_its_functions() -> None:
    """The reader of TensorFlow's checkpoints: importing it imports no TensorFlow."""
    for file in PACKAGE.rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        inside = {id(node) for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) for node in ast.walk(f)}
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            if any(name.partition(".")[0] in ("tensorflow", "tensorflow_datasets") for name in names):
                assert "data" in file.relative_to(PACKAGE).parts[:1] and id(node) in inside, file
            if any("tensorflow_runtime" in name for name in names):
                assert file.relative_to(PACKAGE).parts[0] == "data" or file == READER, file
        if file == READER:
            calls = [n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and n.attr == "tensorflow"]
            assert calls and all(id(call) in inside for call in calls), file


@pytest.mark.nightly
def test_no_file_of_tests_imports_torch_by_itself() -> None:
    """It could not be collected without: tests/optional.py skips the tests that need it."""
    for file in Path(__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert "torch" not in {name.partition(".")[0] for name in names}, file
