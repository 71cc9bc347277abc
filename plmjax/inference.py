"""What a checkpoint can be asked: how good it is, and what it puts in place of [MASK].

A checkpoint brings its model's config and its tokenizer along; nothing else of the run is needed, but for the held-out
data of an evaluation. Rows are padded to one of a few lengths and always as many are computed at once, so that the
numbers of a text do not depend on what else is asked.
"""

import dataclasses
import functools
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from plmjax import experiment as experiments
from plmjax import storage
from plmjax.errors import UserError, quoted
from plmjax.experiment import Data, Experiment
from plmjax.finetuning import run as finetuning
from plmjax.finetuning.evaluation import TaskEvaluation
from plmjax.finetuning.sentences import join
from plmjax.finetuning.source import TaskSource
from plmjax.finetuning.task import Examples, Task
from plmjax.parallel import mesh as meshes
from plmjax.training import checkpoints, feed, phases, start, step
from plmjax.training.checkpoints import Description
from plmjax.training.evaluation import HeldOut, unigram_nats
from plmjax.training.metrics import perplexity
from plmjax.training.step import Program

MASK = "[MASK]"
"""How a user writes the token to fill in, whatever the tokenizer's own is."""


# ------------------------------------------------------------------------------------------------------ evaluate


def evaluate(
    checkpoint: str | Path, data: str | Path | None = None, output: str | Path | None = None
) -> dict[str, float]:
    """How good a checkpoint is on its run's held-out data, or on `data`.

    A pretraining checkpoint is given a prepared dataset (its validation split) or raw text (all of it) and answers with
    "eval/loss" (nats a target), "eval/perplexity", "eval/unigram_entropy" and the rest of its objective's metrics. A
    fine-tuned one is given a file of labelled examples like its validation file and answers with "eval/loss" and the
    task's metrics.

    `output` is a folder for evaluation.json and, of a task, its predictions, which without it go to
    WORKDIR/evaluations/NAME, by the name of the file.

    Raises:
        UserError: no checkpoint, no data, or data that does not fit it.
    """
    directory = checkpoints.find(checkpoint)
    description = checkpoints.describe(directory)
    data = None if data is None else storage.path(data)
    run = description.experiment
    predictions: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as scratch:
        if isinstance(run.data, Task):
            examples, source = _task_source(description, data)
            output = output or _evaluations(directory) / Path(examples.path).name.split(".")[0]
            judge: Any = TaskEvaluation(run.objective, examples, source)
        elif isinstance(run.data, Data):
            source = _text_source(description, directory, data, Path(scratch))
            judge = HeldOut(source, run.training.seed, run.objective.coefficients())
        else:
            raise UserError(f"Expected a run on text or on a task, found one on {type(run.data).__name__}.")
        program = program_of(run, source)
        params, _ = checkpoints.load_parameters(directory, program.state.params)
        metrics = {f"eval/{name}": value for name, value in judge(program, params).items()}
        if isinstance(run.data, Task):
            predictions = judge.predictions
        else:
            metrics["eval/perplexity"] = perplexity(metrics["eval/loss"])
    if output is not None:
        storage.path(output).mkdir(parents=True, exist_ok=True)
        finetuning.write(storage.path(output), metrics, predictions)
    return metrics


def _evaluations(checkpoint: Path) -> Path:
    """The folder of a run's evaluations."""
    within = checkpoint.parent
    return (within.parent if within.name == "checkpoints" else within) / "evaluations"


def program_of(run: Experiment, source: feed.Source) -> Program:
    """The program of the run's last phase on the devices that are here."""
    mesh = meshes.make(experiments.Mesh(), jax.local_devices())
    phase = phases.resolve(run)[-1]
    rows = -(-phase.batch_size // (mesh.size * phase.accumulation)) * mesh.size
    phase = dataclasses.replace(phase, batch_size=rows, accumulation=1)
    unigram = unigram_nats(source.unigram_counts, run.model.vocab_size)
    return step.build(run, phase, mesh, source.vocabulary, source.batch(phase), unigram)


def _task_source(description: Description, data: Path | None) -> tuple[Examples, TaskSource]:
    run = description.experiment
    if data is not None:
        run = dataclasses.replace(run, data=dataclasses.replace(run.data, validation=str(data), folder=""))
    tokenizer = start.tokenizer_of(description)
    examples = run.data.read("validation")
    rows = finetuning.rows(run, examples, tokenizer)
    return examples, TaskSource(rows, rows, tokenizer.vocabulary, run.training.seed)


def _text_source(description: Description, directory: Path, data: Path | None, scratch: Path) -> feed.Source:
    """The run's dataset, another one, or raw text, prepared here."""
    from plmjax.data import pipeline, store
    from plmjax.data.prepare import prepare

    run, tokenizer = description.experiment, start.tokenizer_of(description)
    own = storage.path(run.data.path) if run.data.path else directory.parent.parent / "dataset"
    if data is None or (data / store.LEDGER).exists():
        if data is None and not own.exists():
            raise UserError(f"Expected the run's dataset at {own}, found none; give held-out text in --data.")
        dataset = store.open_dataset(data or own, vocab_size=run.model.vocab_size)
        if dataset.tokenizer_fingerprint != tokenizer.fingerprint:
            raise UserError(
                f"Expected a dataset made with the checkpoint's tokenizer, found {dataset.directory} made with "
                f"another; prepare it with {directory.parent.parent / 'tokenizer'}."
            )
    else:
        dataset = prepare(
            [data],
            "auto",
            tokenizer,
            scratch / "dataset",
            validation=0,
            language=run.data.language,
            text_key=run.data.text_key,
            max_unknown=1,  # what is asked is how good the model is on this text
            progress=False,
        )
        everything = dataset.split("train")
        dataset.split = lambda name: everything  # the run has seen none of it
    source = pipeline.open_source(run.data, dataset, tokenizer.vocabulary, seed=run.training.seed)
    return source


# ------------------------------------------------------------------------------------------------ rows of lines


def _width(length: int, longest: int) -> int:
    """The width that rows of this length are padded to: 16, 24, 32, 48, 64, 96, ... up to the model's positions."""
    power = 1 << max(length - 1, 8).bit_length()
    return min(power * 3 // 4 if power > 16 and length <= power * 3 // 4 else power, longest)


def batches(
    rows: list[list[int]], longest: int, batch_size: int, pad: int
) -> Iterator[tuple[list[int], dict[str, jax.Array]]]:
    """(which rows, their inputs) of batches of rows that are padded to the same width, shortest first.

    Every batch has `batch_size` rows; those that are left over are copies of the last.
    """
    widths = [_width(len(row), longest) for row in rows]
    for width in sorted(set(widths)):
        members = [row for row, own in enumerate(widths) if own == width]
        for first in range(0, len(members), batch_size):
            chosen = members[first : first + batch_size]
            filled = chosen + chosen[-1:] * (batch_size - len(chosen))
            ids = np.full((batch_size, width), pad, np.int32)
            for place, row in enumerate(filled):
                ids[place, : len(rows[row])] = rows[row]
            mask = np.arange(width) < np.array([[len(rows[row])] for row in filled])
            yield chosen, {"input_ids": jnp.asarray(ids), "attention_mask": jnp.asarray(mask)}


def inputs(
    config: Any, tokenizer: Any, texts: Sequence[str | tuple[str, str]], length: int = 0
) -> dict[str, jax.Array]:
    """What a model is called with for texts or pairs of texts: `model.apply({"params": params}, **inputs(...))`.

    config: of the model. tokenizer: a plmjax.data.tokenizers.Tokenizer. length: tokens of every row; 0 takes those of
    the longest text. A text too long for it, or for the model, is cut as in fine-tuning.

    Returns:
        input_ids and token_type_ids int32 [B T], 1 for the second text of a pair; attention_mask bool [B T].

    Raises:
        UserError: no text, a length that the model has no positions for, or a tokenizer without [CLS] and [SEP].
    """
    if not texts:
        raise UserError("Expected one or more texts, found none; give a list of them.")
    if length > config.longest:
        raise UserError(f"Expected rows of at most the model's {config.longest} positions, found {length}; shorten it.")
    check_special(tokenizer, "cls", "sep")
    given = [(text,) if isinstance(text, str) else tuple(text) for text in texts]
    pieces = iter(tokenizer.encode_batch([part for text in given for part in text]))
    separators = getattr(config, "pair_separators", 1)
    rows = [
        join([next(pieces) for _ in text], length or config.longest, tokenizer.vocabulary, separators) for text in given
    ]
    width = length or max(len(row) for row, _ in rows)
    ids = np.full((len(rows), width), max(tokenizer.vocabulary.pad, 0), np.int32)
    for place, (row, _) in enumerate(rows):
        ids[place, : len(row)] = row
    columns, lengths = np.arange(width), np.array([[len(row)] for row, _ in rows])
    seconds = (columns >= np.array([[second] for _, second in rows])) & (columns < lengths)
    fields = {"input_ids": ids, "attention_mask": columns < lengths, "token_type_ids": seconds.astype(np.int32)}
    return {name: jnp.asarray(field) for name, field in fields.items()}


# ----------------------------------------------------------------------------------------------------- fill-mask


def fill_mask(checkpoint: str | Path, text: str, top: int = 5) -> list[list[tuple[str, float]]]:
    """For every [MASK] of a text, the `top` likeliest tokens as they read, with their probabilities, best first.

    Raises:
        UserError: no [MASK], too long a text, or a checkpoint that is not of a masked language model.
    """
    from plmjax.data.readable import readable

    params, description = checkpoints.load_parameters(checkpoint)
    run, tokenizer = description.experiment, start.tokenizer_of(description)
    if not hasattr(run.model, "for_masked_language_model"):
        raise UserError(f"Expected a masked language model in {checkpoint}, found {type(run.model).__name__}.")
    check_special(tokenizer, "cls", "sep", "mask")
    vocabulary, longest = tokenizer.vocabulary, run.model.longest
    if top < 1 or top > vocabulary.size:
        raise UserError(f"Expected --top from 1 to the {vocabulary.size} tokens, found {top}.")
    ids = tokenizer.encode(text.replace(MASK, tokenizer.tokens([vocabulary.mask])[0]))
    if vocabulary.mask not in ids:
        raise UserError(
            f"Expected a text with one or more {MASK}, found none in {quoted(text)}; write {MASK} for a word."
        )
    if len(ids) + 2 > longest:
        raise UserError(f"Expected a text of at most {longest - 2} tokens, found {len(ids)}; shorten it.")
    row, _ = join([ids], longest, vocabulary)
    module = run.model.for_masked_language_model(step.execution(run, jax.default_backend()))
    _, batch = next(batches([row], longest, 1, max(vocabulary.pad, 0)))
    hint = "it is no masked language model; take the run that it was fine-tuned from"
    check_parameters(module, params, batch, checkpoint, hint)
    places = np.flatnonzero(np.array(row) == vocabulary.mask)
    logits = np.asarray(_logits(module, params, batch))[0, places, : vocabulary.size].astype(np.float64)
    probabilities = np.exp(logits - logits.max(axis=-1, keepdims=True))
    probabilities /= probabilities.sum(axis=-1, keepdims=True)
    best = np.argsort(-probabilities, axis=-1, kind="stable")[:, :top]
    return [
        list(zip(readable(tokenizer, chosen.tolist()), shares[chosen].tolist(), strict=True))
        for chosen, shares in zip(best, probabilities, strict=True)
    ]


@functools.partial(jax.jit, static_argnames="module")
def _logits(module: nn.Module, params: Any, batch: dict[str, jax.Array]) -> jax.Array:
    return module.apply({"params": params}, **batch).logits


def check_parameters(module: nn.Module, params: Any, batch: dict[str, jax.Array], checkpoint: Path, hint: str) -> None:
    """Raises UserError that names the first parameter of the module that a checkpoint lacks."""
    expected = jax.eval_shape(lambda: module.init(jax.random.key(0), **batch)["params"])
    wanted, found = (flax.traverse_util.flatten_dict(nn.meta.unbox(tree), sep="/") for tree in (expected, params))
    for name in sorted(wanted.keys() - found.keys()):
        raise UserError(f"Expected a checkpoint with {name}, found none in {checkpoint}: {hint}.")


def check_special(tokenizer: Any, *names: str) -> None:
    for name in names:
        if getattr(tokenizer.vocabulary, name) < 0:
            raise UserError(f"Expected a tokenizer with a token {quoted(name)} in the checkpoint, found none.")
