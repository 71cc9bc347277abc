"""A decoder that starts from an encoder's checkpoint, and the reverse."""

import dataclasses

import flax.traverse_util
import numpy as np
import pytest

from plmjax.errors import UserError
from plmjax.experiment import WeightMapping
from plmjax.models.modernbert.decoder import ModernBertDecoderConfig, ModernBertDecoderForCausalLM
from plmjax.models.modernbert.eurobert import EuroBertConfig
from plmjax.models.modernbert.heads import ModernBertForMaskedLM
from plmjax.models.modernbert.modernbert import ModernBertConfig
from plmjax.runs.init_from import InitFrom
from plmjax.runs.weight_mappings.ettin import DecoderFromEncoder, EncoderFromDecoder
from plmjax.training.checkpoints import checkpoints
from tests.families.modern import MODERNBERT
from tests.families.rotations import DECODER
from tests.systems.modules import boxed_shapes, random_params
from tests.third_party import experiments

STARTS = {
    "a decoder": (DecoderFromEncoder(), ModernBertForMaskedLM(MODERNBERT), ModernBertDecoderForCausalLM(DECODER)),
    "an encoder": (EncoderFromDecoder(), ModernBertDecoderForCausalLM(DECODER), ModernBertForMaskedLM(MODERNBERT)),
}


@pytest.mark.parametrize("name", STARTS)
def test_either_goes_on_as_the_other_with_every_bit(name: str, tmp_path) -> None:
    """Through a checkpoint, as --from does: no parameter is lost, none is new."""
    start, before, after = STARTS[name]
    params = random_params(before)
    run = dataclasses.replace(experiments.modernbert(), model=before.config)
    checkpoints.save_parameters(tmp_path, params, run, {})
    found = InitFrom.find(tmp_path)
    mapped = found.map_model(dataclasses.replace(run, model=None, weight_mapping=start))
    assert mapped.model == after.config
    own, expected = (flax.traverse_util.flatten_dict(tree) for tree in (found.parameters(mapped), params))
    assert own.keys() == flax.traverse_util.flatten_dict(boxed_shapes(after)).keys()
    for path, array in expected.items():
        path = tuple({"masked_language_model": "language_model"}.get(part, part) for part in path)
        other = tuple({"language_model": "masked_language_model"}.get(part, part) for part in path)
        np.testing.assert_array_equal(own[path if path in own else other], array)


def test_the_published_sizes_become_each_other() -> None:
    for size in ("ettin_17m", "base", "ettin_1b"):
        encoder, decoder = getattr(ModernBertConfig, size)(), getattr(ModernBertDecoderConfig, size)()
        assert DecoderFromEncoder().model(encoder) == decoder and EncoderFromDecoder().model(decoder) == encoder


@pytest.mark.parametrize(
    ("start", "origin", "said"),
    [
        (DecoderFromEncoder(), EuroBertConfig.tiny(), "ModernBERT, .*found EuroBertConfig"),
        (DecoderFromEncoder(), ModernBertConfig.tiny(norm="rms"), "norm layer, .*found rms"),
        (EncoderFromDecoder(), ModernBertConfig.tiny(), "decoder of ModernBERT's layers, found ModernBertConfig"),
    ],
    ids=str,
)
def test_another_model_is_refused(start: WeightMapping, origin: ModernBertConfig, said: str) -> None:
    with pytest.raises(UserError, match=said):
        start.model(origin)
