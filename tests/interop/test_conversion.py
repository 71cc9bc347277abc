"""Parameters from parts of tensors and from several: an LSTM of torch in modules with separate and with fused gates.

The fused tensors of GPT-2, the kernels of ELMo and the two kinds of layers of a Reformer: tests/systems.
"""

import chex
import flax.linen as nn
import numpy as np
import pytest

from plmjax.errors import UserError
from plmjax.interop import conversion
from plmjax.interop.conversion import Conversion, parameter
from plmjax.interop.tensors import Tensors
from tests.optional import torch


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


def assert_written_as_read(module, example, conversions, *, tensors, params):
    """Writing gives every tensor of the checkpoint back; reading what was written gives every bit back."""
    written = conversion.write_tensors(module, example, conversions, params)
    assert written.keys() == tensors.shapes.keys()
    again, _ = conversion.read_parameters(module, example, conversions, tensors=in_memory(written))
    chex.assert_trees_all_equal(again, params)
    return written


class SeparateGates(nn.Module):
    """flax's LSTM, which has a kernel for each gate and one bias where torch has two; its carry is an input."""

    @nn.compact
    def __call__(self, x, carry, deterministic=True):
        cell = nn.OptimizedLSTMCell(carry[0].shape[-1], name="cell")
        return nn.RNN(cell, name="rnn")(x, initial_carry=carry)


GATES = "ifgo"  # torch's order
SEPARATE = (
    Conversion(
        tuple(f"cell/i{gate}/kernel" for gate in GATES),
        ("weight_ih_l0",),
        conversion.concatenate(axis=0, each=conversion.weight()),
    ),
    Conversion(
        tuple(f"cell/h{gate}/kernel" for gate in GATES),
        ("weight_hh_l0",),
        conversion.concatenate(axis=0, each=conversion.weight()),
    ),
    Conversion(
        tuple(f"cell/h{gate}/bias" for gate in GATES),
        ("bias_hh_l0",),
        conversion.concatenate(axis=0),
    ),
)


@pytest.fixture(scope="module")
def lstm():
    """torch's LSTM of odd sizes, every parameter random but the second bias, which adds nothing to the first."""
    module = torch.nn.LSTM(3, 4, batch_first=True)
    random_state(module)
    with torch.no_grad():
        module.bias_ih_l0.zero_()
    return module


def state_of(lstm):
    return {name: tensor for name, tensor in lstm.state_dict().items() if name != "bias_ih_l0"}


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
    tensors = tensors_of(state_of(lstm))
    params, _ = conversion.read_parameters(SeparateGates(), sequence, SEPARATE, tensors=tensors)
    found = SeparateGates().apply({"params": params}, **sequence)
    np.testing.assert_allclose(found, outputs(lstm, sequence), atol=1e-5, rtol=1e-5)

    written = assert_written_as_read(SeparateGates(), sequence, SEPARATE, tensors=tensors, params=params)
    np.testing.assert_array_equal(written["weight_ih_l0"], tensors.read("weight_ih_l0"))
    same = torch.nn.LSTM(3, 4, batch_first=True)
    written |= {"bias_ih_l0": np.zeros(16, np.float32)}
    same.load_state_dict({name: torch.from_numpy(tensor) for name, tensor in written.items()})
    np.testing.assert_allclose(outputs(same, sequence), outputs(lstm, sequence), atol=1e-6, rtol=1e-6)


def test_what_does_not_fit_is_named_by_its_tensor(lstm, sequence):
    arrays = {name: tensor.numpy() for name, tensor in state_of(lstm).items()}
    changed = {name: array for name, array in arrays.items() if name != "bias_hh_l0"}
    changed |= {"weight_ih_l0": arrays["weight_ih_l0"][:, 1:], "extra": np.zeros(1, np.float32)}
    sentence = (
        r"bias_hh_l0 missing and extra that the model has no parameter for and weight_ih_l0 \[16, 2\] instead of "
        r"\[16, 3\]"
    )
    with pytest.raises(UserError, match=sentence):
        conversion.read_parameters(SeparateGates(), sequence, SEPARATE, tensors=in_memory(changed))
    odd = arrays | {"bias_hh_l0": np.full(16, np.nan, np.float32)}
    with pytest.raises(UserError, match=r"finite float32 numbers in bias_hh_l0 of memory"):
        conversion.read_parameters(SeparateGates(), sequence, SEPARATE, tensors=in_memory(odd))
    with pytest.raises(LookupError, match="a difference at cell/hf/bias"):  # a table that forgets a parameter
        conversion.read_parameters(SeparateGates(), sequence, SEPARATE[:-1], tensors=in_memory(arrays))
    params, _ = conversion.read_parameters(SeparateGates(), sequence, SEPARATE, tensors=in_memory(arrays))
    del params["cell"]["if"]
    with pytest.raises(UserError, match=r"found cell/if/kernel missing"):
        conversion.write_tensors(SeparateGates(), sequence, SEPARATE, params)


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
    params, _ = conversion.read_parameters(Scales(), example, table, tensors=in_memory(arrays))
    assert params["layers"]["scale"].tolist() == list(range(11))
    with pytest.raises(UserError, match=r"the tensors of 11 layers in memory, .* found 10 tensors in all"):
        conversion.read_parameters(Scales(), example, table, tensors=in_memory(dict(list(arrays.items())[:10])))
    for extra, listing in ((6, "x.0, x.1, x.2, x.3, x.4, x.5 that"), (7, "x.4, x.5 and 1 more that")):
        more = arrays | {f"x.{number}": np.float32(0) for number in range(extra)}
        with pytest.raises(UserError, match=listing):
            conversion.read_parameters(Scales(), example, table, tensors=in_memory(more))
