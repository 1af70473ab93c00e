"""Faults of consumer groups: what they must not share, and where they start."""

from __future__ import annotations

from typing import Any

from reference_broker import Engine
from reference_broker.model import QUEUE_MODE, Lane, Message, Pop, Queue


class SharedCursor(Engine):
    """What one group acks moves the cursor of the others."""

    def lane_of(self, row: Any, group: str, from_ms: int | None) -> Lane:
        """The cursor is the highest of all groups."""
        lane = super().lane_of(row, group, from_ms)
        found = self.storage.execute("SELECT max(committed) FROM cursors WHERE partition_id = ?", (lane.partition_id,))
        (highest,) = found.fetchone()
        if highest is not None:
            lane.committed = max(lane.committed, highest)
        return lane


class SharedReadAhead(Engine):
    """A read buffer is shared, and a slow group skips what the fast one took out of it (seen in Pulsar)."""

    def read_run(self, lane: Lane, first: int, limit: int) -> list[Message]:
        """Leaves out the first message where another group is more than one ahead."""
        run = super().read_run(lane, first, limit)
        found = self.storage.execute(
            "SELECT max(committed) FROM cursors WHERE partition_id = ? AND group_name <> ?",
            (lane.partition_id, lane.group),
        )
        (ahead,) = found.fetchone()
        if ahead is not None and ahead > first:
            return [message for message in run if message.offset > ahead]
        return run


class NewStartsAtOldest(Engine):
    """A group that did not ask for it starts at the oldest message (seen in Queen 1.0 beta)."""

    def register_group(self, pop: Pop, queue: Queue | None) -> None:
        """Remembers the group and writes down no tip."""
        super().register_group(pop, None)


class AllStartsAtTail(Engine):
    """`subscriptionMode=all` is ignored: every named group starts at the tail."""

    def register_group(self, pop: Pop, queue: Queue | None) -> None:
        """Starts every group as `new`."""
        changed = {name: getattr(pop, name) for name in pop.__struct_fields__} | {"start_new": True}
        super().register_group(Pop(**changed), queue)


class StartDecidedWhenAnswered(Engine):
    """A `new` group that is parked loses the message that wakes it (seen in Queen up to 0.5)."""

    def find_queue(self, pop: Pop) -> Queue | None:
        """The first look of a parked pop decides nothing; the one after its wake-up starts at the tip."""
        parked: dict[int, Pop] = self.__dict__.setdefault("parked", {})
        if (
            pop.wait
            and pop.start_new
            and pop.group != QUEUE_MODE
            and id(pop) not in parked
            and not self.is_registered(pop)
        ):
            parked[id(pop)] = pop
            return None
        return super().find_queue(pop)


def start_at_the_tip(engine: Engine, pop: Pop, queue: Queue) -> None:
    """Writes down the tip of each partition in which the group has no cursor yet."""
    engine.storage.execute(
        "INSERT OR IGNORE INTO cursors (partition_id, group_name, committed, failures, lease_until_ms,"
        " batch_first, batch_last, attempt, served) SELECT id, ?, next_offset - 1, 0, 0, -1, -1, 0, 0"
        " FROM partitions WHERE queue_id = ?",
        (pop.group, queue.id),
    )


class StartDecidedAgain(Engine):
    """A later pop that asks for `new` moves the start of a group that began with `all`."""

    def find_queue(self, pop: Pop) -> Queue | None:
        """Starts at the tip wherever nothing was completed yet."""
        first: bool = self.__dict__.setdefault("asked", {}).setdefault((pop.queue, pop.group), pop.start_new)
        queue = super().find_queue(pop)
        if queue is not None and pop.start_new and not first and pop.group != QUEUE_MODE:
            start_at_the_tip(self, pop, queue)
        return queue


class NewPartitionFromTail(Engine):
    """A partition that a `new` group meets for the first time is read from its end."""

    def find_queue(self, pop: Pop) -> Queue | None:
        """Starts at the tip in every partition without a cursor."""
        first: bool = self.__dict__.setdefault("asked", {}).setdefault((pop.queue, pop.group), pop.start_new)
        queue = super().find_queue(pop)
        if queue is not None and first and pop.group != QUEUE_MODE:
            start_at_the_tip(self, pop, queue)
        return queue


class NoGroupStartsAtTail(Engine):
    """Consumers that name no group start at the tail."""

    def lane_of(self, row: Any, group: str, from_ms: int | None) -> Lane:
        """The first look of the queue mode at a partition is at its end."""
        lane = super().lane_of(row, group, from_ms)
        if group == QUEUE_MODE and row[4] is None:
            lane.committed = lane.next_offset - 1
            self.save_lane(lane)
        return lane
