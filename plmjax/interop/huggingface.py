"""Import and export of Hugging Face transformers checkpoints: config.json, safetensors and the tokenizer's files.

    model, params = huggingface.load(directory)
    huggingface.save(model, params, directory)

Neither needs transformers or torch. If both are installed, `compare` runs them on the same random batch.
"""

import functools
import importlib.util
import json
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import flax.traverse_util
import jax
import numpy as np

from plmjax.contracts.execution import Execution
from plmjax.contracts.template import Template
from plmjax.errors import UserError, in_file, listed, quoted
from plmjax.files import json_text, storage
from plmjax.interop import (
    albert,
    bart,
    bert,
    config_json,
    deberta,
    distilbert,
    electra,
    eurobert,
    gpt,
    gpt2,
    led,
    longformer,
    marian,
    mobilebert,
    modernbert,
    modernbert_decoder,
    notices,
    reformer,
    roberta,
    t5,
    tokenizer_files,
    transformers_files,
    xlnet,
)
from plmjax.interop.adapter import Adapter, Architecture, mask_of
from plmjax.interop.conversion import parameter_shapes, read_parameters, write_tensors
from plmjax.interop.tensors import Tensors
from plmjax.interop.transformers_files import CONFIG, WEIGHTS, open_tensors

log = logging.getLogger(__name__)

ADAPTERS: dict[str, Adapter] = {
    "albert": albert.ADAPTER,
    "bart": bart.ADAPTER,
    "bert": bert.ADAPTER,
    "deberta-v2": deberta.ADAPTER,
    "distilbert": distilbert.ADAPTER,
    "electra": electra.ADAPTER,
    "eurobert": eurobert.ADAPTER,
    "gpt2": gpt2.ADAPTER,
    "led": led.ADAPTER,
    "longformer": longformer.ADAPTER,
    "marian": marian.ADAPTER,
    "mobilebert": mobilebert.ADAPTER,
    "modernbert": modernbert.ADAPTER,
    "modernbert-decoder": modernbert_decoder.ADAPTER,
    "openai-gpt": gpt.ADAPTER,
    "reformer": reformer.ADAPTER,
    "roberta": roberta.ADAPTER,
    "t5": t5.ADAPTER,
    "xlnet": xlnet.ADAPTER,
}
"""model_type of config.json -> adapter."""

GENERATION = "generation_config.json"
"""The file with the settings of generation. Older versions of transformers keep them in config.json.
plmjax/interop/generation_settings.py describes their meaning here.
"""

TOLERANCE = 1e-5
"""Maximum difference from transformers' outputs, relative to max(1, the largest output)."""


def load(
    directory: str | Path, *, architecture: str = "auto", execution: Execution = Execution()
) -> tuple[nn.Module, dict[str, Any]]:
    """Return the model of a transformers folder and its parameters, float32 numpy arrays on the host.

    Tensors of other heads are left out and logged. `ADAPTERS` has the systems that are read: ALBERT, BART, BERT,
    DeBERTa, DistilBERT, ELECTRA, EuroBERT, GPT, GPT-2, LED, Longformer, Marian, MobileBERT, ModernBERT and its decoder,
    Reformer, RoBERTa, T5, XLNet.

    architecture: a transformers class; "auto" takes the class that config.json names.

    Raises:
        UserError: a folder, config or tensor does not fit.
    """
    directory = Path(directory)
    found = read_settings(directory)
    adapter = _adapter(found, directory)
    name = _architecture_name(adapter, found, directory) if architecture == "auto" else architecture
    with open_tensors(directory) as tensors:
        return assemble(adapter, name, found, file=directory / CONFIG, tensors=tensors, execution=execution)


def read_settings(directory: Path) -> dict[str, Any]:
    """Return the content of config.json. Adds the decoder's first token if only generation_config.json has it."""
    settings = json_text.read_object(directory / CONFIG, "a transformers config", "check the folder")
    first = "decoder_start_token_id"
    told = read_generation(directory).get(first) if settings.get(first) is None else None
    return settings if told is None else settings | {first: told}


def read_generation(directory: Path) -> dict[str, Any]:
    """Return the content of generation_config.json; empty if there is no such file."""
    file, what = directory / GENERATION, "transformers' settings of generation"
    return json_text.read_object(file, what, "fetch it again") if file.is_file() else {}


def assemble(
    adapter: Adapter, architecture: str, found: Mapping[str, Any], *, file: Path, tensors: Tensors, execution: Execution
) -> tuple[nn.Module, dict[str, Any]]:
    """Return the module of an architecture and its parameters. The tensors may have the names of any version.

    found: the content of the config `file`.
    """
    chosen = adapter.architecture(architecture)
    with in_file(file):
        tensors = adapter.names.canonical(tensors, chosen.of(found))
        fields = chosen.options(found) | chosen.parts(tensors.shapes)
    settings = {**found, "architectures": [architecture]}
    if not chosen.tied:  # nothing to tie
        settings.pop("tie_word_embeddings", None)
    with in_file(file):
        config = adapter.read_config(settings)
        config_json.check_sizes(config, sum(math.prod(shape) for shape in tensors.shapes.values()))
    module, conversions = chosen.module(config, execution, **fields), chosen.conversions_of(config)
    params, left_out = read_parameters(
        module, adapter.inputs(module), conversions, tensors=tensors, optional=adapter.names.optional
    )
    if left_out:
        log.warning("%s has no place for %s of %s: left out.", architecture, listed(left_out), tensors.origin)
    return module, params


def save(
    model: nn.Module,
    params: Mapping[str, Any],
    directory: str | Path,
    *,
    architecture: str = "auto",
    tokenizer: str | Path | None = None,
    rows: Template | None = None,
    labels: Sequence[str] = (),
    problem_type: str | None = None,
    generation: Mapping[str, Any] | None = None,
) -> None:
    """Write a folder that transformers.AutoModel... opens unchanged, then read it back and compare every bit.

    Files of the folder are replaced one by one, each after it is written completely.

    architecture: a transformers class; "auto" takes the class of `model`. Another class gets the parameters that it
        needs of `params`.
    tokenizer: the folder of a tokenizer to write as well.
    rows: the template of the tokenizer; by default the template that the architecture reads.
    labels: names of a classifier's labels, LABEL_0 ... by default.
    problem_type: the meaning of a classifier's outputs; by default transformers infers it from the labels in training.
    generation: content of generation_config.json; without it the file is not written, and an earlier one is removed.

    Raises:
        UserError: parameters do not fit, or the folder cannot be written.
    """
    import safetensors

    directory = Path(directory)
    adapter = adapter_of(model)
    name = architecture_of(model) if architecture == "auto" else architecture
    chosen = adapter.architecture(name)
    module, params = _as(model, chosen, params)
    config = adapter.write_config(module, labels) | {"architectures": [name], "dtype": "float32"}
    tensors = write_tensors(module, adapter.inputs(module), chosen.conversions_of(module.config), params)
    tensors |= chosen.constants(module.config)
    if problem_type is not None and hasattr(module, "num_labels"):
        config["problem_type"] = problem_type
    own = tokenizer_of(tokenizer, model) if tokenizer is not None else None
    try:
        transformers_files.write(directory, config, tensors)
        if generation is None:
            (directory / GENERATION).unlink(missing_ok=True)  # from an earlier model
        else:
            with storage.replace_file(directory / GENERATION) as path:
                path.write_text(json.dumps(generation, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        if own is not None:
            row_layouts = rows or tokenizer_files.rows_with(own.vocabulary, adapter.rows(module))
            tokenizer_files.write(own, row_layouts, module.config.longest, directory)
    except (OSError, safetensors.SafetensorError) as error:
        raise UserError(f"Expected a folder that can be written, found {directory} ({error}); name another.") from error
    _verify(directory / WEIGHTS, tensors)


def compare(model: nn.Module, params: Mapping[str, Any], directory: str | Path, architecture: str = "auto") -> float:
    """Return the largest difference between this model's outputs and those of transformers' model in the folder.

    Both run in float32 on the CPU, on one random batch with padding. The difference is relative to the largest output
    or to one, whichever is larger. Raises UserError if it exceeds `TOLERANCE`, or if transformers finds a tensor
    missing or of another shape.
    """
    import torch
    import transformers

    adapter = adapter_of(model)
    name = architecture_of(model) if architecture == "auto" else architecture
    chosen = adapter.architecture(name)
    inputs = chosen.batch(adapter.example(model.config))
    model, params = _as(model, chosen, params)
    try:
        with notices.none_from(transformers), torch.no_grad():
            theirs, report = getattr(transformers, name).from_pretrained(
                directory,
                attn_implementation="eager",
                dtype=torch.float32,
                output_loading_info=True,
                **chosen.arguments(model),
            )
            given = {field: torch.from_numpy(value).long() for field, value in inputs.items()}
            reference = theirs.eval()(**given, return_dict=True)
    except Exception as error:  # of any type: its config classes and its models check their arguments
        if isinstance(error, KeyError):  # an activation, say
            raise UserError(
                f"Expected names in {directory / 'config.json'} that transformers knows, found {error}; plmjax can use "
                "this model, transformers cannot."
            ) from error
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"Expected transformers to open {directory}, found: {reason}; correct config.json.") from error
    faults = {fault: sorted(map(str, names)) for fault, names in report.items() if names and fault != "unexpected_keys"}
    if faults:
        raise UserError(f"Expected every tensor of transformers in {directory}, found {faults}; write it again.")
    ours = outputs(model, params, inputs, tuple(chosen.outputs))
    difference = 0.0
    for output, there in chosen.outputs.items():
        if ours[output] is None and there not in reference:  # this model has no pooler
            continue
        expected, found = reference[there].numpy(), np.asarray(ours[output])
        mask = mask_of(output, inputs)
        if mask is not None and expected.shape[:2] == mask.shape:
            expected, found = expected[mask > 0], found[mask > 0]
        if not np.isfinite(expected).all():
            raise UserError(
                f"Expected transformers to compute finite numbers with {directory}, found others in its {there}; check "
                "the tensors and the config."
            )
        # max() would ignore NaN.
        difference = np.maximum(difference, np.abs(expected - found).max() / np.maximum(1.0, np.abs(expected).max()))
    if not difference <= TOLERANCE:
        raise UserError(
            f"Expected the outputs of transformers for {directory} within {TOLERANCE:g}, found a difference of "
            f"{difference:.3g}; do not use this copy, and report the config."
        )
    return float(difference)


def has_form(model: nn.Module) -> bool:
    """Return true if an adapter knows the model."""
    return any(adapter.knows(model) for adapter in ADAPTERS.values())


def adapter_of(model: nn.Module) -> Adapter:
    """Return the adapter that knows the model. Raises UserError naming the systems that have an adapter."""
    for adapter in ADAPTERS.values():
        if adapter.knows(model):
            return adapter
    systems = ", ".join(sorted(adapter.config.__name__ for adapter in ADAPTERS.values()))
    raise UserError(
        f"Expected a model of {systems} that transformers has too, without a mix of layers, found "
        f"{type(model).__name__} of a {type(model.config).__name__}; choose another."
    )


def model_type_of(model: nn.Module) -> str:
    """Return config.json's name of the model's system."""
    return next(name for name, adapter in ADAPTERS.items() if adapter is adapter_of(model))


def architecture_of(model: nn.Module) -> str:
    """Return transformers' class for the model, or for its reusable part."""
    adapter = adapter_of(model)
    names = {known.module: name for name, known in adapter.architectures.items()}
    return names.get(type(model)) or adapter.exported_as[type(model)]


def headless(directory: Path) -> str:
    """Return transformers' class without a head for the model_type of a folder. Raises UserError for an unknown one."""
    adapter = _adapter(read_settings(directory), directory)
    return next(name for name, known in adapter.architectures.items() if known.within)


def architecture_held(model: nn.Module, params: Mapping[str, Any]) -> str:
    """Return transformers' class for the model, or the largest class whose parts are all in `params`."""
    adapter = adapter_of(model)

    def size(name: str) -> int:
        module, own = _as(model, adapter.architectures[name], params)
        shapes = parameter_shapes(module, adapter.inputs(module))
        own_parameters = flax.traverse_util.flatten_dict(nn.meta.unbox(own), sep="/")
        return sum(math.prod(shape) for shape in shapes.values()) if shapes.keys() <= own_parameters.keys() else 0

    own = architecture_of(model)
    return own if size(own) else max(adapter.architectures, key=size)


def transformers_installed() -> bool:
    """Return true if `compare` can run."""
    return all(importlib.util.find_spec(name) is not None for name in ("torch", "transformers"))


def tokenizer_of(folder: str | Path, model: nn.Module) -> Any:
    """Return the tokenizer (plmjax.data.tokenizers.Tokenizer) of the model's folder. Raises UserError without one."""
    from plmjax.data import tokenizers

    return tokenizers.load(folder, model_type=model_type_of(model))


def rows_of(model: nn.Module) -> Template:
    """Return the template that adds the model's special tokens to one text or a pair."""
    return adapter_of(model).rows(model)


def as_architecture(model: nn.Module, params: Mapping[str, Any], name: str) -> tuple[nn.Module, Mapping[str, Any]]:
    """Return the model and its parameters as another architecture of its system, in float32."""
    return _as(model, adapter_of(model).architecture(name), params)


def outputs(
    module: nn.Module, params: Mapping[str, Any], inputs: Mapping[str, np.ndarray], names: tuple[str, ...]
) -> dict[str, Any]:
    """Return a dict from name to output of a module for these inputs, without dropout, with exact float32 products.

    names: attributes of the module's outputs. Attributes that are computed on access, such as the logits over a
        vocabulary, are computed here: later their products would have the default precision, which is lower on a GPU or
        a TPU.
    """
    cpu = jax.local_devices(backend="cpu")[0]
    with jax.default_device(cpu), jax.default_matmul_precision("highest"):
        return _apply(module, names, params, {field: value.astype(np.int32) for field, value in inputs.items()})


@functools.partial(jax.jit, static_argnums=(0, 1))  # one program for a module that is compared again
def _apply(
    module: nn.Module, names: tuple[str, ...], params: Mapping[str, Any], inputs: dict[str, np.ndarray]
) -> dict[str, Any]:
    found = module.apply({"params": params}, **inputs, deterministic=True)
    return {name: getattr(found, name) for name in names}


def _adapter(found: Mapping[str, Any], directory: Path) -> Adapter:
    model_type = found.get("model_type")
    if not isinstance(model_type, str) or model_type not in ADAPTERS:
        raise UserError(
            f"Expected a model_type of {', '.join(sorted(ADAPTERS))} in {directory / CONFIG}, found "
            f"{quoted(model_type)}; take a checkpoint of one of these."
        )
    return ADAPTERS[model_type]


def _architecture_name(adapter: Adapter, found: Mapping[str, Any], directory: Path) -> str:
    names = found.get("architectures")
    name = names[0] if isinstance(names, list) and names else names or None
    if isinstance(name, str) and name in adapter.architectures:
        return name
    raise UserError(
        f"Expected an architecture of {', '.join(adapter.architectures)} in {directory / CONFIG}, found "
        f"{quoted(name)}; choose one with --architecture."
    )


def _as(model: nn.Module, chosen: Architecture, params: Mapping[str, Any]) -> tuple[nn.Module, Mapping[str, Any]]:
    """Return the model and its parameters as another architecture of its system, in float32."""
    model, params = chosen.source(model, params)
    if chosen.module is type(model):
        return model.clone(execution=Execution()), params
    params = params.get(chosen.within, params)
    leaves = flax.traverse_util.flatten_dict(nn.meta.unbox(params), sep="/")
    conversions = [found for one in chosen.conversions_of(model.config) for found in one.expand(leaves)]
    shapes = {name: leaves[found.paths[0]].shape for found in conversions for name in found.tensors}
    return chosen.module(model.config, Execution(), **chosen.parts(shapes)), params


def _verify(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    import safetensors

    with safetensors.safe_open(path, framework="np") as written:
        for name, tensor in tensors.items():
            if written.get_tensor(name).tobytes() != tensor.tobytes():
                raise UserError(
                    f"Expected to read {name} back from {path} bit for bit, found a difference; check the disk."
                )
