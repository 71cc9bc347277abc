"""The decisions of host 0's guard from its messages, without a socket or a clock."""

import json

import pytest

from plmjax.errors import SAVED, UNAVAILABLE
from plmjax.parallel.host_registry import HostRegistry


class Run(HostRegistry):
    """A registry of `count` hosts and the messages that it has sent to each."""

    def __init__(self, count: int, joined: int | None = None) -> None:
        self.said: dict[int, list[dict]] = {host: [] for host in range(count)}
        super().__init__(count, lambda host, message: self.said[host].append(message), now=0.0, join_seconds=30)
        for host in range(count if joined is None else joined):
            assert self.join(host, count, f"t1v-{host}", 0.0) == ""

    def beat(
        self, host: int, now: float, *, count: int = 1, doing: str = "computing step 1", limit: float = 600
    ) -> None:
        limits = {"silent_seconds": 60, "limit_seconds": limit}
        self.handle(host, {"beat": {"count": count, "doing": doing} | limits}, now)


def test_hosts_that_do_not_come_are_named_to_those_that_did():
    run = Run(4, joined=2)
    run.tick(30.0)
    assert run.stopped is None
    run.tick(30.5)
    assert "Expected 4 hosts within 30 s, found none for 2, 3;" in run.stopped["sentence"]
    assert run.said[0] == run.said[1] == [run.stopped] and not run.said[2]


def test_a_host_that_does_not_belong_is_refused_and_disturbs_nobody():
    run = Run(2, joined=1)
    for host, count, why in ((1, 3, "host 1 of 3"), (2, 2, "host 2 of 2"), (0, 2, "a host 0")):
        assert why in run.join(host, count, "t1v", 1.0)
        assert run.stopped is None and not run.complete
    assert run.join(1, 2, "t1v", 29.0) == "" and run.complete  # late, but not too late


def test_a_host_that_dies_is_named_at_once_and_one_that_has_ended_is_not_waited_for():
    """Neither for its connection nor for its beats and its progress."""
    run = Run(3)
    for host in range(3):
        run.beat(host, 0.0)
    run.handle(2, {"ended": 0, "sentence": ""}, 5.0)
    run.lose(2)
    for now in range(30, 1800, 30):
        for host in (0, 1):
            run.beat(host, now, count=now)
        run.tick(now)
    assert run.stopped is None
    run.lose(1)
    assert "Host 1 (worker 1, t1v-1) of 3 is gone" in run.stopped["sentence"]
    assert run.stopped["stop"] == UNAVAILABLE and all(said[-1] == run.stopped for said in run.said.values())


def test_a_silent_host_is_named_after_its_seconds():
    run = Run(2)
    for host in (0, 1):
        run.beat(host, 0.0)
    run.beat(0, 60.0)
    run.tick(60.0)
    assert run.stopped is None
    run.tick(60.5)
    assert "Host 1 (worker 1, t1v-1) of 2 has not been heard from for 60 s" in run.stopped["sentence"]
    assert run.stopped["stacks"]


@pytest.mark.parametrize(("limit", "seconds"), [(600, 600), (3600, 3600), (0, None)])
def test_a_stall_names_the_host_that_is_behind_after_the_longest_limit(limit, seconds):
    """A host that works without a limit, such as on its text, may take as long as it needs."""
    run = Run(2)
    for now in range(0, 7200, 30):
        run.beat(0, now, count=7, doing="computing step 3")
        run.beat(1, now, count=6, doing="restoring", limit=limit)
        run.tick(now)
        assert (run.stopped is not None) == (seconds is not None and now > seconds)
    if seconds:
        assert "host 1 (worker 1, t1v-1) (restoring)" in run.stopped["sentence"]
        assert "host 0" not in run.stopped["sentence"] and run.stopped["stacks"]


def test_as_long_as_one_host_makes_progress_there_is_no_stall():
    """Whoever waits for it in a collective cannot: its own count stands still."""
    run = Run(2)
    for now in range(0, 1800, 30):
        run.beat(0, now, count=7)
        run.beat(1, now, count=now // 300)
        run.tick(now)
    assert run.stopped is None


def test_a_barrier_lets_all_hosts_pass_or_says_that_one_does_not_come():
    run = Run(3)
    for host in (0, 2, 1):
        assert not any(run.said.values())
        run.handle(host, {"meet": "save 4"}, 1.0)
    assert all(said == [{"met": "save 4", "all": True}] for said in run.said.values())
    for host in (0, 1):
        run.handle(host, {"meet": "save 6"}, 2.0)
    run.handle(2, {"abandon": "save"}, 3.0)
    run.handle(1, {"meet": "save 6 done"}, 4.0)  # one that comes later need not wait
    assert run.said[0][1:] == [{"met": "save 6", "all": False}]
    assert run.said[1][1:] == [{"met": name, "all": False} for name in ("save 6", "save 6 done")]
    assert len(run.said[2]) == 1
    run.handle(0, {"meet": "load"}, 5.0)
    assert len(run.said[0]) == 2 and run.stopped is None


def test_hosts_go_on_when_all_of_them_agree():
    run = Run(4)
    for host in (2, 0, 3):
        run.handle(host, {"agree": "the data", "value": "abc"}, 1.0)
        assert not any(run.said.values())
    run.handle(1, {"agree": "the data", "value": "abc"}, 2.0)
    assert all(said == [{"agreed": "the data"}] for said in run.said.values())
    for host, value in enumerate(("abc", "abc", "abc", "abd")):  # once more: the others are waited for again
        assert run.stopped is None
        run.handle(host, {"agree": "the data", "value": value}, 3.0)
    assert "abd on host 3 and abc on host 0" in run.stopped["sentence"]
    assert all(said == [{"agreed": "the data"}, run.stopped] for said in run.said.values())


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"training.seed": 3, "a": 1}, "training.seed = 3 on host 1 and 0 on host 0"),
        ({"training.seed": 0, "a": 1, "b": None}, "b = None on host 1 and absent on host 0"),
        ({"training.seed": 0, "a": 1.0}, "a = 1.0 on host 1 and 1 on host 0"),
        ({"a": 1, "training.seed": 0}, '{"a": 1, "training.seed": 0} on host 1 and {"training.seed": 0, "a": 1} on'),
    ],
)
def test_another_experiment_is_named_with_its_host_and_field(other, named):
    run = Run(2)
    for host, value in enumerate(({"training.seed": 0, "a": 1}, other)):
        run.handle(host, {"agree": "the experiment", "value": json.dumps(value)}, 1.0)
    assert named in run.stopped["sentence"] and run.stopped["stop"] == 2  # the same command would fail again


@pytest.mark.parametrize(("ended", "code"), [(2, 2), (-9, UNAVAILABLE), (SAVED, SAVED)])
def test_a_host_that_fails_tells_the_others_why(ended, code):
    """So does one that was stopped before there was anything to save; where all save, each ends by itself."""
    run, together = Run(2), Run(2)
    run.handle(1, {"ended": ended, "sentence": "no text.", "alone": ended == SAVED}, 1.0)
    assert run.said[0] == [{"stop": code, "sentence": "Host 1 (worker 1, t1v-1) stopped: no text.", "stacks": False}]
    together.handle(1, {"ended": SAVED, "sentence": "", "alone": False}, 1.0)
    together.lose(1)
    assert together.stopped is None
