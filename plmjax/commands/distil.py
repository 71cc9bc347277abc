"""`plmjax compress distil`: from a teacher to the run directory of its student."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import flax.traverse_util
from tyro.conf import Positional, arg

from plmjax import experiment as experiments
from plmjax.commands.arguments import Overrides, Reference, default, load_classes
from plmjax.commands.command_line import Location
from plmjax.compression.distillation import stored
from plmjax.compression.distillation.captured_activations import one_token_inputs
from plmjax.compression.distillation.distilbert import DistilBertDistillation
from plmjax.compression.distillation.distilled import INNER, Distillation
from plmjax.compression.distillation.mobilebert import MobileBertDistillation
from plmjax.compression.distillation.patient import PatientDistillation
from plmjax.compression.distillation.soft_targets import SoftTargetDistillation
from plmjax.compression.distillation.students import RandomLayers, RandomStudent, TakenLayers, resolve_layers
from plmjax.compression.distillation.tinybert import TinyBertDistillation
from plmjax.compression.run import TRAINING, Source, compose_experiment, hold_output, train, write
from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.parameters import check_parameters
from plmjax.errors import UserError, check_choice, listed
from plmjax.experiment import Experiment, WeightMapping
from plmjax.files import storage
from plmjax.finetuning.tasks.task import TaskObjective
from plmjax.objectives.objective import Objective
from plmjax.parallel import hosts
from plmjax.runs.init_from import RANDOM, with_task
from plmjax.training.checkpoints import checkpoints
from plmjax.training.checkpoints.checkpoints import Description

OF_RUNS: dict[str, type[Distillation]] = {
    method.name: method
    for method in (
        SoftTargetDistillation,
        DistilBertDistillation,
        PatientDistillation,
        TinyBertDistillation,
        MobileBertDistillation,
    )
}
"""Method -> class of its settings in a run, whose options the command takes too."""


@hold_output
def distil(
    teacher: Positional[Annotated[str, arg(metavar="TEACHER")]],
    output: Location,
    *,
    method: str = "soft_targets",
    layers: Annotated[tuple[int, ...], default("every other one")] = (),
    student: str | None = None,
    experiment: Reference | None = None,
    overrides: Overrides = (),
) -> None:
    """Train a student, a smaller model, beside its teacher.

    It is trained on the data of the teacher's run or with another experiment, whose options may follow, such as
    --training.steps 1000 or --compression.temperature 4. Both have the same tokenizer.

    Args:
        teacher: Run directory or checkpoint.
        output: Run directory to write, with one checkpoint of the student.
        method: soft_targets, distilbert, patient, tinybert or mobilebert.
        layers: Numbers of the teacher's layers that the student begins with, from 0.
        student: Run directory or checkpoint that the student begins with in place of the teacher's layers; or random,
            for random parameters of the sizes of the teacher or of --experiment, with options such as
            --model.hidden_size.
        experiment: Experiment that trains the student, in place of that of the teacher; its file defines classes too.
    """
    load_classes(experiment)
    check_choice("--method", method, OF_RUNS)
    if layers and student is not None:
        raise UserError(
            f"Expected either --layers or --student, found both; leave --layers out to begin with {student}."
        )
    source = Source.read(teacher)
    named = None if experiment is None else experiments.load(experiment)
    other = None if student in (None, RANDOM) else checkpoints.describe(checkpoints.find(student))
    if other is not None:
        _check_tokenizers(source, str(student), other)
    distillation = _distillation(source, OF_RUNS[method], named)
    if distillation.random_layers:
        _check_layers(distillation, layers, student)
    takes_layers = student is None and not distillation.random_layers
    layers = _layers(source, layers, named) if takes_layers else ()
    run = compose_experiment(
        source,
        distillation,
        experiment,
        overrides=overrides,
        model=other.experiment.model if other is not None else _model(source, layers, named),
    )
    if takes_layers:
        run = dataclasses.replace(run, weight_mapping=TakenLayers(layers, run.model))
    elif other is None:
        run = dataclasses.replace(
            run, weight_mapping=RandomLayers(run.model) if student is None else RandomStudent(run.model)
        )
    run = _with_task(source, run)
    if isinstance(run.compression, SoftTargetDistillation) and run.compression.top_k:
        run = _with_stored(source, run, storage.path(output))
    settings = {"method": method} | ({"layers": list(layers)} if takes_layers else {"student": student})
    settings |= dataclasses.asdict(run.compression)
    settings = {name: value for name, value in settings.items() if name not in ("teacher", "checkpoint", "stored")}
    params, run = train(source, run, output, checkpoint=None if other is None else student)
    run = dataclasses.replace(run, weight_mapping=WeightMapping())
    constants = checkpoints.read_constants(storage.path(output) / TRAINING).get(INNER, ())
    size = write(output, source, params, run=run, by="distil", settings=settings, constants=constants)
    print(f"distilled  {size} in {output}")


def _distillation(source: Source, method: type[Distillation], named: Experiment | None) -> Distillation:
    """Return the settings of a method, from the named experiment if it has such settings, with the teacher."""
    own = named.compression if named is not None and type(named.compression) is method else method()
    return dataclasses.replace(own, teacher=source.description.experiment.model, checkpoint=str(source.directory))


def _layers(source: Source, layers: Sequence[int], named: Experiment | None) -> tuple[int, ...]:
    """Return the teacher's layers to take: from the option, from the named experiment, or every other one."""
    if not layers and named is not None and isinstance(named.weight_mapping, TakenLayers):
        layers = named.weight_mapping.layers
    return resolve_layers(layers, source.description.experiment.model)


def _model(source: Source, layers: tuple[int, ...], named: Experiment | None) -> ModelConfig:
    """Return the config of a student that begins with `layers` of its teacher, or with random layers if it takes none.

    It is that of the named experiment for a model of another system than the teacher's, and for random layers.
    """
    teacher = source.description.experiment.model
    own = None if named is None else named.model
    if not layers:
        return teacher if own is None else own
    return TakenLayers(layers, None if own is None or type(own) is type(teacher) else own).model(teacher)


def _check_layers(distillation: Distillation, layers: Sequence[int], student: str | None) -> None:
    """Raise UserError if the student takes layers or is random, for a method that needs random layers."""
    if layers or student == RANDOM:
        found = f"--layers {' '.join(map(str, layers))}" if layers else "--student random"
        raise UserError(
            f"Expected a student with random layers and with the embeddings of its teacher for --method "
            f"{distillation.name}, found {found}; leave it out, or name a checkpoint with --student."
        )


def _check_tokenizers(source: Source, name: str, student: Description) -> None:
    """Raise UserError if the student has another tokenizer than its teacher."""
    if student.load_tokenizer().fingerprint != source.description.load_tokenizer().fingerprint:
        raise UserError(
            f"Expected a student with the tokenizer of its teacher {source.name}, found another one in {name}; name "
            f"another --student, or take layers of the teacher with --layers."
        )


def _with_task(source: Source, run: Experiment) -> Experiment:
    """Return the experiment with an objective for which the teacher has parameters, and with the teacher's labels.

    Raises:
        UserError: the teacher has learned another task.
    """
    own = source.description
    run = with_task(run, own)
    objective, learned = run.objective, own.experiment.objective
    if isinstance(objective, TaskObjective):
        labels = getattr(learned, "labels", None)
        if type(objective) is not type(learned) or (getattr(objective, "labels", None) or labels) != labels:
            raise UserError(
                f"Expected a teacher of the task {_describe(objective)}, found {source.name}, which has learned "
                f"{_describe(learned)}; name a teacher of this task, or an --experiment of that one."
            )
        if labels:
            objective = dataclasses.replace(objective, labels=labels)
    module = objective.module(own.experiment.model, Execution())
    params = flax.traverse_util.unflatten_dict(source.params, sep="/")
    hint = f"the teacher has no module for {type(objective).__name__}"
    check_parameters(module, params, one_token_inputs(own.experiment.model), origin=source.name, hint=hint)
    return dataclasses.replace(run, objective=objective)


def _with_stored(source: Source, run: Experiment, output: Path) -> Experiment:
    """Return the experiment with a file of its teacher's scores, which is written if it does not exist yet.

    Raises:
        UserError: the task cannot be trained on stored scores.
    """
    top_k = run.compression.top_k
    path = output / stored.FILE.format(top_k)
    run.compression.check(run.model, run.objective)
    stored.check(run.objective, run.data)
    source.claim(output)
    if hosts.is_primary():
        params = flax.traverse_util.unflatten_dict(source.params, sep="/")
        stored.write(
            path, run, params, teacher=source.sha256, tokenizer=source.description.load_tokenizer(), top_k=top_k
        )
    hosts.agree("the scores of the teacher")
    return dataclasses.replace(run, compression=dataclasses.replace(run.compression, stored=str(path)))


def _describe(objective: Objective) -> str:
    labels = getattr(objective, "labels", ())
    return type(objective).__name__ + (f" with the labels {listed(labels, 80)}" if labels else "")
