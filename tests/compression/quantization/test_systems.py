"""The projections of every kind of layers: all of them are stored in int8, and their ranges are collected."""

import flax.linen as nn
import flax.traverse_util
import jax
import pytest

from plmjax.compression.quantization.weights import shared_axes
from plmjax.contracts.execution import CALIBRATED, INT8_STATIC, Execution
from tests.families import FAMILIES

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


@pytest.mark.parametrize("system", PROJECTIONS)
def test_what_multiplies_in_int8_is_stored_so(system: str) -> None:
    row = FAMILIES[system]
    module = (row.trained or row.heads[0]).module
    inputs = row.batch(module)
    keys = {"params": jax.random.key(0), "sampling": jax.random.key(1)}

    def shapes(precision: str) -> dict[str, tuple[int, ...]]:
        made = module.clone(execution=Execution(matmul_precision=precision))
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
