"""The texts that a loop is writing: rows of tokens, whose capacity does not change."""

from typing import Self

import flax.struct
import jax
import jax.numpy as jnp


@flax.struct.dataclass
class Written:
    """Prompts and what has been written after them; all rows are written at the same place.

    text: int32 [R P], filled up before each prompt and after the end.
    first: int32 [R], where each prompt begins.
    end: int32 scalar, the places filled so far.
    count: int32 scalar, tokens written after the prompts.
    """

    text: jax.Array
    first: jax.Array
    end: jax.Array
    count: jax.Array

    @classmethod
    def after(cls, prompt: jax.Array, prompt_mask: jax.Array, capacity: int) -> Self:
        """Nothing written yet: int [B W] twice -> rows of `capacity` places."""
        width = prompt.shape[1]
        return cls(
            text=jnp.pad(prompt.astype(jnp.int32), ((0, 0), (0, capacity - width))),
            first=width - jnp.sum(prompt_mask, axis=1).astype(jnp.int32),
            end=jnp.asarray(width, jnp.int32),
            count=jnp.asarray(0, jnp.int32),
        )

    def rows(self, indices: jax.Array) -> Self:
        """Other rows, int [R']."""
        return self.replace(text=self.text[indices], first=self.first[indices])

    def with_tokens(self, tokens: jax.Array) -> Self:
        """With one more token a row, int32 [R]."""
        text = jax.lax.dynamic_update_slice_in_dim(self.text, tokens[:, None], self.end, axis=1)
        return self.replace(text=text, end=self.end + 1, count=self.count + 1)

    @property
    def last(self) -> jax.Array:
        """int32 [R], the last token of each row."""
        return jax.lax.dynamic_slice_in_dim(self.text, self.end - 1, 1, axis=1)[:, 0]
