"""Run directories from checkpoints of other libraries, and back: what `plmjax import` and `plmjax export` do.

Neither says that it is done before the numbers are checked: outputs against transformers where it is installed, bits
after a round trip where it is not.
"""

import dataclasses
import json
import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import flax.traverse_util
import numpy as np

from plmjax import json_text, storage
from plmjax.errors import UserError, quoted
from plmjax.exchange import problem_types
from plmjax.experiment import Data, Experiment
from plmjax.finetuning.task import Task
from plmjax.finetuning.tasks import task_of
from plmjax.generation.decoder import writes_text
from plmjax.generation.options import Generation, in_words
from plmjax.generation.writer import settings_of
from plmjax.interop import generation_settings, huggingface, labels, libraries
from plmjax.interop.libraries import OwnFiles
from plmjax.layers.execution import Execution
from plmjax.objectives.objective import Objective
from plmjax.training import checkpoints, start
from plmjax.training.checkpoints import Description
from plmjax.vocabulary import Vocabulary

log = logging.getLogger(__name__)


def import_checkpoint(
    source: str | Path, workdir: str | Path, architecture: str = "auto", tokenizer: str | Path | None = None
) -> str:
    """Makes a run directory, step 0, of a checkpoint of another library; says what it was and what was checked.

    architecture: a transformers class; "auto" takes the one that the folder names. tokenizer: its folder, where it is
    not `source`. A bare encoder makes a checkpoint without heads, to fine-tune or embed with.

    Raises:
        UserError: the folder does not fit, the tokenizer does not fit it, or the check fails.
    """
    source, workdir = storage.path(source), storage.path(workdir)
    with storage.local(source) as folder:
        return _import(source, folder, workdir, architecture, tokenizer)


class _Imported(NamedTuple):
    """What a module is in a run: its name, the part of a larger module it is (or empty), its task, what was checked."""

    name: str
    within: str
    objective: Objective
    data: Data | Task
    checked: str


def _import(source: Path, folder: Path, workdir: Path, architecture: str, tokenizer: str | Path | None) -> str:
    module, params, library, evidence = libraries.load(folder, architecture)
    if tokenizer is None and not folder.is_dir():
        raise UserError(
            f"Expected --tokenizer with a folder of the model's tokenizer, found none beside {source}; name it."
        )
    files, vocabulary = _tokenizer(tokenizer or folder, module)
    own = libraries.own_files(module.config)
    found = _of_own_files(own, module, params) if own else _of_transformers(module, params, library, folder)
    tree = {found.within: params} if found.within else params
    generation = _generation(folder, module, vocabulary) if library == "transformers" else None
    run = Experiment(model=module.config, objective=found.objective, data=found.data, generation=generation)
    checkpoints.save_parameters(workdir, tree, run, files)
    _same_bits(checkpoints.load_parameters(workdir)[0], tree, f"the checkpoint written to {workdir}")
    return (
        f"imported   {found.name} of {_count(params):,} parameters from {source} ({library}, by {evidence}) to "
        f"{workdir}; {found.checked}" + (f"; writes with {in_words(generation.given())}" if generation else "")
    )


def _generation(folder: Path, module: nn.Module, vocabulary: Vocabulary) -> Generation | None:
    """How transformers writes with the model of a folder; None where it does not write."""
    if not _writes(module):
        return None
    config, file = huggingface.read_settings(folder), huggingface.read_generation(folder)
    whole = module.config.decoder_start_token_id is None
    found = generation_settings.read(file, config, whole=whole, end=vocabulary.document_end)
    settings_of(found.generation).constraints(vocabulary, module.config.vocab_size)
    if found.unsupported:
        log.warning("%s", found.unsupported)
    return found.generation


def _writes(module: nn.Module) -> bool:
    """Whether a module is the one that writes text."""
    config = module.config
    return writes_text(config) and type(module) is type(config.for_generation(Execution()))


def _of_transformers(module: nn.Module, params: Mapping[str, Any], library: str, folder: Path) -> _Imported:
    name = huggingface.architecture_of(module)
    compared = library == "transformers" and huggingface.transformers_installed()
    if compared:
        difference = huggingface.compare(module, params, folder)
        checked = f"outputs equal those of transformers, largest relative difference {difference:.1e}"
    else:
        checked = _round_trip(module, params)
    adapter = huggingface.adapter_of(module)
    settings = huggingface.read_settings(folder) if library == "transformers" else {}
    names = labels.names(settings | {"num_labels": module.num_labels}) if hasattr(module, "num_labels") else ()
    objective, data = adapter.pretraining(module) or task_of(module, names)
    objective, data = problem_types.stated(objective, data, names, settings.get("problem_type"))
    data = dataclasses.replace(data, sequence_length=min(data.sequence_length, module.config.longest))
    return _Imported(name, adapter.architectures[name].within, objective, data, checked)


def _of_own_files(own: OwnFiles, module: nn.Module, params: Mapping[str, Any]) -> _Imported:
    with tempfile.TemporaryDirectory() as folder:
        own.save(module, params, Path(folder))
        _same_bits(own.load(Path(folder))[1], params, "its own files")
    checked = "a round trip through its own files gives every bit back"
    return _Imported(type(module).__name__, own.part, *own.pretraining(module), checked)


def export_checkpoint(checkpoint: str | Path, directory: str | Path, architecture: str = "auto") -> str:
    """Writes a run's last checkpoint (or the one named) as a transformers folder; says what was checked.

    architecture: a transformers class; "auto" takes the one that holds everything there is. A system with files of its
    own is written in these, the part of it that is used after pretraining.

    Raises:
        UserError: no checkpoint there, no transformers form of its model, or the check fails.
    """
    params, description = checkpoints.load_parameters(checkpoint)
    run = description.experiment
    model = run.objective.module(run.model, Execution())
    if own := libraries.own_files(run.model):
        return _export_own(own, params, description, storage.path(directory), architecture)
    if architecture == "auto":
        architecture = huggingface.architecture_held(model, params)
    generation, lost = _written_generation(description, model, architecture)
    with tempfile.TemporaryDirectory() as scratch, storage.output(storage.path(directory)) as folder:
        tokenizer = _tokenizer_folder(description, model, Path(scratch)) if description.tokenizer else None
        told = {
            "generation": generation,
            "labels": tuple(getattr(run.objective, "labels", ())),
            "problem_type": problem_types.named(run.objective),
        }
        huggingface.save(model, params, folder, architecture=architecture, tokenizer=tokenizer, **told)
        checked = "reads back bit for bit; transformers is not installed, so outputs were not compared"
        if huggingface.transformers_installed():
            difference = huggingface.compare(model, params, folder, architecture)
            checked = f"reads back bit for bit, transformers' outputs differ by {difference:.1e} relative at most"
    return "; ".join((f"exported   {architecture} of step {description.step} to {directory}", checked, *lost))


def _written_generation(
    description: Description, model: nn.Module, architecture: str
) -> tuple[dict[str, Any] | None, list[str]]:
    """generation_config.json of an export, None where its architecture does not write; and what transformers lacks."""
    run, config = description.experiment, dataclasses.asdict(description.experiment.model)
    chosen = huggingface.adapter_of(model).architectures[architecture]
    if not writes_text(run.model) or chosen.module is not type(run.model.for_generation(Execution())):
        return None, []
    end = start.tokenizer_of(description).vocabulary.document_end if description.tokenizer else -1
    decoding = run.objective.decoding() or run.generation
    written, lost = generation_settings.write(decoding, config, end)
    lacks = [lost] if lost else []
    if run.objective.prefix:
        lacks.append(
            f"lost: this run is a prefix language model, whose prompts are read from both sides; transformers' "
            f"{architecture} reads them from left to right"
        )
    return written, lacks


def _export_own(own: OwnFiles, params: Any, description: checkpoints.Description, output: Path, asked: str) -> str:
    config = description.experiment.model
    module = config.encoder(Execution()) if own.part else config.for_pretraining(Execution())
    params, name = params[own.part] if own.part else params, type(module).__name__
    if asked not in ("auto", name):
        raise UserError(f"Expected --architecture {name} for its own files, found {quoted(asked)}; leave it out.")
    with storage.output(output) as folder:
        own.save(module, params, folder)
        if description.tokenizer:
            start.tokenizer_of(description).save(folder)
        _same_bits(own.load(folder)[1], params, "its own files")
    return f"exported   {name} of step {description.step} to {output}; reads back bit for bit"


def can_export(checkpoint: str | Path) -> bool:
    """Whether the model of a run has a form in transformers or files of its own."""
    run = checkpoints.describe(checkpoints.find(checkpoint)).experiment
    has_own_files = libraries.own_files(run.model) is not None
    return has_own_files or huggingface.has_form(run.objective.module(run.model, Execution()))


def _tokenizer(folder: str | Path, model: nn.Module) -> tuple[dict[str, bytes], Vocabulary]:
    """The files of a tokenizer that the model has an embedding for every token of, and its vocabulary."""
    from plmjax.data import tokenizers

    known = libraries.own_files(model.config) is None
    tokenizer = tokenizers.load(folder, model_type=huggingface.model_type_of(model) if known else "")
    if tokenizer.vocabulary.size > model.config.vocab_size:
        raise UserError(
            f"Expected a tokenizer of at most the model's {model.config.vocab_size} tokens in {folder}, found "
            f"{tokenizer.vocabulary.size}; name the tokenizer that the model was trained with."
        )
    with tempfile.TemporaryDirectory() as copy:
        tokenizer.save(copy)
        return checkpoints.tokenizer_files(Path(copy)), tokenizer.vocabulary


def _tokenizer_folder(description: checkpoints.Description, model: nn.Module, folder: Path) -> Path:
    """The tokenizer's files, which tell transformers where to cut a text if they did not yet."""
    file = description.write_tokenizer(folder) / "tokenizer_config.json"
    if file.is_file():
        settings = {"model_max_length": model.config.longest}
        settings |= json_text.read_object(file, "options of a tokenizer", "import the checkpoint again")
        file.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return folder


def _round_trip(model: nn.Module, params: Mapping[str, Any]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        huggingface.save(model, params, folder)
        _same_bits(huggingface.load(folder)[1], params, "transformers' files")
    return "a round trip through transformers' files gives every bit back"


def _same_bits(found: Mapping[str, Any], expected: Mapping[str, Any], what: str) -> None:
    found, expected = (flax.traverse_util.flatten_dict(tree, sep="/") for tree in (found, expected))
    for path in sorted(found.keys() | expected.keys()):
        if path not in found or np.asarray(found[path]).tobytes() != np.asarray(expected[path]).tobytes():
            raise UserError(
                f"Expected to read {path} back from {what} bit for bit, found a difference; check the disk and try "
                "again."
            )


def _count(params: Mapping[str, Any]) -> int:
    return sum(leaf.size for leaf in flax.traverse_util.flatten_dict(params).values())
