"""A text per experiment that a change shows as a diff: configuration, parameters, counts and FLOPs of a step.

UPDATE_GOLDEN=1 python -m pytest -m '' tests/test_goldens.py writes them again. Review the diff.
"""

import os
import re
from pathlib import Path

import flax.linen as nn
import flax.traverse_util
import jax
import pytest

from plmjax import experiment as experiments
from plmjax.contracts.execution import Execution
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data.layouts import Layout
from plmjax.experiment import Experiment
from plmjax.experiment.catalogue import functions
from plmjax.experiment.phases import ResolvedPhase
from plmjax.parallel import sharding
from plmjax.training import initial_state
from tests.paths import ROOT

GOLDENS = Path(__file__).parent / "goldens"


def abstract_params(run: Experiment, phase: ResolvedPhase):
    """The parameters that the run's objective makes for a phase, boxed with their axes; computes nothing."""
    vocabulary = Vocabulary.placeholder(run.model.vocab_size)
    batch = run.data.layout.batch(phase.batch_size, phase.sequence_length)
    module = run.objective.module(run.model, Execution())
    init = initial_state.initial_variables(run, phase, module, vocabulary, batch)
    return jax.eval_shape(init, jax.random.key(0))["params"]


def describe(run: Experiment) -> list[str]:
    """The golden text of one experiment."""
    # Classes by their names alone: which module one lives in is no property of an experiment.
    values = {
        name: value.partition(":")[2] if name.endswith("type") and ":" in str(value) else value
        for name, value in experiments.flatten(run).items()
    }
    lines = ["configuration", *(f"  {name} = {value!r}" for name, value in values.items()), ""]
    if run.model is None or not isinstance(getattr(run.data, "layout", None), Layout):
        return [*lines, "parameters", "  those of the checkpoint, and a head as its task asks for"]

    resolved = run.resolved_phases
    batches = [run.data.layout.batch(phase.batch_size, phase.sequence_length) for phase in resolved]
    boxed = abstract_params(run, resolved[0])
    decayed = run.optimizer.decayed(boxed)
    trees = (nn.meta.unbox(boxed), sharding.logical_axes(boxed), decayed)
    shapes, axes, decayed = (flax.traverse_util.flatten_dict(tree, sep="/") for tree in trees)
    width = max(map(len, shapes))
    lines.append("parameters (shape, whether decayed, logical axes)")
    for path in sorted(shapes):
        shape, decay = str(list(shapes[path].shape)), "decayed" if decayed[path] else "-"
        lines.append(f"  {path:<{width}}  {shape:<20} {decay:<7}  ({', '.join(map(str, axes[path]))})")

    parts = sorted({path.split("/")[0] for path in shapes})
    counts = {part: sum(leaf.size for path, leaf in shapes.items() if path.split("/")[0] == part) for part in parts}
    lines += ["", "counts", *(f"  {part:<{width}}  {count:>15,}" for part, count in counts.items())]
    lines.append(f"  {'decayed':<{width}}  {sum(leaf.size for path, leaf in shapes.items() if decayed[path]):>15,}")
    lines += [f"  {'all':<{width}}  {sum(counts.values()):>15,}", "", "model FLOPs of a training step, closed form"]
    for phase, batch in zip(resolved, batches, strict=True):
        flops = run.objective.train_flops(run.model, batch)
        steps = f"steps {phase.first_step:,} to {phase.last_step:,}"
        lines.append(f"  {steps}, {phase.batch_size} rows of {phase.sequence_length}: {round(flops):,}")
    return lines


LARGE = (
    "albert_base_8x8", "comparison", "elmo_8x8", "lite_transformer_8x8", "longformer_characters_4x4", "mobilebert_8x8",
    "reformer_2x4", "t5_base_8x8", "transformer_base", "transformer_xl_8x8", "xlnet_large_8x8",
)  # fmt: skip
# One to thirteen seconds of tracing each; the tiny experiments of these systems are recorded by day, and
# test_experiments.py reads these by day: pytest -m nightly tests/test_goldens.py
FILES = [
    pytest.param(file, id=file.stem, marks=pytest.mark.nightly if file.stem in LARGE else ())
    for file in sorted((ROOT / "experiments").glob("*.py"))
]


@pytest.mark.parametrize("file", FILES)
def test_experiment_is_as_recorded(file, monkeypatch):
    monkeypatch.chdir(ROOT)
    composed = functions(file)
    assert composed, f"{file} composes no experiment"
    text = ""
    for name in composed:
        run = experiments.load(f"{file.relative_to(ROOT)}:{name}")
        text += "\n".join([f"{file.name}:{name}", "", *describe(run)]) + "\n\n"
    golden = GOLDENS / f"{file.stem}.txt"
    if os.environ.get("UPDATE_GOLDEN") == "1":
        GOLDENS.mkdir(exist_ok=True)
        golden.write_text(text, encoding="utf-8")
    assert golden.is_file(), f"{golden} is missing: run with UPDATE_GOLDEN=1 and review the new file"
    assert golden.read_text(encoding="utf-8") == text, "run with UPDATE_GOLDEN=1 and review the difference"


def test_every_golden_has_an_experiment():
    experiment_files = {file.stem for file in (ROOT / "experiments").glob("*.py")}
    assert {file.stem for file in GOLDENS.glob("*.txt")} == experiment_files


def recorded_parameters(text: str) -> dict[str, tuple[list[int], list[str]]]:
    """Path -> shape and logical axes of the parameters that a golden text has of an experiment."""
    rows = re.findall(r"(?m)^  (\S+) +\[([\d, ]*)\] +(?:decayed|-) +\((.*)\)$", text)
    return {path: ([int(size) for size in shape.split(",") if size], axes.split(", ")) for path, shape, axes in rows}


def test_groups_and_the_table_of_tokens_are_those_of_the_recorded_parameters():
    """The first experiment of every system has a group for each layer of a stack, and no prefix of nothing."""
    absent = {
        "direct",
        "generator/embeddings",
        "electra/embeddings_project",
    }  # of an NNLM and an ELECTRA of other sizes
    seen = {}
    for golden in sorted(GOLDENS.glob("*.txt")):
        for one in re.split(r"(?m)^(?=\S+\.py:\w+$)", golden.read_text(encoding="utf-8"))[1:]:
            kind, parameters = re.search(r"model\.type = '(\w+)'", one), recorded_parameters(one)
            if kind and parameters and kind[1] not in seen:
                file, name = one.splitlines()[0].split(":")
                seen[kind[1]] = experiments.load(f"{ROOT / 'experiments' / file}:{name}").model, parameters
    assert len(seen) > 20
    for model, parameters in seen.values():
        groups = [(prefix, group.index) for group in model.parameter_groups for prefix in group.prefixes]
        used = set()
        for path, (shape, axes) in parameters.items():
            own = max((prefix for prefix, _ in groups if f"{path}/".startswith(f"{prefix}/")), key=len, default=None)
            used |= {prefix for prefix, _ in groups if f"{path}/".startswith(f"{prefix}/")}
            layers = [index for prefix, index in groups if prefix == own]
            stacked = own is not None and "layers" in axes
            assert layers == ([*range(shape[axes.index("layers")])] if stacked else [None] * (own is not None)), path
        assert {prefix for prefix, _ in groups} - used <= absent, model
        if (table := model.system.token_table) is not None:
            shape, axes = parameters[table]
            positions = model.longest if type(model).__name__ == "GptConfig" else 0
            assert shape == [model.vocab_size + positions, model.token_width] and axes == ["vocab", "embed"], table
