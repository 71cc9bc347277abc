"""Extractive question answering: the position of the answer in a text, if it has one (Devlin et al. 2019, section 4).

Files are SQuAD's 1.1 or 2.0, or CMRC's. A text too long for a row is read in overlapping windows. Each window is a
sequence [CLS] question [SEP] window [SEP] for a BERT. A window without the answer points at [CLS], or at the summary
position in another model's template. A batch also has `starts` and `ends` int32 [R K], the first and last token of the
answer, counted within its sequence.

Deviation: windows and answers follow google-research/bert run_squad.py, but an answer is found by the characters of the
tokens, not by words, so that any tokenizer and language can be used; a start and an end compete only with the tokens of
their own sequence, since rows are packed.
"""

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.execution import Execution
from plmjax.contracts.mask_terms import EXCLUDED
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.system import Purpose
from plmjax.contracts.template import Template, TokenRow
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.errors import UserError, beginning, check_choice, listed, quoted
from plmjax.files import json_text
from plmjax.finetuning.batches.encoded import Encoded, row_arrays
from plmjax.finetuning.files import json_file, tables
from plmjax.finetuning.metrics import question_answering
from plmjax.finetuning.tasks import answers
from plmjax.finetuning.tasks.answers import Candidate, Window
from plmjax.finetuning.tasks.task import Answers, Examples, FileTask, Record, Row, Task, TaskObjective, check_length
from plmjax.objectives.objective import Batch

SCORES = {"en": question_answering.squad, "zh": question_answering.cmrc}


@dataclasses.dataclass(frozen=True)
class QuestionExamples(Examples):
    """Examples of question answering.

    Attributes:
        contexts: the texts.
        context_of: index of each question's text.
        answers: (first character, text) of every annotator, with -1 for an answer that is not in the text; an empty
            list for a question without an answer.
    """

    contexts: list[str]
    context_of: list[int]
    ids: list[str]
    questions: list[str]
    answers: list[list[tuple[int, str]]]


@dataclasses.dataclass(frozen=True)
class Questions(FileTask):
    """Files in SQuAD's format (.json, plain or with .gz), and the windows of a long text.

    An answer that is not at its answer_start is taken from the nearest place where the text has it. An answer with an
    answer_start of -1, which CMRC uses for annotators' own words, need not be in the text: it counts in the metrics. A
    question with only such answers is not trained on, as run_squad.py leaves out answers that it cannot find.
    """

    examples: ClassVar[type[Examples]] = QuestionExamples
    contents: ClassVar[str] = "questions"
    prediction_settings: ClassVar[tuple[str, ...]] = ("stride", "question_length")

    sequence_length: int = 384
    """Number of tokens in a row, including special ones."""
    stride: int = 128
    """Number of tokens from the start of a window to that of the next."""
    question_length: int = 64
    """Largest number of tokens of a question that are read."""

    def rows(self, path: str, labelled: bool = True) -> Iterator[Row]:
        """Yield (line, context, id, question, answers)."""
        found, text = json_file.parse(path)
        paragraphs = _paragraphs(found, path)
        lines = _lines([entry["id"] for paragraph in paragraphs for entry in paragraph["qas"]], text)
        seen: set[str] = set()
        for paragraph in paragraphs:
            for entry in paragraph["qas"]:
                line, identifier = next(lines), str(entry["id"])
                where = f"line {line} of {path} (question {identifier})"
                if identifier in seen:
                    raise UserError(
                        f"Expected an id of its own for every question, found one again in {where}; fix it."
                    )
                seen.add(identifier)
                answers = _answers(entry, paragraph["context"], where) if labelled else []
                yield line, paragraph["context"], identifier, tables.text(entry["question"], "question", where), answers

    def is_trainable(self, row: Row) -> bool:
        """Return true if an answer is in the text or the question has none."""
        answers = row[-1]
        return not answers or any(start >= 0 for start, _ in answers)

    def to_examples(self, path: str, rows: list[Row]) -> QuestionExamples:
        """Return the examples, with each text once."""
        lines, contexts, ids, questions, answers = map(list, zip(*rows, strict=True))
        numbers = {context: number for number, context in enumerate(dict.fromkeys(contexts))}
        return QuestionExamples(
            path, lines, list(numbers), [numbers[context] for context in contexts], ids, questions, answers
        )


def _paragraphs(found: Any, path: str) -> list[dict[str, Any]]:
    try:
        paragraphs = [paragraph for article in found["data"] for paragraph in article["paragraphs"]]
        entries = [entry for paragraph in paragraphs for entry in paragraph["qas"]]
        lacking = [entry for entry in entries if not {"question", "id"} <= entry.keys()]
        whole = all(isinstance(paragraph["context"], str) and paragraph["context"].strip() for paragraph in paragraphs)
    except (KeyError, TypeError, AttributeError):
        whole, lacking = False, []
    if lacking:
        found = listed(lacking[0])
        raise UserError(f"Expected a question and an id in every entry of qas in {path}, found {found}; fix it.")
    if not whole:
        raise UserError(
            f"Expected articles of paragraphs with a context and qas, as in SQuAD's files, in {path}, found others; "
            f"fix it."
        )
    return paragraphs


def _lines(identifiers: list[Any], text: str) -> Iterator[int]:
    """Yield the line of each id. The ids are in the order of the file."""
    line, place = 1, 0
    for identifier in identifiers:
        found = text.find(json.dumps(identifier), place)
        if found >= 0:
            line, place = line + text.count("\n", place, found), found + 1
        yield line


def _answers(entry: dict[str, Any], context: str, where: str) -> list[tuple[int, str]]:
    if entry.get("is_impossible"):
        return []
    answers, annotated = [], entry.get("answers") or []
    if not isinstance(annotated, list):
        raise UserError(f"Expected a list of answers in {where}, found {beginning(json.dumps(annotated))}; fix it.")
    for answer in annotated:
        start, text = (answer.get(name) if isinstance(answer, dict) else None for name in ("answer_start", "text"))
        if not isinstance(start, int) or not isinstance(text, str) or not text.strip():
            raise UserError(
                f"Expected an answer_start and a text in {where}, found {beginning(json.dumps(answer))}; fix it."
            )
        if start >= 0 and context.startswith(text, start):
            answers.append((start, text))
            continue
        places = [place.start() for place in re.finditer(f"(?={re.escape(text)})", context)]
        if start != -1 and not (places and 0 <= start <= len(context) - len(text)):
            raise UserError(
                f"Expected the answer {quoted(text)} at character {start} of its context of {len(context)} in {where}, "
                f"found {quoted(context[max(start, 0) : max(start, 0) + len(text)])}; fix it."
            )
        answers.append((min(places, key=lambda place: abs(place - start), default=-1), text))
    if not answers:
        raise UserError(f"Expected an answer in {where}, found none and no is_impossible; fix it.")
    return answers


@dataclasses.dataclass(frozen=True)
class EncodedQuestions(Encoded):
    """Encoded questions.

    windows: the window of the text in each sequence.
    spans: int32 [N 2] for every text: the first character of each token, and the character after its last one.
    """

    windows: list[Window] = dataclasses.field(default_factory=list)
    spans: list[np.ndarray] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class SpanExtraction(TaskObjective):
    """The mean of the nats of the answer's first and of its last token."""

    task_class: ClassVar[type[Task]] = Questions
    purpose: ClassVar[Purpose] = Purpose.QUESTION_ANSWERING
    prediction_settings: ClassVar[tuple[str, ...]] = ("null_threshold", "best", "answer_length")
    per_token: ClassVar[bool] = True

    language: str = "en"
    """Language of the metrics: en as in SQuAD, zh as in CMRC."""
    impossible: bool | None = False
    """If true, a question may have no answer; set to true where the train file has such questions.

    None, for a model whose train file is not known, is true in predictions, and in an evaluation if its file has such
    questions.
    """
    null_threshold: float = 0.0
    """Margin by which the score of "no answer" must exceed that of the best answer to be predicted. A value other than
    0 sets impossible, and inf always predicts an answer.
    """
    best: int = 20
    """Number of starts, ends and answers that are considered."""
    answer_length: int = 30
    """Largest number of tokens of an answer."""

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Return exact and f1; if questions may have no answer, also F1 by kind, and the best threshold and its F1."""
        kinds = ("has_answer_f1", "no_answer_f1", "best_f1", "best_threshold") if self.impossible else ()
        return ("exact", "f1", *kinds)

    def fit_labels(self, train: QuestionExamples) -> Self:
        """Return the objective, with `impossible` set if some questions have no answer."""
        check_choice("--objective.language", self.language, SCORES)
        impossible = bool(self.impossible) or self.null_threshold != 0 or not all(train.answers)
        return dataclasses.replace(self, impossible=impossible)

    @property
    def scores_impossible(self) -> bool:
        """Return true: every window without the answer points at the summary position, in training too."""
        return True

    def with_prediction_settings(self, settings: Mapping[str, Any]) -> Self:
        """Return the objective with other settings; a null_threshold allows the prediction "no answer".

        Raises:
            UserError: a null_threshold for a model that does not score "no answer".
        """
        changed = super().with_prediction_settings(settings)
        if "null_threshold" not in settings:
            return changed
        if not self.scores_impossible:
            raise UserError(
                "Expected a run that was trained on questions without an answer for --objective.null_threshold, found "
                "one that was not; leave it out, or name another run."
            )
        return dataclasses.replace(changed, impossible=True)

    def with_answerability(self, examples: QuestionExamples) -> Self:
        """Return the objective for a labelled file: a question may have no answer if the file has such questions."""
        impossible = bool(self.impossible) or (self.scores_impossible and not all(examples.answers))
        return dataclasses.replace(self, impossible=impossible)

    def module(self, config: Any, execution: Execution) -> nn.Module:
        return config.module(Purpose.QUESTION_ANSWERING, execution)

    def encode(self, examples: QuestionExamples, tokenizer: Any, model: ModelConfig, task: Task) -> EncodedQuestions:
        """Encode the windows of every question's text, in the order of the file.

        Raises:
            UserError: rows too short for a window, or a stride that would leave out tokens.
        """
        vocabulary = tokenizer.vocabulary
        template = model.template
        check_length(template, vocabulary, task.sequence_length)
        smallest = task.sequence_length - task.question_length - template.specials(2)
        if not 0 < task.stride <= smallest:
            raise UserError(
                f"Expected --data.stride from 1 to the {smallest} tokens that a question leaves in a row of "
                f"{task.sequence_length}, found {task.stride}; change it, --data.sequence_length or "
                f"--data.question_length."
            )
        texts = tokenizer.encode_spans(examples.contexts)
        questions = tokenizer.encode_batch(examples.questions)
        rows, windows, starts, ends = [], [], [], []
        for number, (question, about) in enumerate(zip(questions, examples.context_of, strict=True)):
            tokens, spans = texts[about]
            question = question[: task.question_length]
            room = task.sequence_length - len(question) - template.specials(2)
            standing = (answer for answer in examples.answers[number] if answer[0] >= 0)
            gold = answers.answer_tokens(answer, spans) if (answer := next(standing, None)) else None
            for first in answers.window_starts(len(tokens), room, task.stride):
                text = tokens[first : first + room].tolist()
                row, begin = self.lay_out(template, question, text, vocabulary)
                window = Window(number, first, len(text), begin, row.summary)
                rows.append(row)
                windows.append(window)
                start, end = window.place(gold)
                starts.append(start)
                ends.append(end)
        fields = {"starts": np.array(starts, np.int32), "ends": np.array(ends, np.int32)}
        spans = [spans for _, spans in texts]
        return EncodedQuestions(**row_arrays(rows), sequence_fields=fields, windows=windows, spans=spans)

    def lay_out(
        self, template: Template, question: list[int], text: list[int], vocabulary: Vocabulary
    ) -> tuple[TokenRow, int]:
        """Return the row of a question and a window of its text, and the position where the text begins."""
        row = template.lay_out((question, text), vocabulary)
        return row, row.starts[1]

    def losses(self, outputs: Any, batch: Batch) -> dict[str, jax.Array]:
        """Return the mean of the nats of both ends, [R K]."""
        slots = jnp.arange(1, batch["example_ids"].shape[1] + 1)
        own = batch["segment_ids"][:, None] == slots[:, None]  # [R K T]

        def nats(logits: jax.Array, places: jax.Array) -> jax.Array:  # [R T], [R K] -> [R K]
            chosen = jnp.take_along_axis(logits, batch["sequence_starts"] + places, axis=1)
            return jax.nn.logsumexp(jnp.where(own, logits[:, None], EXCLUDED), axis=-1) - chosen

        starts, ends = nats(outputs.start_logits, batch["starts"]), nats(outputs.end_logits, batch["ends"])
        return {"task": (starts + ends) / 2}

    def outputs_for_prediction(self, outputs: Any, batch: Batch) -> jax.Array:
        """Return the scores of each token as start and end, float32 [R T 2]."""
        return jnp.stack([outputs.start_logits, outputs.end_logits], axis=-1)

    def evaluate_outputs(
        self, examples: QuestionExamples, encoded: EncodedQuestions, outputs: list[np.ndarray]
    ) -> Answers:
        """Return metrics and predictions.json, id -> answer, in the format of the official scripts.

        Further files are nbest_predictions.json and, if questions may have no answer, null_odds.json.
        """
        judge, found = self.with_answerability(examples), self._candidates(examples, encoded, outputs)
        records = judge._records(examples, found)
        names = {"predictions.json": "prediction", "nbest_predictions.json": "nbest"}
        if judge.impossible:
            names["null_odds.json"] = "null_odds"
        written = {file: {record["id"]: record[name] for record in records} for file, name in names.items()}
        contents = {
            name: json.dumps(json_text.finite(value), ensure_ascii=False, indent=1) + "\n"
            for name, value in written.items()
        }
        return judge._metrics(examples, found, [record["prediction"] for record in records]), contents

    def records(self, examples: QuestionExamples, encoded: EncodedQuestions, outputs: list[np.ndarray]) -> list[Record]:
        """Return line, id, prediction (empty for no answer), nbest with scores and probabilities.

        If questions may have no answer, also return null_odds: score("no answer") - score(best answer).
        """
        writer = dataclasses.replace(self, impossible=self.impossible is not False)
        return writer._records(examples, self._candidates(examples, encoded, outputs))

    def submission(self, records: Iterable[Record]) -> Iterator[str]:
        """Yield predictions.json of the official scripts: id -> answer."""
        mark = "{\n"
        for record in records:
            name, text = (json.dumps(record[key], ensure_ascii=False) for key in ("id", "prediction"))
            yield f"{mark} {name}: {text}"
            mark = ",\n"
        yield "\n}\n"

    def head_flops(self, config: Any, batch: dict[str, jax.ShapeDtypeStruct]) -> float:
        """Return 12 D per token."""
        return 12.0 * int(np.prod(batch["input_ids"].shape)) * config.width

    def _candidates(
        self, examples: QuestionExamples, encoded: EncodedQuestions, outputs: list[np.ndarray]
    ) -> list[tuple[list[Candidate], float]]:
        """Return the best answers of every question, and the score of "no answer"."""
        found, first = [], 0
        for number, about in enumerate(examples.context_of):
            last = first
            while last < len(encoded.windows) and encoded.windows[last].question == number:
                last += 1
            windows, scores = encoded.windows[first:last], outputs[first:last]
            context, spans = examples.contexts[about], encoded.spans[about]
            found.append(self.candidates(windows, scores, context, spans))
            first = last
        return found

    def candidates(
        self, windows: list[Window], outputs: list[np.ndarray], context: str, spans: np.ndarray
    ) -> tuple[list[Candidate], float]:
        """Return the best answers of a question, best first, and the score of "no answer".

        outputs: `outputs_for_prediction` of each window's sequence. context: the text. spans: int32 [N 2], the
        characters of its tokens.
        """
        return answers.candidates(windows, outputs, context, spans=spans, best=self.best, longest=self.answer_length)

    def odds(self, best: list[Candidate], null: float) -> float:
        """Return score("no answer") - score(best answer), to compare with the threshold."""
        return null - (best[0].score if best else -1e9)

    def nbest(self, best: list[Candidate], null: float) -> list[Candidate]:
        """Return the candidates for the n-best list, with "no answer" if questions may have none."""
        return [*best, *([Candidate("", null)] if self.impossible else [])]

    def _records(self, examples: QuestionExamples, found: list[tuple[list[Candidate], float]]) -> list[Record]:
        records = []
        for line, identifier, (best, null) in zip(examples.lines, examples.ids, found, strict=True):
            ahead = self.odds(best, null)
            text = "" if not best or (self.impossible and ahead > self.null_threshold) else best[0].text
            record = {"line": line, "id": identifier, "prediction": text}
            record["nbest"] = answers.with_probabilities(self.nbest(best, null))
            records.append(record | ({"null_odds": ahead} if self.impossible else {}))
        return records

    def _metrics(
        self, examples: QuestionExamples, found: list[tuple[list[Candidate], float]], texts: list[str]
    ) -> dict[str, float]:
        score = SCORES[self.language]
        gold = [[text for _, text in one] for one in examples.answers]
        scores = np.array([score(golds, text) for golds, text in zip(gold, texts, strict=True)])
        result = {"exact": 100 * float(scores[:, 0].mean()), "f1": 100 * float(scores[:, 1].mean())}
        if self.impossible:
            has = np.array([bool(golds) for golds in gold])
            for name, which in (("has_answer_f1", has), ("no_answer_f1", ~has)):
                result[name] = 100 * float(scores[which, 1].mean()) if which.any() else float("nan")
            answered_f1 = np.array(
                [score(golds, best[0].text if best else "")[1] for golds, (best, _) in zip(gold, found, strict=True)]
            )
            odds = np.array([self.odds(best, null) for best, null in found])
            result["best_f1"], result["best_threshold"] = answers.best_threshold(odds, answered_f1, ~has)
        return result
