"""Faults of acks."""

from __future__ import annotations

from collections.abc import Sequence

from reference_broker import Engine
from reference_broker.model import AckPlan, Lane, Message, QueueOptions, Settled


class MixedBatchTakesMaximum(Engine):
    """In one call a completed message above a failed one wins, and the failed one is lost."""

    def plan_ack(self, lane: Lane, options: QueueOptions, settled: Sequence[Settled]) -> AckPlan:
        """The cursor goes to the highest completed message."""
        plan = super().plan_ack(lane, options, settled)
        highest = max((one.offset for one in settled if one.word == "completed"), default=plan.cursor)
        plan.cursor = max(plan.cursor, highest)
        return plan


class ExpirySpendsRetries(Engine):
    """Expiries count as failures, so a slow consumer loses its messages (seen in a port of Queen)."""

    def take_lease(self, lane: Lane, run: list[Message], lease_id: str, until_ms: int) -> None:
        """A batch that comes again after its lease ran out spends a retry; with none left its first is dropped."""
        if lane.lease_id is not None:
            lane.failures += 1
        super().take_lease(lane, run, lease_id, until_ms)
        found = self.storage.execute(
            "SELECT q.retry_limit FROM queues q JOIN partitions p ON p.queue_id = q.id WHERE p.id = ?",
            (lane.partition_id,),
        )
        if lane.failures > found.fetchone()[0]:
            lane.committed, lane.failures = run[0].offset, 0
            self.save_lane(lane)


class StaleAckAccepted(Engine):
    """An ack under a lease that ran out settles what another worker holds (seen in NATS and Bull)."""

    def lease_matches(self, lane: Lane, lease_id: str, now_ms: int) -> bool:
        """Any lease will do."""
        return True
