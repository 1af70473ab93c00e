"""An event loop whose clock is virtual: when every task waits, time jumps to the next timer.

An hour of leases costs no real time, and two runs of one program see the same times. A loop is cheap enough to make
a fresh one for each schedule, and no socket is polled on it.

Time is kept in whole microseconds, so that adding up waits never drifts; `time()` gives it in seconds as asyncio
wants it, `now_us` gives it exactly.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import selectors
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")

MICROSECONDS = 1_000_000

BUSY_LIMIT_S = 60.0
"""How long a program may be busy, in real time, while its virtual time stands still."""

LOOK_AFTER = 4096
"""Rounds of the loop between two looks at the real clock."""

LAST_PATIENCE_S = 5.0
"""How long somebody outside the loop gets, where there is any, before the program is taken to be stuck."""


class DeadlockError(RuntimeError):
    """Every task waits and no timer is left, or the program never waits: time cannot go on. Names the tasks."""


class _VirtualSelector(selectors.SelectSelector):
    """Jumps the clock where a real selector would wait."""

    def __init__(self) -> None:
        super().__init__()
        self.now_us = 0
        self.jobs = 0
        self.waiting: Callable[[], str] = str
        self.patience_s: Callable[[], float] = float
        self._rounds = 0
        self._since_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout == 0:
            self._look_for_progress()
        else:
            self._rounds = 0
        if self.jobs:  # a thread works in real time, and only it can say when it is done
            return super().select(timeout if timeout == 0 else None)
        patience_s = self.patience_s() if timeout != 0 else 0.0
        if patience_s:
            ready = super().select(patience_s if timeout is not None else max(patience_s, LAST_PATIENCE_S))
            if ready:
                return ready
        if timeout is None:
            raise DeadlockError(f"every task waits and no timer is left: {self.waiting()}")
        if timeout > 0:
            self.now_us += round(timeout * MICROSECONDS)
        return []

    def _look_for_progress(self) -> None:
        """Called when somebody has something to do at once: time cannot pass meanwhile, so that must end."""
        self._rounds += 1
        if self._rounds == 1:
            self._since_s = time.perf_counter()
        elif self._rounds % LOOK_AFTER == 0 and time.perf_counter() - self._since_s > BUSY_LIMIT_S:
            raise DeadlockError(f"busy for {BUSY_LIMIT_S:g} s without ever waiting: {self.waiting()}")


class VirtualLoop(asyncio.SelectorEventLoop):
    """A selector event loop on virtual time. It starts at 0 and polls no sockets."""

    def __init__(self, *, patience_s: Callable[[], float] = float) -> None:
        self._virtual = _VirtualSelector()
        self._virtual.patience_s = patience_s
        super().__init__(self._virtual)
        self._virtual.waiting = self._waiting
        # A timer is due when it is less than this ahead: one microsecond absorbs the rounding of float seconds.
        self._clock_resolution = 1 / MICROSECONDS

    @property
    def now_us(self) -> int:
        """Microseconds since the loop was made."""
        return self._virtual.now_us

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._virtual.now_us / MICROSECONDS

    def run_in_executor(  # type: ignore[override]
        self, executor: concurrent.futures.Executor | None, func: Callable[..., _T], *args: Any
    ) -> asyncio.Future[_T]:
        """Runs `func` in a thread; the virtual clock stands still until it has ended."""
        future: asyncio.Future[_T] = super().run_in_executor(executor, func, *args)
        self._virtual.jobs += 1
        future.add_done_callback(self._job_done)
        return future

    def _job_done(self, _: asyncio.Future[Any]) -> None:
        self._virtual.jobs -= 1

    def _waiting(self) -> str:
        names = sorted(f"{task.get_name()} ({_what(task)})" for task in asyncio.all_tasks(self))
        return ", ".join(names) or "there is no task"


def _what(task: asyncio.Task[Any]) -> str:
    return str(getattr(task.get_coro(), "__qualname__", "?"))


def run(main: Callable[[VirtualLoop], Coroutine[Any, Any, _T]], *, patience_s: Callable[[], float] = float) -> _T:
    """Runs `main(loop)` on a fresh loop and returns its result.

    Tasks that are left are cancelled and awaited, and the loop is closed, also after an error. Raises
    `DeadlockError` where the program can never go on. Before each jump, `patience_s` says how many seconds of real time
    somebody outside the loop (a thread that it does not know of) gets to call it; mostly none.
    """
    loop = VirtualLoop(patience_s=patience_s)
    try:
        return loop.run_until_complete(main(loop))
    except (KeyboardInterrupt, SystemExit):  # raised again here; the task in which it came need not report it, too
        loop.set_exception_handler(lambda *_: None)
        raise
    finally:
        _close(loop)


def _close(loop: VirtualLoop) -> None:
    try:
        left = sorted(asyncio.all_tasks(loop), key=asyncio.Task.get_name)
        if left:
            for task in left:
                task.cancel()
            with contextlib.suppress(DeadlockError):  # a task that refuses to end is not worth a second error
                loop.run_until_complete(_settle(left))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


async def _settle(tasks: list[asyncio.Task[Any]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)
