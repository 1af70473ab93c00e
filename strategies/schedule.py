"""A schedule: what may happen to a broker, as plain frozen data.

A schedule is drawn before anything runs and never depends on what the broker answers. It names things
symbolically: partition 0, group 1, "the second message of the pop labelled 3". A step whose reference resolves
to nothing is a no-op that the history records. Nothing here imports Hypothesis, so a schedule can be read from a
file and replayed without it.

Times are integers with their unit in the name. JSON is the file format: `to_json` and `from_json` are inverse.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec

SCHEDULE_VERSION = 1

Status = Literal["completed", "failed", "retry", "dlq"]
LeaseChoice = Literal["right", "stale", "none", "newest"]
Mode = Literal["new", "all"]

MAX_PARTITIONS = 4
MAX_GROUPS = 3
MAX_WORKERS = 3

Natural = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]


class _Data(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of everything in a schedule: frozen, strict when read, short when written."""


class Item(_Data, frozen=True):
    """One message to push.

    `key` is the symbolic transactionId: the same number is the same id, None lets the broker mint one.
    `payload` chooses from `PAYLOADS` in the runner; every payload but the awkward ones is unique.
    """

    partition: Natural = 0
    key: Natural | None = None
    payload: Natural = 0


class Push(_Data, frozen=True, tag="push"):
    """One push request. `jitter` seeds the interleaving of this request alone (0: none)."""

    items: tuple[Item, ...]
    jitter: Natural = 0


class Pop(_Data, frozen=True, tag="pop"):
    """One pop request, named by `label` so that acks can refer to it.

    `partition` None is a wildcard pop, which may claim up to `partitions` of them (0: no cap). `wait_ms` 0 does
    not park. `mode` None takes the mode of the group. `lease_s` None leaves the lease to the queue.
    `from_now` sends `subscriptionFrom=now`.
    """

    label: Natural
    group: Natural = 0
    worker: Natural = 0
    partition: Natural | None = None
    batch: Positive = 10
    partitions: Natural = 1
    lease_s: Positive | None = 2
    wait_ms: Natural = 0
    auto_ack: bool = False
    mode: Mode | None = None
    from_now: bool = False
    jitter: Natural = 0


class AckItem(_Data, frozen=True):
    """The message at index `message` of the pop (the last one where the pop gave fewer).

    `outside`: instead the newest message known to be in that partition that the pop did not give, and an id that
    nobody pushed where there is none.
    """

    message: Natural = 0
    status: Status = "completed"
    outside: bool = False


class Ack(_Data, frozen=True, tag="ack"):
    """Acknowledges messages of the pop labelled `pop`.

    `lease`: "right" the lease of that pop; "stale" an older lease of the same group and partition, or one that
    never existed; "none" no lease, which is not fenced; "newest" the newest lease that was seen there, which may
    cover other messages. `batch` False sends one item to the single endpoint.
    """

    pop: Natural
    items: tuple[AckItem, ...] = (AckItem(),)
    lease: LeaseChoice = "right"
    batch: bool = False
    jitter: Natural = 0


class Extend(_Data, frozen=True, tag="extend"):
    """Extends the lease of the pop labelled `pop`."""

    pop: Natural
    seconds: Positive = 2
    jitter: Natural = 0


class Configure(_Data, frozen=True, tag="configure"):
    """Names some options of the queue; None is not sent."""

    lease_time_s: Positive | None = None
    retry_limit: Natural | None = None
    dead_letter_queue: bool | None = None
    dlq_after_max_retries: bool | None = None
    dedup_window_s: Natural | None = None
    jitter: Natural = 0


class Seek(_Data, frozen=True, tag="seek"):
    """Moves the cursor of a group: to the oldest message, or behind the newest (`to_end`).

    `partition` None moves it in every partition of the queue.
    """

    group: Natural = 0
    partition: Natural | None = None
    to_end: bool = False
    jitter: Natural = 0


class Advance(_Data, frozen=True, tag="advance"):
    """Lets `ms` pass: virtual time in simulation, real time elsewhere."""

    ms: Natural


class CrashConsumer(_Data, frozen=True, tag="crash-consumer"):
    """The worker forgets every batch it holds; its leases stay at the broker until they run out."""

    group: Natural = 0
    worker: Natural = 0


class KillBroker(_Data, frozen=True, tag="kill-broker"):
    """kill -9, then a start on the same data after `down_ms`."""

    down_ms: Natural = 0


class RestartBroker(_Data, frozen=True, tag="restart-broker"):
    """An orderly stop and a start on the same data after `down_ms`."""

    down_ms: Natural = 0


class PauseBroker(_Data, frozen=True, tag="pause-broker"):
    """The broker does nothing for `ms` (SIGSTOP), then goes on."""

    ms: Natural = 500


class StorageFault(_Data, frozen=True, tag="storage-fault"):
    """The storage of the broker refuses its next `operations` writes."""

    operations: Positive = 1


class StorageOutage(_Data, frozen=True, tag="storage-outage"):
    """The storage of the broker breaks off (a crash, not an orderly stop) and is started again after `ms`.

    The broker itself runs on. Inside a `Parallel` the other lanes call it meanwhile.
    """

    ms: Natural = 1000


Request = Push | Pop | Ack | Extend | Configure | Seek


class LoseRequest(_Data, frozen=True, tag="lose-request"):
    """The request never reaches the broker; the client sees a broken connection."""

    step: Request


class LoseAnswer(_Data, frozen=True, tag="lose-answer"):
    """The broker acts; the client sees a broken connection."""

    step: Request


class DelayRequest(_Data, frozen=True, tag="delay-request"):
    """The client gives up at once; the request reaches the broker `ms` later."""

    step: Request
    ms: Natural = 1000


class DelayAnswer(_Data, frozen=True, tag="delay-answer"):
    """The broker acts; its answer reaches the client `ms` later."""

    step: Request
    ms: Natural = 1000


class RepeatRequest(_Data, frozen=True, tag="repeat-request"):
    """The same bytes reach the broker twice, the second time `ms` after the first answer, which is the one seen."""

    step: Request
    ms: Natural = 0


class DropConnection(_Data, frozen=True, tag="drop-connection"):
    """The client goes away `ms` after it has sent the request, answered or not."""

    step: Request
    ms: Natural = 5


Faulty = LoseRequest | LoseAnswer | DelayRequest | DelayAnswer | RepeatRequest | DropConnection
BrokerFault = KillBroker | RestartBroker | PauseBroker | StorageFault | StorageOutage
LaneStep = Request | Faulty | BrokerFault | Advance | CrashConsumer


class Parallel(_Data, frozen=True, tag="parallel"):
    """Lanes that run side by side; inside a lane the steps follow each other. `Advance` is a wait of its lane."""

    lanes: tuple[tuple[LaneStep, ...], ...]


class Storm(_Data, frozen=True, tag="storm"):
    """Concurrent loops of pushes, pops and acks as one step: `operations` pushes in all, over `partitions`.

    Each pusher pushes one message at a time as fast as it can; each consumer pops `batch` (wildcard or the named
    partition by `named`) and acks what it got. `kill_at` kills the broker after that share (per cent) of the pushes.
    """

    pushers: Positive = 2
    consumers: Positive = 1
    operations: Positive = 200
    partitions: Positive = 1
    group: Natural = 0
    batch: Positive = 10
    named: bool = False
    kill_at: Annotated[int, msgspec.Meta(ge=0, le=100)] | None = None
    jitter: Natural = 0


Step = LaneStep | Parallel | Storm


class Group(_Data, frozen=True):
    """A consumer group of the schedule. `name` "" is the group-less queue mode, which always starts at the oldest."""

    name: str = ""
    mode: Mode | None = None


class Schedule(_Data, frozen=True):
    """A whole schedule: the world it plays in and its steps. Heal, audit and drain follow outside the drawn part.

    `names` chooses how partitions and transactionIds are called: 0 plain, the others awkward on purpose
    (`contract/names.py`).
    """

    steps: tuple[Step, ...]
    partitions: Annotated[int, msgspec.Meta(ge=1, le=MAX_PARTITIONS)] = 1
    groups: Annotated[tuple[Group, ...], msgspec.Meta(min_length=1, max_length=MAX_GROUPS)] = (Group(),)
    names: Natural = 0


def flatten(steps: tuple[Step, ...]) -> Iterator[LaneStep | Storm]:
    """Every step that is not a `Parallel`, in the order in which it is written down."""
    for step in steps:
        if isinstance(step, Parallel):
            for lane in step.lanes:
                yield from lane
        else:
            yield step


def request_of(step: LaneStep | Storm) -> Request | None:
    """The request inside a step, without the fault around it; None where the step sends none."""
    if isinstance(step, Faulty):
        return step.step
    if isinstance(step, Request):
        return step
    return None


_DECODER = msgspec.json.Decoder(Schedule)


def to_json(schedule: Schedule) -> bytes:
    """The schedule as one line of JSON."""
    return msgspec.json.encode(schedule)


def from_json(text: bytes | str) -> Schedule:
    """Reads what `to_json` wrote. Raises `ValueError` with the place and the reason."""
    try:
        return _DECODER.decode(text)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error
