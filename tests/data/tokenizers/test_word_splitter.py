"""Words of a vocabulary in a text: every one of them is found, in every language and by every convention."""

import unicodedata
from pathlib import Path

import pytest

from plmjax.data import tokenizers
from tests.data.tokenizers.scripts import TEXTS

VOCABULARIES = {
    "french": "été garçon où aujourd'hui l'homme peut-être cœur",
    "japanese": "がんばる パーティー 日本語 食べる ゲーム 々",
    "hindi": "हिन्दी में ज़्यादा पढ़ने की ज़रूरत",
    "persian": "می\u200cخواهم کتاب خانه\u200cها",
    "vietnamese": "việt_nam tiếng_việt người đẹp không",
    "google news": "the The New_York don't U.S. Mr. ## ### .com AT&T café Beyoncé C++ 3.5 Wal_Mart_Stores",
    "glove": "the u.s. 3.5 n't 's do -lrb- -- well-known 1,000 ... '' `` $ p.m. o'clock http://t.co",
    "twitter": ":) ❤️ 👨‍👩‍👧 #tag @user <user> rt ! haha",
    "fasttext": "the The don't U.S. 3.5 new-york — “ ” L'État A.I. naïve и́мя",
    "decomposed": unicodedata.normalize("NFD", "été garçon 한국어 й"),
    "mixed forms": "été " + unicodedata.normalize("NFD", "été"),
    "other scripts": " ".join(dict.fromkeys(unicodedata.normalize("NFC", " ".join(TEXTS.values())).split())),
}


@pytest.mark.parametrize("name", VOCABULARIES)
def test_every_word_is_found(name: str, tmp_path: Path):
    words = VOCABULARIES[name].split()
    tokenizers.from_words(words, tmp_path)
    tokenizer = tokenizers.load(tmp_path)
    for text in (*words, " ".join(words), "\n".join(reversed(words))):
        assert tokenizer.tokens(tokenizer.encode(text)) == text.split()


@pytest.mark.parametrize(
    ("words", "text", "found"),
    [
        ("i do n't john 's the . ,", "I don't. John's, the", "i do n't . john 's , the"),
        ("i do don't john ' s .", "I don't, John's.", "i don't [UNK] john ' s ."),
        ("can't ca n't wo", "can't won't n't n'tx", "can't wo n't n't [UNK] [UNK] [UNK]"),
        ("u.s. a . is", "The U.S. is. U.S.A", "[UNK] u.s. is . u.s. a"),
        ("3.5 3 5 13 . %", "3.5 13.5 3.5%", "3.5 13 . 5 3.5 %"),
        ("new_york new york _", "new_york new york old_york", "new_york new york [UNK]"),
        ("well-known - fact", "well-known-fact well-fact", "well-known - fact [UNK] - fact"),
        ("cat house", "housecat house-cat", "[UNK] house [UNK] cat"),
        ("我 爱 中国 中国人 民", "我爱中国人民", "我 爱 中国人 民"),
        ("ไทย ที่นี่", "ไทยที่นี่", "ไทย ที่นี่"),
        ("the café cafe", "The CAFÉ cafe\u0301 cafe", "the café café cafe"),
        ("a", "a 我们 b", "a [UNK] [UNK] [UNK]"),
        ("the it", "th\u200ce İT", "the it"),
    ],
)
def test_a_text_is_split_into_the_longest_words(words: str, text: str, found: str, tmp_path: Path):
    tokenizer = tokenizers.from_words(words.split(), tmp_path)
    assert tokenizer.tokens(tokenizer.encode(text)) == found.split()
    assert tokenizers.load(tmp_path).encode(text) == tokenizer.encode(text)
