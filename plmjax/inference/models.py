"""A model with its parameters and its tokenizer for Python programs, from a run or from a transformers folder."""

import dataclasses
import functools
import inspect
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax

from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.system import Kind, Purpose
from plmjax.contracts.template import TEXT_ALONE
from plmjax.data import tokenizers
from plmjax.data.tokenizers import Tokenizer
from plmjax.errors import UserError, listed
from plmjax.files import storage
from plmjax.inference import rows
from plmjax.interop import huggingface, labels
from plmjax.interop.run_directories import module_of
from plmjax.interop.transformers_files import CONFIG
from plmjax.training.checkpoints import checkpoints

_BY_NAME = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
    """A model with everything that it needs to read texts.

    module: the linen module, whose `apply` takes `{"params": params}` and the inputs of `inputs`.
    params: a tree of arrays.
    tokenizer: a plmjax.data.tokenizers.Tokenizer.
    labels: names of a classifier's outputs; empty for other models.
    """

    module: nn.Module
    params: Any
    tokenizer: Tokenizer
    labels: tuple[str, ...] = ()

    @property
    def config(self) -> ModelConfig:
        """Return the config: the sizes of the model."""
        return self.module.config

    def inputs(self, texts: Sequence[str | tuple[str, str]], length: int = 0) -> dict[str, jax.Array]:
        """Return texts or pairs of texts as inputs of the model; see `plmjax.inference.rows.inputs`.

        A language model reads texts without the special tokens that fine-tuning adds.
        """
        system, written = self.config.system, (Purpose.PRETRAINING, Purpose.CAUSAL_LM, Purpose.ENCODING)
        modules = {type(self.config.module(each, Execution())) for each in written if each in system}
        template = TEXT_ALONE if system.kind is Kind.DECODER and type(self.module) in modules else None
        return rows.inputs(self.config, self.tokenizer, texts, length, template=template)

    def __call__(self, texts: Sequence[str | tuple[str, str]], length: int = 0, **options: Any) -> Any:
        """Return the outputs of the model for texts or pairs of texts, without dropout.

        Args:
            length: number of tokens of every row; 0 uses the length of the longest row. A new length compiles
                the model again.
            options: further arguments of the module, such as output_hidden_states=True, output_attentions=True, or the
                decoder_input_ids of an encoder-decoder.

        Returns:
            the outputs of the module, such as last_hidden_state [B T D], logits, hidden_states [L+1 B T D] and
                attentions [L B N T S].

        Raises:
            UserError: the module needs further inputs, such as the targets of an encoder-decoder, or does not take one
                of the inputs or options.
        """
        arrays = {name: value for name, value in options.items() if not isinstance(value, bool)}
        flags = tuple((name, value) for name, value in options.items() if isinstance(value, bool))
        inputs = self.inputs(texts, length) | arrays
        self._check({*inputs, *dict(flags)})
        try:
            return _apply(self.module, flags, self.params, inputs)
        except TypeError as error:  # raised by a submodule that gets the options
            name, _, unknown = str(error).partition("() got an unexpected keyword argument ")
            if unknown.strip("'") not in options:
                raise
            module = name.partition(".")[0]
            raise UserError(
                f"Expected options that {module} takes, found {unknown}; correct or leave it out."
            ) from None

    def _check(self, given: set[str]) -> None:
        """Raise UserError unless the module takes these inputs, and no others."""
        name = type(self.module).__name__
        known = inspect.signature(type(self.module).__call__).parameters.values()
        further = {parameter.kind for parameter in known} & {inspect.Parameter.VAR_KEYWORD}
        named = {one.name: one.default is one.empty for one in known if one.kind in _BY_NAME and one.name != "self"}
        if not further and (unknown := sorted(given - named.keys())):
            raise UserError(
                f"Expected inputs of {name} ({listed(named)}), found {listed(unknown)}; call its module with what it "
                "reads, or plmjax.embed for vectors of texts."
            )
        if missing := [one for one, required in named.items() if required and one not in given]:
            raise UserError(
                f"Expected {listed(missing)} for {name} besides the texts, found none; pass them by name, or write "
                "texts with plmjax.generate."
            )


@functools.partial(jax.jit, static_argnums=(0, 1))
def _apply(module: nn.Module, flags: tuple[tuple[str, bool], ...], params: Any, inputs: dict[str, jax.Array]) -> Any:
    return module.apply({"params": params}, **inputs, **dict(flags))


def load(path: str | Path, *, architecture: str = "auto") -> Model:
    """Return the model of a run directory, of a checkpoint or of a transformers folder.

    architecture: for a transformers folder, the class to read; "auto" takes the class that config.json names.

    `plmjax.interop.huggingface.ADAPTERS` lists the systems whose transformers folders are read. `plmjax import` makes a
    run directory from other files, such as those of Google's BERT or of fairseq.

    Raises:
        UserError: neither a run nor a transformers folder, or one that is damaged or has no tokenizer.
    """
    directory = storage.path(path)
    if (directory / CONFIG).is_file():
        module, params = huggingface.load(directory, architecture=architecture)
        names: tuple[str, ...] = ()
        if hasattr(module, "num_labels"):
            names = labels.names(huggingface.read_settings(directory) | {"num_labels": module.num_labels})
        return Model(module, params, tokenizers.load(directory), names)
    params, description = checkpoints.load_parameters(directory)
    run = description.experiment
    module, params = module_of(run, params)
    if huggingface.has_form(module):  # an imported run may lack the heads of its objective
        held = huggingface.architecture_held(module, params)
        if held != huggingface.architecture_of(module):
            module, params = huggingface.as_architecture(module, params, held)
    return Model(module, params, description.load_tokenizer(), tuple(getattr(run.objective, "labels", ())))


def save(model: Model, directory: str | Path, *, architecture: str = "auto") -> None:
    """Write a folder with the model and its tokenizer, which transformers and `load` open.

    architecture: the transformers class to write; "auto" takes the class of the model.

    The files are read back and compared. `plmjax export` exports a run with its settings of generation and checks the
    result against transformers.

    Raises:
        UserError: transformers has no class for the model, its parameters do not fit, or the folder cannot be written.
    """
    if not isinstance(model, Model):
        raise UserError(f"Expected a model as plmjax.load returns it, found {type(model).__name__}; give that one.")
    with tempfile.TemporaryDirectory() as folder:
        model.tokenizer.save(Path(folder))
        huggingface.save(
            model.module,
            model.params,
            directory,
            architecture=architecture,
            tokenizer=folder,
            labels=model.labels,
        )
