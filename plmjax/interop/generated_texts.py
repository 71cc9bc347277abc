"""Comparison of the text that transformers generates from a folder's model with the predictions of plmjax.

transformers generates greedily, and the model in plmjax reads this text. Its logits must equal those of transformers,
and each generated token must be its most likely one. Both get the inputs of the architecture's `batch`: LED's first
token is global.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import numpy as np

from plmjax.contracts.system import Kind
from plmjax.contracts.template import Template
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.errors import UserError, quoted
from plmjax.interop import huggingface, notices
from plmjax.interop.tokenizer_files import SAMPLES

NEW = 8
"""Number of tokens to generate for each text."""
LONGEST = 24
"""Maximum number of tokens of a prompt or a source."""
CLOSE = 1e-4
"""Maximum difference of logits that count as equal, relative to max(1, the largest logit)."""
Batch = Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]
"""`Architecture.batch`."""
KEPT = ("decoder_start_token_id", "bos_token_id")
"""Settings of generation that belong to the model. The other settings of a folder choose a way of decoding."""


def compare(
    model: nn.Module,
    params: Mapping[str, Any],
    directory: str | Path,
    *,
    tokenizer: Any,
    template: Template,
    architecture: str = "auto",
) -> int:
    """Compare the tokens that transformers generates with the predictions of plmjax, and return their number.

    model, params, architecture: as for `huggingface.compare`, of a class that generates text.
    tokenizer: a plmjax.data.tokenizers.Tokenizer.
    template: the template of the prompts, or of an encoder-decoder's sources. Neither model generates padding, or an id
        without a token in the tokenizer.

    Raises:
        UserError: the model in plmjax gives other scores, or would have generated another token.
    """
    name = huggingface.architecture_of(model) if architecture == "auto" else architecture
    module, params = huggingface.as_architecture(model, params, name)
    batch = huggingface.adapter_of(model).architecture(name).batch
    vocabulary, config = tokenizer.vocabulary, module.config
    apart = config.system.kind is Kind.ENCODER_DECODER
    longest = huggingface.adapter_of(model).longest(config)
    room = (longest or LONGEST + NEW) - (0 if apart else NEW)
    prompts = _prompts(tokenizer, template, min(room, LONGEST))
    if not prompts or (longest or NEW) < NEW:
        return 0
    never = _never(vocabulary, config.vocab_size)
    texts, expected = _generate_there(directory, name, batch, prompts=prompts, vocabulary=vocabulary, never=never)
    for number, scores in enumerate(_scores(module, params, batch, prompts=prompts, texts=texts)):
        _check(texts[number], scores, expected[number], directory)
        scores[:, never] = -np.inf
        _check_likeliest(texts[number], scores, tokenizer, directory)
    return sum(map(len, texts))


def _prompts(tokenizer: Any, template: Template, length: int) -> list[list[int]]:
    if length <= template.specials(1):
        return []
    texts = tokenizer.encode_batch(SAMPLES[:2])
    return [template.lay_out((text,), tokenizer.vocabulary, length).tokens for text in texts if text]


def _never(vocabulary: Vocabulary, size: int) -> list[int]:
    ended = (vocabulary.document_end, -1)
    return [*([] if vocabulary.pad in ended else [vocabulary.pad]), *range(vocabulary.size, size)]


def _generate_there(
    directory: str | Path,
    name: str,
    batch: Batch,
    *,
    prompts: Sequence[list[int]],
    vocabulary: Vocabulary,
    never: list[int],
) -> tuple[list[list[int]], list[np.ndarray]]:
    """Return the tokens of each text, including the end token if there is one, and their logits [tokens V]."""
    import torch
    import transformers

    with notices.none_from(transformers), torch.no_grad():
        theirs = getattr(transformers, name).from_pretrained(directory, dtype=torch.float32).eval()
        end = vocabulary.document_end
        kept = {field: getattr(theirs.generation_config, field) for field in KEPT}
        theirs.generation_config = transformers.GenerationConfig(
            **kept,
            max_new_tokens=NEW,
            do_sample=False,
            num_beams=1,
            eos_token_id=end if end >= 0 else None,
            pad_token_id=max(vocabulary.pad, 0),
            suppress_tokens=never or None,
            use_cache=False,  # transformers' cache of a T5 has as many layers as its encoder
        )
        texts, scores = [], []
        for prompt in prompts:
            inputs = {field: torch.from_numpy(rows).long() for field, rows in batch(_pad([prompt])).items()}
            before = 1 if theirs.config.is_encoder_decoder else len(prompt)
            told = {"return_dict_in_generate": True, "output_logits": True}
            try:
                written = theirs.generate(**inputs, **told)
            except Exception as error:  # of any type: a ValueError if the first token of texts is not set
                reason = " ".join(str(error).split())[:200]
                raise UserError(
                    f"Expected transformers to write with {directory}, found: {reason} Correct generation_config.json."
                ) from error
            texts.append(written.sequences[0, before:].tolist())
            scores.append(torch.cat(written.logits).numpy())
    return texts, scores


def _scores(
    module: nn.Module,
    params: Mapping[str, Any],
    batch: Batch,
    *,
    prompts: Sequence[list[int]],
    texts: Sequence[list[int]],
) -> list[np.ndarray]:
    """Return [tokens V] for each text: the logits of every token, given the prompt and the earlier tokens."""
    start = module.config.decoder_start_token_id
    if module.config.system.kind is not Kind.ENCODER_DECODER:
        inputs = batch(_pad([[*prompt, *text] for prompt, text in zip(prompts, texts, strict=True)]))
        firsts = [len(prompt) - 1 for prompt in prompts]
    else:
        inputs = batch(_pad(prompts)) | _pad([[start, *text[:-1]] for text in texts], "decoder_")
        firsts = [0] * len(prompts)
    logits = np.array(huggingface.outputs(module, params, inputs, ("logits",))["logits"])
    return [row[first : first + len(text)] for row, first, text in zip(logits, firsts, texts, strict=True)]


def _pad(rows: Sequence[list[int]], side: str = "") -> dict[str, np.ndarray]:
    """Return int64 [rows T] token ids, padded on the right, and their padding mask."""
    width = max(map(len, rows))
    ids = np.array([row + [0] * (width - len(row)) for row in rows])
    mask = np.arange(width) < np.array([[len(row)] for row in rows])
    return {f"{side}input_ids": ids, f"{side}attention_mask": mask.astype(np.int64)}


def _check(text: list[int], scores: np.ndarray, expected: np.ndarray, directory: str | Path) -> None:
    difference = np.abs(scores - expected).max() / max(1.0, np.abs(expected).max())
    if not difference <= CLOSE:
        raise UserError(
            f"Expected transformers to write with {directory} as this model does, found other scores of the "
            f"{len(text)} tokens of a text, by {difference:.3g}; do not use this copy, and report the config."
        )


def _check_likeliest(text: list[int], scores: np.ndarray, tokenizer: Any, directory: str | Path) -> None:
    for place, (token, row) in enumerate(zip(text, scores, strict=True), start=1):
        best = int(row.argmax())
        if not row[best] - row[token] <= CLOSE * max(1.0, abs(row[best])):
            theirs, ours = tokenizer.tokens([token, best])
            raise UserError(
                f"Expected transformers to write with {directory} as this model does, found {quoted(theirs)} as token "
                f"{place} of a text where ours is {quoted(ours)}; do not use this copy, and report the config."
            )
