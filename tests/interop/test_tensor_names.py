"""Classes of transformers, and names that versions and wrappers gave to their tensors."""

import dataclasses
from collections.abc import Iterable

import numpy as np
import pytest

from plmjax.errors import UserError
from plmjax.interop import gpt, huggingface, longformer, marian, xlnet
from plmjax.interop.adapter import example_rows, mask_of
from plmjax.interop.huggingface import ADAPTERS
from plmjax.interop.tensor_names import unwrap
from plmjax.interop.tensors import Tensors
from plmjax.models.bert import BertConfig, BertForSequenceClassification
from plmjax.models.transformer import TransformerConfig

BUFFERS = {
    "albert": ("albert.embeddings.position_ids", "embeddings.token_type_ids"),
    "bart": ("final_logits_bias", "model.encoder.version", "model.decoder.version"),
    "bert": ("bert.embeddings.position_ids", "bert.embeddings.token_type_ids", "embeddings.position_ids"),
    "deberta-v2": ("deberta.embeddings.position_ids", "embeddings.position_ids"),
    "distilbert": ("distilbert.embeddings.position_ids", "embeddings.position_ids"),
    "electra": ("electra.embeddings.position_ids", "electra.embeddings.token_type_ids"),
    "gpt2": ("transformer.h.0.attn.bias", "h.11.attn.bias", "h.3.attn.masked_bias"),
    "led": ("final_logits_bias",),
    "longformer": ("longformer.embeddings.position_ids",),
    "marian": ("model.encoder.embed_positions.weight", "decoder.embed_positions.weight"),
    "mobilebert": ("mobilebert.embeddings.position_ids",),
    "openai-gpt": ("transformer.h.10.attn.bias", "h.0.attn.bias", "transformer.position_ids", "position_ids"),
    "reformer": (
        "lm_head.bias",
        "reformer.encoder.layers.0.attention.self_attention.mask_value_float16",
        "encoder.layers.11.attention.self_attention.self_mask_value_float32",
    ),
    "roberta": ("roberta.embeddings.position_ids", "roberta.embeddings.token_type_ids"),
}
"""System -> buffers of its published files."""
PARAMETERS = {
    "bart": {"shared.weight": "model.shared.weight", "lm_head.weight": "lm_head.weight"},
    "bert": {"encoder.layer.0.output.LayerNorm.beta": "bert.encoder.layer.0.output.LayerNorm.bias"},
    "gpt2": {"h.0.attn.c_attn.bias": "transformer.h.0.attn.c_attn.bias", "ln_f.bias": "transformer.ln_f.bias"},
    "marian": {"final_logits_bias": "final_logits_bias"},
    "openai-gpt": {"h.1.attn.c_attn.bias": "transformer.h.1.attn.c_attn.bias"},
    "xlnet": {"mask_emb": "mask_emb", "layer.0.ff.layer_1.bias": "transformer.layer.0.ff.layer_1.bias"},
}
"""System -> parameters under names of a headless file or of an older version, and their names today."""


OTHER_HEADS = {
    "albert": ("predictions.bias", "sop_classifier.classifier.bias", "qa_outputs.bias", "albert.pooler.weight"),
    "bart": ("classification_head.dense.bias", "lm_head.weight", "qa_outputs.bias"),
    "bert": ("cls.seq_relationship.bias", "classifier.bias", "fit_dense.weight", "fit_denses.3.bias"),
    "deberta-v2": (
        "lm_predictions.lm_head.bias",
        "mask_predictions.dense.weight",
        "pooler.dense.bias",
        "qa_outputs.bias",
    ),
    "distilbert": ("vocab_transform.bias", "vocab_layer_norm.bias", "vocab_projector.bias", "pre_classifier.bias"),
    "electra": ("discriminator_predictions.dense.bias", "generator_lm_head.bias", "sequence_summary.summary.bias"),
    "eurobert": ("lm_head.weight", "dense.bias", "classifier.weight"),
    "gpt2": ("score.weight", "classifier.weight", "qa_outputs.bias", "multiple_choice_head.summary.bias"),
    "led": ("lm_head.weight",),
    "longformer": ("lm_head.dense.bias", "classifier.dense.bias", "longformer.pooler.dense.bias"),
    "marian": ("lm_head.weight", "final_logits_bias"),
    "mobilebert": ("cls.seq_relationship.bias", "classifier.bias", "qa_outputs.bias", "mobilebert.pooler.dense.bias"),
    "modernbert": ("head.dense.weight", "decoder.bias", "classifier.weight"),
    "modernbert-decoder": ("lm_head.dense.weight", "decoder.bias", "head.norm.weight", "classifier.weight"),
    "openai-gpt": ("lm_head.weight", "score.weight", "multiple_choice_head.summary.bias"),
    "reformer": ("lm_head.decoder.weight", "classifier.dense.bias", "qa_outputs.bias"),
    "roberta": ("lm_head.dense.bias", "classifier.out_proj.bias", "roberta.pooler.dense.bias"),
    "t5": ("lm_head.weight", "classifier.bias", "classification_head.dense.bias", "qa_outputs.bias"),
    "xlnet": ("sequence_summary.summary.bias", "logits_proj.bias", "classifier.bias", "start_logits.dense.bias"),
}
"""System -> tensors of the heads that transformers' classes of it have; some of these classes are unknown here."""


@pytest.mark.parametrize("system", ADAPTERS)
def test_a_file_may_have_the_head_of_another_class(system: str) -> None:
    """A class that is known here, or one that transformers has besides."""
    adapter = ADAPTERS[system]
    known = (one for one in adapter.architectures.values() if not one.within)
    tensors = {tensor for one in known for conversion in one.conversions for tensor in conversion.tensors}
    prefix = f"{adapter.names.prefix}."
    heads = {name for name in tensors if not name.startswith(prefix)} if len(prefix) > 1 else set()
    assert all(adapter.names.optional(name) for name in (*heads, *OTHER_HEADS[system]))
    assert not adapter.names.optional(f"{prefix}something.weight")


@pytest.mark.parametrize("system", BUFFERS)
def test_buffers_are_left_out(system: str) -> None:
    assert {name: ADAPTERS[system].names.today(name) for name in BUFFERS[system]} == dict.fromkeys(BUFFERS[system])


@pytest.mark.parametrize("system", PARAMETERS)
def test_parameters_have_the_names_of_a_model_with_a_head(system: str) -> None:
    assert {old: ADAPTERS[system].names.today(old) for old in PARAMETERS[system]} == PARAMETERS[system]


def test_a_head_is_named_by_the_whole_first_part() -> None:
    """`classifier.bias` is of a classifier, `classifiers.bias` of something unknown."""
    names = ADAPTERS["bert"].names
    assert (
        names.optional("classifier.bias") and names.optional("classifier") and names.optional("bert.pooler.dense.bias")
    )
    assert not names.optional("classifiers.bias") and not names.optional("bert.pooled")


def tensors_of(names: Iterable[str]) -> Tensors:
    names = list(names)
    return Tensors("there", dict.fromkeys(names, (2,)), dict.fromkeys(names, "float32"), lambda name: np.zeros(2))


@pytest.mark.parametrize(
    "wrapped",
    [
        "module.{}",
        "_orig_mod.{}",
        "module._orig_mod.{}",
        "_orig_mod.module.module.{}",
        "_fsdp_wrapped_module.{}",
        "_forward_module.{}",
    ],
)
@pytest.mark.parametrize("system", PARAMETERS)
def test_what_wraps_a_model_is_no_part_of_its_names(system: str, wrapped: str) -> None:
    adapter = ADAPTERS[system]
    architecture = next(iter(adapter.architectures.values()))
    own = adapter.names.canonical(tensors_of(PARAMETERS[system]), architecture)
    found = adapter.names.canonical(tensors_of(map(wrapped.format, PARAMETERS[system])), architecture)
    assert found.shapes == own.shapes
    for name in found.shapes:
        np.testing.assert_array_equal(found.read(name), np.zeros(2))


def test_a_part_that_is_wrapped_within_a_model() -> None:
    names = ("bert.encoder._orig_mod.layer.0.output.dense.bias", "bert.encoder.layer.0.output.dense.bias")
    assert list(unwrap(tensors_of(names[:1])).shapes) == ["bert.encoder.layer.0.output.dense.bias"]
    with pytest.raises(UserError, match=r"Expected one tensor bert\.encoder\.layer\.0\.output\.dense\.bias in there"):
        unwrap(tensors_of(names))


@pytest.mark.parametrize(
    ("names", "prefix"),
    [
        (("model.bert.embeddings.word_embeddings.weight", "model.classifier.weight"), "model."),
        (("encoder_q.embeddings.word_embeddings.weight", "encoder_q.encoder.layer.0.output.dense.bias"), "encoder_q."),
    ],
)
def test_a_foreign_prefix_is_named(names: tuple[str, ...], prefix: str) -> None:
    adapter = ADAPTERS["bert"]
    with pytest.raises(UserError, match=rf"begin with bert\. or embeddings\..* in there, found the prefix '{prefix}'"):
        adapter.names.canonical(tensors_of(names), adapter.architectures["BertModel"])


def test_a_module_that_mixes_its_layers_or_has_another_config_is_of_no_known_class() -> None:
    adapter = huggingface.ADAPTERS["bert"]
    module = BertForSequenceClassification(BertConfig.tiny(), num_labels=2)
    assert adapter.knows(module)
    other = dataclasses.make_dataclass("Other", [], bases=(BertConfig,), frozen=True)()
    assert not adapter.knows(BertForSequenceClassification(other, num_labels=2))
    object.__setattr__(module, "mix", True)
    assert not adapter.knows(module)


CLASSES = {
    "albert": "Albert: Model *ForPreTraining *ForMaskedLM ForSequenceClassification ForMultipleChoice "
    "ForTokenClassification ForQuestionAnswering",
    "bart": "Bart: *ForConditionalGeneration *Model *ForSequenceClassification *ForQuestionAnswering",
    "bert": "Bert: Model *ForPreTraining *ForMaskedLM ForNextSentencePrediction ForSequenceClassification "
    "ForMultipleChoice ForTokenClassification ForQuestionAnswering",
    "deberta-v2": "DebertaV2: Model ForMaskedLM ForSequenceClassification ForMultipleChoice ForTokenClassification "
    "ForQuestionAnswering",
    "distilbert": "DistilBert: Model *ForMaskedLM ForSequenceClassification ForMultipleChoice ForTokenClassification "
    "ForQuestionAnswering",
    "electra": "Electra: Model ForPreTraining *ForMaskedLM ForSequenceClassification ForMultipleChoice "
    "ForTokenClassification ForQuestionAnswering",
    "eurobert": "EuroBert: Model *ForMaskedLM ForSequenceClassification ForTokenClassification",
    "gpt2": "GPT2: *LMHeadModel Model *DoubleHeadsModel ForSequenceClassification ForQuestionAnswering",
    "led": "LED: *ForConditionalGeneration *Model",
    "longformer": "Longformer: Model *ForMaskedLM ForSequenceClassification ForTokenClassification "
    "ForQuestionAnswering ForMultipleChoice",
    "marian": "Marian: *MTModel *Model",
    "mobilebert": "MobileBert: Model *ForPreTraining *ForMaskedLM ForNextSentencePrediction ForSequenceClassification "
    "ForMultipleChoice ForTokenClassification ForQuestionAnswering",
    "modernbert": "ModernBert: Model *ForMaskedLM ForSequenceClassification ForTokenClassification "
    "ForQuestionAnswering ForMultipleChoice",
    "modernbert-decoder": "ModernBertDecoder: Model *ForCausalLM ForSequenceClassification",
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


@pytest.mark.parametrize("padding", [None, 0, 3, 4])
def test_an_example_has_padding_in_half_of_its_second_row_alone(padding: int | None) -> None:
    rows = example_rows(np.random.default_rng(0), 64, 5, padding=padding, side="decoder_")
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
