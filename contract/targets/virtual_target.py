"""What the targets in this process on virtual time have in common: one broker and one loop for each schedule."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import httpx

from client import BrokerClient
from contract import history
from contract.errors import CouldNotJudge
from contract.profile import SIMULATED, Profile
from contract.runner import BrokerControl, World, run_schedule
from contract.targets import virtual_time
from contract.targets.faults import FaultTransport
from contract.targets.in_process import DirectASGI, LeanClient
from contract.targets.target import Seen
from contract.version import suite_version
from strategies.schedule import Schedule

QUEUE = "q"

# Wall time at which every virtual run begins: 2026-01-01. A fixed one, because ids are made of it.
START_MS = 1_767_225_600_000

# How long an orderly stop lets running requests go on. A parked pop would hold it up for its whole wait.
STOP_GRACE_S = 0.1


class Hosted(BrokerControl, Protocol):
    """A broker in this process, and what can be done to it."""

    @property
    def failure(self) -> str:
        """Why it could not be started; "" where it could."""

    async def idle(self, limit_s: float) -> bool:
        """Waits until it works on nothing; False when it still does after `limit_s`."""

    async def finish(self) -> None:
        """Called once, when nothing more will be asked of it."""


class VirtualTarget(abc.ABC):
    """Plays schedules on virtual time, each on a fresh broker.

    `plain` sends through an ordinary httpx client: slower, with the same histories.
    """

    profile: Profile = SIMULATED
    faults: frozenset[str]

    def __init__(self, *, plain: bool = False) -> None:
        self._plain = plain

    @property
    @abc.abstractmethod
    def describe(self) -> str:
        """What is judged, for people."""

    @property
    @abc.abstractmethod
    def capabilities(self) -> dict[str, str | int | bool]:
        """What the broker can do."""

    @abc.abstractmethod
    def storing(self) -> contextlib.AbstractContextManager[Any]:
        """A fresh storage for one play; removed in the end."""

    @abc.abstractmethod
    def host(self, loop: virtual_time.VirtualLoop, storage: Any, seed: int, server: DirectASGI) -> Hosted:
        """A broker on a storage, not started yet."""

    def can(self, fault: str) -> bool:
        """Whether a fault, by its tag in a schedule ("kill-broker"), happens here."""
        return fault in self.faults

    def play(self, schedule: Schedule, *, seed: int = 0, path: Path | None = None) -> history.History:
        """Plays one schedule on a fresh broker; the history is also written to `path`, line by line.

        Must not be called from a running event loop. Raises `DeadlockError` where the broker's code waits for nothing.
        """
        with self.storing() as storage, history.Recorder(self._header(schedule, seed), path) as recorder:
            virtual_time.run(
                lambda loop: self._play(loop, storage, schedule, seed, recorder), patience_s=self.patience_s
            )
            return recorder.history()

    def play_many(
        self,
        schedules: Sequence[Schedule],
        *,
        seed: int = 0,
        paths: Sequence[Path | None] | None = None,
        seen: Seen | None = None,
    ) -> list[history.History]:
        """Plays schedules one after the other, each on a fresh broker with the same seed; see `Target.play_many`."""
        places = paths if paths is not None else [None] * len(schedules)
        played: list[history.History] = []
        for number, (schedule, path) in enumerate(zip(schedules, places, strict=True)):
            played.append(self.play(schedule, seed=seed, path=path))
            if seen is not None and seen(number, played[-1]):
                break
        return played

    def patience_s(self) -> float:
        """Seconds of real time that the clock waits before it jumps; see `virtual_time.run`."""
        return 0.0

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

        server = DirectASGI(failed=raised)
        server.follow_tasks(loop)
        control = self.host(loop, storage, seed, server)
        await control.start()
        if control.failure:
            raise CouldNotJudge(control.failure)
        transport = FaultTransport(server, settles=_never)
        http = httpx.AsyncClient(transport=transport, trust_env=False) if self._plain else LeanClient(transport)
        client = BrokerClient(http)

        async def idle(limit_s: float) -> bool:
            return await transport.idle(limit_s) and await control.idle(limit_s)

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
        await control.finish()
        if self._plain:
            await http.aclose()
        if control.failure:  # it did not come back
            raise CouldNotJudge(control.failure)

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


def _never(_: httpx.Response) -> bool:
    """Here it is known exactly when the broker is done with a request: when its task ends, not when it answers."""
    return False


def _free_name(wanted: str, schedule: Schedule) -> str:
    while any(group.name.startswith(wanted) for group in schedule.groups):
        wanted += "-"
    return wanted
