"""Weight decay: its size, and the parameters that it applies to."""

import dataclasses
from typing import Any

import optax

from plmjax.errors import FROM_0, check_ranges
from plmjax.training import paths
from plmjax.training.optimizers.optimizer import Optimizer

Params = Any


@dataclasses.dataclass(frozen=True)
class Decaying(Optimizer):
    """Base class of the rules with weight decay."""

    weight_decay: float = 0.01
    """Decoupled weight decay, multiplied by the learning rate."""
    decay_exclude: tuple[str, ...] = ("layer_norm", "bias")
    """Parameters whose path contains one of these words are not decayed."""

    def __post_init__(self) -> None:
        """Check the numbers."""
        super().__post_init__()
        check_ranges("optimizer", self, weight_decay=FROM_0)

    def decayed(self, params: Params) -> Params:
        """Return false for a path that contains a word of `decay_exclude`.

        As with the regular expressions of bert optimization.py, "bias" excludes "predictions/output_bias" too.
        """
        return paths.map_named(lambda name, _: not any(word in name for word in self.decay_exclude), params)

    def decay(self) -> optax.GradientTransformation:
        """Return the transformation that adds weight_decay * parameter."""
        return optax.add_decayed_weights(self.weight_decay, self.decayed)
