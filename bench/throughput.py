"""Clean schedules a second in simulation, against two peers measured in the same run.

    python bench/throughput.py [--schedules 400] [--rounds 5]

1. The whole line: draw, play, record, judge.
2. The same requests, neither recorded nor judged: the same schedules, drawn before the clock starts.
3. The same requests, bare: one after the other to the same broker on the same stack, without faults and waits.
4. A plain Hypothesis state machine over plain httpx on the same broker: what one would write first.

All are measured in turn, round by round, so that a noisy machine disturbs them alike; medians are printed, as
rates and as ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import time
from collections.abc import Callable
from unittest import mock

import httpx
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from client import AckItem, BrokerClient, PushItem
from contract.explore import explore, features_of
from contract.history import AckCall, Call, Event, History, Invoke, PopCall, PushCall, Recorder
from contract.targets import Simulated, virtual_time
from contract.targets.in_process import DirectASGI, LeanClient
from reference_broker import Storage, create_app
from strategies import draw
from strategies.schedule import Schedule

STEPS = 25
"""Requests of one run of the plain state machine, as many as a schedule sends on average."""

PARTITIONS = ("a", "b", "c")
GROUPS = ("billing", "analytics")

SETTINGS = settings(
    database=None, deadline=None, phases=(Phase.generate,), suppress_health_check=list(HealthCheck), print_blob=False
)


def drawn(count: int, number: int) -> list[Schedule]:
    """Schedules as a run draws them."""
    found: list[Schedule] = []

    @seed(number)
    @settings(SETTINGS, max_examples=count)
    @given(draw.anything(features=features_of(Simulated())))
    def collect(schedule: Schedule) -> None:
        found.append(schedule)

    collect()
    return found


def requests_of(history: History) -> list[Call]:
    """The pushes, pops and acks of a history, in order."""
    return [
        event.request
        for event in history.events
        if isinstance(event, Invoke) and isinstance(event.request, PushCall | PopCall | AckCall)
    ]


async def send_all(client: BrokerClient, requests: list[Call]) -> None:
    """Sends requests one after the other; a pop does not park."""
    for request in requests:
        if isinstance(request, PushCall):
            items = zip(request.partitions, request.payloads, request.transaction_ids, strict=True)
            await client.push([PushItem(request.queue, p, payload.encode(), key) for p, payload, key in items])
        elif isinstance(request, PopCall):
            await client.pop(
                request.queue,
                partition=request.partition,
                group=request.group,
                batch=request.batch,
                partitions=request.partitions,
                lease_s=request.lease_s,
                auto_ack=request.auto_ack,
                mode=request.mode,
            )
        elif isinstance(request, AckCall):
            parts = zip(
                request.transaction_ids, request.partition_ids, request.statuses, request.lease_ids, strict=True
            )
            await client.ack_batch([AckItem(*part) for part in parts], group=request.group)


def bare(batches: list[list[Call]]) -> int:
    """Sends the requests of each schedule to a new broker; returns how many."""
    sent = 0
    for requests in batches:

        async def main(loop: virtual_time.VirtualLoop, requests: list[Call] = requests) -> None:
            transport = DirectASGI(create_app(storage=Storage.in_memory(), random=random.Random(0)))
            async with LeanClient(transport) as http:
                await send_all(BrokerClient(http), requests)

        virtual_time.run(main)
        sent += len(requests)
    return sent


def silent(target: Simulated, schedules: list[Schedule]) -> int:
    """Plays schedules with a recorder that keeps only the number of requests; returns it."""
    sent = 0

    def count(_: Recorder, event: Event) -> None:
        nonlocal sent
        sent += isinstance(event, Invoke)

    with mock.patch.object(Recorder, "add", count):
        for schedule in schedules:
            target.play(schedule)
    return sent


class PlainMachine(RuleBasedStateMachine):
    """Pushes, pops and acks of two groups on three partitions over plain httpx, with the checks that come to mind."""

    sent = 0

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        app = create_app(storage=Storage.in_memory())
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://broker")
        self.pushed: dict[str, list[int]] = {partition: [] for partition in PARTITIONS}
        self.acked = {(group, partition): 0 for group in GROUPS for partition in PARTITIONS}
        self.held: dict[str, list[dict[str, object]]] = {}

    def call(self, method: str, path: str, **options: object) -> httpx.Response:
        PlainMachine.sent += 1
        return self.loop.run_until_complete(self.http.request(method, path, **options))  # type: ignore[arg-type]

    @rule(items=st.lists(st.tuples(st.sampled_from(PARTITIONS), st.integers(0, 1000)), min_size=1, max_size=5))
    def push(self, items: list[tuple[str, int]]) -> None:
        body = {"items": [{"queue": "q", "partition": partition, "payload": value} for partition, value in items]}
        assert [result["status"] for result in self.call("POST", "/api/v1/push", json=body).json()] == ["queued"] * len(
            items
        )
        for partition, value in items:
            self.pushed[partition].append(value)

    @rule(group=st.sampled_from(GROUPS), batch=st.integers(1, 10), wildcard=st.booleans())
    def pop(self, group: str, batch: int, wildcard: bool) -> None:
        if group in self.held:
            self.ack(group=group)
            return
        path = "/api/v1/pop/queue/q" if wildcard else "/api/v1/pop/queue/q/partition/a"
        options = {"consumerGroup": group, "batch": batch, "leaseSeconds": 60, "subscriptionMode": "all"}
        answer = self.call("GET", path, params=options)
        if answer.status_code == 200:
            messages = answer.json()["messages"]
            partition = messages[0]["partition"]
            begin = self.acked[group, partition]
            assert [message["data"] for message in messages] == self.pushed[partition][begin : begin + len(messages)]
            self.held[group] = messages

    @rule(group=st.sampled_from(GROUPS))
    def ack(self, group: str) -> None:
        messages = self.held.pop(group, None)
        if messages is None:
            self.pop(group=group, batch=5, wildcard=True)
            return
        items = [
            {key: message[key] for key in ("transactionId", "partitionId", "leaseId")} | {"status": "completed"}
            for message in messages
        ]
        answer = self.call("POST", "/api/v1/ack/batch", json={"consumerGroup": group, "acknowledgments": items})
        assert all(item["success"] for item in answer.json())
        self.acked[group, str(messages[0]["partition"])] += len(messages)

    def teardown(self) -> None:
        self.loop.run_until_complete(self.http.aclose())
        self.loop.close()


def timed(work: Callable[[], int]) -> float:
    """Requests a second."""
    start = time.perf_counter()
    count = work()
    return count / (time.perf_counter() - start)


def plain(runs: int) -> int:
    """Runs the state machine; returns how many requests it sent."""
    PlainMachine.sent = 0
    run_state_machine_as_test(PlainMachine, settings=settings(SETTINGS, max_examples=runs, stateful_step_count=STEPS))
    return PlainMachine.sent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--schedules", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    target = Simulated()
    lines, silents, bares, plains, rates, each = [], [], [], [], [], []
    for number in range(options.rounds):
        start = time.perf_counter()
        run = explore(target, seed=number, schedules=options.schedules)
        spent = time.perf_counter() - start
        if run.failures:
            raise SystemExit(f"a correct broker was accused: {run.failures[0].violation}")
        lines.append(run.requests / spent)
        rates.append(run.schedules / spent)
        each.append(run.requests / run.schedules)
        schedules = drawn(options.schedules, number)
        batches = [requests_of(target.play(schedule, seed=number)) for schedule in schedules]
        silents.append(timed(lambda schedules=schedules: silent(target, schedules)))  # type: ignore[misc]
        bares.append(timed(lambda batches=batches: bare(batches)))  # type: ignore[misc]
        plains.append(timed(lambda: plain(options.schedules // 10)))
    line, unjudged, alone, machine = map(statistics.median, (lines, silents, bares, plains))
    print(
        f"whole line            {statistics.median(rates):8.0f} schedules/s of {statistics.median(each):.1f} requests"
    )
    print(f"whole line            {line:8.0f} requests/s")
    print(f"not recorded, judged  {unjudged:8.0f} requests/s   the whole line is {line / unjudged:.2f} x (goal 0.5)")
    print(f"same requests, bare   {alone:8.0f} requests/s   the whole line is {line / alone:.2f} x")
    print(f"plain state machine   {machine:8.0f} requests/s   the whole line is {line / machine:.2f} x (goal 2)")


if __name__ == "__main__":
    main()
