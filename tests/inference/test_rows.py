"""Texts as padded rows: batches of one width, and the inputs of a model by its template."""

import numpy as np

from plmjax.inference.rows import batches, inputs
from plmjax.models.bert import BertConfig
from plmjax.models.gpt import GptConfig
from plmjax.models.xlnet.xlnet import XlnetConfig
from tests.finetuning import parity
from tests.finetuning.parity import NumbersOfGpt

CLS, SEP = parity.VOCABULARY.cls, parity.VOCABULARY.sep


def test_batches_are_of_one_width_and_the_last_is_filled_up_with_its_own_rows() -> None:
    rows = [[1] * 20, [2] * 3, [3] * 5, [4] * 16]
    found = list(batches(rows, 64, 2, 9))
    assert [chosen for chosen, _ in found] == [[1, 2], [3], [0]]
    assert [batch["input_ids"].shape for _, batch in found] == [(2, 16), (2, 16), (2, 24)]
    assert found[0][1]["input_ids"][:, :6].tolist() == [[2, 2, 2, 9, 9, 9], [3, 3, 3, 3, 3, 9]]
    assert found[0][1]["attention_mask"].sum(axis=1).tolist() == [3, 5]
    np.testing.assert_array_equal(*found[1][1]["input_ids"])


def test_texts_and_pairs_are_laid_out_with_their_types_and_padded_behind() -> None:
    found = inputs(BertConfig.tiny(), NumbersOfGpt(), ["11 12", ("13", "14 15 16")])
    assert found["input_ids"].tolist() == [[CLS, 11, 12, SEP, 0, 0, 0], [CLS, 13, SEP, 14, 15, 16, SEP]]
    assert found["token_type_ids"].tolist() == [[0] * 7, [0] * 3 + [1] * 4]
    assert found["attention_mask"].tolist() == [[True] * 4 + [False] * 3, [True] * 7]
    assert found["input_ids"].dtype == np.int32 and found["attention_mask"].dtype == bool
    longer = inputs(BertConfig.tiny(), NumbersOfGpt(), ["11 12"], length=9)
    assert longer["input_ids"].tolist() == [[CLS, 11, 12, SEP, 0, 0, 0, 0, 0]]
    cut = inputs(BertConfig.tiny(), NumbersOfGpt(), [("13", "14 15 16")], length=6)
    assert cut["input_ids"].tolist() == [[CLS, 13, SEP, 14, 15, SEP]]


def test_a_text_longer_than_the_positions_is_cut() -> None:
    config = BertConfig.tiny(max_position_embeddings=5)
    assert inputs(config, NumbersOfGpt(), ["11 12 13 14 15"])["input_ids"].tolist() == [[CLS, 11, 12, 13, SEP]]
    assert inputs(config, NumbersOfGpt(), ["11"], length=5)["input_ids"].shape == (1, 5)


def test_rows_that_end_in_their_summary_are_padded_in_front() -> None:
    found = inputs(XlnetConfig.tiny(), NumbersOfGpt(), ["11", "12 13 14"])
    assert found["input_ids"].tolist() == [[0, 0, 11, SEP, CLS], [12, 13, 14, SEP, CLS]]
    assert found["attention_mask"].tolist() == [[False, False, True, True, True], [True] * 5]
    assert found["token_type_ids"][:, -1].tolist() == [2, 2] and found["token_type_ids"][0, :2].tolist() == [0, 0]


def test_pairs_in_both_orders_have_two_rows() -> None:
    config = GptConfig.tiny(both_orders=True)
    found = inputs(config, NumbersOfGpt(), [("11", "12 13"), ("14", "15")])
    assert found["input_ids"].shape == (2, 2, 6)
    assert found["input_ids"][0].tolist() == [[90, 11, 91, 12, 13, 92], [90, 12, 13, 91, 11, 92]]
    assert found["attention_mask"][1].tolist() == [[True] * 5 + [False]] * 2
