"""Signals that ask a run to stop."""

import os
import signal

import pytest

from plmjax.training.interruption import StopSignals


def test_sigterm_is_remembered_however_often_it_comes() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopSignals() as stop:
        assert stop.received is None
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop.received is signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
def test_a_ctrl_c_after_the_first_signal_stops_at_once(first: signal.Signals) -> None:
    with StopSignals() as stop:
        os.kill(os.getpid(), first)
        assert stop.received is first
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
