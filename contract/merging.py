"""The verdicts of many histories as one: what a run says of each rule."""

from __future__ import annotations

from collections.abc import Iterable

from contract.rules import RULES
from contract.verdicts import Judgement, RuleVerdict, Verdict, Violation

KEPT_VIOLATIONS = 20
"""So many violations of one rule are kept for the reports."""


class Merger:
    """Adds up judgements; costs the same memory for ten histories and for a million."""

    def __init__(self) -> None:
        self._rules: dict[str, _Sum] = {}

    def add(self, verdicts: Iterable[RuleVerdict]) -> None:
        """Adds the verdicts of one more history, or of a whole run."""
        for verdict in verdicts:
            known = self._rules.get(verdict.rule)
            if known is None:
                known = self._rules[verdict.rule] = _Sum()
            known.add(verdict)

    def rules(self) -> tuple[RuleVerdict, ...]:
        """One verdict a rule in the order of the catalogue.

        ERROR wins over all, then FAIL. PASS needs something compared. SKIP stays only where every history skipped.
        """
        ordered = [rule for rule in RULES if rule in self._rules] + [rule for rule in self._rules if rule not in RULES]
        return tuple(self._rules[rule].verdict(rule) for rule in ordered)


class _Sum:
    __slots__ = ("compared", "known", "reasons", "verdicts", "violations")

    def __init__(self) -> None:
        self.compared = 0
        self.verdicts: set[Verdict] = set()
        self.reasons: dict[Verdict, str] = {}
        self.violations: list[Violation] = []
        self.known: list[Violation] = []

    def add(self, verdict: RuleVerdict) -> None:
        self.compared += verdict.compared
        self.verdicts.add(verdict.verdict)
        if verdict.reason:
            self.reasons.setdefault(verdict.verdict, verdict.reason)
        for kept, more in ((self.violations, verdict.violations), (self.known, verdict.known)):
            kept.extend(more[: KEPT_VIOLATIONS - len(kept)])

    def verdict(self, rule: str) -> RuleVerdict:
        verdict = Verdict.NOT_EXERCISED
        if Verdict.ERROR in self.verdicts:
            verdict = Verdict.ERROR
        elif Verdict.FAIL in self.verdicts:
            verdict = Verdict.FAIL
        elif self.compared:
            verdict = Verdict.PASS
        elif self.verdicts == {Verdict.SKIP}:
            verdict = Verdict.SKIP
        reason = self.reasons.get(verdict, "")
        return RuleVerdict(rule, verdict, self.compared, reason, tuple(self.violations), tuple(self.known))


def merged(judgements: Iterable[Judgement]) -> tuple[RuleVerdict, ...]:
    """The verdicts of several judgements as one; see `Merger.rules`."""
    merger = Merger()
    for judgement in judgements:
        merger.add(judgement.rules)
    return merger.rules()
