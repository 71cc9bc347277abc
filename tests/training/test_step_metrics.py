"""The metrics of a step are one array, with the numbers of the scalars that it joins."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from plmjax.experiment import Mesh
from plmjax.parallel import mesh as meshes
from plmjax.training.step_metrics import StepMetrics
from plmjax.training.step_timer import StepTimer


def test_joined_metrics_are_those_of_the_scalars_to_the_bit() -> None:
    """On eight devices, of every dtype that a step may return. The lines of a log are in the order of the names."""
    scalars = {
        "loss": jnp.float32(math.pi),
        "accuracy": jnp.float32(np.nan),
        "gradient_norm": jnp.float32(np.finfo(np.float32).smallest_normal),
        "half": jnp.bfloat16(1 / 3),
        "other_half": jnp.float16(1 / 3),
    }
    whole = NamedSharding(meshes.make(Mesh(), jax.devices()), PartitionSpec())
    metrics = jax.jit(StepMetrics.joined, out_shardings=whole)(scalars)
    assert len(jax.tree.leaves(metrics)) == 1 and metrics.array.dtype == jnp.float32
    pace = StepTimer()
    pace.add(metrics)
    (found,) = pace.drain()
    assert [*found] == [*metrics] == sorted(scalars)
    for name, value in scalars.items():
        assert type(found[name]) is float
        np.testing.assert_array_equal(found[name], float(value))
        np.testing.assert_array_equal(metrics[name], float(value))


def test_a_metric_that_the_step_does_not_have_is_a_missing_key() -> None:
    metrics = StepMetrics.joined({"loss": jnp.float32(1)})
    assert "accuracy" not in metrics and len(metrics) == 1
    with pytest.raises(KeyError, match="accuracy"):
        metrics["accuracy"]


@pytest.mark.parametrize("value", [jnp.int32(2**24 + 1), jnp.ones(2), jnp.array(True)])
def test_a_metric_that_float32_would_round_is_refused(value: jax.Array) -> None:
    """A count above 2**24 is the sum of a metric, which is divided by its weight in float32 anyway."""
    with pytest.raises(TypeError, match="Expected a float32 scalar as the metric targets, found"):
        StepMetrics.joined({"loss": jnp.float32(1), "targets": value})
