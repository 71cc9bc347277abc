"""The division of arguments and the ends of commands, without a command."""

import contextlib
import logging

import pytest
from jax.errors import JaxRuntimeError

from plmjax.commands import command_line
from plmjax.errors import Unavailable, UserError
from plmjax.parallel.stopping import Interrupted


def test_options_of_the_experiment_are_those_with_a_dot_and_the_optimizer() -> None:
    """With all words after them, up to the next option; a value may hold a dot."""
    own, overrides = command_line.split_arguments(
        "bert_tiny --workdir a.b --training.profile_steps 5 6 --seeds 1 2 --optimizer lamb --json "
        "--optimizer.beta1=0.5 --price=1.2".split()
    )
    assert own == "bert_tiny --workdir a.b --seeds 1 2 --json --price=1.2".split()
    assert overrides == "--training.profile_steps 5 6 --optimizer lamb --optimizer.beta1=0.5".split()


@pytest.mark.parametrize("order", [1, -1])
def test_an_option_of_the_whole_run_is_suggested_before_one_of_a_phase(order: int) -> None:
    def verb(name: str = "") -> None:
        """Does nothing."""

    known = ["--phases.0.batch_size", "--training.batch_size", "--training.steps"][::order]
    with pytest.raises(UserError, match=r"found '--batch_siz'; did you mean '--training\.batch_size'\?"):
        command_line.parse(verb, "plmjax verb", ["--batch_siz", "8"], lambda: known)


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (UserError("Expected a text."), 2, "Expected a text."),
        (Interrupted("Saved at step 3."), 75, "Saved at step 3. Run the same command again to continue."),
        (KeyboardInterrupt(), 130, "Stopped."),
        (PermissionError(13, "Permission denied", "file"), 2, "Expected to read or write file, found: Permission"),
        (Unavailable("Expected an answer."), 69, "Expected an answer."),
        (ConnectionResetError(104, "Connection reset by peer"), 69, "Expected an answer from the network, found"),
        (JaxRuntimeError("UNAVAILABLE: connection to worker 3 lost"), 69, ""),
        (JaxRuntimeError("INTERNAL: a core of the chip failed"), 69, ""),
        (RuntimeError("Unable to initialize backend 'tpu': the device is busy"), 69, ""),
        (JaxRuntimeError("INVALID_ARGUMENT: shapes differ"), 1, ""),
        (ZeroDivisionError("by zero"), 1, ""),
    ],
)
def test_a_command_ends_with_the_code_of_its_error(error: BaseException, code: int, sentence: str) -> None:
    found = command_line.ending(error)
    assert found[0] == code and found[1].startswith(sentence) and bool(found[1]) == bool(sentence)


@pytest.mark.parametrize(
    ("error", "code", "shown"),
    [
        (UserError("Expected a text."), 2, "tpu: Expected a text.\n"), (KeyboardInterrupt(), 130, "tpu: Stopped.\n"),
        (ZeroDivisionError("by zero\nand more"), 1, "Traceback"), (BrokenPipeError(), 0, ""), (None, None, ""),
    ],
)  # fmt: skip
def test_a_command_says_why_it_ends(error: BaseException | None, code: int | None, shown: str, capsys) -> None:
    """While it runs a warning is its text alone."""

    def command() -> None:
        assert not logging.getLogger("plmjax").propagate
        if error is not None:
            raise error

    with contextlib.nullcontext() if code is None else pytest.raises(SystemExit) as stop:
        command_line.run_command(command, "tpu")
    assert code is None or stop.value.code == code
    found = capsys.readouterr()
    assert found.err.startswith(shown) and bool(found.err) is bool(shown) and not found.out
    assert logging.getLogger("plmjax").propagate
