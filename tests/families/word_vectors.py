"""The rows of NNLM, word2vec and GloVe."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.models import glove, nnlm, word2vec
from tests.families.family import ROWS, Batch, Count, Family, Head, View, earlier_in_sequence, untyped_tokens
from tests.families.oracles import FormulaOracle, Inputs
from tests.third_party import experiments

# --------------------------------------------------------------------------------------------------------- NNLM

NNLM = nnlm.NnlmConfig(vocab_size=23, vector_size=5, hidden_size=7, order=4)
BOTH_LAYERS = {"direct_connections": True}
DIRECT_ALONE = {"direct_connections": True, "hidden_size": 0}
BIGRAMS = {"order": 2}


def nnlm_formula(config: nnlm.NnlmConfig, params: Mapping[str, Any], text: Inputs) -> dict[str, jax.Array]:
    """Equation 1, word by word."""
    ids, scores, hidden = text["input_ids"], [], []
    for place in range(len(ids)):
        read = ids[max(0, place - config.order + 2) : place + 1][::-1]
        x = params["words/embedding"][read].ravel()
        x = jnp.pad(x, (0, (config.order - 1) * config.vector_size - x.size))
        y, features = params["output_bias"], []
        if config.hidden_size:
            a = jnp.tanh(params["hidden/bias"] + x @ params["hidden/kernel"])
            y, features = y + params["output/embedding"] @ a, [a]
        if config.direct_connections:
            y, features = y + params["direct/embedding"] @ x, [*features, x]
        scores.append(y)
        hidden.append(jnp.concatenate(features))
    return {"last_hidden_state": jnp.stack(hidden), "logits": jnp.stack(scores)}


def nnlm_count(**fields: Any) -> tuple:
    """|V| (1 + n m + h) + h (1 + (n-1) m) with direct connections (section 2), |V| (n-1) m fewer without them."""
    config = dataclasses.replace(NNLM, **fields)
    v, m, h, n = config.vocab_size, config.vector_size, config.hidden_size, config.order
    expected = v * (1 + n * m + h) + h * (1 + (n - 1) * m)
    return config, (Count(nnlm.Nnlm, expected - (not config.direct_connections) * v * (n - 1) * m),)


def few_tokens(config: Any) -> Batch:
    """Rows of 15, 5 and 1 words, of which a formula word by word takes a second."""
    ids = untyped_tokens(config)["input_ids"][:, :15]
    return {"input_ids": ids, "attention_mask": np.int32(np.arange(15) < [[15], [5], [1]])}


def last_words(queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """A score sees its own word and the n-2 before it."""
    distance = np.arange(len(queries))[:, None] - np.arange(len(keys))
    return earlier_in_sequence(queries, keys) & (distance < NNLM.order - 1)


NNLM_ROW = Family(
    oracle=FormulaOracle({nnlm.Nnlm: nnlm_formula}),
    heads=(Head(nnlm.Nnlm(NNLM)),),
    bodies=(nnlm.Nnlm(NNLM),),
    switches=(BOTH_LAYERS, DIRECT_ALONE, BIGRAMS),
    trained=Head(nnlm.Nnlm(dataclasses.replace(NNLM, vocab_size=24, vector_size=6, hidden_size=8, **BOTH_LAYERS))),
    loops=False,
    sharded=("hidden/kernel", (9, 4)),
    counts={
        "Brown": (nnlm.NnlmConfig.brown(), (Count(nnlm.Nnlm, 2_158_273),)),
        "AP news": (nnlm.NnlmConfig.ap_news(), (Count(nnlm.Nnlm, 11_904_264),)),
        "hidden layer": nnlm_count(),
        "direct connections": nnlm_count(**BOTH_LAYERS),
        "direct connections alone": nnlm_count(**DIRECT_ALONE),
        "bigrams": nnlm_count(**BIGRAMS),
    },
    initial=nnlm.Nnlm(nnlm.NnlmConfig.brown(vocab_size=500, direct_connections=True)),
    truncated=False,
    deviations={"": 0.1},
    words="words/embedding",
    step=experiments.nnlm,
    learning={"model": {"vector_size": 16}},
    batches={"tokens": few_tokens},
    views=(View(last_words),),
)

# ----------------------------------------------------------------------------------------------------- word2vec


@flax.struct.dataclass
class Scores:
    """logits: float32, of every pair of words."""

    logits: jax.Array


class PairScores(word2vec.Word2Vec):
    """The score of every input with every output of its row: u_s . v_t, as skip-gram has it."""

    def __call__(self, input_ids: jax.Array, output_ids: jax.Array, *, deterministic: bool = True) -> Scores:
        """int [B T], int [B S] -> [B T S]."""
        inputs, outputs = super().__call__(input_ids, output_ids)
        predictions = word2vec.SkipGram()
        hidden = predictions.hidden(inputs[:, None], jnp.ones((1, 1, 1, 1)))
        return Scores(predictions.scores(hidden, outputs[:, None])[:, 0])


def pairs(config: Any) -> Batch:
    """Words, and other words that stand near them."""
    random = np.random.default_rng(0)
    ids = {name: (ROWS, length) for name, length in (("input_ids", 7), ("output_ids", 5), ("context_ids", 7))}
    return {name: random.integers(0, config.vocab_size, shape, np.int32) for name, shape in ids.items()}


def word2vec_formula(config: word2vec.Word2VecConfig, params: Mapping[str, Any], text: Inputs) -> dict[str, jax.Array]:
    """u_s . v_t, pair by pair."""
    v, u = params["input_vectors/embedding"], params["output_vectors/embedding"]
    scores = [[jnp.dot(v[t], u[s]) for s in text["output_ids"]] for t in text["input_ids"]]
    return {"logits": jnp.stack([jnp.stack(row) for row in scores])}


WORD2VEC = word2vec.Word2VecConfig(vocab_size=19, vector_size=5)
WORD2VEC_ROW = Family(
    oracle=FormulaOracle({PairScores: word2vec_formula}),
    heads=(Head(PairScores(WORD2VEC), outputs=("logits",)),),
    bodies=(PairScores(WORD2VEC),),
    switches=(),
    trained=Head(PairScores(word2vec.Word2VecConfig(vocab_size=20, vector_size=6)), outputs=("logits",)),
    loops=False,
    sharded=("input_vectors/embedding", (10, 3)),
    counts={"GoogleNews": (word2vec.Word2VecConfig.google_news(), (Count(PairScores, 1_800_000_000),))},
    initial=PairScores(word2vec.Word2VecConfig(vocab_size=500, vector_size=40)),
    drawn="input_vectors",
    truncated=False,
    deviations={"": 1 / 80 / 3**0.5},
    uniform="",
    step=experiments.word2vec,
    learning={},
    learned=lambda metrics: metrics["eval/loss"] < metrics["eval/unigram_loss"] / 2,
    batches={"pairs": pairs},
    views=(),
)

# -------------------------------------------------------------------------------------------------------- GloVe


class Cells(glove.Glove):
    """The model of log X_ij, by the name that outputs have elsewhere."""

    def __call__(self, input_ids: jax.Array, context_ids: jax.Array, *, deterministic: bool = True) -> Scores:
        """int [B T], int [B T] -> [B T]."""
        return Scores(super().__call__(input_ids, context_ids))


def glove_formula(config: glove.GloveConfig, params: Mapping[str, Any], text: Inputs) -> dict[str, jax.Array]:
    """w_i . w~_j + b_i + b~_j, cell by cell."""
    logs = [
        jnp.dot(params["words/embedding"][i], params["contexts/embedding"][j])
        + params["word_biases"][i]
        + params["context_biases"][j]
        for i, j in zip(text["input_ids"], text["context_ids"], strict=True)
    ]
    return {"logits": jnp.stack(logs)}


GLOVE = glove.GloveConfig(vocab_size=19, vector_size=5)
GLOVE_ROW = Family(
    oracle=FormulaOracle({Cells: glove_formula}),
    heads=(Head(Cells(GLOVE), outputs=("logits",)),),
    bodies=(Cells(GLOVE),),
    switches=(),
    trained=Head(Cells(glove.GloveConfig(vocab_size=20, vector_size=6)), outputs=("logits",)),
    loops=False,
    sharded=("words/embedding", (10, 3)),
    counts={"6B": (glove.GloveConfig.six_billion(), (Count(Cells, 2 * 400_000 * 301),))},
    initial=Cells(glove.GloveConfig(vocab_size=1200, vector_size=9)),
    drawn="",
    truncated=False,
    deviations={"": 0.05 / 3**0.5},
    uniform="",
    step=experiments.glove,
    learning={"optimizer": {"learning_rate": 3e-2}},
    repeats=False,
    learned=lambda metrics: metrics["eval/loss"] < metrics["eval/unigram_loss"] / 4,
    batches={"cells": pairs},
    views=(),
)
