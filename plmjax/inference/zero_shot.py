"""Zero-shot evaluation of a language model: the last words of LAMBADA, and BLiMP's pairs of sentences.

LAMBADA (Paperno et al. 2016): passages whose last word can be predicted only from the whole passage. A word is right if
each of its tokens is the most likely one. The perplexity is exp of the mean, over passages, of the nats of the last
word, summed over its tokens.

BLiMP (Warstadt et al. 2020): pairs of sentences with a small difference, one of which is acceptable. A pair is right if
the acceptable sentence has the higher log-probability, summed over all tokens and not normalized by length.

Every text follows the token that stands between documents, so that its first token is scored too.

Deviation: any token may be predicted. Radford et al. (2019) exclude stop words, which cannot end a passage, and this
raises GPT-2's accuracy from 52.66 to 63.24 %. They also convert the text of LAMBADA to normal running text. Here it is
read as it is in the file.
"""

import dataclasses
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from plmjax.data.unknown_tokens import MAX_UNKNOWN, UnknownTokens
from plmjax.errors import UserError, check_choice, listed, quoted
from plmjax.files import storage
from plmjax.inference.language_model import LanguageModel
from plmjax.training.metrics import perplexity, write_evaluation

PAIR = ("sentence_good", "sentence_bad", "field", "UID")
"""Keys of a pair in BLiMP's files."""


def zero_shot(
    checkpoint: str | Path,
    task: str,
    data: str | Path,
    output: str | Path | None = None,
    *,
    window: int | None = None,
    max_unknown: float = MAX_UNKNOWN,
) -> dict[str, Any]:
    """Return the scores of a checkpoint's language model on a task that it was not trained for.

    Args:
        task: "lambada", where `data` is a text file with one passage per line, or "blimp", where it is one of BLiMP's
            files of JSON lines or a folder of them. Files may be compressed.
        output: folder for evaluation.json.
        window: maximum number of tokens that a prediction is conditioned on; by default the row length of the run.
        max_unknown: largest fraction of unknown tokens of the text.

    Returns:
        "lambada/accuracy", "lambada/perplexity" and "lambada/passages"; "lambada/cut", the number of passages whose
            beginning was cut because they are too long; "lambada/unknown_words", the number of last words with an
            unknown token: they count as wrong, and their nats are those of the unknown token.
        "blimp/FIELD/UID", the fraction of right pairs of a paradigm; "blimp/FIELD", the mean over the paradigms of a
            field; "blimp/accuracy", the mean over all paradigms; "blimp/pairs"; and "blimp/unknown_tokens", the number
            of unknown tokens in the sentences.
        "TASK/prefix" if the model reads a prefix: the description of its tokens.

    Raises:
        UserError: no checkpoint, one that is not a language model, data that does not belong to the task, or too many
            unknown tokens.
    """
    check_choice("--task", task, TASKS)
    model, data = LanguageModel(checkpoint, window), storage.path(data)
    unknown = UnknownTokens(model.tokenizer.vocabulary, max_unknown)
    found = TASKS[task](model, data, unknown) | ({"prefix": model.prefix} if model.prefix else {})
    metrics = {f"{task}/{name}": value for name, value in found.items()}
    if output is not None:
        storage.path(output).mkdir(parents=True, exist_ok=True)
        write_evaluation(storage.path(output), metrics, {})
    return metrics


def lambada(model: LanguageModel, path: Path, unknown: UnknownTokens) -> dict[str, Any]:
    """Return the scores for the last word of each passage of a file. `unknown` counts the tokens of the file."""
    from plmjax.data import text_files

    passages, ends = [], []
    for number, line in enumerate(text_files.lines(path), start=1):
        passage = line.rstrip()
        context = passage[: -len(passage.split()[-1])].rstrip() if passage else ""
        if passage and not context:
            raise UserError(
                f"Expected a passage of two or more words in line {number} of {path}, found {quoted(passage)}; give "
                f"LAMBADA's text, a passage a line."
            )
        if passage:
            passages.append(passage)
            ends.append(len(context))
    if not passages:
        raise UserError(f"Expected passages in {path}, found none; give LAMBADA's text, a passage a line.")
    rows, counts, cut, lacking = [], [], 0, []
    for passage, end, (ids, spans) in zip(passages, ends, model.tokenizer.encode_spans(passages), strict=True):
        count = int(np.sum(spans[:, 1] > end))
        if not 1 <= count <= model.window:
            raise UserError(
                f"Expected a last word of 1 to {model.window} tokens in {path}, found {count} tokens in that of "
                f"{quoted(passage)}; leave the passage out or raise --window."
            )
        unknown.add(ids[: len(ids) - count])
        lacking.append(unknown.add(ids[len(ids) - count :]) > 0)
        row = [model.begin, *ids.tolist()]
        cut += len(row) > model.window + 1
        rows.append(row[-model.window - 1 :])
        counts.append(count)
    unknown.check(str(path))
    right, nats = [], []
    for scores, lacks in zip(model.score(rows, counts), lacking, strict=True):
        right.append(not lacks and bool(np.all(scores.likeliest)))
        nats.append(_total(scores.nats))
    return {
        "accuracy": float(np.mean(right)),
        "perplexity": perplexity(float(np.mean(nats))),
        "passages": len(rows),
        "cut": cut,
        "unknown_words": sum(lacking),
    }


@dataclasses.dataclass(frozen=True)
class _Pair:
    good: str
    bad: str
    field: str
    paradigm: str


def blimp(model: LanguageModel, path: Path, unknown: UnknownTokens) -> dict[str, Any]:
    """Return the scores for the pairs of a file or of a folder of files. `unknown` counts the tokens of all pairs."""
    pairs = _pairs(path)
    sentences = [sentence for pair in pairs for sentence in (pair.good, pair.bad)]
    rows = [[model.begin, *ids] for ids in model.tokenizer.encode_batch(sentences)]
    for sentence, row in zip(sentences, rows, strict=True):
        unknown.add(row[1:])
        if not 2 <= len(row) <= model.window + 1:
            raise UserError(
                f"Expected sentences of 1 to {model.window} tokens in {path}, found {len(row) - 1} in "
                f"{quoted(sentence)}; leave the pair out or raise --window."
            )
    unknown.check(str(path))
    nats = [_total(scores.nats) for scores in model.score(rows)]
    right: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for pair, good, bad in zip(pairs, nats[::2], nats[1::2], strict=True):
        right[pair.field, pair.paradigm].append(good < bad)
    paradigms = {names: float(np.mean(hits)) for names, hits in sorted(right.items())}
    fields = defaultdict(list)
    for (field, _), share in paradigms.items():
        fields[field].append(share)
    return {
        "accuracy": float(np.mean(list(paradigms.values()))),
        **{field: float(np.mean(shares)) for field, shares in fields.items()},
        **{f"{field}/{paradigm}": share for (field, paradigm), share in paradigms.items()},
        "pairs": len(pairs),
        "unknown_tokens": unknown.count,
    }


def _pairs(path: Path) -> list[_Pair]:
    from plmjax.data import formats, text_files
    from plmjax.data.formats import records

    pairs = []
    for file in formats.files([path]):
        for number, line in enumerate(text_files.lines(file), start=1):
            record = records.parse(line, f"line {number} of {file}")
            if not all(isinstance(record.get(key), str) for key in PAIR):
                raise UserError(
                    f"Expected the strings {listed(PAIR)} in line {number} of {file}, found the keys {listed(record)}; "
                    f"give a file of BLiMP."
                )
            pairs.append(_Pair(*(record[key] for key in PAIR)))
    return pairs


def _total(nats: np.ndarray) -> float:
    return math.fsum(nats.tolist())


TASKS = {"lambada": lambada, "blimp": blimp}
