"""Who may go on, where several lanes share a broker and one of them wants to do something to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class Turns:
    """Lets lanes go on side by side, and one of them alone.

    A lane that asks to be alone waits until every other lane is between two turns, or asks for the same. Meanwhile no
    turn begins, so that it does not wait for ever. Nothing is awaited when a turn ends.
    """

    def __init__(self) -> None:
        self._inside: set[int] = set()
        self._asking: list[tuple[int, object]] = []
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def turn(self, lane: int) -> AsyncIterator[None]:
        """One turn of a lane. A lane has one at a time."""
        await self._until(lambda: not self._asking)
        self._inside.add(lane)
        try:
            yield
        finally:
            self._inside.discard(lane)
            self._change()

    @asynccontextmanager
    async def alone(self, lane: int) -> AsyncIterator[None]:
        """No other lane is in the middle of a turn. Inside a turn of its own a lane may ask more than once."""
        asking = (lane, object())
        self._asking.append(asking)
        self._change()  # whoever waits for this lane need not wait any longer
        try:
            await self._until(lambda: self._asking[0] is asking and self._inside <= {one for one, _ in self._asking})
            yield
        finally:
            self._asking.remove(asking)
            self._change()

    async def _until(self, ready: Callable[[], bool]) -> None:
        while not ready():
            await self._changed.wait()

    def _change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
