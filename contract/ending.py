"""What follows the steps of every schedule: heal, audit, drain.

Heal waits until nothing is in flight, every lease has run out, and what the broker spooled while its storage was away
is stored. Audit lets a fresh group read the whole queue from
the start: the stored messages and their order. Drain lets each group take and complete everything that is due. Each
phase says at its end whether it could do its work, since the rules that build on it must know.

The audit stands before the drain: when it begins, nobody has acked more than the schedule did, so a group that starts
in the wrong place (nothing was acked by others) can be told from one whose cursor another group's ack has moved.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial

from client import Message, Outcome
from contract import history
from contract.calls import MICROSECONDS, Caller, completion
from contract.profile import Profile
from strategies.schedule import Mode

IN_FLIGHT_LIMIT_S = 2000.0
"""A call that is not over by then never ends: the longest drawn delay is 1000 s, the longest drawn wait less."""

LEASE_S = 30
"""Lease of a pop in the drain: longer than any answer and ack take."""

GLANCE_LEASE_S = 1
"""Lease of an audit that acks nothing; its group pops each partition once."""

BATCH = 1000
MAX_ROUNDS = 50
PUSHES_PER_ROUND = 10
"""One group may need so many pops with an answer in one phase, and one more for so many pushes."""

MAX_TROUBLES = 3
"""Unanswered pops and acks without success that the drain of one group survives."""

RETRY_WAITS_S = (0.2, 0.5, 1.0, 2.0)
"""Waits between the tries to reach a broker that refuses connections."""

SPOOL_SPARE_S = 0.1
"""So much longer than the profile says does the ending wait for what was spooled."""

AUDITS = 3
"""Fresh groups that an audit may use up."""


class _Stopped(Exception):
    """The phase cannot do its work. `unreachable`: because nobody answers."""

    def __init__(self, why: str, *, unreachable: bool = False) -> None:
        super().__init__(why)
        self.unreachable = unreachable


class _Unanswered(Exception):
    """An autoAck pop of the audit was not answered: what it took is lost to this group."""


async def play(
    caller: Caller,
    *,
    queue: str,
    groups: tuple[tuple[str, Mode | None], ...],
    workers: tuple[str, ...],
    partitions: tuple[str, ...],
    audit_group: str,
    profile: Profile,
    heal: Callable[[float], Awaitable[bool]],
    turn: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
    storage_back_for_s: Callable[[], float] = lambda: math.inf,
) -> str:
    """Heals, audits and drains. Returns why the broker could not be reached, "" when it could.

    `groups` are names and modes, with the worker that drains each in `workers`. Audit and drain are one `turn`.
    """
    unspooled = partial(_unspooled, caller, profile, storage_back_for_s)
    await _heal(caller, profile, heal, unspooled)
    work: tuple[tuple[history.PhaseName, Callable[[], Awaitable[None]]], ...] = (
        ("audit", lambda: _audit(caller, queue, audit_group, partitions, profile)),
        ("drain", lambda: _drain(caller, queue, groups, workers, partitions, profile)),
    )
    async with turn():
        await unspooled()  # another lane may have stopped the storage once more, and can do so no longer
        return await _phases(caller, work)


async def _phases(caller: Caller, work: tuple[tuple[history.PhaseName, Callable[[], Awaitable[None]]], ...]) -> str:
    unreachable = ""
    for name, phase in work:
        caller.add(history.Phase(caller.now_us(), name))
        why = unreachable
        if not unreachable:
            try:
                await phase()
            except _Stopped as stopped:
                why = str(stopped)
                unreachable = why if stopped.unreachable else ""
        caller.add(history.PhaseEnd(caller.now_us(), name, not why, why))
    return unreachable


async def _heal(
    caller: Caller,
    profile: Profile,
    heal: Callable[[float], Awaitable[bool]],
    unspooled: Callable[[], Awaitable[None]],
) -> None:
    caller.add(history.Phase(caller.now_us(), "heal"))
    quiet = await heal(IN_FLIGHT_LIMIT_S)
    # One more millisecond: brokers count in whole ones.
    settled_s = profile.late_effect_s + max(profile.wildcard_settle_s, profile.named_settle_s) + 0.001
    await asyncio.sleep((caller.horizon.end_us - caller.now_us()) / MICROSECONDS + settled_s)
    await unspooled()
    why = "" if quiet else f"calls are still in flight after {IN_FLIGHT_LIMIT_S:g} s"
    caller.add(history.PhaseEnd(caller.now_us(), "heal", quiet, why))


async def _unspooled(caller: Caller, profile: Profile, storage_back_for_s: Callable[[], float]) -> None:
    """Waits until what was answered `buffered` is stored, where the storage went away and came back."""
    while caller.spooled and profile.spool_s is not None:
        left_s = profile.spool_s + SPOOL_SPARE_S - storage_back_for_s()
        if left_s <= 0:
            return
        await asyncio.sleep(left_s)


# Reading until nothing comes --------------------------------------------------------------------------------------


class _Limits:
    """What one group may take in one phase before it is clear that it will never end."""

    def __init__(self, pushed: int) -> None:
        self._deliveries = 0
        self._rounds = 0
        self._most = pushed * 3 + 20
        self._most_rounds = MAX_ROUNDS + pushed // PUSHES_PER_ROUND

    def count(self, deliveries: int) -> None:
        """Counts the messages of one answer. Raises `_Stopped` beyond the limits."""
        self._rounds += 1
        self._deliveries += deliveries
        if self._deliveries > self._most:
            raise _Stopped(f"{self._deliveries} deliveries and no end; {self._most} were expected at most")
        if self._rounds > self._most_rounds:
            raise _Stopped(f"{self._rounds} answers and no end; {self._most_rounds} were expected at most")


Read = Callable[[str | None], Awaitable[int]]


async def _read_all(read: Read, partitions: tuple[str, ...], limits: _Limits) -> None:
    """Reads by wildcard until nothing comes, then each partition by name, and again while that gave something."""
    more = True
    while more:
        await _until_empty(read, None, limits)
        more = False
        for partition in partitions:
            more = await _until_empty(read, partition, limits) or more


async def _until_empty(read: Read, partition: str | None, limits: _Limits) -> bool:
    """Whether anything came."""
    found = False
    while deliveries := await read(partition):
        limits.count(deliveries)
        found = True
    return found


async def _reach(caller: Caller, request: history.PopCall, worker: str) -> tuple[Message, ...] | None:
    """One pop, tried again while nobody listens. None: no answer. Raises `_Stopped` when it is refused."""
    for wait_s in (*RETRY_WAITS_S, None):
        answer = await caller.send(request, worker)
        if answer.value is not None:
            messages: tuple[Message, ...] = answer.value.messages
            return messages
        if answer.outcome is Outcome.UNKNOWN:
            return None
        if answer.status is not None:
            raise _Stopped(f"pop refused: {answer.why}")
        if wait_s is not None:
            await asyncio.sleep(wait_s)
    raise _Stopped(f"the broker cannot be reached: {answer.why}", unreachable=True)


# Drain ------------------------------------------------------------------------------------------------------------


async def _drain(
    caller: Caller,
    queue: str,
    groups: tuple[tuple[str, Mode | None], ...],
    workers: tuple[str, ...],
    partitions: tuple[str, ...],
    profile: Profile,
) -> None:
    for (group, mode), worker in zip(groups, workers, strict=True):
        reader = _DrainReader(caller, queue, group, mode, worker, profile)
        await _read_all(reader.read, partitions, _Limits(caller.pushed))


class _DrainReader:
    """Takes and completes what one group is due."""

    def __init__(
        self, caller: Caller, queue: str, group: str, mode: Mode | None, worker: str, profile: Profile
    ) -> None:
        self._caller = caller
        self._queue = queue
        self._group = group
        self._mode = mode if group else None
        self._worker = worker
        self._troubles = 0
        settle_s = max(profile.wildcard_settle_s, profile.named_settle_s)
        self._lease_over_s = LEASE_S + profile.late_effect_s + settle_s + 0.001

    async def read(self, partition: str | None) -> int:
        """One pop and the ack of what it gave. Returns the number of messages."""
        request = history.PopCall(
            self._queue,
            self._group,
            partition,
            BATCH,
            0 if partition is None else None,
            LEASE_S,
            mode=self._mode,
        )
        while (messages := await _reach(self._caller, request, self._worker)) is None:
            await self._trouble("pop not answered")
        if messages:
            await self._complete(messages)
        return len(messages)

    async def _complete(self, messages: tuple[Message, ...]) -> None:
        request = completion(self._queue, self._group, messages)
        answer = await self._caller.send(request, self._worker)
        if answer.value is None:
            await self._trouble(f"ack {answer.outcome.value}: {answer.why}")
        elif not all(item.success for item in answer.value):
            error = next(item.error for item in answer.value if not item.success)
            await self._trouble(f"ack without success: {error}")

    async def _trouble(self, why: str) -> None:
        """Waits until no lease of this drain can be alive, so that what is not done comes again."""
        self._troubles += 1
        if self._troubles > MAX_TROUBLES:
            raise _Stopped(f"{why}, {self._troubles} times")
        await asyncio.sleep(self._lease_over_s)


# Audit ------------------------------------------------------------------------------------------------------------


async def _audit(caller: Caller, queue: str, audit_group: str, partitions: tuple[str, ...], profile: Profile) -> None:
    if await _audit_at_a_glance(caller, queue, f"{audit_group}0", partitions):
        if profile.virtual_time:  # where waiting is free, no lease of the audit shall confuse the drain
            await asyncio.sleep(GLANCE_LEASE_S + 0.001)
        return
    for number in range(1, AUDITS + 1):
        try:
            await _audit_once(caller, queue, f"{audit_group}{number}", partitions)
            return
        except _Unanswered:
            await asyncio.sleep(RETRY_WAITS_S[0])
    raise _Stopped(f"pop not answered in {AUDITS} audits")


async def _audit_at_a_glance(caller: Caller, queue: str, group: str, partitions: tuple[str, ...]) -> bool:
    """Reads everything under a lease and acks nothing; True where that surely was all there is.

    An audit that commits nothing cannot be taken for the group whose ack moved another one's cursor. It needs every
    push to be answered, since it must know what there is to see, and everything to fit into one batch.
    """
    if caller.open_pushes or caller.pushed > BATCH // 2:
        return False
    seen: set[str] = set()
    met: set[str] = set()
    for partition in (None, *partitions):
        if partition in met:
            continue
        claim = 0 if partition is None else None
        request = history.PopCall(queue, group, partition, BATCH, claim, lease_s=GLANCE_LEASE_S, mode="all")
        messages = await _reach(caller, request, "audit")
        if messages is None:
            return False
        seen.update(message.id for message in messages)
        met.update(message.partition for message in messages)
    return caller.stored_ids <= seen


async def _audit_once(caller: Caller, queue: str, group: str, partitions: tuple[str, ...]) -> None:
    async def read(partition: str | None) -> int:
        claim = 0 if partition is None else None
        request = history.PopCall(queue, group, partition, BATCH, claim, auto_ack=True, mode="all")
        messages = await _reach(caller, request, "audit")
        if messages is None:
            raise _Unanswered
        return len(messages)

    await _read_all(read, partitions, _Limits(caller.pushed))
