"""The steps that a profile records, without the profiler."""

from pathlib import Path

import jax
import pytest

from plmjax.training.profiling import Profile


@pytest.mark.parametrize(
    ("steps", "start", "final", "recorded"),
    [
        ((), 1, 9, []),
        ((3,), 1, 9, [3]),
        ((3, 5), 1, 9, [3, 4, 5]),
        ((3, 5), 4, 9, [4, 5]),  # a run that goes on in the middle
        ((3, 5), 6, 9, []),
        ((3, 5), 1, 4, [3, 4]),
    ],
)
def test_the_steps_asked_for_that_this_process_does_are_recorded(
    steps: tuple[int, ...], start: int, final: int, recorded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    folders, done, recording = [], [], []
    monkeypatch.setattr(jax.profiler, "start_trace", lambda folder: (folders.append(folder), recording.append(True)))
    monkeypatch.setattr(jax.profiler, "stop_trace", recording.clear)
    profile = Profile(steps, Path("profile"), start, final)
    for step in range(start, final + 1):
        profile.before(step)
        done += [step] * len(recording)
        profile.after(step, ())
    assert not recording
    profile.close()
    assert done == recorded and folders == ["profile"] * bool(recorded)


def test_a_profile_of_a_run_that_ends_early_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(jax.profiler, "start_trace", said.append)
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: said.append("stopped"))
    profile = Profile((1, 5), Path("profile"), 1, 9)
    profile.before(1)
    for _ in range(2):
        profile.close()
    assert said == ["profile", "stopped"]
