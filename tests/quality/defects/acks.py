"""Faults of acks."""

from __future__ import annotations

from collections.abc import Sequence

from reference_broker import Engine
from reference_broker.acking import DEAD_LEASE
from reference_broker.model import AckedItem, AckItem, AckPlan, Lane, Message, QueueOptions, Settled


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


class PrefixNotCompleted(Engine):
    """`completed` settles its own message only: lower ones of the batch come again."""

    def plan_ack(self, lane: Lane, options: QueueOptions, settled: Sequence[Settled]) -> AckPlan:
        """The cursor stops at the first message that was not named."""
        plan = super().plan_ack(lane, options, settled)
        named = {one.offset for one in settled}
        for offset in range(lane.committed + 1, plan.cursor + 1):
            if offset not in named:
                plan.cursor = offset - 1
                break
        return plan


class FailedIsDropped(Engine):
    """A failed message is not given back: the cursor passes it."""

    def plan_ack(self, lane: Lane, options: QueueOptions, settled: Sequence[Settled]) -> AckPlan:
        """Treats `failed` as done."""
        plan = super().plan_ack(lane, options, settled)
        failed = [one.offset for one in settled if one.word == "failed"]
        if failed and plan.release:
            plan.cursor = max(plan.cursor, min(failed))
        return plan


class RetrySpendsTheBudget(Engine):
    """`retry` counts as a failure."""

    def plan_ack(self, lane: Lane, options: QueueOptions, settled: Sequence[Settled]) -> AckPlan:
        """Reads every `retry` as `failed`."""
        as_failed = [Settled(one.offset, "failed" if one.word == "retry" else one.word, one.error) for one in settled]
        return super().plan_ack(lane, options, as_failed)


class BudgetNeverSpent(Engine):
    """Failures are not counted, so a poisonous message comes for ever."""

    def spend_retry(self, plan: AckPlan, options: QueueOptions, failed: Settled) -> None:
        """Counts nothing."""


class BudgetSpentPerItem(Engine):
    """Every failed item of a call spends a retry."""

    def plan_ack(self, lane: Lane, options: QueueOptions, settled: Sequence[Settled]) -> AckPlan:
        """Adds the failures that one call must not count."""
        lane.failures += max(0, sum(one.word == "failed" for one in settled) - 1)
        return super().plan_ack(lane, options, settled)


class RefusedAckSaysSuccess(Engine):
    """An ack of a message outside the batch answers success and does nothing."""

    def answer_item(self, item: AckItem, one: Settled | str, lane: Lane, plan: AckPlan) -> AckedItem:
        """Success for what cannot be resolved."""
        answer = super().answer_item(item, one, lane, plan)
        if isinstance(one, str) and not answer.success:
            return AckedItem(0, item.transaction_id, True)
        return answer


class RepeatIsRefused(Engine):
    """A `completed` at or below the cursor is answered as an error."""

    def answer_item(self, item: AckItem, one: Settled | str, lane: Lane, plan: AckPlan) -> AckedItem:
        """No no-ops."""
        answer = super().answer_item(item, one, lane, plan)
        return AckedItem(0, item.transaction_id, False, "already committed") if answer.noop else answer


class ReleasedFlagLies(Engine):
    """`leaseReleased:true` while the rest of the batch stays leased (seen in Queen 1.6)."""

    def answer_item(self, item: AckItem, one: Settled | str, lane: Lane, plan: AckPlan) -> AckedItem:
        """Every accepted item says so."""
        answer = super().answer_item(item, one, lane, plan)
        answer.lease_released = answer.success
        return answer


class SiblingDlqFlag(Engine):
    """A completed item of a call with a dead letter is answered dlq:true (seen in Queen 1.6)."""

    def answer_item(self, item: AckItem, one: Settled | str, lane: Lane, plan: AckPlan) -> AckedItem:
        """The flag speaks of the call."""
        answer = super().answer_item(item, one, lane, plan)
        answer.dlq = answer.success and bool(plan.filed)
        return answer


class RefusedAckActs(Engine):
    """An ack under a dead lease is refused, and acts all the same."""

    def refuse(self, items: Sequence[AckItem], error: str) -> list[AckedItem]:
        """Moves the cursors of the partition to the message."""
        if error == DEAD_LEASE:
            for item in items:
                self.storage.execute(
                    "UPDATE cursors SET committed = max(committed, (SELECT max(offset) FROM messages m"
                    " WHERE m.partition_id = cursors.partition_id AND m.transaction_id = ?))"
                    " WHERE partition_id = ? AND batch_last >= 0 AND EXISTS"
                    " (SELECT 1 FROM messages m WHERE m.partition_id = cursors.partition_id AND m.transaction_id = ?)",
                    (item.transaction_id, int(item.partition_id), item.transaction_id),
                )
        return super().refuse(items, error)


class OneResultTooFew(Engine):
    """The answer of a batch ack leaves the last item out."""

    async def settle(self, group: str, items: Sequence[AckItem]) -> list[AckedItem]:
        """Cuts the answer."""
        answers = await super().settle(group, items)
        return answers[:-1] if len(answers) > 1 else answers


class ExhaustedVanishes(Engine):
    """A message whose retries are spent is dropped instead of filed (seen in a port of Queen)."""

    def files_dead_letters(self, options: QueueOptions) -> bool:
        """Never."""
        return False


class DeadLetterBlocks(Engine):
    """After a dead letter the partition stays leased (seen in Pub/Sub)."""

    def apply_plan(self, lane: Lane, options: QueueOptions, plan: AckPlan, now_ms: int) -> None:
        """Keeps the lease where something was filed."""
        plan.release = plan.release and not plan.filed
        super().apply_plan(lane, options, plan, now_ms)
