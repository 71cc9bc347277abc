"""Texts as model inputs: token ids, or the characters of words for a model that reads characters."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.layers.words.characters import sentence_marks, spell


@dataclasses.dataclass(frozen=True)
class EncodedTexts:
    """Texts as ids of tokens or, for a model that reads characters, of words.

    ids: ids of every text, without special tokens.
    vocabulary: vocabulary of the ids, from which a template takes its special tokens.
    names: function from ids to tokens or words.
    spellings: int32 [ids C], the characters of every id; None if the model reads token ids.
    """

    ids: list[list[int]]
    vocabulary: Vocabulary
    names: Callable[[Sequence[int]], list[str]]
    spellings: np.ndarray | None = None

    def inputs(self, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
        """Return the model inputs for a batch of `ids`: `input_ids`, or the `characters` [B T C] of these ids."""
        if self.spellings is None:
            return batch
        characters = self.spellings[np.asarray(batch["input_ids"])]
        return {name: field for name, field in batch.items() if name != "input_ids"} | {
            "characters": jnp.asarray(characters)
        }


def example(config: ModelConfig) -> dict[str, jax.Array]:
    """Return inputs of one token, to find the shapes of a model's parameters."""
    if config.characters is None:
        return {"input_ids": jnp.zeros((1, 1), jnp.int32)}
    return {"characters": jnp.zeros((1, 1, config.characters), jnp.int32)}


def read(texts: Sequence[str], tokenizer: Any, config: ModelConfig) -> EncodedTexts:
    """Encode texts with the tokenizer (plmjax.data.tokenizers.Tokenizer) for a model.

    For a model that reads characters, every distinct word gets an id. A word that the tokenizer does not know has its
    own characters.
    """
    if config.characters is None:
        return EncodedTexts(tokenizer.encode_batch(texts), tokenizer.vocabulary, tokenizer.tokens)
    unknown = tokenizer.vocabulary.unknown
    numbers: dict[str, int] = {}
    ids = []
    for text, (tokens, spans) in zip(texts, tokenizer.encode_spans(texts), strict=True):
        known = tokenizer.tokens(tokens)
        words = [
            text[first:stop] if token == unknown else name
            for token, name, (first, stop) in zip(tokens.tolist(), known, spans.tolist(), strict=True)
        ]
        ids.append([numbers.setdefault(word, len(numbers) + 2) for word in words])
    words = [*tokenizer.tokens([tokenizer.vocabulary.begin, tokenizer.vocabulary.end]), *numbers]
    table = np.concatenate([sentence_marks(config.characters), spell(list(numbers), config.characters)])
    vocabulary = Vocabulary(len(words), begin=0, end=1)
    return EncodedTexts(ids, vocabulary, lambda chosen: [words[number] for number in chosen], table)


def limit_of(model: ModelConfig, limit: float) -> float:
    """Return the largest fraction of unknown tokens: `limit`, or 1 if the model reads only characters."""
    return limit if "input_ids" in model.system.reads else 1.0
