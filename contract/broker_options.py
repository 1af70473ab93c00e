"""The options of the command line that choose which broker is judged."""

from __future__ import annotations

import importlib
import os
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import httpx

if TYPE_CHECKING:
    from contract.targets import Target

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """The options that choose what is judged; no URL means the reference broker, simulated."""

    url: str | None
    token: str | None
    headers: tuple[tuple[str, str], ...]
    path_prefix: str
    ca_file: Path | None
    lanes: int | None
    engine: type[Any] | None
    engine_name: str | None

    def target(self) -> Target:
        """The target of these options. Raises `CouldNotJudge` where it cannot be reached or is no broker."""
        if self.url is None:
            from contract.targets.simulated import Simulated

            return Simulated(engine=self.engine)
        from contract.targets.url import Url

        reach = partial(
            Url,
            self.url,
            token=self.token,
            headers=dict(self.headers),
            path_prefix=self.path_prefix,
            ca_file=self.ca_file,
        )
        return reach() if self.lanes is None else reach(lanes=self.lanes)

    def options(self) -> str:
        """These options again, for the replay command; secrets stay out of it."""
        words: list[str] = []
        if self.url is not None:
            words += ["--broker-url", _without_password(self.url)]
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
        click.option("--lanes", type=click.IntRange(1, 256), help="Schedules that run side by side on --broker-url."),
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
        url=url,
        token=values.pop("broker_token"),
        headers=headers,
        path_prefix=values.pop("path_prefix"),
        ca_file=values.pop("ca_file"),
        lanes=values.pop("lanes"),
        engine=None if engine_name is None else _engine(engine_name),
        engine_name=engine_name,
    )
    if url is None:
        _need_url(broker)
    elif engine_name is not None:
        raise click.UsageError(f"--broker-engine {engine_name!r} and --broker-url {url!r} exclude each other")
    return broker


def _need_url(broker: Broker) -> None:
    given: dict[str, object] = {
        "--header": broker.headers,
        "--path-prefix": broker.path_prefix,
        "--ca-file": broker.ca_file,
        "--lanes": broker.lanes,
    }
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
