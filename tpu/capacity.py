"""The terms on which slices are requested: tier, time limits, labels, disks. They are checked before any request.

Terms and their names in the API: docs.cloud.google.com/tpu/docs/queued-resources and /consumption-options.
"""

import dataclasses
import datetime
import re
from collections.abc import Sequence

from plmjax.errors import UserError

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(?:\d+[dhms])+")
_LABEL = re.compile(r"(?P<key>[a-z][-_a-z0-9]{0,62})=(?P<value>[-_a-z0-9]{0,63})")
_DISK = re.compile(r"(?:projects/(?P<project>[^/:]+)/zones/(?P<zone>[^/:]+)/disks/)?(?P<name>[a-z][-a-z0-9]{0,62})")
_RESERVATION = re.compile(r"(projects|folders|organizations)/[^/]+/locations/[^/]+/reservations/[^/]+|[a-zA-Z0-9-]+")
ANY_RESERVATION = "-"
"""Name that stands for any reservation of the project in the API."""
LONGEST_FLEX_START = 7 * 86400
"""Seconds; docs.cloud.google.com/tpu/docs/request-using-flex-start."""
MODES = {"read-only": "READ_ONLY", "read-write": "READ_WRITE"}
"""Mode of a disk -> its name in the API."""


def seconds(option: str, text: str) -> int:
    """Return the seconds of a duration such as 90m, 24h or 1d12h.

    Raises:
        UserError: the text has another form. The message names `option`.
    """
    total = sum(int(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+)([dhms])", text))
    if not _DURATION.fullmatch(text) or not total:
        raise UserError(f"Expected a duration such as 90m, 24h or 1d12h for {option}, found {text!r}; correct it.")
    return total


def until(text: str) -> datetime.timedelta | datetime.datetime:
    """Return the value of --valid_until: a duration such as 24h, or a time in ISO 8601 with its time zone.

    Raises:
        UserError: the text has another form, or the time has passed.
    """
    if not re.match(r"\d{4}-", text):
        return datetime.timedelta(seconds=seconds("--valid_until", text))
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise UserError(
            f"Expected a duration such as 24h, or a time such as 2027-01-31T18:00:00Z, for --valid_until, found "
            f"{text!r}; correct it."
        )
    if moment <= datetime.datetime.now(datetime.UTC):
        raise UserError(f"Expected --valid_until in the future, found {text}, which has passed; name a later time.")
    return moment


def labels(given: Sequence[str]) -> dict[str, str]:
    """Return the labels of texts KEY=VALUE as a dict.

    Raises:
        UserError: a text that is not a label of Cloud, a key that is given twice, or the reserved key plmjax-job.
    """
    found: dict[str, str] = {}
    for text in given:
        label = _LABEL.fullmatch(text)
        if not label or label["key"] in ("plmjax-job", *found):
            raise UserError(
                f"Expected --label KEY=VALUE of a to z, 0 to 9, - and _, each key once and none plmjax-job, found "
                f"{text!r}; correct it."
            )
        found[label["key"]] = label["value"]
    return found


@dataclasses.dataclass(frozen=True)
class Disk:
    """A persistent disk that exists."""

    name: str
    mode: str
    """read-only or read-write."""
    project: str = ""
    """Project of the disk; empty for the job's project."""
    zone: str = ""

    @classmethod
    def parse(cls, text: str) -> "Disk":
        """Return the disk of a text DISK or DISK:MODE, where DISK is a name or projects/P/zones/Z/disks/NAME.

        It is attached read-only by default, because only a single host can write to a disk.

        Raises:
            UserError: the text has another form.
        """
        name, colon, mode = text.partition(":")
        disk = _DISK.fullmatch(name)
        if not disk or (colon and mode not in MODES):
            raise UserError(
                f"Expected --data_disk NAME, or NAME:read-write, found {text!r}; name a persistent disk of the zone."
            )
        return cls(disk["name"], mode or "read-only", disk["project"] or "", disk["zone"] or "")

    @property
    def folder(self) -> str:
        """Folder at which the hosts mount the disk."""
        return f"/mnt/disks/{self.name}"

    def source(self, project: str, zone: str) -> str:
        """Return the full name of the disk for a slice in `zone`."""
        return f"projects/{self.project or project}/zones/{self.zone or zone}/disks/{self.name}"


def reservation(name: str, project: str, zone: str) -> str:
    """Return the full name of a reservation; empty for none."""
    if not name or "/" in name:
        return name
    return f"projects/{project}/locations/{zone}/reservations/{name}"


def check(
    *,
    spot: bool,
    reserved: bool,
    reservation: str,
    flex_start: bool,
    max_run_duration: str,
    valid_until: str,
    label: Sequence[str],
    data_disk: Sequence[str],
    zones: Sequence[str],
    hosts: int,
) -> None:
    """Raise UserError for terms that contradict each other, or that Cloud does not take."""
    tiers = {"--spot": spot, "--reserved": reserved, "--reservation": reservation, "--flex_start": flex_start}
    chosen = [option for option, given in tiers.items() if given]
    if len(chosen) > 1:
        raise UserError(
            f"Expected at most one of {', '.join(tiers)}, found {' and '.join(chosen)}; leave out all but one."
        )
    if reservation and (reservation == ANY_RESERVATION or not _RESERVATION.fullmatch(reservation)):
        raise UserError(
            f"Expected the name of a reservation for --reservation, found {reservation!r}; correct it, or give "
            f"--reserved for whatever is reserved for the project."
        )
    if flex_start != bool(max_run_duration):
        raise UserError(
            "Expected --flex_start and --max_run_duration together, found "
            f"{'--flex_start' if flex_start else '--max_run_duration'} alone; give both, such as --max_run_duration "
            "24h, or neither."
        )
    if flex_start and seconds("--max_run_duration", max_run_duration) > LONGEST_FLEX_START:
        raise UserError(
            f"Expected --max_run_duration of at most 7d, the longest of --flex_start, found {max_run_duration}; lower "
            f"it, and the run resumes on the next slice."
        )
    if valid_until:
        until(valid_until)
    labels(label)
    for disk in map(Disk.parse, data_disk):
        if disk.mode == "read-write" and hosts > 1:
            raise UserError(
                f"Expected --data_disk {disk.name} read-only on a slice of {hosts} hosts, found read-write, which "
                f"only a slice of one host can have; leave out :read-write."
            )
        if disk.zone and {disk.zone} != {*zones}:
            raise UserError(
                f"Expected the disk {disk.name} in the slice's zone, {' or '.join(zones)}, found it in {disk.zone}; "
                f"name a disk of the zone, or give --zone {disk.zone} alone."
            )
