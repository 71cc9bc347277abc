"""Checkpoints of transformers' systems as they were published, as smaller classes, and what does not fit."""

import dataclasses
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.errors import UserError
from plmjax.interop import huggingface, marian
from plmjax.models.albert import AlbertConfig, AlbertForMaskedLM, AlbertForPreTraining, AlbertModel
from plmjax.models.bert import BertConfig, BertForMaskedLM, BertForPreTraining, BertForSequenceClassification, BertModel
from plmjax.models.distilbert import DistilBertConfig, DistilBertForMaskedLM, DistilBertModel
from plmjax.models.electra import ElectraConfig
from plmjax.models.gpt import GptForCausalLM, GptForSequenceClassification
from plmjax.models.gpt2 import Gpt2Config, Gpt2ForCausalLM
from plmjax.models.mobilebert import TEACHER, MobileBertConfig, MobileBertForPreTraining, MobileBertModel
from plmjax.models.roberta import RobertaConfig, RobertaForMaskedLM
from plmjax.models.transformer import TransformerForConditionalGeneration
from tests.families.decoders import GPT
from tests.families.encoder_decoders import MARIAN
from tests.interop.odd_bert import SIZES, assert_same_bits, random_params, rewrite, set_config
from tests.optional import needs_torch

BERT = BertConfig(**SIZES)
ALBERT = AlbertConfig(**SIZES, embedding_size=7, classifier_dropout_prob=0.2)
DISTILBERT = DistilBertConfig(**{name: size for name, size in SIZES.items() if name != "type_vocab_size"})
MOBILEBERT = MobileBertConfig(**SIZES, embedding_size=6, intra_bottleneck_size=10, num_feedforward_networks=2)
ROBERTA = RobertaConfig(**SIZES | {"max_position_embeddings": 21})
GPT2 = Gpt2Config(vocab_size=30, n_positions=19, n_embd=24, n_layer=2, n_head=3, bos_token_id=0, eos_token_id=0)
TINYBERT = dataclasses.replace(
    BERT, hidden_size=12, num_hidden_layers=4, num_attention_heads=4, intermediate_size=46, hidden_act="gelu"
)
"""TinyBERT's shape: a feed-forward network that is not four times as wide."""
WHOLE: dict[str, nn.Module] = {
    "albert": AlbertForPreTraining(ALBERT),
    "bert": BertForPreTraining(BERT),
    "distilbert": DistilBertForMaskedLM(DISTILBERT),
    "gpt": GptForCausalLM(GPT),
    "gpt2": Gpt2ForCausalLM(GPT2),
    "marian": TransformerForConditionalGeneration(MARIAN),
    "mobilebert": MobileBertForPreTraining(MOBILEBERT),
    "roberta": RobertaForMaskedLM(ROBERTA),
    "tinybert": BertForPreTraining(TINYBERT),
    "tinybert's task": BertForSequenceClassification(TINYBERT, num_labels=3),
}


def saved(module: nn.Module, folder: Path) -> dict[str, Any]:
    """The parameters of a module that was written to a folder, so small that layers do not magnify rounding."""
    params = jax.tree.map(lambda leaf: leaf * np.float32(0.3), random_params(module))
    huggingface.save(module, params, folder)
    return params


SMALLER = [
    ("bert", BertModel(BERT)), ("albert", AlbertForMaskedLM(ALBERT)), ("distilbert", DistilBertModel(DISTILBERT)),
    ("mobilebert", MobileBertModel(MOBILEBERT, pooling=False)),
]  # fmt: skip
"""Module, and one of fewer parameters that is written from it. The first is that of the day."""


@needs_torch
@pytest.mark.parametrize(
    ("whole", "smaller"),
    [pytest.param(*case, id=case[0], marks=() if case[0] == "bert" else pytest.mark.nightly) for case in SMALLER],
)
def test_a_pretrained_model_is_written_as_a_smaller_architecture(whole: str, smaller: nn.Module, tmp_path) -> None:
    module, name = WHOLE[whole], type(smaller).__name__
    params = jax.tree.map(lambda leaf: leaf * np.float32(0.3), random_params(module))
    huggingface.save(module, params, tmp_path, architecture=name)
    assert huggingface.compare(module, params, tmp_path, name) <= 1e-5
    assert huggingface.load(tmp_path)[0] == smaller


FIT = {
    f"fit_denses.{number}.{leaf}": (17, 12)[: 2 - (leaf == "bias")]
    for number in range(5)
    for leaf in ("weight", "bias")
}
RELEASED: dict[str, tuple[dict[str, Any], dict[str, Any], str, str, str]] = {
    "albert": (
        {"predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
         "predictions.decoder.bias": "predictions.bias", "albert.embeddings.position_ids": (1, 19)},
        {}, "", "AlbertForMaskedLM", "sop_classifier.classifier.weight albert.pooler.weight",
    ),
    "bert": (
        {"cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
         "cls.predictions.decoder.bias": "cls.predictions.bias", "bert.embeddings.position_ids": (1, 19)},
        {}, "bert.", "BertForMaskedLM", "cls.seq_relationship.weight bert.pooler.dense.weight",
    ),
    "distilbert": (
        {"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
        {"sinusoidal_pos_embds": True, "tie_weights_": True}, "", "DistilBertModel", "vocab_transform.weight",
    ),
    "gpt": ({f"h.{layer}.attn.bias": (1, 1, 19, 19) for layer in range(3)}, {}, "transformer.", "", ""),
    "gpt2": (
        {"lm_head.weight": "transformer.wte.weight", "h.0.attn.bias": (1, 1, 19, 19), "h.1.attn.masked_bias": (1,)},
        {"n_ctx": 19, "summary_type": "mean"}, "transformer.", "GPT2Model", "",
    ),
    "marian": (
        {**dict.fromkeys(marian.COPIES, "model.shared.weight"), "model.encoder.embed_positions.weight": (19, 24),
         "model.decoder.embed_positions.weight": (19, 24)},
        {}, "", "", "",
    ),
    "mobilebert": (
        {"cls.predictions.decoder.weight": "mobilebert.embeddings.word_embeddings.weight",
         "cls.predictions.decoder.bias": "cls.predictions.bias", "mobilebert.embeddings.position_ids": (1, 19)},
        {"true_hidden_size": 10}, "", "MobileBertModel", "cls.predictions.dense.weight",
    ),
    "roberta": (
        {"lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
         "lm_head.decoder.bias": "lm_head.bias", "roberta.embeddings.position_ids": (1, 21),
         "roberta.pooler.dense.weight": (15, 15), "roberta.pooler.dense.bias": (15,)},
        {}, "", "RobertaModel", "roberta.pooler.dense.weight",
    ),
    "tinybert": (FIT, {"cell": {}, "emb_size": 12}, "", "", "fit_denses.4.weight"),
    "tinybert's task": ({"fit_dense.weight": (17, 12), "fit_dense.bias": (17,)}, {}, "", "", "fit_dense.weight"),
}  # fmt: skip
"""Module -> tensors that its files have besides, as copies of others or by their shapes; settings; the prefix that they
lack; a smaller class that is read from them; and the tensors that the log names as left out."""


@pytest.mark.parametrize("system", RELEASED)
def test_what_the_released_files_hold_besides_is_left_out(system: str, tmp_path: Path, caplog) -> None:
    """Copies of what is tied, buffers, heads that a class lacks. A copy that differs is named."""
    further, settings, prefix, smaller, left_out = RELEASED[system]
    module = WHOLE[system]
    params = saved(module, tmp_path)

    def released(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        more = {
            name: tensors[one].copy() if isinstance(one, str) else np.ones(one, np.float32)
            for name, one in further.items()
        }
        return {name.removeprefix(prefix): tensor for name, tensor in (tensors | more).items()}

    rewrite(tmp_path, released)
    set_config(tmp_path, **settings)
    again, found = huggingface.load(tmp_path)
    assert again == module
    assert_same_bits(found, params)
    if smaller:
        encoder, of_encoder = huggingface.load(tmp_path, architecture=smaller)
        assert type(encoder).__name__.casefold() == smaller.casefold()
        assert system != "roberta" or (encoder.pooling and (of_encoder["pooler"]["bias"] == 1).all())
    assert all(name in caplog.text for name in left_out.split())
    copies = [name for name, one in further.items() if isinstance(one, str) and name.endswith("weight")]
    if copies:
        rewrite(tmp_path, lambda tensors: tensors | {copies[0]: tensors[copies[0]] + 1})
        with pytest.raises(UserError, match=f"Expected {copies[0]} tied to {further[copies[0]]}"):
            huggingface.load(tmp_path)


MISFITS: list[tuple[nn.Module, dict[str, Any], str]] = [
    (BertForMaskedLM(BERT), {"model_type": "bloom"}, "Expected a model_type of .*bert.*, found 'bloom'"),
    (BertForMaskedLM(BERT), {"architectures": ["BertLMHeadModel"]}, "an architecture of BertModel, .*, found 'BertLM"),
    (BertForMaskedLM(BERT), {"architectures": None}, "architecture of .*, found None; choose one with --architecture"),
    (BertForMaskedLM(BERT), {"hidden_act": "gelu_10"}, "Expected an activation of gelu_new, .*found 'gelu_10'"),
    (BertForMaskedLM(BERT), {"num_hidden_layers": 2}, "encoder.layer.2.attention.output.LayerNorm.bias.*has no param"),
    (BertForMaskedLM(BERT), {"num_hidden_layers": 4}, "bert.encoder.layer.3.*and 10 more missing"),
    (BertForMaskedLM(BERT), {"vocab_size": 40}, r"word_embeddings.weight \[37, 15\] instead of \[40, 15\]"),
    (AlbertModel(ALBERT), {"num_hidden_groups": 4}, "num_hidden_groups from 1 to the 3 layers, found 4"),
    (AlbertModel(ALBERT), {"inner_group_num": 2}, r"found encoder\.albert_layer_groups\.0\.albert_.*\.1\..* missing"),
    (WHOLE["mobilebert"], {"key_query_shared_bottleneck": False}, "attention that reads a bottleneck"),
    (WHOLE["mobilebert"], {"use_bottleneck_attention": True}, "found both; set the second to False"),
    (ElectraConfig(**SIZES, embedding_size=7).module(Purpose.MULTIPLE_CHOICE, Execution()), {"summary_type": "mean"},
     r"summary_type = 'first' .*, found 'mean'"),
    (WHOLE["gpt"], {"afn": "tanh"}, "afn of gelu or relu or silu"),
    (WHOLE["gpt2"], {"architectures": ["GPT2DoubleHeadsModel"], "summary_type": "mean"}, "summary_type = 'cls_index'"),
]  # fmt: skip
"""Module, settings of the config that it is written with, and the sentence on them."""
UNWRITTEN = [
    (GptForSequenceClassification(GPT), {"both_orders": True}, "reads a pair once"),
    (GptForSequenceClassification(GPT), {"activation_function": "gelu"}, "activation of gelu_new or relu"),
    (GptForSequenceClassification(GPT), {"pad_token_id": None}, "id of padding"),
    (WHOLE["mobilebert"], TEACHER, "a model with no_norm, as transformers has MobileBERT, found layer_norm"),
    (WHOLE["mobilebert"], {"key_query_shared_bottleneck": False}, "a bottleneck, as transformers computes it"),
]
"""Module, a change of its config that transformers cannot express, and the sentence on it."""


def test_a_config_that_does_not_fit_is_one_sentence(tmp_path: Path) -> None:
    for module, settings, sentence in MISFITS:
        saved(module, tmp_path)
        set_config(tmp_path, **settings)
        with pytest.raises(UserError, match=sentence):
            huggingface.load(tmp_path)
    for module, change, sentence in UNWRITTEN:
        module = module.clone(config=dataclasses.replace(module.config, **change))
        with pytest.raises(UserError, match=sentence):
            huggingface.save(module, random_params(module), tmp_path / "out")
        assert not (tmp_path / "out").exists()
