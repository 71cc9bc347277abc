"""Metrics of generated texts against their references; all values are from 0 to 100."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from plmjax.errors import check_choice
from plmjax.finetuning.metrics import generated_texts


@dataclasses.dataclass(frozen=True)
class Scorer:
    """Base class of the metrics of generated texts."""

    names: ClassVar[tuple[str, ...]] = ()
    """Its metrics; the first one represents the task where several tasks are compared."""

    def scores(self, references: Sequence[str], texts: Sequence[str]) -> dict[str, float]:
        """Return a dict from metric to its value over all texts of a file."""
        raise NotImplementedError(f"{type(self).__name__} must define `scores`.")

    def signatures(self) -> dict[str, str]:
        """Return a dict from METRIC_signature to the definition, in words, of a metric that has several variants."""
        return {}


@dataclasses.dataclass(frozen=True)
class BleuAndChrf(Scorer):
    """BLEU and chrF over all texts, as sacrebleu computes them."""

    names: ClassVar[tuple[str, ...]] = ("bleu", "chrf")

    tokenize: str = "13a"
    """Word tokenizer of BLEU: 13a, intl, zh (Chinese characters one by one), char or none."""

    def __post_init__(self) -> None:
        check_choice("tokenizer of BLEU", self.tokenize, generated_texts.BLEU_TOKENIZERS)

    def scores(self, references: Sequence[str], texts: Sequence[str]) -> dict[str, float]:
        return generated_texts.translation(references, texts, self.tokenize)

    def signatures(self) -> dict[str, str]:
        return generated_texts.translation_signatures(self.tokenize)


@dataclasses.dataclass(frozen=True)
class Rouge(Scorer):
    """ROUGE, as rouge-score computes it."""

    names: ClassVar[tuple[str, ...]] = ("rouge2", "rouge1", "rougeL", "rougeLsum")

    def scores(self, references: Sequence[str], texts: Sequence[str]) -> dict[str, float]:
        return generated_texts.summarization(references, texts)

    def signatures(self) -> dict[str, str]:
        return generated_texts.summarization_signatures()


@dataclasses.dataclass(frozen=True)
class ExactMatch(Scorer):
    """The fraction of texts that equal their reference, and F1 where references are labels."""

    names: ClassVar[tuple[str, ...]] = ("exact", "macro_f1")

    def scores(self, references: Sequence[str], texts: Sequence[str]) -> dict[str, float]:
        return generated_texts.labels_in_words(references, texts)
