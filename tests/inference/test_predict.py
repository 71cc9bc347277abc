"""Predictions for files without labels: what evaluation writes of the same examples, and in their order."""

import csv
import gzip
import io
import json
from pathlib import Path

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.commands import cli
from plmjax.contracts.execution import Execution
from plmjax.errors import UserError
from plmjax.experiment import Experiment, Training
from plmjax.finetuning.tasks.choices import Choices, MultipleChoice
from plmjax.finetuning.tasks.label_sets import LabelSets, MultiLabelClassification
from plmjax.finetuning.tasks.questions import Questions, SpanExtraction
from plmjax.finetuning.tasks.sentences import Regression, Sentences, SequenceClassification
from plmjax.finetuning.tasks.tagging import Tagging, TokenTagging
from plmjax.inference import predict as prediction
from plmjax.inference.evaluate import evaluate
from plmjax.inference.predict import predict
from plmjax.training.checkpoints import checkpoints

WORDS = "the film was a fine plot of poor scenes and great actors".split()
COUNT = 23


def sentence(draws: np.random.Generator) -> str:
    return " ".join(draws.choice(WORDS, draws.integers(2, 9)))


def table(path: Path, rows: list[dict], left_out: str = "") -> str:
    """Rows as a table of the path's kind, but for one column."""
    rows = [{name: cell for name, cell in row.items() if name != left_out} for row in rows]
    if path.suffix == ".jsonl":
        text = "".join(json.dumps(row) + "\n" for row in rows)
    else:
        file = io.StringIO()
        writer = csv.DictWriter(file, rows[0], delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writeheader()
        writer.writerows(rows)
        text = file.getvalue()
    path.write_text(text, encoding="utf-8")
    return str(path)


def single(draws, folder):
    rows = [{"text": sentence(draws), "label": "abc"[n % 3]} for n in range(COUNT)]
    return table(folder / "single.tsv", rows), table(folder / "bare.tsv", rows, "label")


def pairs(draws, folder):
    rows = [{"label": "yes" if n % 2 else "no", "text": sentence(draws), "b": sentence(draws)} for n in range(COUNT)]
    return table(folder / "pairs.csv", rows), table(folder / "bare.csv", rows, "label")


def numbers(draws, folder):
    rows = [{"text": sentence(draws), "label": n / 2} for n in range(COUNT)]
    return table(folder / "numbers.jsonl", rows), table(folder / "bare.jsonl", rows, "label")


def topics(draws, folder):
    rows = [{"text": sentence(draws), "label": list("abc"[: n % 4])} for n in range(COUNT)]
    return table(folder / "topics.jsonl", rows), table(folder / "bare.jsonl", rows, "label")


def choices(draws, folder):
    rows = [
        {"context": sentence(draws), "choices": [sentence(draws) for _ in range(3)], "label": n % 3}
        for n in range(COUNT)
    ]
    return table(folder / "choices.jsonl", rows), table(folder / "bare.jsonl", rows, "label")


def tagged(draws, folder):
    texts = [sentence(draws).split() for _ in range(COUNT)]
    texts[3] = [*texts[3], *WORDS * 5]  # more than a row holds
    lines = [[(word, "B-A" if len(word) > 4 else "O") for word in words] for words in texts]
    labelled = "\n".join("".join(f"{word}\t{label}\n" for word, label in words) for words in lines)
    (folder / "tagged.conll").write_text(labelled)
    (folder / "bare.conll").write_text("\n".join("".join(f"{word}\n" for word, _ in words) for words in lines))
    return str(folder / "tagged.conll"), str(folder / "bare.conll")


def questions(draws, folder):
    paths = []
    texts = [" ".join(sentence(draws) for _ in range(3)) for _ in range(COUNT)]
    for name in ("asked.json", "bare.json"):
        paragraphs = []
        for number, text in enumerate(texts):
            answers = (
                [] if number % 4 == 0 else [{"text": text.split()[2], "answer_start": text.index(text.split()[2])}]
            )
            judged = {"answers": answers, "is_impossible": not answers} if name == "asked.json" else {}
            entries = [{"id": f"q{number}{part}", "question": "what was fine?", **judged} for part in "ab"]
            paragraphs.append({"context": text, "qas": entries})
        (folder / name).write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
        paths.append(str(folder / name))
    return tuple(paths)


KINDS = {
    "single": (single, Sentences(), SequenceClassification()),
    "pairs": (pairs, Sentences(text_pair="b"), SequenceClassification()),
    "numbers": (numbers, Sentences(), Regression()),
    "topics": (topics, LabelSets(), MultiLabelClassification()),
    "choices": (choices, Choices(), MultipleChoice()),
    "tagged": (tagged, Tagging(scheme="IOB2"), TokenTagging(entities=True)),
    "questions": (questions, Questions(stride=6, question_length=8), SpanExtraction()),
}


@pytest.fixture(scope="module")
def tuned(small_run, tmp_path_factory):
    """kind -> (checkpoint, labelled file, the same without labels); drawn so large that predictions differ.

    Labels of words differ by the word, whatever the tokenizer made of this Python's documentation.
    """
    made = {}

    def make(kind: str) -> tuple[Path, str, str]:
        if kind not in made:
            folder = tmp_path_factory.mktemp(kind)
            write, data, objective = KINDS[kind]
            labelled, bare = write(np.random.default_rng(0), folder)
            data = type(data)(**vars(data) | {"train": labelled, "sequence_length": 32, "pack": 3})
            description = checkpoints.describe(checkpoints.find(small_run))
            objective = objective.fit_labels(data.read("train"))
            module = objective.module(description.experiment.model, Execution())
            drawn = module.init(jax.random.key(1), jnp.ones((1, 4), jnp.int32))["params"]
            flat = flax.traverse_util.flatten_dict(jax.tree.map(np.asarray, flax.core.meta.unbox(drawn)))
            large = {"kernel", "word_embeddings"} if kind == "tagged" else {"kernel"}
            flat = {path: leaf if large.isdisjoint(path) else 12 * leaf for path, leaf in flat.items()}
            run = Experiment(
                model=description.experiment.model,
                objective=objective,
                data=data,
                training=Training(batch_size=8, unroll=1),
            )
            checkpoints.save_parameters(
                folder / "run", flax.traverse_util.unflatten_dict(flat), run, description.tokenizer
            )
            made[kind] = folder / "run", labelled, bare
        return made[kind]

    return make


def written(folder: Path, name: str = "predictions.tsv") -> list[dict]:
    return list(csv.DictReader(io.StringIO((folder / name).read_text()), delimiter="\t"))


# 2 to 3 s each: pytest -m nightly tests/inference
@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_of_a_file_with_labels_and_without_is_what_evaluation_writes(kind, tuned, tmp_path):
    checkpoint, labelled, bare = tuned(kind)
    evaluate(checkpoint, Path(labelled), tmp_path)
    found = list(predict(checkpoint, bare))
    packed = tmp_path / f"{Path(bare).name}.gz"
    packed.write_bytes(gzip.compress(Path(bare).read_bytes()))
    again = list(predict(checkpoint, packed))

    def without_lines(records):
        return [{name: value for name, value in record.items() if name != "line"} for record in records]

    assert found == again and without_lines(found) == without_lines(predict(checkpoint, labelled))
    if kind == "questions":
        names = {"predictions": "prediction", "nbest_predictions": "nbest", "null_odds": "null_odds"}
        for file, name in names.items():
            expected = json.loads((tmp_path / f"{file}.json").read_text())
            assert expected == {record["id"]: record[name] for record in found}
        assert len(set(expected)) == len(found) == 2 * COUNT
        assert len({record["prediction"] for record in found}) > 3
    elif kind == "tagged":
        rows = written(tmp_path)
        pairs_of = [pair for record in found for pair in zip(record["words"], record["predictions"], strict=True)]
        assert pairs_of == [(row["form"], row["prediction"]) for row in rows]
        assert {label for _, label in pairs_of} == {"B-A", "O"}
        cut = found[3]["probabilities"]
        assert cut[0] and cut[-1] is None and None not in found[2]["probabilities"]
    else:
        rows = written(tmp_path)
        said = [json.dumps(record["prediction"]) if kind == "topics" else str(record["prediction"]) for record in found]
        assert said == [row["prediction"] for row in rows]
        assert len(rows) == COUNT and len(set(said)) > 1
        if kind == "topics":
            expected = [[name for name, share in one["probabilities"].items() if share >= 0.5] for one in found]
            assert expected == [one["prediction"] for one in found]
            assert len(list(predict(checkpoint, bare, threshold=0.9))) == COUNT
        elif kind != "numbers":
            assert [f"{record['probability']:.6f}" for record in found] == [row["probability"] for row in rows]
            for record in found:
                shares = record["probabilities"]
                assert sum(shares.values() if kind != "choices" else shares) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("kind", [pytest.param("single", marks=pytest.mark.nightly), "tagged", "questions"])
def test_a_long_file_is_predicted_in_parts_and_in_order(kind, tuned, monkeypatch):
    checkpoint, _, bare = tuned(kind)
    whole = list(predict(checkpoint, bare))
    monkeypatch.setattr(prediction, "PART", 5)
    parts = predict(checkpoint, bare)
    for mine, theirs in zip(parts, whole, strict=True):
        assert mine.keys() == theirs.keys() and mine["line"] == theirs["line"]
        if kind == "single":
            assert mine["probabilities"] == pytest.approx(theirs["probabilities"], abs=1e-5)
        elif kind == "tagged":
            assert mine["words"] == theirs["words"]
        else:
            assert mine["id"] == theirs["id"] and mine["null_odds"] == pytest.approx(theirs["null_odds"], abs=1e-3)


def test_predictions_come_while_the_file_is_read(tuned, tmp_path, monkeypatch):
    """The first part is there before a mistake after it is met."""
    checkpoint, _, _ = tuned("single")
    monkeypatch.setattr(prediction, "PART", 4)
    (tmp_path / "rows.jsonl").write_text('{"text": "a film"}\n' * 6 + "no json\n")
    found = predict(checkpoint, tmp_path / "rows.jsonl")
    assert [next(found)["line"] for _ in range(4)] == [1, 2, 3, 4]
    with pytest.raises(UserError, match=r"Expected JSON in line 7 of .*, found"):
        next(found)


@pytest.mark.nightly
def test_plain_text_is_one_text_a_line(tuned, tmp_path):
    text = "a fine film\n\nthe plot was poor"
    (tmp_path / "lines.txt").write_text(text)
    table(tmp_path / "lines.tsv", [{"text": line or "-"} for line in text.split("\n")])
    checkpoint, _, _ = tuned("single")
    found, rows = (list(predict(checkpoint, tmp_path / name)) for name in ("lines.txt", "lines.tsv"))
    assert [record["line"] for record in found] == [1, 2, 3]
    for line in (0, 2):
        assert found[line]["probabilities"] == pytest.approx(rows[line]["probabilities"], abs=1e-5)
    checkpoint, _, _ = tuned("tagged")
    found = list(predict(checkpoint, tmp_path / "lines.txt"))
    assert [record["words"] for record in found] == [line.split() for line in text.split("\n")]
    assert [len(record["predictions"]) for record in found] == [3, 0, 4]


def test_predictions_of_a_file_of_conll_have_its_lines(tuned, tmp_path, capsys):
    """With -DOCSTART-, which begins a document and is no sentence to train on."""
    checkpoint, _, _ = tuned("tagged")
    document = "-DOCSTART-\n\na\nfine\nfilm\n\nthe\nplot\n\n"
    (tmp_path / "rows.conll").write_text(document * 2)
    said = run(capsys, checkpoint, "--input", tmp_path / "rows.conll", "--format", "official")
    assert [line.split("\t")[0] for line in said.splitlines()] == (document * 2).splitlines()
    assert said.startswith("-DOCSTART-\tO\n\na\t")
    found = list(predict(checkpoint, tmp_path / "rows.conll"))
    assert [len(record["words"]) for record in found] == [1, 3, 2] * 2
    assert (found[0]["predictions"], found[0]["probabilities"]) == (["O"], [None])
    labelled = document.replace("\n", "\tO\n").replace("\n\tO\n", "\n\n")
    (tmp_path / "labelled.conll").write_text(labelled)
    assert list(predict(checkpoint, tmp_path / "labelled.conll")) == found[:3]
    assert len(Tagging(train=str(tmp_path / "labelled.conll")).read("train")) == 2


def run(capsys, *arguments: object) -> str:
    capsys.readouterr()
    cli.run(["predict", *map(str, arguments)])
    return capsys.readouterr().out


@pytest.mark.nightly
def test_command_writes_nothing_but_predictions_to_standard_output(tuned, tmp_path, capsys):
    checkpoint, _, bare = tuned("single")
    said = run(capsys, checkpoint, "--input", bare)
    assert [json.loads(line) for line in said.splitlines()] == list(predict(checkpoint, bare))
    assert f"{COUNT} predictions in" in run(capsys, checkpoint, "--input", bare, "--output", tmp_path / "out.jsonl")
    assert (tmp_path / "out.jsonl").read_text() == said
    renamed = table(tmp_path / "other.csv", [{"review": "a film"}, {"review": "a plot"}])
    assert run(capsys, checkpoint, "--input", renamed, "--data.text", "review").count("\n") == 2


@pytest.mark.nightly
def test_official_formats(tuned, capsys):
    checkpoint, _, bare = tuned("pairs")
    rows = list(
        csv.DictReader(io.StringIO(run(capsys, checkpoint, "--input", bare, "--format", "official")), delimiter="\t")
    )
    assert [row["index"] for row in rows] == [str(number) for number in range(COUNT)]
    assert {row["prediction"] for row in rows} == {"yes", "no"}
    checkpoint, _, bare = tuned("tagged")
    said = run(capsys, checkpoint, "--input", bare, "--format", "official")
    words = [[line.split("\t")[0] for line in block.splitlines()] for block in said.strip("\n").split("\n\n")]
    assert words == [record["words"] for record in predict(checkpoint, bare)]
    checkpoint, _, bare = tuned("questions")
    said = run(capsys, checkpoint, "--input", bare, "--format", "official", "--objective.null_threshold=-1e9")
    assert list(json.loads(said)) == [record["id"] for record in predict(checkpoint, bare)]
    assert set(json.loads(said).values()) == {""}
    checkpoint, _, bare = tuned("numbers")
    said = run(capsys, checkpoint, "--input", bare, "--format", "official", "--objective.limits", "100", "200")
    assert {line.split("\t")[1] for line in said.splitlines()[1:]} == {"100.0"}


def test_mistakes_are_named(tuned, small_run, fails, tmp_path):
    checkpoint, _, bare = tuned("single")
    of_pairs, of_words = tuned("pairs")[0], tuned("tagged")[0]
    (tmp_path / "empty.tsv").write_text("")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "lines.txt").write_text("a film\n")
    same = ("predict", checkpoint, "--input")
    assert "fine-tuned on a task, found one of pretraining" in fails("predict", small_run, "--input", bare)
    assert "plmjax finetune" in fails("predict", small_run, "--input", bare)
    assert "column 'b' in line 2" in fails("predict", of_pairs, "--input", bare)
    assert "set --data.text_pair" in fails("predict", of_pairs, "--input", bare)
    for name in ("empty.tsv", "empty.txt"):
        assert f"Expected examples to predict in {tmp_path / name}, found none" in fails(*same, tmp_path / name)
    assert "Expected a .tsv, .csv or .jsonl file" in fails("predict", of_pairs, "--input", tmp_path / "lines.txt")
    assert "Expected a .conll, .conllu or .jsonl file" in fails("predict", of_words, "--input", bare)
    assert "no file" in fails(*same, tmp_path / "none.tsv")
    assert "did you mean '--data.text'?" in fails(*same, bare, "--data.txt", "a")
    assert "for this task, found '--training.steps'" in fails(*same, bare, "--training.steps", "3")
    assert "Expected a file in a folder that exists" in fails(*same, bare, "--output", tmp_path / "no" / "out.jsonl")
    assert "jsonl" in fails(*same, bare, "--format", "json")
    with pytest.raises(UserError, match="Expected a setting of predicting this task, found 'label'"):
        predict(checkpoint, bare, label="a")


def test_a_mistake_on_the_way_leaves_no_half_file(tuned, tmp_path, fails, monkeypatch):
    checkpoint, _, _ = tuned("single")
    monkeypatch.setattr(prediction, "PART", 2)
    (tmp_path / "rows.jsonl").write_text('{"text": "a film"}\n' * 3 + '{"text": 3}\n')
    assert "line 4" in fails("predict", checkpoint, "--input", tmp_path / "rows.jsonl", "--output", tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.jsonl"]
