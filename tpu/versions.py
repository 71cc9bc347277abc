"""Versions of libraries on the submitting machine, which the hosts of a slice install with the project.

Without them, each host would install the newest versions of the day on which it is set up or repaired.
"""

import collections
import importlib.metadata
import platform

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from plmjax.errors import UserError
from tpu.package import LIBRARY

FILE = f"{LIBRARY}/versions.txt"
"""Name in the packed project: a file of constraints for `pip install -c`."""
HOST = {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64", "os_name": "posix"}
"""Values of environment markers on a host. Requirements of other systems are ignored."""


def python() -> str:
    """Return the version of Python that the hosts should have, such as "3.12"."""
    return ".".join(platform.python_version_tuple()[:2])


def constraints() -> str:
    """Return the contents of FILE: the versions installed here of all requirements of `plmjax[tpu]` on a host.

    Libraries that are not installed here, or not from a registry (an installation from a folder or a repository, a
    version with a local part such as 1.0+cpu), are left to the host.

    Raises:
        UserError: plmjax is not installed here.
    """
    try:
        importlib.metadata.distribution("plmjax")
    except importlib.metadata.PackageNotFoundError:
        raise UserError(
            "Expected plmjax to be installed here, because the hosts install the versions of its libraries that are "
            "here, found it only as files; run pip install 'plmjax[tpu]', or pip install -e '.[tpu]' in a checkout."
        ) from None
    pins = [
        f"{name}=={found.version}"
        for name, found in sorted(_requirements(Requirement("plmjax[tpu]")).items())
        if found.read_text("direct_url.json") is None and Version(found.version).local is None
    ]
    return "\n".join([f"# The versions of the submitting machine, with Python {python()}.", *pins, ""])


def _requirements(root: Requirement) -> dict[str, importlib.metadata.Distribution]:
    """Return a dict from canonical name to distribution, for all installed (also indirect) requirements."""
    found: dict[str, importlib.metadata.Distribution] = {}
    extras: dict[str, set[str]] = collections.defaultdict(set)
    waiting = [root]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        new = {"", *requirement.extras} - extras[name]
        if not new:
            continue
        extras[name] |= new
        try:
            found[name] = importlib.metadata.distribution(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            continue
        for further in map(Requirement, found[name].requires or ()):
            if further.marker is None or any(further.marker.evaluate(HOST | {"extra": extra}) for extra in new):
                waiting.append(further)
    return found
