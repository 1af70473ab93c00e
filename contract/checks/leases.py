"""When a reader's partition was certainly leased, and when it may have been.

A lease that a pop took certainly lives from the pop's return until its earliest possible end, unless something that
could release it may have acted; it may live until its latest possible end, unless it was certainly released. A pop
whose answer was lost may hold a lease as well.

Times are microseconds. The earliest end counts from the earliest moment at which the pop can have acted: its
invocation, or the invocation of the push of its newest message. The latest end counts from its return. A kill of the
broker may or may not end a lease (contract 8), so it counts as something that could release.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from contract.checks.facts import NEVER, Call, Facts, Run, extended_s
from contract.checks.options import possible_values
from contract.checks.readers import Ack, Reader
from contract.history import ExtendResult, PopCall, PopResult
from contract.profile import Profile

CREATED_BY_CONFIGURE_S = 300
NOTHING_BELIEVED: Mapping[str, int] = {}


@dataclass(slots=True)
class Lease:
    """The possible life of the lease of one run.

    `first_end_us` is the earliest end without any extension; `extensions` are (call, latest end that it may set).
    Certainly alive until `end_low_us` where nothing in `releasers` (moments of invocation) came before; certainly
    over after `end_high_us`, or after the moment `released`.
    """

    run: Run
    first_end_us: int
    last_end_us: int
    releasers: list[int]
    released: int = NEVER
    end_low_us: int = 0
    end_high_us: int = 0
    extensions: list[tuple[Call, int]] = field(default_factory=list)

    def end_high_before(self, call: Call) -> int:
        """The latest end by extensions that were sent before `call` and are not that call."""
        ends = [end_us for other, end_us in self.extensions if other is not call and other.invoked < call.invoked]
        return max([self.last_end_us, *ends])

    def certainly_alive(self, moment: int, time_us: int) -> bool:
        """Whether it lives for certain at a moment after its return."""
        return time_us < self.end_low_us and not any(releaser < moment for releaser in self.releasers)

    def certainly_over(self, moment: int, time_us: int) -> bool:
        """Whether it is over for certain at a moment after its return."""
        return self.released < moment or self.end_high_us < time_us


def lease_range_s(facts: Facts, call: Call, profile: Profile) -> tuple[int, int]:
    """Shortest and longest lease that a pop can have taken, over every configure that may be in force."""
    request = call.request
    assert isinstance(request, PopCall)
    if request.lease_s is not None and request.lease_s > 0:
        return request.lease_s, request.lease_s
    default = profile.default_lease_s
    values = {
        value for value in possible_values(facts, request.queue, "leaseTime", default, call) if isinstance(value, int)
    }
    if facts.configures and default in values:
        values.add(CREATED_BY_CONFIGURE_S)
    return min(values), max(values)


def build_leases(facts: Facts, reader: Reader, profile: Profile) -> list[Lease]:
    """The lease of each run of the reader that took one, by return."""
    leases = []
    acks: dict[str | None, list[Ack]] = {}
    for ack in reader.acks:
        acks.setdefault(ack.lease_id, []).append(ack)
    unfenced = acks.pop(None, [])
    for run in reader.runs:
        if run.auto_ack or not run.messages:
            continue
        shortest_s, longest_s = lease_range_s(facts, run.call, profile)
        early_us = int(profile.lease_early_s * 1_000_000)
        lease = Lease(
            run,
            earliest_act_us(run) + shortest_s * 1_000_000 - early_us,
            run.call.returned_us + longest_s * 1_000_000,
            [moment for moment in facts.restarts if moment > run.call.invoked],
        )
        lease.end_low_us, lease.end_high_us = lease.first_end_us, lease.last_end_us
        _extend(facts, lease)
        for ack in (*acks.get(run.lease_id, ()), *unfenced):
            _release(lease, ack)
        for seek in reader.seeks:
            if seek.call.until > run.call.invoked:
                lease.releasers.append(seek.call.invoked)
                if seek.certain and run.call.returned < seek.call.invoked:
                    lease.released = min(lease.released, seek.call.returned)
        leases.append(lease)
    return leases


def earliest_act_us(run: Run) -> int:
    """The earliest time at which the pop can have taken the run."""
    earliest = run.call.invoked_us
    for message in run.messages:
        earliest = max(earliest, message.pushed_after_us)
    return earliest


def _extend(facts: Facts, lease: Lease) -> None:
    """Notes how long extensions keep the lease. One that acts late acts while the lease lives, or not at all.

    One that renewed less than the pop was given was too late for some of it, and does not say for what.
    """
    loose: list[tuple[Call, int]] = []
    for call, seconds in extended_s(facts, lease.run.lease_id):
        length_us = seconds * 1_000_000
        if not isinstance(call.result, ExtendResult) or not call.result.success:
            loose.append((call, length_us))
            continue
        lease.extensions.append((call, call.returned_us + length_us))
        lease.end_high_us = max(lease.end_high_us, call.returned_us + length_us)
        if call.result.renewed >= _partitions(lease):
            lease.end_low_us = max(lease.end_low_us, call.invoked_us + length_us)
    latest_us = lease.end_high_us + sum(length_us for _, length_us in loose)
    for call, length_us in loose:
        # Denied without the storage, it may act behind its answer.
        over_us = call.ended_us if call.ok else call.until_us
        lease.extensions.append((call, min(latest_us, over_us + length_us)))
        lease.end_high_us = max(lease.end_high_us, lease.extensions[-1][1])


def _partitions(lease: Lease) -> int:
    """How many partitions the pop of the lease was given."""
    result = lease.run.call.result
    assert isinstance(result, PopResult)
    return len(set(result.partitions))


def _release(lease: Lease, ack: Ack) -> None:
    """Notes whether an ack could have released the lease, and whether it certainly did."""
    if ack.lease_id not in (None, lease.run.lease_id) or not ack.may_have_acted:
        return
    if ack.until < lease.run.call.invoked:
        return
    last = lease.run.messages[-1]
    partial = ack.lease_id is not None and all(
        item.completes and item.meant and last not in item.meant for item in ack.items if item.may_have_acted
    )
    if partial:
        return
    lease.releasers.append(ack.call.invoked)
    if ack.call.ok and ack.lease_id is not None and _certainly_releases(ack, lease):
        lease.released = min(lease.released, ack.call.returned)


def _certainly_releases(ack: Ack, lease: Lease) -> bool:
    """Completed to the end of the batch, handed back whole, or given up at its end (a spent `failed` anywhere).

    An answer that denies the release is believed.
    """
    done = [item for item in ack.items if item.done and item.released is not False]
    if len(done) != len(ack.items):
        return False
    last = lease.run.messages[-1]
    if all(item.completes for item in done) or (len(done) == 1 and done[0].status == "dlq"):
        return any(item.meant == [last] for item in done)
    return all(item.status in ("retry", "failed") for item in done)


@dataclass(slots=True)
class Occupancy:
    """Everything that may keep a reader's partition busy."""

    leases: list[Lease]
    unseen: list[tuple[Call, int]]
    """Pops with a lost answer, and the latest end of the lease that each may have taken."""

    def free_throughout(self, call: Call, *, settle_us: int, believed: Mapping[str, int] = NOTHING_BELIEVED) -> bool:
        """Whether the partition was certainly not leased at any time while `call` was under way.

        `settle_us`: how long after the end of a lease an empty answer proves nothing. Leases in `believed` that were
        taken before the moment there are taken to be over.
        """
        begin_us = call.invoked_us - settle_us
        for lease in self.leases:
            if lease.run.call.invoked > call.returned:
                continue
            if lease.run.call.returned > call.invoked and lease.run.call is not call:
                return False
            told = lease.run.call.returned < believed.get(lease.run.lease_id, 0)
            if not told and not lease.certainly_over(call.invoked, begin_us):
                return False
        return not any(other.invoked < call.returned and end_us >= begin_us for other, end_us in self.unseen)


def build_occupancy(
    facts: Facts, reader: Reader, leases: list[Lease], profile: Profile, may_claim: Callable[[Call, int], bool]
) -> Occupancy:
    """What may keep the partition busy: the leases seen and those that lost answers may have taken.

    `may_claim` says whether there was anything that a pop can have claimed up to a time.
    """
    unseen = []
    for call in reader.unseen:
        request = call.request
        assert isinstance(request, PopCall)
        longest_us = 0 if request.auto_ack else lease_range_s(facts, call, profile)[1] * 1_000_000
        latest_us = _latest_act_us(facts, call, profile)
        if may_claim(call, latest_us):
            unseen.append((call, min(NEVER, latest_us + longest_us)))
    return Occupancy(leases, unseen)


def _latest_act_us(facts: Facts, call: Call, profile: Profile) -> int:
    """When a pop with a lost answer acted at the latest.

    A pop claims at most `late_effect_s` after its client gave up: what a broker hands to a client that left long ago
    is its own fault. Only must-rules assume this. A request that the harness held back, or that met a broker that was
    paused or down, may act until the harness saw its end.
    """
    if call.seen_us >= NEVER or call.held_back:
        return call.until_us
    late_us = call.seen_us + int(profile.late_effect_s * 1_000_000)
    if facts.disturbed(call.invoked_us, late_us) or facts.paused_at(call.invoked_us):
        return call.until_us
    return min(call.until_us, late_us)
