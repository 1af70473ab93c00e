"""Acks whose lease was certainly not the live one, through the whole time in which they can have acted.

A lease is certainly dead when its latest possible end has passed, when an answered ack certainly released it, when a
later pop of the same group was given the partition (a group has one live lease on a partition), or when no pop ever
handed that lease out to this reader.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

from contract.checks.facts import Call, Run
from contract.checks.leases import Lease
from contract.checks.readers import Ack, Reader


@dataclass(slots=True)
class DeadAck:
    """An answered ack under a dead lease, and why the lease was dead."""

    ack: Ack
    why: str


def acks_under_dead_leases(reader: Reader, leases: list[Lease]) -> list[DeadAck]:
    """The answered acks of a reader whose lease was certainly dead when they were invoked."""
    by_id: dict[str, list[Lease]] = {}
    for lease in leases:
        by_id.setdefault(lease.run.lease_id, []).append(lease)
    found = []
    for ack in reader.acks:
        if ack.lease_id is None or not ack.call.ok:
            continue
        why = _why_dead(by_id.get(ack.lease_id), ack.call, reader.runs)
        if why:
            found.append(DeadAck(ack, why))
    return found


def _why_dead(leases: list[Lease] | None, call: Call, runs: list[Run]) -> str:
    if leases is None:
        return "no pop was ever given that lease here"
    reasons = [why_over(lease, call, runs, end_high_us=lease.end_high_us) for lease in leases]
    return reasons[0] if all(reasons) else ""


def why_over(lease: Lease, call: Call, runs: list[Run], *, end_high_us: int) -> str:
    """Why a lease was certainly over when `call` was invoked; "" where it may have been alive."""
    if lease.released < call.invoked:
        return "it had been released"
    if end_high_us < call.invoked_us:
        return "it had run out"
    first = bisect.bisect_right(runs, lease.run.call.returned, key=_returned)
    for run in runs[first : bisect.bisect_left(runs, call.invoked, key=_returned)]:
        if run.call.invoked > lease.run.call.returned and run.lease_id != lease.run.lease_id:
            return "a later pop held the partition"
    return ""


def _returned(run: Run) -> int:
    return run.call.returned
