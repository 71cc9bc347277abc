"""The parameters that the projections of a model need to compute in int8 (`plmjax.layers.int8`)."""

import math

import numpy as np

from plmjax.compression.compression import Params
from plmjax.compression.kernels import input_axes
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.system import group_of
from plmjax.layers.int8 import INPUT, KERNEL_SCALE
from plmjax.training.checkpoints import stored


def with_int8_parameters(params: Params, ranges: Params, model: ModelConfig, *, static: bool) -> Params:
    """Return parameters in their stored form with the scales of the kernels, and with `static` the ranges.

    Args:
        ranges: path -> float32 range of each projection that computes in int8. If layers share their parameters, the
            largest range of all of them is taken.
    """
    added = {}
    for path, value in ranges.items():
        projection, _, name = path.rpartition("/")
        kernel = params[f"{projection}/kernel/{stored.INTEGERS}"]
        place = group_of(f"{projection}/kernel", model.parameter_groups)
        layers = kernel.shape[:1] if place is not None and place[1] is not None else ()
        if static:
            added[path] = value if value.ndim == len(layers) else np.max(value, axis=0)
        if name == INPUT:
            first = len(layers)
            outputs = kernel.shape[first + input_axes(f"{projection}/kernel", kernel.ndim - first) :]
            scale = params[f"{projection}/kernel/{stored.SCALE}"].reshape(*layers, -1)
            shape = (*layers, math.prod(outputs))
            added[f"{projection}/{KERNEL_SCALE}"] = np.ascontiguousarray(np.broadcast_to(scale, shape))
    return params | added
