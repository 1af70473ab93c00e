"""Commands of the user that do to a broker what the suite cannot: stop and start its storage, kill and start it.

A command runs without a shell and must end by itself: a stop once the thing is stopped, a start once it is there again.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import shlex
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, fields
from typing import IO

from contract.errors import CouldNotJudge

LIMIT_S = 60.0
"""How long a command may take."""

LAST_WORDS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """The commands, by the options that name them.

    Raises `CouldNotJudge` where one of a pair is missing, or cannot be read.
    """

    storage_stop_cmd: str | None = None
    storage_start_cmd: str | None = None
    broker_kill_cmd: str | None = None
    broker_start_cmd: str | None = None

    def __post_init__(self) -> None:
        for first, second in (("storage_stop_cmd", "storage_start_cmd"), ("broker_kill_cmd", "broker_start_cmd")):
            for given, missing in ((first, second), (second, first)):
                command = getattr(self, given)
                if command is not None and getattr(self, missing) is None:
                    raise CouldNotJudge(f"{_option(given)} {command!r} needs {_option(missing)} beside it; give both")
        for option, command in self.given():
            _words(option, command)

    @property
    def faults(self) -> frozenset[str]:
        """Tags of the faults that these commands make possible."""
        found = {"storage-outage"} if self.storage_stop_cmd is not None else set()
        return frozenset(found | ({"kill-broker"} if self.broker_kill_cmd is not None else set()))

    def given(self) -> list[tuple[str, str]]:
        """The options that were given, with their values."""
        values = [(_option(field.name), getattr(self, field.name)) for field in fields(self)]
        return [(option, command) for option, command in values if command is not None]


HOOK_FIELDS = tuple(field.name for field in fields(Hooks))
"""Names of the commands, which are those of their options as well."""


class Switch:
    """Something that a pair of commands turns off and on. `off` may be true though nobody knows: a stop went wrong."""

    def __init__(self, stop: tuple[str, str | None], start: tuple[str, str | None]) -> None:
        self.off = False
        self.back_s = -math.inf
        """When it was turned on again, by the monotonic clock."""
        self._stop = stop
        self._start = start
        self._turning_on: asyncio.Future[None] | None = None

    async def turn_off(self) -> None:
        """Runs the stop command. Raises `CouldNotJudge` where it fails."""
        self.off = True
        await _to_its_end(asyncio.ensure_future(_run(*self._stop)))

    async def turn_on(self) -> None:
        """Runs the start command where it is off, once for all who ask. Raises `CouldNotJudge` where it fails."""
        if not self.off:
            return
        if self._turning_on is None or self._turning_on.done():
            self._turning_on = asyncio.ensure_future(_run(*self._start))
        await _to_its_end(self._turning_on)
        if self.off:
            self.off = False
            self.back_s = time.monotonic()

    def close(self) -> None:
        """Turns it on where it is off, at the end of the program; what goes wrong then cannot be told."""
        option, command = self._start
        if self.off and command is not None:
            self.off = False
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                subprocess.run(_words(option, command), stdin=subprocess.DEVNULL, timeout=LIMIT_S, check=False)


def storage_switch(hooks: Hooks) -> Switch:
    """The storage of the broker."""
    return Switch(("--storage-stop-cmd", hooks.storage_stop_cmd), ("--storage-start-cmd", hooks.storage_start_cmd))


def broker_switch(hooks: Hooks) -> Switch:
    """The broker itself."""
    return Switch(("--broker-kill-cmd", hooks.broker_kill_cmd), ("--broker-start-cmd", hooks.broker_start_cmd))


def _option(field: str) -> str:
    return "--" + field.replace("_", "-")


def _words(option: str, command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise CouldNotJudge(f"{option} {command!r} cannot be read ({error}); close its quotes") from None
    if not words:
        raise CouldNotJudge(f"{option} {command!r} is no command; give a program and its arguments")
    return words


async def _to_its_end(running: asyncio.Future[None]) -> None:
    """Waits for a command, also when the run is interrupted meanwhile: half a stop helps nobody."""
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait((running,))
        running.exception()
        raise


async def _run(option: str, command: str | None) -> None:
    """Raises `CouldNotJudge` with the exit code and the last words of a command that failed."""
    assert command is not None
    # A file and not a pipe: what a start command leaves running may keep its standard error open for ever.
    with tempfile.TemporaryFile() as said:
        try:
            process = await asyncio.create_subprocess_exec(
                *_words(option, command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                start_new_session=True,  # Ctrl-C in a terminal is not for it
            )
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise CouldNotJudge(f"{option} {command!r} cannot be run: {why}; correct it and run again") from None
        try:
            code = await asyncio.wait_for(process.wait(), LIMIT_S)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            raise CouldNotJudge(
                f"{option} {command!r} was not done after {LIMIT_S:g} s{_last_words(said)}; see why and run again"
            ) from None
        if code != 0:
            raise CouldNotJudge(
                f"{option} {command!r} failed with exit code {code}{_last_words(said)}; see why and run again"
            )


def _last_words(said: IO[bytes]) -> str:
    said.seek(0, os.SEEK_END)
    said.seek(max(0, said.tell() - 4096))
    lines = said.read().decode("utf-8", "replace").splitlines()
    text = " | ".join(line for line in ("".join(filter(str.isprintable, line)).strip() for line in lines) if line)
    return f" (it said: {text[-LAST_WORDS:]})" if text else " (it said nothing)"
