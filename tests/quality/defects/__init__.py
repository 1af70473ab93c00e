"""Seeded defects: faults of real brokers, each a subclass of the reference engine that overrides one method.

`DEFECTS` maps the id of a defect to its class and to the rules that may stand as the headline of its minimal schedule.
The reference broker itself knows nothing of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from reference_broker import Engine

from defects import acks, deliveries, groups, leases, orders, pushes


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
    Defect("canary", deliveries.Canary, ("lease/exclusive", "delivery/not-after-ack")),
    Defect(
        "lost-behind-the-cursor",
        pushes.LostBehindTheCursor,
        ("push/stored-is-delivered", "order/starts-at-cursor"),
        concurrent=True,
    ),
    Defect("answered-before-durable", pushes.AnsweredBeforeDurable, ("push/stored-is-delivered",)),
    Defect("push-says-queued", pushes.PushSaysQueued, ("push/stored-is-delivered",)),
    Defect("push-stored-twice", pushes.PushStoredTwice, ("push/no-phantom",)),
    Defect("payload-index-shift", pushes.PayloadIndexShift, ("push/payload-unchanged",)),
    Defect("big-numbers-rounded", pushes.BigNumbersRounded, ("push/payload-unchanged",)),
    Defect("order-by-timestamp", orders.OrderByTimestamp, ("order/push-order",)),
    Defect("redelivery-unordered", orders.RedeliveryUnordered, ("order/push-order", "order/one-order-for-all")),
    Defect("redelivery-at-the-back", orders.RedeliveryAtTheBack, ("order/push-order", "order/one-order-for-all")),
    Defect("batch-with-a-gap", orders.BatchWithAGap, ("order/no-gap-in-batch", "push/stored-is-delivered")),
    Defect("shared-read-ahead", groups.SharedReadAhead, ("group/independent-cursor",)),
    Defect("shared-cursor", groups.SharedCursor, ("group/independent-cursor",)),
    Defect("new-starts-at-oldest", groups.NewStartsAtOldest, ("group/start-position",)),
    Defect("all-starts-at-tail", groups.AllStartsAtTail, ("group/start-position",)),
    Defect("start-decided-when-answered", groups.StartDecidedWhenAnswered, ("group/start-position",)),
    Defect("push-breaks-lease", leases.PushBreaksLease, ("lease/exclusive",)),
    Defect("fresh-beside-leased", leases.FreshBesideLeased, ("lease/exclusive",)),
    Defect("double-claim", leases.DoubleClaim, ("lease/exclusive",), concurrent=True),
    Defect("lease-seconds-ignored", leases.LeaseSecondsIgnored, ("lease/redelivered-after-expiry",)),
    Defect("expired-never-redelivered", leases.ExpiredNeverRedelivered, ("lease/redelivered-after-expiry",)),
    Defect("cursor-back-on-restart", deliveries.CursorBackOnRestart, ("delivery/not-after-ack",)),
    Defect("dead-letter-also-redelivered", deliveries.DeadLetterAlsoRedelivered, ("delivery/not-after-ack",)),
    Defect("mixed-batch-takes-maximum", acks.MixedBatchTakesMaximum, ("lease/redelivered-after-expiry",)),
    Defect("expiry-spends-retries", acks.ExpirySpendsRetries, ("lease/redelivered-after-expiry",)),
    Defect("stale-ack-accepted", acks.StaleAckAccepted, ("ack/stale-lease-refused",)),
)

DEFECTS: dict[str, Defect] = {defect.id: defect for defect in _ALL}
