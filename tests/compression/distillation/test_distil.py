"""`plmjax compress distil`: from a teacher to the run of its student."""

import dataclasses
import json
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chex
import flax.linen as nn
import flax.traverse_util
import jax
import numpy as np
import pytest

from plmjax import experiment as experiments
from plmjax.commands import cli
from plmjax.compression.distillation import command
from plmjax.compression.distillation.distilbert import DistilBertDistillation
from plmjax.compression.distillation.distilled import TEACHER
from plmjax.compression.distillation.readings import one_token
from plmjax.compression.distillation.soft_targets import SoftTargetDistillation
from plmjax.compression.distillation.students import RandomStudent, TakenLayers
from plmjax.compression.run import Source
from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.data import pipeline
from plmjax.errors import UserError
from plmjax.experiment import Experiment, Start
from plmjax.finetuning.tasks.mixture import Mixture, TextTask
from plmjax.finetuning.tasks.sentences import Regression, Sentences, SequenceClassification
from plmjax.finetuning.tasks.tagging import TokenTagging
from plmjax.models.bert import BertConfig
from plmjax.models.distilbert import DistilBertConfig
from plmjax.models.mobilebert import MobileBertConfig
from plmjax.training import metrics
from plmjax.training.checkpoints import checkpoints

TRAINED = ["--training.steps", "4", "--training.evaluate_every", "0", "--checkpoint.every", "2"]
NARROW = ["--model.hidden_size", "16", "--model.intermediate_size", "32"]


def flat(run: Path) -> dict[str, np.ndarray]:
    return flax.traverse_util.flatten_dict(checkpoints.load_parameters(run)[0], sep="/")


def log(run: Path) -> dict[str, Any]:
    """The last record of the training."""
    return [line for line in metrics.read(run / "training" / "metrics.jsonl") if "train/loss" in line][-1]


class Preempted(Exception):
    """Ends a run from within."""


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options of a task: sentences with a label each."""
    folder, draws = tmp_path_factory.mktemp("task"), np.random.default_rng(0)
    options = ["--data.text", "sentence", "--data.pack", "1", "--data.sequence_length", "16"]
    for split in ("train", "validation"):
        rows = [f"{'yes' if draws.integers(2) else 'no'}\tthe class of an object" for _ in range(24)]
        (folder / f"{split}.tsv").write_text("\n".join(["label\tsentence", *rows, ""]), encoding="utf-8")
        options += [f"--data.{split}", str(folder / f"{split}.tsv")]
    return options


@pytest.fixture(scope="module")
def classifier(small_run: Path, labelled: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of a fine-tuned teacher."""
    folder = tmp_path_factory.mktemp("classifier") / "run"
    command = ["finetune", "finetune_sentences", "--from", str(small_run), "--workdir", str(folder), *labelled]
    cli.run([*command, "--training.steps", "2", "--finetuning.epochs", "0"])
    return folder


@pytest.mark.nightly
def test_a_student_is_a_run_and_goes_on_to_the_same_bits(small_run: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    """The teacher is written once, beside the checkpoints, and is part of none."""

    def command(output: Path) -> list[str]:
        options = ["--method", "distilbert", "--compression.restrict", "True", *TRAINED]
        return ["compress", "distil", str(small_run), "--output", str(output), *options]

    student, stopped = tmp_path / "student", tmp_path / "stopped"
    cli.run(command(student))
    assert "parameters became" in capsys.readouterr().out
    teacher, params, run = flat(small_run), flat(student), checkpoints.describe(checkpoints.find(student)).experiment
    assert run.compression is None
    assert params.keys() == teacher.keys()  # both have the heads of BERT's two tasks
    assert not any(np.array_equal(params[path], teacher[path]) for path in params if "/layers/" in path)
    constants = flax.traverse_util.flatten_dict(checkpoints.read_constants(student / "training")[TEACHER], sep="/")
    chex.assert_trees_all_equal(constants, teacher)
    assert checkpoints.read_constants(student) == ()
    monkeypatch.chdir(tmp_path)
    assert checkpoints.read_constants(Path("student/training")).keys() == {TEACHER}
    (record,) = json.loads((student / "ancestry.json").read_text())["ancestors"]
    assert record["from"] == str(small_run) and record["by"] == "distil" and record["settings"]["layers"] == [0]
    found = log(student)
    assert {"train/soft_targets_loss", "train/cosine_loss", "train/agreement", "train/mlm_loss"} <= found.keys()
    cli.run(["evaluate", str(student), "--data", str(small_run / "dataset"), "--json"])
    assert json.loads(capsys.readouterr().out)["eval/mlm_loss"] > 0

    def preempted(self: Any, *arguments: Any) -> Iterator[dict[str, np.ndarray]]:
        batches = train(self, *arguments)
        for _ in range(3):
            yield next(batches)
        batches.close()
        raise Preempted

    train = pipeline.DatasetSource.train
    with monkeypatch.context() as patch, pytest.raises(Preempted):
        patch.setattr(pipeline.DatasetSource, "train", preempted)
        cli.run(command(stopped))
    cli.run(command(stopped))
    chex.assert_trees_all_equal(flat(stopped), params)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("tinybert", ["--student", "random", *NARROW]),
        ("tinybert", ["--compression.stage", "prediction"]),
        ("soft_targets", ["--compression.top_k", "2"]),
    ],
    ids=["layers", "prediction", "stored"],
)
def test_students_of_a_task(method: str, options: list[str], classifier: Path, tmp_path: Path, capsys) -> None:
    output = tmp_path / "student"
    cli.run(["compress", "distil", str(classifier), "--output", str(output), "--method", method, *options, *TRAINED])
    capsys.readouterr()
    params, trained = flat(output), flat(output / "training")
    assert not any(path.startswith("compression") for path in params)
    assert ("compression/map/kernel" in trained) == ("random" in options)
    terms = {"hidden_states_loss", "attention_scores_loss"} if "random" in options else {"soft_targets_loss"}
    assert {f"train/{term}" for term in terms} <= log(output).keys()
    if method == "soft_targets":
        constants = checkpoints.read_constants(output / "training")[TEACHER]
        assert constants["logits"].shape == (24, 2) and set(constants) == {"classes", "logits", "offsets"}
        assert constants["offsets"].tolist() == list(range(25)) and constants["logits"].all()
        assert np.ptp(constants["logits"], axis=0).max() < 1e-5  # all texts are the same
    cli.run(["evaluate", str(output), "--json"])
    assert 0 <= json.loads(capsys.readouterr().out)["eval/accuracy"] <= 1


def test_a_named_experiment_has_settings_and_layers() -> None:
    """Unless the command names layers or another method."""
    teacher = types.SimpleNamespace(model=BertConfig.base())
    source = types.SimpleNamespace(description=types.SimpleNamespace(experiment=teacher), directory=Path("teacher"))
    own = DistilBertDistillation(soft=9.0, restrict=True)
    named = dataclasses.replace(experiments.load("distilbert_tiny"), start=TakenLayers((0, 3)), compression=own)
    assert command._layers(source, (), named) == (0, 3)
    assert command._layers(source, (1,), named) == (1,)
    of_teacher = {"teacher": BertConfig.base(), "checkpoint": "teacher"}
    assert command._distillation(source, DistilBertDistillation, named) == dataclasses.replace(own, **of_teacher)
    other = command._distillation(source, SoftTargetDistillation, named)
    assert other == SoftTargetDistillation(**of_teacher)


def test_the_sizes_of_a_student_are_those_of_its_layers_or_of_the_named_experiment() -> None:
    """A named experiment of the teacher's system has no say about them, unless the student begins at random."""
    base = BertConfig.base()
    source = types.SimpleNamespace(
        description=types.SimpleNamespace(experiment=types.SimpleNamespace(model=base)), directory=Path("teacher")
    )
    other, same = DistilBertConfig(num_hidden_layers=2), BertConfig.tiny()

    def found(layers: tuple[int, ...], model: ModelConfig | None) -> ModelConfig:
        return command._model(source, layers, None if model is None else types.SimpleNamespace(model=model))

    assert found((0, 3), None) == found((0, 3), same) == BertConfig.base(num_hidden_layers=2)
    assert found((0, 3), other) == other
    assert found((), None) == base and found((), same) == same


LEARNED = SequenceClassification(labels=("a", "b", "c"))


@pytest.mark.parametrize(
    ("objective", "learned"),
    [
        (SequenceClassification(labels=("c", "b", "a")), LEARNED),
        (SequenceClassification(labels=("a", "b")), LEARNED),
        (Regression(), LEARNED),
        (LEARNED, Regression()),
    ],
    ids=["order", "number", "regression", "labels"],
)
def test_a_teacher_of_another_task_is_refused(objective: Any, learned: Any) -> None:
    with pytest.raises(UserError, match=r"Expected a teacher of the task .*, found teacher, which has learned"):
        command._with_task(of_task(learned), types.SimpleNamespace(objective=objective, data=Sentences()))


def of_task(learned: Any) -> Any:
    """The checkpoint of a teacher without its parameters."""
    run = Experiment(BertConfig.tiny(hidden_size=24), learned, Sentences())
    return types.SimpleNamespace(name="teacher", description=types.SimpleNamespace(experiment=run), params={"a/b": 7})


@pytest.mark.parametrize("labels", [(), ("a", "b", "c")])
def test_a_student_has_the_labels_of_its_teacher(labels: tuple[str, ...], monkeypatch) -> None:
    """Whose parameters must be those of the task, for the teacher's own sizes."""
    checked = []
    monkeypatch.setattr(command.start, "check_parameters", lambda *arguments: checked.append(arguments))
    objective = SequenceClassification(labels=labels)
    run = Experiment(BertConfig.tiny(), objective, Sentences())
    found = command._with_task(source := of_task(LEARNED), run)
    objective = dataclasses.replace(objective, labels=("a", "b", "c"))
    assert found == dataclasses.replace(run, objective=objective)
    ((module, params, *_),) = checked
    assert module == objective.module(source.description.experiment.model, Execution()) and params == {"a": {"b": 7}}


@pytest.mark.parametrize(
    ("objective", "data", "compression", "said"),
    [
        (TokenTagging(labels=("a", "b")), Sentences(), {}, "a task of labels of texts, or of written texts, for"),
        (
            LEARNED,
            Mixture(tasks=(TextTask(name="one"),)),
            {},
            "a task of labels of texts, or of written texts, for --compression.top_k",
        ),
        (LEARNED, Sentences(), {"soft": 0.0}, "Expected a term between the student and its teacher"),
    ],
    ids=["words", "mixture", "without a term"],
)
def test_no_scores_are_computed_for_a_run_that_cannot_have_them(
    objective: Any, data: Any, compression: dict[str, float], said: str, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(command.stored, "write", lambda *arguments: pytest.fail("the teacher was computed"))
    method = SoftTargetDistillation(teacher=BertConfig.tiny(), top_k=2, **compression)
    run = Experiment(BertConfig.tiny(), objective, data, compression=method)
    with pytest.raises(UserError, match=said):
        command._with_stored(of_task(LEARNED), run, tmp_path)


@pytest.mark.parametrize(
    ("method", "options", "begins"),
    [
        ("soft_targets", {}, TakenLayers),
        ("distilbert", {"layers": (0,)}, TakenLayers),
        ("tinybert", {"student": "random"}, RandomStudent),
    ],
)
def test_a_student_begins_as_the_command_says(
    method: str, options: dict[str, Any], begins: type[Start], small_run: Path, tmp_path: Path, monkeypatch
) -> None:
    asked = []

    def train(source: Source, run: Experiment, output: Path, checkpoint: Any = None) -> tuple[dict, Experiment]:
        asked.append((run, checkpoint))
        checkpoints.save_parameters(
            output / "training", {"x": np.ones(1)}, run, {}, constants={TEACHER: {"x": np.ones(1)}}
        )
        return source.params, dataclasses.replace(run, compression=None)

    monkeypatch.setattr(command, "train", train)
    command.distil(small_run, tmp_path / "student", method, **options)
    ((run, checkpoint),) = asked
    model = checkpoints.describe(checkpoints.find(small_run)).experiment.model
    assert checkpoint is None and run.model == model and run.compression.name == method
    assert run.start == (begins((0,), model) if begins is TakenLayers else begins(model))
    result = checkpoints.describe(checkpoints.find(tmp_path / "student")).experiment
    assert result.start == Start() and result.compression is None
    (record,) = json.loads((tmp_path / "student" / "ancestry.json").read_text())["ancestors"]
    own = {"student": "random"} if begins is RandomStudent else {"layers": [0]}
    assert record["settings"].items() >= own.items() and "teacher" not in record["settings"]


def test_a_student_may_begin_with_a_checkpoint(small_run: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    """The checkpoint has its own sizes. The result keeps the constants of the objective and not the teacher."""
    params, description = checkpoints.load_parameters(small_run)
    model = dataclasses.replace(description.experiment.model, hidden_dropout_prob=0.35)
    run = dataclasses.replace(description.experiment, model=model)
    checkpoints.save_parameters(tmp_path / "begin", params, run, description.tokenizer)
    output, asked = tmp_path / "student", []

    def train(source: Source, run: Experiment, output: Path, checkpoint: Any = None) -> tuple[dict, Experiment]:
        asked.append((run, checkpoint))
        constants = {"objective": {"log_weights": np.arange(3.0)}, TEACHER: {"x": np.ones(2)}}
        checkpoints.save_parameters(output / "training", params, run, description.tokenizer, constants=constants)
        return source.params, dataclasses.replace(run, compression=None)

    monkeypatch.setattr(command, "train", train)
    command.distil(
        small_run, output, "soft_targets", student=str(tmp_path / "begin"), overrides=["--training.steps", "3"]
    )
    ((trained, checkpoint),) = asked
    assert checkpoint == str(tmp_path / "begin") and trained.model == model and trained.start == Start()
    assert trained.compression.teacher == description.experiment.model and trained.training.steps == 3
    assert checkpoints.read_constants(output).keys() == {"log_weights"}
    (record,) = json.loads((output / "ancestry.json").read_text())["ancestors"]
    assert record["settings"]["student"] == checkpoint and "layers" not in record["settings"]


@pytest.mark.nightly
def test_a_mobilebert_learns_its_layers_and_has_the_embeddings_of_its_teacher(
    fails, small_run: Path, tmp_path: Path, capsys
) -> None:
    teacher, student = tmp_path / "teacher", tmp_path / "student"
    run = checkpoints.describe(checkpoints.find(small_run)).experiment
    sizes = {"vocab_size": 800, "max_position_embeddings": 64, "hidden_size": 16, "embedding_size": 8}
    larger = MobileBertConfig.ib_bert_mini(**sizes, intra_bottleneck_size=32, intermediate_size=64)
    module, draws = run.objective.module(larger, Execution()), np.random.default_rng(0)
    shapes = jax.eval_shape(lambda: module.init(jax.random.key(0), **one_token(larger)))["params"]
    params = jax.tree.map(lambda one: draws.normal(size=one.shape).astype(np.float32), nn.meta.unbox(shapes))
    files = checkpoints.tokenizer_files(small_run / "tokenizer")
    checkpoints.save_parameters(teacher, params, dataclasses.replace(run, model=larger), files)
    words = ["compress", "distil", str(teacher), "--method", "mobilebert", "--experiment", "mobilebert_8x8:tiny"]
    text = ["--data.path", str(small_run / "dataset"), "--compression.steps_per_layer", "2"]
    sizes |= {"intra_bottleneck_size": 8, "intermediate_size": 16, "num_feedforward_networks": 1}
    sizes = [word for name, size in sizes.items() for word in (f"--model.{name}", str(size))]
    options = [*text, *sizes, "--training.batch_size", "8", "--training.evaluation_batches", "1", *TRAINED]
    cli.run([*words, "--output", str(student), *options])
    assert "parameters became" in capsys.readouterr().out
    found, taught = flat(student), flat(teacher)
    kept = {path for path in found if "/layers/" not in path}
    assert "mobilebert/embeddings/word_embeddings/embedding" in kept and "next_sentence/kernel" in kept
    chex.assert_trees_all_equal({path: found[path] for path in kept}, {path: taught[path] for path in kept})
    attention = found["mobilebert/encoder/layers/attention/query/kernel"]
    assert attention.shape == (2, 8, 4, 2)
    first = flat(student / "training" / "checkpoints" / "2")["mobilebert/encoder/layers/attention/query/kernel"]
    assert np.any(first[0] != attention[0]) and np.any(first[1] != attention[1])
    (record,) = json.loads((student / "ancestry.json").read_text())["ancestors"]
    assert record["settings"]["student"] is None and record["settings"]["below"] == 0.1
    said = fails(*words, "--output", tmp_path / "other", "--student", "random")
    assert "the embeddings of its teacher for --method mobilebert, found --student random" in said


@pytest.mark.nightly
def test_mistakes(fails, small_run: Path, decoder_run: Path, classifier: Path, labelled, tmp_path: Path) -> None:
    def said(teacher: Path, *arguments: object) -> str:
        return fails("compress", "distil", teacher, "--output", tmp_path / "out", *arguments)

    assert "did you mean 'tinybert'?" in said(small_run, "--method", "tinybrt")
    assert "--layers from 0 to 0, the layers of the teacher, found 3" in said(small_run, "--layers", 0, 3)
    assert "either --layers or --student" in said(small_run, "--layers", 0, "--student", "random")
    assert "found another one in" in said(small_run, "--student", decoder_run)
    assert "found no finished checkpoint" in said(tmp_path)
    assert "vocabulary of 800 tokens, found 900" in said(small_run, "--student", "random", "--model.vocab_size", 900)
    assert "its teacher's --model.hidden_size 32" in said(
        small_run, "--method", "distilbert", "--student", "random", *NARROW
    )
    task = ["--experiment", "finetune_sentences", *labelled]
    assert "has learned BertPretraining; name a teacher" in said(small_run, *task)
    assert "has no module for BertPretraining" in said(classifier, "--experiment", "bert_tiny")
    other = ["--objective.labels", "a", "b"]
    assert "with the labels a, b, found" in said(classifier, *other)
    assert "Expected a checkpoint with the settings of a training" in said(decoder_run)
    assert "did you mean '--compression.temperature'?" in said(small_run, "--compression.temperatur", 3)
    assert "one for each layer that it takes" in said(small_run, "--model.num_hidden_layers", 2)
