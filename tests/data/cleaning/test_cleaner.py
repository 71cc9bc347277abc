"""Rules in the order of their names, the counts of their effects, and the dataset of any number of processes."""

import json

import pytest

from plmjax.data import cleaning, formats, sentences, store
from plmjax.data.formats import records
from plmjax.data.preparation import prepare, run
from plmjax.data.preparation.conversion import Sizes
from plmjax.errors import UserError
from tests.data.random_texts import document

JUNK = "lorem ipsum and what not follows here.\n" + document(1)


@pytest.fixture
def corpus(tmp_path):
    """Documents, copies of them, and a page of junk."""
    path = tmp_path / "a.txt"
    path.write_text("\n\n".join([*(document(seed % 50) for seed in range(80)), JUNK]))
    return path


def test_unknown_names_are_one_sentence() -> None:
    with pytest.raises(UserError, match=r"Expected a rule or a set of rules in --clean, found 'c4_line'; did you mean"):
        cleaning.cleaner(["c4_line"])


def test_every_rule_has_a_source_and_every_set_known_rules() -> None:
    assert all(rule.source and name == rule.name for name, rule in cleaning.RULES.items())
    assert all(name in cleaning.RULES for names in cleaning.SETS.values() for name in names)


def test_rules_apply_in_the_order_of_their_names() -> None:
    texts = ["One two three four five.\nno mark", "One two three four five."]
    assert len(list(cleaning.cleaner(["exact_duplicates", "c4_end_marks"]).texts(texts))) == 2
    assert len(list(cleaning.cleaner(["c4_end_marks", "exact_duplicates"]).texts(texts))) == 1


def test_documents_of_several_texts_and_published_corpora_are_refused() -> None:
    with pytest.raises(UserError, match="Expected documents of one text for --clean, found --streams; leave"):
        cleaning.cleaner(["c4_lines"], parts=records.Parts({"source": "en"}))
    with pytest.raises(UserError, match="found plmjax prepare --fields; leave one of them out"):
        cleaning.cleaner(["c4_lines"], parts=records.Parts({"text": "text"}, ("label",)))
    with pytest.raises(UserError, match="found the corpus enwik8, which is read exactly"):
        cleaning.cleaner(["c4_lines"], format="enwik8")


@pytest.mark.nightly
def test_number_of_processes_changes_nothing(corpus, tokenizer, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(run, "SIZES", Sizes(batch_characters=3000))  # enough batches for a second process
    names = ["c4_lorem_ipsum", "exact_duplicates", "three_sentence_spans", "c4_sentences", "near_duplicates"]
    ledgers = []
    for processes in (1, 2):
        output = tmp_path / str(processes)
        prepare([corpus], "auto", tokenizer, output, clean=names, processes=processes, progress=False)
        ledgers.append(json.loads((output / store.LEDGER).read_text()))
    assert ledgers[0] == ledgers[1]  # the checksums of all files stand in it, also of the report
    assert ledgers[0]["description"]["cleaning"] == names
    assert sum(split["documents"] for split in ledgers[0]["splits"].values()) == 50


def test_report_counts_each_rule_with_examples(corpus, tokenizer, tmp_path, capsys) -> None:
    output = tmp_path / "out"
    names = ["c4_lorem_ipsum", "c4_short_lines", "exact_duplicates"]
    dataset = prepare([corpus], "auto", tokenizer, output, clean=names, processes=1)
    report = json.loads((output / cleaning.REPORT).read_text())
    assert cleaning.REPORT in json.loads((output / store.LEDGER).read_text())["other_files"]
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


def test_other_rules_make_another_dataset(corpus, tokenizer, tmp_path) -> None:
    output, words = tmp_path / "out", tmp_path / "words.txt"
    words.write_text("lorem\n")
    prepare([corpus], "auto", tokenizer, output, clean=["c4_bad_words"], bad_words=words, progress=False)
    with pytest.raises(UserError, match="another cleaning"):
        prepare([corpus], "auto", tokenizer, output, progress=False)
    words.write_text("river\n")
    with pytest.raises(UserError, match="another bad_words"):
        prepare([corpus], "auto", tokenizer, output, clean=["c4_bad_words"], bad_words=words, progress=False)


def test_a_text_of_which_nothing_is_left_is_one_sentence(tokenizer, tmp_path) -> None:
    (tmp_path / "a.txt").write_text(JUNK)
    with pytest.raises(UserError, match="--clean dropped all 1, 1 of them by c4_lorem_ipsum; name fewer"):
        prepare([tmp_path / "a.txt"], "auto", tokenizer, tmp_path / "out", clean=["c4_lines"], progress=False)


@pytest.mark.parametrize("rule", ["c4_sentences", "fineweb_sentences", "three_sentence_spans"])
def test_rules_on_sentences_split_them_as_the_language_does(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, split = [], sentences.split

    def spied(paragraphs, language="en"):
        asked.append(language)
        return split(paragraphs, language)

    monkeypatch.setattr(sentences, "split", spied)
    list(cleaning.cleaner([rule], language="de").texts(["Eins. Zwei. Drei.", "Null. Eins. Zwei. Drei."]))
    assert len(asked) >= 2 and set(asked) == {"de"}


def test_a_later_rule_is_given_the_text_that_the_rules_before_it_left() -> None:
    """White space within lines is left as it is after the first stage too."""
    texts = ["  One  two.\n \n\tThree four.  ", "One  two.\nThree four.", "Five."]
    names = ["exact_duplicates", "c4_duplicate_lines", "c4_lorem_ipsum"]
    assert list(cleaning.cleaner(names).texts(texts)) == ["One  two.\nThree four.", "Five."]
    screened = cleaning.cleaner(names).screen(1, [formats.Document("text", "a", " kept as it is ")])
    assert [document.text for document in screened.documents] == [" kept as it is "]


def test_the_examples_of_a_rule_are_the_first_in_the_order_of_reading() -> None:
    effects = [cleaning.Effect(), cleaning.Effect()]
    for number in range(5):
        effects[number // 2 % 2].drop(f"place {number}", "why", "a text")
    whole = cleaning.Effect()
    for effect in effects:
        whole.add(effect)
    assert [place for place, _, _ in whole.examples] == ["place 0", "place 1", "place 4"]
    assert (whole.dropped.documents, whole.dropped.characters) == (5, 5 * len("a text"))
    assert (whole.changed.documents, whole.changed.characters) == (0, 0)


def test_a_stage_ends_with_a_rule_that_compares_documents() -> None:
    """Its place among all rules is where its effects are counted."""
    names = ["c4_lorem_ipsum", "exact_duplicates", "c4_duplicate_lines", "c4_short_lines", "c4_end_marks"]
    for count, places in (
        (5, [(0, 1, "exact_duplicates"), (2, 2, "c4_duplicate_lines"), (3, 5, "")]),
        (3, [(0, 1, "exact_duplicates"), (2, 2, "c4_duplicate_lines")]),
        (1, [(0, 1, "")]),
        (0, []),
    ):
        stages = cleaning.cleaner(names[:count]).stages
        assert [(stage.start, stage.end, stage.last.name if stage.last else "") for stage in stages] == places
        assert [rule.name for stage in stages for rule in (*stage.rules, *([stage.last] if stage.last else []))] == (
            names[:count]
        )
