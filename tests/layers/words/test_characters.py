"""The spelling of words, and filters over their characters beside a loop over places."""

import flax.linen as nn
import jax
import numpy as np

from plmjax.layers.words.character_filters import character_filters
from plmjax.layers.words.characters import CHARACTERS, sentence_marks, spelled


def test_a_word_is_its_bytes_between_two_marks():
    rows = spelled(["cat", "", "é"], 7)
    begin, end, pad = 259, 260, 261
    assert rows.dtype == np.int32
    assert rows.tolist() == [
        [begin, ord("c") + 1, ord("a") + 1, ord("t") + 1, end, pad, pad],
        [begin, end, pad, pad, pad, pad, pad],
        [begin, 0xC3 + 1, 0xA9 + 1, end, pad, pad, pad],
    ]
    assert rows.max() == CHARACTERS


def test_a_long_word_is_cut_within_its_marks():
    assert spelled(["abcdef", "abcé"], 5).tolist() == [[259, 98, 99, 100, 260]] * 2


def test_the_marks_of_a_sentence_are_words_of_one_mark():
    assert sentence_marks(4).tolist() == [[259, 257, 260, 261], [259, 258, 260, 261]]


class TwoWidths(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> list[jax.Array]:
        init = nn.initializers.normal(1.0)
        return [character_filters(self.param, x, width, 3, init, f"_{width}") for width in (1, 2)]


def test_each_filter_gives_its_largest_output_over_all_places():
    x = np.random.default_rng(0).normal(size=(4, 5, 6)).astype(np.float32)
    params = nn.meta.unbox(TwoWidths().init(jax.random.key(0), x)["params"])
    assert set(params) == {"filters_1", "filter_bias_1", "filters_2", "filter_bias_2"}
    params |= {f"filter_bias_{width}": np.array([0.5, -1.0, 2.0], np.float32) for width in (1, 2)}
    for width, found in zip((1, 2), TwoWidths().apply({"params": params}, x), strict=True):
        stretches = np.stack([x[:, place : place + width] for place in range(6 - width)])
        outputs = np.einsum("pnwe,wef->pnf", stretches, params[f"filters_{width}"])
        np.testing.assert_allclose(found, outputs.max(axis=0) + params[f"filter_bias_{width}"], atol=1e-5)
