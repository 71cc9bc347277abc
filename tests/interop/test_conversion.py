"""Parameters from parts of tensors and from several: real tensors of other libraries in modules whose shapes differ."""

import chex
import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.errors import UserError
from plmjax.interop import conversion
from plmjax.interop.conversion import Conversion, parameter
from plmjax.interop.tensors import Tensors
from plmjax.layers.stack import stack
from tests.optional import torch, transformers

ROWS, LENGTH, SIZE, HEADS, LAYERS = 2, 5, 12, 3, 2


def tensors_of(state):
    """Tensors of a torch module's state_dict."""
    arrays = {name: tensor.detach().numpy() for name, tensor in state.items()}
    return in_memory(arrays)


def in_memory(arrays):
    shapes = {name: array.shape for name, array in arrays.items()}
    dtypes = {name: array.dtype.name for name, array in arrays.items()}
    return Tensors("memory", shapes, dtypes, arrays.__getitem__)


def random_state(module):
    torch.manual_seed(0)
    with torch.no_grad():
        for weights in module.parameters():
            weights.normal_(0.0, 0.5)
    return tensors_of(dict(module.named_parameters()))


def assert_written_as_read(module, example, conversions, tensors, params):
    """Writing gives every tensor of the checkpoint back; reading what was written gives every bit back."""
    written = conversion.write_tensors(module, example, conversions, params)
    assert written.keys() == tensors.shapes.keys()
    again, _ = conversion.read_parameters(module, example, conversions, in_memory(written))
    chex.assert_trees_all_equal(again, params)
    return written


class Attention(nn.Module):
    """One layer of causal attention as a layer of a scanned stack has it: x, nothing -> x, nothing."""

    @nn.compact
    def __call__(self, x, _):
        attention = nn.MultiHeadDotProductAttention(HEADS, name="attention")
        return x + attention(x, mask=nn.make_causal_mask(x[..., 0])), None


class Stack(nn.Module):
    """Layers whose parameters are stacked."""

    @nn.compact
    def __call__(self, x, deterministic=True):
        layers = nn.scan(Attention, {"params": 0}, split_rngs={"params": True}, length=LAYERS)
        return layers(name="layers")(x, None)[0]


FUSED = tuple(
    Conversion(
        tuple(f"layers/attention/{name}/{leaf}" for name in ("query", "key", "value")),
        (f"h.{{layer}}.attn.c_attn.{tensor}",),
        conversion.joined(axis=-1, each=arrangement),
    )
    for leaf, tensor, arrangement in (("kernel", "weight", conversion.matrix()), ("bias", "bias", conversion.FLAT))
)
GPT2 = (
    *FUSED,
    parameter("layers/attention/out/kernel", "h.{layer}.attn.c_proj.weight", conversion.matrix(inputs=2)),
    parameter("layers/attention/out/bias", "h.{layer}.attn.c_proj.bias"),
)


@pytest.fixture(scope="module")
def gpt2():
    """transformers' GPT2Model, every parameter random."""
    config = transformers.GPT2Config(
        vocab_size=7, n_positions=LENGTH, n_embd=SIZE, n_layer=LAYERS, n_head=HEADS, attn_implementation="eager"
    )
    model = transformers.GPT2Model(config).eval()
    random_state(model)
    return model


def attention_tensors(model):
    return tensors_of({name: tensor for name, tensor in model.state_dict().items() if ".attn.c_" in name})


def test_query_key_and_value_come_from_gpt2s_fused_tensor_and_return_there(gpt2):
    x = np.random.default_rng(0).normal(size=(ROWS, LENGTH, SIZE)).astype(np.float32)
    tensors, example = attention_tensors(gpt2), {"x": x}
    params, left_over = conversion.read_parameters(Stack(), example, GPT2, tensors)
    assert left_over == [] and params["layers"]["attention"]["key"]["kernel"].shape == (LAYERS, SIZE, HEADS, 4)

    expected = torch.from_numpy(x)
    mask = torch.full((LENGTH, LENGTH), float("-inf")).triu(1)[None, None]
    with torch.no_grad():
        for block in gpt2.h:
            expected = expected + block.attn(expected, attention_mask=mask)[0]
    np.testing.assert_allclose(Stack().apply({"params": params}, x), expected, atol=1e-5, rtol=1e-5)

    written = assert_written_as_read(Stack(), example, GPT2, tensors, params)
    chex.assert_trees_all_equal(written, {name: tensors.read(name) for name in written})


def test_what_does_not_fit_is_named_by_its_tensor(gpt2):
    arrays = {name: tensor.numpy() for name, tensor in gpt2.state_dict().items() if ".attn.c_" in name}
    example = {"x": np.zeros((ROWS, LENGTH, SIZE), np.float32)}
    changed = {name: array for name, array in arrays.items() if name != "h.1.attn.c_attn.bias"}
    changed["h.0.attn.c_attn.weight"] = arrays["h.0.attn.c_attn.weight"][:, 1:]
    changed["h.0.attn.c_extra"] = np.zeros(1, np.float32)
    sentence = (
        r"h\.1\.attn\.c_attn\.bias missing and h\.0\.attn\.c_extra that the model has no parameter for and "
        r"h\.0\.attn\.c_attn\.weight \[12, 35\] instead of \[12, 36\]"
    )
    with pytest.raises(UserError, match=sentence):
        conversion.read_parameters(Stack(), example, GPT2, in_memory(changed))
    arrays["h.1.attn.c_attn.bias"] = np.full(3 * SIZE, np.nan, np.float32)
    with pytest.raises(UserError, match=r"finite float32 numbers in h\.1\.attn\.c_attn\.bias of memory"):
        conversion.read_parameters(Stack(), example, GPT2, in_memory(arrays))

    params, _ = conversion.read_parameters(Stack(), example, GPT2, attention_tensors(gpt2))
    del params["layers"]["attention"]["key"]
    with pytest.raises(UserError, match=r"found layers/attention/key/bias, layers/attention/key/kernel missing"):
        conversion.write_tensors(Stack(), example, GPT2, params)


def test_a_table_that_forgets_a_parameter_is_an_error_of_the_adapter(gpt2):
    example = {"x": np.zeros((ROWS, LENGTH, SIZE), np.float32)}
    with pytest.raises(LookupError, match="a difference at layers/attention/out/bias"):
        conversion.read_parameters(Stack(), example, GPT2[:-1], attention_tensors(gpt2))


class SeparateGates(nn.Module):
    """flax's LSTM, which has a kernel for each gate and one bias where torch has two; its carry is an input."""

    @nn.compact
    def __call__(self, x, carry, deterministic=True):
        cell = nn.OptimizedLSTMCell(carry[0].shape[-1], name="cell")
        return nn.RNN(cell, name="rnn")(x, initial_carry=carry)


class FusedGates(nn.Module):
    """The same with one kernel and one bias for all gates of [x h], in the order o, i, f, g."""

    @nn.compact
    def __call__(self, x, carry, deterministic=True):
        size = carry[0].shape[-1]
        kernel = self.param("kernel", nn.initializers.lecun_normal(), (x.shape[-1] + size, 4 * size))
        bias = self.param("bias", nn.initializers.zeros, (4 * size,))
        outputs, (cell, hidden) = [], carry
        for now in range(x.shape[1]):
            gates = jnp.split(jnp.concatenate([x[:, now], hidden], -1) @ kernel + bias, 4, -1)
            output, write, keep = (nn.sigmoid(gate) for gate in gates[:3])
            cell = keep * cell + write * jnp.tanh(gates[3])
            hidden = output * jnp.tanh(cell)
            outputs.append(hidden)
        return jnp.stack(outputs, 1)


GATES = "ifgo"  # torch's order
SEPARATE = (
    Conversion(
        tuple(f"cell/i{gate}/kernel" for gate in GATES),
        ("weight_ih_l0",),
        conversion.joined(axis=0, each=conversion.weight()),
    ),
    Conversion(
        tuple(f"cell/h{gate}/kernel" for gate in GATES),
        ("weight_hh_l0",),
        conversion.joined(axis=0, each=conversion.weight()),
    ),
    Conversion(
        tuple(f"cell/h{gate}/bias" for gate in GATES),
        ("bias_ih_l0", "bias_hh_l0"),
        conversion.summed(2, each=conversion.joined(axis=0)),
    ),
)


@pytest.fixture(scope="module")
def lstm():
    """torch's LSTM of odd sizes, every parameter random."""
    module = torch.nn.LSTM(3, 4, batch_first=True)
    random_state(module)
    return module


@pytest.fixture(scope="module")
def sequence():
    """Inputs of an LSTM and of its carry."""
    generator = np.random.default_rng(0)
    x, cell, hidden = (generator.normal(size=s).astype(np.float32) for s in ((2, 5, 3), (2, 4), (2, 4)))
    return {"x": x, "carry": (cell, hidden)}


def outputs(lstm, sequence):
    x, cell, hidden = map(torch.from_numpy, (sequence["x"], *sequence["carry"]))
    with torch.no_grad():
        return lstm(x, (hidden[None], cell[None]))[0].numpy()


def test_separate_gates_come_from_torchs_lstm_and_return_there(lstm, sequence):
    tensors = tensors_of(lstm.state_dict())
    params, _ = conversion.read_parameters(SeparateGates(), sequence, SEPARATE, tensors)
    found = SeparateGates().apply({"params": params}, **sequence)
    np.testing.assert_allclose(found, outputs(lstm, sequence), atol=1e-5, rtol=1e-5)

    written = assert_written_as_read(SeparateGates(), sequence, SEPARATE, tensors, params)
    np.testing.assert_array_equal(written["weight_ih_l0"], tensors.read("weight_ih_l0"))
    np.testing.assert_array_equal(written["bias_hh_l0"], np.zeros(16, np.float32))
    same = torch.nn.LSTM(3, 4, batch_first=True)
    same.load_state_dict({name: torch.from_numpy(tensor) for name, tensor in written.items()})
    np.testing.assert_allclose(outputs(same, sequence), outputs(lstm, sequence), atol=1e-6, rtol=1e-6)


def test_one_fused_parameter_comes_from_a_tensor_for_each_gate(lstm, sequence):
    """As a checkpoint has it that names its gates."""
    state = tensors_of(lstm.state_dict())
    both = np.concatenate([state.read("weight_ih_l0"), state.read("weight_hh_l0")], axis=1)
    kernels = dict(zip(GATES, np.split(both, 4), strict=True))
    biases = dict(zip(GATES, np.split(state.read("bias_ih_l0") + state.read("bias_hh_l0"), 4), strict=True))
    tensors = in_memory(
        {f"gate_{gate}.weight": kernels[gate] for gate in GATES} | {f"gate_{gate}.bias": biases[gate] for gate in GATES}
    )
    table = (
        Conversion(
            ("kernel",),
            tuple(f"gate_{gate}.weight" for gate in "oifg"),
            conversion.divided(4, axis=0, each=conversion.weight()),
        ),
        Conversion(("bias",), tuple(f"gate_{gate}.bias" for gate in "oifg"), conversion.divided(4, axis=0)),
    )
    params, _ = conversion.read_parameters(FusedGates(), sequence, table, tensors)
    found = FusedGates().apply({"params": params}, **sequence)
    np.testing.assert_allclose(found, outputs(lstm, sequence), atol=1e-5, rtol=1e-5)
    written = assert_written_as_read(FusedGates(), sequence, table, tensors, params)
    chex.assert_trees_all_equal(written, {name: tensors.read(name) for name in written})


def test_parameters_of_a_grid_come_from_one_tensor():
    """As TensorFlow's LSTM has the kernels of x and h, one below the other, of all gates side by side."""

    class Kernels(nn.Module):
        @nn.compact
        def __call__(self, x, deterministic=True):
            rows = {"x": 3, "h": 2}
            return [self.param(f"{row}{gate}", nn.initializers.ones, (rows[row], 2)) for row in rows for gate in "ij"]

    grid = conversion.joined(axis=0, each=conversion.joined(axis=1), count=2)
    table = (Conversion(("xi", "xj", "hi", "hj"), ("kernel",), grid),)
    kernel = np.arange(20, dtype=np.float32).reshape(5, 4)
    tensors, example = in_memory({"kernel": kernel}), {"x": np.zeros(1, np.float32)}
    params, _ = conversion.read_parameters(Kernels(), example, table, tensors)
    np.testing.assert_array_equal(params["hj"], kernel[3:, 2:])
    written = assert_written_as_read(Kernels(), example, table, tensors, params)
    np.testing.assert_array_equal(written["kernel"], kernel)


def test_layers_of_alternating_kinds_come_from_every_other_layer():
    class Alternating(nn.Module):
        @nn.compact
        def __call__(self, x, deterministic=True):
            layer = Pair(name="pairs")
            return stack(lambda layer, x, _: (layer(x), None), layer, 3, Execution(), x)[0]

    class Pair(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(3, name="hashed")(nn.Dense(3, use_bias=False, name="local")(x))

    generator, example = np.random.default_rng(0), {"x": np.ones((2, 3), np.float32)}
    arrays = {f"layers.{i}.weight": generator.normal(size=(3, 3)).astype(np.float32) for i in range(6)}
    arrays |= {f"layers.{i}.bias": generator.normal(size=3).astype(np.float32) for i in (1, 3, 5)}
    table = (
        Conversion(("pairs/local/kernel",), ("layers.{layer}.weight",), conversion.weight(), first=0, every=2),
        Conversion(("pairs/hashed/kernel",), ("layers.{layer}.weight",), conversion.weight(), first=1, every=2),
        Conversion(("pairs/hashed/bias",), ("layers.{layer}.bias",), first=1, every=2),
    )
    params, _ = conversion.read_parameters(Alternating(), example, table, in_memory(arrays))
    expected = example["x"]
    for layer in range(6):
        expected = expected @ arrays[f"layers.{layer}.weight"].T + arrays.get(f"layers.{layer}.bias", 0)
    np.testing.assert_allclose(Alternating().apply({"params": params}, **example), expected, rtol=1e-5, atol=1e-5)
    chex.assert_trees_all_equal(
        assert_written_as_read(Alternating(), example, table, in_memory(arrays), params), arrays
    )


@pytest.mark.nightly
def test_shapes_come_from_the_inputs_that_a_module_takes():
    """An encoder-decoder of characters: nothing about it is a row of token ids."""

    class Translator(nn.Module):
        @nn.compact
        def __call__(self, characters, decoder_input_ids, deterministic=True):
            source = nn.Conv(6, (3,), name="filters")(nn.Embed(11, 4, name="characters")(characters)).max(-2)
            target = nn.Embed(9, 6, name="words")(decoder_input_ids)
            return nn.MultiHeadDotProductAttention(2, name="attention")(target, source)

    example = {"characters": np.zeros((2, 5, 7), np.int32), "decoder_input_ids": np.zeros((2, 3), np.int32)}
    shapes = conversion.parameter_shapes(Translator(), example)
    assert shapes["filters/kernel"] == (3, 4, 6) and shapes["attention/key/kernel"] == (6, 2, 3)
    made = Translator().init(jax.random.key(0), **example)["params"]
    leaves = flax.traverse_util.flatten_dict(made, sep="/")
    assert shapes == {path: leaf.shape for path, leaf in leaves.items()}


def test_a_module_of_as_many_layers_as_tensors_is_read_and_six_names_are_listed():
    class Scale(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            return x * self.param("scale", nn.initializers.ones, ()), None

    class Scales(nn.Module):
        @nn.compact
        def __call__(self, x, deterministic=True):
            layers = nn.scan(Scale, {"params": 0}, split_rngs={"params": True}, length=11)
            return layers(name="layers")(x, None)[0]

    table, example = (parameter("layers/scale", "h.{layer}"),), {"x": np.zeros(2, np.float32)}
    arrays = {f"h.{layer}": np.float32(layer) for layer in range(11)}
    params, _ = conversion.read_parameters(Scales(), example, table, in_memory(arrays))
    assert params["layers"]["scale"].tolist() == list(range(11))
    with pytest.raises(UserError, match=r"the tensors of 11 layers in memory, .* found 10 tensors in all"):
        conversion.read_parameters(Scales(), example, table, in_memory(dict(list(arrays.items())[:10])))
    for extra, listing in ((6, "x.0, x.1, x.2, x.3, x.4, x.5 that"), (7, "x.4, x.5 and 1 more that")):
        more = arrays | {f"x.{number}": np.float32(0) for number in range(extra)}
        with pytest.raises(UserError, match=listing):
            conversion.read_parameters(Scales(), example, table, in_memory(more))
