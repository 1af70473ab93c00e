"""Situations: what a history came to, by name, so that a run can say what it never tried.

A situation is no verdict. It is read from one history in one pass, cheaply and without much care at the edges: it
says where a search has been, and Hypothesis looks for schedules that reach more of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from contract.history import (
    AckCall,
    AckResult,
    ConfigureCall,
    EffectEnd,
    ExtendCall,
    ExtendResult,
    Fault,
    History,
    Invoke,
    Phase,
    PopCall,
    PopResult,
    PushCall,
    PushResult,
    Return,
    SeekCall,
)

SITUATIONS: tuple[str, ...] = (
    "two groups on one partition",
    "pops of one group side by side",
    "pops of two groups side by side",
    "push and pop side by side",
    "push of many items",
    "push over several partitions",
    "push to a leased partition",
    "duplicate push",
    "unknown push delivered",
    "unknown push not delivered",
    "pop of several partitions",
    "pop of a leased partition",
    "autoAck pop with messages",
    "long poll answered later",
    "long poll timed out",
    "new group started before a push",
    "new group started after a push",
    "redelivery after expiry",
    "redelivery after a nack",
    "redelivery after an unknown ack",
    "ack of part of a batch",
    "ack of mixed statuses",
    "ack under a dead lease",
    "ack under a superseded lease",
    "ack without a lease",
    "ack that changed nothing",
    "dead letter",
    "lease extended",
    "extension of a dead lease",
    "options changed",
    "seek with a lease",
    "consumer crashed with a lease",
    "kill while a call was in flight",
    "kill with a lease",
    "call while the storage was away",
    "storage away with a lease",
    "late request acted",
)


def situations(history: History) -> frozenset[str]:
    """The names, out of `SITUATIONS`, of what this history came to."""
    return frozenset(_Reader(history).found)


class _Lease:
    """A batch that a pop of the drawn part gave in one partition."""

    __slots__ = ("batch", "end_us", "over", "worker")

    def __init__(self, worker: str, end_us: int, batch: list[str]) -> None:
        self.worker = worker
        self.end_us = end_us
        self.batch = batch
        self.over = False


_Lane = tuple[str, str]
"""Group and partition."""


class _Reader:
    """One pass over one history."""

    def __init__(self, history: History) -> None:
        self.found: set[str] = set()
        self._open: dict[int, Invoke] = {}
        self._calls: dict[int, Invoke] = {}
        self._leases: dict[_Lane, _Lease] = {}
        self._by_id: dict[tuple[str, str, str], _Lease] = {}
        self._handed: dict[tuple[str, str], _Lease | None] = {}
        self._nacked: set[tuple[str, str]] = set()
        self._unknown_acks: set[tuple[str, str]] = set()
        self._groups_of: dict[str, set[str]] = {}
        self._started: set[str] = set()
        self._pushed = False
        self._unknown_payloads: list[str] = []
        self._delivered: set[str] = set()
        self._drawn = True
        self._storage_away = False
        for event in history.events:
            self._event(event)
        self._unknown_pushes()

    def _event(self, event: object) -> None:
        if isinstance(event, Invoke):
            self._invoke(event)
        elif isinstance(event, Return):
            self._return(event)
        elif isinstance(event, Fault):
            self._fault(event)
        elif isinstance(event, Phase):
            self._drawn = event.name == "schedule"
        elif isinstance(event, EffectEnd):
            self._effect_end(event)

    # Invocations

    def _invoke(self, event: Invoke) -> None:
        request = event.request
        self._calls[event.call] = event
        if self._drawn:
            self._side_by_side(event)
            if self._storage_away:
                self.found.add("call while the storage was away")
            if isinstance(request, PushCall):
                self._push(request, event.at_us)
            elif isinstance(request, AckCall):
                self._ack(request, event.at_us)
            elif isinstance(request, PopCall):
                self._start(request)
            elif isinstance(request, SeekCall):
                self._seek(request, event.at_us)
            elif isinstance(request, ConfigureCall) and self._pushed:
                self.found.add("options changed")
        self._open[event.call] = event

    def _side_by_side(self, event: Invoke) -> None:
        request = event.request
        for other in self._open.values():
            kinds = {type(request), type(other.request)}
            if kinds == {PushCall, PopCall}:
                self.found.add("push and pop side by side")
            elif isinstance(request, PopCall) and isinstance(other.request, PopCall):
                same = request.group == other.request.group
                self.found.add(f"pops of {'one group' if same else 'two groups'} side by side")

    def _push(self, request: PushCall, at_us: int) -> None:
        self._pushed = True
        if len(request.partitions) > 1:
            self.found.add("push of many items")
        if len(set(request.partitions)) > 1:
            self.found.add("push over several partitions")
        if any(self._leased(lane, at_us) for lane in self._leases if lane[1] in request.partitions):
            self.found.add("push to a leased partition")

    def _start(self, request: PopCall) -> None:
        if request.group and request.group not in self._started:
            self._started.add(request.group)
            if request.mode in (None, "new"):
                self.found.add(f"new group started {'after' if self._pushed else 'before'} a push")

    def _ack(self, request: AckCall, at_us: int) -> None:
        if len(set(request.statuses)) > 1:
            self.found.add("ack of mixed statuses")
        for partition, lease_id in zip(request.partitions, request.lease_ids, strict=True):
            if lease_id is None:
                self.found.add("ack without a lease")
                continue
            lease = self._by_id.get((request.group, partition, lease_id))
            if lease is None:
                continue
            if lease is not self._leases.get((request.group, partition)):
                self.found.add("ack under a superseded lease")
            elif lease.end_us <= at_us:
                self.found.add("ack under a dead lease")

    def _seek(self, request: SeekCall, at_us: int) -> None:
        for lane in self._leases:
            if lane[0] == request.group and request.partition in (None, lane[1]) and self._leased(lane, at_us):
                self.found.add("seek with a lease")

    # Returns

    def _return(self, event: Return) -> None:
        invoke = self._open.pop(event.call, None)
        if invoke is None:
            return
        request, result = invoke.request, event.result
        if isinstance(request, PushCall) and event.outcome == "unknown":
            self._unknown_payloads.extend(request.payloads)
        elif isinstance(request, AckCall) and event.outcome == "unknown":
            self._unknown_acks.update((request.group, message_id) for message_id in request.message_ids)
        elif isinstance(result, PushResult):
            if "duplicate" in result.statuses:
                self.found.add("duplicate push")
        elif isinstance(request, PopCall) and isinstance(result, PopResult):
            self._popped(invoke, request, result, event.at_us)
        elif isinstance(request, AckCall) and isinstance(result, AckResult):
            self._acked(request, result)
        elif isinstance(request, ExtendCall) and isinstance(result, ExtendResult):
            self._extended(request, result, event.at_us)

    def _popped(self, invoke: Invoke, request: PopCall, result: PopResult, at_us: int) -> None:
        self._delivered.update(result.payloads)
        partitions = dict.fromkeys(result.partitions)
        if self._drawn:
            self._answered(invoke, request, result, at_us)
        for message_id in result.message_ids:
            self._redelivery((request.group, message_id), invoke.at_us)
        for partition in partitions:
            groups = self._groups_of.setdefault(partition, set())
            if self._drawn:
                groups.add(request.group)
            if len(groups) > 1:
                self.found.add("two groups on one partition")
            self._lease(invoke, request, result, partition)

    def _answered(self, invoke: Invoke, request: PopCall, result: PopResult, at_us: int) -> None:
        if len(set(result.partitions)) > 1:
            self.found.add("pop of several partitions")
        if request.auto_ack and result.message_ids:
            self.found.add("autoAck pop with messages")
        if request.wait_ms and not result.message_ids:
            self.found.add("long poll timed out")
        elif request.wait_ms and at_us > invoke.at_us and self._pushed_since(invoke):
            self.found.add("long poll answered later")
        empty_at_once = not result.message_ids and not request.wait_ms
        if empty_at_once and request.partition and self._leased((request.group, request.partition), at_us):
            self.found.add("pop of a leased partition")

    def _pushed_since(self, invoke: Invoke) -> bool:
        return any(isinstance(self._calls[call].request, PushCall) for call in self._later(invoke.call))

    def _later(self, call: int) -> Iterator[int]:
        return (other for other in self._calls if other > call)

    def _redelivery(self, who: tuple[str, str], at_us: int) -> None:
        if who not in self._handed:
            return
        lease = self._handed[who]
        if who in self._nacked:
            self.found.add("redelivery after a nack")
        elif who in self._unknown_acks:
            self.found.add("redelivery after an unknown ack")
        elif lease is not None and lease.end_us <= at_us and not lease.over:
            self.found.add("redelivery after expiry")

    def _lease(self, invoke: Invoke, request: PopCall, result: PopResult, partition: str) -> None:
        batch = [m for m, where in zip(result.message_ids, result.partitions, strict=True) if where == partition]
        lease = None
        if not request.auto_ack:
            lease = _Lease(invoke.worker, invoke.at_us + 1_000_000 * (request.lease_s or 60), batch)
            self._leases[request.group, partition] = lease
            for lease_id in {result.lease_id, *result.lease_ids}:
                self._by_id[request.group, partition, lease_id] = lease
        for message_id in batch:
            self._handed[request.group, message_id] = lease

    def _acked(self, request: AckCall, result: AckResult) -> None:
        if any(result.dead_lettered):
            self.found.add("dead letter")
        if any(result.noops):
            self.found.add("ack that changed nothing")
        for at, success in enumerate(result.successes):
            lease = self._leases.get((request.group, request.partitions[at]))
            if not success or lease is None:
                continue
            message_id, status = request.message_ids[at], request.statuses[at]
            last = bool(lease.batch) and message_id == lease.batch[-1]
            if status in ("failed", "retry"):
                self._nacked.add((request.group, message_id))
            if status in ("failed", "retry") or last:
                lease.over = True
            elif self._drawn and message_id in lease.batch:
                self.found.add("ack of part of a batch")

    def _extended(self, request: ExtendCall, result: ExtendResult, at_us: int) -> None:
        self.found.add("lease extended" if result.renewed else "extension of a dead lease")
        for (group, _, lease_id), lease in self._by_id.items():
            if result.renewed and (group, lease_id) == (request.group, request.lease_id):
                lease.end_us = max(lease.end_us, at_us + 1_000_000 * request.seconds)

    def _leased(self, lane: _Lane, at_us: int) -> bool:
        lease = self._leases.get(lane)
        return lease is not None and not lease.over and lease.end_us > at_us

    # The rest

    def _fault(self, event: Fault) -> None:
        if event.what == "kill":
            if self._open:
                self.found.add("kill while a call was in flight")
            if any(self._leased(lane, event.at_us) for lane in self._leases):
                self.found.add("kill with a lease")
        elif event.what in ("storage-stop", "storage-start"):
            self._storage_away = event.what == "storage-stop"
            if any(self._leased(lane, event.at_us) for lane in self._leases):
                self.found.add("storage away with a lease")
        elif event.what == "crash-consumer":
            held = (lease for lane, lease in self._leases.items() if self._leased(lane, event.at_us))
            if any(lease.worker == event.detail for lease in held):
                self.found.add("consumer crashed with a lease")

    def _effect_end(self, event: EffectEnd) -> None:
        if event.acted is not False and self._calls[event.call].fault == "delay-request":
            self.found.add("late request acted")

    def _unknown_pushes(self) -> None:
        for payload in self._unknown_payloads:
            seen = payload in self._delivered
            self.found.add("unknown push delivered" if seen else "unknown push not delivered")
