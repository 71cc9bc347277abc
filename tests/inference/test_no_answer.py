"""Questions without an answer: who may say so, for imported models and for runs with and without such questions."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.data import tokenizers
from plmjax.experiment import Experiment
from plmjax.finetuning.tasks.answer_search import AnswerSearch
from plmjax.finetuning.tasks.questions import Questions, SpanExtraction
from plmjax.inference.evaluate import evaluate
from plmjax.inference.predict import predict
from plmjax.inference.rows import inputs
from plmjax.interop import huggingface
from plmjax.interop.run_directories import import_checkpoint
from plmjax.models.bert import BertConfig
from plmjax.training.checkpoints import checkpoints
from tests.systems.modules import outputs, random_params

TEXTS = [f"the film {number} was a fine plot of great actors and poor scenes in town {number}" for number in range(8)]
NIGHTLY = pytest.mark.nightly
KINDS = ("has_answer_f1", "no_answer_f1", "best_f1", "best_threshold")


def asked(path: Path, unanswered: int) -> Path:
    """A file of SQuAD's form; every `unanswered`-th of its questions has no answer, with 0 none."""
    paragraphs = []
    for number, text in enumerate(TEXTS):
        none = bool(unanswered) and number % unanswered == 0
        answers = [] if none else [{"text": "plot", "answer_start": text.index("plot")}]
        entry = {"id": f"q{number}", "question": "what was fine?", "answers": answers, "is_impossible": none}
        paragraphs.append({"context": text, "qas": [entry]})
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A question model of 128 positions as transformers has it, its import, and runs that knew their train file."""
    folder = tmp_path_factory.mktemp("questions")
    tokenizer = tokenizers.train("wordpiece", 120, TEXTS * 3, folder / "hf")
    config = BertConfig.tiny(vocab_size=tokenizer.vocabulary.size, max_position_embeddings=128)
    module = config.module(Purpose.QUESTION_ANSWERING, Execution())
    params = random_params(module)
    huggingface.save(module, params, folder / "hf")
    encoder, of_encoder = huggingface.load(folder / "hf", architecture="BertModel")
    given = inputs(config, tokenizer, [("what was fine?", TEXTS[0])])
    first = outputs(encoder, of_encoder, given).last_hidden_state[0, 0]
    # A vector has its largest product with itself: the model points at [CLS], so that no question has an answer.
    params["classifier"]["kernel"] = np.stack([first, first], axis=1)
    huggingface.save(module, params, folder / "hf")
    import_checkpoint(folder / "hf", folder / "imported")
    for name, unanswered in (("v1", 0), ("v2", 3)):
        data = Questions(validation=str(asked(folder / f"{name}.json", unanswered)), sequence_length=64, stride=20)
        data = dataclasses.replace(data, train=data.validation, question_length=20)
        run = Experiment(model=config, objective=SpanExtraction().fit_labels(data.read("train")), data=data)
        checkpoints.save_parameters(folder / name, params, run, tokenizer=checkpoints.tokenizer_files(folder / "hf"))
    bare = json.loads((folder / "v2.json").read_text())
    for paragraph in bare["data"][0]["paragraphs"]:
        for entry in paragraph["qas"]:
            del entry["answers"], entry["is_impossible"]
    (folder / "bare.json").write_text(json.dumps(bare))
    return folder


@pytest.mark.parametrize(
    ("name", "file", "possible"),
    [("imported", "v1.json", False), ("v1", "v2.json", True), pytest.param("v2", "v1.json", True, marks=NIGHTLY)],
)
def test_a_labelled_file_with_such_questions_may_be_answered_by_none(
    name: str, file: str, possible: bool, folder: Path, tmp_path: Path
) -> None:
    found = evaluate(folder / name, folder / file, tmp_path)
    assert all((f"eval/{kind}" in found) == possible for kind in KINDS)
    predictions = json.loads((tmp_path / "predictions.json").read_text())
    assert (tmp_path / "null_odds.json").exists() == possible
    if possible:
        odds = json.loads((tmp_path / "null_odds.json").read_text())
        assert {key: not text for key, text in predictions.items()} == {key: odd > 0 for key, odd in odds.items()}
        assert min(odds.values()) > 0
    else:
        assert all(predictions.values())


@pytest.mark.parametrize(("name", "possible"), [("imported", True), pytest.param("v1", False, marks=NIGHTLY)])
def test_a_file_without_labels_is_answered_as_the_run_was_trained(name: str, possible: bool, folder: Path) -> None:
    found = list(predict(folder / name, folder / "bare.json"))
    assert all(("null_odds" in record) == possible for record in found)
    assert {not record["prediction"] for record in found} == {possible}


@pytest.mark.parametrize("file", ["v1.json", pytest.param("bare.json", marks=NIGHTLY)])
def test_a_threshold_has_its_effect_everywhere(file: str, folder: Path, tmp_path: Path) -> None:
    for threshold, none in ((-1e9, True), (math.inf, False)):
        if file == "bare.json":
            texts = [one["prediction"] for one in predict(folder / "v1", folder / file, null_threshold=threshold)]
        else:
            found = evaluate(folder / "imported", folder / file, tmp_path, null_threshold=threshold)
            assert "eval/best_threshold" in found
            texts = json.loads((tmp_path / "predictions.json").read_text()).values()
        assert {not text for text in texts} == {none}


def test_a_threshold_lets_a_search_refuse_an_answer() -> None:
    for trained in (None, True):
        assert AnswerSearch(impossible=trained).with_prediction_settings({"null_threshold": 1.0}).impossible is True
    assert AnswerSearch(impossible=False).with_prediction_settings({"best": 3}) == AnswerSearch(
        impossible=False, best=3
    )
