"""The program that runs a checkpoint on this machine."""

import dataclasses
import math
from typing import Any

import jax

from plmjax import experiment as experiments
from plmjax.experiment import Experiment
from plmjax.objectives.capabilities import AdaptsModel
from plmjax.parallel import mesh as meshes
from plmjax.training import feed
from plmjax.training import program as programs
from plmjax.training.evaluation import unigram_nats
from plmjax.training.program import Program


def program_of(run: Experiment, source: feed.BatchSource) -> Program:
    """Return the program of the run's last phase on the devices of this machine."""
    mesh = meshes.make(experiments.Mesh(), jax.local_devices())
    phase = run.resolved_phases[-1]
    wanted = run.training.evaluation_batch_size or phase.batch_size / phase.accumulation
    phase = dataclasses.replace(phase, batch_size=math.ceil(wanted / mesh.size) * mesh.size, accumulation=1)
    # The train step of this program does not run.
    run = dataclasses.replace(run, training=dataclasses.replace(run.training, evaluation_batch_size=0, rings="off"))
    unigram = unigram_nats(source.unigram_counts, run.model.vocab_size)
    return programs.build(run, phase, mesh, vocabulary=source.vocabulary, shapes=source.batch, unigram=unigram)


def adapted_program(program: Program, run: Experiment, source: feed.BatchSource, params: Any) -> Program:
    """Return the program for the model size that the parameters need; `program` itself if it has this size.

    For example, Adaptive-Span needs no more keys than its longest learned span. Both programs have the same train
    state.
    """
    if not isinstance(run.objective, AdaptsModel):
        return program
    statistic = float(jax.jit(run.objective.statistic, static_argnums=0)(run.model, params))
    model = run.objective.adapt_config(run.model, statistic)
    return program if model == run.model else program_of(dataclasses.replace(run, model=model), source)
