"""Checks of settings that must fit together, before any text is read or any file is written.

Single values are checked where they are set (`plmjax.experiment`). `resolve` calls `check_pretraining` or
`check_finetuning` for every command that takes an experiment: training, plans, benchmarks and the submission of a job.
`on_devices` and `text` check what only some of these commands need.
"""

from typing import Any

import jax
from jax.sharding import AbstractMesh

from plmjax import experiment as experiments
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data import mixture
from plmjax.errors import UserError, options_named, quoted
from plmjax.experiment import Data, Experiment, Finetuning
from plmjax.files import storage
from plmjax.finetuning.evaluation import check_whole_file
from plmjax.finetuning.tasks.task import Task, TaskObjective
from plmjax.layers.int8 import FLOAT
from plmjax.objectives.capabilities import ComparesRows
from plmjax.parallel import mesh as meshes
from plmjax.training import evaluation, placement, tracking
from plmjax.training import program as programs
from plmjax.training.checkpoints import best
from plmjax.training.optimizers import Optimizer
from plmjax.training.optimizers.schedules import Plateau, WarmedUp

EXCLUDE = (
    ("finetuning.epochs", "training.steps"),
    ("finetuning.warmup", "optimizer.schedule.warmup_steps"),
    ("finetuning.unfreeze", "optimizer.unfreeze_every"),
    ("finetuning.evaluations", "training.evaluate_every"),
    ("finetuning.evaluations", "checkpoint.every"),
)
"""Pairs of options of which a fine-tuning may set at most one."""
NEED = (
    ("training.patience", "checkpoint.best", " METRIC, such as eval/loss"),
    ("training.patience", "training.evaluate_every", " STEPS"),
)
"""(Option, another option that must be set with it, text after that option in the message)."""


def is_experiment(value: Any) -> None:
    """Raise UserError for anything that is not an Experiment, such as the name of one."""
    if not isinstance(value, Experiment):
        raise UserError(
            f"Expected an Experiment, found {quoted(str(value))}; load one by its name or file with "
            f"plmjax.experiment.load."
        )


def kind(experiment: Experiment, text: bool) -> None:
    """Raise UserError unless the experiment is one on text if `text` is true, or one on a task otherwise."""
    is_experiment(experiment)
    data, objective = experiment.data, experiment.objective
    if text:
        if not isinstance(data, Data):
            raise UserError(
                f"Expected an experiment on text, found one on {type(data).__name__}; name another, or run it with "
                f"plmjax finetune."
            )
        return
    if isinstance(data, Data):
        raise UserError(
            "Expected an experiment on a task, found one that pretrains on text; run it with plmjax pretrain, or name "
            "another, such as finetune_sentences."
        )
    if not isinstance(data, Task) or not isinstance(objective, TaskObjective):
        raise UserError(
            f"Expected an experiment with a task and an objective of plmjax.finetuning, found "
            f"{type(data).__name__} and {type(objective).__name__}; see experiments/finetune_sentences.py."
        )
    if not isinstance(data, objective.task_class):
        raise UserError(
            f"Expected {objective.task_class.__name__} for the objective {type(objective).__name__}, found a task of "
            f"{type(data).__name__}; name an experiment whose data and objective are of one kind."
        )
    if not isinstance(experiment.finetuning, Finetuning):
        raise UserError(
            f"Expected finetuning=Finetuning(...) in the experiment, found {type(experiment.finetuning).__name__}; "
            f"set it, as experiments/finetune_sentences.py does."
        )


def check_pretraining(experiment: Experiment) -> None:
    """Raise UserError unless the settings of a run on text fit together."""
    for name, part in (
        ("model", experiment.model),
        ("objective", experiment.objective),
        ("layout", experiment.data.layout),
    ):
        if part is None:
            raise UserError(
                f"The experiment has no {name}; set it there, or start from a run that has one, plmjax pretrain --from."
            )
    _training(experiment)
    layout, model = experiment.data.layout, experiment.model
    _packing(experiment, getattr(layout, "pack", 1), "--data.layout.pack")
    if experiment.finetuning is not None:
        raise UserError("An experiment on text has no `finetuning`; leave it out, or run plmjax finetune.")
    if experiment.data.mixture.sources:
        mixture.check_layout(layout)
    if layout.backwards != model.system.backwards:
        raise UserError(
            f"Expected --data.layout.backwards {model.system.backwards}, as the model reads, found "
            f"{layout.backwards}; set it, or --model.backwards."
        )
    _window(model, max(phase.sequence_length for phase in experiment.resolved_phases))
    for phase in experiment.resolved_phases:
        changed = experiments.in_phase(experiment, phase)
        changed.model.check_sequence_length(phase.sequence_length)
        lengths = ((phase.sequence_length, ""), (phase.evaluation.sequence_length, programs.EVALUATION_LENGTH))
        for length, option in lengths:
            changed.data.layout.check(length)
            programs.check_length(changed, length, option)
    evaluations(experiment)


def check_finetuning(experiment: Experiment) -> None:
    """Raise UserError unless the settings of a run on a task fit together, and its model can be trained on it."""
    kind(experiment, text=False)
    check_whole_file(experiment.training.evaluation_batches)
    if experiment.training.evaluation_sequence_length:
        raise UserError(
            f"{programs.EVALUATION_LENGTH} does not apply to a task, whose sequences have one length, found "
            f"{experiment.training.evaluation_sequence_length}; leave it out, and set --data.sequence_length."
        )
    _training(experiment)
    found = experiments.flatten(experiment)
    for first, second in EXCLUDE:
        if found[first] and found.get(second):
            raise UserError(
                f"--{first} and --{second} exclude each other, found {found[first]:g} and {found[second]}; set one "
                f"of them to 0."
            )
    epochs, schedule = experiment.finetuning.epochs, experiment.optimizer.schedule
    if not epochs and not experiment.training.steps:
        raise UserError("A fine-tuning needs --finetuning.epochs or --training.steps, found 0 and 0; set one of them.")
    if experiment.finetuning.warmup and not isinstance(schedule, WarmedUp):
        raise UserError(
            f"--finetuning.warmup needs a schedule with a warm-up, found {schedule.name}; set --finetuning.warmup 0 or "
            f"another --optimizer.schedule."
        )
    model, objective = experiment.model, experiment.objective
    if isinstance(schedule, Plateau) and not objective.evaluates_losses:
        raise UserError(
            f"Expected a schedule that needs no loss of an evaluation for {type(objective).__name__}, found "
            f"{schedule.name}; set another --optimizer.schedule, such as linear."
        )
    alone = experiment.training.batch_size == 1 and not getattr(experiment.data, "negatives", ())
    if isinstance(objective, ComparesRows) and alone:
        raise UserError(
            "Expected at least two rows in a batch, whose passages are the negatives, found --training.batch_size 1; "
            "raise it, or name columns of negatives."
        )
    if isinstance(objective, ComparesRows) and experiment.compression is not None:
        raise UserError(
            f"Expected no compression of a run of {type(objective).__name__}, whose loss compares the rows of a batch, "
            f"found {type(experiment.compression).__name__}; fine-tune a model that is compressed already."
        )
    if model is None:
        raise UserError(
            "The experiment has no model, and neither random parameters nor a file of vectors bring one; name a "
            "checkpoint that has one by plmjax finetune --like, set model in the experiment's file, or make a run of "
            "the vectors with plmjax import."
        )
    model.system.require(objective.purpose)
    programs.check_length(experiment, experiment.data.sequence_length)
    _packing(experiment, experiment.data.pack, "--data.pack")
    if experiment.data.pack > 1 and not objective.packs:
        raise UserError(
            f"Expected --data.pack 1 for {type(objective).__name__}, which reads one example in a row, found "
            f"{experiment.data.pack}; change it."
        )
    objective.check_model(model)


def on_devices(experiment: Experiment, devices: int, slices: int = 1) -> None:
    """Check an experiment on text for a number of devices. Its step is traced for one device; nothing is computed.

    Raises:
        UserError: a batch or the mesh does not fit the devices, or a path of parameters or a metric does not exist.
    """
    grids = meshes.candidates(experiment.mesh, devices, slices)
    vocabulary, shapes = Vocabulary.placeholder(experiment.model.vocab_size), placement.text_batch_shapes(experiment)
    if len(grids) == 1 or not placement.even_meshes(experiment, grids, vocabulary, shapes):
        mesh = AbstractMesh(grids[0], meshes.AXES)
        for phase in experiment.resolved_phases:
            meshes.check_batch(phase.batch_size, phase.accumulation, mesh)
    one = jax.sharding.Mesh([[jax.devices()[:1]]], meshes.AXES)
    unigram = evaluation.unigram_nats([], experiment.model.vocab_size)
    # The parts of a batch-size ramp differ only in the batch size, so one of them is enough.
    phases = {phase.declared: phase for phase in experiment.resolved_phases}
    changed = [phase for number, phase in phases.items() if not number or experiment.phases[number].changes]
    program, *_ = built = [
        programs.build(experiment, phase, one, vocabulary=vocabulary, shapes=shapes, unigram=unigram)
        for phase in changed
    ]
    programs.check_states(built)
    data = experiment.data
    has_held_out = data.path or data.mixture.sources or data.held_out
    names = evaluation.means(program, experiment.objective.coefficients()) if has_held_out else []
    best.check_metric(experiment.checkpoint, names)


def text(experiment: Experiment, has_tokenizer: bool = False) -> None:
    """Raise UserError for text that is missing or named twice, and for settings with which no tokenizer can be trained.

    has_tokenizer: true if the tokenizer comes from a checkpoint.
    """
    from plmjax.data import cleaning, formats, sentences, tokenizers

    data: Data = experiment.data
    _paths_of_phases(experiment)
    formats.check(data.format)
    sentences.check(data.language)
    if data.mixture.sources and (data.path or data.input):
        raise UserError(
            f"Expected --data.mixture.sources alone, found --data.{'path' if data.path else 'input'} too; leave one "
            f"out, or prepare that text and name it as a source."
        )
    if data.path and data.input:
        raise UserError(f"Expected --data.path or --data.input, found both; leave one out to train on {data.path}.")
    if prepared := data.path or " ".join(data.mixture.sources):
        for name in ("clean", "special_names"):
            if getattr(data, name):
                raise UserError(
                    f"--data.{name} needs raw text, found the prepared dataset {prepared}; prepare it again by "
                    f"plmjax prepare --{name}, or leave the option out."
                )
        return
    with options_named({"--clean": "--data.clean"}):
        cleaning.names(data.clean)
    if not data.input and not data.format.startswith(formats.TFDS) and data.format != formats.DOCUMENTATION:
        raise UserError(
            "Expected text to train on, found none; name files or folders with --data.input, or a prepared dataset "
            "with --data.path."
        )
    named = experiment.tokenizer
    if has_tokenizer or named.path:
        return
    with options_named({"--vocab_size": "--tokenizer.vocab_size", "--special_names": "--data.special_names"}):
        tokenizers.check(named.kind, named.vocab_size, data.special_names)
    if named.vocab_size > experiment.model.vocab_size:
        raise UserError(
            f"Expected a tokenizer of at most the model's {experiment.model.vocab_size} tokens, found "
            f"--tokenizer.vocab_size {named.vocab_size}; lower it or raise --model.vocab_size."
        )
    special_tokens(experiment.model, tokenizers.special_vocabulary(named.kind))


def _paths_of_phases(experiment: Experiment) -> None:
    """Raise UserError if the dataset of a phase does not exist, before any text is prepared."""
    from plmjax.data import store

    for phase in experiment.resolved_phases:
        path = experiments.in_phase(experiment, phase).data.path
        if path and path != experiment.data.path and not (storage.path(path) / store.MANIFEST).is_file():
            raise UserError(
                f"Expected a prepared dataset at {path} for --phases.{phase.declared}.changes, found none; check the "
                f"path, or prepare it with plmjax prepare."
            )


def special_tokens(model: ModelConfig, vocabulary: Vocabulary) -> None:
    """Raise UserError if the padding, end or separator token differs between the model and the tokenizer.

    Training texts end with the tokenizer's end token. An exported model with another end token would never stop
    generating.
    """
    ids = {
        "padding": (model.padding_token, vocabulary.pad),
        "end": (model.end_token, vocabulary.document_end),
        "separator": (model.separator_token, vocabulary.sep),
    }
    for name, (expected, found) in ids.items():
        if expected is not None and found >= 0 and found != expected:
            raise UserError(
                f"Expected a tokenizer whose {name} token is the model's, {expected}, found {found}; set "
                f"{model.option(f'{name}_token')} {found} or take a tokenizer of the kind that the experiment names."
            )


def evaluations(experiment: Experiment) -> None:
    """Raise UserError for settings of evaluations, checkpoints and profiles that do not fit together.

    For a run on a task, epochs must have been converted to steps (`plmjax.runs.epochs.in_steps`).
    """
    found, training, checkpoint = experiments.flatten(experiment), experiment.training, experiment.checkpoint
    for option, needed, value in NEED:
        if found.get(option) and not found.get(needed):
            raise UserError(f"--{option} needs --{needed}{value}; set it.")
    if checkpoint.prefer == "best":
        if not checkpoint.best:
            raise UserError("--checkpoint.prefer best needs --checkpoint.best METRIC, such as eval/loss; set it.")
        if training.evaluate_every % (checkpoint.every or training.steps):
            raise UserError(
                f"--checkpoint.prefer best needs a checkpoint at every evaluation, found --checkpoint.every "
                f"{checkpoint.every} and --training.evaluate_every {training.evaluate_every}; set both alike."
            )
    profiled = experiment.training.profile_steps
    if profiled and profiled[-1] > experiment.training.steps:
        raise UserError(
            f"Expected --training.profile_steps within steps 1 to {experiment.training.steps}, found "
            f"{' '.join(map(str, profiled))}; change them."
        )


def _training(experiment: Experiment) -> None:
    """Raise UserError for an optimizer, settings of execution or settings of logging that do not fit any training."""
    training = experiment.training
    if not isinstance(experiment.optimizer, Optimizer):
        raise UserError(
            f"Expected an optimizer of plmjax.training.optimizers in the experiment, found "
            f"{type(experiment.optimizer).__name__}; set one, such as optimizer=BertAdamW()."
        )
    programs.execution(experiment, "cpu")
    if training.matmul_precision != FLOAT:
        raise UserError(
            f"Expected --training.matmul_precision {FLOAT} for a training, found "
            f"{training.matmul_precision}; train, then run plmjax compress quantize."
        )
    programs.check_prng(training.dropout_prng)
    tracking.check(experiment)


def _window(model: ModelConfig, length: int) -> None:
    """Raise UserError if a window of the model is longer than the longest sequence of a run, `length` tokens."""
    if model.widest_window is not None and model.widest_window > length:
        raise UserError(
            f"Expected --model.attention_window of at most the {length} tokens of a sequence, found "
            f"{model.widest_window}; lower it or raise --data.sequence_length."
        )


def _packing(experiment: Experiment, maximum: int, option: str) -> None:
    """Raise UserError if `option` packs up to `maximum` sequences into a row and the model reads only one."""
    if maximum > 1 and not experiment.model.system.packs:
        raise UserError(
            f"Expected {option} 1 for {type(experiment.model).__name__}, which reads one sequence in a row, found "
            f"{maximum}; change it."
        )
