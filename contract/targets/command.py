"""A broker that the suite starts itself, by a command: real time, real processes, kill -9 that is meant.

As on a URL, schedules are played side by side, each with queues and groups of its own. What is done to the broker is
done to all of them: it waits until every other lane is between two steps, and stands in every lane's history.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx

from client import BrokerClient
from contract import history
from contract.calls import Ride
from contract.errors import CouldNotJudge
from contract.hooks import Hooks
from contract.runner import World
from contract.targets.control import Control
from contract.targets.faults import ride_of
from contract.targets.probing import Asked
from contract.targets.process import BrokerProcess, free_port
from contract.targets.target import REQUEST_FAULTS
from contract.targets.url import Probed, Session, Url, end_with_program
from strategies.schedule import Schedule

HERE = "127.0.0.1"
PROCESS_FAULTS = frozenset({"kill-broker", "restart-broker", "pause-broker"})

SHOWN_CHARACTERS = 100
HEALTH_LIMIT_S = 1.0

_PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)\}")


class Command(Url):
    """A broker that `command` starts, without a shell; `{port}` and `{data}` in it are replaced.

    It must run in the foreground and listen on 127.0.0.1. The process is started when something is first asked of it,
    and lives until `close`, the end of this object or of the program. Raises `CouldNotJudge` where the command cannot
    be understood, and later where it cannot be started, is never healthy, or ends without being told to.
    """

    faults = REQUEST_FAULTS | PROCESS_FAULTS

    def __init__(
        self,
        command: str,
        *,
        lanes: int = 32,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        path_prefix: str = "",
        timeout_s: float = 35.0,
        hooks: Hooks | None = None,
    ) -> None:
        words = _words(command)
        super().__init__(
            f"http://{HERE}:{free_port()}",
            lanes=lanes,
            token=token,
            headers=headers,
            path_prefix=path_prefix,
            timeout_s=timeout_s,
            hooks=hooks,
        )
        self.command = command
        port = httpx.URL(self._url).port
        assert port is not None
        self.process = BrokerProcess(lambda data: _filled(words, port=port, data=data), port)
        self._end = weakref.finalize(self, self.process.close)

    def described(self, probed: Probed) -> str:
        """The command, and the version that it turned out to be."""
        return f"{self.shown} (version {probed.version})"

    @property
    def shown(self) -> str:
        """The command, cut where it is long."""
        text = self.command
        return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "..."

    def close(self) -> None:
        """Ends the broker and removes its data. May be called more than once."""
        self._end()

    async def ask(self) -> Probed:
        """Starts the broker and asks who it is."""
        end_with_program()
        why = await self.start()
        if why:
            self.process.close()
            raise CouldNotJudge(f"the command {self.shown!r} {why}; correct it and run again")
        return await super().ask()

    def asked(self) -> Asked:
        """How the broker is called when it cannot be judged."""
        look = f"see to the command {self.shown!r}"
        return Asked(place=f"at {self._shown}", silent=look, foreign=look)

    async def start(self) -> str:
        """Starts the process. Returns why it is not healthy, "" when it is."""
        async with self.connect(self.network()) as client:
            return await self.process.start(lambda: _unhealthy(client))

    def session(self, probed: Probed, schedules: list[Schedule], paths: list[Path | None], seed: int) -> Session:
        """One `play_many`. Raises `CouldNotJudge` where the process has ended since the last one."""
        death = self.process.death()
        if death:
            raise CouldNotJudge(f"the broker {death} while nothing was played; see why and run again")
        return _CommandSession(self, probed, schedules, paths, seed)

    async def remove(self, client: BrokerClient, queue: str) -> None:
        """Deletes a queue; it matters little when that fails, since all data goes at the end."""
        with contextlib.suppress(CouldNotJudge):
            await client.delete_queue(queue, timeout_s=HEALTH_LIMIT_S)


class _CommandSession(Session):
    """One `play_many`: what is done to the process is known to all lanes."""

    advice = "see why it ended and run again"

    def __init__(
        self, target: Command, probed: Probed, schedules: list[Schedule], paths: list[Path | None], seed: int
    ) -> None:
        super().__init__(target, probed, schedules, paths, seed)
        self.command = target
        self._death_ends_calls = probed.profile.death_ends_calls
        self._rides: dict[int, list[Ride]] = {}

    def network(self, lane: int) -> httpx.AsyncBaseTransport:
        """Connections that remember what was sent to the process that runs."""
        return _Remembering(super().network(lane), self._rides.setdefault(lane, []))

    def staged(self, lane: int, world: World) -> World:
        """Lets the lane do something to the process, when it is its turn."""
        self._rides[lane].clear()  # of the schedule before
        return super().staged(lane, world)

    def control(self, lane: int) -> Control:
        """What a lane can do to the process."""
        return _Control(self, lane)

    def tick(self) -> None:
        """Looks whether the process is still there."""
        death = self.command.process.death()
        if death and not self.gone:
            self.give_up(death)
            for recorder, now_us in self.playing.values():
                recorder.add(history.Note(now_us(), f"the broker {death}"))

    def why_gone(self, gone: str, when: str) -> str:
        """How the process ended, or why it does not answer."""
        death = self.command.process.death()
        return f"the broker {death or gone} {when}"

    def died(self) -> None:
        """The process was reaped, so nothing that was sent to it can act any more, where the profile says so."""
        if not self._death_ends_calls:
            return
        for rides in self._rides.values():
            for ride in rides:
                ride.end()
            rides.clear()


class _Control(Control):
    """What one lane can do to the process, and by the commands of the user to its storage."""

    def __init__(self, session: _CommandSession, lane: int) -> None:
        super().__init__(session, lane)
        self._own = session
        self._process = session.command.process

    @property
    def up(self) -> bool:
        return self._process.up

    @property
    def paused(self) -> bool:
        return self._process.paused

    async def kill(self) -> None:
        self._session.tick()
        self._session.tell_others(self._lane, "kill")
        await self._process.kill()
        self._own.died()

    async def stop(self) -> None:
        self._session.tick()
        self._session.tell_others(self._lane, "stop")
        if not await self._process.stop():
            self._note("the broker did not stop after SIGTERM and was killed")
        self._own.died()

    async def start(self) -> None:
        """Does nothing once the broker is given up: a death that was not ours must not be covered up."""
        if self._session.gone:
            return
        self._session.tell_others(self._lane, "start")
        why = await self._own.command.start()
        if why:
            self._session.give_up(f"did not come back: it {why}")
            self._note(f"the broker did not come back: it {why}")

    def pause(self) -> None:
        self._session.tell_others(self._lane, "pause")
        self._process.pause()

    def resume(self) -> None:
        self._session.tell_others(self._lane, "resume")
        self._process.resume()

    def _note(self, text: str) -> None:
        for recorder, now_us in self._session.playing.values():
            recorder.add(history.Note(now_us(), text))


class _Remembering(httpx.AsyncBaseTransport):
    """Remembers the rides of the requests that went out."""

    def __init__(self, inner: httpx.AsyncBaseTransport, rides: list[Ride]) -> None:
        self._inner = inner
        self._rides = rides

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        ride = ride_of(request.extensions)
        if ride is not None:
            self._rides.append(ride)
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        await self._inner.aclose()


async def _unhealthy(client: BrokerClient) -> str:
    """What /health said, where it did not say that the broker is ready."""
    answer = await client.health(timeout_s=HEALTH_LIMIT_S)
    if answer.value is None:
        return answer.why or f"status {answer.status}"
    return "" if answer.value.ready else "it says that it is not ready"


def _words(command: str) -> list[str]:
    """The words of a command. Raises `CouldNotJudge` where it cannot be one."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise CouldNotJudge(f"the command {command!r} cannot be read ({error}); close its quotes") from None
    names = {name for word in words for name in _PLACEHOLDER.findall(word)}
    unknown = sorted(names - {"port", "data"})
    if unknown:
        raise CouldNotJudge(
            f"the command {command!r} holds the placeholder {{{unknown[0]}}}; only {{port}} and {{data}} are replaced"
        )
    if "port" not in names:
        raise CouldNotJudge(f"the command {command!r} does not say where it listens; put {{port}} in it")
    return words


def _filled(words: Sequence[str], *, port: int, data: Path) -> list[str]:
    values = {"port": str(port), "data": str(data)}
    return [_PLACEHOLDER.sub(lambda match: values[match[1]], word) for word in words]
