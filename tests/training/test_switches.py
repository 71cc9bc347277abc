"""The switches of what no chip has proven: what they turn off, and the sentences that name them."""

import dataclasses
import math
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from plmjax.errors import UserError
from plmjax.experiment import Experiment
from plmjax.layers.attention import shifted_product
from plmjax.parallel import mesh as meshes
from plmjax.parallel import topologies
from plmjax.parallel.rings import Rings
from plmjax.training import program as programs
from plmjax.training import switches
from plmjax.training.program import Program
from tests.families import STEPS
from tests.third_party import experiments
from tests.training import built as of_phase
from tests.training.test_program import Counting, bert, on_text

OF_V5E = "--training.rings off, --training.kernels off or other --training.compiler_options"


def built(run: Experiment, topology: str = "", count: int = 8, **training: Any) -> Program:
    """The program of a run on a slice, or on so many devices of this machine."""
    run = experiments.changed(run, training=training)
    devices = topologies.parse(topology).devices() if topology else jax.devices()[:count]
    return on_text(run, devices)


def test_rings_are_off_where_the_run_says_so_and_the_devices_lie_as_without_them() -> None:
    assert built(bert(32), "v5e:4x4").rings == Rings((4, 4))
    off = built(bert(32), "v5e:4x4", rings="off")
    assert off.rings is None
    on_rows = [(device.coords[0], device.coords[1]) for device in off.mesh.devices.flat]
    assert on_rows != sorted(on_rows)


def test_rings_are_on_where_no_plan_has_shown_that_they_pay() -> None:
    assert built(bert(32), "v4:2x2x1").rings is None
    assert built(bert(32), "v4:2x2x1", rings="on").rings == Rings((2, 2))
    assert built(bert(32), rings="on", dropout_prng="rbg").rings == Rings((2, 4))
    many = built(bert(16 * 8), "v5e:4x4", rings="on", accumulation=8)
    assert many.rings == Rings((4, 4))
    assert built(bert(4), rings="on", count=1).rings is None  # as where a checkpoint is evaluated, whatever its run


@pytest.mark.parametrize(
    ("changes", "expected", "found"),
    [
        ({"mesh": {"zero": False}}, "--mesh.zero True", "False"),
        ({"mesh": {"tensor": 2}}, "all devices of a slice", "data 4 x fsdp 1 x tensor 2"),
        ({"training": {"dropout_prng": "auto"}}, "--training.dropout_prng rbg", "threefry2x32"),
        ({"objective": Counting()}, "a model that carries nothing but", "BertConfig"),
    ],
)
def test_a_step_that_cannot_have_the_rings_it_asks_for_is_refused(changes: dict, expected: str, found: str) -> None:
    run = bert(32)
    if "objective" in changes:
        run = dataclasses.replace(run, **changes)
        changes = {}
    run = experiments.changed(run, **{"training": {"dropout_prng": "rbg"}} | changes)
    with pytest.raises(UserError) as raised:
        built(run, rings="on")
    said = str(raised.value)
    assert said.startswith(f"Expected {expected}") and f"--training.rings on, found {found}" in said


def test_without_kernels_a_step_is_of_xla_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shifted_product, "MAX_PADDING_RATIO", math.inf)  # the rows are short
    make, source = STEPS["transformer_xl"]

    def text(kernels: str) -> str:
        run = experiments.changed(make(), training={"kernels": kernels, "batch_size": 8}, mesh={"data": 4})
        program = of_phase.program(run, source, topologies.parse("v5e:2x2").devices())
        inputs = jax.eval_shape(program.loss_inputs, program.state)
        return program.evaluate.lower(inputs, program.evaluation_batch, jax.random.key(0)).as_text()

    assert "tpu_custom_call" in text("auto")
    assert "tpu_custom_call" not in text("off")


def test_options_of_the_run_are_added_to_those_of_the_device() -> None:
    mesh = meshes.make(bert(4).mesh, topologies.parse("v5e:2x2").devices())

    def found(*options: str, rings: Rings | None = None) -> dict[str, str | bool]:
        run = experiments.changed(bert(4), training={"compiler_options": options})
        return programs.compiler_options(run, mesh, rings)

    own = topologies.compiler_options(mesh.devices.flat[0], rings=True)
    ((limit, kib),) = topologies.compiler_options(mesh.devices.flat[0], rings=False).items()
    assert found() == {limit: kib}
    assert found(rings=Rings((2, 2))) == own
    assert found(f"{limit}=1024", "xla_a=b=c", "xla_b=true") == {limit: "1024", "xla_a": "b=c", "xla_b": True}
    assert found(f"{limit}=", rings=Rings((2, 2))) == {name: own[name] for name in own if name != limit}


def test_an_option_without_a_name_or_a_value_is_refused() -> None:
    for option in ("xla_dump_to", "=1", "", "a b=1"):
        with pytest.raises(UserError, match=r"^Expected NAME=VALUE in --training\.compiler_options, found"):
            experiments.changed(bert(4), training={"compiler_options": (option,)})


def test_an_option_that_the_compiler_does_not_take_is_named_before_anything_is_saved(fails, tmp_path):
    given = ["--training.steps", "2", "--training.compiler_options", "xla_backend_optimization_level=high"]
    said = fails("pretrain", "bert_tiny", "--workdir", tmp_path / "run", *given)
    assert said.startswith("plmjax: Expected --training.compiler_options that the compiler for cpu takes, found ")
    assert given[-1] in said and "'high' is not a valid int32 value" in said and said.endswith("correct or remove it.")
    assert not any((tmp_path / "run" / name).exists() for name in ("experiment.json", "checkpoints"))


MOSAIC = "INTERNAL: Mosaic failed to compile TPU kernel:\nbad tile\n\nat here\nthe stack"
VECTOR_MEMORY = "RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem. Used 16.05M of 16.00M vmem."
LIMIT = "xla_tpu_scoped_vmem_limit_kib"


@pytest.mark.parametrize(
    ("error", "training", "sentence"),
    [
        (MOSAIC, {}, "Expected the step of phase 1 to compile for TPU v5 lite, found: INTERNAL: Mosaic failed to "
         f"compile TPU kernel: bad tile at here; try {OF_V5E}."),
        (MOSAIC, {"rings": "off", "kernels": "off"}, "; try other --training.compiler_options."),
        # An option of plmjax that a libtpu does not know can be left out.
        (f"INVALID_ARGUMENT: No such compile option: '{LIMIT}'", {},
         f"found '{LIMIT}' (No such compile option: '{LIMIT}'); add {LIMIT}= to leave it out."),
        # The memory of a kernel is an error of the program, that of a device or a lost connection is not.
        (VECTOR_MEMORY, {}, f"Used 16.05M of 16.00M vmem; try {OF_V5E}."),
        *((f"{beginning}: something", {}, "") for beginning in switches.ELSEWHERE),
    ],
)  # fmt: skip
def test_a_step_that_does_not_compile_is_a_sentence_with_the_switches(error, training, sentence) -> None:
    run = experiments.changed(bert(4), training=training)
    phase = SimpleNamespace(index=1, batch_size=8, sequence_length=16, accumulation=1)
    mesh = jax.sharding.Mesh([[[topologies.parse("v5e:1x1").devices()[0]]]], meshes.AXES)
    program, made = SimpleNamespace(mesh=mesh, phase=phase, rings=None), jax.errors.JaxRuntimeError(error)
    with pytest.raises(UserError if sentence else type(made)) as raised, switches.explain_compilation(run, program):
        raise made
    assert str(raised.value).endswith(sentence)
    assert (raised.value.__cause__ if sentence else raised.value) is made
