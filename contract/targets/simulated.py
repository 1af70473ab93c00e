"""The reference broker in this process on virtual time: fast, and the same history each time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import httpx

from client import BrokerClient
from contract import history
from contract.profile import SIMULATED, Profile
from contract.runner import World, run_schedule
from contract.targets import virtual_time
from contract.targets.faults import FaultTransport
from contract.targets.in_process import DirectASGI, LeanClient
from contract.targets.target import BROKER_FAULTS, REQUEST_FAULTS
from contract.version import suite_version
from strategies.schedule import Schedule

QUEUE = "q"

# Wall time at which every simulated run begins: 2026-01-01. A fixed one, because ids are made of it.
START_MS = 1_767_225_600_000

# How long an orderly stop lets running requests go on. A parked pop would hold it up for its whole wait.
STOP_GRACE_S = 0.1


class Simulated:
    """The reference broker, played on a virtual clock.

    `engine` replaces the engine class, to seed a defect. `plain` sends through an ordinary httpx client: slower,
    with the same histories. Two plays of one schedule with one seed give equal events, in any process.
    """

    profile: Profile = SIMULATED
    faults = REQUEST_FAULTS | BROKER_FAULTS

    def __init__(self, engine: type[Any] | None = None, plain: bool = False) -> None:
        self.engine = engine
        self._plain = plain

    @property
    def describe(self) -> str:
        """What is judged, for people."""
        name = "reference broker" if self.engine is None else f"reference broker with {self.engine.__name__}"
        return f"{name} (simulated)"

    @property
    def capabilities(self) -> dict[str, str | int | bool]:
        """What the broker can do."""
        return dict(_capabilities())

    def can(self, fault: str) -> bool:
        """Whether a fault, by its tag in a schedule ("kill-broker"), happens here."""
        return fault in self.faults

    def play(self, schedule: Schedule, *, seed: int = 0, path: Path | None = None) -> history.History:
        """Plays one schedule on a fresh broker; the history is also written to `path`, line by line.

        Must not be called from a running event loop. Raises `DeadlockError` where the broker's code waits for nothing.
        """
        broker = _reference_broker()
        storage = broker.Storage.in_memory()
        try:
            with history.Recorder(self._header(schedule, seed), path) as recorder:
                virtual_time.run(lambda loop: self._play(loop, storage, schedule, seed, recorder))
                return recorder.history()
        finally:
            storage.close()

    def play_many(
        self, schedules: Sequence[Schedule], *, seed: int = 0, paths: Sequence[Path | None] | None = None
    ) -> list[history.History]:
        """Plays schedules one after the other, each on a fresh broker with the same seed."""
        places = paths if paths is not None else [None] * len(schedules)
        return [self.play(schedule, seed=seed, path=path) for schedule, path in zip(schedules, places, strict=True)]

    async def _play(
        self,
        loop: virtual_time.VirtualLoop,
        storage: Any,
        schedule: Schedule,
        seed: int,
        recorder: history.Recorder,
    ) -> None:
        def raised(error: Exception) -> None:
            if not isinstance(recorder.events[-1], history.End):
                recorder.add(history.Note(loop.now_us, f"the broker raised {type(error).__name__}: {error}"))

        control = _Control(loop, storage, random.Random(seed), self.engine, DirectASGI(failed=raised))
        control.server.follow_tasks(loop)
        await control.start()
        transport = FaultTransport(control.server, settles=_never)
        http = httpx.AsyncClient(transport=transport, trust_env=False) if self._plain else LeanClient(transport)
        client = BrokerClient(http)

        async def idle(limit_s: float) -> bool:
            return await transport.idle(limit_s) and await control.server.idle(limit_s)

        world = World(
            client=lambda _: client,
            queue=QUEUE,
            groups=tuple([group.name for group in schedule.groups]),
            audit_group=_free_name("audit-", schedule),
            now_us=lambda: loop.now_us,
            idle=idle,
            profile=self.profile,
            seed=seed,
            control=control,
        )
        await run_schedule(world, schedule, recorder)
        if self._plain:
            await http.aclose()

    def _header(self, schedule: Schedule, seed: int) -> history.Header:
        return history.Header(
            history.HISTORY_VERSION,
            suite_version(),
            self.describe,
            self.profile.name,
            self.capabilities,
            (QUEUE,),
            schedule,
            seed,
        )


class _Control:
    """Kills and starts the broker, on a storage that outlives it."""

    supports = BROKER_FAULTS

    def __init__(
        self,
        loop: virtual_time.VirtualLoop,
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


def _never(_: httpx.Response) -> bool:
    """Here it is known exactly when the broker is done with a request: when its task ends, not when it answers."""
    return False


def _free_name(wanted: str, schedule: Schedule) -> str:
    while any(group.name.startswith(wanted) for group in schedule.groups):
        wanted += "-"
    return wanted


@lru_cache(maxsize=1)
def _reference_broker() -> Any:
    """Imported when it is first played: nothing else of the suite may know the broker that it judges."""
    import reference_broker

    return reference_broker


@lru_cache(maxsize=1)
def _capabilities() -> dict[str, str | int | bool]:
    return {"version": _reference_broker().app.VERSION, "offset": True, "deliveryAttempt": True, "smallest_lease_s": 1}
