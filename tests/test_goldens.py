"""A text per experiment that a change shows as a diff: configuration, parameters, counts and FLOPs of a step.

The configuration is what differs from the defaults, and those of all classes are in defaults.txt.

UPDATE_GOLDEN=1 python -m pytest -m '' tests/test_goldens.py writes them again. Review the diff.
"""

import dataclasses
import os
import re
from pathlib import Path
from typing import Any

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
from tests.experiment_names import EXPERIMENTS
from tests.paths import ROOT

GOLDENS = Path(__file__).parent / "goldens"
DEFAULTS = GOLDENS / "defaults.txt"


def abstract_params(run: Experiment, phase: ResolvedPhase):
    """The parameters that the run's objective makes for a phase, boxed with their axes; computes nothing."""
    vocabulary = Vocabulary.placeholder(run.model.vocab_size)
    batch = run.data.layout.batch(phase.batch_size, phase.sequence_length)
    module = run.objective.module(run.model, Execution())
    init = initial_state.initial_variables(run, phase, module, vocabulary=vocabulary, batch=batch)
    return jax.eval_shape(init, jax.random.key(0))["params"]


def default_of(field: dataclasses.Field) -> Any:
    """The default of a field; MISSING if it has none."""
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def changed_fields(value: Any, base: Any = None, prefix: str = "") -> list[str]:
    """A line for each field of a dataclass that differs from that of `base`, or from its default if that is None."""
    lines = []
    for field in dataclasses.fields(value):
        before = default_of(field) if base is None else getattr(base, field.name)
        lines += changes(f"{prefix}{field.name}", getattr(value, field.name), before)
    return lines


def changes(name: str, value: Any, before: Any) -> list[str]:
    """A line for a value that differs from the one before; of a dataclass, its class if that differs, and its fields.

    Classes by their names alone: which module one lives in is no property of an experiment.
    """
    if dataclasses.is_dataclass(value):
        if type(value) is type(before):
            return changed_fields(value, before, f"{name}.")
        return [f"{name} = {type(value).__name__}", *changed_fields(value, None, f"{name}.")]
    if repr(value) == repr(before):
        return []
    if isinstance(value, tuple) and any(map(dataclasses.is_dataclass, value)):
        return [line for index, item in enumerate(value) for line in changes(f"{name}.{index}", item, None)]
    return [f"{name} = {value!r}"]


def joined_layers(rows: dict[str, str]) -> dict[str, str]:
    """The rows by path, with one row for consecutive layers that have equal ones: layers_{0..3}/attention/key/bias."""
    joined = {}
    for path in sorted(rows):
        before, number, after = re.fullmatch(r"(?:(.*_)(\d+)(?=/|$))?(.*)", path).groups()
        if number is None:
            joined[path] = rows[path]
        else:
            first, end = int(number), int(number) + 1
            if rows.get(f"{before}{first - 1}{after}") == rows[path]:
                continue
            while rows.get(f"{before}{end}{after}") == rows[path]:
                end += 1
            joined[path if end == first + 1 else f"{before}{{{first}..{end - 1}}}{after}"] = rows[path]
    return joined


def describe_parameters(run: Experiment, phase: ResolvedPhase) -> list[str]:
    """The lines of the parameters that a run makes, and of their counts."""
    boxed = abstract_params(run, phase)
    trees = (nn.meta.unbox(boxed), sharding.logical_axes(boxed), run.optimizer.decay_mask(boxed))
    shapes, axes, decayed = (flax.traverse_util.flatten_dict(tree, sep="/") for tree in trees)
    rows = {}
    for path, leaf in shapes.items():
        shape, decay = str(list(leaf.shape)), "decayed" if decayed[path] else "-"
        rows[path] = f"{shape:<20} {decay:<7}  ({', '.join(map(str, axes[path]))})"
    rows = joined_layers(rows)
    width = max(map(len, rows))
    lines = ["parameters (shape, whether decayed, logical axes)"]
    lines += [f"  {path:<{width}}  {row}" for path, row in rows.items()]

    parts = sorted({path.split("/")[0] for path in shapes})
    counts = {part: sum(leaf.size for path, leaf in shapes.items() if path.split("/")[0] == part) for part in parts}
    counts |= {"decayed": sum(leaf.size for path, leaf in shapes.items() if decayed[path]), "all": sum(counts.values())}
    return [*lines, "counts", *(f"  {part:<{width}}  {count:>15,}" for part, count in counts.items())]


def describe_flops(run: Experiment, resolved: list[ResolvedPhase]) -> list[str]:
    """The lines of the FLOPs of each phase of a run."""
    lines = ["model FLOPs of a training step, closed form"]
    for phase in resolved:
        batch = run.data.layout.batch(phase.batch_size, phase.sequence_length)
        steps = f"steps {phase.first_step:,} to {phase.last_step:,}"
        number = round(run.objective.train_flops(run.model, batch))
        lines.append(f"  {steps}, {phase.batch_size} rows of {phase.sequence_length}: {number:,}")
    return lines


def describe(file: Path) -> str:
    """The golden text of the experiments of a file.

    An experiment whose model has the class of the first one's shows what differs from the first, others what differs
    from the defaults. Parameters that equal those of an earlier experiment are not repeated.
    """
    runs = {name: experiments.load(f"{file.relative_to(ROOT)}:{name}") for name in functions(file)}
    assert runs, f"{file} composes no experiment"
    first, first_run = next(iter(runs.items()))
    texts, trees = [], {}
    for name, run in runs.items():
        alike = name != first and (type(run), type(run.model)) == (type(first_run), type(first_run.model))
        lines = [f"{file.name}:{name}, from {first if alike else f'the defaults of {type(run).__name__}'}"]
        lines += [f"  {line}" for line in changed_fields(run, first_run if alike else None)]
        if run.model is None or not isinstance(getattr(run.data, "layout", None), Layout):
            lines.append("parameters of the checkpoint, and of a head as its task asks for")
        else:
            resolved = run.resolved_phases
            tree = describe_parameters(run, resolved[0])
            owner = trees.setdefault(tuple(tree), name)
            lines += tree if owner == name else [f"parameters and counts of {owner}"]
            lines += describe_flops(run, resolved)
        texts.append("\n".join(lines) + "\n")
    return "\n".join(texts)


def dataclasses_of(value: Any) -> set[type]:
    """The dataclasses of a value, of all that its fields hold or have as a default, and those that they inherit."""
    if isinstance(value, tuple):
        return set().union(*map(dataclasses_of, value))
    if not dataclasses.is_dataclass(value):
        return set()
    found = {cls for cls in type(value).__mro__ if dataclasses.is_dataclass(cls)}
    for field in dataclasses.fields(value):
        found |= dataclasses_of(getattr(value, field.name)) | dataclasses_of(default_of(field))
    return found


def describe_defaults(cls: type) -> str:
    """The defaults of the fields that a dataclass has and its bases have not, or with another default."""
    inherited = {}
    for base in filter(dataclasses.is_dataclass, reversed(cls.__mro__[1:])):
        inherited |= {field.name: default_of(field) for field in dataclasses.fields(base)}
    own = {field.name: default_of(field) for field in dataclasses.fields(cls)}
    bases = ", ".join(base.__name__ for base in cls.__bases__ if dataclasses.is_dataclass(base))
    lines = [f"{cls.__name__}({bases})" if bases else cls.__name__]
    for name, default in own.items():
        if default is not dataclasses.MISSING:
            lines += [f"  {line}" for line in changes(name, default, inherited.get(name, dataclasses.MISSING))]
        elif inherited.get(name) is not dataclasses.MISSING:
            lines.append(f"  {name} has no default")
    lines += [f"  {name} is no field" for name in inherited if name not in own]
    return "\n".join(lines) + "\n"


def compare(golden: Path, text: str) -> None:
    """Hold a text to the recorded one, or record it."""
    if os.environ.get("UPDATE_GOLDEN") == "1":
        GOLDENS.mkdir(exist_ok=True)
        golden.write_text(text, encoding="utf-8")
    assert golden.is_file(), f"{golden} is missing: run with UPDATE_GOLDEN=1 and review the new file"
    assert golden.read_text(encoding="utf-8") == text, "run with UPDATE_GOLDEN=1 and review the difference"


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
    compare(GOLDENS / f"{file.stem}.txt", describe(file))


def test_defaults_are_as_recorded():
    found = set().union(*(dataclasses_of(experiments.load(str(ROOT / name))) for name in EXPERIMENTS))
    compare(DEFAULTS, "\n".join(sorted(map(describe_defaults, found))))


def test_every_golden_has_an_experiment():
    experiment_files = {file.stem for file in (ROOT / "experiments").glob("*.py")}
    assert {file.stem for file in GOLDENS.glob("*.txt")} == {*experiment_files, DEFAULTS.stem}


def recorded_parameters(text: str) -> dict[str, tuple[list[int], list[str]]]:
    """Path -> shape and logical axes of the parameters that a golden text has of an experiment."""
    rows = re.findall(r"(?m)^  (\S+?)(?:\{(\d+)\.\.(\d+)\}(\S*))? +\[([\d, ]*)\] +(?:decayed|-) +\((.*)\)$", text)
    recorded = {}
    for before, first, last, after, shape, axes in rows:
        layers = range(int(first), int(last) + 1) if first else [""]
        facts = [int(size) for size in shape.split(",") if size], axes.split(", ")
        recorded |= {f"{before}{layer}{after}": facts for layer in layers}
    return recorded


def test_groups_and_the_table_of_tokens_are_those_of_the_recorded_parameters():
    """The first experiment of every system has a group for each layer of a stack, and no prefix of nothing."""
    absent = {
        "direct",
        "generator/embeddings",
        "electra/embeddings_project",
    }  # of an NNLM and an ELECTRA of other sizes
    seen = {}
    for golden in sorted(GOLDENS.glob("*.txt")):
        for one in golden.read_text(encoding="utf-8").split("\n\n"):
            kind, parameters = re.search(r"(?m)^  model = (\w+)$", one), recorded_parameters(one)
            if kind and parameters and kind[1] not in seen:
                file, name = one.partition(",")[0].split(":")
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
