"""The possible cursor of a reader at each moment, and what each delivery says about it.

Two bounds: `low`, the highest position that was certainly committed before a pop was invoked, and `high`, the highest
that may have been committed before it returned. A run must start above `low` and at most one above `high`.

What may move the cursor is kept as effects with a life: an ack from its invocation to its return, or, with a lost
answer, to the end of what it can still do (its lease, the end the harness saw). An autoAck pop with a lost answer is
a budget: it may have committed up to its batch, at any later moment. A run that starts at s proves that the cursor
was right before s when it was taken, so effects that ended before that pop was invoked are settled by it.

A seek is the one thing that moves a cursor back. While it may act, nothing is certainly committed; once it is answered,
the cursor is where it was put, except for what overlapped it and may have acted after it.

After a violation the model takes up what it saw.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from contract.checks.facts import NEVER, Call, Facts, Message, PhaseSpan, Run
from contract.checks.leases import Lease
from contract.checks.options import possible_values
from contract.checks.readers import Ack, AckedItem, Reader, Seek
from contract.checks.starts import Start
from contract.checks.stored_order import BEYOND, OLDEST, Log, comparable, fragment
from contract.history import PopCall
from contract.profile import Profile

DEFAULT_BATCH = 200


@dataclass(slots=True)
class Effect:
    """Something that may move the cursor up to `position`, or by `budget` messages, until `until`."""

    call: Call
    position: int
    until: int
    until_us: int
    budget: int = 0

    def over_before(self, call: Call) -> bool:
        """Whether it had no power left when `call` was invoked."""
        return self.until < call.invoked or self.until_us < call.invoked_us


@dataclass(slots=True)
class Ceiling:
    """The highest possible cursor at a moment: `position`, then `budget` more messages. `moved`: by own effects."""

    position: int
    budget: int
    moved: bool


@dataclass(slots=True)
class Observation:
    """What one run says. `start` None: its first message has no proven position, so nothing is compared.

    `skipped`: messages passed over without a possible commit. `low`: the highest position certainly committed
    before, in the fragment of `start`; None where there is none. `first`: the group's first run here, before
    anything of its own can have moved the cursor.
    """

    run: Run
    start: int | None
    low: int | None
    ceiling: Ceiling
    skipped: list[Message]
    compared: bool
    first: bool = False
    following: bool = False

    @property
    def again(self) -> bool:
        """It starts at or below what was certainly committed."""
        return self.start is not None and self.low is not None and self.start <= self.low


@dataclass(slots=True)
class Commit:
    """A certain commit up to `position`, known from `moment` on.

    `named` are the messages that the ack named; `prefix`: lower messages of the batch were completed with them.
    """

    moment: int
    position: int
    named: frozenset[Message]
    auto_ack: bool = False
    prefix: bool = False


@dataclass(slots=True)
class Stop:
    """A certain `failed` or `retry` of a message, known from `moment` on. `mixed`: the call completed one above it."""

    moment: int
    message: Message
    status: str
    mixed: bool


@dataclass(slots=True)
class CursorTrace:
    """All observations of a reader, and the ceilings at the moments that other rules ask about."""

    start: Start
    observations: list[Observation] = field(default_factory=list)
    at_empty: dict[int, Ceiling] = field(default_factory=dict)
    at_phase: dict[int, Ceiling] = field(default_factory=dict)
    at_ack: dict[tuple[int, str | None], Ceiling] = field(default_factory=dict)
    commits: list[Effect] = field(default_factory=list)
    certain: list[Commit] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)
    low_during: Callable[[Call, int], int | None] = lambda call, wanted: None


class _Cursor:
    """The two bounds as they evolve."""

    def __init__(self, log: Log, start: Start) -> None:
        self.log = log
        self.base = start.high
        self.base_call: Call | None = None
        self.effects: list[Effect] = []
        self.moves = 0
        self.low_moments: list[int] = []
        self.low_positions: list[int] = []
        self.moved_back: list[Call] = []
        self.lowered: list[Call] = []
        self.settled_at = -1
        if start.low != OLDEST:
            self._note_low(-1, start.low)

    def raise_low(self, moment: int, position: int, by: Call) -> None:
        """From `moment` on, `position` is certainly committed `by` a call, if no seek may have undone it since."""
        if not self._may_move_back(by):
            self._note_low(moment, position)

    def _note_low(self, moment: int, position: int) -> None:
        current = self._low_at(NEVER, fragment(position))
        self.low_moments.append(moment)
        self.low_positions.append(position if current is None else max(position, current))

    def low_during(self, call: Call, wanted: int) -> int | None:
        """The highest position of a fragment that was certainly committed before a call, and as long as it lasted."""
        return None if self._may_move_back(call) else self._low_at(call.invoked, wanted)

    def _low_at(self, moment: int, wanted: int) -> int | None:
        for index in range(bisect.bisect_left(self.low_moments, moment) - 1, -1, -1):
            if self.low_positions[index] == OLDEST:  # a seek began: nothing before it counts any more
                return None
            if fragment(self.low_positions[index]) == wanted:
                return self.low_positions[index]
        return None

    def _may_move_back(self, call: Call) -> bool:
        """Whether a seek that may move the cursor back overlaps a call."""
        return any(seek.invoked < call.until and call.invoked < seek.until for seek in self.moved_back)

    def moved_back_since(self, moment: int) -> bool:
        """Whether a seek that may move the cursor back may have acted since a moment."""
        return any(seek.until > moment for seek in self.moved_back)

    def begin_seek(self, seek: Seek, log: Log) -> None:
        """A seek was sent: from now on the cursor may be where it was, or where the seek puts it."""
        if not (seek.to_end and seek.certain):
            self.moved_back.append(seek.call)
            self.low_moments.append(seek.call.invoked)
            self.low_positions.append(OLDEST)
        self.moves += 1
        if not seek.to_oldest:
            position = end_at_most(log, seek.call) if seek.to_end else BEYOND
            self.effects.append(Effect(seek.call, position, seek.call.until, seek.call.until_us))

    def end_seek(self, seek: Seek, log: Log) -> None:
        """A certain seek was answered: the cursor is where it was put, and what came before it has no power left."""
        if seek.to_end:
            end = end_at_least(log, seek.call)
            if end is not None:
                self.raise_low(seek.call.returned, end, seek.call)
        elif seek.to_oldest:
            self.lowered.append(seek.call)
            self.effects = [effect for effect in self.effects if not effect.over_before(seek.call)]
            if self.base_call is not None and self.base_call.until > seek.call.invoked:
                before = self.base_call  # a run that may have been taken after the seek
                self.effects.append(Effect(before, self.base, before.until, before.until_us))
            self.base, self.base_call = OLDEST, None

    def ceiling_during(self, call: Call, without: Effect | None = None) -> Ceiling:
        """The highest possible cursor during a call that returns now; BEYOND where a seek lowered it meanwhile.

        One that was not answered lowered it where a run since then shows that it did: the call may have acted before.
        """
        ceiling = self.ceiling(without)
        if any(seek.returned > call.invoked for seek in self.lowered) or any(
            seek.until > call.invoked and self.settled_at > max(seek.invoked, call.invoked) for seek in self.moved_back
        ):
            ceiling.position = BEYOND
        return ceiling

    def ceiling(self, without: Effect | None = None) -> Ceiling:
        """The highest possible cursor now; `without` leaves one effect out."""
        position, budget = self.base, 0
        for effect in self.effects:
            if effect is without:
                continue
            budget += effect.budget
            if effect.position == OLDEST or position == BEYOND:
                continue
            if not comparable(position, effect.position):
                position = BEYOND
            else:
                position = max(position, effect.position)
        return Ceiling(position, budget, self.moves > (without is not None))

    def add(self, effect: Effect) -> None:
        """Something that may act from now on."""
        self.effects.append(effect)
        self.moves += 1

    def settle(self, call: Call, start: int) -> None:
        """A run that starts at `start` was taken by `call`."""
        if self.base_call is not None:  # the run before may have been taken after this one
            before = self.base_call
            self.effects.append(Effect(before, self.base, before.returned, before.returned_us))
        self.base, self.base_call, self.settled_at = start - 1, call, call.returned
        self.effects = [effect for effect in self.effects if not effect.over_before(call)]
        self.raise_low(call.returned, start - 1, call)


def end_at_most(log: Log, call: Call) -> int:
    """The highest place that a seek to the end may have gone to; BEYOND where it is not known."""
    places = [
        place
        for message, place in log.position.items()
        if message.push is None or (message.pushed_after < call.until and message.pushed_after_us <= call.until_us)
    ]
    return (BEYOND if log.fragments > 1 else max(places)) if places else OLDEST


def end_at_least(log: Log, call: Call) -> int | None:
    """The place that a seek to the end certainly passed; None where it is not known."""
    places = [place for message, place in log.position.items() if message.stored_by < call.invoked]
    return max(places) if places and log.fragments == 1 else None


def trace_cursor(
    facts: Facts,
    reader: Reader,
    log: Log,
    start: Start,
    leases: list[Lease],
    distrusted: set[tuple[int, int]],
    profile: Profile,
) -> CursorTrace:
    """Follows the cursor through the whole history.

    `distrusted` holds (call, item) of acks under a dead lease that were answered as done: they may have moved the
    cursor, and prove nothing.
    """
    cursor = _Cursor(log, start)
    trace = CursorTrace(start, low_during=cursor.low_during)
    lease_end_us = _lease_ends(leases)
    batches: dict[str | None, list[Run]] = {}
    for run in reader.runs:
        batches.setdefault(run.lease_id, []).append(run)
    own: dict[int, Effect] = {}
    failures = 0
    troubled = False
    for moment, what, thing in _moments(facts, reader):
        if what == "ack" and isinstance(thing, Ack):
            failures += any(item.fails and item.may_have_acted for item in thing.items)
            spent = failures > _lowest_retry_limit(facts, reader.queue, thing, profile)
            effect = _ack_effect(thing, log, spent, lease_end_us)
            if effect is not None:
                cursor.add(effect)
                own[id(thing)] = effect
                trace.commits.append(effect)
        elif what == "ack answered" and isinstance(thing, Ack):
            trace.at_ack[thing.call.number, thing.lease_id] = cursor.ceiling_during(thing.call, own.get(id(thing)))
            committed = _certain_commit(thing, log, distrusted, profile)
            if committed is not None and not cursor.moved_back_since(_repeated_since(reader, thing)):
                cursor.raise_low(moment, committed, thing.call)
                trace.certain.append(_commit(moment, committed, thing, log, batches.get(thing.lease_id, ())))
            spent = failures > _lowest_retry_limit(facts, reader.queue, thing, profile)
            trace.stops.extend(_stops(moment, thing, log, spent))
        elif what == "autoAck" and isinstance(thing, Run):
            effect = Effect(thing.call, _place(log, thing.messages[-1]), thing.call.until, thing.call.until_us)
            cursor.add(effect)
            own[id(thing)] = effect
            trace.commits.append(effect)
        elif what == "unseen autoAck" and isinstance(thing, Call):
            assert isinstance(thing.request, PopCall)
            cursor.add(Effect(thing, OLDEST, thing.until, thing.until_us, budget=thing.request.batch or DEFAULT_BATCH))
        elif what == "run" and isinstance(thing, Run):
            first = not trace.observations and cursor.moves == thing.auto_ack
            observation = _observe(cursor, log, thing, own.get(id(thing)))
            observation.first, observation.following = first, troubled
            if thing.auto_ack:
                place = _place(log, thing.messages[-1])
                if place != BEYOND:
                    trace.certain.append(Commit(moment, place, frozenset(thing.messages), auto_ack=True))
            troubled = troubled or observation.again or bool(observation.skipped)
            trace.observations.append(observation)
        elif what == "empty" and isinstance(thing, Call):
            trace.at_empty[thing.number] = cursor.ceiling_during(thing)
        elif what == "seek" and isinstance(thing, Seek):
            cursor.begin_seek(thing, log)
        elif what == "sought" and isinstance(thing, Seek):
            cursor.end_seek(thing, log)
        elif what == "phase":
            trace.at_phase[moment] = cursor.ceiling()
    return trace


Moment = tuple[int, str, Ack | Run | Call | Seek | PhaseSpan]


def _moments(facts: Facts, reader: Reader) -> list[Moment]:
    """Everything that concerns the reader, in order; at one moment what may act stands before what was seen."""
    moments: list[Moment] = []
    for ack in reader.acks:
        if ack.may_have_acted or ack.call.ok:
            moments.append((ack.call.invoked, "ack", ack))
            if ack.call.ok:
                moments.append((ack.call.returned, "ack answered", ack))
    for run in reader.runs:
        if run.auto_ack:
            moments.append((run.call.invoked, "autoAck", run))
        moments.append((run.call.returned, "run", run))
    for call in reader.unseen:
        assert isinstance(call.request, PopCall)
        if call.request.auto_ack:
            moments.append((call.invoked, "unseen autoAck", call))
    for seek in reader.seeks:
        moments.append((seek.call.invoked, "seek", seek))
        if seek.certain:
            moments.append((seek.call.returned, "sought", seek))
    moments.extend((call.returned, "empty", call) for call in reader.empty)
    moments.extend((span.begin, "phase", span) for span in facts.phases)
    moments.sort(key=lambda moment: moment[0])
    return moments


def _observe(cursor: _Cursor, log: Log, run: Run, own: Effect | None) -> Observation:
    """What a run says; `own` is its own commit, which cannot explain where it starts."""
    start = log.position.get(run.messages[0])
    ceiling = cursor.ceiling_during(run.call, own)
    if start is None:
        return Observation(run, None, None, ceiling, [], compared=False)
    low = cursor.low_during(run.call, fragment(start))
    skipped: list[Message] = []
    compared = ceiling.position != BEYOND and comparable(ceiling.position, start)
    if compared:
        skipped = log.skipped(ceiling.position, start)
        if len(skipped) <= ceiling.budget:
            skipped = []
    cursor.settle(run.call, start)
    if run.auto_ack:
        cursor.raise_low(run.call.returned, _place(log, run.messages[-1], otherwise=start - 1), run.call)
    return Observation(run, start, low, ceiling, skipped, compared or low is not None)


def _place(log: Log, message: Message, otherwise: int = BEYOND) -> int:
    return log.position.get(message, otherwise)


def _lease_ends(leases: list[Lease]) -> dict[str, int]:
    ends: dict[str, int] = {}
    for lease in leases:
        ends[lease.run.lease_id] = max(ends.get(lease.run.lease_id, 0), lease.end_high_us)
    return ends


def _lowest_retry_limit(facts: Facts, queue: str, ack: Ack, profile: Profile) -> int:
    values = possible_values(facts, queue, "retryLimit", profile.retry_limit, ack.call)
    return min(value for value in values if isinstance(value, int))


# Acks -------------------------------------------------------------------------------------------------------------


def _ack_effect(ack: Ack, log: Log, budget_spent: bool, lease_end_us: dict[str, int]) -> Effect | None:
    """How far the ack may move the cursor, from its invocation on; None where it certainly moves nothing."""
    stop = _certain_stop(ack, log, budget_spent)
    reach = OLDEST
    for item in ack.items:
        if not item.may_have_acted:
            continue
        for place in _places(item, log):
            if stop is not None and item.completes and comparable(stop, place) and place > stop:
                continue
            passes = item.completes or item.status == "dlq" or item.dead_lettered or (item.fails and budget_spent)
            candidate = place if passes or place == BEYOND else place - 1
            if not comparable(reach, candidate):
                candidate = BEYOND
            reach = max(reach, candidate)
    if reach == OLDEST:
        return None
    until, until_us = ack.call.until, ack.call.until_us
    open_after_answer = any(item.unknown for item in ack.items)
    if open_after_answer:
        until, until_us = ack.call.ended, ack.call.ended_us
    if ack.lease_id is not None and (open_after_answer or not ack.call.ok):
        until_us = min(until_us, lease_end_us.get(ack.lease_id, NEVER))
    return Effect(ack.call, reach, until, until_us)


def _places(item: AckedItem, log: Log) -> Iterator[int]:
    """The positions that the id may mean; BEYOND where one is not known."""
    if not item.meant:
        yield BEYOND
    for message in item.meant:
        yield _place(log, message)


def _certain_stop(ack: Ack, log: Log, budget_spent: bool) -> int | None:
    """The lowest message at which the call certainly stopped, so that a completed one above it comes back.

    Without a lease, and with no leased batch, `failed` and `retry` may be answered as done and change nothing.
    """
    if not ack.call.ok or budget_spent or ack.lease_id is None:
        return None
    stops = [
        _place(log, item.meant[0])
        for item in ack.items
        if item.done
        and not item.completes
        and item.status != "dlq"
        and not item.dead_lettered
        and len(item.meant) == 1
        and not _outdone(item, ack)
    ]
    return min(stops, default=None)


def _outdone(item: AckedItem, ack: Ack) -> bool:
    """Whether the call also names the message with `dlq`, which is stronger (contract 5)."""
    return any(other.status == "dlq" and other.transaction_id == item.transaction_id for other in ack.items)


def _certain_commit(ack: Ack, log: Log, distrusted: set[tuple[int, int]], profile: Profile) -> int | None:
    """The highest position that the answer proves to be committed."""
    limit = _lowest_possible_stop(ack, log, profile)
    best: int | None = None
    for item in ack.items:
        if not item.done or not item.meant or (ack.call.number, item.index) in distrusted:
            continue
        places = [_place(log, message) for message in item.meant]
        place = min(places)
        if place == BEYOND or (limit is not None and (not comparable(max(places), limit) or max(places) > limit)):
            continue
        if (item.completes or item.dead_lettered) and (best is None or (comparable(best, place) and place > best)):
            best = place
    return best


def _lowest_possible_stop(ack: Ack, log: Log, profile: Profile) -> int | None:
    """The lowest message at which the call may have stopped; a stop is passed only where it was dead-lettered."""
    stops: list[int] = []
    for item in ack.items:
        if item.completes or not item.may_have_acted:
            continue
        if item.status == "dlq" and not profile.multi_dlq_files_lowest_only:
            continue
        places = [_place(log, message) for message in item.meant]
        stops.extend(places if item.dead_lettered else [place - 1 for place in places])
    return min(stops, default=None)


def _repeated_since(reader: Reader, ack: Ack) -> int:
    """The moment since which an ack may have been sent before: answered as the first time, it says nothing newer."""
    if ack.lease_id is None or not reader.seeks:
        return NEVER
    asked = {(item.transaction_id, item.status) for item in ack.items}
    same = [
        other.call.invoked
        for other in reader.acks
        if other is not ack and other.lease_id == ack.lease_id and other.call.invoked < ack.call.returned
        if any(item.may_have_acted and (item.transaction_id, item.status) in asked for item in other.items)
    ]
    return min(same, default=NEVER)


def _commit(moment: int, position: int, ack: Ack, log: Log, batches: Iterable[Run]) -> Commit:
    named = frozenset(message for item in ack.items if item.done for message in item.meant)
    prefix = any(
        message not in named and _place(log, message) < position for batch in batches for message in batch.messages
    )
    return Commit(moment, position, named, prefix=prefix)


def _stops(moment: int, ack: Ack, log: Log, budget_spent: bool) -> Iterator[Stop]:
    """The lowest message that the call certainly handed back."""
    place = _certain_stop(ack, log, budget_spent)
    if place is None or place == BEYOND:
        return
    message = log.at[place]
    status = next(item.status for item in ack.items if item.done and item.meant == [message] and not item.completes)
    mixed = any(
        item.completes and item.done and any(_place(log, other) > place for other in item.meant) for item in ack.items
    )
    yield Stop(moment, message, status, mixed)
