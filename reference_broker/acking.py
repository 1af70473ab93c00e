"""Ack: moving cursors, giving back, dead letters."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from reference_broker.core import LANE_COLUMNS, QUEUE_COLUMNS, Core
from reference_broker.model import (
    LARGEST_OFFSET,
    AckedItem,
    AckItem,
    AckPlan,
    Lane,
    QueueOptions,
    Settled,
    SettledAnswer,
    Word,
)
from reference_broker.storage import StorageRefused

_FIND_LANE = (
    f"SELECT {LANE_COLUMNS}, q.name, {QUEUE_COLUMNS} FROM partitions p JOIN queues q ON q.id = p.queue_id"
    " LEFT JOIN cursors c ON c.partition_id = p.id AND c.group_name = ? WHERE p.id = ?"
)
_LANE_WIDTH = 14
_FIND_MESSAGE = "SELECT offset FROM messages WHERE partition_id = ? AND transaction_id = ? ORDER BY offset"
_FILE_DEAD_LETTER = (
    "INSERT INTO dead_letters (id, partition_id, group_name, offset, error, retry_count, filed_ms)"
    " VALUES (?, ?, ?, ?, ?, ?, ?)"
)

_WORDS: dict[str | None, Word] = {
    None: "completed",
    "completed": "completed",
    "success": "completed",
    "acked": "completed",
    "ok": "completed",
    "retry": "retry",
    "dlq": "dlq",
}
_STRENGTH: dict[Word, int] = {"completed": 0, "retry": 1, "failed": 2, "dlq": 3}

DEAD_LEASE = "invalid or expired lease"
COMMITTED = "already committed"
UNRESOLVABLE = "unresolvable: no such message in the leased batch"

_ENCODER = msgspec.json.Encoder()
_SETTLED_DECODER = msgspec.json.Decoder(SettledAnswer)


class Acking(Core):
    """The part of the engine that settles what was delivered.

    Readings, where the contract allows more than one:

    - `failed` and `retry` put the cursor just below the message, so what lies below it is completed.
    - `completed` or `dlq` above a `failed` or `retry` of the same call is accepted (`success`) and has no effect: the
      lowest signal decides, and what is above comes again. Such a `dlq` is not filed.
    - `dlq` in the middle of a batch moves the cursor as `completed` does; the lease stays until the end is reached.
    - Without a leased batch an unfenced `completed` may reach any stored message; the other words change nothing.
    - A word that is not known is `failed`.
    """

    async def ack(self, group: str, items: Sequence[AckItem]) -> list[AckedItem]:
        """Settles the items in one transaction and answers what became of each, in request order."""
        self.check_ack(group, items)
        if self.hook is not None:
            await self.hook("ack.begin")
        try:
            answers = await self.settle(group, items)
        except StorageRefused as refusal:
            answers = [AckedItem(index, item.transaction_id, False, str(refusal)) for index, item in enumerate(items)]
        if self.hook is not None:
            await self.hook("ack.answer")
        return answers

    def check_ack(self, group: str, items: Sequence[AckItem]) -> None:
        """Refuses what cannot name anything. Raises `Malformed`."""
        self.check_name("consumerGroup", group)
        for item in items:
            self.check_id("transactionId", item.transaction_id)
            self.check_id("partitionId", item.partition_id)

    async def settle(self, group: str, items: Sequence[AckItem]) -> list[AckedItem]:
        """Settles the items in one transaction; wakes who may go on."""
        now_ms = self.now_ms()
        with self.storage:
            answers, released = self.settle_parts(group, items, now_ms)
        for queue, partition in released:
            self.wake_after_release(queue, partition)
        return answers

    def settle_parts(
        self, group: str, items: Sequence[AckItem], now_ms: int
    ) -> tuple[list[AckedItem], list[tuple[str, str]]]:
        """Settles each (partition, lease) of a call on its own, inside the open transaction.

        Answers the results in request order, and the (queue, partition) pairs that are free again.
        """
        parts: dict[tuple[str, str | None], list[int]] = {}
        for index, item in enumerate(items):
            parts.setdefault((item.partition_id, item.lease_id or None), []).append(index)
        answers: dict[int, AckedItem] = {}
        released: list[tuple[str, str]] = []
        for (partition_id, lease_id), indexes in parts.items():
            found = self.find_lane(partition_id, group)
            part = [items[index] for index in indexes]
            if found is None:
                settled = self.refuse(part, UNRESOLVABLE)
            else:
                lane, queue, options = found
                leased = lane.lease_id is not None
                settled = self.settle_part(lane, options, lease_id, part, now_ms)
                if leased and lane.lease_id is None:
                    released.append((queue, lane.partition))
            for index, answer in zip(indexes, settled, strict=True):
                answer.index = index
                answers[index] = answer
        return [answers[index] for index in range(len(items))], released

    def wake_after_release(self, queue: str, partition: str) -> None:
        """A partition is free again: by a completed batch, a nack or a dead letter."""
        self.wake(queue, partition)

    def settle_part(
        self, lane: Lane, options: QueueOptions, lease_id: str | None, items: Sequence[AckItem], now_ms: int
    ) -> list[AckedItem]:
        """Settles the items of one (partition, group, lease)."""
        if lease_id is not None and not self.lease_matches(lane, lease_id, now_ms):
            return self.recall(lane, lease_id, items) or self.refuse(items, DEAD_LEASE)
        settled = self.locate(lane, items)
        plan = self.plan_ack(lane, options, [one for one in settled if isinstance(one, Settled)])
        leased = lane.lease_id is not None
        answers = [self.answer_item(item, one, lane, plan) for item, one in zip(items, settled, strict=True)]
        if any(isinstance(one, Settled) for one in settled):
            self.apply_plan(lane, options, plan, now_ms)
            if lease_id is not None and leased and plan.release:
                self.remember(lane, lease_id, items, answers)
            self.save_lane(lane)
        return answers

    # Finding ------------------------------------------------------------------------------------------------------

    def find_lane(self, partition_id: str, group: str) -> tuple[Lane, str, QueueOptions] | None:
        """The lane that a partitionId of the wire names, with its queue; None where there is no such partition."""
        if not (partition_id.isascii() and partition_id.isdigit() and len(partition_id) < 19):
            return None
        row = self.storage.execute(_FIND_LANE, (group, int(partition_id))).fetchone()
        if row is None:
            return None
        queue = row[_LANE_WIDTH]
        from_ms = None if row[4] is not None else self.start_time(queue, group)
        lane = self.lane_of(row[:_LANE_WIDTH], group, from_ms)
        return lane, queue, self.find_options(row[_LANE_WIDTH + 1 :])

    def start_time(self, queue: str, group: str) -> int | None:
        """The time at which a group starts in a queue, if it starts at a time."""
        found = self.storage.execute("SELECT from_ms FROM groups WHERE queue = ? AND name = ?", (queue, group))
        row = found.fetchone()
        return row[0] if row else None

    def lease_matches(self, lane: Lane, lease_id: str, now_ms: int) -> bool:
        """The fence: an ack that names a lease needs that very lease, alive."""
        return lane.lease_id == lease_id and self.lease_is_live(lane, now_ms)

    def locate(self, lane: Lane, items: Sequence[AckItem]) -> list[Settled | str]:
        """Where each item's message is, or why it cannot be settled (`COMMITTED`, `UNRESOLVABLE`).

        An id that occurs more than once above the cursor means its first message, when repeated in the call the next.
        """
        used: dict[str, int] = {}
        located: list[Settled | str] = []
        for item in items:
            offsets = self.find_offsets(lane, item.transaction_id)
            open_ = [offset for offset in offsets if lane.committed < offset <= self.reach(lane)]
            if open_:
                count = used.get(item.transaction_id, 0)
                used[item.transaction_id] = count + 1
                word = self.word_of(item.status)
                located.append(Settled(open_[min(count, len(open_) - 1)], word, item.error))
            elif offsets and offsets[0] <= lane.committed:
                located.append(COMMITTED)
            else:
                located.append(UNRESOLVABLE)
        return located

    def find_offsets(self, lane: Lane, transaction_id: str) -> list[int]:
        """The offsets of a partition's messages that have this id."""
        found = self.storage.execute(_FIND_MESSAGE, (lane.partition_id, transaction_id))
        return [offset for (offset,) in found]

    def reach(self, lane: Lane) -> int:
        """The highest offset that an ack may settle: the end of the leased batch, also after the lease ran out."""
        return LARGEST_OFFSET if lane.lease_id is None else lane.batch_last

    def word_of(self, status: str | None) -> Word:
        """What a status word of the wire means. Words are case sensitive."""
        return _WORDS.get(status, "failed")

    # Deciding -----------------------------------------------------------------------------------------------------

    def plan_ack(self, lane: Lane, options: QueueOptions, settled: Sequence[Settled]) -> AckPlan:
        """What these items do together.

        At one offset `dlq` beats `failed` beats `retry` beats `completed`. The cursor stops at the lowest `failed` or
        `retry`. One failure is counted however many items failed; a dead letter clears the count before it.
        """
        plan = AckPlan(lane.committed, lane.failures)
        if lane.lease_id is None:
            settled = [one for one in settled if one.word == "completed"]
        strongest = self.strongest_words(settled)
        stop = min((one.offset for one in strongest.values() if one.word in ("failed", "retry")), default=None)
        for offset, one in sorted(strongest.items()):
            if stop is not None and offset >= stop:
                break
            plan.cursor = offset
            if one.word == "dlq":
                plan.filed.append((offset, one.error))
                plan.failures = 0
        if stop is not None:
            plan.cursor = max(plan.cursor, stop - 1)
            plan.release = True
            if strongest[stop].word == "failed":
                self.spend_retry(plan, options, strongest[stop])
        elif lane.lease_id is not None and plan.cursor >= lane.batch_last:
            plan.release = True
            plan.failures = 0
        return plan

    def strongest_words(self, settled: Sequence[Settled]) -> dict[int, Settled]:
        """The item that counts at each offset."""
        strongest: dict[int, Settled] = {}
        for one in settled:
            other = strongest.get(one.offset)
            if other is None or _STRENGTH[one.word] > _STRENGTH[other.word]:
                strongest[one.offset] = one
        return strongest

    def spend_retry(self, plan: AckPlan, options: QueueOptions, failed: Settled) -> None:
        """Counts one failure; with the budget spent the message is filed, or dropped, and passed."""
        plan.failures += 1
        if plan.failures > options.retry_limit:
            plan.failures = 0
            plan.cursor = failed.offset
            if self.files_dead_letters(options):
                plan.filed.append((failed.offset, failed.error))

    def files_dead_letters(self, options: QueueOptions) -> bool:
        """Whether a message with a spent budget is kept as a dead letter; otherwise it is dropped."""
        return options.dead_letter_queue or options.dlq_after_max_retries

    # Acting -------------------------------------------------------------------------------------------------------

    def apply_plan(self, lane: Lane, options: QueueOptions, plan: AckPlan, now_ms: int) -> None:
        """Carries a plan out on the lane; the caller saves it."""
        for offset, error in plan.filed:
            self.file_dead_letter(lane, options, offset, error, now_ms)
        self.commit_cursor(lane, plan.cursor)
        lane.failures = plan.failures
        if plan.release:
            self.release_lease(lane)

    def commit_cursor(self, lane: Lane, offset: int) -> None:
        """Everything up to `offset` is done for this group in this partition."""
        lane.committed = offset

    def release_lease(self, lane: Lane) -> None:
        """Frees the partition for the group. The bounds of the batch stay, for the delivery attempt."""
        lane.lease_id = None
        lane.lease_until_ms = 0

    def file_dead_letter(self, lane: Lane, options: QueueOptions, offset: int, error: str | None, now_ms: int) -> None:
        """Files a message for a group; the message itself stays where it is."""
        row = (
            self.new_message_id(now_ms),
            lane.partition_id,
            lane.group,
            offset,
            error,
            min(lane.failures, options.retry_limit),
            now_ms,
        )
        self.storage.execute(_FILE_DEAD_LETTER, row)

    # Answering ----------------------------------------------------------------------------------------------------

    def answer_item(self, item: AckItem, one: Settled | str, lane: Lane, plan: AckPlan) -> AckedItem:
        """What one item is answered, before the plan is carried out."""
        if not isinstance(one, Settled):
            if one == COMMITTED and self.word_of(item.status) == "completed":
                return AckedItem(0, item.transaction_id, True, noop=True)
            return AckedItem(0, item.transaction_id, False, one)
        filed = one.word != "completed" and any(offset == one.offset for offset, _ in plan.filed)
        return AckedItem(
            0,
            item.transaction_id,
            True,
            lease_released=plan.release and lane.lease_id is not None,
            dlq=filed,
        )

    def refuse(self, items: Sequence[AckItem], error: str) -> list[AckedItem]:
        """The same refusal for each item."""
        return [AckedItem(0, item.transaction_id, False, error) for item in items]

    def remember(self, lane: Lane, lease_id: str, items: Sequence[AckItem], answers: list[AckedItem]) -> None:
        """Keeps the ack that released a lease, until the next one does."""
        lane.settled_lease = lease_id
        lane.settled_answer = _ENCODER.encode(SettledAnswer([self.word_of(item.status) for item in items], answers))

    def recall(self, lane: Lane, lease_id: str, items: Sequence[AckItem]) -> list[AckedItem] | None:
        """The answers of the same ack when it released the lease; None where this is another one. Nothing moves."""
        if lane.settled_lease != lease_id or lane.settled_answer is None:
            return None
        first = _SETTLED_DECODER.decode(lane.settled_answer)
        asked = [(item.transaction_id, self.word_of(item.status)) for item in items]
        answered = [(answer.transaction_id, word) for answer, word in zip(first.items, first.words, strict=True)]
        return first.items if asked == answered else None
