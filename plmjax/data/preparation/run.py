"""Prepares a dataset from raw text, once: converts units on several processes or machines, then joins their files."""

import collections
import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from plmjax.data import cleaning, formats, sentences, store, tensorflow_runtime
from plmjax.data.formats import records
from plmjax.data.preparation import files, output_folder
from plmjax.data.preparation.conversion import Conversion, Sizes
from plmjax.data.preparation.pool import Pool
from plmjax.data.preparation.progress import Bar
from plmjax.data.preparation.units import UNIT_BYTES, Unit, units
from plmjax.data.tokenizers import Tokenizer
from plmjax.data.unknown_tokens import MAX_UNKNOWN, UnknownTokens
from plmjax.errors import UserError
from plmjax.files import storage

VERSION = 3
"""Increased when the same input would give another dataset."""
SIZES = Sizes()


def prepare(
    inputs: Sequence[str | os.PathLike],
    format: str,
    tokenizer: Tokenizer,
    output: str | os.PathLike,
    *,
    validation: float = 0.05,
    language: str = "en",
    text_key: str = "text",
    streams: Mapping[str, str] | None = None,
    fields: Sequence[str] = (),
    split: str = "",
    max_unknown: float = MAX_UNKNOWN,
    clean: Sequence[str] = (),
    bad_words: str | os.PathLike = "",
    special_names: Sequence[str] = (),
    piece_tokens: int | None = None,
    processes: int | None = None,
    runner: str = "",
    runner_options: Sequence[str] = (),
    progress: bool = True,
) -> store.Dataset:
    """Prepare `inputs` (files or folders) into the folder `output` and open it.

    The split of a document is given by a hash of its sentences. So it does not depend on the document's place, and
    copies of a document are in the same split. A published corpus has its own splits, and its text is kept exactly. If
    `output` is a dataset made from the same input and settings, it is opened.

    Args:
        format: one of `formats.FORMATS` or tfds:NAME.
        validation: fraction of the documents kept for evaluation.
        language: one of `sentences.LANGUAGES`, for splitting sentences.
        text_key: key of the text in a JSON object, a row of a table or an example of TFDS.
        streams: name of a stream -> the key of its text in a record, for a dataset with several texts per document.
        fields: keys of numbers in a record that are kept with its document.
        split: the only split of a published corpus to prepare, as text without splits of its own.
        max_unknown: fraction of unknown tokens above which the tokenizer is refused as one of another language or
            script.
        clean: rules of `cleaning.RULES` and sets of `cleaning.SETS`, applied in this order.
        bad_words: a file with a word or a phrase per line, for the rule of bad words.
        special_names: names of special tokens, such as <|endoftext|>, that are read as these tokens in a text. Names of
            tokens without a role (`Tokenizer`) always are; other names are plain text.
        piece_tokens: minimum number of tokens of a record, the part of a dataset in a bucket that is read at once; None
            takes 4,194,304. A record holds whole documents.
        processes: number of processes that tokenize; None uses one per core.
        runner: a runner of Apache Beam that takes the place of the processes (see `plmjax.data.beam`).
        runner_options: options of Beam, NAME=VALUE or NAME.

    Raises:
        UserError: unreadable input, no document in it, too many unknown tokens, a full disk, an `output` that holds
            something else, a name that no special token has, or a runner that is not installed.
    """
    tensorflow_runtime.require("describes a prepared dataset, for TensorFlow Datasets too")
    output = storage.path(output)
    sentences.check(language)
    _check_numbers(validation, processes, piece_tokens)
    unknown = UnknownTokens(tokenizer.vocabulary, max_unknown)
    tokenizer = tokenizer.with_parsed_names(special_names)
    if fields and not streams:
        streams = {store.TEXT: text_key}
    parts = records.Parts(streams, tuple(fields)) if streams else None
    store.check_names(streams or (), fields)
    cleaner = cleaning.cleaner(clean, bad_words=bad_words, language=language, format=format, parts=parts)
    sources = formats.sources(inputs, format, split)
    description = {"preparation": VERSION, "format": format, "language": language, "validation": validation}
    description |= {"text_key": text_key, "streams": dict(streams or {}), "fields": list(fields)}
    description |= {"split": split} if split else {}
    description |= {"special_names": [*tokenizer.names_read.values()]} if tokenizer.names_read else {}
    description |= {"piece_tokens": piece_tokens} if piece_tokens else {}
    description |= cleaner.description
    show = print if progress else _show_nothing
    if output_folder.is_finished(output, sources, description, tokenizer):
        output_folder.tidy_after_kill(output)
        show(f"dataset    {output} was prepared before from the same text; nothing to do")
        return _show_counts(store.open_dataset(output), show)
    if format == "auto":
        show(_formats([storage.path(source["path"]) for source in sources]))

    # Convert the units, and join their files in one dataset.
    source = formats.Input(tuple(map(os.fspath, inputs)), format, text_key, parts, split, formats.declared(format))
    made_from = output_folder.digest(sources, description, tokenizer)
    how = (language, validation, max_unknown, cleaner, piece_tokens, SIZES, made_from)
    conversion = Conversion(source, tokenizer, *how)
    total = sum(entry["bytes"] for entry in sources)
    report = cleaner.report()
    workers = {"runner": runner, "runner_options": runner_options}
    with (
        _explain_full_disk(output),
        Pool(conversion, output, processes or os.cpu_count() or 1, **workers) as pool,
        output_folder.lock(output, made_from),
        Bar(total, progress) as bar,
    ):
        all_units = units(source, total, UNIT_BYTES)
        shards, unigrams = _shards(conversion, all_units, output, pool=pool, report=report, unknown=unknown, bar=bar)
        if not bar.tokens:
            raise _nothing_prepared(sources, format, report)
        report.tokens = bar.tokens
        reports = {cleaning.REPORT: json.dumps(report.to_json(), indent=1, ensure_ascii=False)} if clean else {}
        kept = {"sources": sources, "description": description, "reports": reports, "unigrams": unigrams}
        store.finish(output, shards, tokenizer, **kept)

    show(unknown)
    if names := report.special_names():
        show(names)
    if clean:
        show(report)
    dataset = _show_counts(store.open_dataset(output), show)
    documents = {name: dataset.split(name, dataset.streams[0]).documents for name in store.SPLITS}
    if validation and not documents["validation"]:
        show(_nothing_held_out(documents["train"], validation))
    return dataset


def _check_numbers(validation: float, processes: int | None, piece_tokens: int | None) -> None:
    if not 0 <= validation < 1:
        raise UserError(f"Expected a fraction of validation documents from 0 up to 1, found {validation}; try 0.05.")
    if processes is not None and processes < 1:
        raise UserError(f"Expected at least one process, found {processes}; leave it out for one a core.")
    if piece_tokens is not None and piece_tokens < 1:
        raise UserError(
            f"Expected pieces of at least one token, found {piece_tokens}; raise the number or leave it out."
        )


@contextlib.contextmanager
def _explain_full_disk(output: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        lack = storage.out_of_space(error)
        if lack is None:
            raise
        raise UserError(f"Expected room for the dataset in {output}, found {lack[0]}; {lack[1]} and repeat.") from error


def _show_nothing(line: object) -> None:
    """Replace `print` if no progress is shown."""


def _show_counts(dataset: store.Dataset, show: Callable[[object], None]) -> store.Dataset:
    for line in counts(dataset):
        show(line)
    return dataset


RECOGNISED = 20
"""Number of files whose formats are shown."""


def _formats(paths: Sequence[Path]) -> str:
    """Return a line with the formats of the first files."""
    found = collections.Counter(map(formats.format_of, paths[:RECOGNISED]))
    shown = ", ".join(f"{name} ({count})" if len(found) > 1 else name for name, count in found.most_common())
    which = f"the first {RECOGNISED} of {len(paths):,} files" if len(paths) > RECOGNISED else "every file"
    return f"format     {shown}, recognised by the beginning of {which}"


def counts(dataset: store.Dataset) -> Iterator[str]:
    """Yield a line with the documents, sentences and tokens of every split and stream."""
    for name in store.SPLITS:
        for stream in dataset.streams:
            split = dataset.split(name, stream)
            which = f" of {stream}" if len(dataset.streams) > 1 else ""
            numbers = f"{split.sentences:,} sentences, {split.token_count:,} tokens{which}"
            yield f"{name:<10} {split.documents:,} documents, {numbers}"


def _shards(
    conversion: Conversion,
    all_units: list[Unit],
    output: Path,
    *,
    pool: Pool,
    report: cleaning.Report,
    unknown: UnknownTokens,
    bar: Bar,
) -> tuple[dict[str, list[dict]], dict[str, np.ndarray]]:
    """Convert all units. Return the records of the shards by split, and the training text's unigram counts by stream.

    report, unknown: receive the counts of the units, in order.
    """
    stages = [number for number, stage in enumerate(conversion.cleaner.stages) if stage.last]
    for number in stages:
        for unit in pool.run(Conversion.screen, all_units, (output, number), progress=bar, reads=number == 0):
            seal = files.folder(output, unit.index) / files.screened_file(number)
            report.add(files.counts(seal, conversion.made_from))
        _compare(conversion, len(all_units), output, number=number, pool=pool)
    shards: dict[str, list[dict]] = {split: [] for split in store.SPLITS}
    unigrams: dict[str, np.ndarray] = {}
    tokens = 0
    for unit in pool.run(Conversion.write, all_units, (output,), progress=bar, reads=not stages):
        folder = files.folder(output, unit.index)
        found = files.counts(folder / files.WRITTEN, conversion.made_from)
        report.add(found["counts"])
        unknown.count, unknown.total = unknown.count + found["unknown"][0], unknown.total + found["unknown"][1]
        if unknown.total >= conversion.sizes.judged_tokens:
            unknown.check()
        for split, records_of_unit in found["shards"].items():
            for record in records_of_unit:
                name = storage.plain_name(record["file"], folder / files.WRITTEN)
                file = f"{files.FOLDER}/{folder.name}/{name}"
                shards[split].append(record | {"file": file, "index": len(shards[split])})
                tokens += sum(stream["tokens"] for stream in record["streams"].values())
        bar.tokens = tokens  # tokens from other processes or an earlier run were not added yet
        with (folder / files.UNIGRAM).open("rb") as file, np.load(file) as counts:
            for stream in counts.files:
                unigrams[stream] = unigrams.get(stream, 0) + counts[stream]
    unknown.check()
    return shards, unigrams


def _compare(conversion: Conversion, units: int, output: Path, *, number: int, pool: Pool) -> None:
    """Find the repeated parts of the documents of all units, for the last rule of a stage."""
    folders = [files.folder(output, unit) for unit in range(units)]
    if all(files.is_sealed(files.repeated_file(folder, number), conversion.made_from) for folder in folders):
        return
    hashes = sum(int(files.lengths(files.keys_file(folder, number)).sum()) for folder in folders)
    parts = max(1, -(-hashes // conversion.sizes.compared_keys))
    pool.compare([(output, number, units, (part, parts)) for part in range(parts)])
    conversion.join(output, number, units, parts)


def _nothing_prepared(sources: list[dict], format: str, report: cleaning.Report) -> UserError:
    names = ", ".join(source["path"] for source in sources[:3])
    if report.read.documents:
        return report.nothing_left(names)
    return UserError(f"Expected documents in {names}, found no running text; check the --format ({format}).")


def _nothing_held_out(documents: int, validation: float) -> str:
    """Return a one-line warning about a dataset without held-out text."""
    enough = min(0.5, 5 / documents)
    advice = f"hold out a larger share, such as {enough:.2g}" if documents > 1 and enough > validation else "add text"
    return (
        f"held-out   nothing: a share of {validation:g} of {documents:,} document{'s' * (documents != 1)} is drawn by "
        f"a hash of the text, and no document was drawn; training on this dataset has no evaluation, so {advice}, or "
        f"split the text into more documents by blank lines"
    )
