"""lease/dead-lease-stays-dead: an extension of a lease that is over renews nothing.

Reads the answered extensions of leases that were certainly over, in every partition they covered, when the extension
was sent. Proves: each was answered `success:false, renewed:0`. That a refused extension revived nothing shows in the
redelivery rules. Cannot prove anything about a lease that may still have been alive.
"""

from __future__ import annotations

from contract.checks.dead_leases import why_over
from contract.checks.facts import Call
from contract.checks.leases import Lease
from contract.checks.model import Model, ReaderModel
from contract.checks.report import Report, line_of
from contract.history import ExtendCall, ExtendResult
from contract.verdicts import Violation

RULES = ("lease/dead-lease-stays-dead",)


def check(model: Model, report: Report) -> None:
    """Files one violation for each extension that renewed a dead lease."""
    (rule,) = RULES
    by_id: dict[str, list[tuple[ReaderModel, Lease]]] = {}
    for reader_model in model.readers.values():
        for lease in reader_model.leases:
            by_id.setdefault(lease.run.lease_id, []).append((reader_model, lease))
    for call in model.facts.extends:
        request, result = call.request, call.result
        assert isinstance(request, ExtendCall)
        if not isinstance(result, ExtendResult):
            continue
        reasons = [_why_dead(owner, lease, call) for owner, lease in by_id.get(request.lease_id, ())]
        if not all(reasons):
            continue
        report.compared[rule] += 1
        if result.success or result.renewed:
            why = reasons[0] if reasons else "no pop was ever given that lease"
            partition = by_id[request.lease_id][0][1].run.partition if request.lease_id in by_id else ""
            report.violate(
                Violation(
                    rule,
                    request.queue,
                    partition,
                    request.group,
                    f"nothing is renewed: {why}",
                    f"success {str(result.success).lower()}, renewed {result.renewed}",
                    (call.number,),
                    line=line_of(call.returned),
                    at_us=call.returned_us,
                )
            )


def _why_dead(owner: ReaderModel, lease: Lease, call: Call) -> str:
    """Why the lease was over before the extension, which must not count towards its own life."""
    return why_over(lease, call, owner.reader.runs, end_high_us=lease.end_high_before(call))
