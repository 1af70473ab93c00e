"""Faults of leases."""

from __future__ import annotations

from collections.abc import Sequence

from reference_broker import Engine
from reference_broker.model import Lane, Pop, Popped, PushedItem, PushItem, Queue
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
