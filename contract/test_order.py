"""Order inside a partition: many pushes, side by side and of many items."""

from __future__ import annotations

from hypothesis import given

from contract.probe import Probe, drawn, workload
from strategies.schedule import Schedule


@workload
@given(schedule=drawn("order"))
def test_order(schedule: Schedule, probe: Probe) -> None:
    """Each partition delivers its messages to every group in the order of their pushes."""
    probe(schedule)
