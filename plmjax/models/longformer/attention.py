"""Longformer's attention: a window for every token, and a few tokens that see all and are seen by all.

Sources: Beltagy et al. 2020, arXiv 2004.05150, section 3; allenai/longformer longformer.py, sliding_chunks.py.

A query sees the keys within its window, w/2 on each side, and the global tokens, in one softmax (H: size of a head):

    x_i = softmax(q_i . [k_g for all global g, k_j for all other j with |i - j| <= w/2] / sqrt(H)) [v_g, v_j]

A global token sees the whole row, with separate projections:

    x_g = softmax(q'_g . [k'_j for all j] / sqrt(H)) [v'_j]

Queries are computed in blocks, each against the keys of its band and of the G global tokens. Time and memory of T
tokens grow with T (w + G), and no array is [T T].

The window of a head may be dilated (plmjax/models/longformer/dilation.py): then |i - j| is at most w/2 times its
dilation d, and is a multiple of d. Dilation and global tokens exclude each other: only the released CUDA kernel has
dilation, and it was used without global tokens.
"""

from typing import NamedTuple, Self

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.attention_arrays import axes
from plmjax.contracts.mask_terms import KeyMask, MaskTerm, MaskTerms, Window
from plmjax.errors import UserError
from plmjax.layers.attention.backends import BACKENDS, weights
from plmjax.layers.attention.bands import Bands
from plmjax.layers.attention.multi_head import KeyValues, MultiHeadAttention
from plmjax.layers.attention.recording import record
from plmjax.layers.projection import Projection
from plmjax.models.longformer.dilation import EverySoMany, cut, join


@flax.struct.dataclass
class GlobalTokens:
    """The global tokens of rows of T tokens, in G slots.

    positions: int [B G], in ascending order; T in a slot without a token.
    filled: bool [B G], true in a slot with a token.
    """

    positions: jax.Array
    filled: jax.Array

    @classmethod
    def of(cls, mask: jax.Array, slots: int) -> Self:
        """Return the first `slots` tokens at which the mask, bool [B T], is true."""
        length = mask.shape[1]
        positions = jnp.sort(jnp.where(mask, jnp.arange(length), length), axis=1)[:, :slots]
        return cls(positions, positions < length)

    def select(self, x: jax.Array) -> jax.Array:
        """Select the tokens of each row: [B T ...] -> [B G ...]. An empty slot repeats the last token."""
        return jax.vmap(lambda row, places: jnp.take(row, places, axis=0, mode="clip"))(x, self.positions)

    def scatter(self, x: jax.Array, new: jax.Array) -> jax.Array:
        """Return [B T ...] with the values `new`, [B G ...], at the tokens."""
        return jax.vmap(lambda row, places, values: row.at[places].set(values, mode="drop"))(x, self.positions, new)


class Inputs(NamedTuple):
    """The inputs of attention that are the same for all layers.

    real: bool [B T], true for tokens, false for padding.
    local: bool [B T], true for tokens that are not global, false for padding.
    tokens: the global tokens; None without any.
    widest: half of the widest window of all layers, which determines the bands.
    overfull: bool [B 1 1], true for rows with more global tokens than slots; None without global tokens.
    """

    real: jax.Array
    local: jax.Array
    tokens: GlobalTokens | None
    widest: int
    overfull: jax.Array | None = None

    @classmethod
    def of(cls, real: jax.Array, chosen: jax.Array, slots: int, widest: int) -> Self:
        """Return the inputs for rows whose global tokens are the real tokens where `chosen`, bool [B T], is true.

        Raises:
            UserError: a row has more than `slots` global tokens; checked only outside of a compiled program.
        """
        chosen = real & chosen
        count = jnp.sum(chosen, axis=1)
        if not isinstance(count, jax.core.Tracer) and (most := int(jnp.max(count))) > slots:
            raise UserError(
                f"Expected at most {slots} global tokens in a row, found {most}; choose fewer or raise "
                f"--model.max_global_tokens."
            )
        return cls(real, real & ~chosen, GlobalTokens.of(chosen, slots), widest, (count > slots)[:, None, None])

    def poison_overfull(self, x: jax.Array) -> jax.Array:
        """Set rows of [B T D] with too many global tokens to NaN: a compiled program cannot raise an error."""
        return x if self.overfull is None else jnp.where(self.overfull, jnp.nan, x)


@flax.struct.dataclass
class NearOrGlobal(MaskTerm):
    """The key is within the window of the query, or it is a global token.

    The columns of a block are not consecutive positions: first the global tokens, then the band.

    places: int [S], the position of the key of each column.
    everywhere: bool [S] or [B 1 S], true in the columns of global tokens.
    side: half of the window; int or int scalar.
    """

    places: jax.Array = axes("keys")
    everywhere: jax.Array = axes("keys")
    side: int | jax.Array

    def visible(self, query_positions: jax.Array, key_positions: jax.Array) -> jax.Array:
        near = jnp.abs(self.places - query_positions[..., None]) <= self.side
        return near | self.everywhere


class LongformerAttention(MultiHeadAttention):
    """Self-attention with three additional projections, for the global tokens.

    Attributes:
        dilation: distance between the adjacent keys of a window: one number for all heads, or one for each head. Above
            1 no token may be global.
    """

    dilation: tuple[int, ...] = (1,)

    def setup(self) -> None:
        super().setup()
        heads, inputs, init = (self.num_heads, self.size), ("embed", "heads", "head"), self.kernel_init
        self.query_global = Projection(heads, inputs, init, self.execution.dtype)
        self.key_global = Projection(heads, inputs, init, self.execution.dtype)
        self.value_global = Projection(heads, inputs, init, self.execution.dtype)

    def __call__(self, x: jax.Array, inputs: Inputs, side: int | jax.Array, *, deterministic: bool) -> jax.Array:
        """Attend within rows, [B T D] -> [B T D].

        side: half of this layer's window. Padding attends to nothing: its context is 0, as in the released code.
        """
        dropout_key = self.probability_dropout.key(deterministic)
        query, keys = self.scaled(self.query(x)), self.key_values(x)
        context = self._attend_dilated(query, keys, inputs, side=side, dropout_key=dropout_key)
        context = jnp.where(inputs.real[..., None, None], context, 0)
        if self.is_initializing():  # the parameters exist also where no token is global
            self._attend_from_global(x, inputs._replace(tokens=GlobalTokens.of(inputs.real, 1)), True)
        if inputs.tokens is not None:
            context = inputs.tokens.scatter(context, self._attend_from_global(x, inputs, deterministic))
        record(self.name, lambda: self._weights(x, query, keys.keys, inputs=inputs, side=side))
        return self.output(context)

    def _weights(
        self, x: jax.Array, query: jax.Array, key: jax.Array, *, inputs: Inputs, side: int | jax.Array
    ) -> jax.Array:
        """Return the weights of all pairs of tokens, float32 [B N T T]; 0 outside the window and for padding."""
        steps, everywhere = np.broadcast_to(self.dilation, self.num_heads), inputs.real & ~inputs.local
        found = jnp.zeros((len(x), self.num_heads, x.shape[1], x.shape[1]))
        for step in np.unique(steps).tolist():
            heads = np.flatnonzero(steps == step)
            near = NearOrGlobal(jnp.arange(x.shape[1]), everywhere[:, None], side * step)
            mask_terms = MaskTerms((KeyMask(inputs.real), near, EverySoMany(step)))
            found = found.at[:, heads].set(weights(query[:, :, heads], key[:, :, heads], mask_terms, ()))
        found = jnp.where(inputs.real[:, None, :, None], found, 0)
        if inputs.tokens is None:
            return found
        query, keys = self._project_global(x, inputs.tokens)
        own = weights(query, keys.keys, MaskTerms((KeyMask(inputs.real),)), ())
        by_query = inputs.tokens.scatter(jnp.moveaxis(found, 2, 1), jnp.moveaxis(own, 2, 1))  # [B T N T]
        return jnp.moveaxis(by_query, 1, 2)

    def _attend_dilated(
        self, query: jax.Array, keys: KeyValues, inputs: Inputs, *, side: int | jax.Array, dropout_key: jax.Array | None
    ) -> jax.Array:
        """Attend with the dilation of each head, [B T N H] -> [B T N H]; heads of equal dilation together."""
        steps = np.broadcast_to(self.dilation, self.num_heads)
        if (steps == 1).all():
            return self._attend_windowed(query, keys, inputs, side=side, dropout_key=dropout_key)
        order, contexts = np.argsort(steps, kind="stable"), []
        for step in np.unique(steps).tolist():
            heads = np.flatnonzero(steps == step)
            own = KeyValues(*(cut(each[:, :, heads], step) for each in (keys.keys, keys.values)))
            rows = Inputs(cut(inputs.real, step), cut(inputs.local, step), None, inputs.widest)
            block_key = None if dropout_key is None else jax.random.fold_in(dropout_key, step)
            context = self._attend_windowed(cut(query[:, :, heads], step), own, rows, side=side, dropout_key=block_key)
            contexts.append(join(context, step, query.shape[1]))
        return jnp.concatenate(contexts, axis=2)[:, :, np.argsort(order)]

    def _attend_windowed(
        self, query: jax.Array, keys: KeyValues, inputs: Inputs, *, side: int | jax.Array, dropout_key: jax.Array | None
    ) -> jax.Array:
        """Attend to the window and the global tokens, [B T N H] -> [B T N H]."""
        length, tokens, backend = query.shape[1], inputs.tokens, BACKENDS[self.execution.attention]
        window = MaskTerms((Window(inputs.widest, inputs.widest),))
        bands = Bands.of(window, length, length) or Bands(size=length, blocks=1, width=length, start=0)
        slots = 0 if tokens is None else tokens.positions.shape[1]
        everywhere = jnp.arange(slots + bands.width) < slots
        shared = None if tokens is None else (*map(tokens.select, (keys.keys, keys.values)), tokens.filled)

        def attend_block(block: tuple[jax.Array, ...]) -> jax.Array:
            """Return the context of a block of queries, [B size N H].

            A block is its index, its queries [B size N H], the keys and values of its band [B width N H], and a mask of
            the local tokens of the band, bool [B width].
            """
            number, query, *band = block
            if shared is not None:
                band = [jnp.concatenate(both, axis=1) for both in zip(shared, band, strict=True)]
            key, value, exists = band
            places = jnp.arange(-slots, bands.width) + bands.start + number * bands.size
            conditions = KeyMask(exists), NearOrGlobal(places, everywhere, side)
            mask_terms = MaskTerms(conditions, query_offset=number * bands.size)
            block_key = None if dropout_key is None else jax.random.fold_in(dropout_key, number)
            draw = {"rate": self.dropout, "dropout_key": block_key}
            return backend(query, key, value, mask_terms=mask_terms, terms=(), **draw)

        parts = bands.cut_queries(query), *map(bands.cut_keys, (keys.keys, keys.values, inputs.local))
        contexts = jax.lax.map(attend_block, (jnp.arange(bands.blocks), *parts))
        return jnp.moveaxis(contexts, 0, 1).reshape(len(query), -1, *query.shape[2:])[:, :length]

    def _attend_from_global(self, x: jax.Array, inputs: Inputs, deterministic: bool) -> jax.Array:
        """Attend from the global tokens to all tokens, [B T D] -> [B G N H]."""
        query, keys = self._project_global(x, inputs.tokens)
        return self.context(query, keys, MaskTerms((KeyMask(inputs.real),)), terms=(), deterministic=deterministic)

    def _project_global(self, x: jax.Array, tokens: GlobalTokens) -> tuple[jax.Array, KeyValues]:
        """Return the scaled queries of global tokens, [B G N H], and keys and values of all tokens, [B T N H]."""
        query = self.scaled(self.query_global(tokens.select(x)))
        return query, KeyValues(self.key_global(x), self.value_global(x))
