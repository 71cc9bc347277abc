"""The spelling of words; tests/families/recurrent.py has the filters over their characters."""

import numpy as np

from plmjax.layers.words.characters import CHARACTERS, sentence_marks, spell


def test_a_word_is_its_bytes_between_two_marks():
    rows = spell(["cat", "", "é"], 7)
    begin, end, pad = 259, 260, 261
    assert rows.dtype == np.int32
    assert rows.tolist() == [
        [begin, ord("c") + 1, ord("a") + 1, ord("t") + 1, end, pad, pad],
        [begin, end, pad, pad, pad, pad, pad],
        [begin, 0xC3 + 1, 0xA9 + 1, end, pad, pad, pad],
    ]
    assert rows.max() == CHARACTERS


def test_a_long_word_is_cut_within_its_marks():
    assert spell(["abcdef", "abcé"], 5).tolist() == [[259, 98, 99, 100, 260]] * 2


def test_the_marks_of_a_sentence_are_words_of_one_mark():
    assert sentence_marks(4).tolist() == [[259, 257, 260, 261], [259, 258, 260, 261]]
