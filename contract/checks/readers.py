"""A reader is one consumer group on one partition: what it was given, what it acked, what it may have taken unseen.

Everything that the contract promises about cursors and leases is promised per reader; groups share nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from contract.checks.facts import NEVER, QUEUE_MODE, Call, Facts, Message, PartitionKey, Run, ack_items, group_name
from contract.history import OLDEST_TIME, AckCall, AckResult, PopCall, PopResult, SeekCall

COMPLETED = frozenset({"completed", "success", "acked", "ok"})

ReaderKey = tuple[str, str, str]


@dataclass(slots=True)
class AckedItem:
    """One item of an ack: the messages that its id may mean, what was asked, what was answered.

    `done` False: answered as not done; `unknown`: nobody knows.
    """

    index: int
    meant: list[Message]
    status: str
    done: bool
    unknown: bool
    noop: bool
    dead_lettered: bool
    released: bool | None
    transaction_id: str

    @property
    def may_have_acted(self) -> bool:
        """It was done, or perhaps it was."""
        return self.done or self.unknown

    @property
    def completes(self) -> bool:
        """Its status moves the cursor to the message."""
        return self.status in COMPLETED

    @property
    def fails(self) -> bool:
        """Its status spends a retry; words that the contract does not know count as `failed`."""
        return not self.completes and self.status not in ("retry", "dlq")


@dataclass(slots=True)
class Ack:
    """The items of one ack call that belong to one reader and one lease: they act together."""

    call: Call
    lease_id: str | None
    items: list[AckedItem]

    @property
    def may_have_acted(self) -> bool:
        """At least one item may have had an effect."""
        return any(item.may_have_acted for item in self.items)

    @property
    def until(self) -> int:
        """The last moment at which it may act: what an answer left open may act behind the answer."""
        open_ = any(item.unknown for item in self.items)
        return max(self.call.until, self.call.ended) if open_ else self.call.until


@dataclass(slots=True)
class Seek:
    """A seek that may move the cursor of one reader.

    `certain`: it was answered, and before it was sent the partition was there and the group had popped it. A seek of a
    group that never popped may be its start, or be forgotten when its first pop decides.
    """

    call: Call
    certain: bool

    @property
    def to_end(self) -> bool:
        """It goes behind the newest message."""
        assert isinstance(self.call.request, SeekCall)
        return self.call.request.to_end

    @property
    def to_oldest(self) -> bool:
        """It goes before the oldest message; where in the log another time lies is not known here."""
        assert isinstance(self.call.request, SeekCall)
        return not self.to_end and self.call.request.timestamp == OLDEST_TIME


@dataclass(slots=True)
class Reader:
    """One consumer group on one partition.

    `runs` by return, `acks` and `seeks` by invocation. `unseen` are pops with an unknown outcome that may have taken
    from the partition. `empty` are answered pops that covered the partition and gave nothing at all, from a broker
    that had its storage.
    """

    queue: str
    partition: str
    group: str
    runs: list[Run] = field(default_factory=list)
    acks: list[Ack] = field(default_factory=list)
    seeks: list[Seek] = field(default_factory=list)
    unseen: list[Call] = field(default_factory=list)
    empty: list[Call] = field(default_factory=list)

    @property
    def key(self) -> ReaderKey:
        """Queue, partition, group."""
        return (self.queue, self.partition, self.group)


def build_readers(facts: Facts) -> dict[ReaderKey, Reader]:
    """Every reader that the history gives a hint of."""
    readers: dict[ReaderKey, Reader] = {}
    partitions: dict[str, list[str]] = {}
    for queue, partition in facts.partitions:
        partitions.setdefault(queue, []).append(partition)
    for call in facts.pops:
        if not call.refused:
            _add_pop(readers, partitions, call, facts)
    for run in facts.runs:
        reader_of(readers, run.queue, run.partition, run.group).runs.append(run)
    by_transaction = _index_transactions(facts)
    for call, request, result in ack_items(facts):
        _add_ack(readers, by_transaction, facts, call, request, result)
    for call in facts.seeks:
        if not call.refused:
            _add_seek(readers, facts, partitions, call)
    return readers


def reader_of(readers: dict[ReaderKey, Reader], queue: str, partition: str, group: str) -> Reader:
    """The reader of that key, made where it is new."""
    key = (queue, partition, group)
    reader = readers.get(key)
    if reader is None:
        reader = readers[key] = Reader(queue, partition, group)
    return reader


def covered(request: PopCall, partitions: dict[str, list[str]]) -> list[str]:
    """The partitions that a pop may take from."""
    if request.partition is not None:
        return [request.partition]
    return partitions.get(request.queue, [])


def _add_pop(readers: dict[ReaderKey, Reader], partitions: dict[str, list[str]], call: Call, facts: Facts) -> None:
    request = call.request
    assert isinstance(request, PopCall)
    group = group_name(request.group)
    empty = gave_nothing(call) and not facts.without_storage(call.invoked_us, call.returned_us)
    for partition in covered(request, partitions):
        reader = reader_of(readers, request.queue, partition, group)
        if call.unknown:
            reader.unseen.append(call)
        elif empty:
            reader.empty.append(call)


def gave_nothing(call: Call) -> bool:
    """Whether it is a pop that was answered and brought no message."""
    return isinstance(call.result, PopResult) and not call.result.message_ids


def _add_seek(readers: dict[ReaderKey, Reader], facts: Facts, partitions: dict[str, list[str]], call: Call) -> None:
    """Files a seek with the readers that it may move.

    One of a single partition may all the same decide where a group that never popped starts in the others.
    """
    request = call.request
    assert isinstance(request, SeekCall)
    group = group_name(request.group)
    for partition in partitions.get(request.queue, []):
        messages = facts.partitions[request.queue, partition]
        exists = min((message.stored_by for message in messages), default=NEVER)
        decided = group == QUEUE_MODE or _popped_before(facts, request, partition, exists, call)
        named = request.partition in (None, partition)
        if named or not decided:
            certain = named and decided and call.ok and exists < call.invoked
            reader_of(readers, request.queue, partition, group).seeks.append(Seek(call, certain))


def _popped_before(facts: Facts, request: SeekCall, partition: str, exists: int, call: Call) -> bool:
    """Whether the group's start in the partition was certainly decided by a pop before the seek was sent."""
    for pop in facts.pops_of(request.queue, group_name(request.group)):
        assert isinstance(pop.request, PopCall)
        named = pop.request.partition
        if gave_nothing(pop) and facts.without_storage(pop.invoked_us, pop.returned_us):
            continue  # it may not have looked
        if pop.returned < call.invoked and (named is None or (named == partition and exists < pop.invoked)):
            return True
    return False


def _index_transactions(facts: Facts) -> dict[tuple[str, str, str], list[Message]]:
    index: dict[tuple[str, str, str], list[Message]] = {}
    for (queue, partition), messages in facts.partitions.items():
        for message in messages:
            if message.transaction_id is not None:
                index.setdefault((queue, partition, message.transaction_id), []).append(message)
    return index


def _add_ack(
    readers: dict[ReaderKey, Reader],
    by_transaction: dict[tuple[str, str, str], list[Message]],
    facts: Facts,
    call: Call,
    request: AckCall,
    result: AckResult | None,
) -> None:
    parts: dict[tuple[PartitionKey, str | None], Ack] = {}
    doubtful = facts.without_storage(call.invoked_us, call.seen_us)
    for index, status in enumerate(request.statuses):
        partition, transaction_id = request.partitions[index], request.transaction_ids[index]
        part_key = ((request.queue, partition), request.lease_ids[index])
        ack = parts.get(part_key)
        if ack is None:
            ack = parts[part_key] = Ack(call, request.lease_ids[index], [])
            reader_of(readers, request.queue, partition, group_name(request.group)).acks.append(ack)
        meant = by_transaction.get((request.queue, partition, transaction_id), [])
        denied = doubtful and result is not None and not result.successes[index]
        ack.items.append(_item(index, meant, status, transaction_id, None if denied else result))


def _item(index: int, meant: list[Message], status: str, transaction_id: str, result: AckResult | None) -> AckedItem:
    """`result` None: nothing was answered, or nothing that means anything."""
    if result is None:
        return AckedItem(index, meant, status, False, True, False, False, None, transaction_id)
    return AckedItem(
        index,
        meant,
        status,
        done=result.successes[index],
        unknown=index in result.unknown_items,
        noop=bool(result.noops[index]),
        dead_lettered=bool(result.dead_lettered[index]),
        released=result.released[index],
        transaction_id=transaction_id,
    )
