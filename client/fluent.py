"""A small fluent client in the shape of the official `queen-mq`, built on `BrokerClient`.

The common part works alike: code that uses only what is here runs with either import. Differences: no push is retried;
a failed `push` or `pop` raises `CallFailedError`, which carries the outcome; names are encoded into paths;
`idle_millis` also ends a parked wait; a batch never asks for more messages than `limit` leaves.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from client.answers import AckAnswer, AckItem, Message, PushItem
from client.broker_client import BrokerClient
from client.outcome import Call, Outcome

Handler = Callable[[Any], Awaitable[object] | object]

_LOG = logging.getLogger(__name__)
_BACK_OFF_S = 1.0
_POLL_S = 0.1
_STORED = frozenset({"queued", "duplicate", "buffered"})
_STATUS_WORDS = {True: "completed", False: "failed"}


class CallFailedError(Exception):
    """A call that was refused or whose outcome is unknown: `call` says which and why."""

    def __init__(self, what: str, call: Call[Any], why: str = "") -> None:
        super().__init__(f"{what}: {call.outcome.value}, {why or call.why}")
        self.call = call


class Queen:
    """The way in: `async with Queen(url="http://127.0.0.1:6632") as queen: await queen.queue("orders").push([...])`.

    `broker` takes a `BrokerClient` instead of a URL; it is not closed by `close`. Raises `ValueError` for a bad URL.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        broker: BrokerClient | None = None,
        timeout_millis: int = 30_000,
        bearer_token: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        if (url is None) == (broker is None):
            raise ValueError("give either the url of a broker or a BrokerClient as broker")
        self._owned = broker is None
        self._broker = broker or BrokerClient.connect(
            url or "", timeout_s=timeout_millis / 1000, bearer_token=bearer_token, headers=headers
        )

    def queue(self, name: str) -> QueueBuilder:
        """What to do with one queue."""
        return QueueBuilder(self, self._broker, name)

    async def ack(
        self,
        message: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        status: bool | str = True,
        context: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Acknowledges a message, or a list of one group's messages in one call.

        `status`: True completed, False failed (comes back), or the broker's word. `context`: `group` and `error`.
        Returns a dictionary with `success` and, where it is False, `error`; for one message also `noop` and `dlq`, for
        a list `results` with the same for each. Does not raise for what the broker answers.
        """
        about = context or {}
        group = about.get("group")
        if isinstance(message, Mapping):
            return _ack_report(await self._broker.ack(_ack_item(message, status, about), group=group))
        if not message:
            return {"success": True, "results": []}
        items = [_ack_item(one, status, about) for one in message]
        return _ack_report(await self._broker.ack_batch(items, group=group), many=True)

    async def close(self) -> None:
        """Closes the connections."""
        if self._owned:
            await self._broker.close()

    async def __aenter__(self) -> Queen:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class QueueBuilder:
    """One queue and how to use it. Every setter returns the builder itself."""

    def __init__(self, queen: Queen, broker: BrokerClient, name: str) -> None:
        if not name:
            raise ValueError("the name of a queue must not be empty")
        self._queen = queen
        self._broker = broker
        self._name = name
        self._partition: str | None = None
        self._group: str | None = None
        self._mode: str | None = None
        self._from: str | None = None
        self._batch: int | None = None
        self._partitions: int | None = None
        self._each = False
        self._wait = True
        self._timeout_millis = 30_000
        self._limit: int | None = None
        self._idle_millis: int | None = None
        self._auto_ack = True
        self._commit_on_delivery = False
        self._options: dict[str, Any] = {}

    # Setters ------------------------------------------------------------------------------------------------------

    def partition(self, name: str) -> QueueBuilder:
        """Push to and pop from this partition; without it `Default`, and whichever the broker picks."""
        self._partition = name
        return self

    def group(self, name: str) -> QueueBuilder:
        """Consume as this group; without it as the plain competing consumers."""
        self._group = name
        return self

    def subscription_mode(self, mode: str) -> QueueBuilder:
        """Where a group starts at its first pop: "all" or "new"."""
        self._mode = mode
        return self

    def subscription_from(self, from_: str) -> QueueBuilder:
        """Where a group starts at its first pop: an ISO time or "now"."""
        self._from = from_
        return self

    def batch(self, size: int) -> QueueBuilder:
        """At most so many messages a pop; 0 or less leaves it to the broker."""
        self._batch = size if size > 0 else None
        return self

    def partitions(self, count: int) -> QueueBuilder:
        """At most so many partitions a pop; 0 or less leaves it to the broker."""
        self._partitions = count if count > 0 else None
        return self

    def each(self) -> QueueBuilder:
        """The handler gets one message at a time, each acknowledged by itself."""
        self._each = True
        return self

    def wait(self, enabled: bool) -> QueueBuilder:
        """Whether a pop parks at the broker until something comes."""
        self._wait = enabled
        return self

    def timeout_millis(self, millis: int) -> QueueBuilder:
        """How long a pop parks."""
        self._timeout_millis = millis
        return self

    def limit(self, count: int | None) -> QueueBuilder:
        """`consume` ends after so many messages were handled."""
        self._limit = count
        return self

    def idle_millis(self, millis: int | None) -> QueueBuilder:
        """`consume` ends when nothing came for so long."""
        self._idle_millis = millis
        return self

    def auto_ack(self, enabled: bool) -> QueueBuilder:
        """Whether `consume` acknowledges what its handler returns from (default). False: the handler does, and what it
        raises ends `consume`."""
        self._auto_ack = enabled
        return self

    def commit_on_delivery(self, enabled: bool = True) -> QueueBuilder:
        """`pop` commits while it delivers: at most once, no lease, nothing to acknowledge."""
        self._commit_on_delivery = enabled
        return self

    def config(self, options: Mapping[str, Any]) -> QueueBuilder:
        """Options for `create`, in snake_case (`lease_time`, `retry_limit`, ...)."""
        self._options = dict(options)
        return self

    # Calls --------------------------------------------------------------------------------------------------------

    async def create(self) -> None:
        """Configures the queue with the options of `config`."""
        options = {_camel(name): value for name, value in self._options.items()}
        _value(f"create of queue {self._name!r}", await self._broker.configure(self._name, options))

    async def delete(self) -> None:
        """Deletes the queue and everything in it."""
        _value(f"delete of queue {self._name!r}", await self._broker.delete_queue(self._name))

    async def push(self, payload: Any) -> list[dict[str, Any]]:
        """Stores one message or a list of them, in this order; each is its payload, or a dictionary with `data` (or
        `payload`) and perhaps `transactionId`.

        Returns one dictionary an item: `index`, `status`, `message_id`, `transaction_id`. Raises `CallFailedError` when
        any of them was not certainly stored.
        """
        given = payload if isinstance(payload, list) else [payload]
        call = await self._broker.push([self._push_item(item) for item in given])
        what = f"push to queue {self._name!r}"
        answer = _value(what, call)
        for item in answer:
            if item.status not in _STORED:
                raise CallFailedError(what, call, f"{item.status}: {item.error or 'no reason given'}")
        return [
            {
                "index": index,
                "status": item.status,
                "message_id": item.message_id,
                "transaction_id": item.transaction_id,
                "queueName": self._name,
            }
            for index, item in enumerate(answer)
        ]

    async def pop(self) -> list[dict[str, Any]]:
        """The next messages, leased; [] for none. Raises `CallFailedError`."""
        call = await self._pop(self._batch, self._timeout_millis, auto_ack=self._commit_on_delivery)
        messages: list[dict[str, Any]] = _value(f"pop of queue {self._name!r}", call)
        return messages

    async def consume(self, handler: Handler, *, signal: asyncio.Event | None = None) -> None:
        """Pops and hands messages to `handler` until `limit`, `idle_millis` or `signal` ends it (without: for ever).

        With `each`, or `batch(1)`, the handler gets one message, else a list; it may be a coroutine function. When it
        returns, the messages are acknowledged; when it raises, they are reported as failed and come back. A broker that
        cannot be reached is tried again after a second; one that refuses the pop raises `CallFailedError`.
        """
        if self._commit_on_delivery:
            raise ValueError("commit_on_delivery() is for pop(); consume() always leases its messages")
        await _Consumption(self, handler, signal).run()

    # For the calls ------------------------------------------------------------------------------------------------

    def _push_item(self, item: Any) -> PushItem:
        payload, transaction_id = item, None
        if isinstance(item, dict):
            payload = item["data"] if "data" in item else item.get("payload", item)
            transaction_id = item.get("transactionId")
        text = json.dumps(payload, allow_nan=False, separators=(",", ":")).encode()
        return PushItem(self._name, self._partition or "Default", text, transaction_id)

    async def _pop(self, batch: int | None, park_ms: int, *, auto_ack: bool = False) -> Call[list[dict[str, Any]]]:
        call = await self._broker.pop(
            self._name,
            partition=self._partition,
            group=self._group,
            batch=batch,
            partitions=self._partitions,
            wait_ms=park_ms if self._wait else None,
            auto_ack=auto_ack,
            mode=self._mode,
            from_=self._from,
        )
        if call.value is None:
            return Call(call.outcome, call.status, call.why)
        messages = [self._message(message) for message in call.value.messages]
        return Call(call.outcome, call.status, "", messages, call.oddities)

    def _message(self, message: Message) -> dict[str, Any]:
        return {
            "id": message.id,
            "transactionId": message.transaction_id,
            "queue": self._name,
            "partition": message.partition,
            "partitionId": message.partition_id,
            "leaseId": message.lease_id or None,
            "consumerGroup": self._group,
            "data": json.loads(message.data),
        }


class _Consumption:
    """One running `consume`."""

    def __init__(self, builder: QueueBuilder, handler: Handler, signal: asyncio.Event | None) -> None:
        self._builder = builder
        self._handler = handler
        self._signal = signal
        self._handled = 0
        self._last_message_s = time.monotonic()

    async def run(self) -> None:
        while not self._over():
            messages = await self._next_messages()
            if not messages:
                continue
            if self._builder._each:
                await self._one_by_one(messages)
            else:
                single = self._builder._batch == 1 and len(messages) == 1
                await self._handle(messages[0] if single else messages)
                self._handled += len(messages)
            # A slow handler is not an idle queue.
            self._last_message_s = time.monotonic()

    def _over(self) -> bool:
        left = self._left()
        return (left is not None and left <= 0) or self._stopped() or self._idle_left_ms() == 0

    def _stopped(self) -> bool:
        return self._signal is not None and self._signal.is_set()

    def _left(self) -> int | None:
        return None if self._builder._limit is None else self._builder._limit - self._handled

    def _idle_left_ms(self) -> int | None:
        """Milliseconds until the queue counts as idle, None for never."""
        if self._builder._idle_millis is None:
            return None
        passed_ms = int((time.monotonic() - self._last_message_s) * 1000)
        return max(0, self._builder._idle_millis - passed_ms)

    async def _next_messages(self) -> list[dict[str, Any]]:
        builder, left, idle_ms = self._builder, self._left(), self._idle_left_ms()
        batch = builder._batch if left is None else min(builder._batch or left, left)
        park_ms = builder._timeout_millis if idle_ms is None else min(builder._timeout_millis, idle_ms)
        asked_s = time.monotonic()
        call = await builder._pop(batch, park_ms)
        if call.value is None:
            if call.outcome is Outcome.REFUSED and call.status is not None:
                raise CallFailedError(f"pop of queue {builder._name!r}", call)
            _LOG.warning("pop of queue %r: %s, %s", builder._name, call.outcome.value, call.why)
            await self._pause(_BACK_OFF_S)
        elif not call.value and time.monotonic() - asked_s < _POLL_S:
            # Not parked, or a broker that does not park: do not spin.
            await self._pause(_POLL_S)
        return call.value or []

    async def _pause(self, pause_s: float) -> None:
        idle_ms = self._idle_left_ms()
        await asyncio.sleep(pause_s if idle_ms is None else min(pause_s, idle_ms / 1000))

    async def _one_by_one(self, messages: list[dict[str, Any]]) -> None:
        """A failed message takes the rest of its partition with it: the broker gives that again from there."""
        failed: set[str] = set()
        for message in messages:
            if self._stopped():
                return
            if message["partitionId"] in failed:
                continue
            if not await self._handle(message):
                failed.add(message["partitionId"])
            self._handled += 1

    async def _handle(self, given: dict[str, Any] | list[dict[str, Any]]) -> bool:
        """Hands out and acknowledges; False when the handler raised."""
        try:
            result = self._handler(given)
            if inspect.isawaitable(result):
                await result
        except Exception as error:
            if not self._builder._auto_ack:
                raise
            _LOG.warning("handler of queue %r failed: %r", self._builder._name, error)
            await self._acknowledge(given, False, str(error))
            return False
        if self._builder._auto_ack:
            await self._acknowledge(given, True)
        return True

    async def _acknowledge(
        self, given: dict[str, Any] | list[dict[str, Any]], status: bool, error: str | None = None
    ) -> None:
        context = {"group": self._builder._group, "error": error}
        report = await self._builder._queen.ack(given, status, context)
        if not report["success"]:
            _LOG.warning("ack in queue %r was not taken: %s", self._builder._name, report["error"])


def _value(what: str, call: Call[Any]) -> Any:
    if call.outcome is not Outcome.OK:
        raise CallFailedError(what, call)
    return call.value


def _ack_item(message: Mapping[str, Any], status: bool | str, context: Mapping[str, Any]) -> AckItem:
    try:
        transaction_id, partition_id = message["transactionId"], message["partitionId"]
    except KeyError as error:
        raise ValueError(f"a message to acknowledge needs {error.args[0]}: {dict(message)!r}") from None
    word = _STATUS_WORDS[status] if isinstance(status, bool) else status
    return AckItem(transaction_id, partition_id, word, message.get("leaseId") or None, context.get("error"))


def _ack_report(call: Call[AckAnswer], *, many: bool = False) -> dict[str, Any]:
    if call.value is None:
        return {"success": False, "error": f"{call.outcome.value}, {call.why}"}
    results = [
        {"success": item.success, "error": item.error, "noop": item.noop, "dlq": item.dlq} for item in call.value
    ]
    failed = [item for item in results if not item["success"]]
    report: dict[str, Any] = {"success": not failed, "results": results} if many else results[0]
    if failed:
        report["error"] = failed[0]["error"] or "the broker did not take it"
    return report


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)
