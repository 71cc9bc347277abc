"""Settings of a user reach the part that reads them: the share of unknown tokens, the reading of the text, the rows."""

import dataclasses
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import jax
import numpy as np
import pytest

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data import mixture, remote, text_size
from plmjax.data import preparation as preparing
from plmjax.data.mixing import Mixture
from plmjax.errors import UserError
from plmjax.experiment import Experiment, Phase
from plmjax.finetuning.batches.encoded import Encoded
from plmjax.finetuning.tasks.sentences import SequenceClassification
from plmjax.finetuning.tasks.text_generation import Translation
from plmjax.finetuning.tasks.text_pairs import TextPairs
from plmjax.inference import evaluate as evaluation
from plmjax.inference import members, perplexity, readings, task_settings
from plmjax.inference import predict as prediction
from plmjax.inference.program import program_of
from plmjax.training import program as programs
from plmjax.training.checkpoints import checkpoints
from tests.families.recurrent import ELMO
from tests.strangers import experiments


class Reached(Exception):
    """Ends a command when the test has seen enough."""


class Recorder(members.Member):
    """A member that keeps what it is made of."""

    made: ClassVar[list[tuple[Path, Experiment, float]]] = []

    def __init__(self, directory: Path, run: Experiment, max_unknown: float = -1.0) -> None:
        self.directory, self.run, self.unknown = directory, run, SimpleNamespace(count=4)
        self.made.append((directory, run, max_unknown))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, Experiment, float]]:
    monkeypatch.setattr(members, "Member", Recorder)
    monkeypatch.setattr(Recorder, "made", [])

    def stop(*arguments: Any) -> None:
        raise Reached

    monkeypatch.setattr(members, "average_predictions", stop)
    return Recorder.made


def of_ensemble(made: list[tuple[Path, Experiment, float]], classifiers: Path, length: int) -> None:
    """That the first run has the settings that were asked for, and each has its own checkpoint and the share."""
    assert [directory.relative_to(classifiers).parts[0] for directory, _, _ in made] == ["one", "two"]
    assert [limit for _, _, limit in made] == [0.7, 0.7]
    assert [run.data.sequence_length for _, run, _ in made] == [length, 48]
    made.clear()


def test_every_member_of_an_ensemble_is_a_run_of_its_own_with_the_share_of_unknown_tokens(
    classifiers: Path, made: list[tuple[Path, Experiment, float]], tmp_path: Path
) -> None:
    one, others, dev = classifiers / "one", [classifiers / "two"], classifiers / "dev.jsonl"
    prediction.predict(one, dev, others, max_unknown=0.7, sequence_length=9)
    of_ensemble(made, classifiers, 9)
    with pytest.raises(Reached):
        prediction.write(one, dev, tmp_path / "x.jsonl", ensemble=others, max_unknown=0.7, sequence_length=9)
    of_ensemble(made, classifiers, 9)
    with pytest.raises(Reached):
        evaluation.evaluate(one, dev, ensemble=others, max_unknown=0.7, sequence_length=9)
    of_ensemble(made, classifiers, 9)


def member(*logits: float, choices: int = 1) -> Any:
    """A member that answers any examples with these logits of two labels."""

    class Fixed:
        run = SimpleNamespace(objective=SequenceClassification(("a", "b")))

        def __call__(self, examples: Any) -> tuple[Encoded, list[np.ndarray]]:
            return SimpleNamespace(choices=choices, of=logits), [np.array(logits)]

    return Fixed()


def test_predictions_of_all_members_are_averaged_in_the_rows_of_the_first() -> None:
    even, sure = member(0.0, 0.0), member(0.0, np.log(9.0))
    encoded, (mean,) = members.average_predictions([even, sure, sure], None)
    np.testing.assert_allclose(np.exp(mean), [(0.5 + 0.1 + 0.1) / 3, (0.5 + 0.9 + 0.9) / 3])
    assert encoded.of == (0.0, 0.0)
    _, (alone,) = members.average_predictions([sure], None)
    np.testing.assert_array_equal(alone, [0.0, np.log(9.0)])
    with pytest.raises(UserError, match="each pair equally often for --ensemble"):
        members.average_predictions([even, sure, member(0.0, 0.0, choices=2)], None)


def test_an_ensemble_is_judged_without_a_loss_in_a_folder_that_names_its_members(
    classifiers: Path, made: list[tuple[Path, Experiment, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five of seven labels are right."""
    labels = SimpleNamespace(choices=1, sequence_fields={"labels": np.array([0, 1, 2, 0, 1, 2, 0], np.int32)})
    outputs = [np.eye(3, dtype=np.float32)[number] for number in (0, 1, 2, 0, 1, 0, 1)]
    monkeypatch.setattr(members, "average_predictions", lambda runs, examples: (labels, outputs))
    found = evaluation.evaluate(classifiers / "one", classifiers / "dev.jsonl", ensemble=[classifiers / "two"])
    assert found["eval/accuracy"] == pytest.approx(5 / 7) and found["eval/unknown_tokens"] == 4
    assert "eval/loss" not in found
    folder = classifiers / "one" / "evaluations" / "dev_with_two"
    assert json.loads((folder / "evaluation.json").read_text()) == found
    assert len((folder / "predictions.tsv").read_text().splitlines()) == 1 + 7


def test_a_task_is_evaluated_on_the_file_named_and_says_how(
    classifiers: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With the definitions of its metrics, in a folder of the file's name, unless too much of it is unknown."""
    file = tmp_path / "other.v2.jsonl"
    file.write_text('{"text": "a film", "label": "a"}\n{"text": "\N{SNOWMAN} film", "label": "b"}\n')

    class Evaluation:
        predictions: ClassVar[dict[str, str]] = {"predictions.tsv": "x"}

        def __init__(self, run: Experiment, examples: Any, source: Any, tokenizer: Any) -> None:
            self.run, self.examples, self.source = run, examples, source

        def signatures(self) -> dict[str, str]:
            return {"eval/f1_signature": "said"}

        def __call__(self, program: Any, loss_inputs: Any) -> dict[str, float]:
            assert (program, loss_inputs) == ("program", "inputs")
            assert self.source.validation_rows.examples == len(self.examples)
            return {"count": len(self.examples), "length": self.run.data.sequence_length}

    monkeypatch.setattr(evaluation, "TaskEvaluation", Evaluation)
    monkeypatch.setattr(evaluation, "program_of", lambda run, source: "program")
    monkeypatch.setattr(evaluation, "_loss_inputs", lambda directory, program: "inputs")
    found = evaluation.evaluate(classifiers / "one", file, max_unknown=0.5, sequence_length=9)
    assert found == {"eval/count": 2, "eval/length": 9, "eval/unknown_tokens": 1, "eval/f1_signature": "said"}
    folder = classifiers / "one" / "evaluations" / "other"
    assert json.loads((folder / "evaluation.json").read_text()) == found
    assert (folder / "predictions.tsv").read_text() == "x"
    evaluation.evaluate(classifiers / "one", None, tmp_path / "own", max_unknown=0.5)
    assert json.loads((tmp_path / "own" / "evaluation.json").read_text())["eval/count"] == 7
    with pytest.raises(UserError, match="Expected text that the tokenizer knows"):
        evaluation.evaluate(classifiers / "one", file, max_unknown=0.1)


def test_predictions_are_written_as_asked_for_and_counted(
    classifiers: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    records = [{"line": 1, "prediction": "a", "note": "\u00f6"}, {"line": 2, "prediction": "b"}]
    monkeypatch.setattr(prediction, "predict", lambda *arguments, **settings: iter(records))
    one, output = classifiers / "one", tmp_path / "out"
    assert prediction.write(one, "x", output) == 2
    assert output.read_text(encoding="utf-8").splitlines()[0] == '{"line": 1, "prediction": "a", "note": "\u00f6"}'
    assert prediction.write(one, "x", output, "official") == 2
    assert output.read_text() == "index\tprediction\n0\ta\n1\tb\n"
    assert prediction.write(one, "x", format="official") == 2 and capsys.readouterr().out == output.read_text()
    (tmp_path / "notes").write_text('of a "prediction": none')
    with pytest.raises(UserError, match="--output"):
        prediction.write(one, "x", tmp_path / "notes")


def test_what_is_said_of_decoding_is_with_the_settings_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    task = dataclasses.replace(experiments.t5(), objective=Translation(beams=3), data=TextPairs())
    monkeypatch.setattr(checkpoints, "find", lambda checkpoint: checkpoint)
    monkeypatch.setattr(checkpoints, "describe", lambda checkpoint: SimpleNamespace(experiment=task))
    assert "beams 3" in prediction.decoding("run", {})
    assert "beams 2" in prediction.decoding("run", {"beams": 2})
    task = experiments.classification()
    assert prediction.decoding("run", {}) == ""


def test_raw_text_is_prepared_and_measured_as_it_is_to_be_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    reading = {"format": "jsonl", "language": "zh", "text_key": "body", "streams": ("source=en", "target=de")}
    run = experiments.changed(experiments.gpt2(), data=reading)
    told: list[Any] = []

    def prepare(inputs: list[Path], format: str, tokenizer: Any, output: Path, **options: Any) -> Any:
        told.append((inputs, format, tokenizer, output, options))
        return SimpleNamespace(all_held_out=lambda: "all of it")

    monkeypatch.setattr(preparing, "prepare", prepare)
    data = tmp_path / "text.jsonl"
    found = evaluation._dataset(run, "tokenizer", tmp_path, data, tmp_path / "scratch", "test", 0.3)
    ((inputs, format, tokenizer, output, options),) = told
    assert (found, inputs, format, tokenizer) == ("all of it", [data], "jsonl", "tokenizer")
    assert output.parent == tmp_path / "scratch" and options == {
        "validation": 0, "language": "zh", "text_key": "body", "streams": {"source": "en", "target": "de"},
        "split": "test", "max_unknown": 0.3, "progress": False, "special_names": (),
    }  # fmt: skip

    monkeypatch.setattr(text_size, "measure", lambda *arguments: arguments)
    assert evaluation._size(run, data, "test") == ([data], "jsonl", "body", "test")
    several = experiments.changed(run, data={"streams": ("text=story", "image")})
    assert evaluation._size(several, data, "") == ([data], "jsonl", "story", "")


def test_the_dataset_is_the_one_named_else_that_of_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = experiments.changed(experiments.gpt2(), data={"cache_limit": "17GB"})
    directory = tmp_path / "run" / "checkpoints" / "5"
    for name in ("run/dataset", "elsewhere", "named"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setattr(evaluation, "_is_prepared", lambda data: True)
    monkeypatch.setattr(evaluation, "_check_tokenizer", lambda *arguments: None)
    monkeypatch.setattr(remote, "open_dataset", lambda path, limit, vocab_size: (path, limit, vocab_size))

    def opened(run: Experiment, data: Path | None) -> Any:
        return evaluation._dataset(run, None, directory, data, tmp_path, "", 0.2)

    elsewhere = experiments.changed(run, data={"path": str(tmp_path / "elsewhere")})
    assert opened(run, None) == (tmp_path / "run" / "dataset", run.data.cache_bytes, 64)
    assert opened(elsewhere, None) == (tmp_path / "elsewhere", run.data.cache_bytes, 64)
    assert opened(elsewhere, tmp_path / "named") == (tmp_path / "named", None, 64)


def test_a_run_without_its_dataset_says_where_it_looked(tmp_path: Path) -> None:
    directory = tmp_path / "run" / "checkpoints" / "5"
    for path, where in (("", tmp_path / "run" / "dataset"), (str(tmp_path / "moved"), tmp_path / "moved")):
        run = experiments.changed(experiments.gpt2(), data={"path": path})
        with pytest.raises(UserError, match=f"Expected the run's dataset at {where}, found none; give held-out text"):
            evaluation._dataset(run, None, directory, None, tmp_path, "", 0.2)


def test_a_split_is_that_of_a_text(classifiers: Path) -> None:
    with pytest.raises(UserError, match=r"Expected a run on text for --split, found one on a task in .*one; leave it"):
        evaluation.evaluate(classifiers / "one", split="test")
    assert evaluation._split(None, "enwik8") == "validation" and evaluation._split("test", "enwik8") == "test"
    assert evaluation._split(None, "jsonl") == evaluation._split(None, "") == ""
    for format, found in (("jsonl", "the format jsonl"), ("", "no raw text")):
        with pytest.raises(UserError, match=f"Expected a published corpus in --data for --split, .* found {found}; "):
            evaluation._split("test", format)


def evaluated(
    run: Experiment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, memory: int | None = None, **asked: Any
) -> dict[str, Any]:
    """Return the metrics of raw text of two datasets, for which the program of a run has these sums."""
    totals = {"loss": (12.0, 8.0), "forward_nats": (4.0, 8.0), "backward_nats": (16.0, 8.0)}
    held_out = SimpleNamespace(totals=lambda program, inputs: totals, means=lambda totals: {"loss": 1.5})
    tokenizer = SimpleNamespace(vocabulary=Vocabulary(9, unknown=3), normalize=str.lower)
    short = Counted()
    short.held_out = {"source": [3, 5], "target": [5]}
    size = text_size.TextSize(bytes=10, characters=5, words=4)
    for module, name, value in (
        (evaluation, "_source", lambda *arguments: ("source", [Counted(), short])),
        (evaluation, "_loss_inputs", lambda *arguments: SimpleNamespace(params=None)),
        (evaluation, "_size", lambda run, data, split: size),
        (evaluation, "program_of", lambda run, source: "program"),
        (evaluation, "adapted_program", lambda *arguments: "adapted"),
        (evaluation.HeldOut, "of", lambda run, source: held_out),
    ):
        monkeypatch.setattr(module, name, value)
    description = SimpleNamespace(experiment=run, load_tokenizer=lambda: tokenizer)
    options = {"window": None, "stride": None} | asked
    return evaluation._of_text(
        description, tmp_path, tmp_path / "text.txt", **options, memory=memory, split="", max_unknown=1
    )


def test_perplexities_are_of_the_tokens_and_bits_of_the_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = evaluated(experiments.gpt2(), monkeypatch, tmp_path, stride=5)
    assert (found["window"], found["stride"], found["tokens"]) == (16, 5, 8)
    assert found["perplexity"] == pytest.approx(math.exp(12 / 8))
    assert found["bits_per_byte"] == pytest.approx(12 / math.log(2) / 10)
    assert found["bits_per_character"] == pytest.approx(12 / math.log(2) / 5)
    assert found["word_perplexity"] == pytest.approx(math.exp(12 / 4))
    assert (found["bytes"], found["characters"], found["words"], found["lowercased"]) == (10, 5, 4, True)
    assert found["unknown_tokens"] == 13 + 1  # of both streams of both datasets
    assert evaluated(experiments.gpt2(), monkeypatch, tmp_path, window=9)["window"] == 9
    assert evaluated(experiments.gpt2(), monkeypatch, tmp_path)["stride"] == 16  # raw text is always read in windows


def test_each_direction_has_its_perplexity_and_bits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = evaluated(experiments.elmo(), monkeypatch, tmp_path)
    for way, nats in (("forward", 4.0), ("backward", 16.0)):
        assert found[f"{way}_perplexity"] == pytest.approx(math.exp(nats / 8))
        assert found[f"{way}_bits_per_byte"] == pytest.approx(nats / math.log(2) / 10)
        assert found[f"{way}_word_perplexity"] == pytest.approx(math.exp(nats / 4))
    assert found["tokens"] == 8 and "window" not in found


def test_no_dataset_is_shorter_than_a_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = experiments.transformer_xl()
    assert evaluated(run, monkeypatch, tmp_path, memory=2)["tokens"] == 8
    with pytest.raises(UserError, match="at most the 2 tokens of the text, found 3"):
        evaluated(run, monkeypatch, tmp_path, memory=3)


def test_an_evaluation_remembers_as_many_tokens_as_asked_for() -> None:
    run = experiments.transformer_xl()
    assert perplexity.remembering(run, 5).objective == dataclasses.replace(run.objective, evaluation_mem_len=5)
    assert perplexity.remembering(run, 0).objective.evaluation_mem_len == 0
    with pytest.raises(UserError, match="--memory of at least 0 tokens, found -1"):
        perplexity.remembering(run, -1)
    with pytest.raises(UserError, match=r"whose evaluations remember tokens, .* found a run of NextToken"):
        perplexity.remembering(experiments.gpt2(), 5)


def test_a_model_without_positions_reads_rows_of_any_length() -> None:
    assert perplexity.row_length(experiments.recurrent(), 10_000) == 10_000
    with pytest.raises(UserError, match="--window of at least 1, found 0"):
        perplexity.row_length(experiments.recurrent(), 0)


def test_evaluations_lie_in_the_folder_of_the_run() -> None:
    assert evaluation._evaluations(Path("a/run/checkpoints/12")) == Path("a/run/evaluations")
    assert evaluation._evaluations(Path("a/run/12")) == Path("a/run/evaluations")


PHASES = (
    Phase(fraction=0.5, sequence_length=8, batch_size=24, accumulation=1),
    Phase(fraction=0.5, sequence_length=12, batch_size=40, accumulation=2),
)


def test_a_window_slides_with_the_batch_of_the_last_phase() -> None:
    run = dataclasses.replace(experiments.gpt2(), phases=PHASES)
    slid = perplexity.sliding(run, stride=5)
    assert (slid.phases, slid.data.sequence_length, slid.data.layout.overlap) == ((), 12, 7)
    assert (slid.training.batch_size, slid.training.accumulation) == (40, 2)
    assert perplexity.sliding(run, 9, 9).data.layout.overlap == 0
    longer = experiments.changed(experiments.gpt2(), training={"evaluation_sequence_length": 8})
    assert perplexity.sliding(longer).data.sequence_length == 8  # the length of its evaluations
    assert perplexity.sliding(longer, 5).training.evaluation_sequence_length == 0


@pytest.mark.parametrize(("asked", "rows"), [(0, 24), (9, 16), (16, 16)])
def test_a_batch_is_a_microbatch_of_the_last_phase_or_what_is_asked_for(
    asked: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On eight devices: 20 rows of a microbatch become 24, and 9 become 16."""
    assert jax.local_device_count() == 8
    run = dataclasses.replace(experiments.gpt2(), phases=PHASES)
    run = experiments.changed(run, training={"evaluation_batch_size": asked})
    monkeypatch.setattr(programs, "build", lambda run, phase, *others: (run, phase))
    source = SimpleNamespace(unigram_counts=None, vocabulary=Vocabulary(64), batch=None)
    built, phase = program_of(run, source)
    assert (phase.batch_size, phase.accumulation, phase.sequence_length) == (rows, 1, 12)
    assert built.training.evaluation_batch_size == 0


class Counted:
    """A dataset of 20 held-out tokens, of which 3 is unknown, in each of two streams."""

    streams = ("source", "target")
    held_out: ClassVar[dict[str, list[int]]] = {"source": [3, 5] * 10, "target": [5] * 17 + [3] * 3}

    def split(self, name: str, stream: str = "source") -> Any:
        assert name == "validation"
        own = np.array(self.held_out[stream])
        return SimpleNamespace(token_count=len(own), tokens=lambda first, stop: own[first:stop])


def test_unknown_tokens_are_those_of_all_streams_to_their_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perplexity, "PIECE", 7)
    tokenizer = SimpleNamespace(vocabulary=Vocabulary(9, unknown=3))
    found = perplexity.unknown_tokens(tokenizer, Counted())
    assert (found.count, found.total) == (13, 40)


def test_a_memory_may_hold_all_of_the_text_and_a_text_has_two_tokens() -> None:
    perplexity.check_memory(Counted(), 20)
    with pytest.raises(UserError, match="at most the 20 tokens of the text, found 21"):
        perplexity.check_memory(Counted(), 21)
    short = Counted()
    for count, message in ((2, ""), (1, "at least two tokens in x, found 1")):
        short.held_out = {"source": [5] * count}
        if message:
            with pytest.raises(UserError, match=message):
                perplexity.check_length(short, Path("x"))
        else:
            perplexity.check_length(short, Path("x"))


def test_a_model_that_spells_words_knows_all_of_them() -> None:
    assert readings.limit_of(experiments.gpt2().model, 0.3) == 0.3
    assert readings.limit_of(ELMO, 0.3) == 1.0


class Words:
    """A tokenizer that knows "known" alone, whose token is written "KNOWN"."""

    vocabulary = Vocabulary(4, unknown=1, begin=2, end=3)

    def encode_spans(self, texts: list[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        found = []
        for text in texts:
            words = text.split()
            starts = np.cumsum([0, *(len(word) + 1 for word in words)])[:-1]
            spans = np.array([(start, start + len(word)) for start, word in zip(starts, words, strict=True)])
            found.append((np.array([0 if word == "known" else 1 for word in words]), spans))
        return found

    def tokens(self, ids: Any) -> list[str]:
        return [("KNOWN", "<unk>", "<s>", "</s>")[number] for number in ids]


def test_words_that_the_tokenizer_lacks_are_spelled_as_they_stand() -> None:
    reading = readings.read(["known odd", "even odd known"], Words(), ELMO)
    assert reading.ids == [[2, 3], [4, 3, 2]] and (reading.vocabulary.begin, reading.vocabulary.end) == (0, 1)
    assert reading.names([0, 2, 3, 4, 1]) == ["<s>", "KNOWN", "odd", "even", "</s>"]
    alone = readings.read(["odd"], Words(), ELMO)
    np.testing.assert_array_equal(reading.spellings[3], alone.spellings[2])
    assert len({tuple(row) for row in reading.spellings.tolist()}) == len(reading.spellings) == 5
    inputs = reading.inputs({"input_ids": np.array([[0, 3, 1]]), "attention_mask": np.ones((1, 3))})
    assert inputs.keys() == {"characters", "attention_mask"}
    np.testing.assert_array_equal(inputs["characters"][0], reading.spellings[[0, 3, 1]])


def test_settings_of_one_task_among_several_change_that_task_alone() -> None:
    run = experiments.cvt()
    found = task_settings.with_settings(run, {"tasks.1.text": "word", "sequence_length": 7}, labelled=False)
    tags, trees, texts = run.data.tasks
    assert found.data.tasks == (tags, dataclasses.replace(trees, text="word"), texts)
    assert found.data.sequence_length == 7 and found.objective == run.objective
    with pytest.raises(UserError, match="Expected a setting of predicting this task, found 'train'"):
        task_settings.with_settings(run, {"train": "x"}, labelled=False)


def test_held_out_text_of_a_mixture_is_read_from_all_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = experiments.changed(
        experiments.gpt2(),
        data={"mixture": Mixture(("wiki=a", "news=b")), "cache_limit": "17GB", "shuffle_window": 6},
        training={"seed": 5},
    )  # fmt: skip
    checked: list[Any] = []
    opened = {"wiki": "one", "news": "two"}
    monkeypatch.setattr(
        mixture, "open_sources", lambda *given: opened if given == (run.data.mixture, 17 * 10**9, 64) else given
    )
    monkeypatch.setattr(mixture, "source_of", lambda *given: given)
    monkeypatch.setattr(evaluation, "_check_tokenizer", lambda *given: checked.append(given))
    tokenizer = SimpleNamespace(vocabulary="words")
    source, datasets = evaluation._source(run, tokenizer, tmp_path, None, tmp_path, "", 0.2)
    assert datasets == ["one", "two"] and checked == [(one, tokenizer, tmp_path) for one in datasets]
    assert source == (run.data.layout, run.data.mixture, opened, "words", 5, 6)
    monkeypatch.setattr(evaluation, "_dataset", lambda *given: ("prepared", *given))
    _, (named,) = evaluation._source(run, tokenizer, tmp_path, tmp_path / "x", tmp_path / "y", "test", 0.3)
    assert named == ("prepared", run, tokenizer, tmp_path, tmp_path / "x", tmp_path / "y", "test", 0.3)


def test_a_run_on_something_else_is_not_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    run = SimpleNamespace(data=SimpleNamespace())
    monkeypatch.setattr(checkpoints, "find", lambda checkpoint: checkpoint)
    monkeypatch.setattr(checkpoints, "describe", lambda checkpoint: SimpleNamespace(experiment=run))
    with pytest.raises(UserError, match="a run on text or on a task, found one on SimpleNamespace; name another run"):
        evaluation.evaluate("run")
