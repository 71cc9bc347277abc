"""A run in a process of its own: python -m tests.strangers.train NAME WORKDIR [STEP SIGNAL] [--option value ...].

STEP SIGNAL: the process sends itself this signal when it is asked for the batch after STEP steps.
"""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from plmjax import experiment
from plmjax.errors import UserError
from plmjax.training import loop
from tests.strangers import experiments
from tests.strangers.source import ChainSource


class Doomed(ChainSource):
    """A source that ends the process."""

    step = -1
    signal = ""

    def train(self, phase, start) -> Iterator:
        for step, batch in enumerate(super().train(phase, start), start=phase.first_step + start):
            if step == self.step:
                os.kill(os.getpid(), getattr(signal, self.signal))
            yield batch


def main(name: str, workdir: str, *arguments: str) -> int:
    """The exit status of the command line."""
    options = [i for i, argument in enumerate(arguments) if argument.startswith("--")]
    first = options[0] if options else len(arguments)
    run = experiment.override(getattr(experiments, name)(), arguments[first:])
    source = Doomed(run.data)
    if first:
        source.step, source.signal = int(arguments[0]), arguments[1]
    try:
        loop.train(run, Path(workdir), source, {})
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    except loop.Interrupted as interrupted:
        print(interrupted)
        return interrupted.EXIT_CODE
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
