"""Experiments: frozen dataclasses, composed by the functions of a file in experiments/.

An experiment is plain data. It is written to the run directory as JSON, read back and compared when the run is resumed.
Options of the command line override its fields.
"""

from plmjax.data.mixing import Mixture
from plmjax.errors import UserError
from plmjax.experiment import catalogue, class_files
from plmjax.experiment.changes import after_step, in_phase
from plmjax.experiment.choice import Choice
from plmjax.experiment.override import normalize_option, options, override
from plmjax.experiment.phases import Phase
from plmjax.experiment.record import (
    FREE,
    PREPARED,
    differences,
    flatten,
    from_dict,
    from_record,
    read,
    to_dict,
    to_record,
    write,
)
from plmjax.experiment.settings import (
    Checkpoint,
    Data,
    Experiment,
    Finetuning,
    Hosts,
    Mesh,
    Tokenizer,
    Tracking,
    Training,
    WeightMapping,
)

__all__ = [
    "FREE",
    "PREPARED",
    "Checkpoint",
    "Choice",
    "Data",
    "Experiment",
    "Finetuning",
    "Hosts",
    "Mesh",
    "Mixture",
    "Phase",
    "Tokenizer",
    "Tracking",
    "Training",
    "WeightMapping",
    "after_step",
    "catalogue",
    "class_files",
    "differences",
    "flatten",
    "from_dict",
    "from_record",
    "in_phase",
    "load",
    "normalize_option",
    "options",
    "override",
    "read",
    "to_dict",
    "to_record",
    "write",
]


def load(reference: str) -> Experiment:
    """Return the experiment of a name in plmjax, of `path/to/file.py` or of a run directory.

    A suffix `:function` chooses a function of the file; the default is `experiment`.

    Raises:
        UserError: the file or function is missing, or the function does not return an Experiment.
    """
    if (recorded := catalogue.recorded(reference)) is not None:
        return read(recorded)
    path, name = catalogue.find(reference)
    compose = catalogue.function(path, name)
    with class_files.explain_mistakes(path):
        experiment = compose()
    if not isinstance(experiment, Experiment):
        raise UserError(
            f"Expected {path}:{name} to return a plmjax.experiment.Experiment, found {type(experiment).__name__}; "
            f"correct it."
        )
    return experiment
