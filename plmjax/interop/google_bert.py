"""Import of Google's BERT folders (github.com/google-research/bert): bert_config.json, vocab.txt and bert_model.ckpt.

Variables get transformers' names and orientation. So one table of conversions serves both libraries.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import flax.linen as nn

from plmjax.contracts.execution import Execution
from plmjax.errors import UserError, quoted
from plmjax.files import json_text
from plmjax.interop import bert, tensorflow_checkpoint
from plmjax.interop.huggingface import assemble
from plmjax.interop.tensors import Tensors

CONFIG = "bert_config.json"
ACTIVATIONS = {"gelu": "gelu_new", "relu": "relu"}
"""Activation of Google's modeling.py -> transformers' name. Google's "gelu" is the tanh form, theirs is exact."""

_SLOT = re.compile(r"global_step$|.*/(adam_[mv]|Adam(_1)?|lamb_[mv])$|beta[12]_power$")
_NORM = re.compile(r"layer_normalization(_\d+)?$")
"""Name of a layer normalization in code for TensorFlow 2, with Keras's number; in Google's code it is LayerNorm."""
_LEAVES = {"kernel": "weight", "gamma": "weight", "beta": "bias", "output_weights": "weight", "output_bias": "bias"}


def evidence(path: Path) -> str:
    """Return the evidence that a folder is Google's; empty if it is not."""
    return CONFIG if (path / CONFIG).is_file() else ""


def load(
    directory: str | Path, *, architecture: str = "auto", execution: Execution = Execution()
) -> tuple[nn.Module, dict[str, Any]]:
    """Return the model of one of Google's folders and its parameters, float32 numpy arrays on the host.

    The optimizer's slots are ignored.

    architecture: a transformers class; "auto" takes the largest class whose heads are in the checkpoint.

    Raises:
        UserError: a folder, config or variable does not fit.
    """
    directory = Path(directory)
    found = json_text.read_object(directory / CONFIG, "Google's config", "check the folder")
    tensors = _variables(directory)
    name = _largest_architecture(tensors) if architecture == "auto" else architecture
    config = _transformers_config(found, tensors, directory)
    return assemble(bert.ADAPTER, name, config, file=directory / CONFIG, tensors=tensors, execution=execution)


def transformers_name(variable: str) -> str:
    """Map bert/encoder/layer_0/output/dense/kernel to bert.encoder.layer.0.output.dense.weight, and so on."""
    if variable in ("output_weights", "output_bias"):  # run_classifier.py declares its head outside of any scope
        return f"classifier.{_LEAVES[variable]}"
    *scopes, leaf = variable.split("/")
    if leaf.endswith("_embeddings"):
        return ".".join([*scopes, leaf, "weight"])
    scopes = [_NORM.sub("LayerNorm", scope) for scope in scopes]
    return re.sub(r"\blayer_(\d+)\b", r"layer.\1", ".".join([*scopes, _LEAVES.get(leaf, leaf)]))


def _variables(directory: Path) -> Tensors:
    """Return the model's variables under transformers' names, with kernels transposed to torch's orientation."""
    tensors = tensorflow_checkpoint.read(directory)
    variables = {transformers_name(name): name for name in tensors.shapes if not _SLOT.match(name)}
    kernels = frozenset(name for name, variable in variables.items() if variable.endswith("/kernel"))
    return tensors.rename(variables).transpose(kernels)


def _largest_architecture(tensors: Tensors) -> str:
    if "classifier.weight" in tensors.shapes:
        return "BertForSequenceClassification"
    if "cls.seq_relationship.weight" in tensors.shapes:
        return "BertForPreTraining"
    return "BertForMaskedLM" if "cls.predictions.bias" in tensors.shapes else "BertModel"


def _transformers_config(found: Mapping[str, Any], tensors: Tensors, directory: Path) -> dict[str, Any]:
    """Convert Google's config to transformers'. Google's code fixes epsilon; the head gives the number of labels."""
    activation = found.get("hidden_act")
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise UserError(
            f"Expected a hidden_act of {' or '.join(ACTIVATIONS)} in {directory / CONFIG}, found {quoted(activation)}; "
            "take another checkpoint."
        )
    labels = tensors.shapes.get("classifier.weight", (2,))[0]
    return dict(found) | {
        "model_type": "bert",
        "hidden_act": ACTIVATIONS[activation],
        "layer_norm_eps": 1e-12,
        "num_labels": labels,
    }
