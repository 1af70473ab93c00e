"""A storm: loops of pushes, pops and acks side by side, as one step of a schedule.

Real races need thousands of calls. Pushers push one message at a time as fast as they can; consumers stay close to the
head, so that they read what others are only writing. All pushes that are under way at one moment go to the same
partition, as far as that can be had. Every call is recorded and judged as any other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import client as wire
from contract import history
from contract.calls import Caller, completion
from strategies.schedule import Mode, Storm

MOST_CALLS = 20_000
"""Calls of one storm; beyond them no loop begins another."""

MOST_DELIVERIES_PER_PUSH = 3
SPARE_DELIVERIES = 100
"""What the consumers of one storm take before it is clear that they are given the same messages for ever."""

MOST_LOOPS = 64
"""Pushers, and consumers, of one storm."""

LEASE_S = 2
WAIT_MS = 100
"""How long a consumer parks while there is nothing to read."""

NOTHING_S = 0.002
"""Pause after an empty answer: a broker that does not park would be asked without end."""

NO_ANSWER_S = 0.02
"""Pause after a call without an answer that is understood."""

MOST_TROUBLES = 100
"""Calls without an answer, one after the other, after which a loop ends: the broker is gone."""

LAST_TROUBLES = 5
"""The same for a consumer, once the pushers are done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Where a storm takes place.

    `partitions` are those that it pushes to; `group`, `mode` and `consumer` the name of its group on the wire, its
    mode, and how its workers are called. `next_payload` gives the raw JSON of the next message. `kill` kills the broker
    and starts it again; None where that cannot be done.
    """

    caller: Caller
    queue: str
    partitions: tuple[str, ...]
    group: str
    mode: Mode | None
    consumer: str
    next_payload: Callable[[], str]
    kill: Callable[[], Awaitable[None]] | None = None


async def play(storm: Storm, stage: Stage, path: str) -> None:
    """Plays a storm to its end: all pushes were sent, and each consumer met an empty answer after that."""
    await _Loops(storm, stage, path).run()


class _Loops:
    """One storm under way."""

    def __init__(self, storm: Storm, stage: Stage, path: str) -> None:
        self._storm = storm
        self._stage = stage
        self._path = path
        self._pushers = min(storm.pushers, MOST_LOOPS)
        self._pushing = self._pushers
        self._pushes = min(storm.operations, MOST_CALLS // 2)
        self._most_deliveries = self._pushes * MOST_DELIVERIES_PER_PUSH + SPARE_DELIVERIES
        self._deliveries = 0
        self._sent = 0
        self._calls = 0
        self._kill_after = None if storm.kill_at is None else self._pushes * storm.kill_at // 100
        self._up = asyncio.Event()
        self._up.set()

    async def run(self) -> None:
        """Runs all loops side by side."""
        async with asyncio.TaskGroup() as loops:
            for number in range(self._pushers):
                loops.create_task(self._push_on(number, loops), name=f"pusher {self._path}.{number}")
            for number in range(min(self._storm.consumers, MOST_LOOPS)):
                loops.create_task(self._consume(number), name=f"consumer {self._path}.{number}")
        if self._calls >= MOST_CALLS:
            self._stage.caller.note(f"the storm was ended after {self._calls} calls", self._path)
        if self._deliveries >= self._most_deliveries:
            self._stage.caller.note(f"the consumers were stopped after {self._deliveries} deliveries", self._path)

    # Pushers ------------------------------------------------------------------------------------------------------

    async def _push_on(self, number: int, loops: asyncio.TaskGroup) -> None:
        worker = f"push/{number}"
        troubles = 0
        try:
            while self._sent < self._pushes and self._may_call() and troubles < MOST_TROUBLES:
                if self._sent == self._kill_after:
                    self._kill_after = None
                    loops.create_task(self._kill(), name=f"kill {self._path}")
                answer = await self._send(self._next_push(), worker)
                troubles = troubles + 1 if answer.value is None else 0
                await self._recover(answer)
        finally:
            self._pushing -= 1
        if self._kill_after == self._pushes:  # a kill after the last push
            self._kill_after = None
            await self._kill()

    def _next_push(self) -> history.PushCall:
        stage = self._stage
        partition = stage.partitions[self._sent // self._pushers % len(stage.partitions)]
        self._sent += 1
        return history.PushCall(stage.queue, (partition,), (None,), (stage.next_payload(),))

    async def _kill(self) -> None:
        if self._stage.kill is None:
            return
        self._up.clear()
        try:
            await self._stage.kill()
        finally:
            self._up.set()

    # Consumers ----------------------------------------------------------------------------------------------------

    async def _consume(self, number: int) -> None:
        """Pops and acks until the pushers are done and nothing is left that it is given."""
        worker = f"{self._stage.consumer}/{number}"
        turn = number
        empty = troubles = 0
        while self._may_call() and self._deliveries < self._most_deliveries:
            last = self._pushing == 0
            answer = await self._send(self._pop(turn, last), worker)
            if answer.value is None:
                troubles += 1
                if troubles >= (LAST_TROUBLES if last else MOST_TROUBLES):
                    return
                await self._recover(answer)
            elif answer.value.messages:
                empty = troubles = 0
                self._deliveries += len(answer.value.messages)
                await self._ack(answer.value.messages, worker)
            else:
                empty += 1
                turn += 1
                troubles = 0
                if last and empty >= (len(self._stage.partitions) if self._storm.named else 1):
                    return
                await asyncio.sleep(NOTHING_S)

    def _pop(self, turn: int, last: bool) -> history.PopCall:
        stage = self._stage
        named = self._storm.named
        return history.PopCall(
            stage.queue,
            stage.group,
            stage.partitions[turn % len(stage.partitions)] if named else None,
            self._storm.batch,
            None if named else 1,
            LEASE_S,
            None if last else WAIT_MS,
            mode=stage.mode if stage.group else None,
        )

    async def _ack(self, messages: tuple[wire.Message, ...], worker: str) -> None:
        answer = await self._send(completion(self._stage.queue, self._stage.group, messages), worker)
        await self._recover(answer)

    # Calls --------------------------------------------------------------------------------------------------------

    def _may_call(self) -> bool:
        return self._calls < MOST_CALLS

    async def _send(self, request: history.Call, worker: str) -> wire.Call[Any]:
        """Sends a call with an interleaving of its own, which other steps of the schedule do not change."""
        self._calls += 1
        jitter = self._storm.jitter and self._storm.jitter * (MOST_CALLS + 1) + self._calls
        return await self._stage.caller.send(request, worker, step=self._path, jitter=jitter)

    async def _recover(self, answer: wire.Call[Any]) -> None:
        """Waits where a call was not answered: for a moment, and until a broker that was killed is there again."""
        if answer.value is None:
            await asyncio.sleep(NO_ANSWER_S)
        await self._up.wait()
