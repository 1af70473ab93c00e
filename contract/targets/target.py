"""What every target offers to those who draw, shrink and explore."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, get_args

from contract.history import History
from contract.profile import Profile
from strategies.schedule import BrokerFault, Faulty, Schedule


def _tags(kinds: object) -> frozenset[str]:
    return frozenset(str(kind.__struct_config__.tag) for kind in get_args(kinds))


REQUEST_FAULTS = _tags(Faulty)
"""Tags of the faults of single requests, which every target can play."""

BROKER_FAULTS = _tags(BrokerFault)
"""Tags of what can be done to a broker only where it can be reached other than by its clients."""


Seen = Callable[[int, History], bool]
"""Takes the number of a schedule, counted from 0, and its history; says whether that is enough."""


def deterministic(target: Target) -> bool:
    """Whether the target does the same each time: an attribute of its own says so, else whether its time is virtual."""
    return bool(getattr(target, "deterministic", target.profile.virtual_time))


class Target(Protocol):
    """A broker that schedules can be played against."""

    @property
    def describe(self) -> str:
        """What is judged, for people."""

    @property
    def profile(self) -> Profile:
        """Tolerances of this kind of broker."""

    @property
    def capabilities(self) -> dict[str, str | int | bool]:
        """What a probe found."""

    @property
    def faults(self) -> frozenset[str]:
        """Tags of the faults that happen here; the others are recorded as not supported and do nothing."""

    def can(self, fault: str) -> bool:
        """Whether a fault, by its tag in a schedule ("kill-broker"), happens here."""

    def play(self, schedule: Schedule, *, seed: int = 0, path: Path | None = None) -> History:
        """Plays one schedule. The history is also written to `path`, line by line."""

    def play_many(
        self,
        schedules: Sequence[Schedule],
        *,
        seed: int = 0,
        paths: Sequence[Path | None] | None = None,
        seen: Seen | None = None,
    ) -> list[History]:
        """Plays many schedules, side by side where that saves time. Histories come in the order of the schedules.

        `seen` is handed each history when it is done, one at a time, perhaps in another thread. Once it says True, no
        further schedule is begun, and those that were not begun have no history: they are the last ones.
        """
