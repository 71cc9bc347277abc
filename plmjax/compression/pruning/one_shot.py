"""Pruning of a trained model without training: by magnitude, and two of each four weights."""

import jax.numpy as jnp
import numpy as np

from plmjax.compression.compression import Params
from plmjax.compression.kernels import input_axes, layer_kernels
from plmjax.compression.pruning.masks import top_fraction, two_of_four
from plmjax.compression.pruning.pruned import check_sparsity
from plmjax.contracts.model_config import ModelConfig
from plmjax.errors import UserError


def by_magnitude(params: Params, model: ModelConfig, sparsity: float) -> Params:
    """Return the parameters with the weights of smallest magnitude set to 0, in each matrix of the layers.

    Raises:
        UserError: the sparsity is out of its range, the model has no layers, or it is pruned as much already.
    """
    check_sparsity(sparsity)
    stacks = layer_kernels(params, model)
    zeros = sum(np.sum(params[path] == 0) for path in stacks) / sum(params[path].size for path in stacks)
    if zeros >= sparsity:
        raise UserError(
            f"Expected --sparsity above that of the checkpoint, {zeros:.3f}, found {sparsity}; raise it, or take the "
            f"checkpoint that it was made from."
        )

    def pruned(path: str, kernel: np.ndarray) -> np.ndarray:
        mask = top_fraction(jnp.abs(jnp.asarray(kernel)), 1 - sparsity, stacked=stacks[path])
        return np.where(np.asarray(mask), kernel, 0).astype(kernel.dtype)

    return {path: pruned(path, value) if path in stacks else value for path, value in params.items()}


def by_pattern(params: Params, model: ModelConfig) -> Params:
    """Return the parameters with two of each four consecutive inputs of an output set to 0 in the layers.

    The two of the smallest magnitude become 0, the pattern of sparse tensor cores (Mishra et al., arXiv 2104.08378).

    Raises:
        UserError: the model has no layers, or a matrix whose number of inputs is not a multiple of 4.
    """
    stacks = layer_kernels(params, model)

    def pruned(path: str, kernel: np.ndarray) -> np.ndarray:
        try:
            mask = two_of_four(kernel, input_axes(path, kernel.ndim - stacks[path]), stacked=stacks[path])
        except ValueError as error:
            raise UserError(f"{error} ({path}) Take --method magnitude.") from None
        return np.where(mask, kernel, 0).astype(kernel.dtype)

    return {path: pruned(path, value) if path in stacks else value for path, value in params.items()}


def ticket(params: Params, before: Params, model: ModelConfig, sparsity: float) -> Params:
    """Return the parameters `before` with those weights set to 0 that have the smallest magnitude in `params`.

    Args:
        params: parameters of the trained model, by path.
        before: parameters of an earlier checkpoint of the model, or `params`. Parameters that it lacks, such as the
            head of a task, keep their trained values.
        model: the config of the model.
        sparsity: fraction of the layers' weights that become 0.

    Raises:
        UserError: the earlier checkpoint is of another model.
    """
    pruned = by_magnitude(params, model, sparsity)
    kernels = layer_kernels(params, model)
    for path in kernels:
        if path not in before or before[path].shape != pruned[path].shape:
            raise UserError(
                f"Expected {path} of shape {pruned[path].shape} in --rewind, found another model; name an earlier "
                f"checkpoint of the same run, or the run that it started from."
            )
    rewound = {path: before.get(path, value) for path, value in pruned.items()}
    return rewound | {path: np.where(pruned[path] == 0, 0, rewound[path]) for path in kernels}
