"""What evaluate says of a model that has hardly learned, and the program that it runs."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

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
