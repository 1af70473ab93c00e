"""The state of a queue at one moment of a search: logs, readers, options, and what is known about the times."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from contract.exact.zone import NOW, Zone

MICROSECONDS = 1_000_000
ReaderKey = tuple[str, str]


class Entry(NamedTuple):
    """A stored message: the act that stored it, and its ids as far as they are known."""

    act: int
    message_id: str | None
    transaction_id: str | None


class Lease(NamedTuple):
    """A leased batch, up to (not including) offset `last`.

    `dead`: some answer said that it ran out, so it lives no more. `over`: it ran out so long ago that the zone has
    forgotten its end.
    """

    id: str
    last: int
    dead: bool = False
    over: bool = False


class Attempt(NamedTuple):
    """The last batch handed out and its deliveryAttempt, None where that is not known any more."""

    first: int
    last: int
    times: int | None


class Reader(NamedTuple):
    """One group on one partition. `cursor`: the first offset that is not completed."""

    cursor: int = 0
    failures: int = 0
    lease: Lease | None = None
    attempt: Attempt | None = None


class Settings(NamedTuple):
    """The options of the queue. `lease_s` None: there is no queue yet. `files`: a spent budget is answered `dlq`."""

    lease_s: int | None
    retry_limit: int
    window_s: int = 3600
    files: bool = True


@dataclass(frozen=True, slots=True)
class State:
    """The queue at one moment, together with what is known about the times."""

    settings: Settings
    logs: Mapping[str, tuple[Entry, ...]] = field(default_factory=dict)
    readers: Mapping[ReaderKey, Reader] = field(default_factory=dict)
    registered: frozenset[str] = frozenset()
    """Groups that are there for the whole queue."""
    zone: Zone = field(default_factory=Zone)

    def key(self) -> tuple[object, ...]:
        """Equal for equal states."""
        logs, readers = frozenset(self.logs.items()), frozenset(self.readers.items())
        return self.settings, logs, readers, self.registered, self.zone

    def with_log(self, partition: str, log: tuple[Entry, ...]) -> State:
        """Another log of one partition."""
        return replace(self, logs={**self.logs, partition: log})

    def with_reader(self, key: ReaderKey, reader: Reader) -> State:
        """Another state of one reader; the end of a lease that it no longer has is forgotten."""
        kept = reader.lease is not None and not reader.lease.over
        zone = self.zone if kept else self.zone.without(key)
        return replace(self, readers={**self.readers, key: reader}, zone=zone)

    def later(self, least_us: int, most_us: int, forget_us: int) -> State | None:
        """The state somewhere between two times. Ends of leases that lie more than `forget_us` back are forgotten."""
        zone = self.zone.later(least_us, most_us)
        if zone is None:
            return None
        over = [key for key in zone.names[2:] if zone.most(key, NOW) < -forget_us]
        readers = dict(self.readers)
        for key, reader in self.readers.items():
            if key in over and reader.lease is not None:
                readers[key] = reader._replace(lease=reader.lease._replace(dead=True, over=True))
                zone = zone.without(key)
        return replace(self, readers=readers, zone=zone)

    def alive(self, key: ReaderKey) -> State | None:
        """The part in which the reader's lease is alive."""
        lease = self.readers[key].lease
        return None if lease is None or lease.dead else self.limited(NOW, key, 0)

    def run_out(self, key: ReaderKey, early_us: int) -> State | None:
        """The part in which the reader's lease has run out, at most `early_us` before its time."""
        reader = self.readers[key]
        if reader.lease is None or reader.lease.dead:
            return self
        dead = self.limited(key, NOW, early_us)
        return dead and dead.with_reader(key, reader._replace(lease=reader.lease._replace(dead=True)))

    def limited(self, first: Hashable, second: Hashable, most: int) -> State | None:
        """The part where two times are at most so far apart."""
        zone = self.zone.limit(first, second, most)
        return None if zone is None else self if zone is self.zone else replace(self, zone=zone)
