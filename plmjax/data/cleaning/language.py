"""The language of a document, detected by py3langid, whose model is part of its package.

Deviation: C4 detects English with langdetect, which has had no release since 2021, and FineWeb with a model of fastText
that has to be downloaded. Here the thresholds are the same, but not the detector.
"""

import functools
from typing import Any

from plmjax.data.cleaning.rule import Dropped, Settings, TextRule
from plmjax.errors import UserError

C4_LEAST = 0.99
FINEWEB_LEAST = 0.65


@functools.cache
def _detector() -> Any:
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError:
        raise UserError(
            "Expected py3langid for the rules of languages in --clean, found it not installed; "
            "pip install 'plmjax[clean]' or leave the rule out."
        ) from None
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def check(settings: Settings) -> None:
    """Raise UserError if the detector is not installed or does not know the language."""
    if settings.language not in _detector().labels:
        raise UserError(
            f"Expected a language that py3langid detects for the rules of languages in --clean, found "
            f"{settings.language!r}; leave the rule out."
        )


def _detect(text: str, language: str, least: float) -> str | Dropped:
    found, probability = _detector().classify(text)
    return text if found == language and probability >= least else Dropped(f"{found} with {probability:.2f}")


def _c4(text: str, settings: Settings) -> str | Dropped:
    return _detect(text, settings.language, C4_LEAST)


def _fineweb(text: str, settings: Settings) -> str | Dropped:
    return _detect(text, settings.language, FINEWEB_LEAST)


RULES = (
    TextRule("c4_language", "tensorflow/datasets, tensorflow_datasets/text/c4_utils.py, detect_english", _c4),
    TextRule("fineweb_language", "huggingface/datatrove, src/datatrove/pipeline/filters/language_filter.py", _fineweb),
)
