"""What is done with a schedule that failed: make it small, play it again, say what it shows.

Shared by `contract.explore` and the pytest plugin. It needs no Hypothesis.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import msgspec

from contract.history import (
    BY_ANOTHER_LANE,
    AckCall,
    Call,
    Fault,
    History,
    Invoke,
    Note,
    PhaseEnd,
    PopCall,
    PopResult,
    PushCall,
    Return,
)
from contract.judge import headline, judge
from contract.shrink import Leaf, places, shrink, shrink_side_by_side, without
from contract.targets import Target, deterministic
from contract.verdicts import Judgement, Violation
from strategies.schedule import (
    Ack,
    BrokerFault,
    Extend,
    KillBroker,
    PauseBroker,
    Pop,
    RestartBroker,
    Schedule,
    Step,
    StorageOutage,
    Storm,
    flatten,
    request_of,
)

CONFIRMATIONS = 3
"""How often a minimal schedule is played again where a broker need not do the same twice."""

SHRINK_S = 30.0
REAL_SHRINK_S = 25.0
"""How long one failure may be made smaller, in virtual and in real time."""

DISTURBING_LANES = 4
"""Candidates that are tried at once where each kills the broker that they share, or keeps it busy."""

SHRINK_ATTEMPTS = 1_000
"""Plays that it may take. In virtual time this limit comes first, so that a seed decides everything."""


class Failure(msgspec.Struct, frozen=True):
    """One kind of violation and the smallest schedule that was found for it.

    `history` belongs to `schedule`. `seen` of `tries` plays of it violated the rule; where nothing that was played
    again failed again, `schedule` is the original one and `seen` counts the play that found it. Seconds are since the
    start of the run. `also` are the other rules that `history` violates.
    """

    violation: Violation
    schedule: Schedule
    original: Schedule
    history: History
    seen: int
    tries: int
    seconds_to_first: float
    seconds_to_minimal: float
    replay_path: str = ""
    history_path: str = ""
    also: tuple[str, ...] = ()


class Replayed(msgspec.Struct, frozen=True):
    """A schedule that was played again: the first play that violated the rule, or the last one."""

    history: History
    judgement: Judgement
    seen: int
    tries: int


class Found(msgspec.Struct, frozen=True):
    """A play that violated a rule. `seconds` since the start of the run."""

    schedule: Schedule
    history: History
    judgement: Judgement
    seconds: float


def replay(schedule: Schedule, target: Target, *, rule: str | None = None, seed: int = 0, tries: int = 1) -> Replayed:
    """Plays a schedule `tries` (1 or more) times and counts the plays that violated `rule` (None: any rule)."""
    failing: tuple[History, Judgement] | None = None
    seen = 0
    for _ in range(tries):
        history = target.play(schedule, seed=seed)
        judgement = judge(history, target.profile)
        if judgement.failed if rule is None else rule in judgement.failed:
            seen += 1
            failing = failing or (history, judgement)
    history, judgement = failing or (history, judgement)
    return Replayed(history, judgement, seen, tries)


def without_rules(judgement: Judgement, aside: Collection[str]) -> Judgement:
    """The judgement without the rules that were found already."""
    if not aside:
        return judgement
    return msgspec.structs.replace(judgement, rules=tuple(v for v in judgement.rules if v.rule not in aside))


def investigate(
    found: Found,
    target: Target,
    *,
    aside: Collection[str] = (),
    seed: int = 0,
    shrink_s: float | None = None,
    elapsed_s: Callable[[], float] = time.monotonic,
    history_path: Path | None = None,
) -> Failure:
    """Makes the schedule small, confirms it and says what it shows.

    A candidate counts when the headline of its history is one of the rules that the found history violates; rules in
    `aside` count for nothing. It takes at most `shrink_s` seconds where that is less than is usual. Where a target does
    the same each time one play confirms; else the minimal schedule is played three times.
    """
    minimiser = _Minimiser(found, target, frozenset(aside), seed)
    limit_s = SHRINK_S if target.profile.virtual_time else REAL_SHRINK_S
    minimal = minimiser.minimal(limit_s if shrink_s is None else min(limit_s, shrink_s))
    tries = 1 if deterministic(target) else CONFIRMATIONS
    played = minimiser.play([minimal] * tries, [history_path] + [None] * (tries - 1))
    failing = [one for one in played if minimiser.counts(one[1])]
    seen = len(failing)
    if not failing:
        minimal, failing = found.schedule, [(found.history, found.judgement)]
        seen, tries = 1, tries + 1
    history, judgement = failing[0]
    violation = headline(without_rules(judgement, aside))
    if violation is None:
        raise ValueError("there is nothing to investigate: the found history violates no rule that is not set aside")
    return Failure(
        violation=violation,
        schedule=minimal,
        original=found.schedule,
        history=history,
        seen=seen,
        tries=tries,
        seconds_to_first=found.seconds,
        seconds_to_minimal=elapsed_s(),
        history_path="" if history_path is None or not history_path.exists() else str(history_path),
        also=tuple(rule for rule in judgement.failed if rule != violation.rule),
    )


class _Minimiser:
    def __init__(self, found: Found, target: Target, aside: frozenset[str], seed: int) -> None:
        self._found = found
        self._target = target
        self._aside = aside
        self._seed = seed
        self._rules = frozenset(found.judgement.failed) - aside

    def counts(self, judgement: Judgement) -> bool:
        """Whether the judgement shows the same kind of violation."""
        violation = headline(without_rules(judgement, self._aside))
        return violation is not None and violation.rule in self._rules

    def play(
        self, schedules: Sequence[Schedule], paths: Sequence[Path | None] | None = None
    ) -> list[tuple[History, Judgement]]:
        places = paths or [None] * len(schedules)
        histories = self._target.play_many(schedules, seed=self._seed, paths=places)
        return [
            self._judged(schedule, history, path)
            for schedule, history, path in zip(schedules, histories, places, strict=True)
        ]

    def _judged(self, schedule: Schedule, history: History, path: Path | None) -> tuple[History, Judgement]:
        """A failure counts for its own schedule: what other lanes did to the broker may have caused it."""
        judgement = judge(history, self._target.profile)
        if self.counts(judgement) and any(_foreign(event) for event in history.events):
            history = self._target.play(schedule, seed=self._seed, path=path)
            judgement = judge(history, self._target.profile)
        return history, judgement

    def minimal(self, limit_s: float) -> Schedule:
        lanes = lanes_of(self._target)
        begin_s = time.monotonic()
        whole = self._calmer(with_faults_of_others(self._found)) if lanes > 1 else self._found.schedule
        limit_s -= time.monotonic() - begin_s
        if any(isinstance(leaf, BrokerFault | Storm) for leaf in flatten(whole.steps)):
            lanes = min(lanes, DISTURBING_LANES)
        guesses = list(_guesses(self._found)) if whole == self._found.schedule else []
        if lanes == 1:
            return shrink(
                whole,
                lambda schedule: self._which_fail([schedule])[0],
                deadline_s=limit_s,
                attempts=SHRINK_ATTEMPTS,
                guesses=guesses,
            )
        return shrink_side_by_side(
            whole,
            self._which_fail,
            lanes=lanes,
            deadline_s=limit_s,
            attempts=SHRINK_ATTEMPTS,
            guesses=guesses,
        )

    def _calmer(self, schedule: Schedule) -> Schedule:
        """Without what is done to the broker, where it fails all the same: then no lane disturbs another."""
        disturbing = {n for n, leaf in enumerate(flatten(schedule.steps)) if isinstance(leaf, BrokerFault)}
        calm = without(schedule, disturbing)
        return calm if disturbing and self._which_fail([calm])[0] else schedule

    def _which_fail(self, schedules: Sequence[Schedule]) -> list[bool]:
        return [self.counts(judgement) for _, judgement in self.play(schedules)]


def lanes_of(target: Target) -> int:
    """How many schedules the target plays side by side."""
    return int(getattr(target, "lanes", 1))


# What other lanes did to the broker -------------------------------------------------------------------------------


def with_faults_of_others(found: Found) -> Schedule:
    """The schedule with what other lanes did to the broker between its steps, so that it can be played alone."""
    inserted: dict[int, list[Step]] = {}
    begun = paused_us = away_us = 0
    for event in found.history.events:
        if isinstance(event, PhaseEnd):
            break  # after the steps the broker is only waited for
        if isinstance(event, Invoke | Fault | Note) and event.step:
            begun = max(begun, int(event.step.partition(".")[0]))
        if not _foreign(event):
            continue
        assert isinstance(event, Fault)
        there = inserted.setdefault(begun, [])
        if event.what == "kill":
            there.append(KillBroker())
        elif event.what == "stop":
            there.append(RestartBroker())
        elif event.what == "pause":
            paused_us = event.at_us
        elif event.what == "resume":
            there.append(PauseBroker((event.at_us - paused_us) // 1000))
        elif event.what == "storage-stop":
            away_us = event.at_us
        elif event.what == "storage-start":
            there.append(StorageOutage((event.at_us - away_us) // 1000))
    if not inserted:
        return found.schedule
    steps = list(inserted.get(0, ()))
    for number, step in enumerate(found.schedule.steps, 1):
        steps += [step, *inserted.get(number, ())]
    return msgspec.structs.replace(found.schedule, steps=tuple(steps))


def _foreign(event: object) -> bool:
    return isinstance(event, Fault) and event.detail == BY_ANOTHER_LANE


# Where to begin: the part of the schedule that the violation is about ---------------------------------------------


def _guesses(found: Found) -> Iterator[Schedule]:
    """Only the steps of the calls that show it; all that touched its partition; no storm, or nothing else."""
    violation = headline(found.judgement)
    if violation is None:
        return
    leaves = places(found.schedule)
    paths = {_path(place): number for number, (place, _) in enumerate(leaves)}
    shown: set[int] = set()
    touched = {number for number, (_, leaf) in enumerate(leaves) if not isinstance(request_of(leaf), Pop | Ack)}
    answers = {event.call: event for event in found.history.events if isinstance(event, Return)}
    for event in found.history.events:
        if isinstance(event, Invoke) and event.step in paths:
            number = paths[event.step]
            if event.call in violation.calls:
                shown.add(number)
            if violation.partition in _partitions(event.request, answers.get(event.call)):
                touched.add(number)
    for kept in (shown, touched):
        if kept:
            _keep_referred(kept, [leaf for _, leaf in leaves])
            yield without(found.schedule, set(range(len(leaves))) - kept)
    storms = {number for number, (_, leaf) in enumerate(leaves) if isinstance(leaf, Storm)}
    if storms:
        yield without(found.schedule, storms)
        yield without(found.schedule, set(range(len(leaves))) - storms)


def _path(place: tuple[int, int, int]) -> str:
    """How a history names the place of a step: "3" outside lanes, "5.1.2" inside; counted from 1."""
    index, lane, at = place
    return f"{index + 1}" if lane < 0 else f"{index + 1}.{lane + 1}.{at + 1}"


def _partitions(request: Call, answer: Return | None) -> set[str]:
    named: set[str] = set()
    if isinstance(request, PushCall | AckCall):
        named.update(request.partitions)
    elif isinstance(request, PopCall):
        named.update([request.partition] if request.partition is not None else [])
        if answer is not None and isinstance(answer.result, PopResult):
            named.update(answer.result.partitions)
    return named


def _keep_referred(kept: set[int], leaves: Sequence[Leaf]) -> None:
    """Adds the pops that kept acks and extensions refer to."""
    labels = {request.pop for number in kept if isinstance(request := request_of(leaves[number]), Ack | Extend)}
    for number, leaf in enumerate(leaves):
        request = request_of(leaf)
        if isinstance(request, Pop) and request.label in labels:
            kept.add(number)
