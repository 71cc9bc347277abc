"""Shared by the interop tests: a BERT of odd sizes, random parameters for any module, a folder as Google's."""

import json
import re

import flax.traverse_util
import jax
import numpy as np
import pytest

from plmjax.interop import huggingface
from plmjax.interop.conversion import parameter_shapes
from tests.optional import transformers

SIZES = {
    "vocab_size": 37,
    "hidden_size": 15,
    "num_hidden_layers": 3,
    "num_attention_heads": 5,
    "intermediate_size": 22,
    "max_position_embeddings": 19,
    "type_vocab_size": 3,
}


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


def assert_nothing_is_lost(model, directory):
    """transformers' Auto class for the model opens what is written, with equal outputs; reading and writing it again
    changes no bit. Returns transformers' model."""
    params, name = random_params(model), type(model).__name__
    huggingface.save(model, params, directory)
    theirs = getattr(transformers, re.sub("^.*?(Model$|(?=For))", "AutoModel", name)).from_pretrained(directory)
    assert type(theirs).__name__ == name
    assert huggingface.compare(model, params, directory) <= 1e-5

    again, loaded = huggingface.load(directory)
    assert again == model
    assert_same_bits(params, loaded)
    huggingface.save(again, loaded, directory / "again")
    for file in ("model.safetensors", "config.json"):
        assert (directory / "again" / file).read_bytes() == (directory / file).read_bytes()
    return theirs


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
    slots = {f"{name}/adam_{moment}": value for name, value in variables.items() for moment in "mv"}
    saved = variables | slots | {"global_step": np.int64(7)}
    tf.raw_ops.SaveV2(
        prefix=str(directory / "bert_model.ckpt"),
        tensor_names=list(saved),
        shape_and_slices=[""] * len(saved),
        tensors=[tf.constant(value) for value in saved.values()],
    )
    config = SIZES | {"hidden_act": "gelu", "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    (directory / "bert_config.json").write_text(json.dumps(config | {"initializer_range": 0.02}))
    return variables
