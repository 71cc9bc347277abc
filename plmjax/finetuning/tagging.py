"""A label for every word: parts of speech, named entities (Devlin et al. 2019, section 5.3).

A word's label is predicted at its first piece only. A batch has besides `labels` int32 [R T] and
`label_weights` float32 [R T], 1 at first pieces.
"""

import dataclasses
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.errors import UserError, listed, nearest, quoted
from plmjax.finetuning import files
from plmjax.finetuning.sentences import numbered, softmax
from plmjax.finetuning.task import (
    Answers,
    Encoded,
    Examples,
    FileTask,
    Record,
    Row,
    Task,
    TaskObjective,
    check_length,
    joined,
)
from plmjax.layers.execution import Execution
from plmjax.layers.model_config import ModelConfig
from plmjax.models.heads import TokenClassification
from plmjax.objectives.objective import Batch, cross_entropy

SCHEMES = ("", "IOB1", "IOB2", "IOBES")


@dataclasses.dataclass(frozen=True)
class TaggedExamples(Examples):
    """words and their labels, a list each sentence, of None where there are none; word_lines: the line each word stands
    in."""

    words: list[list[str]]
    labels: list[list[str | None]]
    word_lines: list[list[int]]


@dataclasses.dataclass(frozen=True)
class Tagging(FileTask):
    """Sentences of a .conll, .conllu or .jsonl file, plain or with .gz, and which of their columns hold what.

    A sentence with more pieces than fit into a row is cut; its words without a prediction count as mistakes ("O", or no
    label at all). Sentences to predict may be the lines of a .txt file too, with words separated by white space.
    """

    examples: ClassVar[type[Examples]] = TaggedExamples
    contents: ClassVar[str] = "tagged sentences"
    prediction_settings: ClassVar[tuple[str, ...]] = ("text", "columns")

    text: str = "form"
    """Column of the words."""
    label: str = "tag"
    """Column of their labels."""
    columns: tuple[str, ...] = ()
    """Names of a .conll file's columns; empty: form tag."""
    scheme: str = ""
    """IOB1, IOB2 or IOBES where labels mark entities, which is checked; empty for labels of single words."""

    def rows(self, path: str, labelled: bool = True) -> Iterator[Row]:
        """Line, words, labels, the line of every word."""
        if self.scheme not in SCHEMES:
            raise UserError(
                f"Expected --data.scheme to be one of {listed(SCHEMES[1:])}, found {quoted(self.scheme)}; "
                f"{nearest(self.scheme, SCHEMES)}"
            )
        if not labelled and files.suffix(path) == ".txt":
            for number, line in enumerate(files.lines(path), start=1):
                words = line.split()
                yield number, words, [None] * len(words), [number] * len(words)
            return
        for block in files.blocks(path, self.columns, spare="" if labelled else self.label):
            lines = [line for line, _ in block]
            words = [self._cell(row, self.text, "text", f"line {line} of {path}") for line, row in block]
            labels: list[str | None] = [None] * len(words)
            if labelled:
                labels = [self._cell(row, self.label, "label", f"line {line} of {path}") for line, row in block]
            if labelled and self.scheme:
                _check_scheme(labels, self.scheme, lines, path)
            yield lines[-1], words, labels, lines

    def _cell(self, row: dict[str, Any], column: str, option: str, where: str) -> str:
        value = files.cell(row, column, option, where)
        return files.label(value, column, where) if option == "label" else files.text(value, column, where)


def _check_scheme(labels: list[str], scheme: str, lines: list[int], path: str) -> None:
    """Raises UserError for the first label that cannot follow the one before it."""
    marks = tuple(scheme.rstrip("12"))
    before, kind_before = "O", ""
    for label, line in zip(labels, lines, strict=True):
        mark, dash, kind = label.partition("-")
        if mark not in marks or (mark != "O") != bool(dash and kind):
            raise UserError(
                f"Expected O or one of {', '.join(f'{m}-KIND' for m in marks if m != 'O')} in line {line} of {path}, "
                f"found {quoted(label)}; fix it or set --data.scheme."
            )
        inside = before != "O" and kind_before == kind
        impossible = {
            "IOB1": mark == "B" and not inside,  # B only parts two entities of one kind
            "IOB2": mark == "I" and not inside,
            "IOBES": (mark in "IE") != (before in "BI") or (mark in "IE" and not inside),
        }[scheme]
        if impossible:
            previous = f"{before}-{kind_before}" if kind_before else before
            raise UserError(
                f"Expected {scheme} labels in {path}, found {quoted(label)} after {quoted(previous)} in line {line}, "
                f"which cannot be; fix it or set --data.scheme."
            )
        before, kind_before = mark, kind
    if scheme == "IOBES" and before in ("B", "I"):
        raise UserError(
            f"Expected IOBES labels in {path}, found {quoted(labels[-1])} at a sentence's end in line {lines[-1]}, "
            f"which cannot be; fix it or set --data.scheme."
        )


@dataclasses.dataclass(frozen=True)
class TokenTagging(TaskObjective):
    """Cross entropy of the label of each word's first piece."""

    task_class: ClassVar[type[Task]] = Tagging
    per_token: ClassVar[bool] = True

    labels: tuple[str, ...] = ()
    """The labels in the order of their numbers; empty takes those of the train file, sorted."""
    entities: bool = False
    """Whether labels mark entities; metrics are then those of whole entities."""
    mix: bool = False
    """Read a learned mix of all layers (ELMo's) instead of the last one."""

    @property
    def metric_names(self) -> tuple[str, ...]:
        """accuracy; and of entities f1, precision, recall."""
        return ("accuracy", "f1", "precision", "recall") if self.entities else ("accuracy",)

    def learn(self, train: TaggedExamples) -> Self:
        """The objective with the labels of the train file."""
        labels = self.labels or tuple(sorted({label for sentence in train.labels for label in sentence}))
        if len(labels) < 2:
            raise UserError(
                f"Expected at least two different labels in {train.path}, found {quoted(labels[0])} only; check "
                f"--data.label."
            )
        return dataclasses.replace(self, labels=labels)

    def check_model(self, config: Any) -> None:
        """Raises UserError for a model that reads from left to right, as the decoder of an encoder-decoder does."""
        if config.scores_next_token or config.decoder_start_token_id is not None:
            raise UserError(
                f"Expected a model that sees both sides of a word, to label words, found {type(config).__name__}; "
                f"fine-tune an encoder."
            )

    def module(self, config: Any, execution: Execution) -> nn.Module:
        """The encoder with a linear layer on every token."""
        return TokenClassification(config, execution, len(self.labels), self.mix)

    def encode(self, examples: TaggedExamples, tokenizer: Any, model: ModelConfig, task: Task) -> Encoded:
        """The pieces of the words as one text; `label_weights` is 1 at the first piece of a word."""
        template = model.template
        check_length(template, tokenizer.vocabulary, task.sequence_length)
        room = task.sequence_length - template.specials(1)
        pieces = tokenizer.encode_words(examples.words)
        rows, labels, weights = [], [], []
        for sentence, (words, gold) in enumerate(zip(pieces, examples.labels, strict=True)):
            lines = examples.word_lines[sentence]
            numbers = numbered(gold, self.labels, lambda word, lines=lines: f"line {lines[word]} of {examples.path}")
            row = template.lay_out([[piece for word in words for piece in word][:room]], tokenizer.vocabulary)
            (begin,) = row.starts
            starts = np.cumsum([0, *(len(word) for word in words)])[:-1]
            kept = np.array([word for word, start in enumerate(starts) if start < room and words[word]], np.int64)
            label, weight = np.zeros(len(row.tokens), np.int32), np.zeros(len(row.tokens), np.float32)
            label[starts[kept] + begin], weight[starts[kept] + begin] = numbers[kept], 1.0
            rows.append(row)
            labels.append(label)
            weights.append(weight)
        fields = {"labels": np.concatenate(labels), "label_weights": np.concatenate(weights)}
        return Encoded(**joined(rows), sequence_fields={}, token_fields=fields)

    def losses(self, outputs: Any, batch: Batch) -> dict[str, jax.Array]:
        """Cross entropy in nats, of first pieces."""
        return {"task": cross_entropy(outputs.logits, batch["labels"])}

    def loss_weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Every word counts once, [R T]."""
        return {"task": batch["label_weights"]}

    def counts(self, outputs: Any, batch: Batch) -> dict[str, tuple[jax.Array, jax.Array]]:
        """accuracy."""
        right = jnp.argmax(outputs.logits, axis=-1) == batch["labels"]
        return {"accuracy": (jnp.sum(right * batch["label_weights"]), jnp.sum(batch["label_weights"]))}

    def answer(self, examples: TaggedExamples, encoded: Encoded, outputs: list[np.ndarray]) -> Answers:
        """predictions.tsv: word, label and prediction, a blank line after each sentence."""
        records = self.records(examples, encoded, outputs)
        predicted = [record["predictions"] for record in records]
        text, right = ["form\tlabel\tprediction\n"], 0
        for gold, record in zip(examples.labels, records, strict=True):
            words = list(zip(record["words"], gold, record["predictions"], strict=True))
            given = [probability is not None for probability in record["probabilities"]]
            right += sum(label == guess and there for (_, label, guess), there in zip(words, given, strict=True))
            text += [f"{word}\t{label}\t{guess}\n" for word, label, guess in words]
            text.append("\n")
        accuracy = {"accuracy": right / sum(map(len, examples.words))}
        return accuracy | self._entity_metrics(examples.labels, predicted), {"predictions.tsv": "".join(text)}

    def records(self, examples: TaggedExamples, encoded: Encoded, outputs: list[np.ndarray]) -> list[Record]:
        """line, words, predictions and their probabilities; null for words that were cut off at the end of a row."""
        missing = "O" if self.entities else ""
        records = []
        for sentence, (line, words) in enumerate(zip(examples.lines, examples.words, strict=True)):
            first, stop = encoded.offsets[sentence : sentence + 2]
            there = encoded.token_fields["label_weights"][first:stop] > 0
            found = outputs[sentence][there]
            cut = len(words) - len(found)  # at the end of the row
            labels = [self.labels[number] for number in found.argmax(axis=-1)] + [missing] * cut
            probabilities = [round(float(row.max()), 6) for row in softmax(found)] + [None] * cut
            records.append({"line": line, "words": words, "predictions": labels, "probabilities": probabilities})
        return records

    def official(self, records: Iterable[Record]) -> Iterator[str]:
        """CoNLL's: a word and its label a line, a blank line after each sentence; _ for no label at all."""
        for record in records:
            labels = zip(record["words"], record["predictions"], strict=True)
            yield "".join(f"{word}\t{label or '_'}\n" for word, label in labels) + "\n"

    def head_flops(self, config: Any, batch: dict[str, jax.ShapeDtypeStruct]) -> float:
        """6 D labels a token."""
        return 6.0 * int(np.prod(batch["input_ids"].shape)) * config.width * len(self.labels)

    def _entity_metrics(self, gold: list[list[str]], predicted: list[list[str]]) -> dict[str, float]:
        if not self.entities:
            return {}
        from seqeval.metrics import f1_score, precision_score, recall_score

        scores = {"f1": f1_score, "precision": precision_score, "recall": recall_score}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # no entity predicted
            return {name: float(score(gold, predicted, zero_division=0)) for name, score in scores.items()}
