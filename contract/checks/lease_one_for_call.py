"""lease/one-lease-covers-the-call: one lease id covers every partition of a pop.

Reads the answers of pops that gave something. Proves: each message carries the lease id of the answer, and an autoAck
pop carries none. Cannot prove that the lease is in force; the other lease rules do.
"""

from __future__ import annotations

from contract.checks.model import Model
from contract.checks.report import Report, short, violation_in_run
from contract.history import PopResult

RULES = ("lease/one-lease-covers-the-call",)


def check(model: Model, report: Report) -> None:
    """Files at most one violation for each partition of an answer."""
    (rule,) = RULES
    for run in model.facts.runs:
        result = run.call.result
        assert isinstance(result, PopResult)
        report.compared[rule] += 1
        carried = {result.lease_ids[at] for at in run.at}
        if run.auto_ack:
            wrong = carried - {""} or ({result.lease_id} - {""})
            expected = "no lease: the pop commits while it answers"
        else:
            wrong = carried - {result.lease_id} or ({""} if not result.lease_id else set())
            expected = f"the lease {short(result.lease_id)} on every message"
        if wrong:
            report.violate(violation_in_run(rule, run, expected, f"lease {short(sorted(wrong)[0])!r}"))
