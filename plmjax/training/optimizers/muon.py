"""Muon: orthogonal updates of matrices, and Adam for all other parameters (Jordan et al. 2024, Liu et al. 2025)."""

import dataclasses
from typing import Any, ClassVar

import jax
import optax
from jax.tree_util import KeyPath

from plmjax.contracts.parameters import kinds_of
from plmjax.errors import FRACTION, UserError, check_ranges
from plmjax.training import paths
from plmjax.training.optimizers.adam import Moments

Params = Any
INPUTS = {"heads": 2}
"""Name of the first axis of a matrix -> its number of input axes, if that is not 1. The output projection of attention
has the input axes [heads, head].
"""
ADAM_RMS = 0.2
"""Root mean square of Muon's updates. It is about that of AdamW's updates, so that both rules can share the learning
rate and the weight decay (Liu et al., arXiv 2502.16982, equation 4).
"""


@dataclasses.dataclass(frozen=True)
class Muon(Moments):
    """Muon (optax.contrib.muon) for the matrices of layers; Adam for tables, output layers, norms and biases.

    A matrix is a parameter of two or more named axes besides "layers", none of them "vocab", that is no norm or bias.
    Each layer of a stack is a matrix of its own.
    """

    name: ClassVar[str] = "muon"

    momentum: float = 0.95
    """Decay of the running average of a matrix's gradients, with Nesterov momentum."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges("optimizer", self, momentum=FRACTION)

    def rule(self, learning_rate: optax.Schedule, params: Params) -> optax.GradientTransformation:
        """Return the transformation.

        Raises:
            UserError: no parameter is a matrix.
        """
        matrices = matrix_axes(params)
        if not matrices:
            raise UserError(
                "--optimizer muon needs a model with matrices, found tables and vectors only; take --optimizer adamw."
            )

        def dimension_numbers(tree: Params) -> Params:
            return _map(lambda path, _: matrices[paths.name(path)], tree)

        def labels(tree: Params) -> Params:
            return _map(lambda path, _: "muon" if paths.name(path) in matrices else "adam", tree)

        orthogonal = optax.contrib.muon(
            1.0, beta=self.momentum, muon_weight_dimension_numbers=dimension_numbers, consistent_rms=ADAM_RMS
        )
        return optax.chain(
            optax.partition(
                {
                    "muon": optax.chain(orthogonal, optax.scale(-1.0)),  # optax multiplies its updates by -1.0
                    "adam": optax.scale_by_adam(self.beta1, self.beta2, self.epsilon),
                },
                labels,
            ),
            self.decay(params),
            optax.scale_by_learning_rate(learning_rate),
        )


def matrix_axes(params: Params) -> dict[str, optax.contrib.MuonDimensionNumbers]:
    """Return a dict from path to the input and output axes of the matrices in a boxed tree.

    A remaining axis is that of stacked layers.

    Raises:
        ValueError: a parameter is not boxed, so its axes are not known.
    """
    found: dict[str, optax.contrib.MuonDimensionNumbers] = {}

    def note(name: str, parameter: Any) -> None:
        if not paths.is_parameter(parameter):
            raise ValueError(f"The rule needs the logical axes of {name!r}: build it from boxed parameters.")
        names = tuple(getattr(parameter, "names", parameter))
        own = [axis for axis, kind in enumerate(names) if kind != paths.LAYERS]
        kinds = [names[axis] for axis in own]
        if len(own) < 2 or None in kinds or "vocab" in kinds or kinds_of(parameter):
            return
        inputs = INPUTS.get(kinds[0], 1)
        if len(own) > inputs:
            found[name] = optax.contrib.MuonDimensionNumbers(tuple(own[:inputs]), tuple(own[inputs:]))

    paths.map_named(note, params)
    return found


def _map(function: Any, tree: Params) -> Params:
    """Return the tree of `function(path, leaf)` for every leaf. Masked nodes of optax do not change."""

    def is_masked(node: Any) -> bool:
        return isinstance(node, optax.MaskedNode)

    def one(path: KeyPath, leaf: Any) -> Any:
        return leaf if is_masked(leaf) else function(path, leaf)

    return jax.tree_util.tree_map_with_path(one, tree, is_leaf=is_masked)
