"""Orbax's manager of a run's checkpoints: reopened after a failure, and synchronized with the other hosts.

After a failed save, Orbax's list of checkpoints includes the failed one, and lacks the checkpoints that it would have
replaced. A new manager reads the folder again. Its barriers have new names, so that no host waits at a barrier of the
failed save.
"""

import contextlib
import dataclasses
import logging
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from plmjax.errors import WEATHER, Explained, Unavailable, UserError
from plmjax.files import storage
from plmjax.parallel import hosts
from plmjax.training.checkpoints import items
from plmjax.training.checkpoints.best import Best


@dataclasses.dataclass
class Retention:
    """The checkpoints to keep: the newest, the best, and the newest `keep` at steps that are multiples of `every`.

    `keep` 0 keeps all at multiples of `every`; `every` 0 keeps none of them.
    """

    every: int
    keep: int
    best: Best

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> Sequence[bool]:
        """Return whether to keep each checkpoint, in the order of steps (called by Orbax)."""
        regular = [info.step for info in checkpoints if self.every and info.step % self.every == 0]
        kept = set(regular[-self.keep :] if self.keep else regular)
        kept.add(max(info.step for info in checkpoints))
        kept.add(self.best.step({info.step: info.metrics for info in checkpoints}))
        return [info.step in kept for info in checkpoints]


class Manager:
    """The saves of one run.

    Args:
        item_names: names of the items of a checkpoint.

    Attributes:
        finished: step of the newest checkpoint that is known to be finished, or None.
    """

    def __init__(self, directory: Path, policy: Retention, item_names: Sequence[str]) -> None:
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # it logs a traceback of every save that fails
        # Orbax drops the coroutines that a failed save has not started.
        warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
        if not isinstance(sys.unraisablehook, _WithoutLateWrites):
            sys.unraisablehook = _WithoutLateWrites(sys.unraisablehook)
        self._directory, self._policy, self._item_names = directory, policy, tuple(item_names)
        self._saving, self._opened = -1, 0
        with items.explain_checkpoint_errors(directory):
            self._orbax: ocp.CheckpointManager | None = self._open()
            self.finished: int | None = self._orbax.latest_step()

    def start(self, step: int, arguments: ocp.args.Composite, metrics: dict[str, float] | None) -> None:
        """Start to save a checkpoint, unless there is one of this step. Before it returns, the arrays are on the host.

        Raises:
            Explained: it cannot start.
        """
        try:
            with explain_failures(self._directory):
                self._orbax = self._orbax or self._open()
                if step in self._orbax.all_steps():
                    return
                self._saving = step
                self._orbax.save(step, args=arguments, metrics=metrics)
        except Explained:
            self._orbax = None
            raise

    def wait(self) -> None:
        """Wait until every save is finished, on all hosts.

        Raises:
            Explained: a save failed, on this host or on another one.
        """
        if self._orbax is None:
            return
        try:
            self.on_all_hosts(self._orbax.wait_until_finished)
            self.finished = self._saving if self._saving >= 0 else self.finished
        except Explained:
            self._orbax = None
            raise

    def on_all_hosts(self, work: Callable[[], None]) -> None:
        """Call `work` on this host; if it fails on any host, raise an error on every host."""
        failure: Explained | None = None
        try:
            with explain_failures(self._directory):
                work()
        except Explained as error:
            failure = error
        if jax.process_count() > 1 and hosts.all_gather(np.array(failure is not None)).any() and failure is None:
            failure = Unavailable(f"Expected all hosts to save in {self._directory}, found that another one could not.")
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Wait for a save that is in progress, and close the folder.

        Raises:
            Explained: the save failed.
        """
        if self._orbax is not None:
            with explain_failures(self._directory):
                self._orbax.close()

    def _open(self) -> ocp.CheckpointManager:
        self._opened += 1
        prefix = f"manager {self._opened}"

        def barrier(*, key: str, timeout_ms: int) -> None:
            # The thread that finishes a save is handling an error, so this host does not come to its barriers. The
            # other hosts need not wait until `timeout_ms`.
            if sys.exception() is not None and threading.current_thread() is not threading.main_thread():
                hosts.abandon(prefix)
            elif not hosts.meet(key):
                raise Unavailable(
                    f"Expected every host to write its part of a checkpoint to {self._directory}, found that another "
                    f"one could not."
                )

        return ocp.CheckpointManager(
            self._directory,
            options=ocp.CheckpointManagerOptions(
                preservation_policy=self._policy,
                cleanup_tmp_directories=True,
                # Without it Orbax saves no metrics, and a resumed run would not find the best checkpoint.
                best_fn=self._policy.best.score if self._policy.best.name else None,
                enable_async_checkpointing=True,
                async_options=ocp.options.AsyncOptions(
                    post_finalization_callback=self._before_renaming,
                    # Processes that plmjax has not joined have no guards. They use Orbax's own barrier.
                    barrier_sync_fn=barrier if hosts.are_guarded() else None,
                ),
                multiprocessing_options=ocp.options.MultiprocessingOptions(barrier_sync_key_prefix=prefix),
            ),
            item_names=self._item_names,
        )

    def _before_renaming(self) -> None:
        if storage.in_bucket(
            self._directory
        ):  # A bucket cannot rename: a last object marks the checkpoint as complete.
            items.write_manifest(self._directory / str(self._saving))
            return
        (directory,) = self._directory.glob(f"{self._saving}.orbax-checkpoint-tmp*")
        items.write_manifest(directory)


@contextlib.contextmanager
def explain_failures(directory: Path) -> Iterator[None]:
    """Turn an error of a save in a folder of checkpoints into one sentence."""
    try:
        yield
    except Exception as error:
        raise _save_error(directory, error) from error


def _save_error(directory: Path, error: Exception) -> Explained:
    explained = storage.explain(error)
    if isinstance(explained, Unavailable) or isinstance(error, Unavailable):
        return explained or error
    if isinstance(error, RuntimeError) and WEATHER.match(str(error)):
        return Unavailable(
            f"Expected to write a checkpoint to {directory}, found: {items.first_line(error)}; run the same "
            f"command again."
        )
    try:  # Orbax's own list omits checkpoints that it would remove after this save
        kept = ", ".join(map(str, storage.finished_steps(directory))) or "none"
    except Exception:
        kept = "not known"
    return UserError(
        f"Expected to write a checkpoint to {directory}, found: {items.first_line(error)}; free some space, "
        f"allow writing there or name another --workdir, then run again to continue from a finished one (steps: "
        f"{kept})."
    )


@dataclasses.dataclass(frozen=True)
class _WithoutLateWrites:
    """A hook for errors in threads that ignores writes which end after a save has failed.

    Orbax closes its event loop at the first array that cannot be written. The threads of tensorstore, which still write
    other arrays, then find the loop closed. `save` and `wait` raise the original error.
    """

    report: Callable[[Any], None]

    def __call__(self, unraisable: Any) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            self.report(unraisable)
