"""The parser of cross-view training (Clark et al., EMNLP 2018, arXiv 1809.08370, section 3.2; tensorflow/models
research/cvt_text task_specific/word_level/depparse_module.py), after Dozat and Manning (ICLR 2017).

For every word t the parser predicts its head, a word j of the sentence or the root, and its relation r to the head:

    a_j = relu(W_1 x_j)     d_t = W_3 relu(W_2 y_t)     x_j, y_t: the visible states of head and dependent
    s(t, j, r) = a_j (K + K_r) d_t / m^2                s(t, root, r) = u_r d_t / m + c_r
    p(j, r | t) = softmax over all j and r of s(t, j, r)

K is shared by all relations, and K_r belongs to one relation. m is learned and begins as the fourth root of d's size.
Each word is predicted independently, so the result may not be a tree.

The primary module and `full` see f, b and h of the head and of the dependent. The other modules see one direction of
each, so that a part of the sentence is hidden:

    forwards_backwards    the head and the words before it; the dependent and the words after it

The other names follow the same scheme, with the head's direction first.

Deviation: no word is a candidate for its own head; the released code allows it. The released code has only one relation
to the root; here the relation to the root is learned.
"""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from plmjax.contracts.mask_terms import EXCLUDED
from plmjax.contracts.parameters import as_scale
from plmjax.layers.dropout import Dropout
from plmjax.layers.product import float32_product
from plmjax.layers.projection import Projection
from plmjax.models.cvt.cvt import PRIMARY, CvtConfig, States

PARSING_VIEWS = ("full", "forwards_forwards", "forwards_backwards", "backwards_forwards", "backwards_backwards")
"""The auxiliary modules of parsing, named by their view of the head and of the dependent."""


class ParsingModule(nn.Module):
    """The scores s for views of the head and of the dependent.

    dropout: dropout rate of both hidden layers.
    """

    config: CvtConfig
    dtype: jnp.dtype
    relations: int
    dropout: float

    @nn.compact
    def __call__(self, heads: jax.Array, dependents: jax.Array, deterministic: bool) -> jax.Array:
        """Map the views of heads and of dependents, [B T D] each, to float32 [B T 1+T R].

        The third axis is the head: the root, and then all words.
        """
        config, init, dtype = self.config, self.config.initializer, self.dtype

        def hidden(x: jax.Array, name: str) -> jax.Array:
            x = nn.relu(Projection((config.projection_size,), ("embed", "mlp"), init, dtype, name=name)(x))
            return Dropout(self.dropout)(x, deterministic)

        def kernel(name: str, *shape: int) -> jax.Array:
            axes = ("mlp", *[None] * (len(shape) - 1))
            return self.param(name, nn.with_logical_partitioning(init, axes), shape).astype(dtype)

        scale = self.param("scale", as_scale(nn.initializers.constant(config.parser_size**0.25), ()), ())
        a = hidden(heads, "head_hidden")
        d = hidden(dependents, "dependent_hidden")
        d = Projection((config.parser_size,), ("mlp", None), init, dtype, name="dependent")(d) / scale.astype(dtype)
        shared = kernel("shared", config.projection_size, config.parser_size)
        own = kernel("relations", config.projection_size, self.relations, config.parser_size)
        a = jnp.einsum("bjp,prd->bjrd", a, own + shared[:, None]) / scale.astype(dtype)
        words = float32_product(functools.partial(jnp.einsum, "btd,bjrd->btjr"), d, a)
        root = Projection((self.relations,), (None, None), init, dtype, logits=True, name="root")(d)
        return jnp.concatenate([root[:, :, None], words], axis=2)


class ParsingModules(nn.Module):
    """The primary module of a parsing task and the auxiliary modules, `PARSING_VIEWS`."""

    config: CvtConfig
    dtype: jnp.dtype
    relations: int

    @nn.compact
    def __call__(
        self, states: States, tokens: dict[str, jax.Array], names: tuple[str, ...], deterministic: bool
    ) -> dict[str, jax.Array]:
        """Return a dict from each of these modules' names to the scores of heads and relations, float32 [B T (1+T) R].

        tokens: `segment_ids` int [B T], the sentence of each word.

        Class r < R is the root with relation r. Class j R + r is the word at position j - 1 of the row with relation r.
        """
        forward, backward, _ = states
        segment_ids = tokens["segment_ids"]
        everything = jnp.concatenate(states, axis=-1)
        seen = {PRIMARY: (everything, everything), "full": (everything, everything)}
        one = {"forwards": forward, "backwards": backward}
        seen |= {f"{head}_{dependent}": (one[head], one[dependent]) for head in one for dependent in one}
        possible = candidates(segment_ids)[..., None]

        def said(name: str) -> jax.Array:
            dropout = self.config.dropout if name == PRIMARY else self.config.unlabelled_dropout
            module: Any = ParsingModule(self.config, self.dtype, self.relations, dropout, name=name)
            scores = jnp.where(possible, module(*seen[name], deterministic), EXCLUDED)
            return scores.reshape(*segment_ids.shape, -1)

        return {name: said(name) for name in names}


def candidates(segment_ids: jax.Array) -> jax.Array:
    """Return the candidate heads of each word, the root first: int [B T] -> bool [B T 1+T].

    Padding has only the root.
    """
    here = segment_ids > 0
    same = (segment_ids[:, :, None] == segment_ids[:, None, :]) & here[:, :, None]
    others = same & ~jnp.eye(segment_ids.shape[1], dtype=bool)
    return jnp.pad(others, ((0, 0), (0, 0), (1, 0)), constant_values=True)
