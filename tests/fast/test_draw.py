"""What is drawn: always a valid schedule, within the features of the target, and mostly one that does something."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from strategies import WORKLOADS, Features, Schedule, Weights, from_json, schedules, to_json
from strategies.draw import BROKER_FAULTS, KINDS
from strategies.schedule import (
    Ack,
    Advance,
    Configure,
    Extend,
    KillBroker,
    Parallel,
    Pop,
    Push,
    Request,
    StorageOutage,
    flatten,
    request_of,
)

QUIET = settings(
    max_examples=60,
    database=None,
    deadline=None,
    phases=(Phase.generate,),
    suppress_health_check=[HealthCheck.too_slow],
)


def drawn(strategy: st.SearchStrategy[Schedule], *, count: int = 150, number: int = 1) -> list[Schedule]:
    """`count` schedules, always the same ones for the same `number`."""
    found: list[Schedule] = []

    @seed(number)
    @settings(QUIET, max_examples=count)
    @given(strategy)
    def draw(schedule: Schedule) -> None:
        found.append(schedule)

    draw()
    return found


def requests(found: list[Schedule]) -> Iterator[Request]:
    for schedule in found:
        for leaf in flatten(schedule.steps):
            request = request_of(leaf)
            if request is not None:
                yield request


@pytest.fixture(scope="module")
def anything() -> list[Schedule]:
    return drawn(schedules(), count=300)


@pytest.mark.parametrize("workload", sorted(WORKLOADS))
def test_every_schedule_survives_its_file_format(workload: str) -> None:
    assert all(from_json(to_json(schedule)) == schedule for schedule in drawn(schedules(WORKLOADS[workload])))


@pytest.mark.parametrize("workload", sorted(WORKLOADS))
def test_partitions_and_groups_are_in_the_world_of_the_schedule(workload: str) -> None:
    for schedule in drawn(schedules(WORKLOADS[workload])):
        for request in requests([schedule]):
            if isinstance(request, Pop):
                assert request.group < len(schedule.groups)
                assert request.partition is None or request.partition < schedule.partitions
            elif isinstance(request, Push):
                assert all(item.partition < schedule.partitions for item in request.items)


def test_labels_of_pops_are_counted_in_order(anything: list[Schedule]) -> None:
    for schedule in anything:
        labels = [request.label for request in requests([schedule]) if isinstance(request, Pop)]
        assert labels == list(range(len(labels)))


def test_group_names_of_a_schedule_differ(anything: list[Schedule]) -> None:
    assert all(len({group.name for group in schedule.groups}) == len(schedule.groups) for schedule in anything)


def test_no_schedule_begins_with_options_or_an_extension(anything: list[Schedule]) -> None:
    assert not any(isinstance(schedule.steps[0], Configure | Extend) for schedule in anything)


def test_every_kind_of_step_is_drawn() -> None:
    text = b"\n".join(to_json(schedule) for schedule in drawn(schedules(), count=1500))
    assert not {kind for kind in KINDS if f'"type":"{kind}"'.encode() not in text}


def test_some_schedules_have_awkward_names(anything: list[Schedule]) -> None:
    assert 0.02 < sum(schedule.names > 0 for schedule in anything) / len(anything) < 0.3


def test_what_the_target_cannot_do_is_not_drawn() -> None:
    able = Features().without(*BROKER_FAULTS, "parallel", "lose-answer")
    text = b"\n".join(to_json(schedule) for schedule in drawn(schedules(features=able), count=400))
    left_out = (*BROKER_FAULTS, "parallel", "lose-answer")
    assert not any(f'"type":"{kind}"'.encode() in text for kind in left_out)


def test_where_few_schedules_disturb_a_broker_each_of_them_does() -> None:
    able = Features(kinds=KINDS - BROKER_FAULTS | {"storage-outage"}, short_waits=True, broker_faults_percent=10)
    found = drawn(schedules(features=able), count=400)
    disturbing = sum(any(isinstance(leaf, StorageOutage) for leaf in flatten(one.steps)) for one in found)
    assert 0.05 < disturbing / len(found) < 0.15


def test_somebody_pushes_during_most_outages(anything: list[Schedule]) -> None:
    lanes = [step.lanes for schedule in anything for step in schedule.steps if isinstance(step, Parallel)]
    outages = [one for one in lanes if any(isinstance(leaf, StorageOutage) for lane in one for leaf in lane)]
    assert sum(any(isinstance(leaf, Push) for lane in one for leaf in lane) for one in outages) >= 0.6 * len(outages)
    assert outages


def test_features_may_be_asked_for_at_each_draw() -> None:
    found = drawn(schedules(features=lambda: Features().without("kill-broker")), count=300)
    assert not any(isinstance(leaf, KillBroker) for schedule in found for leaf in flatten(schedule.steps))


def test_real_time_targets_get_short_waits() -> None:
    found = drawn(schedules(features=Features(short_waits=True)), count=300)
    assert max(leaf.ms for schedule in found for leaf in flatten(schedule.steps) if isinstance(leaf, Advance)) <= 2200


def test_leases_of_pops_are_explicit_for_real_time_targets() -> None:
    found = drawn(schedules(features=Features(short_waits=True)), count=300)
    assert None not in [request.lease_s for request in requests(found) if isinstance(request, Pop)]


def test_a_storm_is_drawn_where_the_weights_ask_for_it() -> None:
    stormy = Weights(kinds={"push": 1, "pop": 1, "storm": 5}, swarm_percent=0)
    assert b'"type":"storm"' in b"".join(to_json(schedule) for schedule in drawn(schedules(stormy), count=20))


def test_the_same_seed_draws_the_same_schedules() -> None:
    assert drawn(schedules(), number=7) == drawn(schedules(), number=7)


def test_another_seed_draws_other_schedules() -> None:
    one, other = ({to_json(s) for s in drawn(schedules(), number=number)} for number in (1, 2))
    assert len(one & other) <= 5  # those that Hypothesis always begins with


def test_schedules_do_not_repeat_themselves(anything: list[Schedule]) -> None:
    assert len({to_json(schedule) for schedule in anything}) >= 0.9 * len(anything)


def test_a_schedule_has_eight_to_twelve_requests_on_average(anything: list[Schedule]) -> None:
    assert 7.5 <= sum(1 for _ in requests(anything)) / len(anything) <= 12


def test_most_acks_refer_to_an_earlier_pop(anything: list[Schedule]) -> None:
    good = total = 0
    for schedule in anything:
        known: set[int] = set()
        for request in requests([schedule]):
            if isinstance(request, Pop):
                known.add(request.label)
            elif isinstance(request, Ack):
                total += 1
                good += request.pop in known
    assert good >= 0.95 * total


def test_steps_side_by_side_mostly_carry_a_seed_for_their_interleaving(anything: list[Schedule]) -> None:
    inside = [
        request.jitter
        for schedule in anything
        for step in schedule.steps
        if isinstance(step, Parallel)
        for leaf in flatten((step,))
        if (request := request_of(leaf)) is not None
    ]
    assert sum(map(bool, inside)) >= 0.7 * len(inside)


def test_the_workload_of_groups_always_has_several() -> None:
    counts = [len(schedule.groups) for schedule in drawn(schedules(WORKLOADS["groups"]))]
    assert sum(count > 1 for count in counts) >= 0.85 * len(counts)


def test_drawing_costs_little() -> None:
    """A generous bound: 0.6 ms were measured; ten times that would make drawing dearer than playing."""
    start_s = time.process_time()
    drawn(schedules(), count=200)
    assert (time.process_time() - start_s) / 200 < 0.006
