"""The commands that show runs on a page, and describe a run in a model card."""

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from plmjax.commands.arguments import Reference, Run, default, load_classes
from plmjax.commands.command_line import Location


def report(
    workdirs: Positional[Annotated[tuple[Location, ...], arg(metavar="RUN ...", help_behavior_hint="(one or more)")]],
    *,
    output: Location = Path("report.html"),
    curve: Location | None = None,
    words: tuple[str, ...] = (),
    against: tuple[str, ...] = (),
    experiment: Reference | None = None,
):
    """Write one HTML page with the curves of one or more runs.

    Args:
        workdirs: Run directories.
        output: Page to write.
        curve: Picture of the loss curve to write as well (.png, .svg or .pdf).
        words: Words whose vectors to plot, by the two principal components of their directions in each run.
        against: Published figures to show beside the runs: files, or names of those that plmjax comes with
            (docs/results.md).
        experiment: Experiment file that defines classes which the checkpoint uses.
    """
    load_classes(experiment)
    from plmjax.report.page import report as run

    places = []
    if words:
        from plmjax.inference.word_vector_plane import plane
        from plmjax.interop.word_vectors import read

        places = [dict(zip(words, plane(read(workdir), words), strict=True)) for workdir in workdirs]
    run(workdirs, output, curve=curve, places=places, against=against)
    print(output)


def card(
    workdir: Positional[Run],
    output: Positional[Annotated[Location | None, arg(metavar="[FOLDER]"), default("the run")]] = None,
    experiment: Reference | None = None,
) -> None:
    """Write the model card of a run for the Hugging Face Hub.

    Args:
        workdir: Run directory.
        output: Folder for README.md, such as that of an export to upload, or a file.
        experiment: Experiment file that defines classes which the run uses.
    """
    load_classes(experiment)
    from plmjax.report import model_card

    print(model_card.write(workdir, workdir if output is None else output))
