"""Acks: every status, mixed batches, stale and absent leases."""

from __future__ import annotations

from hypothesis import given

from contract.probe import Probe, drawn, workload
from strategies.schedule import Schedule


@workload
@given(schedule=drawn("acks"))
def test_acks(schedule: Schedule, probe: Probe) -> None:
    """An ack moves the cursor as its status says, and only under the lease that it names."""
    probe(schedule)
