"""Faults of delivery: what comes again though it must not."""

from __future__ import annotations

import msgspec

from reference_broker import Engine
from reference_broker.model import AckPlan, Choice, Lane, Message, Pop, Queue, QueueOptions


class Canary(Engine):
    """Every pop answers the first message for ever: proves that red is reported."""

    def claimable_from(self, lane: Lane, now_ms: int) -> int | None:
        """The first message, whatever the cursor and the lease say."""
        return 0


class CursorBackOnRestart(Engine):
    """Acks are persisted lazily and lost with the process (seen with Redis' append-only file)."""

    def recover_on_start(self) -> None:
        """The cursor is back where the last batch began."""
        super().recover_on_start()
        with self.storage:
            self.storage.execute("UPDATE cursors SET committed = batch_first - 1 WHERE batch_first >= 0", ())


class DeadLetterAlsoRedelivered(Engine):
    """A message is filed as a dead letter and delivered again."""

    def apply_plan(self, lane: Lane, options: QueueOptions, plan: AckPlan, now_ms: int) -> None:
        """The cursor stays below what was filed."""
        if plan.filed:
            plan.cursor = min(offset for offset, _ in plan.filed) - 1
            plan.release = True
        super().apply_plan(lane, options, plan, now_ms)


class AutoAckNotCommitted(Engine):
    """An autoAck pop delivers and does not commit: everything comes again."""

    def commit_at_delivery(self, lane: Lane, run: list[Message]) -> None:
        """Leaves the cursor where it is."""
        lane.attempt = 1


class AttemptResets(Engine):
    """The attempt counter starts again after a partial ack (seen in Queen before 1.4)."""

    def next_attempt(self, lane: Lane, first: int) -> int:
        """Counts on only where the batch begins at the same message."""
        return lane.attempt + 1 if lane.batch_first == first else 1


class BatchOverBudget(Engine):
    """A wildcard pop gives `batch` messages of each partition instead of in all."""

    def budget(self, pop: Pop, taken: int) -> int:
        """Forgets what was taken."""
        return pop.batch


class PartitionsIgnored(Engine):
    """A wildcard pop claims every partition that has something."""

    def choose(self, pop: Pop, now_ms: int) -> Choice:
        """Asks without a cap."""
        return super().choose(msgspec.structs.replace(pop, partitions=0), now_ms)


class StarvedPartition(Engine):
    """Wildcard pops pick the same partition for ever, also while it has nothing (seen in Queen 0.11)."""

    def candidate_partitions(self, pop: Pop, queue: Queue) -> list[Lane]:
        """Only the partition that came to exist first."""
        lanes = super().candidate_partitions(pop, queue)
        found = self.storage.execute("SELECT min(id) FROM partitions WHERE queue_id = ?", (queue.id,))
        (oldest,) = found.fetchone()
        return [lane for lane in lanes if pop.partition is not None or lane.partition_id == oldest]
