"""Rows of tokens with constant capacity, which hold the texts of a decoding loop."""

from typing import Self

import flax.struct
import jax
import jax.numpy as jnp


@flax.struct.dataclass
class TokenBuffer:
    """Prompts and the generated tokens after them. All rows are written at the same position.

    text: int32 [R P], R rows of P positions, padded before each prompt and after the end.
    first: int32 [R], the first position of each prompt.
    end: int32 scalar, the number of positions filled so far.
    count: int32 scalar, the number of tokens generated after the prompts.
    """

    text: jax.Array
    first: jax.Array
    end: jax.Array
    count: jax.Array

    @classmethod
    def after(cls, prompt: jax.Array, prompt_mask: jax.Array, capacity: int) -> Self:
        """Return rows of `capacity` positions with prompts and no generated tokens.

        prompt: int [B W], padded on the left. prompt_mask: int [B W], 0 at padding.
        """
        width = prompt.shape[1]
        return cls(
            text=jnp.pad(prompt.astype(jnp.int32), ((0, 0), (0, capacity - width))),
            first=width - jnp.sum(prompt_mask, axis=1).astype(jnp.int32),
            end=jnp.asarray(width, jnp.int32),
            count=jnp.asarray(0, jnp.int32),
        )

    def rows(self, indices: jax.Array) -> Self:
        """Return the rows `indices`, int [R']."""
        return self.replace(text=self.text[indices], first=self.first[indices])

    def with_tokens(self, tokens: jax.Array) -> Self:
        """Return the rows with one more token each, int32 [R]."""
        text = jax.lax.dynamic_update_slice_in_dim(self.text, tokens[:, None], self.end, axis=1)
        return self.replace(text=text, end=self.end + 1, count=self.count + 1)

    @property
    def last(self) -> jax.Array:
        """Return int32 [R], the last token of each row."""
        return jax.lax.dynamic_slice_in_dim(self.text, self.end - 1, 1, axis=1)[:, 0]
