"""The libraries whose checkpoints are read: the evidence for each, and the function that opens its tensors.

with libraries.opened(path) as tensors:
    print(tensors.shapes)
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import flax.linen as nn

from plmjax.errors import UserError
from plmjax.interop import (
    awd_lstm,
    elmo,
    fairseq,
    google_bert,
    hdf5,
    huggingface,
    tensorflow_checkpoint,
    torch_files,
    transformers_files,
    word2vec,
)
from plmjax.interop.tensors import Tensors
from plmjax.models.elmo import SYSTEM as ELMO


@dataclasses.dataclass(frozen=True)
class OwnFiles:
    """The functions of a system that has its own file format and no class in transformers.

    config: class of its config; systems whose configs derive from it have the same files.
    part: the branch of a run's parameters in the files: the encoder, or empty if they hold the whole language model.
    load, save: read a folder into a module and parameters, and write it.
    """

    config: type
    part: str
    load: Callable[..., tuple[nn.Module, dict[str, Any]]]
    save: Callable[[nn.Module, Mapping[str, Any], Path], None]


@dataclasses.dataclass(frozen=True)
class Library:
    """One format in which tensors are stored.

    form: a description of the path, for messages.
    evidence: path -> the evidence for this library, for messages; empty if it is another format. Reads no tensors.
    opened: path -> its tensors, for the duration of a block.
    load: path, architecture -> module and parameters, if a system has checkpoints in this format.
    tokenizer: path, empty folder -> folder of the tokenizer in a form that `plmjax.data.tokenizers` reads.
    own: the functions of that system, if transformers does not have it.
    """

    form: str
    evidence: Callable[[Path], str]
    opened: Callable[[Path], AbstractContextManager[Tensors]]
    load: Callable[..., tuple[nn.Module, dict[str, Any]]] | None = None
    own: OwnFiles | None = None
    tokenizer: Callable[[Path, Path], Path] = lambda path, scratch: path


LIBRARIES: Mapping[str, Library] = {
    "google-research/bert": Library(
        "a folder of Google's BERT (bert_config.json and bert_model.ckpt)",
        google_bert.evidence,
        tensorflow_checkpoint.opened,
        google_bert.load,
    ),
    "allenai/bilm-tf": Library(
        "a folder of ELMo (options.json and an .hdf5 file)",
        elmo.evidence,
        elmo.opened,
        elmo.load,
        OwnFiles(elmo.ElmoConfig, ELMO.name, elmo.load, elmo.save),
    ),
    "fastai": Library(
        "a language model of fastai's AWD_LSTM (.pth)",
        awd_lstm.evidence,
        awd_lstm.opened,
        awd_lstm.load,
        OwnFiles(awd_lstm.AwdLstmConfig, "", awd_lstm.load, awd_lstm.save),
    ),
    "fairseq": Library(
        "a folder of fairseq's RoBERTa or BART (dict.txt and a .pt file)",
        fairseq.evidence,
        fairseq.opened,
        fairseq.load,
        tokenizer=fairseq.write_tokenizer,
    ),
    "transformers": Library(
        "a folder of transformers (config.json with model.safetensors or pytorch_model.bin)",
        transformers_files.evidence,
        transformers_files.opened,
        huggingface.load,
    ),
    "tensorflow": Library(
        "a TensorFlow checkpoint (PREFIX of PREFIX.index)",
        tensorflow_checkpoint.evidence,
        tensorflow_checkpoint.opened,
    ),
    "safetensors": Library(
        "a file of safetensors", transformers_files.safetensors_evidence, transformers_files.safetensors_opened
    ),
    "hdf5": Library("an HDF5 file", hdf5.evidence, hdf5.opened),
    "torch": Library("a file of torch tensors (.pt, .pth, .bin)", torch_files.evidence, torch_files.opened),
    "word2vec": Library("word vectors of word2vec or GloVe (text or binary)", word2vec.evidence, word2vec.opened),
}
"""Name -> library, in the order of recognition."""


@contextlib.contextmanager
def opened(path: Path, library: str = "auto") -> Iterator[Tensors]:
    """Open the tensors of a file or folder for the duration of the block.

    library: a key of `LIBRARIES`; "auto" recognizes it. Raises UserError if no library is recognized or the file is
    damaged.
    """
    name = recognised(path)[0] if library == "auto" else library
    with LIBRARIES[name].opened(path) as tensors:
        yield tensors


def recognised(path: Path) -> tuple[str, str]:
    """Return the name of the library of a path, and the evidence for it.

    Raises UserError that lists every supported form if no library is recognized.
    """
    for name, library in LIBRARIES.items():
        if evidence := library.evidence(path):
            return name, evidence
    found = "a folder without them" if path.is_dir() else "another file" if path.is_file() else "no file or folder"
    raise UserError(f"Expected {_alternatives(LIBRARIES.values())} at {path}, found {found}; name one of these.")


def load(path: Path, architecture: str = "auto") -> tuple[nn.Module, dict[str, Any], str, str]:
    """Return the model of a checkpoint, its parameters, and the two results of `recognised` for the path.

    Raises UserError if no system has checkpoints of this library.
    """
    name, evidence = recognised(path)
    library = LIBRARIES[name]
    if library.load is None:
        models = _alternatives(one for one in LIBRARIES.values() if one.load is not None)
        raise UserError(
            f"Expected {models}, found {library.form} at {path} (by {evidence}), which no model is made from; read its "
            "tensors with plmjax.interop.libraries.opened."
        )
    return *library.load(path, architecture=architecture), name, evidence


def own_files(config: Any) -> OwnFiles | None:
    """Return the file functions of the config's system; None if transformers has the system or nothing writes it."""
    known = (library.own for library in LIBRARIES.values() if library.own is not None)
    return next((own for own in known if isinstance(config, own.config)), None)


def _alternatives(libraries: Any) -> str:
    *forms, last = (library.form for library in libraries)
    return f"{', '.join(forms)} or {last}"
