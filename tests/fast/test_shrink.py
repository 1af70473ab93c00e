"""The shrinker: what it removes, what it keeps, that it is deterministic and ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import HealthCheck, Phase, given, settings

from contract.shrink import candidates, shrink, shrink_side_by_side, size
from strategies import anything
from strategies.schedule import (
    Ack,
    AckItem,
    Advance,
    CrashConsumer,
    DelayAnswer,
    Extend,
    Group,
    Item,
    KillBroker,
    LaneStep,
    LoseAnswer,
    Parallel,
    Pop,
    Push,
    Schedule,
    StorageOutage,
    flatten,
    request_of,
    to_json,
)

FEW = settings(
    max_examples=30,
    database=None,
    deadline=None,
    derandomize=True,
    phases=(Phase.generate,),
    suppress_health_check=[HealthCheck.too_slow],
)


def push(partition: int = 0, count: int = 1, jitter: int = 0) -> Push:
    return Push(items=tuple(Item(partition=partition) for _ in range(count)), jitter=jitter)


def requests(schedule: Schedule, kind: type) -> list[LaneStep]:
    return [request for leaf in flatten(schedule.steps) if isinstance(request := request_of(leaf), kind)]


def has(*kinds: type) -> Callable[[Schedule], bool]:
    """Fails when requests of these kinds follow each other in this order, with anything between."""

    def fails(schedule: Schedule) -> bool:
        wanted = list(kinds)
        for leaf in flatten(schedule.steps):
            if wanted and isinstance(request_of(leaf) or leaf, wanted[0]):
                wanted.pop(0)
        return not wanted

    return fails


def test_steps_that_do_not_matter_are_deleted() -> None:
    noise = [push(), Advance(ms=100), Extend(pop=0), CrashConsumer(), KillBroker()]
    schedule = Schedule(steps=(*noise, Pop(label=0), *noise, Ack(pop=0), *noise))
    assert shrink(schedule, has(Pop, Ack)).steps == (Pop(label=0, partition=0), Ack(pop=0))


def test_a_schedule_that_never_fails_again_is_returned_as_it_was() -> None:
    schedule = Schedule(steps=(push(), Pop(label=0)))
    assert shrink(schedule, lambda _: False) is schedule


def test_lanes_become_a_sequence() -> None:
    schedule = Schedule(steps=(Parallel(lanes=((push(jitter=3),), (Pop(label=0, jitter=4),))),))
    assert shrink(schedule, has(Push, Pop)).steps == (push(), Pop(label=0, partition=0))


def test_lanes_stay_where_the_failure_needs_them() -> None:
    def fails(schedule: Schedule) -> bool:
        return any(isinstance(step, Parallel) and len(step.lanes) == 2 for step in schedule.steps)

    lanes = ((push(), Pop(label=0)), (Pop(label=1), Ack(pop=1)), (push(),))
    minimal = shrink(Schedule(steps=(Parallel(lanes=lanes),)), fails)
    assert len(list(flatten(minimal.steps))) == 2


def test_a_fault_becomes_its_step() -> None:
    schedule = Schedule(steps=(DelayAnswer(step=push(), ms=3000),))
    assert shrink(schedule, has(Push)).steps == (push(),)


def test_a_late_answer_becomes_a_lost_one() -> None:
    def fails(schedule: Schedule) -> bool:
        return any(request_of(leaf) is not leaf for leaf in flatten(schedule.steps))

    assert shrink(Schedule(steps=(DelayAnswer(step=push()),)), fails).steps == (LoseAnswer(step=push()),)


def test_neighbouring_pushes_are_merged() -> None:
    schedule = Schedule(steps=(push(), push(), push()))

    def fails(schedule: Schedule) -> bool:
        return sum(len(request.items) for request in requests(schedule, Push) if isinstance(request, Push)) == 3

    assert shrink(schedule, fails).steps == (push(count=3),)


def test_neighbouring_waits_are_merged() -> None:
    schedule = Schedule(steps=(Advance(ms=1500), Advance(ms=1000)))

    def fails(schedule: Schedule) -> bool:
        return sum(leaf.ms for leaf in flatten(schedule.steps) if isinstance(leaf, Advance)) > 2000

    assert shrink(schedule, fails).steps == (Advance(ms=2001),)


def test_unused_partitions_are_dropped_and_the_others_renumbered() -> None:
    schedule = Schedule(steps=(push(2), Pop(label=0, partition=2)), partitions=4)
    assert shrink(schedule, has(Push, Pop)) == Schedule(steps=(push(), Pop(label=0, partition=0)))


def test_two_groups_stay_where_the_failure_needs_two() -> None:
    schedule = Schedule(
        steps=(Pop(label=4, group=1), Pop(label=9, group=2), Pop(label=3, group=0)),
        groups=(Group(), Group(name="g1", mode="all"), Group(name="g2")),
    )

    def fails(schedule: Schedule) -> bool:
        return len({request.group for request in requests(schedule, Pop) if isinstance(request, Pop)}) == 2

    minimal = shrink(schedule, fails)
    assert (len(minimal.groups), len(minimal.steps)) == (2, 2)


def test_labels_are_counted_from_zero() -> None:
    schedule = Schedule(steps=(Pop(label=7), Ack(pop=7, items=(AckItem(message=3, status="failed"),))))

    def fails(schedule: Schedule) -> bool:
        pops = [request.label for request in requests(schedule, Pop) if isinstance(request, Pop)]
        acks = [request.pop for request in requests(schedule, Ack) if isinstance(request, Ack)]
        return bool(pops) and pops == acks

    assert shrink(schedule, fails).steps == (Pop(label=0, partition=0), Ack(pop=0))


def test_awkward_names_become_plain_ones() -> None:
    assert shrink(Schedule(steps=(push(),), names=3), has(Push)) == Schedule(steps=(push(),))


def test_awkward_names_stay_where_the_failure_needs_them() -> None:
    assert shrink(Schedule(steps=(push(), push()), names=3), lambda schedule: schedule.names == 3).names == 3


def test_a_field_that_matters_is_kept() -> None:
    schedule = Schedule(steps=(Push(items=(Item(key=3, payload=4), Item(key=3, payload=5)), jitter=9),))

    def fails(schedule: Schedule) -> bool:
        keys = [item.key for leaf in flatten(schedule.steps) if isinstance(leaf, Push) for item in leaf.items]
        return len(keys) == 2 and keys[0] is not None and keys[0] == keys[1]

    assert shrink(schedule, fails).steps == (Push(items=(Item(key=0), Item(key=0))),)


def test_steps_that_only_make_sense_together_go_together() -> None:
    def fails(schedule: Schedule) -> bool:
        """A pop and its ack are either both there or both gone."""
        labels = {request.label for request in requests(schedule, Pop) if isinstance(request, Pop)}
        return bool(requests(schedule, Push)) and labels == {
            request.pop for request in requests(schedule, Ack) if isinstance(request, Ack)
        }

    schedule = Schedule(steps=(Pop(label=0), push(), Ack(pop=0)))
    assert shrink(schedule, fails).steps == (push(),)


@FEW
@given(anything())
def test_every_result_still_fails_and_is_not_bigger(schedule: Schedule) -> None:
    fails = has(Push, Pop)
    if fails(schedule):
        minimal = shrink(schedule, fails)
        assert fails(minimal)
        assert size(minimal) <= size(schedule)


@FEW
@given(anything())
def test_the_same_answers_give_the_same_result(schedule: Schedule) -> None:
    fails = has(Push, Pop)
    assert shrink(schedule, fails) == shrink(schedule, fails)


@FEW
@given(anything())
def test_nothing_is_tried_twice(schedule: Schedule) -> None:
    tried: list[bytes] = []

    def fails(candidate: Schedule) -> bool:
        tried.append(to_json(candidate))
        return has(Push, Ack)(candidate)

    shrink(schedule, fails)
    assert len(tried) == len(set(tried))


@FEW
@given(anything())
def test_side_by_side_reaches_a_schedule_of_the_same_length(schedule: Schedule) -> None:
    fails = has(Push, Pop)

    def which_fail(batch: Sequence[Schedule]) -> list[bool]:
        return [fails(one) for one in batch]

    alone = shrink(schedule, fails)
    together = shrink_side_by_side(schedule, which_fail, lanes=8)
    assert len(together.steps) == len(alone.steps)


def test_no_more_attempts_are_made_than_allowed() -> None:
    calls = 0

    def fails(_: Schedule) -> bool:
        nonlocal calls
        calls += 1
        return False

    shrink(Schedule(steps=tuple(push() for _ in range(20))), fails, attempts=7)
    assert calls == 7


def test_nothing_is_tried_after_the_deadline() -> None:
    times = iter(range(1000))
    calls = 0

    def fails(_: Schedule) -> bool:
        nonlocal calls
        calls += 1
        return False

    shrink(Schedule(steps=tuple(push() for _ in range(20))), fails, deadline_s=3, now_s=lambda: next(times))
    assert calls == 2


def test_an_outage_becomes_a_short_one_and_goes_where_it_does_not_matter() -> None:
    outage = Parallel(((StorageOutage(5000),), (Advance(100), push(), push())))
    assert shrink(Schedule((push(), outage)), has(StorageOutage)).steps == (StorageOutage(0),)
    assert shrink(Schedule((outage, push())), has(Push)).steps == (push(),)


def test_guesses_are_tried_first() -> None:
    guess = Schedule(steps=(push(),))
    first = next(candidates(Schedule(steps=(push(), push(), push())), guesses=(guess,)))
    assert first == [guess]
