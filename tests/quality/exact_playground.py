"""A legal broker with a will of its own: whatever the contract leaves open, it draws.

It plays random calls that overlap at random, acts at random moments inside each call, loses answers, acts late or never
behind a lost answer, dies and forgets what it may forget, denies and spools without its storage, gives shorter runs
than it could, and takes now one and now the other of two allowed readings. Every history that it writes is legal by
construction, so every judge must pass it.

It follows contract.md sections 2 to 5 and 8 and shares nothing with the reference broker or the exact search.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from contract.history import (
    HISTORY_VERSION,
    AckCall,
    AckResult,
    Call,
    ConfigureCall,
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

PARTITIONS = ("p", "r")
GROUPS = ("", "A", "B")
WORDS = ("completed", "completed", "completed", "failed", "retry", "dlq")
STRENGTH = {"completed": 0, "retry": 1, "failed": 2, "dlq": 3}
START_US = 240_000
LATE_US = 490_000
PUSHED_LEASE_S = 60
SETTLE_US = {"simulated": 0, "2.x": 1_990_000}
SPOOL_US = 9_900_000


@dataclass(slots=True)
class Stored:
    """A stored message."""

    id: str
    transaction_id: str
    payload: str
    at_us: int = 0


@dataclass(slots=True)
class Spooled:
    """What was pushed without the storage, and when it is stored at the latest."""

    partition: str
    sent_id: str | None
    transaction_id: str | None
    payload: str
    by_us: int = 1 << 60


@dataclass(slots=True)
class Lease:
    """A leased batch up to (not including) offset `last`, alive until `end_us`."""

    id: str
    end_us: int
    last: int


@dataclass(slots=True)
class Reader:
    """One group on one partition."""

    cursor: int = 0
    failures: int = 0
    lease: Lease | None = None
    batch: tuple[int, int, int] | None = None


@dataclass(slots=True)
class Open:
    """A call under way. `deeds` are what it has still to do, each at its own moment; `done` builds its answer."""

    number: int
    request: Call
    deeds: list[Callable[[], bool]]
    answer: Callable[[], Result]
    by_us: int = 1 << 60
    lost_us: int | None = None
    held_back: bool = False


@dataclass(slots=True)
class Given:
    """A batch that some consumer was answered with."""

    group: str
    result: PopResult


@dataclass
class Playground:
    """One random run. `write` plays it."""

    random: Random
    now_us: int = 0
    events: list[Event] = field(default_factory=list)
    logs: dict[str, list[Stored]] = field(default_factory=dict)
    readers: dict[tuple[str, str], Reader] = field(default_factory=dict)
    registered: dict[str, str] = field(default_factory=dict)
    open: list[Open] = field(default_factory=list)
    given: list[Given] = field(default_factory=list)
    retry_limit: int = 3
    window_us: int = 3600_000_000
    lease_s: int = PUSHED_LEASE_S
    calls: int = 0
    minted: int = 0
    counts: bool = True
    named_registers: bool = True
    from_now: bool = False
    draining: bool = False
    profile: str = "simulated"
    outages: bool = False
    away: bool = False
    blind_until_us: int = -1
    spool: list[Spooled] = field(default_factory=list)
    later: list[Callable[[], object]] = field(default_factory=list)
    phase: PhaseName | None = None
    modes: dict[str, str | None] = field(default_factory=dict)
    settled: dict[tuple[str, str, str | None], list[tuple[object, list[bool]]]] = field(default_factory=dict)

    def write(self, calls: int) -> History:
        """Plays until that many calls were sent, and ends with some of them perhaps still under way."""
        self.named_registers = self.random.random() < 0.5
        self.counts = self.random.random() < 0.5
        self.from_now = self.random.random() < 0.2
        self.outages = self.random.random() < 0.4
        if self.outages:
            self.profile = self.random.choice(list(SETTLE_US))
        self.modes = {"": None, "A": "all", "B": self.random.choice([None, "new", "all"])}
        if self.random.random() < 0.5:
            self._configure()
            self._answer()
        while self.calls < calls:
            self._step()
        for _ in range(self.random.randint(0, 12)):
            self._step(new=False)
        if self._chance(0.4):
            self._finish()
        header = Header(HISTORY_VERSION, "playground", "a legal broker", self.profile, {}, ("q",))
        return History(header, (*self.events, End(self.now_us)))

    def _step(self, *, new: bool = True) -> None:
        choices: list[Callable[[], None]] = [self._send] * (4 if new else 0)
        if self.open:
            choices += [self._act] * 6 + [self._answer] * 6 + [self._lose]
        choices += [self._wait]
        if self.later or self.spool:
            choices += [self._act_late]
        fate = self.random.random()
        if fate < 0.02:
            choices = [self._kill]
        elif fate < 0.03:
            choices = [self._pause]
        elif new and fate < 0.05:
            choices = [self._configure]
        elif self.outages and fate < (0.25 if self.away else 0.12):
            choices = [self._toggle_storage]
        self.random.choice(choices)()

    # Time, faults -------------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        ends = [r.lease.end_us - self.now_us for r in self.readers.values() if r.lease is not None]
        exact = [end + self.random.choice([-1000, 0, 1, 1000]) for end in ends]
        wanted = self.random.choice([0, 1000, 100_000, 500_000, 1_000_000, 2_000_000, *exact])
        due = [call.by_us - self.now_us for call in self.open if call.deeds]
        due += [spooled.by_us - self.now_us for spooled in self.spool]
        self.now_us += max(0, min([wanted, *due]))
        for spooled in [spooled for spooled in self.spool if spooled.by_us <= self.now_us]:
            self._unspool(spooled)

    def _pause(self) -> None:
        """Nothing acts for a while; what a first pop decides may come as late as the broker does."""
        self.events.append(Fault(self.now_us, "pause"))
        self.now_us += self.random.choice([1000, 700_000])
        self.events.append(Fault(self.now_us, "resume"))

    # Outages ------------------------------------------------------------------------------------------------------

    def _toggle_storage(self) -> None:
        """The storage goes, or is back; what was spooled is stored soon after, if nobody knows when, perhaps never."""
        self.events.append(Fault(self.now_us, "storage-start" if self.away else "storage-stop"))
        self.away = not self.away
        if self.away:
            self._forget()
            for spooled in self.spool:
                spooled.by_us = 1 << 60
            return
        self.blind_until_us = self.now_us + SETTLE_US[self.profile]
        for spooled in self.spool:
            spooled.by_us = self._spooled_by_us()

    def _spooled_by_us(self) -> int:
        known = self.profile != "simulated"
        return self.now_us + self.random.randint(0, SPOOL_US) if known and not self.away else 1 << 60

    def _blind(self) -> bool:
        """Whether the broker now does without its storage: it may still have it, or have it again."""
        return (self.away or self.now_us <= self.blind_until_us) and self._chance(0.6)

    def _act_late(self) -> None:
        """Something that an answer denied or left open comes through, or something that was spooled."""
        if self.later and (not self.spool or self._chance(0.5)):
            self.later.pop(self.random.randrange(len(self.later)))()
        elif self.spool and not self.away:
            self._unspool(self.random.choice(self.spool))

    def _deny(self, deed: Callable[[], object]) -> None:
        """What is denied without the storage acts all the same, acts later, or never."""
        fate = self.random.random()
        if fate < 0.3:
            deed()
        elif fate < 0.6:
            self.later.append(deed)

    def _unspool(self, spooled: Spooled) -> None:
        self.spool.remove(spooled)
        log = self.logs.setdefault(spooled.partition, [])
        known = [m for m in log if m.transaction_id == spooled.sent_id and self.now_us - m.at_us < self.window_us]
        if not known:
            self.minted += 1
            name = f"id{self.minted}"
            log.append(Stored(name, spooled.transaction_id or name, spooled.payload, self.now_us))

    def _forget(self) -> None:
        """What the broker keeps beside its messages and cursors may be gone."""
        for reader in self.readers.values():
            if self._chance(0.5):
                reader.lease = None
            if self._chance(0.5):
                reader.failures = 0
            if self._chance(0.5):
                reader.batch = None

    def _kill(self) -> None:
        self.events.append(Fault(self.now_us, "kill"))
        self._forget()
        for call in list(self.open):
            if call.lost_us is None:
                self.events.append(Return(call.number, self.now_us, "unknown", why="killed"))
            self.events.append(EffectEnd(call.number, self.now_us))
        self.open.clear()
        self.events.append(Fault(self.now_us, "start"))

    def _chance(self, share: float) -> bool:
        return self.random.random() < share

    # Calls --------------------------------------------------------------------------------------------------------

    def _begin(self, request: Call, deeds: list[Callable[[], bool]], answer: Callable[[], Result]) -> Open:
        self.calls += 1
        call = Open(self.calls, request, deeds, answer, held_back=self.phase is None and self._chance(0.04))
        fault, worker = "delay-request" if call.held_back else "", f"w{self.random.randrange(3)}"
        self.events.append(Invoke(self.calls, self.now_us, worker, request, str(self.calls), fault))
        self.open.append(call)
        if call.held_back:
            call.lost_us = self.now_us
            self.events.append(Return(call.number, self.now_us, "unknown", why="held back"))
        return call

    def _act(self) -> None:
        """One deed of a call, in the order of its parts; a pop that is parked may have to wait."""
        call = self.random.choice(self.open)
        if call.deeds and call.deeds[0]():
            call.deeds.pop(0)

    def _answer(self) -> None:
        call = self.random.choice(self.open)
        if call.deeds:
            if not call.deeds[0]():
                return
            call.deeds.pop(0)
        if call.deeds:
            return
        self.open.remove(call)
        if call.lost_us is not None:
            if self._chance(0.7):
                self.events.append(EffectEnd(call.number, self.now_us))
            return
        result = call.answer()
        self.events.append(Return(call.number, self.now_us, "ok", 200, result=result))
        if isinstance(result, PopResult) and isinstance(call.request, PopCall) and result.message_ids:
            self.given.append(Given(call.request.group, result))

    def _lose(self) -> None:
        """The client gives up. What is left to do is done late, or never."""
        call = self.random.choice(self.open)
        if call.lost_us is not None:
            return
        call.lost_us = self.now_us
        self.events.append(Return(call.number, self.now_us, "unknown", why="broken connection"))
        if isinstance(call.request, PopCall):
            call.by_us = 1 << 60 if self.away else min(call.by_us, self.now_us + LATE_US)
        if self._chance(0.5):
            self.random.shuffle(call.deeds)
            del call.deeds[self.random.randint(0, len(call.deeds)) :]
            if isinstance(call.request, PopCall | PushCall) and call.deeds:
                call.deeds = []  # their parts have an order; these never happen
        if not call.deeds:
            self.open.remove(call)
            if self._chance(0.7):
                self.events.append(EffectEnd(call.number, self.now_us))

    def _send(self) -> None:
        self.random.choice([self._push, self._pop, self._pop, self._ack, self._ack, self._extend, self._seek])()

    def _configure(self) -> None:
        options: dict[str, int | bool | str] = {"leaseTime": self.random.choice([1, 2, PUSHED_LEASE_S])}
        if self._chance(0.6):
            options["retryLimit"] = self.random.choice([0, 1, 3])
        if self._chance(0.6):
            options["dedupWindowSeconds"] = self.random.choice([0, 2, 3600])

        def configure() -> bool:
            self.lease_s = int(options["leaseTime"])
            self.retry_limit = int(options.get("retryLimit", self.retry_limit))
            self.window_us = int(options.get("dedupWindowSeconds", self.window_us // 1_000_000)) * 1_000_000
            return True

        self._begin(ConfigureCall("q", options), [configure], DoneResult)

    def _refuse(self, request: Call) -> None:
        """The broker does not take the request."""
        self.calls += 1
        self.events.append(Invoke(self.calls, self.now_us, "w0", request, str(self.calls)))
        self.events.append(Return(self.calls, self.now_us, "refused", why="connection refused"))

    def _seek(self) -> None:
        """A group goes to the oldest message or to the end; one that never popped may start by it, or not."""
        group = self.random.choice(GROUPS)
        partition = self.random.choice([None, None, *PARTITIONS])
        to_end = self._chance(0.4)
        moves_anyway, registers_anyway = self._chance(0.5), self._chance(0.5)

        def seek() -> bool:
            there = not group or group in self.registered
            for name, log in self.logs.items():
                if partition in (None, name) and (there or (group, name) in self.readers or moves_anyway) and log:
                    reader = self._reader(group, name)
                    reader.cursor, reader.lease, reader.failures = len(log) if to_end else 0, None, 0
                    if self._chance(0.5):
                        reader.batch = None
            if group and registers_anyway:
                self.registered[group] = "yes"
            return True

        timestamp = None if to_end else "1970-01-01T00:00:00Z"
        self._begin(SeekCall("q", group, partition, to_end, timestamp), [seek], DoneResult)

    # The end ------------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Heal, audit and drain, as a run ends: everything due has come when they are over."""
        self.events.append(Phase(self.now_us, "heal"))
        self.phase = "heal"
        if self.away:
            self._toggle_storage()
        for call in list(self.open):
            while call.deeds:
                if not call.deeds[0]():
                    continue
                call.deeds.pop(0)
            while call in self.open:
                self._answer()
        for late in self.later:
            if self._chance(0.5):
                late()
        self.later.clear()
        for spooled in list(self.spool):
            if spooled.by_us < 1 << 60 or self._chance(0.5):
                self._unspool(spooled)
        self.spool.clear()
        self.now_us += (PUSHED_LEASE_S + 11) * 1_000_000
        readers = [("audit", "all", True), *((group, self.modes[group], False) for group in GROUPS)]
        if self._chance(0.5):
            readers.append(readers.pop(0))
        for group, mode, audit in readers:
            if audit or not self.draining:
                self._phase("audit" if audit else "drain")
            self._read_all(group, mode, audit)
        self._phase(None)

    def _phase(self, name: PhaseName | None) -> None:
        if self.phase is not None:
            self.events.append(PhaseEnd(self.now_us, self.phase, True))
        if name is not None:
            self.events.append(Phase(self.now_us, name))
        self.phase, self.draining = name, name == "drain"

    def _read_all(self, group: str, mode: str | None, audit: bool) -> None:
        for partition in (None, *PARTITIONS):
            while True:
                lease_s = None if audit else 30
                request = PopCall("q", group, partition, 1000, 0, lease_s, None, audit, mode if group else None)
                found: list[PopResult] = []
                self._decide(request)
                call = self._begin(request, [], lambda found=found: found[0])  # type: ignore[misc]
                found.append(self._take(request))
                self._close(call)
                if not found[0].message_ids and not self._held(group):
                    break
                if not found[0].message_ids:  # an id that occurs twice was acked once: the rest comes again
                    self.now_us += 31_000_000
                elif not audit:
                    self._ack_all(group, found[0])

    def _held(self, group: str) -> bool:
        """Whether a lease of the group is alive."""
        leases = [reader.lease for (owner, _), reader in self.readers.items() if owner == group]
        return any(lease is not None and self.now_us <= lease.end_us for lease in leases)

    def _close(self, call: Open) -> None:
        """A call of the ending is answered at once."""
        self.open.remove(call)
        self.events.append(Return(call.number, self.now_us, "ok", 200, result=call.answer()))

    def _ack_all(self, group: str, given: PopResult) -> None:
        for partition in dict.fromkeys(given.partitions):
            at = [n for n, name in enumerate(given.partitions) if name == partition]
            ids, count = tuple(given.transaction_ids[n] for n in at), len(at)
            leases, words = (given.lease_id,) * count, ("completed",) * count
            names = tuple(given.message_ids[n] for n in at)
            request = AckCall(
                "q", group, True, (partition,) * count, (f"id of {partition}",) * count, ids, names, leases, words
            )
            said = self._settle(group, (partition, given.lease_id), tuple(zip(ids, words, strict=True)))
            nothing = (None,) * count
            answer = AckResult(tuple(s[0] for s in said), nothing, nothing, nothing, tuple(s[3] for s in said))
            self._close(self._begin(request, [], lambda answer=answer: answer))  # type: ignore[misc]

    # Push ---------------------------------------------------------------------------------------------------------

    def _push(self) -> None:
        count = self.random.choice([1, 1, 2, 3])
        partitions = tuple(self.random.choice(PARTITIONS) for _ in range(count))
        ids = tuple(self.random.choice("abc") if self._chance(0.3) else None for _ in range(count))
        payloads = tuple(self.random.choice(["1", "2", f'"{self.calls} {n}"']) for n in range(count))
        stored: dict[int, tuple[Stored | None, str]] = {}
        nobody, open_ = None, set[int]()
        batch: dict[tuple[str, str], Stored] = {}
        blind: list[bool] = []

        def store(n: int) -> bool:
            blind.append(blind[0] if blind else self._blind())
            fate = self.random.random()
            if fate < 0.04:
                stored[n] = (nobody, "failed")
                return True
            if fate < 0.08:
                open_.add(n)
                if fate < 0.06:
                    stored[n] = (nobody, "failed")
                    return True
            sent = ids[n]
            if blind[0]:
                again = any((partitions[o], ids[o]) == (partitions[n], sent) for o in stored) and sent is not None
                spooled = Spooled(partitions[n], sent, sent, payloads[n], self._spooled_by_us())
                stored[n] = (nobody, "failed") if again else self._push_blind(spooled, alone=count == 1)
                return True
            log = self.logs.setdefault(partitions[n], [])
            if sent is not None:
                known = batch.get((partitions[n], sent))
                if known is None:
                    known = next((m for m in reversed(log) if m.transaction_id == sent), None)
                    known = known if known and self.now_us - known.at_us < self.window_us else None
                if known is not None:
                    stored[n] = (known, "duplicate")
                    return True
            self.minted += 1
            message = Stored(f"id{self.minted}", sent or f"id{self.minted}", payloads[n], self.now_us)
            log.append(message)
            if sent is not None:
                batch[partitions[n], sent] = message
            stored[n] = (message, "queued")
            return True

        def answer() -> PushResult:
            done = [(nobody, "failed") if n in open_ else stored[n] for n in range(count)]
            return PushResult(
                tuple(None if m is None else m.id or None for m, _ in done),
                tuple(None if m is None else m.transaction_id for m, _ in done),
                tuple(status for _, status in done),
                (None,) * count,
                frozenset(open_),
            )

        order = sorted(range(count), key=lambda n: (partitions[n], n)) if self._chance(0.5) else list(range(count))
        self._begin(PushCall("q", partitions, ids, payloads), [lambda n=n: store(n) for n in order], answer)  # type: ignore[misc]

    def _push_blind(self, spooled: Spooled, *, alone: bool) -> tuple[Stored | None, str]:
        """What a push is answered without the storage. An item that failed is not stored behind a later one."""
        if self._chance(0.6):
            if spooled.sent_id is None and self._chance(0.7):
                self.minted += 1
                spooled.transaction_id = f"spooled{self.minted}"
            self.spool.append(spooled)
            told = spooled.transaction_id
            return (None if told is None else Stored("", told, spooled.payload)), "buffered"
        if alone:
            self._deny(lambda: self._unspool_now(spooled))
        elif self._chance(0.5):
            self._unspool_now(spooled)
        return None, "failed"

    def _unspool_now(self, spooled: Spooled) -> None:
        self.spool.append(spooled)
        self._unspool(spooled)

    # Pop ----------------------------------------------------------------------------------------------------------

    def _pop(self) -> None:
        group = self.random.choice(GROUPS)
        request = PopCall(
            "q",
            group,
            self.random.choice([None, *PARTITIONS]),
            self.random.choice([None, 1, 2, 3]),
            self.random.choice([None, 0, 1, 2]),
            self.random.choice([1, 2, 3, None]),
            self.random.choice([None, 2000]),
            self._chance(0.15),
            self._mode(group),
            "now" if group == "B" and self.from_now else None,
        )
        found: list[PopResult] = []
        if self._chance(0.03):
            self._refuse(request)
            return
        call = self._begin(request, [], lambda: found[0])
        blind: list[bool] = []

        def arrive() -> bool:
            blind.append(self._blind())
            if not blind[0] or self._chance(0.5):
                self._decide(request)
            call.by_us = 1 << 60 if call.lost_us is None or call.held_back else call.lost_us + LATE_US
            return True

        def take() -> bool:
            result = PopResult() if blind[0] else self._take(request)
            if result.message_ids or not request.wait_ms or self._chance(0.3):
                found.append(result)
                return True
            return False

        call.deeds = [arrive, take]
        if not call.held_back:
            call.by_us = self.now_us + START_US

    def _mode(self, group: str) -> str | None:
        mode = self.modes[group]
        return mode if mode == "all" or self._chance(0.8) else self.random.choice(["new", "all"])

    def _decide(self, request: PopCall) -> None:
        """The first pop of a group decides its start."""
        group, named = request.group, request.partition
        if not group or group in self.registered:
            return
        new = request.mode in (None, "new") or request.from_ is not None
        partitions = list(self.logs)
        if named is None or self.named_registers:
            self.registered[group] = "yes"
        else:
            partitions = [named] if named in self.logs else []
        for partition in partitions:
            if self.logs[partition] and (group, partition) not in self.readers:
                self.readers[group, partition] = Reader(len(self.logs[partition]) if new else 0)

    def _find(self, request: PopCall, partition: str) -> None:
        """The partition came to exist while this pop was there: what made it exist is in or out."""
        if self._chance(0.5):
            self.readers[request.group, partition] = Reader()
        else:
            self._decide(request)

    def _reader(self, group: str, partition: str) -> Reader:
        return self.readers.setdefault((group, partition), Reader())

    def _take(self, request: PopCall) -> PopResult:
        covered = [p for p in self.logs if self.logs[p]] if request.partition is None else [request.partition]
        servable = []
        for partition in covered:
            undecided = request.group and request.group not in self.registered
            if undecided and (request.group, partition) not in self.readers and self.logs.get(partition):
                self._find(request, partition)
            reader = self._reader(request.group, partition) if self.logs.get(partition) else Reader()
            alive = reader.lease is not None and self.now_us < reader.lease.end_us
            if not alive and reader.cursor < len(self.logs.get(partition, [])):
                servable.append(partition)
        most = 1 if request.partitions is None or request.partition is not None else request.partitions or 9
        chosen = self.random.sample(servable, min(len(servable), self.random.randint(1, most))) if servable else []
        left, runs = request.batch or 200, []
        self.minted += 1
        lease = "" if request.auto_ack else f"lease {self.minted}"
        for partition in chosen:
            reader = self._reader(request.group, partition)
            room = min(left, len(self.logs[partition]) - reader.cursor)
            if room <= 0:
                break
            count = room if self._chance(0.7) else self.random.randint(1, room)
            left -= count
            runs.append((partition, self._claim(request, reader, lease, count), reader, count))
        return self._pop_result(lease, runs) if runs else PopResult()

    def _claim(self, request: PopCall, reader: Reader, lease: str, count: int) -> int:
        """Claims a run; returns where it begins."""
        first = reader.cursor
        if request.auto_ack:
            reader.cursor, reader.lease = first + count, None
            reader.batch = (first, first + count, 1)
            if self._chance(0.5):
                reader.failures = 0
            return first
        attempt = reader.batch[2] + 1 if reader.batch is not None and reader.batch[0] <= first < reader.batch[1] else 1
        reader.batch = (first, first + count, attempt)
        reader.lease = Lease(lease, self.now_us + (request.lease_s or self.lease_s) * 1_000_000, first + count)
        return first

    def _pop_result(self, lease: str, runs: list[tuple[str, int, Reader, int]]) -> PopResult:
        places = [(p, first + n) for p, first, _, count in runs for n in range(count)]
        messages = [self.logs[p][place] for p, place in places]
        return PopResult(
            lease,
            tuple(m.id for m in messages),
            tuple(m.transaction_id for m in messages),
            tuple(p for p, _ in places),
            tuple(f"id of {p}" for p, _ in places),
            (lease,) * len(places),
            tuple(m.payload for m in messages),
            tuple(self._attempt(reader) for _, _, reader, count in runs for _ in range(count)),
            tuple(place for _, place in places),
        )

    def _attempt(self, reader: Reader) -> int | None:
        return reader.batch[2] if reader.batch is not None and self.counts else None

    # Ack ----------------------------------------------------------------------------------------------------------

    def _ack(self) -> None:
        if not self.given:
            return
        batch = self.random.choice(self.given[-3:])
        others = [other for other in self.given if other.group == batch.group]
        items = []
        for _ in range(self.random.choice([1, 1, 2, 3])):
            source = batch if self._chance(0.85) else self.random.choice(others)
            at = self.random.randrange(len(source.result.message_ids))
            lease = source.result.lease_id or None
            if self._chance(0.15):
                lease = self.random.choice([None, self.random.choice(others).result.lease_id or None])
            items.append((source.result, at, lease, self.random.choice(WORDS)))
        request = AckCall(
            "q",
            batch.group,
            len(items) > 1,
            tuple(result.partitions[at] for result, at, _, _ in items),
            tuple(result.partition_ids[at] for result, at, _, _ in items),
            tuple(result.transaction_ids[at] for result, at, _, _ in items),
            tuple(result.message_ids[at] for result, at, _, _ in items),
            tuple(lease for _, _, lease, _ in items),
            tuple(word for _, _, _, word in items),
        )
        parts: dict[tuple[str, str | None], list[int]] = {}
        for index in range(len(items)):
            parts.setdefault((request.partitions[index], request.lease_ids[index]), []).append(index)
        answers: dict[int, tuple[bool, bool, bool, bool | None]] = {}
        open_: set[int] = set()

        def settle(key: tuple[str, str | None]) -> bool:
            indexes = parts[key]
            asked = tuple((request.transaction_ids[index], request.statuses[index]) for index in indexes)
            fate = self.random.random()
            if fate < 0.04:
                open_.update(indexes)
                if fate < 0.02:
                    answers.update((index, (False, False, False, None)) for index in indexes)
                    self._deny(lambda: self._settle(batch.group, key, asked))
                    return True
            if self._blind():
                answers.update((index, (False, False, False, None)) for index in indexes)
                self._deny(lambda: self._settle(batch.group, key, asked))
                return True
            for index, said in zip(indexes, self._settle(batch.group, key, asked), strict=True):
                answers[index] = said
            return True

        def answer() -> AckResult:
            denied = (False, False, False, None)
            said = [denied if index in open_ else answers[index] for index in range(len(items))]
            tells = self._chance(0.5)
            return AckResult(
                tuple(s[0] for s in said),
                tuple(None if s[0] else "refused" for s in said),
                tuple(s[1] or None for s in said) if tells else (None,) * len(said),
                tuple(s[2] or None for s in said),
                tuple(s[3] for s in said) if tells else (None,) * len(said),
                frozenset(open_),
            )

        order = self.random.sample(list(parts), len(parts))
        self._begin(request, [lambda key=key: settle(key) for key in order], answer)  # type: ignore[misc]

    def _settle(
        self, group: str, key: tuple[str, str | None], asked: tuple[tuple[str, str], ...]
    ) -> list[tuple[bool, bool, bool, bool | None]]:
        """(success, noop, dead-lettered, released) of each item."""
        partition, lease_id = key
        reader = self._reader(group, partition)
        lease = reader.lease
        fenced = lease_id is not None
        history = self.settled.setdefault((group, partition, lease_id), [])
        if fenced and (lease is None or lease.id != lease_id or self.now_us > lease.end_us):
            return self._dead(reader, partition, asked, history)
        if lease is None:
            return self._unbounded(reader, partition, asked)
        places = [self._resolve(reader, partition, tid, lease.last) for tid, _ in asked]
        words: dict[int, str] = {}
        for place, (_, word) in zip(places, asked, strict=True):
            if place is not None and place >= 0:
                words[place] = max(words.get(place, "completed"), word, key=STRENGTH.__getitem__)
        filed, idle, gone = self._apply(reader, words, lease) if words else (set(), set(), False)
        said: list[tuple[bool, bool, bool, bool | None]] = []
        for place, (_, word) in zip(places, asked, strict=True):
            if place is None:
                said.append((False, False, False, None))
            elif place < 0:
                said.append((word == "completed", word == "completed" and self._chance(0.5), False, None))
            else:
                success = place not in idle or self._chance(0.7)
                dead = place in filed and word in ("failed", "dlq")
                said.append((success, False, dead, gone if success else None))
        history.append((asked, [s[0] for s in said]))
        return said

    def _resolve(self, reader: Reader, partition: str, transaction_id: str, last: int) -> int | None:
        """The offset that an id means; -1 at or below the cursor; None: not to be found."""
        log = self.logs[partition]
        inside = [n for n in range(reader.cursor, last) if log[n].transaction_id == transaction_id]
        if inside:
            return self.random.choice(inside)
        below = any(log[n].transaction_id == transaction_id for n in range(reader.cursor))
        return -1 if below else None

    def _dead(
        self,
        reader: Reader,
        partition: str,
        asked: tuple[tuple[str, str], ...],
        history: list[tuple[object, list[bool]]],
    ) -> list[tuple[bool, bool, bool, bool | None]]:
        same = next((said for before, said in history if before == asked), None)
        if same is not None and self._chance(0.5):
            return [(success, False, False, None) for success in same]
        said: list[tuple[bool, bool, bool, bool | None]] = []
        for tid, word in asked:
            below = word == "completed" and self._resolve(reader, partition, tid, reader.cursor) == -1
            done = below and self._chance(0.5)
            said.append((done, done and self._chance(0.5), False, None))
        return said

    def _unbounded(
        self, reader: Reader, partition: str, asked: tuple[tuple[str, str], ...]
    ) -> list[tuple[bool, bool, bool, bool | None]]:
        """No lease and no leased batch."""
        said: list[tuple[bool, bool, bool, bool | None]] = []
        reached, start = reader.cursor, reader.cursor
        for tid, word in asked:
            reader.cursor = start
            place = self._resolve(reader, partition, tid, len(self.logs[partition]))
            if word != "completed" or place is None:
                said.append((word != "completed" and place is not None and self._chance(0.5), False, False, None))
            elif place < 0:
                said.append((True, self._chance(0.5), False, None))
            else:
                done = self._chance(0.7)
                reached = max(reached, place + 1) if done else reached
                said.append((done, False, False, None))
        reader.cursor = reached
        return said

    def _apply(self, reader: Reader, words: dict[int, str], lease: Lease) -> tuple[set[int], set[int], bool]:
        """Moves the cursor; which offsets were dead-lettered, which had no effect, and whether the lease is over."""
        stop = min((place for place, word in words.items() if word in ("failed", "retry")), default=None)
        passed = [place for place in words if stop is None or place < stop]
        filed = {place for place in passed if words[place] == "dlq"}
        reached = max(passed) + 1 if passed else reader.cursor
        if filed and (stop is None or self._chance(0.5)):
            reader.failures = 0
        gone, idle = False, set()
        if stop is None:
            reader.cursor = reached
            gone = reached >= lease.last or (bool(filed) and self._chance(0.3))
            if reached >= lease.last:
                reader.failures = 0
        else:
            idle = {place for place in words if place > stop}
            spends = words[stop] == "failed"
            if words[stop] == "retry" and any(words[place] == "failed" for place in idle):
                spends = self._chance(0.5)
            if spends and reader.failures >= self.retry_limit and words[stop] == "failed":
                filed.add(stop)
                reader.cursor, reader.failures = stop + 1, 0
            else:
                if spends and reader.failures < self.retry_limit:
                    reader.failures += 1
                reader.cursor = self.random.choice([reached, stop])
            gone = True
        if gone:
            reader.lease = None
        return filed, idle, gone

    # Extend -------------------------------------------------------------------------------------------------------

    def _extend(self) -> None:
        if not self.given:
            return
        batch = self.random.choice(self.given[-3:])
        if not batch.result.lease_id:
            return
        seconds = self.random.choice([1, 2, 3, 5])
        renewed: list[int] = []

        def extend() -> bool:
            if self._blind():
                renewed.append(0)
                self._deny(renew)
            else:
                renewed.append(renew())
            return True

        def renew() -> int:
            count = 0
            for reader in self.readers.values():
                lease = reader.lease
                if lease is not None and lease.id == batch.result.lease_id and self.now_us <= lease.end_us:
                    lease.end_us = max(lease.end_us, self.now_us + seconds * 1_000_000)
                    count += 1
            return count

        request = ExtendCall("q", batch.group, batch.result.lease_id, seconds)
        self._begin(request, [extend], lambda: ExtendResult(renewed[0] > 0, renewed[0]))
