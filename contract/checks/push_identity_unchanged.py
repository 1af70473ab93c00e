"""push/identity-unchanged: a message keeps its id, its transactionId and its partition.

Reads every delivery of a message whose push is known. Proves: it carries the transactionId that was sent (or the one
that the answer named where none was sent), and comes from the partition to which it was pushed.
Cannot prove the minted transactionId of a push that was not answered.
"""

from __future__ import annotations

from contract.checks.facts import Message
from contract.checks.model import Model
from contract.checks.report import Report, short, violation_in_run
from contract.history import PopResult

RULES = ("push/identity-unchanged",)


def check(model: Model, report: Report) -> None:
    """Files one violation for each message whose identity changed."""
    (rule,) = RULES
    reported: set[Message] = set()
    for run in model.facts.runs:
        result = run.call.result
        assert isinstance(result, PopResult)
        for at, message in zip(run.at, run.messages, strict=True):
            if message.push is None:
                continue
            report.compared[rule] += 1
            delivered = result.transaction_ids[at]
            if message in reported:
                continue
            if message.partition != run.partition:
                reported.add(message)
                expected = f"{message.name} comes from {short(message.partition)}, where it was pushed"
                report.violate(violation_in_run(rule, run, expected, f"it came from {short(run.partition)}"))
            elif message.transaction_id is not None and delivered != message.transaction_id:
                reported.add(message)
                expected = f"{message.name} has the transactionId {short(message.transaction_id)}"
                report.violate(violation_in_run(rule, run, expected, f"it came with {short(delivered)}"))
