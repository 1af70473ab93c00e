"""Plays one schedule against a broker and records what happens.

The runner knows no transport and no clock of its own: a `World` gives it both, so that the same steps run in virtual
time in this process and in real time against a broker somewhere else. After the steps it heals, audits and drains
(`contract/ending.py`).

Partitions and groups of a schedule are taken modulo their number, so that a schedule stays meaningful when a smaller
world is put under it.
"""

from __future__ import annotations

import asyncio
import math
import random
import uuid
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from client import BrokerClient, Message, PopAnswer
from contract import ending, history, names, storm
from contract.calls import Caller, LeaseHorizon
from contract.errors import CouldNotJudge
from contract.payloads import payload
from contract.profile import Profile
from strategies.schedule import (
    Ack,
    Advance,
    BrokerFault,
    Configure,
    CrashConsumer,
    Extend,
    Faulty,
    KillBroker,
    LaneStep,
    LoseAnswer,
    Parallel,
    Pop,
    Push,
    RepeatRequest,
    Request,
    RestartBroker,
    Schedule,
    Seek,
    Step,
    StorageFault,
    StorageOutage,
    Storm,
    flatten,
)

STORAGE_LOOK_S = 0.01
"""Between two looks whether the storage is back."""


class BrokerControl(Protocol):
    """What can be done to the broker itself."""

    @property
    def supports(self) -> frozenset[str]:
        """The tags of the broker faults that work here, as "kill-broker"."""

    @property
    def up(self) -> bool:
        """Whether the broker runs (it may be paused)."""

    @property
    def paused(self) -> bool:
        """Whether the broker stands still."""

    async def kill(self) -> None:
        """kill -9: nothing that was not stored survives."""

    async def stop(self) -> None:
        """An orderly stop."""

    async def start(self) -> None:
        """Starts it again on the same data; returns when it takes requests."""

    def pause(self) -> None:
        """It does nothing until `resume`."""

    def resume(self) -> None:
        """Goes on after a pause."""

    def fail_storage(self, operations: int) -> None:
        """Its storage refuses the next writes."""

    @property
    def storage_away(self) -> bool:
        """Whether its storage was stopped and is not back yet."""

    @property
    def storage_back_for_s(self) -> float:
        """For how many seconds its storage has been back; 0 while it is away, infinite where nobody ever stopped it."""

    async def stop_storage(self) -> None:
        """Its storage breaks off; the broker runs on."""

    async def start_storage(self) -> None:
        """Starts its storage again; returns when the broker works with it."""


class NoControl:
    """A broker that only its clients can reach."""

    supports: frozenset[str] = frozenset()
    up = True
    paused = False
    storage_away = False
    storage_back_for_s = math.inf

    async def kill(self) -> None:
        """Not possible."""

    async def stop(self) -> None:
        """Not possible."""

    async def start(self) -> None:
        """Not needed."""

    def pause(self) -> None:
        """Not possible."""

    def resume(self) -> None:
        """Not needed."""

    def fail_storage(self, operations: int) -> None:
        """Not possible."""

    async def stop_storage(self) -> None:
        """Not possible."""

    async def start_storage(self) -> None:
        """Not needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Where a schedule plays.

    `client` gives the client of a worker ("A/0"). `groups` are the names on the wire of the groups of the schedule, in
    its order; `audit_group` is the beginning of names that no group has. `now_us` is the target's clock, microseconds
    since the run began; waits are `asyncio.sleep` on the running loop. `idle` waits up to so many seconds until no
    request is on its way or at work, and says whether it came to that.

    `turn` is entered around each step, and around what follows the steps; `alone` around what is done to the broker
    itself, inside a turn. Where schedules share a broker, the two keep one from doing something to it while
    others are in the middle of a step.
    """

    client: Callable[[str], BrokerClient]
    queue: str
    groups: tuple[str, ...]
    audit_group: str
    now_us: Callable[[], int]
    idle: Callable[[float], Awaitable[bool]]
    profile: Profile
    seed: int = 0
    control: BrokerControl = field(default_factory=NoControl)
    turn: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
    alone: Callable[[], AbstractAsyncContextManager[None]] = nullcontext


@dataclass(frozen=True, slots=True)
class Summary:
    """What a run came to: its requests, and whether the broker could be reached to its end ("" when it could)."""

    requests: int
    unreachable: str = ""


async def run_schedule(world: World, schedule: Schedule, recorder: history.Recorder) -> Summary:
    """Plays the steps, heals, audits and drains, and records all of it up to the end marker."""
    caller = Caller(recorder, world.client, world.now_us, LeaseHorizon(world.profile.default_lease_s))
    return await Runner(world, schedule, caller).run()


@dataclass(frozen=True, slots=True)
class _Batch:
    """What a pop gave to a worker."""

    group: int
    worker: str
    lease_id: str
    messages: tuple[Message, ...]


class Runner:
    """One run of one schedule."""

    def __init__(self, world: World, schedule: Schedule, caller: Caller) -> None:
        self._world = world
        self._schedule = schedule
        self._caller = caller
        self._partitions = tuple([names.name(schedule.names, "p", number) for number in range(schedule.partitions)])
        self._pushed: dict[str, list[str]] = {}  # transactionIds that answers named, by partition, in order
        self._batches: dict[int, _Batch] = {}
        self._leases: dict[tuple[int, str], list[str]] = {}  # all seen, in order, by group and partition id
        self._crashes: dict[str, int] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._messages = 0
        self._random: random.Random | None = None

    async def run(self) -> Summary:
        """Plays everything, the ending included."""
        caller, world = self._caller, self._world
        try:
            caller.add(history.Phase(world.now_us(), "schedule"))
            for number, step in enumerate(self._schedule.steps, 1):
                await self._step(step, str(number))
            caller.add(history.PhaseEnd(world.now_us(), "schedule", complete=True))
            unreachable = await ending.play(
                caller,
                queue=world.queue,
                groups=tuple(zip(world.groups, [group.mode for group in self._schedule.groups], strict=True)),
                workers=tuple([f"{group.name or 'q'}/drain" for group in self._schedule.groups]),
                partitions=self._partitions,
                audit_group=world.audit_group,
                profile=world.profile,
                heal=self._heal,
                storage_back_for_s=lambda: world.control.storage_back_for_s,
                turn=world.turn,
            )
        finally:
            for task in tuple(self._background):
                task.cancel()
        caller.close()
        return Summary(caller.calls, unreachable)

    # Steps --------------------------------------------------------------------------------------------------------

    async def _step(self, step: Step, path: str) -> None:
        if isinstance(step, Advance):  # nobody needs to wait for one who waits
            await asyncio.sleep(step.ms / 1000)
            return
        unjudged = None
        try:
            async with self._world.turn(), self._world.alone() if self._disturbs(step) else nullcontext():
                if isinstance(step, Parallel):
                    await self._parallel(step, path)
                elif isinstance(step, Storm):
                    await self._storm(step, path)
                else:
                    await self._lane_step(step, path, "")
        except* CouldNotJudge as group:
            unjudged = _first(group)
        if unjudged is not None:
            raise unjudged

    def _disturbs(self, step: Step) -> bool:
        """Whether something is done to the broker in a step. Its other calls should be under way just then."""
        supports = self._world.control.supports
        if isinstance(step, Storm):
            return step.kill_at is not None and "kill-broker" in supports
        return bool(supports) and any(
            isinstance(leaf, BrokerFault) and _tag(leaf) in supports for leaf in flatten((step,))
        )

    async def _storm(self, step: Storm, path: str) -> None:
        world, group = self._world, step.group % len(self._world.groups)
        kill = partial(self._kill, 0, path) if self._disturbs(step) else None
        if step.kill_at is not None and kill is None:
            self._caller.note("not supported: kill-broker", path)
        stage = storm.Stage(
            caller=self._caller,
            queue=world.queue,
            partitions=self._partitions[: step.partitions],
            group=world.groups[group],
            mode=self._schedule.groups[group].mode,
            consumer=self._schedule.groups[group].name or "q",
            next_payload=lambda: self._payload(0),
            kill=kill,
        )
        await storm.play(step, stage, path)

    async def _parallel(self, step: Parallel, path: str) -> None:
        async with asyncio.TaskGroup() as lanes:
            for number, lane in enumerate(step.lanes, 1):
                lanes.create_task(self._lane(lane, f"{path}.{number}", f"/{number}"), name=f"lane {path}.{number}")

    async def _lane(self, steps: tuple[LaneStep, ...], path: str, suffix: str) -> None:
        for number, step in enumerate(steps, 1):
            await self._lane_step(step, f"{path}.{number}", suffix)

    async def _lane_step(self, step: LaneStep, path: str, suffix: str) -> None:
        if isinstance(step, Request):
            await self._request(step, path, suffix, None, "")
        elif isinstance(step, RepeatRequest):
            await self._repeat(step, path, suffix)
        elif isinstance(step, Faulty):
            await self._request(step.step, path, suffix, step, _tag(step))
        elif isinstance(step, Advance):
            await asyncio.sleep(step.ms / 1000)
        elif isinstance(step, CrashConsumer):
            self._crash_consumer(step, path)
        else:
            await self._broker_fault(step, path)

    async def _repeat(self, step: RepeatRequest, path: str, suffix: str) -> None:
        """Sends the request, and the very same again a while after its answer; nobody sees the second answer."""
        sent = await self._request(step.step, path, suffix, None, _tag(step))
        if sent is None:
            return
        request, worker = sent
        again = self._again(request, worker, path, step)
        task = asyncio.get_running_loop().create_task(again, name=f"repetition {path}")
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _again(self, request: history.Call, worker: str, path: str, step: RepeatRequest) -> None:
        if step.ms:
            await asyncio.sleep(step.ms / 1000)
        unseen = LoseAnswer(step.step)
        jitter = step.step.jitter
        await self._caller.send(request, worker, step=path, fault=unseen, fault_name=_tag(step), jitter=jitter)

    # Requests -----------------------------------------------------------------------------------------------------

    async def _request(
        self, step: Request, path: str, suffix: str, fault: Faulty | None, fault_name: str
    ) -> tuple[history.Call, str] | None:
        """Sends the request of a step. Returns what was sent and by whom; None where the step was a no-op."""
        if isinstance(step, Push):
            worker, request = "push" + suffix, self._push(step)
        elif isinstance(step, Pop):
            return await self._pop(step, path, fault, fault_name)
        elif isinstance(step, Configure):
            worker, request = "configure" + suffix, self._configure(step)
        elif isinstance(step, Seek):
            worker, request = "seek" + suffix, self._seek(step)
        else:
            batch = self._batches.get(step.pop)
            built = (
                None
                if batch is None
                else self._ack(step, batch)
                if isinstance(step, Ack)
                else self._extend(step, batch)
            )
            if batch is None or built is None:
                self._caller.note(f"no-op: pop {step.pop} left nothing to {_tag(step)}", path)
                return None
            worker, request = batch.worker, built
        answer = await self._caller.send(
            request, worker, step=path, fault=fault, fault_name=fault_name, jitter=step.jitter
        )
        if isinstance(request, history.PushCall) and answer.value is not None:
            for partition, item in zip(request.partitions, answer.value, strict=True):
                if item.transaction_id is not None:
                    self._pushed.setdefault(partition, []).append(item.transaction_id)
        return request, worker

    def _push(self, step: Push) -> history.Call:
        style = self._schedule.names
        return history.PushCall(
            self._world.queue,
            tuple([self._partition(item.partition) for item in step.items]),
            tuple([None if item.key is None else names.name(style, "t", item.key) for item in step.items]),
            tuple([self._payload(item.payload) for item in step.items]),
        )

    def _payload(self, index: int) -> str:
        self._messages += 1
        return payload(index, self._messages)

    async def _pop(self, step: Pop, path: str, fault: Faulty | None, fault_name: str) -> tuple[history.Call, str]:
        group = step.group % len(self._world.groups)
        worker = self._worker(group, step.worker)
        name = self._world.groups[group]
        request = history.PopCall(
            self._world.queue,
            name,
            None if step.partition is None else self._partition(step.partition),
            step.batch,
            step.partitions if step.partition is None else None,
            step.lease_s,
            step.wait_ms or None,
            step.auto_ack,
            (step.mode or self._schedule.groups[group].mode) if name else None,
            "now" if step.from_now and name else None,
        )
        crashes = self._crashes.get(worker, 0)
        answer = await self._caller.send(
            request, worker, step=path, fault=fault, fault_name=fault_name, jitter=step.jitter
        )
        if answer.value is not None and self._crashes.get(worker, 0) == crashes:
            self._take(step.label, group, worker, answer.value)
        return request, worker

    def _take(self, label: int, group: int, worker: str, answer: PopAnswer) -> None:
        """Keeps what a pop gave, for the acks that refer to it."""
        self._batches[label] = _Batch(group, worker, answer.lease_id, answer.messages)
        for message in answer.messages:
            lease_id = message.lease_id or answer.lease_id
            seen = self._leases.setdefault((group, message.partition_id), [])
            if lease_id and lease_id not in seen[-1:]:
                seen.append(lease_id)

    def _ack(self, step: Ack, batch: _Batch) -> history.Call | None:
        chosen: list[tuple[Message, str, bool]] = []
        last = len(batch.messages) - 1
        for item in step.items if step.batch else step.items[:1]:
            message = batch.messages[min(item.message, last)] if last >= 0 else None
            # Beyond the batch means its last message, but not once more; what a schedule names twice is sent twice.
            if message is not None and (item.message <= last or all(message is not other for other, *_ in chosen)):
                chosen.append((message, item.status, item.outside))
        if not chosen:
            return None
        messages = [message for message, *_ in chosen]
        ids = [
            self._outside(batch, message.partition) if outside else message.transaction_id
            for message, _, outside in chosen
        ]
        return history.AckCall(
            self._world.queue,
            self._world.groups[batch.group],
            step.batch,
            tuple([message.partition for message in messages]),
            tuple([message.partition_id for message in messages]),
            tuple(ids),
            tuple(["" if outside else message.id for message, _, outside in chosen]),
            self._lease_ids(step, batch, messages),
            tuple([status for _, status, _ in chosen]),
        )

    def _outside(self, batch: _Batch, partition: str) -> str:
        """The newest transactionId of a partition that a pop did not give; one that nobody pushed where all came."""
        given = {message.transaction_id for message in batch.messages}
        others = [transaction_id for transaction_id in self._pushed.get(partition, ()) if transaction_id not in given]
        return others[-1] if others else "nobody pushed this"

    def _lease_ids(self, step: Ack, batch: _Batch, messages: list[Message]) -> tuple[str | None, ...]:
        if step.lease == "none":
            return (None,) * len(messages)
        right = [message.lease_id or batch.lease_id or None for message in messages]
        if step.lease == "right":
            return tuple(right)
        if step.lease == "newest":
            return tuple(
                [
                    self._leases.get((batch.group, message.partition_id), [lease_id])[-1]
                    for message, lease_id in zip(messages, right, strict=True)
                ]
            )
        made_up = str(uuid.UUID(int=self._draws().getrandbits(128), version=4))
        return tuple(
            [
                self._older_lease(batch.group, message.partition_id, lease_id) or made_up
                for message, lease_id in zip(messages, right, strict=True)
            ]
        )

    def _older_lease(self, group: int, partition_id: str, lease_id: str | None) -> str | None:
        """The lease that was seen before this one; the newest where this one was not seen (after an autoAck)."""
        seen = self._leases.get((group, partition_id), [])
        older = seen[: seen.index(lease_id)] if lease_id in seen else seen
        return older[-1] if older else None

    def _extend(self, step: Extend, batch: _Batch) -> history.Call | None:
        if not batch.lease_id:
            return None
        return history.ExtendCall(self._world.queue, self._world.groups[batch.group], batch.lease_id, step.seconds)

    def _seek(self, step: Seek) -> history.Call:
        return history.SeekCall(
            self._world.queue,
            self._world.groups[step.group % len(self._world.groups)],
            None if step.partition is None else self._partition(step.partition),
            step.to_end,
            None if step.to_end else history.OLDEST_TIME,
        )

    def _configure(self, step: Configure) -> history.Call:
        named: dict[str, int | bool | None] = {
            "leaseTime": step.lease_time_s,
            "retryLimit": step.retry_limit,
            "deadLetterQueue": step.dead_letter_queue,
            "dlqAfterMaxRetries": step.dlq_after_max_retries,
            "dedupWindowSeconds": step.dedup_window_s,
        }
        options: dict[str, int | bool | str] = {name: value for name, value in named.items() if value is not None}
        return history.ConfigureCall(self._world.queue, options)

    def _partition(self, number: int) -> str:
        return self._partitions[number % len(self._partitions)]

    def _worker(self, group: int, worker: int) -> str:
        return f"{self._schedule.groups[group].name or 'q'}/{worker}"

    def _draws(self) -> random.Random:
        """Made when it is first needed, which is seldom."""
        if self._random is None:
            self._random = random.Random(self._world.seed)
        return self._random

    # Faults of consumers and of the broker ------------------------------------------------------------------------

    def _crash_consumer(self, step: CrashConsumer, path: str) -> None:
        worker = self._worker(step.group % len(self._world.groups), step.worker)
        self._crashes[worker] = self._crashes.get(worker, 0) + 1
        self._batches = {label: batch for label, batch in self._batches.items() if batch.worker != worker}
        self._caller.add(history.Fault(self._world.now_us(), "crash-consumer", worker, path))

    async def _broker_fault(self, step: BrokerFault, path: str) -> None:
        control, tag = self._world.control, _tag(step)
        if tag not in control.supports:
            self._caller.note(f"not supported: {tag}", path)
        elif not control.up:
            self._caller.note("no-op: the broker is down", path)
        elif isinstance(step, KillBroker):
            await self._kill(step.down_ms, path)
        elif isinstance(step, RestartBroker):
            self._fault("stop", path)
            await control.stop()
            await self._start_after(step.down_ms, path)
        elif isinstance(step, StorageFault):
            self._fault("storage-fault", path, f"{step.operations} operations")
            control.fail_storage(step.operations)
        elif isinstance(step, StorageOutage):
            await self._outage(step.ms, path)
        elif control.paused:
            self._caller.note("no-op: the broker is paused", path)
        else:
            await self._pause(step.ms, path)

    async def _kill(self, down_ms: int, path: str) -> None:
        self._fault("kill", path)
        await self._world.control.kill()
        await self._start_after(down_ms, path)

    async def _start_after(self, down_ms: int, path: str) -> None:
        control = self._world.control
        await asyncio.sleep(down_ms / 1000)
        await self._storage_is_there()  # a broker need not start without it
        self._fault("start", path)
        await control.start()

    async def _storage_is_there(self) -> None:
        """Waits while another lane has stopped the storage."""
        while True:
            if not self._world.control.storage_away:
                return
            await asyncio.sleep(STORAGE_LOOK_S)

    async def _outage(self, away_ms: int, path: str) -> None:
        if self._world.control.storage_away:
            self._caller.note("no-op: the storage is away", path)
            return
        self._fault("storage-stop", path)
        await self._world.control.stop_storage()
        await asyncio.sleep(away_ms / 1000)
        await self._start_storage(path)

    async def _start_storage(self, path: str) -> None:
        """What is answered before this returns may be answered without the storage."""
        await self._world.control.start_storage()
        self._fault("storage-start", path)

    async def _pause(self, pause_ms: int, path: str) -> None:
        self._fault("pause", path)
        self._world.control.pause()
        await asyncio.sleep(pause_ms / 1000)
        if self._world.control.paused:  # a kill may have ended the pause
            self._fault("resume", path)
            self._world.control.resume()

    def _fault(self, what: str, path: str, detail: str = "") -> None:
        self._caller.add(history.Fault(self._world.now_us(), what, detail, path))

    # After the steps ----------------------------------------------------------------------------------------------

    async def _heal(self, limit_s: float) -> bool:
        """Ends every fault and waits for calls in flight; False when some were not over within `limit_s` seconds."""
        async with self._world.turn():  # what another lane is doing to the broker is not for this one to end
            await self._mend()
        if self._background:
            await asyncio.wait(self._background, timeout=limit_s)
        return await self._world.idle(limit_s) and not self._background

    async def _mend(self) -> None:
        """Ends what is still done to the broker."""
        control = self._world.control
        if control.storage_away:
            await self._start_storage("")
        if not control.up:
            self._fault("start", "")
            await control.start()
        if control.paused:
            self._fault("resume", "")
            control.resume()


def _first(group: BaseExceptionGroup[CouldNotJudge]) -> CouldNotJudge:
    """The first of the errors of lanes that ran side by side."""
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


def _tag(step: Any) -> str:
    """The name of a kind of step in a schedule file."""
    return str(type(step).__struct_config__.tag)
