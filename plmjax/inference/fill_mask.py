"""The most likely tokens for every [MASK] of a text."""

import functools
import re
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from plmjax.contracts.parameters import check_parameters
from plmjax.data.tokenizers import Tokenizer
from plmjax.errors import UserError, quoted
from plmjax.finetuning.tasks.sentences import softmax
from plmjax.inference.rows import batches, check_special
from plmjax.objectives.masked_language_model import MaskedLanguageModel
from plmjax.training import program as programs
from plmjax.training.checkpoints import checkpoints

MASK = "[MASK]"
GAP = re.compile(r"\[MASK\]|<mask>|<extra_id_\d+>")
"""Pattern of a gap in the input. Users write the same gaps for every tokenizer."""


def fill_mask(checkpoint: str | Path, text: str, top: int = 5) -> list[list[tuple[str, float]]]:
    """Return for every [MASK] of a text the `top` most likely tokens as text, with their probabilities, best first.

    <mask> and <extra_id_0> mean the same as [MASK].

    Raises:
        UserError: no [MASK], too long a text, `top` out of its range, or a checkpoint that is not a masked language
            model.
    """
    from plmjax.data.tokenizers.readable import readable

    params, description = checkpoints.load_parameters(checkpoint)
    run, tokenizer = description.experiment, description.load_tokenizer()
    execution = programs.execution(run, jax.default_backend())
    objective = run.objective if isinstance(run.objective, MaskedLanguageModel) else MaskedLanguageModel()
    module = objective.module_for_masks(run.model, execution)
    check_special(tokenizer, "mask")
    vocabulary = tokenizer.vocabulary
    run.model.template.check(vocabulary)
    if top < 1 or top > vocabulary.size:
        raise UserError(f"Expected --top from 1 to the {vocabulary.size} tokens, found {top}; change it.")
    ids = masked_ids(tokenizer, text)
    if vocabulary.mask not in ids:
        raise UserError(
            f"Expected a text with one or more {MASK}, found none in {quoted(text)}; write {MASK} for a word."
        )
    row = run.model.template.lay_out([ids], vocabulary).tokens
    longest = run.model.longest or len(row)
    if len(row) > longest:
        limit = longest - len(row) + len(ids)
        raise UserError(f"Expected a text of at most {limit} tokens, found {len(ids)}; shorten it.")
    _, batch = next(batches([row], longest, 1, max(vocabulary.pad, 0)))
    hint = "it is no masked language model; use the run that it was fine-tuned from"
    check_parameters(module, params, batch, origin=checkpoint, hint=hint)
    places = np.flatnonzero(np.array(row) == vocabulary.mask)
    logits = np.asarray(_logits(module, params, batch))[0, places, : vocabulary.size].astype(np.float64)
    probabilities = softmax(logits)
    best = np.argsort(-probabilities, axis=-1, kind="stable")[:, :top]
    return [
        list(zip(readable(tokenizer, chosen.tolist()), shares[chosen].tolist(), strict=True))
        for chosen, shares in zip(best, probabilities, strict=True)
    ]


def masked_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the token ids of a text, in which every gap is the tokenizer's mask token."""
    mask = tokenizer.vocabulary.mask
    (name,) = tokenizer.tokens([mask])
    return tokenizer.with_parsed_special([mask]).encode(GAP.sub(lambda _: name, text))


@functools.partial(jax.jit, static_argnames="module")
def _logits(module: nn.Module, params: Any, batch: dict[str, jax.Array]) -> jax.Array:
    return module.apply({"params": params}, **batch).logits
