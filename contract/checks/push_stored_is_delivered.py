"""push/stored-is-delivered: what was certainly stored comes to every group that has not passed it.

Reads the messages that were due in a complete audit or drain, and at pops that could not be empty.
Proves: each of them came. Cannot prove: that a message whose push was not answered was stored; that a message between
the lowest and the highest possible cursor had to come; anything where the audit or drain could not be completed.
"""

from __future__ import annotations

from contract.checks.due import Missing, due_messages
from contract.checks.model import Model
from contract.checks.report import Report

RULES = ("push/stored-is-delivered",)


def check(model: Model, report: Report) -> None:
    """Files one violation for each reader and place of asking, with all the messages that did not come."""
    (rule,) = RULES
    missing = Missing()
    for due in due_messages(model):
        if due.again:
            continue
        report.compared[rule] += 1
        if not due.came:
            missing.add(rule, due)
    missing.file(report, {rule: "stored and never given to the group: it must come"})
