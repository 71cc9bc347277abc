"""MediaWiki markup to prose."""

import pytest

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


OPAQUE = (
    "ref references math chem ce score gallery timeline syntaxhighlight source code pre imagemap hiero graph mapframe "
    "maplink templatestyles section table nowiki"
)


@pytest.mark.parametrize("tag", OPAQUE.split())
def test_the_content_of_an_element_that_is_no_prose_is_left_out(tag: str) -> None:
    for name in (tag, tag.upper()):
        markup = f'A fox <{name} name="x">a secret\nof it</{name}>digs.<{name} />\nIt sleeps.'
        assert wikipedia_dump.prose(markup) == ["A fox digs.", "It sleeps."]


@pytest.mark.parametrize(
    "prefix", "File image Media Category 文件 檔案 档案 图像 圖像 分类 分類 de zh-min-nan simple".split()
)
def test_links_that_show_a_picture_or_lead_elsewhere_are_left_out(prefix: str) -> None:
    """Those of a name of more than three letters, which is no language, and those that a colon makes visible stay."""
    kept = ["secret"] if prefix == "simple" else [""]
    assert wikipedia_dump.prose(f"Foxes dig. [[{prefix}:x|thumb|secret]] Yes.") == [
        " ".join(f"Foxes dig. {kept[0]} Yes.".split())
    ]
    assert wikipedia_dump.prose(f"Foxes dig. [[:{prefix}:x]].") == [f"Foxes dig. {prefix}:x."]


@pytest.mark.parametrize(
    "heading",
    [
        *("References", "External links", "See also", "Further reading", "Notes", "Bibliography", "SOURCES"),
        *("参考文献", "參考文獻", "外部链接", "外部連結", "参见", "參見", "注释", "註釋", "参考资料", "參考資料"),
    ],
)
def test_sections_after_the_text_are_left_out_with_their_parts(heading: str) -> None:
    markup = f"=== Life ===\nThey dig.\n== {heading} ==\nA secret.\n=== Life ===\nMore of it.\n== After ==\nThey sleep."
    assert wikipedia_dump.prose(markup) == ["They dig.", "They sleep."]


def test_addresses_and_what_they_leave_empty() -> None:
    for link in ("http://x.org", "https://x.org/a?b=c", "ftp://x.org", "//x.org", "mailto:a@x.org", "mailto://x.org"):
        assert wikipedia_dump.prose(f"They live [{link} nearly everywhere].") == ["They live nearly everywhere."]
    for text in ("They http://x.org/a?b=c dig.", "They ( , ;) dig.", "They (, ; :) dig.", "__TOC__They [//x.org] dig."):
        assert wikipedia_dump.prose(text) == ["They dig."]
    assert wikipedia_dump.prose("They (; foxes) dig , and sleep .") == ["They (foxes) dig, and sleep."]
    assert wikipedia_dump.prose("狐狸（，；）挖（；一个）洞。") == ["狐狸挖（一个）洞。"]


@pytest.mark.parametrize("stop", '.!?。！？…"”’」』)）;；:：')
def test_a_line_without_a_stop_is_no_sentence(stop: str) -> None:
    assert wikipedia_dump.prose(f"# They dig{stop}\nA title\n;They sleep{stop}\n| A cell.\n! A cell.") == [
        f"They dig{stop}",
        f"They sleep{stop}",
    ]
