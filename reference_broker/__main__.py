"""`python -m reference_broker --data DIR --port N`: the broker as a process of its own."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import importlib
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import uvicorn

from reference_broker.app import Broker, create_app
from reference_broker.engine import Engine
from reference_broker.storage import StorageError

COULD_NOT_START = 2


class _Arguments(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One sentence, no usage text."""
        _refuse(f"{message}; see python -m reference_broker --help")


class _Server(uvicorn.Server):
    """Ends parked pops before it waits for open requests, so that an orderly stop is a prompt one."""

    def __init__(self, config: uvicorn.Config, broker: Broker) -> None:
        super().__init__(config)
        self._broker = broker

    def end_orderly(self, number: int, frame: object) -> None:
        """A signal handler. The server sets its own while it serves, and raises the signal again when it is done."""
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._broker.engine.stop()
        await super().shutdown(sockets)


def main(arguments: list[str] | None = None) -> int:
    """Serves until SIGTERM or SIGINT. What was answered survives a kill -9."""
    asked = _parser().parse_args(arguments)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(_only_broker_of(asked.data))
            broker = create_app(asked.data, engine=asked.engine)
            stack.callback(broker.close)
            listener = stack.enter_context(_listener(asked.host, asked.port))
        except StorageError as error:
            _refuse(str(error))
        except OSError as error:
            _refuse(f"cannot listen on {asked.host} port {asked.port}: {error.strerror or error}")
        server = _Server(uvicorn.Config(broker, log_level="warning", access_log=False, lifespan="on"), broker)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, server.end_orderly)
        _print_address(listener)
        asyncio.run(server.serve([listener]))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = _Arguments(prog="python -m reference_broker", description="The reference broker over HTTP.")
    parser.add_argument("--data", type=Path, required=True, help="directory of its storage; made if it is not there")
    parser.add_argument("--port", type=_port, default=0, help="port to listen on; 0 (the default) takes a free one")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; default 127.0.0.1")
    # For tests of those who judge brokers: an engine with a defect, as "package.module:Class".
    parser.add_argument("--engine", type=_engine, default=Engine, help=argparse.SUPPRESS)
    return parser


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= 65_535):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port, which is a number from 0 to 65535")
    return int(text)


def _engine(text: str) -> type[Engine]:
    module, _, name = text.partition(":")
    try:
        engine = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be loaded: {error}") from error
    if not (isinstance(engine, type) and issubclass(engine, Engine)):
        raise argparse.ArgumentTypeError(f"{text!r} is no engine, which is a subclass of reference_broker.Engine")
    return engine


@contextlib.contextmanager
def _only_broker_of(data: Path) -> Iterator[None]:
    """Holds the data directory against a second process; the lock ends with this one, however it ends."""
    try:
        data.mkdir(parents=True, exist_ok=True)
        handle = os.open(data / "lock", os.O_CREAT | os.O_RDWR, 0o600)
    except OSError as error:
        raise StorageError(f"cannot use {str(data)!r} as the data directory: {error.strerror}") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StorageError(f"another broker is running on the data directory {str(data)!r}") from None
        yield
    finally:
        os.close(handle)


def _listener(host: str, port: int) -> socket.socket:
    """A listening socket. The explicit protocol lets asyncio switch on TCP_NODELAY, without which answers lag."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def _print_address(listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    print(f"listening on http://{f'[{host}]' if ':' in host else host}:{port}", flush=True)


def _refuse(sentence: str) -> NoReturn:
    print(f"reference_broker: {sentence}", file=sys.stderr)
    raise SystemExit(COULD_NOT_START)


if __name__ == "__main__":
    raise SystemExit(main())
