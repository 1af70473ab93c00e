"""One call of a run: sent through the client, recorded in the history, its outcome understood.

The history's `Call` says what is asked; what goes over the wire is derived from it, so that the two cannot differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import client as wire
from client import BrokerClient, Outcome
from contract import history
from strategies.schedule import Faulty

MICROSECONDS = 1_000_000

EXTENSION = "broker_contract"
"""Under this name a `Ride` travels in `httpx.Request.extensions`, down to the target's transport."""

QUEUE_MODE = "__QUEUE_MODE__"
"""The reserved name of consumers that name no group, where a path needs one."""

# The lease of a queue that configure created, where nobody named one.
CONFIGURED_LEASE_S = 300


class Ride:
    """What travels with one request: its fault, the seed of its interleaving, and the news of its end.

    `end` is called by the transport once the broker is done with the request. It is passed on to `listener` when the
    outcome of the call is unknown, and then only; whichever of the two is known first waits for the other.
    """

    __slots__ = ("acted", "call", "ended", "fault", "jitter", "listener", "request", "unknown")

    def __init__(
        self, call: int, request: history.Call, jitter: int, fault: Faulty | None, listener: Callable[[Ride], None]
    ) -> None:
        self.call = call
        self.request = request
        self.jitter = jitter
        self.fault = fault
        self.listener = listener
        self.ended = False
        self.unknown = False
        self.acted: bool | None = None

    def end(self, acted: bool | None = None) -> None:
        """The request can have no further effect. `acted` False: it certainly never had one."""
        if self.ended:
            return
        self.ended = True
        self.acted = acted
        if self.unknown:
            self.listener(self)

    def outcome_is_unknown(self) -> None:
        """The client got no answer that it understands."""
        self.unknown = True
        if self.ended:
            self.listener(self)


class LeaseHorizon:
    """The latest moment at which a lease that somebody may hold can still be alive."""

    def __init__(self, default_lease_s: int) -> None:
        self._end_us = 0
        self._open: dict[int, int] = {}
        self._default_lease_s = default_lease_s

    @property
    def end_us(self) -> int:
        """That moment, by what is known now."""
        return max(self._end_us, *self._open.values(), 0)

    def configured(self, options: Mapping[str, object]) -> None:
        """A configure was sent: from now on the longest of the leases that may be in force counts."""
        named = options.get("leaseTime")
        self._default_lease_s = max(
            self._default_lease_s, CONFIGURED_LEASE_S, named if isinstance(named, int) else CONFIGURED_LEASE_S
        )

    def acted(self, request: history.Call, at_us: int) -> None:
        """The call may have acted as late as `at_us`."""
        self._end_us = max(self._end_us, self._lease_end_us(request, at_us))

    def unanswered(self, number: int, request: history.Call, at_us: int) -> None:
        """The client gave call `number` up at `at_us`; a parked pop may still act while it is parked."""
        wait_ms = request.wait_ms or 0 if isinstance(request, history.PopCall) else 0
        self._open[number] = self._lease_end_us(request, at_us + wait_ms * 1000)

    def ended(self, number: int) -> None:
        """Call `number` can act no more; when it acted at the latest is told separately."""
        self._open.pop(number, None)

    def _lease_end_us(self, request: history.Call, at_us: int) -> int:
        lease_s = 0
        if isinstance(request, history.PopCall) and not request.auto_ack:
            lease_s = self._default_lease_s if request.lease_s is None else request.lease_s
        elif isinstance(request, history.ExtendCall):
            lease_s = request.seconds
        return at_us + lease_s * MICROSECONDS


class Caller:
    """Sends calls, numbers them and records them.

    `client` gives the client of a worker. Events are recorded in the order in which they happen; after `close` nothing
    is recorded any more. `stored_ids` are the ids of all messages that answers named as stored; `open_pushes` counts
    the pushes that may have stored something else: unanswered, answered in part, or still on their way. `spooled`: some
    of them were answered `buffered`.
    """

    def __init__(
        self,
        recorder: history.Recorder,
        client: Callable[[str], BrokerClient],
        now_us: Callable[[], int],
        horizon: LeaseHorizon,
    ) -> None:
        self.now_us = now_us
        self.horizon = horizon
        self.calls = 0
        self.pushed = 0
        self.stored_ids: set[str] = set()
        self.open_pushes = 0
        self.spooled = False
        self._client = client
        self._recorder = recorder
        self._open = True

    def add(self, event: history.Event) -> None:
        """Records an event of the run itself."""
        if self._open:
            self._recorder.add(event)

    def note(self, text: str, step: str = "") -> None:
        """Records something that happened to the run itself."""
        self.add(history.Note(self.now_us(), text, step))

    def close(self) -> None:
        """Records the end of the run."""
        self.add(history.End(self.now_us()))
        self._open = False

    async def send(
        self,
        request: history.Call,
        worker: str,
        *,
        step: str = "",
        fault: Faulty | None = None,
        fault_name: str = "",
        jitter: int = 0,
    ) -> wire.Call[Any]:
        """Sends one request and returns what became of it, both recorded."""
        self.calls += 1
        number = self.calls
        ride = Ride(number, request, jitter, fault, self._effect_ended)
        if isinstance(request, history.PushCall):
            self.pushed += len(request.partitions)
            self.open_pushes += 1
        elif isinstance(request, history.ConfigureCall):
            self.horizon.configured(request.options)
        self.add(history.Invoke(number, self.now_us(), worker, request, step, fault_name))
        send, read = _KINDS[type(request)]
        answer: wire.Call[Any] = await send(self._client(worker), request, {EXTENSION: ride})
        self._returned(ride, answer, read)
        return answer

    def _returned(self, ride: Ride, answer: wire.Call[Any], read: Callable[[Any], history.Result]) -> None:
        at_us = self.now_us()
        if answer.outcome is Outcome.OK:
            self.horizon.acted(ride.request, at_us)
            result = read(answer.value)
            if isinstance(result, history.PushResult) and self._all_is_known(result):
                self.open_pushes -= 1
            self.add(history.Return(ride.call, at_us, "ok", answer.status, "", result, answer.oddities))
            if isinstance(result, history.PushResult | history.AckResult) and result.unknown_items:
                ride.outcome_is_unknown()
            return
        self.add(
            history.Return(ride.call, at_us, answer.outcome.value, answer.status, answer.why, None, answer.oddities)
        )
        if answer.outcome is Outcome.UNKNOWN:
            if not ride.ended:
                self.horizon.unanswered(ride.call, ride.request, at_us)
            ride.outcome_is_unknown()
        elif isinstance(ride.request, history.PushCall):
            self.open_pushes -= 1

    def _all_is_known(self, result: history.PushResult) -> bool:
        """Notes what is certainly stored; False where something else may be."""
        known = True
        for index, (message_id, status) in enumerate(zip(result.message_ids, result.statuses, strict=True)):
            if message_id is not None and status in ("queued", "duplicate"):
                self.stored_ids.add(message_id)
            self.spooled = self.spooled or status == "buffered"
            if index in result.unknown_items or status == "buffered" or (status == "queued" and message_id is None):
                known = False
        return known

    def _effect_ended(self, ride: Ride) -> None:
        at_us = self.now_us()
        self.horizon.ended(ride.call)
        if ride.acted is not False:
            self.horizon.acted(ride.request, at_us)
        self.add(history.EffectEnd(ride.call, at_us, ride.acted))


def completion(queue: str, group: str, messages: Sequence[wire.Message]) -> history.AckCall:
    """The ack, in one batch call, that completes messages of one pop under its lease."""
    return history.AckCall(
        queue,
        group,
        True,
        tuple([message.partition for message in messages]),
        tuple([message.partition_id for message in messages]),
        tuple([message.transaction_id for message in messages]),
        tuple([message.id for message in messages]),
        tuple([message.lease_id or None for message in messages]),
        ("completed",) * len(messages),
    )


_NONE_OPEN: frozenset[int] = frozenset()


def _open_items(value: Sequence[wire.PushedItem | wire.AckedItem]) -> frozenset[int]:
    """Indexes of the items whose effect is open though the call was answered."""
    return frozenset([index for index, item in enumerate(value) if item.unknown]) or _NONE_OPEN


# One pair a kind of call: how it is sent, how its answer is written down ------------------------------------------

_Extensions = Mapping[str, Any]


async def _push(client: BrokerClient, request: history.PushCall, extensions: _Extensions) -> wire.Call[wire.PushAnswer]:
    items = [
        wire.PushItem(request.queue, partition, payload.encode(), transaction_id)
        for partition, transaction_id, payload in zip(
            request.partitions, request.transaction_ids, request.payloads, strict=True
        )
    ]
    return await client.push(items, extensions=extensions)


def _pushed(value: wire.PushAnswer) -> history.PushResult:
    return history.PushResult(
        tuple([item.message_id for item in value]),
        tuple([item.transaction_id for item in value]),
        tuple([item.status for item in value]),
        tuple([item.offset for item in value]),
        _open_items(value),
    )


async def _pop(client: BrokerClient, request: history.PopCall, extensions: _Extensions) -> wire.Call[wire.PopAnswer]:
    return await client.pop(
        request.queue,
        partition=request.partition,
        group=request.group,
        batch=request.batch,
        partitions=request.partitions,
        lease_s=request.lease_s,
        wait_ms=request.wait_ms,
        auto_ack=request.auto_ack,
        mode=request.mode,
        from_=request.from_,
        extensions=extensions,
    )


_NOTHING = history.PopResult()


def _popped(value: wire.PopAnswer) -> history.PopResult:
    messages = value.messages
    if not messages and not value.lease_id:
        return _NOTHING
    return history.PopResult(
        value.lease_id,
        tuple([message.id for message in messages]),
        tuple([message.transaction_id for message in messages]),
        tuple([message.partition for message in messages]),
        tuple([message.partition_id for message in messages]),
        tuple([message.lease_id for message in messages]),
        tuple([message.data.decode("utf-8", "replace") for message in messages]),
        tuple([message.attempt for message in messages]),
        tuple([message.offset for message in messages]),
    )


async def _ack(client: BrokerClient, request: history.AckCall, extensions: _Extensions) -> wire.Call[wire.AckAnswer]:
    items = [
        wire.AckItem(transaction_id, partition_id, status, lease_id)
        for transaction_id, partition_id, status, lease_id in zip(
            request.transaction_ids, request.partition_ids, request.statuses, request.lease_ids, strict=True
        )
    ]
    if request.batch:
        return await client.ack_batch(items, group=request.group, extensions=extensions)
    return await client.ack(items[0], group=request.group, extensions=extensions)


def _acked(value: wire.AckAnswer) -> history.AckResult:
    return history.AckResult(
        tuple([item.success for item in value]),
        tuple([item.error for item in value]),
        tuple([item.noop for item in value]),
        tuple([item.dlq for item in value]),
        tuple([item.lease_released for item in value]),
        _open_items(value),
    )


async def _extend(
    client: BrokerClient, request: history.ExtendCall, extensions: _Extensions
) -> wire.Call[wire.ExtendAnswer]:
    return await client.extend(request.lease_id, seconds=request.seconds, extensions=extensions)


def _extended(value: wire.ExtendAnswer) -> history.ExtendResult:
    return history.ExtendResult(value.success, value.renewed)


async def _configure(
    client: BrokerClient, request: history.ConfigureCall, extensions: _Extensions
) -> wire.Call[wire.Done]:
    return await client.configure(request.queue, request.options, extensions=extensions)


async def _seek(client: BrokerClient, request: history.SeekCall, extensions: _Extensions) -> wire.Call[wire.Done]:
    return await client.seek(
        request.queue,
        request.group or QUEUE_MODE,
        partition=request.partition,
        to_end=request.to_end,
        timestamp=request.timestamp,
        extensions=extensions,
    )


async def _delete_queue(
    client: BrokerClient, request: history.DeleteQueueCall, extensions: _Extensions
) -> wire.Call[wire.Done]:
    return await client.delete_queue(request.queue, extensions=extensions)


def _done(_: wire.Done) -> history.DoneResult:
    return history.DoneResult()


_KINDS: dict[type, tuple[Callable[[BrokerClient, Any, _Extensions], Any], Callable[[Any], history.Result]]] = {
    history.PushCall: (_push, _pushed),
    history.PopCall: (_pop, _popped),
    history.AckCall: (_ack, _acked),
    history.ExtendCall: (_extend, _extended),
    history.ConfigureCall: (_configure, _done),
    history.SeekCall: (_seek, _done),
    history.DeleteQueueCall: (_delete_queue, _done),
}
