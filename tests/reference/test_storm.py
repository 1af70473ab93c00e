"""Storms on the simulated reference broker: what they send, that they end, and that they find races."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from contract import history
from contract.calls import EXTENSION
from contract.history import AckCall, Fault, Invoke, Note, PhaseEnd, PopCall, PushCall, Return
from contract.judge import judge
from contract.storm import MOST_CALLS
from contract.targets import Simulated
from contract.targets.faults import FaultTransport
from strategies import schedule as s

sys.path.insert(0, str(Path(__file__).parents[1] / "quality"))

from defects.pushes import LostBehindTheCursor

GROUPS = (s.Group("G", "all"), s.Group("H", "new"))


def play(*steps: s.Step, engine: type[Any] | None = None, partitions: int = 2) -> history.History:
    return Simulated(engine).play(s.Schedule(steps, partitions, GROUPS))


def calls(played: history.History, kind: type) -> list[Invoke]:
    """The calls of a kind that the drawn part sent."""
    return [event for event in of(played, Invoke) if event.step and isinstance(event.request, kind)]


def of(played: history.History, kind: type) -> list[Any]:
    return [event for event in played.events if isinstance(event, kind)]


STORM = s.Storm(pushers=3, consumers=2, operations=60, partitions=2, jitter=9)


def test_it_pushes_one_message_at_a_time_as_often_as_it_says() -> None:
    pushes = calls(play(STORM), PushCall)
    assert len(pushes) == 60
    assert {len(push.request.partitions) for push in pushes} == {1}


def test_it_spreads_over_its_first_partitions_only() -> None:
    played = play(s.Storm(operations=20, partitions=2, pushers=2), partitions=3)
    assert {push.request.partitions[0] for push in calls(played, PushCall)} == {"p0", "p1"}


def test_pushes_that_are_under_way_together_go_to_one_partition() -> None:
    pushes = calls(play(STORM), PushCall)
    assert [push.request.partitions[0] for push in pushes[:6]] == ["p0"] * 3 + ["p1"] * 3


def test_each_loop_has_a_name_of_its_own() -> None:
    workers = {event.worker for event in of(play(STORM), Invoke) if event.step}
    assert workers == {"push/0", "push/1", "push/2", "G/0", "G/1"}


def test_consumers_complete_all_that_they_got_in_one_call() -> None:
    played = play(STORM)
    popped = {pop.call for pop in calls(played, PopCall)}
    given = sum(len(answer.result.message_ids) for answer in of(played, Return) if answer.call in popped)
    acked = sum(len(ack.request.message_ids) for ack in calls(played, AckCall))
    assert given == acked == 60
    assert all(ack.request.batch for ack in calls(played, AckCall))


@pytest.mark.parametrize(("named", "partitions"), [(False, {None}), (True, {"p0", "p1"})])
def test_consumers_pop_by_wildcard_or_by_name(named: bool, partitions: set[str | None]) -> None:
    played = play(s.Storm(operations=40, partitions=2, pushers=2, consumers=2, named=named, jitter=3))
    assert {pop.request.partition for pop in calls(played, PopCall)} == partitions


def test_it_ends_with_an_empty_answer_of_each_consumer() -> None:
    played = play(STORM)
    last: dict[str, int] = {pop.worker: pop.call for pop in calls(played, PopCall)}
    answers = {event.call: event.result for event in of(played, Return)}
    assert all(answers[call] == history.PopResult() for call in last.values())


def test_each_call_has_an_interleaving_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    send = FaultTransport.handle_async_request

    async def watched(self: FaultTransport, request: Any) -> Any:
        seen.append(request.extensions[EXTENSION].jitter)
        return await send(self, request)

    monkeypatch.setattr(FaultTransport, "handle_async_request", watched)
    played = play(s.Push((s.Item(),)), STORM)
    drawn = len([event for event in of(played, Invoke) if event.step == "2"])
    assert len({jitter for jitter in seen if jitter}) == drawn


def test_another_step_before_it_leaves_its_interleaving_alone() -> None:
    storm = s.Storm(operations=30, pushers=3, consumers=1, jitter=5)

    def shape(played: history.History, step: str) -> list[tuple[str, str]]:
        return [(event.worker, type(event.request).__name__) for event in of(played, Invoke) if event.step == step]

    assert shape(play(storm), "1") == shape(play(s.Advance(10), storm), "2")


def test_two_plays_are_equal() -> None:
    storm = s.Storm(operations=50, pushers=4, consumers=3, partitions=2, kill_at=40, jitter=6)
    assert list(history.to_lines(play(storm))) == list(history.to_lines(play(storm)))


@pytest.mark.parametrize(("kill_at", "before"), [(0, 0), (50, 30), (100, 60)])
def test_it_kills_the_broker_after_a_share_of_the_pushes(kill_at: int, before: int) -> None:
    played = play(s.Storm(operations=60, pushers=1, kill_at=kill_at, jitter=2))
    assert [fault.what for fault in of(played, Fault)] == ["kill", "start"]
    killed_us = of(played, Fault)[0].at_us
    assert before <= len([push for push in calls(played, PushCall) if push.at_us < killed_us]) <= before + 1
    assert len(calls(played, PushCall)) == 60
    assert judge(played).failed == ()


def test_a_broker_that_answers_nothing_does_not_keep_it_for_ever() -> None:
    played = play(s.StorageFault(1_000_000), s.Storm(operations=100_000, pushers=1, consumers=1))
    assert len(of(played, Invoke)) < 2 * MOST_CALLS
    assert of(played, PhaseEnd)[0].complete


def test_a_storm_without_end_is_cut() -> None:
    played = play(s.Storm(operations=1_000_000, pushers=8, consumers=2, batch=1))
    drawn = [event for event in of(played, Invoke) if event.step]
    assert MOST_CALLS <= len(drawn) < MOST_CALLS + 20
    assert "the storm was ended after" in of(played, Note)[-1].text
    assert all(end.complete for end in of(played, PhaseEnd))  # the drain and the audit grow with it


def test_a_correct_broker_stays_clean() -> None:
    for jitter in range(1, 6):
        played = play(s.Storm(operations=60, pushers=3, consumers=2, partitions=2, jitter=jitter, kill_at=jitter * 15))
        assert judge(played).failed == ()


def test_a_message_that_is_stored_behind_the_cursor_is_found() -> None:
    played = play(s.Storm(operations=40, pushers=2, consumers=1, jitter=1), engine=LostBehindTheCursor)
    assert judge(played).failed


def test_the_judge_takes_time_in_proportion() -> None:
    def seconds(operations: int) -> float:
        played = play(s.Storm(operations=operations, pushers=4, consumers=4, partitions=2, batch=1, named=True))
        begin = time.process_time()
        assert judge(played).failed == ()
        return time.process_time() - begin

    assert seconds(3200) < 4 * 3 * min(seconds(800), seconds(800))  # in proportion it would be 4 times as long
