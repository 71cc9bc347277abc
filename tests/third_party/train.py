"""A run in a process of its own: python -m tests.third_party.train NAME WORKDIR [--option value ...].

DOOMED="STEP SIGNAL" in the environment: the process sends itself this signal when it is asked for the batch after STEP
steps. EXCHANGED: JAX numbers the processes from the last host to the first, as libtpu may. It is one host of several
when JAX_COORDINATOR_ADDRESS and its like say so; CHAIN_FINGERPRINT gives its data another fingerprint.
"""

import os
import signal
import sys
from collections.abc import Iterator

import jax

from plmjax import experiment
from plmjax.commands import command_line
from plmjax.files import storage
from plmjax.parallel import hosts
from plmjax.runs import folder
from plmjax.training import loop
from tests.third_party import experiments
from tests.third_party.source import ChainSource


class Doomed(ChainSource):
    """A source that ends the process."""

    step, _, signal = os.environ.get("DOOMED", "-1").partition(" ")

    def train(self, phase, start, places) -> Iterator:
        for step, batch in enumerate(super().train(phase, start, places), start=phase.first_step + start):
            if step == int(self.step):
                # A person who asks for stacks knows the process that the command began as, which is the guard.
                process = os.getppid() if self.signal == "SIGUSR1" else os.getpid()
                os.kill(process, getattr(signal, self.signal))
            yield batch


def main(name: str, workdir: str, *arguments: str) -> None:
    """Trains."""
    if "EXCHANGED" in os.environ:
        initialize = jax.distributed.initialize
        jax.distributed.initialize = lambda address, count, index, **more: initialize(
            address, count, count - 1 - index, **more
        )
    hosts.join(hosts.JoinOptions())
    run = experiment.override(getattr(experiments, name)(), arguments)
    source = Doomed(run.data, fingerprint=os.environ.get("CHAIN_FINGERPRINT", "chain"))
    with hosts.watch_for_stalls(run.hosts):
        with hosts.host_0_first("experiment.json"):
            folder.record_experiment(storage.path(workdir), run)
        loop.train(run, workdir, source, tokenizer={})
    assert "tensorflow" not in sys.modules, "a run whose rows come from elsewhere waits for no import of TensorFlow"


if __name__ == "__main__":
    command_line.run_command(lambda: main(*sys.argv[1:]))
