"""ModernBERT in transformers: its config.json, in the forms of versions 4 and 5, and the names of its tensors."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import flax.linen as nn

from plmjax.errors import UserError, quoted
from plmjax.interop import config_json, encoder, tensor_names
from plmjax.interop.adapter import Adapter, Architecture
from plmjax.interop.conversion import Conversion, concatenate, parameter, weight
from plmjax.models.modernbert.encoder import GLOBAL, ModernBertModel
from plmjax.models.modernbert.heads import (
    ModernBertForMaskedLM,
    ModernBertForMultipleChoice,
    ModernBertForQuestionAnswering,
    ModernBertForSequenceClassification,
    ModernBertForTokenClassification,
)
from plmjax.models.modernbert.modernbert import ModernBertConfig

Config = TypeVar("Config", bound=ModernBertConfig)

FULL, SLIDING = "full_attention", "sliding_attention"
"""transformers' names of global and of local layers."""
REQUIRED = {
    "classifier_bias": False,
    "classifier_activation": "gelu",
    "tie_word_embeddings": True,
    "quantization_config": None,
}
"""transformers settings that change the computation, with the one value that this model implements."""
IMPLIED = {"embedding_norm": True, "rotary_interleaved": False, "head": "transformed", "norm": "layer"}
"""Fields of a ModernBertConfig without a setting in transformers, and the one value that its class has."""


def under(tensors: str, path: str = "") -> tuple[Conversion, ...]:
    """Return the conversions of the embeddings and of the last norm.

    tensors, path: prefixes of the names of tensors and of the paths of parameters.
    """
    return (
        parameter(f"{path}word_embeddings/embedding", f"{tensors}embeddings.tok_embeddings.weight"),
        *encoder.layer_norm(f"{path}embedding_norm", f"{tensors}embeddings.norm"),
        *encoder.layer_norm(f"{path}final_norm", f"{tensors}final_norm"),
    )


def packed(paths: tuple[str, ...], tensor: str) -> tuple[Conversion, ...]:
    """Return the conversions of several kernels to one tensor, and of their biases to another."""
    kernels = Conversion(tuple(f"{path}/kernel" for path in paths), (f"{tensor}.weight",), concatenate(0, weight()))
    biases = Conversion(tuple(f"{path}/bias" for path in paths), (f"{tensor}.bias",), concatenate(0, encoder.FLAT))
    return kernels, biases


def fused(ours: str, theirs: str) -> tuple[Conversion, ...]:
    """Return the conversions of the projections to queries, keys and values, which are one tensor."""
    return packed(tuple(f"{ours}/{name}" for name in ("query", "key", "value")), f"{theirs}.Wqkv")


def layers(
    config: ModernBertConfig,
    tensors: str,
    path: str = "",
    projections: Callable[[str, str], tuple[Conversion, ...]] = fused,
) -> tuple[Conversion, ...]:
    """Return the conversions of the layers. A stack has every n-th layer, if the pattern of layer kinds has n layers.

    tensors, path: as for `under`.
    projections: function from the path and the tensor name of attention to the conversions of queries, keys and values.
    """
    found = []
    for run in config.layer_runs:
        for number in range(len(run.kinds)):
            ours, theirs = f"{path}{run.name}/layer_{number}", tensors + "layers.{layer}"
            layer = (
                *encoder.layer_norm(f"{ours}/attention_norm", f"{theirs}.attn_norm"),
                *projections(f"{ours}/attention", f"{theirs}.attn"),
                *encoder.dense(f"{ours}/attention/output", f"{theirs}.attn.Wo", inputs=2),
                *encoder.layer_norm(f"{ours}/feed_forward_norm", f"{theirs}.mlp_norm"),
                *packed(tuple(f"{ours}/feed_forward/{name}" for name in ("intermediate", "gate")), f"{theirs}.mlp.Wi"),
                *encoder.dense(f"{ours}/feed_forward/output", f"{theirs}.mlp.Wo"),
            )
            found += [dataclasses.replace(one, first=run.first + number, every=len(run.kinds)) for one in layer]
    return tuple(found)


def head(path: str, tensor: str = "head") -> tuple[Conversion, ...]:
    """Return the conversions of the head's first layer."""
    dense = encoder.dense(f"{path}/transform", f"{tensor}.dense")
    return *dense, *encoder.layer_norm(f"{path}/norm", f"{tensor}.norm")


def thetas(found: Mapping[str, Any]) -> dict[str, float]:
    """Return the bases of the rotary wavelengths, from version 5's `rope_parameters` or the settings of version 4.

    Raises:
        UserError: another `rope_type` than default.
    """
    parameters = found.get("rope_parameters") or {}
    if not isinstance(parameters, dict) or not all(own is None or isinstance(own, dict) for own in parameters.values()):
        raise UserError(
            f"Expected rope_parameters of each kind of layers in the config, found {quoted(parameters)}; correct it."
        )
    result = {}
    for name, kind, old in (
        ("global_rope_theta", FULL, 160_000.0),
        ("local_rope_theta", SLIDING, 10_000.0),
    ):
        own = parameters.get(kind) or {}
        if own.get("rope_type", "default") != "default":
            raise UserError(
                f'Expected a rope_type of "default" for {kind} in the config, which is all that is implemented, found '
                f"{quoted(own['rope_type'])}; take another checkpoint."
            )
        value = own.get("rope_theta", found.get(name))
        result[name] = old if value is None else value
    return result


def every(found: Mapping[str, Any], depth: int) -> int:
    """Return the distance between global layers, from version 5's list of kinds or version 4's number.

    Raises:
        UserError: in the list, global layers have different distances.
    """
    kinds = found.get("layer_types")
    if kinds is None:
        return found.get("global_attn_every_n_layers") or 3
    if not isinstance(kinds, list) or not isinstance(depth, int):
        raise UserError(f"Expected a list of layer_types in the config, found {quoted(kinds)}; correct it.")
    distance = next((layer for layer in range(1, len(kinds)) if kinds[layer] == FULL), max(len(kinds), 1))
    if list(kinds) != [SLIDING if layer % distance else FULL for layer in range(depth)]:
        raise UserError(
            f"Expected layer_types of {depth} layers in the config, every n-th of them {FULL} from the first, found "
            f"{quoted(kinds)}; take another checkpoint."
        )
    return distance


def read(found: Mapping[str, Any], kind: type[Config]) -> Config:
    """Return the config of a config.json, for an encoder or a decoder.

    Raises:
        UserError: a setting that is not implemented, or a value of another type.
    """
    own = dict(found) | thetas(found)
    depth = own.get("num_hidden_layers") or kind.num_hidden_layers
    own |= {"global_attn_every_n_layers": every(found, depth)}
    return config_json.read(own, kind, {}, REQUIRED)


def write(model: nn.Module, labels: Sequence[str], model_type: str) -> dict[str, Any]:
    """Return the settings of an encoder or a decoder, with the kinds of its layers in the form of version 5.

    transformers ignores `initialization` and `attention_output_dropout`, which an import reads.
    """
    config = model.config
    kinds = [FULL if kind == GLOBAL else SLIDING for kind in config.layer_kinds]
    thetas = {FULL: config.global_rope_theta, SLIDING: config.local_rope_theta}
    rope = {kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in thetas.items()}
    ids = {"cls_token_id": config.bos_token_id, "sep_token_id": config.eos_token_id}
    return config_json.write(model, labels, model_type) | {"layer_types": kinds, "rope_parameters": rope} | ids


def read_config(found: Mapping[str, Any]) -> ModernBertConfig:
    """Return the config of a config.json, as `read`."""
    return read(found, ModernBertConfig)


def write_config(model: nn.Module, labels: Sequence[str]) -> dict[str, Any]:
    """Return the settings with which transformers' ModernBertConfig builds the same model.

    Raises:
        UserError: the model has a part that transformers' class lacks.
    """
    config = model.config
    implied = IMPLIED | {"tie_word_embeddings": True}
    implied["num_key_value_heads"] = config.num_key_value_heads and config.num_attention_heads  # None: as many as heads
    config_json.check_implied(config, implied, "transformers' modernbert")
    written = write(model, labels, "modernbert")
    for name in ("num_key_value_heads", *IMPLIED):
        del written[name]
    return written


def _headed(
    module: type[nn.Module], outputs: Mapping[str, str], path: str, *heads: Conversion, **more: Any
) -> Architecture:
    return Architecture(
        module,
        (*under("model.", path), *heads),
        outputs,
        sized=lambda config: layers(config, "model.", path),
        **more,
    )


NAMES = tensor_names.Names(
    prefix="model",
    parts=("embeddings", "layers", "final_norm"),
    heads=("head", "decoder", "classifier"),
    ties={"decoder.weight": "model.embeddings.tok_embeddings.weight"},
    buffers=r"(model\.)?rotary_emb\..*|model\.layers\.\d+\.attn\.rotary_emb\..*",
)
MASKED = (*head("masked_language_model/head"), parameter("masked_language_model/bias", "decoder.bias"))
TASK = (*head("head"), *encoder.CLASSIFIER)

ADAPTER = Adapter(
    config=ModernBertConfig,
    architectures={
        "ModernBertModel": Architecture(
            ModernBertModel, under(""), encoder.HIDDEN, sized=lambda config: layers(config, ""), within="modernbert"
        ),
        "ModernBertForMaskedLM": _headed(ModernBertForMaskedLM, encoder.LOGITS, "modernbert/", *MASKED, tied=True),
        "ModernBertForSequenceClassification": _headed(
            ModernBertForSequenceClassification, encoder.LOGITS, "modernbert/", *TASK, options=encoder.labels_option
        ),
        "ModernBertForTokenClassification": _headed(
            ModernBertForTokenClassification, encoder.LOGITS, "modernbert/", *TASK, options=encoder.labels_option
        ),
        "ModernBertForQuestionAnswering": _headed(ModernBertForQuestionAnswering, encoder.SPAN, "modernbert/", *TASK),
        "ModernBertForMultipleChoice": _headed(
            ModernBertForMultipleChoice,
            encoder.LOGITS,
            "modernbert/",
            *TASK,
            batch=lambda rows: {name: x[None] for name, x in rows.items()},
        ),
    },
    read_config=read_config,
    write_config=write_config,
    names=NAMES,
    example=encoder.untyped_example,
)
