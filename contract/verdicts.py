"""What a judgement says: one verdict a rule, with what was compared and what was violated.

Plain data, shared by the judge, which makes it, and by the reports, which show it.
"""

from __future__ import annotations

import enum

import msgspec


class Verdict(enum.StrEnum):
    """The five things that can be said of a rule."""

    PASS = "PASS"
    FAIL = "FAIL"
    SKIP = "SKIP"
    NOT_EXERCISED = "NOT EXERCISED"
    ERROR = "ERROR"


class Violation(msgspec.Struct, frozen=True):
    """One place where a rule does not hold.

    `expected` and `observed` are one clause each, with messages named m1, m2, ... in order of first appearance.
    `calls` are the numbers of the calls that show it. `signature` separates kinds of one rule ("" for the plain one);
    a known deviation of a broker is matched by (rule, signature). `line` is the line of the history file on which it
    shows. `following`: an earlier violation in the same (partition, group) may have caused this one.
    """

    rule: str
    queue: str
    partition: str
    group: str
    expected: str
    observed: str
    calls: tuple[int, ...] = ()
    signature: str = ""
    following: bool = False
    line: int = 0
    at_us: int = 0


class RuleVerdict(msgspec.Struct, frozen=True):
    """The verdict of one rule over one or many histories. `compared` counts the comparisons that were made."""

    rule: str
    verdict: Verdict
    compared: int = 0
    reason: str = ""
    violations: tuple[Violation, ...] = ()
    known: tuple[Violation, ...] = ()


class Judgement(msgspec.Struct, frozen=True):
    """The verdicts of all rules over one history, and the situations that it reached."""

    rules: tuple[RuleVerdict, ...]
    situations: frozenset[str] = frozenset()

    def __getitem__(self, rule: str) -> RuleVerdict:
        for verdict in self.rules:
            if verdict.rule == rule:
                return verdict
        raise KeyError(rule)

    @property
    def failed(self) -> tuple[str, ...]:
        """Ids of the rules that FAIL."""
        return tuple(verdict.rule for verdict in self.rules if verdict.verdict is Verdict.FAIL)

    @property
    def errors(self) -> tuple[RuleVerdict, ...]:
        """Rules whose check crashed."""
        return tuple(verdict for verdict in self.rules if verdict.verdict is Verdict.ERROR)
