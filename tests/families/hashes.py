"""The row of Reformer, which transformers has with random hashes: they are given to it here."""

import dataclasses
import functools
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import flax.linen as nn
import jax
import numpy as np

from plmjax.interop import reformer as reformer_interop
from plmjax.models.families.task_heads import QuestionAnswering
from plmjax.models.reformer import heads
from plmjax.models.reformer.hashing import random_rotations
from plmjax.models.reformer.reformer import ReformerConfig, ReformerModel
from tests.families.family import LARGER, READS_FORWARD, ROWS, Batch, Count, Family, Head
from tests.families.oracles import TransformersOracle
from tests.optional import torch, transformers
from tests.systems.comparison import Reference, converted, transformers_reference
from tests.third_party import experiments

LENGTH = 32
"""transformers differentiates rows of exactly as many tokens as the axial tables have positions."""


def rows(config: Any) -> Batch:
    """Rows of 32, 21 and 1 real tokens."""
    ids = np.random.default_rng(0).integers(0, config.vocab_size, (ROWS, LENGTH), np.int32)
    return {"input_ids": ids, "attention_mask": (np.arange(LENGTH) < np.array([[32], [21], [1]])).astype(np.int32)}


def rotations(config: ReformerConfig) -> list[np.ndarray]:
    """The rotations of every LSH layer, in the order of the layers."""
    heads, size = config.num_attention_heads, config.attention_head_size
    draw = functools.partial(
        random_rotations, heads=heads, size=size, rounds=config.num_hashes, factors=config.num_buckets
    )
    keys = (jax.random.fold_in(jax.random.key(config.hash_seed or 0), layer) for layer in range(config.depth))
    pairs = zip(config.attn_layers, keys, strict=True)
    return [np.asarray(draw(key)) for kind, key in pairs if kind == "lsh"]


def hashing_with(config: ReformerConfig) -> AbstractContextManager:
    """Has transformers hash with the rotations of our model."""
    given = iter(rotations(config))
    return mock.patch("torch.randn", lambda *shape, dtype=None, **_: torch.tensor(next(given), dtype=dtype))


def hashed_attentions(found: list[tuple]) -> AbstractContextManager:
    """Has the LSH layers of transformers note (places in the row of the sorted tokens, scores, weights)."""
    known = transformers.models.reformer.modeling_reformer.LSHSelfAttention
    attend = known._attend

    def noted(layer: Any, **given: Any) -> Any:
        vectors, scores, weights = attend(layer, **given)
        found.append((given["sorted_bucket_idx_per_hash"].numpy(), scores.detach(), weights.detach().numpy()))
        return vectors, scores, weights

    return mock.patch.object(known, "_attend", noted)


def of_row(weights: np.ndarray, places: np.ndarray, before: int, *, after: int, length: int) -> np.ndarray:
    """Weights within chunks [B N C W K], of tokens at these places [B N S] -> the weights of all keys, [B N S T]."""
    chunks = places.reshape(weights.shape[:4])
    around = np.concatenate([np.roll(chunks, -shift, axis=2) for shift in range(-before, after + 1)], axis=3)
    return np.einsum("bncwk,bnckt->bncwt", weights, np.eye(length)[around]).reshape(*places.shape, length)


def of_all_rounds(weights: np.ndarray, scores: Any, places: np.ndarray) -> np.ndarray:
    """Weights of sorted tokens [B N R*T T] -> those of one softmax over all rounds, [B N T T]."""
    length = weights.shape[-1]
    back = np.argsort(places.reshape(*places.shape[:2], -1, length), axis=-1)  # [B N R T]
    weights = np.take_along_axis(weights.reshape(*back.shape, length), back[..., None], axis=3)
    scores = np.take_along_axis(scores.numpy().reshape(back.shape), back, axis=3)
    return (torch.softmax(torch.tensor(scores), dim=2).numpy()[..., None] * weights).sum(axis=2)


def pairs_of_tokens(config: ReformerConfig, attentions: Any, noted: list[tuple]) -> list[np.ndarray]:
    """The weights of all pairs of tokens in every layer, [B N T T], from those of transformers' chunks."""
    found, noted = [], iter(noted)
    for kind, weights in zip(config.attn_layers, (one.detach().numpy() for one in attentions), strict=True):
        places, scores, _ = next(noted) if kind == "lsh" else (np.arange(LENGTH), None, None)
        if weights.ndim == 5:
            places = np.broadcast_to(places, (*weights.shape[:2], places.shape[-1]))
            chunks = config.chunks(kind)
            weights = of_row(weights, places, chunks.before, after=chunks.after, length=LENGTH)
            weights = weights if scores is None else of_all_rounds(weights, scores, places)
        found.append(weights)
    return found


class ReformerOracle(TransformersOracle):
    """In float64: where a token sees itself alone, transformers' float32 has few digits left of a score of -1e5.

    transformers gives the parameters of its layers their gradient where `backward` is called, and in training alone.
    Its weights of attention are those of sorted chunks, in an order that it keeps to itself.
    """

    def __call__(self, module: nn.Module, batch: Mapping[str, np.ndarray]) -> Reference:
        model = self.model(module).double().train()
        noted: list[tuple] = []

        def attentions(outputs: Mapping[str, Any], batch: Batch) -> dict[str, list[np.ndarray]]:
            return {"attentions": pairs_of_tokens(module.config, outputs["attentions"], noted)}

        with hashing_with(module.config), hashed_attentions(noted):
            found = transformers_reference(self.adapter, module, model, batch=batch, attentions=attentions)
        outputs = dict(found.outputs)
        outputs.pop("hidden_states")  # of one stream: tests/models/reformer
        names = self.adapter.architectures[type(model).__name__].outputs
        named = {name: one for name, one in model.named_parameters() if name != "lm_head.bias"}

        def gradient(cotangents: Mapping[str, Any]) -> Any:
            model.zero_grad()
            with hashing_with(module.config):
                given = model(**{name: torch.tensor(array).long() for name, array in batch.items()})
            total = sum((given[names[ours]] * torch.tensor(one)).sum() for ours, one in cotangents.items())
            total.backward()
            gradients = ((name, torch.zeros_like(one) if one.grad is None else one.grad) for name, one in named.items())
            return converted(self.adapter, [(name, one.float()) for name, one in gradients], module)

        return dataclasses.replace(found, outputs=outputs, gradient=gradient)


REFORMER = ReformerConfig(
    vocab_size=53,
    hidden_size=18,
    attn_layers=("local", "lsh") * 2,
    num_attention_heads=3,
    attention_head_size=5,
    feed_forward_size=37,
    axial_pos_shape=(4, 8),
    axial_pos_embds_dim=(7, 11),
    local_attn_chunk_length=32,
    lsh_attn_chunk_length=32,
    num_buckets=(2, 4),
    num_hashes=2,
    hidden_dropout_prob=0.0,
    local_attention_probs_dropout_prob=0.0,
    lsh_attention_probs_dropout_prob=0.0,
)
"""Rows are one chunk, so that a token sees all before it: that is what the invariants expect."""
CHUNKED = {"local_attn_chunk_length": 8, "lsh_attn_chunk_length": 4}
"""Rows of several chunks, which are hashed."""
ENCODER = dataclasses.replace(REFORMER, is_decoder=False)
AROUND = {"local_num_chunks_after": 1, "lsh_num_chunks_after": 1, "num_buckets": (6,), "num_hashes": 1}
TRAINED = dataclasses.replace(
    REFORMER.with_dropout(0.2),
    **CHUNKED,
    vocab_size=56,
    hidden_size=24,
    num_attention_heads=4,
    attention_head_size=6,
    feed_forward_size=32,
    axial_pos_embds_dim=(8, 16),
)


def hashed(module: type[nn.Module], config: ReformerConfig, **settings: Any) -> nn.Module:
    """A module whose rows have several chunks."""
    return module(dataclasses.replace(config, **CHUNKED | settings))


REFORMER_ROW = Family(
    adapter=reformer_interop.ADAPTER,
    transformers_oracle=ReformerOracle,
    heads=(
        Head(heads.ReformerForCausalLM(REFORMER), packs=False),
        Head(heads.ReformerForMaskedLM(ENCODER), predicts=True, packs=False),
        Head(heads.ReformerForSequenceClassification(ENCODER, num_labels=5), ("logits",), packs=False),
    ),
    bodies=(
        ReformerModel(REFORMER),
        hashed(ReformerModel, REFORMER),
        hashed(heads.ReformerForMaskedLM, ENCODER, **AROUND),
        hashed(QuestionAnswering, ENCODER),
    ),
    stored=(heads.ReformerForCausalLM(dataclasses.replace(REFORMER, hash_seed=7, attn_layers=("lsh",))),),
    switches=(
        CHUNKED | {"num_hashes": 3, "lsh_num_chunks_before": 2},
        CHUNKED | {"attn_layers": ("lsh", "local", "lsh"), "hidden_act": "gelu", "num_hashes": 1},
    ),
    trained=Head(heads.ReformerForCausalLM(TRAINED), packs=False),
    sharded=("reformer/layers/layer_1/attention/query_key/kernel", (2, 12, 2, 6)),
    counts={
        "enwik8": (ReformerConfig.enwik8(), (Count(heads.ReformerForCausalLM, 149_182_722),)),
        "enwik8_base": (ReformerConfig.enwik8_base(), (Count(heads.ReformerForCausalLM, 56_406_786),)),
        "crime_and_punishment": (ReformerConfig.crime_and_punishment(), (Count(heads.ReformerForCausalLM, 2_748_224),)),
    },
    initial=heads.ReformerForCausalLM(ReformerConfig.tiny(vocab_size=2000)),
    drawn=r"(kernel|embedding|axis_\d|output/table)$",
    truncated=False,
    deviations={r"axis_\d": 1.0},
    words="word_embeddings/embedding",
    token_heads=False,  # of questions alone: it is among those above
    step=experiments.reformer,
    learning={"model": {"hidden_size": 32, "axial_pos_embds_dim": (16, 16), "feed_forward_size": 64, **LARGER}},
    batches={"tokens": rows},
    views=READS_FORWARD,
)
