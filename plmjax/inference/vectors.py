"""The vectors of texts, from any encoder: one layer or a mix of all layers, pooled or for each token."""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.parameters import check_parameters
from plmjax.contracts.system import Purpose
from plmjax.inference import encoded_texts
from plmjax.inference.encoded_texts import EncodedTexts
from plmjax.inference.rows import batches
from plmjax.layers.scalar_mix import mix_layers
from plmjax.layers.text_vectors import TextVectors, tokens_before
from plmjax.training import program as programs
from plmjax.training.checkpoints import checkpoints

Arrays = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Vectors:
    """The settings of the embeddings to compute.

    layer, mix: as for `plmjax.inference.embed.embed`. scale: factor of the mix. recipe: the pooling for one vector per
    text; None for the vectors of all tokens. prompt: text before each text.
    """

    layer: int
    mix: tuple[float, ...]
    scale: float
    recipe: TextVectors | None
    prompt: str


class Encoder:
    """The encoder of a checkpoint, which computes the vectors of texts.

    params: all parameters of the checkpoint, a tree of host arrays.

    Raises:
        UserError: no checkpoint, or a model that does not embed texts.
    """

    def __init__(self, checkpoint: str | Path) -> None:
        self.directory = checkpoints.find(checkpoint)
        self.params, description = checkpoints.load_parameters(self.directory)
        self.run, self.tokenizer = description.experiment, description.load_tokenizer()
        model = self.run.model
        model.system.require(Purpose.EMBEDDING, f" in {checkpoint}")
        model.template.check(self.tokenizer.vocabulary)
        self._module = model.module(Purpose.EMBEDDING, programs.execution(self.run, jax.default_backend()))
        own, hint = self.params.get(self._module.name, {}), "it has no encoder to embed with"
        check_parameters(self._module, own, encoded_texts.example(model), origin=checkpoint, hint=hint)
        self._placed = jax.device_put(own)

    def longest(self, wanted: Vectors) -> int | None:
        """Return the maximum number of tokens of a row; None for no limit. Longer texts are truncated."""
        longest = self.run.model.longest
        return longest if wanted.recipe is None else wanted.recipe.truncation_length(longest)

    def read(self, texts: Sequence[str], wanted: Vectors) -> EncodedTexts:
        """Encode texts, each with the prompt before it."""
        return encoded_texts.read([wanted.prompt + text for text in texts], self.tokenizer, self.run.model)

    def __call__(self, encoded: EncodedTexts, wanted: Vectors, batch_size: int) -> tuple[Arrays, list[list[int]]]:
        """Return (arrays of the texts, ids of each row with its special tokens).

        The arrays are `embeddings` float32 [texts D], or [tokens D] without a recipe; `lengths` int32 [texts], the
        number of tokens read; and `cut` bool [texts], true for truncated texts.
        """
        template, recipe = self.run.model.template, wanted.recipe
        longest = self.longest(wanted) or template.specials(1) + max(map(len, encoded.ids))
        rows = [template.lay_out([ids], encoded.vocabulary, longest).tokens for ids in encoded.ids]
        before = tokens_before(self.read([""], wanted).ids[0], template)
        vectors: list[np.ndarray] = [np.empty(0)] * len(rows)
        for chosen, batch in batches(rows, longest, batch_size, max(encoded.vocabulary.pad, 0)):
            hidden = np.asarray(_hidden_state(self._module, wanted, self._placed, encoded.inputs(batch)))
            for row, vector in zip(chosen, hidden, strict=False):
                tokens = vector[: len(rows[row])]
                vectors[row] = tokens if recipe is None else recipe.pool(tokens, before)[None]
        lengths = np.array([len(row) for row in rows], np.int32)
        arrays = {"embeddings": np.concatenate(vectors), "lengths": lengths}
        arrays["cut"] = lengths < np.array([len(ids) + template.specials(1) for ids in encoded.ids])
        if recipe is not None:
            arrays["embeddings"] = recipe.finish(arrays["embeddings"], self.params.get(TextVectors.name, {}))
        return arrays, rows


@functools.partial(jax.jit, static_argnames=("module", "wanted"))
def _hidden_state(module: nn.Module, wanted: Vectors, params: Any, batch: dict[str, jax.Array]) -> jax.Array:
    """Return the chosen hidden states, float32 [B T D]."""
    states = module.apply({"params": params}, **batch, output_hidden_states=True).hidden_states
    if wanted.mix:
        return mix_layers(states, jnp.array(wanted.mix), wanted.scale)
    return states[wanted.layer].astype(jnp.float32)
