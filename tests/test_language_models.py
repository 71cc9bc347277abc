"""The page of the language models, and the text that they are compared on."""

import importlib.util
import math
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).parents[1] / "benchmarks" / "language_models.py"
SPECIFICATION = importlib.util.spec_from_file_location("language_models", FILE)
benchmark = sys.modules["language_models"] = importlib.util.module_from_spec(SPECIFICATION)
SPECIFICATION.loader.exec_module(benchmark)


def test_a_row_is_what_evaluate_gives(decoder_run: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("A line of text.\n\nAnd another one, of ten words or nearly.\n")
    (found,) = benchmark.measured(str(decoder_run), tmp_path / "text.txt", None)
    assert (found["eval/window"], found["eval/stride"], found["parameters"]) == (24, 12, 23_232)
    rows = benchmark.page([found, found | {"name": "better", "eval/bits_per_byte": 1.0}], "a text", "python x.py")
    lines = [line for line in rows.splitlines() if line.startswith("| ")]
    assert "    python x.py\n" in rows and f"a text:\n{found['eval/bytes']} bytes" in rows
    assert [line.split(" | ")[0] for line in lines] == ["| model", "| frequencies of tokens", "| run", "| better"]
    unigram = found["eval/unigram_entropy"] * found["eval/tokens"] / math.log(2) / found["eval/bytes"]
    assert lines[1].endswith(f"| {unigram:.3f} |") and lines[2].endswith(f"| {found['eval/bits_per_byte']:.3f} |")
    assert {line.count("|") for line in lines} == {12} and "LAMBADA" not in rows


def test_scores_without_training_have_a_table_of_their_own() -> None:
    row = {"name": "run", "lambada/accuracy": 0.125, "lambada/perplexity": 1234.5, "blimp/accuracy": 0.75}
    row |= {"blimp/syntax": 0.5, "blimp/morphology": 1.0, "blimp/syntax/gaps": 0.5, "blimp/pairs": 4}
    lines = benchmark._zero_shot([{"name": "of words"}, row])
    assert lines[1].endswith("both ways: of words.") and lines[2] == ""
    assert lines[3].startswith("| model |") and lines[3].endswith("| BLiMP % | morphology | syntax |")
    assert lines[5:] == ["| run | 12.5 | 1,234 | 75.0 | 100.0 | 50.0 |"]


def test_a_model_that_reads_both_ways_has_two_rows() -> None:
    """Each has its own bits; what is of the text is in both."""
    found = {"name": "elmo", "eval/perplexity": 3.0, "eval/tokens": 7, "eval/forward_perplexity": 2.0}
    rows = [benchmark._direction(found | {"eval/backward_perplexity": 4.0}, way) for way in ("forward", "backward")]
    assert [row["name"] for row in rows] == ["elmo, forward", "elmo, backward"]
    assert [row["eval/perplexity"] for row in rows] == [2.0, 4.0] and rows[1]["eval/tokens"] == 7


def test_the_text_is_what_the_tiny_runs_hold_out(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"A sentence of document {number}. A second one." for number in range(200)]
    documents = [benchmark.formats.Document("text", "", text) for text in texts]
    monkeypatch.setattr(benchmark.formats, "documents", lambda inputs, format: iter(documents))
    found = benchmark.held_out_documentation().strip().split("\n\n")
    assert 0 < len(found) < 30 and set(found) < set(texts)
