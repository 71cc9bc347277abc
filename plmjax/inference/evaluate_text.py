"""Evaluate a pretrained checkpoint on the held-out text of its run, on a prepared dataset, or on raw text."""

import dataclasses
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plmjax.data.unknown_tokens import MAX_UNKNOWN
from plmjax.errors import UserError, options_named
from plmjax.experiment import Experiment
from plmjax.files import storage
from plmjax.inference import perplexity
from plmjax.inference.program import adapted_program, program_of
from plmjax.objectives.capabilities import LanguageModel, ReadsDirections, ReadsPrefix
from plmjax.training.checkpoints import checkpoints
from plmjax.training.checkpoints.checkpoints import Description
from plmjax.training.evaluation import HeldOut
from plmjax.training.feed import BatchSource
from plmjax.training.metrics import perplexity as exponential

TEXT_OPTIONS = {
    **{f"--{name}": f"--data.{name}" for name in ("format", "streams", "text_key", "special_names")},
    "--input": "--data",
    "--data.sequence_length": "--window",
    "--data.layout.overlap": "--stride",
}
"""Options of other commands and of a run on text -> their names in `plmjax evaluate`, for error messages."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """The arguments of `plmjax.inference.evaluate` that choose a text and how it is read; None if not given."""

    window: int | None
    stride: int | None
    memory: int | None
    split: str | None
    max_unknown: float | None
    settings: Mapping[str, Any]


def evaluate(
    run: Experiment, description: Description, directory: Path, *, data: str | Path | None, choice: Choice
) -> dict[str, Any]:
    """Return the mean metrics of the objective. The arguments are those of `plmjax.inference.evaluate`.

    run: the experiment of the checkpoint in `directory`, with settings that a user may have changed.
    """
    memory, window, stride = choice.memory, choice.window, choice.stride
    if memory is not None:
        run = perplexity.with_memory(run, memory)
    if window is not None or stride is not None:
        perplexity.language_model(run)
    text = None if data is None else storage.path(data)
    raw = text is not None and not _is_prepared(text)
    changed = [f"--{name}" for name in choice.settings] + ([] if choice.max_unknown is None else ["--max_unknown"])
    if changed and not raw:
        raise UserError(
            f"{changed[0]} needs raw text in --data, found {data or 'none'}; leave {changed[0]} out, as a prepared "
            f"dataset cannot be changed."
        )
    if raw:  # its format may differ from that of the run's own text
        own = dataclasses.replace(run.data, format=choice.settings.get("data.format", "auto"))
        run = dataclasses.replace(run, data=own)
    split = _split(choice.split, run.data.format if raw else "")
    max_unknown = MAX_UNKNOWN if choice.max_unknown is None else choice.max_unknown
    with options_named(TEXT_OPTIONS):
        metrics = _metrics(run, description, directory, data=text, split=split, max_unknown=max_unknown, choice=choice)
    return {f"eval/{name}": value for name, value in metrics.items()}


def _metrics(
    run: Experiment,
    description: Description,
    directory: Path,
    *,
    data: Path | None,
    split: str,
    max_unknown: float,
    choice: Choice,
) -> dict[str, Any]:
    """Return the metrics of a text. split: split of a published corpus, "" for other text."""
    window, stride, memory = choice.window, choice.stride, choice.memory
    raw = data is not None and not _is_prepared(data)
    slides = window is not None or stride is not None or (raw and isinstance(run.objective, LanguageModel))
    if slides:
        run = perplexity.with_sliding_window(run, window, stride)
    with tempfile.TemporaryDirectory() as scratch:
        tokenizer = description.load_tokenizer()
        source, datasets = _source(
            run, tokenizer, directory, data=data, scratch=Path(scratch), split=split, max_unknown=max_unknown
        )
        for dataset in datasets:
            if raw and slides:
                perplexity.check_length(dataset, data)
            if memory is not None:
                perplexity.check_memory(dataset, memory)
        evaluation = HeldOut.of(run, source)
        program = program_of(run, source)
        inputs = checkpoints.load_loss_inputs(directory, program.state)
        inputs = inputs.replace(carry=program.start_evaluation_carry())
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

    format: format of the raw text; "" for a prepared dataset.
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


def _is_prepared(data: Path) -> bool:
    from plmjax.data import store

    return (data / store.MANIFEST).exists()


def _source(
    run: Experiment,
    tokenizer: Any,
    directory: Path,
    *,
    data: Path | None,
    scratch: Path,
    split: str,
    max_unknown: float,
) -> tuple[BatchSource, list[Any]]:
    """Return (rows of the run's text or of `data`, their datasets, each a plmjax.data.store.Dataset)."""
    from plmjax.data import mixture, pipeline

    layout, vocabulary, seed = run.data.layout, tokenizer.vocabulary, run.training.seed
    if data is not None or not run.data.mixture.sources:
        dataset = _dataset(run, tokenizer, directory, data=data, scratch=scratch, split=split, max_unknown=max_unknown)
        return pipeline.DatasetSource(layout, dataset, vocabulary, seed), [dataset]
    datasets = mixture.open_sources(run.data.mixture, run.data.cache_bytes, run.model.vocab_size)
    for dataset in datasets.values():
        _check_tokenizer(dataset, tokenizer, directory)
    source = mixture.new_source(
        layout, run.data.mixture, datasets, vocabulary=vocabulary, seed=seed, window=run.data.shuffle_window
    )
    return source, list(datasets.values())


def _check_tokenizer(dataset: Any, tokenizer: Any, directory: Path) -> None:
    advice = f"prepare it with {directory.parent.parent / 'tokenizer'}"
    dataset.check_tokenizer(tokenizer.fingerprint, "the checkpoint's", advice)


def _dataset(
    run: Experiment,
    tokenizer: Any,
    directory: Path,
    *,
    data: Path | None,
    scratch: Path,
    split: str,
    max_unknown: float,
) -> Any:
    """Return the run's plmjax.data.store.Dataset, the prepared dataset `data`, or one prepared here from raw text."""
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
