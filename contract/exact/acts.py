"""What a history leaves to be explained: the acts of its calls, each with the span in which it has its one moment.

A push acts once for each item, the items of one partition in their order. A pop of a group whose start depends on the
moment acts twice: it decides the start, then it takes. An ack acts once for each (partition, lease). A kill of the
broker is an act at a known moment. Refused calls do not act.

Moments lie between the lines of the history: an act stands after line `invoked` and before line `until`, and at a time
between `from_us` and `until_us`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from contract.history import (
    OLDEST_TIME,
    AckCall,
    AckResult,
    ConfigureCall,
    DeleteQueueCall,
    EffectEnd,
    ExtendCall,
    ExtendResult,
    Fault,
    History,
    Invoke,
    Note,
    PopCall,
    PopResult,
    PushCall,
    PushResult,
    Result,
    Return,
    SeekCall,
)
from contract.profile import Profile

NEVER = 1 << 60
NEW_WORDS = frozenset({"new", "new-only", "new_only", "newonly"})
OPTIONS = frozenset({"leaseTime", "retryLimit", "deadLetterQueue", "dlqAfterMaxRetries", "dedupWindowSeconds"})


class Unsupported(Exception):
    """The history holds something that the search has no model of."""


@dataclass(slots=True)
class Spoken:
    """One call as the history tells it. `result` None: not answered. `seen_us`: when the client gave up.

    `ended`, `ended_us`: when what an answer left open could act no more.
    """

    number: int
    invoke: Invoke
    line: int
    until: int = NEVER
    until_us: int = NEVER
    seen_us: int = NEVER
    ended: int = NEVER
    ended_us: int = NEVER
    result: Result | None = None
    refused: bool = False
    acted: bool | None = None

    @property
    def optional(self) -> bool:
        """It may have acted or not."""
        return self.result is None and self.acted is not True


@dataclass(frozen=True, slots=True)
class Span:
    """Who acts, and when: after line `invoked`, before line `until`. `optional`: perhaps never."""

    name: str
    call: int
    invoked: int
    until: int
    from_us: int
    until_us: int
    optional: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One moment of acting. `after`: the index of the act that must come before, -1 for none."""

    span: Span
    after: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Store(Act):
    """An item is stored, or found to be a duplicate. `message_id` None: no answer names it.

    `in_order`: never behind a later item of its request.
    """

    partition: str
    sent_id: str | None
    transaction_id: str | None
    message_id: str | None
    payload: str
    duplicate: bool
    in_order: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Start(Act):
    """The first pop of a group decides where the group starts, by `soon_us` where its partition is there by then."""

    request: PopCall
    soon_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Take(Act):
    """A pop takes. `result` None: nobody knows what."""

    request: PopCall
    result: PopResult | None


class Flags(NamedTuple):
    """What one item of an ack was answered. `released` None: not said."""

    success: bool
    noop: bool
    dead_lettered: bool
    released: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle(Act):
    """An ack settles the items of one (partition, lease). `flags` None: not answered, as a whole or for one item."""

    group: str
    partition: str
    lease_id: str | None
    transaction_ids: tuple[str, ...]
    words: tuple[str, ...]
    flags: tuple[Flags | None, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Extend(Act):
    """A lease is extended. `renewed` None: not answered."""

    lease_id: str
    seconds: int
    renewed: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill(Act):
    """The broker dies and comes back: leases, retry counts and attempts may survive or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Configure(Act):
    """Options of the queue are named."""

    options: Mapping[str, int | bool | str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Move(Act):
    """A seek of a group, in one partition or in all (None): to the end, or to the oldest message."""

    group: str
    partition: str | None
    to_end: bool


@dataclass(slots=True)
class Puzzle:
    """Everything that the search has to explain. `timed_groups`: where they start depends on the moment."""

    acts: list[Act] = field(default_factory=list)
    timed_groups: set[str] = field(default_factory=set)
    known_ids: set[str] = field(default_factory=set)


def read(history: History, profile: Profile) -> Puzzle:
    """The acts of a history. Raises `Unsupported`."""
    calls, kills, faults = _pair(history)
    calls = [call for call in calls if not call.refused and call.acted is not False]
    if len({call.invoke.request.queue for call in calls}) > 1:
        raise Unsupported("more than one queue")
    puzzle = Puzzle()
    for call in calls:
        if isinstance(call.invoke.request, PopCall) and timed(call.invoke.request):
            puzzle.timed_groups.add(call.invoke.request.group)
    for call in calls:
        request = call.invoke.request
        if isinstance(request, ConfigureCall):
            if set(request.options) - OPTIONS:
                raise Unsupported(f"the options {sorted(set(request.options) - OPTIONS)}")
            puzzle.acts.append(Configure(span=_span(call, "configures"), options=request.options))
        elif isinstance(request, SeekCall):
            if not request.to_end and request.timestamp != OLDEST_TIME:
                raise Unsupported("a seek to a time")
            span = _span(call, "seeks")
            puzzle.acts.append(Move(span=span, group=request.group, partition=request.partition, to_end=request.to_end))
        elif isinstance(request, DeleteQueueCall):
            raise Unsupported("a queue is deleted")
        elif isinstance(request, PushCall):
            _push(puzzle, call, request, faults, profile)
        elif isinstance(request, PopCall):
            _pop(puzzle, call, request, faults, profile)
        elif isinstance(request, AckCall):
            puzzle.acts.extend(_ack(call, request, faults, profile))
        elif isinstance(request, ExtendCall):
            renewed = _renewed(call.result) if isinstance(call.result, ExtendResult) else None
            denied = renewed == 0 and _without_storage(faults, call, profile)
            renewed, span = None if denied else renewed, _span(call, "extends", left_open=denied)
            puzzle.acts.append(Extend(span=span, lease_id=request.lease_id, seconds=request.seconds, renewed=renewed))
    _spooled_come(puzzle)
    puzzle.acts.extend(Kill(span=Span("kill", 0, line, line, at_us, at_us, False)) for line, at_us in kills)
    return puzzle


def timed(request: PopCall) -> bool:
    """Whether the start that a pop asks for depends on when it is decided. Consumers without a group never ask."""
    if request.from_ not in (None, "now"):
        raise Unsupported("a group starts at a time")
    return request.group != "" and (request.from_ is not None or (request.mode or "new").lower() in NEW_WORDS)


def _pair(history: History) -> tuple[list[Spoken], list[tuple[int, int]], list[Fault]]:
    calls: dict[int, Spoken] = {}
    kills: list[tuple[int, int]] = []
    faults: list[Fault] = []
    for line, event in enumerate(history.events):
        if isinstance(event, Invoke):
            calls[event.call] = Spoken(event.call, event, line)
        elif isinstance(event, Return):
            call = calls[event.call]
            call.seen_us = event.at_us
            call.refused = call.refused or event.outcome == "refused"
            if event.outcome == "ok":
                call.result, call.until, call.until_us = event.result, line, event.at_us
        elif isinstance(event, EffectEnd):
            call = calls[event.call]
            call.acted = event.acted
            if call.result is None:
                call.until, call.until_us = line, event.at_us
            else:
                call.ended, call.ended_us = line, event.at_us
        elif isinstance(event, Fault) and event.what != "crash-consumer":
            faults.append(event)
            if event.what in ("kill", "stop", "restart", "storage-stop"):
                kills.append((line, event.at_us))
        elif isinstance(event, Note) and event.text.startswith("stalled"):
            raise Unsupported("the harness stalled")
    return list(calls.values()), kills, faults


def _span(call: Spoken, what: str, *, until_us: int | None = None, left_open: bool = False) -> Span:
    """The span of a call. `left_open`: its answer leaves open whether it acts, so that may come later, or never."""
    return Span(
        f"call {call.number} {what}",
        call.number,
        call.line,
        call.ended if left_open else call.until,
        call.invoke.at_us,
        call.ended_us if left_open else call.until_us if until_us is None else until_us,
        call.optional or left_open,
    )


def _push(puzzle: Puzzle, call: Spoken, request: PushCall, faults: list[Fault], profile: Profile) -> None:
    previous: dict[str, int] = {}
    result = call.result if isinstance(call.result, PushResult) else None
    away = _without_storage(faults, call, profile)
    for item, partition in enumerate(request.partitions):
        status = result.statuses[item] if result is not None else ""
        unknown = result is not None and item in result.unknown_items
        if status in ("error", "failed") and not unknown:
            if not away:
                continue
            unknown = True
        # What was answered `buffered`, or may have been, is stored when the broker is long done with the call.
        spooled = status == "buffered" or (away and (result is None or unknown))
        # What was spooled may get another id when it is stored.
        named = result is not None and not unknown and status != "buffered"
        message_id = result.message_ids[item] if result is not None and named else None
        transaction_id = request.transaction_ids[item]
        if transaction_id is None and result is not None and not unknown:
            transaction_id = result.transaction_ids[item]
        span = _span(call, f"stores item {item}", left_open=unknown or status == "buffered")
        if spooled:
            by_us = _spooled_by_us(faults, call.seen_us, profile) if status == "buffered" else NEVER
            span = replace(span, until=NEVER, until_us=by_us, optional=True)
        puzzle.acts.append(
            Store(
                span=span,
                after=previous.get(partition, -1),
                partition=partition,
                sent_id=request.transaction_ids[item],
                transaction_id=transaction_id,
                message_id=message_id,
                payload=request.payloads[item],
                duplicate=status == "duplicate",
                in_order=not spooled,
            )
        )
        if not span.optional:
            previous[partition] = len(puzzle.acts) - 1
        if message_id is not None and status != "duplicate":
            puzzle.known_ids.add(message_id)


def _spooled_by_us(faults: list[Fault], since_us: int, profile: Profile) -> int:
    """When what was answered `buffered` is stored at the latest: so long after the broker was left alone."""
    if profile.spool_s is None or not any(fault.what == "storage-stop" for fault in faults):
        return NEVER
    length_us = int(profile.spool_s * 1_000_000)
    down = paused = away = False
    for fault in faults:
        if not (down or paused or away) and fault.at_us >= since_us + length_us:
            break
        down = fault.what in ("kill", "stop") or (down and fault.what not in ("start", "restart"))
        paused = fault.what == "pause" or (paused and fault.what not in ("resume", "start", "restart"))
        away = fault.what == "storage-stop" or (away and fault.what != "storage-start")
        since_us = max(since_us, fault.at_us)
    return NEVER if down or paused or away else since_us + length_us


def _spooled_come(puzzle: Puzzle) -> None:
    """What was spooled must be stored in time, unless it may be a duplicate, or is known by its value alone."""
    stores = [act for act in puzzle.acts if isinstance(act, Store)]
    ids = Counter((act.partition, act.transaction_id) for act in stores)
    for index, act in enumerate(puzzle.acts):
        if isinstance(act, Store) and not act.in_order:
            sure = act.transaction_id is not None and ids[act.partition, act.transaction_id] == 1
            due = sure and act.span.until_us < NEVER
            span = replace(act.span, until_us=act.span.until_us if due else NEVER, optional=not due)
            puzzle.acts[index] = replace(act, span=span)


def _pop(puzzle: Puzzle, call: Spoken, request: PopCall, faults: list[Fault], profile: Profile) -> None:
    empty = isinstance(call.result, PopResult) and not call.result.message_ids
    blind = empty and _without_storage(faults, call, profile)  # it may have been answered without a look
    if request.group in puzzle.timed_groups:
        soon_us = call.invoke.at_us + int(profile.start_s * 1_000_000)
        if call.result is None or _disturbed(faults, call.invoke.at_us, soon_us):
            soon_us = NEVER
        span = _span(call, "decides the start")
        span = replace(span, optional=True) if blind else span
        puzzle.acts.append(Start(span=span, request=request, soon_us=soon_us))
    if blind:
        return
    claim_us = None if call.result is not None or request.auto_ack else _latest_claim_us(call, faults, profile)
    result = call.result if isinstance(call.result, PopResult) else None
    puzzle.acts.append(Take(span=_span(call, "takes", until_us=claim_us), request=request, result=result))


def _latest_claim_us(call: Spoken, faults: list[Fault], profile: Profile) -> int:
    """A pop whose client left claims soon or never, unless the request was held back or the broker was disturbed."""
    late_us = call.seen_us + int(profile.late_effect_s * 1_000_000)
    if call.seen_us == NEVER or call.invoke.fault.startswith("delay-request"):
        return call.until_us
    if _disturbed(faults, call.invoke.at_us, late_us):
        return call.until_us
    return min(call.until_us, late_us)


def _without_storage(faults: list[Fault], call: Spoken, profile: Profile) -> bool:
    """Whether the storage was away, or had just come back, at any time while a call was under way."""
    over_us = call.seen_us if call.result is not None else call.until_us
    settle_us = int(profile.storage_settle_s * 1_000_000)
    stopped_us: int | None = None
    for fault in faults:
        if fault.what == "storage-stop":
            stopped_us = fault.at_us
        elif fault.what == "storage-start" and stopped_us is not None:
            if stopped_us <= over_us and call.invoke.at_us <= fault.at_us + settle_us:
                return True
            stopped_us = None
    return stopped_us is not None and stopped_us <= over_us


def _disturbed(faults: list[Fault], begin_us: int, end_us: int) -> bool:
    """Whether the broker was disturbed between two times, or away at the first."""
    away = storage_away = False
    for fault in faults:
        if begin_us <= fault.at_us <= end_us:
            return True
        if fault.at_us < begin_us:
            if fault.what in ("storage-stop", "storage-start"):
                storage_away = fault.what == "storage-stop"
            else:
                away = fault.what in ("kill", "stop", "pause")
    return away or storage_away


def _ack(call: Spoken, request: AckCall, faults: list[Fault], profile: Profile) -> Iterator[Settle]:
    parts: dict[tuple[str, str | None], list[int]] = {}
    for index, partition in enumerate(request.partitions):
        parts.setdefault((partition, request.lease_ids[index]), []).append(index)
    result = call.result if isinstance(call.result, AckResult) else None
    away = result is not None and _without_storage(faults, call, profile)
    for (partition, lease_id), indexes in parts.items():
        words = tuple(_word(request.statuses[index]) for index in indexes)
        if words.count("dlq") > 1 and profile.multi_dlq_files_lowest_only:
            raise Unsupported("several dlq in one call, on a broker that files one")
        open_ = result is not None and any(index in result.unknown_items for index in indexes)
        open_ = open_ or (away and result is not None and not any(result.successes[index] for index in indexes))
        flags = None
        if result is not None and not open_:
            flags = tuple(None if away and not result.successes[index] else _flags(result, index) for index in indexes)
        yield Settle(
            span=_span(call, f"settles {', '.join(words)}", left_open=open_),
            group=request.group,
            partition=partition,
            lease_id=lease_id,
            transaction_ids=tuple(request.transaction_ids[index] for index in indexes),
            words=words,
            flags=flags,
        )


def _flags(result: AckResult, index: int) -> Flags:
    return Flags(
        result.successes[index], bool(result.noops[index]), bool(result.dead_lettered[index]), result.released[index]
    )


def _renewed(result: ExtendResult) -> int:
    """How many leases an answer says were extended; -1 where it contradicts itself."""
    return result.renewed if result.success == (result.renewed > 0) else -1


def _word(status: str) -> str:
    if status in ("completed", "success", "acked", "ok"):
        return "completed"
    return status if status in ("retry", "dlq") else "failed"
