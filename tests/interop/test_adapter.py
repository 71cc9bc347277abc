"""The example on which systems are compared, and which outputs a mask belongs to."""

import dataclasses

import numpy as np
import pytest

from plmjax.interop import gpt, huggingface, longformer, marian, xlnet
from plmjax.interop.adapter import example_rows, mask_of
from plmjax.models.bert import BertConfig, BertForSequenceClassification
from plmjax.models.transformer import TransformerConfig


@pytest.mark.parametrize("padding", [None, 0, 3, 4])
def test_an_example_has_padding_in_half_of_its_second_row_alone(padding: int | None) -> None:
    rows = example_rows(np.random.default_rng(0), 64, 5, padding, side="decoder_")
    ids, mask = rows["decoder_input_ids"], rows["decoder_attention_mask"]
    assert len(rows) == 2 and ids.dtype == mask.dtype == np.int32
    assert mask.tolist() == [[1] * 64, [1] * 33 + [0] * 31]
    assert set(ids[mask == 1].tolist()) == {0, 1, 2, 3, 4} - {padding}
    if padding is not None:
        assert (ids[mask == 0] == padding).all()


def test_each_side_of_an_encoder_and_a_decoder_has_its_own_mask() -> None:
    one, other = np.zeros((1, 2)), np.ones((1, 2))
    both = {"attention_mask": one, "decoder_attention_mask": other}
    assert mask_of("encoder_hidden", both) is one and mask_of("logits", both) is other
    assert mask_of("encoder_hidden", {"attention_mask": one}) is mask_of("logits", {"attention_mask": one}) is one
    assert mask_of("logits", {}) is None


def test_a_module_that_mixes_its_layers_or_has_another_config_is_of_no_known_class() -> None:
    adapter = huggingface.ADAPTERS["bert"]
    module = BertForSequenceClassification(BertConfig.tiny(), num_labels=2)
    assert adapter.knows(module)
    other = dataclasses.make_dataclass("Other", [], bases=(BertConfig,), frozen=True)()
    assert not adapter.knows(BertForSequenceClassification(other, num_labels=2))
    object.__setattr__(module, "mix", True)
    assert not adapter.knows(module)


def test_one_question_has_its_choices_along_a_second_axis() -> None:
    """XLNet reads the last token of a row, so its padding comes first there; GPT takes no mask."""
    ids, mask = np.array([[5, 6, 7, 8], [9, 9, 0, 0]]), np.array([[1, 1, 1, 1], [1, 1, 0, 0]])
    rows = {"input_ids": ids, "attention_mask": mask, "token_type_ids": mask * 3}
    found = xlnet.choices(rows)
    assert found["input_ids"].tolist() == [[[5, 6, 7, 8], [0, 0, 9, 9]]]
    assert found["attention_mask"].tolist() == [[[1, 1, 1, 1], [0, 0, 1, 1]]]
    assert found["token_type_ids"].tolist() == [[[3, 3, 3, 3], [0, 0, 3, 3]]]
    assert {name: field.tolist() for name, field in gpt.choices(rows).items()} == {"input_ids": [ids.tolist()]}
    found = longformer.choices(rows)
    assert found["global_attention_mask"].tolist() == [[[1, 0, 0, 0], [1, 0, 0, 0]]]
    assert found["input_ids"].tolist() == [ids.tolist()] and len(found) == 4


def test_positions_of_both_sides_of_a_translation_are_sinusoids() -> None:
    """All sines before all cosines, as transformers has them."""
    config = TransformerConfig.tiny(d_model=4, encoder_attention_heads=2, decoder_attention_heads=2)
    found = marian.positions(config)
    assert [*found] == ["encoder.embed_positions.weight", "decoder.embed_positions.weight"]
    for table in found.values():
        assert table.shape == (config.max_position_embeddings, 4)
        angles = np.array([3.0, 3.0 / 100])  # 10000 ** (2 / 4)
        np.testing.assert_allclose(table[3], [*np.sin(angles), *np.cos(angles)], rtol=1e-6)


CLASSES = {
    "albert": "Albert: Model *ForPreTraining *ForMaskedLM ForSequenceClassification ForMultipleChoice "
    "ForTokenClassification ForQuestionAnswering",
    "bart": "Bart: *ForConditionalGeneration *Model *ForSequenceClassification *ForQuestionAnswering",
    "bert": "Bert: Model *ForPreTraining *ForMaskedLM ForNextSentencePrediction ForSequenceClassification "
    "ForMultipleChoice ForTokenClassification ForQuestionAnswering",
    "distilbert": "DistilBert: Model *ForMaskedLM ForSequenceClassification ForMultipleChoice ForTokenClassification "
    "ForQuestionAnswering",
    "electra": "Electra: Model ForPreTraining *ForMaskedLM ForSequenceClassification ForMultipleChoice "
    "ForTokenClassification ForQuestionAnswering",
    "gpt2": "GPT2: *LMHeadModel Model *DoubleHeadsModel ForSequenceClassification ForQuestionAnswering",
    "led": "LED: *ForConditionalGeneration *Model",
    "longformer": "Longformer: Model *ForMaskedLM ForSequenceClassification ForTokenClassification "
    "ForQuestionAnswering ForMultipleChoice",
    "marian": "Marian: *MTModel *Model",
    "mobilebert": "MobileBert: Model *ForPreTraining *ForMaskedLM ForNextSentencePrediction ForSequenceClassification "
    "ForMultipleChoice ForTokenClassification ForQuestionAnswering",
    "openai-gpt": "OpenAIGPT: *LMHeadModel Model *DoubleHeadsModel ForSequenceClassification",
    "reformer": "Reformer: ModelWithLMHead ForMaskedLM ForSequenceClassification ForQuestionAnswering Model",
    "roberta": "Roberta: Model *ForMaskedLM ForSequenceClassification ForMultipleChoice ForTokenClassification "
    "ForQuestionAnswering",
    "t5": "T5: *ForConditionalGeneration *Model",
    "xlnet": "XLNet: Model *LMHeadModel ForSequenceClassification ForMultipleChoice ForTokenClassification "
    "ForQuestionAnsweringSimple ForQuestionAnswering",
}
"""System -> the name of its classes in transformers: their ends, with a star before one whose tables are tied."""


@pytest.mark.parametrize("system", sorted(huggingface.ADAPTERS))
def test_every_class_has_its_tables_tied_or_not(system: str) -> None:
    """A class that is not tied takes folders whose tables differ, and one that is lacking is not found there."""
    begin, ends = CLASSES[system].split(": ")
    known = huggingface.ADAPTERS[system].architectures
    assert {name: made.tied for name, made in known.items()} == {
        begin + name.lstrip("*"): name.startswith("*") for name in ends.split()
    }
