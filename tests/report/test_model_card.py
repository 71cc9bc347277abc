"""Model cards, read as the Hub reads them: their metadata, and numbers from the records of a run."""

import dataclasses
import json
from pathlib import Path

import pytest
import yaml

from plmjax.experiment import Experiment, Mixture
from plmjax.finetuning.tasks.tagging import TokenTagging
from plmjax.report import model_card
from plmjax.training.checkpoints import ancestry
from plmjax.training.checkpoints.ancestry import Ancestor
from tests.report.test_page import RUN, records, write
from tests.third_party import experiments

SPEED = {"tokens_per_second": 4000.0, "model_flops_per_second": 3e9}


def parts(text: str) -> tuple[dict, str]:
    """The metadata of a card, and its text."""
    before, metadata, body = text.split("---\n", 2)
    assert before == ""
    return yaml.safe_load(metadata), body


def test_its_numbers_are_those_of_the_record(tmp_path: Path) -> None:
    workdir = write(tmp_path / "run", lines=records(**SPEED))
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    metadata, text = parts(model_card.write(workdir, folder).read_text(encoding="utf-8"))
    assert metadata["library_name"] == "transformers" and metadata["language"] == "en"
    (found,) = metadata["model-index"]
    (result,) = found["results"]
    assert found["name"] == "run" and {one["type"]: one["value"] for one in result["metrics"]} == {
        "loss": 5.25,
        "masked_accuracy": 0.125,
        "unigram_entropy": 6.75,
    }
    tokens = 100 * 8 * 64
    assert f"| tokens, with padding | {tokens:,} |" in text
    assert f"| model FLOPs | {3e9 * tokens / 4000:.3g} |" in text and "| time of the steps | 13 s |" in text
    assert "| loss | 5.25 |" in text and "| hidden_size | 128 |" in text and "Ancestry" not in text


def test_time_and_flops_are_those_of_each_span_between_two_records(tmp_path: Path) -> None:
    """50 steps at 4,000 tokens a second and 50 at 1,000, which do the fourth part of the products a second."""
    slow = {"tokens_per_second": 1000.0, "model_flops_per_second": 7.5e8}
    lines = [line | (SPEED if line["step"] <= 50 else slow) for line in records()[:-1]] + records()[-1:]
    text = model_card.write(write(tmp_path / "run", lines=lines), tmp_path / "card.md").read_text(encoding="utf-8")
    half = 50 * 8 * 64
    assert f"| model FLOPs | {3e9 * half / 4000 + 7.5e8 * half / 1000:.3g} |" in text
    assert f"| time of the steps | {round(half / 4000 + half / 1000)} s |" in text


def tagging() -> Experiment:
    return dataclasses.replace(experiments.bert(), objective=TokenTagging(labels=("a", "b")))


@pytest.mark.parametrize(
    ("make", "task"),
    [
        (experiments.bert, "fill-mask"),
        (
            lambda: dataclasses.replace(experiments.bert(), objective=TokenTagging(labels=("a",))),
            "token-classification",
        ),
        (experiments.gpt2, "text-generation"),
        (experiments.t5, "text2text-generation"),
        (experiments.classification, "text-classification"),
        (experiments.glove, "feature-extraction"),
    ],
)
def test_its_task_is_what_the_trained_module_does(make, task: str, tmp_path: Path) -> None:
    """A folder of sentence-transformers is named as such."""
    workdir, folder = write(tmp_path / "run", make(), records(**SPEED)), tmp_path / "out"
    metadata, _ = parts(model_card.write(workdir, tmp_path / "card.md").read_text(encoding="utf-8"))
    assert metadata["pipeline_tag"] == task
    folder.mkdir()
    for name in ("config.json", "modules.json"):
        (folder / name).write_text("{}")
    metadata, _ = parts(model_card.write(workdir, folder).read_text(encoding="utf-8"))
    assert (metadata["library_name"], metadata["pipeline_tag"]) == ("sentence-transformers", "sentence-similarity")


def test_it_names_evaluations_and_the_checkpoints_it_was_made_from(tmp_path: Path) -> None:
    workdir = write(tmp_path / "run", lines=records(**SPEED))
    ancestry.write(workdir, [Ancestor("runs/teacher", 1200, "abc", "distil", {})])
    (workdir / "start.json").write_text(json.dumps({"from": "runs/bert", "sha256": "def"}))
    (workdir / "evaluations" / "dev").mkdir(parents=True)
    evaluation = {"accuracy": 0.75, "name": "dev", "cut": True, "exact": False}
    (workdir / "evaluations" / "dev" / "evaluation.json").write_text(json.dumps(evaluation))
    metadata, text = parts(model_card.write(workdir, tmp_path / "card.md").read_text(encoding="utf-8"))
    assert metadata["library_name"] == "plmjax"
    (dev,) = [one for one in metadata["model-index"][0]["results"] if one["dataset"]["name"] == "dev"]
    assert [metric["type"] for metric in dev["metrics"]] == ["accuracy"]
    assert "| runs/teacher | 1200 | distil | abc |" in text and "| runs/bert |  | start | def |" in text
    small = tmp_path / "small"  # a compressed model, with the record of its training
    small.mkdir()
    write(small / "training", lines=records(**SPEED))
    ancestry.write(small, [Ancestor("runs/teacher", 1200, "abc", "distil", {})])
    text = model_card.write(small, tmp_path / "small.md").read_text(encoding="utf-8")
    assert "# small\n" in text and "| runs/teacher | 1200 | distil | abc |" in text and "| loss | 5.25 |" in text


def test_it_names_the_sources_of_a_mixture(tmp_path: Path) -> None:
    mixture = Mixture(("wikipedia=a", "books=b"), weights=("wikipedia=2", "books=1"))
    run = dataclasses.replace(RUN, data=dataclasses.replace(RUN.data, mixture=mixture))
    workdir = write(tmp_path / "run", run, lines=records(**SPEED))
    text = model_card.write(workdir, tmp_path / "card.md").read_text(encoding="utf-8")
    assert "| mixture.sources | " in text and "wikipedia=a" in text and "books=1" in text
    alone = model_card.write(write(tmp_path / "alone", lines=records(**SPEED)), tmp_path / "alone.md")
    assert "mixture" not in alone.read_text(encoding="utf-8")


def test_a_card_is_written_again_and_another_file_stays(tmp_path: Path, fails) -> None:
    workdir = write(tmp_path / "run", lines=records(**SPEED))
    for _ in range(2):
        model_card.write(workdir, tmp_path)
    hub = pytest.importorskip("huggingface_hub", reason="needs huggingface_hub, which transformers brings")
    found = hub.ModelCard.load(tmp_path / "README.md")
    assert found.data.model_name == "run" and found.data.eval_results[0].metric_value == 5.25
    (tmp_path / "mine.md").write_text("mine")
    assert "found another one" in fails("card", workdir, tmp_path / "mine.md")


def test_a_run_without_a_record_is_one_sentence(tmp_path: Path, fails) -> None:
    workdir = write(tmp_path / "run", RUN)
    (workdir / "metrics.jsonl").unlink()
    assert "Expected the record of a training" in fails("card", workdir, tmp_path)
    assert not (tmp_path / "README.md").exists()
