"""Pop: leasing runs of messages to groups, at once or after a wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from reference_broker.core import LANE_COLUMNS, QUEUE_COLUMNS, Core, iso_time
from reference_broker.model import (
    QUEUE_MODE,
    Choice,
    Extended,
    Lane,
    Lot,
    Message,
    Pop,
    Popped,
    PoppedMessage,
    Queue,
)
from reference_broker.waiting import Waiter

_FIND_QUEUE = (
    f"SELECT q.id, q.name, {QUEUE_COLUMNS}, g.name IS NOT NULL, g.from_ms FROM queues q"
    " LEFT JOIN groups g ON g.queue = q.name AND g.name = ? WHERE q.name = ?"
)
# A partition whose messages are all completed is never a candidate.
_CANDIDATES = (
    f"SELECT {LANE_COLUMNS} FROM partitions p LEFT JOIN cursors c ON c.partition_id = p.id AND c.group_name = ?"
    " WHERE p.queue_id = ? AND (c.committed IS NULL OR c.committed < p.next_offset - 1)"
)
_NAMED_CANDIDATE = _CANDIDATES + " AND p.name = ?"
_READ_RUN = (
    "SELECT offset, id, transaction_id, payload, pushed_ms FROM messages WHERE partition_id = ? AND offset >= ?"
    " ORDER BY offset LIMIT ?"
)
_RENEW = "UPDATE cursors SET lease_until_ms = max(lease_until_ms, ?) WHERE lease_id = ? AND lease_until_ms > ?"

_DEADLINE_SLACK_S = 1e-6  # a timer may fire a rounding error before its time

Watch = Callable[[Waiter], "asyncio.Task[None]"]


class Popping(Core):
    """The part of the engine that delivers.

    A pop of a named partition decides a new group's start for the whole queue, as a wildcard pop does, and also where
    the partition or the queue does not exist yet. The contract leaves this open for 2.x.
    """

    async def pop(self, pop: Pop, watch: Watch | None = None) -> Popped | None:
        """Delivers what the group can have, waiting for it if asked to; None when there is nothing.

        `watch` starts a task that tells a parked pop when its client leaves; it is called at most once, when the pop
        parks. A pop whose client left claims nothing any more.
        """
        self.check_pop(pop)
        if self.parking.has_claim_before(pop):
            await asyncio.sleep(0)  # a parked pop that was woken goes first
        if not pop.wait:
            answer, _ = await self.claim(pop, None)
        else:
            answer = await self.wait_for_claim(pop, watch)
        if self.hook is not None:
            await self.hook("pop.answer")
        return answer

    def check_pop(self, pop: Pop) -> None:
        """Refuses names that cannot exist. Raises `Malformed`."""
        self.check_name("queue", pop.queue)
        self.check_name("consumerGroup", pop.group)
        if pop.partition is not None:
            self.check_name("partition", pop.partition, may_be_empty=True)

    # Waiting ------------------------------------------------------------------------------------------------------

    async def wait_for_claim(self, pop: Pop, watch: Watch | None) -> Popped | None:
        """Claims again and again, each time something may have changed, until there is something or time is up.

        The waiter is parked before the first claim, so no wake-up falls between a claim and a sleep.
        """
        loop = asyncio.get_running_loop()
        deadline = self.poll_deadline(pop, loop.time())
        waiter = Waiter(pop)
        watcher: asyncio.Task[None] | None = None
        self.parking.add(waiter)
        try:
            while True:
                waiter.woken = False
                answer, due_ms = await self.claim(pop, waiter)
                left_s = deadline - loop.time()
                if answer is not None or waiter.gone or self.stopping or left_s <= _DEADLINE_SLACK_S:
                    return answer
                if watcher is None and watch is not None:
                    watcher = watch(waiter)
                await waiter.sleep(left_s if due_ms is None else min(left_s, max(due_ms - self.now_ms(), 1) / 1000))
                if self.time_is_up(waiter, due_ms, deadline - loop.time()):
                    return None
        finally:
            self.parking.remove(waiter)
            if watcher is not None:
                watcher.cancel()

    def poll_deadline(self, pop: Pop, now_s: float) -> float:
        """When a long poll gives up, in the event loop's time."""
        return now_s + pop.timeout_ms / 1000

    def time_is_up(self, waiter: Waiter, due_ms: int | None, left_s: float) -> bool:
        """True when a sleep ended because the poll is over and nothing is there to try for."""
        due = due_ms is not None and due_ms <= self.now_ms()
        return left_s <= _DEADLINE_SLACK_S and not waiter.woken and not due

    # Claiming -----------------------------------------------------------------------------------------------------

    async def claim(self, pop: Pop, waiter: Waiter | None) -> tuple[Popped | None, int | None]:
        """Chooses and takes in one transaction, so that no two pops of a group get the same partition.

        Answers what was claimed, or None and when time alone may change that.
        """
        if self.hook is not None:
            await self.hook("pop.begin")
        if waiter is not None and waiter.gone:
            return None, None
        now_ms = self.now_ms()
        with self.storage:
            choice = self.choose(pop, now_ms)
            answer = self.take(pop, choice, now_ms) if choice.lots else None
        if self.hook is not None:
            await self.hook("pop.committed")
        return answer, choice.due_ms

    def choose(self, pop: Pop, now_ms: int) -> Choice:
        """What the group can have now, inside the open transaction. A new group's start is decided here."""
        queue = self.find_queue(pop)
        if queue is None:
            return Choice([])
        choice = Choice([], self.lease_length_ms(pop, queue))
        cap = pop.partitions if pop.partition is None else 1
        taken = 0
        for lane in self.candidate_partitions(pop, queue):
            room = self.budget(pop, taken)
            if room <= 0 or (cap and len(choice.lots) >= cap):
                break
            first = self.claimable_from(lane, now_ms)
            if first is None:
                self.note_due(choice, lane.lease_until_ms)
                continue
            run = self.ready_part(choice, queue, lane, self.read_run(lane, first, room), now_ms)
            if run:
                choice.lots.append(Lot(lane, run))
                taken += len(run)
        return choice

    def find_queue(self, pop: Pop) -> Queue | None:
        """The queue as the group sees it, after the group's start in it is decided; None where there is no queue."""
        row = self.storage.execute(_FIND_QUEUE, (pop.group, pop.queue)).fetchone()
        if row is None:
            if pop.group != QUEUE_MODE and not self.is_registered(pop):
                self.register_group(pop, None)
            return None
        queue = Queue(row[0], row[1], self.find_options(row[2:9]), bool(row[9]), row[10])
        if not queue.registered and pop.group != QUEUE_MODE:
            self.register_group(pop, queue)
            queue.from_ms = pop.start_from_ms
        return queue

    def is_registered(self, pop: Pop) -> bool:
        """True when the group's start in this queue is decided."""
        found = self.storage.execute("SELECT 1 FROM groups WHERE queue = ? AND name = ?", (pop.queue, pop.group))
        return found.fetchone() is not None

    def candidate_partitions(self, pop: Pop, queue: Queue) -> list[Lane]:
        """The partitions that have something for the group, leased or not: the longest unserved first."""
        if pop.partition is not None:
            rows = self.storage.execute(_NAMED_CANDIDATE, (pop.group, queue.id, pop.partition)).fetchall()
        else:
            rows = self.storage.execute(_CANDIDATES, (pop.group, queue.id)).fetchall()
        lanes = [self.lane_of(row, pop.group, queue.from_ms) for row in rows]
        if len(lanes) > 1:
            lanes.sort(key=_longest_unserved)
        return lanes

    def budget(self, pop: Pop, taken: int) -> int:
        """How many messages this call may still take: `batch` counts for the whole call."""
        return pop.batch - taken

    def claimable_from(self, lane: Lane, now_ms: int) -> int | None:
        """Where the run of a partition begins: right after the cursor. None while it is leased."""
        return None if self.lease_is_live(lane, now_ms) else lane.committed + 1

    def read_run(self, lane: Lane, first: int, limit: int) -> list[Message]:
        """The messages of a partition from `first` on, in order of their offsets."""
        rows = self.storage.execute(_READ_RUN, (lane.partition_id, first, limit))
        return [Message(*row) for row in rows]

    def ready_part(self, choice: Choice, queue: Queue, lane: Lane, run: list[Message], now_ms: int) -> list[Message]:
        """The beginning of a run that may be delivered already, by the queue's delay and quiet time."""
        options = queue.options
        if options.window_buffer > 0:
            quiet_ms = lane.pushed_ms + options.window_buffer * 1000
            if now_ms < quiet_ms:
                self.note_due(choice, quiet_ms)
                return []
        if options.delayed_processing > 0:
            for index, message in enumerate(run):
                ready_ms = message.pushed_ms + options.delayed_processing * 1000
                if now_ms < ready_ms:
                    self.note_due(choice, ready_ms)
                    return run[:index]
        return run

    def note_due(self, choice: Choice, at_ms: int) -> None:
        """Notes when time alone makes something of this queue available."""
        if choice.due_ms is None or at_ms < choice.due_ms:
            choice.due_ms = at_ms

    def lease_length_ms(self, pop: Pop, queue: Queue) -> int:
        """How long the lease of this call lasts."""
        return (queue.options.lease_time if pop.lease_s is None else pop.lease_s) * 1000

    # Taking -------------------------------------------------------------------------------------------------------

    def take(self, pop: Pop, choice: Choice, now_ms: int) -> Popped:
        """Leases what was chosen, or commits it where the pop acknowledges by itself; one lease for the whole call."""
        lease_id = "" if pop.auto_ack else self.new_lease_id()
        messages: list[PoppedMessage] = []
        for lot in choice.lots:
            self.turn += 1
            lot.lane.served = self.turn
            if pop.auto_ack:
                self.commit_at_delivery(lot.lane, lot.run)
            else:
                self.take_lease(lot.lane, lot.run, lease_id, now_ms + choice.lease_ms)
            messages += self.message_answers(lot.lane, lot.run, lease_id)
        first = choice.lots[0].lane
        return Popped(
            True,
            pop.queue,
            first.partition,
            str(first.partition_id),
            lease_id,
            pop.group,
            messages,
            len(choice.lots),
        )

    def take_lease(self, lane: Lane, run: list[Message], lease_id: str, until_ms: int) -> None:
        """Leases a run of a partition to one pop."""
        lane.attempt = self.next_attempt(lane, run[0].offset)
        lane.lease_id = lease_id
        lane.lease_until_ms = until_ms
        lane.batch_first = run[0].offset
        lane.batch_last = run[-1].offset
        self.save_lane(lane)

    def commit_at_delivery(self, lane: Lane, run: list[Message]) -> None:
        """Moves the cursor past a run that is about to be delivered; no lease is taken."""
        lane.committed = lane.batch_last = run[-1].offset
        lane.batch_first = run[0].offset
        lane.attempt = 1
        lane.failures = 0
        lane.lease_id = None
        self.save_lane(lane)

    def next_attempt(self, lane: Lane, first: int) -> int:
        """The delivery attempt of a batch: it counts on while batches begin where, or inside what, the last one was."""
        return lane.attempt + 1 if lane.batch_first <= first <= lane.batch_last else 1

    def message_answers(self, lane: Lane, run: list[Message], lease_id: str) -> list[PoppedMessage]:
        """The messages of one partition as they are answered."""
        partition_id = str(lane.partition_id)
        return [
            PoppedMessage(
                message.id,
                message.transaction_id,
                None,
                msgspec.Raw(message.payload),
                None,
                iso_time(message.pushed_ms),
                partition_id,
                lane.partition,
                lease_id,
                lane.group,
                lane.attempt,
                message.offset,
            )
            for message in run
        ]

    # Extending ----------------------------------------------------------------------------------------------------

    async def extend(self, lease_id: str, seconds: int) -> Extended:
        """Renews a live lease in every partition of it; one that is gone is not revived."""
        if self.hook is not None:
            await self.hook("extend.begin")
        now_ms = self.now_ms()
        with self.storage:
            renewed = self.extend_lease(lease_id, now_ms + seconds * 1000, now_ms)
            until_ms = self.lease_end(lease_id) if renewed else None
        if self.hook is not None:
            await self.hook("extend.answer")
        return Extended(lease_id, renewed > 0, renewed, None if until_ms is None else iso_time(until_ms))

    def extend_lease(self, lease_id: str, until_ms: int, now_ms: int) -> int:
        """Moves the end of a live lease to the later of what it was and `until_ms`; answers in how many partitions."""
        return self.storage.execute(_RENEW, (until_ms, lease_id, now_ms)).rowcount

    def lease_end(self, lease_id: str) -> int | None:
        """The earliest end of a lease over its partitions."""
        found = self.storage.execute("SELECT min(lease_until_ms) FROM cursors WHERE lease_id = ?", (lease_id,))
        (until_ms,) = found.fetchone()
        return until_ms if until_ms is None else int(until_ms)


def _longest_unserved(lane: Lane) -> tuple[int, int]:
    return lane.served, lane.partition_id
