"""Workloads under pytest: how a test draws schedules, plays them and fails.

    @workload
    @given(schedule=drawn("order"))
    def test_order(schedule, probe):
        probe(schedule)

The plugin (`broker_contract_pytest`) provides the fixture `probe`, turns what a probe found into a failure of the test
and shows the verdicts of all workloads at the end.
"""

from __future__ import annotations

import importlib
import math
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import hypothesis
import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from contract import replay_file
from contract.broker_options import Broker, one_broker, reachable
from contract.errors import CouldNotJudge
from contract.explore import SPARE, Exploration, Run, features_of, seed_of
from contract.finding import Failure, Found, investigate, lanes_of
from contract.hooks import Hooks
from contract.merging import Merger
from contract.situations import SITUATIONS
from contract.targets import Target
from contract.verdicts import RuleVerdict, Verdict
from contract.version import suite_version
from strategies.draw import WORKLOADS, Features, schedules
from strategies.schedule import Schedule, to_json

BASE = settings(
    settings.get_profile("default"),
    deadline=None,
    report_multiple_bugs=False,
    print_blob=False,
    derandomize=False,
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.target),
    suppress_health_check=(HealthCheck.too_slow,),
)
"""Built on Hypothesis's own defaults, never on a loaded profile: under CI=true that would draw the same each time."""

DEFAULT_SCHEDULES = 100
"""Schedules of a workload when nothing says how many."""

SCHEDULES_PER_SECOND = 400
"""More than any target plays; where only a time is given, so many are drawn at most."""

_Test = TypeVar("_Test", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the options of pytest ask for. `seed` was given by the user where `fixed` holds."""

    seed: int = field(default_factory=lambda: secrets.randbelow(1_000_000))
    fixed: bool = False
    schedules: int | None = None
    max_time_s: float | None = None
    history_dir: Path | None = None
    failures_dir: Path = Path("failures")
    url: str | None = None
    command: str | None = None
    app: str | None = None
    token: str | None = None
    engine: str | None = None
    hooks: dict[str, str | None] = field(default_factory=dict)

    def target(self) -> Target:
        """The target of the options. Raises `CouldNotJudge` where it cannot be had."""
        return self.broker().target()

    def broker(self) -> Broker:
        """The options of the command line that choose the same target."""
        one_broker(url=self.url, command=self.command, app=self.app, engine=self.engine)
        hooks = Hooks(**self.hooks)
        reachable(hooks, url=self.url, command=self.command)
        return Broker(
            hooks=hooks,
            url=self.url,
            command=self.command,
            app=self.app,
            token=self.token,
            headers=(),
            path_prefix="",
            ca_file=None,
            lanes=None,
            engine=None if self.engine is None else _class(self.engine),
            engine_name=self.engine,
        )

    def most(self) -> int:
        """How many schedules a workload draws at most."""
        if self.schedules is not None:
            return self.schedules
        if self.max_time_s is not None:
            return math.ceil(self.max_time_s * SCHEDULES_PER_SECOND)
        return DEFAULT_SCHEDULES


def _class(name: str) -> type[Any]:
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise CouldNotJudge(f"--broker-engine {name!r} cannot be loaded: {error}; give package.module:Class") from error
    if not isinstance(found, type):
        raise CouldNotJudge(f"--broker-engine {name!r} names no class; give package.module:Class")
    return found


class _Session:
    """What the tests of one pytest process share: the plan, and the target once it is needed."""

    def __init__(self) -> None:
        self.plan = Plan()
        self.prepared: list[Callable[..., object]] = []
        self._target: Target | None = None

    def configure(self, plan: Plan) -> None:
        self.plan = plan
        self._target = None

    def target(self) -> Target:
        if self._target is None:
            self._target = self.plan.target()
        return self._target


SESSION = _Session()


# What a workload is made of ---------------------------------------------------------------------------------------


def drawn(name: str) -> st.SearchStrategy[Schedule]:
    """Schedules of the workload `name` ("order", "groups", "redelivery", "acks", "any") for the target of this run."""
    if name not in WORKLOADS:
        raise ValueError(f"there is no workload {name!r}; there are {', '.join(WORKLOADS)}")
    return schedules(WORKLOADS[name], features=_features)


def _features() -> Features:
    return features_of(SESSION.target())


def workload(test: _Test) -> _Test:
    """Makes a `@given` test a workload: the plugin gives it its settings and its seed and judges what it plays."""
    marked: _Test = pytest.mark.workload(test)
    return marked


def prepare(test: Callable[..., object], name: str) -> None:
    """Gives a workload the number of schedules that the options ask for, and a seed of its own.

    Two workloads with one seed would draw the same schedules. Called once the options are known, before each run.
    """
    plan = SESSION.plan
    if test not in SESSION.prepared:
        SESSION.prepared.append(test)
        chosen = settings(BASE, max_examples=plan.most() + plan.most() // 10 + SPARE)
        if plan.fixed:
            chosen = settings(chosen, database=None)  # the seed decides everything: nothing comes from earlier runs
        chosen(test)
    hypothesis.seed(seed_of(plan.seed, name))(test)


class Violated(Exception):
    """A history of a workload violates a rule; the plugin makes a readable failure of it."""

    def __init__(self, found: Found) -> None:
        super().__init__(f"violated: {', '.join(found.judgement.failed)}")
        self.found = found


def _is_violated(found: Found) -> bool:
    return bool(found.judgement.failed)


class Unjudged(Exception):
    """A workload came to no verdict. The message says why, and what to do."""


class Summary(msgspec.Struct, frozen=True):
    """What one workload came to, in a form that crosses processes and stands in JUnit reports."""

    workload: str
    target: str
    profile: str
    seed: int
    schedules: int
    requests: int
    seconds: float
    rules: tuple[RuleVerdict, ...]
    situations: dict[str, int]
    unjudged: str = ""


class Probe:
    """Plays the schedules that a workload draws, and judges their histories.

    On a target with lanes a schedule is only noted; all are played side by side once Hypothesis has drawn them. A
    schedule that failed is not played again when Hypothesis asks for it once more.
    """

    def __init__(self, name: str, plan: Plan, target: Target) -> None:
        self.name = name
        self.plan = plan
        folder = None if plan.history_dir is None else plan.history_dir / name
        self._run = Run(target, seed=plan.seed, schedules=plan.most(), max_time_s=plan.max_time_s, history_dir=folder)
        self._noted: list[Schedule] = []
        self._seen: set[bytes] = set()
        self._failed: dict[bytes, Found] = {}
        self._side_by_side = lanes_of(target) > 1
        self._error: Exception | None = None

    def __call__(self, schedule: Schedule) -> None:
        """Plays a schedule, now or later. Raises `Violated`."""
        text = to_json(schedule)
        if text in self._failed:
            raise Violated(self._failed[text])
        if text in self._seen or self._error is not None or self._run.over:
            return
        self._seen.add(text)
        if self._side_by_side:
            self._noted.append(schedule)
            return
        found = self._play(schedule)
        if found is not None and found.judgement.failed:
            self._failed[text] = found
            raise Violated(found)

    def _play(self, schedule: Schedule) -> Found | None:
        """Errors that are no verdict are kept for `finish`: Hypothesis would play the schedule again to see them."""
        try:
            found = self._run.play(schedule)
        except Exception as error:
            self._error = error
            return None
        for situation in found.judgement.situations:
            hypothesis.event(situation)
        hypothesis.target(float(len(found.judgement.situations)), label="situations")
        return found

    def finish(self) -> None:
        """Plays what was noted. Raises `Violated`, and what went wrong meanwhile."""
        if self._error is not None:
            raise self._error
        for found in self._run.play_many(self._noted[: self.plan.most()], stop=_is_violated):
            if found.judgement.failed:
                raise Violated(found)
        rules = self._run.exploration().rules
        crashed = [rule for rule in rules if rule.verdict is Verdict.ERROR]
        if crashed:
            raise Unjudged(f"the check of {crashed[0].rule} crashed: {crashed[0].reason}; please report it")
        if not any(rule.compared for rule in rules):
            played = self._run.played
            raise Unjudged(f"no rule compared anything in {played} schedules; give more --schedules or --max-time")

    def failure(self, found: Found) -> Failure:
        """Makes what was found small, confirms it and writes its replay file."""
        failure = investigate(
            found,
            self._run.target,
            seed=self.plan.seed,
            shrink_s=self._run.shrink_s(),
            elapsed_s=self._run.elapsed_s,
            history_path=self._run.path("minimal"),
        )
        replay = replay_file.Replay(
            replay=replay_file.REPLAY_VERSION,
            suite=suite_version(),
            rule=failure.violation.rule,
            signature=failure.violation.signature,
            target=self._run.target.describe,
            seed=self.plan.seed,
            expected=failure.violation.expected,
            observed=failure.violation.observed,
            schedule=failure.schedule,
        )
        path = replay_file.write(replay, self.plan.failures_dir)
        return msgspec.structs.replace(failure, replay_path=str(path))

    def summary(self, unjudged: str = "") -> Summary:
        """What the workload came to so far; violations are left to the failure's own text."""
        run = self._run.exploration()
        return Summary(
            workload=self.name,
            target=run.target,
            profile=run.profile,
            seed=run.seed,
            schedules=run.schedules,
            requests=run.requests,
            seconds=round(run.seconds, 3),
            rules=tuple(msgspec.structs.replace(rule, violations=()) for rule in run.rules),
            situations=run.situations,
            unjudged=unjudged,
        )


def explain(failure: Failure, plan: Plan, *, width: int) -> str:
    """The text of a failed workload."""
    from contract.reports import text

    return text.failure(failure, replay_options=plan.broker().options(), width=width)


def total(summaries: Iterable[Summary]) -> Exploration:
    """All workloads as one run. Summaries are sorted first, since workers report in any order."""
    merger = Merger()
    reached: dict[str, int] = {}
    ordered = sorted(summaries, key=lambda summary: summary.workload)
    for summary in ordered:
        merger.add(summary.rules)
        for name, count in summary.situations.items():
            reached[name] = reached.get(name, 0) + count
    first = ordered[0]
    return Exploration(
        target=first.target,
        profile=first.profile,
        seed=first.seed,
        schedules=sum(summary.schedules for summary in ordered),
        requests=sum(summary.requests for summary in ordered),
        seconds=sum(summary.seconds for summary in ordered),
        rules=merger.rules(),
        situations=reached,
        never_reached=tuple(name for name in SITUATIONS if name not in reached),
        failures=(),
    )


def report(exploration: Exploration, *, width: int) -> list[str]:
    """The lines of the terminal summary."""
    from contract.reports import text

    parts = [
        text.heading(exploration, width=width),
        text.table(exploration.rules, width=width),
        text.never_reached(exploration, width=width),
    ]
    return [line for part in parts for line in part.splitlines()]


def to_property(summary: Summary) -> str:
    """A summary as text, for `user_properties`."""
    return msgspec.json.encode(summary).decode()


def from_property(text: str) -> Summary:
    """Reads what `to_property` wrote."""
    return msgspec.json.decode(text, type=Summary)
