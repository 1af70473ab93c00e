"""The judge: a history in, one verdict a rule out.

Two passes: the model (facts, stored order, cursors, leases), then the checks. A check that crashes makes its own rules
ERROR and takes nothing else with it. A rule that compared nothing is NOT EXERCISED, never PASS.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Container

import msgspec

from contract.checks import (
    ack_answers,
    ack_budget,
    ack_signals,
    ack_stale_lease_refused,
    cursor_seek,
    delivery_attempts,
    delivery_budgets,
    delivery_not_again,
    group_independent,
    group_start,
    lease_dead_stays_dead,
    lease_due_again,
    lease_exclusive,
    lease_one_for_call,
    one_result_per_item,
    order_offsets_dense,
    order_push_order,
    order_runs,
    order_starts_at_cursor,
    push_accounted_for,
    push_identity_unchanged,
    push_payload_unchanged,
    push_stored_is_delivered,
)
from contract.checks.model import Model, build_model
from contract.checks.report import Report
from contract.history import History
from contract.profile import PROFILES, SIMULATED, Profile
from contract.rules import HEADLINES, RULES
from contract.verdicts import Judgement, RuleVerdict, Verdict, Violation

Check = Callable[[Model, Report], None]

CHECKS: tuple[tuple[tuple[str, ...], Check], ...] = tuple(
    (module.RULES, module.check)
    for module in (
        push_stored_is_delivered,
        push_accounted_for,
        push_payload_unchanged,
        push_identity_unchanged,
        one_result_per_item,
        order_push_order,
        order_runs,
        order_starts_at_cursor,
        order_offsets_dense,
        group_start,
        group_independent,
        lease_exclusive,
        lease_due_again,
        lease_one_for_call,
        lease_dead_stays_dead,
        delivery_not_again,
        delivery_budgets,
        delivery_attempts,
        ack_stale_lease_refused,
        ack_signals,
        ack_budget,
        ack_answers,
        cursor_seek,
    )
)


def judge(history: History, profile: Profile | None = None) -> Judgement:
    """Judges one history by all rules. `profile` None takes the one that the header names.

    Never raises for what a broker answered: a crash of the model makes every rule ERROR, with the place.
    """
    used = profile or PROFILES.get(history.header.profile, SIMULATED)
    report = Report()
    errors: dict[str, str] = {}
    try:
        model = build_model(history, used)
    except Exception as error:
        reason = _place(error)
        return Judgement(tuple(RuleVerdict(rule, Verdict.ERROR, reason=reason) for rule in RULES))
    for rules, check in CHECKS:
        try:
            check(model, report)
        except Exception as error:
            errors.update((rule, _place(error)) for rule in rules)
    if model.facts.deleted_queues:
        for rule in RULES:
            report.skip(rule, "the queue was deleted in this history")
    if report.violations:
        _mark_following(report)
    deviations = frozenset((known.rule, known.signature) for known in used.deviations)
    return Judgement(tuple([_verdict(rule, report, errors, deviations) for rule in RULES]))


def _mark_following(report: Report) -> None:
    """Violations of one reader after its first one may come from it."""
    first: dict[tuple[str, str, str], int] = {}
    every = [violation for violations in report.violations.values() for violation in violations]
    for violation in every:
        key = (violation.queue, violation.partition, violation.group)
        if violation.line:
            first[key] = min(violation.line, first.get(key, violation.line))
    for rule, violations in report.violations.items():
        report.violations[rule] = [
            msgspec.structs.replace(violation, following=True)
            if violation.line > first.get((violation.queue, violation.partition, violation.group), violation.line)
            else violation
            for violation in violations
        ]


def _place(error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({last.filename.rsplit('/', 1)[-1]}:{last.lineno})"


def _verdict(rule: str, report: Report, errors: dict[str, str], deviations: Container[tuple[str, str]]) -> RuleVerdict:
    compared = report.compared[rule]
    found = report.violations.get(rule)
    if found is None and rule not in errors and rule not in report.skipped:
        return RuleVerdict(rule, Verdict.PASS if compared else Verdict.NOT_EXERCISED, compared)
    found = found or []
    known = tuple(violation for violation in found if (violation.rule, violation.signature) in deviations)
    violations = tuple(violation for violation in found if (violation.rule, violation.signature) not in deviations)
    if rule in errors:
        return RuleVerdict(rule, Verdict.ERROR, compared, errors[rule], violations, known)
    if rule in report.skipped:
        return RuleVerdict(rule, Verdict.SKIP, 0, report.skipped[rule])
    if violations:
        return RuleVerdict(rule, Verdict.FAIL, max(compared, len(violations)), violations=violations, known=known)
    verdict = Verdict.PASS if compared else Verdict.NOT_EXERCISED
    return RuleVerdict(rule, verdict, compared, known=known)


def headline(judgement: Judgement) -> Violation | None:
    """The violation to show first: one that follows from no other, and of those the one of the most specific rule."""
    found = [violation for verdict in judgement.rules for violation in verdict.violations]
    place = {rule: number for number, rule in enumerate(HEADLINES)}
    return min(found, key=lambda violation: (violation.following, place[violation.rule]), default=None)
