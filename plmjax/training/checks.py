"""Checks of a whole run, before any text is read and any file is written.

A single wrong value is refused where it is set (`plmjax.experiment`). The functions here find values that do not fit
together. The trainer, the plan, the benchmark and the submission of a job all call them.
"""

from collections.abc import Sequence

import jax
from jax.sharding import AbstractMesh

from plmjax.contracts.execution import FLOAT
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data import mixture
from plmjax.errors import UserError, nearest, options_named, quoted
from plmjax.experiment import Data, Experiment
from plmjax.parallel import mesh as meshes
from plmjax.training import evaluation, placement
from plmjax.training import program as programs
from plmjax.training.optimizers import Optimizer


def settings(run: Experiment) -> None:
    """Raise UserError for a run without an optimizer, and for execution settings that are unknown or do not train."""
    if not isinstance(run.optimizer, Optimizer):
        raise UserError(
            f"Expected an optimizer of plmjax.training.optimizers in the experiment, found "
            f"{type(run.optimizer).__name__}; set one, such as optimizer=BertAdamW()."
        )
    programs.execution(run, "cpu")
    if run.training.products != FLOAT:
        raise UserError(
            f"Expected --training.products {FLOAT} for a training, found {run.training.products}; train, then run "
            f"plmjax compress quantize."
        )
    programs.check_generator(run.training.dropout_generator)


def complete(run: Experiment) -> None:
    """Raise UserError for a run on text without a model, an objective or a layout; a checkpoint may provide them."""
    for name, part in (("a model", run.model), ("an objective", run.objective), ("a layout", run.data.layout)):
        if part is None:
            raise UserError(
                f"Expected {name} in the experiment, found none; set it there, or name a run that has one in --from of "
                f"plmjax pretrain."
            )


def pretraining(run: Experiment, devices: int, slices: int = 1) -> None:
    """Check a run on text for a number of devices. Its step is traced for one device; nothing is computed.

    Raises:
        UserError: phases, rows, windows, a batch, a mesh, or names of parameters or metrics do not fit the model, the
            layout or the devices.
    """
    complete(run)
    settings(run)
    packing(run, getattr(run.data.layout, "pack", 1), "--data.layout.pack")
    if run.finetuning is not None:
        raise UserError(
            "Expected no `finetuning` in an experiment of pretraining, found one; leave it out, or run plmjax finetune."
        )
    if run.data.mixture.sources:
        mixture.check_layout(run.data.layout)
    if run.data.layout.backwards != run.model.system.backwards:
        raise UserError(
            f"Expected --data.layout.backwards {run.model.system.backwards}, as the model reads, found "
            f"{run.data.layout.backwards}; set it, or --model.backwards."
        )
    resolved = run.resolved_phases
    windows(run.model, max(phase.sequence_length for phase in resolved))
    for phase in resolved:
        run.model.check_sequence_length(phase.sequence_length)
        evaluated = phase.evaluation.sequence_length
        for length, option in ((phase.sequence_length, ""), (evaluated, programs.EVALUATION_LENGTH)):
            run.data.layout.check(length)
            programs.check_length(run, length, option)
    batches(run, devices, slices)
    first, vocabulary = resolved[0], Vocabulary.placeholder(run.model.vocab_size)
    mesh = jax.sharding.Mesh([[jax.devices()[:1]]], meshes.AXES)
    unigram = evaluation.unigram_nats([], run.model.vocab_size)
    program = programs.build(run, first, mesh, vocabulary, placement.of_layout(run), unigram)
    has_held_out = run.data.path or run.data.mixture.sources or run.data.held_out
    evaluation_settings(run, evaluation.means(program, run.objective.coefficients()) if has_held_out else [])


def windows(model: ModelConfig, length: int) -> None:
    """Raise UserError if a window of the model is longer than the longest rows of a run, `length` tokens."""
    if model.widest_window is not None and model.widest_window > length:
        raise UserError(
            f"Expected --model.attention_window of at most the {length} tokens of a row, found {model.widest_window}; "
            f"lower it or raise --data.sequence_length."
        )


def packing(run: Experiment, maximum: int, option: str) -> None:
    """Raise UserError if `option` sets several sequences per row, and the model reads one sequence per row."""
    if maximum > 1 and not run.model.system.packs:
        raise UserError(
            f"Expected {option} 1 for {type(run.model).__name__}, which reads one sequence in a row, found {maximum}; "
            f"change it."
        )


def batches(run: Experiment, devices: int, slices: int = 1) -> None:
    """Raise UserError unless some allowed mesh gives every device the same number of rows."""
    every = meshes.candidates(run.mesh, devices, slices)
    vocabulary = Vocabulary.placeholder(run.model.vocab_size)
    if len(every) > 1 and placement.even(run, every, vocabulary, placement.of_layout(run)):
        return
    for phase in run.resolved_phases:
        meshes.check_batch(phase.batch_size, phase.accumulation, AbstractMesh(every[0], meshes.AXES))


def text(run: Experiment, has_tokenizer: bool = False) -> None:
    """Raise UserError for text that is missing or named twice, and for a tokenizer that cannot be trained for it.

    has_tokenizer: true if the tokenizer comes from a checkpoint.
    """
    from plmjax.data import cleaning, formats, sentences, tokenizers

    data: Data = run.data
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
                    f"Expected raw text for --data.{name}, found the prepared dataset {prepared}; prepare it again by "
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
    if has_tokenizer or run.tokenizer.path:
        return
    with options_named({"--vocab_size": "--tokenizer.vocab_size", "--special_names": "--data.special_names"}):
        tokenizers.check(run.tokenizer.kind, run.tokenizer.vocab_size, data.special_names)
    if run.tokenizer.vocab_size > run.model.vocab_size:
        raise UserError(
            f"Expected a tokenizer of at most the model's {run.model.vocab_size} tokens, found --tokenizer.vocab_size "
            f"{run.tokenizer.vocab_size}; lower it or raise --model.vocab_size."
        )
    special_tokens(run.model, tokenizers.special_vocabulary(run.tokenizer.kind))


def special_tokens(model: ModelConfig, vocabulary: Vocabulary) -> None:
    """Raise UserError if the padding token, the end token or the separator differs between model and tokenizer.

     Texts of training end with the tokenizer's token. A model that has another end token would, after its export,
    generate without an end.
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


def evaluation_settings(run: Experiment, metrics: Sequence[str]) -> None:
    """Raise UserError for profiled steps or a metric of the best checkpoint that do not exist.

    metrics: names of the metrics of an evaluation.
    """
    training, best = run.training, run.checkpoint.best.removeprefix("-")
    profiled = training.profile_steps
    if profiled and profiled[-1] > training.steps:
        raise UserError(
            f"Expected --training.profile_steps to be a first and a last step within 1 and {training.steps}, found "
            f"{' '.join(map(str, profiled))}; change them."
        )
    known = [f"eval/{name}" for name in metrics]
    if best and not known:
        raise UserError(
            f"Expected held-out text to find the best checkpoint by, found none for --checkpoint.best {best}; hold a "
            f"larger share out when the dataset is prepared, or set --checkpoint.best '' --checkpoint.prefer last."
        )
    if best and best not in known:
        raise UserError(
            f"Expected --checkpoint.best to name a metric of the evaluation, found {quoted(best)}; "
            f"{nearest(best, known)}"
        )
    if not best and (training.patience or run.checkpoint.prefer == "best"):
        raise UserError(
            "Expected --checkpoint.best with --training.patience or --checkpoint.prefer best, found none; name one."
        )
    if run.checkpoint.prefer == "best" and training.evaluate_every % (run.checkpoint.every or training.steps):
        raise UserError(
            f"Expected a checkpoint at every evaluation with --checkpoint.prefer best, found --checkpoint.every "
            f"{run.checkpoint.every} and --training.evaluate_every {training.evaluate_every}; set both alike."
        )
    if training.patience and not training.evaluate_every:
        raise UserError("Expected --training.evaluate_every with --training.patience, found 0; set it.")
