"""Languages of documents: py3langid, which needs no download, and thresholds of C4 and FineWeb."""

import sys
from types import SimpleNamespace

import pytest

from plmjax.data.cleaning import cleaner, language
from plmjax.errors import UserError

TEXTS = {
    "en": "The river walks under an old green bridge, and a child reads slowly in the city.",
    "de": "Der Fluss fließt unter einer alten grünen Brücke, und ein Kind liest langsam in der Stadt.",
    "fr": "La rivière coule sous un vieux pont vert, et un enfant lit lentement dans la ville.",
}


@pytest.mark.parametrize("rule", ["c4_language", "fineweb_language"])
@pytest.mark.parametrize("code", TEXTS)
def test_texts_of_the_language_are_kept(rule: str, code: str) -> None:
    assert list(cleaner([rule], language=code).texts(TEXTS.values())) == [TEXTS[code]]


def test_thresholds_are_those_of_the_papers() -> None:
    """Deviation of plmjax.data.cleaning.language: the detector, not the thresholds."""
    assert language.C4_LEAST == 0.99 and language.FINEWEB_LEAST == 0.65
    found, probability = language._detector().classify("zebra")
    assert isinstance(found, str) and 0 < probability <= 1
    short = list(cleaner(["fineweb_language"]).texts(["A B C 1 2 3"]))
    assert not short


def test_a_library_that_is_absent_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "py3langid.langid", None)
    language._detector.cache_clear()
    with pytest.raises(UserError, match=r"Expected py3langid .* found it not installed; pip install 'plmjax\[clean\]'"):
        cleaner(["c4_language"])


@pytest.mark.parametrize(
    ("found", "probability", "kept"),
    [
        ("en", 0.99, ["c4_language", "fineweb_language"]),
        ("en", 0.989, ["fineweb_language"]),
        ("en", 0.65, ["fineweb_language"]),
        ("en", 0.649, []),
        ("de", 1.0, []),
    ],
)
def test_each_rule_has_the_threshold_of_its_paper(
    found: str, probability: float, kept: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    detector = SimpleNamespace(labels=["en", "de"], classify=lambda text: (found, probability))
    monkeypatch.setattr(language, "_detector", lambda: detector)
    rules = ("c4_language", "fineweb_language")
    assert [rule for rule in rules if list(cleaner([rule], language="en").texts(["A text."]))] == kept
