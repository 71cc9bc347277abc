"""ELMo against torch, its published size, and what each direction may see."""

from __future__ import annotations

import math
from typing import Any

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.errors import UserError
from plmjax.interop import elmo as interop
from plmjax.interop.conversion import parameter_shapes, write_tensors
from plmjax.layers.words.characters import sentence_marks, spelled
from plmjax.models.elmo import DIRECTIONS, ElmoConfig, ElmoModel
from tests.optional import torch
from tests.products import step_flops

SMALL = ElmoConfig(
    vocab_size=29,
    max_characters_per_token=9,
    character_dim=3,
    filter_widths=(1, 3, 2),
    filter_counts=(4, 2, 5),
    n_layers=3,
    dim=7,
    projection_dim=6,
    cell_clip=0.3,
    proj_clip=0.15,
    dropout=0.0,
)
PLAIN = ElmoConfig(**(vars(SMALL) | {"use_skip_connections": False, "n_highway": 0, "n_layers": 2}))
WORDS = ["the", "extraordinary", "é", "a", "cats"]
LENGTHS = [7, 3]


def characters(length: int = 9) -> np.ndarray:
    """int32 [2 T C]: a sentence of five words with its marks, and one of a single word, padded."""
    begin, end = sentence_marks(length)
    words = spelled(WORDS, length)
    rows = np.zeros((2, LENGTHS[0], length), np.int32)
    rows[0] = [begin, *words, end]
    rows[1, :3] = [begin, words[1], end]
    return rows


def drawn(module: nn.Module) -> Any:
    """Parameters far from their initial values."""
    random = np.random.default_rng(0)
    shapes = parameter_shapes(module, interop.example(module.config))
    leaves = {path: 0.5 * random.standard_normal(shape, np.float32) for path, shape in shapes.items()}
    return flax.traverse_util.unflatten_dict(leaves, sep="/")


def in_torch(tensors: dict[str, torch.Tensor], config: ElmoConfig, row: np.ndarray) -> torch.Tensor:
    """All layers [L+1 T 2 P] of one sentence [T C] by the released tensors; written from their description alone."""
    table = torch.cat([torch.zeros(1, config.character_dim), tensors["char_embed"]])
    spelling = table[torch.tensor(row).long()].mT  # [T E C]
    found = []
    for number in range(len(config.filter_widths)):
        kernel = tensors[f"CNN/W_cnn_{number}"][0].permute(2, 1, 0)
        found.append(torch.nn.functional.conv1d(spelling, kernel, tensors[f"CNN/b_cnn_{number}"]).relu().amax(-1))
    words = torch.cat(found, dim=-1)
    for number in range(config.n_highway):
        w = {
            name: tensors[f"CNN_high_{number}/{name}"] for name in ("W_carry", "b_carry", "W_transform", "b_transform")
        }
        gate = (words @ w["W_carry"] + w["b_carry"]).sigmoid()
        words = gate * (words @ w["W_transform"] + w["b_transform"]).relu() + (1 - gate) * words
    words = words @ tensors["CNN_proj/W_proj"] + tensors["CNN_proj/b_proj"]
    layers = [[words, words]] + [[] for _ in range(config.n_layers)]
    for number in range(2):
        x = words.flip(0) if number else words
        for layer in range(config.n_layers):
            cell = f"RNN_{number}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            c, h, outputs = torch.zeros(config.dim), torch.zeros(config.projection_dim), []
            for token in x:
                i, j, f, o = (torch.cat([token, h]) @ tensors[f"{cell}/W_0"] + tensors[f"{cell}/B"]).chunk(4)
                c = ((f + 1).sigmoid() * c + i.sigmoid() * j.tanh()).clamp(-config.cell_clip, config.cell_clip)
                h = ((o.sigmoid() * c.tanh()) @ tensors[f"{cell}/W_P_0"]).clamp(-config.proj_clip, config.proj_clip)
                outputs.append(h)
            y = torch.stack(outputs)
            x = x + y if config.use_skip_connections and layer else y
            layers[layer + 1].append(x.flip(0) if number else x)
    return torch.stack([torch.cat(both, dim=-1) for both in layers])


@pytest.mark.parametrize("config", [SMALL, PLAIN], ids=["skip connections", "without"])
def test_layers_and_gradients_equal_torch_on_padded_rows(config: ElmoConfig) -> None:
    module, rows = ElmoModel(config), characters()
    params = drawn(module)
    mask = np.arange(LENGTHS[0]) < np.array(LENGTHS)[:, None]
    factors = np.random.default_rng(1).standard_normal((config.n_layers + 1, *mask.shape, config.width), np.float32)
    factors *= mask[None, :, :, None]

    @jax.jit
    def loss(params: Any) -> tuple[jax.Array, jax.Array]:
        hidden = module.apply({"params": params}, rows, mask, output_hidden_states=True).hidden_states
        return jnp.sum(jnp.sin(hidden) * factors), hidden

    (_, hidden), gradient = jax.value_and_grad(loss, has_aux=True)(params)
    of_tensors = interop.example(config), interop.conversions(config)
    tensors = {name: torch.tensor(one) for name, one in write_tensors(module, *of_tensors, params).items()}
    for tensor in tensors.values():
        tensor.requires_grad_()
    total = torch.zeros(())
    for row, length in enumerate(LENGTHS):
        expected = in_torch(tensors, config, rows[row, :length])
        np.testing.assert_allclose(hidden[:, row, :length], expected.detach(), rtol=0, atol=1e-5)
        total = total + (expected.sin() * torch.tensor(factors[:, row, :length])).sum()
    total.backward()
    outputs = np.abs(np.asarray(hidden[1, 0]))
    assert (np.isclose(outputs, config.proj_clip)).any(), "some numbers are clipped"
    assert (outputs < 0.9 * config.proj_clip).any(), "and some are not"
    for name, found in write_tensors(module, *of_tensors, gradient).items():
        expected = tensors[name].grad.numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max(), err_msg=name)


def test_the_published_size() -> None:
    config = ElmoConfig.original()
    module = config.module(Purpose.PRETRAINING, Execution())

    def init(key: jax.Array) -> Any:
        inputs = np.ones((1, 1, config.max_characters_per_token), np.int32), np.zeros((1, 1), bool)
        spellings, flags = ({way: one for way in DIRECTIONS} for one in inputs)
        return module.init(key, spellings, flags, flags, config.zero_states(1))

    params = nn.meta.unbox(jax.eval_shape(init, jax.random.key(0)))["params"]
    flat = flax.traverse_util.flatten_dict(params, sep="/")
    parts = {"elmo/words": 18_037_840, "elmo/": 93_600_848, "softmax": 407_050_623, "": 500_651_471}
    found = {part: sum(leaf.size for path, leaf in flat.items() if path.startswith(part)) for part in parts}
    assert found == parts


def test_first_values_are_those_of_the_released_code() -> None:
    config = ElmoConfig.tiny(dim=64, projection_dim=32)
    params = nn.meta.unbox(jax.jit(ElmoModel(config).init)(jax.random.key(0), **interop.example(config)))["params"]
    words, layer = params["words"], params["backward"]["layer_1"]
    uniform = {
        "characters": (words["characters"], 1.0),
        "filters": (words["filters_3"], 0.05),
        "gates": (layer["input"]["kernel"], math.sqrt(6 / (2 * 32 + 4 * 64))),
        "outputs": (layer["recurrent_kernel"], math.sqrt(6 / (2 * 32 + 4 * 64))),
        "projection": (layer["projection_kernel"], math.sqrt(6 / (32 + 64))),
    }
    for name, (values, bound) in uniform.items():
        assert 0.98 * bound < np.abs(values).max() <= bound, name
        np.testing.assert_allclose(np.std(values), bound / math.sqrt(3), rtol=0.05, err_msg=name)
    for kernel in (words["highway_0"]["transform"]["kernel"], words["projection"]["kernel"]):
        np.testing.assert_allclose(np.std(kernel), config.filters**-0.5, rtol=0.05)
    assert (np.asarray(words["highway_0"]["gate"]["bias"]) == -2).all()
    assert not np.any(words["highway_0"]["transform"]["bias"]) and not np.any(layer["input"]["bias"])


def test_each_direction_sees_its_side_alone() -> None:
    """Which words' characters reach which outputs: those before and at a word, or those at and after it."""
    module = ElmoModel(PLAIN)
    params, rows = drawn(module), characters()[:1]
    read = jax.jit(module.apply)
    hidden = read({"params": params}, rows).last_hidden_state[0]
    reach = np.zeros((2, LENGTHS[0], LENGTHS[0]), bool)
    for word in range(LENGTHS[0]):
        changed = rows.copy()
        changed[0, word, 1] += 1
        other = read({"params": params}, changed).last_hidden_state[0]
        reach[:, :, word] = (np.asarray(hidden != other).reshape(LENGTHS[0], 2, -1)).any(-1).T
    sees = np.tri(LENGTHS[0], dtype=bool)
    np.testing.assert_array_equal(reach, [sees, sees.T])


def test_directions_and_layers_draw_dropout_of_their_own() -> None:
    """Both directions have the same parameters and read the same words; a layer's own draws show in its output."""
    config = ElmoConfig(**(vars(PLAIN) | {"dropout": 0.5, "cell_clip": 9.0, "proj_clip": 9.0}))
    module = config.module(Purpose.PRETRAINING, Execution())
    spellings, flags = {way: characters() for way in DIRECTIONS}, {way: np.zeros((2, 7), bool) for way in DIRECTIONS}
    inputs = spellings, flags, {way: ~flags[way] for way in DIRECTIONS}, config.zero_states(2)
    random, shapes = np.random.default_rng(0), jax.eval_shape(lambda: module.init(jax.random.key(0), *inputs)["params"])
    params = jax.tree.map(lambda leaf: random.standard_normal(leaf.shape, np.float32), nn.meta.unbox(shapes))
    params["elmo"]["backward"] = params["elmo"]["forward"]

    @jax.jit
    def read(params: Any) -> Any:
        rngs = {"dropout": jax.random.key(0)}
        found = module.apply({"params": params}, *inputs, deterministic=False, rngs=rngs)
        return {way: (scores.hidden, found.states[way]) for way, scores in found.scores.items()}

    (forward, states), (backward, other) = (read(params)[way] for way in DIRECTIONS)
    for mask in (forward == 0, backward == 0):
        assert 0.2 < mask.mean() < 0.8
    assert ((forward == 0) != (backward == 0)).any()
    for layer, (one, two) in enumerate(zip(states, other, strict=True)):
        assert np.abs(one.cell - two.cell).max() > 1e-2, layer


def test_products_in_bfloat16_keep_parameters_and_states_in_float32() -> None:
    half, rows = ElmoModel(PLAIN, Execution(dtype=jnp.bfloat16)), characters()
    params = drawn(half)
    found, expected = (jax.jit(module.apply)({"params": params}, rows) for module in (half, ElmoModel(PLAIN)))
    assert found.last_hidden_state.dtype == jnp.bfloat16
    assert {leaf.dtype for leaf in jax.tree.leaves(found.states)} == {jnp.dtype(jnp.float32)}
    difference = np.abs(found.last_hidden_state.astype(jnp.float32) - expected.last_hidden_state)
    assert 0 < difference.mean() < 0.02 * np.abs(expected.last_hidden_state).mean() + 0.002


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (
            {"filter_counts": (4,)},
            "as many --model.filter_counts as --model.filter_widths, all of at least 1, found 1 and 3",
        ),
        ({"filter_widths": (1, 10, 2)}, "--model.filter_widths of at most the 9 characters of a word, found 10"),
        ({"max_characters_per_token": 2}, "--model.max_characters_per_token of at least 3, found 2"),
        ({"cell_clip": 0.0}, "--model.cell_clip of at least 1e-06, found 0.0"),
    ],
    ids=["counts", "width", "characters", "clip"],
)
def test_sizes_that_cannot_be_are_named(sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ElmoConfig(**(vars(SMALL) | sizes))


@pytest.mark.parametrize("config", [SMALL, PLAIN], ids=["small", "plain"])
def test_the_flops_of_the_layers_are_those_of_their_products(config: ElmoConfig) -> None:
    """tests/objectives/test_bidirectional_language_model.py has those of pretraining."""
    found = step_flops(config.module(Purpose.ENCODING, Execution()), characters=np.zeros((2, 7, 9), np.int32))
    assert config.train_flops(2, 7, 0) == found
