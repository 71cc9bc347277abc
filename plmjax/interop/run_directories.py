"""Import of checkpoints of other libraries as run directories, and export: `plmjax import`, `plmjax export`.

Both verify the result before they report success: outputs are compared with transformers if it is installed; else every
bit is compared after a round trip.
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

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Kind, Purpose
from plmjax.contracts.template import Template
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.errors import UserError, in_file, quoted
from plmjax.experiment import Data, Experiment
from plmjax.files import json_text, locks, storage
from plmjax.finetuning.tasks.task import Task, TaskObjective
from plmjax.finetuning.tasks.text_pairs import TextPairs
from plmjax.generation.batch_generator import settings_of
from plmjax.generation.options import Generation, in_words
from plmjax.interop import (
    config_json,
    generated_texts,
    generation_settings,
    huggingface,
    labels,
    libraries,
    problem_types,
    sentence_folders,
    sentence_vectors,
    tokenizer_files,
)
from plmjax.interop.default_tasks import task_of
from plmjax.interop.libraries import NativeFiles
from plmjax.interop.sentence_folders import SentenceFolder
from plmjax.interop.transformers_files import CONFIG
from plmjax.layers import int8
from plmjax.layers.text_vectors import TextVectors
from plmjax.models.compressed.configs import LowRankConfig
from plmjax.models.compressed.parameters import dense
from plmjax.objectives.capabilities import GeneratesText, ReadsPrefix
from plmjax.objectives.objective import Objective
from plmjax.training.checkpoints import checkpoints, items
from plmjax.training.checkpoints.checkpoints import Description

log = logging.getLogger(__name__)

MARK = "plmjax_export.json"
"""File in the folder of an export that names the exported model."""


def import_checkpoint(
    source: str | Path, workdir: str | Path, architecture: str = "auto", tokenizer: str | Path | None = None
) -> str:
    """Create a run directory, at step 0, from a checkpoint of another library.

    A bare encoder gives a checkpoint without heads, for fine-tuning or embedding.

    Args:
        architecture: a transformers class; "auto" uses the one that the folder names.
        tokenizer: folder of the tokenizer, if it is not `source`.

    Returns:
        a line of text about the model and the checks.

    Raises:
        UserError: `workdir` has a run, the folder or the tokenizer does not fit, or a check fails.
    """
    source, workdir = storage.path(source), storage.path(workdir)
    if storage.finished_steps(workdir / "checkpoints"):
        raise UserError(f"Expected no run in {workdir}, found one; name another folder.")
    with storage.local(source) as folder:
        return _import(source, folder, workdir, architecture=architecture, tokenizer=tokenizer)


class _Imported(NamedTuple):
    """A module as part of a run.

    Its name, its path in the headed model (or empty), its default task, and a text about the checks.
    """

    name: str
    within: str
    objective: Objective
    data: Data | Task
    checked: str


def _import(source: Path, folder: Path, workdir: Path, *, architecture: str, tokenizer: str | Path | None) -> str:
    whole, sentences = folder, sentence_folders.read(folder)
    if sentences is not None:
        folder = sentences.encoder
        architecture = huggingface.headless(folder) if architecture == "auto" else architecture
    module, params, library, evidence = libraries.load(folder, architecture)
    if tokenizer is None and not folder.is_dir():
        raise UserError(
            f"Expected --tokenizer with a folder of the model's tokenizer, found none beside {source}; name it."
        )
    place = storage.path(tokenizer or folder)
    with tempfile.TemporaryDirectory() as scratch:
        own_place = libraries.LIBRARIES[library].tokenizer(folder, Path(scratch)) if tokenizer is None else place
        its_tokenizer = _tokenizer(own_place, module)
    own = libraries.native_files(module.config)
    if own:
        found = _from_native_files(own, module, params)
    else:
        found = _from_transformers(module, params, library, folder=folder, tokenizer=its_tokenizer, place=place)
    if sentences is not None:
        its_tokenizer = sentence_folders.with_lowercase(its_tokenizer) if sentences.lowercase else its_tokenizer
        checked = _compare_vectors(module, params, its_tokenizer, found=sentences, folder=whole)
        found = found._replace(checked=f"{found.checked}; {checked}")
    if isinstance(found.data, TextPairs):
        found = found._replace(data=dataclasses.replace(found.data, **_languages(place)))
    tree = {found.within: params} if found.within else params
    if sentences is not None and sentences.params:
        tree = {**tree, TextVectors.name: sentences.params}
    recipe = sentences.vectors if sentences is not None else None
    generation = _generation(folder, module, its_tokenizer.vocabulary) if library == "transformers" else None
    run = Experiment(module.config, found.objective, found.data, generation=generation, text_vectors=recipe)
    checkpoints.save_parameters(workdir, tree, run, tokenizer=_files(its_tokenizer))
    _same_bits(checkpoints.load_parameters(workdir)[0], tree, f"the checkpoint written to {workdir}")
    return (
        f"imported   {found.name} of {_count(params):,} parameters from {source} ({library}, by {evidence}) to "
        f"{workdir}; {found.checked}" + (f"; writes with {in_words(generation.explicit())}" if generation else "")
    )


def _generation(folder: Path, module: nn.Module, vocabulary: Vocabulary) -> Generation | None:
    """Return the settings with which transformers generates from the model in a folder.

    It is None if the model does not generate text.
    """
    if not _writes(module):
        return None
    config, file = huggingface.read_settings(folder), huggingface.read_generation(folder)
    whole = module.config.system.kind is not Kind.ENCODER_DECODER
    with in_file(folder / (huggingface.GENERATION if file else CONFIG)):
        found = generation_settings.read(file, config, whole=whole, end=vocabulary.document_end)
        settings_of(found.generation).constraints(vocabulary, module.config.vocab_size)
    if found.unsupported:
        log.warning("%s", found.unsupported)
    return found.generation


def _from_transformers(
    module: nn.Module, params: Mapping[str, Any], library: str, *, folder: Path, tokenizer: Any, place: Path
) -> _Imported:
    """Return the module as part of a run. tokenizer: the tokenizer from the folder `place`."""
    name = huggingface.architecture_of(module)
    compared = library == "transformers" and huggingface.transformers_installed()
    if compared:
        difference = huggingface.compare(module, params, folder)
        checked = f"outputs equal those of transformers, largest relative difference {difference:.1e}"
        checked += _compare_tokens(module, params, folder, tokenizer=tokenizer, own=place)
    else:
        checked = _round_trip(module, params)
    adapter = huggingface.adapter_of(module)
    settings = huggingface.read_settings(folder) if library == "transformers" else {}
    names = labels.names(settings | {"num_labels": module.num_labels}) if hasattr(module, "num_labels") else ()
    objective, data = task_of(module, names)
    with in_file(folder / CONFIG):
        objective, data = problem_types.with_problem_type(objective, data, names, settings.get("problem_type"))
    longest = module.config.longest or data.sequence_length
    data = dataclasses.replace(data, sequence_length=min(data.sequence_length, longest))
    return _Imported(name, adapter.architectures[name].within, objective, data, checked)


def _compare_tokens(module: nn.Module, params: Mapping[str, Any], folder: Path, *, tokenizer: Any, own: Path) -> str:
    """Compare token ids with transformers, which reads some vocabularies in another way. Return a text on the result.

    For models that generate, the generated texts of both libraries are also compared.
    """
    rows = tokenizer_files.rows_with(tokenizer.vocabulary, huggingface.rows_of(module))
    note = "; its tokenizer gives the ids of transformers"
    try:
        with storage.local(own) as source:
            if difference := tokenizer_files.difference(tokenizer, rows, source):
                note = f"; its tokenizer differs from that of transformers, with {difference}"
    except UserError:
        note = "; transformers cannot open its tokenizer"
    if _writes(module):
        generated_texts.compare(module, params, folder, tokenizer=tokenizer, template=rows)
        note += ", its generated texts equal those of transformers"
    return note


def _compare_vectors(
    module: nn.Module, params: Mapping[str, Any], tokenizer: Any, *, found: SentenceFolder, folder: Path
) -> str:
    """Compare text vectors with sentence-transformers, which must compute the same. Return a text on the result."""
    module.config.system.require(Purpose.EMBEDDING, f" in {folder}")
    within = huggingface.adapter_of(module).architectures[huggingface.architecture_of(module)].within
    if not within:
        raise UserError(
            f"Expected --architecture {huggingface.headless(found.encoder)} for a folder of sentence-transformers, "
            f"whose vectors need no head, found {huggingface.architecture_of(module)}; leave it out."
        )
    sentence_folders.check_width(found, module.config.width, folder)
    said = f"its vectors: {found.vectors}"
    if missing := sentence_vectors.not_installed():
        return f"{said}; {' and '.join(missing)} not installed, so they were not compared"
    difference = sentence_vectors.compare(
        module, params, tokenizer, vectors=found.vectors, own=found.params, folder=folder
    )
    return f"{said}; they equal those of sentence-transformers, largest relative difference {difference:.1e}"


def _from_native_files(own: NativeFiles, module: nn.Module, params: Mapping[str, Any]) -> _Imported:
    with tempfile.TemporaryDirectory() as folder:
        own.save(module, params, Path(folder))
        _same_bits(own.load(Path(folder))[1], params, "its own files")
    checked = "a round trip through its own files gives every bit back"
    return _Imported(own.name(module), own.part, *task_of(module), checked)


def export_checkpoint(checkpoint: str | Path, directory: str | Path, architecture: str = "auto") -> str:
    """Write a run's last checkpoint (or the named one) as a transformers folder. Return a line about the checks.

    architecture: a transformers class; "auto" uses the one with all parameters of the checkpoint.

    A system with its own file format is written in that format, without the parts that only pretraining uses.

    Raises:
        UserError: there is no checkpoint, its model has no transformers form, the folder has files that are not from
            an earlier export, or the check fails.
    """
    params, description = checkpoints.load_parameters(checkpoint)
    in_int8 = items.int8_paths(checkpoints.find(checkpoint), "params")
    changed = ["stored in int8; exported in float32"] if in_int8 else []
    params, run, densified = _dense(int8.remove_scales(params), description.experiment)
    changed += densified
    if description.tokenizer and libraries.native_files(run.model) is None:
        ids = config_json.ids_of_tokenizer(run.model, description.load_tokenizer().vocabulary)
        changed += [f"{name} is the tokenizer's, {found}" for name, found in ids.items()]
        run = dataclasses.replace(run, model=dataclasses.replace(run.model, **ids))
    description = dataclasses.replace(description, run=run)
    model, params = module_of(run, params)
    if own := libraries.native_files(run.model):
        return "; ".join(
            (_export_native(own, params, description, output=storage.path(directory), asked=architecture), *changed)
        )
    if not huggingface.has_form(model):
        advice = ", or write the vectors of its words with --vectors text" if run.model.system.token_table else ""
        raise UserError(
            f"Expected a model that transformers has too in {checkpoint}, found {type(run.model).__name__}; export "
            f"another checkpoint{advice}."
        )
    if architecture == "auto":
        architecture = huggingface.architecture_held(model, params)
    generation, lost = _generation_config(description, model, architecture)
    if run.text_vectors is not None:
        lost.append(f"lost: {run.text_vectors}, which --to sentence-transformers keeps")
    if note := huggingface.adapter_of(model).architecture(architecture).lost(model):
        lost.append(note)
    module, _ = huggingface.as_architecture(model, params, architecture)
    extras = {
        "generation": generation,
        "labels": tuple(getattr(run.objective, "labels", ())),
        "problem_type": problem_types.problem_type_of(run.objective),
    }
    output = storage.path(directory)
    with locks.lock(output), tempfile.TemporaryDirectory() as scratch, storage.output(output) as folder:
        claim(output, architecture, description.step)
        if description.tokenizer:
            tokenizer, rows = description.load_tokenizer(), _rows(run, model, module, architecture)
            rows = tokenizer_files.rows_with(tokenizer.vocabulary, rows)
            extras |= {"tokenizer": description.write_tokenizer(Path(scratch)), "rows": rows}
        huggingface.save(model, params, folder, architecture=architecture, **extras)
        checked = "reads back bit for bit; transformers and torch are not both installed, so outputs were not compared"
        if huggingface.transformers_installed():
            difference = huggingface.compare(model, params, folder, architecture)
            checked = f"reads back bit for bit, transformers' outputs differ by {difference:.1e} relative at most"
        if description.tokenizer:
            checked += f"; the ids of {tokenizer_files.compare(tokenizer, rows, folder)} texts and pairs are the run's"
            if huggingface.transformers_installed() and _writes(module):
                count = generated_texts.compare(
                    model, params, folder, tokenizer=tokenizer, template=rows, architecture=architecture
                )
                checked += f", so are {count} tokens that transformers writes"
    return "; ".join((f"exported   {architecture} of step {description.step} to {directory}", checked, *changed, *lost))


def module_of(run: Experiment, params: Any) -> tuple[nn.Module, Any]:
    """Return the module of a run and its parameters; only the encoder if the run trains text vectors."""
    if isinstance(run.objective, TaskObjective) and run.objective.purpose is Purpose.EMBEDDING:
        encoder = run.model.module(Purpose.EMBEDDING, Execution())
        return encoder, params[encoder.name]
    return run.objective.module(run.model, Execution()), params


class _Dense(NamedTuple):
    """A run of a dense model, and a sentence on each change."""

    params: Any
    run: Experiment
    changes: list[str]


def _dense(params: Any, run: Experiment) -> _Dense:
    """Convert a compressed model to a dense one, as transformers has it."""
    model = run.model
    if not isinstance(model, LowRankConfig):
        return _Dense(params, run, [])
    flat, plain = dense(flax.traverse_util.flatten_dict(params, sep="/"), model)
    changes = ["products of two matrices; exported as whole ones"] if model.ranks else []
    if getattr(model, "layer_heads", ()):
        changes.append(
            "heads and features that were removed are zeros in it, so that it is neither smaller nor faster there"
        )
    return _Dense(flax.traverse_util.unflatten_dict(flat, sep="/"), dataclasses.replace(run, model=plain), changes)


def _generation_config(
    description: Description, model: nn.Module, architecture: str
) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the content of an export's generation_config.json, and sentences on the settings that transformers lacks.

    The content is None if the architecture does not generate text.
    """
    run, config = description.experiment, dataclasses.asdict(description.experiment.model)
    chosen = huggingface.adapter_of(model).architectures[architecture]
    if chosen.module is not run.model.system.modules.get(Purpose.CAUSAL_LM):
        return None, []
    end = description.load_tokenizer().vocabulary.document_end if description.tokenizer else -1
    decoding = run.objective.decoding() if isinstance(run.objective, GeneratesText) else run.generation
    content, lost = generation_settings.write(decoding, config, end)
    lacks = [lost] if lost else []
    if isinstance(run.objective, ReadsPrefix):
        lacks.append(
            f"lost: this run is a prefix language model, with bidirectional attention over prompts; transformers' "
            f"{architecture} reads them from left to right"
        )
    return content, lacks


def claim(folder: Path, architecture: str, step: int) -> None:
    """Mark a folder as an export, which a later export may replace. Raise UserError if it holds other files."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"Expected a folder to export to, found the file {folder}; name another.")
    if not (folder / MARK).exists() and not locks.is_unused(folder):
        raise UserError(
            f"Expected a new or empty folder to export to, or one of an earlier export, found other files in {folder}; "
            "name another."
        )
    folder.mkdir(parents=True, exist_ok=True)
    storage.write(folder / MARK, json.dumps({"architecture": architecture, "step": step}) + "\n")


def _writes(module: nn.Module) -> bool:
    """Return whether a module generates text."""
    return Purpose.CAUSAL_LM in module.config.system.purposes(module)


def _rows(run: Experiment, trained: nn.Module, exported: nn.Module, architecture: str) -> Template:
    """Return the template of the exported module's inputs.

    It is the run's own template, or the default one of the architecture if the module has another head.
    """
    headless = huggingface.adapter_of(exported).architectures[architecture].within
    if isinstance(run.objective, TaskObjective) and (headless or type(exported) is type(trained)):
        return run.objective.template(run.model)
    return huggingface.rows_of(exported)


def _export_native(
    own: NativeFiles, params: Any, description: checkpoints.Description, *, output: Path, asked: str
) -> str:
    config = description.experiment.model
    module = config.module(Purpose.ENCODING if own.part else Purpose.PRETRAINING, Execution())
    params, name = params[own.part] if own.part else params, own.name(module)
    if asked not in ("auto", name):
        raise UserError(f"Expected --architecture {name} for its own files, found {quoted(asked)}; leave it out.")
    with locks.lock(output), storage.output(output) as folder:
        claim(output, name, description.step)
        own.save(module, params, folder)
        if description.tokenizer:
            description.load_tokenizer().save(folder)
        _same_bits(own.load(folder)[1], params, "its own files")
    return f"exported   {name} of step {description.step} to {output}; reads back bit for bit"


def can_export(checkpoint: str | Path) -> bool:
    """Return whether the model of a run has a transformers form or its own file format.

    A model with `windows` has none: in transformers its class attends to the complete row.
    """
    run = checkpoints.describe(checkpoints.find(checkpoint)).experiment
    if libraries.native_files(run.model) is not None:
        return True
    return not run.model.windows and huggingface.has_form(run.objective.module(run.model, Execution()))


def _tokenizer(folder: str | Path, model: nn.Module) -> Any:
    """Return a tokenizer (plmjax.data.tokenizers.Tokenizer) with an embedding in the model for every token."""
    from plmjax.data import tokenizers

    known = libraries.native_files(model.config) is None
    tokenizer = huggingface.tokenizer_of(folder, model) if known else tokenizers.load(folder)
    if tokenizer.vocabulary.size > model.config.vocab_size:
        raise UserError(
            f"Expected a tokenizer of at most the model's {model.config.vocab_size} tokens in {folder}, found "
            f"{tokenizer.vocabulary.size}; name the tokenizer that the model was trained with."
        )
    return tokenizer


def _files(tokenizer: Any) -> dict[str, bytes]:
    """Return a dict from name to content of a tokenizer's files."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(folder)
        return checkpoints.tokenizer_files(Path(folder))


def _languages(folder: Path) -> dict[str, str]:
    """Return the two columns of a translation model's files, named as the languages in its tokenizer_config.json."""
    file = folder / "tokenizer_config.json"
    options = json_text.read_object(file, "options of a tokenizer", "correct it") if file.is_file() else {}
    names = {"source": options.get("source_lang"), "target": options.get("target_lang")}
    return names if all(isinstance(name, str) and name for name in names.values()) else {}


def _round_trip(model: nn.Module, params: Mapping[str, Any]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        huggingface.save(model, params, folder)
        _same_bits(huggingface.load(folder)[1], params, "transformers' files")
    return "a round trip through transformers' files gives every bit back"


def _same_bits(found: Mapping[str, Any], expected: Mapping[str, Any], what: str) -> None:
    found, expected = (flax.traverse_util.flatten_dict(tree, sep="/") for tree in (found, expected))
    for path in sorted(found.keys() | expected.keys()):
        both = path in found and path in expected
        if not both or np.asarray(found[path]).tobytes() != np.asarray(expected[path]).tobytes():
            raise UserError(
                f"Expected to read {path} back from {what} bit for bit, found a difference; check the disk and try "
                "again."
            )


def _count(params: Mapping[str, Any]) -> int:
    return sum(leaf.size for leaf in flax.traverse_util.flatten_dict(params).values())
