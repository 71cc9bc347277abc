"""Shared by the interop tests: a BERT of odd sizes, random parameters for any module, a folder as Google's."""

import json

import flax.traverse_util
import jax
import numpy as np
import pytest
import safetensors.numpy

from plmjax.interop import huggingface
from plmjax.interop.conversion import parameter_shapes

SIZES = {
    "vocab_size": 37, "hidden_size": 15, "num_hidden_layers": 3, "num_attention_heads": 5, "intermediate_size": 22,
    "max_position_embeddings": 19, "type_vocab_size": 3,
}  # fmt: skip


def random_params(module, seed=0):
    """Parameters of a module, none at its initial value."""
    generator = np.random.default_rng(seed)
    shapes = parameter_shapes(module, huggingface.adapter_of(module).inputs(module))
    leaves = {path: generator.normal(size=shape) for path, shape in shapes.items()}
    return flax.traverse_util.unflatten_dict({path: leaf.astype(np.float32) for path, leaf in leaves.items()}, sep="/")


def assert_same_bits(first, second):
    assert jax.tree.structure(first) == jax.tree.structure(second)
    for one, other in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        assert one.dtype == other.dtype == np.float32
        assert one.tobytes() == other.tobytes() and one.shape == other.shape


def rewrite(directory, change):
    """Passes the tensors of a folder through `change` and writes what it returns."""
    path = directory / "model.safetensors"
    tensors = {name: tensor.copy() for name, tensor in safetensors.numpy.load_file(path).items()}
    safetensors.numpy.save_file(change(tensors) or tensors, path, metadata={"format": "pt"})


def set_config(directory, **settings):
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def published(directory, heads=("cls/predictions", "cls/seq_relationship")):
    """Writes a folder as Google publishes them, of random variables, the optimizer's slots too; name -> value."""
    tf = pytest.importorskip("tensorflow")
    size, inner, vocabulary = SIZES["hidden_size"], SIZES["intermediate_size"], SIZES["vocab_size"]
    shapes = {
        "bert/embeddings/word_embeddings": (vocabulary, size),
        "bert/embeddings/position_embeddings": (SIZES["max_position_embeddings"], size),
        "bert/embeddings/token_type_embeddings": (SIZES["type_vocab_size"], size),
        "cls/predictions/output_bias": (vocabulary,),
        "cls/seq_relationship/output_weights": (2, size),
        "cls/seq_relationship/output_bias": (2,),
        "output_weights": (4, size),
        "output_bias": (4,),
    }
    dense = {"bert/pooler/dense": (size, size), "cls/predictions/transform/dense": (size, size)}
    norms = ["bert/embeddings/LayerNorm", "cls/predictions/transform/LayerNorm"]
    for layer in range(SIZES["num_hidden_layers"]):
        scope = f"bert/encoder/layer_{layer}"
        dense |= {f"{scope}/attention/self/{name}": (size, size) for name in ("query", "key", "value")}
        dense |= {f"{scope}/attention/output/dense": (size, size)}
        dense |= {f"{scope}/intermediate/dense": (size, inner), f"{scope}/output/dense": (inner, size)}
        norms += [f"{scope}/attention/output/LayerNorm", f"{scope}/output/LayerNorm"]
    shapes |= {f"{name}/kernel": shape for name, shape in dense.items()}
    shapes |= {f"{name}/bias": shape[1:] for name, shape in dense.items()}
    shapes |= {f"{name}/{leaf}": (size,) for name in norms for leaf in ("gamma", "beta")}
    generator = np.random.default_rng(0)
    variables = {
        name: generator.normal(size=shape).astype(np.float32)
        for name, shape in shapes.items()
        if name.startswith(("bert/", *heads))
    }
    moments = ("adam_m", "adam_v", "Adam", "Adam_1", "lamb_m", "lamb_v")  # BERT's own optimizer, TensorFlow's, LAMB
    slots = {f"{name}/{moment}": value for name, value in variables.items() for moment in moments}
    saved = variables | slots | {name: np.float32(7) for name in ("global_step", "beta1_power", "beta2_power")}
    values, slices = [tf.constant(value) for value in saved.values()], [""] * len(saved)
    prefix = str(directory / "bert_model.ckpt")
    tf.raw_ops.SaveV2(prefix=prefix, tensor_names=list(saved), shape_and_slices=slices, tensors=values)
    config = SIZES | {"hidden_act": "gelu", "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    (directory / "bert_config.json").write_text(json.dumps(config | {"initializer_range": 0.02}))
    return variables
