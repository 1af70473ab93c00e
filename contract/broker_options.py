"""The options of the command line that choose which broker is judged."""

from __future__ import annotations

import importlib
import os
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import httpx

from contract.errors import CouldNotJudge
from contract.hooks import HOOK_FIELDS, Hooks

if TYPE_CHECKING:
    from contract.targets import Target

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """The options that choose what is judged: a URL, a command or an app; else the reference broker, simulated."""

    url: str | None
    command: str | None = None
    app: str | None = None
    hooks: Hooks = field(default_factory=Hooks)
    token: str | None
    headers: tuple[tuple[str, str], ...]
    path_prefix: str
    ca_file: Path | None
    lanes: int | None
    engine: type[Any] | None
    engine_name: str | None

    def target(self) -> Target:
        """The target of these options. Raises `CouldNotJudge` where it cannot be reached or is no broker."""
        if self.app is not None:
            from contract.targets.app import App

            return App.load(self.app)
        if self.url is None and self.command is None:
            from contract.targets.simulated import Simulated

            return Simulated(engine=self.engine)
        return self._reached()

    def _reached(self) -> Target:
        """A target that is reached over the network."""
        headers = dict(self.headers)
        lanes: Any = {} if self.lanes is None else {"lanes": self.lanes}
        if self.command is not None:
            from contract.targets.command import Command

            return Command(
                self.command,
                token=self.token,
                headers=headers,
                path_prefix=self.path_prefix,
                hooks=self.hooks,
                **lanes,
            )
        from contract.targets.url import Url

        assert self.url is not None
        return Url(
            self.url,
            token=self.token,
            headers=headers,
            path_prefix=self.path_prefix,
            ca_file=self.ca_file,
            hooks=self.hooks,
            **lanes,
        )

    def options(self) -> str:
        """These options again, for the replay command; secrets stay out of it."""
        words: list[str] = []
        if self.url is not None:
            words += ["--broker-url", _without_password(self.url)]
        if self.command is not None:
            words += ["--broker-cmd", self.command]
        if self.app is not None:
            words += ["--broker-app", self.app]
        for option, command in self.hooks.given():
            words += [option, command]
        if self.path_prefix:
            words += ["--path-prefix", self.path_prefix]
        if self.ca_file is not None:
            words += ["--ca-file", os.fspath(self.ca_file)]
        if self.engine_name is not None:
            words += ["--broker-engine", self.engine_name]
        return shlex.join(words)


def _without_password(url: str) -> str:
    return str(httpx.URL(url).copy_with(username=None, password=None))


def broker_options(command: Command) -> Command:
    """The options that choose the broker; the command gets them as one `broker`."""
    options = (
        click.option("--broker-url", metavar="URL", help="A running broker. Default: the reference broker, simulated."),
        click.option(
            "--broker-cmd",
            metavar="COMMAND",
            help="Starts the broker, and may kill it; {port} and {data} in it are replaced by a port and a folder.",
        ),
        click.option(
            "--broker-app",
            metavar="MODULE:FACTORY",
            help="An ASGI application in this process: the factory is called with a folder.",
        ),
        click.option(
            "--storage-stop-cmd",
            metavar="COMMAND",
            help="Breaks off the broker's storage, as a crash would; run during schedules, with --storage-start-cmd.",
        ),
        click.option(
            "--storage-start-cmd", metavar="COMMAND", help="Starts it again on its data; ends once it can be used."
        ),
        click.option(
            "--broker-kill-cmd", metavar="COMMAND", help="kill -9 for the broker at the URL, with --broker-start-cmd."
        ),
        click.option("--broker-start-cmd", metavar="COMMAND", help="Starts it again at its URL, on its data."),
        click.option(
            "--broker-token",
            metavar="TOKEN",
            envvar="BROKER_TOKEN",
            help="Bearer token. Also read from BROKER_TOKEN, which keeps it out of the list of processes.",
        ),
        click.option("--header", "headers", multiple=True, metavar="'NAME: VALUE'", help="A header of each request."),
        click.option("--path-prefix", default="", metavar="PATH", help="What stands before /api and /health."),
        click.option(
            "--ca-file",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="Certificates to trust instead of the system's.",
        ),
        click.option("--lanes", type=click.IntRange(1, 256), help="Schedules that run side by side in real time."),
        click.option("--broker-engine", metavar="MODULE:CLASS", hidden=True),
    )
    for option in reversed(options):
        command = option(command)
    return command


def chosen_broker(values: dict[str, Any]) -> Broker:
    """Takes the options of `broker_options` out of a command's values and checks them."""
    url: str | None = values.pop("broker_url")
    headers = tuple(_header(text) for text in values.pop("headers"))
    engine_name: str | None = values.pop("broker_engine")
    broker = Broker(
        hooks=_hooks(values),
        url=url,
        command=values.pop("broker_cmd"),
        app=values.pop("broker_app"),
        token=values.pop("broker_token"),
        headers=headers,
        path_prefix=values.pop("path_prefix"),
        ca_file=values.pop("ca_file"),
        lanes=values.pop("lanes"),
        engine=None if engine_name is None else _engine(engine_name),
        engine_name=engine_name,
    )
    try:
        one_broker(url=url, command=broker.command, app=broker.app, engine=engine_name)
        reachable(broker.hooks, url=url, command=broker.command)
    except CouldNotJudge as error:
        raise click.UsageError(str(error)) from None
    _need_network(broker)
    return broker


def _hooks(values: dict[str, Any]) -> Hooks:
    try:
        return Hooks(**{field: values.pop(field) for field in HOOK_FIELDS})
    except CouldNotJudge as error:
        raise click.UsageError(str(error)) from None


def reachable(hooks: Hooks, *, url: str | None, command: str | None) -> None:
    """Raises `CouldNotJudge` where commands that do something to a broker are given for one that is not out there."""
    for option, value in hooks.given():
        if url is None and command is None:
            raise CouldNotJudge(f"{option} {value!r} is for a broker of --broker-url or --broker-cmd; name one")
        if command is not None and option.startswith("--broker-"):
            raise CouldNotJudge(f"{option} {value!r} is for a broker at a URL; that of --broker-cmd is killed as it is")


def one_broker(*, url: str | None, command: str | None, app: str | None, engine: str | None) -> None:
    """Raises `CouldNotJudge` where several options name a broker."""
    named = {"--broker-engine": engine, "--broker-url": url, "--broker-cmd": command, "--broker-app": app}
    given = [f"{option} {value!r}" for option, value in named.items() if value is not None]
    if len(given) > 1:
        raise CouldNotJudge(f"{given[0]} and {given[1]} exclude each other")


def _need_network(broker: Broker) -> None:
    """Refuses what says how to reach a broker where none is reached over the network."""
    if broker.url is not None:
        return
    given: dict[str, object] = {"--ca-file": broker.ca_file}
    if broker.command is None:
        given |= {"--header": broker.headers, "--path-prefix": broker.path_prefix, "--lanes": broker.lanes}
    for name, value in given.items():
        if value:
            raise click.UsageError(f"{name} says how to reach a broker, but no --broker-url names one")


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) or not value.strip().isprintable():
        raise click.UsageError(f"--header {text!r} is no header; give one like 'X-Tenant: blue'")
    return name, value.strip()


def _engine(text: str) -> type[Any]:
    module, colon, name = text.partition(":")
    try:
        engine = getattr(importlib.import_module(module), name) if colon else None
    except (ImportError, AttributeError, ValueError) as error:
        raise click.UsageError(f"--broker-engine {text!r} cannot be loaded: {error}") from error
    if not isinstance(engine, type):
        raise click.UsageError(f"--broker-engine {text!r} names no class; give one like package.module:Class")
    return engine
