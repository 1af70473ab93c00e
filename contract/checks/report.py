"""Where the checks write what they compared and what they found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from contract.checks.facts import Message, Run
from contract.verdicts import Violation

SHOWN = 8


@dataclass(slots=True)
class Report:
    """Evidence, violations and skip reasons of one judgement, by rule id."""

    compared: Counter[str] = field(default_factory=Counter)
    violations: dict[str, list[Violation]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def violate(self, violation: Violation) -> None:
        """Files a violation under its rule."""
        self.violations.setdefault(violation.rule, []).append(violation)

    def skip(self, rule: str, reason: str) -> None:
        """The rule cannot be judged on this history; the first reason stays."""
        self.skipped.setdefault(rule, reason)


def violation_in_run(
    rule: str,
    run: Run,
    expected: str,
    observed: str,
    calls: tuple[int, ...] = (),
    *,
    following: bool = False,
) -> Violation:
    """A violation that a run shows."""
    return Violation(
        rule,
        run.queue,
        run.partition,
        run.group,
        expected,
        observed,
        calls or (run.call.number,),
        following=following,
        line=line_of(run.call.returned),
        at_us=run.call.returned_us,
    )


def line_of(moment: int) -> int:
    """The line of the history file that holds the event of a moment; the header is line 1."""
    return moment + 2


def short(text: str, limit: int = 60) -> str:
    """Untrusted text, cut where it is long."""
    return text if len(text) <= limit else text[:limit] + "..."


def names(messages: Iterable[Message]) -> str:
    """Messages by their short names, at most eight of them: "m1, m2"."""
    listed = [message.name for message in messages]
    if len(listed) > SHOWN:
        return ", ".join(listed[:SHOWN]) + f" and {len(listed) - SHOWN} more"
    return ", ".join(listed)
