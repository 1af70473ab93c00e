"""Faults of seeks."""

from __future__ import annotations

from reference_broker import Engine
from reference_broker.model import Lane, Pop, Queue


class SeekWithoutEffect(Engine):
    """A "nothing there" mark, left by an empty wildcard pop, hides replays from wildcard pops (seen in Queen 0.12)."""

    def candidate_partitions(self, pop: Pop, queue: Queue) -> list[Lane]:
        """Leaves out partitions that have not grown since the group found nothing anywhere."""
        lanes = super().candidate_partitions(pop, queue)
        if pop.partition is not None:
            return lanes
        marks: dict[tuple[str, int], int] = self.__dict__.setdefault("nothing_there", {})
        fresh = [lane for lane in lanes if marks.get((pop.group, lane.partition_id)) != lane.next_offset]
        if not lanes:
            rows = self.storage.execute("SELECT id, next_offset FROM partitions WHERE queue_id = ?", (queue.id,))
            marks.update(((pop.group, partition), end) for partition, end in rows)
        return fresh


class SeekKeepsLease(Engine):
    """The lease of before survives a seek."""

    def clear_lease_at_seek(self, lane: Lane) -> None:
        """Leaves it."""


class SeekToEndIgnored(Engine):
    """A seek to the end is answered and moves nothing."""

    def sought_cursor(self, lane: Lane, since_ms: int | None) -> int:
        """Where it was."""
        return lane.committed if since_ms is None else super().sought_cursor(lane, since_ms)


class SeekMovesEveryGroup(Engine):
    """A seek of one group moves all of them."""

    def sought_lanes(self, group: str, queue: str, partition: str | None) -> list[Lane] | None:
        """The lanes of every group that was ever there."""
        lanes = super().sought_lanes(group, queue, partition)
        for (other,) in self.storage.execute("SELECT DISTINCT group_name FROM cursors").fetchall() if lanes else ():
            if lanes and other != group:
                lanes += super().sought_lanes(other, queue, partition) or []
        return lanes
