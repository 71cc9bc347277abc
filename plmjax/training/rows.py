"""Tables whose rows the step looks up itself, and updates of these rows alone.

A batch asks for few rows of a table as long as a vocabulary. Where an objective names the rows that its loss reads
(`ReadsRows`), the step looks them up before the loss and differentiates with respect to them: no copy of the table
is gathered, and no gradient of its size is made. A rule that leaves a row without a gradient as it is
(`Optimizer.by_rows`) is then given the rows in place of the table and of what it keeps for the table. Any other rule,
such as one whose decay moves every row, is given the gradient of the whole table.
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

from plmjax.training import paths

Params = Any


class TableRows(NamedTuple):
    """The rows of a table that a batch asks for, each once, and their gradient.

    ids: int32 [N]; the number of the table's rows, which no row has, in a place whose row stands in another place too.
    gradient: float32 [N D], 0 in those places.
    """

    ids: jax.Array
    gradient: jax.Array


@dataclasses.dataclass(frozen=True, eq=False)
class Tables:
    """The tables of a run that its objective names.

    owned: path -> sharding of the table, of which every device has a share. batch: sharding of the rows of a batch.
    by_rows: whether the optimizer's rule is given the rows of a batch in place of the tables.
    """

    owned: dict[str, NamedSharding]
    batch: NamedSharding
    by_rows: bool

    @classmethod
    def of(cls, owned: Any, names: Iterable[str], batch: NamedSharding, *, by_rows: bool) -> Self:
        """The tables with these paths; `owned` has the shardings of all parameters."""
        shardings = _flat(owned)
        return cls({name: shardings[name] for name in names}, batch, by_rows)

    def split(self, params: Params) -> tuple[Params, dict[str, Any]]:
        """The parameters without the tables; path -> table."""
        leaves = _flat(params)
        found = {name: leaves.pop(name) for name in self.owned}
        return nested(leaves), found

    def look_up(self, tables: dict[str, jax.Array], ids: dict[str, jax.Array]) -> dict[str, jax.Array]:
        """Path -> rows, float32 [B ... D], of ids, int [B ...]."""

        def rows(name: str) -> jax.Array:
            # Every device looks up its columns of all rows, and then the batch is divided.
            found = self._columns(name, jnp.take(tables[name], ids[name], axis=0, mode="clip"))
            return with_sharding_constraint(found, self.batch)

        return {name: rows(name) for name in ids}

    def update(
        self,
        optimizer: optax.GradientTransformation,
        gradient: Params,
        row_gradients: dict[str, jax.Array],
        ids: dict[str, jax.Array],
        optimizer_state: optax.OptState,
        params: Params,
    ) -> tuple[Params, optax.OptState]:
        """The parameters and the optimizer's state after a step.

        gradient: of the parameters but the tables. row_gradients: path -> float32 [B ... D], of the rows of the ids.
        """
        rest, tables = self.split(params)
        if not self.by_rows:
            whole = {name: self._whole_gradient(name, table, ids, row_gradients) for name, table in tables.items()}
            updates, optimizer_state = optimizer.update(joined(gradient, whole), optimizer_state, params)
            return optax.apply_updates(params, updates), optimizer_state
        rows = {}
        for name, table in tables.items():
            values = self._columns(name, row_gradients[name].reshape(-1, table.shape[1]))
            rows[name] = deduplicated(ids[name].reshape(-1), values, len(table))
        few = {name: table.at[rows[name].ids].get(mode="clip") for name, table in tables.items()}
        kept = _map_tables(lambda leaf, of: leaf.at[of.ids].get(mode="clip"), rows, tables, optimizer_state)
        gradient = joined(gradient, {name: of.gradient for name, of in rows.items()})
        updates, kept = optimizer.update(gradient, kept, joined(rest, few))
        updates, row_updates = self.split(updates)
        for name, table in tables.items():
            tables[name] = table.at[rows[name].ids].add(row_updates[name], mode="drop")
        put = lambda leaf, of, new: leaf.at[of.ids].set(new, mode="drop")  # noqa: E731
        optimizer_state = _map_tables(put, rows, tables, optimizer_state, kept)
        return joined(optax.apply_updates(rest, updates), tables), optimizer_state

    def _columns(self, name: str, rows: jax.Array) -> jax.Array:
        """Rows [... D] placed so that every device has the columns of its share of the table."""
        owned = self.owned[name].spec
        columns = owned[1] if len(owned) > 1 else None
        spec = PartitionSpec(*[None] * (rows.ndim - 1), columns)
        return with_sharding_constraint(rows, NamedSharding(self.owned[name].mesh, spec))

    def _whole_gradient(
        self, name: str, table: jax.Array, ids: dict[str, jax.Array], row_gradients: dict[str, jax.Array]
    ) -> jax.Array:
        whole = jnp.zeros_like(table).at[ids[name]].add(self._columns(name, row_gradients[name]))
        return with_sharding_constraint(whole, self.owned[name])


def deduplicated(ids: jax.Array, gradient: jax.Array, size: int) -> TableRows:
    """The rows of a table of `size` rows from lookups: ids int [N] and gradient float32 [N D].

    Gradients of the same row are summed in the place of its last lookup.
    """
    places = jnp.arange(len(ids), dtype=jnp.int32)
    last = jnp.zeros(size, jnp.int32).at[ids].max(places)[ids]
    return TableRows(jnp.where(last == places, ids, size), jnp.zeros_like(gradient).at[last].add(gradient))


def nested(leaves: dict[str, Any]) -> Params:
    """A tree of parameters from path -> parameter."""
    return flax.traverse_util.unflatten_dict(leaves, sep="/")


def joined(params: Params, tables: dict[str, Any]) -> Params:
    """The parameters, and with them the tables that `Tables.split` took out."""
    return nested(_flat(params) | tables)


def _flat(params: Params) -> dict[str, Any]:
    return flax.traverse_util.flatten_dict(params, keep_empty_nodes=True, sep="/")


def _map_tables(
    function: Callable[..., jax.Array], rows: dict[str, TableRows], tables: dict[str, jax.Array], state: Any, *new: Any
) -> Any:
    """`function(leaf, rows, leaf of new...)` of what an optimizer's state keeps for each number of a table.

    Such a leaf has the table's path and shape. Of the others stays what is in the last of the trees.
    """

    def mapped(path: Any, leaf: jax.Array, *leaves: jax.Array) -> jax.Array:
        place = f"/{paths.name(path)}"
        for name, table in tables.items():
            if place.endswith(f"/{name}") and leaf.shape == table.shape:
                return function(leaf, rows[name], *leaves)
        return (leaf, *leaves)[-1]

    return jax.tree_util.tree_map_with_path(mapped, state, *new)
