"""push/one-result-per-item and ack/one-result-per-item: an answer has one element for each item, in request order.

Reads the answers of pushes and acks. Proves: each well-formed answer had as many elements as the request had items,
with indexes that name each item once. An answer with another number says nothing about the effect of the call, which
stays unknown for every other rule. Cannot prove anything about calls that were not answered.
"""

from __future__ import annotations

from contract.checks.facts import Call
from contract.checks.model import Model
from contract.checks.report import Report, line_of
from contract.history import AckCall, PushCall
from contract.verdicts import Violation

PUSH, ACK = RULES = ("push/one-result-per-item", "ack/one-result-per-item")

COUNT_WORDS = ("results for", "indexes")
"""How the client says that the number or the indexes of the results do not fit the items."""


def check(model: Model, report: Report) -> None:
    """Files one violation for each answer of another shape."""
    for rule, calls in ((PUSH, model.facts.pushes), (ACK, model.facts.acks)):
        for call in calls:
            if call.ok:
                report.compared[rule] += 1
            elif call.unknown and any(words in call.why for words in COUNT_WORDS):
                report.compared[rule] += 1
                report.violate(_violation(rule, call))


def _violation(rule: str, call: Call) -> Violation:
    request = call.request
    assert isinstance(request, PushCall | AckCall)
    items = len(request.statuses) if isinstance(request, AckCall) else len(request.payloads)
    return Violation(
        rule,
        request.queue,
        request.partitions[0] if request.partitions else "",
        request.group if isinstance(request, AckCall) else "",
        f"{items} result{'s' if items != 1 else ''}, one for each item",
        call.why,
        (call.number,),
        line=line_of(call.seen),
        at_us=call.seen_us,
    )
