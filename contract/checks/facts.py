"""What a history says, paired and named, before any rule looks at it.

Reads the events once and gives: calls (an invocation with its return and the moment after which it can act no more),
messages (what was pushed, under which id it became known, from when on it was certainly stored), runs (what one pop
delivered of one partition) and phases. Every rule reads these; none reads the lines.

Moments are indexes of events ("A before B": A's return has the smaller index); times are microseconds. `NEVER` is a
moment and a time after everything.

What cannot be known stays unknown here: an answer that was lost has no return, a message that was never delivered and
whose push was not answered has no id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from contract.checks.json_value import canonical
from contract.history import (
    AckCall,
    AckResult,
    ConfigureCall,
    DeleteQueueCall,
    EffectEnd,
    ExtendCall,
    ExtendResult,
    Fault,
    History,
    Invoke,
    Note,
    Phase,
    PhaseEnd,
    PhaseName,
    PopCall,
    PopResult,
    PushCall,
    PushResult,
    Result,
    Return,
    SeekCall,
)
from contract.history import (
    Call as Request,
)

NEVER = 1 << 60
QUEUE_MODE = "__QUEUE_MODE__"

_ENDS = frozenset({"kill", "stop", "pause", "storage-stop"})
_ENDED_BY = {"start": ("kill", "stop", "pause"), "resume": ("pause",), "storage-start": ("storage-stop",)}


@dataclass(slots=True, eq=False)
class Call:
    """One request. `returned` is NEVER for an UNKNOWN outcome; `until` is the last moment at which it may act.

    `ended`: when the harness saw it end; what an answered call left open may act until then.
    `seen`: when the client gave up or had its answer. `undelivered`: it never reached the broker. `held_back`: the
    harness delivered it late, perhaps long after the client gave up.
    """

    number: int
    request: Request
    worker: str
    step: str
    phase: PhaseName
    invoked: int
    invoked_us: int
    returned: int = NEVER
    returned_us: int = NEVER
    seen: int = NEVER
    seen_us: int = NEVER
    until: int = NEVER
    until_us: int = NEVER
    ended: int = NEVER
    ended_us: int = NEVER
    outcome: str = "unknown"
    why: str = ""
    result: Result | None = None
    undelivered: bool = False
    held_back: bool = False

    @property
    def ok(self) -> bool:
        """The outcome is known and it was done."""
        return self.outcome == "ok"

    @property
    def refused(self) -> bool:
        """It certainly had no effect."""
        return self.outcome == "refused"

    @property
    def unknown(self) -> bool:
        """It may have acted."""
        return self.outcome == "unknown"


@dataclass(slots=True, eq=False)
class Message:
    """A pushed item, or a delivered message that no push accounts for (`push` None: a phantom).

    `stored_by`: the moment from which it was certainly stored (NEVER: perhaps it never was). `ordered` False: its
    place among other pushes says nothing (spooled, or bound by a value that several pushes share). `spooled`: it was
    answered `buffered`, so it is stored later, perhaps under another id. `open`: the answer
    left open whether it was stored, so it may be stored later than the answer. `refused`: this
    item was not stored; `denied`: because the broker said so, not because it was a duplicate or never arrived.
    """

    name: str
    queue: str
    partition: str
    push: Call | None = None
    item: int = 0
    transaction_id: str | None = None
    payload: str = ""
    sent_transaction_id: str | None = None
    message_id: str | None = None
    stored_by: int = NEVER
    ordered: bool = True
    spooled: bool = False
    open: bool = False
    refused: bool = False
    denied: bool = False
    earliest: Call | None = None
    """Of several pushes that share its value the one that was sent first: it may be that one's message."""

    @property
    def pushed_after(self) -> int:
        """The moment before which it cannot have been stored."""
        push = self.earliest or self.push
        return push.invoked if push is not None else 0

    @property
    def pushed_after_us(self) -> int:
        """The time before which it cannot have been stored."""
        push = self.earliest or self.push
        return push.invoked_us if push is not None else 0

    @property
    def pushed_by(self) -> int:
        """The moment by which its push was answered, NEVER where it was not."""
        return self.push.returned if self.push is not None and self.ordered and not self.open else NEVER


@dataclass(slots=True, eq=False)
class Run:
    """What one answered pop delivered of one partition, in the order of the answer. `at` are indexes in the answer."""

    call: Call
    queue: str
    partition: str
    partition_id: str
    group: str
    lease_id: str
    auto_ack: bool
    messages: list[Message]
    at: list[int]


@dataclass(slots=True)
class PhaseSpan:
    """One phase: its first and last moment and whether it did its work."""

    name: PhaseName
    begin: int
    begin_us: int
    end: int = NEVER
    end_us: int = NEVER
    complete: bool = False
    why: str = "it did not end"


PartitionKey = tuple[str, str]


@dataclass(slots=True)
class Facts:
    """Everything that the rules read. Lists are in the order of invocation unless they say otherwise."""

    history: History
    calls: list[Call] = field(default_factory=list)
    pushes: list[Call] = field(default_factory=list)
    pops: list[Call] = field(default_factory=list)
    acks: list[Call] = field(default_factory=list)
    extends: list[Call] = field(default_factory=list)
    configures: list[Call] = field(default_factory=list)
    seeks: list[Call] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    restarts: list[int] = field(default_factory=list)
    outages_us: list[tuple[int, int]] = field(default_factory=list)
    disturbances_us: list[tuple[int, int]] = field(default_factory=list)
    phases: list[PhaseSpan] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    by_id: dict[tuple[str, str], Message] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    partitions: dict[PartitionKey, list[Message]] = field(default_factory=dict)
    deleted_queues: set[str] = field(default_factory=set)
    _pops_of: dict[tuple[str, str], list[Call]] | None = None

    def pops_of(self, queue: str, group: str) -> list[Call]:
        """The pops of a group that may have reached the broker."""
        if self._pops_of is None:
            self._pops_of = {}
            for call in self.pops:
                request = call.request
                assert isinstance(request, PopCall)
                if not call.refused:
                    self._pops_of.setdefault((request.queue, group_name(request.group)), []).append(call)
        return self._pops_of.get((queue, group), [])

    def disturbed(self, begin_us: int, end_us: int) -> bool:
        """Whether the broker was disturbed, or the harness stalled, at any time between."""
        return any(begin <= end_us and begin_us <= end for begin, end in self.disturbances_us)

    def paused_at(self, time_us: int) -> bool:
        """Whether the broker was down or paused, or without its storage, at a time."""
        away = False
        for fault in self.faults:
            if fault.at_us > time_us:
                break
            if fault.what in ("kill", "stop", "pause"):
                away = True
            elif fault.what in ("start", "resume"):
                away = False
        return away or self.without_storage(time_us, time_us)

    def without_storage(self, begin_us: int, end_us: int) -> bool:
        """Whether the broker may have been without its storage at any time between; what it denies then proves nothing.

        It need not know that its storage is away: it may answer a pop with "nothing there" (contract 8).
        """
        return any(begin <= end_us and begin_us <= end for begin, end in self.outages_us)

    def phase(self, name: PhaseName) -> PhaseSpan | None:
        """The last phase of that name."""
        for span in reversed(self.phases):
            if span.name == name:
                return span
        return None


def group_name(group: str) -> str:
    """The name under which the broker keeps a group: none named is the queue mode."""
    return group or QUEUE_MODE


def gather(history: History, *, storage_settle_s: float = 0.0, spool_s: float | None = None) -> Facts:
    """Reads a history into facts.

    `storage_settle_s`: so long after its storage came back a broker may still be without it. `spool_s`: what was
    answered `buffered` is stored so long after the broker is whole again; None: nobody knows when.
    """
    facts = Facts(history)
    _pair(facts)
    _read_outages(facts, int(storage_settle_s * 1_000_000))
    _register_pushes(facts)
    _read_pops(facts)
    if spool_s is not None and facts.outages_us:
        _settle_spooled(facts, int(spool_s * 1_000_000))
    return facts


def _pair(facts: Facts) -> None:
    open_calls: dict[int, Call] = {}
    phase: PhaseName = "schedule"
    for moment, event in enumerate(facts.history.events):
        if isinstance(event, Invoke):
            call = Call(event.call, event.request, event.worker, event.step, phase, moment, event.at_us)
            call.held_back = event.fault.startswith("delay-request")
            open_calls[event.call] = call
            facts.calls.append(call)
            _file(facts, call)
        elif isinstance(event, Return):
            _close(open_calls[event.call], event, moment)
        elif isinstance(event, EffectEnd):
            call = open_calls[event.call]
            call.ended, call.ended_us = moment, event.at_us
            if call.outcome == "unknown":
                call.until, call.until_us = moment, event.at_us
                if event.acted is False:
                    call.outcome = "refused"
                    call.undelivered = True
        elif isinstance(event, Phase):
            phase = event.name
            facts.phases.append(PhaseSpan(event.name, moment, event.at_us))
        elif isinstance(event, PhaseEnd):
            _end_phase(facts, event, moment)
        elif isinstance(event, Fault):
            facts.faults.append(event)
            if event.what in ("kill", "stop", "start", "restart", "storage-stop", "storage-start"):
                facts.restarts.append(moment)
            if event.what != "crash-consumer":
                facts.disturbances_us.append((event.at_us, event.at_us))
        elif isinstance(event, Note) and event.text.startswith("stalled"):
            facts.disturbances_us.append((_stall_began(event), event.at_us))


def _read_outages(facts: Facts, settle_us: int) -> None:
    stopped_us: int | None = None
    for fault in facts.faults:
        if fault.what == "storage-stop" and stopped_us is None:
            stopped_us = fault.at_us
        elif fault.what == "storage-start" and stopped_us is not None:
            facts.outages_us.append((stopped_us, fault.at_us + settle_us))
            stopped_us = None
    if stopped_us is not None:
        facts.outages_us.append((stopped_us, NEVER))


def _stall_began(note: Note) -> int:
    """A note of a stall says how many milliseconds it lasted: "stalled 350 ms"."""
    words = note.text.split()
    try:
        return note.at_us - int(float(words[1]) * 1000)
    except (IndexError, ValueError):
        return 0


def _file(facts: Facts, call: Call) -> None:
    request = call.request
    if isinstance(request, PushCall):
        facts.pushes.append(call)
    elif isinstance(request, PopCall):
        facts.pops.append(call)
    elif isinstance(request, AckCall):
        facts.acks.append(call)
    elif isinstance(request, ExtendCall):
        facts.extends.append(call)
    elif isinstance(request, ConfigureCall):
        facts.configures.append(call)
    elif isinstance(request, SeekCall):
        facts.seeks.append(call)
    elif isinstance(request, DeleteQueueCall):
        facts.deleted_queues.add(request.queue)


def _close(call: Call, event: Return, moment: int) -> None:
    already_harmless = call.outcome == "refused"
    call.seen, call.seen_us = moment, event.at_us
    call.why = event.why
    if event.outcome == "unknown":
        return
    if already_harmless:
        return
    call.outcome = event.outcome
    call.result = event.result
    call.returned, call.returned_us = moment, event.at_us
    call.until, call.until_us = moment, event.at_us


def _end_phase(facts: Facts, event: PhaseEnd, moment: int) -> None:
    span = facts.phase(event.name)
    if span is not None:
        span.end, span.end_us, span.complete, span.why = moment, event.at_us, event.complete, event.why


# Messages ---------------------------------------------------------------------------------------------------------


def _register_pushes(facts: Facts) -> None:
    waiting: list[tuple[Message, str]] = []
    for call in facts.pushes:
        request = call.request
        assert isinstance(request, PushCall)
        result = call.result
        # What nobody was answered may have been answered `buffered`: then it is stored when the broker is long done.
        may_be_spooled = call.unknown and facts.without_storage(call.invoked_us, call.until_us)
        for item, partition in enumerate(request.partitions):
            message = Message(
                f"m{len(facts.messages) + 1}",
                request.queue,
                partition,
                call,
                item,
                request.transaction_ids[item],
                request.payloads[item],
                request.transaction_ids[item],
                refused=call.refused,
                denied=call.refused and not call.undelivered,
                ordered=not may_be_spooled,
            )
            facts.messages.append(message)
            if isinstance(result, PushResult):
                denies_nothing = facts.without_storage(call.invoked_us, call.returned_us)
                known_id = _apply_push_status(message, result, item, denies_nothing=denies_nothing)
                if known_id is not None:
                    waiting.append((message, known_id))
    _bind_pushes(facts, waiting)


def _apply_push_status(message: Message, result: PushResult, item: int, *, denies_nothing: bool) -> str | None:
    """Reads one status; the id that the answer names, where it names one. `denies_nothing`: "failed" proves nothing."""
    status = result.statuses[item]
    message_id = result.message_ids[item]
    if item in result.unknown_items or (denies_nothing and status in ("error", "failed")):
        message.open = True
        message.ordered = not denies_nothing  # without the storage it may have been spooled all the same
        return None
    if status == "queued":
        assert message.push is not None
        message.stored_by = message.push.returned
        message.message_id = message_id
        if message.transaction_id is None:
            message.transaction_id = result.transaction_ids[item]
        return message_id
    if status == "buffered":
        message.ordered = False
        message.spooled = True
        if message.transaction_id is None:
            message.transaction_id = result.transaction_ids[item]
        return None
    if status == "duplicate":
        message.refused = True
        return message_id
    if status in ("error", "failed"):
        message.refused = message.denied = True
    return None


def _bind_pushes(facts: Facts, waiting: list[tuple[Message, str]]) -> None:
    """Ids of stored items first, so that a duplicate finds its original wherever it stands."""
    duplicates: list[tuple[Message, str]] = []
    for message, message_id in waiting:
        if message.refused:
            duplicates.append((message, message_id))
        else:
            facts.by_id.setdefault((message.queue, message_id), message)
            message.message_id = message_id
    for message in facts.messages:
        if not message.refused:
            facts.partitions.setdefault((message.queue, message.partition), []).append(message)
    for message, message_id in duplicates:
        if (message.queue, message_id) in facts.by_id:
            continue
        original = _unanswered_with_id(facts, message)
        if original is not None and not _knows_the_spool_only(facts, message, original):
            original.message_id = message_id
            original.stored_by = message.push.returned if message.push is not None else NEVER
            facts.by_id[message.queue, message_id] = original


def _knows_the_spool_only(facts: Facts, duplicate: Message, original: Message) -> bool:
    """Whether an answer "duplicate" may speak of what is still in the spool, and is stored under another id later."""
    call = duplicate.push
    assert call is not None
    away = facts.without_storage(call.invoked_us, call.returned_us)
    return not original.ordered and (away or call is original.push)


def _unanswered_with_id(facts: Facts, duplicate: Message) -> Message | None:
    """The unanswered push that an answer "duplicate" reveals to have been stored."""
    if duplicate.transaction_id is None:
        return None
    before = duplicate.push.returned if duplicate.push is not None else NEVER
    candidates = [
        message
        for message in facts.partitions.get((duplicate.queue, duplicate.partition), ())
        if message.message_id is None
        and message.transaction_id == duplicate.transaction_id
        and message.pushed_after < before
    ]
    return candidates[0] if len(candidates) == 1 else None  # of several, the first delivery tells by its value


def _read_pops(facts: Facts) -> None:
    answered = sorted((call for call in facts.pops if isinstance(call.result, PopResult)), key=lambda c: c.returned)
    for call in answered:
        request, result = call.request, call.result
        assert isinstance(request, PopCall)
        assert isinstance(result, PopResult)
        runs: dict[str, Run] = {}
        for at, message_id in enumerate(result.message_ids):
            partition = result.partitions[at]
            message = facts.by_id.get((request.queue, message_id))
            if message is None:
                message = _bind_delivery(facts, call, result, at)
            message.stored_by = min(message.stored_by, call.returned)
            if message.transaction_id is None:
                message.transaction_id = result.transaction_ids[at]
            run = runs.get(partition)
            if run is None:
                run = runs[partition] = Run(
                    call,
                    request.queue,
                    partition,
                    result.partition_ids[at],
                    group_name(request.group),
                    "" if request.auto_ack else result.lease_ids[at],
                    request.auto_ack,
                    [],
                    [],
                )
                facts.runs.append(run)
            run.messages.append(message)
            run.at.append(at)


def _bind_delivery(facts: Facts, call: Call, result: PopResult, at: int) -> Message:
    """Finds the unanswered push behind a delivered id that no answer has named, or files a phantom."""
    queue = call.request.queue
    partition, transaction_id = result.partitions[at], result.transaction_ids[at]
    message_id, payload = result.message_ids[at], result.payloads[at]
    message = _match(facts, (queue, partition), transaction_id, payload, call.returned)
    if message is None:
        message = Message(f"m{len(facts.messages) + 1}", queue, partition, payload=payload)
        message.transaction_id = transaction_id
        facts.messages.append(message)
        facts.partitions.setdefault((queue, partition), []).append(message)
    message.message_id = message_id
    message.transaction_id = transaction_id
    if message.push is not None and message.ordered:  # it was stored when its push could act no more
        message.stored_by = min(message.stored_by, message.push.ended)
    facts.by_id[queue, message_id] = message
    return message


def _match(facts: Facts, key: PartitionKey, transaction_id: str, payload: str, before: int) -> Message | None:
    candidates = [m for m in facts.partitions.get(key, ()) if m.message_id is None and m.pushed_after < before]
    if not candidates:
        return None
    value = canonical(payload)
    named = [m for m in candidates if m.transaction_id == transaction_id]
    pool = named or [m for m in candidates if m.transaction_id is None]
    equal = [m for m in pool if m.payload == payload or canonical(m.payload) == value]
    if not equal:
        return named[0] if named else None
    if len(equal) > 1:
        pushes = [message.earliest or message.push for message in equal]
        first = min((push for push in pushes if push is not None), key=lambda push: push.invoked)
        for message in equal:
            message.ordered, message.earliest = False, first
    return equal[0]


def _settle_spooled(facts: Facts, spool_us: int) -> None:
    """From when on spooled messages are certainly stored: the broker was left alone for long enough (contract 2).

    One whose transactionId another push to its partition has as well may be a duplicate of that. One that was answered
    without an id is known by its value alone, which others may have too.
    """
    for messages in facts.partitions.values():
        spooled = [message for message in messages if message.spooled]
        if not spooled:
            continue
        ids = Counter(message.transaction_id for message in messages)
        for message in spooled:
            assert message.push is not None
            if message.transaction_id is not None and ids[message.transaction_id] == 1:
                message.stored_by = min(message.stored_by, _undisturbed(facts, message.push.returned_us, spool_us))


def _undisturbed(facts: Facts, since_us: int, length_us: int) -> int:
    """The first moment after which the broker was whole for so long, after a time."""
    away: set[str] = set()
    for moment, event in enumerate(facts.history.events):
        if not away and event.at_us >= since_us + length_us:
            return moment
        if isinstance(event, Fault) and event.what != "crash-consumer":
            away.difference_update(_ENDED_BY.get(event.what, ()))
            away.update({event.what} & _ENDS)
        elif not (isinstance(event, Note) and event.text.startswith("stalled")):
            continue
        since_us = max(since_us, event.at_us)
    return NEVER


def ack_items(facts: Facts) -> Iterator[tuple[Call, AckCall, AckResult | None]]:
    """Each ack that may have acted, with its request and, where it was answered, its result."""
    for call in facts.acks:
        if call.refused:
            continue
        request, result = call.request, call.result
        assert isinstance(request, AckCall)
        assert result is None or isinstance(result, AckResult)
        yield call, request, result


def extended_s(facts: Facts, lease_id: str) -> Iterator[tuple[Call, int]]:
    """Each extension of a lease that may have acted, with its seconds."""
    for call in facts.extends:
        request, result = call.request, call.result
        assert isinstance(request, ExtendCall)
        if request.lease_id != lease_id or call.refused:
            continue
        denied = isinstance(result, ExtendResult) and result.renewed == 0 and not result.success
        if denied and not facts.without_storage(call.invoked_us, call.returned_us):
            continue
        yield call, request.seconds
