"""The command that checks a machine or a slice before a run."""

import json
from typing import Annotated

from tyro.conf import OmitArgPrefixes, arg

from plmjax.commands.command_line import Location
from plmjax.errors import UNAVAILABLE
from plmjax.parallel import hosts as peers
from plmjax.parallel.hosts import JoinOptions


def selfcheck(
    output: Location | None = None,
    json_: Annotated[bool, arg(name="json")] = False,
    joining: OmitArgPrefixes[JoinOptions] = JoinOptions(),
) -> None:
    """Check the devices of this machine or slice before a run.

    Arithmetic, dropout, checkpoints and the input are checked, and the speed is compared with the plan. The exit code
    is 0 if every row passes or is skipped, 1 if a row differs or fails, 69 if a bucket or another service did not
    answer. A row that is slower than planned is shown, and does not fail. On several hosts, run the same command on
    each of them, as with pretrain.

    Args:
        output: File to write, with versions, devices, topology and every figure as JSON, to attach to a report. In a
            bucket, a checkpoint is written beside the file and removed again.
        json_: Print this JSON in place of the table.
    """
    peers.join(joining)
    from plmjax.selfcheck.selfcheck import selfcheck as run

    made = run(output, (lambda line: None) if json_ else print)
    if json_:
        print(json.dumps(made.to_dict()))
    if made.verdict != "passed":
        raise SystemExit(1 if made.wrong else UNAVAILABLE)
