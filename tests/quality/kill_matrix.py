"""The kill matrix: each seeded defect, played until the rule that names it stands as the headline of a small schedule.

    python tests/quality/kill_matrix.py [--seeds 10] [--processes 2] [--write docs/kill-matrix.md] [DEFECT ...]

For each defect and seed a run like `broker-contract run` goes on, with the rules already found set aside, until the
headline of a minimal schedule is one of the rules that the defect is filed under. Exit code 1 where a defect was not
found within the budget of a default run, or where the smallest schedule has more than the allowed steps.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import msgspec

from contract.explore import explore
from contract.finding import Failure
from contract.targets import Simulated
from defects import DEFECTS, Defect
from profile_digest import digest
from strategies.schedule import flatten

BUDGET = 3000
"""Schedules of a default run: 20 s at 150 a second. Counted, so that a busy machine finds the same."""

MOST_STEPS = 8
"""Steps of a minimal schedule, at worst."""


class Kill(msgspec.Struct, frozen=True):
    """One defect under one seed. Seconds are NaN, and steps 0, where it was not found."""

    defect: str
    seed: int
    rule: str = ""
    first_s: float = float("nan")
    minimal_s: float = float("nan")
    steps: int = 0

    @property
    def found(self) -> bool:
        """Whether a rule that names the defect came to be the headline."""
        return bool(self.rule)


def hunt(name: str, seed: int) -> Kill:
    """Plays one defect under one seed."""
    defect = DEFECTS[name]
    first: list[Failure] = []

    def enough(failure: Failure) -> bool:
        first.append(failure)
        return failure.violation.rule in defect.headlines

    explore(Simulated(engine=defect.engine), seed=seed, schedules=BUDGET, enough=enough, thorough=True)
    last = first[-1] if first else None
    if last is None or last.violation.rule not in defect.headlines:
        return Kill(name, seed)
    return Kill(
        name,
        seed,
        last.violation.rule,
        first[0].seconds_to_first,
        last.seconds_to_minimal,
        sum(1 for _ in flatten(last.schedule.steps)),
    )


def row(defect: Defect, kills: list[Kill]) -> str:
    """One line of the table: medians, and the worst number of steps."""
    found = [kill for kill in kills if kill.found]
    if not found:
        return f"| {defect.id} | {', '.join(defect.headlines)} | 0 of {len(kills)} | | | |"
    rules = sorted({kill.rule for kill in found}, key=defect.headlines.index)
    first_s = statistics.median(kill.first_s for kill in found)
    minimal_s = statistics.median(kill.minimal_s for kill in found)
    steps = [kill.steps for kill in found]
    return (
        f"| {defect.id} | {', '.join(rules)} | {len(found)} of {len(kills)} | {first_s:.2f} | {minimal_s:.2f}"
        f" | {statistics.median(steps):g} ({max(steps)}) |"
    )


def summary(sequential: list[Kill]) -> str:
    """Medians over every defect that needs no concurrency."""
    first_s = statistics.median(kill.first_s for kill in sequential)
    minimal_s = statistics.median(kill.minimal_s for kill in sequential)
    return f"Over all sequential defects: first failure {first_s:.2f} s, minimal {minimal_s:.2f} s (medians)."


def report(kills: dict[str, list[Kill]], seeds: int) -> str:
    """The whole page."""
    sequential = [kill for name, found in kills.items() if not DEFECTS[name].concurrent for kill in found if kill.found]
    lines = [
        "# Kill matrix",
        "",
        "Printed by `python tests/quality/kill_matrix.py`; do not edit. Each seeded defect of the reference broker,",
        f"the rules that became its headline, and the medians over {seeds} seeds of the seconds to the first failure",
        "and to the minimal schedule with that headline; the steps of that schedule as median (worst).",
        "",
        f"Profile digest {digest()}.",
        "",
        "| defect | headline | found | first failure, s | minimal, s | steps |",
        "|---|---|---|---|---|---|",
        *(row(DEFECTS[name], found) for name, found in kills.items()),
        "",
        summary(sequential),
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    """Runs the hunt; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("defects", nargs="*", metavar="DEFECT")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    unknown = [name for name in options.defects if name not in DEFECTS]
    if unknown:
        parser.error(f"no defect is called {unknown[0]!r}; there are {', '.join(DEFECTS)}")
    names = options.defects or list(DEFECTS)
    kills: dict[str, list[Kill]] = {}
    with ProcessPoolExecutor(options.processes) as pool:
        jobs = {name: [pool.submit(hunt, name, seed) for seed in range(options.seeds)] for name in names}
        for name, futures in jobs.items():
            kills[name] = [future.result() for future in futures]
            print(row(DEFECTS[name], kills[name]), flush=True)
    page = report(kills, options.seeds)
    print(page.rsplit("|\n", 1)[-1].strip())
    if options.write:
        options.write.write_text(page, encoding="utf-8")
    missed = [kill for found in kills.values() for kill in found if not kill.found]
    long = [kill for found in kills.values() for kill in found if kill.steps > MOST_STEPS]
    for kill in missed:
        print(f"MISSED {kill.defect} with seed {kill.seed}")
    for kill in long:
        print(f"LONG {kill.defect} with seed {kill.seed}: {kill.steps} steps")
    print(f"{len(kills)} defects, {options.seeds} seeds, {len(missed)} missed, {len(long)} with too many steps")
    return 1 if missed or long else 0


if __name__ == "__main__":
    sys.exit(main())
