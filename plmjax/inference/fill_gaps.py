"""Gaps of a text, filled by an encoder-decoder that was pretrained to fill them, such as BART or T5.

The encoder reads the text with the tokenizer's mask token in every gap (`Denoising`), or with one sentinel after the
other (`SpanCorruption`). The decoder writes the whole text, or the spans, each behind its sentinel; of the latter the
first sentinel is given. A beam search finds the likeliest.
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from plmjax.contracts.system import Kind
from plmjax.errors import UserError, quoted
from plmjax.generation.beam_search import BeamSearch
from plmjax.generation.writer import Settings, Writer
from plmjax.inference.rows import check_special
from plmjax.objectives.objective import Objective
from plmjax.objectives.text_to_text.text_to_text import MASK, TextToText
from plmjax.training import program as programs
from plmjax.training.checkpoints import checkpoints, start
from plmjax.vocabulary import Vocabulary

GAP = re.compile(r"\[MASK\]|<mask>|<extra_id_\d+>")
"""A gap, as users write it for every tokenizer."""
SPAN = 16
"""Tokens for which there is room in every gap."""


@dataclasses.dataclass(frozen=True)
class Filled:
    """A text whose gaps are filled.

    text: as it reads, without gaps.
    spans: what stands in each gap; empty where the model writes the whole text, which it may change elsewhere too.
    tokens: what the decoder wrote, the token that ended it included.
    probability: of these tokens given the text with its gaps, and a first one that is given.
    """

    text: str
    spans: tuple[str, ...]
    tokens: tuple[int, ...]
    probability: float


def writes_gaps(checkpoint: str | Path) -> bool:
    """Whether the model of a checkpoint is an encoder-decoder, for which `fill_gaps` is."""
    run = checkpoints.describe(checkpoints.find(checkpoint)).experiment
    return run.model.system.kind is Kind.ENCODER_DECODER


def fill_gaps(checkpoint: str | Path, text: str, top: int = 5) -> list[Filled]:
    """The `top` likeliest ways to fill all gaps of a text, [MASK], <mask> or <extra_id_0>, the likeliest first.

    Raises:
        UserError: no gap, too long a text, a tokenizer without the tokens that stand for gaps, or a checkpoint that was
            not pretrained to fill them.
    """
    params, description = checkpoints.load_parameters(checkpoint)
    run, tokenizer = description.experiment, start.tokenizer_of(description)
    vocabulary, fills = tokenizer.vocabulary, _fills(run.objective)
    run.model.template.check(vocabulary)
    if top < 1 or top > vocabulary.size:
        raise UserError(f"Expected --top from 1 to the {vocabulary.size} tokens, found {top}; change it.")
    parts = GAP.split(text)
    count = len(parts) - 1
    if not count:
        raise UserError(
            f"Expected a text with one or more [MASK], found none in {quoted(text)}; write [MASK] for a gap."
        )
    if fills == MASK:
        check_special(tokenizer, "mask")
        first = None if run.generation is None else run.generation.forced_bos_token_id
        marks, stop = [vocabulary.mask] * count, ()
    else:
        sentinels = vocabulary.sentinels
        if len(sentinels) <= count:
            raise UserError(
                f"Expected fewer gaps than the tokenizer has sentinels, {len(sentinels)}, found {count}; leave some "
                f"out."
            )
        marks, first, stop = list(sentinels[:count]), sentinels[0], (sentinels[count],)
    names = tokenizer.tokens(marks)
    ids = tokenizer.encode(_joined(parts, names))
    source = run.model.template.lay_out([ids], vocabulary).tokens
    room = count * (SPAN + 1) + (len(source) if fills == MASK else 1)
    settings = Settings(
        BeamSearch(beams=max(top, 2), length_penalty=0.0, sequences=top),
        max_new_tokens=room if run.model.longest is None else min(room, run.model.longest - 1),
        eos_token_id=(vocabulary.document_end, *stop),
        forced_bos_token_id=first,
    )
    writer = Writer(run.model, params, vocabulary, programs.execution(run, jax.default_backend()), source=checkpoint)
    (written,) = writer([source], settings)
    filled = []
    for one in written:
        spans = () if fills == MASK else _spans(one.tokens, count, tokenizer, vocabulary)
        whole = tokenizer.decode(one.tokens) if fills == MASK else _joined(parts, spans)
        filled.append(Filled(whole, spans, tuple(one.tokens), math.exp(one.log_probability)))
    return filled


def _fills(objective: Objective) -> str:
    """What stands for a gap in the texts that an objective's encoder reads."""
    if isinstance(objective, TextToText) and objective.gaps:
        return objective.gaps
    raise UserError(
        f"Expected a run of an encoder-decoder that was pretrained to fill gaps (Denoising, SpanCorruption), found one "
        f"of {type(objective).__name__}; name another run, such as the one that it began with."
    )


def _spans(tokens: Sequence[int], count: int, tokenizer: Any, vocabulary: Vocabulary) -> tuple[str, ...]:
    """The texts behind the first so many sentinels; empty ones where the decoder wrote fewer."""
    groups: list[list[int]] = []
    for token in tokens:
        if token in vocabulary.sentinels:
            groups.append([])
        elif groups:
            groups[-1].append(token)
    groups = [*groups, *([] for _ in range(count))][:count]
    return tuple(tokenizer.decode(group).strip() for group in groups)


def _joined(parts: Sequence[str], spans: Sequence[str]) -> str:
    """The parts of a text with spans in its gaps."""
    return "".join(itertools.chain.from_iterable(zip(parts, [*spans, ""], strict=True)))
