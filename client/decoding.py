"""From the body of a 2xx answer to a typed value, with the oddities that did not hide it.

Keys that nobody asked for are ignored, as are keys that are absent where nothing depends on them. What cannot be read
raises `UnreadableError`, which carries the outcome by the table of `outcome.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from client import json_text
from client.answers import (
    AckAnswer,
    AckedItem,
    Done,
    ExtendAnswer,
    Health,
    Message,
    PopAnswer,
    PushAnswer,
    PushedItem,
)
from client.outcome import Outcome, names_storage, of_error_text, shorten

T = TypeVar("T")

STORED_STATUSES = frozenset({"queued", "duplicate", "buffered"})
REFUSED_STATUSES = frozenset({"error", "failed"})

Oddities = tuple[str, ...]


class UnreadableError(Exception):
    """A 2xx whose body is not the answer: its outcome (never OK) and why."""

    def __init__(self, outcome: Outcome, why: str) -> None:
        super().__init__(why)
        self.outcome = outcome
        self.why = why


# The wire ---------------------------------------------------------------------------------------------------------
# Any: a key whose wrong type must not hide the rest of the answer.


class _WirePushed(msgspec.Struct):
    status: str
    index: int | None = None
    message_id: str | None = None
    transaction_id: str | None = None
    offset: Any = None
    error: Any = None


class _WireAcked(msgspec.Struct, rename="camel"):
    success: bool
    index: int | None = None
    error: Any = None
    noop: Any = None
    dlq: Any = None
    lease_released: Any = None


class _WireMessage(msgspec.Struct, rename="camel"):
    id: str
    transaction_id: str
    partition_id: str | int
    partition: str | None = None
    lease_id: str | None = None
    data: msgspec.Raw | UnsetType = UNSET
    delivery_attempt: Any = None
    offset: Any = None


class _WirePop(msgspec.Struct, rename="camel"):
    messages: list[_WireMessage] | UnsetType = UNSET
    lease_id: str | None = None
    partition: str | None = None
    partition_id: str | int | None = None
    success: Any = None
    error: Any = None


class _WireDone(msgspec.Struct):
    success: Any = None
    error: Any = None
    renewed: Any = None
    version: Any = None


_PUSHED = msgspec.json.Decoder(list[_WirePushed])
_ACKED = msgspec.json.Decoder(list[_WireAcked])
_ONE_ACKED = msgspec.json.Decoder(_WireAcked)
_POP = msgspec.json.Decoder(_WirePop)
_DONE = msgspec.json.Decoder(_WireDone)

_REFUSALS = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)


# Answers ----------------------------------------------------------------------------------------------------------


def pushed(body: bytes, items: int) -> tuple[PushAnswer, Oddities]:
    """The results of a push of `items` items, in request order. Raises `UnreadableError`."""
    wire, oddities = _in_request_order(_read(_PUSHED, body), items)
    return tuple([_pushed_item(item, oddities) for item in wire]), tuple(oddities)


def acked(body: bytes, items: int, *, single: bool = False) -> tuple[AckAnswer, Oddities]:
    """The results of an ack of `items` items, in request order. Raises `UnreadableError`.

    `single`: the answer to the endpoint for one message, where a bare object is read too.
    """
    if single and body.lstrip()[:1] == b"{":
        wire, oddities = [_read(_ONE_ACKED, body)], ["the answer is an object instead of an array"]
    else:
        wire, oddities = _in_request_order(_read(_ACKED, body), items)
    return tuple([_acked_item(item, oddities) for item in wire]), tuple(oddities)


def popped(body: bytes) -> tuple[PopAnswer, Oddities]:
    """The messages of a pop answered with a body. Raises `UnreadableError`."""
    try:
        wire = _POP.decode(body)
    except _REFUSALS:
        wire = _patiently(_pop_from_text, body)
    if wire.messages is UNSET or (not wire.messages and (wire.success is False or wire.error is not None)):
        raise _no_answer(body)
    oddities: list[str] = []
    if not wire.messages:
        oddities.append("an empty list of messages instead of 204")
    if wire.success is False:
        oddities.append("success is false with messages")
    lease_id = wire.lease_id or ""
    messages = tuple([_message(message, wire, lease_id, oddities) for message in wire.messages])
    return PopAnswer(lease_id, messages), tuple(oddities)


def extended(body: bytes) -> tuple[ExtendAnswer, Oddities]:
    """What an extension did. Raises `UnreadableError`; `success:false` about a lease that is gone is an answer."""
    wire = _read(_DONE, body)
    if not isinstance(wire.success, bool):
        raise _no_answer(body)
    if not wire.success and names_storage(_text(wire.error)):
        raise UnreadableError(Outcome.UNKNOWN, f"storage error: {shorten(str(wire.error))}")
    renewed, oddities = _whole_number(wire.renewed, "renewed")
    if renewed is None:
        return ExtendAnswer(wire.success, int(wire.success)), (*oddities, "no number in renewed")
    return ExtendAnswer(wire.success, renewed), oddities


def done(body: bytes) -> tuple[Done, Oddities]:
    """An answer that only says that it was done. Raises `UnreadableError` where it says otherwise."""
    wire = _read(_DONE, body)
    if wire.success is False or wire.error is not None:
        raise _no_answer(body)
    return Done(), ()


def health(body: bytes, *, ready: bool) -> tuple[Health, Oddities]:
    """The state of a broker. Raises `UnreadableError`."""
    version = _read(_DONE, body).version
    if isinstance(version, str):
        return Health(ready, version), ()
    return Health(ready, ""), ("no version",)


# Elements ---------------------------------------------------------------------------------------------------------


_Indexed = TypeVar("_Indexed", _WirePushed, _WireAcked)


def _in_request_order(wire: list[_Indexed], items: int) -> tuple[list[_Indexed], list[str]]:
    """The results aligned with the items by `index`, and oddities. Raises `UnreadableError`."""
    if len(wire) != items:
        raise UnreadableError(Outcome.UNKNOWN, f"{len(wire)} results for {items} items")
    indexes: Sequence[int | None] = [item.index for item in wire]
    if indexes == [*range(items)]:
        return wire, []
    if all(index is None for index in indexes):
        return wire, ["results without an index"]
    if {*indexes} != {*range(items)}:
        raise UnreadableError(Outcome.UNKNOWN, f"indexes {shorten(str(indexes))} do not match {items} items")
    return sorted(wire, key=lambda item: item.index or 0), ["results out of the order of the items"]


def _pushed_item(wire: _WirePushed, oddities: list[str]) -> PushedItem:
    offset = wire.offset
    if offset is not None and type(offset) is not int:
        offset = None
        oddities.append(f"offset is {shorten(str(wire.offset))!r} instead of a number")
    if wire.status in STORED_STATUSES:
        if wire.message_id is None:
            oddities.append(f"{wire.status} without a message_id")
        return PushedItem(wire.message_id, wire.transaction_id, wire.status, offset)
    error = _text(wire.error)
    unknown = names_storage(error) or names_storage(wire.status)
    if wire.status not in REFUSED_STATUSES:
        unknown = True
        oddities.append(f"push status {shorten(wire.status)!r}")
    return PushedItem(wire.message_id, wire.transaction_id, wire.status, offset, unknown, error)


def _acked_item(wire: _WireAcked, oddities: list[str]) -> AckedItem:
    error = _text(wire.error)
    return AckedItem(
        wire.success,
        error,
        _flag(wire.noop, "noop", oddities),
        _flag(wire.dlq, "dlq", oddities),
        _flag(wire.lease_released, "leaseReleased", oddities),
        not wire.success and names_storage(error),
    )


def _message(wire: _WireMessage, pop: _WirePop, lease_id: str, oddities: list[str]) -> Message:
    partition, data, attempt, offset = wire.partition, wire.data, wire.delivery_attempt, wire.offset
    if partition is None:
        partition = _partition_of(wire, pop)
        oddities.append("a message without a partition")
    if data is UNSET:
        data = msgspec.Raw(b"null")
        oddities.append("a message without data, read as null")
    if attempt is not None and type(attempt) is not int:
        oddities.append(f"deliveryAttempt is {shorten(str(attempt))!r} instead of a number")
        attempt = None
    if offset is not None and type(offset) is not int:
        oddities.append(f"offset is {shorten(str(offset))!r} instead of a number")
        offset = None
    raw = bytes(data)
    if not raw.isascii():
        _note_encoding(raw, oddities)
    own_lease = lease_id if wire.lease_id is None else wire.lease_id
    return Message(wire.id, wire.transaction_id, partition, str(wire.partition_id), own_lease, raw, attempt, offset)


def _partition_of(wire: _WireMessage, pop: _WirePop) -> str:
    """The partition that the head of the answer names, where it is that of the message."""
    if pop.partition is None or pop.partition_id not in (None, wire.partition_id):
        raise UnreadableError(Outcome.UNKNOWN, f"message {shorten(wire.id)!r} names no partition")
    return pop.partition


def _note_encoding(raw: bytes, oddities: list[str]) -> None:
    try:
        raw.decode()
    except UnicodeDecodeError:
        oddities.append("data that is not UTF-8")


def _flag(value: object, name: str, oddities: list[str]) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    oddities.append(f"{name} is {shorten(str(value))!r} instead of true or false")
    return None


def _whole_number(value: object, name: str) -> tuple[int | None, Oddities]:
    if type(value) is int:
        return value, ()
    return None, () if value is None else (f"{name} is {shorten(str(value))!r} instead of a number",)


def _text(value: object) -> str | None:
    return value if value is None or isinstance(value, str) else str(value)


# Reading ----------------------------------------------------------------------------------------------------------


def _read(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    try:
        return decoder.decode(body)
    except _REFUSALS:
        return _patiently(partial(_from_text, decoder), body)


def _from_text(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    found: T = msgspec.convert(json_text.scalar(body), decoder.type)
    return found


def _patiently(read: Callable[[bytes], T], body: bytes) -> T:
    """Reads what the fast parser refused. Raises `UnreadableError` where it is not readable at all."""
    try:
        return read(body)
    except (json_text.TextError, *_REFUSALS) as error:
        raise _no_answer(body, str(error)) from None


_HEAD_KEYS = ("leaseId", "partition", "partitionId", "success", "error")
_MESSAGE_KEYS = ("id", "transactionId", "partitionId", "partition", "leaseId", "deliveryAttempt", "offset")


def _pop_from_text(body: bytes) -> _WirePop:
    """A pop's answer with every `data` cut out unread."""
    head = json_text.members(body)
    plain = {key: json_text.scalar(head[key]) for key in _HEAD_KEYS if key in head}
    wire = msgspec.convert(plain, _WirePop)
    if "messages" in head:
        wire.messages = [_message_from_text(text) for text in json_text.elements(head["messages"])]
    return wire


def _message_from_text(text: bytes) -> _WireMessage:
    found = json_text.members(text)
    plain = {key: json_text.scalar(found[key]) for key in _MESSAGE_KEYS if key in found}
    wire = msgspec.convert(plain, _WireMessage)
    if "data" in found:
        wire.data = msgspec.Raw(found["data"])
    return wire


def _no_answer(body: bytes, reason: str = "") -> UnreadableError:
    """Says what a body is that is not the answer."""
    if not body:
        return UnreadableError(Outcome.UNKNOWN, "an empty body")
    if body.lstrip()[:1] == b"<":
        return UnreadableError(Outcome.UNKNOWN, f"not a broker's answer: {shorten(body)}")
    try:
        wire = msgspec.convert(json_text.scalar(body), _WireDone)
    except json_text.TextError as error:
        return UnreadableError(Outcome.UNKNOWN, f"torn or not JSON ({reason or error}): {shorten(body)}")
    except msgspec.ValidationError:
        return UnreadableError(Outcome.UNKNOWN, f"another shape ({reason}): {shorten(body)}")
    if wire.success is False or wire.error is not None:
        return UnreadableError(of_error_text(_text(wire.error)), f"error in the body: {shorten(str(wire.error))}")
    return UnreadableError(Outcome.UNKNOWN, f"another shape ({reason}): {shorten(body)}")
