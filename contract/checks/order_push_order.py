"""order/push-order: a partition stores and delivers its messages in the order of the pushes.

Reads every run, and the whole stored order where an audit was completed. The order of two messages is known where one
push was answered before the other was invoked, and where both are items of one request. Proves: no two such messages
changed places. Cannot prove anything about pushes that overlap, were not answered, or were spooled.
"""

from __future__ import annotations

from contract.checks.facts import Message, Run
from contract.checks.model import Model
from contract.checks.report import Report, line_of
from contract.checks.stored_order import certainly_before
from contract.verdicts import Violation

RULES = ("order/push-order",)


def check(model: Model, report: Report) -> None:
    """Files at most one violation for each run, and one for each stored order."""
    (rule,) = RULES
    for run in model.facts.runs:
        compared, pair = inversion(run.messages)
        report.compared[rule] += compared
        if pair is not None:
            report.violate(_violation(rule, pair, run.queue, run.partition, run.group, run))
    for (queue, partition), log in model.logs.items():
        if log.complete:
            compared, pair = inversion(log.order)
            report.compared[rule] += compared
            if pair is not None:
                report.violate(_violation(rule, pair, queue, partition, "", None))


def inversion(messages: list[Message]) -> tuple[int, tuple[Message, Message] | None]:
    """How many neighbours have a known order, and the first pair (earlier, later) that stands the wrong way round."""
    compared = 0
    latest: Message | None = None  # the one whose push began last among those already seen
    last_item: dict[int, Message] = {}
    for message in messages:
        push = message.push
        if push is None or not message.ordered:
            continue
        if latest is not None:
            if certainly_before(latest, message) or certainly_before(message, latest):
                compared += 1
            if message is not latest and certainly_before(message, latest):
                return compared, (message, latest)
        sibling = last_item.get(push.number)
        if sibling is not None and certainly_before(message, sibling):
            return compared, (message, sibling)
        last_item[push.number] = message
        if latest is None or push.invoked >= latest.pushed_after:
            latest = message
    return compared, None


def _violation(
    rule: str, pair: tuple[Message, Message], queue: str, partition: str, group: str, run: Run | None
) -> Violation:
    first, second = pair
    same = first.push is second.push
    why = "both items of one request" if same else "its push was answered before the other was sent"
    calls = tuple(sorted({m.push.number for m in pair if m.push is not None}))
    return Violation(
        rule,
        queue,
        partition,
        group,
        f"{first.name} before {second.name} ({why})",
        f"{second.name} came before {first.name}" if run else f"{second.name} is stored before {first.name}",
        calls=calls + ((run.call.number,) if run else ()),
        line=line_of(run.call.returned) if run else 0,
        at_us=run.call.returned_us if run else 0,
    )
