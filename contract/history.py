"""The history of a run: what was asked, what was answered, what was done to the broker, line by line.

JSON Lines, one event a line, written and flushed as it happens: first a `Header`, then `Invoke` and `Return` of each
call, faults, phases, and an `End`. The order of the lines is the order in which the harness saw things happen; "A
before B" means that A's return stands above B's invocation. `at_us` is microseconds since the start of the run, on
the target's own clock (virtual in simulation).

Payloads are kept as the raw JSON text that crossed the wire. Names, payloads and answers are untrusted text.

Reading is strict: a line that is cut, of an unknown kind, or lacks a field raises `HistoryError`, which names the
line and the reason. A history without an `End` is *cut*: it is a valid record of a run that did not finish.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Literal

import msgspec

from strategies.schedule import Schedule

HISTORY_VERSION = 1

Outcome = Literal["ok", "refused", "unknown"]
PhaseName = Literal["schedule", "heal", "drain", "audit"]

OLDEST_TIME = "1970-01-01T00:00:00Z"
"""A seek to this time goes before the oldest message."""


class HistoryError(ValueError):
    """A history that cannot be read: one sentence that names the file, the line and the reason."""


# What was asked ---------------------------------------------------------------------------------------------------


class PushCall(msgspec.Struct, frozen=True, tag="push", tag_field="op"):
    """A push; the three lists are parallel, one element an item. `transaction_ids` has None where none was sent."""

    queue: str
    partitions: tuple[str, ...]
    transaction_ids: tuple[str | None, ...]
    payloads: tuple[str, ...]


class PopCall(msgspec.Struct, frozen=True, tag="pop", tag_field="op"):
    """A pop. `partition` None is a wildcard pop; `group` "" names no group; None of the others: not sent."""

    queue: str
    group: str
    partition: str | None = None
    batch: int | None = None
    partitions: int | None = None
    lease_s: int | None = None
    wait_ms: int | None = None
    auto_ack: bool = False
    mode: str | None = None
    from_: str | None = msgspec.field(default=None, name="from")


class AckCall(msgspec.Struct, frozen=True, tag="ack", tag_field="op"):
    """An ack of one or more messages; the lists are parallel.

    `partitions` holds the partition names that belong to `partition_ids`; `message_ids` what the consumer meant (the
    wire carries the transactionId only); `lease_ids` None where no lease was sent.
    """

    queue: str
    group: str
    batch: bool
    partitions: tuple[str, ...]
    partition_ids: tuple[str, ...]
    transaction_ids: tuple[str, ...]
    message_ids: tuple[str, ...]
    lease_ids: tuple[str | None, ...]
    statuses: tuple[str, ...]


class ExtendCall(msgspec.Struct, frozen=True, tag="extend", tag_field="op"):
    """An extension of a lease; `queue`, `group` are those of the pop that took it."""

    queue: str
    group: str
    lease_id: str
    seconds: int


class ConfigureCall(msgspec.Struct, frozen=True, tag="configure", tag_field="op"):
    """Options of a queue as they were sent: wire names to JSON scalars."""

    queue: str
    options: dict[str, int | bool | str]


class SeekCall(msgspec.Struct, frozen=True, tag="seek", tag_field="op"):
    """A move of a group's cursor, to the end or to an ISO time; `partition` None: in every partition of the queue.

    `group` "" is the group-less queue mode, which goes by its reserved name on the wire.
    """

    queue: str
    group: str
    partition: str | None = None
    to_end: bool = False
    timestamp: str | None = None


class DeleteQueueCall(msgspec.Struct, frozen=True, tag="delete-queue", tag_field="op"):
    """The deletion of a queue."""

    queue: str


Call = PushCall | PopCall | AckCall | ExtendCall | ConfigureCall | SeekCall | DeleteQueueCall


# What was answered ------------------------------------------------------------------------------------------------


class PushResult(msgspec.Struct, frozen=True, tag="push", tag_field="op"):
    """One element an item, in request order (aligned by `index`). `offsets` has None where the broker sends none.

    `unknown_items` holds the indexes of items whose status names the storage: stored or not, nobody knows.
    """

    message_ids: tuple[str | None, ...]
    transaction_ids: tuple[str | None, ...]
    statuses: tuple[str, ...]
    offsets: tuple[int | None, ...]
    unknown_items: frozenset[int] = frozenset()


class PopResult(msgspec.Struct, frozen=True, tag="pop", tag_field="op"):
    """The messages of a pop in the order of the answer; empty lists for 204 and for an empty `messages`."""

    lease_id: str = ""
    message_ids: tuple[str, ...] = ()
    transaction_ids: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    partition_ids: tuple[str, ...] = ()
    lease_ids: tuple[str, ...] = ()
    payloads: tuple[str, ...] = ()
    attempts: tuple[int | None, ...] = ()
    offsets: tuple[int | None, ...] = ()


class AckResult(msgspec.Struct, frozen=True, tag="ack", tag_field="op"):
    """One element an item, in request order. None where the broker did not send the key.

    `unknown_items` holds the indexes of items whose error names the storage: done or not, nobody knows.
    """

    successes: tuple[bool, ...]
    errors: tuple[str | None, ...]
    noops: tuple[bool | None, ...]
    dead_lettered: tuple[bool | None, ...]
    released: tuple[bool | None, ...]
    unknown_items: frozenset[int] = frozenset()


class ExtendResult(msgspec.Struct, frozen=True, tag="extend", tag_field="op"):
    """`renewed` counts the extended partitions."""

    success: bool
    renewed: int


class DoneResult(msgspec.Struct, frozen=True, tag="done", tag_field="op"):
    """An answer that says no more than that it was done (configure, seek, delete)."""


Result = PushResult | PopResult | AckResult | ExtendResult | DoneResult


# Lines ------------------------------------------------------------------------------------------------------------


class Header(msgspec.Struct, frozen=True, tag="header", tag_field="kind"):
    """The first line. `target` describes the broker; `capabilities` what a probe found; `profile` names the tolerances.

    `queues` are the queues that this history owns; `seed` is that of the run, `lane` the lane that played it.
    """

    version: int
    suite: str
    target: str
    profile: str
    capabilities: dict[str, str | int | bool]
    queues: tuple[str, ...]
    schedule: Schedule | None = None
    seed: int = 0
    lane: int = 0
    wall_clock: str = ""


class Invoke(msgspec.Struct, frozen=True, tag="invoke", tag_field="kind"):
    """A request is about to be sent. `step` is where in the schedule ("3", "5.1.2"; "" outside the drawn part).

    `worker` is who sends; `fault` the fault that the harness puts on this call, "" for none.
    """

    call: int
    at_us: int
    worker: str
    request: Call
    step: str = ""
    fault: str = ""


class Return(msgspec.Struct, frozen=True, tag="return", tag_field="kind"):
    """The client knows the outcome. `result` is there exactly when `outcome` is "ok".

    `why` is a short reason for the other outcomes; `oddities` lists deviations in form that did not hide the result
    (a status code other than the documented one), for the http rules.
    """

    call: int
    at_us: int
    outcome: Outcome
    status: int | None = None
    why: str = ""
    result: Result | None = None
    oddities: tuple[str, ...] = ()


class EffectEnd(msgspec.Struct, frozen=True, tag="effect-end", tag_field="kind"):
    """From here on the UNKNOWN call can have no further effect. `acted` False: it certainly never had one."""

    call: int
    at_us: int
    acted: bool | None = None


class Fault(msgspec.Struct, frozen=True, tag="fault", tag_field="kind"):
    """Something was done to the broker or a consumer: `what` is "kill", "start", "pause", "resume", ...

    "storage-stop" stands before its storage is stopped, "storage-start" after the broker works with it again.
    """

    at_us: int
    what: str
    detail: str = ""
    step: str = ""


BY_ANOTHER_LANE = "by another lane"
"""`Fault.detail` of what was done to a broker that several lanes share, in the histories of the other lanes."""


class Note(msgspec.Struct, frozen=True, tag="note", tag_field="kind"):
    """Something that happened to the run itself: a step that was a no-op, a stall of the event loop."""

    at_us: int
    text: str
    step: str = ""


class Phase(msgspec.Struct, frozen=True, tag="phase", tag_field="kind"):
    """A phase begins."""

    at_us: int
    name: PhaseName


class PhaseEnd(msgspec.Struct, frozen=True, tag="phase-end", tag_field="kind"):
    """A phase is over. `complete` False: it could not do its work; `why` says what stopped it.

    A complete drain popped every group until its answers were empty, after every possible lease had run out. A
    complete audit read every partition of the queue from the start until the answers were empty.
    """

    at_us: int
    name: PhaseName
    complete: bool
    why: str = ""


class End(msgspec.Struct, frozen=True, tag="end", tag_field="kind"):
    """The last line of a run that was recorded to its end."""

    at_us: int


Event = Invoke | Return | EffectEnd | Fault | Note | Phase | PhaseEnd | End
Line = Header | Event


class History(msgspec.Struct, frozen=True):
    """A history in memory. `cut` says that it has no end marker."""

    header: Header
    events: tuple[Event, ...]

    @property
    def cut(self) -> bool:
        """True when the run was not recorded to its end."""
        return not self.events or not isinstance(self.events[-1], End)


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Line)


class Recorder:
    """Keeps the events of one run and, given a path, writes each line as it happens.

    A context manager; closing flushes. What was recorded before a failure stays on disk.
    """

    def __init__(self, header: Header, path: Path | None = None) -> None:
        self.header = header
        self.events: list[Event] = []
        self.path = path
        self._file: IO[bytes] | None = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("wb", buffering=0)
            self._file.write(_ENCODER.encode(header) + b"\n")

    def add(self, event: Event) -> None:
        """Appends one event; on disk before this returns (unbuffered write)."""
        self.events.append(event)
        if self._file is not None:
            self._file.write(_ENCODER.encode(event) + b"\n")

    def history(self) -> History:
        """What was recorded so far."""
        return History(self.header, tuple(self.events))

    def close(self) -> None:
        """Closes the file; further events are kept in memory only."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def to_lines(history: History) -> Iterator[bytes]:
    """The lines of a history, each with its newline."""
    yield _ENCODER.encode(history.header) + b"\n"
    for event in history.events:
        yield _ENCODER.encode(event) + b"\n"


def write(history: History, path: str | os.PathLike[str]) -> None:
    """Writes a whole history to a file."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(b"".join(to_lines(history)))


def read(path: str | os.PathLike[str]) -> History:
    """Reads a file. Raises `HistoryError` where it cannot be opened or a line cannot be read."""
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise HistoryError(f"cannot read history {os.fspath(path)!r}: {error.strerror}") from error
    return parse(text.splitlines(keepends=True), name=os.fspath(path))


def parse(lines: Iterable[bytes], *, name: str = "history") -> History:
    """Reads the lines of a history. Raises `HistoryError` that names the first bad line."""
    header: Header | None = None
    events: list[Event] = []
    number = 0
    for number, raw in enumerate(lines, 1):
        line = _decode(raw, number, name)
        if header is None:
            if not isinstance(line, Header):
                raise HistoryError(f"{name} line 1: a history begins with a header, not with {_kind(line)!r}")
            header = line
            continue
        if isinstance(line, Header):
            raise HistoryError(f"{name} line {number}: a second header; one file holds one history")
        events.append(line)
    if header is None:
        raise HistoryError(f"{name} is empty; a history begins with a header line")
    _check(header, events, name)
    return History(header, tuple(events))


def _decode(raw: bytes, number: int, name: str) -> Line:
    if number == 1:
        _check_version(raw, name)
    try:
        return _DECODER.decode(raw)
    except msgspec.MsgspecError as error:
        if not raw.endswith(b"\n"):
            raise HistoryError(
                f"{name} line {number}: cut in the middle of the line ({_short(raw)}); "
                "delete that line to judge what was recorded before it"
            ) from error
        raise HistoryError(f"{name} line {number}: {error} in {_short(raw)}") from error


def _check_version(raw: bytes, name: str) -> None:
    """Says "unknown version" before anything else, since another version may have other fields."""
    try:
        version = msgspec.json.decode(raw, type=dict[str, msgspec.Raw]).get("version")
    except msgspec.MsgspecError:
        return
    if version is not None and bytes(version) != str(HISTORY_VERSION).encode():
        raise HistoryError(
            f"{name} line 1: history version {bytes(version).decode('utf-8', 'replace')} is unknown; "
            f"this suite reads version {HISTORY_VERSION}, use the suite that wrote it"
        )


def _kind(line: Line) -> str:
    return str(type(line).__struct_config__.tag)


def _short(raw: bytes, limit: int = 60) -> str:
    text = raw.rstrip(b"\n").decode("utf-8", "replace")
    return repr(text if len(text) <= limit else text[:limit] + "...")


def _check(header: Header, events: list[Event], name: str) -> None:
    """Checks what the types cannot: pairing of calls, order of time, parallel lists of one length."""
    requests: dict[int, Call] = {}
    returned: set[int] = set()
    last = 0
    for number, event in enumerate(events, 2):
        where = f"{name} line {number}"
        if event.at_us < last:
            raise HistoryError(f"{where}: time goes back from {last} to {event.at_us} us")
        last = event.at_us
        if isinstance(event, Invoke):
            if event.call in requests:
                raise HistoryError(f"{where}: call {event.call} is invoked twice")
            requests[event.call] = event.request
            _same_length(event.request, where)
        elif isinstance(event, Return):
            if event.call not in requests or event.call in returned:
                raise HistoryError(f"{where}: call {event.call} returns without an open invocation")
            returned.add(event.call)
            _check_result(requests[event.call], event, where)
        elif isinstance(event, EffectEnd) and event.call not in requests:
            raise HistoryError(f"{where}: effect-end of call {event.call}, which was never invoked")


def _check_result(request: Call, event: Return, where: str) -> None:
    if (event.outcome == "ok") != (event.result is not None):
        raise HistoryError(
            f"{where}: outcome {event.outcome!r} {'without' if event.result is None else 'with'} a result"
        )
    if event.result is None:
        return
    wanted = _RESULTS[type(request)]
    if not isinstance(event.result, wanted):
        raise HistoryError(f"{where}: call {event.call} is answered by {type(event.result).__name__}")
    _same_length(event.result, where)
    if isinstance(request, PushCall) and isinstance(event.result, PushResult):
        if len(request.partitions) != len(event.result.statuses):
            raise HistoryError(f"{where}: {len(event.result.statuses)} results for {len(request.partitions)} items")
    elif (
        isinstance(request, AckCall)
        and isinstance(event.result, AckResult)
        and len(request.statuses) != len(event.result.successes)
    ):
        raise HistoryError(f"{where}: {len(event.result.successes)} results for {len(request.statuses)} items")


_RESULTS: dict[type, type] = {
    PushCall: PushResult,
    PopCall: PopResult,
    AckCall: AckResult,
    ExtendCall: ExtendResult,
    ConfigureCall: DoneResult,
    SeekCall: DoneResult,
    DeleteQueueCall: DoneResult,
}


def _same_length(struct: Call | Result, where: str) -> None:
    lengths = {
        name: len(value) for name in struct.__struct_fields__ if isinstance(value := getattr(struct, name), tuple)
    }
    if len(set(lengths.values())) > 1:
        raise HistoryError(f"{where}: parallel lists of different lengths {lengths}")
