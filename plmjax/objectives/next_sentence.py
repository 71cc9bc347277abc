"""Next sentence prediction (BERT section 3.1): does the second text follow the first, or come from elsewhere?

Labels come with the batch (`plmjax.data.layouts.SentencePairs`): 0 follows, 1 is from another document.
"""

import jax
import jax.numpy as jnp

from plmjax.objectives.objective import Batch, Sums, cross_entropy


def next_sentence_weight(batch: Batch) -> jax.Array:
    """Number of sequences in a batch, float32; never 0, so that a batch of filling loses nothing."""
    return jnp.maximum(jnp.sum(batch["next_sentence_weights"]), 1e-9)


def next_sentence_sums(logits: jax.Array, batch: Batch) -> Sums:
    """Nats and hits of the labels: logits [B K 2] -> sums under the term "nsp"."""
    labels, weights = batch["next_sentence_labels"], batch["next_sentence_weights"]
    loss = jnp.sum(weights * cross_entropy(logits, labels))
    hits = jnp.sum(weights * (jnp.argmax(logits, axis=-1) == labels))
    count = jnp.sum(weights)
    return Sums({"nsp": loss}, {"nsp_loss": (loss, count), "nsp_accuracy": (hits, count)})
