"""Writes histories by hand: for tests of the judge, and for attacking it.

Each method is one call that begins and ends at once; `begin_*` leaves it open, and the returned `Open` ends it with
`ok`, `lost` or `refused`. Time passes only by `advance`. Message ids, lease ids and partition ids are readable words.

    h = HistoryBuilder()
    m1, m2 = h.push("p", "m1", "m2")
    h.pop("G", "p", [m1], lease="L1")
    h.ack("G", [m1], lease="L1")
    h.audit()
    judgement = judge(h.history())
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from contract.history import (
    HISTORY_VERSION,
    OLDEST_TIME,
    AckCall,
    AckResult,
    Call,
    ConfigureCall,
    DeleteQueueCall,
    DoneResult,
    EffectEnd,
    End,
    Event,
    ExtendCall,
    ExtendResult,
    Fault,
    Header,
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


@dataclass(frozen=True, slots=True)
class Stored:
    """What the builder knows of a message id."""

    partition: str
    transaction_id: str
    payload: str


class Open:
    """A call that was invoked and has not returned yet."""

    def __init__(self, builder: HistoryBuilder, number: int, request: Call) -> None:
        self.builder, self.number, self.request = builder, number, request

    def ok(self, result: Result, status: int = 200) -> None:
        """The answer arrives."""
        self.builder.add(Return(self.number, self.builder.now_us, "ok", status, result=result))

    def lost(self, why: str = "broken connection") -> None:
        """The client never learns the outcome."""
        self.builder.add(Return(self.number, self.builder.now_us, "unknown", why=why))

    def refused(self, status: int | None = None, why: str = "connection refused") -> None:
        """It certainly had no effect."""
        self.builder.add(Return(self.number, self.builder.now_us, "refused", status, why))

    def effect_end(self, acted: bool | None = None) -> None:
        """It can act no more."""
        self.builder.add(EffectEnd(self.number, self.builder.now_us, acted))

    def messages(self, ids: Sequence[str], *, lease: str = "", payloads: Sequence[str] | None = None) -> None:
        """A pop is answered with these messages."""
        self.ok(self.builder.pop_result(self.request, ids, lease, payloads))


class HistoryBuilder:
    """Collects the events of one history on one queue."""

    def __init__(self, queue: str = "q", *, profile: str = "simulated") -> None:
        self.queue = queue
        self.profile = profile
        self.events: list[Event] = []
        self.now_us = 0
        self.stored: dict[str, Stored] = {}
        self.order: dict[str, list[str]] = {}
        self.offsets: dict[str, int] = {}
        self.attempt: int | None = None
        self._calls = 0
        self._leases = 0

    def add(self, event: Event) -> None:
        """Appends an event as it is."""
        self.events.append(event)

    def advance(self, ms: int) -> None:
        """Time passes."""
        self.now_us += ms * 1000

    def begin(self, worker: str, request: Call, step: str = "") -> Open:
        """Invokes a call."""
        self._calls += 1
        self.add(Invoke(self._calls, self.now_us, worker, request, step or str(self._calls)))
        return Open(self, self._calls, request)

    # Push

    def begin_push(
        self,
        partition: str,
        *names: str,
        transaction_ids: Sequence[str | None] | None = None,
        payloads: Sequence[str] | None = None,
    ) -> Open:
        """Invokes a push of one message a name; the name becomes the message id when it is stored."""
        bodies = tuple(payloads) if payloads is not None else tuple(json.dumps({"n": name}) for name in names)
        ids = tuple(transaction_ids) if transaction_ids is not None else (None,) * len(names)
        request = PushCall(self.queue, (partition,) * len(names), ids, bodies)
        for name, body, transaction_id in zip(names, bodies, ids, strict=True):
            self.stored[name] = Stored(partition, transaction_id or name, body)
        return self.begin("producer", request)

    def push_result(self, names: Sequence[str], statuses: Sequence[str] | None = None) -> PushResult:
        """The answer that these messages were stored."""
        return PushResult(
            tuple(names),
            tuple(self.stored[name].transaction_id for name in names),
            tuple(statuses) if statuses is not None else ("queued",) * len(names),
            (None,) * len(names),
        )

    def push(
        self,
        partition: str,
        *names: str,
        transaction_ids: Sequence[str | None] | None = None,
        payloads: Sequence[str] | None = None,
        statuses: Sequence[str] | None = None,
    ) -> tuple[str, ...]:
        """An answered push."""
        opened = self.begin_push(partition, *names, transaction_ids=transaction_ids, payloads=payloads)
        opened.ok(self.push_result(names, statuses), 201)
        self.place(
            partition, *(n for n, s in zip(names, statuses or ["queued"] * len(names), strict=True) if s == "queued")
        )
        return names

    def place(self, partition: str, *names: str) -> None:
        """Says that the broker stored these messages next, for the audit."""
        self.order.setdefault(partition, []).extend(names)

    # Pop

    def pop_result(
        self, request: Call, ids: Sequence[str], lease: str, payloads: Sequence[str] | None = None
    ) -> PopResult:
        """The answer of a pop with these messages."""
        known = [self.stored[name] for name in ids]
        return PopResult(
            lease,
            tuple(ids),
            tuple(message.transaction_id for message in known),
            tuple(message.partition for message in known),
            tuple(f"id of {message.partition}" for message in known),
            (lease,) * len(ids),
            tuple(payloads) if payloads is not None else tuple(message.payload for message in known),
            (self.attempt,) * len(ids),
            tuple(self.offsets.get(name) for name in ids),
        )

    def begin_pop(
        self,
        group: str,
        partition: str | None,
        *,
        worker: int = 0,
        lease_s: int | None = 2,
        batch: int = 10,
        partitions: int = 1,
        wait_ms: int | None = None,
        auto_ack: bool = False,
        mode: str | None = "all",
        from_: str | None = None,
    ) -> Open:
        """Invokes a pop; a group starts at the oldest message unless `mode` says otherwise."""
        request = PopCall(
            self.queue, group, partition, batch, partitions, lease_s, wait_ms, auto_ack, mode if group else None, from_
        )
        return self.begin(f"{group or 'q'}/{worker}", request)

    def pop(
        self,
        group: str,
        partition: str | None,
        ids: Sequence[str],
        *,
        lease: str = "",
        worker: int = 0,
        lease_s: int | None = 2,
        batch: int = 10,
        auto_ack: bool = False,
        mode: str | None = "all",
        payloads: Sequence[str] | None = None,
    ) -> str:
        """An answered pop; returns its lease id, a new one where none is given."""
        if not lease and ids and not auto_ack:
            self._leases += 1
            lease = f"lease {self._leases}"
        opened = self.begin_pop(
            group, partition, worker=worker, lease_s=lease_s, batch=batch, auto_ack=auto_ack, mode=mode
        )
        opened.messages(ids, lease=lease, payloads=payloads)
        return lease

    # Ack and the rest

    def begin_ack(
        self,
        group: str,
        ids: Sequence[str],
        *,
        lease: str | None,
        statuses: Sequence[str] | str = "completed",
        worker: int = 0,
    ) -> Open:
        """Invokes an ack of these messages."""
        words = (statuses,) * len(ids) if isinstance(statuses, str) else tuple(statuses)
        known = [self.stored[name] for name in ids]
        request = AckCall(
            self.queue,
            group,
            len(ids) > 1,
            tuple(message.partition for message in known),
            tuple(f"id of {message.partition}" for message in known),
            tuple(message.transaction_id for message in known),
            tuple(ids),
            (lease,) * len(ids),
            words,
        )
        return self.begin(f"{group or 'q'}/{worker}", request)

    def ack(
        self,
        group: str,
        ids: Sequence[str],
        *,
        lease: str | None,
        statuses: Sequence[str] | str = "completed",
        success: Sequence[bool] | bool = True,
        noop: bool = False,
        dead_lettered: Sequence[bool] | bool = False,
        released: bool | None = None,
        worker: int = 0,
    ) -> None:
        """An answered ack."""
        count = len(ids)
        done = (success,) * count if isinstance(success, bool) else tuple(success)
        filed = (dead_lettered,) * count if isinstance(dead_lettered, bool) else tuple(dead_lettered)
        opened = self.begin_ack(group, ids, lease=lease, statuses=statuses, worker=worker)
        opened.ok(
            AckResult(
                done,
                tuple(None if good else "invalid or expired lease" for good in done),
                (noop or None,) * count,
                tuple(flag or None for flag in filed),
                (released,) * count,
            )
        )

    def extend(self, group: str, lease: str, seconds: int, *, success: bool = True) -> None:
        """An answered extension."""
        self.begin(f"{group or 'q'}/0", ExtendCall(self.queue, group, lease, seconds)).ok(
            ExtendResult(success, 1 if success else 0)
        )

    def configure(self, **options: int | bool | str) -> None:
        """An answered configure, options by their wire names."""
        self.begin("admin", ConfigureCall(self.queue, dict(options))).ok(DoneResult())

    def begin_seek(self, group: str, partition: str | None = None, *, to_end: bool = False) -> Open:
        """Invokes a seek to the oldest message, or to the end."""
        timestamp = None if to_end else OLDEST_TIME
        return self.begin("admin", SeekCall(self.queue, group, partition, to_end, timestamp))

    def seek(self, group: str, partition: str | None = None, *, to_end: bool = False) -> None:
        """An answered seek."""
        self.begin_seek(group, partition, to_end=to_end).ok(DoneResult())

    def delete_queue(self) -> None:
        """An answered deletion of the queue."""
        self.begin("admin", DeleteQueueCall(self.queue)).ok(DoneResult())

    def fault(self, what: str) -> None:
        """Something is done to the broker."""
        self.add(Fault(self.now_us, what))

    def kill(self) -> None:
        """The broker dies and comes back."""
        self.fault("kill")
        self.fault("start")

    def outage(self, ms: int) -> None:
        """The storage of the broker is away for `ms`."""
        self.fault("storage-stop")
        self.advance(ms)
        self.fault("storage-start")

    def unspool(self, name: str, spooled: str) -> str:
        """A message that was answered `buffered` is stored, under the id `name`."""
        self.stored[name] = self.stored[spooled]
        self.place(self.stored[name].partition, name)
        return name

    def note(self, text: str) -> None:
        """Something happened to the run."""
        self.add(Note(self.now_us, text))

    # Phases

    def phase(self, name: PhaseName) -> None:
        """A phase begins."""
        self.add(Phase(self.now_us, name))

    def phase_end(self, name: PhaseName, *, complete: bool = True, why: str = "") -> None:
        """A phase is over."""
        self.add(PhaseEnd(self.now_us, name, complete, why))

    def audit(self, order: dict[str, Sequence[str]] | None = None, *, complete: bool = True) -> None:
        """A fresh group reads everything from the start; `order` says what it sees, else what was placed."""
        self.advance(10)
        self.phase("audit")
        for partition, ids in (order if order is not None else self.order).items():
            if ids:
                self.pop("audit", partition, list(ids), auto_ack=True, lease_s=None, batch=1000)
            self.pop("audit", partition, [], auto_ack=True, lease_s=None, batch=1000)
        self.phase_end("audit", complete=complete, why="" if complete else "it was stopped")

    def drain(self, deliveries: dict[tuple[str, str], Sequence[str]], *, wait_ms: int = 60_000) -> None:
        """After every lease, each (group, partition) is given these messages, acks them, and then sees nothing."""
        self.advance(wait_ms)
        self.phase("drain")
        for (group, partition), ids in deliveries.items():
            if ids:
                lease = self.pop(group, partition, list(ids), lease_s=30, batch=1000)
                self.ack(group, list(ids), lease=lease)
            self.pop(group, partition, [], lease_s=30, batch=1000)
        self.phase_end("drain")

    def history(self, *, cut: bool = False) -> History:
        """What was written so far; `cut` leaves the end marker out."""
        events = tuple(self.events) if cut else (*self.events, End(self.now_us))
        header = Header(HISTORY_VERSION, "by hand", "by hand", self.profile, {}, (self.queue,))
        return History(header, events)
