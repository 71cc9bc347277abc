"""Dependency parsing: the head of every word, and the relation between them (universaldependencies.org).

Besides the fields of plmjax/finetuning/tasks/task.py, a batch has `heads` int32 [R T], the number of a word's head in
its sentence, from 1, or 0 for the root; `relations` int32 [R T]; and `label_weights` float32 [R T], 1 at words whose
head is in the row and whose relation is known.

Deviation: scores count every word, with its whole relation, such as `nmod:poss`. The evaluation of CoNLL 2018 compares
the part before the colon, and the authors of cross-view training leave out punctuation.
"""

import dataclasses
import re
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Self

import numpy as np

from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.system import Purpose
from plmjax.errors import UserError, quoted
from plmjax.finetuning.batches.encoded import Encoded
from plmjax.finetuning.files import tables, text_files, word_columns
from plmjax.finetuning.tasks.tagging import WordColumns, lay_out_words, lines_of_words
from plmjax.finetuning.tasks.task import Answers, Examples, FileTask, Record, Row, Task, TaskObjective


@dataclasses.dataclass(frozen=True)
class ParsedExamples(Examples):
    """Examples of dependency parsing: one list per sentence.

    words: the words. heads: the index of each word's head, from 1, 0 for the root. relations: the relation of each word
    to its head. Heads and relations are None in files without trees.
    """

    words: list[list[str]]
    heads: list[list[int | None]]
    relations: list[list[str | None]]


@dataclasses.dataclass(frozen=True)
class TreeColumns(WordColumns):
    """The columns of a file of sentences with the words and their dependency tree."""

    head: str = "head"
    """Column of the number of a word's head in its sentence, from 1; 0 for the root."""
    relation: str = "deprel"
    """Column of the relation between a word and its head."""


@dataclasses.dataclass(frozen=True)
class Parsing(TreeColumns, FileTask):
    """Sentences with trees, of a .conllu, .conll or .jsonl file, plain or with .gz.

    A sentence with more words than fit into a row is truncated; words without a prediction count as mistakes. Sentences
    to predict may also be the lines of a .txt file, with words separated by white space.
    """

    examples: ClassVar[type[Examples]] = ParsedExamples
    contents: ClassVar[str] = "parsed sentences"
    prediction_settings: ClassVar[tuple[str, ...]] = ("text", "columns")
    label_settings: ClassVar[tuple[str, ...]] = ("head", "relation")

    def rows(self, path: str, labelled: bool = True) -> Iterator[Row]:
        """Yield (line, words, heads, relations)."""
        if not labelled and text_files.suffix(path) == ".txt":
            for number, words in lines_of_words(path):
                yield number, words, [None] * len(words), [None] * len(words)
            return
        for block in word_columns.sentences(path, self.columns):
            places = [(row, f"line {line} of {path}") for line, row in block]
            words = [self.word(row, where) for row, where in places]
            heads: list[int | None] = [None] * len(words)
            relations: list[str | None] = [None] * len(words)
            if labelled:
                heads = [self._head(number, len(words), *place) for number, place in enumerate(places, start=1)]
                relations = [
                    tables.text(tables.cell(row, self.relation, "relation", where), self.relation, where)
                    for row, where in places
                ]
                check_tree(heads, [where for _, where in places])
            yield block[-1][0], words, heads, relations

    def _head(self, number: int, words: int, row: dict[str, Any], where: str) -> int:
        """Return the head of a word, an index from 0 to the number of words."""
        value = tables.cell(row, self.head, "head", where)
        if not re.fullmatch(r"[0-9]{1,9}", str(value)) or int(value) > words:
            raise UserError(
                f"Expected a head from 0 to {words}, the number of a word of its sentence or 0, found {quoted(value)} "
                f"in {where}; fix that line, or name the column in --data.head."
            )
        return int(value)


def check_tree(heads: list[int], places: list[str]) -> None:
    """Raise UserError for a second root, and for a word without a path of heads to the root.

    heads: indices of words from 1, 0 for the root. places: the place of each word in the file, for messages.
    """
    if roots := [place for head, place in zip(heads, places, strict=True) if head == 0][1:]:
        raise UserError(f"Expected one root in a sentence, found a second one in {roots[0]}; fix that sentence.")
    reaches = [True] + [False] * len(heads)
    for number in range(1, len(heads) + 1):
        way, seen, at = [], set(), number
        while not reaches[at] and at not in seen:
            way.append(at)
            seen.add(at)
            at = heads[at - 1]
        if not reaches[at]:
            raise UserError(
                f"Expected a tree, found a word whose heads lead in a circle in {places[number - 1]}; fix that "
                f"sentence."
            )
        for word in way:
            reaches[word] = True


@dataclasses.dataclass(frozen=True)
class DependencyParsing(TaskObjective):
    """Base class for reading, predicting and evaluating; a subclass defines the model and its loss.

    For every word, the model's outputs are the index of its head, the id of its relation, and their probability.
    """

    task_class: ClassVar[type[Task]] = Parsing
    purpose: ClassVar[Purpose] = Purpose.MULTI_VIEW
    per_token: ClassVar[bool] = True
    metric_names: ClassVar[tuple[str, ...]] = ("las", "uas")

    relations: tuple[str, ...] = ()
    """The relations in the order of their numbers; empty takes those of the train file, sorted."""

    def fit_labels(self, train: ParsedExamples) -> Self:
        relations = self.relations or tuple(sorted({one for sentence in train.relations for one in sentence}))
        return dataclasses.replace(self, relations=relations)

    def encode(self, examples: ParsedExamples, tokenizer: Any, model: ModelConfig, task: Task) -> Encoded:
        """Encode each word as one token; a truncated word, or a word whose head was truncated, has weight 0."""
        made = lay_out_words(examples.words, tokenizer, model, task)
        numbers = {relation: number for number, relation in enumerate(self.relations)}
        heads, relations, weights = [], [], []
        for row, (kept, places), gold, names in zip(
            made.rows, made.firsts, examples.heads, examples.relations, strict=True
        ):
            head, relation = (np.zeros(len(row.tokens), np.int32) for _ in range(2))
            weight = np.zeros(len(row.tokens), np.float32)
            for word, place in zip(kept.tolist(), places.tolist(), strict=True):
                if gold[word] is not None and gold[word] <= len(kept) and names[word] in numbers:
                    head[place], relation[place], weight[place] = gold[word], numbers[names[word]], 1.0
            heads.append(head)
            relations.append(relation)
            weights.append(weight)
        return made.encode(heads=heads, relations=relations, label_weights=weights)

    def records(self, examples: ParsedExamples, encoded: Encoded, outputs: list[np.ndarray]) -> list[Record]:
        """Return line, words, heads, relations and probabilities; null for words truncated at the end of a row."""
        records = []
        for line, words, output in zip(examples.lines, examples.words, outputs, strict=True):
            cut = [None] * (len(words) - len(output))
            records.append(
                {
                    "line": line,
                    "words": words,
                    "heads": [int(head) for head in output[:, 0]] + cut,
                    "relations": [self.relations[int(number)] for number in output[:, 1]] + cut,
                    "probabilities": [round(float(probability), 6) for probability in output[:, 2]] + cut,
                }
            )
        return records

    def evaluate_outputs(self, examples: ParsedExamples, encoded: Encoded, outputs: list[np.ndarray]) -> Answers:
        """Return metrics and predictions.conllu, in the format of `submission`."""
        records = self.records(examples, encoded, outputs)
        scores = attachment_scores(
            zip(examples.heads, examples.relations, strict=True),
            ((record["heads"], record["relations"]) for record in records),
        )
        return scores, {"predictions.conllu": "".join(self.submission(records))}

    def submission(self, records: Iterable[Record]) -> Iterator[str]:
        """Yield CoNLL-U with only words, heads and relations; _ for words without a prediction."""
        for record in records:
            rows = zip(record["words"], record["heads"], record["relations"], strict=True)
            for number, (word, head, relation) in enumerate(rows, start=1):
                there = "_" if head is None else head
                yield f"{number}\t{word}\t_\t_\t_\t_\t{there}\t{relation or '_'}\t_\t_\n"
            yield "\n"


Tree = tuple[list[int | None], list[str | None]]
"""The heads and the relations of a sentence's words."""


def attachment_scores(gold: Iterable[Tree], predicted: Iterable[Tree]) -> dict[str, float]:
    """Return las and uas.

    las is the fraction of words with the right head and the right relation, uas the fraction with the right head.
    """
    right, labelled, words = 0, 0, 0
    for (heads, relations), (found, named) in zip(gold, predicted, strict=True):
        attached = [head == guess for head, guess in zip(heads, found, strict=True)]
        right += sum(attached)
        labelled += sum(same and name == guess for same, name, guess in zip(attached, relations, named, strict=True))
        words += len(heads)
    return {"las": labelled / words, "uas": right / words}
