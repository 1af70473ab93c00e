"""The whole line as one function: draw schedules, play them, judge the histories, make what fails small.

Hypothesis draws, in rounds, each with a seed of its own and another mix of steps. Its shrinker is not used: what fails
is made small at once by `contract.shrink`, confirmed, and its rules are set aside, so that a run goes on to find what
else is wrong. In simulation the seed decides everything; on a real broker it decides what is drawn.
"""

from __future__ import annotations

import gc
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import hypothesis
import msgspec
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from contract.errors import CouldNotJudge
from contract.finding import Failure, Found, Replayed, investigate, lanes_of, replay, without_rules
from contract.history import History, Invoke
from contract.judge import headline, judge
from contract.merging import Merger, merged
from contract.situations import SITUATIONS, situations
from contract.targets import Target
from contract.verdicts import RuleVerdict
from strategies.draw import BROKER_FAULTS, FAULTS, KINDS, WORKLOADS, Features, storms
from strategies.draw import schedules as drawn_schedules
from strategies.schedule import Schedule, to_json

__all__ = [
    "DRAW",
    "MIX",
    "Exploration",
    "Failure",
    "Progress",
    "Replayed",
    "Run",
    "explore",
    "features_of",
    "merged",
    "replay",
    "seed_of",
]

DRAW = settings(
    settings.get_profile("default"),
    database=None,
    deadline=None,
    derandomize=False,
    report_multiple_bugs=False,
    print_blob=False,
    phases=(Phase.explicit, Phase.generate, Phase.target),
    suppress_health_check=(HealthCheck.too_slow,),
)
"""Built on Hypothesis's own defaults, never on a loaded profile: under CI=true that would draw the same each time."""

ROUND = 100
"""Schedules of one round."""

MIX = ("any", "order", "groups", "redelivery", "acks")
"""Whose weights the rounds take, in turn."""

FRUITLESS_ROUNDS = 50
"""After so many rounds without a new schedule there is none left to draw."""

TOGETHER = 5
"""Schedules of one example."""

SPARE = 3
"""Examples beyond what is needed: Hypothesis begins each round with the same plain draw, and may repeat itself."""

SHARED_BROKER_FAULTS_PERCENT = 10
"""Schedules with faults of the broker, where they keep all lanes waiting."""

STORMS = 2
"""Storms of one round, where time is real."""

PLAYS_PER_LANE = 2
"""Schedules that are drawn for each lane at once, so that a lane that is done early has more to do."""


SHRINK_GRACE_S = 10.0
"""How far shrinking may go beyond the time of a run; failures that come later stay as they were found."""


class Progress(msgspec.Struct, frozen=True):
    """How far a run is. `doing` is "exploring" or "shrinking"."""

    schedules: int
    requests: int
    seconds: float
    failures: int
    doing: str


class Exploration(msgspec.Struct, frozen=True):
    """What a whole run came to. `situations` counts the histories that reached each."""

    target: str
    profile: str
    seed: int
    schedules: int
    requests: int
    seconds: float
    rules: tuple[RuleVerdict, ...]
    situations: dict[str, int]
    never_reached: tuple[str, ...]
    failures: tuple[Failure, ...]


def explore(
    target: Target,
    *,
    seed: int,
    schedules: int | None = None,
    max_time_s: float | None = None,
    history_dir: Path | None = None,
    progress: Callable[[Progress], None] | None = None,
    workloads: Sequence[str] = MIX,
    saved: Sequence[Schedule] = (),
    so_far: Callable[[Exploration], None] | None = None,
    enough: Callable[[Failure], bool] | None = None,
    features: Features | None = None,
    thorough: bool = False,
) -> Exploration:
    """Draws and plays schedules until `schedules` were played or `max_time_s` has passed, and judges them all.

    `saved` schedules are played before anything is drawn, and count. With `history_dir` each history is written there
    as "1.jsonl", "2.jsonl", ... while it happens. `so_far` gets what was found when the run is cut short. `enough` is
    asked after each failure and ends the run when it says so. `features` replaces what is known of the target.
    `thorough` goes on to look for each rule that a failure violates beside its headline as well. Raises
    `CouldNotJudge` where the target cannot be reached, and `ValueError` where neither limit is given.
    """
    if schedules is None and max_time_s is None:
        raise ValueError("an exploration needs an end: give schedules or max_time_s")
    run = Run(target, seed=seed, schedules=schedules, max_time_s=max_time_s, history_dir=history_dir)
    explorer = _Explorer(run, progress, enough, thorough)
    tidy = _Tidier(target)
    try:
        explorer.play_all(saved)
        number = 0
        while not explorer.over:
            workload = workloads[number % len(workloads)]
            strategy = drawn_schedules(WORKLOADS[workload], features=features or features_of(target))
            explorer.round(strategy, seed=seed_of(seed, workload, number))
            tidy.collect()
            number += 1
    except (KeyboardInterrupt, CouldNotJudge):
        if so_far is not None and run.played:
            so_far(run.exploration(explorer.failures))
        raise
    finally:
        tidy.end()
    return run.exploration(explorer.failures)


class _Tidier:
    """Collects garbage between rounds instead of during them: a tenth of the time of a schedule in this process.

    Each play leaves cycles behind (its event loop, its tasks), all of them young, so a collection of the youngest
    generation is enough.
    """

    def __init__(self, target: Target) -> None:
        self._own = target.profile.virtual_time and gc.isenabled()
        if self._own:
            gc.disable()

    def collect(self) -> None:
        """Called after each round."""
        if self._own:
            gc.collect(0)

    def end(self) -> None:
        """Leaves things as they were."""
        if self._own:
            gc.enable()


def features_of(target: Target) -> Features:
    """What may be drawn for a target: the faults that happen there, and short waits where they cost real time.

    Storms are for real time too: in virtual time a few calls with drawn delays find the same races sooner.
    """
    virtual = target.profile.virtual_time
    missing = (FAULTS | BROKER_FAULTS) - target.faults | ({"storm"} if virtual else frozenset())
    if target.capabilities.get("seek") is False:
        missing |= {"seek"}
    return Features(
        kinds=KINDS - missing,
        short_waits=not virtual,
        broker_faults_percent=100 if lanes_of(target) == 1 else SHARED_BROKER_FAULTS_PERCENT,
    )


def seed_of(*parts: object) -> int:
    """One seed from several parts, the same in every process."""
    text = "/".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big")


class Run:
    """What was played and judged so far, and how much may still be: the bookkeeping of one run."""

    def __init__(
        self,
        target: Target,
        *,
        seed: int,
        schedules: int | None = None,
        max_time_s: float | None = None,
        history_dir: Path | None = None,
    ) -> None:
        self.target = target
        self.seed = seed
        self.played = 0
        self.requests = 0
        self._most = schedules
        self._max_time_s = max_time_s
        self._history_dir = history_dir
        self._start_s = time.monotonic()
        self._merger = Merger()
        self._situations: Counter[str] = Counter()

    @property
    def over(self) -> bool:
        """Whether the schedules or the time are used up."""
        if self._most is not None and self.played >= self._most:
            return True
        return self._max_time_s is not None and self.elapsed_s() >= self._max_time_s

    def left(self, most: int) -> int:
        """How many schedules may still be played, up to `most`."""
        return most if self._most is None else min(most, self._most - self.played)

    def elapsed_s(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._start_s

    def shrink_s(self) -> float | None:
        """Seconds in which a failure may be made small; None where the run has no limit of time."""
        return None if self._max_time_s is None else max(0.0, self._max_time_s + SHRINK_GRACE_S - self.elapsed_s())

    def play(self, schedule: Schedule) -> Found:
        """Plays one schedule and judges it."""
        return self._judged(schedule, self.target.play(schedule, seed=self.seed, path=self.path(self.played + 1)))

    def play_many(self, schedules: Sequence[Schedule], stop: Callable[[Found], bool]) -> Iterator[Found]:
        """Plays schedules, side by side where the target can, until the run is over. Nothing happens until asked.

        Histories are judged as they come. After one for which `stop` says so, what is under way is played to its end
        and everything is handed over, before the next schedule begins.
        """
        lanes = lanes_of(self.target)
        size = lanes * PLAYS_PER_LANE if lanes > 1 else 1
        left = list(schedules)
        while left and not self.over:
            batch = left[: self.left(size)]
            paths = [self.path(self.played + number) for number in range(1, len(batch) + 1)]
            found: dict[int, Found] = {}

            def judged(
                number: int, history: History, batch: list[Schedule] = batch, to: dict[int, Found] = found
            ) -> bool:
                to[number] = self._judged(batch[number], history)
                return stop(to[number]) or self.over

            self.target.play_many(batch, seed=self.seed, paths=paths, seen=judged)
            left = left[len(found) :]
            yield from (found[number] for number in sorted(found))

    def path(self, name: int | str) -> Path | None:
        """Where a history is written; None where none is kept."""
        return None if self._history_dir is None else self._history_dir / f"{name}.jsonl"

    def exploration(self, failures: Sequence[Failure] = ()) -> Exploration:
        """What the run came to so far."""
        reached = dict(sorted(self._situations.items()))
        return Exploration(
            target=self.target.describe,
            profile=self.target.profile.name,
            seed=self.seed,
            schedules=self.played,
            requests=self.requests,
            seconds=self.elapsed_s(),
            rules=self._merger.rules(),
            situations=reached,
            never_reached=tuple(name for name in SITUATIONS if name not in reached),
            failures=tuple(failures),
        )

    def _judged(self, schedule: Schedule, history: History) -> Found:
        judgement = judge(history, self.target.profile)
        judgement = msgspec.structs.replace(judgement, situations=judgement.situations | situations(history))
        self.played += 1
        self.requests += sum(isinstance(event, Invoke) for event in history.events)
        self._merger.add(judgement.rules)
        self._situations.update(judgement.situations)
        return Found(schedule, history, judgement, self.elapsed_s())


class _Explorer:
    """Rounds of drawing and playing, with the rules that were found set aside."""

    def __init__(
        self,
        run: Run,
        progress: Callable[[Progress], None] | None,
        enough: Callable[[Failure], bool] | None = None,
        thorough: bool = False,
    ) -> None:
        self.failures: list[Failure] = []
        self._run = run
        self._progress = progress
        self._enough = enough
        self._thorough = thorough
        self._done = False
        self._aside: set[str] = set()
        self._known: set[bytes] = set()
        self._fruitless = 0
        self._error: BaseException | None = None

    @property
    def over(self) -> bool:
        """Whether the budget is used up, or nothing new can be drawn."""
        return self._done or self._run.over or self._fruitless >= FRUITLESS_ROUNDS

    def round(self, strategy: st.SearchStrategy[Schedule], *, seed: int) -> None:
        """Draws and plays up to one round of schedules."""
        lanes, before = lanes_of(self._run.target), self._run.played
        if lanes == 1:
            self._draw(strategy, seed, self._run.left(ROUND), self._play_drawn)
        else:
            batch: list[Schedule] = []

            def keep(schedule: Schedule) -> float:
                batch.append(schedule)
                return 0.0

            features = features_of(self._run.target)
            if "storm" in features.kinds:
                self._draw(storms(features=features), seed, self._run.left(STORMS), keep)
            races, batch[:] = list(batch), []
            self._draw(strategy, seed, self._run.left(lanes * PLAYS_PER_LANE) - len(races), keep)
            if before:
                self.play_all(races + batch)
            else:  # at first what shows at once; then the races, which show best where nothing else is done
                for part in (batch[:lanes], races, batch[lanes:]):
                    if not self.over:
                        self.play_all(part)
        if self._error is not None:
            raise self._error
        self._fruitless = 0 if self._run.played > before else self._fruitless + 1

    def play_all(self, schedules: Sequence[Schedule]) -> None:
        """Plays schedules and looks at their histories, until what was found is enough."""
        for found in self._run.play_many(schedules, stop=self._is_new):
            self._look(found)
            if self._done:
                break

    def _draw(
        self,
        strategy: st.SearchStrategy[Schedule],
        seed: int,
        count: int,
        use: Callable[[Schedule], float],
    ) -> None:
        """Draws schedules and hands on the new ones, up to `count` and until the run is over.

        Several in one example: the engine's own work for an example costs as much as drawing two schedules. `use`
        says how much each was worth; Hypothesis seeks more of the best.
        """
        used = 0

        @hypothesis.seed(seed)
        @settings(DRAW, max_examples=count // TOGETHER + SPARE)
        @hypothesis.given(st.tuples(*[strategy] * TOGETHER))
        def draw(schedules: tuple[Schedule, ...]) -> None:
            nonlocal used
            best = 0.0
            for schedule in schedules:
                text = to_json(schedule)
                if used < count and self._error is None and not self.over and text not in self._known:
                    self._known.add(text)
                    used += 1
                    best = max(best, use(schedule))
            hypothesis.target(best, label="situations")

        draw()

    def _play_drawn(self, schedule: Schedule) -> float:
        """Plays one schedule inside Hypothesis, which must not see an error: it would play the schedule again."""
        try:
            found = self._run.play(schedule)
            self._look(found)
        except Exception as error:
            self._error = error
            return 0.0
        return float(len(found.judgement.situations))

    def _is_new(self, found: Found) -> bool:
        """Whether it violates a rule that was not found before."""
        return headline(without_rules(found.judgement, self._aside)) is not None

    def _look(self, found: Found) -> None:
        self._report("exploring")
        if not self._is_new(found):
            return
        self._report("shrinking")
        failure = investigate(
            found,
            self._run.target,
            aside=self._aside,
            seed=self._run.seed,
            shrink_s=self._run.shrink_s(),
            elapsed_s=self._run.elapsed_s,
            history_path=self._run.path(f"minimal-{len(self.failures) + 1}"),
        )
        self.failures.append(failure)
        self._aside.update((failure.violation.rule, *(() if self._thorough else failure.also)))
        self._done = self._enough is not None and self._enough(failure)

    def _report(self, doing: str) -> None:
        if self._progress is not None:
            run = self._run
            self._progress(Progress(run.played, run.requests, run.elapsed_s(), len(self.failures), doing))
