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
    """Encoded texts.

    ids: token ids of every text, without special tokens around it; for a model that reads characters, word numbers.
    vocabulary: vocabulary of these numbers, for a model's template.
    names: function from numbers to tokens.
    spellings: int32 [numbers C], the characters of every number; None if the model reads token ids.
    """

    ids: list[list[int]]
    vocabulary: Vocabulary
    names: Callable[[Sequence[int]], list[str]]
    spellings: np.ndarray | None = None

    def inputs(self, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
        """Return the model inputs for a batch whose `input_ids` are such numbers."""
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

    For a model that reads characters, every different word has a number. Words that are unknown to the tokenizer are
    spelled too.
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
    """Return the largest fraction of unknown tokens for a model.

    It is 1 if the model reads words only by their characters.
    """
    return limit if "input_ids" in model.system.reads else 1.0
