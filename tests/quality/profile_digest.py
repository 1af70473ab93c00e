"""One profile for the kill matrix and the soak, and its digest: power and soundness are measured on the same thing."""

from __future__ import annotations

import hashlib
import inspect

from contract.explore import MIX
from contract.profile import SIMULATED
from contract.rules import HEADLINES, RULES
from strategies import draw
from strategies.draw import WORKLOADS
from strategies.schedule import SCHEDULE_VERSION

WORKLOADS_USED = tuple(MIX)


def digest() -> str:
    """Twelve hex digits over what is drawn, how it is weighted, what is tolerated and which rules judge."""
    drawn = [(name, repr(WORKLOADS[name])) for name in sorted(set(WORKLOADS_USED))]
    how = inspect.getsource(draw)
    parts = (SCHEDULE_VERSION, WORKLOADS_USED, drawn, how, repr(SIMULATED), tuple(RULES), HEADLINES)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]
