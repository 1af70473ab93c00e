"""The whole line on the reference broker: what is found, made small, counted, kept and repeated."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from contract import history as histories
from contract.errors import CouldNotJudge
from contract.explore import Exploration, Progress, Run, explore, features_of
from contract.finding import Found, investigate, replay
from contract.history import History
from contract.judge import judge
from contract.profile import Profile
from contract.situations import SITUATIONS, situations
from contract.targets import Seen, Simulated
from contract.verdicts import Verdict
from reference_broker import Engine
from strategies.schedule import (
    Ack,
    Advance,
    Group,
    Item,
    KillBroker,
    LoseRequest,
    Parallel,
    Pop,
    Push,
    Schedule,
    flatten,
)


class FirstMessageForEver(Engine):
    """The canary: every pop answers the first message again."""

    def claimable_from(self, lane, now_ms):  # type: ignore[no-untyped-def]
        return 0


class LeasesHideNothing(Engine):
    """A partition that is leased is handed out again."""

    def lease_is_live(self, lane, now_ms):  # type: ignore[no-untyped-def]
        return False


class TwoStepClaim(Engine):
    """Chooses and takes in two transactions: a pop in between gets the same partition."""

    async def claim(self, pop, waiter):  # type: ignore[no-untyped-def]
        now_ms = self.now_ms()
        with self.storage:
            choice = self.choose(pop, now_ms)
        if self.hook is not None:
            await self.hook("pop.begin")
        with self.storage:
            return (self.take(pop, choice, now_ms) if choice.lots else None), choice.due_ms


PUSH = Push(items=(Item(),))
TWICE = Schedule(steps=(PUSH, Advance(ms=5), Pop(label=0), Pop(label=1)))


class Lanes(Simulated):
    """Looks like a target that plays side by side; remembers how much it was given at once."""

    lanes = 4

    def __init__(self, engine: type[Engine] | None = None) -> None:
        super().__init__(engine)
        self.batches: list[int] = []

    def play_many(
        self,
        schedules: Sequence[Schedule],
        *,
        seed: int = 0,
        paths: Sequence[Path | None] | None = None,
        seen: Seen | None = None,
    ) -> list[History]:
        self.batches.append(len(schedules))
        return super().play_many(schedules, seed=seed, paths=paths, seen=seen)


class Sometimes(Simulated):
    """A broker that is wrong in its first play only, in real time."""

    profile = Profile(name="simulated")

    def __init__(self) -> None:
        super().__init__()
        self.plays = 0

    def play(self, schedule: Schedule, *, seed: int = 0, path: Path | None = None) -> History:
        self.plays += 1
        self.engine = LeasesHideNothing if self.plays == 1 else None
        return super().play(schedule, seed=seed, path=path)


class Gone(Simulated):
    """A broker that answers nobody any more after some plays."""

    def __init__(self, plays: int) -> None:
        super().__init__()
        self.plays = plays

    def play(self, schedule: Schedule, *, seed: int = 0, path: Path | None = None) -> History:
        if self.plays == 0:
            raise CouldNotJudge("the broker at 'here' is gone; start it again")
        self.plays -= 1
        return super().play(schedule, seed=seed, path=path)


@pytest.fixture(scope="module")
def canary() -> Exploration:
    return explore(Simulated(FirstMessageForEver), seed=1, schedules=60)


def found(engine: type[Engine], schedule: Schedule) -> Found:
    history = Simulated(engine).play(schedule)
    return Found(schedule, history, judge(history), 0.5)


def same(one: Exploration, other: Exploration) -> bool:
    """Equal but for the seconds."""
    return (
        one.rules == other.rules
        and one.situations == other.situations
        and one.requests == other.requests
        and [f.schedule for f in one.failures] == [f.schedule for f in other.failures]
    )


# Counting


def test_exactly_as_many_schedules_are_played_as_asked_for() -> None:
    assert explore(Simulated(), seed=2, schedules=77).schedules == 77


def test_a_run_ends_with_its_time() -> None:
    assert 0.3 <= explore(Simulated(), seed=2, max_time_s=0.3).seconds < 5


def test_a_run_without_an_end_is_refused() -> None:
    with pytest.raises(ValueError, match="needs an end"):
        explore(Simulated(), seed=1)


def test_the_same_seed_gives_the_same_run() -> None:
    one, other = (explore(Simulated(LeasesHideNothing), seed=9, schedules=40) for _ in range(2))
    assert same(one, other)


def test_another_seed_gives_another_run() -> None:
    one, other = (explore(Simulated(), seed=seed, schedules=20) for seed in (1, 2))
    assert not same(one, other)


def test_a_schedule_is_about_twenty_five_requests_with_its_ending() -> None:
    exploration = explore(Simulated(), seed=4, schedules=100)
    assert 15 <= exploration.requests / exploration.schedules <= 30


def test_every_situation_was_reached_or_is_listed_as_never_reached() -> None:
    exploration = explore(Simulated(), seed=4, schedules=20)
    assert sorted({*exploration.situations, *exploration.never_reached}) == sorted(SITUATIONS)


def test_a_few_hundred_schedules_reach_almost_every_situation() -> None:
    assert len(explore(Simulated(), seed=4, schedules=300).never_reached) <= 3


def test_progress_counts_up_to_the_end() -> None:
    seen: list[Progress] = []
    explore(Simulated(), seed=1, schedules=12, progress=seen.append)
    assert [progress.schedules for progress in seen] == list(range(1, 13))


# Histories


def test_every_history_is_kept_under_its_number(tmp_path: Path) -> None:
    explore(Simulated(), seed=1, schedules=5, history_dir=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{number}.jsonl" for number in range(1, 6)]


def test_a_kept_history_can_be_read_and_judged_again(tmp_path: Path) -> None:
    explore(Simulated(), seed=1, schedules=3, history_dir=tmp_path)
    assert not judge(histories.read(tmp_path / "3.jsonl")).failed


def test_the_history_of_a_minimal_schedule_is_kept_too(tmp_path: Path) -> None:
    exploration = explore(Simulated(LeasesHideNothing), seed=1, schedules=30, history_dir=tmp_path)
    assert histories.read(exploration.failures[0].history_path).header.schedule == exploration.failures[0].schedule


# Finding


def test_the_canary_is_found(canary: Exploration) -> None:
    assert Verdict.FAIL in {rule.verdict for rule in canary.rules}


def test_the_first_failure_is_small(canary: Exploration) -> None:
    assert len(canary.failures[0].schedule.steps) <= 5


def test_the_history_of_a_failure_shows_its_violation(canary: Exploration) -> None:
    assert all(failure.violation.rule in judge(failure.history).failed for failure in canary.failures)


def test_a_run_goes_on_after_a_failure(canary: Exploration) -> None:
    assert canary.schedules == 60
    assert len(canary.failures) > 1


def test_no_rule_is_reported_twice(canary: Exploration) -> None:
    rules = [failure.violation.rule for failure in canary.failures]
    assert len(rules) == len(set(rules))


def test_a_race_is_found_and_keeps_its_two_lanes() -> None:
    exploration = explore(Simulated(TwoStepClaim), seed=3, schedules=300)
    failure = next(failure for failure in exploration.failures if failure.violation.rule == "lease/exclusive")
    assert any(isinstance(step, Parallel) for step in failure.schedule.steps)


def test_saved_schedules_are_played_before_anything_is_drawn() -> None:
    exploration = explore(Simulated(LeasesHideNothing), seed=1, schedules=1, saved=[TWICE])
    assert exploration.failures[0].original == TWICE


def test_a_failure_is_confirmed_once_in_virtual_time() -> None:
    failure = investigate(found(LeasesHideNothing, TWICE), Simulated(LeasesHideNothing))
    assert (failure.seen, failure.tries) == (1, 1)


def test_the_minimal_schedule_drops_what_does_not_matter() -> None:
    first = found(LeasesHideNothing, TWICE)
    others = set(first.judgement.failed) - {"lease/exclusive"}  # what the drain alone shows
    failure = investigate(first, Simulated(LeasesHideNothing), aside=others)
    assert [type(step) for step in failure.schedule.steps] == [Push, Pop, Pop]


def test_shrinking_ends_soon_after_the_time_of_the_run() -> None:
    left_s = Run(Simulated(), seed=1, max_time_s=5).shrink_s()
    assert left_s is not None
    assert 14 < left_s <= 15


def test_shrinking_has_its_own_limit_where_a_run_has_no_time() -> None:
    assert Run(Simulated(), seed=1, schedules=5).shrink_s() is None


def test_a_failure_beyond_the_time_stays_as_it_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("contract.explore.SHRINK_GRACE_S", -1000.0)
    exploration = explore(Simulated(LeasesHideNothing), seed=1, schedules=60, max_time_s=100)
    assert [failure.schedule for failure in exploration.failures] == [f.original for f in exploration.failures] != []


def test_a_rule_that_is_set_aside_does_not_count() -> None:
    with pytest.raises(ValueError, match="nothing to investigate"):
        investigate(
            found(LeasesHideNothing, TWICE), Simulated(), aside=judge(found(LeasesHideNothing, TWICE).history).failed
        )


def test_a_failure_that_is_not_seen_again_is_still_a_failure() -> None:
    target = Sometimes()
    first = target.play(TWICE)
    failure = investigate(Found(TWICE, first, judge(first, target.profile), 0.1), target, shrink_s=0.5)
    assert (failure.seen, failure.tries, failure.schedule) == (1, 4, TWICE)


def test_a_replay_counts_how_often_the_rule_was_violated() -> None:
    replayed = replay(TWICE, Simulated(LeasesHideNothing), rule="lease/exclusive", tries=3)
    assert (replayed.seen, replayed.tries) == (3, 3)


def test_a_replay_on_a_correct_broker_sees_nothing() -> None:
    assert replay(TWICE, Simulated(), tries=2).seen == 0


# Side by side


def test_a_target_with_lanes_gets_many_schedules_at_once() -> None:
    target = Lanes()
    explore(target, seed=1, schedules=19)
    assert target.batches == [4, 4, 8, 3]  # first what shows at once


def test_lanes_find_and_shrink_as_well() -> None:
    exploration = explore(Lanes(LeasesHideNothing), seed=1, schedules=24)
    assert len(exploration.failures[0].schedule.steps) <= 4


def test_one_failure_can_be_enough_where_many_schedules_failed_at_once() -> None:
    run = explore(Lanes(FirstMessageForEver), seed=1, schedules=24, enough=lambda _: True)
    assert len(run.failures) == 1


def test_what_the_target_cannot_do_is_not_drawn() -> None:
    class NoFaults(Simulated):
        faults = frozenset()

    features = features_of(NoFaults())
    assert not features.kinds & {KillBroker.__struct_config__.tag, LoseRequest.__struct_config__.tag}


def test_storms_are_for_real_time() -> None:
    assert ("storm" in features_of(Sometimes()).kinds, "storm" in features_of(Simulated()).kinds) == (True, False)


def test_waits_are_short_in_real_time() -> None:
    assert features_of(Sometimes()).short_waits


# Trouble


def test_a_broker_that_goes_away_ends_the_run() -> None:
    with pytest.raises(CouldNotJudge, match="gone"):
        explore(Gone(plays=3), seed=1, schedules=20)


def test_what_was_found_before_the_broker_went_away_is_handed_over() -> None:
    kept: list[Exploration] = []
    with pytest.raises(CouldNotJudge):
        explore(Gone(plays=3), seed=1, schedules=20, so_far=kept.append)
    assert kept[0].schedules == 3


def test_schedules_beyond_the_limit_are_not_played() -> None:
    run = Run(Simulated(), seed=1, schedules=2)
    assert len(list(run.play_many([TWICE] * 5, stop=lambda _: False))) == 2


def test_what_was_not_begun_after_a_stop_is_played_next() -> None:
    target = Lanes()
    run = Run(target, seed=1, schedules=20)
    stops = iter([False, True])
    found = list(run.play_many([TWICE] * 6, stop=lambda _: next(stops, False)))
    assert len(found) == run.played == 6
    assert target.batches == [6, 4]


# Situations


def reached(*steps: object, **world: object) -> frozenset[str]:
    schedule = Schedule(steps=steps, **world)  # type: ignore[arg-type]
    assert list(flatten(schedule.steps))
    return situations(Simulated().play(schedule))


def test_a_redelivery_after_expiry_is_noticed() -> None:
    assert "redelivery after expiry" in reached(PUSH, Pop(label=0), Advance(ms=2001), Pop(label=1))


def test_a_redelivery_after_a_nack_is_not_one_after_expiry() -> None:
    from strategies.schedule import AckItem

    names = reached(PUSH, Pop(label=0), Ack(pop=0, items=(AckItem(status="failed"),)), Pop(label=1))
    assert ("redelivery after a nack" in names, "redelivery after expiry" in names) == (True, False)


def test_an_ack_under_a_dead_lease_is_noticed() -> None:
    assert "ack under a dead lease" in reached(PUSH, Pop(label=0), Advance(ms=2001), Ack(pop=0))


def test_an_ack_in_time_is_not_one_under_a_dead_lease() -> None:
    assert "ack under a dead lease" not in reached(PUSH, Pop(label=0), Advance(ms=1999), Ack(pop=0))


def test_two_groups_on_one_partition_are_noticed() -> None:
    groups = (Group(), Group(name="g", mode="all"))
    assert "two groups on one partition" in reached(PUSH, Pop(label=0), Pop(label=1, group=1), groups=groups)


def test_the_drain_alone_makes_no_two_groups_on_one_partition() -> None:
    groups = (Group(), Group(name="g", mode="all"))
    assert "two groups on one partition" not in reached(PUSH, Pop(label=0), groups=groups)


def test_a_kill_while_a_call_is_in_flight_is_noticed() -> None:
    lanes = Parallel(lanes=((Pop(label=0, wait_ms=500),), (KillBroker(),)))
    assert "kill while a call was in flight" in reached(lanes)


def test_a_late_request_is_noticed() -> None:
    from strategies.schedule import DelayRequest

    assert "late request acted" in reached(DelayRequest(step=PUSH, ms=100), Advance(ms=200))
