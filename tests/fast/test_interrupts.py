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


def interrupted_in_a_finalizer():
    thing = Finalized()
    del thing
    time.sleep(10)


def test_an_interrupt_in_a_finalizer_is_raised_again():
    with interrupts_kept(), pytest.raises(KeyboardInterrupt):
        interrupted_in_a_finalizer()


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


def test_it_is_known_that_an_interrupt_came():
    with interrupts_kept() as interrupted:
        assert not interrupted()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert interrupted()
