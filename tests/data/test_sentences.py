"""Sentences of English, Chinese and the other languages of the splitter."""

import gzip
import itertools
import re
import unicodedata

import pytest

from plmjax.data import sentences
from tests.data.mistakes import refused
from tests.data.paragraphs import PARAGRAPHS, UNSTOPPED

SENTENCES = [
    ("en", " ", ["Dr. Smith lives in the U.S. and paid $3.5 million.", '"Is it?" she asked.', "It works."]),
    ("zh", "", ["他说：“你好！”", "然后走了。", "真的吗？", "是的。", "1955年他回来了。"]),
    ("de", " ", ["Das kostet z.B. drei Euro.", "Es ist ca. ein Meter lang.", "Gut."]),
    ("ru", " ", ["Он родился в 1955 г. в Москве.", "Это так."]),
    ("hi", " ", ["यह एक वाक्य है।", "यह दूसरा है।"]),
]


@pytest.mark.parametrize(("language", "joint", "parts"), SENTENCES)
def test_sentences(language, joint, parts):
    paragraphs = [f"{joint.join(parts)}\nA line   goes on.", "", "A title"]
    assert sentences.split(paragraphs, language) == [*parts, "A line goes on.", "A title"]


def test_every_language_of_the_list_is_split_and_others_are_refused():
    refused(lambda: sentences.check("english"), "(am, ar, bg, .. , uk, zh) .. 'english' .. name the one")
    refused(lambda: sentences.check("eng"), "'eng' .. did you mean 'en'")
    for language in sentences.LANGUAGES:
        sentences.check(language)
        assert sentences.split(["A one! A two!"], language) == ["A one!", "A two!"], language


@pytest.mark.parametrize(
    ("name", "language", "joint", "least"),
    [("ud_english_ewt/en_ewt-ud-train", "en", " ", 0.90), ("ud_chinese_gsdsimp/zh_gsdsimp-ud-dev", "zh", "", 0.98)],
)
def test_agreement_with_annotated_sentences(shared_data, name, language, joint, least):
    """F1 of the boundaries inside runs of ten annotated sentences."""
    text = gzip.decompress((shared_data / "finetune" / f"{name}.conllu.gz").read_bytes()).decode()
    annotated = re.findall(r"^# text = (.*)$", text, re.MULTILINE)[:1500]
    hits = every = 0
    for start in range(0, len(annotated), 10):
        run = annotated[start : start + 10]
        gold, ours = _ends(run), _ends(sentences.split([joint.join(run)], language))
        hits, every = hits + len(gold & ours), every + len(ours) + len(gold)
    assert 2 * hits / every > least


def _ends(parts: list[str]) -> set[int]:
    """Where each part but the last ends, in characters that are no spaces."""
    return {*itertools.accumulate(len("".join(part.split())) for part in parts[:-1])}


def test_no_character_is_lost_between_sentences() -> None:
    for language, text in (PARAGRAPHS | UNSTOPPED).items():
        parts = sentences.split([text], language if language in PARAGRAPHS else "en")
        assert "".join(parts).replace(" ", "") == text.replace(" ", ""), language
        assert all(any(map(str.isalnum, part)) for part in parts), language


def test_every_mark_that_ends_a_sentence_in_unicode_does() -> None:
    """Unicode's property, as another library has it; of terminal punctuation, commas separate words."""
    regex = pytest.importorskip("regex")
    everything = "".join(map(chr, range(0x110000)))
    stops = regex.findall(r"\p{Sentence_Terminal}", everything)
    stops = [stop for stop in stops if unicodedata.category(stop) != "Cn"]  # the library may have a newer Unicode
    assert len(stops) > 140 and all(map(sentences.ends, stops))
    for stop in ("»", "“", "”", "’", "」", ")", "›", ":", ";", "…", '"', ".\u200f", "؟\u200e"):
        assert sentences.ends(f"A fox{stop}")
    for none in ("", " ", "A fox", "A fox,", "حيوان،", "狐狸、", "狐狸，", "50%", "・", "#", "A fox -", "A fox*"):
        assert not sentences.ends(none)
    assert sentences.is_unstopped("เกิดในปี 2475") and sentences.is_unstopped("ວັນ") and not sentences.is_unstopped("Fox")
