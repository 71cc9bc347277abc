"""Folders of sentence-transformers: an encoder in the form of transformers, and the pooling and layers after it.

modules.json lists the modules in their order: the encoder, a pooling, and further layers, each in a subfolder. A module
that plmjax does not support raises an error that names it. No code of a folder is run.
"""

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from plmjax.errors import UserError, in_file, quoted
from plmjax.files import json_text, storage
from plmjax.interop import notices, transformers_files
from plmjax.interop.config_json import LARGEST
from plmjax.interop.tensors import FLOATS
from plmjax.interop.tokenizer_files import ENGINE, SETTINGS
from plmjax.layers.text_vectors import ACTIVATIONS, POOLINGS, Dense, Layer, LayerNorm, Normalize, TextVectors

MODULES = "modules.json"
MODEL = "config_sentence_transformers.json"
ENCODERS = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""Files of the encoder's settings; the first that exists is read, as in sentence-transformers."""
LIBRARIES = ("sentence_transformers.", "torch.nn.")
"""Prefixes of class paths of which only the last name is read, because the classes have moved between versions."""
FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Older setting of a pooling -> its name, in the order in which the vectors of several poolings are concatenated."""
USUAL: Mapping[str, tuple] = {
    "transformer_task": ("feature-extraction",),
    "modality_config": ({"text": {"method": "forward", "method_output_name": "last_hidden_state"}},),
    "module_input_name": ("sentence_embedding",),
    "module_output_name": ("token_embeddings", "sentence_embedding"),
    "unpad_inputs": (False, True),
}
"""Setting of a module -> values without effect. An empty value of any setting has no effect either."""
TENSORS = {
    "linear.weight": "kernel",
    "linear.bias": "bias",
    "residual.weight": "residual",
    "norm.weight": "scale",
    "norm.bias": "bias",
}
"""Name of a tensor -> name of our parameter. Matrices are transposed."""


class SentenceFolder(NamedTuple):
    """The contents of a folder.

    encoder: the folder of the encoder. vectors, params: the recipe and its parameters, for `TextVectors.finish`.
    lowercase: true if the tokenizer lowercases texts, whatever its own files say.
    """

    encoder: Path
    vectors: TextVectors
    params: dict[str, dict[str, np.ndarray]]
    lowercase: bool


def read(folder: Path) -> SentenceFolder | None:
    """Return the contents of a folder; None if it is not one of sentence-transformers.

    Raises:
        UserError: a damaged file, or a module or setting that plmjax does not compute.
    """
    file = folder / MODULES
    if not file.is_file():
        return None
    try:
        listed = json_text.parse(storage.contents(file))
        json_text.check(listed, [{"type": str, "path": str}])
    except ValueError as error:
        raise UserError(
            f"Expected the modules of sentence-transformers in {file}, found: {json_text.reason(error)}; fetch it "
            "again."
        ) from None
    kinds = [_kind(module["type"]) for module in listed]
    if kinds[:2] != ["Transformer", "Pooling"]:
        raise _refusal(file, " and ".join(kinds[:2]) or "no module", "a Transformer and a Pooling first")
    places = [folder / storage.plain_name(one["path"], file) if one["path"] else folder for one in listed]
    longest, lowercase = _encoder(places[0])
    layers, params = [], {}
    for number, (kind, place) in enumerate(zip(kinds[2:], places[2:], strict=True)):
        layer, own = _layer(kind, place, file)
        layers.append(layer)
        params |= {str(number): own} if own else {}
    pooling, prompts = _pooling(places[1]), _prompts(folder)
    with in_file(folder / MODEL):
        vectors = TextVectors(layers=tuple(layers), longest=longest, **pooling, **prompts)
    return SentenceFolder(places[0], vectors, params, lowercase)


def check_width(found: SentenceFolder, width: int, folder: Path) -> None:
    """Raise UserError if the layers do not fit each other, or an encoder with hidden states of `width` features."""
    try:
        found.vectors.finish(np.zeros((1, width * len(found.vectors.pooling)), np.float32), found.params)
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"Expected layers of {folder / MODULES} that fit hidden states of {width} features, found: "
            f"{json_text.reason(error)}; fetch the folder again."
        ) from None


def with_lowercase(tokenizer: Any) -> Any:
    """Return a tokenizer (plmjax.data.tokenizers.Tokenizer) that first lowercases texts.

    A tokenizer that lowercases already is returned unchanged.
    """
    import tokenizers
    from tokenizers import normalizers

    from plmjax.data import tokenizers as own

    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(folder)
        file = Path(folder) / ENGINE
        engine = tokenizers.Tokenizer.from_file(str(file))
        before = engine.normalizer
        if before is not None and before.normalize_str("A") == "a":
            return tokenizer
        engine.normalizer = normalizers.Sequence([normalizers.Lowercase(), *([before] if before is not None else [])])
        engine.save(str(file))
        return own.load(folder)


def write(encoder: Path, folder: Path, vectors: TextVectors, params: Mapping[str, Mapping[str, np.ndarray]]) -> int:
    """Write a folder with sentence-transformers, from an encoder in the form of transformers.

    Return the size of its vectors.
    """
    import sentence_transformers
    import torch
    import transformers
    from sentence_transformers.base import modules
    from sentence_transformers.sentence_transformer.modules import LayerNorm as TorchLayerNorm
    from sentence_transformers.sentence_transformer.modules import Pooling

    options = {} if vectors.longest is None else {"processor_kwargs": {"model_max_length": vectors.longest}}
    with notices.none_from(transformers):
        parts = [modules.Transformer(os.fspath(encoder), **options)]
        pooling = vectors.pooling[0] if len(vectors.pooling) == 1 else vectors.pooling
        parts.append(Pooling(parts[0].get_embedding_dimension(), pooling, include_prompt=vectors.include_prompt))
        size = parts[-1].get_embedding_dimension()
        for number, layer in enumerate(vectors.layers):
            own = params.get(str(number), {})
            if isinstance(layer, Dense):
                kernel, function = own["kernel"], getattr(torch.nn, layer.activation)()
                part = modules.Dense(*kernel.shape, "bias" in own, function, use_residual=layer.residual)
                size = kernel.shape[1]
            else:
                part = TorchLayerNorm(size) if isinstance(layer, LayerNorm) else modules.Normalize()
            if own:
                part.load_state_dict(
                    {name: torch.tensor(own[ours].T) for name, ours in _tensors_of(layer, own).items()}
                )
            parts.append(part)
        whole = sentence_transformers.SentenceTransformer(
            modules=parts,
            device="cpu",
            prompts=dict(vectors.prompts),
            default_prompt_name=vectors.default_prompt,
            similarity_fn_name=vectors.similarity,
            truncate_dim=vectors.size,
        )
        whole.save(os.fspath(folder), create_model_card=False)
    return min(size, vectors.size or size)


def vectors_there(folder: Path, texts: Sequence[str]) -> np.ndarray:
    """Return the vectors of texts from sentence-transformers, float32 [texts, size], with the folder's default prompt.

    Raises:
        UserError: it does not open the folder.
    """
    import sentence_transformers
    import transformers

    with notices.none_from(transformers):
        try:
            opened = sentence_transformers.SentenceTransformer(os.fspath(folder), device="cpu", local_files_only=True)
            return opened.float().encode(list(texts), show_progress_bar=False)
        except Exception as error:  # of any type: each module checks its own settings
            reason = " ".join(str(error).split())[:200]
            raise UserError(
                f"Expected sentence-transformers to open {folder}, found: {reason}; correct its files."
            ) from error


def _refusal(file: Path, found: str, expected: str) -> UserError:
    return UserError(
        f"Expected {expected} in {file}, found {found}, which plmjax does not compute; take another folder, or import "
        f"its encoder alone, from a copy without {MODULES}."
    )


def _kind(path: str) -> str:
    """Return the class name of a module of sentence-transformers or torch, and the full path of any other."""
    return path.rpartition(".")[2] if path.startswith(LIBRARIES) else path


def _settings(file: Path, known: Sequence[str]) -> dict[str, Any]:
    """Return the settings of a module. Raises UserError for one that is neither known, nor empty, nor in `USUAL`."""
    found = json_text.read_object(file, "settings of a module of sentence-transformers", "fetch it again")
    for name, value in found.items():
        if name not in known and value and value not in USUAL.get(name, ()):
            usual = USUAL.get(name)
            raise _refusal(file, f"{name} = {quoted(value)}", f"{name} = {quoted(usual[0])}" if usual else f"no {name}")
    return found


def _encoder(place: Path) -> tuple[int | None, bool]:
    """Return the maximum number of tokens of a text, and whether texts are lowercased."""
    file = next((place / name for name in ENCODERS if (place / name).is_file()), None)
    found = _settings(file, ("max_seq_length", "do_lower_case")) if file else {}
    longest, options = found.get("max_seq_length"), place / SETTINGS
    if longest is None and options.is_file():
        file = options
        longest = json_text.read_object(options, "options of a tokenizer", "fetch it again").get("model_max_length")
        longest = None if isinstance(longest, int | float) and longest >= LARGEST else longest  # 1e30 stands for none
    if longest is not None and (type(longest) is not int or longest < 1):
        raise UserError(f"Expected the number of tokens of a text in {file}, found {quoted(longest)}; correct it.")
    return longest, found.get("do_lower_case") is True


def _pooling(place: Path) -> dict[str, Any]:
    """Return the fields of the recipe that a pooling sets."""
    file = place / transformers_files.CONFIG
    sizes = ("embedding_dimension", "word_embedding_dimension")
    found = _settings(file, ("pooling_mode", "include_prompt", *FLAGS, *sizes))
    modes = found.get("pooling_mode") or [mode for flag, mode in FLAGS.items() if found.get(flag)] or ["mean"]
    modes = [modes] if isinstance(modes, str) else modes
    if not isinstance(modes, list) or not all(isinstance(mode, str) and mode in POOLINGS for mode in modes):
        raise _refusal(file, f"pooling_mode = {quoted(modes)}", f"a pooling of {', '.join(POOLINGS)}")
    return {"pooling": tuple(modes), "include_prompt": found.get("include_prompt", True) is not False}


def _prompts(folder: Path) -> dict[str, Any]:
    """Return the fields of the recipe that the settings of the complete model set."""
    file = folder / MODEL
    if not file.is_file():
        return {}
    found = json_text.read_object(file, "settings of sentence-transformers", "fetch it again")
    kind, prompts = found.get("model_type", "SentenceTransformer"), found.get("prompts") or {}
    if kind != "SentenceTransformer":
        raise _refusal(file, quoted(kind), "the model_type SentenceTransformer")
    told = {name: found.get(name) for name in ("default_prompt_name", "similarity_fn_name")}
    size = found.get("truncate_dim")
    try:
        json_text.check(prompts, {str: (str, type(None))}, "prompts")
        for name, value in told.items():
            json_text.check(value, (str, type(None)), name)
        json_text.check(size, (json_text.COUNT, type(None)), "truncate_dim")
    except ValueError as error:
        raise UserError(f"Expected settings of sentence-transformers in {file}, found: {error}; correct it.") from None
    return {
        "prompts": tuple((name, text or "") for name, text in prompts.items()),
        "default_prompt": told["default_prompt_name"],
        "similarity": told["similarity_fn_name"],
        "size": size,
    }


def _layer(kind: str, place: Path, modules: Path) -> tuple[Layer, dict[str, np.ndarray]]:
    """Return a layer after the pooling, and its parameters."""
    file = place / transformers_files.CONFIG
    if kind == "Normalize":
        if file.is_file():  # which older versions do not write
            _settings(file, ())
        return Normalize(), {}
    if kind == "LayerNorm":
        _settings(file, ("dimension",))
        return LayerNorm(), _parameters(place, LayerNorm())
    if kind != "Dense":
        raise _refusal(modules, quoted(kind), "Dense, LayerNorm and Normalize after the pooling")
    found = _settings(file, ("in_features", "out_features", "bias", "activation_function", "use_residual"))
    path = found.get("activation_function", "torch.nn.modules.activation.Tanh")
    activation = _kind(path) if isinstance(path, str) and path.startswith("torch.nn.") else None
    if activation not in ACTIVATIONS:
        raise _refusal(file, f"activation_function = {quoted(path)}", f"an activation of {', '.join(ACTIVATIONS)}")
    layer = Dense(activation, found.get("use_residual") is True)
    return layer, _parameters(place, layer)


def _parameters(place: Path, layer: Layer) -> dict[str, np.ndarray]:
    """Return name -> float32 array of a layer's parameters."""
    with transformers_files.open_tensors(place) as tensors:
        names = {name: ours for name, ours in TENSORS.items() if name in tensors.shapes}
        if names != _tensors_of(layer, names.values()) or len(names) < len(tensors.shapes):
            raise UserError(
                f"Expected the tensors of {layer} in {place}, found {', '.join(sorted(tensors.shapes)) or 'none'}; "
                "fetch them again."
            )
        for name in names:
            if tensors.dtypes[name] not in FLOATS:
                raise UserError(f"Expected {name} of floats in {place}, found {tensors.dtypes[name]}; fetch it again.")
        return {ours: np.ascontiguousarray(tensors.read(name).astype(np.float32).T) for name, ours in names.items()}


def _tensors_of(layer: Layer, own: Any) -> dict[str, str]:
    """Return tensor name -> parameter name, for the parameters `own` of a layer."""
    prefixes = ("norm.",) if isinstance(layer, LayerNorm) else ("linear.", "residual.")
    return {name: ours for name, ours in TENSORS.items() if name.startswith(prefixes) and ours in own}
