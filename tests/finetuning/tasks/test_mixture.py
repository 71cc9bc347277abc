"""Several text-to-text tasks as one: their files, rows, draws and scores, and every mistake in one sentence."""

import dataclasses
import itertools
import json

import numpy as np
import pytest

from plmjax.errors import UserError
from plmjax.experiment import Experiment
from plmjax.experiment.phases import ResolvedPhase
from plmjax.finetuning import inputs
from plmjax.finetuning.batches.source import TaskSource
from plmjax.finetuning.metrics.text_metrics import BleuAndChrf, ExactMatch
from plmjax.finetuning.tasks.mixture import MixedTextGeneration, Mixture, TextTask
from plmjax.models.t5 import T5Config
from plmjax.training.feed import mixture_metrics
from tests.finetuning import parity
from tests.finetuning.parity import NumbersOfGpt

MODEL = T5Config.tiny(
    vocab_size=97, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_decoder_layers=1, num_heads=2, dropout_rate=0.0,
    decoder_start_token_id=3,
)  # fmt: skip
END = parity.VOCABULARY.end
TRANSLATION = TextTask(
    name="numbers", train="numbers.tsv", validation="few.tsv", source="en", target="zh", prefix="5 ",
    judge=BleuAndChrf(tokenize="zh"),
)  # fmt: skip
LABELS = TextTask(
    name="parity", train="labels.jsonl", validation="labels.jsonl", source="number", target="odd", prefix="6 ",
    words=("false=40", "true=41"), judge=ExactMatch(),
)  # fmt: skip
OBJECTIVE = MixedTextGeneration(beams=1, max_new_tokens=6)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory) -> Mixture:
    """30 pairs of numbers, of which 4 are evaluated too, and 6 numbers that are odd or not."""
    folder = tmp_path_factory.mktemp("mixture")
    for name, count in (("numbers", 30), ("few", 4)):
        rows = "".join(f"{20 + row}{' 21' * (1 - row % 2)}\t{60 + row}\n" for row in range(count))
        (folder / f"{name}.tsv").write_text(f"en\tzh\n{rows}")
    labels = "".join(json.dumps({"number": str(number), "odd": bool(number % 2)}) + "\n" for number in range(10, 16))
    (folder / "labels.jsonl").write_text(labels)
    return Mixture(folder=str(folder), tasks=(TRANSLATION, LABELS), sequence_length=12, target_length=8, pack=3)


def source_of(mixture: Mixture, seed: int = 0) -> TaskSource:
    run, train = Experiment(MODEL, OBJECTIVE, mixture), mixture.read("train")
    rows = inputs.rows(run, train, NumbersOfGpt(), mixture.mixing(train))
    validation = inputs.rows(run, mixture.read("validation"), NumbersOfGpt())
    return TaskSource([rows], validation, NumbersOfGpt.vocabulary, seed=seed)


def phase(rows: int) -> ResolvedPhase:
    return ResolvedPhase(index=0, first_step=0, steps=100, sequence_length=12, batch_size=rows, accumulation=1)


def test_every_task_is_read_with_its_prefix_and_its_words(mixture: Mixture) -> None:
    train = mixture.read("train")
    assert [len(part) for part in train.parts] == [30, 6] and len(train) == 36
    assert train.parts[0].sources[0] == "5 20 21" and train.parts[0].targets[0] == "60"
    assert train.parts[1].sources[:2] == ["6 10", "6 11"] and train.parts[1].targets[:2] == ["40", "41"]
    assert sorted(mixture.texts(train)) == sorted(
        itertools.chain(*(part.sources + part.targets for part in train.parts))
    )
    encoded = OBJECTIVE.encode(train, NumbersOfGpt(), MODEL, mixture)
    (begin, end), (first, last) = encoded.offsets[30:32], encoded.decoder.offsets[30:32]
    assert encoded.tokens[begin:end].tolist() == [6, 10, END]
    assert encoded.decoder.token_fields["next_ids"][first:last].tolist() == [40, END]
    alone = dataclasses.replace(mixture, only=("parity",)).read("train")
    assert alone.parts == train.parts[1:]


def test_a_source_names_its_task_by_a_prefix_that_a_single_task_adds(mixture: Mixture) -> None:
    assert OBJECTIVE.prompts(["5 20", "6 10"], NumbersOfGpt(), MODEL, mixture) == [[5, 20, END], [6, 10, END]]
    single = dataclasses.replace(mixture, only=("parity",))
    assert OBJECTIVE.prompts(["10"], NumbersOfGpt(), MODEL, single) == [[6, 10, END]]


@pytest.mark.parametrize(("limit", "temperature", "share"), [(12, 1.0, 1 / 3), (100, np.inf, 0.5)])
def test_training_draws_the_tasks_at_their_rates(
    mixture: Mixture, limit: int, temperature: float, share: float
) -> None:
    """From any step on; both tasks stand in one row."""
    mixture = dataclasses.replace(mixture, limit=limit, temperature=temperature)
    source = source_of(mixture)
    batches = [*itertools.islice(source.train(phase(source.per_epoch), 0), 40)]
    ids = np.concatenate([batch["example_ids"] for batch in batches])
    assert np.mean(ids[ids >= 0] >= 30) == pytest.approx(share, abs=0.02)
    per_epoch = np.array([np.sum(batch["example_ids"] >= 0) for batch in batches])
    assert np.abs(per_epoch - (min(30, limit) + 6)).max() <= 3  # a row more or less
    assert any({0, 1} <= set(row) for row in np.where(ids >= 0, ids >= 30, -1).tolist())
    again = next(source_of(mixture).train(phase(source.per_epoch), 9))
    np.testing.assert_array_equal(again["example_ids"], batches[9]["example_ids"])


def test_weights_of_tasks_are_their_rates_and_are_logged(mixture: Mixture) -> None:
    weighted = dataclasses.replace(mixture, weights=("parity=3", "numbers=1"))
    source = source_of(weighted)
    batches = list(itertools.islice(source.train(phase(source.per_epoch), 0), 40))
    ids = np.concatenate([batch["example_ids"] for batch in batches])
    ids = ids[ids >= 0]
    assert np.mean(ids >= 30) == pytest.approx(0.75, abs=0.02)
    metrics = mixture_metrics(source, [phase(source.per_epoch)], 40)
    assert metrics["mixture/parity/share"] == 0.75 and metrics["mixture/numbers/share"] == 0.25
    assert metrics["mixture/parity/epochs"] * 6 == pytest.approx(np.sum(ids >= 30), rel=0.02)
    assert metrics["mixture/numbers/epochs"] * 30 == pytest.approx(np.sum(ids < 30), rel=0.05)
    assert weighted.with_validation_file("numbers=other.tsv").selected[0].validation == "other.tsv"
    single = dataclasses.replace(mixture, weights=("parity=7",), only=("numbers",))
    np.testing.assert_array_equal(single.mixing(single.read("train")).rates(), [1.0])


def test_every_task_is_judged_on_its_own(mixture: Mixture) -> None:
    examples, texts = mixture.read("validation"), ["60", "61", "6", "63", "40", "41", "41", "41", "40", "4"]
    metrics, files = OBJECTIVE.evaluate_outputs(examples, None, texts)
    assert set(files) == {"predictions.numbers.jsonl", "predictions.parity.jsonl"}
    lines = {name: [json.loads(line) for line in text.splitlines()] for name, text in files.items()}
    for name, judge, written in (("numbers", BleuAndChrf("zh"), texts[:4]), ("parity", ExactMatch(), texts[4:])):
        own = lines[f"predictions.{name}.jsonl"]
        assert [line["prediction"] for line in own] == written
        expected = judge.scores([line["reference"] for line in own], written)
        assert {key: metrics[f"{name}/{key}"] for key in expected} == expected
    assert lines["predictions.parity.jsonl"][1] == {
        "line": 2, "source": "6 11", "reference": "41", "prediction": "41",
    }  # fmt: skip
    assert metrics["mean"] == pytest.approx((metrics["numbers/bleu"] + metrics["parity/exact"]) / 2)
    assert metrics["numbers/chrf"] > 0 and metrics["parity/exact"] > 0


def test_one_task_is_evaluated_on_another_file_or_predicted(mixture: Mixture) -> None:
    other = mixture.with_validation_file(f"numbers={mixture.folder}/numbers.tsv")
    assert [task.name for task in other.selected] == ["numbers"] and len(other.read("validation")) == 30
    assert other.read("validation").path == "numbers-numbers.tsv"
    single = dataclasses.replace(mixture, only=("parity",))
    (part,) = single.parts(f"{mixture.folder}/labels.jsonl", 9)
    assert part.parts[0].sources[0] == "6 10" and part.parts[0].targets == [None] * 6
    assert single.with_validation_file(f"{mixture.folder}/labels.jsonl").read("validation").parts[0].targets[0] == "40"


def test_texts_that_are_too_long(mixture: Mixture) -> None:
    short = dataclasses.replace(mixture, sequence_length=3)
    advice = r"line 2 of \S*numbers\.tsv .* raise --data\.sequence_length or set --data\.tasks\.0\.cut_sources True"
    with pytest.raises(UserError, match=advice):
        OBJECTIVE.encode(short.read("train"), NumbersOfGpt(), MODEL, short)
