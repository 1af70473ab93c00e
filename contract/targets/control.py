"""What one of several lanes can do to the broker that all of them share."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from contract.errors import CouldNotJudge
from contract.targets.target import REQUEST_FAULTS

if TYPE_CHECKING:
    from contract.targets.url import Session

BACK_LIMIT_S = 60.0
"""How long a broker gets until it works again after its storage, or itself, was started."""

LOOK_S = 0.05


class Control:
    """A broker somewhere else: only the commands of the user reach it. The runner records it in this lane's history."""

    def __init__(self, session: Session, lane: int) -> None:
        self._session = session
        self._lane = lane
        self._broker = session.target.broker
        self._storage = session.target.storage

    @property
    def supports(self) -> frozenset[str]:
        return self._session.target.faults - REQUEST_FAULTS

    # The broker

    @property
    def up(self) -> bool:
        return not self._broker.off

    @property
    def paused(self) -> bool:
        return False

    async def kill(self) -> None:
        self._session.tell_others(self._lane, "kill")
        await self._broker.turn_off()

    async def stop(self) -> None:
        """Not possible."""

    async def start(self) -> None:
        self._session.tell_others(self._lane, "start")
        await self._broker.turn_on()
        await self._working("it was started")

    def pause(self) -> None:
        """Not possible."""

    def resume(self) -> None:
        """Not needed."""

    # Its storage

    def fail_storage(self, operations: int) -> None:
        """Not possible."""

    @property
    def storage_away(self) -> bool:
        return self._storage.off

    @property
    def storage_back_for_s(self) -> float:
        return 0.0 if self._storage.off else time.monotonic() - self._storage.back_s

    async def stop_storage(self) -> None:
        self._session.tell_others(self._lane, "storage-stop")
        await self._storage.turn_off()

    async def start_storage(self) -> None:
        await self._storage.turn_on()
        await self._working("its storage was started")
        self._session.tell_others(self._lane, "storage-start")

    async def _working(self, since: str) -> None:
        """Waits until the broker works. One that is down, or given up, is not waited for: that is for its start."""
        give_up_s = time.monotonic() + BACK_LIMIT_S
        while why := await self._session.troubled():
            if not self.up or self._session.gone:
                return
            if time.monotonic() > give_up_s:
                raise CouldNotJudge(f"the broker does not work {BACK_LIMIT_S:g} s after {since} ({why}); see why")
            await asyncio.sleep(LOOK_S)
