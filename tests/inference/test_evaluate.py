"""What evaluate says of a model that has hardly learned, and the program that it runs."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest

from plmjax.commands import cli
from plmjax.experiment import Phase
from plmjax.generation.generate import generate
from plmjax.inference.embed import embed_file
from plmjax.inference.evaluate import evaluate
from plmjax.inference.fill_mask import fill_mask
from plmjax.inference.language_model import LanguageModel
from plmjax.inference.program import adapted_program, program_of
from plmjax.training.checkpoints import checkpoints
from plmjax.training.metrics import read
from tests.metric_names import undocumented
from tests.third_party import experiments
from tests.third_party.source import ChainSource


def test_evaluates_as_the_run_itself_did(small_run):
    """The run looked at two batches only of what is evaluated here."""
    metrics = evaluate(small_run)
    assert metrics["eval/perplexity"] == pytest.approx(math.exp(metrics["eval/loss"]))
    last = [line for line in read(small_run / "metrics.jsonl") if "eval/loss" in line][-1]
    assert metrics.keys() == {name for name in last if name.startswith("eval/")} | {
        "eval/perplexity",
        "eval/unknown_tokens",
    }
    assert metrics["eval/loss"] == pytest.approx(last["eval/loss"], abs=0.3)
    assert not any(map(undocumented, read(small_run / "metrics.jsonl")))


@pytest.mark.nightly
def test_evaluates_raw_text(small_run, prose, tmp_path):
    documents = prose.read_text(encoding="utf-8").split("\n\n")
    (tmp_path / "text.txt").write_text("\n\n".join(documents[:10]), encoding="utf-8")
    metrics = evaluate(small_run, tmp_path / "text.txt")
    assert not undocumented(metrics)
    assert 3 < metrics["eval/unigram_entropy"] < metrics["eval/loss"]
    assert metrics["eval/loss"] == pytest.approx(math.log(800), rel=0.02)  # after six steps, on any Python's text


def test_rows_are_as_long_as_those_of_the_last_phase() -> None:
    phases = Phase(fraction=0.5, sequence_length=8), Phase(fraction=0.5, sequence_length=12)
    run = dataclasses.replace(experiments.recurrent(), phases=phases)
    assert program_of(run, ChainSource(run.data)).phase.sequence_length == 12


@pytest.mark.parametrize(("shares", "span"), [((0.1, 0.2), 64), ((0.95, 0.1), None)])
def test_a_program_computes_what_its_parameters_need(shares: tuple[float, ...], span: int | None) -> None:
    """An Adaptive-Span of 200 tokens; other models have one program for all parameters."""
    run = experiments.changed(experiments.adaptive_span(), model={"attn_span": 200, "ramp": 8, "computed_span": None})
    source, params = ChainSource(run.data), {"adaptive_span": {"layers": {"span_shares": np.float32([shares])}}}
    whole = program_of(run, source)
    found = adapted_program(whole, run, source, params)
    assert found.experiment.model.computed_span == span and (found is whole) == (span is None)
    assert adapted_program(whole, experiments.gpt2(), source, params) is whole


USES = {
    "embed": ("small", lambda run, folder: embedded(run, folder)),
    "fill mask": ("small", lambda run, folder: [share for _, share in fill_mask(run, "the [MASK]", 1)[0]]),
    "language model": ("decoder", lambda run, folder: LanguageModel(run).score([[1, 5, 6, 7]])[0].nats),
    "generate": (
        "decoder",
        lambda run, folder: [texts[0].log_probability for texts in generate(run, ["the"], **SHORT)],
    ),
}
SHORT = {"max_new_tokens": 1}


def embedded(run: Path, folder: Path) -> np.ndarray:
    (folder / "text.txt").write_text("a text")
    embed_file(run, folder / "text.txt", folder / "out.npz")
    return np.load(folder / "out.npz")["embeddings"][0]


# Two programs each, the other two: pytest -m nightly tests/inference
@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=() if case == "fill mask" else pytest.mark.nightly) for case in USES],
)
def test_a_checkpoint_computes_in_the_dtype_of_its_run(case: str, small_run, decoder_run, tmp_path: Path) -> None:
    name, use = USES[case]
    params, description = checkpoints.load_parameters(small_run if name == "small" else decoder_run)
    found = {}
    for dtype in ("float32", "bfloat16"):
        run = experiments.changed(description.experiment, training={"dtype": dtype})
        checkpoints.save_parameters(tmp_path / dtype, params, run, tokenizer=description.tokenizer)
        found[dtype] = np.asarray(use(tmp_path / dtype, tmp_path))
    assert (found["float32"] != found["bfloat16"]).any()
    np.testing.assert_allclose(found["bfloat16"], found["float32"], rtol=0.1, atol=0.1)


@pytest.mark.nightly
def test_unknown_tokens_are_counted_by_every_command_that_reads_text(
    small_run: Path, classifiers: Path, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch
) -> None:
    """Too many are a mistake: test_mistakes.py."""
    texts = ["a film of the plot and the film"] * 9 + ["the \N{SNOWMAN}"]
    file, rows = (
        tmp_path / "few.jsonl",
        [json.dumps({"text": text, "label": "a"}, ensure_ascii=False) + "\n" for text in texts],
    )
    file.write_text("".join(rows), encoding="utf-8")
    (tmp_path / "few.txt").write_text("\n".join(texts), encoding="utf-8")
    assert evaluate(classifiers / "one", file)["eval/unknown_tokens"] == 1
    for command, stream in (
        (["predict", classifiers / "one", "--input", file], "err"),
        (["embed", small_run, "--input", tmp_path / "few.txt", "--output", tmp_path / "v.npz"], "out"),
    ):
        capsys.readouterr()
        monkeypatch.setattr("sys.argv", ["plmjax", *map(str, command)])
        cli.main()
        assert "of the tokens, 1 of " in getattr(capsys.readouterr(), stream)


@pytest.mark.nightly
def test_any_text_is_evaluated_where_the_share_allows_it(small_run: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("今天天气很好，我们去公园散步吧。\n" * 20, encoding="utf-8")
    assert evaluate(small_run, tmp_path / "text.txt", max_unknown=1)["eval/unknown_tokens"] > 100
