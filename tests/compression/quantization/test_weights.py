"""Checkpoints whose weights are stored in int8, and the projections of every kind of layers."""

import json
from pathlib import Path

import flax.linen as nn
import flax.traverse_util
import jax
import numpy as np
import pytest

from plmjax.commands import cli
from plmjax.compression.quantization.weights import shared_axes
from plmjax.contracts.execution import Execution
from plmjax.layers import int8
from plmjax.layers.int8 import CALIBRATED, INT8_STATIC
from plmjax.models.albert import AlbertConfig
from plmjax.training.checkpoints import checkpoints, items
from tests.families import FAMILIES


def flat(path: Path) -> dict[str, np.ndarray]:
    return flax.traverse_util.flatten_dict(checkpoints.load_parameters(path)[0], sep="/")


@pytest.mark.parametrize("granularity", ["tensor", "channel"])
def test_each_weight_is_the_nearest_of_its_scale(small_run: Path, tmp_path: Path, granularity: str, capsys) -> None:
    arguments = ["--output", str(tmp_path / "out"), "--granularity", granularity]
    cli.run(["compress", "quantize", str(small_run), *arguments])
    assert "parameters are stored in int8" in capsys.readouterr().out
    before, after = flat(small_run), flat(tmp_path / "out")
    assert before.keys() == after.keys()
    found = items.int8_paths(checkpoints.find(tmp_path / "out"), "params")
    kernels = [path for path in before if path.startswith("bert/") and path.endswith(("kernel", "embedding"))]
    assert found == sorted(kernels) and len(found) == 10
    for path, value in before.items():
        if path not in found:
            np.testing.assert_array_equal(after[path], value)
    for path in found:
        value = before[path]
        stacked = "/layers/" in path
        axes = tuple(range(stacked, value.ndim))
        if granularity == "channel":
            outputs = 1 if path.endswith(("/output/kernel", "feed_forward/intermediate/kernel", "pooler/kernel")) else 2
            axes = (1,) if path.endswith("embedding") else tuple(range(stacked, value.ndim - outputs))
        scale = 127 / np.abs(value).max(axis=axes, keepdims=True)
        np.testing.assert_allclose(after[path], np.round(value * scale) / scale, rtol=1e-6, err_msg=path)
    (record,) = json.loads((tmp_path / "out" / "ancestry.json").read_text())["ancestors"]
    assert record["by"] == "quantize" and record["settings"]["granularity"] == granularity


def test_layers_that_are_no_stack() -> None:
    sizes = {"albert/encoder/group_0/layer_0/attention/query/kernel": (8, 2, 4), "sentence_order/kernel": (8, 2)}
    model = AlbertConfig(hidden_size=8, num_attention_heads=2)
    assert shared_axes(sizes, model, "channel") == {next(iter(sizes)): (0,)}
    assert shared_axes(sizes, model, "tensor") == {next(iter(sizes)): (0, 1, 2)}


LAYER, BOTH_SIDES = 6, 6 + 10
PROJECTIONS = {
    **dict.fromkeys(("bert", "albert", "distilbert", "gpt", "gpt2", "xlnet", "transformer_xl", "adaptive_span"), LAYER),
    **dict.fromkeys(("longformer", "longformer_decoder"), LAYER),
    **dict.fromkeys(("transformer", "t5", "lite_transformer"), BOTH_SIDES),
    "mobilebert": 12,
    "reformer": 0,
}
"""System -> number of kernels of its layers that multiply in int8: the four of each attention, and two behind it.

Those of distances, of global tokens and of convolutions do not.
"""


@pytest.mark.parametrize(
    "system", [pytest.param(name, marks=() if name in ("t5", "xlnet") else pytest.mark.nightly) for name in PROJECTIONS]
)
def test_what_multiplies_in_int8_is_stored_so(system: str) -> None:
    row = FAMILIES[system]
    module = (row.trained or row.heads[0]).module
    inputs = row.batch(module)
    keys = {"params": jax.random.key(0), "sampling": jax.random.key(1)}

    def shapes(precision: str) -> dict[str, tuple[int, ...]]:
        made = module.clone(execution=Execution(projection=int8.PROJECTIONS[precision]))
        variables = nn.meta.unbox(jax.eval_shape(lambda: made.init(keys, **inputs)))
        flat = flax.traverse_util.flatten_dict(variables["params"], sep="/")
        collected = flax.traverse_util.flatten_dict(variables.get("ranges", {}), sep="/")
        return {path: leaf.shape for path, leaf in (flat | collected).items()}

    static, plain = shapes(INT8_STATIC), shapes("float")
    scales = {path.removesuffix("_scale") for path in static if path.endswith("/kernel_scale")}
    assert len(scales) == PROJECTIONS[system]
    assert scales <= shared_axes(plain, module.config, "channel").keys()
    ranges = {path for path in static if path.endswith(("/input_range", "/output_range"))}
    assert shapes(CALIBRATED).keys() - plain.keys() == ranges and len(ranges) == 2 * len(scales)
