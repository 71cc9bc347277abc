"""A label for every word: parts of speech, named entities (Devlin et al. 2019, section 5.3).

A word's label is predicted at its first piece only. A batch also has `labels` int32 [R T] and `label_weights` float32
[R T], 1 at first pieces.
"""

import dataclasses
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.system import Purpose
from plmjax.contracts.template import TokenRow
from plmjax.errors import FROM_0, UserError, check_ranges, quoted
from plmjax.finetuning.batches.encoded import Encoded, row_arrays
from plmjax.finetuning.files import tables, text_files, word_columns
from plmjax.finetuning.tasks import label_schemes
from plmjax.finetuning.tasks.sentences import label_numbers, softmax
from plmjax.finetuning.tasks.task import Answers, Examples, FileTask, Record, Row, Task, TaskObjective, check_length
from plmjax.layers.words.characters import sentence_marks, spell
from plmjax.models.families.task_heads import TaggingOutput
from plmjax.objectives.objective import Batch, cross_entropy


@dataclasses.dataclass(frozen=True)
class TaggedExamples(Examples):
    """Words and their labels, a list per sentence; the labels are None in unlabelled files.

    word_lines: the line of each word. scheme: scheme of the labels, as in `Tagging`.
    """

    words: list[list[str]]
    labels: list[list[str | None]]
    word_lines: list[list[int]]
    scheme: str = ""


@dataclasses.dataclass(frozen=True)
class WordColumns:
    """The column of words in a file of sentences."""

    text: str = "form"
    """Column of the words."""
    columns: tuple[str, ...] = ()
    """Names of a .conll file's columns; empty: form tag."""

    def word(self, row: dict[str, Any], where: str) -> str:
        return tables.text(tables.cell(row, self.text, "text", where), self.text, where)


@dataclasses.dataclass(frozen=True)
class TagColumns(WordColumns):
    """The columns of words and labels in a file of sentences."""

    label: str = "tag"
    """Column of the labels."""
    scheme: str = ""
    """IOB1, IOB2, IOBES or BILOU for labels that mark entities, which are checked; empty for labels of single words."""


@dataclasses.dataclass(frozen=True)
class Tagging(TagColumns, FileTask):
    """Sentences of a .conll, .conllu or .jsonl file, plain or with .gz, and the meaning of their columns.

    A sentence with more pieces than fit into a row is truncated; its words without a prediction count as mistakes ("O",
    or no label at all). Sentences to predict may also be the lines of a .txt file, with words separated by white space.
    """

    examples: ClassVar[type[Examples]] = TaggedExamples
    contents: ClassVar[str] = "tagged sentences"
    prediction_settings: ClassVar[tuple[str, ...]] = ("text", "columns")
    label_settings: ClassVar[tuple[str, ...]] = ("label", "scheme")

    def rows(self, path: str, labelled: bool = True) -> Iterator[Row]:
        """Yield (line, words, labels, line of every word)."""
        label_schemes.check_scheme(self.scheme)
        if not labelled and text_files.suffix(path) == ".txt":
            for number, words in lines_of_words(path):
                yield number, words, [None] * len(words), [number] * len(words)
            return
        spare = "" if labelled else self.label
        for block in word_columns.sentences(path, self.columns, spare, documents=not labelled):
            lines = [line for line, _ in block]
            words = [self.word(row, f"line {line} of {path}") for line, row in block]
            labels: list[str | None] = [None] * len(words)
            if labelled:
                labels = [self._label(row, f"line {line} of {path}") for line, row in block]
                label_schemes.check_labels(labels, self.scheme, lines, path)
            yield lines[-1], words, labels, lines

    def to_examples(self, path: str, rows: list[Row]) -> TaggedExamples:
        return dataclasses.replace(super().to_examples(path, rows), scheme=self.scheme)

    def _label(self, row: dict[str, Any], where: str) -> str:
        return tables.label(tables.cell(row, self.label, "label", where), self.label, where)


def lines_of_words(path: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the sentences of a .txt file: the number of each line, and its words, separated by white space."""
    for number, line in enumerate(text_files.lines(path), start=1):
        yield number, line.split()


class _Words:
    """Sentences for a model that reads the characters of complete words. Each word is one token.

    Attributes:
        pieces: pieces from `tokenizer.encode_words`. A word that the tokenizer lacks or would split becomes the unknown
            token, with its own characters. Any other word has the characters of its token.
    """

    def __init__(self, sentences: list[list[str]], tokenizer: Any, length: int) -> None:
        unknown = max(tokenizer.vocabulary.unknown, 0)
        words = list(dict.fromkeys(word for sentence in sentences for word in sentence))
        found = [ids[0] if len(ids) == 1 else unknown for ids in tokenizer.encode_words([words])[0]]
        names = tokenizer.tokens(found)
        written = [word if token == unknown else name for word, token, name in zip(words, found, names, strict=True)]
        self._table = np.concatenate([sentence_marks(length), spell(written, length)]).astype(np.uint16)
        self._rows = {word: row for row, word in enumerate(words, start=2)}
        self._vocabulary, self._sentences = tokenizer.vocabulary, sentences
        ids = dict(zip(words, found, strict=True))
        self.pieces = [[[ids[word]] for word in sentence] for sentence in sentences]

    def characters(self, rows: list[TokenRow], room: int) -> np.ndarray:
        """Return the characters of every token of the sentences as rows of up to `room` words, uint16 [N length]."""
        chosen = []
        for words, row in zip(self._sentences, rows, strict=True):
            (begin,) = row.starts
            places = [
                int(token == self._vocabulary.end) for token in row.tokens
            ]  # rows of the begin and the end mark; words are set below
            kept = [self._rows[word] for word in words[:room]]
            places[begin : begin + len(kept)] = kept
            chosen += places
        return self._table[chosen]


@dataclasses.dataclass(frozen=True)
class EncodedWords:
    """Sentences of words as rows of tokens.

    Attributes:
        rows: the row of every sentence.
        firsts: for every sentence, (words whose first piece is in the row, positions of these pieces), int64.
        characters: uint16 [N C] of all tokens; None for a model that reads no characters.
    """

    rows: list[TokenRow]
    firsts: list[tuple[np.ndarray, np.ndarray]]
    characters: np.ndarray | None

    def encode(self, **fields: list[np.ndarray]) -> Encoded:
        """Return the rows as `Encoded`, with values for every token, an array for each sentence."""
        token_fields = {name: np.concatenate(arrays) for name, arrays in fields.items()}
        if self.characters is not None:
            token_fields["characters"] = self.characters
        return Encoded(**row_arrays(self.rows), sequence_fields={}, token_fields=token_fields)


def lay_out_words(sentences: list[list[str]], tokenizer: Any, model: ModelConfig, task: Task) -> EncodedWords:
    """Lay out sentences of words as separate texts, truncated at the end of a row.

    A model that reads characters gets every word as one piece.
    """
    template = model.template
    check_length(template, tokenizer.vocabulary, task.sequence_length)
    room = task.sequence_length - template.specials(1)
    spelling = None if model.characters is None else _Words(sentences, tokenizer, model.characters)
    pieces = tokenizer.encode_words(sentences) if spelling is None else spelling.pieces
    rows, firsts = [], []
    for words in pieces:
        row = template.lay_out([[piece for word in words for piece in word][:room]], tokenizer.vocabulary)
        (begin,) = row.starts
        starts = np.cumsum([0, *(len(word) for word in words)])[:-1]
        kept = np.array([word for word, start in enumerate(starts) if start < room and words[word]], np.int64)
        rows.append(row)
        firsts.append((kept, starts[kept] + begin))
    return EncodedWords(rows, firsts, None if spelling is None else spelling.characters(rows, room))


@dataclasses.dataclass(frozen=True)
class TokenTagging(TaskObjective):
    """The cross entropy of the label of each word's first piece."""

    task_class: ClassVar[type[Task]] = Tagging
    purpose: ClassVar[Purpose] = Purpose.TOKEN_CLASSIFICATION
    prediction_settings: ClassVar[tuple[str, ...]] = ("entities",)
    per_token: ClassVar[bool] = True

    labels: tuple[str, ...] = ()
    """The labels in the order of their numbers; empty takes those of the train file, sorted."""
    entities: bool = False
    """If true, labels mark entities in one of the schemes, and the metrics are of whole entities."""
    mix: bool = False
    """Read a learned mix of all layers (ELMo's) instead of the last one."""
    mix_penalty: float = 0.0
    """Factor of the sum of the squared weights of all learned mixes, as a part of the loss.

    A larger factor keeps the mix closer to the plain mean (Peters et al. 2018, section 3.1); 0 leaves it out.
    """

    def __post_init__(self) -> None:
        check_ranges("objective", self, mix_penalty=FROM_0)

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Return accuracy; for entities also f1, precision and recall."""
        return ("accuracy", "f1", "precision", "recall") if self.entities else ("accuracy",)

    def fit_labels(self, train: TaggedExamples) -> Self:
        labels = self.labels or tuple(sorted({label for sentence in train.labels for label in sentence}))
        if len(labels) < 2:
            raise UserError(
                f"Expected at least two different labels in {train.path}, found {quoted(labels[0])} only; check "
                f"--data.label."
            )
        if self.entities:
            label_schemes.check_entities(labels)
        return dataclasses.replace(self, labels=labels)

    def module(self, config: Any, execution: Execution) -> nn.Module:
        return config.module(Purpose.TOKEN_CLASSIFICATION, execution, len(self.labels), self.mix)

    def encode(self, examples: TaggedExamples, tokenizer: Any, model: ModelConfig, task: Task) -> Encoded:
        """Encode the pieces of the words as one text; `label_weights` is 1 at the first piece of a word."""
        made = lay_out_words(examples.words, tokenizer, model, task)
        labels, weights = [], []
        for sentence, (row, (kept, places)) in enumerate(zip(made.rows, made.firsts, strict=True)):
            lines, gold = examples.word_lines[sentence], examples.labels[sentence]
            numbers = label_numbers(
                gold, self.labels, lambda word, lines=lines: f"line {lines[word]} of {examples.path}"
            )
            label, weight = np.zeros(len(row.tokens), np.int32), np.zeros(len(row.tokens), np.float32)
            label[places], weight[places] = numbers[kept], 1.0
            labels.append(label)
            weights.append(weight)
        return made.encode(labels=labels, label_weights=weights)

    def nats(self, outputs: TaggingOutput, batch: Batch) -> jax.Array:
        """Return the cross entropy of the labels, float32 [R T]."""
        return cross_entropy(outputs.logits, batch["labels"])

    def likeliest(self, outputs: TaggingOutput, batch: Batch) -> jax.Array:
        """Return the ids of the predicted labels, int [R T]."""
        return jnp.argmax(outputs.logits, axis=-1)

    def losses(self, outputs: TaggingOutput, batch: Batch) -> dict[str, jax.Array]:
        """Return the nats of first pieces, and the squared weights of the mixes, the same for every row.

        Raise UserError if `mix_penalty` is set but the model has no mixes.
        """
        losses = {"task": self.nats(outputs, batch)}
        if self.mix_penalty:
            if outputs.mix_weights is None:
                raise UserError(
                    f"Expected a model with learned mixes of layers for --objective.mix_penalty {self.mix_penalty:g}, "
                    f"found one without; set --objective.mix True, or leave the penalty out."
                )
            losses["mix"] = jnp.full(len(batch["labels"]), jnp.sum(jnp.square(outputs.mix_weights)))
        return losses

    def loss_weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Return 1 for every word, [R T]; for the mixes 1 for every row."""
        weights = {"task": batch["label_weights"]}
        return weights | ({"mix": jnp.ones(len(batch["labels"]))} if self.mix_penalty else {})

    def coefficients(self) -> dict[str, float]:
        return {"mix": self.mix_penalty} if self.mix_penalty else {}

    def counts(self, outputs: TaggingOutput, batch: Batch) -> dict[str, tuple[jax.Array, jax.Array]]:
        right = self.likeliest(outputs, batch) == batch["labels"]
        return {"accuracy": (jnp.sum(right * batch["label_weights"]), jnp.sum(batch["label_weights"]))}

    def evaluate_outputs(self, examples: TaggedExamples, encoded: Encoded, outputs: list[np.ndarray]) -> Answers:
        """Return metrics and predictions.tsv: word, label and prediction, with a blank line after each sentence."""
        records = self.records(examples, encoded, outputs)
        predicted = [record["predictions"] for record in records]
        text, right = ["form\tlabel\tprediction\n"], 0
        for gold, record in zip(examples.labels, records, strict=True):
            words = list(zip(record["words"], gold, record["predictions"], strict=True))
            predicted_words = [probability is not None for probability in record["probabilities"]]
            right += sum(
                label == guess and there for (_, label, guess), there in zip(words, predicted_words, strict=True)
            )
            text += [f"{word}\t{label}\t{guess}\n" for word, label, guess in words]
            text.append("\n")
        accuracy = {"accuracy": right / sum(map(len, examples.words))}
        return accuracy | self._entity_metrics(examples.labels, predicted), {"predictions.tsv": "".join(text)}

    def records(self, examples: TaggedExamples, encoded: Encoded, outputs: list[np.ndarray]) -> list[Record]:
        """Return line, words, predictions and probabilities; null for words truncated at the end of a row.

        A -DOCSTART- line has the label O, or no label, so that the predictions have the same lines as the file.
        """
        missing = "O" if self.entities else ""
        records = []
        for sentence, (line, words) in enumerate(zip(examples.lines, examples.words, strict=True)):
            first, stop = encoded.offsets[sentence : sentence + 2]
            there = encoded.token_fields["label_weights"][first:stop] > 0
            there &= words != [word_columns.DOCUMENT]
            numbers, chances = self.decode_labels(outputs[sentence][there])
            cut = len(words) - len(numbers)  # truncated at the end of the row
            labels = [self.labels[number] for number in numbers] + [missing] * cut
            probabilities = [round(float(chance), 6) for chance in chances] + [None] * cut
            records.append({"line": line, "words": words, "predictions": labels, "probabilities": probabilities})
        return records

    def decode_labels(self, collected: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the predicted label ids [n] and their probabilities [n], from `outputs_for_prediction` for n words."""
        return collected.argmax(axis=-1), softmax(collected).max(axis=-1)

    def submission(self, records: Iterable[Record]) -> Iterator[str]:
        """Yield CoNLL's format: a word and its label per line, a blank line after each sentence; _ for no label."""
        for record in records:
            labels = zip(record["words"], record["predictions"], strict=True)
            yield "".join(f"{word}\t{label or '_'}\n" for word, label in labels) + "\n"

    def head_flops(self, config: Any, batch: dict[str, jax.ShapeDtypeStruct]) -> float:
        """Return 6 D labels per token."""
        return 6.0 * int(np.prod(batch["input_ids"].shape)) * config.width * len(self.labels)

    def _entity_metrics(self, gold: list[list[str]], predicted: list[list[str]]) -> dict[str, float]:
        if not self.entities:
            return {}
        label_schemes.check_entities(self.labels)
        gold, predicted = ([list(map(label_schemes.in_iobes, one)) for one in labels] for labels in (gold, predicted))
        from seqeval.metrics import f1_score, precision_score, recall_score

        scores = {"f1": f1_score, "precision": precision_score, "recall": recall_score}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # no entity predicted
            return {name: float(score(gold, predicted, zero_division=0)) for name, score in scores.items()}
