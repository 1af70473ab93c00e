"""Configuring, deleting, and looking at dead letters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from reference_broker.core import LANE_COLUMNS, QUEUE_COLUMNS, Core, iso_time
from reference_broker.model import BEFORE_THE_FIRST, DeadLetter, Lane, Malformed, QueueOptions

CONFIGURED_LEASE_S = 300
LARGEST_SECONDS = 10**10
LARGEST_COUNT = 10**9

_FIND_CONFIGURED = f"SELECT q.id, q.namespace, q.task, q.other_options, {QUEUE_COLUMNS} FROM queues q WHERE q.name = ?"
_CONFIGURE = (
    "UPDATE queues SET lease_time_s = ?, retry_limit = ?, dead_letter_queue = ?, dlq_after_max_retries = ?,"
    " dedup_window_s = ?, delayed_processing_s = ?, window_buffer_s = ?, namespace = ?, task = ?, other_options = ?"
    " WHERE id = ?"
)
_SOUGHT = (
    f"SELECT {LANE_COLUMNS} FROM partitions p JOIN queues q ON q.id = p.queue_id"
    " LEFT JOIN cursors c ON c.partition_id = p.id AND c.group_name = ?1"
    " WHERE q.name = ?2 AND (?3 IS NULL OR p.name = ?3) ORDER BY p.id"
)
_OF_QUEUE = "partition_id IN (SELECT id FROM partitions WHERE queue_id = ?)"
_DEAD_LETTERS = (
    "SELECT d.id, q.name, p.name, d.partition_id, d.group_name, m.id, m.transaction_id, d.offset, m.payload, d.error,"
    " d.retry_count, m.pushed_ms, d.filed_ms FROM dead_letters d JOIN partitions p ON p.id = d.partition_id"
    " JOIN queues q ON q.id = p.queue_id JOIN messages m ON m.partition_id = d.partition_id AND m.offset = d.offset"
    " WHERE (?1 IS NULL OR q.name = ?1) AND (?2 IS NULL OR d.group_name = ?2) AND (?3 IS NULL OR p.name = ?3)"
    " ORDER BY d.filed_ms, d.partition_id, d.offset, d.id LIMIT ?4 OFFSET ?5"
)


class Configured(msgspec.Struct, rename="camel"):
    """A queue after a configure: every option it has now."""

    configured: bool
    queue: str
    namespace: str
    task: str
    options: dict[str, Any]


class Managing(Core):
    """The part of the engine that works on whole queues and groups."""

    async def configure(
        self, queue: str, namespace: str | None, task: str | None, options: dict[str, msgspec.Raw]
    ) -> Configured:
        """Sets the options that are named; the others keep their value. The queue comes to exist with it.

        A value of null is not named. Options that this broker does not act on are kept. Raises `Malformed`.
        """
        self.check_name("queue", queue)
        for label in (namespace or "", task or ""):
            self.check_name("a label", label, may_be_empty=True)
        texts: dict[str, bytes] = {name: bytes(value) for name, value in options.items()}
        named = {name: read_option(name, text) for name, text in texts.items() if text != b"null"}
        if self.hook is not None:
            await self.hook("configure.begin")
        with self.storage:
            configured = self.apply_options(queue, namespace, task, named)
        self.wake(queue)
        if self.hook is not None:
            await self.hook("configure.answer")
        return configured

    def apply_options(self, name: str, namespace: str | None, task: str | None, named: dict[str, Any]) -> Configured:
        """Merges the named options into those of the queue, inside the open transaction."""
        row = self.storage.execute(_FIND_CONFIGURED, (name,)).fetchone()
        if row is None:
            fresh = QueueOptions(lease_time=CONFIGURED_LEASE_S)
            queue_id, old, others = self.create_queue(name, fresh), fresh, {}
            old_namespace = old_task = ""
        else:
            queue_id, old_namespace, old_task = row[:3]
            old, others = self.find_options(row[4:]), msgspec.json.decode(row[3])
        merged = self.merge_options(old, named)
        others |= {key: value for key, value in named.items() if key not in _READERS}
        labels = (old_namespace if namespace is None else namespace, old_task if task is None else task)
        columns = msgspec.structs.astuple(merged)
        self.storage.execute(_CONFIGURE, (*columns, *labels, msgspec.json.encode(others), queue_id))
        return Configured(True, name, *labels, {**msgspec.to_builtins(merged), **others})

    def merge_options(self, old: QueueOptions, named: dict[str, Any]) -> QueueOptions:
        """The options after a configure: those that are not named keep their value."""
        values = msgspec.to_builtins(old)
        values |= {key: value for key, value in named.items() if key in _READERS}
        return msgspec.convert(values, QueueOptions)

    async def delete_queue(self, name: str) -> bool:
        """Forgets a queue: messages, cursors, leases, dead letters, and where groups start. False: it was not there."""
        self.check_name("queue", name)
        if self.hook is not None:
            await self.hook("delete-queue.begin")
        with self.storage:
            existed = self.forget_queue(name)
            self.register_parked(name)
        self.wake(name)
        if self.hook is not None:
            await self.hook("delete-queue.answer")
        return existed

    def forget_queue(self, name: str) -> bool:
        """Deletes all rows of a queue, inside the open transaction."""
        self.storage.execute("DELETE FROM groups WHERE queue = ?", (name,))
        row = self.storage.execute("SELECT id FROM queues WHERE name = ?", (name,)).fetchone()
        if row is None:
            return False
        for table in ("messages", "cursors", "dead_letters"):
            self.storage.execute(f"DELETE FROM {table} WHERE {_OF_QUEUE}", row)
        self.storage.execute("DELETE FROM partitions WHERE queue_id = ?", row)
        self.storage.execute("DELETE FROM queues WHERE id = ?", row)
        return True

    async def delete_group(self, group: str, queue: str | None) -> bool:
        """Forgets a group's cursors, leases and start, in one queue or in all; its next pop is a first one."""
        self.check_name("consumerGroup", group)
        if queue is not None:
            self.check_name("queue", queue)
        if self.hook is not None:
            await self.hook("delete-group.begin")
        queues = self.parking.queues() if queue is None else [queue]
        with self.storage:
            existed = self.forget_group(group, queue)
            for name in queues:
                self.register_parked(name, group)
        for name in queues:
            self.wake(name)
        if self.hook is not None:
            await self.hook("delete-group.answer")
        return existed

    def forget_group(self, group: str, queue: str | None) -> bool:
        """Deletes all rows of a group, inside the open transaction."""
        forget_start = "DELETE FROM groups WHERE name = ?1 AND (?2 IS NULL OR queue = ?2)"
        forget_cursors = (
            "DELETE FROM cursors WHERE group_name = ?1 AND (?2 IS NULL OR partition_id IN"
            " (SELECT p.id FROM partitions p JOIN queues q ON q.id = p.queue_id WHERE q.name = ?2))"
        )
        starts = self.storage.execute(forget_start, (group, queue)).rowcount
        cursors = self.storage.execute(forget_cursors, (group, queue)).rowcount
        return starts + cursors > 0

    async def seek(self, group: str, queue: str, partition: str | None, since_ms: int | None) -> int | None:
        """Moves a group's cursors before the first message pushed at or after a time, or to the end (None).

        Answers how many partitions were moved; None where there is no such queue or partition. A group that never
        popped is there from now on: partitions that come to exist later are read from their first message.
        """
        self.check_name("consumerGroup", group)
        self.check_name("queue", queue)
        if partition is not None:
            self.check_name("partition", partition, may_be_empty=True)
        if self.hook is not None:
            await self.hook("seek.begin")
        with self.storage:
            lanes = self.sought_lanes(group, queue, partition)
            if lanes:
                self.storage.execute("INSERT OR IGNORE INTO groups (queue, name) VALUES (?, ?)", (queue, group))
            for lane in lanes or ():
                self.seek_lane(lane, since_ms)
        if lanes:
            self.wake_after_seek(queue)
        if self.hook is not None:
            await self.hook("seek.answer")
        return None if lanes is None else len(lanes)

    def sought_lanes(self, group: str, queue: str, partition: str | None) -> list[Lane] | None:
        """What the group knows about each partition that a seek moves; None where there is nothing of that name."""
        found = self.storage.execute("SELECT 1 FROM queues WHERE name = ?", (queue,)).fetchone()
        rows = self.storage.execute(_SOUGHT, (group, queue, partition)).fetchall()
        if found is None or (partition is not None and not rows):
            return None
        return [self.lane_of(row, group, None) for row in rows]

    def seek_lane(self, lane: Lane, since_ms: int | None) -> None:
        """Moves one cursor; the lease is gone, and what was counted of failures and deliveries with it."""
        lane.committed = self.sought_cursor(lane, since_ms)
        self.clear_lease_at_seek(lane)
        lane.failures = 0
        self.save_lane(lane)

    def sought_cursor(self, lane: Lane, since_ms: int | None) -> int:
        """The cursor before the first message of a time on, or behind the newest."""
        return (
            lane.next_offset - 1
            if since_ms is None
            else self.start_cursor(lane.partition_id, lane.next_offset, since_ms)
        )

    def clear_lease_at_seek(self, lane: Lane) -> None:
        """Who holds the batch holds it no more."""
        lane.lease_id, lane.lease_until_ms = None, 0
        lane.batch_first = lane.batch_last = BEFORE_THE_FIRST
        lane.settled_lease = lane.settled_answer = None

    def wake_after_seek(self, queue: str) -> None:
        """There may be something for the group again."""
        self.wake(queue)

    def register_parked(self, queue: str, group: str | None = None) -> None:
        """Decides anew where the groups of parked pops start: they are there already, before the next push."""
        raise NotImplementedError

    def dead_letters(
        self, queue: str | None, group: str | None, partition: str | None, limit: int, offset: int
    ) -> list[DeadLetter]:
        """The filed messages in the order of filing; None: whatever the queue, group, partition. Limit -1: all."""
        rows = self.storage.execute(_DEAD_LETTERS, (queue, group, partition, limit, offset))
        return [
            DeadLetter(
                id=row[0],
                queue=row[1],
                partition=row[2],
                partition_id=str(row[3]),
                consumer_group=row[4],
                message_id=row[5],
                transaction_id=row[6],
                offset=row[7],
                data=msgspec.Raw(row[8]),
                error_message=row[9],
                retry_count=row[10],
                created_at=iso_time(row[11]),
                failed_at=iso_time(row[12]),
            )
            for row in rows
        ]


# Options ----------------------------------------------------------------------------------------------------------


def _whole(least: int, largest: int) -> Callable[[str, bytes], int]:
    def read(name: str, value: bytes) -> int:
        try:
            number = msgspec.json.decode(value, type=int, strict=True)
        except msgspec.MsgspecError:
            raise Malformed(f"option {name} is not an integer: {_shown(value)}") from None
        if not least <= number <= largest:
            raise Malformed(f"option {name} is {number}, not between {least} and {largest}")
        return number

    return read


def _flag(name: str, value: bytes) -> bool:
    if value not in (b"true", b"false"):
        raise Malformed(f"option {name} is not true or false: {_shown(value)}")
    return value == b"true"


_READERS: dict[str, Callable[[str, bytes], int | bool]] = {
    "leaseTime": _whole(1, LARGEST_SECONDS),
    "retryLimit": _whole(0, LARGEST_COUNT),
    "deadLetterQueue": _flag,
    "dlqAfterMaxRetries": _flag,
    "dedupWindowSeconds": _whole(-LARGEST_SECONDS, LARGEST_SECONDS),
    "delayedProcessing": _whole(0, LARGEST_SECONDS),
    "windowBuffer": _whole(0, LARGEST_SECONDS),
}


def read_option(name: str, value: bytes) -> Any:
    """The value of an option. Raises `Malformed` for one of the wrong kind."""
    if name in _READERS:
        return _READERS[name](name, value)
    try:
        return msgspec.json.decode(value)
    except (msgspec.MsgspecError, RecursionError):
        raise Malformed(f"option {name} cannot be read: {_shown(value)}") from None


def _shown(value: bytes) -> str:
    return repr(value[:80])
