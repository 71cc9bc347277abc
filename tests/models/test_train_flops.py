"""`train_flops` of every system against the products of its program; what a closed form adds is beside its system."""

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.models.adaptive_span import AdaptiveSpanForCausalLM
from plmjax.models.albert import AlbertForMaskedLM
from plmjax.models.bert import BertForMaskedLM
from plmjax.models.deberta.heads import DebertaForMaskedLM
from plmjax.models.distilbert import DistilBertForMaskedLM
from plmjax.models.electra import ElectraForMaskedLM
from plmjax.models.gpt2 import Gpt2ForCausalLM
from plmjax.models.lite_transformer.decoder import LiteTransformerForCausalLM
from plmjax.models.lite_transformer.lite_transformer import LiteTransformerForConditionalGeneration
from plmjax.models.longformer.decoder import LongformerDecoderForCausalLM
from plmjax.models.longformer.encoder_decoder import LedForConditionalGeneration
from plmjax.models.longformer.longformer import LongformerForMaskedLM
from plmjax.models.mobilebert import MobileBertForMaskedLM
from plmjax.models.modernbert.heads import ModernBertForMaskedLM
from tests.families.decoders import GPT2
from tests.families.encoder_decoders import LITE, LITE_DECODER
from tests.families.encoders import ALBERT, BERT, ELECTRA
from tests.families.long_texts import DECODER, LED, LONGFORMER
from tests.families.memories import SPAN
from tests.families.modern import DEBERTA, MODERNBERT
from tests.families.recurrent import AWD_LSTM, COVE, ELMO, WITHOUT_HIGHWAYS
from tests.families.rotations import DECODER as MODERNBERT_DECODER
from tests.families.rotations import EUROBERT
from tests.families.students import DISTILBERT, IB_BERT, MOBILEBERT, TINY
from tests.families.word_vectors import NNLM, NNLM_ROW
from tests.products import step_flops

MASKED = {"input_ids": (2, 13), "masked_positions": (2, 5)}
TEXT, BOTH, SHORT = {"input_ids": (2, 11)}, {"input_ids": (2, 11), "decoder_input_ids": (2, 7)}, {"input_ids": (2, 5)}
"""Inputs -> their shapes. Rows of 5 tokens are no longer than the windows, whose bands have more keys than count."""


def pretrains(config: Any) -> nn.Module:
    return config.module(Purpose.PRETRAINING, Execution())


def encodes(config: Any) -> nn.Module:
    return config.module(Purpose.ENCODING, Execution())


def changed(config: Any, *changes: dict[str, Any]) -> list[Any]:
    return [dataclasses.replace(config, **each) for each in changes]


SPANS = changed(SPAN, {}, {"computed_span": 7}, {"persistent_size": 5})
CONVOLUTIONS = [{"convolution": name} for name in ("dynamic", "lightweight")]
COVES = changed(COVE, *({"attention": kind, "num_layers": 2} for kind in ("general", "dot")))
GROUPS: list[tuple[Callable[[Any], nn.Module], list[Any], dict[str, tuple[int, ...]], int]] = [
    (AdaptiveSpanForCausalLM, SPANS, TEXT, 11),
    (AlbertForMaskedLM, changed(ALBERT, {}, {"num_hidden_groups": 2, "inner_group_num": 3}), MASKED, 5),
    (pretrains, [AWD_LSTM, *changed(NNLM, {}, *NNLM_ROW.switches)], TEXT, 11),
    (encodes, [AWD_LSTM, COVE, ELECTRA], TEXT, 0),
    (BertForMaskedLM, [BERT], MASKED, 5),
    (pretrains, COVES, BOTH, 7),
    (DebertaForMaskedLM, changed(DEBERTA, {}, {"pos_att_type": ("c2p",)}, {"conv_kernel_size": 3}), MASKED, 5),
    (DistilBertForMaskedLM, [DISTILBERT], MASKED, 5),
    (ElectraForMaskedLM, [ELECTRA], MASKED, 5),
    (encodes, changed(ELMO, {}, WITHOUT_HIGHWAYS), {"characters": (2, 7, 9)}, 0),
    (Gpt2ForCausalLM, [GPT2], TEXT, 11),
    (LiteTransformerForCausalLM, changed(LITE_DECODER, *CONVOLUTIONS), TEXT, 11),
    (LiteTransformerForConditionalGeneration, changed(LITE, *CONVOLUTIONS), BOTH, 7),
    (LongformerDecoderForCausalLM, changed(DECODER, {"attention_dilation": (1,)}), SHORT, 5),
    (LedForConditionalGeneration, [LED], SHORT | {"decoder_input_ids": (2, 3)}, 3),
    (LongformerForMaskedLM, [LONGFORMER], SHORT | {"masked_positions": (2, 3)}, 3),
    (MobileBertForMaskedLM, [MOBILEBERT, *changed(MOBILEBERT, TINY), IB_BERT], MASKED, 5),
    (ModernBertForMaskedLM, [EUROBERT, *changed(MODERNBERT, {"global_attn_every_n_layers": 1})], MASKED, 5),
    (pretrains, [dataclasses.replace(MODERNBERT_DECODER, local_attention=10)], SHORT, 5),
    (ModernBertForMaskedLM, [MODERNBERT], SHORT | {"masked_positions": (2, 3)}, 3),
]
"""How a module is made, configs, shapes of the inputs, and tokens that are scored."""
# A third of a second to one each for further settings of a system: pytest -m nightly tests/models/test_train_flops.py
CASES = [
    pytest.param(
        *(make(config), shapes, scored),
        id=f"{type(make(config)).__name__}-{number}",
        marks=pytest.mark.nightly if type(config) in [type(one) for one in configs[:number]] else (),
    )
    for make, configs, shapes, scored in GROUPS
    for number, config in enumerate(configs)
]


def scores_of(outputs: Any) -> Any:
    """All scores, which are products only when somebody asks for them."""
    return outputs.scores.logits() if getattr(outputs, "scores", None) is not None else outputs


@pytest.mark.parametrize(("module", "shapes", "scored"), CASES)
def test_train_flops_are_those_of_the_products(module: nn.Module, shapes: dict, scored: int) -> None:
    inputs = {name: jnp.zeros(shape, jnp.int32) for name, shape in shapes.items()}
    found = step_flops(module, scores_of if scored else lambda outputs: outputs, **inputs)
    rows, length = next(iter(shapes.values()))[:2]
    assert module.config.train_flops(rows, length, scored) == pytest.approx(found, rel=1e-12)
