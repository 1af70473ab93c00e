"""The catalogue of rules: what is promised, where the contract says so, what counts as evidence, what stays open.

Ids are stable (`family/name`). `clause` names the section of the broker contract. `level` MUST rules decide the exit
code. The order of `RULES` is the order of the verdict table; `HEADLINES` lists rules from the most specific
explanation of a failure to the most general: the first one that is violated is the headline.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class Rule(msgspec.Struct, frozen=True):
    """One promise of the contract."""

    id: str
    statement: str
    clause: str
    evidence: str
    cannot_prove: str
    level: Literal["MUST", "SHOULD"] = "MUST"

    @property
    def family(self) -> str:
        """The part before the slash."""
        return self.id.split("/", 1)[0]


_CATALOGUE = (
    Rule(
        "push/one-result-per-item",
        "The answer of a push has one element for each item, in request order.",
        "2",
        "answered pushes",
        "anything about pushes that were not answered",
    ),
    Rule(
        "push/stored-is-delivered",
        "A message that was certainly stored comes to every group whose cursor has not passed it.",
        "1, 2, 8",
        "messages due for a group for the first time, at empty pops, in the audit and in the drain",
        "that a message of an unanswered push was stored; anything where audit or drain could not be completed",
    ),
    Rule(
        "push/refused-is-not-delivered",
        "A message that the broker refused is never delivered.",
        "2",
        "refused items of partitions that were read to their end",
        "that a delivered message of the same value was not another, unanswered push",
    ),
    Rule(
        "push/no-phantom",
        "Every delivered message was pushed to that partition.",
        "1, 2",
        "deliveries",
        "which of several unanswered pushes of one value a message came from",
    ),
    Rule(
        "push/payload-unchanged",
        "A payload comes back the same JSON value, numbers of any size and strings of any character included.",
        "2",
        "deliveries of messages whose push is known",
        "values that nest too deep to parse, unless their text is the same",
    ),
    Rule(
        "push/identity-unchanged",
        "A message keeps its id, its transactionId and its partition.",
        "2, 3",
        "deliveries of messages whose push is known",
        "the minted transactionId of a push that was not answered",
    ),
    Rule(
        "push/stored-once",
        "A pushed item is stored once.",
        "2",
        "messages that a complete audit read",
        "copies that another, unanswered push of the same value may account for",
    ),
    Rule(
        "order/push-order",
        "A partition stores and delivers messages in the order of their pushes, and of the items inside a request.",
        "1, 2",
        "neighbours in runs and in the stored order whose push order is known",
        "the order of pushes that overlap, were not answered, or were spooled",
    ),
    Rule(
        "order/one-order-for-all",
        "Every group and every redelivery sees the messages of a partition in one order, the stored one.",
        "1, 3",
        "neighbours in runs whose stored places are known",
        "neighbours whose places nothing connects (no complete audit)",
    ),
    Rule(
        "order/no-gap-in-batch",
        "The messages that a pop gives of one partition follow each other without a gap.",
        "3",
        "neighbours in runs whose stored places are known",
        "neighbours whose places nothing connects (no complete audit)",
    ),
    Rule(
        "order/starts-at-cursor",
        "What a pop gives of a partition starts right after the cursor of the group.",
        "1, 3, 5",
        "runs after the first whose start could be compared with the possible cursors",
        "starts between the lowest and the highest possible cursor",
    ),
    Rule(
        "order/offsets-dense",
        "Offsets start at 0, have no gaps, and a message keeps its own.",
        "1",
        "offsets in answers of pops",
        "anything on a broker that sends no offsets",
    ),
    Rule(
        "group/independent-cursor",
        "What one group acks moves no other group's cursor.",
        "1, 5",
        "runs and due messages of a group while another group had acked in the partition",
        "from one history, whether the start or another group's ack was the cause",
    ),
    Rule(
        "group/independent-lease",
        "A lease of one group holds no other group back.",
        "1, 4",
        "runs of a group, and pops that had to be served, under another group's lease",
        "leases of the other group that may have been over",
    ),
    Rule(
        "group/start-position",
        "A group starts where its first pop says: at what is pushed after it, at the oldest, or at a time.",
        "3",
        "first runs of groups, and messages due to groups that had completed nothing",
        "pushes that overlap the deciding pop; which of several possible first pops decided",
    ),
    Rule(
        "group/start-decided-once",
        "The first pop decides where a group starts; the parameters of later pops change nothing.",
        "3",
        "first runs and due messages of groups whose later pops asked for another start",
        "starts that both pops would explain",
    ),
    Rule(
        "group/new-partition-from-first",
        "A partition that comes to exist after a group's first pop is read from its first message.",
        "3",
        "first runs and due messages of `new` groups on partitions that came later",
        "partitions that came to exist while the first pop was under way",
    ),
    Rule(
        "group/no-group-starts-at-oldest",
        "Consumers that name no group start at the oldest message.",
        "3",
        "first runs and due messages of the queue mode",
        "anything after its first run",
    ),
    Rule(
        "lease/exclusive",
        "While a lease lives, no other pop of the group gets anything from the partition.",
        "1, 3",
        "pops that covered a partition under a lease that was certainly alive",
        "overlaps within the uncertainty of a lease's end",
    ),
    Rule(
        "lease/not-before-expiry",
        "A leased batch is not given again before its lease is over.",
        "4",
        "redeliveries, compared with the earliest end of the lease before",
        "overlaps within the uncertainty of a lease's end",
    ),
    Rule(
        "lease/redelivered-after-expiry",
        "What was handed out and not completed comes again when its lease is over.",
        "4, 8",
        "messages due for a group again, at empty pops and in the drain",
        "messages that an unanswered ack may have completed",
    ),
    Rule(
        "lease/one-lease-covers-the-call",
        "One lease id covers every partition of a pop.",
        "3",
        "runs",
        "that the lease is in force; other lease rules do",
    ),
    Rule(
        "lease/extend-extends-all",
        "An answered extension holds in every partition of the lease.",
        "4",
        "pops under a lease after its first end and before its extended one",
        "extensions that were not answered",
    ),
    Rule(
        "lease/dead-lease-stays-dead",
        "Extending a lease that is over renews nothing.",
        "4",
        "answered extensions of leases that were certainly over",
        "leases that may still have been alive",
    ),
    Rule(
        "lease/unreceived-claim-comes-back",
        "What a pop with a lost answer claimed comes when its lease is over; a client that left claims nothing.",
        "4, 8",
        "messages due for a group after pops with lost answers",
        "claims within `late_effect_s` after the client gave up, plus their lease",
    ),
    Rule(
        "delivery/within-batch-budget",
        "A pop gives at most `batch` messages over all its partitions.",
        "3",
        "pops that gave something",
        "that a pop gave as much as it could",
    ),
    Rule(
        "delivery/within-partition-budget",
        "A pop claims at most `partitions` partitions, and only the named one where one is named.",
        "3",
        "pops that gave something",
        "that a pop claimed as many as it could",
    ),
    Rule(
        "delivery/auto-ack-once",
        "What an autoAck pop delivered is committed: it does not come again.",
        "3",
        "runs after an answered autoAck pop",
        "autoAck pops whose answer was lost",
    ),
    Rule(
        "delivery/not-after-ack",
        "A message that a group has certainly completed is not given to it again.",
        "5, 8",
        "runs after an answered ack that completed something",
        "completions whose answer was lost, until a later run shows them",
    ),
    Rule(
        "delivery/attempt-counter",
        "deliveryAttempt is 1 at first and one higher each time the same batch is handed out again.",
        "3",
        "runs with a count whose predecessor is certain",
        "runs after lost answers, restarts and autoAck pops",
    ),
    Rule(
        "ack/one-result-per-item",
        "The answer of an ack has one element for each item, in request order.",
        "5",
        "answered acks",
        "anything about acks that were not answered",
    ),
    Rule(
        "ack/completes-prefix",
        "`completed` is done with every earlier message of the partition as well.",
        "5",
        "runs after acks that left lower messages of their batch unnamed",
        "completions whose answer was lost",
    ),
    Rule(
        "ack/failed-comes-back-first",
        "A message that was handed back (`failed`, `retry`) comes first.",
        "5",
        "runs and due messages after an answered hand-back",
        "hand-backs that may have spent the retry budget",
    ),
    Rule(
        "ack/retry-is-free",
        "`retry` does not touch the retry budget.",
        "5",
        "answered `failed` acks after a `retry`",
        "counts that unanswered failures may explain",
    ),
    Rule(
        "ack/budget-spent-once",
        "Failures 1 to `retryLimit` come back, the next one is dead-lettered; one failure a call and lease.",
        "5",
        "answered acks of one failed message",
        "failures that were not answered; nothing too late where dead letters are switched off",
    ),
    Rule(
        "ack/mixed-batch-stops-at-lowest",
        "In one call the cursor stops at the lowest message that was handed back.",
        "5",
        "runs and due messages after such a call",
        "calls that may have spent the retry budget",
    ),
    Rule(
        "ack/stale-lease-refused",
        "An ack under a lease that is not the live one of its partition and group is refused.",
        "5",
        "answered acks whose lease was certainly dead",
        "leases that may still have been alive; repetitions of an earlier ack",
    ),
    Rule(
        "ack/outside-batch-refused",
        "An ack of a message outside the leased batch is refused.",
        "5",
        "answered acks, under a live lease, of messages that are certainly not in the batch",
        "ids that an unanswered push may have stored",
    ),
    Rule(
        "ack/repeat-is-no-op",
        "At or below the cursor `completed` is a no-op, and the other words are refused.",
        "5",
        "answered acks of messages that were certainly completed",
        "acks under a lease that may be over",
    ),
    Rule(
        "ack/answer-matches-effect",
        "The flags of an answer say what happened: dlq, leaseReleased, success.",
        "5",
        "answered items, skips behind refused acks, and pops after a released lease",
        "flags that nothing later depends on",
    ),
    Rule(
        "cursor/seek-replays",
        "After a seek to the oldest message a group is given everything again, from there and at once.",
        "7",
        "first runs and due messages after an answered seek to the oldest message",
        "seeks to a time in between, seeks whose answer was lost, and those of a group that had not popped yet",
    ),
    Rule(
        "cursor/seek-to-end-skips",
        "After a seek to the end a group is given nothing that was stored before it.",
        "7",
        "runs and empty pops after an answered seek to the end, in a log that was read to its end",
        "pushes that overlap the seek, and seeks of a group that had not popped yet",
    ),
    Rule(
        "cursor/seek-only-this-group",
        "A seek moves no other group's cursor.",
        "1, 7",
        "runs and due messages of a group while another group was sought in the partition",
        "from one history, whether the seek or the group's own start was the cause",
    ),
)

RULES: dict[str, Rule] = {rule.id: rule for rule in _CATALOGUE}

HEADLINES: tuple[str, ...] = (
    "push/one-result-per-item",
    "ack/one-result-per-item",
    "push/payload-unchanged",
    "push/identity-unchanged",
    "push/refused-is-not-delivered",
    "push/stored-once",
    "push/no-phantom",
    "delivery/within-batch-budget",
    "delivery/within-partition-budget",
    "lease/one-lease-covers-the-call",
    "lease/dead-lease-stays-dead",
    "ack/stale-lease-refused",
    "ack/outside-batch-refused",
    "ack/repeat-is-no-op",
    "ack/mixed-batch-stops-at-lowest",
    "ack/failed-comes-back-first",
    "ack/retry-is-free",
    "ack/budget-spent-once",
    "lease/extend-extends-all",
    "lease/exclusive",
    "lease/not-before-expiry",
    "cursor/seek-to-end-skips",
    "cursor/seek-replays",
    "cursor/seek-only-this-group",
    "group/independent-lease",
    "group/independent-cursor",
    "group/start-decided-once",
    "group/new-partition-from-first",
    "group/no-group-starts-at-oldest",
    "group/start-position",
    "order/push-order",
    "order/one-order-for-all",
    "ack/answer-matches-effect",
    "lease/unreceived-claim-comes-back",
    "lease/redelivered-after-expiry",
    "delivery/auto-ack-once",
    "ack/completes-prefix",
    "delivery/not-after-ack",
    "push/stored-is-delivered",
    "order/no-gap-in-batch",
    "order/starts-at-cursor",
    "order/offsets-dense",
    "delivery/attempt-counter",
)
