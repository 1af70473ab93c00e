"""Seeded defects: faults of real brokers, each a subclass of the reference engine that overrides one method.

`DEFECTS` maps the id of a defect to its class and to the rules that may stand as the headline of its minimal schedule.
The reference broker itself knows nothing of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from defects import acks, cursors, deliveries, groups, leases, orders, pushes
from reference_broker import Engine


@dataclass(frozen=True, slots=True)
class Defect:
    """One seeded fault. `headlines`: the rules that name it. `concurrent`: it shows only when calls overlap."""

    id: str
    engine: type[Engine]
    headlines: tuple[str, ...]
    concurrent: bool = False

    @property
    def path(self) -> str:
        """How the command line names the engine: "module:Class"."""
        return f"{self.engine.__module__}:{self.engine.__name__}"


_ALL = (
    Defect("canary", deliveries.Canary, ("delivery/not-after-ack", "lease/exclusive", "ack/completes-prefix")),
    Defect(
        "lost-behind-the-cursor",
        pushes.LostBehindTheCursor,
        ("push/stored-is-delivered", "order/starts-at-cursor", "order/no-gap-in-batch"),
        concurrent=True,
    ),
    Defect("answered-before-durable", pushes.AnsweredBeforeDurable, ("push/stored-is-delivered",)),
    Defect("torn-write-delivered", pushes.TornWriteDelivered, ("push/no-phantom",)),
    Defect("push-says-queued", pushes.PushSaysQueued, ("push/stored-is-delivered",)),
    Defect("push-stored-twice", pushes.PushStoredTwice, ("push/stored-once",)),
    Defect("refused-push-stored", pushes.RefusedPushStored, ("push/refused-is-not-delivered",)),
    Defect("payload-index-shift", pushes.PayloadIndexShift, ("push/payload-unchanged",)),
    Defect("big-numbers-rounded", pushes.BigNumbersRounded, ("push/payload-unchanged",)),
    Defect("ids-lowered", pushes.IdsLowered, ("push/identity-unchanged",)),
    Defect("push-result-missing", pushes.PushResultMissing, ("push/one-result-per-item",)),
    Defect("order-by-timestamp", orders.OrderByTimestamp, ("order/push-order",)),
    Defect("redelivery-unordered", orders.RedeliveryUnordered, ("order/push-order", "order/one-order-for-all")),
    Defect("redelivery-at-the-back", orders.RedeliveryAtTheBack, ("order/push-order", "order/one-order-for-all")),
    Defect("batch-with-a-gap", orders.BatchWithAGap, ("order/no-gap-in-batch", "push/stored-is-delivered")),
    Defect("offsets-skip", pushes.OffsetsSkip, ("order/offsets-dense",)),
    Defect("shared-read-ahead", groups.SharedReadAhead, ("group/independent-cursor",)),
    Defect("shared-cursor", groups.SharedCursor, ("group/independent-cursor",)),
    Defect("shared-lease", leases.SharedLease, ("group/independent-lease",)),
    Defect("new-starts-at-oldest", groups.NewStartsAtOldest, ("group/start-position",)),
    Defect("all-starts-at-tail", groups.AllStartsAtTail, ("group/start-position",)),
    Defect(
        "start-decided-when-answered",
        groups.StartDecidedWhenAnswered,
        ("group/start-position", "group/new-partition-from-first"),
    ),
    Defect("start-decided-again", groups.StartDecidedAgain, ("group/start-decided-once",)),
    Defect(
        "new-partition-from-tail",
        groups.NewPartitionFromTail,
        ("group/new-partition-from-first",),
    ),
    Defect("no-group-starts-at-tail", groups.NoGroupStartsAtTail, ("group/no-group-starts-at-oldest",)),
    Defect("push-breaks-lease", leases.PushBreaksLease, ("lease/exclusive",)),
    Defect("fresh-beside-leased", leases.FreshBesideLeased, ("lease/exclusive",)),
    Defect("double-claim", leases.DoubleClaim, ("lease/exclusive",), concurrent=True),
    Defect("lease-ends-early", leases.LeaseEndsEarly, ("lease/exclusive", "lease/not-before-expiry")),
    Defect("lease-seconds-ignored", leases.LeaseSecondsIgnored, ("lease/redelivered-after-expiry",)),
    Defect("expired-never-redelivered", leases.ExpiredNeverRedelivered, ("lease/redelivered-after-expiry",)),
    Defect("extend-first-only", leases.ExtendFirstOnly, ("lease/extend-extends-all",)),
    Defect("extend-does-nothing", leases.ExtendDoesNothing, ("lease/extend-extends-all",)),
    Defect("extend-revives", leases.ExtendRevives, ("lease/dead-lease-stays-dead",)),
    Defect("unreceived-claim-kept", leases.UnreceivedClaimKept, ("lease/unreceived-claim-comes-back",)),
    Defect("lease-per-partition", leases.LeasePerPartition, ("lease/one-lease-covers-the-call",)),
    Defect("batch-over-budget", deliveries.BatchOverBudget, ("delivery/within-batch-budget",)),
    Defect("partitions-ignored", deliveries.PartitionsIgnored, ("delivery/within-partition-budget",)),
    Defect("auto-ack-not-committed", deliveries.AutoAckNotCommitted, ("delivery/auto-ack-once",)),
    Defect("cursor-back-on-restart", deliveries.CursorBackOnRestart, ("delivery/not-after-ack",)),
    Defect("dead-letter-also-redelivered", deliveries.DeadLetterAlsoRedelivered, ("delivery/not-after-ack",)),
    Defect(
        "starved-partition", deliveries.StarvedPartition, ("push/stored-is-delivered", "lease/redelivered-after-expiry")
    ),
    Defect("attempt-resets", deliveries.AttemptResets, ("delivery/attempt-counter",)),
    Defect("ack-result-missing", acks.OneResultTooFew, ("ack/one-result-per-item",)),
    Defect("prefix-not-completed", acks.PrefixNotCompleted, ("ack/completes-prefix",)),
    Defect("failed-is-dropped", acks.FailedIsDropped, ("ack/failed-comes-back-first",)),
    Defect("mixed-batch-takes-maximum", acks.MixedBatchTakesMaximum, ("ack/mixed-batch-stops-at-lowest",)),
    Defect("retry-spends-the-budget", acks.RetrySpendsTheBudget, ("ack/retry-is-free",)),
    Defect("budget-never-spent", acks.BudgetNeverSpent, ("ack/budget-spent-once",)),
    Defect("exhausted-vanishes", acks.ExhaustedVanishes, ("ack/budget-spent-once",)),
    Defect(
        "dead-letter-blocks",
        acks.DeadLetterBlocks,
        ("push/stored-is-delivered", "lease/redelivered-after-expiry"),
    ),
    Defect("budget-spent-per-item", acks.BudgetSpentPerItem, ("ack/budget-spent-once",)),
    Defect(
        "expiry-spends-retries",
        acks.ExpirySpendsRetries,
        ("lease/redelivered-after-expiry", "ack/budget-spent-once"),
    ),
    Defect("stale-ack-accepted", acks.StaleAckAccepted, ("ack/stale-lease-refused",)),
    Defect(
        "refused-ack-says-success",
        acks.RefusedAckSaysSuccess,
        ("ack/outside-batch-refused",),
    ),
    Defect("repeat-is-refused", acks.RepeatIsRefused, ("ack/repeat-is-no-op",)),
    Defect("released-flag-lies", acks.ReleasedFlagLies, ("ack/answer-matches-effect",)),
    Defect("sibling-dlq-flag", acks.SiblingDlqFlag, ("ack/answer-matches-effect",)),
    Defect("refused-ack-acts", acks.RefusedAckActs, ("ack/answer-matches-effect",)),
    Defect("seek-without-effect", cursors.SeekWithoutEffect, ("cursor/seek-replays",)),
    Defect("seek-keeps-lease", cursors.SeekKeepsLease, ("cursor/seek-replays",)),
    Defect("seek-to-end-ignored", cursors.SeekToEndIgnored, ("cursor/seek-to-end-skips",)),
    Defect("seek-moves-every-group", cursors.SeekMovesEveryGroup, ("cursor/seek-only-this-group",)),
)

DEFECTS: dict[str, Defect] = {defect.id: defect for defect in _ALL}
