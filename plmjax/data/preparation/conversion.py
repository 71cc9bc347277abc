"""The functions that convert a unit: raw documents to cleaned documents, and cleaned documents to files of tokens.

They depend only on their arguments and files of the preparation. So any process can call them, also repeatedly.
"""

import collections
import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from plmjax.data import cleaning, formats, sentences, store
from plmjax.data.cleaning.repeated import find_repeated, part_of
from plmjax.data.preparation import files
from plmjax.data.preparation.progress import Progress
from plmjax.data.preparation.units import Unit
from plmjax.data.tokenizers import Tokenizer
from plmjax.data.unknown_tokens import UnknownTokens
from plmjax.files import seals, storage


class Sizes(NamedTuple):
    """Sizes of the parts of a preparation.

    batch_characters: characters of the documents that are tokenized at once.
    shard_tokens: number of tokens after which a unit begins another file.
    judged_tokens: number of tokens of the first unit after which the fraction of unknown tokens is checked.
    compared_keys: number of hashes that a process compares at once, which takes 32 bytes each.
    """

    batch_characters: int = 1 << 19
    shard_tokens: int = 1 << 25
    judged_tokens: int = 100_000
    compared_keys: int = 1 << 25


class Tokenized(NamedTuple):
    """Concatenated documents: the tokens of every stream, and for every field one number per document."""

    texts: dict[str, store.Tokens]
    fields: dict[str, np.ndarray]


class Converted(NamedTuple):
    """A batch of documents as tokens of each split, and the counts of the rules on it (`Report.counts`)."""

    splits: dict[str, Tokenized]
    counts: dict[str, Any]


Results = Callable[[Callable, Iterable[tuple]], Iterator[Any]]
"""Yields function(conversion, *task) for every task, in order."""


@dataclasses.dataclass(frozen=True)
class Conversion:
    """The settings that a process needs to convert a unit.

    Attributes:
        source: the raw text.
        validation: fraction of the documents to hold out for evaluation.
        max_unknown: fraction of unknown tokens above which the tokenizer is refused.
        piece_tokens: minimum number of tokens of a record; None takes the default of `store.ShardWriter`.
        made_from: digest of all inputs of the dataset.
    """

    source: formats.Input
    tokenizer: Tokenizer
    language: str
    validation: float
    max_unknown: float
    cleaner: cleaning.Cleaner
    piece_tokens: int | None = None
    sizes: Sizes = Sizes()
    made_from: str = ""

    # ------------------------------------------------------------------------------------------------------- units

    def screen(
        self,
        unit: Unit,
        output: Path,
        number: int,
        *,
        progress: Progress = Progress(),
        results: Results | None = None,
    ) -> None:
        """Write the documents of a unit after a stage of the cleaning, and the keys for the last rule of the stage.

        Args:
            output: folder of the dataset.
            number: the stage. The repetitions that the last rule of the previous stage finds in the unit must be known.
            progress: receives the bytes read from the input, and the tokens made.
            results: calls methods on batches in several processes; None uses this process.

        Raises:
            UserError: unreadable input.
        """
        folder = files.folder(output, unit.index)
        if files.is_screened(folder, number, self.made_from):
            return
        report = self.cleaner.report()
        batches = self._batches(self._documents(unit, folder, number, report=report, progress=progress))
        keys: list[np.ndarray] = []

        def kept() -> Iterator[formats.Document]:
            for found in (results or self._here)(Conversion.screen_batch, ((number, batch) for batch in batches)):
                self._count(report, number, found)
                keys.extend(found.keys)
                yield from found.documents

        with storage.output(folder, last=files.screened_file(number)) as local:
            local.mkdir(parents=True, exist_ok=True)
            files.write_documents(files.documents_file(local, number), kept())
            files.write_arrays(files.keys_file(local, number), keys, np.uint64)
            names = [make(local, number).name for make in (files.documents_file, files.keys_file)]
            seals.write(local / files.screened_file(number), self.made_from, names, report.counts())
        if number:
            storage.remove(files.documents_file(folder, number - 1))

    def compare(self, output: Path, number: int, units: int, part: tuple[int, int]) -> None:
        """Find the repeated keys of one part of all keys, for the last rule of a stage, and write a mask for each unit.

        Args:
            output: folder of the dataset.
            units: number of units, each with its keys.
            part: the part, from 0 on, and the number of parts.
        """
        path = files.part_file(output, number, *part)
        if files.is_sealed(path, self.made_from):
            return
        chosen, (index, parts) = [], part
        for unit in range(units):
            keys, _ = self._keys(files.folder(output, unit), number)
            chosen.append(keys[part_of(keys, parts) == index])
        found = files.split(find_repeated(np.concatenate(chosen)), np.array([len(keys) for keys in chosen]))
        files.write_arrays(path, [np.packbits(bits) for bits in found], np.uint8)
        seals.write(files.seal_of(path), self.made_from, [path.name])

    def join(self, output: Path, number: int, units: int, parts: int) -> None:
        """Combine the masks of all parts of the keys, and write for each unit a mask of repeated document parts."""
        paths = [files.part_file(output, number, part, parts) for part in range(parts)]
        bits = zip(*map(files.arrays, paths), strict=True)  # for each unit, the bits of every part
        for unit, found in zip(range(units), bits, strict=True):
            folder = files.folder(output, unit)
            keys, counts = self._keys(folder, number)
            part = part_of(keys, parts)
            sizes = np.bincount(part, minlength=parts)
            occurred = np.empty(len(keys), bool)
            occurred[np.argsort(part, kind="stable")] = np.concatenate(
                [np.unpackbits(packed, count=size) for packed, size in zip(found, sizes.tolist(), strict=True)]
            )
            repeated_file = files.repeated_file(folder, number)
            files.write_arrays(repeated_file, files.split(occurred, counts), bool)
            seals.write(files.seal_of(repeated_file), self.made_from, [repeated_file.name])
        for path in paths:
            storage.remove(path)
            storage.remove(files.seal_of(path))

    def _keys(self, folder: Path, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the keys of a unit for the last rule of a stage, uint64 [N, width], and their number per document."""
        width = self.cleaner.stages[number].last.width
        values, lengths = files.concatenate(files.keys_file(folder, number))
        return values.reshape(-1, width), lengths // width

    def write(
        self,
        unit: Unit,
        output: Path,
        progress: Progress = Progress(),
        results: Results | None = None,
    ) -> None:
        """Write the tokens of a unit. Its arguments are described in `screen`.

        Raises:
            UserError: unreadable input, or too many unknown tokens in the first unit.
        """
        folder = files.folder(output, unit.index)
        if files.is_written(folder, self.made_from):
            return
        report = self.cleaner.report()
        last = len(self.cleaner.stages)
        if last and self.cleaner.stages[-1].last is None:
            last -= 1  # The rules of the last stage need no other documents.
        documents = self._batches(self._documents(unit, folder, last, report=report, progress=progress))
        unknown = UnknownTokens(self.tokenizer.vocabulary, self.max_unknown)
        converted = (results or self._here)(Conversion.convert_batch, ((last, batch) for batch in documents))
        with storage.output(folder, last=files.WRITTEN) as local:
            batches = self._check_unknown(converted, report, unknown, first=unit.index == 0, progress=progress)
            shards = self._write(batches, local)
            unigram = store.unigram(shards["train"])
            with (local / files.UNIGRAM).open("wb") as file:
                np.savez(file, **unigram)
            records = {
                split: [{key: value for key, value in record.items() if key != "unigram"} for record in found]
                for split, found in shards.items()
            }
            found = {"shards": records, "unknown": [unknown.count, unknown.total], "counts": report.counts()}
            names = [record["file"] for own in records.values() for record in own if record["pieces"]]
            seals.write(local / files.WRITTEN, self.made_from, [*names, files.UNIGRAM], found)

    def _documents(
        self, unit: Unit, folder: Path, number: int, *, report: cleaning.Report, progress: Progress
    ) -> Iterator[formats.Document]:
        """Yield the documents of a unit that enter a stage."""
        if number == 0:
            for part in unit.ranges:
                yield from self.source.documents(part, progress.advance)
            return
        before = number - 1
        effect = report.effects[self.cleaner.stages[before].end]
        found = files.documents(folder, before), files.arrays(files.repeated_file(folder, before))
        yield from self.cleaner.without_repeated(before, *found, effect)

    def _batches(self, documents: Iterable[formats.Document]) -> Iterator[list[formats.Document]]:
        batch, size = [], 0
        for document in documents:
            batch.append(document)
            size += len(document.text)
            if size >= self.sizes.batch_characters:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _here(self, function: Callable, tasks: Iterable[tuple]) -> Iterator[Any]:
        return (function(self, *task) for task in tasks)

    def _count(self, report: cleaning.Report, number: int, found: cleaning.Screened) -> None:
        """Add the counts of a batch to the report."""
        if number == 0:
            report.read.add(*found.first)
        stage = self.cleaner.stages[number]
        for effect, more in zip(report.effects[stage.start : stage.end], found.effects, strict=True):
            effect.add(more)

    def _check_unknown(
        self,
        converted: Iterator[Converted],
        report: cleaning.Report,
        unknown: UnknownTokens,
        *,
        first: bool,
        progress: Progress,
    ) -> Iterator[dict[str, Tokenized]]:
        """Yield the batches. In the first unit, check early for too many unknown tokens, because hours may follow."""
        for splits, counts in converted:
            for tokens in itertools.chain.from_iterable(part.texts.values() for part in splits.values()):
                unknown.add(tokens.ids)
                progress.add_tokens(len(tokens.ids))
            if first and unknown.total >= self.sizes.judged_tokens:
                unknown.check()
            report.add(counts)
            yield splits

    def _write(self, batches: Iterator[dict[str, Tokenized]], folder: Path) -> dict[str, list[dict]]:
        """Write tokens to files as batches arrive, and return the files' records by split."""
        folder.mkdir(parents=True, exist_ok=True)
        shards: dict[str, list[dict]] = {split: [] for split in store.SPLITS}
        writers: dict[str, store.ShardWriter] = {}
        written = dict.fromkeys(store.SPLITS, 0)
        for batch in batches:
            for split, part in batch.items():
                if split not in writers:
                    size, index = self.tokenizer.vocabulary.size, len(shards[split])
                    writers[split] = store.ShardWriter(
                        folder,
                        split,
                        index,
                        vocab_size=size,
                        streams=tuple(part.texts),
                        fields=tuple(part.fields),
                        piece_tokens=self.piece_tokens,
                    )
                for run in _runs(part, self.piece_tokens):
                    writers[split].extend(run.texts, run.fields)
                written[split] += sum(len(tokens.ids) for tokens in part.texts.values())
                if written[split] >= self.sizes.shard_tokens:
                    shards[split].append(writers.pop(split).close())
                    written[split] = 0
        for split, writer in writers.items():
            shards[split].append(writer.close())
        return shards

    # ----------------------------------------------------------------------------------------------------- batches

    def screen_batch(self, number: int, documents: list[formats.Document]) -> cleaning.Screened:
        """Apply the rules of a stage of the cleaning to a batch."""
        return self.cleaner.screen(number, documents)

    def convert_batch(self, number: int, documents: list[formats.Document]) -> Converted:
        """Tokenize a batch, after the rules of stage `number` if there is such a stage.

        A document is left out if one of its streams has no token.
        """
        report = self.cleaner.report()
        if number < len(self.cleaner.stages):
            found = self.cleaner.screen(number, documents)
            self._count(report, number, found)
            documents = found.documents
        report.kept.add(len(documents), sum(len(document.text) for document in documents))
        tokenized = self._tokenize(documents, report)
        return Converted(tokenized, report.counts())

    def _tokenize(self, documents: list[formats.Document], report: cleaning.Report) -> dict[str, Tokenized]:
        splits: dict[str, list[tuple[dict[str, list[str]], list[float]]]] = collections.defaultdict(list)
        for document in documents:
            texts, fields = self._read(document)
            report.names.update(self.tokenizer.names_in(itertools.chain.from_iterable(texts.values())))
            if all(texts.values()):
                document_sentences = [sentence for text in texts.values() for sentence in text]
                split = document.split or split_of(document_sentences, self.validation)
                splits[split].append((texts, fields))
        tokenized = {split: self._encode_documents(found) for split, found in splits.items()}
        names = self.tokenizer.names_read
        for tokens in (
            itertools.chain.from_iterable(part.texts.values() for part in tokenized.values()) if names else ()
        ):
            report.names_read.update(names[index] for index in tokens.ids[np.isin(tokens.ids, [*names])].tolist())
        return {split: part for split, part in tokenized.items() if len(next(iter(part.texts.values())).ids)}

    def _read(self, document: formats.Document) -> tuple[dict[str, list[str]], list[float]]:
        """Return the sentences of every stream of a document, and its numbers."""
        parts = self.source.parts
        if self._exact:
            return {store.TEXT: formats.prose(document)}, []
        if parts is None:
            return {store.TEXT: sentences.split(formats.prose(document), self.language)}, []
        paragraphs = formats.streams_of(document, parts)
        texts = {stream: sentences.split(text, self.language) for stream, text in paragraphs.items()}
        return texts, formats.fields_of(document, parts)

    @property
    def _exact(self) -> bool:
        return formats.is_exact(self.source.format)

    def _encode_documents(self, documents: list[tuple[dict[str, list[str]], list[float]]]) -> Tokenized:
        streams = tuple(documents[0][0])
        encoded = {stream: self._encode([texts[stream] for texts, _ in documents]) for stream in streams}
        # If any text of a document has no token, the document is left out of every stream.
        kept = np.all([tokens.document_lengths > 0 for tokens in encoded.values()], axis=0)
        numbers = np.array([fields for _, fields in documents])[kept]
        names = self.source.parts.fields if self.source.parts else ()
        return Tokenized(
            {stream: _select(tokens, kept) for stream, tokens in encoded.items()},
            dict(zip(names, numbers.T, strict=True)),
        )

    def _encode(self, documents: list[list[str]]) -> store.Tokens:
        """Return the tokens of documents. A document without tokens has length 0."""
        # Every sentence except the first gets a space before it, so that byte-level tokens equal those of the whole
        # text. Lines of an exact text have their own ends.
        space = "" if self._exact else " "
        spaced = [sentence if n == 0 else f"{space}{sentence}" for text in documents for n, sentence in enumerate(text)]
        ids, lengths = self.tokenizer.encode_arrays(spaced)
        starts = np.cumsum([0, *(len(text) for text in documents[:-1])])
        counts = np.add.reduceat(lengths > 0, starts, dtype=np.int32)
        dtype = store.token_dtype(self.tokenizer.vocabulary.size)
        return store.Tokens(ids.astype(dtype), lengths[lengths > 0], counts)


def _select(tokens: store.Tokens, kept: np.ndarray) -> store.Tokens:
    """Return the documents where `kept` is true, bool [documents]."""
    if kept.all():
        return tokens
    sentence = np.repeat(kept, tokens.document_lengths)
    ids = tokens.ids[np.repeat(sentence, tokens.sentence_lengths)]
    return store.Tokens(ids, tokens.sentence_lengths[sentence], tokens.document_lengths[kept])


def _runs(part: Tokenized, tokens: int | None) -> Iterator[Tokenized]:
    """Split a batch between documents into parts of about `tokens` tokens; None yields the whole batch."""
    if tokens is None:
        yield part
        return
    # stream -> (first sentence, first token) of every document, and the ends
    starts = {}
    for stream, text in part.texts.items():
        first = np.cumsum([0, *text.document_lengths])
        starts[stream] = first, np.cumsum([0, *text.sentence_lengths])[first]
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


def split_of(text: Sequence[str], validation: float) -> str:
    """Return the split of a document from a hash of its sentences.

    A fraction `validation` of all documents is held out.
    """
    digest = hashlib.blake2b("\n".join(text).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return "validation" if int.from_bytes(digest, "little") < validation * 2**64 else "train"
