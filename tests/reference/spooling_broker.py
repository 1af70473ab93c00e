"""The reference broker as a process whose storage goes away while a file is there; it then does what Queen 1.x does.

    python spooling_broker.py PORT DATA AWAY [lossy]

While the file AWAY exists, pushes are answered `buffered` and spooled, pops of a named partition 500, other pops 204
(it has not looked), acks 200 with `success:false`, /health 503. Afterwards what was spooled is stored under fresh ids.
With "lossy" it is forgotten instead.
"""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from pathlib import Path
from typing import Any

import uvicorn

from reference_broker import Storage, create_app

FLUSH_S = 0.1


class Spooling:
    """An ASGI application around the reference broker."""

    def __init__(self, data: str, away: Path, *, lossy: bool) -> None:
        self.storage = Storage.open(data)
        self.inner = create_app(storage=self.storage)
        self.away = away
        self.lossy = lossy
        self.spool = Path(data, "spool")
        self.flusher: asyncio.Task[None] | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """One request."""
        if scope["type"] != "http":
            await self.inner(scope, receive, send)
            return
        self.flusher = self.flusher or asyncio.create_task(self._flush())
        if not self._look():
            await self.inner(scope, receive, send)
            return
        status, body = self._without_storage(scope["path"], await _body(receive))
        headers = [(b"content-type", b"application/json")] if body else []
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _look(self) -> bool:
        """Whether the storage is away now."""
        away = self.away.exists()
        if away:
            self.storage.go_away()
        else:
            self.storage.come_back()
        return away

    def _without_storage(self, path: str, body: bytes) -> tuple[int, bytes]:
        if path == "/health":
            return 503, b'{"status":"unhealthy","version":"9.9.9-reference"}'
        if path == "/api/v1/push":
            return 201, json.dumps([self._spooled(*pair) for pair in enumerate(json.loads(body)["items"])]).encode()
        if "/pop/queue/" in path and "/partition/" not in path:
            return 204, b""
        if "/ack" in path:
            count = len(json.loads(body).get("acknowledgments", [None]))
            failed = [{"index": index, "success": False, "error": "pool"} for index in range(count)]
            return 200, json.dumps(failed).encode()
        return 500, b'{"error":"pool"}'

    def _spooled(self, index: int, item: dict[str, Any]) -> dict[str, Any]:
        minted = str(uuid.uuid4())
        item["transactionId"] = item.get("transactionId") or minted
        with self.spool.open("a") as spool:
            spool.write(json.dumps(item) + "\n")
        return {"index": index, "message_id": minted, "transaction_id": item["transactionId"], "status": "buffered"}

    async def _flush(self) -> None:
        """Stores what was spooled, a while after the storage is back."""
        while True:
            await asyncio.sleep(FLUSH_S)
            if self.spool.exists() and not self._look():
                items = [json.loads(line) for line in self.spool.read_text().splitlines()]
                if not self.lossy:
                    await self._push(json.dumps({"items": items}).encode())
                self.spool.unlink()

    async def _push(self, body: bytes) -> None:
        async def receive() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            pass

        scope = {"type": "http", "method": "POST", "path": "/api/v1/push", "query_string": b"", "headers": []}
        await self.inner(scope | {"raw_path": b"/api/v1/push", "root_path": ""}, receive, send)


async def _body(receive: Any) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


if __name__ == "__main__":
    port, data, away, *rest = sys.argv[1:]
    app = Spooling(data, Path(away), lossy=rest == ["lossy"])
    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning")
