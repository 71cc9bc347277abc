"""The state of the hosts of a run, kept by the guard of host 0: joined hosts, agreed values and lost hosts.

It contains state and time limits but no socket; `guard` sends the messages. A message is a JSON object with one of
these keys:

    agree   name, "value": a host has reached a point where all hosts must have the same value
    join    index, "hosts", "name": a host, the number of hosts, and the name of its machine
    beat    {"count", "doing", "silent_seconds", "limit_seconds"}: a trainer is alive; its progress and its time limits
    ended   exit code, "sentence", "alone": a trainer has ended, and whether only this trainer stops
    agreed  name: every host has the same value
    meet    name: a host has reached a barrier
    abandon prefix: a host does not come to the barriers whose names begin with the prefix
    met     name, "all": the barrier is over; whether every host has reached it, or one does not come
    start   address of JAX's coordinator: every host has joined
    stop    exit code, "sentence", "stacks": the run is over, the reason, and whether to print stacks
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from plmjax.errors import MISTAKE, SAVED, UNAVAILABLE
from plmjax.files import json_text

Message = dict[str, Any]


@dataclasses.dataclass
class Host:
    """The state of one host according to its messages.

    last_message: time of the last message. beat: the last beat. progressed: time at which the beat's count last
    changed. ended: exit code of the trainer. Times are seconds of one monotonic clock.
    """

    name: str
    last_message: float
    beat: dict[str, Any] = dataclasses.field(default_factory=dict)
    progressed: float = 0.0
    ended: int | None = None


class HostRegistry:
    """The state of all hosts of one run.

    send: function that is called with (host, message) for every message to a host's guard.
    """

    def __init__(self, count: int, send: Callable[[int, Message], None], now: float, join_seconds: float) -> None:
        self.count, self.send = count, send
        self.hosts: dict[int, Host] = {}
        self.stopped: Message | None = None
        self._values: dict[str, dict[int, str]] = {}
        self._waiting: dict[str, set[int]] = {}
        self._abandoned: tuple[str, ...] = ()
        self._deadline, self._join_seconds = now + join_seconds, join_seconds

    @property
    def complete(self) -> bool:
        """Return whether every host has joined."""
        return len(self.hosts) == self.count

    def describe(self, host: int) -> str:
        """Return the index of a host, which is its worker number on a TPU slice, and the name of its machine."""
        return f"host {host} (worker {host}, {self.hosts[host].name})"

    def join(self, host: int, count: int, name: str, now: float) -> str:
        """Add a host on the machine `name`. Return the reason if the host is refused, else an empty string."""
        if count != self.count or not 0 <= host < self.count:
            return f"host 0 waits for hosts 0 to {self.count - 1}, found host {host} of {count}"
        if host in self.hosts:
            return f"there is a host {host} of this run already"
        self.hosts[host] = Host(name, last_message=now)
        return ""

    def handle(self, host: int, message: Message, now: float) -> None:
        """Handle a message of a host's guard."""
        member = self.hosts[host]
        member.last_message = now
        if "beat" in message:
            if message["beat"].get("count") != member.beat.get("count"):
                member.progressed = now
            member.beat = message["beat"]
        elif "agree" in message:
            self._agree(host, message["agree"], message["value"])
        elif "meet" in message:
            self._waiting.setdefault(message["meet"], set()).add(host)
            self._release()
        elif "abandon" in message:
            self._abandoned = (*self._abandoned, message["abandon"])
            self._release()
        elif "ended" in message:
            member.ended = message["ended"]
            if member.ended not in (0, SAVED) or message.get("alone"):
                code = member.ended if member.ended > 0 else UNAVAILABLE
                self.stop(f"{_capital(self.describe(host))} stopped: {message['sentence']}", code)

    def lose(self, host: int) -> None:
        """Handle a closed connection of a host."""
        if self.hosts[host].ended is None:
            self.stop(
                f"{_capital(self.describe(host))} of {self.count} is gone (its connection closed); run the same "
                f"command on every host again to continue from the last checkpoint."
            )

    def tick(self, now: float) -> None:
        """Check for hosts that have not joined, are silent, or make no progress."""
        if not self.complete:
            if now > self._deadline:
                missing = ", ".join(str(host) for host in range(self.count) if host not in self.hosts)
                self.stop(
                    f"Expected {self.count} hosts within {self._join_seconds:g} s, found none for "
                    f"{missing}; start the same command there as well, or give --join_seconds more."
                )
            return
        running = {index: host for index, host in self.hosts.items() if host.ended is None and host.beat}
        for index, host in running.items():
            if now - host.last_message > host.beat["silent_seconds"]:
                self.stop(
                    f"{_capital(self.describe(index))} of {self.count} has not been heard from for "
                    f"{host.beat['silent_seconds']:g} s: it is dead, hangs or is disconnected; run the same command on "
                    f"every host again to continue from the last checkpoint.",
                    stacks=True,
                )
        limits = [host.beat["limit_seconds"] for host in running.values()]
        if limits and all(limits):
            limit, since = max(limits), max(host.progressed for host in running.values())
            if now - since > limit:
                least = min(host.beat["count"] for host in running.values())
                behind = [
                    f"{self.describe(i)} ({h.beat['doing']})" for i, h in running.items() if h.beat["count"] == least
                ]
                self.stop(
                    f"No host has made progress for {limit:g} s, and the one that is behind is {' or '.join(behind)}; "
                    f"its stacks show where; run the same command on every host again to continue from the last "
                    f"checkpoint.",
                    stacks=True,
                )

    def stop(self, sentence: str, code: int = UNAVAILABLE, stacks: bool = False) -> None:
        """End the run on every host; the first reason counts."""
        if self.stopped is None:
            self.stopped = {"stop": code, "sentence": sentence, "stacks": stacks}
            for host in self.hosts:
                self.send(host, self.stopped)

    def _release(self) -> None:
        """Release the hosts at barriers that are complete or abandoned."""
        for name, waiting in list(self._waiting.items()):
            complete = len(waiting) == self.count
            if complete or name.startswith(self._abandoned):
                del self._waiting[name]
                for host in waiting:
                    self.send(host, {"met": name, "all": complete})

    def _agree(self, host: int, name: str, value: str) -> None:
        values = self._values.setdefault(name, {})
        values[host] = value
        if len(values) < self.count:
            return
        del self._values[name]
        for other in range(1, self.count):
            if values[other] != values[0]:
                self.stop(
                    f"Expected {name} to be the same on every host, found "
                    f"{difference(values[0], values[other], other)}; start every host with the same command, files and "
                    f"version.",
                    code=MISTAKE,
                )
                return
        for other in range(self.count):
            self.send(other, {"agreed": name})


def difference(first: str, second: str, host: int) -> str:
    """Return the difference between host 0's value `first` and a host's value `second`, for a message.

    For two JSON objects it names the first key whose values differ. A missing key has the value "absent".
    """
    whole = f"{second} on host {host} and {first} on host 0"
    try:
        first_items, second_items = json_text.parse(first), json_text.parse(second)
        keys = sorted(first_items.keys() | second_items.keys())
    except (ValueError, AttributeError):
        return whole
    for key in keys:
        of_first, of_second = (str(items[key]) if key in items else "absent" for items in (first_items, second_items))
        if of_first != of_second:
            return f"{key} = {of_second} on host {host} and {of_first} on host 0"
    return whole


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
