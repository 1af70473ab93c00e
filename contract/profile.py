"""Profiles: what differs between brokers, as data in one place, each value with its reason."""

from __future__ import annotations

import msgspec


class Deviation(msgspec.Struct, frozen=True):
    """A known deviation of a broker: violations of `rule` with `signature` are reported as known, and do not fail."""

    rule: str
    signature: str
    reason: str


class Profile(msgspec.Struct, frozen=True):
    """Tolerances and readings for one kind of broker. Seconds, unless the name says otherwise."""

    name: str
    virtual_time: bool = False
    """Times are exact: nothing but the broker's own waits takes time."""

    start_s: float = 0.25
    """A group's start is decided at most this long after its first pop was sent."""

    late_effect_s: float = 1.0
    """A pop whose client gave up may still claim for this long; what comes later is the broker's fault."""

    death_ends_calls: bool = False
    """A kill of the broker ends what an unanswered call can still do."""

    lease_early_s: float = 0.0
    """A lease may end this much before its time without being called early (rounding of clocks)."""

    wildcard_settle_s: float = 0.5
    """A wildcard pop may overlook a partition for this long after its lease has run out."""

    named_settle_s: float = 0.05
    """The same for a pop of a named partition."""

    storage_settle_s: float = 2.0
    """After its storage came back a broker may still overlook what is there, or refuse what it can do, for so long."""

    spool_s: float | None = 10.0
    """What was answered `buffered` is stored so long after the storage came back, or the answer, at the latest.

    None: nobody knows when, and it is not missed.
    """

    named_pop_registers: bool | None = None
    """Whether a pop of a named partition decides the start for the whole queue; None: either reading is allowed."""

    multi_dlq_files_lowest_only: bool = False
    """Of several `dlq` in one call only the lowest acts, whatever the answer says."""

    default_lease_s: int = 60
    """Lease of a queue that a push created."""

    retry_limit: int = 3
    """Retry limit of a queue that nobody configured."""

    deviations: tuple[Deviation, ...] = ()


SIMULATED = Profile(
    name="simulated",
    virtual_time=True,
    start_s=0.25,  # the drawn interleaving delays at the storage boundary stay below this
    late_effect_s=0.5,  # drawn delays at the storage boundary; a parked pop must not outlive its client
    death_ends_calls=True,  # a kill cancels every task of the broker
    wildcard_settle_s=0.0,
    named_settle_s=0.0,
    storage_settle_s=0.0,
    spool_s=None,  # it spools nothing
)

MUST_COME = (
    "push/stored-is-delivered",
    "group/start-position",
    "group/start-decided-once",
    "group/new-partition-from-first",
    "group/no-group-starts-at-oldest",
    "group/independent-cursor",
    "group/independent-lease",
    "lease/redelivered-after-expiry",
    "lease/unreceived-claim-comes-back",
    "ack/failed-comes-back-first",
    "ack/mixed-batch-stops-at-lowest",
)
"""Rules that an empty answer can violate."""

QUEEN_1_DEVIATIONS = (
    Deviation(
        "ack/answer-matches-effect",
        "released-while-leased",
        "answers leaseReleased:true on every accepted ack, also while the rest of the batch stays leased",
    ),
    Deviation(
        "ack/answer-matches-effect",
        "dlq-on-sibling",
        "answers dlq:true for every item of a call in which one is dead-lettered",
    ),
    *(
        Deviation(
            rule,
            "wildcard-overlooks",
            "may answer 204 to a wildcard pop that does not wait while another partition of the queue is leased, though"
            " a free one has messages; they come to a later pop",
        )
        for rule in MUST_COME
    ),
    *(
        Deviation(
            rule,
            "buffered-lost",
            "stores what it spooled in one piece for each partition, and drops a whole piece that holds one duplicate:"
            " the other messages of it, answered `buffered` as well, never come",
        )
        for rule in MUST_COME
    ),
)

QUEEN_1 = Profile(
    name="1.x",
    start_s=1.0,  # a wildcard pop registers its group within milliseconds; the rest is for a loaded machine
    late_effect_s=2.0,  # its storage goes on with statements of a client that left
    wildcard_settle_s=1.0,  # 300-440 ms measured after an expiry, doubled
    named_settle_s=0.25,  # 45 ms measured
    storage_settle_s=2.0,  # healthy again, it was never seen to overlook anything; its pool opens connections anew
    spool_s=10.0,  # 5.3 s measured: after ten failed tries its spool rests for 5 s
    named_pop_registers=False,  # a named pop starts its own partition only
    multi_dlq_files_lowest_only=True,
    deviations=QUEEN_1_DEVIATIONS,
)

QUEEN_2 = Profile(name="2.x", start_s=1.0, late_effect_s=2.0, wildcard_settle_s=1.0, named_settle_s=0.25)

REFERENCE = Profile(
    name="reference",
    start_s=1.0,  # decided when the request is read; the rest is for a loaded machine, as below
    late_effect_s=1.0,
    death_ends_calls=True,  # it has no process but the one that is killed, and no storage that works on without it
    wildcard_settle_s=0.25,
    named_settle_s=0.25,
)

PROFILES: dict[str, Profile] = {profile.name: profile for profile in (SIMULATED, QUEEN_1, QUEEN_2, REFERENCE)}


def for_version(version: str) -> Profile:
    """The profile of a broker that reports `version` ("1.3.0"); an unknown one gets the newest."""
    if version.endswith("-reference"):
        return REFERENCE
    return QUEEN_1 if version.split(".", 1)[0] in ("0", "1") else QUEEN_2
