"""The commands that train, list experiments, measure a train step and average checkpoints."""

import shutil
from pathlib import Path
from typing import Annotated

from tyro.conf import OmitArgPrefixes, Positional, arg

from plmjax.commands.arguments import OF_ANOTHER_FILE, Overrides, Reference, Run, default, load_classes
from plmjax.commands.command_line import Location
from plmjax.errors import options_named
from plmjax.parallel import hosts as peers
from plmjax.parallel.hosts import JoinOptions


def experiments(
    words: Positional[Annotated[tuple[str, ...], arg(metavar="[WORD ...]", help_behavior_hint="(default: all)")]] = (),
) -> None:
    """List the experiments that plmjax comes with.

    Args:
        words: List only experiments with all of these words, or beginnings of words, in their name, title or system.
    """
    from plmjax.experiment import catalogue

    print(catalogue.page(words, shutil.get_terminal_size().columns))


def pretrain(
    experiment: Positional[Reference],
    *,
    workdir: Annotated[Location | None, default("runs/NAME")] = None,
    from_: Annotated[str, arg(name="from")] = "random",
    continue_from: Location | None = None,
    joining: OmitArgPrefixes[JoinOptions] = JoinOptions(),
    overrides: Overrides = (),
) -> None:
    """Pretrain an experiment; run again to resume.

    On several hosts, run the same command on each of them. The hosts of a TPU slice find each other; elsewhere set
    coordinator, hosts and host.

    Args:
        experiment: Name that plmjax experiments lists, or path/to/file.py[:FUNCTION]; --help after it has its options.
        workdir: Folder of the run. Several hosts must share it.
        from_: Run directory or checkpoint whose parameters, model and tokenizer a new run starts from, or random. A
            file of word vectors initializes the embedding table of a model of words.
        continue_from: Checkpoint of another run whose optimizer state, step and place in the text a new run keeps. Its
            options may differ, such as those of a decay of the learning rate.
    """
    peers.join(joining)
    from plmjax import experiment as experiments
    from plmjax.runs.pretraining import pretrain as run

    loaded, workdir = experiments.load(experiment), workdir or _workdir(experiment)
    with options_named(OF_ANOTHER_FILE):
        options = {"continue_from": continue_from, "overrides": overrides}
        run(loaded, workdir, from_, **options)


def finetune(
    experiment: Positional[Reference],
    from_: Annotated[str, arg(name="from")],
    *,
    workdir: Annotated[Location | None, default("runs/NAME")] = None,
    like: Location | None = None,
    seeds: tuple[int, ...] = (),
    joining: OmitArgPrefixes[JoinOptions] = JoinOptions(),
    overrides: Overrides = (),
) -> None:
    """Fine-tune a checkpoint on a task; run again to resume.

    On several hosts, run the same command on each of them, as with pretrain.

    Args:
        experiment: Name that plmjax experiments lists, or path/to/file.py[:FUNCTION]; --help after it has its options.
        from_: Run directory or checkpoint to start from, or random. A file of word vectors initializes the embedding
            table of a model of words.
        workdir: Folder of the run. Several hosts must share it.
        like: With --from random: run directory or checkpoint whose model and tokenizer are taken, but no parameters.
        seeds: Fine-tune once with each of these seeds, in WORKDIR/seed_N, and print the mean and deviation.
    """
    peers.join(joining)
    from plmjax import experiment as experiments
    from plmjax.runs import seeds as several
    from plmjax.runs.finetuning import finetune as run

    loaded, workdir = experiments.load(experiment), workdir or _workdir(experiment)
    options = {"like": like, "overrides": overrides}
    with options_named(OF_ANOTHER_FILE):
        if seeds:
            print(several.table(several.finetune_seeds(loaded, from_, workdir, seeds, **options)))
            return
        metrics = run(loaded, from_, workdir, **options)
    shown = (f"{name} {value if isinstance(value, int) else format(value, '.4f')}" for name, value in metrics.items())
    print("  ".join(shown))


def _workdir(experiment: str) -> Path:
    """Return the default folder of a run."""
    return Path("runs") / Path(experiment.partition(":")[0]).stem


def bench(
    experiment: Positional[Reference],
    json_: Annotated[bool, arg(name="json")] = False,
    measured_steps: int = 10,
    overrides: Overrides = (),
) -> None:
    """Measure the train step on this machine.

    Speeds are shown as numbers, and relative to the machine's own rate of matrix products.

    Args:
        experiment: Name that plmjax experiments lists, or path/to/file.py[:FUNCTION]; --help after it has its options.
        json_: Print JSON.
        measured_steps: Number of steps to measure, after two warm-up steps.
    """
    from plmjax import experiment as experiments
    from plmjax.runs import checks
    from plmjax.runs.bench import bench as run
    from plmjax.runs.resolve import resolve
    from plmjax.training.metrics import compact, to_json

    loaded = experiments.load(experiment)
    checks.kind(loaded, text=True)
    resolved = resolve(loaded, overrides=overrides)
    for record in run(resolved.experiment, measured_steps):
        if json_:
            print(to_json(record))
            continue
        for name, value in record.items():
            if value is not None:  # a CPU has no data sheet for an MFU
                print(f"{name:<24} {compact(value) if isinstance(value, float) else value}")


def average(
    run: Positional[Run],
    output: Location,
    last: int = 5,
    best: int = 0,
    *,
    experiment: Reference | None = None,
) -> None:
    """Average a run's last or best checkpoints.

    Args:
        run: Run directory.
        output: Run directory to write, with one checkpoint.
        last: Number of its last checkpoints to average; the run must have kept as many (--checkpoint.keep).
        best: Number of further checkpoints to average, the best ones by the run's --checkpoint.best; 0 averages none.
        experiment: Experiment file that defines classes which the checkpoint uses.
    """
    load_classes(experiment)
    from plmjax.training.checkpoints.averaging import average as run_average

    steps = run_average(run, output, last, best)
    print(f"averaged  the parameters of steps {', '.join(f'{step:,}' for step in steps)} in {output}")
