"""Evaluate a checkpoint on held-out text, or on labeled examples of a task."""

import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plmjax.data.unknown_tokens import MAX_UNKNOWN, UnknownTokens
from plmjax.errors import UserError, options_named
from plmjax.experiment import Data, Experiment
from plmjax.files import storage
from plmjax.finetuning import inputs
from plmjax.finetuning.batches.source import TaskSource
from plmjax.finetuning.evaluation import TaskEvaluation
from plmjax.finetuning.tasks.task import Examples, Task
from plmjax.inference import members, perplexity, task_settings
from plmjax.inference.program import adapted_program, program_of
from plmjax.objectives.capabilities import LanguageModel, ReadsDirections, ReadsPrefix
from plmjax.objectives.objective import LossInputs
from plmjax.training.checkpoints import checkpoints
from plmjax.training.checkpoints.checkpoints import Description
from plmjax.training.evaluation import HeldOut
from plmjax.training.feed import BatchSource
from plmjax.training.metrics import perplexity as exponential
from plmjax.training.metrics import write_evaluation
from plmjax.training.program import Program

TEXT_OPTIONS = {
    **{f"--{name}": f"--data.{name}" for name in ("format", "streams", "text_key", "special_names")},
    "--input": "--data",
    "--data.sequence_length": "--window",
    "--data.layout.overlap": "--stride",
}
"""Options of commands that read text, and of a run on text -> their names in this command."""
TASK_OPTIONS = {"--data.validation": "--data"}
"""Options of a run on a task -> their names in this command."""


def evaluate(
    checkpoint: str | Path,
    data: str | Path | None = None,
    output: str | Path | None = None,
    *,
    ensemble: Sequence[str | Path] = (),
    window: int | None = None,
    stride: int | None = None,
    memory: int | None = None,
    split: str | None = None,
    max_unknown: float | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Evaluate a checkpoint on its run's held-out data, or on `data`.

    For a pretraining checkpoint, `data` is a prepared dataset (its validation split) or raw text (all of it, of a
    published corpus one split). The result has "eval/loss", "eval/unigram_entropy" and the other metrics of its
    objective. It has "eval/perplexity" if the loss is the mean nats of tokens over the vocabulary.

    For a fine-tuned checkpoint, `data` is a file of labeled examples like its validation file; for a run on a mixture
    it is NAME=FILE, a file of the task NAME. The result has "eval/loss" and the metrics of the task, for a mixture
    "eval/TASK/METRIC" and "eval/mean", and for BLEU and similar metrics also their signatures.

    A language model reads raw text in rows of `window` tokens. Each row scores `stride` further tokens
    (`perplexity.sliding`). The defaults are the run's row length and stride. If either is given, the run's held-out
    data is read in the same way. The result then has "eval/window", "eval/stride" and "eval/tokens", the number of
    scored tokens. For raw text it also has "eval/bits_per_byte", "eval/bits_per_character" and "eval/word_perplexity";
    "eval/bytes", "eval/characters" and "eval/words", counted before any normalization (`TextSize`); and
    "eval/lowercased", true if the tokenizer drops capital letters. A bidirectional language model has the perplexity
    and the bits of each direction, "eval/forward_perplexity", "eval/backward_bits_per_byte" and so on; "eval/tokens" is
    the number for one direction.

    Every result has "eval/unknown_tokens", the number of tokens that the tokenizer maps to the unknown token. Their
    nats and bits do not measure the original text, and many unknown tokens make a text look easy to a model.

    A prefix language model has a prefix with bidirectional attention. For rows of its own run the prefix is drawn as in
    training. For rows of a window it is the part before the first scored token. The result names it, "eval/prefix".

    Args:
        output: folder for evaluation.json and, for a task, its predictions. By default a task writes them to
            WORKDIR/evaluations/NAME, by the name of the file, or for an ensemble NAME_with_RUN for its further runs.
        memory: number of tokens that a model with a memory remembers; by default that of its run's evaluations.
        split: split of a published corpus to read, "train", "validation" or "test"; by default validation.
        ensemble: further runs on the same task, whose predictions are averaged with those of this run. The result has
            the metrics of the task and no loss.
        max_unknown: largest fraction of unknown tokens of raw text or of examples; 0.2 by default. A prepared dataset
            was checked when it was prepared.
        settings: settings of the task that change how the file is read (`text="review"`, `label="stars"`); of the
            objective, how a prediction is chosen; of a run on text, how raw text is read (`text_key="body"`). One that
            has the name of another argument is given by its full name: `**{"data.stride": 32}`.

    Raises:
        UserError: no checkpoint, no data, data that does not fit it, too many unknown tokens, or a window, a stride, a
            split or a setting that does not fit.
    """
    directory = checkpoints.find(checkpoint)
    description = checkpoints.describe(directory)
    settings = task_settings.full_names(description.experiment, settings, labelled=True)
    run = task_settings.with_settings(description.experiment, settings, labelled=True)
    limit = MAX_UNKNOWN if max_unknown is None else max_unknown
    signatures: dict[str, str] = {}
    predictions: dict[str, str] = {}
    for name, value in {"window": window, "stride": stride, "memory": memory, "split": split}.items():
        if value is not None and isinstance(run.data, Task):
            own = f", or give --data.{name}" if name in run.data.settings(labelled=True) else ""
            raise UserError(
                f"Expected a run on text for --{name}, found one on a task in {checkpoint}; leave it out{own}."
            )
    if memory is not None:
        run = perplexity.remembering(run, memory)
    if window is not None or stride is not None:
        perplexity.language_model(run)
    if ensemble and not isinstance(run.data, Task):
        raise UserError(f"Expected a run on a task for --ensemble, found {checkpoint}; leave --ensemble out.")
    if isinstance(run.data, Task) and ensemble:
        if data is not None:
            run = dataclasses.replace(run, data=run.data.evaluated_on(str(data)))
        first = members.Member(directory, run, limit)
        runs = [first, *members.further_members(first, ensemble, limit)]
        examples = _examples(run)
        names = "".join(f"_with_{Path(other).name}" for other in ensemble)
        output = output or _evaluations(directory) / f"{Path(examples.path).name.split('.')[0]}{names}"
        metrics, predictions = run.objective.answer(examples, *members.average_predictions(runs, examples))
        metrics |= {"unknown_tokens": first.unknown.count}
    elif isinstance(run.data, Task):
        tokenizer = description.load_tokenizer()
        if data is not None:
            run = dataclasses.replace(run, data=run.data.evaluated_on(str(data)))
        examples, source = _task_source(run, tokenizer)
        unknown = UnknownTokens(tokenizer.vocabulary, limit)
        source.validation_rows.encoded.count(unknown)
        unknown.check()
        output = output or _evaluations(directory) / Path(examples.path).name.split(".")[0]
        evaluation = TaskEvaluation(run, examples, source, tokenizer)
        program = program_of(run, source)
        metrics = evaluation(program, _loss_inputs(directory, program)) | {"unknown_tokens": unknown.count}
        signatures, predictions = evaluation.signatures(), evaluation.predictions
    elif isinstance(run.data, Data):
        text = None if data is None else storage.path(data)
        raw = text is not None and not _is_prepared(text)
        changed = [f"--{name}" for name in settings] + ([] if max_unknown is None else ["--max_unknown"])
        if changed and not raw:
            raise UserError(
                f"Expected raw text in --data for {changed[0]}, found {data or 'none'}; leave {changed[0]} out, as a "
                f"prepared dataset cannot be changed."
            )
        if raw:  # its format may differ from that of the run's own text
            run = dataclasses.replace(
                run, data=dataclasses.replace(run.data, format=settings.get("data.format", "auto"))
            )
        split = _split(split, run.data.format if raw else "")
        described = dataclasses.replace(description, experiment=run)
        with options_named(TEXT_OPTIONS):
            metrics = _of_text(described, directory, text, window, stride, memory, split, limit)
    else:
        raise UserError(
            f"Expected a run on text or on a task, found one on {type(run.data).__name__}; name another run."
        )
    metrics = {f"eval/{name}": value for name, value in metrics.items()} | signatures
    if output is not None:
        storage.path(output).mkdir(parents=True, exist_ok=True)
        write_evaluation(storage.path(output), metrics, predictions)
    return metrics


def settings_of(checkpoint: str | Path, options: Sequence[str]) -> dict[str, Any]:
    """Return the settings of `evaluate` from command-line options such as `--data.label stars`.

    Raises:
        UserError: an option that does not change how a file is read or scored, or a value of the wrong type.
    """
    if not options:
        return {}
    run = checkpoints.describe(checkpoints.find(checkpoint)).experiment
    return task_settings.from_options(run, options, "plmjax evaluate", labelled=True)


def _of_text(
    description: Description,
    directory: Path,
    data: Path | None,
    window: int | None,
    stride: int | None,
    memory: int | None,
    split: str,
    max_unknown: float,
) -> dict[str, Any]:
    """Return the mean metrics of the objective on a run's held-out text, on a prepared dataset or on raw text.

    split: split of a published corpus, "" for other text.
    """
    run = description.experiment
    raw = data is not None and not _is_prepared(data)
    slides = window is not None or stride is not None or (raw and isinstance(run.objective, LanguageModel))
    if slides:
        run = perplexity.sliding(run, window, stride)
    with tempfile.TemporaryDirectory() as scratch:
        tokenizer = description.load_tokenizer()
        source, datasets = _source(run, tokenizer, directory, data, Path(scratch), split, max_unknown)
        for dataset in datasets:
            if raw and slides:
                perplexity.check_length(dataset, data)
            if memory is not None:
                perplexity.check_memory(dataset, memory)
        evaluation = HeldOut.of(run, source)
        program = program_of(run, source)
        inputs = _loss_inputs(directory, program)
        totals = evaluation.totals(adapted_program(program, run, source, inputs.params), inputs)
        metrics: dict[str, Any] = evaluation.means(totals)
        metrics |= {"perplexity": exponential(metrics["loss"])} if run.objective.perplexity else {}
        metrics |= {"prefix": run.objective.prefix} if isinstance(run.objective, ReadsPrefix) else {}
        directions = run.objective.directions if isinstance(run.objective, ReadsDirections) else ()
        ways = {f"{way}_": totals[f"{way}_nats"] for way in directions}
        if slides:
            ways, length = {"": totals["loss"]}, run.data.sequence_length
            metrics |= {"window": length, "stride": length - run.data.layout.overlap}
        size = _size(run, data, split) if raw and ways else None
        for prefix, (nats, tokens) in ways.items():
            metrics |= {"tokens": round(tokens), f"{prefix}perplexity": exponential(nats / tokens)}
            if size is not None:
                metrics |= {f"{prefix}{name}": value for name, value in perplexity.by_size(nats, size).items()}
        if size is not None:
            metrics |= dataclasses.asdict(size) | {"lowercased": perplexity.lowercases(tokenizer)}
        metrics["unknown_tokens"] = sum(perplexity.unknown_tokens(tokenizer, dataset).count for dataset in datasets)
    return metrics


def _split(split: str | None, format: str) -> str:
    """Return the split of a published corpus to read, "" for other text.

    format: format of the raw text; "" if there is none.
    """
    from plmjax.data import formats

    if format in formats.CORPORA:
        return split or "validation"
    if split is not None:
        raise UserError(
            f"Expected a published corpus in --data for --split, with --data.format {' or '.join(formats.CORPORA)}, "
            f"found {f'the format {format}' if format else 'no raw text'}; name its format, or leave --split out."
        )
    return ""


def _evaluations(checkpoint: Path) -> Path:
    """Return the folder of a run's evaluations."""
    within = checkpoint.parent
    return (within.parent if within.name == "checkpoints" else within) / "evaluations"


def _task_source(run: Experiment, tokenizer: Any) -> tuple[Examples, TaskSource]:
    examples = _examples(run)
    rows = inputs.rows(run, examples, tokenizer)
    return examples, TaskSource([rows], rows, tokenizer.vocabulary, run.training.seed)


def _examples(run: Experiment) -> Examples:
    with options_named(TASK_OPTIONS):
        return run.data.read("validation")


def _loss_inputs(directory: Path, program: Program) -> LossInputs:
    return checkpoints.load_loss_inputs(directory, program.state).replace(carry=program.start_evaluation_carry())


def _is_prepared(data: Path) -> bool:
    from plmjax.data import store

    return (data / store.LEDGER).exists()


def _source(
    run: Experiment, tokenizer: Any, directory: Path, data: Path | None, scratch: Path, split: str, max_unknown: float
) -> tuple[BatchSource, list[Any]]:
    """Return (rows of the run's text or of another one, their datasets, each a plmjax.data.store.Dataset)."""
    from plmjax.data import mixture, pipeline

    layout, vocabulary, seed = run.data.layout, tokenizer.vocabulary, run.training.seed
    if data is not None or not run.data.mixture.sources:
        dataset = _dataset(run, tokenizer, directory, data, scratch, split, max_unknown)
        return pipeline.DatasetSource(layout, dataset, vocabulary, seed), [dataset]
    datasets = mixture.open_sources(run.data.mixture, run.data.cache_bytes, run.model.vocab_size)
    for dataset in datasets.values():
        _check_tokenizer(dataset, tokenizer, directory)
    source = mixture.source_of(layout, run.data.mixture, datasets, vocabulary, seed, run.data.shuffle_window)
    return source, list(datasets.values())


def _check_tokenizer(dataset: Any, tokenizer: Any, directory: Path) -> None:
    advice = f"prepare it with {directory.parent.parent / 'tokenizer'}"
    dataset.check_tokenizer(tokenizer.fingerprint, "the checkpoint's", advice)


def _dataset(
    run: Experiment, tokenizer: Any, directory: Path, data: Path | None, scratch: Path, split: str, max_unknown: float
) -> Any:
    """Return the run's dataset (plmjax.data.store.Dataset), another one, or one prepared here from raw text."""
    from plmjax.data import remote
    from plmjax.data.formats import records
    from plmjax.data.preparation import prepare

    own = storage.path(run.data.path) if run.data.path else directory.parent.parent / "dataset"
    if data is None or _is_prepared(data):
        if data is None and not own.exists():
            raise UserError(f"Expected the run's dataset at {own}, found none; give held-out text in --data.")
        limit = run.data.cache_bytes if data is None else None
        dataset = remote.open_dataset(data or own, limit, vocab_size=run.model.vocab_size)
        _check_tokenizer(dataset, tokenizer, directory)
        return dataset
    dataset = prepare(
        [data],
        run.data.format,
        tokenizer,
        scratch / "dataset",
        validation=0,
        language=run.data.language,
        text_key=run.data.text_key,
        streams=records.streams(run.data.streams),
        split=split,
        max_unknown=max_unknown,
        special_names=run.data.special_names,
        progress=False,
    )
    return dataset.all_held_out()  # the run has not seen any of it


def _size(run: Experiment, data: Path, split: str) -> Any:
    """Return the size of raw text (plmjax.data.text_size.TextSize)."""
    from plmjax.data import store, text_size
    from plmjax.data.formats import records

    key = records.streams(run.data.streams).get(store.TEXT, run.data.text_key)
    return text_size.measure([data], run.data.format, key, split)
