"""Questions about texts: files, windows, golds, losses and what is written of them."""

import copy
import gzip
import json
from types import SimpleNamespace

import numpy as np
import pytest

from plmjax.data import tokenizers
from plmjax.finetuning.metrics import question_answering
from plmjax.finetuning.tasks import answers
from plmjax.finetuning.tasks.answers import Window
from plmjax.finetuning.tasks.questions import SCORES, QuestionExamples, Questions, SpanExtraction
from plmjax.interop import huggingface
from plmjax.models.bert import BertConfig
from plmjax.models.roberta import RobertaConfig
from tests.finetuning import parity
from tests.finetuning.parity import VOCABULARY, Numbers
from tests.finetuning.tasks.test_answers import plain_windows
from tests.optional import torch

CONTEXT = "10 11 12 13 14 15 16 17 18 19"


def question(identifier, text: str, *given: tuple[int, str], **more) -> dict:
    return {"id": identifier, "question": text, "answers": [{"answer_start": a, "text": b} for a, b in given], **more}


def written(folder, *entries: dict, context: str = CONTEXT, name: str = "dev.json") -> str:
    paragraph = {"context": context, "qas": list(entries)}
    text = json.dumps({"version": "x", "data": [{"title": "t", "paragraphs": [paragraph]}]}, indent=1)
    data = text.encode("utf-8")
    (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return str(folder / name)


GOOD = [
    question("a", " 20 21 ", (3, "11 12"), (6, "12")),
    question("b", "22", is_impossible=True, plausible_answers=[{"answer_start": 0, "text": "10"}]),
]


@pytest.mark.parametrize("name", ["dev.json", "dev.json.gz"])
def test_reads_questions_and_answers(tmp_path, name):
    path = written(tmp_path, *GOOD, name=name)
    examples = Questions(validation=path).read("validation")
    assert examples.contexts == [CONTEXT] and examples.context_of == [0, 0] and examples.ids == ["a", "b"]
    assert examples.questions == ["20 21", "22"] and examples.answers == [[(3, "11 12"), (6, "12")], []]
    text = json.dumps(json.loads((gzip.open if name.endswith("gz") else open)(path).read()), indent=1).splitlines()
    assert [text[line - 1].strip() for line in examples.lines] == ['"id": "a",', '"id": "b",']


def test_answers_beside_their_place_and_in_other_words(tmp_path):
    """As CMRC's files have them: the script that judges them looks at their texts alone."""
    beside = question(1, "20", (8, "12"), (3, "11"))
    free = question(2, "20", (-1, "eleven"), (0, "10"))
    nowhere = question(3, "20", (-1, "eleven"))
    path = written(tmp_path, beside, free, nowhere, context="12 11 12 10")
    task = Questions(train=path, validation=path)
    assert task.read("validation").answers == [[(6, "12"), (3, "11")], [(-1, "eleven"), (9, "10")], [(-1, "eleven")]]
    assert task.read("train").ids == ["1", "2"]
    encoded = SpanExtraction().encode(task.read("validation"), Numbers(), BertConfig.tiny(), task)
    assert encoded.sequence_fields["starts"].tolist() == [3 + 2, 3 + 3, 0]


def test_windows_of_a_text(tmp_path):
    path = written(tmp_path, question("q", "20 21 22 23", (12, "14 15")), GOOD[1])
    task = Questions(train=path, sequence_length=10, stride=2, question_length=3)
    examples = task.read("train")
    encoded = SpanExtraction().encode(examples, Numbers(), BertConfig.tiny(), task)
    cls, sep = VOCABULARY.cls, VOCABULARY.sep
    rows = [encoded.tokens[a:b].tolist() for a, b in zip(encoded.offsets, encoded.offsets[1:], strict=False)]
    starts = [start for start, _ in plain_windows(10, 10 - 3 - 3, 2)]
    assert rows[: len(starts)] == [[cls, 20, 21, 22, sep, *range(10 + start, 14 + start), sep] for start in starts]
    assert starts == [0, 2, 4, 6] and rows[len(starts)] == [cls, 22, sep, *range(10, 16), sep]
    assert encoded.token_types[:10].tolist() == [0] * 5 + [1] * 5
    assert encoded.sequence_fields["starts"].tolist() == [0, 7, 5, 0] + [0] * 3  # tokens 4 and 5 of the text
    assert encoded.sequence_fields["ends"].tolist() == [0, 8, 6, 0] + [0] * 3
    roberta = RobertaConfig.tiny()
    encoded = SpanExtraction().encode(examples, Numbers(), roberta, task)
    assert encoded.tokens[:10].tolist() == [cls, 20, 21, 22, sep, sep, 10, 11, 12, sep]


REAL = {
    "squad/dev-v2.0.cs224n.json.gz": (6078, 3168, 646, 10052),
    "cmrc2018/cmrc2018_dev.json.gz": (3219, 0, 848, 9657),
}
"""File -> questions, those without an answer, texts, answers."""


@pytest.mark.parametrize("name", REAL)
def test_real_files_are_read_wholly(shared_data, name):
    path = str(shared_data / "finetune" / name)
    examples = Questions(train=path, validation=path).read("train" if "train" in name else "validation")
    given = [answer for one in examples.answers for answer in one]
    without = sum(not one for one in examples.answers)
    assert (len(examples), without, len(examples.contexts), len(given)) == REAL[name]
    for about, one in zip(examples.context_of, examples.answers, strict=True):
        assert all(examples.contexts[about].startswith(text, start) for start, text in one if start >= 0)
    assert sum(start < 0 for start, _ in given) == (193 if "cmrc" in name else 0)  # annotators' own words


MISSED = {("en", "wordpiece"): 3, ("en", "byte-bpe"): 1, ("zh", "wordpiece"): 5, ("zh", "sentencepiece-unigram"): 203}
"""Answers that end or begin inside a token, such as `March 200` of `March 2003`; none else is missed. SentencePiece
vocabularies join Chinese characters into words, so that annotators disagree with them more often."""


@pytest.mark.parametrize(
    ("language", "kind"),
    [pytest.param(*case, marks=() if case == ("en", "wordpiece") else pytest.mark.nightly) for case in MISSED],
)
def test_tokens_of_every_gold_answer_give_it_back(shared_data, tmp_path, language, kind):
    name = {"en": "squad/squad_v1_style_dev.json.gz", "zh": "cmrc2018/cmrc2018_dev.json.gz"}[language]
    score = {"en": question_answering.squad, "zh": question_answering.cmrc}[language]
    examples = Questions(validation=str(shared_data / "finetune" / name)).read("validation")
    size = 4000 if language == "en" else 6000
    tokenizer = tokenizers.train(kind, size, examples.contexts, tmp_path, lowercase=kind != "byte-bpe")
    encoded = tokenizer.encode_spans(examples.contexts)
    assert [ids.tolist() for ids, _ in encoded] == tokenizer.encode_batch(examples.contexts)
    missed = count = 0
    for about, one in zip(examples.context_of, examples.answers, strict=True):
        context, spans = examples.contexts[about], encoded[about][1]
        for start, text in one:
            if start < 0:
                continue
            first, last = answers.answer_tokens((start, text), spans)
            begin, end = spans[first, 0], spans[last, 1]
            found = context[begin:end].strip()
            count += 1
            if found != text.strip():  # else it is the answer, character by character
                begin += len(context[begin:end]) - len(context[begin:end].lstrip())
                assert begin < start or end > start + len(text)  # its first or last token holds more than the answer
            missed += score([text], found)[0] < 1
    assert count == {"en": 1936, "zh": 9464}[language]
    assert missed == MISSED[language, kind]


def drawn(tmp_path):
    """Questions of several windows, one without an answer."""
    random = np.random.default_rng(1)
    context = " ".join(map(str, random.integers(10, 97, 23)))
    words, places = context.split(), [place for place in range(len(context)) if place == 0 or context[place - 1] == " "]
    entries = []
    for number in range(6):
        first = int(random.integers(0, 20))
        text = " ".join(words[first : first + 1 + number % 3])
        asked = " ".join(map(str, random.integers(10, 97, 1 + number)))
        given = [(places[first], text)] if number else []
        entries.append(question(f"q{number}", asked, *given, is_impossible=not number))
    return written(tmp_path, *entries, context=context)


@pytest.mark.nightly
def test_losses_and_gradients_equal_those_of_transformers_and_of_packed_rows(tmp_path):
    theirs = parity.reference(tmp_path, "BertForQuestionAnswering")
    module, params = huggingface.load(tmp_path)
    task = Questions(train=drawn(tmp_path), sequence_length=20, stride=5, question_length=6)
    objective = SpanExtraction()
    encoded = objective.encode(task.read("train"), Numbers(), module.config, task)
    given = parity.batch(encoded, 20, 1)
    loss, gradient, _ = parity.loss_and_gradient(objective, module, params, given)

    # One row at a time and without its padding, which transformers' softmax would take for places of the answer.
    losses = []
    for number in range(len(encoded)):
        here = slice(*encoded.offsets[number : number + 2])
        their = theirs(
            input_ids=parity.tensor(encoded.tokens[here])[None],
            token_type_ids=parity.tensor(encoded.token_types[here])[None],
            start_positions=parity.tensor(encoded.sequence_fields["starts"][number : number + 1]),
            end_positions=parity.tensor(encoded.sequence_fields["ends"][number : number + 1]),
        )
        losses.append(their.loss)
    torch.stack(losses).mean().backward()
    assert len(encoded) == objective.weights(given)["task"] > 12
    assert (encoded.sequence_fields["starts"] > 0).sum() > 5
    np.testing.assert_allclose(loss, np.mean([one.item() for one in losses]), rtol=1e-5)
    parity.assert_same_gradient(gradient, parity.their_gradient(theirs, tmp_path / "gradient"))

    packed = parity.batch(encoded, 60, 4)
    assert len(packed["input_ids"]) <= len(given["input_ids"]) / 2
    parity.assert_same_packed(objective, module, params, packed=packed, loss=loss, gradient=gradient)


def answered(tmp_path, scores: list[dict[int, float]], **options):
    """The answers from scores for beginning and ending at tokens of the two questions of GOOD; -1 is [CLS]."""
    path = written(tmp_path, *copy.deepcopy(GOOD))
    task = Questions(train=path, sequence_length=32, stride=8, question_length=4)
    objective = SpanExtraction(**options).fit_labels(task.read("train"))
    encoded = objective.encode(task.read("train"), Numbers(), BertConfig.tiny(), task)
    outputs = []
    for number, one in enumerate(scores):
        score = np.full((encoded.offsets[number + 1] - encoded.offsets[number], 2), -9.0, np.float32)
        for token, value in one.items():
            score[0 if token < 0 else encoded.windows[number].begin + token] = value
        outputs.append(score)
    found, files = objective.evaluate_outputs(task.read("train"), encoded, outputs)
    return found, {name: json.loads(text) for name, text in files.items()}


def test_answers_are_written_as_the_official_scripts_read_them(tmp_path):
    # The first question's best answer is "11", one of two words of a gold one; the second's is withheld.
    found, files = answered(tmp_path, [{-1: 0.0, 1: 3.0}, {-1: 2.0, 4: 1.0}], best=3)
    assert files["predictions.json"] == {"a": "11", "b": ""}
    assert files["null_odds.json"] == {"a": -6.0, "b": 2.0}
    assert found["exact"] == 50.0 and found["f1"] == pytest.approx(100 * (2 / 3 + 1) / 2)
    assert found["has_answer_f1"] == pytest.approx(200 / 3) and found["no_answer_f1"] == 100.0
    assert found["best_f1"] == pytest.approx(found["f1"]) and found["best_threshold"] == -6.0
    best = files["nbest_predictions.json"]["b"]
    assert [one["text"] for one in best][:2] == ["", "14"] and len(best) == 4
    assert best[0]["score"] == 4.0 and best[1]["score"] == 2.0
    shares = np.exp([one["score"] for one in best]) / np.exp([one["score"] for one in best]).sum()
    np.testing.assert_allclose([one["probability"] for one in best], shares)


def test_answers_are_judged_in_the_language_of_the_task():
    """Two characters of three are a run of both, or no word."""
    examples = QuestionExamples("", [1], ["村雨城"], [0], ["a"], ["q"], [[(0, "村雨城")]])
    spans = np.array([[0, 1], [1, 2], [2, 3]])
    encoded = SimpleNamespace(windows=[Window(0, 0, 3, begin=1)], spans=[spans])
    scores = np.float32([[-9, -9], [5, -9], [-9, 5], [-9, -9], [-9, -9]])
    f1 = {
        language: SpanExtraction(language=language).evaluate_outputs(examples, encoded, [scores])[0]["f1"]
        for language in SCORES
    }
    assert f1 == {"en": 0.0, "zh": pytest.approx(100 * 2 * 2 / (2 + 3))}


def test_each_question_has_the_best_answer_of_its_own_windows(tmp_path):
    """Two questions have four and three windows. No answer counts as in the window that is surest of having one."""
    path = written(tmp_path, question("q", "20 21 22 23", (12, "14 15")), GOOD[1])
    task = Questions(train=path, sequence_length=10, stride=2, question_length=3)
    objective = SpanExtraction().fit_labels(examples := task.read("train"))
    encoded = objective.encode(examples, Numbers(), BertConfig.tiny(), task)
    assert [window.question for window in encoded.windows] == [0] * 4 + [1] * 3
    outputs = [np.full((size, 2), -9.0, np.float32) for size in np.diff(encoded.offsets)]
    for number, (token, value) in enumerate([(1, 1.0), (3, 2.0), (6, 4.0), (9, 3.0), (1, 1.0), (5, 2.0), (9, 5.0)]):
        window = encoded.windows[number]
        outputs[number][window.begin + token - window.first] = value
        outputs[number][0] = -value
    first, second = objective.records(examples, encoded, outputs)
    assert (first["prediction"], second["prediction"]) == ("16", "19")
    assert (first["null_odds"], second["null_odds"]) == (-8.0 - 8.0, -10.0 - 10.0)
    assert [one["text"] for one in first["nbest"]][:3] == ["16", "19", "13"]
