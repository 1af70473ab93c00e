"""The catalogue of rules, as a list on a terminal and as the reference page of the documentation."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contract.rules import Rule

WIDTH = 120


def plain(rules: Iterable[Rule], *, width: int = WIDTH) -> str:
    """One entry a rule: id, level and clause on one line, the statement below it."""
    lines: list[str] = []
    for rule in rules:
        lines.append(f"{rule.id}   {rule.level}   contract {rule.clause}")
        lines += textwrap.wrap(rule.statement, width, initial_indent="  ", subsequent_indent="  ")
    return "\n".join(lines)


def markdown(rules: Iterable[Rule]) -> str:
    """The page docs/rules.md, whole."""
    lines = [
        "# Rules",
        "",
        "<!-- Written by `broker-contract rules --markdown`; change the catalogue, not this page. -->",
        "",
        "Every rule has an id that does not change, a level (MUST or SHOULD), the section of the broker contract from",
        "which it comes, what counts as evidence for it, and what it cannot prove.",
    ]
    for family, members in groupby(rules, key=lambda rule: rule.id.split("/", 1)[0]):
        lines += ["", f"## {family}"]
        for rule in members:
            lines += _entry(rule)
    return "\n".join(lines) + "\n"


def _entry(rule: Rule) -> list[str]:
    return [
        "",
        f"### {rule.id}",
        "",
        f"{rule.level}, contract {rule.clause}. {rule.statement}",
        "",
        f"- Evidence: {rule.evidence}",
        f"- Cannot prove: {rule.cannot_prove}",
    ]
