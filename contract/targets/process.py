"""A broker as a process that the suite starts, kills, pauses and ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from random import SystemRandom

START_LIMIT_S = 30.0
"""How long a broker gets until it answers /health."""

STOP_LIMIT_S = 10.0
"""How long a broker gets to stop after SIGTERM, before it is killed."""

END_LIMIT_S = 3.0
"""The same when it is not needed any more."""

LOOK_S = 0.01
HEALTH_S = 0.05
"""Waits between two looks at the process, and at /health."""

LOWEST_PORT = 10_240
EPHEMERAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")

SHOWN_LINES = 3
SHOWN_CHARACTERS = 300


class BrokerProcess:
    """One broker: a command without its shell, a data folder and a log in a temporary folder, one port.

    `command(data)` gives the words of the command. The process leads a group of its own, so that Ctrl-C in a terminal
    does not reach it and signals reach what it starts. `close` ends it and removes the folder; it may be called twice.
    """

    def __init__(self, command: Callable[[Path], Sequence[str]], port: int) -> None:
        self.port = port
        self.paused = False
        self.up = False
        self._command = command
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The id of the process that runs, None while none does."""
        return None if self._process is None or self._process.poll() is not None else self._process.pid

    def death(self) -> str:
        """How it ended without being told to; "" while it did not."""
        if not self.up or self._process is None or self._process.poll() is None:
            return ""
        return f"{_how(self._process.returncode)} {self.last_output()}"

    async def start(self, unhealthy: Callable[[], Awaitable[str]]) -> str:
        """Starts it and waits until it is healthy. Returns why it is not, "" when it is.

        `unhealthy` asks it once and says what it answered; "" means that it is healthy.
        """
        why = self._spawn()
        if why:
            return why
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + START_LIMIT_S
        while loop.time() < give_up_s:
            if self.pid is None:
                assert self._process is not None
                return f"{_how(self._process.returncode)} before it was healthy {self.last_output()}"
            why = await unhealthy()
            if not why and self.pid is not None:
                self.up = True
                return ""
            await asyncio.sleep(HEALTH_S)
        self._signal(signal.SIGKILL)
        return f"was not healthy within {START_LIMIT_S:g} s ({why}) {self.last_output()}"

    async def kill(self) -> None:
        """kill -9. Returns when the process is reaped and nobody listens any more."""
        self.up = False
        self._signal(signal.SIGKILL)
        await self._reaped(STOP_LIMIT_S)
        self.paused = False

    async def stop(self) -> bool:
        """SIGTERM. False when it did not stop in time and had to be killed."""
        self.up = False
        self.resume()
        self._signal(signal.SIGTERM)
        in_time = await self._reaped(STOP_LIMIT_S)
        await self.kill()  # also what it may have left behind
        return in_time

    def pause(self) -> None:
        """SIGSTOP."""
        self.paused = True
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        if self.paused:
            self.paused = False
            self._signal(signal.SIGCONT)

    def close(self) -> None:
        """Ends the process and everything in its group, and removes its folder."""
        self.up = False
        process, self._process = self._process, None
        if process is not None:
            for number, limit_s in ((signal.SIGTERM, END_LIMIT_S), (signal.SIGKILL, END_LIMIT_S)):
                _signal_group(process, number)
                _signal_group(process, signal.SIGCONT)  # a stopped process takes no other signal
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(limit_s)
            give_up_s = time.monotonic() + END_LIMIT_S
            while _listens(self.port) and time.monotonic() < give_up_s:  # what it started is not ours to wait for
                time.sleep(LOOK_S)
        folder, self._folder = self._folder, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def last_output(self) -> str:
        """The last lines of its output, in brackets."""
        if self._folder is None:
            return "(no output)"
        text = _end_of(self._folder / "output").decode("utf-8", "replace")
        lines = ["".join(filter(str.isprintable, line)).strip() for line in text.splitlines()]
        last = " | ".join([line for line in lines if line][-SHOWN_LINES:])
        return f"(last output: {last[-SHOWN_CHARACTERS:]})" if last else "(no output)"

    def _spawn(self) -> str:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="broker-contract-"))
        data = self._folder / "data"
        data.mkdir(exist_ok=True)
        words = self._command(data)
        try:
            with (self._folder / "output").open("ab") as output:
                self._process = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
                )
        except (OSError, ValueError) as error:  # ValueError: a word with a null character
            return f"cannot be started: {getattr(error, 'strerror', None) or error}"
        return ""

    async def _reaped(self, limit_s: float) -> bool:
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + limit_s
        while self.pid is not None or _listens(self.port):
            if loop.time() > give_up_s:
                return False
            await asyncio.sleep(LOOK_S)
        return True

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            _signal_group(self._process, number)


def free_port() -> int:
    """A port that nobody listens on, below those that the system gives to outgoing connections.

    One of those could be taken, while the broker is down, by the very connection that asks whether it is there.
    """
    try:
        highest = int(EPHEMERAL_PORTS.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        highest = 32_768
    numbers = range(LOWEST_PORT, max(highest, LOWEST_PORT + 1000))
    for port in SystemRandom().sample(numbers, 200):
        with socket.socket() as trial:
            try:
                trial.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port from {numbers[0]} to {numbers[-1]}")


def _listens(port: int) -> bool:
    """Whether anybody listens; asked without a connection, which the broker would have to answer."""
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that are only winding up do not count
        try:
            trial.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _how(code: int) -> str:
    if code >= 0:
        return f"exited with status {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def _end_of(path: Path, count: int = 4096) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - count))
            return file.read()
    except OSError:
        return b""
