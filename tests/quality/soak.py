"""The clean soak: many schedules on the correct reference broker, and not one alarm.

    python tests/quality/soak.py [--schedules 50000] [--processes 2] [--seed 1] [--write docs/soak.md]

Prints how often each rule compared something. Exit code 1 where a rule fails or its check crashes, or where a MUST
rule compared less than a fiftieth of the number of schedules.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import msgspec

from contract.explore import explore, features_of, seed_of
from contract.rules import RULES
from contract.targets import Simulated
from contract.verdicts import Verdict
from profile_digest import digest

CHUNK = 1000
"""Schedules of one run inside the soak; each has a seed of its own."""

LEAST_SHARE = 50
"""A MUST rule compares at least once in so many schedules."""


class Part(msgspec.Struct, frozen=True):
    """What one chunk came to."""

    schedules: int
    requests: int
    seconds: float
    compared: dict[str, int]
    alarms: tuple[str, ...]


def soak(seed: int, schedules: int) -> Part:
    """One chunk."""
    target = Simulated()
    features = features_of(target)
    every = dataclasses.replace(features, kinds=features.kinds | {"storm"})
    run = explore(target, seed=seed, schedules=schedules, features=every)
    alarms = [f"seed {seed}: {failure.violation}" for failure in run.failures]
    alarms += [f"seed {seed}: {v.rule} {v.reason}" for v in run.rules if v.verdict is Verdict.ERROR]
    compared = {verdict.rule: verdict.compared for verdict in run.rules}
    return Part(run.schedules, run.requests, run.seconds, compared, tuple(alarms))


def report(parts: list[Part], seed: int) -> str:
    """The whole page."""
    compared: Counter[str] = Counter()
    for part in parts:
        compared.update(part.compared)
    schedules = sum(part.schedules for part in parts)
    requests = sum(part.requests for part in parts)
    alarms = sum(len(part.alarms) for part in parts)
    return "\n".join(
        [
            "# Clean soak",
            "",
            "Printed by `python tests/quality/soak.py`; do not edit. Schedules with all steps and faults of the",
            "simulated target, storms included, on the correct reference broker. An alarm here would be a false one.",
            "",
            f"Profile digest {digest()}, seed {seed}.",
            "",
            f"{schedules:,} schedules, {requests:,} requests, {alarms} alarms.",
            "",
            "| rule | level | compared |",
            "|---|---|---|",
            *(f"| {rule.id} | {rule.level} | {compared[rule.id]:,} |" for rule in RULES.values()),
            "",
        ]
    )


def main() -> int:
    """Runs the soak; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--schedules", type=int, default=50_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    sizes = [min(CHUNK, options.schedules - first) for first in range(0, options.schedules, CHUNK)]
    parts = []
    with ProcessPoolExecutor(options.processes) as pool:
        jobs = [pool.submit(soak, seed_of(options.seed, number), size) for number, size in enumerate(sizes)]
        for job in jobs:
            parts.append(job.result())
            for alarm in parts[-1].alarms:
                print("ALARM", alarm, flush=True)
    page = report(parts, options.seed)
    print(page)
    if options.write:
        options.write.write_text(page, encoding="utf-8")
    compared: Counter[str] = Counter()
    for part in parts:
        compared.update(part.compared)
    least = options.schedules // LEAST_SHARE
    poor = [rule.id for rule in RULES.values() if rule.level == "MUST" and compared[rule.id] < least]
    for rule in poor:
        print(f"POOR {rule}: compared {compared[rule]} times, at least {least} are wanted")
    return 1 if poor or any(part.alarms for part in parts) else 0


if __name__ == "__main__":
    sys.exit(main())
