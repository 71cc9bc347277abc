"""Languages of documents: py3langid, which needs no download, and thresholds of C4 and FineWeb."""

from types import SimpleNamespace

import pytest

from plmjax.data.cleaning import cleaner, language

TEXTS = {
    "en": "The river walks under an old green bridge, and a child reads slowly in the city.",
    "de": "Der Fluss fließt unter einer alten grünen Brücke, und ein Kind liest langsam in der Stadt.",
    "fr": "La rivière coule sous un vieux pont vert, et un enfant lit lentement dans la ville.",
}


@pytest.mark.parametrize("rule", ["c4_language", "fineweb_language"])
@pytest.mark.parametrize("code", TEXTS)
def test_texts_of_the_language_are_kept(rule: str, code: str) -> None:
    assert list(cleaner([rule], language=code).texts(TEXTS.values())) == [TEXTS[code]]


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
def test_each_rule_has_the_threshold_of_its_paper(found: str, probability: float, kept: list[str], monkeypatch) -> None:
    detector = SimpleNamespace(labels=["en", "de"], classify=lambda text: (found, probability))
    monkeypatch.setattr(language, "_detector", lambda: detector)
    rules = ("c4_language", "fineweb_language")
    assert [rule for rule in rules if list(cleaner([rule], language="en").texts(["A text."]))] == kept
