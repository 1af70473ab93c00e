"""The server side of a broker in this process: what a real server and a network do, without either.

`DirectASGI` is an httpx transport that calls an ASGI application. Each request runs in a task of its own, as it would
behind a server: a client that gives up or leaves never cancels it, it only makes the application's `receive()` say
"http.disconnect". Nothing but `kill` and `stop` end it. `LeanClient` is an httpx client without what no broker needs.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextvars import ContextVar
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

import httpx

from contract.calls import Ride
from contract.targets.faults import ride_of

Message = MutableMapping[str, Any]
App = Callable[[Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]

MAX_DELAY_MS = 50
"""Longest delay that `checkpoint` makes at one place."""

_current: ContextVar[_Exchange | None] = ContextVar("exchange", default=None)
_of_the_app: ContextVar[bool] = ContextVar("of_the_app", default=False)


class LeanClient(httpx.AsyncClient):
    """An httpx client that hands a request to its transport: no cookies, redirects, authentication, hooks."""

    def __init__(self, transport: httpx.AsyncBaseTransport) -> None:
        super().__init__(transport=transport, trust_env=False)
        self._lean = transport

    async def send(self, request: httpx.Request, **_: Any) -> httpx.Response:
        """Sends a request and reads the answer."""
        response = await self._lean.handle_async_request(request)
        response.request = request
        return response


class _WholeResponse(httpx.Response):
    """A response whose body is there already, so that nothing has to be streamed."""

    def __init__(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        super().__init__(status, headers=_headers(tuple(headers)), stream=httpx.ByteStream(body))
        self._body = body

    @property
    def content(self) -> bytes:
        """The body."""
        return self._body

    async def aread(self) -> bytes:
        """The body."""
        return self._body


@lru_cache(maxsize=1024)
def _headers(pairs: tuple[tuple[bytes, bytes], ...]) -> httpx.Headers:
    """Answers have few kinds of headers; a response copies them."""
    return httpx.Headers(pairs)


class DirectASGI(httpx.AsyncBaseTransport):
    """Calls an ASGI application, which can be paused, stopped and killed.

    While there is no application a request is refused, as on a port where nobody listens. `failed` is told of each
    exception that the application lets out. `delays` puts the drawn delays of a request (see `checkpoint`) on its way
    there and on its answer, for applications that have no checkpoints. `state` is what the application's start left
    for its requests.
    """

    def __init__(
        self, app: App | None = None, *, failed: Callable[[Exception], None] | None = None, delays: bool = False
    ) -> None:
        self.app = app
        self.state: dict[str, Any] = {}
        self.delays = delays
        self._failed = failed
        self._running: dict[_Exchange, None] = {}  # dicts keep the order, which a replay needs
        self._children: dict[asyncio.Task[Any], None] = {}
        self._resumed: asyncio.Event | None = None

    @property
    def up(self) -> bool:
        """Whether there is an application to take requests."""
        return self.app is not None

    @property
    def paused(self) -> bool:
        """Whether the broker does nothing at the moment."""
        return self._resumed is not None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Starts the application's task for a request and waits for its answer."""
        app = self.app
        if app is None:
            raise httpx.ConnectError("connection refused: the broker is down", request=request)
        loop = asyncio.get_running_loop()
        exchange = _Exchange(self, request, loop.create_future())
        self._running[exchange] = None
        exchange.task = loop.create_task(exchange.serve(app))
        try:
            await exchange.answered
        except asyncio.CancelledError:
            exchange.leave()
            raise
        return _WholeResponse(exchange.status, exchange.headers, exchange.body)

    # What can be done to the broker -------------------------------------------------------------------------------

    def pause(self) -> None:
        """From now on nothing goes in, nothing comes out, and nothing passes a checkpoint, until `resume`.

        A timer inside the application may still fire, but what it wakes stops before it touches the storage.
        """
        if self._resumed is None:
            self._resumed = asyncio.Event()

    def resume(self) -> None:
        """Goes on after a pause."""
        if self._resumed is not None:
            self._resumed.set()
            self._resumed = None

    async def kill(self) -> None:
        """Ends every running request; its client sees a broken connection. From here on requests are refused."""
        await self._end(tuple(self._children))

    async def drop(self) -> None:
        """Ends every running request, but not what the application does besides."""
        await self._end(())

    async def _end(self, children: tuple[asyncio.Task[Any], ...]) -> None:
        self.app = None
        running = tuple(self._running)
        for exchange in running:
            exchange.break_off()
        for child in children:
            child.cancel()
        self.resume()
        await asyncio.gather(*(exchange.task for exchange in running), *children, return_exceptions=True)
        for exchange in running:
            exchange.over()  # a task that never began could not say so itself

    async def stop(self, grace_s: float) -> None:
        """Refuses requests, gives the running ones `grace_s`, and ends the rest."""
        self.app = None
        self.resume()
        await self.idle(grace_s)
        await self.kill()

    async def idle(self, timeout_s: float, *, children: bool = True) -> bool:
        """Waits until nothing runs in the application; False when something still does after `timeout_s`.

        `children` False: what it does besides the requests may go on.
        """
        tasks = [*(exchange.task for exchange in self._running), *(self._children if children else ())]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)
        return not self._running and not (children and self._children)

    async def checkpoint(self, name: str) -> None:
        """A place where another request may go first: waits for a drawn time, none where the request draws none.

        Half of the delays are 0, the others are short with a heavy tail, at most `MAX_DELAY_MS`.
        """
        if self._resumed is not None:
            await self.running()
        exchange = _current.get()
        delays = None if exchange is None else exchange.delays
        if delays is None or delays.random() < 0.5:
            return
        await asyncio.sleep(min(MAX_DELAY_MS, int(1 / (1 - delays.random()))) / 1000)
        if self._resumed is not None:
            await self.running()

    def follow_tasks(self, loop: asyncio.AbstractEventLoop) -> None:
        """Lets `kill` also end the tasks that the application starts for itself, in a request or `inside`."""

        def factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
            task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **options)
            if _current.get() is not None or _of_the_app.get():
                self._children[task] = None
                task.add_done_callback(self._children.pop)
            return task

        loop.set_task_factory(factory)

    def report(self, error: Exception) -> None:
        """Tells of an exception that the application let out somewhere else than in a request."""
        if self._failed is not None:
            self._failed(error)

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """What is called or started here is the application's own doing."""
        token = _of_the_app.set(True)
        try:
            yield
        finally:
            _of_the_app.reset(token)

    async def running(self) -> None:
        """Waits while the broker is paused."""
        while self._resumed is not None:
            await self._resumed.wait()

    def runs(self, exchange: _Exchange) -> bool:
        """Whether the application still works on this request."""
        return exchange in self._running

    def ended(self, exchange: _Exchange, error: Exception | None) -> None:
        """Called by an exchange when the application's task for it has ended."""
        del self._running[exchange]
        if error is not None and self._failed is not None:
            self._failed(error)


class _Exchange:
    """One request inside the application, and its answer."""

    __slots__ = (
        "answered", "body", "delays", "delivered", "gone", "headers", "left",
        "request", "ride", "server", "started", "status", "task",
    )  # fmt: skip

    task: asyncio.Task[None]

    def __init__(self, server: DirectASGI, request: httpx.Request, answered: asyncio.Future[None]) -> None:
        self.server = server
        self.request = request
        self.answered = answered
        self.ride: Ride | None = ride_of(request.extensions)
        self.status = 500
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = b""
        self.delivered = False
        self.started = False
        self.left = False
        self.gone: asyncio.Event | None = None
        self.delays: random.Random | None = None

    async def serve(self, app: App) -> None:
        """The body of the application's task."""
        _current.set(self)
        if self.ride is not None and self.ride.jitter:
            self.delays = random.Random(self.ride.jitter)
        if self.server.paused:
            await self.server.running()
        try:
            if self.delays is not None and self.server.delays:
                await self.server.checkpoint("request")
            await app(_scope(self.request, self.server.state), self.receive, self.send)
        except asyncio.CancelledError:
            self.over()
            raise
        except Exception as error:
            self.over(error)
        except SystemExit as error:  # it would end the suite, where a server would end
            self.over(RuntimeError(f"the application asked to exit with {error.code!r}"))
        else:
            self.over()

    async def receive(self) -> Message:
        """The request's body, then nothing until the client has left."""
        if not self.delivered:
            self.delivered = True
            return {"type": "http.request", "body": self.request.content, "more_body": False}
        if not self.left:
            self.gone = self.gone or asyncio.Event()
            await self.gone.wait()
        await self.server.running()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Takes a part of the answer; the last one wakes the client."""
        if self.server.paused:
            await self.server.running()
        if message["type"] == "http.response.start":
            self.status, self.headers = _head(message)
            self.started = True
        elif message["type"] == "http.response.body":
            self.body += message.get("body", b"")
            if not message.get("more_body", False):
                if self.delays is not None and self.server.delays:
                    await self.server.checkpoint("answer")
                self._answer()
                self.leave()  # once answered, a server says "disconnect" as well

    def leave(self) -> None:
        """The client is gone."""
        self.left = True
        if self.gone is not None:
            self.gone.set()

    def break_off(self) -> None:
        """The broker dies under this request."""
        self.task.cancel()
        self._break("connection broken: the broker died")

    def over(self, error: Exception | None = None) -> None:
        """The application is done with this request, so it can have no further effect.

        Called before a client can act on the answer that was just sent, so that an effect ends before what follows it.
        """
        if not self.server.runs(self):
            return
        self.server.ended(self, error)
        if self.started:
            self._break("connection broken in the middle of the answer")
        elif not self.answered.done():
            self.body = b"Internal Server Error"  # what a server says for an application that says nothing
            self._answer()
        if self.ride is not None:
            self.ride.end()

    def _break(self, why: str) -> None:
        if not self.answered.done():
            self.answered.set_exception(httpx.ReadError(why, request=self.request))

    def _answer(self) -> None:
        if not self.answered.done():
            self.answered.set_result(None)


def _head(message: Message) -> tuple[int, list[tuple[bytes, bytes]]]:
    """Status and headers of an answer. Raises, inside the application, what a server says of others than these."""
    status = message["status"]
    if not isinstance(status, int) or not 100 <= status <= 999:
        raise ValueError(f"{status!r} is not an HTTP status")
    headers = [(name, value) for name, value in message.get("headers", ())]
    if not all(isinstance(part, bytes) for pair in headers for part in pair):
        raise TypeError("headers are pairs of bytes")
    return status, headers


def _scope(request: httpx.Request, state: dict[str, Any]) -> Message:
    raw_path, _, query = request.url.raw_path.partition(b"?")
    path = raw_path.decode("ascii")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": unquote(path) if "%" in path else path,
        "raw_path": raw_path,
        "query_string": query,
        "root_path": "",
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "server": ("broker", 80),
        "client": ("127.0.0.1", 1),
        "state": dict(state),
    }
