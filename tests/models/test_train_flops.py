"""`train_flops` of every system against the products of its program; what a closed form adds is beside its system."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.models.bart.translation import BartForTranslation, BartTranslationConfig
from tests.families import FAMILIES
from tests.families.encoder_decoders import BART
from tests.families.recurrent import WITHOUT_HIGHWAYS
from tests.families.students import TINY
from tests.products import step_flops

MASKED = {"input_ids": (2, 13), "masked_positions": (2, 5)}
TEXT, BOTH, SHORT = {"input_ids": (2, 11)}, {"input_ids": (2, 11), "decoder_input_ids": (2, 7)}, {"input_ids": (2, 5)}
"""Inputs -> their shapes. Rows of 5 tokens are no longer than the windows, whose bands have more keys than count."""
CONVOLUTIONS = [{"convolution": name} for name in ("dynamic", "lightweight")]
SAME = [{}]
GROUPS: list[tuple[Purpose | None, dict[str, tuple[int, ...]], int, dict[str, list[dict[str, Any]]]]] = [
    (Purpose.MASKED_TOKENS, MASKED, 5, {
        "albert": [{}, {"num_hidden_groups": 2, "inner_group_num": 3}], "bert": SAME, "electra": SAME,
        "mobilebert": [{}, TINY], "ib_bert": SAME,
    }),
    (None, MASKED, 5, {
        "deberta": [{}, {"pos_att_type": ("c2p",)}, {"conv_kernel_size": 3}], "distilbert": SAME, "eurobert": SAME,
        "modernbert": [{"global_attn_every_n_layers": 1}],
    }),
    (Purpose.PRETRAINING, TEXT, 11, {"adaptive_span": [{}, {"computed_span": 7}, {"persistent_size": 5}]}),
    (None, TEXT, 11, {
        "awd_lstm": SAME, "nnlm": [{}, *FAMILIES["nnlm"].switches], "gpt2": SAME,
        "lite_transformer_decoder": CONVOLUTIONS,
    }),
    (Purpose.ENCODING, TEXT, 0, {"awd_lstm": SAME, "cove": SAME, "electra": SAME, "bart": SAME}),
    (None, BOTH, 7, {
        "transformer": [{"encoder_layers": 3, "decoder_layers": 2, "encoder_ffn_dim": 17}], "bart": SAME,
        "cove": [{"attention": kind, "num_layers": 2} for kind in ("general", "dot")], "lite_transformer": CONVOLUTIONS,
    }),
    (None, {"characters": (2, 7, 9)}, 0, {"elmo": [{}, WITHOUT_HIGHWAYS]}),
    (None, SHORT, 5, {
        "longformer_decoder": [{"attention_dilation": (1,)}], "modernbert_decoder": [{"local_attention": 10}],
    }),
    (None, SHORT | {"decoder_input_ids": (2, 3)}, 3, {"led": SAME}),
    (None, SHORT | {"masked_positions": (2, 3)}, 3, {"longformer": SAME, "modernbert": SAME}),
]  # fmt: skip
"""A purpose, or the first head; shapes of the inputs, tokens that are scored, and changes of each system's config."""


def made(name: str, purpose: Purpose | None, changes: dict[str, Any]) -> nn.Module:
    head = FAMILIES[name].heads[0].module
    config = dataclasses.replace(head.config, **changes)
    return config.module(purpose, Execution()) if purpose else head.clone(config=config)


# A third of a second to one each for further settings of a system: pytest -m nightly tests/models/test_train_flops.py
CASES = [
    pytest.param(
        *(made(name, purpose, changes), shapes, scored),
        id=f"{name}-{place}",
        marks=pytest.mark.nightly if place else (),
    )
    for purpose, shapes, scored, systems in GROUPS
    for name, settings in systems.items()
    for place, changes in enumerate(settings)
] + [pytest.param(BartForTranslation(BartTranslationConfig.before(BART, 3)), BOTH, 7, id="translation")]


def scores_of(outputs: Any) -> Any:
    """All scores, which are products only when somebody asks for them."""
    return outputs.scores.logits() if getattr(outputs, "scores", None) is not None else outputs


@pytest.mark.parametrize(("module", "shapes", "scored"), CASES)
def test_train_flops_are_those_of_the_products(module: nn.Module, shapes: dict, scored: int) -> None:
    inputs = {name: jnp.zeros(shape, jnp.int32) for name, shape in shapes.items()}
    found = step_flops(module, scores_of if scored else lambda outputs: outputs, **inputs)
    rows, length = next(iter(shapes.values()))[:2]
    assert module.config.train_flops(rows, length, scored) == pytest.approx(found, rel=1e-12)
