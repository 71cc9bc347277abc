"""Rules in the order of their names, the counts of their effects, and the dataset of any number of processes."""

import json

import pytest

from plmjax.data import cleaning, formats, store
from plmjax.data.preparation import prepare
from tests.data.random_texts import document

JUNK = "lorem ipsum and what not follows here.\n" + document(1)


@pytest.fixture
def corpus(tmp_path):
    """Documents, copies of them, and a page of junk."""
    path = tmp_path / "a.txt"
    path.write_text("\n\n".join([*(document(seed % 50) for seed in range(80)), JUNK]))
    return path


def test_rules_apply_in_the_order_of_their_names() -> None:
    texts = ["One two three four five.\nno mark", "One two three four five."]
    assert len(list(cleaning.cleaner(["exact_duplicates", "c4_end_marks"]).texts(texts))) == 2
    assert len(list(cleaning.cleaner(["c4_end_marks", "exact_duplicates"]).texts(texts))) == 1


def test_report_counts_each_rule_with_examples(corpus, tokenizer, tmp_path, capsys) -> None:
    output = tmp_path / "out"
    names = ["c4_lorem_ipsum", "c4_short_lines", "exact_duplicates"]
    dataset = prepare([corpus], "auto", tokenizer, output, clean=names, processes=1)
    report = json.loads((output / cleaning.REPORT).read_text())
    assert cleaning.REPORT in json.loads((output / store.MANIFEST).read_text())["other_files"]
    lorem, short, exact = report["rules"]
    assert report["read"]["documents"] == 81 and report["kept"]["documents"] == 50
    assert lorem["dropped"]["documents"] == 1 and lorem["dropped"]["characters"] == len(JUNK)
    assert lorem["examples"] == [{"place": str(corpus), "reason": "lorem ipsum", "text": lorem["examples"][0]["text"]}]
    assert lorem["examples"][0]["text"].startswith("lorem ipsum and what")
    assert short["changed"]["documents"] and not short["dropped"]["documents"]
    assert all(len(example["text"].split()) < 5 for example in short["examples"])
    assert exact["dropped"]["documents"] == 30 and len(exact["examples"]) == 3
    parts = [rule[kind]["characters"] for rule in report["rules"] for kind in ("dropped", "changed")]
    assert report["kept"]["characters"] + sum(parts) == report["read"]["characters"]
    tokens = sum(dataset.split(name).token_count for name in store.SPLITS)
    assert report["kept"]["tokens"] == tokens
    rate = tokens / report["kept"]["characters"]
    assert exact["dropped"]["about_tokens"] == round(exact["dropped"]["characters"] * rate)
    printed = capsys.readouterr().out
    assert "cleaning   kept 50 of 81 documents" in printed and "exact_duplicates       dropped 30 documents" in printed


@pytest.mark.parametrize(
    ("rule", "texts", "kept"),
    [
        ("c4_sentences", ["See Fig. Two. See Fig. Two."], {"de": 0, "en": 1}),
        ("fineweb_sentences", [" ".join(["See Fig. Two."] * 3)], {"de": 0, "en": 1}),
        ("three_sentence_spans", ["See Fig. Two. Yes."] * 2, {"de": 2, "en": 1}),
    ],
)
def test_rules_on_sentences_split_them_as_the_language_does(rule: str, texts: list[str], kept: dict[str, int]) -> None:
    """In German, "Fig." ends none."""
    for language, count in kept.items():
        assert len(list(cleaning.cleaner([rule], language=language).texts(texts))) == count


def test_a_later_rule_is_given_the_text_that_the_rules_before_it_left() -> None:
    """White space within lines is left as it is after the first stage too."""
    texts = ["  One  two.\n \n\tThree four.  ", "One  two.\nThree four.", "Five."]
    names = ["exact_duplicates", "c4_duplicate_lines", "c4_lorem_ipsum"]
    assert list(cleaning.cleaner(names).texts(texts)) == ["One  two.\nThree four.", "Five."]
    screened = cleaning.cleaner(names).screen(1, [formats.Document("text", "a", " kept as it is ")])
    assert [document.text for document in screened.documents] == [" kept as it is "]
