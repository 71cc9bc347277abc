"""BART's fine-tuning: labels and answers read where both sides read the row, and the same in transformers."""

import json
from pathlib import Path

import chex
import numpy as np
import pytest

from plmjax.experiment import Checkpoint, Experiment, Finetuning, Training
from plmjax.finetuning.tasks.questions import Questions, SpanExtraction
from plmjax.finetuning.tasks.sentences import Sentences, SequenceClassification
from plmjax.inference.evaluate import evaluate
from plmjax.inference.predict import predict
from plmjax.interop.run_directories import export_checkpoint, import_checkpoint
from plmjax.models.families.task_heads import QuestionAnswering
from plmjax.runs.finetuning import finetune
from plmjax.training.checkpoints import checkpoints
from plmjax.training.optimizers import AdamW
from tests.finetuning.conftest import WORDS
from tests.optional import torch, transformers
from tests.systems.modules import random_params


# 8 s. By day test_run.py does all of it with BERT; test_parity, test_invariants and test_interop of tests/systems have
# BART's head, alone and packed: pytest -m nightly tests/finetuning/test_bart.py
@pytest.mark.nightly
def test_sentences_are_labelled_at_their_last_end_token(
    bart_run: Path, sentiment: tuple[str, str], tmp_path: Path
) -> None:
    """Learned, evaluated, predicted, exported, read by transformers and imported: one and the same model."""
    train, validation = sentiment
    run = Experiment(
        model=None, objective=SequenceClassification(),
        data=Sentences(train, validation, sequence_length=32, pack=4, text="sentence"),
        optimizer=AdamW(learning_rate=1e-2), training=Training(steps=0, batch_size=8, log_every=50, unroll=1),
        finetuning=Finetuning(epochs=10.0), checkpoint=Checkpoint(every=0, minutes=0),
    )  # fmt: skip
    metrics = finetune(run, bart_run, tmp_path / "run")
    assert metrics["eval/accuracy"] > 0.9
    predicted = list(predict(tmp_path / "run", validation))
    rows = list(run.data.rows(validation))
    right = [record["prediction"] == label for record, (*_, label) in zip(predicted, rows, strict=True)]
    assert np.mean(right) == pytest.approx(metrics["eval/accuracy"])

    assert evaluate(tmp_path / "run") == pytest.approx(metrics)
    folder = tmp_path / "run" / "evaluations" / "validation"
    assert json.loads((folder / "evaluation.json").read_text()) == pytest.approx(metrics)
    assert (folder / "predictions.tsv").read_text() == (tmp_path / "run" / "predictions.tsv").read_text()

    assert "BartForSequenceClassification" in export_checkpoint(tmp_path / "run", tmp_path / "exported")
    model = transformers.BartForSequenceClassification.from_pretrained(tmp_path / "exported").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    for record, (_, (text,), _) in zip(predicted, rows, strict=True):
        with torch.no_grad():
            shares = model(**tokenizer(text, return_tensors="pt")).logits[0].softmax(-1).numpy()
        said = dict(zip(model.config.label2id, shares, strict=True))
        assert record["probabilities"] == pytest.approx(said, abs=1e-5)

    import_checkpoint(tmp_path / "exported", tmp_path / "imported")
    params, description = checkpoints.load_parameters(tmp_path / "imported")
    chex.assert_trees_all_equal(params, checkpoints.load_parameters(tmp_path / "run")[0])
    assert description.experiment.objective == SequenceClassification(labels=("negative", "positive"))


# 8 s. tests/systems has the head by day, and tests/finetuning/tasks/test_questions.py rows and answers.
@pytest.mark.nightly
def test_answers_are_found_in_what_the_decoder_read(bart_run: Path, tmp_path: Path) -> None:
    """Both sides read question and text, several to a row; transformers scores the best answer of each as here."""
    asked(tmp_path / "asked.json")
    data = Questions(validation=str(tmp_path / "asked.json"), sequence_length=48, stride=8, question_length=8, pack=2)
    config = checkpoints.describe(checkpoints.find(bart_run)).experiment.model
    run = Experiment(config, SpanExtraction(), data, finetuning=Finetuning(), training=Training(batch_size=8, unroll=1))
    params = random_params(QuestionAnswering(config))
    files = checkpoints.tokenizer_files(bart_run / "tokenizer")
    checkpoints.save_parameters(tmp_path / "run", params, run, tokenizer=files)
    predicted = list(predict(tmp_path / "run", tmp_path / "asked.json"))

    assert "BartForQuestionAnswering" in export_checkpoint(tmp_path / "run", tmp_path / "exported")
    model = transformers.BartForQuestionAnswering.from_pretrained(tmp_path / "exported").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    examples = data.read("validation")
    for record, context, question in zip(predicted, examples.contexts, examples.questions, strict=True):
        inputs = tokenizer(question, context, return_tensors="pt")
        with torch.no_grad():
            ends = model(**inputs)
        scores = ends.start_logits[0][:, None] + ends.end_logits[0]
        of_text = torch.tensor([side == 1 for side in inputs.sequence_ids(0)])
        blank = torch.tensor([not tokenizer.decode(token).strip() for token in inputs.input_ids[0]])
        spans = torch.triu(of_text[:, None] & of_text) & ~torch.diag(blank)  # white space alone is no answer
        best = scores[spans].max()
        assert record["nbest"][0]["score"] == pytest.approx(float(best), abs=1e-5)


def asked(path: Path) -> None:
    """Questions for the word that praises, in texts of several lengths."""
    draws, paragraphs = np.random.default_rng(0), []
    for number in range(8):
        words = [*draws.choice(WORDS[3:], number).tolist(), WORDS[0]]
        context = f"{number} {' '.join(words)}"
        answers = [{"text": WORDS[0], "answer_start": context.index(WORDS[0])}]
        entry = {"id": str(number), "question": "praise?", "answers": answers}
        paragraphs.append({"context": context, "qas": [entry]})
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}), encoding="utf-8")
