"""lease/redelivered-after-expiry and lease/unreceived-claim-comes-back: what was handed out and not completed comes.

Reads the due messages. Those that the group had been given before come again when their lease is over
(redelivered-after-expiry). Those that a pop with a lost answer may have claimed come, at the latest, when the lease
that it may have taken is over (unreceived-claim-comes-back).
Cannot prove anything about a message that an ack with a lost answer may have completed; a request with a lost answer
is taken to have acted by the profile's `late_effect_s` after its client gave up.
"""

from __future__ import annotations

from contract.checks.due import Due, Missing, due_messages
from contract.checks.facts import Call
from contract.checks.model import Model, ReaderModel
from contract.checks.report import Report
from contract.history import PopCall

AGAIN, UNRECEIVED = RULES = ("lease/redelivered-after-expiry", "lease/unreceived-claim-comes-back")


def check(model: Model, report: Report) -> None:
    """Files one violation for each reader and place of asking."""
    for reader_model in model.readers.values():
        _count_served(report, reader_model)
    missing = Missing()
    for due in due_messages(model):
        rule = AGAIN if due.again else UNRECEIVED if _may_be_claimed(due) else None
        if rule is None:
            continue
        report.compared[rule] += 1
        if not due.came:
            missing.add(rule, due)
    missing.file(
        report,
        {
            AGAIN: "must come again: given once, not completed, the lease is over",
            UNRECEIVED: "must come: at most claimed by a pop whose client is gone",
        },
    )


def _count_served(report: Report, model: ReaderModel) -> None:
    """Runs behind a pop with a lost answer: what it may have claimed, or left, came."""
    first = min((call.invoked for call in model.reader.unseen if leases(call)), default=None)
    if first is not None:
        report.compared[UNRECEIVED] += sum(run.call.invoked > first for run in model.reader.runs)


def leases(call: Call) -> bool:
    """Whether a pop would take a lease."""
    assert isinstance(call.request, PopCall)
    return not call.request.auto_ack


def _may_be_claimed(due: Due) -> bool:
    """Whether a leased pop with a lost answer may have taken the message."""
    return not due.skipped and any(leases(call) and call.invoked < due.moment for call in due.model.reader.unseen)
