"""A reference broker in this process, on a clock that stands still, and a caller that speaks ASGI to it directly."""

from __future__ import annotations

import asyncio
import json
import random
import time
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from reference_broker import Broker, Engine, Storage, create_app

START_MS = 1_700_000_000_000


class FakeClock:
    """Stands still until `advance`; with `run` it goes on by itself from there."""

    def __init__(self) -> None:
        self._at_ms = START_MS
        self._running_since: float | None = None

    def now_ms(self) -> int:
        if self._running_since is None:
            return self._at_ms
        return self._at_ms + int((time.monotonic() - self._running_since) * 1000)

    def advance(self, seconds: float) -> None:
        self._at_ms += round(seconds * 1000)

    def run(self) -> None:
        self._running_since = time.monotonic()


class Answer:
    """Status, headers and body of one response."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Driver:
    """What a test says to the broker. `leave` in `call` is an event: when it is set, the client goes away."""

    def __init__(self, engine: type[Engine] = Engine, **options: Any) -> None:
        self.clock = FakeClock()
        self.random = random.Random(7)
        self.storage = Storage.in_memory()
        self.engine_type = engine
        self.options = options
        self.broker = self._start()

    def _start(self) -> Broker:
        return create_app(
            storage=self.storage, engine=self.engine_type, clock=self.clock, random=self.random, **self.options
        )

    def kill_and_restart(self) -> None:
        self.storage.rollback()
        self.broker = self._start()

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: str | dict[str, Any] = "",
        raw: bytes | None = None,
        leave: asyncio.Event | None = None,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> Answer:
        sent: list[Any] = []
        content = raw if raw is not None else b"" if body is None else json.dumps(body).encode()
        parts = iter([{"type": "http.request", "body": content, "more_body": False}])

        async def receive() -> Any:
            for part in parts:
                return part
            await (leave or asyncio.Event()).wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        text = query if isinstance(query, str) else urlencode({key: _wire(value) for key, value in query.items()})
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": text.encode(),
            "root_path": "",
            "headers": list(headers),
            "server": ("broker", 80),
            "client": ("client", 1),
        }
        await self.broker(scope, receive, send)
        start, body_part = sent
        names = {name.decode(): value.decode() for name, value in start["headers"]}
        return Answer(start["status"], names, body_part["body"])

    async def push(self, *ids: str, queue: str = "q", partition: str | None = "p") -> list[Any]:
        """Pushes one message an id; the payload is the id too."""
        items = [{"queue": queue, "partition": partition, "payload": name, "transactionId": name} for name in ids]
        answer = await self.call("POST", "/api/v1/push", {"items": items})
        assert answer.status == 201, answer.body
        return list(answer.json)

    async def pop_answer(self, queue: str = "q", partition: str | None = None, **query: Any) -> Answer:
        path = f"/api/v1/pop/queue/{quote(queue, safe='')}"
        if partition is not None:
            path += f"/partition/{quote(partition, safe='')}"
        leave = query.pop("leave", None)
        return await self.call("GET", path, query=query, leave=leave)

    async def pop(self, queue: str = "q", partition: str | None = None, **query: Any) -> list[Any]:
        """The messages of a pop; none for 204."""
        answer = await self.pop_answer(queue, partition, **query)
        assert answer.status in (200, 204), answer.body
        return [] if answer.status == 204 else list(answer.json["messages"])

    async def pop_ids(self, queue: str = "q", partition: str | None = None, **query: Any) -> list[str]:
        return [message["transactionId"] for message in await self.pop(queue, partition, **query)]

    async def ack(self, message: Any, status: str | None = "completed", **changes: Any) -> Any:
        """Acks one message under its lease and answers its result; `lease=None` is not fenced."""
        item = acknowledgment(message, status, **changes) | {"consumerGroup": message["consumerGroup"]}
        answer = await self.call("POST", "/api/v1/ack", item)
        assert answer.status == 200, answer.body
        (result,) = answer.json
        return result

    async def ack_all(self, *pairs: tuple[Any, str], **changes: Any) -> list[Any]:
        """Acks (message, status) pairs in one batch call."""
        body = {
            "consumerGroup": pairs[0][0]["consumerGroup"],
            "acknowledgments": [acknowledgment(message, status, **changes) for message, status in pairs],
        }
        answer = await self.call("POST", "/api/v1/ack/batch", body)
        assert answer.status == 200, answer.body
        return list(answer.json)

    async def configure(self, queue: str = "q", **options: Any) -> Answer:
        answer = await self.call("POST", "/api/v1/configure", {"queue": queue, "options": options})
        assert answer.status == 200, answer.body
        return answer

    async def dead_letters(self, **query: Any) -> list[Any]:
        return list((await self.call("GET", "/api/v1/dlq", query=query)).json["messages"])


def acknowledgment(message: Any, status: str | None, **changes: Any) -> dict[str, Any]:
    lease = changes.pop("lease", message["leaseId"])
    item = {"transactionId": message["transactionId"], "partitionId": message["partitionId"], **changes}
    if status is not None:
        item["status"] = status
    if lease is not None:
        item["leaseId"] = lease
    return item


def _wire(value: Any) -> Any:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else value


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.fixture(scope="session")
def driver_type() -> type[Driver]:
    return Driver
