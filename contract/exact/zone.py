"""What is known about times: every set of moments that satisfies some differences, as one closed matrix.

The times are zero (the start of the run), now, and the end of each lease that may still be alive. A zone holds every
assignment of integers (microseconds) for which each difference of two of them is at most its bound. It is always
closed, each bound as tight as all the others make it, so equal zones have equal bounds and can be compared and hashed.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

INFINITE = 1 << 62
ZERO: Hashable = "zero"
NOW: Hashable = "now"


@dataclass(frozen=True, slots=True)
class Zone:
    """`bounds[i][j]` is the largest that `names[i]` minus `names[j]` can be. Never empty."""

    names: tuple[Hashable, ...] = (ZERO, NOW)
    bounds: tuple[tuple[int, ...], ...] = ((0, 0), (INFINITE, 0))

    def most(self, first: Hashable, second: Hashable) -> int:
        """The largest that `first` minus `second` can be."""
        return self.bounds[self.names.index(first)][self.names.index(second)]

    def limit(self, first: Hashable, second: Hashable, most: int) -> Zone | None:
        """The part where `first` minus `second` is at most `most`; None where it is empty."""
        i, j = self.names.index(first), self.names.index(second)
        if most >= self.bounds[i][j]:
            return self
        if most + self.bounds[j][i] < 0:
            return None
        to_first = [row[i] for row in self.bounds]
        from_second = self.bounds[j]
        return Zone(
            self.names,
            tuple(
                tuple(min(old, _sum(before, most, after)) for old, after in zip(row, from_second, strict=True))
                for row, before in zip(self.bounds, to_first, strict=True)
            ),
        )

    def later(self, least: int, most: int) -> Zone | None:
        """Time goes on to somewhere between two moments; None where all of them have passed."""
        now = self.names.index(NOW)
        row = tuple(0 if j == now else INFINITE for j in range(len(self.names)))
        zone: Zone | None = Zone(self.names, self.bounds[:now] + (row,) + self.bounds[now + 1 :])
        zone = zone.limit(ZERO, NOW, -least) if zone is not None else None
        return zone.limit(NOW, ZERO, most) if zone is not None else None

    def with_end(self, name: Hashable, after_now: int) -> Zone:
        """A new time `name`, which is that much after now."""
        now = self.names.index(NOW)
        rows = [(*row, _sum(row[now], -after_now)) for row in self.bounds]
        rows.append((*[_sum(bound, after_now) for bound in self.bounds[now]], 0))
        return Zone((*self.names, name), tuple(rows))

    def without(self, name: Hashable) -> Zone:
        """The time `name` is forgotten."""
        if name not in self.names:
            return self
        gone = self.names.index(name)
        keep = [index for index in range(len(self.names)) if index != gone]
        return Zone(
            tuple(self.names[index] for index in keep), tuple(tuple(self.bounds[i][j] for j in keep) for i in keep)
        )


def _sum(*bounds: int) -> int:
    return INFINITE if INFINITE in bounds else sum(bounds)
