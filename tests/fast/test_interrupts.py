"""Ctrl-C that Python would lose."""

import signal
import sys
import time

import pytest

from contract.interrupts import interrupts_kept


class Finalized:
    """Interrupted in its finalizer."""

    def __del__(self):
        signal.raise_signal(signal.SIGINT)


def test_an_interrupt_in_a_finalizer_is_raised_again():
    give_up_s = time.monotonic() + 10
    with pytest.raises(KeyboardInterrupt), interrupts_kept():
        thing = Finalized()
        del thing
        while time.monotonic() < give_up_s:
            time.sleep(0.01)


def test_other_errors_that_nobody_can_catch_are_left_to_the_hook_before(monkeypatch):
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", seen.append)

    class Broken:
        def __del__(self):
            raise ValueError("in a finalizer")

    with interrupts_kept():
        thing = Broken()
        del thing
    assert [lost.exc_type for lost in seen] == [ValueError]
    assert sys.unraisablehook == seen.append
