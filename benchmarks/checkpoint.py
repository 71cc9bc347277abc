"""The time that a save blocks the training loop: asynchronous and synchronous saves beside the step itself.

python benchmarks/checkpoint.py [--hidden 512 --layers 4]

Prints medians in seconds: a step, the wait of an asynchronous save, a step while that save is written, and a
synchronous save.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import jax
import numpy as np

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data.layouts import SentencePairs
from plmjax.experiment import Checkpoint, Data, Experiment, Training
from plmjax.models.bert import BertConfig
from plmjax.objectives.bert import BertPretraining
from plmjax.parallel import mesh as meshes
from plmjax.training import program as programs
from plmjax.training.checkpoints.checkpoints import Checkpoints, Description
from plmjax.training.optimizers import BertAdamW


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--saves", type=int, default=3)
    options = parser.parse_args()
    run = Experiment(
        model=BertConfig(
            hidden_size=options.hidden,
            num_hidden_layers=options.layers,
            num_attention_heads=options.hidden // 64,
            intermediate_size=4 * options.hidden,
        ),
        objective=BertPretraining(),
        data=Data(layout=SentencePairs()),
        optimizer=BertAdamW(),
        training=Training(steps=1000, batch_size=8 * len(jax.devices())),
    )
    (phase,) = run.resolved_phases
    vocabulary = Vocabulary.placeholder(run.model.vocab_size)
    shapes = run.data.layout.batch(phase.batch_size, phase.sequence_length)
    built = programs.build(
        run, phase, meshes.make(run.mesh, jax.devices()), vocabulary=vocabulary, shapes=lambda _: shapes
    )
    state = built.initialize(0)
    batch = {name: jax.device_put(np.ones(spec.shape, spec.dtype), spec.sharding) for name, spec in built.batch.items()}
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    print(f"{size / 2**20:.0f} MiB of parameters and optimizer state on {len(jax.devices())} {jax.default_backend()}")
    compiled = built.train.lower(state, built.batch).compile()

    def timed_step() -> float:
        nonlocal state
        start = time.perf_counter()
        state, metrics = compiled(state, batch)
        jax.block_until_ready(metrics)
        return time.perf_counter() - start

    timed_step()
    undisturbed = [timed_step() for _ in range(3)]
    blocked, during, whole = [], [], []
    with tempfile.TemporaryDirectory() as directory:
        keeper = Checkpoints(Path(directory), Checkpoint(every=1, keep=1))
        for number in range(options.saves + 1):  # the first one includes the one-time setup
            start = time.perf_counter()
            keeper.save(state, Description(run, 2 * number, {}))
            blocked.append(time.perf_counter() - start)
            during.append(timed_step())
            keeper.wait()
            start = time.perf_counter()
            keeper.save(state, Description(run, 2 * number + 1, {}))
            keeper.wait()
            whole.append(time.perf_counter() - start)
        keeper.close()
    one, asynchronous = statistics.median(undisturbed), statistics.median(blocked[1:])
    print(f"a step                               {one:8.3f} s")
    print(f"wait of an asynchronous save         {asynchronous:8.3f} s  ({asynchronous / one:.2f} steps)")
    print(f"a step while it is being written     {statistics.median(during[1:]):8.3f} s")
    print(f"a synchronous save                   {statistics.median(whole[1:]):8.3f} s")


if __name__ == "__main__":
    main()
