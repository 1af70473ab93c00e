"""The broker over HTTP: routes, bodies, status codes. What it does is the engine's business."""

from __future__ import annotations

import asyncio
import logging
import random as random_module
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from copy import copy
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from starlette.routing import Route, Router
from starlette.types import Message, Receive, Scope, Send

from reference_broker import parsing
from reference_broker.core import Checkpoint
from reference_broker.engine import Engine
from reference_broker.model import Clock, Malformed
from reference_broker.storage import Storage, StorageRefused
from reference_broker.waiting import Waiter

VERSION = "2.0.0-reference"
LARGEST_BODY_BYTES = 64 * 1024 * 1024

_JSON = (b"content-type", b"application/json")
_TEXT = (b"content-type", b"text/plain; charset=utf-8")
_encode = msgspec.json.Encoder().encode
_log = logging.getLogger("reference_broker")

Answer = tuple[int, bytes]
Handle = Callable[[Scope, Receive, bytes], Awaitable[Answer]]

_NOTHING: Answer = (204, b"")


class _TooLarge(Exception):
    """The body is larger than the broker takes."""


class _ClientLeft(Exception):
    """The client went away before its request was complete; nothing of it has happened."""


class Broker:
    """An ASGI application. `engine` and `storage` are there for whoever embeds it.

    `close` lets go of a storage that `create_app` opened; one that was handed in stays open.
    """

    def __init__(self, engine: Engine, *, owns_storage: bool) -> None:
        self.engine = engine
        self.storage = engine.storage
        self._owns_storage = owns_storage
        self._router = Router(
            self._routes(), redirect_slashes=False, default=_Endpoint(_unknown_path), lifespan=self._lifespan
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Routes by the path as it came, so that an encoded slash stays inside its name."""
        raw_path = scope.get("raw_path")
        if raw_path is not None:
            scope = dict(scope, path=raw_path.decode("latin-1"))
        await self._router(scope, receive, send)

    def close(self) -> None:
        """Ends parked pops, and closes the storage if it is ours."""
        self.engine.stop()
        if self._owns_storage:
            self.storage.close()

    @asynccontextmanager
    async def _lifespan(self, app: Any) -> AsyncIterator[None]:
        try:
            yield
        finally:
            self.close()

    def _routes(self) -> list[Route]:
        """The routes; the hot ones first, because they are tried in turn."""
        api = "/api/v1"
        return [
            _route("POST", f"{api}/push", self._push),
            _route("GET", f"{api}/pop/queue/{{queue}}", self._pop),
            _route("POST", f"{api}/ack", self._ack),
            _route("GET", f"{api}/pop/queue/{{queue}}/partition/{{partition:path}}", self._pop),
            _route("POST", f"{api}/ack/batch", self._ack_batch),
            _route("POST", f"{api}/lease/{{lease}}/extend", self._extend),
            _route("POST", f"{api}/configure", self._configure),
            _route("DELETE", f"{api}/resources/queues/{{queue}}", self._delete_queue),
            _route("GET", f"{api}/dlq", self._dead_letters),
            _route("DELETE", f"{api}/consumer-groups/{{group}}", self._delete_group),
            _route("DELETE", f"{api}/consumer-groups/{{group}}/queues/{{queue}}", self._delete_group),
            _route("POST", f"{api}/consumer-groups/{{group}}/queues/{{queue}}/seek", self._seek),
            _route(
                "POST",
                f"{api}/consumer-groups/{{group}}/queues/{{queue}}/partitions/{{partition:path}}/seek",
                self._seek,
            ),
            _route("GET", "/health", self._health),
        ]

    # Handlers -----------------------------------------------------------------------------------------------------

    async def _push(self, scope: Scope, receive: Receive, body: bytes) -> Answer:
        return 201, _encode(await self.engine.push(parsing.push_items(body)))

    async def _pop(self, scope: Scope, receive: Receive, body: bytes) -> Answer:
        names = scope["path_params"]
        queue = parsing.path_part(names["queue"])
        partition = names.get("partition")
        if partition is not None:
            if "/" in partition:
                return await _unknown_path(scope, receive, body)
            partition = parsing.path_part(partition)
        pop = parsing.pop_request(queue, partition, scope["query_string"])

        def watch(waiter: Waiter) -> asyncio.Task[None]:
            return asyncio.get_running_loop().create_task(self._watch(waiter, receive))

        popped = await self.engine.pop(pop, watch)
        return _NOTHING if popped is None else (200, _encode(popped))

    async def _watch(self, waiter: Waiter, receive: Receive) -> None:
        """Tells a parked pop when its client leaves; runs only while it is parked."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self.engine.client_left(waiter)

    async def _ack(self, scope: Scope, receive: Receive, body: bytes) -> Answer:
        return 200, _encode(await self.engine.ack(*parsing.one_ack(body)))

    async def _ack_batch(self, scope: Scope, receive: Receive, body: bytes) -> Answer:
        return 200, _encode(await self.engine.ack(*parsing.ack_batch(body)))

    async def _extend(self, scope: Scope, receive: Receive, body: bytes) -> Answer:
        lease_id = parsing.path_part(scope["path_params"]["lease"])
        return 200, _encode(await self.engine.extend(lease_id, parsing.extension_s(body)))

    async def _configure(self, scope: Scope, receive: Receive, body: bytes) -> Answer:
        asked = parsing.configuration(body)
        return 200, _encode(await self.engine.configure(asked.queue, asked.namespace, asked.task, asked.options or {}))

    async def _delete_queue(self, scope: Scope, receive: Receive, body: bytes) -> Answer:
        queue = parsing.path_part(scope["path_params"]["queue"])
        existed = await self.engine.delete_queue(queue)
        return 200, _encode({"success": True, "queue": queue, "deleted": existed})

    async def _delete_group(self, scope: Scope, receive: Receive, body: bytes) -> Answer:
        names = {name: parsing.path_part(value) for name, value in scope["path_params"].items()}
        existed = await self.engine.delete_group(names["group"], names.get("queue"))
        return 200, _encode({"success": True, "consumerGroup": names["group"], "deleted": existed})

    async def _seek(self, scope: Scope, receive: Receive, body: bytes) -> Answer:
        names = {name: parsing.path_part(value) for name, value in scope["path_params"].items()}
        if "/" in scope["path_params"].get("partition", ""):
            return await _unknown_path(scope, receive, body)
        group, queue, partition = names["group"], names["queue"], names.get("partition")
        moved = await self.engine.seek(group, queue, partition, parsing.seek_target(body))
        if moved is None:
            return 404, _encode({"error": f"no such queue or partition: {(partition or queue)[:200]}"})
        return 200, _encode({"success": True, "consumerGroup": group, "queue": queue, "partitions": moved})

    async def _dead_letters(self, scope: Scope, receive: Receive, body: bytes) -> Answer:
        letters = self.engine.dead_letters(*parsing.dead_letter_query(scope["query_string"]))
        return 200, _encode({"messages": letters, "total": len(letters)})

    async def _health(self, scope: Scope, receive: Receive, body: bytes) -> Answer:
        ready = self.storage.is_open and not self.engine.stopping
        state = "healthy" if ready else "unavailable"
        return 200 if ready else 503, _encode({"status": state, "version": VERSION})


def create_app(
    data: str | Path | Storage | None = None,
    *,
    storage: Storage | None = None,
    engine: type[Engine] = Engine,
    clock: Clock | None = None,
    random: random_module.Random | None = None,
    checkpoint: Checkpoint | None = None,
) -> Broker:
    """Makes a broker on a data directory, or on a `Storage` that outlives it (in either of the first two places).

    `random` and `clock` are the sources of all ids; hand the same `random` to the next app on the same storage.
    `checkpoint(name)` is awaited before a transaction begins, after it commits and before the answer.
    Raises `StorageError` where the directory cannot be used, `TypeError` where nothing or both are given.
    """
    if (data is None) == (storage is None):
        raise TypeError("create_app needs a data directory or a storage, and not both")
    owns_storage = storage is None and not isinstance(data, Storage)
    if storage is None:
        storage = data if isinstance(data, Storage) else Storage.open(data or "")
    return Broker(engine(storage, clock=clock, random=random, checkpoint=checkpoint), owns_storage=owns_storage)


class _Endpoint:
    """One route's end: reads the body, calls the handler, turns what it answers or raises into a response."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = _JSON
        try:
            body = await _read_body(scope, receive)
            status, answer = await self._handle(scope, receive, body)
        except Malformed as error:
            status, answer = 400, _encode({"error": str(error)})
        except _TooLarge:
            status, answer, kind = 413, b"the body is larger than 64 MiB", _TEXT
        except _ClientLeft:
            return
        except StorageRefused as error:
            status, answer = 500, _encode({"error": str(error)})
        except Exception:
            _log.exception("%s %s failed", scope["method"], scope["path"])
            status, answer = 500, _encode({"error": "the broker failed; its log says why"})
        await _respond(send, status, answer, kind)


def _route(method: str, path: str, handle: Handle) -> Route:
    route = copy(_template(method, path))
    route.endpoint = route.app = _Endpoint(handle)
    return route


@cache
def _template(method: str, path: str) -> Route:
    """A route to nowhere: in simulation an app is made for each schedule, and compiling its paths takes longest."""
    route = Route(path, _Endpoint(_unknown_path), methods=[method])
    route.methods = {method}  # no HEAD beside GET: a HEAD must not pop
    return route


async def _unknown_path(scope: Scope, receive: Receive, body: bytes) -> Answer:
    return 404, _encode({"error": f"unknown path {scope['path'][:200]}"})


async def _read_body(scope: Scope, receive: Receive) -> bytes:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > LARGEST_BODY_BYTES:
            raise _TooLarge
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body", False):
        body: bytes = message.get("body", b"")
        if len(body) > LARGEST_BODY_BYTES:
            raise _TooLarge
        return body
    return await _read_parts(message, receive)


async def _read_parts(message: Message, receive: Receive) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        if message["type"] == "http.disconnect":
            raise _ClientLeft
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > LARGEST_BODY_BYTES:
            raise _TooLarge
        if not message.get("more_body", False):
            return b"".join(parts)
        message = await receive()


async def _respond(send: Send, status: int, body: bytes, kind: tuple[bytes, bytes]) -> None:
    headers = [] if status == 204 else [kind, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
