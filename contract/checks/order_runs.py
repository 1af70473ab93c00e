"""order/no-gap-in-batch and order/one-order-for-all: what one pop gives of a partition is a piece of the stored order.

Reads every run and the stored order. Proves: the messages of a run follow each other in the stored order, none left
out (no-gap-in-batch), and no two of them in another order than the partition stores them (one-order-for-all), so all
groups and all redeliveries see one order. Cannot prove anything about neighbours whose places are not connected
(without a complete audit).
"""

from __future__ import annotations

from contract.checks.facts import Message, Run
from contract.checks.model import Model
from contract.checks.report import Report, names, violation_in_run
from contract.checks.stored_order import Log, certainly_before, comparable
from contract.verdicts import Violation

RULES = ("order/no-gap-in-batch", "order/one-order-for-all")


def check(model: Model, report: Report) -> None:
    """Files at most one violation of each rule for each run."""
    for run in model.facts.runs:
        _check_run(run, model.logs[run.queue, run.partition], report)


def _check_run(run: Run, log: Log, report: Report) -> None:
    gap_rule, order_rule = RULES
    gapped = turned = False
    for first, second in zip(run.messages, run.messages[1:], strict=False):
        if not log.complete and not gapped:
            between = _between(first, second, log, run)
            report.compared[gap_rule] += 1
            if between:
                gapped = True
                report.violate(_gap(gap_rule, run, first, second, between))
                continue
        places = log.position.get(first), log.position.get(second)
        if places[0] is None or places[1] is None or not comparable(places[0], places[1]):
            continue
        report.compared[gap_rule] += 1
        report.compared[order_rule] += 1
        if places[1] <= places[0] and not turned:
            turned = True
            report.violate(_turned(order_rule, run, first, second))
        elif places[1] > places[0] + 1 and not gapped:
            gapped = True
            left_out = [log.at[place] for place in range(places[0] + 1, places[1])]
            report.violate(_gap(gap_rule, run, first, second, left_out))


def _between(first: Message, second: Message, log: Log, run: Run) -> list[Message]:
    """Messages that were stored before the pop and were certainly pushed between two neighbours."""
    if not certainly_before(first, second):
        return []
    return [
        message
        for message in log.order
        if message.stored_by < run.call.invoked
        and certainly_before(first, message)
        and certainly_before(message, second)
    ]


def _turned(rule: str, run: Run, first: Message, second: Message) -> Violation:
    if first is second:
        expected, observed = f"{first.name} once in a batch", f"{first.name} twice in a row"
    else:
        expected = f"{second.name} before {first.name}, as the partition stores them"
        observed = f"{first.name} before {second.name}"
    return violation_in_run(rule, run, expected, observed)


def _gap(rule: str, run: Run, first: Message, second: Message, left_out: list[Message]) -> Violation:
    expected = f"{names(left_out)} between {first.name} and {second.name}"
    return violation_in_run(rule, run, expected, f"{second.name} right after {first.name}")
