"""The gradient for objectives that name the table rows which their loss reads, and updates of these rows alone.

A batch reads few rows of a table with as many rows as the vocabulary. If an objective names the rows that its loss
reads (`ReadsRows`), the step looks them up before the loss and differentiates with respect to them. So no copy of the
table is gathered, and no gradient of its size is computed. If the update rule does not change a row without a gradient
(`Optimizer.by_rows`), it updates only these rows and their part of the optimizer state. Any other rule, such as one
whose weight decay changes every row, gets the dense gradient of the table.
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Self

import flax.traverse_util
import jax
import jax.numpy as jnp
import optax
from jax.lax import with_sharding_constraint
from jax.sharding import NamedSharding, PartitionSpec

from plmjax.objectives.objective import Batch, LossInputs, LossSums
from plmjax.training import paths
from plmjax.training.gradients import Gradient, Loss, Weights
from plmjax.training.gradients.all_gather import AllGather

Params = Any


class TableRows(NamedTuple):
    """The rows of a table that a batch reads, and their gradient.

    ids: int32 [B ...], or [N] without repetitions (`deduplicate`).
    gradient: float32 [B ... D] or [N D].
    """

    ids: jax.Array
    gradient: jax.Array


@dataclasses.dataclass(frozen=True, eq=False)
class LookedUpRows:
    """Looks up the rows of `tables` before the loss, and differentiates the loss with respect to these rows.

    rows_of: function from a corrupted batch to a dict from path of a table to ids, int32 [B ...].
    others: the method for all other parameters.
    """

    tables: "Tables"
    rows_of: Callable[[Batch], dict[str, jax.Array]]
    others: AllGather

    def __call__(
        self, loss: Loss, inputs: LossInputs, weights: Weights, *, batch: Batch, key: jax.Array
    ) -> tuple[Gradient, LossSums]:
        """Return (gradient, sums); see `GradientOf`. `Gradient.rows` is a dict from path to `TableRows`."""
        rest, tables = self.tables.split(inputs.params)
        ids = self.rows_of(batch)

        def with_tables(inputs: LossInputs, *arguments: Any) -> tuple[jax.Array, LossSums]:
            return loss(inputs.replace(params=join(inputs.params, tables)), *arguments)

        inputs = inputs.replace(params=rest, rows=nest(self.tables.look_up(tables, ids)))
        gradient, sums = self.others(with_tables, inputs, weights, batch=batch, key=key)
        found = _flat(gradient.rows)
        return Gradient(gradient.params, {name: TableRows(ids[name], found[name]) for name in ids}), sums

    def gather(self, inputs: LossInputs, batch: Batch) -> LossInputs:
        """Return the inputs with the parameters and the looked-up rows, as a forward pass needs them."""
        rest, tables = self.tables.split(inputs.params)
        gathered = self.others.gather(inputs.replace(params=rest), batch).params
        rows = nest(self.tables.look_up(tables, self.rows_of(batch)))
        return inputs.replace(params=join(gathered, tables), rows=rows)


@dataclasses.dataclass(frozen=True, eq=False)
class Tables:
    """The tables of a run that its objective names.

    shardings: path -> sharding of the table over the devices. batch: sharding of the rows of a batch.
    by_rows: true if the optimizer updates the rows of a batch only.
    """

    shardings: dict[str, NamedSharding]
    batch: NamedSharding
    by_rows: bool

    @classmethod
    def of(cls, sharded: Any, names: Iterable[str], batch: NamedSharding, *, by_rows: bool) -> Self:
        """Return the tables with these paths; `sharded` has the shardings of all parameters."""
        shardings = _flat(sharded)
        return cls({name: shardings[name] for name in names}, batch, by_rows)

    def split(self, params: Params) -> tuple[Params, dict[str, Any]]:
        """Return (parameters without the tables, dict from path to table)."""
        leaves = _flat(params)
        found = {name: leaves.pop(name) for name in self.shardings}
        return nest(leaves), found

    def look_up(self, tables: dict[str, jax.Array], ids: dict[str, jax.Array]) -> dict[str, jax.Array]:
        """Return a dict from path to rows, float32 [B ... D], of the ids [B ...] that are looked up."""

        def rows(name: str) -> jax.Array:
            # Every device looks up its columns of all rows, and then the batch is divided.
            found = self._columns(name, jnp.take(tables[name], ids[name], axis=0, mode="clip"))
            return with_sharding_constraint(found, self.batch)

        return {name: rows(name) for name in ids}

    def update(
        self,
        optimizer: optax.GradientTransformation,
        gradient: Gradient,
        optimizer_state: optax.OptState,
        params: Params,
    ) -> tuple[Params, optax.OptState]:
        """Return the parameters and the optimizer state after a step; `gradient` is a result of `LookedUpRows`."""
        rest, tables = self.split(params)
        if not self.by_rows:
            found = gradient.rows
            whole = {name: self._dense_gradient(name, table, found[name]) for name, table in tables.items()}
            updates, optimizer_state = optimizer.update(join(gradient.params, whole), optimizer_state, params)
            return optax.apply_updates(params, updates), optimizer_state
        rows = {}
        for name, table in tables.items():
            values = self._columns(name, gradient.rows[name].gradient.reshape(-1, table.shape[1]))
            rows[name] = deduplicate(gradient.rows[name].ids.reshape(-1), values, len(table))
        few = {name: table.at[rows[name].ids].get(mode="clip") for name, table in tables.items()}
        kept = _map_tables(lambda leaf, of: leaf.at[of.ids].get(mode="clip"), rows, tables, optimizer_state)
        found = join(gradient.params, {name: of.gradient for name, of in rows.items()})
        updates, kept = optimizer.update(found, kept, join(rest, few))
        updates, row_updates = self.split(updates)
        for name, table in tables.items():
            tables[name] = table.at[rows[name].ids].add(row_updates[name], mode="drop")
        put = lambda leaf, of, new: leaf.at[of.ids].set(new, mode="drop")  # noqa: E731
        optimizer_state = _map_tables(put, rows, tables, optimizer_state, kept)
        return join(optax.apply_updates(rest, updates), tables), optimizer_state

    def _columns(self, name: str, rows: jax.Array) -> jax.Array:
        """Return rows [... D], sharded along D like the table, so that every device has its columns."""
        owned = self.shardings[name].spec
        columns = owned[1] if len(owned) > 1 else None
        spec = PartitionSpec(*[None] * (rows.ndim - 1), columns)
        return with_sharding_constraint(rows, NamedSharding(self.shardings[name].mesh, spec))

    def _dense_gradient(self, name: str, table: jax.Array, rows: "TableRows") -> jax.Array:
        whole = jnp.zeros_like(table).at[rows.ids].add(self._columns(name, rows.gradient))
        return with_sharding_constraint(whole, self.shardings[name])


def deduplicate(ids: jax.Array, gradient: jax.Array, size: int) -> TableRows:
    """Sum the gradients of repeated lookups in a table of `size` rows: ids int [N], gradient float32 [N D].

    The sum has the place of the last lookup of a row. The other places get the gradient 0 and the out-of-range id
    `size`, which scatter drops.
    """
    places = jnp.arange(len(ids), dtype=jnp.int32)
    last = jnp.zeros(size, jnp.int32).at[ids].max(places)[ids]
    return TableRows(jnp.where(last == places, ids, size), jnp.zeros_like(gradient).at[last].add(gradient))


def nest(leaves: dict[str, Any]) -> Params:
    """Return the tree of parameters for a dict from path to parameter."""
    return flax.traverse_util.unflatten_dict(leaves, sep="/")


def join(params: Params, tables: dict[str, Any]) -> Params:
    """Return the parameters together with the tables that `Tables.split` took out."""
    return nest(_flat(params) | tables)


def _flat(params: Params) -> dict[str, Any]:
    return flax.traverse_util.flatten_dict(params, keep_empty_nodes=True, sep="/")


def _map_tables(
    function: Callable[..., jax.Array], rows: dict[str, TableRows], tables: dict[str, jax.Array], state: Any, *new: Any
) -> Any:
    """Return the optimizer state with `function(leaf, rows, leaf of new...)` for each leaf that belongs to a table.

    Such a leaf has the path and the shape of the table. Every other leaf is taken from the last tree.
    """

    def mapped(path: Any, leaf: jax.Array, *leaves: jax.Array) -> jax.Array:
        place = f"/{paths.name(path)}"
        for name, table in tables.items():
            if place.endswith(f"/{name}") and leaf.shape == table.shape:
                return function(leaf, rows[name], *leaves)
        return (leaf, *leaves)[-1]

    return jax.tree_util.tree_map_with_path(mapped, state, *new)
