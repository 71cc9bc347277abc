"""Model cards, read as the Hub reads them: their metadata, and numbers from the records of a run."""

import json
from pathlib import Path

import pytest
import yaml

from plmjax.report import model_card
from plmjax.training.checkpoints import ancestry
from plmjax.training.checkpoints.ancestry import Ancestor
from tests.report.test_page import RUN, records, write

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


def test_it_names_evaluations_and_the_checkpoints_it_was_made_from(tmp_path: Path) -> None:
    workdir = write(tmp_path / "run", lines=records(**SPEED))
    ancestry.write(workdir, [Ancestor("runs/teacher", 1200, "abc", "distil", {})])
    (workdir / "start.json").write_text(json.dumps({"from": "runs/bert", "sha256": "def"}))
    (workdir / "evaluations" / "dev").mkdir(parents=True)
    (workdir / "evaluations" / "dev" / "evaluation.json").write_text(json.dumps({"accuracy": 0.75, "name": "dev"}))
    metadata, text = parts(model_card.write(workdir, tmp_path / "card.md").read_text(encoding="utf-8"))
    assert metadata["library_name"] == "plmjax"
    assert [one["dataset"]["name"] for one in metadata["model-index"][0]["results"]][1:] == ["dev"]
    assert "| runs/teacher | 1200 | distil | abc |" in text and "| runs/bert |  | start | def |" in text


def test_a_compressed_model_has_the_record_of_its_training(tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    write(tmp_path / "small" / "training", lines=records(**SPEED))
    ancestry.write(tmp_path / "small", [Ancestor("runs/teacher", 1200, "abc", "distil", {})])
    text = model_card.write(tmp_path / "small", tmp_path / "card.md").read_text(encoding="utf-8")
    assert "# small\n" in text and "| runs/teacher | 1200 | distil | abc |" in text and "| loss | 5.25 |" in text


def test_the_hub_reads_it(tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="needs huggingface_hub, which transformers brings")
    workdir = write(tmp_path / "run", lines=records(**SPEED))
    found = hub.ModelCard.load(model_card.write(workdir, tmp_path / "README.md"))
    assert found.data.model_name == "run" and found.data.eval_results[0].metric_value == 5.25


def test_a_card_is_written_again_and_another_file_stays(tmp_path: Path, fails) -> None:
    workdir = write(tmp_path / "run", lines=records(**SPEED))
    for _ in range(2):
        model_card.write(workdir, tmp_path)
    (tmp_path / "mine.md").write_text("mine")
    assert "found another one" in fails("card", workdir, tmp_path / "mine.md")


def test_a_run_without_a_record_is_one_sentence(tmp_path: Path, fails) -> None:
    workdir = write(tmp_path / "run", RUN)
    (workdir / "metrics.jsonl").unlink()
    assert "Expected the record of a training" in fails("card", workdir, tmp_path)
    assert not (tmp_path / "README.md").exists()
