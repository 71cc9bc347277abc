"""Import of fairseq's RoBERTa and BART: a folder with dict.txt and one .pt file, as the authors released them.

Tensors get transformers' names, so that one table of conversions serves both libraries. Sizes are read from the
tensors; the number of heads, the activation and the dropout rates from the settings that fairseq saved beside them.
"""

import contextlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import flax.linen as nn
import numpy as np

from plmjax.contracts.execution import Execution
from plmjax.errors import UserError, listed, quoted
from plmjax.files import json_text, storage
from plmjax.interop import bart, roberta, torch_files
from plmjax.interop.adapter import Adapter
from plmjax.interop.huggingface import assemble
from plmjax.interop.tensor_names import unwrap
from plmjax.interop.tensors import Tensors

WORDS = "dict.txt"
"""The file of tokens: ids of GPT-2's vocabulary, each with its count, in the order of fairseq's ids."""
GPT2_FILES = ("encoder.json", "vocab.bpe")
"""GPT-2's vocabulary and merges. dict.txt names the ids of this vocabulary. fairseq downloads them separately."""
FIRST = ("<s>", "<pad>", "</s>", "<unk>")
"""Tokens of every dictionary, before those of the file. <mask> comes after them."""
SETTINGS = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
TEXT = r"(encoder|decoder)\.sentence_encoder\."
"""Prefix of RoBERTa's encoder, which was called a decoder until 2020."""
JOINED = "in_proj_"
"""Part of the name of a tensor that joins the query, key and value projections of a layer, as until 2019."""
BUFFERS = r"\.(version|_float_tensor)$"
"""Pattern in the names of tensors that are not parameters."""
ROBERTA_NAMES = {
    rf"^{TEXT}embed_tokens\.": "roberta.embeddings.word_embeddings.",
    rf"^{TEXT}embed_positions\.": "roberta.embeddings.position_embeddings.",
    rf"^{TEXT}(emb_layer_norm|layernorm_embedding)\.": "roberta.embeddings.LayerNorm.",
    rf"^{TEXT}layers\.": "roberta.encoder.layer.",
    r"\.self_attn\.q_proj\.": ".attention.self.query.",
    r"\.self_attn\.k_proj\.": ".attention.self.key.",
    r"\.self_attn\.v_proj\.": ".attention.self.value.",
    r"\.self_attn\.out_proj\.": ".attention.output.dense.",
    r"\.self_attn_layer_norm\.": ".attention.output.LayerNorm.",
    r"\.fc1\.": ".intermediate.dense.",
    r"\.fc2\.": ".output.dense.",
    r"\.final_layer_norm\.": ".output.LayerNorm.",
    r"^(encoder|decoder)\.lm_head\.weight$": "lm_head.decoder.weight",
    r"^(encoder|decoder)\.lm_head\.": "lm_head.",
    r"^classification_heads\.[^.]+\.": "classifier.",
}
BART_NAMES = {
    r"^(encoder|decoder)\.": r"model.\1.",
    r"^model\.decoder\.output_projection\.": "lm_head.",
    r"^classification_heads\.[^.]+\.": "classification_head.",
}
"""Pattern in a name of fairseq -> its replacement in transformers' name. The patterns are applied in this order."""


def evidence(path: Path) -> str:
    """Return the evidence that a folder is fairseq's; empty if it is not."""
    return WORDS if (path / WORDS).is_file() and any(path.glob("*.pt")) else ""


def open_tensors(path: Path) -> Any:
    """Open the tensors of a folder under fairseq's names, for the duration of the block."""
    file = _checkpoint(path)
    return contextlib.nullcontext(torch_files.from_state_dict(_state(file)["model"], file))


def load(
    directory: str | Path, *, architecture: str = "auto", execution: Execution = Execution()
) -> tuple[nn.Module, dict[str, Any]]:
    """Return the model of a folder and its parameters, float32 numpy arrays on the host.

    architecture: a transformers class; "auto" takes the classifier if the file has one, else the language model.

    Raises:
        UserError: a folder, setting or tensor that does not fit, or another model than RoBERTa or BART.
    """
    file = _checkpoint(Path(directory))
    state = _state(file)
    settings = _settings(state, file)
    tensors = _separate(unwrap(torch_files.from_state_dict(state["model"], file)))
    is_roberta = any(re.match(TEXT, name) for name in tensors.shapes)
    if not is_roberta and "decoder.layernorm_embedding.weight" not in tensors.shapes:
        raise UserError(
            f"Expected a RoBERTa or a BART of fairseq in {file}, found tensors {listed(list(tensors.shapes)[:3])}, "
            "...; take another checkpoint."
        )
    heads = {name.split(".")[1] for name in tensors.shapes if name.startswith("classification_heads.")}
    if len(heads) > 1:
        raise UserError(
            f"Expected at most one classification head in {file}, found {listed(sorted(heads))}; save the "
            "checkpoint with one of them."
        )
    names = ROBERTA_NAMES if is_roberta else BART_NAMES
    renamed = tensors.rename({_rename(name, names): name for name in tensors.shapes if not re.search(BUFFERS, name)})
    adapter, config = _roberta(renamed, settings) if is_roberta else _bart(renamed, settings)
    if is_roberta:
        renamed = _with_zeros(renamed, "roberta.embeddings.token_type_embeddings.weight")
    if architecture == "auto":
        system, language_model = ("Roberta", "MaskedLM") if is_roberta else ("Bart", "ConditionalGeneration")
        architecture = f"{system}For{'SequenceClassification' if heads else language_model}"
    return assemble(adapter, architecture, config, file=file, tensors=renamed, execution=execution)


def write_tokenizer(folder: Path, scratch: Path) -> Path:
    """Write the tokenizer of a folder to `scratch`, in RoBERTa's files, and return `scratch`.

    Raises:
        UserError: GPT-2's files are not beside dict.txt, or one is damaged.
    """
    vocabulary, merges = (folder / name for name in GPT2_FILES)
    if not vocabulary.is_file() or not merges.is_file():
        raise UserError(
            f"Expected GPT-2's {' and '.join(GPT2_FILES)} beside {folder / WORDS}, whose ids they explain, found none; "
            "put them there, or name a folder with the same tokenizer with --tokenizer, such as roberta-base's."
        )
    found = json_text.read_object(vocabulary, "GPT-2's vocabulary", "fetch it again")
    tokens = {number: token for token, number in found.items()}
    ids = {token: number for number, token in enumerate(FIRST)}
    lines = storage.contents(folder / WORDS).decode("utf-8", "replace").splitlines()
    for place, line in enumerate(lines):
        word = line.rpartition(" ")[0]
        token = tokens.get(int(word)) if word.isascii() and word.isdigit() else word
        if token is None or not word:
            raise UserError(
                f"Expected an id of {vocabulary.name} and a count in line {place + 1} of {folder / WORDS}, found "
                f"{quoted(line)}; fetch it again."
            )
        ids.setdefault(token, len(ids))
    ids["<mask>"] = len(ids)
    (scratch / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    (scratch / "merges.txt").write_bytes(storage.contents(merges))
    (scratch / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "RobertaTokenizer"}))
    return scratch


def _checkpoint(folder: Path) -> Path:
    found = sorted(folder.glob("*.pt"))
    named = folder / "model.pt"
    if named not in found and len(found) != 1:
        raise UserError(
            f"Expected model.pt or one .pt file in {folder}, found {listed(file.name for file in found)}; leave one."
        )
    return named if named in found else found[0]


def _state(file: Path) -> Mapping[str, Any]:
    """Return the content of the .pt file. Raises UserError if it has no tensors of a model."""
    state = torch_files.state(file)
    if not isinstance(state.get("model"), Mapping):
        raise UserError(
            f"Expected the tensors of a model under 'model' in {file}, found {listed(sorted(state)[:6])}; take the "
            "file that fairseq saved."
        )
    return state


def _settings(state: Mapping[str, Any], file: Path) -> Mapping[str, Any]:
    """Return the settings of a model: `args`, or since 2020 the `model` part of `cfg`."""
    found = state.get("args") or state.get("cfg") or {}
    found = vars(found) if hasattr(found, "__dict__") else found
    found = found.get("model", found) if isinstance(found, Mapping) else {}
    found = vars(found) if hasattr(found, "__dict__") else found
    if not isinstance(found, Mapping) or "encoder_attention_heads" not in found:
        raise UserError(
            f"Expected fairseq's settings (args or cfg) with encoder_attention_heads in {file}, found none; take the "
            "file that fairseq saved."
        )
    return found


def _rename(name: str, names: Mapping[str, str]) -> str:
    for pattern, text in names.items():
        name = re.sub(pattern, text, name)
    return name


def _separate(tensors: Tensors) -> Tensors:
    """Split the combined tensors of query, key and value."""
    apart = {
        name.replace(JOINED, f"{letter}_proj."): (name, place)
        for name in tensors.shapes
        if JOINED in name
        for place, letter in enumerate("qkv")
    }
    own = {name: (name, -1) for name in tensors.shapes if JOINED not in name}
    places = own | apart

    def shape(name: str, place: int) -> tuple[int, ...]:
        whole = tensors.shapes[name]
        return whole if place < 0 else (whole[0] // 3, *whole[1:])

    def read(name: str) -> np.ndarray:
        old, place = places[name]
        return tensors.read(old) if place < 0 else np.split(tensors.read(old), 3)[place]

    shapes = {name: shape(*place) for name, place in places.items()}
    return Tensors(tensors.origin, shapes, {name: tensors.dtypes[old] for name, (old, _) in places.items()}, read)


def _with_zeros(tensors: Tensors, name: str) -> Tensors:
    """Add a zero tensor for RoBERTa's single token type, which fairseq does not have."""
    size = tensors.shapes.get("roberta.embeddings.word_embeddings.weight", (0, 1))[1]
    zeros = np.zeros((1, size), np.float32)
    return Tensors(
        tensors.origin,
        {**tensors.shapes, name: zeros.shape},
        {**tensors.dtypes, name: "float32"},
        lambda wanted: zeros if wanted == name else tensors.read(wanted),
    )


def _labels(tensors: Tensors, head: str) -> dict[str, int]:
    return {"num_labels": tensors.shapes[head][0]} if head in tensors.shapes else {}


def _roberta(tensors: Tensors, settings: Mapping[str, Any]) -> tuple[Adapter, dict[str, Any]]:
    """Return the adapter and the config.json of a RoBERTa."""
    words, positions = (_size(tensors, f"roberta.embeddings.{name}_embeddings.weight") for name in ("word", "position"))
    return roberta.ADAPTER, SETTINGS | {
        "model_type": "roberta",
        "vocab_size": words[0],
        "hidden_size": words[1],
        "max_position_embeddings": positions[0],
        "type_vocab_size": 1,
        "num_hidden_layers": _layers(tensors, "roberta.encoder.layer."),
        "num_attention_heads": settings["encoder_attention_heads"],
        "intermediate_size": _size(tensors, "roberta.encoder.layer.0.intermediate.dense.weight")[0],
        "hidden_act": settings.get("activation_fn", "gelu"),
        "hidden_dropout_prob": settings.get("dropout", 0.1),
        "attention_probs_dropout_prob": settings.get("attention_dropout", 0.1),
        "layer_norm_eps": 1e-5,
        **_labels(tensors, "classifier.out_proj.weight"),
    }


def _bart(tensors: Tensors, settings: Mapping[str, Any]) -> tuple[Adapter, dict[str, Any]]:
    """Return the adapter and the config.json of a BART. Its position tables have two rows before the first position."""
    words = _size(tensors, "model.decoder.embed_tokens.weight")
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in {
            "layers": _layers(tensors, f"model.{side}.layers."),
            "attention_heads": settings.get(f"{side}_attention_heads", settings["encoder_attention_heads"]),
            "ffn_dim": _size(tensors, f"model.{side}.layers.0.fc1.weight")[0],
        }.items()
    }
    rates = {"dropout": 0.1, "attention_dropout": 0.0, "activation_dropout": 0.0}
    return bart.ADAPTER, SETTINGS | sides | {name: settings.get(name, default) for name, default in rates.items()} | {
        "model_type": "bart",
        "vocab_size": words[0],
        "d_model": words[1],
        "max_position_embeddings": _size(tensors, "model.encoder.embed_positions.weight")[0] - 2,
        "activation_function": settings.get("activation_fn", "gelu"),
        "scale_embedding": not settings.get("no_scale_embedding", True),
        "normalize_before": bool(settings.get("encoder_normalize_before", False)),
        "decoder_start_token_id": 2,
        **_labels(tensors, "classification_head.out_proj.weight"),
    }


def _layers(tensors: Tensors, prefix: str) -> int:
    return len({name.removeprefix(prefix).split(".")[0] for name in tensors.shapes if name.startswith(prefix)})


def _size(tensors: Tensors, name: str) -> tuple[int, int]:
    """Return the shape of a matrix. Raises UserError if the tensor is missing or is no matrix."""
    shape = tensors.shapes.get(name, ())
    if len(shape) != 2:
        raise UserError(
            f"Expected the matrix {name} (its name in transformers) in {tensors.origin}, found "
            f"{f'another shape, {list(shape)}' if shape else 'none'}; fetch it again."
        )
    return shape
