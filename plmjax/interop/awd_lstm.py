"""Import and export of AWD-LSTM's language model in fastai's form: a file of torch tensors (.pth), such as ULMFiT's.

    0.encoder.weight                                [V E]      and again as 1.decoder.weight, 0.encoder_dp.emb.weight
    0.rnns.N.weight_hh_l0_raw                       [4 H, H]   before its dropout; the gates in the order of torch
    0.rnns.N.module.weight_ih_l0, bias_ih_l0, bias_hh_l0       [4 H, D], [4 H], [4 H]
    1.decoder.bias                                  [V]

V is the vocabulary size, E the embedding size, H the hidden size, and D the input size of layer N. fastai's vocabulary
is a pickled list of words. spaCy and fastai's own rules split the text into these words. So `plmjax import` needs a
tokenizer whose ids are the rows of the embedding table. No file holds the dropout rates: the rates of
`UlmfitConfig.base` are used. Salesforce's model.pt is a whole pickled module, which is not read.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import flax.linen as nn
import numpy as np

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.errors import UserError, quoted
from plmjax.files import storage
from plmjax.interop import torch_files
from plmjax.interop.conversion import FLAT, Conversion, parameter, read_parameters, weight, write_tensors
from plmjax.interop.tensors import Tensors
from plmjax.models.awd_lstm import AwdLstmConfig, AwdLstmForCausalLM
from plmjax.models.ulmfit import UlmfitConfig

FILE = "awd_lstm.pth"
"""The file that `save` writes into a folder."""
TABLE, DECODER = "0.encoder.weight", "1.decoder.weight"
_AGAIN = re.compile(r"1\.decoder\.weight|0\.encoder_dp\.emb\.weight|0\.rnns\.\d+\.module\.weight_hh_l0")
"""Copies of tensors that the file already holds: tied weights, and weights after dropout."""
_SEARCHED = 1 << 16
"""Number of bytes to search at the beginning of a file from before torch 1.6. They hold the first tensor names."""


def evidence(path: Path) -> str:
    """Return the evidence that a file, or a folder written by `save`, is fastai's; empty if it is not."""
    path = path / FILE if path.is_dir() else path
    if path.is_file() and torch_files.evidence(path) and TABLE.encode() in torch_files.read_head(path, _SEARCHED):
        return f"{TABLE} among torch's tensors"
    return ""


def load(path: Path, architecture: str = "auto") -> tuple[nn.Module, dict[str, Any]]:
    """Return the language model of a file and its parameters, numpy float32.

    Raises:
        UserError: the tensors are not those of a unidirectional AWD-LSTM with tied embeddings, or `architecture` is
            another class than the language model's.
    """
    if architecture not in ("auto", AwdLstmForCausalLM.__name__):
        raise UserError(
            f"Expected --architecture {AwdLstmForCausalLM.__name__} for fastai's AWD-LSTM, found "
            f"{quoted(architecture)}; leave it out."
        )
    with open_tensors(path) as tensors:
        module = _config(tensors).module(Purpose.PRETRAINING, Execution())
        params, _ = read_parameters(
            module,
            EXAMPLE,
            conversions(module.config),
            tensors=tensors,
            optional=lambda name: bool(_AGAIN.fullmatch(name)),
        )
        if DECODER in tensors.shapes and not np.array_equal(tensors.read(DECODER), tensors.read(TABLE)):
            raise UserError(
                f"Expected {DECODER} to be {TABLE} in {tensors.origin}, found another; take a model with tied weights."
            )
    return module, params


@contextlib.contextmanager
def open_tensors(path: Path) -> Iterator[Tensors]:
    """Open the tensors of a file, or of a folder written by `save`."""
    with torch_files.open_tensors(path / FILE if path.is_dir() else path) as tensors:
        yield tensors


def save(module: nn.Module, params: Mapping[str, Any], path: Path) -> None:
    """Write awd_lstm.pth into a folder for fastai's learner. Reading it returns every bit unchanged.

    params: the parameters of `module`, an AwdLstmForCausalLM. Raises UserError if torch is not installed or a parameter
    is missing.
    """
    tensors = write_tensors(module, EXAMPLE, conversions(module.config), params)
    copies = {name: tensors[TABLE] for name in (DECODER, "0.encoder_dp.emb.weight")}
    path.mkdir(parents=True, exist_ok=True)
    with storage.replace_file(path / FILE) as scratch:
        torch_files.write(tensors | copies, scratch)


def conversions(config: AwdLstmConfig) -> tuple[Conversion, ...]:
    """Return the conversion of every parameter of the language model to its tensor."""
    table = [
        parameter("awd_lstm/word_embeddings/embedding", TABLE),
        parameter("output_bias", "1.decoder.bias"),
    ]
    for layer in range(config.num_layers):
        own, named = f"awd_lstm/layer_{layer}", f"0.rnns.{layer}"
        table += [
            parameter(f"{own}/input/kernel", f"{named}.module.weight_ih_l0", weight()),
            parameter(f"{own}/input/bias", f"{named}.module.bias_ih_l0", FLAT),
            parameter(f"{own}/recurrent_kernel", f"{named}.weight_hh_l0_raw", weight()),
            parameter(f"{own}/recurrent_bias", f"{named}.module.bias_hh_l0", FLAT),
        ]
    return tuple(table)


EXAMPLE = {"input_ids": np.ones((1, 1), np.int32)}
"""Example inputs of an AwdLstmForCausalLM."""


def _config(tensors: Tensors) -> UlmfitConfig:
    """Return the config whose sizes follow from the shapes of the tensors."""
    layers = sorted(
        int(found[1]) for name in tensors.shapes if (found := re.fullmatch(r"0\.rnns\.(\d+)\.weight_hh_l0_raw", name))
    )
    shapes = [tensors.shapes.get(name, ()) for name in (TABLE, "0.rnns.0.weight_hh_l0_raw")]
    if layers != list(range(len(layers))) or any(len(shape) != 2 for shape in shapes):
        raise UserError(
            f"Expected {TABLE} and 0.rnns.N.weight_hh_l0_raw from N = 0 on in {tensors.origin}, found layers "
            f"{layers} and the shapes {shapes}; take a language model of fastai's AWD_LSTM."
        )
    (size, width), (_, hidden) = shapes
    sizes = {"vocab_size": size, "embedding_size": width, "hidden_size": hidden, "num_layers": len(layers)}
    return UlmfitConfig.base(**sizes)
