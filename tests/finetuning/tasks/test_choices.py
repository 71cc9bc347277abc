"""Questions with choices: files, sequences side by side, losses, predictions."""

import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.finetuning.tasks.choices import ChoiceExamples, Choices, MultipleChoice
from plmjax.interop import huggingface
from plmjax.models.bert import BertConfig
from tests.finetuning import parity
from tests.finetuning.parity import VOCABULARY, Numbers
from tests.finetuning.tasks.test_tagging import written

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
    if name == "rows.tsv":  # a question stands before every choice
        asked = Choices(train=path, context="text", label="right", question="two", **options).read("train")
        assert asked.choices[0] == ["she runs he runs", "she runs she runs"] and asked.contexts == examples.contexts


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
