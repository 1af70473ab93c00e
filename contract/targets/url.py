"""A running broker behind a URL: real time, many lanes side by side, nothing touched but what is our own."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import ssl
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

import httpx

from client import BrokerClient, Outcome, parse_url
from client.outcome import names_storage
from contract import history
from contract.calls import MICROSECONDS
from contract.errors import CouldNotJudge
from contract.hooks import Hooks, broker_switch, storage_switch
from contract.profile import QUEEN_2, Profile, for_version
from contract.runner import World, run_schedule
from contract.targets.control import Control
from contract.targets.faults import FaultTransport
from contract.targets.probing import SMALLEST_LEASE_S, Asked, abilities_of, version_of
from contract.targets.target import REQUEST_FAULTS, Seen
from contract.targets.turns import Turns
from contract.version import suite_version
from strategies.schedule import Schedule

TICK_S = 0.05
STALL_MS = 100
"""A tick that is later than this is written into every history that is being played."""

CLEANUP_TIMEOUT_S = 5.0
BACK_AGAIN_S = 5.0
"""How long a broker that stopped answering gets to come back before the run is given up."""

WORKING_LIMIT_S = 5.0
"""Patience with the calls that ask whether the broker works again."""

CUT_OFF_S = 0.3
"""A request that was cut off may still act for a moment, and would make a deleted queue again."""


@dataclass(frozen=True, slots=True)
class Probed:
    """What a probe found."""

    version: str
    profile: Profile
    capabilities: dict[str, str | int | bool]


@dataclass(frozen=True, slots=True)
class Names:
    """The names of one played schedule, which nobody else has."""

    start: str

    @property
    def queue(self) -> str:
        return f"{self.start}-q"

    @property
    def audit_group(self) -> str:
        return f"{self.start}-audit-"

    def group(self, name: str) -> str:
        """A group of the schedule on the wire. "" stays the group-less queue mode."""
        return f"{self.start}-g-{name}" if name else ""


class Url:
    """A running broker. `lanes` schedules are played side by side, each with queues and groups of its own.

    `token` is sent as a bearer token; `headers` with every request; `path_prefix` stands in front of every path;
    `ca_file` is a PEM file of authorities to trust; `timeout_s` is the patience with one request. `run_token` makes the
    names of this run; one is drawn by default. `hooks` are commands that stop and start its storage, or the broker;
    what they stopped is started again at the latest when this object, or the program, ends.

    The broker is probed once, when something is first asked of it. Raises `CouldNotJudge` where that fails.
    """

    faults: frozenset[str] = REQUEST_FAULTS

    def __init__(
        self,
        url: str,
        *,
        lanes: int = 64,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        path_prefix: str = "",
        ca_file: str | Path | None = None,
        timeout_s: float = 35.0,
        run_token: str | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        if lanes < 1:
            raise CouldNotJudge(f"{lanes} lanes cannot play anything; give at least 1")
        try:
            self._url = parse_url(url)
        except ValueError as error:
            raise CouldNotJudge(f"{error}; give the address of a running broker") from None
        self.lanes = lanes
        self.run_token = run_token or secrets.token_hex(4)
        self.left_behind: list[str] = []
        self._shown = str(httpx.URL(self._url).copy_with(username=None, password=None))
        self._token = token
        self._headers = dict(headers or {})
        self._path_prefix = path_prefix
        self._timeout_s = timeout_s
        self._trust = _trust(self._url, ca_file)
        self._probed: Probed | None = None
        self._played = 0
        self.hooks = hooks or Hooks()
        self.faults = type(self).faults | self.hooks.faults
        self.storage, self.broker = storage_switch(self.hooks), broker_switch(self.hooks)
        for switch in (self.storage, self.broker):
            weakref.finalize(self, switch.close)

    # What it is ---------------------------------------------------------------------------------------------------

    @property
    def describe(self) -> str:
        """What is judged, for people. Never shows a password of the URL."""
        return self.described(self.probe())

    def described(self, probed: Probed) -> str:
        """What is judged, once it has been probed."""
        return f"{self._shown} (version {probed.version})"

    @property
    def profile(self) -> Profile:
        """The profile of the version that the broker reports."""
        return self.probe().profile

    @property
    def capabilities(self) -> dict[str, str | int | bool]:
        """What the probe found in real answers."""
        return dict(self.probe().capabilities)

    @property
    def left_stopped(self) -> list[str]:
        """What a command stopped and no command could start again."""
        return [name for name, switch in (("storage", self.storage), ("broker", self.broker)) if switch.off]

    def can(self, fault: str) -> bool:
        """Whether a fault, by its tag in a schedule ("lose-answer"), happens here."""
        return fault in self.faults

    def probe(self) -> Probed:
        """Asks the broker who it is, once. Raises `CouldNotJudge`."""
        if self._probed is None:
            self._probed = asyncio.run(self.ask())
        return self._probed

    # Playing ------------------------------------------------------------------------------------------------------

    def play(self, schedule: Schedule, *, seed: int = 0, path: Path | None = None) -> history.History:
        """Plays one schedule; the history is also written to `path`, line by line. Not from a running event loop."""
        return self.play_many([schedule], seed=seed, paths=[path])[0]

    def play_many(
        self,
        schedules: Sequence[Schedule],
        *,
        seed: int = 0,
        paths: Sequence[Path | None] | None = None,
        seen: Seen | None = None,
    ) -> list[history.History]:
        """Plays schedules side by side; see `Target.play_many`. `seen` runs in another thread.

        Own queues are deleted also after an error and after Ctrl-C; what could not be deleted is in `left_behind`.
        Raises `CouldNotJudge` when the broker stops answering for good; what was recorded is on disk.
        """
        probed = self.probe()
        places: list[Path | None] = list(paths) if paths is not None else [None] * len(schedules)
        if len(places) != len(schedules):
            raise ValueError(f"{len(places)} paths for {len(schedules)} schedules")
        if not schedules:
            return []
        return asyncio.run(self.session(probed, list(schedules), places, seed).play(seen))

    def session(self, probed: Probed, schedules: list[Schedule], paths: list[Path | None], seed: int) -> Session:
        """One `play_many`. Not from a running event loop."""
        return Session(self, probed, schedules, paths, seed)

    def next_names(self) -> Names:
        """Names that this run has not used yet."""
        self._played += 1
        return Names(f"bc-{self.run_token}-{self._played}")

    def header(self, probed: Probed, schedule: Schedule, queue: str, seed: int, lane: int) -> history.Header:
        """The first line of a history."""
        return history.Header(
            history.HISTORY_VERSION,
            suite_version(),
            self.described(probed),
            probed.profile.name,
            dict(probed.capabilities),
            (queue,),
            schedule,
            seed,
            lane,
            datetime.now(UTC).isoformat(timespec="milliseconds"),
        )

    # Clients ------------------------------------------------------------------------------------------------------

    def connect(self, transport: httpx.AsyncBaseTransport) -> BrokerClient:
        """A client over a transport."""
        try:
            return BrokerClient.connect(
                self._url,
                timeout_s=self._timeout_s,
                bearer_token=self._token,
                headers=self._headers,
                path_prefix=self._path_prefix,
                transport=transport,
            )
        except ValueError as error:
            raise CouldNotJudge(f"{error}; correct it and run again") from None

    def network(self) -> httpx.AsyncHTTPTransport:
        """Connections to the broker: as many as there are requests at once, each kept for the next."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        return httpx.AsyncHTTPTransport(verify=self._trust, trust_env=False, limits=limits)

    async def remove(self, client: BrokerClient, queue: str) -> None:
        """Deletes an own queue; notes it in `left_behind` when that fails."""
        for wait_s in (0.2, None):
            answer = await client.delete_queue(queue, timeout_s=CLEANUP_TIMEOUT_S)
            if answer.outcome is Outcome.OK:
                return
            if wait_s is not None:
                await asyncio.sleep(wait_s)
        self.left_behind.append(queue)

    # Probing ------------------------------------------------------------------------------------------------------

    async def ask(self) -> Probed:
        """Asks the broker who it is, and plays a message through it. Raises `CouldNotJudge`."""
        if self.hooks.given():
            end_with_program()
        async with self.connect(self.network()) as client:
            version = await version_of(client, self.asked(), timeout_s=self._timeout_s)
            queue = f"bc-{self.run_token}-probe-q"
            try:
                found = await abilities_of(client, queue, self.asked())
            finally:
                await uninterrupted(self.remove(client, queue))
        capabilities: dict[str, str | int | bool] = {
            "version": version,
            **found,
            "smallest_lease_s": SMALLEST_LEASE_S,
        }
        profile = for_version(version) if version[:1].isdigit() else QUEEN_2
        return Probed(version or "unknown", profile, capabilities)

    def asked(self) -> Asked:
        """How the broker is called when it cannot be judged."""
        return Asked(
            place=f"at {self._shown}",
            silent="start it or correct the address",
            foreign="check the address and the path prefix",
        )


class Session:
    """One `play_many`: the lanes, and who watches the clock."""

    def __init__(
        self, target: Url, probed: Probed, schedules: list[Schedule], paths: list[Path | None], seed: int
    ) -> None:
        self.target = self._target = target
        self.turns = Turns()
        self._probed = probed
        self._schedules = schedules
        self._paths = paths
        self._seed = seed
        self._histories: dict[int, history.History] = {}
        self._todo = iter(range(len(schedules)))
        self._seen: Seen | None = None
        self._one_at_a_time = asyncio.Lock()
        self.playing: dict[int, tuple[history.Recorder, Callable[[], int]]] = {}
        """The recorder and the clock of each lane that plays something."""
        self._gone = ""

    # What another kind of target does differently

    def network(self, lane: int) -> httpx.AsyncBaseTransport:
        """The connections of a lane."""
        return self._target.network()

    def staged(self, lane: int, world: World) -> World:
        """Adds to the world of a lane what can be done there to the broker, when it is its turn."""
        if self.target.faults <= REQUEST_FAULTS:
            return world
        return replace(
            world,
            control=self.control(lane),
            turn=lambda: self.turns.turn(lane),
            alone=lambda: self.turns.alone(lane),
        )

    def control(self, lane: int) -> Control:
        """What a lane can do to the broker."""
        return Control(self, lane)

    def turn(self, lane: int) -> contextlib.AbstractAsyncContextManager[None]:
        """Entered around what a lane does between schedules: nobody does anything to the broker then."""
        return contextlib.nullcontext() if self.target.faults <= REQUEST_FAULTS else self.turns.turn(lane)

    def tell_others(self, lane: int, what: str) -> None:
        """Records in the other lanes what this one is about to do, or did."""
        for other, (recorder, now_us) in self.playing.items():
            if other != lane:
                recorder.add(history.Fault(now_us(), what, history.BY_ANOTHER_LANE))

    async def troubled(self) -> str:
        """Why the broker does not work, "" when it does: it is ready, and a pop reads its storage."""
        async with self.target.connect(self.target.network()) as client:
            health = await client.health(timeout_s=WORKING_LIMIT_S)
            if health.value is None or not health.value.ready:
                return health.why or "it says that it is not ready"
            popped = await client.pop(f"bc-{self.target.run_token}-nowhere", partition="p0", timeout_s=WORKING_LIMIT_S)
            return popped.why

    def tick(self) -> None:
        """Called all the time."""

    advice = "start it again and repeat the run"

    def why_gone(self, gone: str, when: str) -> str:
        """What happened to a broker that is gone, and when."""
        return f"the broker stopped answering {when} ({gone})"

    # Playing

    async def play(self, seen: Seen | None = None) -> list[history.History]:
        """Plays everything, or until `seen` says that it is enough. Raises `CouldNotJudge` when the broker is gone."""
        self._seen = seen
        lanes = min(self._target.lanes, len(self._schedules))
        watcher = asyncio.create_task(self._watch(), name="watcher")
        tasks = [asyncio.create_task(self._lane(lane), name=f"lane {lane}") for lane in range(lanes)]
        try:
            await asyncio.gather(*tasks)
        except Exception:
            for task in tasks:
                task.cancel()
            raise
        finally:  # gather has passed a cancellation on already; a second one would cut the cleaning up
            watcher.cancel()
            await uninterrupted(asyncio.gather(*tasks, watcher, return_exceptions=True))
        if self._gone:
            raise CouldNotJudge(self._why_gone())
        return [self._histories[number] for number in sorted(self._histories)]

    def _why_gone(self) -> str:
        kept = sum(path is not None for path in self._paths)
        where = "; what was recorded until then is on disk" if kept else ""
        when = f"after {len(self._histories)} of {len(self._schedules)} schedules"
        return self.why_gone(self._gone, when) + where + f"; {self.advice}"

    def give_up(self, why: str) -> None:
        """The broker is gone: no lane begins another schedule, and the run cannot be judged."""
        self._gone = self._gone or why
        self._todo = iter(())

    @property
    def gone(self) -> bool:
        """Whether the broker is gone for good."""
        return bool(self._gone)

    async def _lane(self, lane: int) -> None:
        transport = FaultTransport(self.network(lane), settles=_settles)
        async with self._target.connect(transport) as client:
            for number in self._todo:
                await self._schedule(lane, number, client, transport)
                if self._gone:
                    return

    async def _schedule(self, lane: int, number: int, client: BrokerClient, transport: FaultTransport) -> None:
        names = self._target.next_names()
        clean = False
        try:
            await self._recorded(lane, number, names, client, transport)
            clean = True
            await self._hand_on(number)
        finally:
            await uninterrupted(self._clean_up(lane, names.queue, client, transport, cut_off=not clean))

    async def _hand_on(self, number: int) -> None:
        """Shows a history to who looks at them, in a thread, so that the other lanes keep their time."""
        if self._seen is None:
            return
        async with self._one_at_a_time:
            if await asyncio.to_thread(self._seen, number, self._histories[number]):
                self._todo = iter(())

    async def _clean_up(
        self, lane: int, queue: str, client: BrokerClient, transport: FaultTransport, *, cut_off: bool
    ) -> None:
        await transport.drop_pending()
        if cut_off:
            await asyncio.sleep(CUT_OFF_S)
        async with self.turn(lane):
            await self._restore()
            await self._target.remove(client, queue)

    async def _restore(self) -> None:
        """Ends what this run does to the broker; after a clean schedule there is nothing."""
        for switch in (self.target.storage, self.target.broker):
            if switch.off:
                with contextlib.suppress(CouldNotJudge):  # the run ends with an error as it is
                    await switch.turn_on()

    async def _recorded(
        self, lane: int, number: int, names: Names, client: BrokerClient, transport: FaultTransport
    ) -> None:
        schedule = self._schedules[number]
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        world = World(
            client=lambda _: client,
            queue=names.queue,
            groups=tuple([names.group(group.name) for group in schedule.groups]),
            audit_group=names.audit_group,
            now_us=lambda: int((loop.time() - start_s) * MICROSECONDS),
            idle=transport.idle,
            profile=self._probed.profile,
            seed=self._seed,
        )
        header = self._target.header(self._probed, schedule, names.queue, self._seed, lane)
        with history.Recorder(header, self._paths[number]) as recorder, self._watched(lane, recorder, world):
            summary = await run_schedule(self.staged(lane, world), schedule, recorder)
        if summary.unreachable and not await self._comes_back(client):
            self.give_up(summary.unreachable)
        self._histories[number] = recorder.history()

    async def _comes_back(self, client: BrokerClient) -> bool:
        give_up_s = asyncio.get_running_loop().time() + BACK_AGAIN_S
        while not self._gone and asyncio.get_running_loop().time() < give_up_s:
            health = await client.health(timeout_s=1.0)
            if health.value is not None and health.value.ready:
                return True
            await asyncio.sleep(0.25)
        return False

    @contextlib.contextmanager
    def _watched(self, lane: int, recorder: history.Recorder, world: World) -> Iterator[None]:
        self.playing[lane] = (recorder, world.now_us)
        try:
            yield
        finally:
            del self.playing[lane]

    async def _watch(self) -> None:
        """Writes down when this process could not keep up, since then its times say nothing about the broker."""
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + TICK_S
            await asyncio.sleep(TICK_S)
            self.tick()
            late_ms = int((loop.time() - due_s) * 1000)
            if late_ms > STALL_MS:
                for recorder, now_us in self.playing.values():
                    recorder.add(history.Note(now_us(), f"stalled {late_ms}"))


def end_with_program() -> None:
    """Makes SIGTERM end the program as Ctrl-C does, so that no broker stays behind it, and no storage stopped.

    Where nobody else handles the signal, and in the main thread only, since signals are handled there. A shell script
    starts what it puts into the background with Ctrl-C ignored; then nothing at all would end the program.
    """
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _interrupt)
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    signal.raise_signal(signal.SIGINT)


async def uninterrupted(work: Awaitable[object]) -> None:
    """Waits for `work` to its end; a cancellation that comes meanwhile is raised after it."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    task.result()


def _settles(response: httpx.Response) -> bool:
    """Whether the broker is done with a request that it answered so: not when it speaks of trouble with its storage.

    A `buffered` push is stored some time later.
    """
    if response.status_code >= 500 or response.status_code in (408, 499):
        return False
    if response.request.method != "POST":
        return True
    text = response.content.decode("utf-8", "replace")
    return "buffered" not in text and not names_storage(text)


def _trust(url: str, ca_file: str | Path | None) -> ssl.SSLContext:
    """Whom to trust; made once, since loading certificates costs 20 ms."""
    if not url.startswith("https:"):
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        return ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
    except OSError as error:  # ssl.SSLError is one
        raise CouldNotJudge(
            f"CA file {str(ca_file)!r} cannot be used ({error.strerror or error}); give a PEM file with certificates"
        ) from None
