"""Google's BERT checkpoints (github.com/google-research/bert) in: bert_config.json, vocab.txt and bert_model.ckpt.

Variables are given transformers' names and orientation, so that one list of parameters serves both libraries.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import flax.linen as nn
import numpy as np

from plmjax.data import tensorflow_runtime
from plmjax.errors import UserError, nearest, quoted
from plmjax.interop import bert
from plmjax.interop.adapter import Tensors
from plmjax.interop.huggingface import assemble
from plmjax.interop.weights import read_json
from plmjax.layers.execution import Execution

CONFIG = "bert_config.json"
ACTIVATIONS = {"gelu": "gelu_new", "relu": "relu"}
"""Activation of Google's modeling.py -> transformers' name: Google's "gelu" is the tanh form, theirs the exact one."""

_SLOT = re.compile(r"global_step$|.*/(adam_[mv]|Adam(_1)?|lamb_[mv])$|beta[12]_power$")
_LEAVES = {"kernel": "weight", "gamma": "weight", "beta": "bias", "output_weights": "weight", "output_bias": "bias"}


def recognised(directory: str | Path) -> bool:
    """Whether the folder is one of Google's rather than of transformers."""
    return (Path(directory) / CONFIG).is_file()


def load(
    directory: str | Path, *, architecture: str = "auto", execution: Execution = Execution()
) -> tuple[nn.Module, dict[str, Any]]:
    """The model of one of Google's folders and its parameters, float32 numpy arrays on the host.

    architecture: a transformers class; "auto" takes the largest whose heads the checkpoint holds. The optimizer's slots
    are left out. Raises UserError for a folder, config or variable that does not fit, naming it.
    """
    directory = Path(directory)
    found = read_json(directory / CONFIG, "Google's config")
    tensors = _variables(_prefix(directory), directory)
    name = _holding(tensors) if architecture == "auto" else architecture
    return assemble(bert.ADAPTER, name, _transformers_config(found, tensors, directory), tensors, execution)


def transformers_name(variable: str) -> str:
    """bert/encoder/layer_0/output/dense/kernel -> bert.encoder.layer.0.output.dense.weight, and so on."""
    if variable in ("output_weights", "output_bias"):  # run_classifier.py declares its head outside of any scope
        return f"classifier.{_LEAVES[variable]}"
    *scopes, leaf = variable.split("/")
    if leaf.endswith("_embeddings"):
        return ".".join([*scopes, leaf, "weight"])
    return re.sub(r"\blayer_(\d+)\b", r"layer.\1", ".".join([*scopes, _LEAVES.get(leaf, leaf)]))


def _prefix(directory: Path) -> Path:
    prefixes = sorted(path.with_suffix("") for path in directory.glob("*.index"))
    published = directory / "bert_model.ckpt"
    if published in prefixes or len(prefixes) == 1:
        return published if published in prefixes else prefixes[0]
    raise UserError(
        f"{directory} must hold one checkpoint, bert_model.ckpt.index with its data beside it, but holds "
        f"{', '.join(prefix.name for prefix in prefixes) or 'none'}; keep one in the folder."
    )


def _variables(prefix: Path, directory: Path) -> Tensors:
    tf = tensorflow_runtime.tensorflow()

    try:
        reader = tf.train.load_checkpoint(str(prefix))
    except Exception as error:  # the reader's statuses come as IndexError, ValueError, RuntimeError and others
        reason = str(error).split("\n")[0]
        raise UserError(f"{prefix} must be a TensorFlow checkpoint, but is not ({reason}); fetch it again.") from error
    shapes = reader.get_variable_to_shape_map()
    variables = {transformers_name(name): name for name in shapes if not _SLOT.match(name)}

    def read(name: str) -> np.ndarray:
        try:
            value = reader.get_tensor(variables[name])
        except Exception as error:
            raise UserError(f"{prefix} must hold {variables[name]} whole, but does not; fetch it again.") from error
        return value.T if variables[name].endswith("/kernel") else value

    def shape(variable: str) -> tuple[int, ...]:
        return tuple(shapes[variable])[:: -1 if variable.endswith("/kernel") else 1]

    types = reader.get_variable_to_dtype_map()
    dtypes = {name: types[variable].name for name, variable in variables.items()}
    return Tensors(str(directory), {name: shape(variable) for name, variable in variables.items()}, dtypes, read)


def _holding(tensors: Tensors) -> str:
    if "classifier.weight" in tensors.shapes:
        return "BertForSequenceClassification"
    if "cls.seq_relationship.weight" in tensors.shapes:
        return "BertForPreTraining"
    return "BertForMaskedLM" if "cls.predictions.bias" in tensors.shapes else "BertModel"


def _transformers_config(found: Mapping[str, Any], tensors: Tensors, directory: Path) -> dict[str, Any]:
    """Google's config in transformers' terms: its epsilon is fixed in the code, its labels are counted by the head."""
    activation = found.get("hidden_act")
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        hint = nearest(str(activation), ACTIVATIONS)
        raise UserError(f"{directory / CONFIG} has hidden_act {quoted(activation)}; {hint}")
    labels = tensors.shapes.get("classifier.weight", (2,))[0]
    return dict(found) | {
        "model_type": "bert",
        "hidden_act": ACTIVATIONS[activation],
        "layer_norm_eps": 1e-12,
        "num_labels": labels,
    }
