"""The program of a run on one device, as `plmjax pretrain` builds it, with its train step compiled."""

import dataclasses
from collections.abc import Callable

import jax

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.experiment import Experiment
from plmjax.parallel import mesh
from plmjax.training import placement
from plmjax.training import program as programs


def compiled(run: Experiment, vocabulary: Vocabulary, shapes: Callable | None = None) -> programs.Program:
    """Return the program of a run with one phase. shapes: function from a phase to the shapes of its batches; by
    default the layout's.
    """
    devices = mesh.make(run.mesh, jax.devices()[:1])
    program = programs.build(
        run, run.resolved_phases[0], devices, vocabulary=vocabulary, shapes=shapes or placement.text_batch_shapes(run)
    )
    return dataclasses.replace(program, train=program.train.lower(program.state, program.batch).compile())
