"""Tensors of checkpoints that are no parameters, under every name that versions and optimizers gave them."""

import pytest

from plmjax.interop import awd_lstm, google_bert
from plmjax.interop.huggingface import ADAPTERS

BUFFERS = {
    "albert": ("albert.embeddings.position_ids", "embeddings.token_type_ids"),
    "bart": ("final_logits_bias", "model.encoder.version", "model.decoder.version"),
    "bert": ("bert.embeddings.position_ids", "bert.embeddings.token_type_ids", "embeddings.position_ids"),
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


def test_slots_of_every_optimizer_are_no_variables() -> None:
    """The optimizers are BERT's own Adam, TensorFlow's, and LAMB."""
    slots = ("adam_m", "adam_v", "Adam", "Adam_1", "lamb_m", "lamb_v")
    for slot in ("global_step", "beta1_power", "beta2_power", *(f"bert/pooler/dense/kernel/{name}" for name in slots)):
        assert google_bert._SLOT.match(slot), slot
    for variable in ("bert/pooler/dense/kernel", "output_weights", "cls/predictions/output_bias"):
        assert not google_bert._SLOT.match(variable), variable


def test_copies_in_fastais_files_are_known() -> None:
    copies = ("1.decoder.weight", "0.encoder_dp.emb.weight", "0.rnns.12.module.weight_hh_l0")
    assert all(map(awd_lstm._AGAIN.fullmatch, copies))
    assert not any(
        map(awd_lstm._AGAIN.fullmatch, ("1.decoder.bias", "0.rnns.0.module.weight_ih_l0", "0.encoder.weight"))
    )
