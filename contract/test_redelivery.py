"""Redelivery: leases that run out, consumers that crash, answers that are lost, brokers that are killed."""

from __future__ import annotations

from hypothesis import given

from contract.probe import Probe, drawn, workload
from strategies.schedule import Schedule


@workload
@given(schedule=drawn("redelivery"))
def test_redelivery(schedule: Schedule, probe: Probe) -> None:
    """What was not acked comes back, and what was acked does not."""
    probe(schedule)
