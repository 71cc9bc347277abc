"""Weight decay, and the parameters to which it applies."""

import dataclasses
from typing import Any

import optax

from plmjax.contracts.parameters import BIAS, NORM, kinds_of
from plmjax.errors import FROM_0, check_ranges
from plmjax.training import paths
from plmjax.training.optimizers.optimizer import Optimizer

Params = Any


@dataclasses.dataclass(frozen=True)
class Decaying(Optimizer):
    """Base class of the rules with weight decay."""

    weight_decay: float = 0.01
    """Decoupled weight decay, multiplied by the learning rate; 0 for none."""
    decay_exclude: tuple[str, ...] = (NORM, BIAS)
    """Parameters that are not decayed: layer_norm for scales of norms and others, bias for everything that is added,
    and any other word for parameters with this word in their path."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges("optimizer", self, weight_decay=FROM_0)

    def decay_mask(self, params: Params) -> Params:
        """Return a tree of bool that is false for the parameters of `decay_exclude`.

        As with the regular expressions of bert optimization.py, "bias" also excludes the bias of a normalization.
        """
        words = [word for word in self.decay_exclude if word not in (NORM, BIAS)]

        def decays(name: str, parameter: Any) -> bool:
            kinds = kinds_of(parameter)
            return not any(kind in self.decay_exclude for kind in kinds) and not any(word in name for word in words)

        return paths.map_named(decays, params)

    def decay(self, params: Params) -> optax.GradientTransformation:
        """Return the transformation that adds weight_decay * parameter. params: boxed, as for `build`."""
        return optax.add_decayed_weights(self.weight_decay, self.decay_mask(params))
