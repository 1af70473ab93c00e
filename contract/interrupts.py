"""Ctrl-C that is never lost.

Python raises KeyboardInterrupt at whatever it executes next. Where that is a callback of the garbage collector or a
finalizer, nobody can catch it: it is printed as "ignored", and the program runs on. Both are frequent here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

AGAIN_S = 0.05
"""So soon after it got lost is the signal sent again, by when another place is executed."""


@contextlib.contextmanager
def interrupts_kept() -> Iterator[Callable[[], bool]]:
    """While this is entered, a KeyboardInterrupt that nobody could catch is raised once more, until somebody can.

    Gives a function that says whether Ctrl-C or SIGTERM came at all: a library in the middle of something may make
    another error of it.
    """
    before = sys.unraisablehook
    sys.unraisablehook = _kept_by(before)
    try:
        with _signals_noted() as numbers:
            yield lambda: bool({signal.SIGINT, signal.SIGTERM} & numbers())
    finally:
        sys.unraisablehook = before


@contextlib.contextmanager
def _signals_noted() -> Iterator[Callable[[], set[int]]]:
    """Gives a function that returns the numbers of the signals that came, as far as Python handles them."""
    if threading.current_thread() is not threading.main_thread():
        yield set
        return
    reading, writing = os.pipe()
    for end in (reading, writing):
        os.set_blocking(end, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

    def numbers() -> set[int]:
        with contextlib.suppress(BlockingIOError):
            return set(os.read(reading, 4096))
        return set()

    try:
        yield numbers
    finally:
        signal.set_wakeup_fd(before)
        os.close(reading)
        os.close(writing)


def _kept_by(otherwise: Callable[[Any], Any]) -> Callable[[Any], None]:
    def hook(lost: Any) -> None:
        if lost.exc_type is not KeyboardInterrupt:
            otherwise(lost)
            return
        again = threading.Timer(AGAIN_S, _interrupt_main_thread)
        again.daemon = True  # a program that ends meanwhile needs it no more
        again.start()

    return hook


def _interrupt_main_thread() -> None:
    """Sent to that very thread, so that it ends a sleep."""
    main = threading.main_thread().ident
    if main is not None:
        signal.pthread_kill(main, signal.SIGINT)
