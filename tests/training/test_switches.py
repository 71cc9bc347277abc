"""The switches of what no chip has proven: what they turn off, and the sentences that name them."""

import dataclasses
import math
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.errors import UserError
from plmjax.experiment import Experiment
from plmjax.layers.attention import shifted_product
from plmjax.parallel import mesh as meshes
from plmjax.parallel import topologies
from plmjax.parallel.rings import Rings
from plmjax.planning.plan import plan
from plmjax.runs import bench
from plmjax.training import memory, placement, switches
from plmjax.training import program as programs
from plmjax.training.program import Program
from tests.families import STEPS
from tests.third_party import experiments
from tests.training import built as of_phase
from tests.training.test_program import Counting, bert

OF_V5E = "--training.rings off, --training.kernels off or other --training.compiler_options"


def built(run: Experiment, topology: str = "", **training: Any) -> Program:
    """The program of a run on a slice, or on the devices of this machine."""
    run = experiments.changed(run, training=training)
    devices = topologies.parse(topology).devices() if topology else jax.devices()
    mesh, (phase,) = meshes.make(run.mesh, devices, run.training.rings), run.resolved_phases
    return programs.build(
        run, phase, mesh, vocabulary=Vocabulary.placeholder(128), shapes=placement.text_batch_shapes(run)
    )


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


def test_rings_of_one_device_are_none() -> None:
    """A checkpoint is evaluated on one device, whatever its run asked for."""
    run = experiments.changed(bert(4), training={"rings": "on"})
    (phase,), mesh = run.resolved_phases, meshes.make(run.mesh, jax.devices()[:1], "on")
    assert (
        programs.build(
            run, phase, mesh, vocabulary=Vocabulary.placeholder(128), shapes=placement.text_batch_shapes(run)
        ).rings
        is None
    )


@pytest.mark.parametrize("name", ["transformer_xl", pytest.param("xlnet", marks=pytest.mark.nightly)])
def test_without_kernels_a_step_is_of_xla_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shifted_product, "MAX_PADDING_RATIO", math.inf)  # the rows are short
    make, source = STEPS[name]

    def text(kernels: str) -> str:
        run = experiments.changed(make(), training={"kernels": kernels, "batch_size": 8}, mesh={"data": 4})
        program = of_phase.program(run, source, topologies.parse("v5e:2x2").devices())
        return program.train.lower(program.state, program.batch).as_text()

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


@pytest.mark.parametrize("option", ["xla_dump_to", "=1", "", "a b=1"])
def test_an_option_without_a_name_or_a_value_is_refused(option: str) -> None:
    with pytest.raises(UserError, match=r"^Expected NAME=VALUE in --training\.compiler_options, found"):
        experiments.changed(bert(4), training={"compiler_options": (option,)})


@pytest.mark.parametrize(
    ("option", "detail"),
    [
        ("xla_nothing=1", "No such compile option: 'xla_nothing'"),
        ("xla_backend_optimization_level=high", "'high' is not a valid int32 value"),
    ],
)
def test_an_option_that_the_compiler_does_not_take_is_named_before_anything_is_saved(option, detail, fails, tmp_path):
    given = ["--training.steps", "2", "--training.compiler_options", option]
    said = fails("pretrain", "bert_tiny", "--workdir", tmp_path / "run", *given)
    assert said.startswith("plmjax: Expected --training.compiler_options that the compiler for cpu takes, found ")
    assert repr(option) in said and detail in said and said.endswith("correct or remove it.")
    assert not (tmp_path / "run" / "experiment.json").exists()
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.nightly
def test_a_benchmark_and_a_plan_name_it_too() -> None:
    run = experiments.changed(bert(8), training={"compiler_options": ("xla_nothing=1",)})
    for measured in (bench.bench, lambda run: plan(run, "v5e:2x2")):
        with pytest.raises(UserError, match="found 'xla_nothing=1'"):
            measured(run)


def of_v5e(run: Experiment) -> Program:
    device = topologies.parse("v5e:1x1").devices()[0]
    phase = SimpleNamespace(index=1, batch_size=8, sequence_length=16, accumulation=1)
    return SimpleNamespace(mesh=jax.sharding.Mesh([[[device]]], meshes.AXES), phase=phase, rings=None)


def test_a_step_that_does_not_compile_is_a_sentence_with_the_switches() -> None:
    error = jax.errors.JaxRuntimeError("INTERNAL: Mosaic failed to compile TPU kernel:\nbad tile\n\nat here\nthe stack")
    with pytest.raises(UserError) as raised, switches.explain_compilation(bert(4), of_v5e(bert(4))):
        raise error
    assert str(raised.value) == (
        "Expected the step of phase 1 to compile for TPU v5 lite, found: INTERNAL: Mosaic failed to compile TPU "
        f"kernel: bad tile at here; try {OF_V5E}."
    )
    assert raised.value.__cause__ is error
    plain = experiments.changed(bert(4), training={"rings": "off", "kernels": "off"})
    with (
        pytest.raises(UserError, match=r"; try other --training\.compiler_options\.$"),
        switches.explain_compilation(plain, of_v5e(plain)),
    ):
        raise error


def test_an_option_of_plmjax_that_a_libtpu_does_not_know_can_be_left_out() -> None:
    name = "xla_tpu_scoped_vmem_limit_kib"
    with pytest.raises(UserError) as raised, switches.explain_compilation(bert(4), of_v5e(bert(4))):
        raise jax.errors.JaxRuntimeError(f"INVALID_ARGUMENT: No such compile option: '{name}'")
    assert str(raised.value).endswith(
        f"found '{name}' (No such compile option: '{name}'); add {name}= to leave it out."
    )


@pytest.mark.parametrize("beginning", switches.ELSEWHERE)
def test_a_lost_connection_and_too_little_memory_are_not_errors_of_the_program(beginning: str) -> None:
    with (
        pytest.raises(jax.errors.JaxRuntimeError, match=beginning),
        switches.explain_compilation(bert(4), of_v5e(bert(4))),
    ):
        raise jax.errors.JaxRuntimeError(f"{beginning}: something")


def test_a_kernel_that_needs_too_much_vector_memory_is_an_error_of_the_program() -> None:
    with pytest.raises(UserError) as raised, switches.explain_compilation(bert(4), of_v5e(bert(4))):
        raise jax.errors.JaxRuntimeError(
            "RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem. Used 16.05M of 16.00M vmem."
        )
    assert str(raised.value).endswith(f"Used 16.05M of 16.00M vmem; try {OF_V5E}.")


def test_a_step_that_needs_too_much_memory_names_them_too() -> None:
    program = of_v5e(bert(4))
    device = program.mesh.devices.flat[0]
    with pytest.raises(UserError) as raised, memory.explain_out_of_memory(bert(4), program.phase, device):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 9 bytes")
    assert str(raised.value).endswith(f"--training.batch_size, or try {OF_V5E}.")
