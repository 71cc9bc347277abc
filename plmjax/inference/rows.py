"""Texts as padded rows of token ids, the inputs of a model."""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.template import Template, TokenRow
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data.packing import padded_width
from plmjax.errors import UserError, quoted


def batches(
    rows: list[list[int]], longest: int, batch_size: int, pad: int
) -> Iterator[tuple[list[int], dict[str, jax.Array]]]:
    """Yield (indices of rows, their inputs) for batches of rows with the same padded width, shortest first.

    The inputs are input_ids int32 [batch_size T] and attention_mask bool [batch_size T]. If too few rows are left to
    fill a batch, its last row is repeated; the indices do not repeat.
    """
    widths = [padded_width(len(row), longest) for row in rows]
    for width in sorted(set(widths)):
        members = [row for row, own in enumerate(widths) if own == width]
        for first in range(0, len(members), batch_size):
            chosen = members[first : first + batch_size]
            filled = chosen + chosen[-1:] * (batch_size - len(chosen))
            ids = np.full((batch_size, width), pad, np.int32)
            for place, row in enumerate(filled):
                ids[place, : len(rows[row])] = rows[row]
            mask = np.arange(width) < np.array([[len(rows[row])] for row in filled])
            yield chosen, {"input_ids": jnp.asarray(ids), "attention_mask": jnp.asarray(mask)}


def inputs(
    config: Any,
    tokenizer: Any,
    texts: Sequence[str | tuple[str, str]],
    length: int = 0,
    *,
    template: Template | None = None,
) -> dict[str, jax.Array]:
    """Return the inputs of a model for texts or pairs of texts: `model.apply({"params": params}, **inputs(...))`.

    Args:
        config: config of the model.
        tokenizer: a plmjax.data.tokenizers.Tokenizer.
        length: number of tokens of every row; 0 uses the length of the longest row. Texts that exceed it, or the
            model's positions, are truncated as in fine-tuning.
        template: layout of the rows; None uses the layout of the model's tasks, `config.template`.

    Returns:
        input_ids and, if the rows have them, token_type_ids, int32 [B T], in the layout of the template;
            attention_mask bool [B T]. For pairs that the model reads in both orders, the shapes are [B 2 T].

    Raises:
        UserError: no text, something that is neither a text nor a pair, only empty texts for a model without special
            tokens, texts mixed with pairs that are read in both orders, a length that exceeds the model's positions, or
            a tokenizer without the special tokens of the rows.
    """
    texts = list_of_texts(texts)
    if config.longest is not None and length > config.longest:
        raise UserError(f"Expected rows of at most the model's {config.longest} positions, found {length}; shorten it.")
    template, vocabulary = template or config.template, tokenizer.vocabulary
    template.check(vocabulary)
    parts_of_texts = [tuple(text) if isinstance(text, tuple | list) else (text,) for text in texts]
    for number, text in enumerate(parts_of_texts, 1):
        if not 1 <= len(text) <= 2 or not all(isinstance(part, str) for part in text):
            raise UserError(f"Expected a text or a pair of texts, found {texts[number - 1]!r} as number {number}.")
    pieces = iter(tokenizer.encode_batch([part for text in parts_of_texts for part in text]))
    parts = [[next(pieces) for _ in text] for text in parts_of_texts]
    orders = [template.orders(texts) for texts in parts]
    if len(set(map(len, orders))) > 1:
        raise UserError("Expected texts or pairs for a model that reads pairs in both orders, found both; split them.")
    rows = [template.lay_out(texts, vocabulary, length or config.longest) for each in orders for texts in each]
    width = length or max(len(row.tokens) for row in rows)
    if not width:
        raise UserError("Expected a text of at least one token, found empty ones alone; give a list of other texts.")
    shape = (len(parts), width) if len(rows) == len(parts) else (len(parts), -1, width)
    fields = pad(rows, template, vocabulary, width)
    return {name: jnp.asarray(field.reshape(shape)) for name, field in fields.items()}


def list_of_texts(texts: Any) -> list[Any]:
    """Return texts as a list. Raise UserError for a single text or no texts."""
    if isinstance(texts, str):
        raise UserError(f"Expected a list of texts, found the one text {quoted(texts)}; put it in brackets.")
    if not (found := list(texts)):
        raise UserError("Expected one or more texts, found none; give a list of them.")
    return found


def pad(rows: Sequence[TokenRow], template: Template, vocabulary: Vocabulary, width: int) -> dict[str, np.ndarray]:
    """Return the model inputs [B width] for token rows, with padding on the side that the template names."""
    fields = {"input_ids": np.full((len(rows), width), max(vocabulary.pad, 0), np.int32)}
    fields |= {"token_type_ids": np.zeros((len(rows), width), np.int32)} if template.typed else {}
    fields["attention_mask"] = np.zeros((len(rows), width), bool)
    for place, row in enumerate(rows):
        size = len(row.tokens)
        own = slice(width - size, width) if template.padding == "left" else slice(size)
        fields["input_ids"][place, own] = row.tokens
        if template.typed:
            fields["token_type_ids"][place, own] = row.token_types
        fields["attention_mask"][place, own] = True
    return fields


def check_special(tokenizer: Any, *names: str) -> None:
    for name in names:
        if getattr(tokenizer.vocabulary, name) < 0:
            raise UserError(
                f"Expected a tokenizer with a token {quoted(name)} in the checkpoint, found none; name another."
            )
