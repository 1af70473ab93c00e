"""What is asked and what is answered, typed. Payloads stay the raw bytes of their JSON text."""

from __future__ import annotations

import msgspec


class PushItem(msgspec.Struct, frozen=True):
    """One message to push. `payload` is raw JSON text, sent byte for byte; None of the others: not sent."""

    queue: str
    partition: str | None
    payload: bytes
    transaction_id: str | None = None


class PushedItem(msgspec.Struct, frozen=True):
    """What became of one item of a push.

    `status` is the broker's word (queued, duplicate, buffered, error, failed). `unknown` True: whether it was stored is
    open. `offset` None: the broker sends none (1.x).
    """

    message_id: str | None
    transaction_id: str | None
    status: str
    offset: int | None = None
    unknown: bool = False
    error: str | None = None


PushAnswer = tuple[PushedItem, ...]
"""One `PushedItem` an item, in request order."""


class Message(msgspec.Struct, frozen=True):
    """One delivered message. `data` is its raw JSON text as it came.

    `lease_id` is "" when there is no lease (autoAck); `attempt`, `offset` None: not sent (1.x).
    """

    id: str
    transaction_id: str
    partition: str
    partition_id: str
    lease_id: str
    data: bytes
    attempt: int | None = None
    offset: int | None = None


class PopAnswer(msgspec.Struct, frozen=True):
    """The messages of a pop in the order of the answer; none for 204. `lease_id` is "" when there is no lease."""

    lease_id: str = ""
    messages: tuple[Message, ...] = ()


class AckItem(msgspec.Struct, frozen=True):
    """One message to acknowledge. None: not sent; without `lease_id` the ack is not fenced."""

    transaction_id: str
    partition_id: str
    status: str | None = None
    lease_id: str | None = None
    error: str | None = None


class AckedItem(msgspec.Struct, frozen=True):
    """What became of one acknowledgment. None: the broker did not send the key. `unknown` True: the effect is open."""

    success: bool
    error: str | None = None
    noop: bool | None = None
    dlq: bool | None = None
    lease_released: bool | None = None
    unknown: bool = False


AckAnswer = tuple[AckedItem, ...]
"""One `AckedItem` an item, in request order."""


class ExtendAnswer(msgspec.Struct, frozen=True):
    """`renewed` counts the partitions whose lease was extended; 0 for a lease that is gone."""

    success: bool
    renewed: int


class Done(msgspec.Struct, frozen=True):
    """An answer that says no more than that it was done (configure, delete)."""


class Health(msgspec.Struct, frozen=True):
    """`ready` is False for 503; `version` "" when the answer carries none."""

    ready: bool
    version: str = ""
