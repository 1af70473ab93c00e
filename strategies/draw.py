"""How schedules are drawn: Hypothesis strategies, and the tables of weights that make a workload.

Two integers are drawn: one for the world of a schedule and its length, and one with 32 bits for each of its steps. The
fields of a step are digits of a stream that starts at these bits. That keeps a draw far below a millisecond, and
Hypothesis can still change one step of a schedule and leave the others as they were. A fully random schedule is
useless, since most of its pops find nothing, so a rough sketch of the broker (`_Sketch`) steers the choices: which
partition holds messages, which leases run and when they end. The sketch never sees an answer of a broker, so a drawn
schedule depends on nothing but the integers.

Every schedule leaves out some kinds of steps (swarm testing): what is rare beside everything else becomes common in
a schedule that has little else.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, TypeVar

import msgspec
from hypothesis import strategies as st

from strategies.schedule import (
    MAX_GROUPS,
    MAX_PARTITIONS,
    MAX_WORKERS,
    Ack,
    AckItem,
    Advance,
    Configure,
    CrashConsumer,
    DelayAnswer,
    DelayRequest,
    DropConnection,
    Extend,
    Group,
    Item,
    KillBroker,
    LaneStep,
    LeaseChoice,
    LoseAnswer,
    LoseRequest,
    Mode,
    Parallel,
    PauseBroker,
    Pop,
    Push,
    RepeatRequest,
    Request,
    RestartBroker,
    Schedule,
    Seek,
    Status,
    Step,
    StorageFault,
    StorageOutage,
    Storm,
)

REQUESTS: frozenset[str] = frozenset({"push", "pop", "ack", "extend", "configure", "seek"})
FAULTS: frozenset[str] = frozenset(
    {"lose-request", "lose-answer", "delay-request", "delay-answer", "repeat-request", "drop-connection"}
)
BROKER_FAULTS: frozenset[str] = frozenset(
    {"kill-broker", "restart-broker", "pause-broker", "storage-fault", "storage-outage"}
)
KINDS: frozenset[str] = (
    REQUESTS | FAULTS | BROKER_FAULTS | frozenset({"advance", "crash-consumer", "parallel", "storm"})
)
ALWAYS: frozenset[str] = frozenset({"push", "pop"})
NO_LANE_STEPS: frozenset[str] = frozenset({"parallel", "storm", "idiom"})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What the target can do. `kinds` are tags of steps; a kind that is missing is never drawn.

    `short_waits` is for targets where waiting costs real time: leases of 1 s mostly and no long delays.
    `broker_faults_percent` of the schedules may do something to the broker itself, which is dear where it keeps others
    waiting.
    """

    kinds: frozenset[str] = KINDS
    short_waits: bool = False
    broker_faults_percent: int = 100

    def without(self, *kinds: str) -> Features:
        """The same target without some kinds of steps."""
        return dataclasses.replace(self, kinds=self.kinds - frozenset(kinds))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """What a workload draws, as relative weights; `*_percent` are chances in a hundred.

    `lengths` are the least and the most steps of a schedule, counted without the lanes around them. `partitions`,
    `groups`, `workers` are the weights of 1, 2, 3, ... of them. In `kinds`, an "idiom" is a few steps that belong
    together.
    """

    lengths: tuple[int, int] = (4, 17)
    partitions: tuple[int, ...] = (50, 30, 12, 8)
    groups: tuple[int, ...] = (50, 35, 15)
    workers: tuple[int, ...] = (30, 50, 20)
    kinds: Mapping[str, int] = dataclasses.field(
        default_factory=lambda: {
            "push": 18,
            "pop": 30,
            "ack": 30,
            "extend": 3,
            "configure": 2,
            "seek": 2,
            "advance": 8,
            "crash-consumer": 2,
            "kill-broker": 2,
            "restart-broker": 1,
            "pause-broker": 1,
            "storage-fault": 1,
            "storage-outage": 2,
            "parallel": 7,
            "idiom": 11,
            "storm": 1,
        }
    )
    faults: Mapping[str, int] = dataclasses.field(
        default_factory=lambda: {
            "lose-request": 10,
            "lose-answer": 25,
            "delay-request": 25,
            "delay-answer": 10,
            "repeat-request": 15,
            "drop-connection": 15,
        }
    )
    statuses: tuple[int, int, int, int] = (70, 14, 9, 7)
    """Weights of completed, failed, retry, dlq."""
    leases: tuple[int, int, int, int] = (82, 8, 6, 4)
    """Weights of the right lease, a stale one, none, the newest one."""
    nacking_percent: int = 15
    """A schedule that mostly hands back what it got: budgets are spent only by several failures in a row."""
    fault_percent: int = 12
    """A request with a fault around it."""
    swarm_percent: int = 35
    """A kind of step that a whole schedule leaves out."""
    wildcard_percent: int = 40
    wait_percent: int = 12
    auto_ack_percent: int = 6
    new_group_percent: int = 35
    """A named group that starts at what is pushed after its first pop."""
    key_percent: int = 20
    """An item with a transactionId of its own."""
    repeated_key_percent: int = 5
    """An item with a transactionId that was used before."""
    payload_percent: int = 15
    """An item with one of the awkward payloads."""
    awkward_names_percent: int = 12
    """A schedule whose partitions and transactionIds have names that a broker may stumble over."""
    many_items_percent: int = 45
    """A push of more than one item."""
    batch_ack_percent: int = 45
    blind_percent: int = 20
    """A pop or an ack that does not look at what the sketch expects to be there."""


def _changed(base: Mapping[str, int], **weights: int) -> dict[str, int]:
    return {**base, **{name.replace("_", "-"): weight for name, weight in weights.items()}}


ANY = Weights()

ORDER = dataclasses.replace(
    ANY,
    kinds=_changed(ANY.kinds, push=28, ack=26, parallel=9, configure=1, extend=1),
    statuses=(84, 6, 6, 4),
    leases=(92, 3, 3, 2),
    partitions=(55, 30, 10, 5),
    many_items_percent=60,
    key_percent=10,
    repeated_key_percent=2,
)

GROUPS = dataclasses.replace(
    ANY,
    kinds=_changed(ANY.kinds, pop=34, ack=32, configure=1),
    groups=(5, 60, 35),
    partitions=(45, 35, 12, 8),
    new_group_percent=50,
    fault_percent=8,
)

REDELIVERY = dataclasses.replace(
    ANY,
    kinds=_changed(ANY.kinds, push=11, pop=32, ack=24, advance=16, crash_consumer=5, extend=5, kill_broker=3),
    fault_percent=16,
    wait_percent=18,
    auto_ack_percent=4,
    statuses=(60, 18, 16, 6),
)

ACKS = dataclasses.replace(
    ANY,
    kinds=_changed(ANY.kinds, push=13, pop=28, ack=42, advance=8, configure=3),
    lengths=(5, 17),
    partitions=(60, 25, 10, 5),
    statuses=(46, 24, 14, 16),
    leases=(72, 11, 9, 8),
    nacking_percent=25,
    batch_ack_percent=55,
    auto_ack_percent=3,
)

WORKLOADS: Mapping[str, Weights] = {
    "order": ORDER,
    "groups": GROUPS,
    "redelivery": REDELIVERY,
    "acks": ACKS,
    "any": ANY,
}


# Strategies -------------------------------------------------------------------------------------------------------

# Hypothesis prefers small integers and constants that it finds in the loaded modules, and makes most of its examples by
# copying one part of an example over another of the same kind. Here an integer stands for many choices, so all that
# would only make schedules resemble each other, and make a seed depend on what else is imported. Beyond the range of
# floats it draws evenly; one integer for all steps has no parts that could be copied.
_FAR = 1 << 1100
_DIGITS = 32
_WORLDS = st.integers(min_value=_FAR, max_value=_FAR + (1 << _DIGITS) - 1)
_STEPS = [st.integers(min_value=_FAR, max_value=_FAR + (1 << _DIGITS * count) - 1) for count in range(33)]
"""By number of steps."""


@st.composite
def schedules(
    draw: st.DrawFn, weights: Weights = ANY, *, features: Features | Callable[[], Features] = Features()
) -> Schedule:
    """Schedules by `weights` for a target with `features` (a function is asked at each draw)."""
    able = features() if callable(features) else features
    world = draw(_WORLDS)
    drawer = _Drawer(_Stream(world, position=0), weights, able)
    digits = draw(_STEPS[drawer.left])
    position = 0
    while drawer.left > 0:
        position += 1
        drawer.step(_Stream((digits & _MASK32) + (world << _DIGITS), position=position))
        digits >>= _DIGITS
    return drawer.schedule()


def order(*, features: Features | Callable[[], Features] = Features()) -> st.SearchStrategy[Schedule]:
    """Many pushes, side by side and of many items; acks that mostly complete."""
    return schedules(ORDER, features=features)


def groups(*, features: Features | Callable[[], Features] = Features()) -> st.SearchStrategy[Schedule]:
    """Two or three groups on the same partitions."""
    return schedules(GROUPS, features=features)


def redelivery(*, features: Features | Callable[[], Features] = Features()) -> st.SearchStrategy[Schedule]:
    """Leases that run out, consumers that crash, answers that are lost."""
    return schedules(REDELIVERY, features=features)


def acks(*, features: Features | Callable[[], Features] = Features()) -> st.SearchStrategy[Schedule]:
    """Every status, mixed batches, stale and absent leases."""
    return schedules(ACKS, features=features)


def anything(*, features: Features | Callable[[], Features] = Features()) -> st.SearchStrategy[Schedule]:
    """Some of everything."""
    return schedules(ANY, features=features)


_STORM_PUSHES = (400, 800, 800)
_STORM_BATCHES = (10, 100, 100, 100, 100, 100)
"""Mostly big ones: a consumer that falls behind the head meets no race."""

_SIMULATED_STORM_PUSHES = (50, 100, 200)


@st.composite
def storms(draw: st.DrawFn, *, features: Features | Callable[[], Features] = Features()) -> Schedule:
    """One storm that is big enough for races of a millisecond, and seldom anything beside it."""
    able = features() if callable(features) else features
    stream = _Stream(draw(_WORLDS), position=0)
    group = Group(name="g0", mode=stream.one(("all", "all", "new"))) if stream.chance(70) else Group()
    partitions = stream.one((1, 1, 1, 1, 2))
    kills = "kill-broker" in able.kinds and stream.chance(able.broker_faults_percent // 3)
    storm = Storm(
        pushers=2 + stream.below(3),
        consumers=1 + stream.below(3),
        operations=stream.one(_STORM_PUSHES if able.short_waits else _SIMULATED_STORM_PUSHES),
        partitions=partitions,
        batch=stream.one(_STORM_BATCHES),
        named=stream.chance(50),
        kill_at=stream.one((20, 50, 90)) if kills else None,
        jitter=1 + stream.below(_JITTERS),
    )
    return Schedule(steps=(storm,), partitions=partitions, groups=(group,))


_T = TypeVar("_T")

# Drawing ----------------------------------------------------------------------------------------------------------

_MASK = (1 << 64) - 1
_MASK32 = (1 << 32) - 1


class _Stream:
    """Digits of any radix from one integer: a linear congruential generator that starts at it.

    The position of the step goes in too, and the integer of the world stands above that of the step: Hypothesis tries
    the plainest integer for all steps of a world first, and that should not be the same steps each time.
    """

    __slots__ = ("_state",)

    def __init__(self, seed: int, *, position: int) -> None:
        state = (seed + position * 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        self._state = state ^ (state >> 27)

    def below(self, limit: int) -> int:
        """An integer from 0 to `limit` - 1."""
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) & _MASK
        return ((self._state >> 32) * limit) >> 32

    def chance(self, percent: int) -> bool:
        """True in `percent` of a hundred cases."""
        return self.below(100) < percent

    def weighted(self, sums: Sequence[int]) -> int:
        """An index, by the running sums of the weights."""
        return bisect_right(sums, self.below(sums[-1]))

    def one(self, values: Sequence[_T]) -> _T:
        """One of `values`."""
        return values[self.below(len(values))]


def _sums(weights: Sequence[int]) -> tuple[int, ...]:
    return tuple(accumulate(weights))


_Lane = tuple[int, int]
"""A group and a partition."""


@dataclasses.dataclass(slots=True)
class _Cursor:
    """What one group is expected to have done in one partition. `end` is where its leased batch ends."""

    at: int = 0
    end: int = 0
    free_ms: int = 0


@dataclasses.dataclass(slots=True)
class _Batch:
    """What a pop is expected to have given: (partition, first, end) of each run."""

    group: int
    worker: int
    runs: tuple[tuple[int, int, int], ...]
    lease_end_ms: int
    size: int
    acked: bool = False


class _Sketch:
    """A rough idea of the broker, good enough to aim pops and acks. It knows nothing of interleavings and faults."""

    def __init__(self, partitions: int, groups: Sequence[Group]) -> None:
        self.now_ms = 0
        self.stored = [0] * partitions
        self.cursors = [[_Cursor() for _ in range(partitions)] for _ in groups]
        self.started = [not group.name or group.mode == "all" for group in groups]
        self.batches: dict[int, _Batch] = {}
        self.old_ends_ms: list[int] = []
        """Where leases would have ended that were extended: nothing may be free then."""
        self.frozen = False
        """Side by side: lanes do not see what the others took, so they are aimed at the same messages."""

    def push(self, items: Sequence[Item]) -> None:
        for item in items:
            self.stored[item.partition] += 1

    def servable(self) -> list[_Lane]:
        """(group, partition) of what a pop would find."""
        found = []
        for group, cursors in enumerate(self.cursors):
            if not self.started[group]:
                continue
            for partition, cursor in enumerate(cursors):
                if cursor.at < self.stored[partition] and cursor.free_ms <= self.now_ms:
                    found.append((group, partition))
        return found

    def pop(self, step: Pop) -> None:
        cursors = self.cursors[step.group]
        if not self.started[step.group]:
            self.started[step.group] = True
            if step.mode != "all":
                for cursor, stored in zip(cursors, self.stored, strict=True):
                    cursor.at = stored
        wanted = range(len(cursors)) if step.partition is None else (step.partition,)
        claims = 1 if step.partition is not None else step.partitions or len(cursors)
        lease_end_ms = self.now_ms + 1000 * (step.lease_s or 60)
        runs, budget = [], step.batch
        for partition in wanted:
            cursor = cursors[partition]
            count = min(budget, self.stored[partition] - cursor.at)
            if count <= 0 or claims == 0 or cursor.free_ms > self.now_ms:
                continue
            runs.append((partition, cursor.at, cursor.at + count))
            budget, claims = budget - count, claims - 1
            if self.frozen:
                continue
            if step.auto_ack:
                cursor.at += count
            else:
                cursor.end, cursor.free_ms = cursor.at + count, lease_end_ms
        size = step.batch - budget
        if not step.auto_ack:
            self.batches[step.label] = _Batch(step.group, step.worker, tuple(runs), lease_end_ms, size)

    def ack(self, step: Ack) -> None:
        batch = self.batches.get(step.pop)
        if batch is None:
            return
        batch.acked = True
        if step.lease == "stale" or (step.lease == "right" and batch.lease_end_ms <= self.now_ms):
            return
        places = [(partition, at) for partition, first, end in batch.runs for at in range(first, end)]
        if not places:
            return
        for partition, _, end in batch.runs:
            cursor = self.cursors[batch.group][partition]
            signals = [
                (place[1], item.status)
                for item in step.items
                if (place := places[min(item.message, len(places) - 1)])[0] == partition
            ]
            stops = [at for at, status in signals if status in ("failed", "retry")]
            stop = min(stops, default=end)
            passed = (at + 1 for at, status in signals if status in ("completed", "dlq") and at < stop)
            cursor.at = max(cursor.at, max(passed, default=0))
            if stops or cursor.at >= end:
                cursor.free_ms = self.now_ms

    def extend(self, step: Extend) -> None:
        batch = self.batches.get(step.pop)
        if batch is None or batch.lease_end_ms <= self.now_ms:
            return
        old_ms, batch.lease_end_ms = batch.lease_end_ms, max(batch.lease_end_ms, self.now_ms + 1000 * step.seconds)
        self.old_ends_ms.append(old_ms)
        for partition, _, _ in batch.runs:
            cursor = self.cursors[batch.group][partition]
            if cursor.free_ms == old_ms:
                cursor.free_ms = batch.lease_end_ms

    def seek(self, step: Seek) -> None:
        for partition, cursor in enumerate(self.cursors[step.group]):
            if step.partition in (None, partition):
                cursor.at = self.stored[partition] if step.to_end else 0
                cursor.free_ms = self.now_ms
        self.started[step.group] = True

    def open_batches(self) -> list[int]:
        """Labels of the pops that gave messages which nobody acked."""
        return [label for label, batch in self.batches.items() if batch.size and not batch.acked]

    def superseded(self) -> list[int]:
        """Labels of the pops whose partition the same group was given again by a later pop."""
        found: list[int] = []
        later: set[_Lane] = set()
        for label, batch in reversed(self.batches.items()):
            lanes = {(batch.group, partition) for partition, _, _ in batch.runs}
            if lanes & later:
                found.append(label)
            later |= lanes
        return found

    def lease_ends(self) -> list[int]:
        """When the running leases end, and where they would have ended without an extension; soonest first."""
        ends = {cursor.free_ms for cursors in self.cursors for cursor in cursors}
        return sorted(end for end in ends.union(self.old_ends_ms) if end > self.now_ms)


_STATUSES: tuple[Status, ...] = ("completed", "failed", "retry", "dlq")
_LEASES: tuple[LeaseChoice, ...] = ("right", "stale", "none", "newest")
_NACKING = (20, 45, 30, 5)
_ITEM_COUNTS = (2, 2, 2, 3, 3, 4, 5, 6)
_BATCHES = (1, 1, 2, 2, 2, 3, 3, 5, 10, 100)
_CLAIMS = (1, 1, 1, 2, 2, 3, 0)
_LONG_LEASES_S = (1, 1, 2, 2, 3)
_SHORT_LEASES_S = (1, 1, 1, 1, 2)
_WAITS_MS = (100, 300, 500, 1000)
_PAST_THE_END_MS = (1, 10, 100, 100, 300)
_SHORT_MS = (1, 10, 100, 300, 700)
_DOWN_MS = (0, 0, 100, 500, 2000)
_AWAY_MS = (100, 500, 1500, 5000)
_INTO_THE_OUTAGE_MS = (1, 100, 300, 600)
_INTO_A_REAL_OUTAGE_MS = (200, 500, 800, 1200)
"""A server takes a while to break off, and to come back."""
_JITTERS = 1 << 16
_PAYLOADS = 32
_NAMES = 6
_LANE_LENGTHS = (1, 1, 1, 2, 2, 3)


class _Drawer:
    """Builds one schedule; `step` adds one, until none is `left`."""

    def __init__(self, stream: _Stream, weights: Weights, features: Features) -> None:
        self._weights = weights
        self._short = features.short_waits
        spared = features.broker_faults_percent
        spares = spared < 100
        if spares and not stream.chance(spared):
            features, spares = features.without(*BROKER_FAULTS), False
        least, most = weights.lengths
        self.left = least + stream.below(most - least + 1)
        self._sure = tuple(kind for kind in weights.kinds if spares and kind in BROKER_FAULTS & features.kinds)
        """One of these is drawn for sure: few schedules may, so each of them does."""
        self._sure_at = 1 + stream.below(self.left - 1) if self._sure else 0
        self._partitions = min(1 + stream.weighted(_sums(weights.partitions)), MAX_PARTITIONS)
        self._groups = self._draw_groups(stream)
        self._names = 1 + stream.below(_NAMES) if stream.chance(weights.awkward_names_percent) else 0
        self._workers = min(1 + stream.weighted(_sums(weights.workers)), MAX_WORKERS)
        self._kinds, self._kind_sums = self._swarm(stream, weights.kinds, features)
        self._faults, self._fault_sums = self._swarm(stream, weights.faults, features)
        nacking = stream.chance(weights.nacking_percent)
        self._statuses = _sums(_NACKING if nacking else weights.statuses)
        self._leases = _sums(weights.leases)
        self._steps: list[Step] = []
        self._sketch = _Sketch(self._partitions, self._groups)
        self._labels = 0
        self._keys = 0
        self._lease_configured = False
        self._side_by_side = False
        self._contested: _Lane | None = None
        """What all lanes of a `Parallel` are after: a group and a partition."""

    def schedule(self) -> Schedule:
        """What was drawn so far."""
        return Schedule(tuple(self._steps), self._partitions, self._groups, self._names)

    def step(self, stream: _Stream) -> None:
        """Adds the next step."""
        if not self._steps:
            self.left -= 1
            self._steps.append(self._first(stream))
            return
        kind = self._kinds[stream.weighted(self._kind_sums)]
        if self._sure and self.left <= self._sure_at:
            kind, self._sure = stream.one(self._sure), ()
        if kind == "parallel" and self.left >= 2:
            self._steps.append(self._parallel(stream))
            return
        if kind == "idiom":
            self._idiom(stream)
            return
        if kind == "storage-outage" and "parallel" in self._kinds and self.left >= 3:
            self._steps.append(self._outage(stream))
            return
        self.left -= 1
        self._steps.append(self._storm(stream) if kind == "storm" else self._plain(kind, stream))

    # The world

    def _draw_groups(self, stream: _Stream) -> tuple[Group, ...]:
        count = min(1 + stream.weighted(_sums(self._weights.groups)), MAX_GROUPS)
        nameless = stream.below(count) if stream.chance(60) else count
        found = []
        for index in range(count):
            if index == nameless:
                found.append(Group())
                continue
            mode: Mode | None = "all"
            if stream.chance(self._weights.new_group_percent):
                mode = "new" if stream.chance(50) else None
            found.append(Group(name=f"g{index}", mode=mode))
        return tuple(found)

    def _swarm(
        self, stream: _Stream, weights: Mapping[str, int], features: Features
    ) -> tuple[tuple[str, ...], tuple[int, ...]]:
        able = [name for name, weight in weights.items() if weight > 0 and name in features.kinds | {"idiom"}]
        kept = [name for name in able if name in ALWAYS or not stream.chance(self._leave_out(name))]
        return tuple(kept), _sums([weights[name] for name in kept])

    def _leave_out(self, kind: str) -> int:
        return self._weights.swarm_percent // 3 if kind == "ack" else self._weights.swarm_percent

    # Steps

    def _first(self, stream: _Stream) -> Step:
        if stream.chance(80):
            return self._push(stream)
        return self._pop(stream)

    def _plain(self, kind: str, stream: _Stream) -> LaneStep:
        """A step of `kind`, or one that is of more use now."""
        kind = self._useful(kind, stream)
        if kind == "advance":
            return self._advance(stream)
        if kind == "crash-consumer":
            return self._crash_consumer(stream)
        if kind == "kill-broker":
            return KillBroker(down_ms=self._down_ms(stream))
        if kind == "restart-broker":
            return RestartBroker(down_ms=self._down_ms(stream))
        if kind == "pause-broker":
            return PauseBroker(ms=stream.one((200, 500, 1200)))
        if kind == "storage-fault":
            return StorageFault(operations=1 + stream.below(3))
        if kind == "storage-outage":
            return StorageOutage(ms=self._away_ms(stream))
        request = self._request(kind, stream)
        if self._faults and stream.chance(self._weights.fault_percent):
            return self._faulty(request, stream)
        return request

    def _useful(self, kind: str, stream: _Stream) -> str:
        """Replaces a pop that would find nothing, and an ack, extend or crash without a batch that it could concern."""
        sketch = self._sketch
        if kind in ("ack", "extend", "crash-consumer") and not any(batch.size for batch in sketch.batches.values()):
            kind = "pop"
        if kind != "pop" or stream.chance(self._weights.blind_percent) or sketch.servable():
            return kind
        if not all(sketch.started) and stream.chance(40):
            return "pop"
        if "ack" in self._kinds and sketch.open_batches() and stream.chance(55):
            return "ack"
        if "advance" in self._kinds and sketch.lease_ends() and stream.chance(35):
            return "advance"
        return "push"

    def _request(self, kind: str, stream: _Stream) -> Request:
        if kind == "configure":
            return self._configure(stream)
        if kind == "seek":
            return self._seek(stream)
        if kind == "push":
            return self._push(stream)
        if kind == "ack" and self._sketch.batches:
            return self._ack(stream)
        if kind == "extend" and self._sketch.batches:
            return self._extend(stream)
        return self._pop(stream)

    def _parallel(self, stream: _Stream) -> Parallel:
        self._side_by_side = self._sketch.frozen = True
        servable = self._sketch.servable()
        self._contested = stream.one(servable) if servable and stream.chance(40) else None
        lanes: list[tuple[LaneStep, ...]] = []
        for _ in range(3 if self.left > 3 and stream.chance(25) else 2):
            count = max(1, min(stream.one(_LANE_LENGTHS), self.left))
            self.left -= count
            first = self._pop(stream) if self._contested else self._lane_step(stream)
            lanes.append((first, *[self._lane_step(stream) for _ in range(count - 1)]))
        self._side_by_side = self._sketch.frozen = False
        self._contested = None
        return Parallel(lanes=tuple(lanes))

    def _outage(self, stream: _Stream) -> Parallel:
        """The storage is away while others go on, one of them with a push."""
        self._side_by_side = self._sketch.frozen = True
        lanes: list[tuple[LaneStep, ...]] = [(StorageOutage(ms=self._away_ms(stream)),)]
        self.left -= 1
        for number in range(2 if self.left > 3 and stream.chance(50) else 1):
            count = min(1 + stream.below(3), self.left)
            self.left -= count
            wait = Advance(ms=stream.one(_INTO_A_REAL_OUTAGE_MS if self._short else _INTO_THE_OUTAGE_MS))
            first = self._lane_step(stream) if number else self._push(stream)
            lanes.append((wait, first, *[self._lane_step(stream) for _ in range(count - 1)]))
        self._side_by_side = self._sketch.frozen = False
        return Parallel(lanes=tuple(lanes))

    def _lane_step(self, stream: _Stream) -> LaneStep:
        if "kill-broker" in self._kinds and stream.chance(6):  # what is in flight then is what is interesting
            return KillBroker(down_ms=self._down_ms(stream))
        kind = self._kinds[stream.weighted(self._kind_sums)]
        return self._plain(stream.one(("push", "pop", "pop")) if kind in NO_LANE_STEPS else kind, stream)

    # Idioms: steps that show something only together, with chance in the details

    def _idiom(self, stream: _Stream) -> None:
        steps = stream.one(_IDIOMS)(self, stream)
        if "advance" not in self._kinds:
            steps = [step for step in steps if not isinstance(step, Advance)]
        self.left -= len(steps)
        for step in steps:
            faulty = isinstance(step, Request) and self._faults and stream.chance(self._weights.fault_percent // 2)
            self._steps.append(self._faulty(step, stream) if faulty and isinstance(step, Request) else step)

    def _beyond_the_batch(self, stream: _Stream) -> list[Step]:
        """A batch runs out, a shorter one is taken, and a message of the first is acked."""
        lane, steps = self._stocked(stream, 2)
        first = self._pop(stream, lane, partition=lane[1], partitions=1, batch=5, auto_ack=False)
        wait = self._past_the_lease(first, stream)
        second = self._pop(stream, lane, partition=lane[1], partitions=1, batch=1, auto_ack=False)
        late = self._acked(first.label, (AckItem(message=4, status=self._status(stream)),), stream)
        late = msgspec.structs.replace(late, lease=stream.one(("newest", "newest", "none", "right")))
        return [*steps, first, wait, second, late]

    def _outside(self, stream: _Stream) -> list[Step]:
        """A message that the leased batch leaves out is acked under its lease."""
        lane, steps = self._stocked(stream, 2)
        pop = self._pop(stream, lane, partition=lane[1], partitions=1, batch=1, auto_ack=False)
        ack = Ack(pop=pop.label, items=(AckItem(status=self._status(stream), outside=True),), batch=stream.chance(40))
        return [*steps, pop, ack]

    def _extended(self, stream: _Stream) -> list[Step]:
        """A lease, over several partitions where there are some, is extended before its first end, or after it."""
        group = stream.below(len(self._groups))
        count = 1 + stream.below(2)
        items = tuple(Item(partition=partition) for partition in range(self._partitions) for _ in range(count))
        push = Push(items=items)
        self._sketch.push(items)
        first = self._pop(stream, (group, 0), partition=None, partitions=0, batch=100, auto_ack=False, wait_ms=0)
        extend = Extend(pop=first.label, seconds=(first.lease_s or 1) + 1 + stream.below(2))
        wait = self._past_the_lease(first, stream)
        if stream.chance(35):
            return [push, first, wait, extend, self._pop(stream, (group, 0), wait_ms=0)]
        self._sketch.extend(extend)
        again = [self._pop(stream, (group, partition), wait_ms=0) for partition in range(min(self._partitions, 2))]
        return [push, first, extend, wait, *again]

    def _spent(self, stream: _Stream) -> list[Step]:
        """One message, or two of one call, fail, are handed back or run out several times, and fail at last."""
        count = 1 + stream.below(2)
        lane, steps = self._stocked(stream, count)
        limit = stream.below(3)
        if "configure" in self._kinds:
            steps.append(Configure(retry_limit=limit))
        fixed: dict[str, Any] = {"partition": lane[1], "partitions": 1, "auto_ack": False, "wait_ms": 0}
        for _ in range(limit + stream.below(3)):
            pop = self._pop(stream, lane, **fixed)
            steps.append(pop)
            if stream.chance(40):
                steps.append(self._past_the_lease(pop, stream))
            else:
                status: Status = stream.one(("failed", "retry"))
                items = tuple(AckItem(message=index, status=status) for index in range(count))
                steps.append(self._acked(pop.label, items, stream))
        last = self._pop(stream, lane, **fixed)
        return [*steps, last, self._acked(last.label, (AckItem(status="failed"),), stream)]

    def _abandoned(self, stream: _Stream) -> list[Step]:
        """A pop parks, its client leaves, and long after that a message comes."""
        if "drop-connection" not in self._faults:
            return [self._push(stream)]
        lane = stream.below(len(self._groups)), stream.below(self._partitions)
        rest = self._pop(stream, lane, partition=lane[1], partitions=1, batch=100, auto_ack=True, wait_ms=0)
        parked = self._pop(stream, lane, partition=lane[1], partitions=1, auto_ack=False, wait_ms=4000)
        wait = Advance(ms=stream.one((600, 1100, 2200)))
        push = Push(items=(Item(partition=lane[1]),))
        self._sketch.push(push.items)
        late = self._pop(stream, lane, partition=lane[1], partitions=1, wait_ms=0)
        return [rest, DropConnection(parked, ms=1 + stream.below(10)), wait, push, late]

    def _mixed(self, stream: _Stream) -> list[Step]:
        """One ack of several messages, with several statuses."""
        lane, steps = self._stocked(stream, 3)
        pop = self._pop(stream, lane, partition=lane[1], partitions=1, batch=stream.one((3, 5, 10)), auto_ack=False)
        count = 2 + stream.below(2)
        items = [AckItem(message=index, status=stream.one(_STATUSES)) for index in range(count)]
        if stream.chance(50):
            items.reverse()
        ack = msgspec.structs.replace(self._acked(pop.label, tuple(items), stream), batch=True)
        return [*steps, pop, ack, self._pop(stream, lane)]

    def _superseded(self, stream: _Stream) -> list[Step]:
        """A lease runs out, another worker takes the batch, and the first one acks."""
        lane, steps = self._stocked(stream, 1)
        first = self._pop(stream, lane, partition=lane[1], partitions=1, auto_ack=False)
        wait = self._past_the_lease(first, stream)
        second = self._pop(stream, lane, partition=lane[1], partitions=1, auto_ack=False)
        late = self._acked(first.label, (AckItem(status=self._status(stream)),), stream)
        return [*steps, first, wait, second, late, self._acked(second.label, (AckItem(),), stream)]

    def _woken(self, stream: _Stream) -> list[Step]:
        """A long poll is parked when something happens."""
        if "parallel" not in self._kinds:
            return [self._push(stream)]
        lane = stream.below(len(self._groups)), stream.below(self._partitions)
        pop = self._pop(stream, lane, wait_ms=stream.one((500, 1000)))
        other: list[LaneStep] = [Advance(ms=stream.one((1, 10, 100)))] if stream.chance(70) else []
        item = Item(partition=lane[1], key=self._key(stream))
        self._sketch.push((item,))
        return [Parallel(lanes=((pop,), (*other, Push(items=(item,)))))]

    def _overtaken(self, stream: _Stream) -> list[Step]:
        """A push that takes long, beside one that is read and acked at once."""
        if "parallel" not in self._kinds:
            return [self._push(stream)]
        lane = stream.below(len(self._groups)), stream.below(self._partitions)
        items = (Item(partition=lane[1]),)
        slow = Push(items=items, jitter=1 + stream.below(_JITTERS))
        fast = Push(items=items, jitter=self._jitter(stream))
        self._sketch.push(items + items)
        pop = self._pop(stream, lane, partition=lane[1], partitions=1, jitter=0)
        ack = msgspec.structs.replace(self._acked(pop.label, (AckItem(message=9),), stream), lease="right")
        reader: tuple[LaneStep, ...] = (pop, ack)
        return [Parallel(lanes=((slow,), (fast, *reader)))]

    def _sought(self, stream: _Stream) -> list[Step]:
        """The cursor is moved under a leased batch, or past a completed one, while an ack may still be on its way."""
        if "seek" not in self._kinds:
            return [self._push(stream)]
        lane, steps = self._stocked(stream, 1)
        fixed: dict[str, Any] = {"partition": lane[1], "partitions": 1, "wait_ms": 0, "auto_ack": False}
        if stream.chance(40):
            return [*steps, *self._replayed(stream, lane, fixed)]
        pop = self._pop(stream, lane, **fixed)
        ack: Step = self._acked(pop.label, (AckItem(message=99),), stream)
        if "delay-request" in self._faults and isinstance(ack, Ack) and stream.chance(30):
            unfenced = msgspec.structs.replace(ack, lease=stream.one(("none", "right")))
            ack = DelayRequest(unfenced, ms=stream.one((10, 300)))
        acked = [ack] if stream.chance(60) else []
        seek = self._seek(stream, lane)
        again = self._pop(stream, lane, partition=stream.one((lane[1], None)), wait_ms=0)
        late: list[Step] = [self._acked(pop.label, (AckItem(message=9),), stream)] if stream.chance(25) else []
        return [*steps, pop, *acked, seek, again, *late]

    def _replayed(self, stream: _Stream, lane: _Lane, fixed: Mapping[str, Any]) -> list[Step]:
        """A group that has everything behind it, and was told so, is put back."""
        pop = self._pop(stream, lane, **{**fixed, "batch": 100})
        ack = self._acked(pop.label, (AckItem(message=99),), stream)
        anywhere = {**fixed, "partition": None, "partitions": stream.one(_CLAIMS)}
        told = self._pop(stream, lane, **anywhere)
        seek = msgspec.structs.replace(self._seek(stream, lane), to_end=False)
        self._sketch.seek(seek)
        return [pop, ack, told, seek, self._pop(stream, lane, **anywhere)]

    def _same_key(self, stream: _Stream) -> list[Step]:
        """An id is pushed again after its message was read."""
        partition, key = stream.below(self._partitions), self._keys
        self._keys += 1
        push = Push(items=(Item(partition=partition, key=key),))
        self._sketch.push(push.items)
        lane = stream.below(len(self._groups)), partition
        pop = self._pop(stream, lane, partition=partition, partitions=1, wait_ms=0)
        ack = self._acked(pop.label, (AckItem(message=9),), stream)
        other = Item(partition=partition)
        return [push, pop, ack, Push(items=(Item(partition=partition, key=key), other)[: 1 + stream.below(2)])]

    def _stocked(self, stream: _Stream, count: int) -> tuple[_Lane, list[Step]]:
        """A lane with at least `count` messages to give, and the push that it may need for that."""
        lane = self._aim(stream)
        cursor = self._sketch.cursors[lane[0]][lane[1]]
        missing = count - (self._sketch.stored[lane[1]] - cursor.at)
        if missing <= 0 and not stream.chance(20):
            return lane, []
        items = tuple(Item(partition=lane[1], key=self._key(stream)) for _ in range(max(1, missing)))
        self._sketch.push(items)
        return lane, [Push(items=items)]

    def _acked(self, label: int, items: tuple[AckItem, ...], stream: _Stream) -> Ack:
        step = Ack(pop=label, items=items, batch=len(items) > 1 or stream.chance(40))
        self._sketch.ack(step)
        return step

    def _past_the_lease(self, pop: Pop, stream: _Stream) -> Advance:
        step = Advance(ms=1000 * (pop.lease_s or 1) + stream.one((1, 100)))
        self._sketch.now_ms += step.ms
        return step

    # Steps with nothing but chance

    def _storm(self, stream: _Stream) -> Storm:
        """Loops side by side: more of them where calls are really concurrent, fewer where time is only simulated."""
        return Storm(
            pushers=1 + stream.below(4),
            consumers=1 + stream.below(3),
            operations=stream.one((40, 80, 160) if self._short else (10, 20, 40)),
            partitions=1 + stream.below(self._partitions),
            group=stream.below(len(self._groups)),
            batch=stream.one(_BATCHES),
            named=stream.chance(50),
            kill_at=stream.one((20, 50, 100)) if "kill-broker" in self._kinds and stream.chance(25) else None,
            jitter=1 + stream.below(_JITTERS),
        )

    def _push(self, stream: _Stream) -> Push:
        count = stream.one(_ITEM_COUNTS) if stream.chance(self._weights.many_items_percent) else 1
        partition = stream.below(self._partitions)
        spread = self._partitions > 1 and stream.chance(35)
        items = tuple(
            Item(
                partition=stream.below(self._partitions) if spread else partition,
                key=self._key(stream),
                payload=stream.below(_PAYLOADS) if stream.chance(self._weights.payload_percent) else 0,
            )
            for _ in range(count)
        )
        self._sketch.push(items)
        return Push(items=items, jitter=self._jitter(stream))

    def _key(self, stream: _Stream) -> int | None:
        if self._keys and stream.chance(self._weights.repeated_key_percent):
            return stream.below(self._keys)
        if not stream.chance(self._weights.key_percent):
            return None
        self._keys += 1
        return self._keys - 1

    def _pop(self, stream: _Stream, aim: _Lane | None = None, **fixed: Any) -> Pop:
        """A pop of the lane `aim`, or of a promising one; `fixed` are fields that are not drawn."""
        group, partition = aim or self._aim(stream)
        wildcard = stream.chance(self._weights.wildcard_percent)
        waits = stream.chance(self._weights.wait_percent * (3 if self._side_by_side else 1))
        step = Pop(
            label=self._labels,
            group=group,
            worker=stream.below(self._workers),
            partition=None if wildcard else partition,
            batch=stream.one(_BATCHES),
            partitions=stream.one(_CLAIMS) if wildcard else 1,
            lease_s=self._lease_s(stream),
            wait_ms=stream.one(_WAITS_MS) if waits else 0,
            auto_ack=stream.chance(self._weights.auto_ack_percent),
            mode=stream.one(("new", "all")) if stream.chance(4) else None,
            from_now=stream.chance(2),
            jitter=self._jitter(stream),
        )
        step = msgspec.structs.replace(step, **fixed)
        self._labels += 1
        self._sketch.pop(step)
        return step

    def _aim(self, stream: _Stream) -> _Lane:
        """A group and a partition, mostly ones where the pop should find something."""
        if self._contested is not None and stream.chance(80):
            return self._contested
        waiting = [group for group, started in enumerate(self._sketch.started) if not started]
        if waiting and stream.chance(25):
            return stream.one(waiting), stream.below(self._partitions)
        servable = self._sketch.servable()
        if servable and not stream.chance(self._weights.blind_percent):
            return stream.one(servable)
        return stream.below(len(self._groups)), stream.below(self._partitions)

    def _lease_s(self, stream: _Stream) -> int | None:
        """Explicit where time is real: a later configure may put minutes into force (before 1.6 it resets options)."""
        if self._short:
            return stream.one(_SHORT_LEASES_S)
        if self._lease_configured and stream.chance(40):
            return None
        return None if stream.chance(2) else stream.one(_LONG_LEASES_S)

    def _ack(self, stream: _Stream) -> Ack:
        label = self._label(stream)
        lease = _LEASES[stream.weighted(self._leases)]
        superseded = self._sketch.superseded() if lease in ("none", "newest") else []
        if superseded and stream.chance(60):
            label = stream.one(superseded)  # its messages need not be in the batch that is leased now
        size = max(1, self._sketch.batches[label].size)
        whole = not self._side_by_side and stream.chance(50 if label in superseded else 35)
        batch = "ack" in self._kinds and stream.chance(self._weights.batch_ack_percent)
        if not batch:
            index = size - 1 if whole else stream.below(size)
            items: tuple[AckItem, ...] = (AckItem(message=index, status=self._status(stream)),)
        elif whole:
            items = tuple(AckItem(message=index) for index in range(min(size, 6)))
        else:
            picked = sorted({stream.below(size) for _ in range(1 + stream.below(4))})
            items = tuple(AckItem(message=index, status=self._status(stream)) for index in picked)
        step = Ack(pop=label, items=items, lease=lease, batch=batch, jitter=self._jitter(stream))
        self._sketch.ack(step)
        return step

    def _extend(self, stream: _Stream) -> Extend:
        """Mostly by more than the lease has left, and of a lease over several partitions where there is one."""
        wide = [label for label, batch in self._sketch.batches.items() if len(batch.runs) > 1]
        label = wide[-1] if wide and stream.chance(60) else self._label(stream)
        step = Extend(pop=label, seconds=stream.one((1, 2, 3, 3, 5)), jitter=self._jitter(stream))
        self._sketch.extend(step)
        return step

    def _label(self, stream: _Stream) -> int:
        """A pop to refer to: mostly the newest one with messages that nobody acked yet."""
        batches = self._sketch.batches
        full = [label for label, batch in batches.items() if batch.size]
        if not full or stream.chance(self._weights.blind_percent // 2):
            return stream.one(tuple(batches))
        waiting = self._sketch.open_batches()
        if waiting and stream.chance(75):
            return waiting[-1] if stream.chance(70) else stream.one(waiting)
        return stream.one(full[-3:])

    def _status(self, stream: _Stream) -> Status:
        return _STATUSES[stream.weighted(self._statuses)]

    def _configure(self, stream: _Stream) -> Configure:
        which = stream.below(5)
        self._lease_configured = self._lease_configured or which == 0
        return Configure(
            lease_time_s=1 + stream.below(3) if which == 0 else None,
            retry_limit=stream.below(3) if which == 1 or stream.chance(20) else None,
            dead_letter_queue=stream.chance(50) if which == 2 else None,
            dlq_after_max_retries=stream.chance(50) if which in (2, 3) else None,
            dedup_window_s=stream.one((0, 1, 3600)) if which == 4 else None,
            jitter=self._jitter(stream),
        )

    def _seek(self, stream: _Stream, aim: _Lane | None = None) -> Seek:
        """Mostly back, where a broker has more to get wrong."""
        group, partition = aim or (stream.below(len(self._groups)), stream.below(self._partitions))
        step = Seek(
            group=group,
            partition=partition if stream.chance(40) else None,
            to_end=stream.chance(30),
            jitter=self._jitter(stream),
        )
        if not self._side_by_side:
            self._sketch.seek(step)
        return step

    def _advance(self, stream: _Stream) -> Advance:
        """Mostly just past the end of a lease, sometimes just before it, sometimes short."""
        ends = self._sketch.lease_ends()
        choice = stream.below(100)
        if ends and choice < 70:
            left_ms = (ends[-1] if choice < 25 else ends[0]) - self._sketch.now_ms
            ms = left_ms + stream.one(_PAST_THE_END_MS)
        elif ends and choice < 80:
            ms = max(1, ends[0] - self._sketch.now_ms - 100)
        else:
            ms = stream.one(_SHORT_MS)
        ms = min(ms, 2200 if self._short else 70_000)
        if not self._side_by_side:
            self._sketch.now_ms += ms
        return Advance(ms=ms)

    def _crash_consumer(self, stream: _Stream) -> CrashConsumer:
        alive = [batch for batch in self._sketch.batches.values() if batch.size and not batch.acked]
        if alive:
            batch = stream.one(alive)
            return CrashConsumer(group=batch.group, worker=batch.worker)
        return CrashConsumer(group=stream.below(len(self._groups)), worker=stream.below(self._workers))

    def _down_ms(self, stream: _Stream) -> int:
        return stream.one(_DOWN_MS[:3] if self._short else _DOWN_MS)

    def _away_ms(self, stream: _Stream) -> int:
        return stream.one(_AWAY_MS[:3] if self._short else _AWAY_MS)

    def _jitter(self, stream: _Stream) -> int:
        """Mostly 0 for a request that is alone: nothing is there to interleave with it."""
        return 1 + stream.below(_JITTERS) if stream.chance(90 if self._side_by_side else 3) else 0

    def _faulty(self, request: Request, stream: _Stream) -> LaneStep:
        kind = self._faults[stream.weighted(self._fault_sums)]
        if kind == "lose-request":
            return LoseRequest(step=request)
        if kind == "lose-answer":
            return LoseAnswer(step=request)
        if kind == "delay-request":
            return DelayRequest(step=request, ms=self._late_ms(stream))
        if kind == "delay-answer":
            return DelayAnswer(step=request, ms=self._late_ms(stream))
        if kind == "repeat-request":
            return RepeatRequest(step=request, ms=stream.one((0, 0, 10, 300)))
        if isinstance(request, Pop):  # a client that leaves while it is parked
            parked = msgspec.structs.replace(request, wait_ms=stream.one(_WAITS_MS))
            return DropConnection(step=parked, ms=stream.one((1, 5, 50)))
        return DropConnection(step=request, ms=stream.one((0, 1, 5)))

    def _late_ms(self, stream: _Stream) -> int:
        """Mostly late enough for a lease to end in the meantime."""
        if stream.chance(30):
            return stream.one((10, 100, 300))
        return stream.one((1100, 1300) if self._short else (1100, 2100, 3100))


_IDIOMS: tuple[Callable[[_Drawer, _Stream], list[Step]], ...] = (
    _Drawer._beyond_the_batch,
    _Drawer._extended,
    _Drawer._spent,
    _Drawer._mixed,
    _Drawer._mixed,
    _Drawer._spent,
    _Drawer._superseded,
    _Drawer._woken,
    _Drawer._overtaken,
    _Drawer._same_key,
    _Drawer._sought,
    _Drawer._abandoned,
    _Drawer._outside,
)
