"""Every option of an experiment has an effect that a user can observe: in the files, the lines or the step of a run.

A row is an option with a value, where to look, and what is seen there. `test_every_option_has_a_row` names the options
of an experiment that have none.
"""

import contextlib
import dataclasses
import inspect
import io
import itertools
import json
import random
import re
import types
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import flax.traverse_util
import jax
import numpy as np
import pytest

from plmjax import experiment as experiments
from plmjax.commands import cli
from plmjax.data import mixture, store, tokenizers
from plmjax.data.mixing import Mixture
from plmjax.experiment import Experiment
from plmjax.parallel import mesh as meshes
from plmjax.training import loop, metrics, session
from plmjax.training import program as programs
from plmjax.training.checkpoints import checkpoints
from plmjax.training.optimizers import Optimizer
from plmjax.training.optimizers.schedules import Schedule
from tests.conftest import on_one_device
from tests.effects import Effects
from tests.third_party import experiments as strangers
from tests.third_party.source import ChainSource

EFFECTS = Effects("tests/test_effects_of_options.py")

HOSTS, REMOTE = "tests/parallel/test_hosts.py", "tests/data/remote"
EFFECTS.shown_by(f"{HOSTS}::test_a_host_that_hangs_is_named_with_every_stack", "hosts.silent_seconds")
EFFECTS.shown_by(
    f"{HOSTS}::test_a_stall_on_one_host_prints_every_stack_and_ends", "hosts.stall_minutes", "hosts.activity_minutes"
)
EFFECTS.shown_by(f"{REMOTE}/test_commands.py::test_bench_and_evaluate_read_no_more_than_the_limit", "data.cache_limit")
EFFECTS.shown_by(
    f"{REMOTE}/test_reading.py::test_a_run_begins_at_any_step_with_the_pieces_of_its_window", "data.shuffle_window"
)
EFFECTS.shown_by("tests/training/test_tracking.py::test_another_project_gets_a_run_of_its_own", "tracking.wandb")
EFFECTS.shown_by(
    "tests/training/test_loop.py::test_profiles_the_steps_asked_for_up_to_the_last", "training.profile_steps"
)
EFFECTS.shown_by(
    "tests/training/test_switches.py::test_rings_are_off_where_the_run_says_so_and_the_devices_lie_as_without_them",
    "training.rings",
)
EFFECTS.shown_by(
    "tests/training/test_switches.py::test_an_option_that_the_compiler_does_not_take_is_named_before_anything_is_saved",
    "training.compiler_options",
)
EFFECTS.shown_by("tests/test_bad_input.py::test_absent_platform", "training.platform")
EFFECTS.shown_by("tests/training/test_switches.py::test_without_kernels_a_step_is_of_xla_alone", "training.kernels")
OPTIMIZERS = "tests/training/optimizers/test_"
OF_RULES = {
    "optimizers.py::test_rule_is_its_formula": (
        "Optimizer.learning_rate Decaying.weight_decay Moments.beta1 Moments.beta2 Moments.epsilon "
        "WarmedUp.warmup_steps"
    ),
    "optimizers.py::test_clip_scales_to_the_norm_and_the_state_tells_it": "Optimizer.clip_norm",
    "optimizers.py::test_decay_goes_by_what_a_parameter_is_and_not_by_its_name": "Decaying.decay_exclude",
    "optimizers.py::test_frozen_layers_keep_their_bits_and_have_no_part_in_the_norm": "Optimizer.frozen",
    "layer_rates.py::test_every_update_is_that_of_one_rate_times_the_layers_factor": "Optimizer.layer_decay",
    "layer_rates.py::test_groups_are_unfrozen_from_the_head_down": "Optimizer.unfreeze_every",
    "other_rules.py::test_rule_is_the_librarys": (
        "StochasticGradientDescent.momentum StochasticGradientDescent.nesterov Adagrad.initial_accumulator "
        "Adagrad.epsilon Adafactor.relative Adafactor.clip_update"
    ),
    "other_rules.py::test_adagrad_clips_each_layer_for_itself": "Adagrad.clip_each",
    "other_rules.py::test_adafactor_is_mesh_tensorflows_step_by_step": (
        "Adafactor.factored_from Adafactor.smallest_size Adafactor.decay_exponent Adafactor.epsilon"
    ),
    "other_rules.py::test_non_monotone_averaging_begins_where_its_authors_begin_it": (
        "StochasticGradientDescent.averaging StochasticGradientDescent.patience"
    ),
    "other_rules.py::test_a_mean_may_forget": "StochasticGradientDescent.average_fraction",
    "schedules.py::test_a_schedule_is_its_formula": (
        "InverseSquareRoot.constant_steps InverseTime.decay InverseRootTime.decay Polynomial.power "
        "SlantedTriangular.cut_fraction SlantedTriangular.ratio WarmupStableDecay.decay_steps "
        "WarmupStableDecay.shape WarmupStableDecay.floor"
    ),
    "schedules.py::test_plateau_is_torchs": "Plateau.reduction Plateau.patience Plateau.threshold",
}
OF_RULES["optimizers.py::test_rule_is_its_formula"] += " Lamb.correct_bias"
OF_RULES["muon.py::test_muon_is_its_formula_for_the_matrices_of_every_layer_and_adamw_for_all_else"] = "Muon.momentum"
PHASES = "tests/experiment/test_phases.py::test_"
EFFECTS.shown_by(
    f"{PHASES}lengths_in_tokens_make_steps_and_a_ramp_has_as_many_steps_of_each_size",
    "phases.ramp",
    "phases.steps",
    "phases.tokens",
)
EFFECTS.shown_by(f"{PHASES}a_run_is_as_long_as_its_tokens", "training.tokens")
EFFECTS.shown_by(f"{PHASES}a_warm_up_of_tokens_counts_the_sizes_of_a_ramp", "WarmedUp.warmup_tokens")
EFFECTS.shown_by(
    "tests/runs/test_stages.py::test_every_phase_has_its_rate_and_its_model",
    "phases.changes",
    "WarmupStableDecay.decay_fraction",
)
for test, options in OF_RULES.items():
    EFFECTS.shown_by(f"{OPTIMIZERS}{test}", *options.split())
EFFECTS.shown_by(
    "tests/training/test_program.py::test_an_evaluation_has_rows_of_its_own_number_and_length",
    "training.evaluation_batch_size",
    "training.evaluation_sequence_length",
)


@dataclasses.dataclass
class Run:
    """A run of the command line: its folder, and the lines that it printed."""

    folder: Path
    said: str

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        return metrics.read(self.folder / "metrics.jsonl")

    @cached_property
    def tokenizer(self) -> Any:
        return tokenizers.load(self.folder / "tokenizer")

    @cached_property
    def dataset(self) -> store.Dataset:
        return store.open_dataset(self.folder / "dataset")

    @property
    def experiment(self) -> Experiment:
        return checkpoints.describe(checkpoints.find(self.folder)).experiment

    def steps(self, metric: str) -> list[int]:
        """The steps at which a metric was written."""
        return [record["step"] for record in self.records if metric in record]

    def values(self, metric: str) -> list[float]:
        return [record[metric] for record in self.records if metric in record]

    def saved(self) -> list[int]:
        return sorted(int(entry.name) for entry in (self.folder / "checkpoints").iterdir())

    def line(self, name: str) -> str:
        """What was printed behind a name."""
        return next(line.removeprefix(name).strip() for line in self.said.splitlines() if line.startswith(f"{name} "))

    def documents(self, split: str) -> int:
        return self.dataset.split(split).documents

    def tokens(self) -> list[int]:
        split = self.dataset.split("train")
        return [*split.tokens(0, split.token_count)]


SMALL = (
    "--model.num_hidden_layers 1 --model.hidden_size 16 --model.num_attention_heads 2 --model.intermediate_size 32 "
    "--model.vocab_size 64 --optimizer.schedule.warmup_steps 1"
)


def command(verb: str, experiment: str, workdir: Path, options: str) -> Run:
    with on_one_device(), contextlib.redirect_stdout(io.StringIO()) as said:
        cli.run([verb, experiment, "--workdir", str(workdir), *options.split()])
    return Run(workdir, said.getvalue())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """texts.jsonl: 48 documents, 8 of them with a bad word, one with the name of a token and two Chinese sentences."""
    folder, draws = tmp_path_factory.mktemp("texts"), random.Random(0)
    words = [f"word{n}" for n in range(60)]
    documents = []
    for number in range(48):
        body = " ".join(f"The {' '.join(draws.choices(words, k=6))}." for _ in range(4))
        body += " Darn it." if number % 6 == 0 else ""
        body += " [SEP] \u4ed6\u30023\u4e2a\u3002" if number == 1 else ""
        documents.append({"body": body, "title": f"The {words[number]}."})
    (folder / "texts.jsonl").write_text("\n".join(map(json.dumps, documents)), encoding="utf-8")
    (folder / "bad.txt").write_text("darn\n", encoding="utf-8")
    lines = [f"{'low' if number % 2 else 'high'}\tThe word{number % 2} word{number % 5}." for number in range(40)]
    (folder / "task.tsv").write_text("\n".join(["label\ttext", *lines]) + "\n", encoding="utf-8")
    return folder


OF_A_RUN: dict[str, tuple[str, Callable[[Run], Any], Any]] = {
    "tokenizer.kind": ("word", lambda run: len(run.tokenizer.encode("theword1word2")), 1),
    "tokenizer.vocab_size": ("24", lambda run: run.tokenizer.vocabulary.size, 24),
    "tokenizer.lowercase": ("False", lambda run: run.tokenizer.tokens(run.tokenizer.encode("The")), ["The"]),
    "data.input": ("{folder}/texts.jsonl", lambda run: "texts.jsonl line 1" in run.said, True),
    "data.format": ("jsonl", lambda run: run.tokenizer.vocabulary.unknown in run.tokenizer.encode("{"), True),
    "data.text_key": ("body", lambda run: run.dataset.split("train").token_count > 400, True),
    "data.language": ("zh", lambda run: sum(run.dataset.split(s).sentences % 4 for s in ("train", "validation")), 2),
    "data.held_out": ("0.25", lambda run: 6 <= run.documents("validation") <= 15, True),  # of 40
    "data.max_unknown": ("0.9", lambda run: float(run.line("unknown").partition("%")[0]) > 20, True),
    "data.clean": ("c4_bad_words", lambda run: run.line("cleaning")[:23], "kept 40 of 48 documents"),
    "data.bad_words": ("{folder}/bad.txt", lambda run: "a bad word" in run.said, True),
    "data.special_names": ("[SEP]", lambda run: run.tokens().count(run.tokenizer.vocabulary.sep), 1),
    "data.sequence_length": ("20", lambda run: "12 rows of 20 = 240 tokens" in run.line("batch"), True),
    "training.steps": ("8", lambda run: run.records[-1]["step"], 8),
    "training.batch_size": ("12", lambda run: "= 12 rows" in run.line("batch"), True),
    "training.accumulation": ("3", lambda run: run.line("batch")[:40], "4 rows x 1 shards x 3 microbatches = 12 "),
    "training.log_every": ("3", lambda run: run.steps("train/loss"), [3, 6, 8]),
    "training.evaluate_every": ("4", lambda run: run.steps("eval/loss"), [4, 8]),
    "checkpoint.every": ("2", lambda run: run.saved()[-1], 8),
    "checkpoint.keep": ("1", lambda run: run.saved(), [4, 8]),  # the newest one, and the best one
    "checkpoint.best": ("-eval/loss", lambda run: run.values("eval/loss")[0] > run.values("eval/loss")[1], True),
    "checkpoint.prefer": ("best", lambda run: checkpoints.find(run.folder).name, "4"),
}  # fmt: skip
"""Option -> its value in one run, what to look at, and what is there."""


@pytest.fixture(scope="module")
def asked(folder: Path) -> str:
    """The options of that run."""
    words = (f"--{option} {value}" for option, (value, _, _) in OF_A_RUN.items())
    return " ".join([SMALL, *words]).format(folder=folder)


@pytest.fixture(scope="module")
def run(folder: Path, asked: str) -> Run:
    return command("pretrain", "experiments/bert_tiny.py", folder / "run", asked)


@pytest.mark.parametrize("option", OF_A_RUN)
@EFFECTS.of(*OF_A_RUN)
def test_a_run_shows(option: str, run: Run) -> None:
    _, found, expected = OF_A_RUN[option]
    assert found(run) == expected


OF_RAW_TEXT = ("data.input", "data.format", "data.clean", "data.bad_words", "data.special_names")


def without(asked: str, *options: str) -> str:
    """A line of options without those that begin so, which have one value each."""
    return re.sub(rf"--({'|'.join(map(re.escape, options))})\S* \S+ ?", "", asked)


@pytest.fixture(scope="module")
def again(folder: Path, asked: str, run: Run) -> Run:
    """The same run on its dataset, with another seed."""
    rest = without(asked, "tokenizer", *OF_RAW_TEXT)
    options = f"--data.path {run.folder}/dataset --tokenizer.path {run.folder}/tokenizer --training.seed 6"
    return command("pretrain", "experiments/bert_tiny.py", folder / "again", f"{rest} {options}")


@EFFECTS.of("data.path", "tokenizer.path")
def test_a_dataset_and_a_tokenizer_are_used_as_they_are(run: Run, again: Run) -> None:
    assert not (again.folder / "dataset").exists()
    assert again.tokenizer.vocabulary.size == 24 and again.steps("eval/loss") == [4, 8]


@EFFECTS.of("training.seed")
def test_another_seed_draws_other_numbers(run: Run, again: Run) -> None:
    assert run.values("train/loss") != again.values("train/loss")


@EFFECTS.of("data.streams")
def test_several_texts_of_a_document_are_stored(folder: Path, asked: str, run: Run) -> None:
    rest = without(asked, "data.clean", "data.bad_words", "tokenizer")
    options = f"--data.streams text=body other=title --tokenizer.path {run.folder}/tokenizer --training.steps 4"
    found = command("pretrain", "experiments/bert_tiny.py", folder / "streams", f"{rest} {options}").dataset
    assert found.streams == ("text", "other")
    assert found.split("train", "text").sentences > found.split("train", "other").sentences


@pytest.fixture(scope="module")
def sources(folder: Path, run: Run) -> tuple[str, str]:
    """Two datasets, the second a small part of the first."""
    lines = (folder / "texts.jsonl").read_text(encoding="utf-8").splitlines()[:12]
    (folder / "part.jsonl").write_text("\n".join(lines), encoding="utf-8")
    files = ["--input", str(folder / "part.jsonl"), "--tokenizer", str(run.folder / "tokenizer")]
    options = ["--text_key", "body", "--held_out", "0.2", "--max_unknown", "0.9"]
    cli.run(["prepare", *files, *options, "--output", str(folder / "part")])
    return f"whole={run.folder}/dataset", f"part={folder}/part"


@pytest.mark.parametrize(
    ("option", "share"),
    [
        ("", lambda whole, part: part / (whole + part)),
        ("weights whole=1 part=3", lambda whole, part: 0.75),
        ("temperature inf", lambda whole, part: 0.5),
        ("limit 50", lambda whole, part: 0.5),
    ],
    ids=["sources", "weights", "temperature", "limit"],
)
@EFFECTS.of(*(f"data.mixture.{name}" for name in ("sources", "weights", "temperature", "limit")))
def test_sources_of_a_mixture_have_their_shares(
    option: str, share: Callable[[int, int], float], sources: tuple[str, str]
) -> None:
    options = ["--data.mixture.sources", *sources, *(f"--data.mixture.{option}".split() if option else [])]
    mixed = experiments.override(experiments.load("bert_tiny"), options).data.mixture
    opened = mixture.open_sources(mixed, None, 64)
    sizes = {name: one.train_tokens for name, one in opened.items()}
    assert sizes["whole"] > 2 * sizes["part"] > 100
    assert mixture.History.new(mixed, opened).fractions["part"] == pytest.approx(share(*sizes.values()), abs=1e-3)


FINETUNED: dict[str, tuple[str, Callable[[Run], Any], Any]] = {
    "finetuning.epochs": ("2", lambda run: run.records[-1]["step"], 10),  # of 40 rows, 8 in a batch
    "finetuning.evaluations": ("1", lambda run: (run.steps("eval/loss"), run.saved()[-2:]), ([5, 10], [5, 10])),
    "finetuning.warmup": ("0.4", lambda run: run.values("learning_rate")[:4], [0, 1.25e-5, 2.5e-5, 3.75e-5]),
    "finetuning.unfreeze": ("1", lambda run: [encoder_moved(run, step) for step in (5, 10)], [False, True]),
    "finetuning.dropout": ("0.5", lambda run: run.experiment.model.hidden_dropout_prob, 0.5),
}  # fmt: skip
"""As OF_A_RUN, of a run on a task."""


def encoder_moved(run: Run, step: int) -> bool:
    """Whether anything but the head of a task has been trained at a checkpoint."""
    (start, _), (now, _) = (
        checkpoints.load_parameters(path)
        for path in (run.folder.parent / "run", run.folder / "checkpoints" / f"{step}")
    )
    start, now = (flax.traverse_util.flatten_dict(params, sep="/") for params in (start, now))
    return any(not np.array_equal(start[path], now[path]) for path in now if path.startswith("bert/"))


@pytest.fixture(scope="module")
def finetuned(folder: Path, run: Run) -> Run:
    options = " ".join(f"--{option} {value}" for option, (value, _, _) in FINETUNED.items())
    files = f"--data.train {folder}/task.tsv --data.validation {folder}/task.tsv --data.sequence_length 20"
    sizes = "--data.pack 1 --training.batch_size 8 --training.log_every 1 --checkpoint.keep 0 --from"
    return command(
        "finetune", "experiments/finetune_sentences.py", folder / "task", f"{files} {options} {sizes} {run.folder}"
    )


@pytest.mark.parametrize("option", FINETUNED)
@EFFECTS.of(*FINETUNED)
def test_a_run_on_a_task_shows(option: str, finetuned: Run) -> None:
    _, found, expected = FINETUNED[option]
    assert found(finetuned) == (pytest.approx(expected) if option == "finetuning.warmup" else expected)


class Failing(ChainSource):
    """A source that fails at a step."""

    fails_at = -1

    def train(self, phase: Any, start: int, places: Any) -> Iterator[dict[str, np.ndarray]]:
        for step, batch in enumerate(super().train(phase, start, places), start=phase.first_step + start):
            if step == self.fails_at:
                raise OSError("the network is gone")
            yield batch


def looped(folder: Path, *options: str, fails_at: int = -1) -> list[dict[str, Any]]:
    """What the small recurrent run logs on one device."""
    run = experiments.override(strangers.recurrent(), [word for option in options for word in option.split()])
    source = Failing(run.data)
    source.fails_at = fails_at
    with on_one_device():
        loop.train(run, folder, source, tokenizer={})
    return metrics.read(folder / "metrics.jsonl")


@EFFECTS.of("training.patience")
def test_a_run_that_gets_no_better_ends_after_its_patience(tmp_path: Path) -> None:
    """Without a learning rate the first evaluation stays the best."""
    found = looped(
        tmp_path, "--training.patience 3", "--training.steps 40", "--training.evaluate_every 2",
        "--optimizer.learning_rate 0", "--checkpoint.best eval/loss", "--checkpoint.every 2",
    )  # fmt: skip
    assert found[-1]["step"] == 2 * (1 + 3)


@EFFECTS.of("training.evaluation_batches")
def test_an_evaluation_reads_as_many_batches(tmp_path: Path) -> None:
    found = looped(tmp_path, "--training.evaluation_batches 1", "--training.steps 1")[-1]["eval/unigram_entropy"]
    source, (phase,) = ChainSource(strangers.recurrent().data), strangers.recurrent().resolved_phases
    nats = np.log(source.unigram_counts.sum() + 64) - np.log(source.unigram_counts + 1)
    batch = next(iter(source.evaluation(phase)))
    assert found == pytest.approx(np.average(nats[batch["next_ids"]], weights=batch["next_weights"]), rel=1e-6)


@EFFECTS.of("checkpoint.minutes")
@pytest.mark.parametrize(("minutes", "saved"), [("1e-9", True), ("0", False)])
def test_minutes_between_temporary_checkpoints(minutes: str, saved: bool, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="network"):
        looped(tmp_path, f"--checkpoint.minutes {minutes}", "--checkpoint.every 0", fails_at=6)
    assert any((tmp_path / "checkpoints").iterdir()) == saved


def test_minutes_are_counted_from_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ten seconds a step and 24 of them between checkpoints, the third step is saved and the next two are not."""
    clock = itertools.count(0, 10)
    monkeypatch.setattr(session, "time", types.SimpleNamespace(monotonic=lambda: float(next(clock))))
    with pytest.raises(OSError, match="network"):
        looped(tmp_path, "--checkpoint.minutes 0.4", "--checkpoint.every 0", fails_at=5)
    assert checkpoints.find(tmp_path).name == "3"


def program(*options: str, devices: int = 1, phase: int = 0) -> programs.Program:
    """The program of the small BERT with these options."""
    run = experiments.override(strangers.bert(), [word for option in options for word in option.split()])
    source, resolved = ChainSource(run.data), run.resolved_phases
    mesh = meshes.make(run.mesh, jax.devices()[:devices])
    return programs.build(run, resolved[phase], mesh, vocabulary=source.vocabulary, shapes=source.batch)


def lowered(*options: str) -> str:
    built = program(*options)
    return built.train.lower(built.state, built.batch).as_text()


OF_THE_STEP: dict[str, tuple[str, Callable[[str], int]]] = {
    "training.dtype": ("bfloat16", lambda text: text.count("xbf16>")),
    "training.gradient_dtype": ("bfloat16", lambda text: text.count("xbf16>")),
    "training.matmul_precision": ("int8_dynamic", lambda text: text.count("xi8>")),
    "training.dropout_prng": ("rbg", lambda text: text.count("rng_bit_generator")),
    "training.attention": ("blockwise", lambda text: text.count("stablehlo.while")),
    "training.unroll": ("2", lambda text: -text.count("stablehlo.while")),
    "training.remat": ("full", lambda text: text.count("dot_general")),
}
"""Option -> its value, and what the step has more of then."""


@pytest.fixture(scope="module")
def plain() -> str:
    return lowered()


@pytest.mark.parametrize("option", OF_THE_STEP)
@EFFECTS.of(*OF_THE_STEP)
def test_the_program_of_a_step_shows(option: str, plain: str) -> None:
    value, count = OF_THE_STEP[option]
    assert count(lowered(f"--{option} {value}")) > count(plain)


@EFFECTS.of("mesh.data", "mesh.fsdp", "mesh.tensor")
def test_devices_lie_along_the_axes() -> None:
    found = program("--mesh.data 2", "--mesh.fsdp 1", "--mesh.tensor 2", devices=4).mesh.shape
    assert dict(found) == {"data": 2, "fsdp": 1, "tensor": 2}
    assert program("--mesh.fsdp 4", "--mesh.data 1", "--mesh.tensor 1", devices=4).mesh.shape["fsdp"] == 4


@pytest.mark.parametrize("zero", [True, False])
@EFFECTS.of("mesh.zero")
def test_parameters_are_divided_over_the_copies(zero: bool) -> None:
    state = program("--mesh.data 4", f"--mesh.zero {zero}", devices=4).state
    assert any("data" in str(leaf.sharding.spec) for leaf in jax.tree.leaves(state.params)) == zero


@EFFECTS.of("phases.fraction", "phases.sequence_length", "phases.batch_size", "phases.accumulation")
def test_a_phase_has_steps_and_a_batch_of_its_own() -> None:
    run = experiments.override(
        experiments.load("bert_large_8x8"),
        "--phases.0.fraction 0.25 --phases.1.fraction 0.75 --phases.1.sequence_length 64 --phases.1.batch_size 48 "
        "--phases.1.accumulation 6 --training.steps 100".split(),
    )
    found = run.resolved_phases[1]
    assert (found.first_step, found.last_step) == (25, 100)
    assert run.data.layout.batch(found.batch_size, found.sequence_length)["input_ids"].shape == (48, 64)
    assert found.accumulation == 6


GROUPS_OF_SETTINGS = {
    "tokenizer": experiments.Tokenizer, "data": experiments.Data, "data.mixture": Mixture,
    "training": experiments.Training, "finetuning": experiments.Finetuning, "checkpoint": experiments.Checkpoint,
    "mesh": experiments.Mesh, "hosts": experiments.Hosts, "tracking": experiments.Tracking,
    "phases": experiments.Phase,
}  # fmt: skip
OTHER_GROUPS = {"model", "objective", "optimizer", "weight_mapping", "generation", "text_vectors", "compression"}
"""Fields of an experiment whose class the experiment chooses; classes of update rules and schedules are below."""


def declared(family: type[Any]) -> set[str]:
    """CLASS.FIELD of all choices, with the class that declares the field first; other choices are no options."""
    found = set()
    for kind in family.choices().values():
        for field in dataclasses.fields(kind):
            first = next(base for base in reversed(kind.__mro__) if field.name in inspect.get_annotations(base))
            found.add(f"{first.__name__}.{field.name}")
    return found - {f"{family.__name__}.schedule"}


def test_every_option_has_a_row() -> None:
    known = {
        f"{group}.{field.name}"
        for group, kind in GROUPS_OF_SETTINGS.items()
        for field in dataclasses.fields(kind)
        if f"{group}.{field.name}" not in (*GROUPS_OF_SETTINGS, "data.layout")
    }
    EFFECTS.check(known | declared(Optimizer) | declared(Schedule))
    fields = {field.name for field in dataclasses.fields(Experiment)}
    assert fields == {group.partition(".")[0] for group in GROUPS_OF_SETTINGS} | OTHER_GROUPS
