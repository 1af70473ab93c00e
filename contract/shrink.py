"""Makes a failing schedule small: a delta-debugger over the steps of a schedule.

A schedule is smaller than another by `size`, compared from left to right:

1. steps, counted without the lanes around them;
2. wrapping: steps inside a `Parallel`, faults around requests (a lost request or answer is the plainest fault);
3. items of pushes and acks;
4. the world: partitions and groups, a named group counting more than the group-less one, awkward names;
5. detail: fields that differ from the plain value (jitter, payload, key, lease, wait, wildcard, labels, ...);
6. milliseconds that the schedule spends waiting.

Only smaller candidates are tried, so the search ends. It goes through its passes until a whole round changes nothing:
delete runs of steps, unwrap lanes and faults, merge neighbours, drop items, shrink the world, make fields plain. It
is deterministic: the same schedule and the same answers give the same result. Nothing is tried twice.

What counts as failing is up to the caller; it should ask for the same kind of violation and not for any.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice, pairwise
from typing import Any

import msgspec

from strategies.schedule import (
    Ack,
    Advance,
    BrokerFault,
    Configure,
    CrashConsumer,
    DelayAnswer,
    DelayRequest,
    DropConnection,
    Extend,
    Faulty,
    Group,
    KillBroker,
    LaneStep,
    LoseAnswer,
    LoseRequest,
    Parallel,
    PauseBroker,
    Pop,
    Push,
    RepeatRequest,
    Request,
    RestartBroker,
    Schedule,
    Seek,
    Step,
    StorageOutage,
    Storm,
    flatten,
    request_of,
    to_json,
)

Leaf = LaneStep | Storm
Key = tuple[int, ...]
Size = tuple[int, int, int, int, int, int]
Place = tuple[int, int, int]
"""Where a leaf stands: the index of its step, and lane and index in the lane, or -1 and -1 outside a `Parallel`."""

_Candidates = Iterator[tuple[Key, Schedule]]
_replace = msgspec.structs.replace


DEFAULT_RETRY_LIMIT = 3
"""Failures that a queue which nobody configured gives back (contract 7)."""


def shrink(
    schedule: Schedule,
    fails: Callable[[Schedule], bool],
    *,
    deadline_s: float = 10.0,
    attempts: int = 2_000,
    guesses: Sequence[Schedule] = (),
    now_s: Callable[[], float] = time.monotonic,
) -> Schedule:
    """The smallest schedule found for which `fails` holds; `schedule` itself where nothing smaller does.

    `fails` is called at most `attempts` times, and not again once `deadline_s` has passed. `guesses` are tried first.
    """
    return shrink_side_by_side(
        schedule,
        lambda batch: [fails(one) for one in batch],
        lanes=1,
        deadline_s=deadline_s,
        attempts=attempts,
        guesses=guesses,
        now_s=now_s,
    )


def shrink_side_by_side(
    schedule: Schedule,
    which_fail: Callable[[Sequence[Schedule]], Sequence[bool]],
    *,
    lanes: int,
    deadline_s: float = 60.0,
    attempts: int = 2_000,
    guesses: Sequence[Schedule] = (),
    now_s: Callable[[], float] = time.monotonic,
) -> Schedule:
    """As `shrink`, but up to `lanes` candidates are tried at once. Of those that fail the first is taken."""
    best = schedule
    end_s = now_s() + deadline_s
    search = candidates(schedule, lanes=lanes, guesses=guesses)
    batch = next(search, None)
    while batch is not None and attempts > 0 and now_s() < end_s:
        batch = batch[:attempts]
        attempts -= len(batch)
        answers = which_fail(batch)
        best = next((one for one, failed in zip(batch, answers, strict=True) if failed), best)
        try:
            batch = search.send(answers)
        except StopIteration:
            break
    return best


def candidates(
    schedule: Schedule, *, lanes: int = 1, guesses: Sequence[Schedule] = ()
) -> Generator[list[Schedule], Sequence[bool], None]:
    """The search itself: yields batches of up to `lanes` candidates and is sent which of them fail.

    The first that fails is where the search goes on from. A caller may stop at any time.
    """
    current = schedule
    tried = {to_json(schedule)}
    passes: list[Callable[[Schedule], _Candidates]] = [*_PASSES]
    if guesses:
        passes.insert(0, lambda _: (((index,), guess) for index, guess in enumerate(guesses)))
    before: Schedule | None = None
    while current is not before:
        before = current
        for one_pass in passes:
            current = yield from _run(one_pass, current, lanes, tried)


def _run(
    one_pass: Callable[[Schedule], _Candidates], current: Schedule, lanes: int, tried: set[bytes]
) -> Generator[list[Schedule], Sequence[bool], Schedule]:
    """One pass until it has nothing left. After a success it goes on at the same place of the smaller schedule."""
    resume: Key = ()
    while True:
        fresh = _fresh(one_pass(current), current, resume, tried)
        taken = None
        while taken is None and (batch := list(islice(fresh, lanes))):
            answers = yield [candidate for _, candidate in batch]
            taken = next((pair for pair, failed in zip(batch, answers, strict=False) if failed), None)
        if taken is None:
            return current
        resume, current = taken


def _fresh(offered: _Candidates, current: Schedule, resume: Key, tried: set[bytes]) -> _Candidates:
    limit = size(current)
    for key, candidate in offered:
        if key < resume or size(candidate) >= limit:
            continue
        text = to_json(candidate)
        if text not in tried:
            tried.add(text)
            yield key, candidate


# Size -------------------------------------------------------------------------------------------------------------


def size(schedule: Schedule) -> Size:
    """How big a schedule is; see the top of this module."""
    steps = wrapping = items = waits_ms = 0
    detail = 0
    for step in schedule.steps:
        if isinstance(step, Parallel):
            wrapping += sum(len(lane) for lane in step.lanes)
    for leaf in flatten(schedule.steps):
        steps += 1
        if isinstance(leaf, Faulty):
            wrapping += 1 if isinstance(leaf, LoseRequest | LoseAnswer) else 2
        waits_ms += _waits_ms(leaf)
        request = request_of(leaf)
        if isinstance(request, Push | Ack):
            items += len(request.items)
        detail += _detail(leaf if request is None else request)
    groups = sum(1 + bool(group.name) + (group.mode is not None) for group in schedule.groups)
    return steps, wrapping, items, schedule.partitions + groups + bool(schedule.names), detail, waits_ms


def _waits_ms(leaf: Leaf) -> int:
    if isinstance(leaf, Advance | PauseBroker | StorageOutage):
        return leaf.ms
    if isinstance(leaf, DelayRequest | DelayAnswer | RepeatRequest | DropConnection):
        return leaf.ms
    if isinstance(leaf, KillBroker | RestartBroker):
        return leaf.down_ms
    return 0


def _detail(step: Request | Leaf) -> int:
    """Counts what a reader has to keep in mind."""
    if isinstance(step, Push):
        return bool(step.jitter) + sum(
            item.partition + (0 if item.key is None else 2 + item.key) + bool(item.payload) for item in step.items
        )
    if isinstance(step, Pop):
        return _pop_detail(step)
    if isinstance(step, Ack):
        marks = sum(item.message + (item.status != "completed") for item in step.items)
        return marks + step.pop + (step.lease != "right") + step.batch + bool(step.jitter)
    if isinstance(step, Extend):
        return step.pop + (step.seconds != 2) + bool(step.jitter)
    if isinstance(step, Configure):
        return sum(getattr(step, field) is not None for field in Configure.__struct_fields__) + bool(step.jitter)
    if isinstance(step, Seek):
        where = 0 if step.partition is None else 1 + step.partition
        return step.group + where + step.to_end + bool(step.jitter)
    if isinstance(step, CrashConsumer):
        return step.group + step.worker
    if isinstance(step, Storm):
        more = (step.batch != 10, step.named, step.kill_at is not None, step.jitter)
        return step.pushers + step.consumers + step.operations + step.partitions + step.group + sum(map(bool, more))
    return 0


def _pop_detail(step: Pop) -> int:
    plain_batch = 0 if step.batch == 10 else 1 if step.batch == 1 else 2
    where = step.partition if step.partition is not None else 5
    marks = (
        step.partitions != 1,
        step.lease_s != 2,
        step.wait_ms,
        step.auto_ack,
        step.mode is not None,
        step.from_now,
        step.jitter,
    )
    return step.label + step.group + step.worker + where + plain_batch + sum(map(bool, marks))


# Access to the steps ----------------------------------------------------------------------------------------------


def places(schedule: Schedule) -> list[tuple[Place, Leaf]]:
    """Every leaf and where it stands, in the order of `flatten`."""
    found: list[tuple[Place, Leaf]] = []
    for index, step in enumerate(schedule.steps):
        if isinstance(step, Parallel):
            for lane, steps in enumerate(step.lanes):
                found.extend(((index, lane, at), leaf) for at, leaf in enumerate(steps))
        else:
            found.append(((index, -1, -1), step))
    return found


def without(schedule: Schedule, gone: Container[int]) -> Schedule:
    """The schedule without the leaves whose numbers are in `gone`, numbered as in `flatten`.

    Empty lanes vanish, and a `Parallel` with one lane is its steps.
    """
    return rewrite(schedule, lambda number, leaf: () if number in gone else (leaf,))


def rewrite(schedule: Schedule, change: Callable[[int, Leaf], Sequence[Leaf]]) -> Schedule:
    """The schedule with each leaf replaced by what `change(number, leaf)` gives."""
    number = -1
    steps: list[Step] = []
    for step in schedule.steps:
        if not isinstance(step, Parallel):
            number += 1
            steps.extend(change(number, step))
            continue
        lanes = []
        for lane in step.lanes:
            changed: list[Any] = []
            for leaf in lane:
                number += 1
                changed.extend(change(number, leaf))
            if changed:
                lanes.append(tuple(changed))
        if len(lanes) == 1:
            steps.extend(lanes[0])
        elif lanes:
            steps.append(Parallel(lanes=tuple(lanes)))
    return _replace(schedule, steps=tuple(steps))


def _with_leaf(schedule: Schedule, number: int, *leaves: Leaf) -> Schedule:
    return rewrite(schedule, lambda at, leaf: leaves if at == number else (leaf,))


def _with_step(schedule: Schedule, index: int, *steps: Step) -> Schedule:
    return _replace(schedule, steps=schedule.steps[:index] + steps + schedule.steps[index + 1 :])


def _with_request(leaf: Leaf, request: Request) -> Leaf:
    """Another request in a leaf, with the fault around it left as it is."""
    return _replace(leaf, step=request) if isinstance(leaf, Faulty) else request


def _everywhere(schedule: Schedule, change: Callable[[Any], Any]) -> Schedule:
    """Changes every request and every crash of a consumer."""

    def one(_: int, leaf: Leaf) -> tuple[Leaf]:
        if isinstance(leaf, CrashConsumer):
            return (change(leaf),)
        request = request_of(leaf)
        return (leaf if request is None else _with_request(leaf, change(request)),)

    return rewrite(schedule, one)


# Passes: each offers candidates with keys that grow; the key tells where to go on after a success ------------------


def _delete(schedule: Schedule) -> _Candidates:
    """Runs of leaves, long ones first, from the end: what is last depends on the rest, not the rest on it."""
    count = len(places(schedule))
    length = 1 << max(0, count.bit_length() - 1)
    while length:
        for after in range(0, count - length + 1, max(1, length // 2)):
            first = count - after - length
            gone = range(first, first + length)
            yield (-length, after), without(schedule, gone)
        length //= 2


def _delete_pairs(schedule: Schedule) -> _Candidates:
    """Two leaves that only make sense together, such as a pop and an ack that do not stand side by side."""
    count = len(places(schedule))
    if count > 12:
        return  # still too many to try each pair
    for first in range(count):
        for second in range(first + 2, count):
            pair = (first, second)
            yield pair, without(schedule, pair)


def _lower_limit(schedule: Schedule) -> _Candidates:
    """A retry limit smaller by one, in exchange for two steps fewer: a pop and an ack that fails."""
    leaves = [leaf for _, leaf in places(schedule)]
    known = [leaf.retry_limit for leaf in leaves if isinstance(leaf, Configure) and leaf.retry_limit is not None]
    limit = known[0] if known else DEFAULT_RETRY_LIMIT
    if len(known) > 1 or limit == 0 or len(leaves) < 6:
        return
    for first in range(len(leaves) - 1):
        if isinstance(leaves[first], Configure) or isinstance(leaves[first + 1], Configure):
            continue
        shorter = without(schedule, range(first, first + 2))
        yield (first,), _with_limit(shorter, limit - 1, insert=not known)


def _with_limit(schedule: Schedule, limit: int, *, insert: bool) -> Schedule:
    if insert:
        return msgspec.structs.replace(schedule, steps=(Configure(retry_limit=limit), *schedule.steps))
    return rewrite(
        schedule,
        lambda _, leaf: (
            (msgspec.structs.replace(leaf, retry_limit=limit),)
            if isinstance(leaf, Configure) and leaf.retry_limit is not None
            else (leaf,)
        ),
    )


def _unwrap(schedule: Schedule) -> _Candidates:
    """Lanes become a sequence, or lose a lane or a step at their ends; faults become their step or a plainer fault."""
    for index, step in enumerate(schedule.steps):
        if isinstance(step, Parallel):
            for way, replacement in enumerate(_unwrapped(step)):
                yield (0, index, way), _with_step(schedule, index, *replacement)
    for number, leaf in enumerate(flatten(schedule.steps)):
        if isinstance(leaf, Faulty):
            yield (1, number, 0), _with_leaf(schedule, number, leaf.step)
            if not isinstance(leaf, LoseRequest | LoseAnswer):
                plain = LoseAnswer(leaf.step), LoseRequest(leaf.step)
                yield (1, number, 1), _with_leaf(schedule, number, plain[0])
                yield (1, number, 2), _with_leaf(schedule, number, plain[1])


def _unwrapped(step: Parallel) -> Iterator[tuple[Step, ...]]:
    yield tuple(leaf for lane in step.lanes for leaf in lane)
    yield tuple(leaf for lane in reversed(step.lanes) for leaf in lane)
    for lane in range(len(step.lanes)):
        yield _parallel(step.lanes[:lane] + step.lanes[lane + 1 :])
    for lane, leaves in enumerate(step.lanes):
        before, after = step.lanes[:lane], step.lanes[lane + 1 :]
        yield (leaves[0], *_parallel((*before, leaves[1:], *after)))
        yield (*_parallel((*before, leaves[:-1], *after)), leaves[-1])


def _parallel(lanes: Iterable[tuple[LaneStep, ...]]) -> tuple[Step, ...]:
    """What runs the lanes: nothing, the one lane, or a `Parallel`."""
    full = tuple(lane for lane in lanes if lane)
    return full[0] if len(full) == 1 else (Parallel(full),) if full else ()


def _merge(schedule: Schedule) -> _Candidates:
    """Two neighbours become one step: pushes, waits, acks of one pop."""
    where = places(schedule)
    for number, ((first_place, first), (second_place, second)) in enumerate(pairwise(where)):
        if first_place[:2] != second_place[:2] and (first_place[1], second_place[1]) != (-1, -1):
            continue
        merged = _merged(first, second)
        if merged is not None:
            yield (number,), _with_leaf(without(schedule, (number + 1,)), number, merged)


def _merged(first: Leaf, second: Leaf) -> Leaf | None:
    if isinstance(first, Push) and isinstance(second, Push):
        return _replace(first, items=first.items + second.items)
    if isinstance(first, Advance) and isinstance(second, Advance):
        return Advance(ms=first.ms + second.ms)
    if isinstance(first, Ack) and isinstance(second, Ack) and (first.pop, first.lease) == (second.pop, second.lease):
        return _replace(first, items=first.items + second.items, batch=True)
    return None


def _drop_items(schedule: Schedule) -> _Candidates:
    """Fewer items in a push or an ack: the first or second half, then each alone, from the end."""
    for number, leaf in enumerate(flatten(schedule.steps)):
        request = request_of(leaf)
        if not isinstance(request, Push | Ack) or len(request.items) < 2:
            continue
        items: tuple[Any, ...] = request.items
        half = len(items) // 2
        fewer = [items[:half], items[half:]] if half > 1 else []
        fewer += [items[:at] + items[at + 1 :] for at in reversed(range(len(items)))]
        for way, left in enumerate(fewer):
            changed = _with_request(leaf, _replace(request, items=left))
            yield (number, way), _with_leaf(schedule, number, changed)


def _shrink_world(schedule: Schedule) -> _Candidates:
    """Fewer partitions and groups: unused ones, then one merged into another; plainer groups; numbers without gaps."""
    for partition in reversed(range(schedule.partitions)):
        if schedule.partitions > 1:
            for target in range(schedule.partitions):
                if target != partition:
                    yield (0, -partition, target), _merge_partition(schedule, partition, target)
    for group in reversed(range(len(schedule.groups))):
        for target in range(len(schedule.groups)):
            if target != group:
                yield (1, -group, target), _merge_group(schedule, group, target)
    for index, group_data in enumerate(schedule.groups):
        plainer = [Group(), _replace(group_data, mode=None)]
        for way, plain in enumerate(plainer):
            others = schedule.groups[:index] + schedule.groups[index + 1 :]
            if plain not in others:
                groups = schedule.groups[:index] + (plain,) + schedule.groups[index + 1 :]
                yield (2, index, way), _replace(schedule, groups=groups)
    yield (3,), _replace(schedule, names=0)
    yield (4,), _renumbered(schedule)


def _merge_partition(schedule: Schedule, gone: int, target: int) -> Schedule:
    """Every use of partition `gone` becomes one of `target`; the numbers above `gone` close up."""

    def moved(partition: int) -> int:
        partition = target if partition == gone else partition
        return partition - (partition > gone)

    def change(step: Any) -> Any:
        if isinstance(step, Push):
            return _replace(step, items=tuple(_replace(i, partition=moved(i.partition)) for i in step.items))
        if isinstance(step, Pop | Seek) and step.partition is not None:
            return _replace(step, partition=moved(step.partition))
        return step

    changed = _everywhere(schedule, change)
    return _replace(changed, partitions=schedule.partitions - 1)


def _merge_group(schedule: Schedule, gone: int, target: int) -> Schedule:
    def moved(group: int) -> int:
        group = target if group == gone else group
        return group - (group > gone)

    def change(step: Any) -> Any:
        return _replace(step, group=moved(step.group)) if isinstance(step, Pop | CrashConsumer | Seek) else step

    changed = _everywhere(schedule, change)
    steps = tuple(_replace(s, group=moved(s.group)) if isinstance(s, Storm) else s for s in changed.steps)
    groups = schedule.groups[:gone] + schedule.groups[gone + 1 :]
    return _replace(changed, steps=steps, groups=groups)


def _renumbered(schedule: Schedule) -> Schedule:
    """Labels, keys and workers counted from 0 in the order in which they are first used."""
    labels: dict[int, int] = {}
    keys: dict[int, int] = {}
    workers: dict[tuple[int, int], int] = {}

    def worker(step: Pop | CrashConsumer) -> int:
        known = sum(1 for group, _ in workers if group == step.group)
        return workers.setdefault((step.group, step.worker), known)

    def change(step: Any) -> Any:
        if isinstance(step, Pop):
            return _replace(step, label=labels.setdefault(step.label, len(labels)), worker=worker(step))
        if isinstance(step, CrashConsumer):
            return _replace(step, worker=worker(step))
        if isinstance(step, Ack | Extend):
            return _replace(step, pop=labels.setdefault(step.pop, len(labels)))
        if isinstance(step, Push):
            items = (i if i.key is None else _replace(i, key=keys.setdefault(i.key, len(keys))) for i in step.items)
            return _replace(step, items=tuple(items))
        return step

    return _everywhere(schedule, change)


_PLAIN: dict[type, tuple[tuple[str, tuple[Any, ...]], ...]] = {
    Push: (("jitter", (0,)),),
    Pop: (
        ("jitter", (0,)),
        ("worker", (0,)),
        ("mode", (None,)),
        ("from_now", (False,)),
        ("auto_ack", (False,)),
        ("wait_ms", (0,)),
        ("lease_s", (2,)),
        ("partition", (0, 1, 2, 3)),
        ("partitions", (1,)),
        ("batch", (10, 1)),
    ),
    Ack: (("jitter", (0,)), ("lease", ("right",)), ("batch", (False,))),
    Extend: (("jitter", (0,)), ("seconds", (2,))),
    Configure: (
        ("jitter", (0,)),
        ("lease_time_s", (None,)),
        ("retry_limit", (None,)),
        ("dead_letter_queue", (None,)),
        ("dlq_after_max_retries", (None,)),
        ("dedup_window_s", (None,)),
    ),
    Seek: (("jitter", (0,)), ("partition", (None,)), ("to_end", (False,))),
    CrashConsumer: (("worker", (0,)), ("group", (0,))),
    Storm: (
        ("jitter", (0,)),
        ("kill_at", (None,)),
        ("operations", (10, 20, 50, 100, 200, 400)),
        ("partitions", (1,)),
        ("pushers", (1, 2)),
        ("consumers", (1,)),
        ("named", (False,)),
        ("batch", (10,)),
    ),
}
_MILLISECONDS = (0, 1, 10, 100, 500, 1000, 1001, 1100, 1500, 2001, 2100, 3001, 3100, 5000, 10_000, 61_000)


def _plain_fields(schedule: Schedule) -> _Candidates:
    """Fields get their plain value: first everywhere at once, then one by one."""
    for way, field in enumerate(("jitter", "wait_ms", "worker", "lease_s", "batch")):
        yield (0, way), _everywhere(schedule, partial(_plain, field))
    yield (0, 5), _everywhere(schedule, lambda step: _plain_items(step, key=None, payload=0))
    for number, leaf in enumerate(flatten(schedule.steps)):
        request = request_of(leaf)
        for way, simpler in enumerate(_simpler(request if request is not None else leaf, schedule)):
            changed = simpler if request is None else _with_request(leaf, simpler)
            yield (1, number, way), _with_leaf(schedule, number, changed)


def _plain(field: str, step: Any) -> Any:
    for name, values in _PLAIN[type(step)]:
        if name == field:
            return _changed(step, name, values[0])
    return step


def _changed(step: Any, field: str, value: Any) -> Any:
    """One field changed. A named pop claims one partition; a single ack has one item."""
    if isinstance(step, Pop) and field == "partition":
        return _replace(step, partition=value, partitions=1)
    if isinstance(step, Ack) and field == "batch" and len(step.items) > 1:
        return step
    return _replace(step, **{field: value})


def _plain_items(step: Any, **values: Any) -> Any:
    return _replace(step, items=tuple(_replace(i, **values) for i in step.items)) if isinstance(step, Push) else step


def _simpler(step: Any, schedule: Schedule) -> Iterator[Any]:
    """Simpler forms of one step or request."""
    for field, values in _PLAIN.get(type(step), ()):
        for value in values:
            if field != "partition" or value is None or value < schedule.partitions:
                yield _changed(step, field, value)
    if isinstance(step, Push):
        yield from _simpler_items(step, key=(None,), payload=(0,), partition=range(schedule.partitions))
    elif isinstance(step, Ack):
        yield from _simpler_items(step, status=("completed",), message=(0, 1, 2))
    field = "down_ms" if isinstance(step, KillBroker | RestartBroker) else "ms"
    if isinstance(step, Advance | BrokerFault) and hasattr(step, field):
        now = getattr(step, field)
        yield from (_replace(step, **{field: ms}) for ms in _MILLISECONDS if ms < now)


def _simpler_items(step: Push | Ack, **choices: Iterable[Any]) -> Iterator[Push | Ack]:
    items: tuple[Any, ...] = step.items
    for at, item in enumerate(items):
        for field, values in choices.items():
            for value in values:
                if getattr(item, field) != value:
                    changed = _replace(item, **{field: value})
                    yield _replace(step, items=items[:at] + (changed,) + items[at + 1 :])


def _plain_delays(schedule: Schedule) -> _Candidates:
    """Faults that wait less."""
    for number, leaf in enumerate(flatten(schedule.steps)):
        if isinstance(leaf, DelayRequest | DelayAnswer | RepeatRequest | DropConnection):
            for ms in _MILLISECONDS:
                if ms < leaf.ms:
                    yield (number, ms), _with_leaf(schedule, number, _replace(leaf, ms=ms))


_PASSES: tuple[Callable[[Schedule], _Candidates], ...] = (
    _delete,
    _unwrap,
    _merge,
    _drop_items,
    _shrink_world,
    _plain_fields,
    _plain_delays,
    _delete_pairs,
    _lower_limit,
)
