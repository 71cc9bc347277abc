"""Two models that no room was built for go through all of them: a causal transformer and an LSTM with a carry."""

import jax
import numpy as np
import pytest

from plmjax.training import loop, metrics
from tests.strangers import experiments
from tests.strangers.source import ChainSource

STRANGERS = ["causal", "recurrent"]


@pytest.mark.parametrize("name", STRANGERS)
def test_trains_stops_and_goes_on_over_a_mesh_of_three_axes(name, tmp_path):
    run = experiments.changed(
        getattr(experiments, name)(), mesh={"data": 2, "fsdp": 2, "tensor": 2}, training={"accumulation": 2}
    )
    source = ChainSource(run.data)
    whole = loop.train(run, tmp_path / "whole", source, {})

    class Preempted(Exception):
        pass

    class Short(ChainSource):
        def train(self, phase, start):
            for step, batch in enumerate(super().train(phase, start), start=start):
                if step == 6:
                    raise Preempted
                yield batch

    with pytest.raises(Preempted):
        loop.train(run, tmp_path / "parts", Short(run.data), {})
    parts = loop.train(run, tmp_path / "parts", source, {})
    for once, twice in zip(jax.tree.leaves(whole.state), jax.tree.leaves(parts.state), strict=True):
        np.testing.assert_array_equal(once, twice)
    lines = [metrics.read(tmp_path / part / "metrics.jsonl") for part in ("whole", "parts")]
    losses = [[(line["step"], line["train/loss"]) for line in part if "train/loss" in line] for part in lines]
    assert losses[0] == losses[1]
