"""The settings of transformers' T5 here, besides its parameters, which tests/systems compares."""

import dataclasses

import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.data.layouts import Chunks
from plmjax.interop.default_tasks import task_of
from plmjax.interop.t5 import ADAPTER, tied
from plmjax.models.t5 import T5Config
from plmjax.objectives.text_to_text.span_corruption import SpanCorruption


def test_a_checkpoint_is_evaluated_and_trained_on_as_it_was_pretrained() -> None:
    """The released code's rows: 568 tokens of text, of which sources of 512 and targets of 114 are made."""
    objective, data = task_of(T5Config.tiny().module(Purpose.PRETRAINING, Execution()))
    assert objective == SpanCorruption(z_loss=1e-4)
    assert (data.layout, data.sequence_length) == (Chunks(), 568)
    assert objective.lengths(data.sequence_length) == (512, 114)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, True),
        ({"tie_word_embeddings": False}, False),
        ({"scale_decoder_outputs": False}, False),
        ({"tie_word_embeddings": True, "scale_decoder_outputs": False}, False),
        ({"tie_word_embeddings": True, "scale_decoder_outputs": True}, True),
    ],
)
def test_the_output_layer_is_its_own_where_outputs_are_not_scaled(settings: dict[str, bool], expected: bool) -> None:
    """transformers 5 writes both settings of a T5 1.1: its tables are tied no more, whatever the older one says."""
    assert tied(settings) is expected


def test_a_tied_class_is_untied_by_a_checkpoint_of_its_own_output_layer() -> None:
    whole = ADAPTER.architectures["T5ForConditionalGeneration"]
    assert whole.of({}).tied and not whole.of({"tie_word_embeddings": False}).tied
    assert not dataclasses.replace(whole, tied=False).of({}).tied
