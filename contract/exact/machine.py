"""The contract as one state machine: what one act may do to a queue, and what it may be answered.

Written from contract.md sections 2 to 5 and 8, and nothing else. `Machine.step` yields every state in which an act may
leave the queue, given what the call was answered; none where the contract has no such answer. Where the contract allows
two readings, both are yielded; whether a pop of a named partition starts its group in the whole queue is fixed for a
machine (`named_registers`), since a broker does it always or never.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace

from contract.exact.acts import NEVER, Configure, Extend, Kill, Move, Puzzle, Settle, Span, Start, Store, Take, timed
from contract.exact.settling import Settling
from contract.exact.state import MICROSECONDS, Attempt, Entry, Lease, Reader, ReaderKey, Settings, State
from contract.exact.values import same_value
from contract.exact.zone import NOW, ZERO
from contract.history import PopCall, PopResult
from contract.profile import Profile

DEFAULT_BATCH = 200
CREATED_BY_CONFIGURE_S = 300


class Machine:
    """The contract for one queue with its settings."""

    def __init__(self, puzzle: Puzzle, profile: Profile, *, named_registers: bool) -> None:
        self.puzzle, self.profile, self.named_registers = puzzle, profile, named_registers
        self.early_us = int(profile.lease_early_s * MICROSECONDS)
        self.settling = Settling(puzzle.acts, self.early_us)
        self.sent_ids = {act.sent_id for act in puzzle.acts if isinstance(act, Store)}

    def begin(self) -> State:
        """Nothing has happened yet."""
        return State(Settings(None, self.profile.retry_limit))

    def step(self, state: State, index: int, done: int) -> Iterator[State]:
        """Every state after act `index`; `done` has a bit for each act that came before."""
        act = self.puzzle.acts[index]
        if isinstance(act, Store):
            yield from self._store(state, index, act)
        elif isinstance(act, Start):
            yield from self._start(state, act)
        elif isinstance(act, Take):
            yield from self._take(state, act)
        elif isinstance(act, Settle):
            yield from self.settling.step(state, act, done)
        elif isinstance(act, Extend):
            yield from self._extend(state, act)
        elif isinstance(act, Configure):
            yield self._configure(state, act)
        elif isinstance(act, Move):
            yield from self._seek(state, act)
        elif isinstance(act, Kill):
            yield from self._kill(state)

    def _configure(self, state: State, act: Configure) -> State:
        """Options that are not named keep their value (section 7)."""
        options, before = act.options, state.settings
        lease_s = CREATED_BY_CONFIGURE_S if before.lease_s is None else before.lease_s
        settings = Settings(
            int(options.get("leaseTime", lease_s)),
            int(options.get("retryLimit", before.retry_limit)),
            int(options.get("dedupWindowSeconds", before.window_s)),
            before.files and not {"deadLetterQueue", "dlqAfterMaxRetries"} & set(options),
        )
        return replace(state, settings=settings)

    # Push (section 2) ---------------------------------------------------------------------------------------------

    def _store(self, state: State, index: int, act: Store) -> Iterator[State]:
        if state.settings.lease_s is None:
            state = replace(state, settings=state.settings._replace(lease_s=self.profile.default_lease_s))
        log = state.logs.get(act.partition, ())
        window_us = state.settings.window_s * MICROSECONDS
        same = [place for place, entry in enumerate(log) if entry.transaction_id == act.sent_id]
        original = same[-1] if same and act.sent_id is not None else None
        if not act.duplicate:
            if original is None or not self._inside(window_us, log[original], act, certainly=True):
                yield state.with_log(act.partition, (*log, Entry(index, act.message_id, act.transaction_id)))
        elif original is not None and self._inside(window_us, log[original], act, certainly=False):
            entry = log[original]
            if entry.message_id is None and act.message_id not in self.puzzle.known_ids:
                entry = entry._replace(message_id=act.message_id)
            if act.message_id in (None, entry.message_id):
                yield state.with_log(act.partition, (*log[:original], entry, *log[original + 1 :]))

    def _inside(self, window_us: int, entry: Entry, act: Store, *, certainly: bool) -> bool:
        """Whether an id is remembered when it is pushed again, for certain or perhaps."""
        first, second = self.puzzle.acts[entry.act].span, act.span
        if first.call == second.call:
            return True
        if window_us <= 0:
            return False
        if certainly:
            return second.until_us - first.from_us < window_us
        return first.until_us >= NEVER or second.from_us - first.until_us <= window_us

    # Where a group starts (section 3) -----------------------------------------------------------------------------

    def _decides(self, state: State, request: PopCall) -> list[str] | None:
        """The partitions whose start a pop decides now; None where all is decided."""
        group, named = request.group, request.partition
        if group not in self.puzzle.timed_groups or group in state.registered:
            return None
        if named is None or self.named_registers:
            return [partition for partition in state.logs if (group, partition) not in state.readers]
        return [named] if named in state.logs and (group, named) not in state.readers else None

    def _start(self, state: State, act: Start) -> Iterator[State]:
        request = act.request
        partitions = self._decides(state, request)
        if partitions is None:
            return
        if not self._came_before(state, act):
            soon = state.limited(NOW, ZERO, act.soon_us)
            if soon is None:
                return
            state = soon
        if request.partition is None or self.named_registers:
            state = replace(state, registered=state.registered | {request.group})
        cursors = [self._starts(state.logs[partition], request, act.span) for partition in partitions]
        for chosen in itertools.product(*cursors):
            after = state
            for partition, cursor in zip(partitions, chosen, strict=True):
                after = after.with_reader((request.group, partition), Reader(cursor))
            yield after

    def _came_before(self, state: State, act: Start | Take) -> bool:
        """Whether a named pop may have been there before its partition: it decides when it finds it, if it decides."""
        named = act.request.partition
        if named is None or self.named_registers:
            return False
        return self.puzzle.acts[state.logs[named][0].act].span.until > act.span.invoked

    def _starts(self, log: tuple[Entry, ...], request: PopCall, span: Span) -> range:
        """The cursors with which a group may start; the time `now` is as exact as the clocks are."""
        if not timed(request):
            return range(1)
        least = len(log)
        if request.from_ is not None:
            certain_us = span.from_us - int(self.profile.start_s * MICROSECONDS)
            while least and self.puzzle.acts[log[least - 1].act].span.until_us >= certain_us:
                least -= 1
        return range(least, len(log) + 1)

    # Pop (section 3) ----------------------------------------------------------------------------------------------

    def _take(self, state: State, act: Take) -> Iterator[State]:
        request = act.request
        if self._decides(state, request) is not None:
            if request.partition is None or not self._came_before(state, act):
                return
            state = state.with_reader((request.group, request.partition), Reader())
        state = self._present(state, request)
        if act.result is None:
            yield from self._take_unseen(state, act)
        elif not act.result.message_ids:
            yield from self._take_nothing(state, request)
        else:
            yield from self._take_seen(state, act, act.result)

    def _present(self, state: State, request: PopCall) -> State:
        """The group is there once it has popped, also where its start depends on nothing: a seek finds its cursors."""
        if request.partition is None or self.named_registers:
            known = request.group in state.registered
            return state if known else replace(state, registered=state.registered | {request.group})
        key = (request.group, request.partition)
        if request.partition not in state.logs or key in state.readers:
            return state
        return state.with_reader(key, Reader())

    def _take_nothing(self, state: State, request: PopCall) -> Iterator[State]:
        """An empty answer: every partition that the pop covers has nothing left for the group, or is leased."""
        after: State | None = state
        settle_s = self.profile.wildcard_settle_s if request.partition is None else self.profile.named_settle_s
        for partition in state.logs if request.partition is None else [request.partition]:
            key = (request.group, partition)
            reader = state.readers.get(key, Reader())
            if after is None or reader.cursor >= len(state.logs.get(partition, ())):
                continue
            if reader.lease is None or reader.lease.over or (reader.lease.dead and not settle_s):
                return
            after = after.limited(NOW, key, int(settle_s * MICROSECONDS))
        if after is not None:
            yield after

    def _take_seen(self, state: State, act: Take, result: PopResult) -> Iterator[State]:
        request = act.request
        given: dict[str, list[int]] = {}
        for at, partition in enumerate(result.partitions):
            given.setdefault(partition, []).append(at)
        if not self._within_budget(request, result, given):
            return
        after: State | None = state
        for partition, indexes in given.items():
            after = self._free(after, (request.group, partition))
            if after is None:
                return
            reader = after.readers.get((request.group, partition), Reader())
            log = after.logs.get(partition, ())
            last = reader.cursor + len(indexes)
            if last > len(log):
                return
            run = [self._delivered(log, reader.cursor + n, result, at) for n, at in enumerate(indexes)]
            if None in run:
                return
            attempt = self._attempt(reader, last, request, {result.attempts[at] for at in indexes})
            if attempt is None:
                return
            entries = tuple(entry for entry in run if entry is not None)
            after = after.with_log(partition, (*log[: reader.cursor], *entries, *log[last:]))
            after = self._claimed(after, (request.group, partition), request, result.lease_id, last, attempt)
        if after is not None:
            yield from self._counts_cleared(after, request, given)

    def _counts_cleared(self, state: State, request: PopCall, partitions: Iterable[str]) -> Iterator[State]:
        """An autoAck pop completes what it takes: that may clear the retry counts of its partitions, or not."""
        yield state
        if not request.auto_ack:
            return
        for partition in partitions:
            key = (request.group, partition)
            state = state.with_reader(key, state.readers[key]._replace(failures=0))
        yield state

    def _within_budget(self, request: PopCall, result: PopResult, given: dict[str, list[int]]) -> bool:
        batch = DEFAULT_BATCH if request.batch is None else max(request.batch, 1)
        most = 1 if request.partitions is None else request.partitions
        if request.partition is None:
            fits = most == 0 or len(given) <= most
        else:
            fits = set(given) == {request.partition}
        leases = {result.lease_id, *result.lease_ids}
        return fits and len(result.message_ids) <= batch and len(leases) == 1 and (leases == {""}) == request.auto_ack

    def _delivered(self, log: tuple[Entry, ...], place: int, result: PopResult, at: int) -> Entry | None:
        """The entry at a place of the log, if the delivered message can be it, with the ids that this shows."""
        entry, message_id = log[place], result.message_ids[at]
        if entry.message_id is None:
            if message_id in self.puzzle.known_ids or any(message_id == other.message_id for other in log):
                return None
        elif entry.message_id != message_id:
            return None
        if entry.transaction_id not in (None, result.transaction_ids[at]) or result.offsets[at] not in (None, place):
            return None
        stored = self.puzzle.acts[entry.act]
        assert isinstance(stored, Store)
        # What was spooled may get another id when it is stored, and keeps the transactionId minted for it.
        minted = result.transaction_ids[at]
        own = minted == message_id if stored.in_order else minted not in self.sent_ids
        if (stored.sent_id is None and not own) or not same_value(stored.payload, result.payloads[at]):
            return None
        return Entry(entry.act, message_id, result.transaction_ids[at])

    def _attempt(self, reader: Reader, last: int, request: PopCall, said: set[int | None]) -> Attempt | None:
        """The attempt after this delivery; None where the answer says another one."""
        before = reader.attempt
        count: int | None = 1
        if request.auto_ack:
            return Attempt(reader.cursor, last, None) if said <= {None, 1} else None
        if before is not None and before.first <= reader.cursor < before.last:
            count = None if before.times is None else before.times + 1
        elif before is not None and before.times is None:
            count = None
        if count is None and len(said) == 1:
            (count,) = said
        return Attempt(reader.cursor, last, count) if count is None or said <= {None, count} else None

    def _free(self, state: State | None, key: ReaderKey) -> State | None:
        """The part in which no lease holds the reader's partition, the lease gone."""
        if state is None:
            return None
        reader = state.readers.get(key, Reader())
        if reader.lease is None:
            return state
        dead = state.run_out(key, self.early_us)
        return dead and dead.with_reader(key, reader._replace(lease=None))

    def _claimed(
        self, state: State, key: ReaderKey, request: PopCall, lease_id: str, last: int, attempt: Attempt
    ) -> State:
        """The reader after it was given the messages up to offset `last`."""
        reader = state.readers.get(key, Reader())._replace(attempt=attempt)
        if request.auto_ack:
            return state.with_reader(key, reader._replace(cursor=last))
        lease_s = request.lease_s if request.lease_s is not None and request.lease_s > 0 else state.settings.lease_s
        assert lease_s is not None  # there is a message, so there is a queue
        zone = state.zone.without(key).with_end(key, lease_s * MICROSECONDS)
        return replace(state, zone=zone).with_reader(key, reader._replace(lease=Lease(lease_id, last)))

    def _take_unseen(self, state: State, act: Take) -> Iterator[State]:
        """A pop without an answer takes any number of messages, of any partitions that it may claim."""
        request = act.request
        batch = DEFAULT_BATCH if request.batch is None else max(request.batch, 1)
        most = 1 if request.partitions is None or request.partition is not None else request.partitions
        covered = sorted(state.logs) if request.partition is None else [request.partition]
        for count in range(1, min(most or len(covered), len(covered)) + 1):
            for partitions in itertools.combinations(covered, count):
                for after in self._claim_unseen(state, act, partitions, batch):
                    yield from self._counts_cleared(after, request, partitions)

    def _claim_unseen(self, state: State, act: Take, partitions: tuple[str, ...], left: int) -> Iterator[State]:
        if not partitions:
            yield state
            return
        key = (act.request.group, partitions[0])
        free = self._free(state, key)
        if free is None:
            return
        cursor = free.readers.get(key, Reader()).cursor
        for last in range(cursor + 1, min(len(free.logs.get(partitions[0], ())), cursor + left) + 1):
            attempt = Attempt(cursor, last, None)
            claimed = self._claimed(free, key, act.request, f"of call {act.span.call}", last, attempt)
            yield from self._claim_unseen(claimed, act, partitions[1:], left - (last - cursor))

    # Seek (section 7) ---------------------------------------------------------------------------------------------

    def _seek(self, state: State, act: Move) -> Iterator[State]:
        """Cursors are moved, leases and counts are gone.

        Where the group never popped, the seek may move nothing, or be the group's start, in the whole queue even where
        it names one partition.
        """
        sure: list[ReaderKey] = []
        unsure: list[ReaderKey] = []
        for partition in state.logs:
            key = (act.group, partition)
            there = act.group == "" or act.group in state.registered or key in state.readers
            if act.partition in (None, partition):
                (sure if there else unsure).append(key)
        after = self._moved(state, act, sure)
        if act.group == "" or act.group in state.registered:
            yield after
            return
        for keys in [unsure, []] if unsure else [[]]:
            moved = self._moved(after, act, keys)
            yield moved
            yield replace(moved, registered=moved.registered | {act.group})

    def _moved(self, state: State, act: Move, keys: list[ReaderKey]) -> State:
        for key in keys:
            attempt = state.readers.get(key, Reader()).attempt
            unsure = attempt._replace(times=None) if attempt is not None else None
            reader = Reader(len(state.logs[key[1]]) if act.to_end else 0, attempt=unsure)
            state = state.with_reader(key, reader)
        return state

    # Extend (section 4) and kill (section 8) ----------------------------------------------------------------------

    def _extend(self, state: State, act: Extend) -> Iterator[State]:
        holders = [key for key, reader in state.readers.items() if reader.lease and reader.lease.id == act.lease_id]
        for alive in itertools.product((True, False), repeat=len(holders)):
            if act.renewed not in (None, sum(alive)):
                continue
            states = [state]
            for key, lives in zip(holders, alive, strict=True):
                states = [after for before in states for after in self._extend_one(before, key, lives, act.seconds)]
            yield from states

    def _extend_one(self, state: State, key: ReaderKey, lives: bool, seconds: int) -> Iterator[State]:
        split = state.alive(key) if lives else state.run_out(key, self.early_us)
        if split is None:
            return
        if not lives:
            yield split
            return
        longer_us = seconds * MICROSECONDS
        kept, extended = split.limited(NOW, key, -longer_us), split.limited(key, NOW, longer_us)
        if kept is not None:
            yield kept
        if extended is not None:
            yield replace(extended, zone=extended.zone.without(key).with_end(key, longer_us))

    def _kill(self, state: State) -> Iterator[State]:
        choices: list[list[Reader]] = []
        for reader in state.readers.values():
            unsure = reader.attempt._replace(times=None) if reader.attempt is not None else None
            leases = {reader.lease, None}
            failures = {reader.failures, 0}
            choices.append([Reader(reader.cursor, count, lease, unsure) for lease in leases for count in failures])
        for chosen in itertools.product(*choices):
            after = state
            for key, reader in zip(state.readers, chosen, strict=True):
                after = after.with_reader(key, reader)
            yield after
