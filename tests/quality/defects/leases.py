"""Faults of leases."""

from __future__ import annotations

from collections.abc import Sequence

from reference_broker import Engine
from reference_broker.model import Lane, Message, Pop, Popped, PoppedMessage, PushedItem, PushItem, Queue
from reference_broker.waiting import Waiter


class PushBreaksLease(Engine):
    """A push to a leased partition makes the leased messages visible (seen in LocalStack)."""

    def append(self, items: Sequence[PushItem], now_ms: int) -> list[PushedItem]:
        """Ends the leases of every partition that grows."""
        answers = super().append(items, now_ms)
        for item in items:
            self.storage.execute(
                "UPDATE cursors SET lease_until_ms = 0 WHERE partition_id IN (SELECT p.id FROM partitions p"
                " JOIN queues q ON q.id = p.queue_id WHERE q.name = ? AND p.name = ?)",
                (item.queue, item.partition or "Default"),
            )
        return answers


class FreshBesideLeased(Engine):
    """A new message of a leased partition is handed to another worker (seen in LocalStack and graphile-worker)."""

    def claimable_from(self, lane: Lane, now_ms: int) -> int | None:
        """A leased partition is read on behind its batch."""
        return lane.batch_last + 1 if self.lease_is_live(lane, now_ms) else lane.committed + 1


class DoubleClaim(Engine):
    """The lease is checked first and set later, so that two pops of a group both get it (seen in LocalStack)."""

    async def claim(self, pop: Pop, waiter: Waiter | None) -> tuple[Popped | None, int | None]:
        """Chooses in one transaction and takes in another."""
        now_ms = self.now_ms()
        with self.storage:
            choice = self.choose(pop, now_ms)
        await self.checkpoint("chosen, not taken")
        if not choice.lots:
            return None, choice.due_ms
        with self.storage:
            return self.take(pop, choice, now_ms), choice.due_ms


class LeaseSecondsIgnored(Engine):
    """The lease of the call is ignored; the queue's is taken (seen in a port of Queen)."""

    def lease_length_ms(self, pop: Pop, queue: Queue) -> int:
        """Always the option of the queue."""
        return queue.options.lease_time * 1000


class ExpiredNeverRedelivered(Engine):
    """A batch whose consumer died is never given out again; the partition stays leased."""

    def lease_is_live(self, lane: Lane, now_ms: int) -> bool:
        """A lease ends only by an ack."""
        return lane.lease_id is not None


class SharedLease(Engine):
    """A lease of one group hides the partition from every other."""

    def claimable_from(self, lane: Lane, now_ms: int) -> int | None:
        """Looks at the leases of all groups."""
        found = self.storage.execute(
            "SELECT count(*) FROM cursors WHERE partition_id = ? AND lease_id IS NOT NULL AND lease_until_ms > ?",
            (lane.partition_id, now_ms),
        )
        return None if found.fetchone()[0] else lane.committed + 1


class LeaseEndsEarly(Engine):
    """A lease ends a little before its time."""

    def lease_length_ms(self, pop: Pop, queue: Queue) -> int:
        """A tenth less than asked for."""
        return super().lease_length_ms(pop, queue) * 9 // 10


class ExtendFirstOnly(Engine):
    """Extending a lease over two partitions extends one of them (seen in Queen 0.14)."""

    def extend_lease(self, lease_id: str, until_ms: int, now_ms: int) -> int:
        """Renews the first partition and counts all."""
        rows = self.storage.execute(
            "SELECT partition_id FROM cursors WHERE lease_id = ? AND lease_until_ms > ? ORDER BY partition_id",
            (lease_id, now_ms),
        ).fetchall()
        for (partition_id,) in rows[:1]:
            self.storage.execute(
                "UPDATE cursors SET lease_until_ms = max(lease_until_ms, ?) WHERE lease_id = ? AND partition_id = ?",
                (until_ms, lease_id, partition_id),
            )
        return len(rows)


class ExtendDoesNothing(Engine):
    """An extension is answered and has no effect."""

    def extend_lease(self, lease_id: str, until_ms: int, now_ms: int) -> int:
        """Counts the partitions of the lease."""
        found = self.storage.execute(
            "SELECT count(*) FROM cursors WHERE lease_id = ? AND lease_until_ms > ?", (lease_id, now_ms)
        )
        return int(found.fetchone()[0])


class ExtendRevives(Engine):
    """Extending a lease that ran out brings it back to life."""

    def extend_lease(self, lease_id: str, until_ms: int, now_ms: int) -> int:
        """Does not look at the end of the lease."""
        return self.storage.execute(
            "UPDATE cursors SET lease_until_ms = max(lease_until_ms, ?) WHERE lease_id = ?", (until_ms, lease_id)
        ).rowcount


class UnreceivedClaimKept(Engine):
    """A parked pop whose client left long ago still claims the next message."""

    def client_left(self, waiter: Waiter) -> None:
        """Nobody tells the waiter."""


class LeasePerPartition(Engine):
    """Each partition of a call gets a lease of its own, and the answer names only the first."""

    def take_lease(self, lane: Lane, run: list[Message], lease_id: str, until_ms: int) -> None:
        """Makes up an id for every partition but the first of the call."""
        held = self.storage.execute("SELECT count(*) FROM cursors WHERE lease_id = ?", (lease_id,)).fetchone()[0]
        super().take_lease(lane, run, lease_id if not held else self.new_lease_id(), until_ms)

    def message_answers(self, lane: Lane, run: list[Message], lease_id: str) -> list[PoppedMessage]:
        """Each message carries the lease of its partition."""
        return super().message_answers(lane, run, lane.lease_id or lease_id)
