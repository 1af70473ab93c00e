"""Small random histories: clean ones, played on the simulated target, and mutants of them.

A mutant differs from a history of a right broker in one to three places: something was delivered, answered, timed or
sent otherwise. Most mutants are illegal, many are still legal; which is which is for the judges to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from random import Random

import msgspec

from contract.history import (
    AckCall,
    AckResult,
    ConfigureCall,
    DoneResult,
    EffectEnd,
    End,
    Event,
    ExtendCall,
    ExtendResult,
    Fault,
    History,
    HistoryError,
    Invoke,
    Note,
    Phase,
    PhaseEnd,
    PopCall,
    PopResult,
    PushCall,
    PushResult,
    Result,
    Return,
    SeekCall,
    parse,
    to_lines,
)

Events = list[Event]
Mutation = Callable[[Events, Random], None]
MUTATIONS: list[Mutation] = []
TRIES = 20
PROFILES = ["1.x", "2.x", "reference"]
"""A mutant may be one of another kind of broker, with the tolerances of that."""


def mutation(change: Mutation) -> Mutation:
    MUTATIONS.append(change)
    return change


class NotHere(Exception):
    """There is nothing that this mutation could change."""


def clean(history: History, calls: int) -> History:
    """The first calls of a history's drawn part; what was under way at the cut is left without an answer."""
    events: Events = []
    for event in history.events:
        if isinstance(event, Phase) and event.name != "schedule":
            break
        if isinstance(event, Invoke) and event.call > calls:
            break
        if not isinstance(event, Note | Phase):
            events.append(event)
    return History(history.header, (*events, End(events[-1].at_us if events else 0)))


def mutants(history: History, random: Random, count: int) -> Iterable[tuple[str, History]]:
    """Readable mutants of a history, each with the names of its mutations.

    They name no phases: what a harness says of a complete drain or audit would not be true of a mutant.
    """
    plain: Events = [event for event in history.events if not isinstance(event, Phase | PhaseEnd)]
    for _ in range(count):
        names, events = [], list(plain)
        for _ in range(random.choice([1, 1, 1, 2, 2, 3])):
            for _ in range(TRIES):
                change = random.choice(MUTATIONS)
                try:
                    change(events, random)
                except NotHere:
                    continue
                names.append(change.__name__.replace("_", " "))
                break
        profile = random.choice([history.header.profile] * 4 + PROFILES)
        mutant = History(msgspec.structs.replace(history.header, profile=profile), tuple(events))
        if readable(mutant):
            yield " + ".join(names), mutant


def readable(history: History) -> bool:
    """Whether a history could have been recorded: times in order, calls that return after they were invoked."""
    try:
        parse(to_lines(history))
    except HistoryError:
        return False
    return True


# Finding places ---------------------------------------------------------------------------------------------------


def _pick(events: Events, random: Random, fits: Callable[[Event], bool]) -> int:
    places = [place for place, event in enumerate(events) if fits(event)]
    if not places:
        raise NotHere
    return random.choice(places)


def _answer(events: Events, random: Random, kind: type[Result], fits: Callable[[Result], bool] = bool) -> int:
    return _pick(events, random, lambda e: isinstance(e, Return) and isinstance(e.result, kind) and fits(e.result))


def _sent(events: Events, random: Random, kind: type[msgspec.Struct]) -> int:
    return _pick(events, random, lambda e: isinstance(e, Invoke) and isinstance(e.request, kind))


def _replace(events: Events, place: int, **changes: object) -> None:
    events[place] = msgspec.structs.replace(events[place], **changes)


def _re_answer(events: Events, place: int, **changes: object) -> None:
    event = events[place]
    assert isinstance(event, Return)
    assert event.result is not None
    _replace(events, place, result=msgspec.structs.replace(event.result, **changes))


def _re_send(events: Events, place: int, **changes: object) -> None:
    event = events[place]
    assert isinstance(event, Invoke)
    _replace(events, place, request=msgspec.structs.replace(event.request, **changes))


def _pop_result(events: Events, place: int) -> PopResult:
    event = events[place]
    assert isinstance(event, Return)
    assert isinstance(event.result, PopResult)
    return event.result


def _permuted(result: PopResult, order: list[int]) -> dict[str, object]:
    return {
        name: tuple(value[index] for index in order)
        for name in PopResult.__struct_fields__
        if isinstance(value := getattr(result, name), tuple)
    }


def _changed(values: tuple[object, ...], random: Random, change: Callable[[object], object]) -> tuple[object, ...]:
    if not values:
        raise NotHere
    at = random.randrange(len(values))
    return (*values[:at], change(values[at]), *values[at + 1 :])


# Deliveries -------------------------------------------------------------------------------------------------------


def _has_messages(result: Result) -> bool:
    return isinstance(result, PopResult) and bool(result.message_ids)


@mutation
def message_dropped(events: Events, random: Random) -> None:
    place = _answer(events, random, PopResult, _has_messages)
    result = _pop_result(events, place)
    gone = random.randrange(len(result.message_ids))
    _re_answer(events, place, **_permuted(result, [at for at in range(len(result.message_ids)) if at != gone]))


@mutation
def message_doubled(events: Events, random: Random) -> None:
    place = _answer(events, random, PopResult, _has_messages)
    result = _pop_result(events, place)
    order = list(range(len(result.message_ids)))
    order.insert(random.randrange(len(order) + 1), random.choice(order))
    _re_answer(events, place, **_permuted(result, order))


@mutation
def messages_swapped(events: Events, random: Random) -> None:
    place = _answer(events, random, PopResult, lambda r: isinstance(r, PopResult) and len(r.message_ids) > 1)
    result = _pop_result(events, place)
    order = random.sample(range(len(result.message_ids)), len(result.message_ids))
    _re_answer(events, place, **_permuted(result, order))


@mutation
def answer_emptied(events: Events, random: Random) -> None:
    _replace(events, _answer(events, random, PopResult, _has_messages), result=PopResult(), status=204)


@mutation
def answer_of_another_pop(events: Events, random: Random) -> None:
    source = _pop_result(events, _answer(events, random, PopResult, _has_messages))
    place = _answer(events, random, PopResult)
    lease = random.choice([source.lease_id, f"another {random.randrange(9)}"])
    given = msgspec.structs.replace(source, lease_id=lease, lease_ids=(lease,) * len(source.message_ids))
    _replace(events, place, result=given, status=200)


@mutation
def fewer_messages(events: Events, random: Random) -> None:
    place = _answer(events, random, PopResult, lambda r: isinstance(r, PopResult) and len(r.message_ids) > 1)
    result = _pop_result(events, place)
    count, from_end = random.randrange(1, len(result.message_ids)), random.random() < 0.3
    order = list(range(len(result.message_ids)))
    _re_answer(events, place, **_permuted(result, order[-count:] if from_end else order[:count]))


@mutation
def payload_changed(events: Events, random: Random) -> None:
    place = _answer(events, random, PopResult, _has_messages)
    payloads = _changed(_pop_result(events, place).payloads, random, lambda value: f"[{value}]")
    _re_answer(events, place, payloads=payloads)


@mutation
def attempt_changed(events: Events, random: Random) -> None:
    place = _answer(events, random, PopResult, _has_messages)
    count = random.choice([None, 1, 2, 3])
    _re_answer(events, place, attempts=(count,) * len(_pop_result(events, place).attempts))


@mutation
def no_attempts_and_offsets(events: Events, random: Random) -> None:
    """What one kind of broker does not send."""
    for place, event in enumerate(events):
        if isinstance(event, Return) and isinstance(event.result, PopResult):
            count = len(event.result.message_ids)
            _re_answer(events, place, attempts=(None,) * count, offsets=(None,) * count)


# Answers ----------------------------------------------------------------------------------------------------------


@mutation
def answer_lost(events: Events, random: Random) -> None:
    place = _pick(events, random, lambda e: isinstance(e, Return) and e.outcome == "ok")
    _replace(events, place, outcome="unknown", result=None, status=None, why="lost")


@mutation
def answer_lost_and_done(events: Events, random: Random) -> None:
    place = _pick(events, random, lambda e: isinstance(e, Return) and e.outcome == "ok")
    event = events[place]
    assert isinstance(event, Return)
    _replace(events, place, outcome="unknown", result=None, status=None, why="lost")
    events.insert(place + 1, EffectEnd(event.call, event.at_us))


@mutation
def request_refused(events: Events, random: Random) -> None:
    place = _pick(events, random, lambda e: isinstance(e, Return) and e.outcome != "refused")
    _replace(events, place, outcome="refused", result=None, status=None, why="refused")


@mutation
def effect_end_left_out(events: Events, random: Random) -> None:
    del events[_pick(events, random, lambda e: isinstance(e, EffectEnd))]


@mutation
def ack_success_flipped(events: Events, random: Random) -> None:
    place = _answer(events, random, AckResult)
    event = events[place]
    assert isinstance(event, Return)
    assert isinstance(event.result, AckResult)
    _re_answer(events, place, successes=_changed(event.result.successes, random, lambda value: not value))


@mutation
def ack_flag_changed(events: Events, random: Random) -> None:
    place = _answer(events, random, AckResult)
    event = events[place]
    assert isinstance(event, Return)
    name = random.choice(["noops", "dead_lettered", "released"])
    _re_answer(events, place, **{name: _changed(getattr(event.result, name), random, lambda value: not value)})


@mutation
def ack_flags_left_out(events: Events, random: Random) -> None:
    """What one kind of broker does not send."""
    for place, event in enumerate(events):
        if isinstance(event, Return) and isinstance(event.result, AckResult):
            nothing = (None,) * len(event.result.successes)
            _re_answer(events, place, noops=nothing, released=nothing)


@mutation
def push_status_changed(events: Events, random: Random) -> None:
    place = _answer(events, random, PushResult)
    event = events[place]
    assert isinstance(event, Return)
    assert isinstance(event.result, PushResult)
    statuses = _changed(
        event.result.statuses, random, lambda _: random.choice(["queued", "duplicate", "failed", "buffered"])
    )
    _re_answer(events, place, statuses=statuses)


@mutation
def extension_answer_flipped(events: Events, random: Random) -> None:
    place = _answer(events, random, ExtendResult)
    event = events[place]
    assert isinstance(event, Return)
    assert isinstance(event.result, ExtendResult)
    _re_answer(events, place, success=not event.result.success, renewed=0 if event.result.renewed else 1)


# Requests ---------------------------------------------------------------------------------------------------------


@mutation
def call_left_out(events: Events, random: Random) -> None:
    place = _pick(events, random, lambda e: isinstance(e, Invoke))
    event = events[place]
    assert isinstance(event, Invoke)
    events[:] = [e for e in events if getattr(e, "call", None) != event.call]


@mutation
def fault_left_out(events: Events, random: Random) -> None:
    del events[_pick(events, random, lambda e: isinstance(e, Fault))]


@mutation
def broker_killed(events: Events, random: Random) -> None:
    place = random.randrange(len(events))
    at_us = events[place].at_us
    events[place:place] = [Fault(at_us, "kill"), Fault(at_us, "start")]


@mutation
def storage_broken_off(events: Events, random: Random) -> None:
    """The storage was away for a while, or never came back."""
    begin = random.randrange(len(events))
    end = random.randint(begin, min(len(events) - 1, begin + 8))
    if any(isinstance(event, Fault) and event.what.startswith("storage") for event in events):
        raise NotHere
    if random.random() < 0.8:
        events.insert(end, Fault(events[end].at_us, "storage-start"))
    events.insert(begin, Fault(events[begin].at_us, "storage-stop"))


@mutation
def group_changed(events: Events, random: Random) -> None:
    groups = sorted({e.request.group for e in events if isinstance(e, Invoke) and isinstance(e.request, PopCall)})
    place = _pick(events, random, lambda e: isinstance(e, Invoke) and isinstance(e.request, PopCall | AckCall))
    _re_send(events, place, group=random.choice([*groups, "another"]))


@mutation
def ack_word_changed(events: Events, random: Random) -> None:
    place = _sent(events, random, AckCall)
    event = events[place]
    assert isinstance(event, Invoke)
    assert isinstance(event.request, AckCall)
    words = ["completed", "failed", "retry", "dlq"]
    _re_send(events, place, statuses=_changed(event.request.statuses, random, lambda _: random.choice(words)))


@mutation
def ack_lease_changed(events: Events, random: Random) -> None:
    leases = [e.result.lease_id for e in events if isinstance(e, Return) and isinstance(e.result, PopResult)]
    place = _sent(events, random, AckCall)
    event = events[place]
    assert isinstance(event, Invoke)
    assert isinstance(event.request, AckCall)
    lease = random.choice([None, *filter(None, leases)])
    if random.random() < 0.5:
        _re_send(events, place, lease_ids=(lease,) * len(event.request.lease_ids))
    else:
        _re_send(events, place, lease_ids=_changed(event.request.lease_ids, random, lambda _: lease))


@mutation
def pop_changed(events: Events, random: Random) -> None:
    place = _sent(events, random, PopCall)
    changes: list[dict[str, object]] = [
        {"lease_s": random.choice([None, 1, 2, 3, 5])},
        {"batch": random.choice([None, 1, 2, 3])},
        {"partition": random.choice([None, "p0", "p1"])},
        {"partitions": random.choice([None, 0, 1, 2])},
        {"mode": random.choice([None, "new", "all"])},
        {"from_": "now"},
        {"auto_ack": True},
        {"wait_ms": 1000},
    ]
    _re_send(events, place, **random.choice(changes))


@mutation
def pop_made_auto_ack(events: Events, random: Random) -> None:
    place = _sent(events, random, PopCall)
    event = events[place]
    assert isinstance(event, Invoke)
    _re_send(events, place, auto_ack=True)
    for number, answer in enumerate(events):
        if isinstance(answer, Return) and answer.call == event.call and isinstance(answer.result, PopResult):
            _re_answer(events, number, lease_id="", lease_ids=("",) * len(answer.result.lease_ids))


@mutation
def extension_changed(events: Events, random: Random) -> None:
    _re_send(events, _sent(events, random, ExtendCall), seconds=random.choice([1, 2, 3, 5, 10]))


@mutation
def seek_changed(events: Events, random: Random) -> None:
    """A seek went the other way, or was one of another group."""
    place = _sent(events, random, SeekCall)
    event = events[place]
    assert isinstance(event, Invoke)
    assert isinstance(event.request, SeekCall)
    if random.random() < 0.5:
        back = event.request.to_end
        _re_send(events, place, to_end=not back, timestamp="1970-01-01T00:00:00Z" if back else None)
    else:
        groups = sorted({e.request.group for e in events if isinstance(e, Invoke) and isinstance(e.request, PopCall)})
        _re_send(events, place, group=random.choice(groups or ["other"]))


@mutation
def transaction_id_shared(events: Events, random: Random) -> None:
    """Two items get one transactionId, everywhere."""
    ids = _transaction_ids(events)
    if len(ids) < 2:
        raise NotHere
    old, new = random.sample(ids, 2)
    _rename(events, old, new)


@mutation
def no_dedup(events: Events, random: Random) -> None:
    """Ids are not remembered across requests."""
    events[:0] = [
        Invoke(10_000, 0, "admin", ConfigureCall("q", {"dedupWindowSeconds": 0, "leaseTime": 60})),
        Return(10_000, 0, "ok", 200, result=DoneResult()),
    ]
    if any(isinstance(event, Invoke) and event.call == 10_000 for event in events[2:]):
        raise NotHere


def _transaction_ids(events: Events) -> list[str]:
    ids: set[str] = set()
    for event in events:
        if isinstance(event, Return) and isinstance(event.result, PushResult | PopResult):
            ids.update(value for value in event.result.transaction_ids if value)
    return sorted(ids)


def _rename(events: Events, old: str, new: str) -> None:
    def renamed(struct: msgspec.Struct) -> msgspec.Struct:
        ids = tuple(new if value == old else value for value in struct.transaction_ids)  # type: ignore[attr-defined]
        return msgspec.structs.replace(struct, transaction_ids=ids)

    sent: set[int] = set()
    for place, event in enumerate(events):
        if isinstance(event, Return) and isinstance(event.result, PushResult | PopResult):
            if isinstance(event.result, PushResult) and old in event.result.transaction_ids:
                sent.add(event.call)
            _replace(events, place, result=renamed(event.result))
        elif isinstance(event, Invoke) and isinstance(event.request, AckCall):
            _replace(events, place, request=renamed(event.request))
    for place, event in enumerate(events):
        if isinstance(event, Invoke) and isinstance(event.request, PushCall) and event.call in sent:
            answer = next(e for e in events if isinstance(e, Return) and e.call == event.call)
            assert isinstance(answer.result, PushResult)
            ids = tuple(
                new if answered == new else asked
                for asked, answered in zip(event.request.transaction_ids, answer.result.transaction_ids, strict=True)
            )
            _re_send(events, place, transaction_ids=ids)


# Times ------------------------------------------------------------------------------------------------------------


@mutation
def time_passes(events: Events, random: Random) -> None:
    """Everything from some line on happens later."""
    place = random.randrange(len(events))
    delay_us = random.choice([1000, 500_000, 999_000, 1_000_000, 1_001_000, 1_999_000, 2_000_000, 2_001_000, 3_000_000])
    for number in range(place, len(events)):
        _replace(events, number, at_us=events[number].at_us + delay_us)


@mutation
def time_shrinks(events: Events, random: Random) -> None:
    """Less time passes between two lines."""
    place = _pick(events, random, lambda e: e is not events[0])
    gap_us = events[place].at_us - events[place - 1].at_us
    if gap_us <= 0:
        raise NotHere
    cut_us = random.choice([gap_us, gap_us // 2, min(gap_us, 1000)])
    for number in range(place, len(events)):
        _replace(events, number, at_us=events[number].at_us - cut_us)


@mutation
def answered_later(events: Events, random: Random) -> None:
    """An answer arrives behind what follows it."""
    _move(events, random, _pick(events, random, lambda e: isinstance(e, Return | EffectEnd)), +1)


@mutation
def sent_earlier(events: Events, random: Random) -> None:
    """A request is sent before what stands before it."""
    _move(events, random, _pick(events, random, lambda e: isinstance(e, Invoke)), -1)


def _move(events: Events, random: Random, place: int, direction: int) -> None:
    event = events.pop(place)
    for _ in range(random.randint(1, 6)):
        step = place if direction > 0 else place - 1
        if not 0 <= step < len(events) or isinstance(events[step], End):
            break
        place += direction
    near = events[place - 1 if direction > 0 else place] if 0 < place < len(events) else event
    events.insert(place, msgspec.structs.replace(event, at_us=near.at_us))


@lru_cache(maxsize=1)
def mutation_names() -> tuple[str, ...]:
    """Every mutation by its name."""
    return tuple(change.__name__ for change in MUTATIONS)
