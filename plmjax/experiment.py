"""What an experiment is: frozen dataclasses that a file in experiments/ composes, one a function.

An experiment is plain data. It is written to the run directory as JSON, read back from there, compared with the one a
resume was asked for, and overridden field by field on the command line.
"""

import contextlib
import dataclasses
import importlib
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plmjax import catalogue, storage
from plmjax.data.layouts import Layout
from plmjax.errors import UserError, check_ranges, nearest, quoted
from plmjax.objectives.objective import Objective

PLATFORMS = ("auto", "cpu", "gpu", "tpu")
PREFERENCES = ("last", "best")
FROM_0, FROM_1, SHARE = (0, math.inf), (1, math.inf), (0, 1)
"""Ranges of numbers, the second bound excluded."""


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """Which tokenizer a run uses: a folder that exists, or one to train on the run's own text."""

    path: str = ""
    """A tokenizer folder or published vocabulary; empty trains one on the input text."""
    kind: str = "wordpiece"
    """wordpiece, byte-bpe, bpe, sentencepiece-unigram, sentencepiece-bpe, word or char."""
    vocab_size: int = 8192
    """Tokens of a tokenizer that is trained, special ones included."""
    lowercase: bool | None = None
    """Lower-case the text; wordpiece, bpe and word strip accents too. None does so but for byte-bpe, which is cased."""


@dataclasses.dataclass(frozen=True)
class Data:
    """The text of a run and how rows are cut from it."""

    layout: Layout
    """How a row is laid out: sentence pairs, full sentences, blocks, streams."""
    path: str = ""
    """A prepared dataset; empty prepares WORKDIR/dataset from `input`."""
    input: tuple[str, ...] = ()
    """Files or folders of raw text."""
    format: str = "auto"
    """text, lines, wikipedia-dump, wikiextractor, books, jsonl, parquet, tfds:NAME, or auto to recognise it;
    documentation takes the documentation strings of the installed libraries until `input` or `path` names text."""
    text_key: str = "text"
    """What holds the text in a JSON object, a row of a Parquet file or an example of TFDS."""
    language: str = "en"
    """Language of the sentence splitter: en, zh, de, fr, ru, ja, ... (docs/data.md lists them)."""
    held_out: float = 0.05
    """Share of the documents kept aside for evaluation when a dataset is prepared."""
    max_unknown: float = 0.2
    """Share of unknown tokens beyond which a text is not prepared, because the tokenizer is not one for it."""
    sequence_length: int = 128
    """Tokens in a row, special ones included."""

    def __post_init__(self) -> None:
        """Checks the numbers and the names."""
        if "" in self.input:
            raise UserError("Expected --data.input to name files or folders, found an empty name; leave it out.")
        check_ranges("data", self, held_out=SHARE, max_unknown=FROM_0, sequence_length=FROM_1)


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """The update rule and its schedule."""

    name: str = "bert_adamw"
    """bert_adamw (as its authors': no bias correction), adamw (textbook), lamb."""
    learning_rate: float = 1e-4
    """Peak learning rate."""
    schedule: str = "linear"
    """After the warm-up: linear, linear_times_warmup, constant, cosine, inverse_square_root or slanted_triangular."""
    warmup_steps: int = 0
    """Steps of linear warm-up."""
    weight_decay: float = 0.01
    """Decoupled weight decay, times the learning rate."""
    beta1: float = 0.9
    """Decay of the first moment."""
    beta2: float = 0.999
    """Decay of the second moment."""
    epsilon: float = 1e-6
    """Added to the root of the second moment."""
    clip_norm: float = 1.0
    """Largest global norm of the gradient; 0 clips nothing."""
    decay_exclude: tuple[str, ...] = ("layer_norm", "bias")
    """Parameters whose path holds one of these words are not decayed."""
    frozen: tuple[str, ...] = ()
    """Parameters whose path begins with one of these names are not trained."""
    layer_decay: float = 1.0
    """Factor from the learning rate of a layer to that of the layer below it; 1 gives all layers one rate."""
    unfreeze_every: int = 0
    """Steps from which on each next group of parameters is trained, the head first; 0 trains all from the start."""

    def __post_init__(self) -> None:
        """Checks the numbers."""
        check_ranges(
            "optimizer",
            self,
            learning_rate=FROM_0,
            warmup_steps=FROM_0,
            weight_decay=FROM_0,
            beta1=SHARE,
            beta2=SHARE,
            epsilon=FROM_0,
            clip_norm=FROM_0,
            unfreeze_every=FROM_0,
        )
        if not 0 < self.layer_decay <= 1:
            raise UserError(f"Expected --optimizer.layer_decay above 0 and up to 1, found {self.layer_decay}.")


@dataclasses.dataclass(frozen=True)
class Training:
    """Length, size and rhythm of a run, and how its step is computed."""

    steps: int = 1000
    """Optimizer steps of the whole run."""
    batch_size: int = 32
    """Rows of one optimizer step over all devices and microbatches."""
    accumulation: int = 1
    """Microbatches of one optimizer step; the gradient is that of the whole batch."""
    seed: int = 0
    """Everything random follows from it and the step."""
    log_every: int = 10
    """Steps between two logged lines."""
    evaluate_every: int = 0
    """Steps between two evaluations; 0 evaluates at the end only."""
    evaluation_batches: int = 0
    """Batches of one evaluation; 0 takes all of the held-out rows."""
    patience: int = 0
    """Evaluations without a better checkpoint.best after which a run ends; 0 never ends early."""
    dtype: str = "auto"
    """float32, bfloat16, or auto: bfloat16 on TPU and GPU, float32 on CPU."""
    unroll: int = 0
    """Layers unrolled per trip of the loop over layers; 0 is all of them on CPU and one elsewhere."""
    remat: str = "none"
    """What the backward pass keeps of a layer: none, full, dots, dots_without_batch."""
    gradient_dtype: str = "float32"
    """Of gradients as they are summed over devices: float32, or bfloat16 to halve the bytes."""
    dropout_generator: str = "auto"
    """Random bits of dropout: threefry2x32, rbg, or auto: rbg on a single TPU device, threefry2x32 elsewhere."""
    platform: str = "auto"
    """cpu, gpu, tpu, or auto for what JAX finds; asking for an absent one is an error."""
    profile_steps: tuple[int, ...] = ()
    """First and last step of a profile written to WORKDIR/profile; empty profiles nothing."""

    def __post_init__(self) -> None:
        """Checks the numbers. Of a seed JAX would leave out what is beyond 32 bits, and two seeds would be one."""
        if not 0 <= self.seed < 2**32:
            raise UserError(f"Expected --training.seed from 0 to {2**32 - 1}, found {self.seed}.")
        least_0 = ("steps", "evaluate_every", "evaluation_batches", "patience", "unroll")
        least_1 = ("batch_size", "accumulation", "log_every")
        check_ranges("training", self, **dict.fromkeys(least_0, FROM_0), **dict.fromkeys(least_1, FROM_1))
        if self.platform not in PLATFORMS:
            raise UserError(f"Unknown --training.platform {quoted(self.platform)}; {nearest(self.platform, PLATFORMS)}")
        profiled = self.profile_steps
        if profiled and (len(profiled) > 2 or not 1 <= profiled[0] <= profiled[-1]):
            raise UserError(
                f"Expected --training.profile_steps to be a first and a last step from 1 on, found "
                f"{' '.join(map(str, profiled))}; change them."
            )


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """When the state is saved and what is kept."""

    every: int = 1000
    """Steps between two checkpoints that are kept."""
    keep: int = 3
    """Newest of them that are kept; 0 keeps all."""
    minutes: float = 10.0
    """Minutes between two temporary checkpoints, each replaced by the next; 0 makes none."""
    best: str = ""
    """A metric, such as eval/loss, whose best checkpoint is kept as well; a leading - means larger is better."""
    prefer: str = "last"
    """last or best: the checkpoint that the run directory stands for when it is evaluated, exported or fine-tuned."""

    def __post_init__(self) -> None:
        """Checks the numbers and the preference."""
        check_ranges("checkpoint", self, every=FROM_0, keep=FROM_0, minutes=FROM_0)
        if self.prefer not in PREFERENCES:
            raise UserError(f"Unknown --checkpoint.prefer {quoted(self.prefer)}; {nearest(self.prefer, PREFERENCES)}")


@dataclasses.dataclass(frozen=True)
class Mesh:
    """Devices along each axis; 0 is chosen for the model and the slice, and the choice is explained."""

    data: int = 0
    """Copies of the model that share the batch."""
    fsdp: int = 0
    """Pieces the parameters are cut into, gathered layer by layer; they share the batch too."""
    tensor: int = 0
    """Pieces heads, feed-forward and vocabulary are cut into."""
    zero: bool = True
    """Shard the optimizer state over `data` (ZeRO stage 1)."""

    def __post_init__(self) -> None:
        """Checks the numbers."""
        check_ranges("mesh", self, data=FROM_0, fsdp=FROM_0, tensor=FROM_0)


@dataclasses.dataclass(frozen=True)
class Hosts:
    """When the hosts of a run give one of them up."""

    silent_seconds: float = 60.0
    """Seconds without a sign of life from a host before the others stop; one that dies is noticed at once."""
    stall_minutes: float = 10.0
    """Minutes without a step before every thread's stack is printed and, on several hosts, the run stops; 0: never."""

    def __post_init__(self) -> None:
        """Checks the numbers."""
        check_ranges("hosts", self, silent_seconds=FROM_0, stall_minutes=FROM_0)


@dataclasses.dataclass(frozen=True)
class Tracking:
    """Where else than in its own folder a run reports."""

    wandb: str = ""
    """Weights & Biases: PROJECT or ENTITY/PROJECT that gets what metrics.jsonl does; empty sends nothing."""


@dataclasses.dataclass(frozen=True)
class Phase:
    """A part of a run with settings of its own; empty ones keep the experiment's."""

    fraction: float
    """Share of the run's steps."""
    sequence_length: int = 0
    """Tokens in a row."""
    batch_size: int = 0
    """Rows of one optimizer step."""
    accumulation: int = 0
    """Microbatches of one optimizer step."""

    def __post_init__(self) -> None:
        """Checks the numbers."""
        check_ranges("phases.N", self, sequence_length=FROM_0, batch_size=FROM_0, accumulation=FROM_0)


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A whole run, as data."""

    model: Any
    """The model's config."""
    objective: Objective
    """The task."""
    data: Any
    """Where rows come from: `Data` for pretraining, a task of plmjax.finetuning for fine-tuning."""
    tokenizer: Tokenizer = Tokenizer()
    optimizer: Optimizer = Optimizer()
    training: Training = Training()
    checkpoint: Checkpoint = Checkpoint()
    mesh: Mesh = Mesh()
    hosts: Hosts = Hosts()
    tracking: Tracking = Tracking()
    phases: tuple[Phase, ...] = ()
    """Parts of the run that differ, such as length 128 and then 512; empty for a run of one piece."""


FREE = (
    "checkpoint.",
    "mesh.",
    "hosts.",
    "tracking.",
    "data.path",
    "data.max_unknown",
    "data.train",
    "data.validation",
    "data.folder",
    "training.log_every",
    "training.evaluate_every",
    "training.evaluation_batches",
    "training.platform",
    "training.unroll",
    "training.remat",
    "training.profile_steps",
)
"""Fields a resumed run may change: they move a run or report on it, and leave what it computes alone. The text itself
is recognised by the fingerprint of the prepared dataset, wherever that lies."""

PREPARED = ("tokenizer.", "data.input", "data.format", "data.text_key", "data.language", "data.held_out")
"""Fields that a run directory's tokenizer and dataset follow from, fixed before anything is trained."""


def load(reference: str) -> Experiment:
    """The experiment of a name that plmjax comes with, or of `path/to/file.py`; `:function` behind it names another
    function than `experiment`.

    Raises:
        UserError: the file or function is missing, or the function does not return an Experiment.
    """
    path, name = catalogue.find(reference)
    compose = catalogue.function(path, name)
    with catalogue.mistake_named(path):
        experiment = compose()
    if not isinstance(experiment, Experiment):
        raise UserError(f"{path}:{name} must return a plmjax.experiment.Experiment, found {type(experiment).__name__}.")
    return experiment


def to_dict(value: Any) -> Any:
    """Plain JSON data; a dataclass becomes a dict whose "type" is `module:Class`."""
    if dataclasses.is_dataclass(value):
        fields = {field.name: to_dict(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"type": f"{type(value).__module__}:{type(value).__qualname__}", **fields}
    if isinstance(value, tuple | list):
        return [to_dict(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"An experiment holds plain data and dataclasses; found {value!r} of {type(value).__name__}.")


MOVED = {
    "plmjax.finetuning.tasks:Task": "plmjax.finetuning.sentences:Sentences",
    "plmjax.finetuning.objectives:SequenceClassification": "plmjax.finetuning.sentences:SequenceClassification",
    "plmjax.finetuning.objectives:Regression": "plmjax.finetuning.sentences:Regression",
}
"""Where a class named in an older experiment.json is now."""


def from_dict(value: Any) -> Any:
    """Inverse of `to_dict`.

    Raises:
        UserError: a class or field that this version of plmjax does not have.
    """
    if isinstance(value, list):
        return tuple(from_dict(item) for item in value)
    if not isinstance(value, dict):
        return value
    module, _, name = MOVED.get(value["type"], value["type"]).partition(":")
    cls = None
    with contextlib.suppress(ImportError, AttributeError):
        cls = getattr(importlib.import_module(module), name)
    if cls is None:
        raise UserError(
            f"The experiment names the class {quoted(value['type'])}, which cannot be imported; install or put on the "
            f"path what defines it."
        )
    fields = {field.name for field in dataclasses.fields(cls)}
    given = {key: from_dict(item) for key, item in value.items() if key != "type"}
    for unknown in given.keys() - fields:
        raise UserError(f"The experiment sets {name}.{unknown}, which {name} does not have; {nearest(unknown, fields)}")
    return cls(**given)


def read(path: Path) -> Experiment:
    """The experiment of an experiment.json.

    Raises:
        UserError: the file is missing or not an experiment.
    """
    try:
        experiment = from_dict(json.loads(path.read_text(encoding="utf-8")))
        if not isinstance(experiment, Experiment):
            raise TypeError(f"it holds {type(experiment).__name__}")
        return experiment
    except FileNotFoundError:
        raise UserError(f"Expected {path.name} in {path.parent}, found none; give the folder of a run.") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is not an experiment that plmjax wrote ({error}).") from error


def write(experiment: Experiment, path: Path) -> None:
    """Writes experiment.json, atomically."""
    storage.write(path, json.dumps(to_dict(experiment), indent=2) + "\n")


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """`to_dict` with dotted names: {"training.steps": 1000, ...}."""
    value = to_dict(value) if dataclasses.is_dataclass(value) else value
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        value = {str(index): item for index, item in enumerate(value)}
    if not isinstance(value, dict):
        return {prefix: value}
    flat = {}
    for key, item in value.items():
        flat |= flatten(item, f"{prefix}.{key}" if prefix else key)
    return flat


def differences(before: Experiment, after: Experiment, free: Sequence[str] = ()) -> dict[str, tuple[Any, Any]]:
    """Dotted field -> (before, after) where two experiments differ, but for fields that begin with a `free` name."""
    old, new = flatten(before), flatten(after)
    names = sorted(name for name in old.keys() | new.keys() if not name.startswith(tuple(free)))
    return {name: (old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)}


def options(experiment: Experiment) -> list[str]:
    """The command-line options of an experiment's fields."""
    return [f"--{name}" for name in flatten(experiment) if name.rpartition(".")[2] != "type"]


def spelled(option: str) -> str:
    """An option's name as fields have it: dashes and underscores within it are one."""
    return f"--{option.removeprefix('--').replace('-', '_')}"


def override(experiment: Experiment, arguments: Sequence[str], command: str = "plmjax") -> Experiment:
    """`--field.subfield VALUE ...` applied to an experiment; `--help` prints every field and exits.

    Raises:
        UserError: an unknown name (with the nearest one) or a value of the wrong type.
    """
    import tyro  # here, so that a machine without it can still import experiments

    from plmjax import option_values

    def parse(words: Sequence[str]) -> Any:
        config = (tyro.conf.FlagConversionOff,)
        with option_values.PLAIN:
            return tyro.cli(
                Experiment, prog=command, default=experiment, args=words, use_underscores=True, config=config
            )

    def words(option: list[str]) -> list[str]:  # one value is joined to its name, so that it may begin with a dash
        return ["=".join(option)] if len(option) == 2 else option

    if "--help" in arguments or "-h" in arguments:
        parse(["--help"])
    given: list[list[str]] = []
    for argument in arguments:
        if argument.startswith("--"):
            name, mark, value = argument.partition("=")
            given.append([spelled(name), *([value] if mark else [])])
        elif given:
            given[-1].append(argument)
        else:
            raise UserError(f"Expected an option such as --training.steps 60, found {quoted(argument)}.")
    known = options(experiment)
    for option in given:
        if option[0] not in known:
            raise UserError(f"There is no option {quoted(option[0])}; {nearest(option[0], known)}")
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # its box of several lines becomes one sentence below
            return parse([word for option in given for word in words(option)])
    except SystemExit:
        for option in given:
            # Sizes that fit together need not fit what they replace one at a time, which is no fault of theirs.
            with contextlib.suppress(UserError), contextlib.redirect_stderr(io.StringIO()):
                try:
                    parse(words(option))
                except SystemExit:
                    break
        default = flatten(experiment)[option[0][2:]]
        kind = _annotation(experiment, option[0][2:]) if default is None else type(default).__name__
        found = " ".join(option[1:]) or "nothing"
        raise UserError(f"{option[0]} takes a value of type {kind}, found {quoted(found)}.") from None


def _annotation(value: Any, name: str) -> str:
    """The type of a dotted field as it is declared: "float or None"."""
    *path, last = name.split(".")
    for part in path:
        value = value[int(part)] if isinstance(value, tuple) else getattr(value, part)
    (declared,) = (field.type for field in dataclasses.fields(value) if field.name == last)
    return str(declared).replace(" | ", " or ")
