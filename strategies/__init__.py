"""What may happen to a broker: schedules as plain data, and how they are drawn.

The names of `strategies.schedule` need nothing but msgspec. Those of `strategies.draw` need Hypothesis, which is
imported when one of them is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from strategies.schedule import Schedule, from_json, to_json

if TYPE_CHECKING:
    from strategies.draw import (
        WORKLOADS,
        Features,
        Weights,
        acks,
        anything,
        groups,
        order,
        redelivery,
        schedules,
        storms,
    )

__all__ = [
    "WORKLOADS",
    "Features",
    "Schedule",
    "Weights",
    "acks",
    "anything",
    "from_json",
    "groups",
    "order",
    "redelivery",
    "schedules",
    "storms",
    "to_json",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from strategies import draw

    return getattr(draw, name)
