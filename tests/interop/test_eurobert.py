"""EuroBERT's config.json: the older form, and what transformers' class cannot be or is not here."""

import dataclasses
import re
from typing import Any

import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.errors import UserError
from plmjax.interop import eurobert
from tests.families.rotations import EUROBERT

ROPE = {"rope_type": "default", "rope_theta": 250_000.0}
SIZES = {
    "model_type": "eurobert", "vocab_size": 53, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 2, "intermediate_size": 37, "max_position_embeddings": 19, "pad_token_id": 3,
    "bos_token_id": 4, "eos_token_id": 5, "head_dim": 4,
}  # fmt: skip


@pytest.mark.parametrize(
    "older", [{"rope_theta": 250_000.0, "rope_scaling": None, "clf_pooling": "mean"}, {"rope_scaling": ROPE}], ids=str
)
def test_both_forms_of_a_config_are_read(older: dict[str, Any]) -> None:
    found = eurobert.read_config(SIZES | older)
    pooling = older.get("clf_pooling", "late")
    assert found == dataclasses.replace(EUROBERT, classifier_pooling=pooling)
    assert found == eurobert.read_config(SIZES | {"rope_parameters": ROPE, "classifier_pooling": pooling})


def written(**changes: Any) -> Any:
    module = dataclasses.replace(EUROBERT, **changes).module(Purpose.PRETRAINING, Execution())
    return eurobert.write_config(module, ())


REFUSED = {
    "scaled rotations": (lambda: eurobert.read_config({"rope_parameters": {"rope_type": "yarn"}}), '"default"'),
    "scaled rotations of old": (lambda: eurobert.read_config({"rope_scaling": {"type": "linear"}}), "found 'linear'"),
    "rotations of a number": (lambda: eurobert.read_config({"rope_parameters": 3}), "Expected an object as"),
    "wide heads": (lambda: eurobert.read_config(SIZES | {"head_dim": 8}), "Expected head_dim = 4"),
    "pooling": (lambda: eurobert.read_config({"classifier_pooling": "cls"}), "found 'cls'; known: bos, late, mean"),
    "one bias of two": (lambda: written(decoder_bias=True), "--model.decoder_bias False"),
    "the other one": (lambda: written(mlp_bias=True), "--model.decoder_bias True"),
}


def test_what_does_not_fit_is_one_sentence() -> None:
    for refused, said in REFUSED.values():
        with pytest.raises(UserError, match=re.escape(said)):
            refused()
