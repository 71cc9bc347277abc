"""The libraries whose checkpoints can be read: how each is recognised, and the function that opens its tensors.

with libraries.open_tensors(path) as tensors:
    print(tensors.shapes)
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn

from plmjax.errors import UserError
from plmjax.interop import (
    awd_lstm,
    elmo,
    fairseq,
    google_bert,
    hdf5,
    huggingface,
    neobert,
    tensorflow_checkpoint,
    torch_files,
    transformers_files,
    word2vec,
)
from plmjax.interop.tensors import Tensors
from plmjax.models.elmo import SYSTEM as ELMO


@dataclasses.dataclass(frozen=True)
class NativeFiles:
    """The functions of a system that has its own file format and no class in transformers.

    config: class of its config; systems whose configs derive from it have the same files.
    part: the branch of a run's parameters in the files: the encoder, or empty for the complete language model.
    load, save: functions that read a module and its parameters from a folder, and write them.
    architecture: name of the class in the files; empty if they name none, and the class of the module stands for it.
    """

    config: type
    part: str
    load: Callable[..., tuple[nn.Module, dict[str, Any]]]
    save: Callable[[nn.Module, Mapping[str, Any], Path], None]
    architecture: str = ""

    def name(self, module: nn.Module) -> str:
        """Return the name of a module's class, as --architecture takes it."""
        return self.architecture or type(module).__name__


@dataclasses.dataclass(frozen=True)
class Library:
    """One file format of tensors.

    form: a description of the path, for messages.
    evidence: function from a path to the reason to recognise this library, for messages; empty for another format. It
        reads no tensors.
    open_tensors: function from a path to a context manager of its tensors.
    load: function from path and architecture to module and parameters, if a system has checkpoints in this format.
    tokenizer: function from path and an empty folder to the folder of a tokenizer that `plmjax.data.tokenizers` reads.
    native: the functions of that system, if transformers does not have it.
    """

    form: str
    evidence: Callable[[Path], str]
    open_tensors: Callable[[Path], AbstractContextManager[Tensors]]
    load: Callable[..., tuple[nn.Module, dict[str, Any]]] | None = None
    native: NativeFiles | None = None
    tokenizer: Callable[[Path, Path], Path] = lambda path, scratch: path


LIBRARIES: Mapping[str, Library] = {
    "google-research/bert": Library(
        "a folder of Google's BERT (bert_config.json and bert_model.ckpt)",
        google_bert.evidence,
        tensorflow_checkpoint.open_tensors,
        google_bert.load,
    ),
    "allenai/bilm-tf": Library(
        "a folder of ELMo (options.json and an .hdf5 file)",
        elmo.evidence,
        elmo.open_tensors,
        elmo.load,
        NativeFiles(elmo.ElmoConfig, ELMO.name, elmo.load, elmo.save),
    ),
    "fastai": Library(
        "a language model of fastai's AWD_LSTM (.pth)",
        awd_lstm.evidence,
        awd_lstm.open_tensors,
        awd_lstm.load,
        NativeFiles(awd_lstm.AwdLstmConfig, "", awd_lstm.load, awd_lstm.save),
    ),
    "fairseq": Library(
        "a folder of fairseq's RoBERTa or BART (dict.txt and a .pt file)",
        fairseq.evidence,
        fairseq.open_tensors,
        fairseq.load,
        tokenizer=fairseq.write_tokenizer,
    ),
    "chandar-lab/NeoBERT": Library(
        "a folder of NeoBERT (config.json with its model_type, and model.safetensors)",
        neobert.evidence,
        transformers_files.open_tensors,
        neobert.load,
        NativeFiles(neobert.NeoBertConfig, "", neobert.load, neobert.save, neobert.CLASS),
    ),
    "transformers": Library(
        "a folder of transformers (config.json with model.safetensors or pytorch_model.bin)",
        transformers_files.evidence,
        transformers_files.open_tensors,
        huggingface.load,
    ),
    "tensorflow": Library(
        "a TensorFlow checkpoint (PREFIX of PREFIX.index)",
        tensorflow_checkpoint.evidence,
        tensorflow_checkpoint.open_tensors,
    ),
    "safetensors": Library(
        "a file of safetensors", transformers_files.safetensors_evidence, transformers_files.open_safetensors
    ),
    "hdf5": Library("an HDF5 file", hdf5.evidence, hdf5.open_tensors),
    "torch": Library("a file of torch tensors (.pt, .pth, .bin)", torch_files.evidence, torch_files.open_tensors),
    "word2vec": Library("word vectors of word2vec or GloVe (text or binary)", word2vec.evidence, word2vec.open_tensors),
}
"""Name -> library, in the order of recognition."""


@contextlib.contextmanager
def open_tensors(path: Path, library: str = "auto") -> Iterator[Tensors]:
    """Open the tensors of a file or folder for the duration of the block.

    library: a key of `LIBRARIES`; "auto" recognizes it. Raises UserError if no library is recognized or the file is
    damaged.
    """
    name = recognise(path)[0] if library == "auto" else library
    with LIBRARIES[name].open_tensors(path) as tensors:
        yield tensors


def recognise(path: Path) -> tuple[str, str]:
    """Return the name of the library of a path, and the reason for it.

    Raises UserError that lists every supported form if no library is recognised.
    """
    for name, library in LIBRARIES.items():
        if evidence := library.evidence(path):
            return name, evidence
    if (path / "checkpoints").is_dir():
        raise UserError(f"Expected a model of another library at {path}, found a run of plmjax; use it as it is.")
    if not path.exists():
        raise UserError(
            f"Expected a model of another library at {path}, found no file or folder; name its folder, since nothing "
            "is downloaded. plmjax import --help lists what is read."
        )
    found = "a folder without them" if path.is_dir() else "another file"
    raise UserError(f"Expected {_alternatives(LIBRARIES.values())} at {path}, found {found}; name one of these.")


class Loaded(NamedTuple):
    """The model of a checkpoint, its parameters, and the two results of `recognise` for its path."""

    module: nn.Module
    params: dict[str, Any]
    library: str
    evidence: str


def load(path: Path, architecture: str = "auto") -> Loaded:
    """Return the model of a checkpoint, its parameters, and the two results of `recognise` for the path.

    Raises UserError if no system has checkpoints of this library.
    """
    name, evidence = recognise(path)
    library = LIBRARIES[name]
    if library.load is None:
        if (path.parent / "config.json").is_file():
            raise UserError(f"Expected the folder of a model, found its file {path}; name the folder {path.parent}.")
        models = _alternatives(one for one in LIBRARIES.values() if one.load is not None)
        raise UserError(
            f"Expected {models}, found {library.form} at {path} (by {evidence}), which no model is made from; read its "
            "tensors with plmjax.interop.libraries.open_tensors."
        )
    return Loaded(*library.load(path, architecture=architecture), name, evidence)


def native_files(config: Any) -> NativeFiles | None:
    """Return the file functions of the config's system; None if transformers has the system or no format exists."""
    known = (library.native for library in LIBRARIES.values() if library.native is not None)
    return next((own for own in known if isinstance(config, own.config)), None)


def _alternatives(libraries: Any) -> str:
    *forms, last = (library.form for library in libraries)
    return f"{', '.join(forms)} or {last}"
