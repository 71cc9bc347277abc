"""The selfcheck: all checks in order. An exception fails only the check that raises it."""

import contextlib
import functools
import importlib.metadata
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from plmjax import libraries
from plmjax.errors import Explained, Unavailable
from plmjax.experiment import Hosts
from plmjax.files import storage
from plmjax.parallel import hosts
from plmjax.selfcheck import arithmetic, saving, speed
from plmjax.selfcheck.ground import Ground, slice_name
from plmjax.selfcheck.verdicts import FAILED, SKIPPED, UNAVAILABLE, WORST_FIRST, Found, Report, Row, Skipped, line

LIBRARIES = ("jax", "jaxlib", "libtpu", "flax", "optax", "orbax-checkpoint", "numpy", "tensorflow")
STALL_MINUTES = 30.0
"""Minutes that one check may take before all hosts stop; a plan on host 0 takes up to ten."""
SENTENCE = 500
"""Maximum number of bytes of a sentence that the hosts exchange."""
Check = Callable[[Ground], Found]


def checks() -> dict[str, Check]:
    """Return a dict from name to check, in order."""
    record = speed.Measured()
    return {
        "products": arithmetic.products,
        "rings": arithmetic.rings,
        "kernel shifted_product": arithmetic.kernel,
        **{f"dropout {name}": functools.partial(arithmetic.dropout_check, name) for name in ("threefry2x32", "rbg")},
        "checkpoint": saving.restore,
        "another mesh": saving.on_another_mesh,
        "step": lambda ground: speed.step(ground, record(ground)),
        "feed": lambda ground: speed.input_rate(ground, record(ground)),
    }


def selfcheck(output: Path | None = None, report: Callable[[str], None] = lambda line: None) -> Report:
    """Run every check on all devices, and return the report. Every host must call this.

    output: file that host 0 writes after each check; in a bucket, checkpoints are written beside it too.
    report: function that host 0 calls with each line of the table.
    """
    made, rows = Report(machine()), checks()
    width, show = max(map(len, rows)), report if hosts.is_primary() else lambda line: None
    with hosts.watch_for_stalls(Hosts(stall_minutes=STALL_MINUTES)), _folder(output) as folder:
        ground = Ground(jax.devices(), folder)
        for name, check in rows.items():
            hosts.report_progress(f"checking {name}")
            begin = time.perf_counter()
            found = _agree(_outcome(check, ground))
            made.rows.append(Row(name, found, time.perf_counter() - begin))
            made.finished = len(made.rows) == len(rows)
            show(line(made.rows[-1], width))
            if output is not None and hosts.is_primary():
                made.write(output)
        show(made.summary())
        hosts.agree("the end of the selfcheck")
    return made


def _outcome(check: Check, ground: Ground) -> Found:
    try:
        return check(ground)
    except Skipped as reason:
        return Found(SKIPPED, str(reason))
    except Exception as error:
        error = storage.explain(error) or error
        if isinstance(error, Unavailable):
            return Found(UNAVAILABLE, str(error))
        if isinstance(error, Explained):
            return Found(FAILED, str(error))
        first = next((text.strip() for text in str(error).splitlines() if text.strip()), "")
        return Found(FAILED, f"{type(error).__name__}: {first}")


def _agree(found: Found) -> Found:
    """Return the worst result of all hosts; the own result if it is as bad."""
    if jax.process_count() == 1:
        return found
    told = np.zeros(SENTENCE, np.uint8)
    text = found.sentence.encode()[:SENTENCE]
    told[: len(text)] = np.frombuffer(text, np.uint8)
    ranks = hosts.all_gather(np.asarray(WORST_FIRST.index(found.verdict), np.int32))
    sentences = hosts.all_gather(told)
    worst = int(np.argmin(ranks))
    verdict = WORST_FIRST[int(ranks[worst])]
    if verdict == found.verdict:
        return found
    sentence = sentences[worst].tobytes().rstrip(b"\0").decode("utf-8", "replace")
    return Found(verdict, f"{sentence} (process {worst}; {found.verdict} here)", found.figures)


@contextlib.contextmanager
def _folder(output: Path | None) -> Iterator[Path | None]:
    """Yield an empty folder for checkpoints that all hosts see; None if several hosts share none."""
    if output is not None and storage.in_bucket(output):
        folder = output.parent / f"{output.stem}-checkpoint"
    elif jax.process_count() == 1:
        with tempfile.TemporaryDirectory(prefix="plmjax-selfcheck-") as made:
            yield Path(made)
        return
    else:
        yield None
        return

    def clear() -> None:
        with hosts.host_0_first("the folder of the selfcheck"):
            if hosts.is_primary():
                storage.remove(folder)

    clear()
    yield folder
    clear()


def machine() -> dict[str, Any]:
    """Return the versions and the devices, for a report."""
    devices = jax.devices()
    versions = {}
    for name in LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {
        "plmjax": libraries.VERSION,
        "python": platform.python_version(),
        "libraries": versions,
        "system": platform.platform(),
        "platform": devices[0].platform,
        "device": devices[0].device_kind,
        "devices": len(devices),
        "hosts": jax.process_count(),
        "topology": slice_name(devices),
        "coordinates": [list(getattr(device, "coords", ())) for device in devices],
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
