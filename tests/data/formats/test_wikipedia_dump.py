"""MediaWiki markup to prose."""

from plmjax.data import formats
from plmjax.data.formats import wikipedia_dump


def test_no_markup_is_left_in_a_real_dump(shared_data):
    dump = shared_data / "pretrain" / "wikipedia_xml" / "enwiki-shortened.xml.bz2"
    articles = [formats.prose(document) for document in formats.documents([dump])]
    text = "\n".join(line for article in articles for line in article)
    assert len(articles) == 106 and len(text) > 2_500_000
    assert not [mark for mark in ("{{", "}}", "[[", "]]", "{|", "|}", "<ref", "==", "''", "http") if mark in text]
    assert "Anarchism is a political philosophy that advocates self-governed societies" in articles[0][0]


def test_unbalanced_markup_ends():
    assert wikipedia_dump.prose("{{" * 2000 + "A line. " + "[[" * 2000) != [""]
