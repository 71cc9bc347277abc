"""Google's TensorFlow checkpoints in: the same parameters as from the same model in transformers' form."""

import json

import numpy as np
import pytest

from plmjax.errors import UserError
from plmjax.interop import huggingface, tensorflow_checkpoint
from plmjax.interop.adapter import parameter_shapes
from plmjax.models.bert import BertConfig, BertForPreTraining

tf = pytest.importorskip("tensorflow")

SIZES = {
    "vocab_size": 37,
    "hidden_size": 15,
    "num_hidden_layers": 3,
    "num_attention_heads": 5,
    "intermediate_size": 22,
    "max_position_embeddings": 19,
    "type_vocab_size": 3,
}


def published(directory, heads=("cls/predictions", "cls/seq_relationship")):
    """Writes a folder as Google publishes them, of random variables, the optimizer's slots too; name -> value."""
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


def test_parameters_are_the_variables(tmp_path):
    variables = published(tmp_path)
    assert tensorflow_checkpoint.recognised(tmp_path)
    model, params = tensorflow_checkpoint.load(tmp_path)
    assert isinstance(model, BertForPreTraining)
    # Deviation: Google's "gelu" is the tanh form, which transformers calls gelu_new.
    assert model.config == BertConfig(**SIZES, hidden_act="gelu_new", layer_norm_eps=1e-12)
    layers = params["bert"]["encoder"]["layers"]
    for layer in range(SIZES["num_hidden_layers"]):
        scope = f"bert/encoder/layer_{layer}"
        query = variables[f"{scope}/attention/self/query/kernel"]
        np.testing.assert_array_equal(layers["attention"]["query"]["kernel"][layer].reshape(15, 15), query)
        output = variables[f"{scope}/attention/output/dense/kernel"]
        np.testing.assert_array_equal(layers["attention"]["output"]["kernel"][layer].reshape(15, 15), output)
        gamma = variables[f"{scope}/output/LayerNorm/gamma"]
        np.testing.assert_array_equal(layers["feed_forward_layer_norm"]["scale"][layer], gamma)
    head = params["next_sentence"]["kernel"]
    np.testing.assert_array_equal(head, variables["cls/seq_relationship/output_weights"].T)


@pytest.mark.parametrize(
    ("heads", "architecture"),
    [
        (("cls/predictions", "cls/seq_relationship"), "BertForPreTraining"),
        (("cls/predictions",), "BertForMaskedLM"),
        (("output_",), "BertForSequenceClassification"),
        ((), "BertModel"),
    ],
)
def test_equals_transformers_of_the_same_variables(tmp_path, heads, architecture):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    variables = published(tmp_path, heads)
    model, params = tensorflow_checkpoint.load(tmp_path)
    assert type(model).__name__ == architecture

    # transformers' own model, filled by the rules of its conversion script rather than by our table of names.
    config = transformers.BertConfig(**SIZES, hidden_act="gelu_new", num_labels=4)
    theirs = getattr(transformers, architecture)(config)
    filled = set()
    with torch.no_grad():
        for variable, value in variables.items():
            target = theirs
            path = variable.split("/")
            if path[0] == "bert" and architecture == "BertModel":
                path = path[1:]
            if variable.startswith("output_"):
                path = ["classifier", *path]
            if variable.startswith("bert/pooler") and architecture == "BertForMaskedLM":
                continue
            for scope in path:
                if scope.startswith("layer_"):
                    target = target.layer[int(scope[6:])]
                elif scope in ("kernel", "gamma", "output_weights"):
                    target = target.weight
                elif scope in ("beta", "output_bias"):
                    target = target.bias
                else:
                    target = getattr(target, scope)
            target = target.weight if path[-1].endswith("_embeddings") else target
            target.copy_(torch.from_numpy(value.T if path[-1] == "kernel" else value))
            filled.add(variable)
    assert len(filled) == len(variables) - (2 if architecture == "BertForMaskedLM" else 0)
    theirs.save_pretrained(tmp_path / "converted")
    same, expected = huggingface.load(tmp_path / "converted")
    assert same == model
    for path, shape in parameter_shapes(model).items():
        found, wanted = params, expected
        for name in path.split("/"):
            found, wanted = found[name], wanted[name]
        assert found.shape == shape
        np.testing.assert_array_equal(found, wanted)
    assert huggingface.compare(model, params, tmp_path / "converted") <= 1e-5


def test_what_does_not_fit_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match=r"Google's config named bert_config\.json"):
        tensorflow_checkpoint.load(tmp_path)
    published(tmp_path)
    config = tmp_path / "bert_config.json"
    before = config.read_text()
    config.write_text(before.replace('"gelu"', '"swish"'))
    with pytest.raises(UserError, match="hidden_act 'swish'"):
        tensorflow_checkpoint.load(tmp_path)
    config.write_text(before.replace('"num_hidden_layers": 3', '"num_hidden_layers": 4'))
    with pytest.raises(UserError, match=r"misses bert\.encoder\.layer\.3"):
        tensorflow_checkpoint.load(tmp_path)
    config.write_text(before)
    with pytest.raises(UserError, match=r"misses classifier\.bias"):
        tensorflow_checkpoint.load(tmp_path, architecture="BertForSequenceClassification")
    data = next(tmp_path.glob("*.data-*"))
    whole = data.read_bytes()
    data.write_bytes(whole[: len(whole) // 8])
    with pytest.raises(UserError, match="whole, but does not"):
        tensorflow_checkpoint.load(tmp_path)
    data.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    with pytest.raises(UserError, match="whole, but does not"):
        tensorflow_checkpoint.load(tmp_path)
    next(tmp_path.glob("*.index")).unlink()
    with pytest.raises(UserError, match="must hold one checkpoint"):
        tensorflow_checkpoint.load(tmp_path)
