"""Somebody's broker as an ASGI application in this process, on virtual time.

Its code must ask `time.time()`, `time.monotonic()` (or their `_ns` forms, all looked up in the module) or the event
loop for the time: these are the clocks that are virtual here. An application that reads another clock is found out
before anything is judged. Threads of its own are waited for a moment before time jumps.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import inspect
import math
import os
import shutil
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock
from weakref import WeakSet

import msgspec

from client import AckItem, BrokerClient, PushItem
from contract import history
from contract.errors import CouldNotJudge
from contract.targets import virtual_time
from contract.targets.in_process import App as Asgi
from contract.targets.in_process import DirectASGI, LeanClient, Message
from contract.targets.probing import SMALLEST_LEASE_S, Asked, abilities_of, version_of
from contract.targets.target import REQUEST_FAULTS
from contract.targets.virtual_target import START_MS, STOP_GRACE_S, VirtualTarget
from contract.targets.virtual_time import DeadlockError, VirtualLoop
from strategies.schedule import (
    Ack,
    Advance,
    Group,
    Item,
    KillBroker,
    LoseAnswer,
    Parallel,
    Pop,
    Push,
    Schedule,
)

Factory = Callable[[str], Any]

LIFESPAN_LIMIT_S = 30.0
"""How long an application may take to start or to stop, in its own time."""

LEASE_OVER_S = SMALLEST_LEASE_S + 0.6

THREAD_PATIENCE_S = 0.03
"""Real time that threads of the application get before the clock jumps."""

MEMORY = Path("/dev/shm")

TWICE = Schedule(
    steps=(
        Parallel(
            (
                (Push((Item(0), Item(1)), jitter=1), Push((Item(0),), jitter=2)),
                (Push((Item(0, key=0),), jitter=3), Push((Item(0, key=0),), jitter=4)),
                (Pop(0, wait_ms=500, jitter=5), Ack(0, jitter=6)),
                (Pop(1, group=1, partitions=2, lease_s=1, jitter=7),),
            )
        ),
        LoseAnswer(Push((Item(1),))),
        Advance(1500),
        Pop(2, group=1, partition=0),
        KillBroker(),
        Ack(2),
        Pop(3, partition=None, partitions=0),
    ),
    partitions=2,
    groups=(Group("a", "all"), Group("b", "all")),
)
"""What is played twice to see whether the application does the same again."""


@dataclass(frozen=True, slots=True)
class _Found:
    version: str
    capabilities: dict[str, str | int | bool]


class App(VirtualTarget):
    """The application that `factory`, called with the path of a folder, returns; `name` is how people call it.

    A kill cancels all that it does and calls the factory again with the same folder. Lifespan events are sent where it
    takes them. It is probed once, when something is first asked of it; raises `CouldNotJudge` where that fails.
    """

    faults = REQUEST_FAULTS | frozenset({"kill-broker", "restart-broker", "pause-broker"})

    def __init__(self, factory: Factory, *, name: str, plain: bool = False) -> None:
        super().__init__(plain=plain)
        self.name = name
        self._factory = factory
        self._found: _Found | None = None
        self._deterministic: bool | None = None
        self._threads: WeakSet[threading.Thread] = WeakSet()
        self._before: frozenset[threading.Thread] = frozenset()

    @classmethod
    def load(cls, name: str) -> App:
        """The target for "package.module:factory". Raises `CouldNotJudge` where that cannot be had."""
        return cls(load_factory(name), name=name)

    @property
    def describe(self) -> str:
        """What is judged, for people."""
        return f"{self.name} (in process, version {self.probe().version})"

    @property
    def capabilities(self) -> dict[str, str | int | bool]:
        """What the probe found in real answers."""
        return dict(self.probe().capabilities)

    @property
    def deterministic(self) -> bool:
        """Whether it did the same twice, apart from the ids that it invents."""
        if self._deterministic is None:
            self._deterministic = alike(self.play(TWICE), self.play(TWICE))
        return self._deterministic

    def play(self, schedule: Schedule, *, seed: int = 0, path: Path | None = None) -> history.History:
        """Plays one schedule; see `VirtualTarget`. Raises `CouldNotJudge` where the application cannot go on."""
        self.probe()
        with self._stuck():
            return super().play(schedule, seed=seed, path=path)

    @contextlib.contextmanager
    def storing(self) -> Iterator[_Place]:
        """A folder, and a clock that the application takes for the real one."""
        with _folder() as folder:
            place = _Place(folder)
            self._before = frozenset(threading.enumerate())
            with place.clock():
                yield place

    def host(self, loop: VirtualLoop, storage: Any, seed: int, server: DirectASGI) -> _Control:
        """The application on a folder."""
        storage.loop = loop
        server.delays = True
        loop.set_exception_handler(lambda _, context: server.report(_error_of(context)))
        return _Control(self.name, self._factory, storage.folder, server)

    def patience_s(self) -> float:
        """A moment, while threads are there that the application has started."""
        new = [thread for thread in threading.enumerate() if thread not in self._before]
        self._threads.update(new)
        return THREAD_PATIENCE_S if any(thread.is_alive() for thread in self._threads) else 0.0

    # Probing ------------------------------------------------------------------------------------------------------

    def probe(self) -> _Found:
        """Asks the application who it is, once. Raises `CouldNotJudge`."""
        if self._found is None:
            with self._stuck():
                found, ends = self._ask_virtual()
                if not ends and self._ends_in_real_time():
                    raise CouldNotJudge(
                        f"{self.name} reads a clock that cannot be set: a lease of {SMALLEST_LEASE_S} s ends in real"
                        " time and not in virtual time; let it ask time.time(), time.monotonic() or the event loop, or"
                        " run it as a process with --broker-cmd"
                    )
            self._found = found
        return self._found

    def _ask_virtual(self) -> tuple[_Found, bool]:
        with self.storing() as place:
            return virtual_time.run(lambda loop: self._ask(loop, place), patience_s=self.patience_s)

    def _ends_in_real_time(self) -> bool:
        async def ask() -> bool:
            server = DirectASGI()
            async with _hosted(_Control(self.name, self._factory, folder, server)):
                return await _lease_ends(BrokerClient(LeanClient(server)))

        with _folder() as folder:
            return asyncio.run(ask())

    async def _ask(self, loop: VirtualLoop, place: _Place) -> tuple[_Found, bool]:
        errors: list[Exception] = []
        server = DirectASGI(failed=errors.append)
        server.follow_tasks(loop)
        asked = Asked(place=f"in {self.name}", silent="see to its start", foreign="it must speak Queen's HTTP contract")
        async with _hosted(self.host(loop, place, 0, server)):
            client = BrokerClient(LeanClient(server))
            try:
                version = await version_of(client, asked, timeout_s=LIFESPAN_LIMIT_S)
                probed = await abilities_of(client, "probe", asked)
            except CouldNotJudge as error:
                if errors:
                    raise CouldNotJudge(self._no_app(errors[0])) from None
                raise error from None
            capabilities: dict[str, str | int | bool] = {
                "version": version,
                **probed,
                "smallest_lease_s": SMALLEST_LEASE_S,
            }
            return _Found(version, capabilities), await _lease_ends(client)

    def _no_app(self, error: Exception) -> str:
        return (
            f"what {self.name} returns raised {_short(error)} when it was asked; "
            "it must be an ASGI application that speaks Queen's HTTP contract"
        )

    @contextlib.contextmanager
    def _stuck(self) -> Iterator[None]:
        """Says in one sentence that the application cannot go on, or wanted to end the program."""
        try:
            yield
        except DeadlockError as error:
            raise CouldNotJudge(f"{self.name} is stuck ({_short(error)}); see where it waits and run again") from None
        except SystemExit as error:
            raise CouldNotJudge(f"{self.name} asked to exit with {error.code!r}; see why and run again") from None


async def _lease_ends(client: BrokerClient) -> bool:
    """Whether a message comes again after its lease."""
    queue = "probe-lease"
    await client.push([PushItem(queue, "p0", b'{"probe":2}', None)])
    first = await client.pop(queue, batch=1, lease_s=SMALLEST_LEASE_S)
    await asyncio.sleep(LEASE_OVER_S)
    again = await client.pop(queue, batch=1, lease_s=SMALLEST_LEASE_S)
    if first.value is None or again.value is None or not first.value.messages:
        return False
    for message in again.value.messages:
        await client.ack(AckItem(message.transaction_id, message.partition_id, "completed", message.lease_id or None))
    return bool(again.value.messages)


def alike(first: history.History, second: history.History) -> bool:
    """Whether two histories are equal once the ids in them are numbered in the order in which they appear."""
    return _numbered(first) == _numbered(second)


_TEXTS = frozenset({"why", "errors", "oddities"})
"""What a broker says in its own words, perhaps with ids in the middle."""


def _numbered(played: history.History) -> list[Any]:
    ids: set[str] = set()
    for event in played.events:
        if isinstance(event, history.Return) and isinstance(event.result, history.PushResult | history.PopResult):
            result = event.result
            ids.update(one for one in (*result.message_ids, *result.transaction_ids) if one)
            if isinstance(result, history.PopResult):
                ids.update((result.lease_id, *result.lease_ids, *result.partition_ids))
    names: dict[str, str] = {}

    def walk(value: Any) -> Any:
        if isinstance(value, str):
            return names.setdefault(value, f"id {len(names)}") if value in ids else value
        if isinstance(value, dict):
            return {key: walk(one) for key, one in value.items() if key not in _TEXTS}
        return [walk(one) for one in value] if isinstance(value, list | tuple) else value

    return [walk(msgspec.to_builtins(event)) for event in played.events]


# Loading ----------------------------------------------------------------------------------------------------------


def load_factory(name: str) -> Factory:
    """The factory called "package.module:factory". Raises `CouldNotJudge` where it cannot be imported."""
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise CouldNotJudge(f"{name!r} names no factory; give one like package.module:factory")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:  # whatever importing somebody's module does
        raise CouldNotJudge(f"{name!r} cannot be imported ({_short(error)}); correct the name or the module") from None
    if not callable(found):
        raise CouldNotJudge(f"{name!r} is no factory but {_short_value(found)}; give a function that takes a folder")
    factory: Factory = found
    return factory


def _short(error: BaseException) -> str:
    text = " ".join(str(error).split())
    name = type(error).__name__
    return f"{name}: {text[:200]}" if text else name


def _short_value(value: object) -> str:
    return f"an object of type {type(value).__name__}"


def _error_of(context: dict[str, Any]) -> Exception:
    error = context.get("exception")
    return error if isinstance(error, Exception) else RuntimeError(str(context.get("message")))


# Where it runs ----------------------------------------------------------------------------------------------------


class _Place:
    """A folder, and the loop whose time is the time there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.loop: VirtualLoop | None = None

    @contextlib.contextmanager
    def clock(self) -> Iterator[None]:
        """The module `time` tells the virtual time."""

        def now_us() -> int:
            return 0 if self.loop is None else self.loop.now_us

        with mock.patch.multiple(
            time,
            time=lambda: START_MS / 1000 + now_us() / 1_000_000,
            time_ns=lambda: START_MS * 1_000_000 + now_us() * 1000,
            monotonic=lambda: 1000.0 + now_us() / 1_000_000,
            monotonic_ns=lambda: 1_000_000_000_000 + now_us() * 1000,
        ):
            yield


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """A folder that is removed in the end; in memory where there is such a place, since a kill here loses no memory."""
    where = MEMORY if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) else None
    path = Path(tempfile.mkdtemp(prefix="broker-contract-", dir=where))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.asynccontextmanager
async def _hosted(control: _Control) -> Any:
    await control.start()
    if control.failure:
        raise CouldNotJudge(control.failure)
    try:
        yield
    finally:
        await control.finish()


class _Control:
    """Starts, stops and kills the application."""

    supports = frozenset({"kill-broker", "restart-broker", "pause-broker"})
    storage_away = False
    storage_back_for_s = math.inf

    def __init__(self, name: str, factory: Factory, folder: Path, server: DirectASGI) -> None:
        self.failure = ""
        self._name = name
        self._factory = factory
        self._folder = folder
        self._server = server
        self._lifespan: _Lifespan | None = None
        self._starts = 0

    @property
    def up(self) -> bool:
        return self._server.up

    @property
    def paused(self) -> bool:
        return self._server.paused

    async def start(self) -> None:
        """Makes the application and lets it start. Once that fails, it stays down and `failure` says why."""
        self._starts += 1
        if self.failure:
            return
        again = " again on its folder" if self._starts > 1 else ""
        try:
            with self._server.inside():
                app: Asgi = self._factory(str(self._folder))
                if inspect.isawaitable(app):
                    app = await app
        except (Exception, SystemExit) as error:
            self.failure = f"the factory {self._name} raised {_short(error)} when called{again}; correct it"
            return
        if not callable(app):
            self.failure = f"the factory {self._name} returned {_short_value(app)}{again}, not an ASGI application"
            return
        self._lifespan = _Lifespan(app, self._server)
        why = await self._lifespan.startup()
        if why:
            self.failure = f"what {self._name} returns does not start{again} ({why}); correct it"
            return
        self._server.app = app

    async def kill(self) -> None:
        self._lifespan = None
        await self._server.kill()
        with warnings.catch_warnings():  # whatever it left open closes as that of a dead process would
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()

    async def stop(self) -> None:
        self._server.app = None
        self._server.resume()
        await self._server.idle(STOP_GRACE_S, children=False)
        await self._server.drop()
        if self._lifespan is not None:
            await self._lifespan.shutdown()
            self._lifespan = None
        await self._server.kill()

    def pause(self) -> None:
        self._server.pause()

    def resume(self) -> None:
        self._server.resume()

    def fail_storage(self, operations: int) -> None:
        """Not possible."""

    async def stop_storage(self) -> None:
        """Not possible."""

    async def start_storage(self) -> None:
        """Not needed."""

    async def idle(self, limit_s: float) -> bool:
        return await self._server.idle(limit_s, children=False)

    async def finish(self) -> None:
        if self.up:
            await self.stop()


class _Lifespan:
    """Tells an application that it starts and stops, if it wants to know."""

    def __init__(self, app: Asgi, server: DirectASGI) -> None:
        self._app = app
        self._server = server
        self._state: dict[str, Any] = {}
        self._told = False
        self._stopping = asyncio.Event()
        self._answered = asyncio.Event()
        self._refusal: str | None = None
        self._task: asyncio.Task[None] | None = None

    async def startup(self) -> str:
        """Returns why the application refused to start, "" where it did not refuse."""
        with self._server.inside():
            self._task = asyncio.get_running_loop().create_task(self._serve(), name="lifespan")
        if not await self._answer():
            return f"no answer to its startup event within {LIFESPAN_LIMIT_S:g} s"
        self._server.state = self._state
        return "" if self._refusal is None else f"startup failed: {self._refusal[:200] or 'no reason given'}"

    async def shutdown(self) -> None:
        """Waits until the application has stopped, up to a limit."""
        assert self._task is not None
        if not self._task.done():
            self._answered.clear()
            self._stopping.set()
            await self._answer()

    async def _answer(self) -> bool:
        try:
            async with asyncio.timeout(LIFESPAN_LIMIT_S):
                await self._answered.wait()
        except TimeoutError:
            return False
        return True

    async def _serve(self) -> None:
        scope: Message = {
            "type": "lifespan",
            "asgi": {"version": "3.0", "spec_version": "2.0"},
            "state": self._state,
        }
        try:
            await self._app(scope, self._receive, self._send)
        except Exception:
            pass  # an application that does not know these events says so by raising; one that refuses has sent why
        finally:
            self._answered.set()

    async def _receive(self) -> Message:
        if not self._told:
            self._told = True
            return {"type": "lifespan.startup"}
        await self._stopping.wait()
        return {"type": "lifespan.shutdown"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "lifespan.startup.failed":
            self._refusal = str(message.get("message", ""))
        self._answered.set()
