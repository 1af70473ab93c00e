"""Where the small random histories come from that the fast judge and the exact search are compared on."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from random import Random

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from contract.history import History
from contract.targets.simulated import Simulated
from exact_mutants import clean
from exact_playground import Playground
from strategies.draw import WORKLOADS, Features, schedules
from strategies.schedule import Schedule

SIZES = (6, 10, 14, 18, 20)
"""How many calls of a play are kept."""

_SMALL = [dataclasses.replace(weights, lengths=(3, 10)) for weights in WORKLOADS.values()]
_FEATURES = Features().without("storm")


def drawn(seed_: int, count: int) -> list[tuple[Schedule, int]]:
    """Small schedules of every workload, each with a seed of its own."""
    found: list[tuple[Schedule, int]] = []

    @seed(seed_)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.one_of([schedules(weights, features=_FEATURES) for weights in _SMALL]), st.integers(0, 1 << 60))
    def collect(schedule: Schedule, number: int) -> None:
        found.append((schedule, number))

    collect()
    return found


def plays(seed_: int, count: int) -> Iterator[tuple[History, Random]]:
    """The beginnings of plays on the simulated target, each with a source for its mutants."""
    target = Simulated()
    for schedule, number in drawn(seed_, count):
        random = Random(number)
        yield clean(target.play(schedule, seed=number % 7), random.choice(SIZES)), random


def playgrounds(seed_: int, count: int) -> Iterator[tuple[History, Random]]:
    """Histories of a broker that draws whatever the contract leaves open."""
    for number in range(count):
        random = Random(f"{seed_} {number}")
        yield Playground(random).write(random.choice([4, 6, 9, 12, 16])), random
