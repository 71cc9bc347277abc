"""Questions with choices: files, sequences side by side, losses, predictions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.experiment import Experiment, Training
from plmjax.finetuning.batches.source import ExampleRows, TaskSource
from plmjax.finetuning.evaluation import TaskEvaluation
from plmjax.finetuning.tasks.choices import ChoiceExamples, Choices, MultipleChoice
from plmjax.inference.program import program_of
from plmjax.interop import huggingface
from plmjax.models.bert import BertConfig
from plmjax.objectives.objective import LossInputs
from plmjax.training.optimizers import BertAdamW
from tests.finetuning import parity
from tests.finetuning.parity import VOCABULARY, Numbers
from tests.finetuning.tasks.test_tagging import written
from tests.systems.modules import outputs, random_params

FORMATS = {
    "rows.tsv": ("text\tright\tone\ttwo\nA man sits.\t1\the runs\tshe runs\nIt rains.\t0\tit \"pours\"\tit is dry\n",
                 {"choices": ("one", "two")}),
    "rows.csv.gz": ('A man sits.,B,he runs,she runs\nIt rains.,a,"it ""pours""",it is dry\n',
                    {"choices": ("one", "two"), "columns": ("text", "right", "one", "two")}),
    "rows.jsonl": ('{"text": "A man sits.", "right": 1, "ends": ["he runs", "she runs"]}\n'
                   '{"right": "A", "text": " It rains. ", "ends": ["it \\"pours\\"", "it is dry"]}\n',
                   {"choices": ("ends",)}),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_reads_every_format_alike(tmp_path, name):
    text, options = FORMATS[name]
    path = written(tmp_path / name, text)
    examples = Choices(train=path, context="text", label="right", **options).read("train")
    lines = [2, 3] if name == "rows.tsv" else [1, 2]
    choices = [["he runs", "she runs"], ['it "pours"', "it is dry"]]
    assert examples == ChoiceExamples(path, lines, ["A man sits.", "It rains."], choices, [1, 0])


def test_the_question_stands_before_every_choice(tmp_path):
    text = (
        "sent1\tsent2\tending0\tending1\tending2\tending3\tlabel\nA man sits.\tThen he\tgoes\tstands\truns\tsleeps\t3\n"
    )
    task = Choices(
        train=written(tmp_path / "swag.tsv", text),
        context="sent1",
        question="sent2",
        choices=("ending0", "ending1", "ending2", "ending3"),
    )
    examples = task.read("train")
    assert examples.contexts == ["A man sits."] and examples.answers == [3]
    assert examples.choices == [["Then he goes", "Then he stands", "Then he runs", "Then he sleeps"]]


def draws(count: int, choices: int) -> ChoiceExamples:
    random = np.random.default_rng(0)

    def text(most: int) -> str:
        return " ".join(map(str, random.integers(10, 97, random.integers(1, most))))

    ends = [[text(7) for _ in range(choices)] for _ in range(count)]
    answers = random.integers(0, choices, count).tolist()
    return ChoiceExamples("", list(range(2, count + 2)), [text(6) for _ in ends], ends, answers)


@pytest.mark.nightly
def test_losses_and_gradients_equal_those_of_transformers_and_of_packed_rows(tmp_path):
    theirs = parity.reference(tmp_path, "BertForMultipleChoice", 1)
    module, params = huggingface.load(tmp_path)
    objective, examples = MultipleChoice(), draws(7, 3)
    encoded = objective.encode(examples, Numbers(), module.config, Choices(sequence_length=14))
    given = parity.batch(encoded, 14, 1)
    assert given["input_ids"].shape == (7, 3, 14)
    answers = np.array(examples.answers)[np.asarray(given["example_ids"])[:, 0, 0] // 3]
    loss, gradient, sums, their = parity.compared(
        tmp_path, theirs, objective, module=module, params=params, given=given, labels=parity.tensor(answers)
    )
    hits, weight = sums.metrics["accuracy"]
    assert (int(hits), int(weight)) == (sum(their.logits.argmax(-1).numpy() == answers), 7)

    packed = parity.batch(encoded, 40, 3)
    assert packed["input_ids"].shape[:2] == (3, 3) and jnp.max(packed["segment_ids"]) == 3
    parity.assert_same_packed(objective, module, params, packed=packed, loss=loss, gradient=gradient)


def test_sequences_and_predictions():
    examples = ChoiceExamples("", [2, 5], ["10 11 12", "20"], [["30", "31 32"], ["33", "34"]], [1, 0])
    objective = MultipleChoice()
    encoded = objective.encode(examples, Numbers(), BertConfig.tiny(), Choices(sequence_length=7))
    cls, sep = VOCABULARY.cls, VOCABULARY.sep
    rows = [encoded.tokens[a:b].tolist() for a, b in zip(encoded.offsets, encoded.offsets[1:], strict=False)]
    assert rows == [
        [cls, 10, 11, 12, sep, 30, sep],
        [cls, 10, 11, sep, 31, 32, sep],  # the longer text is cut
        [cls, 20, sep, 33, sep],
        [cls, 20, sep, 34, sep],
    ]
    outputs = [np.array([score], np.float32) for score in (0.0, np.log(3.0), 1.0, 1.0 + np.log(4.0))]
    found, files = objective.evaluate_outputs(examples, encoded, outputs)
    assert found == {"accuracy": 0.5}
    assert files["predictions.tsv"].splitlines() == [
        "line\tlabel\tprediction\tprobability",
        "2\t1\t1\t0.750000",
        "5\t0\t1\t0.800000",
    ]


def test_an_evaluation_of_packed_questions_has_the_outputs_of_each_alone() -> None:
    """Choices stand side by side, several questions to a row, and fill more than a batch."""
    model = BertConfig.tiny(vocab_size=97, hidden_size=24, num_attention_heads=2).with_dropout(0.0)
    examples, objective, task = draws(7, 3), MultipleChoice(), Choices(sequence_length=40, pack=3)
    run = Experiment(model, objective, task, optimizer=BertAdamW(), training=Training(batch_size=2, unroll=1))
    encoded = objective.encode(examples, Numbers(), model, task)
    rows = ExampleRows(encoded, 40, 3, pad=0)
    source = TaskSource([rows], rows, VOCABULARY, seed=0)
    program, evaluation = program_of(run, source), TaskEvaluation(run, examples, source, Numbers())
    params = random_params(program.module)
    metrics = evaluation(program, LossInputs(params))

    alone = parity.batch(encoded, 14, 1)
    logits = outputs(program.module, params, objective.model_inputs(alone)).logits[..., 0]  # [questions, choices]
    order = np.asarray(alone["example_ids"])[:, 0, 0] // 3
    nats = -jax.nn.log_softmax(logits)[np.arange(7), np.array(examples.answers)[order]]
    assert metrics["loss"] == pytest.approx(float(np.mean(nats)), rel=1e-5)
    said = [int(line.split("\t")[2]) for line in evaluation.predictions["predictions.tsv"].splitlines()[1:]]
    assert said == logits.argmax(axis=1)[np.argsort(order)].tolist() and len(set(said)) > 1
    assert metrics["accuracy"] == np.mean(np.array(said) == examples.answers)
