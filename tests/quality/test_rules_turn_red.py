"""Every rule is turned red by a seeded defect: a rule that no broken broker violates is not a rule."""

from __future__ import annotations

import pytest

from contract.explore import explore
from contract.finding import Failure
from contract.rules import RULES
from contract.targets import Simulated
from defects import DEFECTS

BESIDE_THE_HEADLINE = {
    "order/one-order-for-all": "redelivery-unordered",
    "order/starts-at-cursor": "refused-ack-acts",
    "lease/not-before-expiry": "lease-ends-early",
}
"""Rules that a more specific one outdoes wherever they fail."""

SCHEDULES = 3000


def defect_for(rule: str) -> str:
    named = [defect.id for defect in DEFECTS.values() if rule == defect.headlines[0] and not defect.concurrent]
    return BESIDE_THE_HEADLINE.get(rule) or named[0]


@pytest.mark.parametrize("rule", RULES)
def test_a_seeded_defect_turns_the_rule_red(rule: str) -> None:
    found: list[str] = []

    def enough(failure: Failure) -> bool:
        found.extend((failure.violation.rule, *failure.also))
        return rule in found

    explore(Simulated(engine=DEFECTS[defect_for(rule)].engine), seed=1, schedules=SCHEDULES, enough=enough)
    assert rule in found


def test_the_reference_broker_knows_nothing_of_defects() -> None:
    modules = {defect.engine.__module__.split(".")[0] for defect in DEFECTS.values()}
    assert modules == {"defects"}
