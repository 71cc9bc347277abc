"""Prepare a dataset from raw text, once, on all cores: read, clean, split into sentences, tokenize, write.

One process reads the stream and cuts it into batches of raw documents. Other processes convert a batch into token ids.
The first process writes the results in the order of reading. So the result does not depend on the number of processes,
and memory holds only a few batches at any time, for any size of the input.
"""

import collections
import contextlib
import hashlib
import itertools
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from plmjax import json_text, locks, storage
from plmjax.data import checksums, cleaning, formats, sentences, store
from plmjax.data.formats import records
from plmjax.data.tokenizers import Tokenizer
from plmjax.data.unknown_tokens import MAX_UNKNOWN, UnknownTokens
from plmjax.data.workers import WAITING, Workers
from plmjax.errors import UserError

VERSION = 2
"""Increased when the same input would give another dataset."""
BATCH_CHARACTERS = 1 << 19
SHARD_TOKENS = 1 << 25
JUDGED_TOKENS = 100_000
"""Number of tokens after which the share of unknown tokens is first checked; then after every batch, and at the end."""
BEGUN = "begun.json"
"""File in the output folder from the start. It marks the folder as ours, and as unfinished while there is no ledger."""


class Tokenized(NamedTuple):
    """Concatenated documents: the tokens of every stream, and for every field one number per document."""

    texts: dict[str, store.Tokens]
    fields: dict[str, np.ndarray]


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
    piece_tokens: int | None = None,
    processes: int | None = None,
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
        piece_tokens: least number of tokens of a record, the part of a dataset in a bucket that is read at once; None
            takes 4,194,304. A record holds whole documents.
        processes: number of processes that tokenize; None uses one per core.

    Raises:
        UserError: unreadable input, no document in it, too many unknown tokens, a full disk, or an `output` that holds
            something else.
    """
    output = storage.path(output)
    sentences.check(language)
    if not 0 <= validation < 1:
        raise UserError(f"Expected a share of validation documents from 0 up to 1, found {validation}; try 0.05.")
    if processes is not None and processes < 1:
        raise UserError(f"Expected at least one process, found {processes}; leave it out for one a core.")
    if piece_tokens is not None and piece_tokens < 1:
        raise UserError(
            f"Expected pieces of at least one token, found {piece_tokens}; raise the number or leave it out."
        )
    unknown = UnknownTokens(tokenizer.vocabulary, max_unknown)
    if fields and not streams:
        streams = {store.TEXT: text_key}
    parts = records.Parts(streams, tuple(fields)) if streams else None
    store.check_names(streams or (), fields)
    cleaner = cleaning.cleaner(clean, bad_words, language, format, parts)
    sources = formats.sources(inputs, format, split)
    description = {"preparation": VERSION, "format": format, "language": language, "validation": validation}
    description |= {"text_key": text_key, "streams": dict(streams or {}), "fields": list(fields)}
    description |= {"split": split} if split else {}
    description |= {"piece_tokens": piece_tokens} if piece_tokens else {}
    description |= cleaner.description
    if _is_finished(output, sources, description, tokenizer):
        if progress:
            print(f"dataset    {output} was prepared before from the same text; nothing to do")
        return store.open_dataset(output)
    try:
        work = _Work(tokenizer, language, validation, parts, formats.is_exact(format), cleaner)
        report = cleaner.report()
        with (
            _locked(output),
            storage.output(output, last=store.LEDGER) as folder,
            _Bar(sum(source["bytes"] for source in sources), progress) as bar,
        ):
            batches = _batches(formats.documents(inputs, format, bar.advance, text_key, parts, split))
            tokenized = _tokenized(batches, work, report, processes or os.cpu_count() or 1)
            tokenized = _without_many_unknown(tokenized, unknown)
            shards = _write(tokenized, folder, work, piece_tokens, bar)
            if not bar.tokens:
                raise _nothing_prepared(sources, format, report)
            report.tokens = bar.tokens
            if clean:
                storage.write(folder / cleaning.REPORT, json.dumps(report.to_json(), indent=1, ensure_ascii=False))
            store.finish(folder, shards, tokenizer, sources, description, [cleaning.REPORT] if clean else [])
    except OSError as error:
        lack = storage.out_of_space(error)
        if lack is None:
            raise
        raise UserError(f"Expected room for the dataset in {output}, found {lack[0]}; {lack[1]} and repeat.") from error
    dataset = store.open_dataset(output)
    if progress:
        print(unknown)
    if progress and clean:
        print(report)
    documents = {name: dataset.split(name, dataset.streams[0]).documents for name in store.SPLITS}
    if progress and validation and not documents["validation"]:
        print(_nothing_held_out(documents["train"], validation))
    return dataset


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


# ------------------------------------------------------------------------------------------------- the output folder


def _is_finished(output: Path, sources: list[dict], description: dict, tokenizer: Tokenizer) -> bool:
    """Return whether `output` holds exactly this dataset, complete. Raise UserError if it holds another one."""
    if not (output / store.LEDGER).is_file():
        return False
    try:
        ledger = json_text.parse(storage.contents(output / store.LEDGER))
        json_text.check(ledger, {"sources": [{str: object}], "description": {str: object}, "tokenizer": {str: object}})
        known = [_content(source) for source in ledger["sources"]], ledger["description"], ledger["tokenizer"]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"Expected a ledger in {output}, found a damaged one; remove the folder and repeat.") from error
    differing = [
        name
        for name, same in (
            ("text", known[0] == [_content(source) for source in sources]),
            ("tokenizer", known[2].get("fingerprint") == tokenizer.fingerprint),
            # A key that only one of them has is a difference too, such as the rules of a cleaning.
            *((key, known[1].get(key) == description.get(key)) for key in {**description, **known[1]}),
        )
        if not same
    ]
    if differing:
        raise UserError(
            f"Expected {output} to be new or made from the same, found a finished dataset with another "
            f"{', another '.join(differing)}; name another output or remove it."
        )
    try:
        store.open_dataset(output)
    except UserError:  # damaged since: made again
        return False
    return True


def _content(source: dict) -> dict:
    """Return the entries of a source that determine the dataset. A moved file is the same text."""
    return {key: value for key, value in source.items() if key != "path" or "sha256" not in source}


@contextlib.contextmanager
def _locked(output: Path) -> Iterator[None]:
    """Lock and clear the output folder. Files of an earlier attempt are removed; other files are an error."""
    with locks.locked(output):
        _clear(output)
        yield
        (output / BEGUN).unlink()


def _clear(output: Path) -> None:
    ours = (output / BEGUN).is_file() or (output / store.LEDGER).is_file()
    if not ours and any(path.name != locks.NAME for path in output.iterdir()):
        raise UserError(f"Expected a new or empty folder for the dataset, found files in {output}; name another.")
    storage.write(output / BEGUN, "{}\n")
    for path in output.iterdir():
        generated = (
            path.name.startswith((store.LEDGER, "corpus-"))
            or path.suffix == ".npy"
            or path.name in (*store.TFDS_METADATA, cleaning.REPORT)
        )
        if path.name in ("tokenizer", checksums.FOLDER) or generated:
            storage.remove(path)


def _without_many_unknown(
    batches: Iterator[dict[str, Tokenized]], unknown: UnknownTokens
) -> Iterator[dict[str, Tokenized]]:
    """Yield the batches while not too many of their tokens are unknown. The check starts early, as hours may follow."""
    for batch in batches:
        for tokens in itertools.chain.from_iterable(part.texts.values() for part in batch.values()):
            unknown.add(tokens.ids)
        if unknown.total >= JUDGED_TOKENS:
            unknown.check()
        yield batch
    unknown.check()


def _write(
    batches: Iterator[dict[str, Tokenized]], output: Path, work: "_Work", piece_tokens: int | None, bar: "_Bar"
) -> dict[str, list[dict]]:
    """Write tokens to shards of `SHARD_TOKENS` as they come. Return the shards' records by split."""
    shards: dict[str, list[dict]] = {split: [] for split in store.SPLITS}
    writers: dict[str, store.ShardWriter] = {}
    written = dict.fromkeys(store.SPLITS, 0)
    for batch in batches:
        for split, part in batch.items():
            if split not in writers:
                size, index = work.tokenizer.vocabulary.size, len(shards[split])
                names = tuple(part.texts), tuple(part.fields)
                writers[split] = store.ShardWriter(output, split, index, size, *names, piece_tokens)
            for run in _runs(part, piece_tokens):
                writers[split].extend(run.texts, run.fields)
            count = sum(len(tokens.ids) for tokens in part.texts.values())
            written[split] += count
            bar.tokens += count
            if written[split] >= SHARD_TOKENS:
                shards[split].append(writers.pop(split).close())
                written[split] = 0
    for split, writer in writers.items():
        shards[split].append(writer.close())
    return shards


def _runs(part: Tokenized, tokens: int | None) -> Iterator[Tokenized]:
    """Yield the documents of a batch in runs of about `tokens` tokens, or all at once if it is None."""
    if tokens is None:
        yield part
        return
    # stream -> (first sentence, first token) of every document, and the ends
    starts = {}
    for stream, text in part.texts.items():
        sentences = np.cumsum([0, *text.document_lengths])
        starts[stream] = sentences, np.cumsum([0, *text.sentence_lengths])[sentences]
    ends = sum(first for _, first in starts.values())[1:]
    cuts = np.unique([0, *np.searchsorted(ends, np.arange(tokens, ends[-1], tokens)) + 1, len(ends)]).tolist()
    for begin, end in itertools.pairwise(cuts):
        texts = {}
        for stream, text in part.texts.items():
            (s, t), (s_end, t_end) = ([int(first[place]) for first in starts[stream]] for place in (begin, end))
            texts[stream] = store.Tokens(
                text.ids[t:t_end], text.sentence_lengths[s:s_end], text.document_lengths[begin:end]
            )
        yield Tokenized(texts, {name: numbers[begin:end] for name, numbers in part.fields.items()})


# ------------------------------------------------------------------------------------------------------ the work


class _Work(NamedTuple):
    """The data that a process needs to convert raw documents into tokens."""

    tokenizer: Tokenizer
    language: str
    validation: float
    parts: records.Parts | None
    exact: bool
    cleaner: cleaning.Cleaner

    def screen(self, stage: int, documents: list[formats.Document]) -> cleaning.Screened:
        """Apply the rules of a stage of the cleaning to a batch."""
        return self.cleaner.screen(stage, documents)

    def __call__(self, documents: list[formats.Document]) -> dict[str, Tokenized]:
        """Return the tokens of a batch by split. Documents with a stream without tokens are left out."""
        splits: dict[str, list[tuple[dict[str, list[str]], list[float]]]] = collections.defaultdict(list)
        for document in documents:
            texts, fields = self._read(document)
            if all(texts.values()):
                document_sentences = [sentence for text in texts.values() for sentence in text]
                split = document.split or split_of(document_sentences, self.validation)
                splits[split].append((texts, fields))
        tokenized = {split: self._tokenized(found) for split, found in splits.items()}
        return {split: part for split, part in tokenized.items() if len(next(iter(part.texts.values())).ids)}

    def _read(self, document: formats.Document) -> tuple[dict[str, list[str]], list[float]]:
        """Return the sentences of every stream of a document, and its numbers."""
        if self.exact:
            return {store.TEXT: formats.prose(document)}, []
        if self.parts is None:
            return {store.TEXT: sentences.split(formats.prose(document), self.language)}, []
        paragraphs = formats.streams_of(document, self.parts)
        texts = {stream: sentences.split(text, self.language) for stream, text in paragraphs.items()}
        return texts, formats.fields_of(document, self.parts)

    def _tokenized(self, documents: list[tuple[dict[str, list[str]], list[float]]]) -> Tokenized:
        streams = tuple(documents[0][0])
        encoded = {stream: self._encode([texts[stream] for texts, _ in documents]) for stream in streams}
        # If any text of a document has no token, the document is left out of every stream.
        kept = np.all([tokens.document_lengths > 0 for tokens in encoded.values()], axis=0)
        numbers = np.array([fields for _, fields in documents])[kept]
        names = self.parts.fields if self.parts else ()
        return Tokenized(
            {stream: _selected(tokens, kept) for stream, tokens in encoded.items()},
            dict(zip(names, numbers.T, strict=True)),
        )

    def _encode(self, documents: list[list[str]]) -> store.Tokens:
        """Return the tokens of documents. A document without tokens has length 0."""
        # Every sentence except the first gets a space before it, so that byte-level tokens equal those of the whole
        # text. Lines of an exact text have their own ends.
        space = "" if self.exact else " "
        spaced = [sentence if n == 0 else f"{space}{sentence}" for text in documents for n, sentence in enumerate(text)]
        ids, lengths = self.tokenizer.encode_arrays(spaced)
        starts = np.cumsum([0, *(len(text) for text in documents[:-1])])
        counts = np.add.reduceat(lengths > 0, starts, dtype=np.int32)
        dtype = store.token_dtype(self.tokenizer.vocabulary.size)
        return store.Tokens(ids.astype(dtype), lengths[lengths > 0], counts)


def _selected(tokens: store.Tokens, kept: np.ndarray) -> store.Tokens:
    """Return the documents where `kept` is true, bool [documents]."""
    if kept.all():
        return tokens
    sentence = np.repeat(kept, tokens.document_lengths)
    ids = tokens.ids[np.repeat(sentence, tokens.sentence_lengths)]
    return store.Tokens(ids, tokens.sentence_lengths[sentence], tokens.document_lengths[kept])


def split_of(text: Sequence[str], validation: float) -> str:
    """Return the split of a document from a hash of its sentences.

    A fraction `validation` of all documents is held out.
    """
    digest = hashlib.blake2b("\n".join(text).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return "validation" if int.from_bytes(digest, "little") < validation * 2**64 else "train"


def _batches(documents: Iterable[formats.Document]) -> Iterator[list[formats.Document]]:
    batch, size = [], 0
    for document in documents:
        batch.append(document)
        size += len(document.text)
        if size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _tokenized(
    batches: Iterator[list[formats.Document]], work: _Work, report: cleaning.Report, processes: int
) -> Iterator[dict[str, Tokenized]]:
    """Yield the tokens of every batch, in order. A text of only a few batches uses a single process.

    report: gets the counts of the cleaning.
    """
    first = list(itertools.islice(batches, WAITING * processes))
    batches = itertools.chain(first, batches)
    if len(first) < WAITING * processes:
        processes = 1
    advice = "repeat with fewer processes (plmjax prepare --processes)"
    with Workers(processes, _Work, *work, doing="tokenizing", advice=advice) as workers:
        if work.cleaner.names:

            def screened(stage: int, batches: Iterator[list[formats.Document]]) -> Iterator[cleaning.Screened]:
                return workers.results(_Work.screen, ((stage, batch) for batch in batches))

            batches = _batches(work.cleaner.clean(batches, screened, report))
        yield from workers.results(_Work.__call__, ((batch,) for batch in batches))


# ----------------------------------------------------------------------------------------------------- progress


class _Bar:
    """Shows bytes read and tokens made so far: a progress bar on a terminal, a line every ten seconds in a log."""

    def __init__(self, total: int, shown: bool):
        self.tokens = 0
        self._done, self._total = 0, total
        self._shown = shown
        self._start = self._last = time.monotonic()
        self._stack = contextlib.ExitStack()
        self._rich = None

    def __enter__(self) -> "_Bar":
        if self._shown and sys.stderr.isatty():
            from rich import progress
            from rich.console import Console

            columns = (
                progress.TextColumn("prepare"),
                progress.BarColumn(),
                progress.DownloadColumn(),
                progress.TransferSpeedColumn(),
                progress.TextColumn("{task.fields[tokens]:,} tokens"),
                progress.TimeRemainingColumn(),
            )
            self._rich = self._stack.enter_context(progress.Progress(*columns, console=Console(stderr=True)))
            self._task = self._rich.add_task("prepare", total=self._total or None, tokens=0)
        return self

    def __exit__(self, *error) -> None:
        if self._rich is not None:
            self._rich.update(self._task, completed=self._done, tokens=self.tokens)
        self._stack.close()

    def advance(self, count: int) -> None:
        """Add `count` to the number of bytes read."""
        self._done += count
        if self._rich is not None:
            self._rich.update(self._task, completed=self._done, tokens=self.tokens)
        elif self._shown and (now := time.monotonic()) - self._last >= 10:
            self._last = now
            share = f" of {self._total / 1e6:,.1f}" if self._total else ""
            rate = self.tokens / (now - self._start)
            print(
                f"prepare    {self._done / 1e6:,.1f}{share} MB  {self.tokens:,} tokens  {rate:,.0f} tokens/s",
                flush=True,
            )
