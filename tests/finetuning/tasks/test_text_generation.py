"""Pairs of texts, and texts that are written given others: files, rows, losses, what is written and what is refused."""

import dataclasses
import gzip
import json
from pathlib import Path
from typing import Any

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import multihost_utils

from plmjax.contracts.system import Purpose
from plmjax.experiment import Experiment, Training
from plmjax.finetuning.batches.source import ExampleRows, TaskSource
from plmjax.finetuning.evaluation import TaskEvaluation
from plmjax.finetuning.metrics import generated_texts
from plmjax.finetuning.tasks.text_generation import Translation
from plmjax.finetuning.tasks.text_pairs import TextPairExamples, TextPairs
from plmjax.generation.beam_search import BeamSearch
from plmjax.generation.options import Generation
from plmjax.generation.sampling import Greedy, Sampling
from plmjax.inference.program import program_of
from plmjax.models.gpt2 import Gpt2Config
from plmjax.models.transformer import TransformerConfig
from plmjax.objectives.objective import LossInputs, LossSums
from plmjax.training.optimizers import StochasticGradientDescent
from tests.finetuning import parity
from tests.finetuning.parity import NumbersOfGpt

PAIRS = [("two dogs", "zwei Hunde"), ("a man", "ein Mann"), ("snow", "Schnee")]


@pytest.fixture
def parallel(tmp_path: Path) -> str:
    """The path of the sources; the targets are beside it."""
    for suffix, side in zip(("en", "de"), zip(*PAIRS, strict=True), strict=True):
        (tmp_path / f"train.{suffix}").write_text("\n".join(side) + "\n")
        (tmp_path / f"packed.{suffix}.gz").write_bytes(gzip.compress("\n".join(side).encode()))
    return str(tmp_path / "train.en")


def read(path: str | Path, **settings: Any) -> list[tuple]:
    return list(TextPairs(**settings).rows(str(path)))


def test_parallel_files_and_tables_hold_the_same(parallel: str, tmp_path: Path) -> None:
    expected = [(line, *pair) for line, pair in enumerate(PAIRS, start=1)]
    sides = {"source": "en", "target": "de"}
    assert read(parallel, **sides) == read(tmp_path / "packed.en.gz", **sides) == expected
    (tmp_path / "rows.tsv").write_text("en\tde\n" + "".join(f"{en}\t{de}\n" for en, de in PAIRS))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"de": de, "en": en}) + "\n" for en, de in PAIRS))
    assert read(tmp_path / "rows.tsv", **sides) == [(line + 1, *pair) for line, *pair in expected]
    assert read(tmp_path / "rows.jsonl", **sides) == expected
    there_and_back = read(str(tmp_path / "train.de"), source="de", target="en", prefix="to English: ")
    assert there_and_back[0] == (1, "to English: zwei Hunde", "two dogs")
    for name, text in (("lines.txt", "snow\n"), ("alone.en", "snow\n"), ("alone.jsonl", '{"en": "snow"}\n')):
        (tmp_path / name).write_text(text)
        assert list(TextPairs(**sides).rows(str(tmp_path / name), labelled=False)) == [(1, "snow", None)]
    (tmp_path / "rows.jsonl").write_text('{"source": "a", "target": 1}\n{"source": "b", "target": false}\n')
    words = ("1=very good", "false=a=b")
    assert read(tmp_path / "rows.jsonl", words=words) == [(1, "a", "very good"), (2, "b", "a=b")]


MODEL = TransformerConfig.tiny(
    vocab_size=97, max_position_embeddings=24, d_model=16, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=24,
    decoder_ffn_dim=24, decoder_start_token_id=3, dropout=0.0,
)  # fmt: skip
DECODER = Gpt2Config.tiny(vocab_size=97, n_positions=24, n_embd=16, n_layer=1)
END = parity.VOCABULARY.end
EXAMPLES = TextPairExamples("dev.en", [1, 2, 3], ["11 12 13", "14", "15 16"], ["21", "22 23 24", "25 26"])
TASK = TextPairs(sequence_length=12, target_length=8, pack=3)
GREEDY = Translation(beams=1, max_new_tokens=6)


def batch(encoded: Any, pack: int) -> dict[str, jax.Array]:
    rows = ExampleRows(encoded, 12, pack, pad=0, decoder_length=8)
    return {name: jnp.asarray(field) for name, field in rows.batch(rows.in_order, np.arange(len(rows))).items()}


def test_an_encoder_decoder_reads_and_writes_rows_of_its_own() -> None:
    rows = batch(GREEDY.encode(EXAMPLES, NumbersOfGpt(), MODEL, TASK), 1)
    order = rows["example_ids"][:, 0].tolist()
    found = {name: dict(zip(order, np.asarray(array).tolist(), strict=True)) for name, array in rows.items()}
    assert found["input_ids"][0][:5] == [11, 12, 13, END, 0] and found["segment_ids"][0][:5] == [1, 1, 1, 1, 0]
    assert found["decoder_input_ids"][1][:5] == [3, 22, 23, 24, 0]
    assert found["next_ids"][1][:5] == [22, 23, 24, END, 0]
    assert found["next_weights"][1] == [1.0] * 4 + [0.0] * 4
    assert found["decoder_positions"][1][:5] == [0, 1, 2, 3, 0]


def test_a_decoder_reads_both_texts_in_one_row_and_is_asked_for_the_second() -> None:
    task = TextPairs(sequence_length=12, target_length=0)
    encoded = GREEDY.encode(EXAMPLES, NumbersOfGpt(), DECODER, task)
    rows = ExampleRows(encoded, 12, 1, pad=0)
    found = rows.batch(np.array([[1]]), np.array([0]))
    assert found["input_ids"][0].tolist() == [90, 14, 91, 22, 23, 24, 0, 0, 0, 0, 0, 0]
    assert found["next_ids"][0].tolist()[2:6] == [22, 23, 24, END]
    assert found["next_weights"][0].tolist() == [0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0]
    assert found["cls_positions"].tolist() == [[2]]  # a text is written after the delimiter


@pytest.fixture(scope="module")
def made() -> tuple[Experiment, TaskSource, Any, LossInputs]:
    """(experiment, source, program, random parameters) of packed rows."""
    run = Experiment(
        model=MODEL, objective=GREEDY, data=TASK, optimizer=StochasticGradientDescent(clip_norm=0.0, learning_rate=1.0),
        training=Training(batch_size=8, unroll=1),
    )  # fmt: skip
    rows = ExampleRows(GREEDY.encode(EXAMPLES, NumbersOfGpt(), MODEL, TASK), 12, 3, pad=0, decoder_length=8)
    source = TaskSource([rows], rows, NumbersOfGpt.vocabulary, seed=0)
    program = program_of(run, source)
    # With larger products than at first what is written depends on the source.
    flat = flax.traverse_util.flatten_dict(program.initialize(3).params, sep="/")
    flat = {name: 3 * array if name.endswith("kernel") else array for name, array in flat.items()}
    return run, source, program, LossInputs(flax.traverse_util.unflatten_dict(flat, sep="/"))


def test_an_evaluation_tells_the_nats_of_each_target_and_what_is_written(made: tuple) -> None:
    run, source, program, loss_inputs = made
    module, nats, written = MODEL.module(Purpose.CAUSAL_LM, program.module.execution), [], []
    scores = jax.jit(lambda ids, target: module.apply(loss_inputs.variables, ids, decoder_input_ids=target).logits)
    for text, target in zip(EXAMPLES.sources, EXAMPLES.targets, strict=True):
        ids, asked = jnp.array([[*map(int, text.split()), END]]), [*map(int, target.split()), END]
        likely = jax.nn.log_softmax(scores(ids, jnp.array([[3, *asked[:-1]] + [0] * (7 - len(asked))]))[0])
        nats += [-float(likely[place, token]) for place, token in enumerate(asked)]
        row = [3]
        while (len(row) < 7 and row[-1:] != [END]) or len(row) == 1:
            padded = jnp.array([row + [0] * (7 - len(row))])
            row.append(int(scores(ids, padded)[0, len(row) - 1].argmax()))
        written.append(NumbersOfGpt().decode(row[1:]))
    evaluation = TaskEvaluation(run, EXAMPLES, source, NumbersOfGpt())
    found = evaluation(program, loss_inputs)
    assert set(found) == set(evaluation.names(program)) == {"loss", "bleu", "chrf"}
    assert found["loss"] == pytest.approx(np.mean(nats), rel=1e-5)
    lines = [json.loads(line) for line in evaluation.predictions["predictions.jsonl"].splitlines()]
    assert [line["prediction"] for line in lines] == written and len(set(written)) > 1
    assert [line["reference"] for line in lines] == EXAMPLES.targets and lines[1]["line"] == 2
    assert list(GREEDY.submission(lines)) == [text + "\n" for text in written]


def test_each_host_writes_a_share_and_has_the_whole(made: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    run, source, program, loss_inputs = made
    alone = TaskEvaluation(run, EXAMPLES, source, NumbersOfGpt())
    alone(program, loss_inputs)
    shares: list[np.ndarray] = []

    def exchange(value: Any, tiled: bool) -> Any:
        """The second host is asked first, and the first is given what that one wrote."""
        if isinstance(value, np.ndarray):
            shares.append(value)
            return np.concatenate([value, shares[0]])
        return value

    monkeypatch.setattr(multihost_utils, "process_allgather", exchange)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    for host in (1, 0):
        monkeypatch.setattr(jax, "process_index", lambda host=host: host)
        together = TaskEvaluation(run, EXAMPLES, source, NumbersOfGpt())
        together(program, loss_inputs)
    assert together.predictions == alone.predictions
    assert [(share[0] >= 0).any(axis=1).tolist() for share in shares] == [[True, False], [True, True]]


def test_smoothing_is_of_the_training_alone(made: tuple) -> None:
    _, source, program, loss_inputs = made
    rows = next(source.evaluation(program.phase))
    smoothed = dataclasses.replace(GREEDY, label_smoothing=0.2)

    @jax.jit
    def sums(*inputs: Any) -> list[LossSums]:
        return [smoothed.sums(program.module, *inputs, training=training) for training in (True, False)]

    found = sums(loss_inputs, rows, jax.random.key(0))
    learned, evaluated = (float(one.losses["target"]) for one in found)
    assert learned != pytest.approx(evaluated, rel=1e-3)
    assert float(found[0].metrics["nats"][0]) == pytest.approx(evaluated, rel=1e-5)


def test_texts_that_are_too_long(caplog: pytest.LogCaptureFixture) -> None:
    short = dataclasses.replace(TASK, sequence_length=3)
    cut = GREEDY.encode(EXAMPLES, NumbersOfGpt(), MODEL, dataclasses.replace(short, cut_sources=True))
    assert cut.tokens.tolist()[:3] == [11, 12, END] and "1 of 3 sources in dev.en are longer than 2" in caplog.text
    short = dataclasses.replace(TASK, target_length=3, cut_sources=True)
    cut = GREEDY.encode(EXAMPLES, NumbersOfGpt(), MODEL, dataclasses.replace(short, cut_targets=True)).decoder
    asked = cut.token_fields["next_ids"][cut.offsets[1] : cut.offsets[2]]
    assert len(asked) == 3 and asked[-1] == END and "targets in dev.en are longer than 2" in caplog.text


STORED = Generation(
    beams=3, length_penalty=2.0, length_normalization="tokens", early_stopping="full", max_new_tokens=9,
    forced_eos_token_id=END, bad_words_ids=("3",),
)  # fmt: skip


def test_a_task_takes_what_it_leaves_open_from_its_checkpoint() -> None:
    writing = Translation().with_generation_defaults(STORED).generation_settings()
    assert writing.strategy == BeamSearch(3, length_penalty=2.0, early_stopping="full")
    assert (writing.max_new_tokens, writing.forced_eos_token_id, writing.bad_words_ids) == (9, END, ("3",))
    writing = GREEDY.with_generation_defaults(STORED).generation_settings()
    assert (writing.strategy, writing.max_new_tokens, writing.forced_eos_token_id) == (Greedy(), 6, END)
    assert Translation().with_generation_defaults(None).generation_settings().strategy == BeamSearch(
        4, length_penalty=0.6, length_normalization="gnmt"
    )
    tuned = Translation().with_generation_defaults(STORED)
    assert "beams 3, length_penalty 2" in tuned.signatures(TASK)["decoding"]
    assert tuned.with_prediction_settings({"temperature": 0.5}).generation_settings().strategy == Sampling(
        temperature=0.5
    )
    assert tuned.with_prediction_settings({"beams": 2}).generation_settings().strategy.length_penalty == 2.0


def test_texts_are_written_beside_their_pairs_and_judged_against_the_targets() -> None:
    """Each text of an official file is one line, whatever stands in it."""
    outputs = ["21", " 22\n 23  24 ", ""]
    found, files = GREEDY.evaluate_outputs(EXAMPLES, None, outputs)
    lines = [json.loads(line) for line in files["predictions.jsonl"].splitlines()]
    assert lines[1] == {"line": 2, "source": "14", "reference": "22 23 24", "prediction": "22\n 23  24"}
    assert [line["prediction"] for line in lines] == ["21", "22\n 23  24", ""]
    texts = [text.strip() for text in outputs]
    assert found == generated_texts.translation(EXAMPLES.targets, texts)
    assert found != generated_texts.translation(texts, EXAMPLES.targets)
    assert list(GREEDY.submission(lines)) == ["21\n", "22 23 24\n", "\n"]
