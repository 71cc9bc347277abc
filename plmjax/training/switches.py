"""Options that turn off parts which were not yet tested on a TPU, and the error messages that name them.

Rings, kernels and compiler options were developed by compilation for absent slices (docs/tpu.md). Each has an option
that turns it off. A resumed run may change these options.
"""

import contextlib
from collections.abc import Iterator

import jax

from plmjax.errors import UserError, quoted
from plmjax.experiment import Experiment
from plmjax.parallel import topologies
from plmjax.training import program as programs
from plmjax.training.program import Program

ELSEWHERE = ("RESOURCE_EXHAUSTED", "UNAVAILABLE", "ABORTED", "DEADLINE_EXCEEDED", "CANCELLED")
"""Beginnings of errors that say nothing about the program itself: too little memory, or a lost connection."""
VECTOR_MEMORY = "memory space vmem"
"""Part of an error about too little vector memory, which a kernel of the program takes, not the batch."""
FIRST_LINES = 3
"""Number of lines of the compiler's message that are repeated."""


def applicable(run: Experiment, device: jax.Device) -> str:
    """Return the options that may help a step on a device, joined by "or"; empty if there are none."""
    chip, training = topologies.chip_of(device.device_kind), run.training
    found = []
    if training.rings == "on" or (training.rings == "auto" and chip is not None and chip.rings):
        found.append("--training.rings off")
    if training.kernels != "off" and chip is not None:
        found.append("--training.kernels off")
    if training.compiler_options or chip is not None:
        found.append("other --training.compiler_options")
    return ", ".join(found[:-1]) + (" or " if found[1:] else "") + "".join(found[-1:])


@contextlib.contextmanager
def explain_compilation(run: Experiment, program: Program) -> Iterator[None]:
    """Turn a failed compilation of a train step into a one-sentence error that names the options to turn off.

    An error about memory or a lost connection is not changed, nor is an error where no option can help.

    Raises:
        UserError: the compiler does not know an option of the run, or fails.
    """
    try:
        yield
    except Exception as error:
        if not _is_compiler_error(error):
            raise
        device = program.mesh.devices.flat[0]
        options = programs.compiler_options(run, program.mesh, program.rings)
        sentence = _option_error(run, options, device, error) or _compilation_error(run, program, device, error)
        if not sentence:
            raise
        raise UserError(sentence) from error


def check_options(run: Experiment, device: jax.Device) -> None:
    """Compile a program of one instruction with the options of the run, before anything is saved.

    Raises:
        UserError: the compiler does not know an option, or rejects its value.
    """
    if not run.training.compiler_options:
        return
    mesh = jax.sharding.Mesh([[[device]]], ("data", "fsdp", "tensor"))
    options = programs.compiler_options(run, mesh, None)
    place = jax.sharding.SingleDeviceSharding(device)
    number = jax.ShapeDtypeStruct((), "float32", sharding=place)
    try:
        jax.jit(lambda x: x + 1).lower(number).compile(compiler_options=options)
    except jax.errors.JaxRuntimeError as error:
        if sentence := _option_error(run, options, device, error):
            raise UserError(sentence) from error
        raise


def _is_compiler_error(error: Exception) -> bool:
    """Return whether an error comes from XLA, or from the compiler of kernels."""
    if type(error).__module__.startswith("jax._src.pallas"):
        return True
    message = str(error)
    elsewhere = message.startswith(ELSEWHERE) and VECTOR_MEMORY not in message
    return isinstance(error, jax.errors.JaxRuntimeError) and not elsewhere


def _option_error(run: Experiment, options: dict[str, str | bool], device: jax.Device, error: Exception) -> str | None:
    detail = _first_lines(error)
    about = sorted((name for name in options if name in detail), key=len, reverse=True)
    if not str(error).startswith("INVALID_ARGUMENT") or not about:
        return None
    own = dict(option.split("=", 1) for option in run.training.compiler_options)
    found = f"{about[0]}={own[about[0]]}" if about[0] in own else about[0]
    change = "correct or remove it" if about[0] in own else f"add {about[0]}= to leave it out"
    return (
        f"Expected --training.compiler_options that the compiler for {device.device_kind} takes, found "
        f"{quoted(found)} ({detail}); {change}."
    )


def _compilation_error(run: Experiment, program: Program, device: jax.Device, error: Exception) -> str | None:
    named = applicable(run, device)
    if not named:
        return None
    return (
        f"Expected the step of phase {program.phase.index} to compile for {device.device_kind}, found: "
        f"{_first_lines(error)}; try {named}."
    )


def _first_lines(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:FIRST_LINES]).removeprefix("INVALID_ARGUMENT: ").rstrip(".: ")
