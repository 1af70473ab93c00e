"""Faults of order."""

from __future__ import annotations

from collections.abc import Sequence

from reference_broker import Engine
from reference_broker.model import Lane, Message, PushedItem, PushItem


class OrderByTimestamp(Engine):
    """Messages are ordered by a coarse time stamp and, inside one tick, by chance (seen in emulators of SQS)."""

    def append(self, items: Sequence[PushItem], now_ms: int) -> list[PushedItem]:
        """Stores the items of one request in the order of a hash."""
        turned = sorted(range(len(items)), key=lambda index: (bytes(items[index].payload)[::-1], index))
        answers = super().append([items[index] for index in turned], now_ms)
        for answer, index in zip(answers, turned, strict=True):
            answer.index = index
        return sorted(answers, key=lambda answer: answer.index)


class RedeliveryUnordered(Engine):
    """A batch whose lease ran out comes back in another order (seen in Pulsar and in emulators of SQS)."""

    def read_run(self, lane: Lane, first: int, limit: int) -> list[Message]:
        """Turns a batch round that begins where the last one began."""
        run = super().read_run(lane, first, limit)
        return run[::-1] if lane.lease_id is not None and lane.batch_first == first else run


class RedeliveryAtTheBack(Engine):
    """A message that was handed back goes behind newer ones (seen in RabbitMQ and Pulsar)."""

    def read_run(self, lane: Lane, first: int, limit: int) -> list[Message]:
        """Puts the first message of a batch that comes again at its end."""
        run = super().read_run(lane, first, limit)
        return run[1:] + run[:1] if lane.batch_first == first else run


class BatchWithAGap(Engine):
    """A batch of three or more leaves its second message out."""

    def read_run(self, lane: Lane, first: int, limit: int) -> list[Message]:
        """Drops one message in the middle."""
        run = super().read_run(lane, first, limit)
        return run[:1] + run[2:] if len(run) > 2 else run
