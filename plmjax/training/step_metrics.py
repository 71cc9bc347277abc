"""The metrics of a step, stacked into one array on the devices, and separated by name on the host.

A logged line needs the metrics of all steps since the last one. The host fetches each array separately, and for a
scalar this takes far longer than the transfer of its bytes.
"""

from collections.abc import Iterator, Mapping
from typing import Self

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

EXACT = (jnp.float32, jnp.bfloat16, jnp.float16)
"""Dtypes whose values float32 holds exactly. Integers are not among them: float32 rounds counts above 2**24."""


@flax.struct.dataclass
class StepMetrics(Mapping[str, float]):
    """The metrics of one step by name. Reading one on the host waits for the step.

    array: float32 [number of metrics], replicated.
    names: sorted names of its elements. They belong to the program, and are known before it has run.
    """

    array: jax.Array
    names: tuple[str, ...] = flax.struct.field(pytree_node=False)

    @classmethod
    def join(cls, metrics: dict[str, jax.Array]) -> Self:
        """Stack scalars of the dtypes in `EXACT`.

        Raises:
            TypeError: a metric is not a scalar of such a dtype.
        """
        for name, value in metrics.items():
            if jnp.shape(value) or jnp.result_type(value) not in EXACT:
                raise TypeError(
                    f"Expected a float32 scalar as the metric {name}, found {jnp.result_type(value)} "
                    f"{list(jnp.shape(value))}; return it as (sum, weight), or convert it."
                )
        names = tuple(sorted(metrics))
        return cls(jnp.stack([jnp.asarray(metrics[name], jnp.float32) for name in names]), names)

    def floats(self) -> dict[str, float]:
        """Wait for the step, and return all its metrics by name."""
        return dict(zip(self.names, np.asarray(self.array).tolist(), strict=True))

    def __getitem__(self, name: str) -> float:
        return self.floats()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)
