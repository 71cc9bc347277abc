"""Notices of preemption and maintenance to a machine of Compute Engine, from its metadata server.

`instance/preempted` becomes TRUE when a spot machine is about to end. `instance/maintenance-event` has another value
than NONE before the maintenance of its host.
docs.cloud.google.com/compute/docs/metadata/getting-live-migration-notice, .../compute/docs/instances/preemptible.
"""

import http.client
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Callable

from plmjax.parallel.slice_hosts import METADATA

EVERY = 5.0
"""Seconds between two polls. A preempted machine ends 30 seconds after its notice."""
SECONDS = 3.0
"""Timeout of one request."""
TRIES = 12
"""Number of first polls without any answer after which the metadata server counts as missing."""


class Notices(threading.Thread):
    """Thread that polls the metadata server for notices.

    Args:
        preempted: function that is called once, when the machine is preempted; the thread then ends.
        maintained: function that is called with each maintenance event when it is announced.
        missing: function that is called if no metadata server answers the first polls; the thread then ends.
    """

    def __init__(
        self,
        preempted: Callable[[], None],
        maintained: Callable[[str], None],
        missing: Callable[[], None],
        every: float | None = None,
    ) -> None:
        super().__init__(name="notices", daemon=True)
        self._preempted, self._maintained, self._missing = preempted, maintained, missing
        self._every = EVERY if every is None else every
        self._ended = threading.Event()
        self._direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def run(self) -> None:
        """Poll until the machine is preempted, the metadata server is missing, or `end` is called."""
        event, answered, tries = "NONE", False, 0
        while not self._ended.is_set():
            try:
                if self._read("preempted") == "TRUE":
                    self._preempted()
                    return
                found = self._read("maintenance-event") or event
                if found not in (event, "NONE"):
                    self._maintained(found)
                event, answered = found, True
            except (OSError, http.client.HTTPException):
                tries += 1
                if not answered and tries == TRIES:
                    self._missing()
                    return
            self._ended.wait(self._every)

    def end(self) -> None:
        """Tell the thread to end, without waiting for it."""
        self._ended.set()

    def _read(self, name: str) -> str:
        """Return a value of the machine; empty if the server has no such value, or refuses it now.

        Raises:
            OSError, http.client.HTTPException: there is no answer.
        """
        host = os.environ.get("GCE_METADATA_HOST") or os.environ.get("GCE_METADATA_IP") or METADATA
        address = f"http://{host}/computeMetadata/v1/instance/{name}"
        request = urllib.request.Request(address, headers={"Metadata-Flavor": "Google"})
        try:
            with self._direct.open(request, timeout=SECONDS) as answer:
                return answer.read().decode().strip()
        except urllib.error.HTTPError:
            return ""
