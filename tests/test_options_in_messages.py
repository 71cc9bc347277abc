"""Every option that a message names is one of the commands that can print the message.

The messages are the strings of the code that hold `--name`. A table says which commands print those of a room, a module
or a function, and by which names a command gives another's options (`errors.options_named`). A string that names the
command of an option, as `plmjax prepare --fields`, is held to that one.
"""

import ast
import dataclasses
import functools
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import pytest

from plmjax import experiment as experiments
from plmjax.commands import cli
from plmjax.commands import distil as _distil  # noqa: F401 - declares the ways
from plmjax.commands import prune as _prune  # noqa: F401
from plmjax.commands import quantize as _quantize  # noqa: F401
from plmjax.compression.compression import Compression
from plmjax.experiment import Experiment, Phase
from plmjax.experiment.override import choices
from plmjax.finetuning.tasks.task import Task
from plmjax.inference import evaluate_task, evaluate_text
from plmjax.inference.task_settings import TEXT_SETTINGS
from plmjax.runs import text
from plmjax.runs.task import OF_TOKENIZERS
from tests.experiment_names import EXPERIMENTS
from tests.paths import ROOT
from tpu import __main__ as tpu


class By(NamedTuple):
    """A command that prints messages, and its names for options in them."""

    command: str
    names: Mapping[str, str] = {}


PRETRAIN, EVALUATE = By("pretrain", text.NAMES), By("evaluate", evaluate_text.TEXT_OPTIONS)
RUNNING = (By("pretrain"), By("finetune"))
MEASURED = (*RUNNING, By("plan"), By("bench"))
OF_FINETUNING = (By("finetune"), By("plan"), By("bench"))
ON_TASKS = (By("finetune"), By("evaluate", evaluate_task.TASK_OPTIONS), By("predict"))
WRITTEN = By("finetune", {"--max_new_tokens": "--objective.max_new_tokens"})
READING = (By("tokenizer train"), By("prepare"), PRETRAIN, EVALUATE)
OF_CHECKPOINTS = tuple(map(By, "evaluate predict embed fill-mask nearest generate average export report".split()))
PRINTED_BY = {
    "data/beam": (By("prepare"),),
    "cli": (), "command_line": (), "option_values": RUNNING,
    "contracts": (By("pretrain"), By("plan"), By("bench")),
    "data/cleaning": (By("prepare"), PRETRAIN),
    "data/formats": READING,
    "data/tokenizer_folder": (By("tokenizer train"),),
    "data/tokenizers/training": (By("tokenizer train"), PRETRAIN, By("finetune", OF_TOKENIZERS)),
    "data/tokenizers/tokenizer": (By("prepare"), PRETRAIN, EVALUATE),
    "data/preparation": (By("prepare"), PRETRAIN, EVALUATE),
    "data/unknown_tokens": (
        By("prepare"), PRETRAIN, By("evaluate"), By("embed"), By("predict"), By("generate"),
    ),
    "data/cooccurrence": (By("cooccurrence"),),
    "data/layouts": (By("pretrain"), By("plan"), By("bench")),
    "data/layouts/chunks": (By("pretrain"), By("plan"), By("bench"), EVALUATE),
    "data/layouts/layout": (By("pretrain"), By("plan"), By("bench"), EVALUATE),
    "data/mixing": (By("pretrain"), By("plan"), By("bench")), "data/mixture": (By("pretrain"), By("plan"), By("bench")),
    "data/pipeline": (By("pretrain"), By("bench")),
    "data/remote": (By("pretrain"), By("bench")),
    "data/store": (By("pretrain"), By("evaluate")),
    "compression": tuple(map(By, ("compress prune", "compress distil", "compress quantize"))),
    "compression/run:without_options": (By("compress factorize"), By("compress share")),
    "compression/pruning": (By("compress prune"),), "compression/distillation": (By("compress distil"),),
    "compression/distillation/augmentation": (By("augment"),),
    "compression/quantization": (By("compress quantize"),), "compression/factorization": (By("compress factorize"),),
    "compression/sharing": (By("compress share"),),
    "interop": (By("import"), By("export")),
    "interop/run_directories": (By("import"),),
    "interop/run_directories:export_checkpoint": (By("export"),),
    "interop/run_directories:_export_own": (By("export"),),
    "interop/sentence_transformers": (By("export"),), "interop/exported_function": (By("export"),),
    "experiment": MEASURED,
    "experiment/settings:Data.__post_init__": (By("pretrain"), By("plan"), By("bench")),
    "experiment/settings:Data.cache_bytes": (By("pretrain"), By("bench")),
    "experiment/record": OF_CHECKPOINTS,
    "finetuning": (By("finetune"),),
    "finetuning/tasks/choices": ON_TASKS, "finetuning/files": ON_TASKS, "finetuning/tasks/joint": (By("finetune"),),
    "finetuning/tasks/joint:parts": (By("predict"),), "finetuning/tasks/joint:evaluated_on": (By("evaluate"),),
    "finetuning/tasks/label_schemes": (By("finetune"), By("evaluate")),
    "finetuning/tasks/label_schemes:possible": (By("finetune"),),
    "finetuning/tasks/label_sets:__post_init__": ON_TASKS,
    "finetuning/tasks/parsing:rows": (By("finetune"), By("evaluate")),
    "finetuning/tasks/questions:encode": ON_TASKS,
    "finetuning/tasks/task:check_length": ON_TASKS, "finetuning/tasks/task:parts": (By("predict"),),
    "finetuning/tasks/task:read": (By("finetune"), By("evaluate", evaluate_task.TASK_OPTIONS)),
    "finetuning/tasks/task:averaged": (By("evaluate"), By("predict")),
    "finetuning/tasks/text_generation:encode": ON_TASKS, "finetuning/tasks/text_generation:fitting": ON_TASKS,
    "finetuning/cross_view/translation:encode": ON_TASKS,
    "finetuning/tasks/text_pairs": (By("finetune"), By("evaluate")),
    "finetuning/tasks/text_pairs:rows": ON_TASKS, "finetuning/tasks/text_pairs:_texts": ON_TASKS,
    "generation": (By("generate"),), "generation/batch_generator:check": (By("generate"), WRITTEN),
    "layers/words/adaptive_words": (By("pretrain"), By("plan"), By("bench")),
    "inference/embed": (By("embed"),), "inference/attention": (By("attention"),),
    "inference/fill_mask": (By("fill-mask"),), "inference/fill_gaps": (By("fill-mask"),),
    "inference/evaluate": (By("evaluate"),), "inference/evaluate_text": (By("evaluate"),),
    "inference/evaluate_task": (By("evaluate"),), "inference/perplexity": (By("evaluate"),),
    "inference/zero_shot": (By("evaluate"),), "inference/members": (By("evaluate"), By("predict")),
    "inference/predict": (By("predict"),), "inference/task_settings": (By("evaluate"), By("predict")),
    "interop/fairseq": (By("import"),), "interop/word_vectors": (By("nearest"),),
    "layers": (By("finetune"), By("pretrain")), "models": (By("pretrain"), By("plan"), By("bench")),
    "models/cove": OF_FINETUNING, "models/taggers": OF_FINETUNING,
    "models/taggers/elmo_tagger": (By("finetune"),), "models/taglm": (By("finetune"),),
    "objectives": MEASURED,
    "parallel": RUNNING, "parallel/mesh": MEASURED,
    "plan": (By("plan"),),
    "runs": RUNNING, "runs/bench": (By("bench"),), "runs/mixtures": (By("pretrain"),), "runs/text": (By("pretrain"),),
    "runs/task": (By("finetune"),), "runs/seeds": (By("finetune"),), "runs/summary": (By("pretrain"),),
    "runs/checks": (By("pretrain"), By("plan"), By("bench")), "runs/checks:text": (By("pretrain"),),
    "runs/checks:finetuning": (By("finetune"), By("plan")),
    "selfcheck": (By("selfcheck"),),
    "training": RUNNING, "training/checkpoints/averaging": (By("average"),),
    "training/evaluation": (By("evaluate"),), "report": (By("report"),),
    "runs/init_from:InitFrom.find": (By("finetune"),), "inference/word_vector_plane": (By("report"),),
    "inference/word_vector_scores": (By("evaluate"),),
    "tpu": (By("tpu submit"),), "tpu/follow": (By("tpu logs"),), "tpu/job:command": (By("pretrain"),),
    "tpu/__main__:_bucket": (By("tpu watch"),), "tpu/profiles": (By("tpu profile"),), "tpu/stacks": (By("tpu debug"),),
    "tpu/job:selfcheck_command": (By("selfcheck"),),
    "tpu/__main__:watch": (By("tpu watch"),),
}  # fmt: skip
"""Room, module, or module:function -> the commands that print its messages; the longest that fits counts."""


@functools.cache
def accepted(command: str) -> set[str]:
    """The options of a command, those of the experiments that it runs included; numbers in them are 0."""
    verbs = {name: cli.verb(name) for name in cli.VERBS} | {
        f"tpu {name}": verb for name, verb in (tpu.VERBS | tpu.ON_THE_SLICE).items()
    }
    verb = verbs[command]
    names = {"help"}
    for name, parameter in inspect.signature(verb).parameters.items():
        group = parameter.default if dataclasses.is_dataclass(parameter.default) else None
        before = "mesh." if name == "mesh" else ""
        names |= {f"{before}{field.name}" for field in dataclasses.fields(group)} if group else {name.strip("_")}
    found = {f"--{name}" for name in names}
    if command.startswith("compress "):
        ways = [one for one in Compression.choices().values() if f"compress {one.verb}" == command]
        found |= {f"--compression.{field.name}" for one in ways for field in dataclasses.fields(one)}
    if command in ("pretrain", "finetune", "plan", "bench", "tpu submit", *cli.OF_CHECKPOINTS):
        kinds = {"pretrain": [False], "finetune": [True]}.get(command, [False, True])
        found |= {option for run in runs() if isinstance(run.data, Task) in kinds for option in of_experiment(run)}
    for run in runs() if command in ("evaluate", "predict") else ():
        if isinstance(run.data, Task):
            found |= {f"--data.{name}" for name in run.data.settings(command == "evaluate")}
            found |= {f"--objective.{name}" for name in run.objective.prediction_settings}
        elif command == "evaluate":
            found |= {f"--data.{name}" for name in TEXT_SETTINGS}
    return {re.sub(r"\.\d+\b", ".0", option) for option in found}


@functools.cache
def runs() -> list[Experiment]:
    return [experiments.load(str(ROOT / name)) for name in EXPERIMENTS]


def of_experiment(run: Experiment) -> Iterator[str]:
    """Its options, and those of every class that an option can choose or a file can name in its place."""
    yield from experiments.options(run)
    for option, chosen in choices(run).items():
        yield option
        for one in chosen.choices().values():
            yield from (f"{option}.{field.name}" for field in dataclasses.fields(one))
    yield from (f"--phases.0.{field.name}" for field in dataclasses.fields(Phase))  # a file may name some
    places = {
        "--objective": run.objective,
        "--data": run.data,
        "--model": run.model,
        "--weight_mapping": run.weight_mapping,
    }
    places |= {"--data.layout": run.data.layout} if not isinstance(run.data, Task) else {}
    for place, value in places.items():
        if value is None:  # fine-tuning takes the checkpoint's model
            continue
        base = next(one for one in reversed(type(value).__mro__) if one is not object and dataclasses.is_dataclass(one))
        for one in (base, *descendants(base)):
            if dataclasses.is_dataclass(one):
                yield from (f"{place}.{field.name}" for field in dataclasses.fields(one))


def descendants(base: type) -> Iterator[type]:
    for one in base.__subclasses__():
        yield one
        yield from descendants(one)


def messages(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(Class.function, string) of every string that is no docstring and no name for `options_named`.

    A value that is filled in is {}.
    """
    inner: dict[int, str] = {}
    for owner in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef | ast.FunctionDef)):
        for node in ast.walk(owner):  # the innermost function comes last
            kept = inner.get(id(node), "").partition(".")[0] if isinstance(owner, ast.FunctionDef) else ""
            inner[id(node)] = f"{owner.name}." if isinstance(owner, ast.ClassDef) else f"{kept}.{owner.name}"
    passed = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    calls = [
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "options_named"
    ]
    constants = [node.value for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)]
    passed |= {id(node) for names in (*calls, *constants) for node in ast.walk(names)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr) and id(node) not in passed:
            passed |= {id(part) for part in node.values}
            parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
            yield inner.get(id(node), ""), "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in passed:
            yield inner.get(id(node), ""), node.value


OPTION = re.compile(r"(?:(plmjax|python -m tpu) ([a-z-]+)(?: train)? )?(?<![\w-])(--[a-z][\w.{}-]*)")
OF_OTHERS = ("--xla_", "--multiprocessing-fork", "--force", "--logdir", "--decode", "--worker=", "--quiet", "--command")
"""Options of other programs."""
OF_GCLOUD = ("--internal-ip",)
"""Whole names of options of gcloud that begin as one of ours does."""


def options(message: str) -> Iterator[tuple[str, str]]:
    """(command that stands before it, option) of every option in a message."""
    for program, command, option in OPTION.findall(message):
        if not f"{option}{message.partition(option)[2][:1]}".startswith(OF_OTHERS) and option not in OF_GCLOUD:
            yield f"tpu {command}" if program.startswith("python") else command, option.rstrip(".")


def lacks(by: By, option: str) -> bool:
    """Tell if a command has no such option."""
    named = by.names.get(option, option)
    named = "--" + re.sub(r"(?<!\.)\{\}$", "", named[2:]).replace("-", "_")  # a word may follow, filled in
    pattern = re.escape(named).replace(r"\{\}", r"[\w.]+").replace(r"\.N\.", r"\.0\.")
    pattern = re.sub(r"\\\.\d+\b", r"\\.0", pattern)
    # A group of options, such as --phases.0 or --mesh, is named without its last part.
    return not any(re.fullmatch(rf"{pattern}(\..+)?", known) for known in accepted(by.command))


def printing(module: str, function: str) -> tuple[By, ...]:
    places = [f"{module}:{function}", f"{module}:{function.rpartition('.')[2]}"]
    places += [module.rsplit("/", number)[0] for number in range(module.count("/") + 1)]
    return next((PRINTED_BY[place] for place in places if place in PRINTED_BY), ())


def unaccepted(module: str, source: str) -> list[str]:
    """The options that messages of a module name and a command that prints them lacks."""
    found = []
    for function, message in messages(ast.parse(source)):
        for command, option in options(message):
            by = (By(command),) if command else printing(module, function)
            if module.startswith("commands/"):
                verb = next((name for name in cli.VERBS if f".{cli.verb(name).__name__}" == function), "")
                by = (By(command or verb),) if command or verb else ()
            found += [f"{module}:{function} {one.command} {option}" for one in by if lacks(one, option)]
            if not by and module not in ("cli", "command_line", "errors") and not module.startswith("commands/"):
                found.append(f"{module}:{function} by no command {option}")
    return found


@pytest.mark.parametrize("room", ["plmjax", "tpu"])
def test_every_option_in_a_message_is_one_of_the_commands_that_print_it(room: str) -> None:
    found = []
    for file in sorted((ROOT / room).rglob("*.py")):
        module = str(file.relative_to(ROOT if room == "tpu" else ROOT / room).with_suffix(""))
        found += unaccepted(module, file.read_text(encoding="utf-8"))
    assert not found


def test_a_wrong_option_is_found() -> None:
    def of(module: str, message: str) -> list[str]:
        return unaccepted(module, f"def fitting():\n    raise UserError(f{message!r})\n")

    assert of("finetuning/tasks/text_generation", "raise --data.sequence_length or --objective.{option}") == []
    assert [one.split()[1] for one in of("finetuning/tasks/text_generation", "name --data.validation")] == ["predict"]
    assert of("data/formats", "check --format or --processes") != []
    assert of("data/formats", "check --format or plmjax prepare --processes") == []
    assert of("data/formats", "check plmjax evaluate --format") != []
    assert of("locks", "take --format") == ["locks:.fitting by no command --format"]
