"""lease/exclusive, lease/not-before-expiry, lease/extend-extends-all: while a lease lives, nobody else is served.

Reads the runs and leases of every reader. Two runs are a violation if neither order of acting is possible: A before B
is impossible when B returned before A was invoked, or when A took a lease, B returned before the earliest possible end
of that lease, and nothing that could release it may have acted before B returned. So two pops at the same moment that
both get the message are caught, too (exclusive). Where the later run gives the very messages of the lease again, they
came before its expiry (not-before-expiry); where they came after the first end of the lease and before the one that an
answered extension set, the extension did not reach this partition (extend-extends-all); so does one that is refused
while the lease is certainly alive.

Evidence: pops that covered a partition under a lease that was certainly alive, and redeliveries that came when the
lease may have been over.
Cannot prove: that a lease lives exactly as long as it was asked for; overlaps within the uncertainty of its end.
"""

from __future__ import annotations

import msgspec

from contract.checks.facts import Run
from contract.checks.leases import Lease
from contract.checks.model import Model, ReaderModel
from contract.checks.report import Report, line_of, names, violation_in_run
from contract.history import ExtendCall, ExtendResult

EXCLUSIVE, EXPIRY, EXTEND = RULES = ("lease/exclusive", "lease/not-before-expiry", "lease/extend-extends-all")


def check(model: Model, report: Report) -> None:
    """Files at most one violation of each rule for each run that came while another one's lease lived."""
    _check_extensions(model, report)
    for reader_model in model.readers.values():
        leases = {id(lease.run): lease for lease in reader_model.leases}
        _count_held_back(report, reader_model)
        active: list[Lease] = []
        previous: Lease | None = None
        for run in reader_model.reader.runs:
            returned, returned_us = run.call.returned, run.call.returned_us
            active = [lease for lease in active if lease.certainly_alive(returned, returned_us)]
            mine = leases.get(id(run))
            held = next((lease for lease in active if not _other_order_possible(lease.run, run, mine)), None)
            if held is not None:
                _file(report, held, run)
            elif previous is not None and previous.run.messages[0] in run.messages:
                report.compared[EXPIRY] += 1
            if mine is not None:
                active.append(mine)
                previous = mine


def _other_order_possible(held: Run, run: Run, lease: Lease | None) -> bool:
    """Whether `run` can have been taken before `held` was."""
    if held.call.returned < run.call.invoked:
        return False
    return lease is None or not lease.certainly_alive(held.call.returned, held.call.returned_us)


def _count_held_back(report: Report, model: ReaderModel) -> None:
    """Empty pops during a lease: the cases in which the lease did its work."""
    coming = iter(model.leases)
    following = next(coming, None)
    alive: list[Lease] = []
    for call in sorted(model.reader.empty, key=lambda call: call.returned):
        while following is not None and following.run.call.returned < call.returned:
            alive.append(following)
            following = next(coming, None)
        alive = [lease for lease in alive if lease.certainly_alive(call.returned, call.returned_us)]
        held = next((lease for lease in alive if lease.run.call.returned < call.invoked), None)
        if held is not None:
            report.compared[EXCLUSIVE] += 1
            if call.returned_us >= held.first_end_us:
                report.compared[EXTEND] += 1


def _check_extensions(model: Model, report: Report) -> None:
    """An extension renews every partition in which its lease is certainly alive."""
    leases: dict[str, list[Lease]] = {}
    for reader_model in model.readers.values():
        for lease in reader_model.leases:
            leases.setdefault(lease.run.lease_id, []).append(lease)
    for call in model.facts.extends:
        request, result = call.request, call.result
        assert isinstance(request, ExtendCall)
        if not isinstance(result, ExtendResult) or model.facts.without_storage(call.invoked_us, call.returned_us):
            continue
        alive = [
            lease
            for lease in leases.get(request.lease_id, ())
            if lease.run.call.returned < call.invoked and lease.certainly_alive(call.returned, call.returned_us)
        ]
        if len({lease.run.call.number for lease in alive}) != 1:
            continue  # none, or one id for several pops: which of them is renewed, nobody says
        report.compared[EXTEND] += 1
        if not result.success or result.renewed < len(alive):
            held = alive[0].run
            expected = f"the lease of {names(held.messages)} is alive in {len(alive)} partitions and renewed there"
            observed = f"success {str(result.success).lower()}, renewed {result.renewed}"
            violation = violation_in_run(EXTEND, held, expected, observed, (held.call.number, call.number))
            report.violate(msgspec.structs.replace(violation, line=line_of(call.returned), at_us=call.returned_us))


def _file(report: Report, lease: Lease, run: Run) -> None:
    held = lease.run
    expected = f"nothing while {held.call.worker} holds {names(held.messages)}"
    observed = f"{run.call.worker} got {names(run.messages)}"
    calls = (held.call.number, run.call.number)
    sequential = held.call.returned < run.call.invoked
    if sequential and run.call.returned_us >= lease.first_end_us:
        report.compared[EXTEND] += 1
        report.violate(violation_in_run(EXTEND, run, f"{expected} (the lease was extended)", observed, calls))
        return
    report.compared[EXCLUSIVE] += 1
    report.violate(violation_in_run(EXCLUSIVE, run, expected, observed, calls))
    if sequential and held.messages[0] in run.messages:
        report.compared[EXPIRY] += 1
        report.violate(violation_in_run(EXPIRY, run, f"{expected}, until its lease is over", observed, calls))
