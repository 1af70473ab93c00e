"""Consumer groups: two or three of them on the same partitions."""

from __future__ import annotations

from hypothesis import given

from contract.probe import Probe, drawn, workload
from strategies.schedule import Schedule


@workload
@given(schedule=drawn("groups"))
def test_groups(schedule: Schedule, probe: Probe) -> None:
    """Each group has its own cursor, leases and start, whatever the others do."""
    probe(schedule)
