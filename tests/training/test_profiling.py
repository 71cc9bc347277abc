"""Profiles that are asked for while a run trains."""

import time
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from plmjax.training import profiling
from plmjax.training.profiling import Done, Profile


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are looked for all the time."""
    monkeypatch.setattr(profiling, "LOOK_SECONDS", 0.02)


def run(profile: Profile, steps: range, wait: float = 0.0) -> None:
    """Steps of a run that only adds."""
    state = jnp.zeros(3)
    for step in steps:
        profile.before(step)
        state = state + step
        profile.after(step, state)
        time.sleep(wait)


def seen(profile: Profile, what: str = "_asked", there: bool = True) -> None:
    """Wait until the profile has seen a request, or written its answer."""
    end = time.monotonic() + 10
    while (getattr(profile, what) is not None) != there and time.monotonic() < end:
        time.sleep(0.01)


def asked(workdir: Path, steps: int, first: int = 0, final: int = 100) -> Profile:
    """The profile of a run that has seen a request."""
    profile = Profile((), workdir / "profile", 1, final=final, workdir=workdir)
    profiling.ask(workdir, steps, first)
    seen(profile)
    return profile


def test_a_request_is_met_once_from_its_first_step_and_remembered(tmp_path: Path) -> None:
    profile = Profile((), tmp_path / "profile", 1, final=100, workdir=tmp_path)
    (tmp_path / profiling.REQUEST).write_text('{"id": "other", "steps": 0}')  # which is passed over
    run(profile, range(1, 4), 0.02)
    assert profile._asked is None
    (tmp_path / profiling.REQUEST).write_text('{"id": "mine", "steps": 2, "first": 6}')  # as a user writes it
    seen(profile)
    run(profile, range(4, 20))
    seen(profile, "_answer", there=False)
    done = Done.read(tmp_path)
    assert (done.id, done.first, done.last, done.error) == ("mine", 6, 7, "")
    (trace,) = (tmp_path / "profile" / "plugins" / "profile").iterdir()
    assert tmp_path / done.folder == trace and list(trace.glob("*.xplane.pb"))
    run(profile, range(20, 30), 0.01)
    profile.close()
    again = Profile((), tmp_path / "profile", 30, final=100, workdir=tmp_path)  # the run was started again
    run(again, range(30, 40), 0.01)
    again.close()
    assert len(list(trace.parent.iterdir())) == 1


@pytest.mark.parametrize(("total", "first", "end"), [(10, 2, 11), (100, 0, 12)], ids=["the last step", "a stop"])
def test_a_run_that_ends_first_keeps_the_steps_so_far(total: int, first: int, end: int, tmp_path: Path) -> None:
    """A first step that has passed is the next one."""
    profile = asked(tmp_path, 50, first, final=total)
    run(profile, range(8, end))
    profile.close()
    assert (Done.read(tmp_path).first, Done.read(tmp_path).last) == (8, end - 1)


def test_a_profiler_that_fails_ends_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = asked(tmp_path, 1)
    jax.profiler.start_trace(str(tmp_path / "other"))  # somebody else records
    run(profile, range(3, 6))
    jax.profiler.stop_trace()
    profile.close()
    done = Done.read(tmp_path)
    assert "RuntimeError" in done.error and not done.folder
