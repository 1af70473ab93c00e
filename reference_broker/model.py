"""What is asked of the engine, what it answers, and what it knows about a partition while it works."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

QUEUE_MODE = "__QUEUE_MODE__"
"""The reserved group of consumers that name none."""

DEFAULT_PARTITION = "Default"

BEFORE_THE_FIRST = -1
"""The cursor of a group that has completed nothing: offsets start at 0."""


LARGEST_OFFSET = 2**63 - 1


class Clock(Protocol):
    """Where the time comes from."""

    def now_ms(self) -> int:
        """Milliseconds of the wall clock, as an integer: floats drift."""


class Malformed(Exception):
    """A request that cannot be understood or must not be stored; nothing of it has happened."""


# Requests ---------------------------------------------------------------------------------------------------------


class PushItem(msgspec.Struct, rename="camel"):
    """One message to store. `payload` is the raw JSON text; None of the others counts as absent."""

    queue: str
    payload: msgspec.Raw
    partition: str | None = None
    transaction_id: str | None = None


class Pop(msgspec.Struct, frozen=True):
    """A pop. `partition` None: the broker picks, up to `partitions` of them (0: no cap).

    `start_new` and `start_from_ms` say where a group starts that was never here: at the tip, at a time, or (neither)
    at the oldest message. `lease_s` None: the queue decides.
    """

    queue: str
    group: str = QUEUE_MODE
    partition: str | None = None
    batch: int = 200
    partitions: int = 1
    lease_s: int | None = None
    wait: bool = False
    timeout_ms: int = 30_000
    auto_ack: bool = False
    start_new: bool = True
    start_from_ms: int | None = None


class AckItem(msgspec.Struct, rename="camel"):
    """One message to acknowledge. `lease_id` None or "": not fenced."""

    transaction_id: str
    partition_id: str
    status: str | None = None
    lease_id: str | None = None
    error: str | None = None


# What the engine works on -----------------------------------------------------------------------------------------


class QueueOptions(msgspec.Struct, frozen=True, rename="camel"):
    """The options of a queue that this broker acts on; defaults of a queue that a push created."""

    lease_time: int = 60
    retry_limit: int = 3
    dead_letter_queue: bool = True
    dlq_after_max_retries: bool = True
    dedup_window_seconds: int = 3600
    delayed_processing: int = 0
    window_buffer: int = 0


class Queue(msgspec.Struct):
    """A queue as one group sees it. `registered`: the group's start in it is decided; `from_ms`: it is that time."""

    id: int
    name: str
    options: QueueOptions
    registered: bool = True
    from_ms: int | None = None


class Tail(msgspec.Struct):
    """The end of a partition while one push request appends to it.

    `seen` maps the transactionIds that this request named to where their message is.
    """

    partition_id: int
    next_offset: int
    dedup_window_s: int
    seen: dict[str, Stored]
    grown: bool = False


class Stored(msgspec.Struct, frozen=True):
    """Where a message is."""

    message_id: str
    offset: int


class Lane(msgspec.Struct):
    """One (partition, group): the cursor, the retry count, and the leased batch.

    `committed` is the last completed offset (-1: none). `lease_id` None: no leased batch. A lease that ran out
    stays here until the partition is taken again. `batch_first` and `batch_last` are those of the last batch, also
    after its lease is gone. `served` orders partitions by when the group was last served.
    """

    group: str
    partition_id: int
    partition: str
    next_offset: int
    pushed_ms: int
    committed: int = BEFORE_THE_FIRST
    failures: int = 0
    lease_id: str | None = None
    lease_until_ms: int = 0
    batch_first: int = BEFORE_THE_FIRST
    batch_last: int = BEFORE_THE_FIRST
    attempt: int = 0
    served: int = 0
    settled_lease: str | None = None
    settled_answer: bytes | None = None


class Message(msgspec.Struct, frozen=True):
    """A stored message."""

    offset: int
    id: str
    transaction_id: str
    payload: bytes
    pushed_ms: int


class Lot(msgspec.Struct, frozen=True):
    """A run of one partition that a pop is about to get."""

    lane: Lane
    run: list[Message]


class Choice(msgspec.Struct):
    """What a pop can have now; if nothing, `due_ms` says when time alone may change that (None: never)."""

    lots: list[Lot]
    lease_ms: int = 0
    due_ms: int | None = None


Word = Literal["completed", "failed", "retry", "dlq"]


class Settled(msgspec.Struct, frozen=True):
    """An item of an ack whose message was found above the cursor and within the batch."""

    offset: int
    word: Word
    error: str | None


class AckPlan(msgspec.Struct):
    """What an ack of one (partition, group, lease) does.

    `cursor`: the new cursor. `filed`: dead letters as (offset, error). `release`: the lease ends.
    `failures`: the new retry count.
    """

    cursor: int
    failures: int
    release: bool = False
    filed: list[tuple[int, str | None]] = []


# Answers ----------------------------------------------------------------------------------------------------------


class PushedItem(msgspec.Struct, omit_defaults=True):
    """What became of one item of a push."""

    index: int
    message_id: str | None
    transaction_id: str | None
    queue_name: str = msgspec.field(name="queueName")
    status: str
    offset: int | None = None
    error: str | None = None


class PoppedMessage(msgspec.Struct, rename="camel"):
    """One delivered message."""

    id: str
    transaction_id: str
    trace_id: None
    data: msgspec.Raw
    producer_sub: None
    created_at: str
    partition_id: str
    partition: str
    lease_id: str
    consumer_group: str
    delivery_attempt: int
    offset: int


class Popped(msgspec.Struct, rename="camel"):
    """The answer to a pop that got something. `partition` and `partition_id` are those of the first claimed one."""

    success: bool
    queue: str
    partition: str
    partition_id: str
    lease_id: str
    consumer_group: str
    messages: list[PoppedMessage]
    partitions_claimed: int


class AckedItem(msgspec.Struct, rename="camel"):
    """What became of one acknowledgment."""

    index: int
    transaction_id: str
    success: bool
    error: str | None = None
    lease_released: bool = False
    dlq: bool = False
    noop: bool = False


class SettledAnswer(msgspec.Struct):
    """The ack that released a lease, kept so that its repetition is answered as the first time."""

    words: list[str]
    items: list[AckedItem]


class Extended(msgspec.Struct, rename="camel"):
    """`renewed` counts the partitions whose lease goes on."""

    lease_id: str
    success: bool
    renewed: int
    new_expires_at: str | None = None


class DeadLetter(msgspec.Struct, rename="camel"):
    """One filed message."""

    id: str
    queue: str
    partition: str
    partition_id: str
    consumer_group: str
    message_id: str
    transaction_id: str
    offset: int
    data: msgspec.Raw
    error_message: str | None
    retry_count: int
    created_at: str
    failed_at: str
