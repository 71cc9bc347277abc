"""Metrics of generated texts against their references, over all texts of a file; all values are from 0 to 100."""

import importlib.metadata
from collections.abc import Sequence
from typing import Any

import numpy as np

BLEU_TOKENIZERS = ("13a", "intl", "zh", "char", "none")
"""sacrebleu's word tokenizers that need no package but sacrebleu."""
ROUGE = ("rouge1", "rouge2", "rougeL", "rougeLsum")


def translation(references: Sequence[str], texts: Sequence[str], tokenize: str = "13a") -> dict[str, float]:
    """Return BLEU (Papineni et al. 2002) and chrF (Popovic 2015) of all texts together, as sacrebleu computes them.

    Both are from 0 to 100. `translation_signatures` has their definitions. All settings except `tokenize`, the word
    tokenizer of BLEU, are sacrebleu's defaults.
    """
    return {
        name: float(metric.corpus_score(list(texts), [list(references)]).score)
        for name, metric in _translation_metrics(tokenize).items()
    }


def translation_signatures(tokenize: str = "13a") -> dict[str, str]:
    """Return sacrebleu's signatures of BLEU and chrF, for one reference per text."""
    found = {}
    for name, metric in _translation_metrics(tokenize).items():
        metric.corpus_score(["a"], [["a"]])  # A signature has the number of references, known only after a score.
        found[f"{name}_signature"] = str(metric.get_signature())
    return found


def _translation_metrics(tokenize: str) -> dict[str, Any]:
    from sacrebleu.metrics import BLEU, CHRF

    return {"bleu": BLEU(tokenize=tokenize), "chrf": CHRF()}


def summarization(references: Sequence[str], texts: Sequence[str]) -> dict[str, float]:
    """Return ROUGE-1, -2, -L and -Lsum (Lin 2004): mean F1 of stemmed words over the texts, from 0 to 100.

    The values are those of rouge-score. rougeL takes a text as one sentence. rougeLsum, the ROUGE-L of papers on
    summaries, compares every sentence of the reference with the union of all sentences of the text. The sentences are
    lines. A text of one line is split by `plmjax.data.sentences`, since models write no line breaks.
    """
    from rouge_score.rouge_scorer import RougeScorer

    from plmjax.data import sentences

    def in_lines(text: str) -> str:
        return text if "\n" in text.strip() else "\n".join(sentences.split([text]))

    scorer = RougeScorer(ROUGE, use_stemmer=True)
    found = [
        scorer.score(in_lines(reference), in_lines(text)) for reference, text in zip(references, texts, strict=True)
    ]
    return {name: 100 * float(np.mean([scores[name].fmeasure for scores in found])) for name in ROUGE}


def summarization_signatures() -> dict[str, str]:
    """Return the definitions of the ROUGE metrics, in words."""
    signature = f"rouge-score {importlib.metadata.version('rouge-score')}, mean F1 of stemmed words"
    splitter = f"sentencex {importlib.metadata.version('sentencex')}"
    split = f"{signature}, sentences are lines, in a text of one line those of {splitter}"
    return {f"{name}_signature": split if name == "rougeLsum" else signature for name in ROUGE}


def labels_in_words(references: Sequence[str], texts: Sequence[str]) -> dict[str, float]:
    """Return exact, the fraction of texts that equal their reference, and macro_f1, the mean F1 of the labels.

    The labels are the distinct references. Both values are from 0 to 100. A text that is not a label counts as a miss
    of its reference, and not as a false positive of another label.
    """
    from sklearn.metrics import f1_score

    labels = sorted(set(references))
    return {
        "exact": 100 * float(np.mean([text == reference for reference, text in zip(references, texts, strict=True)])),
        "macro_f1": 100
        * float(f1_score(list(references), list(texts), labels=labels, average="macro", zero_division=0)),
    }
