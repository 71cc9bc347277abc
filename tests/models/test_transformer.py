"""The equations of the Transformer's paper spelt out."""

import functools
from typing import Any

import jax
import numpy as np

from plmjax.models.transformer import TransformerForConditionalGeneration
from tests.families.encoder_decoders import TRANSFORMER
from tests.families.family import both_sides
from tests.systems.modules import outputs, random_params

MODULE = TransformerForConditionalGeneration(TRANSFORMER)
BATCH = both_sides(TRANSFORMER)


@functools.cache
def parameters() -> Any:
    return random_params(MODULE)


def norm(x: np.ndarray, p: dict) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * p["scale"] + p["bias"]


def attention(q: np.ndarray, kv: np.ndarray, p: dict, seen: np.ndarray) -> np.ndarray:
    """Section 3.2 for one row, head by head: [T D], [S D], bool [T S] -> [T D]."""
    heads, total = p["query"]["kernel"].shape[1], p["output"]["bias"]
    for head in range(heads):
        query, key, value = (
            x @ p[name]["kernel"][:, head] + p[name]["bias"][head]
            for name, x in (("query", q), ("key", kv), ("value", kv))
        )
        weights = np.where(seen, np.exp(query @ key.T / np.sqrt(query.shape[1])), 0)
        total = total + weights / weights.sum(1, keepdims=True) @ value @ p["output"]["kernel"][head]
    return total


def feed_forward(x: np.ndarray, p: dict) -> np.ndarray:
    """Section 3.3."""
    inner = np.maximum(x @ p["intermediate"]["kernel"] + p["intermediate"]["bias"], 0)
    return inner @ p["output"]["kernel"] + p["output"]["bias"]


def embedded(ids: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Sections 3.4 and 3.5, with the sines first."""
    size = table.shape[1]
    places = [[position / 10000 ** (2 * i / size) for i in range(size // 2)] for position in range(len(ids))]
    return np.sqrt(size) * table[ids] + np.concatenate([np.sin(places), np.cos(places)], axis=1)


def paper(params: dict, source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Logits [T V] of one pair without padding, in float64."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)["transformer"]
    table = params["words"]["embedding"]

    def layers(side: str) -> list[dict]:
        stacked = params[f"{side}_layers"]
        depth = len(stacked["attention_layer_norm"]["scale"])
        return [jax.tree.map(lambda leaf: leaf[layer], stacked) for layer in range(depth)]  # noqa: B023 (used at once)

    x, y = embedded(source, table), embedded(target, table)
    every, earlier = np.ones((len(x), len(x)), bool), np.tri(len(y), dtype=bool)
    for p in layers("encoder"):
        x = norm(x + attention(x, x, p["attention"], every), p["attention_layer_norm"])
        x = norm(x + feed_forward(x, p["feed_forward"]), p["feed_forward_layer_norm"])
    for p in layers("decoder"):
        y = norm(y + attention(y, y, p["attention"], earlier), p["attention_layer_norm"])
        across = attention(y, x, p["cross_attention"], np.ones((len(y), len(x)), bool))
        y = norm(y + across, p["cross_attention_layer_norm"])
        y = norm(y + feed_forward(y, p["feed_forward"]), p["feed_forward_layer_norm"])
    return y @ table.T


def test_it_computes_what_the_paper_says() -> None:
    found = outputs(MODULE, parameters(), BATCH).logits
    for row in range(len(found)):
        source, target = (BATCH[f"{side}input_ids"][row, :lengths] for side, lengths in real_lengths(row).items())
        np.testing.assert_allclose(found[row, : len(target)], paper(parameters(), source, target), rtol=1e-5, atol=1e-5)


def real_lengths(row: int) -> dict[str, int]:
    return {side: int(BATCH[f"{side}attention_mask"][row].sum()) for side in ("", "decoder_")}
