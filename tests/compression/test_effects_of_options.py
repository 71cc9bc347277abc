"""Every setting of a way to compress a model while it is trained changes the step that trains it."""

import dataclasses
import functools
import inspect

import jax
import pytest

from plmjax import experiment as experiments
from plmjax.compression.compression import Compression
from plmjax.compression.distillation import distilbert, mobilebert, patient, soft_targets, tinybert
from plmjax.compression.pruning import blocks, pruned
from plmjax.compression.quantization import aware
from plmjax.parallel import mesh as meshes
from plmjax.training import program as programs
from tests.effects import Effects
from tests.families import STEPS
from tests.third_party import experiments as strangers

EFFECTS = Effects("tests/compression/test_effects_of_options.py")
MODULES = (aware, blocks, distilbert, mobilebert, patient, pruned, soft_targets, tinybert)
"""Those with the ways to compress, which are found by their names once they are imported."""
DISTILLATION = "tests/compression/distillation"

EFFECTS.shown_by(
    f"{DISTILLATION}/test_distil.py::test_a_student_is_a_run_and_goes_on_to_the_same_bits",
    "Distillation.teacher", "Distillation.checkpoint",
)  # fmt: skip
EFFECTS.shown_by(
    f"{DISTILLATION}/test_stored.py::test_translations", "SoftTargetDistillation.stored", "SoftTargetDistillation.top_k"
)
EFFECTS.shown_by(f"{DISTILLATION}/test_terms.py::test_patience", "PatientDistillation.strategy")


@functools.cache
def lowered(method: str, options: str = "") -> str:
    """The text of a small step that compresses; a teacher has the sizes of its student, but for MobileBERT's."""
    kind = Compression.choices()[method]
    name = {"mobilebert": "mobilebert", "patient": "classification", "quantization_aware": "classification"}.get(
        method, "bert"
    )
    make, source = STEPS[name]
    run = make()
    teacher = strangers.ib_bert().model if method == "mobilebert" else run.model
    compression = kind(**({"teacher": teacher} if kind.verb == "distil" else {}))
    run = experiments.override(dataclasses.replace(run, compression=compression), options.split())
    source, (phase,) = source(run.data), run.resolved_phases
    mesh = meshes.make(run.mesh, jax.devices()[:1])
    built = programs.build(run, phase, mesh, vocabulary=source.vocabulary, shapes=source.batch)
    return built.train.lower(built.state, built.batch).as_text()


CHANGES: dict[str, tuple[str, str]] = {
    "Scheduled.begin": ("gradual", "begin 0.3"),
    "Scheduled.end": ("gradual", "end 0.6"),
    "ByFraction.sparsity": ("gradual", "sparsity 0.7"),
    "Scored.scores_learning_rate": ("soft_movement", "scores_learning_rate 0.05"),
    "SoftMovementPruning.threshold": ("soft_movement", "threshold 0.2"),
    "SoftMovementPruning.penalty_weight": ("soft_movement", "penalty_weight 3"),
    "BlockMovementPruning.attention_block": ("block_movement", "attention_block 4"),
    "Distillation.hard": ("soft_targets", "hard 0.25"),
    "SoftTargetDistillation.soft": ("soft_targets", "soft 0.25"),
    "SoftTargetDistillation.temperature": ("soft_targets", "temperature 4"),
    "DistilBertDistillation.soft": ("distilbert", "soft 3"),
    "DistilBertDistillation.cosine": ("distilbert", "cosine 3"),
    "DistilBertDistillation.temperature": ("distilbert", "temperature 4"),
    "DistilBertDistillation.restrict": ("distilbert", "restrict True"),
    "PatientDistillation.soft": ("patient", "soft 0.25"),
    "PatientDistillation.temperature": ("patient", "temperature 4"),
    "PatientDistillation.patience": ("patient", "patience 10"),
    "TinyBertDistillation.stage": ("tinybert", "stage prediction"),
    "TinyBertDistillation.hidden": ("tinybert", "hidden 3"),
    "TinyBertDistillation.attention": ("tinybert", "attention 3"),
    "TinyBertDistillation.soft": ("tinybert", "stage prediction --compression.soft 3"),
    "TinyBertDistillation.temperature": ("tinybert", "stage prediction --compression.temperature 3"),
    "MobileBertDistillation.stage": ("mobilebert", "stage prediction"),
    "MobileBertDistillation.steps_per_layer": ("mobilebert", "steps_per_layer 4"),
    "MobileBertDistillation.hidden": ("mobilebert", "hidden 3"),
    "MobileBertDistillation.means": ("mobilebert", "means 3"),
    "MobileBertDistillation.variances": ("mobilebert", "variances 3"),
    "MobileBertDistillation.attention": ("mobilebert", "attention 3"),
    "MobileBertDistillation.below": ("mobilebert", "below 0.3"),
    "MobileBertDistillation.soft": ("mobilebert", "stage prediction --compression.soft 3"),
    "MobileBertDistillation.temperature": ("mobilebert", "stage prediction --compression.temperature 3"),
    "QuantizationAware.granularity": ("quantization_aware", "granularity channel"),
}
"""Setting -> the way to compress, and the setting with another value than its own."""


# A second or two each: pytest -m nightly tests/compression/test_effects_of_options.py
@pytest.mark.nightly
@pytest.mark.parametrize("option", CHANGES)
@EFFECTS.of(*CHANGES)
def test_a_setting_changes_the_step(option: str) -> None:
    method, changed = CHANGES[option]
    before, last = changed.rpartition(" --")[::2]
    base = f"--compression.{before}" if before else ""
    assert lowered(method, base) != lowered(method, f"--compression.{changed}"), last


def test_every_option_has_a_row() -> None:
    known = set()
    for kind in Compression.choices().values():
        for field in dataclasses.fields(kind):
            first = next(base for base in reversed(kind.__mro__) if field.name in inspect.get_annotations(base))
            known.add(f"{first.__name__}.{field.name}")
    EFFECTS.check(known)
