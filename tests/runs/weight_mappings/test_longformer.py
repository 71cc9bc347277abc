"""Longformers that start from a RoBERTa or a BART, and from one that was pretrained without global tokens."""

import flax.linen as nn
import flax.traverse_util
import numpy as np

from plmjax.models.bart.bart import BartConfig, BartForConditionalGeneration
from plmjax.models.longformer.encoder_decoder import LedConfig, LedForConditionalGeneration
from plmjax.models.longformer.longformer import LongformerConfig, LongformerForMaskedLM
from plmjax.models.roberta import RobertaConfig, RobertaForMaskedLM
from plmjax.runs.weight_mappings.longformer import POSITIONS, SIDES, GlobalFromLocal, LedFromBart, LongformerFromRoberta
from tests.families.encoder_decoders import BART
from tests.families.encoders import ROBERTA
from tests.families.family import both_sides, padded_tokens
from tests.systems.modules import boxed_shapes, outputs, random_params

START = LongformerFromRoberta(length=3 * ROBERTA.longest, attention_window=(36,), max_global_tokens=4)

LED_START = LedFromBart(length=3 * BART.longest, attention_window=(36,), max_global_tokens=4)


def flat(params: object) -> dict[str, np.ndarray]:
    return flax.traverse_util.flatten_dict(params, sep="/")


def shapes(flat: dict[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
    return {path: leaf.shape for path, leaf in flat.items()}


def test_a_longformer_of_a_roberta_is_that_roberta_in_short_rows() -> None:
    """Whatever is global: no parameter is lost, none is new."""
    params, config = random_params(RobertaForMaskedLM(ROBERTA)), START.model(ROBERTA)
    mapped = START.map(flat(params), ROBERTA, config)
    module = LongformerForMaskedLM(config)
    assert shapes(mapped) == shapes(flat(nn.meta.unbox(boxed_shapes(module))))
    batch, long = padded_tokens(ROBERTA), flax.traverse_util.unflatten_dict(mapped, sep="/")
    expected = outputs(RobertaForMaskedLM(ROBERTA), params, batch).logits
    mask = batch["attention_mask"][..., None]
    first = (np.arange(17) < 2) * batch["attention_mask"]
    for inputs in (batch, batch | {"global_attention_mask": first}):
        np.testing.assert_allclose(outputs(module, long, inputs).logits * mask, expected * mask, rtol=1e-4, atol=1e-5)


def test_positions_are_repeated() -> None:
    config = START.model(ROBERTA)
    params = START.map(flat(random_params(RobertaForMaskedLM(ROBERTA))), ROBERTA, config)
    before, pad = flat(random_params(RobertaForMaskedLM(ROBERTA))), ROBERTA.pad_token_id
    table = before[POSITIONS.replace("longformer", "roberta")]
    assert config.longest == 3 * ROBERTA.longest
    np.testing.assert_array_equal(params[POSITIONS][: len(table)], table)
    for number in range(3):
        first = pad + 1 + number * ROBERTA.longest
        np.testing.assert_array_equal(params[POSITIONS][first : first + ROBERTA.longest], table[pad + 1 :])


def test_an_led_of_a_bart_is_that_bart_in_short_sources() -> None:
    """Whatever is global: no parameter is lost, none is new, and positions are repeated without the two before them."""
    params, config = random_params(BartForConditionalGeneration(BART)), LED_START.model(BART)
    mapped, module = LED_START.map(flat(params), BART, config), LedForConditionalGeneration(config)
    assert shapes(mapped) == shapes(flat(nn.meta.unbox(boxed_shapes(module))))
    assert (config.longest, config.longest_target) == (3 * BART.longest, BART.longest)
    assert (config.attention_window, config.max_global_tokens) == ((36,), 4)
    sources, targets = (flat(params)[side.replace("led/", "bart/")][2:] for side in SIDES)
    np.testing.assert_array_equal(mapped[SIDES[0]], np.concatenate([sources] * 3))
    np.testing.assert_array_equal(mapped[SIDES[1]], targets)
    batch, long = both_sides(BART), flax.traverse_util.unflatten_dict(mapped, sep="/")
    expected = outputs(BartForConditionalGeneration(BART), params, batch).logits
    mask = batch["decoder_attention_mask"][..., None]
    two = ((np.arange(17) < 2) & (batch["attention_mask"] > 0)).astype(np.int32)
    for inputs in (batch, batch | {"global_attention_mask": two}):
        np.testing.assert_allclose(outputs(module, long, inputs).logits * mask, expected * mask, rtol=1e-4, atol=1e-5)


def test_the_published_sizes_are_those_of_its_origin() -> None:
    assert LedFromBart().model(BartConfig.large()) == LedConfig.large()
    assert LongformerFromRoberta().model(RobertaConfig.base()) == LongformerConfig.base()


def test_global_projections_continue_the_local_ones() -> None:
    config = LongformerConfig.tiny(vocab_size=40)
    params = flat(random_params(LongformerForMaskedLM(config)))
    found = GlobalFromLocal().map(params, config, GlobalFromLocal().model(config))
    assert found.keys() == params.keys()
    changed = {path for path in found if not np.array_equal(found[path], params[path])}
    assert len(changed) == 6 and all("_global/" in path for path in changed)
    for path in changed:
        np.testing.assert_array_equal(found[path], params[path.replace("_global", "")])
