"""The reference broker in this process on virtual time: fast, and the same history each time."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from contract.targets.in_process import DirectASGI
from contract.targets.target import BROKER_FAULTS, REQUEST_FAULTS
from contract.targets.virtual_target import START_MS, STOP_GRACE_S, VirtualTarget
from contract.targets.virtual_time import VirtualLoop


class Simulated(VirtualTarget):
    """The reference broker, played on a virtual clock.

    `engine` replaces the engine class, to seed a defect. `plain` sends through an ordinary httpx client: slower,
    with the same histories. Two plays of one schedule with one seed give equal events, in any process.
    """

    faults = REQUEST_FAULTS | BROKER_FAULTS

    def __init__(self, engine: type[Any] | None = None, plain: bool = False) -> None:
        super().__init__(plain=plain)
        self.engine = engine

    @property
    def describe(self) -> str:
        """What is judged, for people."""
        name = "reference broker" if self.engine is None else f"reference broker with {self.engine.__name__}"
        return f"{name} (simulated)"

    @property
    def capabilities(self) -> dict[str, str | int | bool]:
        """What the broker can do."""
        return dict(_capabilities())

    @contextlib.contextmanager
    def storing(self) -> Iterator[Any]:
        """A storage in memory."""
        storage = _reference_broker().Storage.in_memory()
        try:
            yield storage
        finally:
            storage.close()

    def host(self, loop: VirtualLoop, storage: Any, seed: int, server: DirectASGI) -> _Control:
        """The reference broker on a storage."""
        return _Control(loop, storage, random.Random(seed), self.engine, server)


class _Control:
    """Kills and starts the broker, on a storage that outlives it."""

    supports = BROKER_FAULTS
    failure = ""
    storage_back_for_s = math.inf  # nothing that it answered is stored later

    def __init__(
        self,
        loop: VirtualLoop,
        storage: Any,
        ids: random.Random,
        engine: type[Any] | None,
        server: DirectASGI,
    ) -> None:
        self._loop = loop
        self._storage = storage
        self._ids = ids
        self._engine = engine
        self._app: Any = None
        self.server = server
        self.storage_away = False

    def now_ms(self) -> int:
        """The broker's wall clock."""
        return START_MS + self._loop.now_us // 1000

    @property
    def up(self) -> bool:
        return self.server.up

    @property
    def paused(self) -> bool:
        return self.server.paused

    async def start(self) -> None:
        broker = _reference_broker()
        self.server.app = self._app = broker.create_app(
            storage=self._storage,
            engine=self._engine or broker.Engine,
            clock=self,
            random=self._ids,
            checkpoint=self.server.checkpoint,
        )

    async def kill(self) -> None:
        await self.server.kill()
        self._storage.rollback()

    async def stop(self) -> None:
        self._app.close()
        await self.server.stop(STOP_GRACE_S)
        self._storage.rollback()

    def pause(self) -> None:
        self.server.pause()

    def resume(self) -> None:
        self.server.resume()

    def fail_storage(self, operations: int) -> None:
        self._storage.refuse_writes(operations)

    async def stop_storage(self) -> None:
        self.storage_away = True
        self._storage.go_away()

    async def start_storage(self) -> None:
        self.storage_away = False
        self._storage.come_back()

    async def idle(self, limit_s: float) -> bool:
        return await self.server.idle(limit_s)

    async def finish(self) -> None:
        """The storage goes away as it is."""


@lru_cache(maxsize=1)
def _reference_broker() -> Any:
    """Imported when it is first played: nothing else of the suite may know the broker that it judges."""
    import reference_broker

    return reference_broker


@lru_cache(maxsize=1)
def _capabilities() -> dict[str, str | int | bool]:
    return {
        "version": _reference_broker().app.VERSION,
        "offset": True,
        "deliveryAttempt": True,
        "seek": True,
        "smallest_lease_s": 1,
    }
