"""Push: storing messages, once each and in order."""

from __future__ import annotations

from collections.abc import Sequence

from reference_broker.core import Core
from reference_broker.model import DEFAULT_PARTITION, PushedItem, PushItem, QueueOptions, Stored, Tail
from reference_broker.storage import StorageRefused

_FIND_TAIL = (
    "SELECT q.id, q.dedup_window_s, p.id, p.next_offset FROM queues q"
    " LEFT JOIN partitions p ON p.queue_id = q.id AND p.name = ? WHERE q.name = ?"
)
_FIND_ORIGINAL = (
    "SELECT id, offset, pushed_ms FROM messages WHERE partition_id = ? AND transaction_id = ?"
    " ORDER BY offset DESC LIMIT 1"
)
_STORE_MESSAGE = (
    "INSERT INTO messages (partition_id, offset, id, transaction_id, payload, pushed_ms) VALUES (?, ?, ?, ?, ?, ?)"
)


class Pushing(Core):
    """The part of the engine that appends."""

    async def push(self, items: Sequence[PushItem]) -> list[PushedItem]:
        """Stores the items; answers what became of each, in request order. Raises `Malformed` before any is stored."""
        self.check_push(items)
        if self.hook is not None:
            await self.hook("push.begin")
        try:
            answers = await self.store(items)
        except StorageRefused as refusal:
            answers = self.refused_push(items, refusal)
        else:
            self.wake_after_push(items)
        if self.hook is not None:
            await self.hook("push.answer")
        return answers

    def check_push(self, items: Sequence[PushItem]) -> None:
        """Refuses the whole request for one item that cannot be stored. Raises `Malformed`."""
        for item in items:
            self.check_name("queue", item.queue)
            if item.partition is not None:
                self.check_name("partition", item.partition, may_be_empty=True)
            if item.transaction_id is not None:
                self.check_id("transactionId", item.transaction_id)

    async def store(self, items: Sequence[PushItem]) -> list[PushedItem]:
        """Appends the items in one transaction."""
        now_ms = self.now_ms()
        with self.storage:
            return self.append(items, now_ms)

    def append(self, items: Sequence[PushItem], now_ms: int) -> list[PushedItem]:
        """Appends the items inside the open transaction."""
        tails: dict[tuple[str, str], Tail] = {}
        answers = []
        for index, item in enumerate(items):
            partition = DEFAULT_PARTITION if item.partition is None else item.partition
            key = (item.queue, partition)
            tail = tails.get(key)
            if tail is None:
                tail = tails[key] = self.find_tail(item.queue, partition)
            answers.append(self.append_item(tail, index, item, now_ms))
        for tail in tails.values():
            if tail.grown:
                self.save_tail(tail, now_ms)
        return answers

    def append_item(self, tail: Tail, index: int, item: PushItem, now_ms: int) -> PushedItem:
        """Stores one item, or finds that it is there already."""
        transaction_id = item.transaction_id
        if transaction_id is not None:
            original = tail.seen.get(transaction_id) or self.find_duplicate(tail, transaction_id, now_ms)
            if original is not None:
                tail.seen[transaction_id] = original
                return PushedItem(index, original.message_id, transaction_id, item.queue, "duplicate", original.offset)
        message_id = self.new_message_id(now_ms)
        offset = self.take_offset(tail)
        self.store_message(tail, offset, message_id, item, now_ms)
        if transaction_id is None:
            return PushedItem(index, message_id, message_id, item.queue, "queued", offset)
        tail.seen[transaction_id] = Stored(message_id, offset)
        return PushedItem(index, message_id, transaction_id, item.queue, "queued", offset)

    def find_tail(self, queue: str, partition: str) -> Tail:
        """The end of a partition; queue and partition come to exist here."""
        row = self.storage.execute(_FIND_TAIL, (partition, queue)).fetchone()
        if row is None:
            options = QueueOptions()
            row = (self.create_queue(queue, options), options.dedup_window_seconds, None, None)
        queue_id, window_s, partition_id, next_offset = row
        if partition_id is None:
            partition_id = self.storage.execute(
                "INSERT INTO partitions (queue_id, name) VALUES (?, ?)", (queue_id, partition)
            ).lastrowid
            next_offset = 0
        return Tail(partition_id, next_offset, window_s, {})

    def take_offset(self, tail: Tail) -> int:
        """The next offset of a partition: from 0, without gaps."""
        offset = tail.next_offset
        tail.next_offset = offset + 1
        tail.grown = True
        return offset

    def store_message(self, tail: Tail, offset: int, message_id: str, item: PushItem, now_ms: int) -> None:
        """Writes one message."""
        transaction_id = message_id if item.transaction_id is None else item.transaction_id
        self.storage.execute(
            _STORE_MESSAGE, (tail.partition_id, offset, message_id, transaction_id, bytes(item.payload), now_ms)
        )

    def save_tail(self, tail: Tail, now_ms: int) -> None:
        """Writes the end of a partition back."""
        self.storage.execute(
            "UPDATE partitions SET next_offset = ?, pushed_ms = ? WHERE id = ?",
            (tail.next_offset, now_ms, tail.partition_id),
        )

    def find_duplicate(self, tail: Tail, transaction_id: str, now_ms: int) -> Stored | None:
        """The message of this partition that already has the id, if it was stored inside the dedup window.

        The window counts from the stored original and is the one configured now; 0 or less is off.
        """
        if tail.dedup_window_s <= 0:
            return None
        row = self.storage.execute(_FIND_ORIGINAL, (tail.partition_id, transaction_id)).fetchone()
        if row is None:
            return None
        message_id, offset, pushed_ms = row
        return Stored(message_id, offset) if now_ms - pushed_ms < tail.dedup_window_s * 1000 else None

    def refused_push(self, items: Sequence[PushItem], refusal: StorageRefused) -> list[PushedItem]:
        """The answer when the storage refused: nothing was stored, and each item says so."""
        return [
            PushedItem(index, None, item.transaction_id, item.queue, "failed", error=str(refusal))
            for index, item in enumerate(items)
        ]

    def wake_after_push(self, items: Sequence[PushItem]) -> None:
        """Wakes who may want what was pushed."""
        for queue, partition in dict.fromkeys((item.queue, item.partition) for item in items):
            self.wake(queue, DEFAULT_PARTITION if partition is None else partition)
