"""Google's TensorFlow checkpoints in: the same parameters as from the same model in transformers' form."""

import chex
import pytest

from plmjax.errors import UserError
from plmjax.interop import google_bert, huggingface
from plmjax.models.bert import BertConfig
from tests.interop.odd_bert import SIZES, published
from tests.optional import torch, transformers


@pytest.mark.parametrize(
    ("heads", "architecture"),
    [
        (("cls/predictions", "cls/seq_relationship"), "BertForPreTraining"),
        (("output_",), "BertForSequenceClassification"),
    ],
)
def test_equals_transformers_of_the_same_variables(tmp_path, heads, architecture):
    variables = published(tmp_path, heads)
    assert google_bert.evidence(tmp_path)
    model, params = google_bert.load(tmp_path)
    assert type(model).__name__ == architecture
    # Deviation: Google's "gelu" is the tanh form, which transformers calls gelu_new.
    assert model.config == BertConfig(**SIZES, hidden_act="gelu_new", layer_norm_eps=1e-12)

    # transformers' own model, filled by the rules of its conversion script rather than by our table of names.
    config = transformers.BertConfig(**SIZES, hidden_act="gelu_new", num_labels=4)
    theirs = getattr(transformers, architecture)(config)
    leaves = {"kernel": "weight", "gamma": "weight", "output_weights": "weight", "beta": "bias", "output_bias": "bias"}
    with torch.no_grad():
        for variable, value in variables.items():
            target, path = theirs, variable.split("/")
            for scope in ["classifier", *path] if variable.startswith("output_") else path:
                if scope.startswith("layer_"):
                    target = target.layer[int(scope[6:])]
                else:
                    target = getattr(target, leaves.get(scope, scope))
            target = target.weight if path[-1].endswith("_embeddings") else target
            target.copy_(torch.from_numpy(value.T if path[-1] == "kernel" else value))
    theirs.save_pretrained(tmp_path / "converted")
    same, expected = huggingface.load(tmp_path / "converted")
    assert same == model
    chex.assert_trees_all_equal(params, expected)
    assert huggingface.compare(model, params, tmp_path / "converted") <= 1e-5


def test_what_does_not_fit_is_one_sentence(tmp_path):
    def refused(sentence, **options):
        with pytest.raises(UserError, match=sentence):
            google_bert.load(tmp_path, **options)

    refused(r"Google's config at .*bert_config\.json, found no file")
    published(tmp_path)
    config, data = tmp_path / "bert_config.json", next(tmp_path.glob("*.data-*"))
    before, whole = config.read_text(), data.read_bytes()
    config.write_text(before.replace('"gelu"', '"swish"'))
    refused(r"Expected a hidden_act of gelu or relu in .*, found .swish.")
    config.write_text(before.replace('"num_hidden_layers": 3', '"num_hidden_layers": 4'))
    refused(r"bert\.encoder\.layer\.3.* missing")
    config.write_text(before)
    refused(r"classifier\.bias, .* missing", architecture="BertForSequenceClassification")
    data.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    refused("found it damaged")
    next(tmp_path.glob("*.index")).unlink()
    refused("Expected one checkpoint")


def test_norms_as_keras_names_and_numbers_them() -> None:
    for old, new in {
        "bert/embeddings/layer_normalization/gamma": "bert.embeddings.LayerNorm.weight",
        "bert/encoder/layer_11/output/layer_normalization_24/beta": "bert.encoder.layer.11.output.LayerNorm.bias",
        "cls/predictions/transform/layer_normalization_25/gamma": "cls.predictions.transform.LayerNorm.weight",
    }.items():
        assert google_bert.transformers_name(old) == new
