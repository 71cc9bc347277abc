"""MediaWiki markup to prose."""

from pathlib import Path

import pytest

from plmjax.data import formats
from plmjax.data.formats import wikipedia_dump, wikipedia_languages
from tests.data.formats.samples import read
from tests.data.paragraphs import PARAGRAPHS, UNSTOPPED


def test_no_markup_is_left_in_a_real_dump(shared_data):
    dump = shared_data / "pretrain" / "wikipedia_xml" / "enwiki-shortened.xml.bz2"
    articles = [formats.prose(document) for document in formats.documents([dump])]
    text = "\n".join(line for article in articles for line in article)
    assert len(articles) == 106 and len(text) > 2_500_000
    assert not [mark for mark in ("{{", "}}", "[[", "]]", "{|", "|}", "<ref", "==", "''", "http") if mark in text]
    assert "Anarchism is a political philosophy that advocates self-governed societies" in articles[0][0]


def test_unbalanced_markup_ends():
    assert wikipedia_dump.prose("{{" * 2000 + "A line. " + "[[" * 2000) != [""]
    for start, end in (("-{a;", "}-"), ("{{a", "}}"), ("[[a|", "]]"), ("{|\n", "\n|}")):
        wikipedia_dump.prose(start * 5000 + end * 5000)  # deeper than MediaWiki reads
    for line in ("=" * 40000, "=" + " " * 20000 + "a", "http://x" + "." * 40000):
        assert wikipedia_dump.prose(f"{line}\nA line.")[-1] == "A line."


def test_elements_and_links_that_are_no_prose_are_left_out() -> None:
    """Those of a name of more than three letters, which is no language, and those that a colon makes visible stay."""
    for tag in "ref math gallery syntaxhighlight imagemap SCORE table".split():
        markup = f'A fox <{tag} name="x">a secret\nof it</{tag}>digs.<{tag} />\nIt sleeps.'
        assert wikipedia_dump.prose(markup) == ["A fox digs.", "It sleeps."]
    for prefix in "File Media Category 文件 分类 de zh-min-nan simple".split():
        kept = " secret" if prefix == "simple" else ""
        assert wikipedia_dump.prose(f"Foxes dig. [[{prefix}:x|thumb|secret]] Yes.") == [f"Foxes dig.{kept} Yes."]
        assert wikipedia_dump.prose(f"Foxes dig. [[:{prefix}:x]].") == [f"Foxes dig. {prefix}:x."]


HEADINGS = (
    "References|External links|Bibliography|SOURCES|参考文献|外部链接|參見|Einzelnachweise|Notes et références|"
    "Véase también|Примечания|См. также|出典|각주|المراجع|सन्दर्भ|อ้างอิง|References and notes|Sources:|Šaltiniai"
)


def test_sections_after_the_text_are_left_out_with_their_parts() -> None:
    """A section about literature loses only its lists."""
    for heading in HEADINGS.split("|"):
        markup = f"They dig.\n== {heading} ==\nA secret.\n=== Life ===\nMore of it.\n== After ==\nThey sleep."
        assert wikipedia_dump.prose(markup) == ["They dig.", "They sleep."], heading
    for other in ("サッカー", "มาทริกซ์"):
        assert wikipedia_dump.prose(f"They dig.\n== {other} ==\n* A secret.\n") == ["They dig.", "A secret."]
    for heading in ("Literatur", "Գրականություն"):
        markup = f"== {heading} ==\n* A. Author: A book.\nThe oldest book is of 1956.\n== B ==\n* Yes."
        assert wikipedia_dump.prose(markup) == ["The oldest book is of 1956.", "Yes."]


def test_addresses_and_what_they_leave_empty() -> None:
    for link in ("https://x.org/a?b=c", "ftp://x.org", "//x.org", "mailto:a@x.org"):
        assert wikipedia_dump.prose(f"They live [{link} nearly everywhere].") == ["They live nearly everywhere."]
    for text in ("They http://x.org/a?b=c dig.", "They ( , ;) dig.", "__TOC__They [//x.org] dig."):
        assert wikipedia_dump.prose(text) == ["They dig."]
    for text in ("They dig http://x.org/a.", "They (http://x.org/a) dig.", "They dig http://x.org/a_(b)."):
        assert wikipedia_dump.prose(text) == ["They dig."]
    assert wikipedia_dump.prose("狐狸挖洞（http://x.org/）http://x.org/。") == ["狐狸挖洞。"]
    assert wikipedia_dump.prose("They (; foxes) dig , and sleep .") == ["They (foxes) dig, and sleep."]


def test_a_paragraph_of_every_language_survives_whole_and_a_line_without_a_stop_is_none() -> None:
    """Between blank lines, after another paragraph, and as a list item, which needs a stop or the script of Thai."""
    for stop in '.!?。！？…"”’」』)）;；:：':
        found = wikipedia_dump.prose(f"# They dig{stop}\nA title\n;They sleep{stop}\n| A cell.\n! A cell.")
        assert found == [f"They dig{stop}", f"They sleep{stop}"]
    for text in (PARAGRAPHS | UNSTOPPED).values():
        assert wikipedia_dump.prose(f"A title\n\n{text}\n\n* A name\n* {text}\n== Life ==\n{text}") == [text] * 3


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        *((f"Den kallaste är december, med {number}&nbsp;°C.", "Den kallaste är december, med -10 °C.")
          for number in ("{{formatnum:-10}}", "{{FormatNum: -10 |R}}", "{{formatnum:{{nowrap|x}}-10}}")),
        *((f"Foxes [[{name}:A fox.JPG|thumb|A caption.]]dig.", "Foxes dig.")  # earlier names of a namespace
          for name in ("Bild", "Изображение", "画像")),
        *((f"They saw [[{title}: X]].", f"They saw {title}: X.") for title in ("CSI", "Ben-Hur", "NCIS", "Wikt", "s")),
        ("Foxes dig." + "".join(f"[[{code.title()}:x]]" for code in wikipedia_languages.CODES), "Foxes dig."),
        ("The normal-model based analysis of variance assumes the\nindependence of\nthem.",
         "The normal-model based analysis of variance assumes the independence of them."),
        ("[[CSI: Miami]] ended.", "CSI: Miami ended."),
        ("[[Alien (film)|Alien [1979]]] ended.", "Alien [1979] ended."),

        ("[[File:a.png|thumb|A caption of [http://x.org a site] and [[a|b]].]]It ends.", "It ends."),
        ("l'autore dell'''Iliade'' fu Omero.", "l'autore dell'Iliade fu Omero."),
        ("The ''Eagle'''s crew slept.", "The Eagle's crew slept."),

        ("'''''Both''''' and ''''one'''' end.", "Both and 'one' end."),
        ("Write <nowiki>[[a|b]] ''c'' {{d}}</nowiki> there.", "Write [[a|b]] ''c'' {{d}} there."),
        ("<nowiki>#</nowiki>1 was <!-- <nowiki> -->first.", "#1 was first."),
        ("Foxes<br>dig<br/>and<BR clear=all />sleep.", "Foxes dig and sleep."),
        ("<div>Foxes dig.</div>They sleep.<ul><li>One.<li>Two.</ul>", "Foxes dig. They sleep. One. Two."),
        ("H<sub>2</sub>O and a List<String> where a <x and y> d.", "H2O and a List<String> where a <x and y> d."),
        ("这是-{zh-hans:计算机;zh-hant:電腦;}-和-{A|zh-cn:软件; zh-tw:軟體}-。", "这是计算机和软件。"),
        ("-{H|zh-cn:博客;zh-tw:部落格;}--{T|标题}-这是-{原文}-和-{R|代码}-。", "这是原文和代码。"),
        ("The function main() and the .NET framework ... end.", "The function main() and the .NET framework ... end."),
        ("'''!Kung''' is spoken there.", "!Kung is spoken there."),
        ("__INHALTSVERZEICHNIS__Foxes use __init__ here.", "Foxes use __init__ here."),
    ],
)  # fmt: skip
def test_text_beside_markup_is_kept(markup: str, text: str) -> None:
    assert " ".join(wikipedia_dump.prose(markup)) == text


DUMP = """<mediawiki xml:lang="xx"><siteinfo><namespaces><namespace key="-2">{media}</namespace>
<namespace key="0" /><namespace key="6">{file}</namespace><namespace key="14">{category}</namespace>
</namespaces></siteinfo><page><title>A</title><ns>0</ns><revision><text>{text}</text></revision></page></mediawiki>"""


@pytest.mark.parametrize(
    ("media", "file", "category"), [("Medium", "Datei", "Kategorie"), ("Phương tiện", "Tập tin", "Thể loại")]
)
def test_a_dump_names_its_own_namespaces(media: str, file: str, category: str, tmp_path: Path) -> None:
    links = (
        f"[[{file}:x|mini|A caption.]][[{file.lower()}:x]][[ {file.replace(' ', '_')} : x|thumb]][[File:x|A caption.]]"
        f"[[{media}:x|a sound]][[{category}:x]][[Image:x.jpg|A caption.]]"
    )
    path = tmp_path / "dump.xml"
    path.write_text(DUMP.format(media=media, file=file, category=category, text=f"Foxes {links}dig [[:{file}:x]]."))
    assert read([path]) == [("wikipedia-dump", [f"Foxes dig {file}:x."])]
