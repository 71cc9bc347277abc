"""Parameters from parts of tensors and from several, and the names that versions, classes and wrappers give to tensors.

The fused tensors of GPT-2, the kernels of ELMo and the two kinds of layers of a Reformer: tests/systems.
"""

import chex
import flax.linen as nn
import numpy as np
import pytest

from plmjax.errors import UserError
from plmjax.interop import conversion, marian
from plmjax.interop.conversion import Conversion, parameter
from plmjax.interop.huggingface import ADAPTERS
from plmjax.interop.tensor_names import unwrap
from plmjax.interop.tensors import Tensors
from plmjax.models.transformer import TransformerConfig
from tests.optional import torch


def in_memory(arrays):
    shapes = {name: array.shape for name, array in arrays.items()}
    dtypes = {name: array.dtype.name for name, array in arrays.items()}
    return Tensors("memory", shapes, dtypes, arrays.__getitem__)


class SeparateGates(nn.Module):
    """flax's LSTM, which has a kernel for each gate and one bias where torch has two; its carry is an input."""

    @nn.compact
    def __call__(self, x, carry, deterministic=True):
        cell = nn.OptimizedLSTMCell(carry[0].shape[-1], name="cell")
        return nn.RNN(cell, name="rnn")(x, initial_carry=carry)


GATES = "ifgo"  # torch's order
KERNELS = conversion.concatenate(axis=0, each=conversion.weight())
SEPARATE = (
    Conversion(tuple(f"cell/i{gate}/kernel" for gate in GATES), ("weight_ih_l0",), KERNELS),
    Conversion(tuple(f"cell/h{gate}/kernel" for gate in GATES), ("weight_hh_l0",), KERNELS),
    Conversion(tuple(f"cell/h{gate}/bias" for gate in GATES), ("bias_hh_l0",), conversion.concatenate(axis=0)),
)


@pytest.fixture(scope="module")
def lstm():
    """torch's LSTM of odd sizes, every parameter random but the second bias, which adds nothing to the first."""
    torch.manual_seed(0)
    module = torch.nn.LSTM(3, 4, batch_first=True)
    with torch.no_grad():
        for name, weights in module.named_parameters():
            weights.zero_() if name == "bias_ih_l0" else weights.normal_(0.0, 0.5)
    return module


def arrays_of(lstm):
    return {name: tensor.numpy() for name, tensor in lstm.state_dict().items() if name != "bias_ih_l0"}


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
    tensors = in_memory(arrays_of(lstm))
    params, _ = conversion.read_parameters(SeparateGates(), sequence, SEPARATE, tensors=tensors)
    found = SeparateGates().apply({"params": params}, **sequence)
    np.testing.assert_allclose(found, outputs(lstm, sequence), atol=1e-5, rtol=1e-5)

    written = conversion.write_tensors(SeparateGates(), sequence, SEPARATE, params)
    chex.assert_trees_all_equal(written, arrays_of(lstm))


def test_what_does_not_fit_is_named_by_its_tensor(lstm, sequence):
    arrays = arrays_of(lstm)
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


class Scale(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        return x * self.param("scale", nn.initializers.ones, ()), None


class Scales(nn.Module):
    @nn.compact
    def __call__(self, x, deterministic=True):
        layers = nn.scan(Scale, {"params": 0}, split_rngs={"params": True}, length=11)
        return layers(name="layers")(x, None)[0]


def test_a_module_of_as_many_layers_as_tensors_is_read_and_six_names_are_listed():
    table, example = (parameter("layers/scale", "h.{layer}"),), {"x": np.zeros(2, np.float32)}
    arrays = {f"h.{layer}": np.float32(layer) for layer in range(11)}
    params, _ = conversion.read_parameters(Scales(), example, table, tensors=in_memory(arrays))
    assert params["layers"]["scale"].tolist() == list(range(11))
    more = arrays | {f"x.{number}": np.float32(0) for number in range(7)}
    less = dict(list(arrays.items())[:10])
    for found, sentence in ((less, r"11 layers in memory, .* found 10 tensors in all"), (more, r"x.5 and 1 more that")):
        with pytest.raises(UserError, match=sentence):
            conversion.read_parameters(Scales(), example, table, tensors=in_memory(found))


NAMES = [
    ("bart", "shared.weight", "model.shared.weight"), ("bart", "lm_head.weight", "lm_head.weight"),
    ("bert", "encoder.layer.0.output.LayerNorm.beta", "bert.encoder.layer.0.output.LayerNorm.bias"),
    ("gpt2", "h.0.attn.c_attn.bias", "transformer.h.0.attn.c_attn.bias"),
    ("gpt2", "ln_f.bias", "transformer.ln_f.bias"),
    ("openai-gpt", "h.1.attn.c_attn.bias", "transformer.h.1.attn.c_attn.bias"), ("xlnet", "mask_emb", "mask_emb"),
    ("xlnet", "layer.0.ff.layer_1.bias", "transformer.layer.0.ff.layer_1.bias"),
    # buffers, besides those of test_released_forms.py
    ("bart", "final_logits_bias", None), ("bart", "model.decoder.version", None),
    ("bert", "embeddings.token_type_ids", None), ("deberta-v2", "embeddings.position_ids", None),
    ("distilbert", "embeddings.position_ids", None), ("led", "final_logits_bias", None),
    ("openai-gpt", "transformer.position_ids", None), ("reformer", "lm_head.bias", None),
    ("reformer", "reformer.encoder.layers.0.attention.self_attention.mask_value_float16", None),
    ("reformer", "encoder.layers.11.attention.self_attention.self_mask_value_float32", None),
]  # fmt: skip
"""System, the name in a headless file or of an older version, and the one in a model with a head, if it has any."""


def test_tensors_have_the_names_of_today_in_a_model_with_a_head() -> None:
    assert [(system, old, ADAPTERS[system].names.today(old)) for system, old, _ in NAMES] == NAMES


OTHER_HEADS = {
    "bert": ("fit_dense.weight", "fit_denses.3.bias"),
    "deberta-v2": ("mask_predictions.dense.weight", "deberta.embeddings.position_embeddings.weight"),
    "gpt2": ("classifier.weight",),
    "longformer": ("longformer.pooler.dense.bias",),
    "mobilebert": ("mobilebert.pooler.dense.bias",),
    "t5": ("classifier.bias", "classification_head.dense.bias", "qa_outputs.bias"),
}
"""System -> tensors of heads that no class has here."""


@pytest.mark.parametrize("system", ADAPTERS)
def test_a_file_may_have_the_head_of_another_class(system: str) -> None:
    """And no tensor whose name only begins as that of a head."""
    names, prefix = ADAPTERS[system].names, f"{ADAPTERS[system].names.prefix}."
    known = (one for one in ADAPTERS[system].architectures.values() if not one.within)
    tensors = {tensor for one in known for conversion in one.conversions for tensor in conversion.tensors}
    heads = {name for name in tensors if not name.startswith(prefix)} if len(prefix) > 1 else set()
    assert all(map(names.optional, (*heads, *OTHER_HEADS.get(system, ()))))
    assert not names.optional(f"{prefix}something.weight") and not names.optional("classifiers.bias")


def tensors_of(*names: str) -> Tensors:
    return in_memory({name: np.full(2, place, np.float32) for place, name in enumerate(names)})


def test_what_wraps_a_model_is_no_part_of_its_names() -> None:
    """Nor what wraps a part of it."""
    adapter, names = ADAPTERS["bert"], ("encoder.layer.0.output.dense.bias", "embeddings.word_embeddings.weight")
    for wrapper in ("module", "_orig_mod.module.module", "_fsdp_wrapped_module", "_forward_module"):
        wrapped = tensors_of(*(f"{wrapper}.{name}" for name in names))
        found = adapter.names.canonical(wrapped, adapter.architectures["BertModel"])
        assert [found.read(name)[0] for name in names] == [0, 1] and len(found.shapes) == 2
    part, whole = "bert.encoder._orig_mod.layer.0.output.dense.bias", "bert.encoder.layer.0.output.dense.bias"
    assert list(unwrap(tensors_of(part)).shapes) == [whole]
    with pytest.raises(UserError, match=f"Expected one tensor {whole} in memory"):
        unwrap(tensors_of(part, whole))


def test_a_foreign_prefix_is_named() -> None:
    adapter = ADAPTERS["bert"]
    for names, prefix in (
        (("model.bert.embeddings.word_embeddings.weight", "model.classifier.weight"), "model."),
        (("encoder_q.embeddings.word_embeddings.weight", "encoder_q.encoder.layer.0.output.dense.bias"), "encoder_q."),
    ):
        with pytest.raises(UserError, match=rf"begin with bert\. or embeddings\..* found the prefix '{prefix}'"):
            adapter.names.canonical(tensors_of(*names), adapter.architectures["BertModel"])


def test_positions_of_both_sides_of_a_translation_are_sinusoids() -> None:
    """All sines before all cosines, as transformers has them."""
    config = TransformerConfig.tiny(d_model=4, encoder_attention_heads=2, decoder_attention_heads=2)
    found = marian.positions(config)
    assert [*found] == ["encoder.embed_positions.weight", "decoder.embed_positions.weight"]
    for table in found.values():
        assert table.shape == (config.max_position_embeddings, 4)
        angles = np.array([3.0, 3.0 / 100])  # 10000 ** (2 / 4)
        np.testing.assert_allclose(table[3], [*np.sin(angles), *np.cos(angles)], rtol=1e-6)
