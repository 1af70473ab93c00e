"""Twelve kinds of bad histories are flagged in every draw, by a rule that fits; legal ones never are."""

from __future__ import annotations

from random import Random

import pytest

from contract.history_builder import HistoryBuilder
from contract.judge import headline, judge
from contract.verdicts import Judgement, Verdict
from twelve import LEGAL, TWELVE, Kind

DRAWS = 200

# Where other groups of the noise acked up to the same place, or held a lease, one history cannot tell that it was not
# their doing; the judge may name them first.
COINCIDENCES = frozenset({"group/independent-cursor", "group/independent-lease"})


def draws(kind: Kind) -> list[HistoryBuilder]:
    return [kind.draw(Random(f"{kind.id} {number}")) for number in range(DRAWS)]


def violations(judgement: Judgement) -> list[str]:
    return [f"{v.rule}: {v.expected}; {v.observed}" for verdict in judgement.rules for v in verdict.violations]


def test_there_are_twelve_bad_kinds_and_six_legal_ones() -> None:
    assert (len(TWELVE), len(LEGAL)) == (12, 6)


@pytest.mark.parametrize("kind", TWELVE, ids=lambda kind: kind.id)
def test_a_bad_history_is_flagged_by_a_rule_that_fits(kind: Kind) -> None:
    for number, scene in enumerate(draws(kind)):
        judgement = judge(scene.history())
        first = headline(judgement)
        assert not judgement.errors
        assert first is not None, f"draw {number} was passed"
        assert kind.rules & set(judgement.failed), f"draw {number}: {violations(judgement)}"
        assert first.rule in kind.rules | COINCIDENCES, f"draw {number}: {violations(judgement)}"


@pytest.mark.parametrize("kind", LEGAL, ids=lambda kind: kind.id)
def test_a_legal_history_is_passed(kind: Kind) -> None:
    for number, scene in enumerate(draws(kind)):
        judgement = judge(scene.history())
        assert not judgement.errors
        assert not judgement.failed, f"draw {number}: {violations(judgement)}"


@pytest.mark.parametrize("kind", [*TWELVE, *LEGAL], ids=lambda kind: kind.id)
def test_every_draw_is_another_history(kind: Kind) -> None:
    seen = {scene.history().events for scene in draws(kind)}
    assert len(seen) > DRAWS * 9 // 10


@pytest.mark.parametrize("kind", LEGAL, ids=lambda kind: kind.id)
def test_a_legal_history_is_judged_and_not_skipped(kind: Kind) -> None:
    verdicts = [verdict for scene in draws(kind) for verdict in judge(scene.history()).rules]
    assert any(verdict.verdict is Verdict.PASS for verdict in verdicts)
    assert not any(verdict.verdict is Verdict.SKIP for verdict in verdicts)
