"""From typed values to the text of a request: bodies, paths and query strings, built by hand for speed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from urllib.parse import quote

import msgspec

from client.answers import AckItem, PushItem

_ENCODER = msgspec.json.Encoder()
_DOTS = {".": "%2E", "..": "%2E%2E"}  # as they stand they would be taken for path steps


def text(value: str) -> bytes:
    """A JSON string. A lone surrogate goes out as its escape, since UTF-8 has no bytes for it."""
    try:
        return _ENCODER.encode(value)
    except UnicodeEncodeError:
        return json.dumps(value).encode()


@lru_cache(maxsize=4096)
def _quoted(value: str) -> str:
    """A run names the same few queues, groups and numbers again and again."""
    return quote(value, safe="", errors="surrogatepass")


def segment(name: str) -> str:
    """A name as one segment of a path, whatever it holds."""
    return _DOTS.get(name) or _quoted(name)


def seek_body(to_end: bool, timestamp: str | None) -> bytes:
    """The body of a seek: to the end, or to a time."""
    return b'{"toEnd":true}' if to_end else b'{"timestamp":' + text(timestamp or "") + b"}"


def query(parameters: Iterable[tuple[str, str]]) -> str:
    """A query string with its question mark; "" for none."""
    parts = [f"{name}={_quoted(value)}" for name, value in parameters]
    return "?" + "&".join(parts) if parts else ""


def push_body(items: Sequence[PushItem]) -> bytes:
    """The body of a push. Payloads go in byte for byte and are not checked."""
    return b'{"items":[' + b",".join([_push_item(item) for item in items]) + b"]}"


def _push_item(item: PushItem) -> bytes:
    parts = b'{"queue":' + text(item.queue)
    if item.partition is not None:
        parts += b',"partition":' + text(item.partition)
    if item.transaction_id is not None:
        parts += b',"transactionId":' + text(item.transaction_id)
    return parts + b',"payload":' + item.payload + b"}"


def ack_body(item: AckItem, group: str | None) -> bytes:
    """The body of the ack of one message; the group stands in the item."""
    end = b',"consumerGroup":' + text(group) + b"}" if group else b"}"
    return _ack_item(item)[:-1] + end


def ack_batch_body(items: Sequence[AckItem], group: str | None) -> bytes:
    """The body of an ack of many; the group stands at the top."""
    start = b'{"consumerGroup":' + text(group) + b',"acknowledgments":[' if group else b'{"acknowledgments":['
    return start + b",".join([_ack_item(item) for item in items]) + b"]}"


def _ack_item(item: AckItem) -> bytes:
    parts = b'{"transactionId":' + text(item.transaction_id) + b',"partitionId":' + text(item.partition_id)
    if item.status is not None:
        parts += b',"status":' + text(item.status)
    if item.lease_id is not None:
        parts += b',"leaseId":' + text(item.lease_id)
    if item.error is not None:
        parts += b',"error":' + text(item.error)
    return parts + b"}"


def extend_body(seconds: int) -> bytes:
    """The body of an extension."""
    return b'{"seconds":%d}' % seconds


def configure_body(queue: str, options: Mapping[str, object], namespace: str | None, task: str | None) -> bytes:
    """The body of a configure: options by their wire names."""
    parts = b'{"queue":' + text(queue)
    if namespace is not None:
        parts += b',"namespace":' + text(namespace)
    if task is not None:
        parts += b',"task":' + text(task)
    return parts + b',"options":' + _ENCODER.encode(dict(options)) + b"}"
