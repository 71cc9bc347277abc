"""Larger models that start from smaller ones, against loops that follow the description place by place."""

import dataclasses
import itertools

import flax.linen as nn
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.errors import UserError
from plmjax.models.bert import BertConfig
from plmjax.models.modernbert.modernbert import ModernBertConfig
from plmjax.runs.weight_mappings.larger import LargerFromSmaller, enlarge, start_layers, tile_from_middle
from tests.families.encoders import BERT
from tests.families.modern import MODERNBERT
from tests.runs.weight_mappings.test_longformer import flat, shapes
from tests.systems.modules import boxed_shapes, random_params

LARGER = dataclasses.replace(
    MODERNBERT, hidden_size=40, num_hidden_layers=6, num_attention_heads=5, intermediate_size=50, vocab_size=9
)


def tiled(values: list[int], size: int) -> list[int]:
    """The values in the middle; on both sides they go on from their other end, one by one."""
    before = (size - len(values)) // 2
    left = [values[-1 - step % len(values)] for step in range(before)][::-1]
    right = [values[step % len(values)] for step in range(size - before - len(values))]
    return left + values + right


@pytest.mark.parametrize(("smaller", "larger"), [(3, 3), (3, 4), (3, 11), (4, 9), (768, 1024)])
def test_an_axis_is_tiled_from_the_middle(smaller: int, larger: int) -> None:
    assert tile_from_middle(smaller, larger).tolist() == tiled(list(range(smaller)), larger)


def test_layers_are_those_of_gopher_and_none_is_beyond_the_last() -> None:
    large = start_layers(22, 28)
    assert large.tolist() == [round(layer * 22 / 28) for layer in range(28)]
    assert large[[0, 1, 7, 14, 27]].tolist() == [0, 1, 6, 11, 21]
    assert start_layers(7, 19)[-1] == 6 and round(18 * 7 / 19) == 7  # Deviation: the released code has no such layer
    assert start_layers(4, 4).tolist() == [0, 1, 2, 3]


def test_the_axes_of_a_parameter_are_tiled_one_by_one() -> None:
    array = np.arange(2 * 3 * 2 * 4).reshape(2, 3, 2, 4)
    found = enlarge(array, (3, 5, 3, 4), ("layers", "embed", "heads", "head"))
    layers, rows, heads = [0, 1, 1], tiled([0, 1, 2], 5), tiled([0, 1], 3)
    for (i, layer), (j, row), (k, head) in itertools.product(*map(enumerate, (layers, rows, heads))):
        np.testing.assert_array_equal(found[i, j, k], array[layer, row, head])


def layer_of(config: ModernBertConfig, number: int) -> tuple[str, int]:
    """The path of a layer and its place in the stack, by the layers written one after the other."""
    period, places = config.global_attn_every_n_layers, [("first_layers/layer_0", 0)]
    for repetition in range((config.num_hidden_layers - 1) // period):
        places += [(f"layers/layer_{layer}", repetition) for layer in range(period)]
    rest = config.num_hidden_layers - len(places)
    return (places + [(f"last_layers/layer_{layer}", 0) for layer in range(rest)])[number]


def test_a_modernbert_starts_from_a_smaller_one() -> None:
    """Layer by layer: 4 become 6, of three stacks; the norm of the embeddings is that before layer 0's attention."""
    start = LargerFromSmaller(LARGER)
    config = start.model(MODERNBERT)
    assert config == dataclasses.replace(LARGER, vocab_size=MODERNBERT.vocab_size)
    small, large = (one.module(Purpose.PRETRAINING, Execution()) for one in (MODERNBERT, config))
    params = flat(random_params(small))
    found = start.map(params, MODERNBERT, config)
    assert shapes(found) == shapes(flat(nn.meta.unbox(boxed_shapes(large))))
    embed, heads, inner = tiled(list(range(24)), 40), tiled([0, 1, 2], 5), tiled(list(range(37)), 50)
    np.testing.assert_array_equal(
        found["modernbert/word_embeddings/embedding"], params["modernbert/word_embeddings/embedding"][:, embed]
    )
    np.testing.assert_array_equal(found["masked_language_model/bias"], params["masked_language_model/bias"])
    inputs = {f"attention/{name}/kernel": heads for name in ("query", "key", "value")}
    inputs |= {f"feed_forward/{name}/kernel": inner for name in ("intermediate", "gate")}
    for number, origin in enumerate([0, 1, 1, 2, 3, 3]):
        (own, place), (theirs, there) = layer_of(config, number), layer_of(MODERNBERT, origin)
        for name, columns in inputs.items():
            before = params[f"modernbert/{theirs}/{name}"][there]
            np.testing.assert_array_equal(found[f"modernbert/{own}/{name}"][place], before[embed][:, columns])
        for name in ("feed_forward_norm/scale", *(("attention_norm/scale",) if number else ())):
            before = params[f"modernbert/{theirs}/{name}"][there]
            np.testing.assert_array_equal(found[f"modernbert/{own}/{name}"][place], before[embed])


def test_a_later_layer_that_starts_from_the_first_has_the_norm_of_the_embeddings() -> None:
    config = dataclasses.replace(MODERNBERT, num_hidden_layers=10)
    params = flat(random_params(MODERNBERT.module(Purpose.PRETRAINING, Execution())))
    found = LargerFromSmaller(config).map(params, MODERNBERT, config)
    assert start_layers(4, 10)[:3].tolist() == [0, 0, 1]
    for number, origin in enumerate(start_layers(4, 10).tolist()):  # two layers of a stack are repeated
        (own, place), (theirs, there) = layer_of(config, number), layer_of(MODERNBERT, origin)
        np.testing.assert_array_equal(
            found[f"modernbert/{own}/feed_forward_norm/scale"][place],
            params[f"modernbert/{theirs}/feed_forward_norm/scale"][there],
        )
    own, place = layer_of(config, 1)
    np.testing.assert_array_equal(
        found[f"modernbert/{own}/attention_norm/scale"][place], params["modernbert/embedding_norm/scale"]
    )


def test_other_systems_are_enlarged_by_the_same_axes() -> None:
    larger = dataclasses.replace(BERT, hidden_size=40, num_hidden_layers=5, num_attention_heads=5, intermediate_size=50)
    module = BERT.module(Purpose.PRETRAINING, Execution())
    params = flat(random_params(module))
    found = LargerFromSmaller(larger).map(params, BERT, larger)
    assert shapes(found) == shapes(flat(nn.meta.unbox(boxed_shapes(larger.module(Purpose.PRETRAINING, Execution())))))
    layers, embed, heads = [0, 1, 1, 2, 2], tiled(list(range(24)), 40), tiled([0, 1, 2], 5)
    name = "bert/encoder/layers/attention/query/kernel"
    np.testing.assert_array_equal(found[name], params[name][layers][:, embed][:, :, heads])


@pytest.mark.parametrize(
    ("larger", "origin", "said"),
    [
        (LARGER, BERT, "a smaller ModernBertConfig, found BertConfig"),
        (dataclasses.replace(LARGER, hidden_size=16, num_attention_heads=2), MODERNBERT, "the axis embed at least as"),
        (dataclasses.replace(LARGER, num_attention_heads=4), MODERNBERT, "the axis head as large as that"),
    ],
    ids=["another system", "narrower", "wider heads"],
)
def test_a_model_that_is_not_larger_is_refused(larger: ModernBertConfig, origin: BertConfig, said: str) -> None:
    start = LargerFromSmaller(larger)
    with pytest.raises(UserError, match=said):
        start.map(flat(random_params(origin.module(Purpose.PRETRAINING, Execution()))), origin, start.model(origin))
