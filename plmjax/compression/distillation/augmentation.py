"""TinyBERT's data augmentation: words of a task's texts are replaced (Jiao et al. 2020, algorithm 1).

A word of one token is replaced by a prediction of a masked language model. The model reads the text twice,
`[CLS] text with [MASK] [SEP] text [SEP]`, so that it knows the word itself. A word of several tokens is replaced by one
of its nearest neighbors among word vectors, such as GloVe's. Every copy of a text replaces each of its words with a
probability p by one of its M candidates (huawei-noah TinyBERT data_augmentation.py; M = 15, p = 0.4).

Deviation: spaces, capitals and all other words stay as they are; the released code joins lower-case words by spaces.
Deviation: special tokens are no candidates. The words that are never replaced are those of a file; the released code
has a list of English stop words.
Deviation: a copy replaces words in one text of a pair; in the released code the first text keeps its replaced words
while those of the second are replaced.
"""

import csv
import dataclasses
import functools
import io
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.compression.distillation.captured_activations import one_token_inputs
from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.parameters import check_parameters
from plmjax.contracts.system import Purpose
from plmjax.data.packing import padded_width
from plmjax.errors import FRACTION, FROM_1, UserError, check_ranges
from plmjax.files import storage
from plmjax.finetuning.files import tables, text_files
from plmjax.interop import word_vectors
from plmjax.interop.word_vectors import WordVectors
from plmjax.training.checkpoints import checkpoints

WORD = re.compile(r"\w+")
"""A word. Words with characters other than letters are never replaced."""
ROWS = 64
"""Number of rows that the masked language model reads at once."""
PART = 256
"""Number of texts whose words are predicted together."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of data augmentation.

    copies: number of copies of a text that are drawn; equal copies are written once.
    candidates: number of candidates of a word, M. fraction: probability that a word of a copy is replaced, p.
    kept: words that are never replaced, in lower case. seed: seed of the draws.
    """

    copies: int = 20
    candidates: int = 15
    fraction: float = 0.4
    kept: frozenset[str] = frozenset()
    seed: int = 0

    def __post_init__(self) -> None:
        for name, limits in (("copies", FROM_1), ("candidates", FROM_1), ("fraction", FRACTION)):
            try:
                check_ranges("", self, **{name: limits})
            except UserError as error:
                raise UserError(str(error).replace("--.", "--")) from None


@dataclasses.dataclass(frozen=True, eq=False)
class Augmenter:
    """The two sources of candidates: a masked language model with its tokenizer, and lower-case word vectors."""

    config: ModelConfig
    params: Any
    tokenizer: Any
    vectors: WordVectors | None
    settings: Settings

    @classmethod
    def read(cls, checkpoint: str | Path, vectors: str | Path | None, settings: Settings) -> "Augmenter":
        """Read a checkpoint and a file or a run of word vectors.

        Raises:
            UserError: the checkpoint is no masked language model with a wordpiece tokenizer.
        """
        params, description = checkpoints.load_parameters(checkpoint)
        config, tokenizer = description.experiment.model, description.load_tokenizer()
        config.system.require(Purpose.MASKED_TOKENS)
        if tokenizer.kind != "wordpiece" or tokenizer.vocabulary.mask < 0:
            raise UserError(
                f"Expected a masked language model with a wordpiece tokenizer, found {tokenizer.kind} in {checkpoint}; "
                f"name a BERT."
            )
        module = config.module(Purpose.MASKED_TOKENS, Execution())
        hint = "it is no masked language model; use the run that it was fine-tuned from"
        check_parameters(module, params, one_token_inputs(config), origin=checkpoint, hint=hint)
        config.template.check(tokenizer.vocabulary)
        words = None if vectors is None else word_vectors.read(vectors).without_case()
        return cls(config, params, tokenizer, words, settings)

    def candidates(self, texts: Sequence[str]) -> list[dict[tuple[int, int], list[str]]]:
        """Return the candidates of each text by the span of their word, without words that have no candidates."""
        found: list[dict[tuple[int, int], list[str]]] = [{} for _ in texts]
        rows, owners = [], []
        for number, (text, ids) in enumerate(zip(texts, self.tokenizer.encode_batch(list(texts)), strict=True)):
            for word in WORD.finditer(text):
                if not word[0].isalpha() or word[0].lower() in self.settings.kept:
                    continue
                before, own = (len(self.tokenizer.encode(part)) for part in (text[: word.start()], word[0]))
                if own == 1:
                    masked = [*ids[:before], self.tokenizer.vocabulary.mask, *ids[before + 1 :]]
                    rows.append((masked, ids))
                    owners.append((number, word.span()))
                elif names := self._neighbors(word[0].lower()):
                    found[number][word.span()] = [_spelled_as(word[0], name) for name in names]
        for (number, span), names in zip(owners, self._predicted(rows), strict=True):
            if names:
                found[number][span] = [_spelled_as(texts[number][slice(*span)], name) for name in names]
        return found

    def copies(self, text: str, candidates: dict[tuple[int, int], list[str]], key: tuple[int, ...]) -> list[str]:
        """Return the different copies of a text, without the text itself. key: numbers that seed the draws."""
        draws, found = np.random.default_rng((self.settings.seed, *key)), {text: None}
        for _ in range(self.settings.copies):
            parts, place = [], 0
            for (begin, end), names in sorted(candidates.items()):
                name = names[int(draws.integers(len(names)))]
                parts += [text[place:begin], name if draws.random() < self.settings.fraction else text[begin:end]]
                place = end
            found["".join([*parts, text[place:]])] = None
        return list(found)[1:]

    def _neighbors(self, word: str) -> list[str]:
        """Return the words with the nearest vectors; none for a word without a vector."""
        if self.vectors is None or word not in self.vectors.rows:
            return []
        return self._nearest(word)

    @functools.cache  # noqa: B019 - one augmenter lives as long as its command
    def _nearest(self, word: str) -> list[str]:
        return [name for name, _ in self.vectors.nearest([word], top=self.settings.candidates)]

    def _predicted(self, pairs: list[tuple[list[int], list[int]]]) -> list[list[str]]:
        """Return the most likely words at the mask, for each pair of a masked text and the text."""
        vocabulary, template = self.tokenizer.vocabulary, self.config.template
        rows = [template.lay_out(pair, vocabulary, self.config.longest) for pair in pairs]
        found: list[list[str]] = [[] for _ in rows]
        whole = [number for number, row in enumerate(rows) if vocabulary.mask in row.tokens]
        widths = {number: padded_width(len(rows[number].tokens), self.config.longest) for number in whole}
        module = self.config.module(Purpose.MASKED_TOKENS, Execution())
        for width in sorted(set(widths.values())):
            members = [number for number in whole if widths[number] == width]
            for first in range(0, len(members), ROWS):
                chosen = members[first : first + ROWS]
                fields = {name: np.zeros((ROWS, width), np.int32) for name in ("input_ids", "segment_ids", "types")}
                places = np.zeros((ROWS, 1), np.int32)
                for place, number in enumerate(chosen):
                    row = rows[number]
                    fields["input_ids"][place, : len(row.tokens)] = row.tokens
                    fields["segment_ids"][place, : len(row.tokens)] = 1
                    fields["types"][place, : len(row.tokens)] = row.token_types
                    places[place] = row.tokens.index(vocabulary.mask)
                types = {"token_type_ids": fields.pop("types")}
                inputs = fields | (types if template.typed else {}) | {"masked_positions": places}
                best = _likeliest(module, self.params, inputs, self.settings.candidates + len(vocabulary.special))
                for place, number in enumerate(chosen):
                    found[number] = self._words(np.asarray(best[place]))
        return found

    def _words(self, ids: np.ndarray) -> list[str]:
        """Return the words among the most likely ids: tokens that begin a word and are not special."""
        vocabulary = self.tokenizer.vocabulary
        known = [number for number in ids.tolist() if number < vocabulary.size and number not in vocabulary.special]
        known = known[: self.settings.candidates]
        return [
            token
            for number, token in zip(known, self.tokenizer.tokens(known), strict=True)
            if not vocabulary.continuation[number]
        ]


@functools.partial(jax.jit, static_argnums=(0, 3))
def _likeliest(module: nn.Module, params: Any, inputs: dict[str, jax.Array], count: int) -> jax.Array:
    """Return the ids of the highest scores at the one predicted position, int32 [B count]."""
    logits = module.apply({"params": params}, **inputs).logits[:, 0]
    return jax.lax.top_k(logits.astype(jnp.float32), min(count, logits.shape[-1]))[1]


def _spelled_as(word: str, candidate: str) -> str:
    """Return a candidate in title case if the word is in title case."""
    return candidate.title() if word.istitle() else candidate


def augment(
    checkpoint: str | Path,
    input: str | Path,
    output: Path,
    *,
    text: Sequence[str],
    vectors: str | Path | None = None,
    keep: str | Path | None = None,
    settings: Settings = Settings(),
) -> tuple[int, int]:
    """Write the rows of a table, each with copies in which words of the columns `text` are replaced.

    Args:
        checkpoint: a masked language model.
        input: a .tsv, .csv or .jsonl file. output: a file of the same format, without .gz.
        vectors: a file or a run of word vectors, for words of several tokens; None leaves these words as they are.
        keep: a file of words that are never replaced, one per line.

    Returns:
        the numbers of rows that were read and written.

    Raises:
        UserError: a file, a column or a setting is wrong.
    """
    kind = text_files.suffix(str(input))
    if output.suffix != kind:
        raise UserError(f"Expected --output of the format of {input}, {kind}, found {output}; rename it.")
    kept = frozenset() if keep is None else frozenset(line.strip().lower() for line in text_files.lines(str(keep)))
    augmenter = Augmenter.read(checkpoint, vectors, dataclasses.replace(settings, kept=kept))
    read = written = 0
    rows = tables.rows(str(input))
    with storage.replace_file(output) as file, file.open("w", encoding="utf-8", newline="") as opened:
        header = None
        while part := list(itertools.islice(rows, PART)):
            for row in _copied(augmenter, part, text, str(input)):
                if header is None:
                    header = list(row)
                    opened.write("" if kind == ".jsonl" else _line(kind, header))
                opened.write(
                    json.dumps(row, ensure_ascii=False) + "\n" if kind == ".jsonl" else _line(kind, row.values())
                )
                written += 1
            read += len(part)
    return read, written


def _copied(
    augmenter: Augmenter, part: list[tuple[int, dict[str, Any]]], columns: Sequence[str], path: str
) -> Iterator[dict[str, Any]]:
    """Yield each row, then its copies, for one column after the other."""
    found = {}
    for column in columns:
        texts = []
        for line, row in part:
            where = f"line {line} of {path}"
            if column not in row:
                raise tables.absent(column, row, "--text", where)
            texts.append(tables.text(row[column], column, where))
        found[column] = texts, augmenter.candidates(texts)
    for place, (line, row) in enumerate(part):
        yield row
        for number, (column, (texts, candidates)) in enumerate(found.items()):
            for copy in augmenter.copies(texts[place], candidates[place], (line, number)):
                yield row | {column: copy}


def _line(kind: str, cells: Any) -> str:
    if kind == ".tsv":
        return "\t".join(cells) + "\n"
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()
