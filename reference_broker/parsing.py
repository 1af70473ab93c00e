"""From the bytes of a request to what the engine is asked. Whatever cannot be understood raises `Malformed`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec

from reference_broker import json_text
from reference_broker.model import QUEUE_MODE, AckItem, Malformed, Pop, PushItem

LARGEST_NUMBER = 2**53
LARGEST_LEASE_S = 10**10

T = TypeVar("T")

_NEW_WORDS = frozenset({"new", "new-only", "new_only", "newonly"})


class _PushBody(msgspec.Struct):
    items: list[PushItem]


class _OneAck(AckItem, rename="camel"):
    consumer_group: str | None = None


class _AckBatch(msgspec.Struct, rename="camel"):
    acknowledgments: list[AckItem]
    consumer_group: str | None = None


class _Extend(msgspec.Struct):
    seconds: int | None = None


class ConfigureBody(msgspec.Struct):
    """A configure request; None counts as absent."""

    queue: str
    namespace: str | None = None
    task: str | None = None
    options: dict[str, msgspec.Raw] | None = None


class _Seek(msgspec.Struct, rename="camel"):
    to_end: bool | None = None
    timestamp: str | None = None


_PUSH = msgspec.json.Decoder(_PushBody)
_ONE_ACK = msgspec.json.Decoder(_OneAck)
_ACK_BATCH = msgspec.json.Decoder(_AckBatch)
_EXTEND = msgspec.json.Decoder(_Extend)
_CONFIGURE = msgspec.json.Decoder(ConfigureBody)
_SEEK = msgspec.json.Decoder(_Seek)


# Bodies -----------------------------------------------------------------------------------------------------------


def push_items(body: bytes) -> list[PushItem]:
    """The items of a push."""
    try:
        if not body.isascii():
            body.decode()
        return _PUSH.decode(body).items
    except UnicodeDecodeError as error:
        raise Malformed(f"the body is not UTF-8: byte {error.start}") from None
    except (msgspec.MsgspecError, RecursionError) as error:
        return _push_items_from_text(body.decode(), str(error))


def _push_items_from_text(text: str, reason: str) -> list[PushItem]:
    """Reads what the fast parser refused, because it may be legal all the same."""
    try:
        top = json_text.members(text, json_text.document(text))
        return [_push_item_from_text(text, span) for span in json_text.elements(text, top["items"])]
    except KeyError as missing:
        raise Malformed(f"the body has no {missing}") from None
    except json_text.NotJson as error:
        raise Malformed(f"{reason}; {error}") from None


def _push_item_from_text(text: str, span: json_text.Span) -> PushItem:
    found = json_text.members(text, span)
    start, end = found["payload"]
    return PushItem(
        json_text.string(text, found["queue"]),
        msgspec.Raw(text[start:end].encode()),
        _string_or_null(text, found.get("partition")),
        _string_or_null(text, found.get("transactionId")),
    )


def _string_or_null(text: str, span: json_text.Span | None) -> str | None:
    if span is None or text[span[0]] == "n":
        return None
    return json_text.string(text, span)


def one_ack(body: bytes) -> tuple[str, list[AckItem]]:
    """The group and the one item of an ack."""
    item = _decoded(_ONE_ACK, body)
    return item.consumer_group or QUEUE_MODE, [item]


def ack_batch(body: bytes) -> tuple[str, list[AckItem]]:
    """The group and the items of a batch ack."""
    batch = _decoded(_ACK_BATCH, body)
    return batch.consumer_group or QUEUE_MODE, batch.acknowledgments


def extension_s(body: bytes) -> int:
    """For how long a lease is extended; 60 s where the body does not say."""
    seconds = _decoded(_EXTEND, body).seconds if body.strip() else None
    if seconds is None:
        return 60
    if not -LARGEST_LEASE_S <= seconds <= LARGEST_LEASE_S:
        raise Malformed(f"seconds is {seconds}, beyond {LARGEST_LEASE_S}")
    return seconds


def configuration(body: bytes) -> ConfigureBody:
    """A configure request."""
    return _decoded(_CONFIGURE, body)


def seek_target(body: bytes) -> int | None:
    """Where a seek goes: a time in milliseconds, or None for the end. Raises `Malformed` where it says neither."""
    asked = _decoded(_SEEK, body)
    if asked.to_end:
        return None
    if asked.timestamp is None:
        raise Malformed("a seek needs toEnd:true or a timestamp")
    at_ms = _start_time("timestamp", asked.timestamp)
    if not isinstance(at_ms, int):
        raise Malformed(f"timestamp={asked.timestamp[:80]!r} is not an ISO time")
    return at_ms


def _decoded(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    try:
        body.decode()
        return decoder.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise Malformed(f"the body cannot be read: {error}") from None


# Paths and queries ------------------------------------------------------------------------------------------------


def path_part(text: str) -> str:
    """A name from a path."""
    return _percent_decoded(text) if "%" in text else text


def query(text: bytes) -> dict[str, list[str]]:
    """The parameters of a query string, each with its values in order."""
    found: dict[str, list[str]] = {}
    if text:
        for pair in text.decode("latin-1").replace("+", " ").split("&"):
            if pair:
                name, _, value = pair.partition("=")
                if "%" in pair:
                    name, value = _percent_decoded(name), _percent_decoded(value)
                found.setdefault(name, []).append(value)
    return found


def _percent_decoded(text: str) -> str:
    try:
        return unquote_to_bytes(text.encode("latin-1")).decode()
    except UnicodeDecodeError:
        raise Malformed(f"not UTF-8 in the address: {text[:80]!r}") from None


@lru_cache(maxsize=4096)
def pop_request(queue: str, partition: str | None, text: bytes) -> Pop:
    """A pop from its path and query string. Parameters that are not known are ignored."""
    asked = {
        name: _READERS[name](name, _once(name, values)) for name, values in query(text).items() if name in _READERS
    }
    start_from = asked.get("subscriptionFrom")
    if asked.get("conflation"):
        raise Malformed("conflation=true is not supported by this broker")
    lease_s = asked.get("leaseSeconds")
    return Pop(
        queue,
        asked.get("consumerGroup") or QUEUE_MODE,
        partition,
        max(asked.get("batch", 200), 1),
        max(asked["partitions"], 0) if "partitions" in asked else 1,
        lease_s if lease_s is not None and lease_s > 0 else None,
        asked.get("wait", False),
        max(asked.get("timeout", 30_000), 0),
        asked.get("autoAck", False),
        start_from == "now" or (start_from is None and asked.get("subscriptionMode", True)),
        None if start_from == "now" else start_from,
    )


def dead_letter_query(text: bytes) -> tuple[str | None, str | None, str | None, int, int]:
    """Which dead letters are asked for: queue, group, partition, limit (-1: all), offset."""
    asked = {name: _once(name, values) for name, values in query(text).items() if name in _DEAD_LETTER_NAMES}
    limit, offset = (_whole_number(name, asked[name]) if name in asked else None for name in ("limit", "offset"))
    return (
        asked.get("queue") or None,
        asked.get("consumerGroup") or None,
        asked.get("partition"),
        -1 if limit is None else max(limit, 0),
        max(offset or 0, 0),
    )


_DEAD_LETTER_NAMES = frozenset({"queue", "consumerGroup", "partition", "limit", "offset"})


def _once(name: str, values: list[str]) -> str:
    if len(values) != 1:
        raise Malformed(f"{name} is given {len(values)} times")
    return values[0]


def _whole_number(name: str, value: str) -> int:
    digits = value[1:] if value[:1] in ("-", "+") else value
    if not (digits.isascii() and digits.isdigit()):
        raise Malformed(f"{name}={value[:80]!r} is not an integer")
    if len(digits) > 16 or int(digits) > LARGEST_NUMBER:
        raise Malformed(f"{name}={value[:80]!r} is beyond {LARGEST_NUMBER}")
    return int(value)


def _lease_seconds(name: str, value: str) -> int:
    number = _whole_number(name, value)
    if number > LARGEST_LEASE_S:
        raise Malformed(f"{name}={value!r} is beyond {LARGEST_LEASE_S}")
    return number


def _flag(name: str, value: str) -> bool:
    if value not in ("true", "false"):
        raise Malformed(f"{name}={value[:80]!r} is not true or false")
    return value == "true"


def _text(name: str, value: str) -> str:
    return value


def _starts_new(name: str, value: str) -> bool:
    """Whether a mode means new; every word that does not means all, and an empty one is absent."""
    return not value or value.lower() in _NEW_WORDS


def _start_time(name: str, value: str) -> int | str | None:
    """Milliseconds, "now", or None for an empty value. A time without a zone is UTC."""
    if value in ("", "now"):
        return value or None
    try:
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        since = moment - datetime.fromtimestamp(0, UTC)
    except (ValueError, OverflowError):
        raise Malformed(f"{name}={value[:80]!r} is neither an ISO time nor now") from None
    return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000


_READERS: dict[str, Callable[[str, str], Any]] = {
    "batch": _whole_number,
    "partitions": _whole_number,
    "consumerGroup": _text,
    "leaseSeconds": _lease_seconds,
    "wait": _flag,
    "timeout": _whole_number,
    "autoAck": _flag,
    "subscriptionMode": _starts_new,
    "subscriptionFrom": _start_time,
    "conflation": _flag,
}
