"""Pops that wait: who is parked on which queue, and how they are woken."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from reference_broker.model import Pop


class Waiter:
    """One parked pop. It claims in its own task, after it was woken, so that nobody claims for a client that left."""

    __slots__ = ("_future", "gone", "pop", "woken")

    def __init__(self, pop: Pop) -> None:
        self.pop = pop
        self.woken = False
        self.gone = False
        self._future: asyncio.Future[None] | None = None

    def wake(self) -> None:
        """Lets the pop try again. A wake-up between two sleeps is not lost."""
        self.woken = True
        self._rouse()

    async def sleep(self, seconds: float) -> None:
        """Returns when woken or after `seconds`."""
        if self.woken or self.gone:
            return
        loop = asyncio.get_running_loop()
        self._future = loop.create_future()
        timer = loop.call_later(seconds, self._rouse)
        try:
            await self._future
        finally:
            timer.cancel()
            self._future = None

    def leave(self) -> None:
        """The client went away: the pop must not claim any more."""
        self.gone = True
        self._rouse()

    def _rouse(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)


class Parking:
    """The waiters of every queue, in order of arrival. The earliest is woken first, and so tries first."""

    def __init__(self) -> None:
        self._queues: dict[str, dict[Waiter, None]] = {}

    def add(self, waiter: Waiter) -> None:
        """Parks a waiter behind those that came earlier."""
        self._queues.setdefault(waiter.pop.queue, {})[waiter] = None

    def remove(self, waiter: Waiter) -> None:
        """Takes a waiter out."""
        waiters = self._queues.get(waiter.pop.queue)
        if waiters is not None:
            waiters.pop(waiter, None)
            if not waiters:
                del self._queues[waiter.pop.queue]

    def of(self, queue: str) -> Iterable[Waiter]:
        """The waiters of a queue, the earliest first."""
        return tuple(self._queues.get(queue, ()))

    def queues(self) -> list[str]:
        """The queues on which somebody waits."""
        return list(self._queues)

    def all(self) -> Iterable[Waiter]:
        """Every waiter."""
        return tuple(waiter for waiters in self._queues.values() for waiter in waiters)

    def has_claim_before(self, pop: Pop) -> bool:
        """True when a parked pop of the same group was woken and has not had its turn yet."""
        waiters = self._queues.get(pop.queue)
        return bool(waiters) and any(waiter.woken and waiter.pop.group == pop.group for waiter in waiters or ())
