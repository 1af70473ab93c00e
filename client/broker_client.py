"""One method, one HTTP request, no retry: what a program says to a broker."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import httpx

from client import decoding, encoding
from client.answers import AckAnswer, AckItem, Done, ExtendAnswer, Health, PopAnswer, PushAnswer, PushItem
from client.outcome import SENDING_ERRORS, Call, Outcome, of_exception, of_status, shorten

T = TypeVar("T")

Extensions = Mapping[str, Any]
_Reader = Callable[[bytes], tuple[T, tuple[str, ...]]]

CONNECT_TIMEOUT_S = 5.0
# A parked pop is answered a little after its own timeout; give up only well after that.
_WAIT_SLACK_S = 5.0
_IN_PROCESS = "http://broker"
_NOTHING_POPPED = Call(Outcome.OK, 204, "", PopAnswer())
_DONE_BRIEFLY = Call(Outcome.OK, 204, "", Done(), ("status 204 instead of 200",))
_JSON = (b"content-type", b"application/json")


class BrokerClient:
    """A client of one broker.

    Every method sends exactly one request and returns a `Call`: OK with a typed value, REFUSED (certainly no effect) or
    UNKNOWN; `client/outcome.py` has the table. No method raises for what a broker or a network does. All take:

    - `timeout_s`: gives up on this call after that many seconds, which is UNKNOWN. None takes the client's, for a pop
      that waits at least its wait and five seconds more.
    - `extensions`: passed to `httpx.Request.extensions` as they are.

    `http` is used as it is handed in and is not closed by `close`. Its base URL (none: an in-process name), headers and
    `send` count; cookies and redirects do not. `path_prefix` stands in front of every path, as behind a reverse proxy.
    """

    def __init__(self, http: httpx.AsyncClient, *, path_prefix: str = "", timeout_s: float = 35.0) -> None:
        base = str(http.base_url).rstrip("/")
        self._http = http
        self._owned = False
        self._timeout_s = _positive(timeout_s)
        self._base = (base if "://" in base else _IN_PROCESS) + _prefix(path_prefix)
        host = _url(self._base).netloc
        own = _chosen_headers(http.headers)
        defaults = [(b"host", host), (b"accept", b"application/json"), (b"user-agent", b"broker-contract")]
        chosen = {name.lower() for name, _ in own}
        self._headers = [*(pair for pair in defaults if pair[0] not in chosen), *own]
        self._bodiless = httpx.Headers(self._headers)
        self._timeouts = _timeouts(timeout_s)

    @classmethod
    def connect(
        cls,
        url: str,
        *,
        timeout_s: float = 35.0,
        bearer_token: str | None = None,
        headers: Mapping[str, str] | None = None,
        path_prefix: str = "",
        ca_file: str | Path | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> BrokerClient:
        """A client with a connection pool of its own, which `close` closes.

        A path in `url` comes before `path_prefix`. `ca_file`: a PEM file with the authorities to trust instead of the
        system's. Proxy settings of the environment are not used. Raises `ValueError` that names the value where the
        URL, a header, the token or the file cannot be used.
        """
        base = parse_url(url)
        sent = _headers(headers, bearer_token)
        if transport is None:
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
            transport = httpx.AsyncHTTPTransport(verify=_trust(base, ca_file), trust_env=False, limits=limits)
        http = httpx.AsyncClient(base_url=base, headers=sent, transport=transport, trust_env=False)
        client = cls(http, path_prefix=path_prefix, timeout_s=timeout_s)
        client._owned = True
        return client

    async def close(self) -> None:
        """Closes the connections of a client made by `connect`."""
        if self._owned:
            await self._http.aclose()

    async def __aenter__(self) -> BrokerClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # The calls ----------------------------------------------------------------------------------------------------

    async def push(
        self, items: Sequence[PushItem], *, extensions: Extensions | None = None, timeout_s: float | None = None
    ) -> Call[PushAnswer]:
        """Stores messages. OK is not "stored": each item has its own status."""
        read = partial(decoding.pushed, items=len(items))
        body = encoding.push_body(items)
        return await self._call("POST", "/api/v1/push", body, read, (201,), extensions, timeout_s)

    async def pop(
        self,
        queue: str,
        *,
        partition: str | None = None,
        group: str | None = None,
        batch: int | None = None,
        partitions: int | None = None,
        lease_s: int | None = None,
        wait_ms: int | None = None,
        auto_ack: bool = False,
        mode: str | None = None,
        from_: str | None = None,
        conflation: bool = False,
        parameters: Mapping[str, str] | None = None,
        extensions: Extensions | None = None,
        timeout_s: float | None = None,
    ) -> Call[PopAnswer]:
        """Asks for messages: of the named partition, or of whichever the broker picks.

        None: not sent, the broker's default counts. `group` None or "" names no group. `wait_ms` parks the call at the
        broker for up to that time. `parameters` are further query parameters.
        """
        path = "/api/v1/pop/queue/" + encoding.segment(queue)
        if partition is not None:
            path += "/partition/" + encoding.segment(partition)
        path += _pop_query(
            batch, partitions, group or None, lease_s, wait_ms, auto_ack, mode, from_, conflation, parameters
        )
        if timeout_s is None and wait_ms is not None:
            timeout_s = max(self._timeout_s, wait_ms / 1000 + _WAIT_SLACK_S)
        return await self._call("GET", path, None, decoding.popped, (200,), extensions, timeout_s, _NOTHING_POPPED)

    async def ack(
        self,
        item: AckItem,
        *,
        group: str | None = None,
        extensions: Extensions | None = None,
        timeout_s: float | None = None,
    ) -> Call[AckAnswer]:
        """Acknowledges one message by the endpoint for one. `group` None or "" names no group."""
        read = partial(decoding.acked, items=1, single=True)
        body = encoding.ack_body(item, group)
        return await self._call("POST", "/api/v1/ack", body, read, (200,), extensions, timeout_s)

    async def ack_batch(
        self,
        items: Sequence[AckItem],
        *,
        group: str | None = None,
        extensions: Extensions | None = None,
        timeout_s: float | None = None,
    ) -> Call[AckAnswer]:
        """Acknowledges many messages of one group. OK is not "accepted": each item has its own `success`."""
        read = partial(decoding.acked, items=len(items))
        body = encoding.ack_batch_body(items, group)
        return await self._call("POST", "/api/v1/ack/batch", body, read, (200,), extensions, timeout_s)

    async def extend(
        self,
        lease_id: str,
        *,
        seconds: int,
        extensions: Extensions | None = None,
        timeout_s: float | None = None,
    ) -> Call[ExtendAnswer]:
        """Extends a lease to at least `seconds` from now."""
        path = f"/api/v1/lease/{encoding.segment(lease_id)}/extend"
        body = encoding.extend_body(seconds)
        return await self._call("POST", path, body, decoding.extended, (200,), extensions, timeout_s)

    async def delete_queue(
        self, queue: str, *, extensions: Extensions | None = None, timeout_s: float | None = None
    ) -> Call[Done]:
        """Deletes a queue with its messages, cursors and leases; one that is not there is deleted too."""
        path = "/api/v1/resources/queues/" + encoding.segment(queue)
        return await self._call("DELETE", path, None, decoding.done, (200,), extensions, timeout_s, _DONE_BRIEFLY)

    async def seek(
        self,
        queue: str,
        group: str,
        *,
        partition: str | None = None,
        to_end: bool = False,
        timestamp: str | None = None,
        extensions: Extensions | None = None,
        timeout_s: float | None = None,
    ) -> Call[Done]:
        """Moves a group's cursors in a queue, or in one partition of it: to the end, or to an ISO time.

        Raises `ValueError` unless exactly one of `to_end` and `timestamp` is given.
        """
        if to_end == (timestamp is not None):
            raise ValueError(f"a seek goes to the end or to a time, not to_end={to_end}, timestamp={timestamp!r}")
        path = f"/api/v1/consumer-groups/{encoding.segment(group)}/queues/{encoding.segment(queue)}"
        if partition is not None:
            path += "/partitions/" + encoding.segment(partition)
        body = encoding.seek_body(to_end, timestamp)
        return await self._call(
            "POST", path + "/seek", body, decoding.done, (200,), extensions, timeout_s, _DONE_BRIEFLY
        )

    async def configure(
        self,
        queue: str,
        options: Mapping[str, object],
        *,
        namespace: str | None = None,
        task: str | None = None,
        extensions: Extensions | None = None,
        timeout_s: float | None = None,
    ) -> Call[Done]:
        """Sets options of a queue, by their names on the wire (`leaseTime`, `retryLimit`, ...)."""
        body = encoding.configure_body(queue, options, namespace, task)
        path = "/api/v1/configure"
        return await self._call("POST", path, body, decoding.done, (200, 201), extensions, timeout_s, _DONE_BRIEFLY)

    async def health(self, *, extensions: Extensions | None = None, timeout_s: float | None = None) -> Call[Health]:
        """Asks whether the broker is ready; 503 with a JSON body is OK with `ready` False."""
        response, refusal = await self._send("GET", "/health", None, extensions, timeout_s)
        if response is None:
            return Call(*refusal)
        ready = response.status_code != 503
        read = partial(decoding.health, ready=ready)
        return _understand(response, read, (200,) if ready else (503,))

    # Sending ------------------------------------------------------------------------------------------------------

    async def _call(
        self,
        method: str,
        target: str,
        body: bytes | None,
        read: _Reader[T],
        documented: tuple[int, ...],
        extensions: Extensions | None,
        timeout_s: float | None,
        on_204: Call[T] | None = None,
    ) -> Call[T]:
        response, refusal = await self._send(method, target, body, extensions, timeout_s)
        if response is None:
            return Call(*refusal)
        if on_204 is not None and response.status_code == 204:
            return on_204
        return _understand(response, read, documented)

    async def _send(
        self, method: str, target: str, body: bytes | None, extensions: Extensions | None, timeout_s: float | None
    ) -> tuple[httpx.Response | None, tuple[Outcome, None, str]]:
        """The answer with its body read; without one the outcome, no status and the reason."""
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        try:
            request = self._request(method, target, body, extensions, timeout_s)
            # httpx knows no time-out for a whole call, and none at all in process.
            async with asyncio.timeout(limit_s):
                response = await self._http.send(request)
                await response.aread()
        except TimeoutError:
            return None, (Outcome.UNKNOWN, None, f"no answer within {limit_s:g} s")
        except SENDING_ERRORS as error:
            outcome, why = of_exception(error)
            return None, (outcome, None, why)
        return response, (Outcome.OK, None, "")

    def _request(
        self, method: str, target: str, body: bytes | None, extensions: Extensions | None, timeout_s: float | None
    ) -> httpx.Request:
        """A request without what `AsyncClient.build_request` does in 30 microseconds and nobody needs here."""
        headers: httpx.Headers | list[tuple[bytes, bytes]] = self._bodiless
        if body is not None:
            headers = [*self._headers, _JSON, (b"content-length", b"%d" % len(body))]
        known: dict[str, Any] = {"timeout": self._timeouts if timeout_s is None else _timeouts(timeout_s)}
        if extensions is not None:
            known.update(extensions)
        url = _url(self._base + target)
        request = httpx.Request(method, url, headers=headers, stream=httpx.ByteStream(body or b""), extensions=known)
        request.read()
        return request


def _understand(response: httpx.Response, read: _Reader[T], documented: tuple[int, ...]) -> Call[T]:
    """Applies the table of `outcome.py` to an answer."""
    status, body = response.status_code, response.content
    if status not in documented and not 200 <= status < 300:
        return Call(of_status(status), status, _reason(response, body))
    try:
        value, oddities = read(body)
    except decoding.UnreadableError as unreadable:
        return Call(unreadable.outcome, status, unreadable.why)
    if status not in documented:
        oddities = (*oddities, f"status {status} instead of {documented[0]}")
    return Call(Outcome.OK, status, "", value, oddities)


def _reason(response: httpx.Response, body: bytes) -> str:
    """Why an answer outside 2xx is none."""
    if 300 <= response.status_code < 400:
        return f"not a broker's answer: redirect to {shorten(response.headers.get('location', 'nowhere'))!r}"
    return f"status {response.status_code}: {shorten(body)}" if body else f"status {response.status_code}"


def _pop_query(
    batch: int | None,
    partitions: int | None,
    group: str | None,
    lease_s: int | None,
    wait_ms: int | None,
    auto_ack: bool,
    mode: str | None,
    from_: str | None,
    conflation: bool,
    parameters: Mapping[str, str] | None,
) -> str:
    """The query string of a pop; flags are lower case and only sent when set."""
    found: list[tuple[str, str]] = []
    if batch is not None:
        found.append(("batch", str(batch)))
    if partitions is not None:
        found.append(("partitions", str(partitions)))
    if group is not None:
        found.append(("consumerGroup", group))
    if lease_s is not None:
        found.append(("leaseSeconds", str(lease_s)))
    if wait_ms is not None:
        found += (("wait", "true"), ("timeout", str(wait_ms)))
    if auto_ack:
        found.append(("autoAck", "true"))
    if mode is not None:
        found.append(("subscriptionMode", mode))
    if from_ is not None:
        found.append(("subscriptionFrom", from_))
    if conflation:
        found.append(("conflation", "true"))
    if parameters is not None:
        found += parameters.items()
    return encoding.query(found)


# Connecting -------------------------------------------------------------------------------------------------------


def parse_url(url: str) -> str:
    """The address of a broker, checked. Raises `ValueError`: one sentence with the value."""
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, TypeError, ValueError) as error:
        raise ValueError(f"broker URL {url!r} is not valid: {error}") from None
    if parsed.scheme not in ("http", "https"):
        raise ValueError(f"broker URL {url!r} needs http:// or https:// in front, as in http://127.0.0.1:6632")
    if not parsed.host:
        raise ValueError(f"broker URL {url!r} names no host, as in http://127.0.0.1:6632")
    if parsed.port is not None and not 0 < parsed.port < 65536:
        raise ValueError(f"broker URL {url!r} has port {parsed.port}, which is not between 1 and 65535")
    if any(letter.isspace() for letter in url):
        raise ValueError(f"broker URL {url!r} holds a space")
    if parsed.query or parsed.fragment:
        raise ValueError(f"broker URL {url!r} must end after its path, without ? or #")
    return str(parsed)


def _trust(base: str, ca_file: str | Path | None) -> ssl.SSLContext:
    """Whom to trust. For http the certificates are not loaded, which costs 20 ms."""
    if not base.startswith("https:"):
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if ca_file is None:
        return ssl.create_default_context()
    try:
        return ssl.create_default_context(cafile=str(ca_file))
    except OSError as error:  # ssl.SSLError is one
        raise ValueError(f"CA file {str(ca_file)!r} cannot be used: {error.strerror or error}") from None


def _headers(headers: Mapping[str, str] | None, bearer_token: str | None) -> dict[str, str]:
    sent = dict(headers or {})
    if bearer_token is not None:
        sent["Authorization"] = f"Bearer {bearer_token}"
    for name, value in sent.items():
        shown = "the bearer token" if bearer_token is not None and name == "Authorization" else f"header {name!r}"
        if not name.isascii() or not name or any(letter in name for letter in " \t\r\n:"):
            raise ValueError(f"header name {name!r} cannot be sent")
        if not value.isascii() or not (value.isprintable() or not value):
            raise ValueError(f"{shown} holds a character that cannot be sent in a header")
    return sent


def _chosen_headers(headers: httpx.Headers) -> list[tuple[bytes, bytes]]:
    """The headers of an `httpx.AsyncClient` without those that httpx puts in by itself."""
    defaults = {(b"accept", b"*/*"), (b"connection", b"keep-alive")}
    return [
        (name, value)
        for name, value in headers.raw
        if (name.lower(), value) not in defaults
        and name.lower() != b"accept-encoding"
        and not value.startswith(b"python-httpx/")
    ]


def _prefix(path_prefix: str) -> str:
    """A path prefix with one slash in front and none behind; "" for none."""
    inner = path_prefix.strip("/")
    return "/" + inner if inner else ""


def _positive(timeout_s: float) -> float:
    if not timeout_s > 0:
        raise ValueError(f"timeout_s is {timeout_s!r}; it must be greater than 0")
    return timeout_s


def _timeouts(timeout_s: float) -> dict[str, float]:
    """httpx's own limits. Connecting gives up before the call does: then it is certain that nothing was sent."""
    connect_s = min(CONNECT_TIMEOUT_S, 0.9 * timeout_s)
    return {"connect": connect_s, "read": timeout_s, "write": timeout_s, "pool": connect_s}


@lru_cache(maxsize=4096)
def _url(text: str) -> httpx.URL:
    """Parsing costs as much as the rest of a request, and queues are popped again and again."""
    return httpx.URL(text)
