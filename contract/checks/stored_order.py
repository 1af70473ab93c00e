"""The order in which a partition stores its messages, as far as the history proves it.

A complete audit read every message of every partition from the start: its order is the stored order. Without one, or
where it missed a message that was certainly stored, the order is put together from edges (neighbours in a run, items
of one request, pushes that do not overlap in time), and cut into *fragments* wherever two neighbours are connected by
no edge. Positions in different fragments are not comparable: a rule that meets such a pair has no evidence.

A position is an integer; positions of one fragment are consecutive. `OLDEST` is the place before everything.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from contract.checks.facts import NEVER, Facts, Message, PartitionKey, Run, group_name
from contract.history import PopCall

STRIDE = 1 << 32
OLDEST = -1
BEYOND = 1 << 62


def fragment(position: int) -> int:
    """The fragment of a position; OLDEST and BEYOND belong to none (-1)."""
    return position // STRIDE if 0 <= position < BEYOND else -1


def comparable(first: int, second: int) -> bool:
    """Whether the history proves which of two positions is the lower one."""
    if first == OLDEST or second == OLDEST:
        return True
    return first < BEYOND and second < BEYOND and first // STRIDE == second // STRIDE


@dataclass(slots=True)
class Log:
    """The proven order of one partition. `complete`: it is the whole stored set, from its first message."""

    order: list[Message]
    position: dict[Message, int]
    complete: bool
    at: dict[int, Message] = field(default_factory=dict)
    fragments: int = 1

    def skipped(self, cursor: int, start: int) -> list[Message]:
        """Messages that lie above `cursor` and below `start`; empty where nothing is proven."""
        if cursor == OLDEST:
            begin = start // STRIDE * STRIDE + 1
        elif comparable(cursor, start):
            begin = cursor + 1
        else:
            return []
        return [self.at[place] for place in range(begin, start)]


def build_logs(facts: Facts) -> dict[PartitionKey, Log]:
    """The log of each partition that the history names."""
    audited = _audited_runs(facts)
    runs: dict[PartitionKey, list[Run]] = {}
    for run in facts.runs:
        runs.setdefault((run.queue, run.partition), []).append(run)
    logs: dict[PartitionKey, Log] = {}
    for key, messages in facts.partitions.items():
        if audited is not None and _saw_everything(facts, messages, audited.get(key, [])):
            logs[key] = _from_audit(audited.get(key, []))
        else:
            logs[key] = _from_edges(messages, runs.get(key, []))
    return logs


def _audited_runs(facts: Facts) -> dict[PartitionKey, list[Run]] | None:
    """The runs of the last group that the audit used; None where no audit was completed."""
    span = facts.phase("audit")
    if span is None or not span.complete:
        return None
    runs = [run for run in facts.runs if run.call.phase == "audit" and run.call.invoked > span.begin]
    pops = [call for call in facts.pops if call.phase == "audit" and call.invoked > span.begin]
    if not pops:
        return {}
    last = pops[-1].request
    assert isinstance(last, PopCall)
    found: dict[PartitionKey, list[Run]] = {}
    for run in runs:
        if run.group == group_name(last.group):
            found.setdefault((run.queue, run.partition), []).append(run)
    return found


def _saw_everything(facts: Facts, messages: list[Message], runs: list[Run]) -> bool:
    """Whether the audit met every message that was certainly stored before it; one that did not orders nothing."""
    span = facts.phase("audit")
    begin = 0 if span is None else span.begin
    seen = {message for run in runs for message in run.messages}
    return all(message in seen for message in messages if message.stored_by < begin)


def _from_audit(runs: list[Run]) -> Log:
    position: dict[Message, int] = {}
    for run in runs:
        for message in run.messages:
            position.setdefault(message, len(position) + 1)
    return Log(list(position), position, complete=True, at={place: message for message, place in position.items()})


def _from_edges(messages: list[Message], runs: list[Run]) -> Log:
    stored = [message for message in messages if message.stored_by < NEVER]
    after, before = _neighbours(runs)
    order = _sort(stored, after, before)
    position: dict[Message, int] = {}
    place, fragments = 1, 1
    for index, message in enumerate(order):
        if index:
            previous = order[index - 1]
            if after.get(previous) is message or certainly_before(previous, message):
                place += 1
            else:
                place = fragments * STRIDE + 1
                fragments += 1
        position[message] = place
    return Log(
        order,
        position,
        complete=False,
        at={place: message for message, place in position.items()},
        fragments=fragments,
    )


def certainly_before(first: Message, second: Message) -> bool:
    """Pushes that do not overlap are stored in their order, items of one request in request order."""
    if not first.ordered or not second.ordered or second.push is None or first.push is None:
        return False
    if first.push is second.push:
        return first.item < second.item
    return first.pushed_by < second.pushed_after


def _neighbours(runs: list[Run]) -> tuple[dict[Message, Message], dict[Message, Message]]:
    """Successor and predecessor of messages that some run delivered side by side; the first sighting counts."""
    after: dict[Message, Message] = {}
    before: dict[Message, Message] = {}
    for run in runs:
        for first, second in zip(run.messages, run.messages[1:], strict=False):
            if first is not second and first not in after and second not in before:
                after[first] = second
                before[second] = first
    return after, before


def _sort(stored: list[Message], after: dict[Message, Message], before: dict[Message, Message]) -> list[Message]:
    """Earliest push first, but never before the proven predecessor.

    Where the edges contradict each other the result is some order; the cut into fragments keeps that harmless,
    since only neighbours with an edge between them stay together.
    """
    known = set(stored)
    heap: list[tuple[int, int, int]] = []
    by_index = list(stored)
    index_of = {message: index for index, message in enumerate(by_index)}

    def add(message: Message) -> None:
        heapq.heappush(heap, (message.pushed_after, message.item, index_of[message]))

    for message in stored:
        if before.get(message) not in known:
            add(message)
    order: list[Message] = []
    placed: set[Message] = set()
    while heap:
        message = by_index[heapq.heappop(heap)[2]]
        while message is not None and message not in placed:
            order.append(message)
            placed.add(message)
            following = after.get(message)
            if following is None or following not in known:
                break
            message = following
    order.extend(message for message in stored if message not in placed)
    return order
