"""Settings of a fine-tuning: numbers of steps, the tokenizer, the model, the checkpoint that stands."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data.layouts import Blocks
from plmjax.errors import UserError
from plmjax.experiment import Checkpoint, Data, Experiment, Finetuning, Training
from plmjax.finetuning.batches.encoded import Encoded
from plmjax.finetuning.tasks.answer_search import AnswerSearch
from plmjax.finetuning.tasks.questions import Questions
from plmjax.finetuning.tasks.sentences import SentenceExamples, Sentences, SequenceClassification
from plmjax.finetuning.tasks.text_generation import Translation
from plmjax.finetuning.tasks.text_pairs import TextPairs
from plmjax.generation.beam_search import BeamSearch
from plmjax.generation.options import Generation
from plmjax.models.bert import BertConfig
from plmjax.models.gpt import GptConfig
from plmjax.models.t5 import T5Config
from plmjax.models.xlnet.xlnet import XlnetConfig
from plmjax.runs import finetuning as runs
from plmjax.runs.finetuning import check_length, preferred_metrics, resolve, unresolved, with_model
from plmjax.training.checkpoints import checkpoints
from plmjax.training.optimizers import BertAdamW
from plmjax.training.optimizers.schedules import Linear, SlantedTriangular
from tests.finetuning.parity import Numbers

RUN = Experiment(
    model=BertConfig.tiny(),
    objective=SequenceClassification(),
    data=Sentences(train="train.tsv", validation="dev.tsv"),
    optimizer=BertAdamW(frozen=("encoder/layers", "encoder", "encoders", "classifier")),
    training=Training(steps=0, batch_size=16, evaluate_every=0),
    finetuning=Finetuning(epochs=3.0, warmup=0.1, evaluations=4.0, unfreeze=0.5),
    checkpoint=Checkpoint(every=0),
)


def test_numbers_of_steps_follow_from_epochs() -> None:
    """160 rows in batches of 16 are an epoch of 10 steps: 4 evaluations in each, the next group after each half."""
    found = resolve(RUN, 160)
    assert (found.training.steps, found.training.evaluate_every, found.checkpoint.every) == (30, 2, 2)
    assert (found.optimizer.unfreeze_every, found.optimizer.schedule.warmup_steps) == (5, 3)
    assert found.optimizer.frozen == ("bert/layers", "bert", "encoders", "classifier")
    assert (
        unresolved(
            dataclasses.replace(found, optimizer=dataclasses.replace(found.optimizer, frozen=RUN.optimizer.frozen))
        )
        == RUN
    )
    # 171 rows are 10.6875 steps, which are rounded after they are multiplied.
    uneven = resolve(dataclasses.replace(RUN, finetuning=dataclasses.replace(RUN.finetuning, warmup=0.15)), 171)
    assert (uneven.training.steps, uneven.training.evaluate_every, uneven.checkpoint.every) == (32, 3, 3)
    assert (uneven.optimizer.unfreeze_every, uneven.optimizer.schedule.warmup_steps) == (5, 5)
    few = resolve(RUN, 3)
    assert (few.training.steps, few.training.evaluate_every, few.optimizer.unfreeze_every) == (1, 1, 1)


def test_numbers_that_were_given_are_kept() -> None:
    given = dataclasses.replace(
        RUN,
        optimizer=BertAdamW(unfreeze_every=7, schedule=Linear(warmup_steps=9)),
        training=dataclasses.replace(RUN.training, steps=50, evaluate_every=8),
        finetuning=Finetuning(),
        checkpoint=Checkpoint(every=6),
    )
    assert unresolved(given) == given == resolve(given, 160)
    warm = dataclasses.replace(given, optimizer=BertAdamW(), finetuning=Finetuning(warmup=0.1))
    assert resolve(warm, 160).optimizer.schedule.warmup_steps == 5  # of the 50 steps


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"finetuning": Finetuning()}, "either --finetuning.epochs or --training.steps, found 0 and 0"),
        ({"optimizer": BertAdamW(schedule=SlantedTriangular())}, "a schedule with a warm-up for --finetuning.warmup"),
        ({"optimizer": BertAdamW(unfreeze_every=3)}, "unfreeze_every beside --finetuning.unfreeze, found 3"),
        ({"training": Training(steps=0, evaluate_every=3)}, "beside --finetuning.evaluations, found 3, 0 and 4"),
        ({"checkpoint": Checkpoint(every=3)}, "beside --finetuning.evaluations, found 0, 3 and 4"),
    ],
)  # fmt: skip
def test_a_number_is_given_once(changes: dict[str, Any], message: str) -> None:
    check_length(RUN)
    with pytest.raises(UserError, match=message):
        check_length(dataclasses.replace(RUN, **changes))


def test_a_run_has_dropout_of_its_own_and_writes_as_its_checkpoint() -> None:
    origin, stored = SimpleNamespace(description=None), Generation(beams=3, length_normalization="tokens")
    run = dataclasses.replace(
        RUN, model=T5Config.tiny(dropout_rate=0.1), objective=Translation(max_new_tokens=5), data=TextPairs(),
        generation=stored,
    )  # fmt: skip
    found = with_model(run, origin)
    assert found.objective.writing().strategy == BeamSearch(3, length_penalty=0.6)
    assert (found.objective.max_new_tokens, found.model) == (5, run.model)
    other = with_model(dataclasses.replace(run, finetuning=Finetuning(dropout=0.3)), origin)
    assert other.model.dropout_rate == 0.3
    with pytest.raises(UserError, match="Expected a model for --from random"):
        with_model(dataclasses.replace(RUN, model=None), origin)


def test_metrics_are_those_of_the_checkpoint_that_stands_for_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The best one, or the last one that an earlier command had evaluated already, is evaluated again."""
    result = SimpleNamespace(
        metrics={"eval/f1": 0.5}, program=SimpleNamespace(state="state"), state=SimpleNamespace(step=np.int32(20))
    )

    class Evaluation:
        predictions: dict[str, str]

        def __call__(self, program: Any, loss_inputs: Any) -> dict[str, Any]:
            assert program is result.program
            return {"f1": loss_inputs}

    monkeypatch.setattr(checkpoints, "load_loss_inputs", lambda directory, state: f"the inputs of {directory.name}")
    for preferred, predictions, expected in (
        ("20", {"predictions.tsv": "x"}, 0.5),
        ("15", {"predictions.tsv": "x"}, "the inputs of 15"),
        ("20", {}, "the inputs of 20"),
    ):
        monkeypatch.setattr(checkpoints, "find", lambda workdir, name=preferred: Path(workdir) / name)
        evaluation = Evaluation()
        evaluation.predictions = predictions
        assert preferred_metrics(result, evaluation, Path("run")) == {"eval/f1": expected}


def test_unknown_tokens_of_the_validation_file_are_counted_and_many_are_said(caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = SimpleNamespace(vocabulary=Vocabulary(9, unknown=1))

    def counted(tokens: list[int]) -> int:
        made = Encoded(np.array(tokens), None, np.array([0, len(tokens)]), np.zeros(1, int), {})
        source = SimpleNamespace(validation_rows=SimpleNamespace(encoded=made))
        return runs._unknown_tokens(source, tokenizer, "dev.tsv").count

    assert counted([1, 5, 5, 5, 5]) == 1 and not caplog.text
    assert counted([1, 5, 5, 5]) == 1
    assert "does not know 25.0% of the tokens of dev.tsv" in caplog.text


def test_rows_have_the_layout_of_the_model_and_the_sizes_of_the_task() -> None:
    examples = SentenceExamples("x.tsv", [1, 2, 3], [("11 12",), ("13",), ("14",)], ["a", "b", "a"])
    data = Sentences(sequence_length=9, pack=2)
    run = dataclasses.replace(RUN, objective=SequenceClassification(("a", "b")), data=data)
    for model, first in ((BertConfig.tiny(), [2, 11, 12, 3]), (XlnetConfig.tiny(), [0, 0, 11, 12])):
        rows = runs.rows(dataclasses.replace(run, model=model), examples, Numbers())
        batch = rows.batch(rows.in_order, np.arange(len(rows)))
        assert batch["input_ids"].shape == (2, 9) and batch["example_ids"].shape == (2, 2)
        row, slot = np.argwhere(batch["example_ids"] == 0)[0]
        assert slot == 0 and batch["input_ids"][row, :4].tolist() == first


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple]:
    """Function of a fine-tuning that is reached -> its arguments; nothing is read or computed."""
    called: dict[str, tuple] = {}

    def recorded(where: Any, name: str, result: Any = None) -> None:
        def call(*arguments: Any) -> Any:
            called[name] = arguments
            return result

        monkeypatch.setattr(where, name, call)

    tokenizer = SimpleNamespace(save=lambda folder: called.update(save=(folder,)))
    evaluation = SimpleNamespace(signatures=lambda: {"eval/f1_signature": "said"}, predictions={"predictions.tsv": "x"})
    with_rows = SimpleNamespace(initial_parameters=lambda run, tokenizer, new_head: new_head)
    recorded(runs, "check_settings")
    recorded(runs, "check_model")
    recorded(runs.Origin, "find", SimpleNamespace(mapped=lambda run: "the origin"))
    monkeypatch.setattr(runs, "with_model", lambda run, origin: run)
    monkeypatch.setattr(
        runs,
        "prepare",
        lambda run, origin, workdir: runs._Prepared(
            run, with_rows, tokenizer, "source", evaluation, SimpleNamespace(count=3)
        ),
    )
    recorded(runs, "_files", {"tokenizer.json": b""})
    recorded(runs.loop, "train", "result")
    recorded(runs, "preferred_metrics", {"eval/f1": 0.5})
    recorded(runs, "write_evaluation")
    recorded(runs.start, "check")
    recorded(runs.loop, "check_resume")
    return called


@pytest.mark.parametrize("compression", [None, "pruned"])
def test_a_run_writes_its_metrics_and_begins_with_a_new_head(
    compression: str | None, reached: dict[str, tuple], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compressed model keeps the head that it has."""
    monkeypatch.setattr(runs, "record", lambda ready, origin, workdir: reached.update(record=(origin, workdir)))
    run = dataclasses.replace(RUN, compression=compression)
    metrics = runs.finetune(run, "checkpoint", tmp_path / "run", "twin")
    assert metrics == {"eval/f1": 0.5, "eval/unknown_tokens": 3}
    assert reached["find"] == ("checkpoint", "twin") and reached["record"] == ("the origin", tmp_path / "run")
    trained, workdir, source, files, new_head, evaluation = reached["train"]
    assert (trained, workdir, source, list(files)) == (run, tmp_path / "run", "source", ["tokenizer.json"])
    assert new_head("classifier/kernel") == (compression is None) and not new_head("bert/pooler/kernel")
    assert reached["preferred_metrics"] == ("result", evaluation, tmp_path / "run")
    said = metrics | {"eval/f1_signature": "said"}
    assert reached["write_evaluation"] == (tmp_path / "run", said, {"predictions.tsv": "x"})


def test_a_folder_is_compared_with_the_origin_and_the_run_and_keeps_the_tokenizer(
    reached: dict[str, tuple], tmp_path: Path
) -> None:
    ready = runs.prepare(RUN, None, tmp_path)
    runs.record(ready, SimpleNamespace(name="small", recorded={"step": 3}), tmp_path)
    assert reached["check"] == (tmp_path, "small", {"step": 3}) and reached["check_resume"] == (tmp_path, RUN)
    assert reached["save"] == (tmp_path / "tokenizer",)


def test_unlabelled_examples_are_rows_beside_the_groups_of_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each group has its rates, and the seed is that of the run."""
    made: list[Any] = []

    class Groups(Sentences):
        def task_groups(self, train: Any) -> list[Any]:
            return [f"{train} 1", f"{train} 2"]

        def mixing(self, train: Any) -> Any:
            return f"rates of {train}"

        def unlabelled_examples(self) -> Any:
            return "unlabelled"

    objective = SimpleNamespace(
        encode=lambda examples, tokenizer, model, task: (examples, tokenizer, model, task),
        encode_unlabelled=lambda examples, tokenizer, model, task: ("views", examples, tokenizer, model, task),
    )
    tokenizer, data = SimpleNamespace(vocabulary="words"), Groups()
    run = SimpleNamespace(data=data, objective=objective, model="model", training=Training(seed=7))
    monkeypatch.setattr(runs, "_packed", lambda run, encoded, tokenizer, mixing=None: (encoded, tokenizer, mixing))
    monkeypatch.setattr(runs, "TaskSource", lambda *given: made.extend(given))
    runs.task_source(run, "train", "dev", tokenizer)
    groups, evaluated, vocabulary, seed, unlabelled = made
    assert groups == [
        ((f"train {n}", tokenizer, "model", data), tokenizer, f"rates of train {n}") for n in (1, 2)
    ]  # fmt: skip
    assert evaluated == (("dev", tokenizer, "model", data), tokenizer, None)
    assert (vocabulary, seed) == ("words", 7)
    assert unlabelled == (("views", "unlabelled", tokenizer, "model", data), tokenizer, None)


def test_an_experiment_of_something_else_is_one_sentence() -> None:
    runs.check_settings(RUN)
    for changes, message in (
        (
            {"data": Data(layout=Blocks())},
            "an experiment with a task and an objective of plmjax.finetuning, found Data and Sequ",
        ),
        ({"objective": Translation()}, "Expected TextPairs for the objective Translation, found a task of Sentences"),
        ({"finetuning": None}, r"finetuning=Finetuning\(...\) in the experiment, found NoneType; set it"),
        (
            {"training": Training(steps=0, evaluation_batches=3)},
            "--training.evaluation_batches 0, found 3; leave it out",
        ),
        ({"training": Training(steps=0, evaluation_sequence_length=9)}, "whose rows have one length, found 9; leave"),
    ):
        with pytest.raises(UserError, match=message):
            runs.check_settings(dataclasses.replace(RUN, **changes))


@pytest.mark.parametrize(
    ("frozen", "refused"),
    [
        ("gpt/table/embedding", True), ("gpt/table", True), ("gpt", False), ("gpt/layers", False), ("gpt/tab", False),
        ("classifier", False),
    ],
)  # fmt: skip
def test_random_embeddings_are_not_frozen_below_layers_that_are_trained(frozen: str, refused: bool) -> None:
    """The whole encoder may be, and embeddings that a checkpoint has trained."""
    run = dataclasses.replace(RUN, model=GptConfig.tiny(), optimizer=BertAdamW(frozen=("classifier", frozen)))
    assert run.model.system.token_table == "gpt/table/embedding"
    runs._check_frozen_table(run, SimpleNamespace(recorded={"step": 3}))
    if not refused:
        runs._check_frozen_table(run, SimpleNamespace(recorded=None))
        return
    with pytest.raises(UserError, match=f"a file of word vectors for --optimizer.frozen {frozen}, found random"):
        runs._check_frozen_table(run, SimpleNamespace(recorded=None))


@dataclasses.dataclass(frozen=True)
class Given:
    """An origin that keeps what it is compared with."""

    description: Any
    compared: list[Any]
    params: Any = "params"

    def check(self, *given: Any) -> None:
        self.compared.append((self.params, *given))


@pytest.mark.parametrize("description", [None, "a checkpoint"])
def test_a_run_is_prepared_of_its_files_with_the_labels_and_tokens_that_it_needs(
    description: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Labels and the tokenizer come from the train file; what is judged is the validation file."""
    told: list[Any] = []

    class Files(Sentences):
        def read(self, split: str) -> Any:
            return SimpleNamespace(path=f"{split}.tsv")

    class Labels(SequenceClassification):
        def fit_labels(self, train: Any) -> SequenceClassification:
            return SequenceClassification(("a", train.path))

    larger, words = BertConfig.tiny(vocab_size=77), SimpleNamespace(vocabulary="vocabulary")
    source = SimpleNamespace(per_epoch=160, batch=lambda phase: ("batch", phase.batch_size))
    for where, name, call in (
        (runs, "_warn_of_shared_files", lambda task: told.append(task)),
        (runs, "_tokenizer", lambda run, origin, workdir, train: told.append((workdir, train.path)) or words),
        (runs.checks, "special_tokens", lambda model, vocabulary: told.append((model, vocabulary))),
        (runs.special_tokens, "add", lambda run, params, given: (with_larger(run), f"more {params}", (given, "more"))),
        (runs, "task_source", lambda *given: told.append(given) or source),
        (runs, "TaskEvaluation", lambda *given: given),
        (runs, "_unknown_tokens", lambda *given: given),
        (runs, "_check_frozen_table", lambda run, origin: told.append((run, origin.params))),
    ):
        monkeypatch.setattr(where, name, call)

    def with_larger(run: Experiment) -> Experiment:
        return dataclasses.replace(run, model=larger)

    run = dataclasses.replace(RUN, data=Files(), objective=Labels())
    found = runs.prepare(run, Given(description, compared := []), tmp_path)
    learned = dataclasses.replace(with_larger(run), objective=SequenceClassification(("a", "train.tsv")))
    expected, tokenizer = resolve(learned, 160), (words, "more")
    train, validation = (SimpleNamespace(path=f"{split}.tsv") for split in ("train", "validation"))
    special = [(run.model, "vocabulary")] if description is None else []
    source_of = [(learned, train, validation, tokenizer)]
    assert told == [run.data, (tmp_path, "train.tsv"), *special, *source_of, (expected, "more params")]
    assert (found.run, found.tokenizer, found.source, found.origin.params) == (
        expected,
        tokenizer,
        source,
        "more params",
    )
    assert compared == [("more params", expected, tokenizer, ("batch", 16))]
    assert found.evaluation == (expected, validation, source, tokenizer)
    assert found.unknown == (source, tokenizer, "validation.tsv")


def test_a_run_starts_from_the_model_that_its_checkpoint_has(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    origin = SimpleNamespace(mapped=lambda run: ("mapped", run))
    monkeypatch.setattr(runs, "check_settings", lambda run: told.append(("settings", run)))
    monkeypatch.setattr(runs.Origin, "find", lambda *given: told.append(given) or origin)
    monkeypatch.setattr(runs, "with_model", lambda run, given: (run, given))
    monkeypatch.setattr(runs, "check_model", lambda run: told.append(("model", run)))
    assert runs.started("run", "small", "twin") == (("run", origin), ("mapped", ("run", origin)))
    assert told == [("settings", "run"), ("small", "twin"), ("model", ("run", origin))]
    monkeypatch.setattr(runs, "prepare", lambda run, given, workdir: SimpleNamespace(run=run, source=given))
    assert runs.ready("run", "small") == (("run", origin), ("mapped", ("run", origin)))


def test_rows_of_several_examples_fit_the_task_and_the_model() -> None:
    runs.check_model(dataclasses.replace(RUN, data=Sentences(pack=2)))
    with pytest.raises(UserError, match=r"--data\.pack 1 for AnswerSearch, which reads one example in a row, found 2"):
        search = dataclasses.replace(RUN, model=XlnetConfig.tiny(), objective=AnswerSearch(), data=Questions(pack=2))
        runs.check_model(search)
    runs.check_model(dataclasses.replace(search, data=Questions(pack=1)))
    with pytest.raises(UserError, match="found a sequence length of"):
        runs.check_model(dataclasses.replace(RUN, data=Sentences(sequence_length=100_000)))
    with pytest.raises(UserError, match=r"for --objective\.language_model 0\.5, found"):
        runs.check_model(dataclasses.replace(RUN, objective=SequenceClassification(language_model=0.5)))
    with pytest.raises(UserError, match="Expected a model that labels texts, found T5Config"):
        runs.check_model(dataclasses.replace(RUN, model=T5Config.tiny()))
