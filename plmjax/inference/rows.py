"""Texts as the rows of token ids that a model is called with."""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plmjax.data.packing import padded_width
from plmjax.errors import UserError, quoted


def batches(
    rows: list[list[int]], longest: int, batch_size: int, pad: int
) -> Iterator[tuple[list[int], dict[str, jax.Array]]]:
    """(which rows, their inputs) of batches of rows that are padded to the same width, shortest first.

    Every batch has `batch_size` rows; those that are left over are copies of the last.
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
    config: Any, tokenizer: Any, texts: Sequence[str | tuple[str, str]], length: int = 0
) -> dict[str, jax.Array]:
    """The inputs of a model for texts or pairs of texts: `model.apply({"params": params}, **inputs(...))`.

    config: of the model. tokenizer: a plmjax.data.tokenizers.Tokenizer. length: tokens of every row; 0 takes those of
    the longest text. A text too long for it, or for the model, is cut as in fine-tuning.

    Returns:
        input_ids and, where the model has them, token_type_ids int32 [B T], as the model's template lays them out;
        attention_mask bool [B T]. Of pairs that the model reads in both orders all are [B 2 T].

    Raises:
        UserError: no text, texts beside pairs that are read in both orders, a length that the model has no positions
            for, or a tokenizer without its special tokens.
    """
    if not texts:
        raise UserError("Expected one or more texts, found none; give a list of them.")
    if config.longest is not None and length > config.longest:
        raise UserError(f"Expected rows of at most the model's {config.longest} positions, found {length}; shorten it.")
    template, vocabulary = config.template, tokenizer.vocabulary
    template.check(vocabulary)
    given = [(text,) if isinstance(text, str) else tuple(text) for text in texts]
    pieces = iter(tokenizer.encode_batch([part for text in given for part in text]))
    parts = [[next(pieces) for _ in text] for text in given]
    orders = [template.orders(texts) for texts in parts]
    if len(set(map(len, orders))) > 1:
        raise UserError("Expected texts or pairs for a model that reads pairs in both orders, found both; part them.")
    rows = [template.lay_out(texts, vocabulary, length or config.longest) for each in orders for texts in each]
    width = length or max(len(row.tokens) for row in rows)
    fields = {"input_ids": np.full((len(rows), width), max(vocabulary.pad, 0), np.int32)}
    fields |= {"token_type_ids": np.zeros((len(rows), width), np.int32)} if template.typed else {}
    for place, row in enumerate(rows):
        fields["input_ids"][place, : len(row.tokens)] = row.tokens
        if template.typed:
            fields["token_type_ids"][place, : len(row.tokens)] = row.token_types
    fields["attention_mask"] = np.arange(width) < np.array([[len(row.tokens)] for row in rows])
    shape = (len(parts), width) if len(rows) == len(parts) else (len(parts), -1, width)
    return {name: jnp.asarray(field.reshape(shape)) for name, field in fields.items()}


def check_special(tokenizer: Any, *names: str) -> None:
    for name in names:
        if getattr(tokenizer.vocabulary, name) < 0:
            raise UserError(
                f"Expected a tokenizer with a token {quoted(name)} in the checkpoint, found none; name another."
            )
