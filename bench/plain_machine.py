"""What one would write first: a Hypothesis state machine over httpx, with a model that checks each answer.

Written from the broker's HTTP contract alone, with nothing of this suite in it. Pushes, pops (named and wildcard), acks
of each status (one and batch, also stale, repeated and outside the batch), extensions, and leases of a second that run
out in real time; three partitions, four groups. `bench/fast_check/model.mjs` is the same in JavaScript; what is changed
here is changed there.

The model is strict and sequential: each answer is compared with the one list of messages that it allows. A run in
which the machine stalled across the end of a lease is thrown away, since nothing can be said about it.
"""

from __future__ import annotations

import functools
import itertools
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import httpx
from hypothesis import HealthCheck, Phase, reject, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import UnsatisfiedAssumption
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

Chosen = TypeVar("Chosen")

PARTITIONS = ("a", "b", "c")
MODES = {"billing": "all", "analytics": "all", "audit": "new", "": None}
"""The groups, and where each starts; "" is the group-less queue mode, which starts at the oldest message."""

RETRY_LIMIT = 3
SHORT_LEASE_S, LONG_LEASE_S = 1, 60
MARGIN_S = 0.3
"""A lease that ends sooner than this is waited for, so that no request is near its end."""

SLACK_S = 0.05
PATIENT_RUNS = 4
"""One run in so many may wait for leases to run out: that takes a second, and a whole run without it a tenth of one."""

STEPS = 30
NUMBERS = itertools.count()

PAYLOADS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=4,
)
ITEMS = st.lists(st.tuples(st.sampled_from(PARTITIONS), PAYLOADS, st.booleans()), min_size=1, max_size=5)
GROUPS = st.sampled_from(list(MODES))
BATCHES = st.integers(1, 6)
WORDS = ("completed", "failed", "retry", "dlq")
CHOICES = st.integers(0, 100)
"""Which of what is there, modulo how much there is."""

PLAIN = settings(
    settings.get_profile("default"),
    max_examples=1_000_000,
    stateful_step_count=STEPS,
    database=None,
    deadline=None,
    print_blob=False,
    report_multiple_bugs=False,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)
"""The defaults, without what would slow it down: no database, no explanations, one bug at a time."""


class OutOfTime(KeyboardInterrupt):
    """The hunt is over. Hypothesis lets an interrupt through and any other exception not."""


class NothingThere(Exception):
    """What a step is about has ended meanwhile. `assume` would throw the whole run away."""


@dataclass(slots=True)
class Watch:
    """What one hunt saw: seconds to the first failing run, and the fewest steps of a failing one."""

    budget_s: float
    shrink_s: float
    begun_s: float = field(default_factory=time.perf_counter)
    first_s: float | None = None
    steps: int = 0
    error: str = ""
    runs: int = 0
    cut_off: bool = False

    def now_s(self) -> float:
        """Seconds since the hunt began."""
        return time.perf_counter() - self.begun_s

    def failed(self, steps: int, error: str) -> None:
        """A run failed after so many steps."""
        if self.first_s is None:
            self.first_s, self.steps = self.now_s(), steps
        if steps <= self.steps:
            self.steps, self.error = steps, error

    def check_time(self) -> None:
        """Raises `OutOfTime`."""
        limit_s = self.budget_s if self.first_s is None else self.budget_s + self.shrink_s
        if self.now_s() > limit_s:
            raise OutOfTime


@dataclass(slots=True)
class Message:
    """One pushed message, as its answer named it."""

    id: str
    transaction_id: str
    payload: Any


@dataclass(slots=True)
class Lease:
    """A batch that a group holds: offsets first to last. It lives until `ends_s` at least, and not beyond `over_s`."""

    id: str
    first: int
    last: int
    ends_s: float
    over_s: float
    short: bool
    wait_s: float
    """When it would be over without extensions."""


@dataclass(slots=True)
class Lane:
    """What the model knows of one group in one partition."""

    cursor: int = 0
    failures: int = 0
    attempt: int = 0
    batch: tuple[int, int] = (-1, -1)
    held: Lease | None = None

    def next_attempt(self) -> int:
        """The delivery attempt of a batch that begins at the cursor."""
        first, last = self.batch
        return self.attempt + 1 if first <= self.cursor <= last else 1


def chosen(there: Sequence[Chosen], which: int) -> Chosen:
    """One of what is there. Raises `NothingThere`."""
    if not there:
        raise NothingThere
    return there[which % len(there)]


def observed(step: Callable[..., None]) -> Callable[..., None]:
    """Counts a step, ends the hunt in time, waits for leases that are about to end, and notes a failure."""

    @functools.wraps(step)
    def wrapped(machine: PlainMachine, **arguments: Any) -> None:
        machine.watch.check_time()
        machine.steps += 1
        machine.let_leases_end()
        try:
            step(machine, **arguments)
        except NothingThere:
            machine.steps -= 1
        except UnsatisfiedAssumption:
            raise
        except Exception as error:
            machine.watch.failed(machine.steps, f"{type(error).__name__} in {step.__name__} {error}".splitlines()[0])
            raise

    return wrapped


class PlainMachine(RuleBasedStateMachine):
    """Three partitions, four groups, and the answers that they must get."""

    http: ClassVar[httpx.Client]
    watch: ClassVar[Watch]

    def __init__(self) -> None:
        super().__init__()
        self.name = f"plain-{os.getpid()}-{next(NUMBERS)}"
        self.pushed: dict[str, list[Message]] = {partition: [] for partition in PARTITIONS}
        self.partition_ids: dict[str, str] = {}
        self.lanes = {(group, partition): Lane() for group in MODES for partition in PARTITIONS}
        self.begun: set[str] = set()
        self.dead: list[tuple[str, str, Lease]] = []
        self.waits = 0
        self.keys = 0
        self.steps = 0
        self.watch.runs += 1

    @initialize(patient=st.sampled_from([False] * (PATIENT_RUNS - 1) + [True]))
    def be_patient(self, patient: bool) -> None:
        """One run in a few may wait for leases to run out."""
        self.waits = int(patient)

    # Talking

    def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Sends a request. Gives the run up where a lease may have ended meanwhile."""
        response = self.http.request(method, f"/api/v1/{path}", **options)
        if any(lease.ends_s < time.perf_counter() for _, _, lease in self.leases()):
            reject()
        return response

    def group_name(self, group: str) -> str:
        """The group on the wire: the queue is new in each run, and so is the group."""
        return f"{self.name}-{group}"

    def leases(self) -> list[tuple[str, str, Lease]]:
        """Group, partition and lease of all that is held."""
        return [(group, part, lane.held) for (group, part), lane in self.lanes.items() if lane.held is not None]

    def let_leases_end(self) -> None:
        """Waits where a lease is about to end, and takes those that ended out of the model."""
        soon = [lease.over_s for *_, lease in self.leases() if lease.ends_s - MARGIN_S < time.perf_counter()]
        if soon:
            time.sleep(max(0.0, max(soon) - time.perf_counter()))
        for group, partition, lease in self.leases():
            if lease.over_s <= time.perf_counter():
                self.lanes[group, partition].held = None
                self.dead.append((group, partition, lease))

    # Push

    @rule(items=ITEMS)
    @observed
    def push(self, items: list[tuple[str, Any, bool]]) -> None:
        asked = []
        for partition, payload, keyed in items:
            item = {"queue": self.name, "partition": partition, "payload": payload}
            if keyed:
                self.keys += 1
                item["transactionId"] = f"Key-{self.keys}"
            asked.append(item)
        response = self.call("POST", "push", json={"items": asked})
        assert response.status_code == 201
        results = response.json()
        assert len(results) == len(asked)
        for index, (item, result) in enumerate(zip(asked, results, strict=True)):
            assert (result["index"], result["status"]) == (index, "queued")
            assert result["transaction_id"] == item.get("transactionId", result["message_id"])
            stored = self.pushed[item["partition"]]
            assert result["offset"] == len(stored)
            stored.append(Message(result["message_id"], result["transaction_id"], item["payload"]))

    # Pop

    @rule(group=GROUPS, partition=st.sampled_from(PARTITIONS), batch=BATCHES, short=st.booleans())
    @observed
    def pop_partition(self, group: str, partition: str, batch: int, short: bool) -> None:
        if MODES[group] == "new" and group not in self.begun:
            partition = ""  # its first pop decides for the whole queue
        self.pop(group, partition, batch, 1, SHORT_LEASE_S if short else LONG_LEASE_S)

    @rule(group=GROUPS, batch=BATCHES, partitions=st.integers(1, 3), short=st.booleans())
    @observed
    def pop_any(self, group: str, batch: int, partitions: int, short: bool) -> None:
        self.pop(group, "", batch, partitions, SHORT_LEASE_S if short else LONG_LEASE_S)

    @rule(group=GROUPS, batch=BATCHES)
    @observed
    def pop_auto_ack(self, group: str, batch: int) -> None:
        self.pop(group, "", batch, 1, None)

    def pop(self, group: str, partition: str, batch: int, partitions: int, lease_s: int | None) -> None:
        """Pops and compares; without `lease_s` the broker acknowledges by itself."""
        if group not in self.begun:
            self.begun.add(group)
            for name in PARTITIONS:
                self.lanes[group, name].cursor = len(self.pushed[name]) if MODES[group] == "new" else 0
        path = f"pop/queue/{self.name}" + (f"/partition/{partition}" if partition else "")
        asked: dict[str, Any] = {"batch": batch, "partitions": partitions}
        if group:
            asked |= {"consumerGroup": self.group_name(group), "subscriptionMode": MODES[group]}
        asked |= {"autoAck": "true"} if lease_s is None else {"leaseSeconds": lease_s}
        sent_s = time.perf_counter()
        response = self.call("GET", path, params=asked)
        ready = [
            name
            for name in ([partition] if partition else PARTITIONS)
            if self.lanes[group, name].held is None and self.lanes[group, name].cursor < len(self.pushed[name])
        ]
        if not ready:
            assert response.status_code == 204
            return
        assert response.status_code == 200
        answer = response.json()
        messages = answer["messages"]
        assert 1 <= len(messages) <= batch
        runs = {name: list(run) for name, run in itertools.groupby(messages, key=lambda message: message["partition"])}
        assert set(runs) <= set(ready)
        assert len(runs) <= partitions
        assert len(messages) == sum(map(len, runs.values()))
        assert bool(answer["leaseId"]) is (lease_s is not None)
        for name, run in runs.items():
            self.compare(group, name, run, answer["leaseId"])
            lane = self.lanes[group, name]
            first, last = lane.cursor, lane.cursor + len(run) - 1
            lane.attempt, lane.batch = lane.next_attempt() if lease_s is not None else 1, (first, last)
            if lease_s is None:
                lane.cursor, lane.failures = last + 1, 0
            else:
                over_s = time.perf_counter() + lease_s + SLACK_S
                short = lease_s == SHORT_LEASE_S
                lane.held = Lease(answer["leaseId"], first, last, sent_s + lease_s, over_s, short, over_s)

    def compare(self, group: str, partition: str, run: list[dict[str, Any]], lease_id: str) -> None:
        """A run begins right after the cursor and is what was pushed, in that order."""
        lane = self.lanes[group, partition]
        attempt = lane.next_attempt() if lease_id else 1
        wanted = self.pushed[partition][lane.cursor : lane.cursor + len(run)]
        assert [message["id"] for message in run] == [message.id for message in wanted]
        assert [message["transactionId"] for message in run] == [message.transaction_id for message in wanted]
        assert [message["data"] for message in run] == [message.payload for message in wanted]
        for message in run:
            assert message["leaseId"] == lease_id
            assert message["deliveryAttempt"] == attempt
            assert message["partitionId"] == self.partition_ids.setdefault(partition, message["partitionId"])

    # Ack

    @precondition(lambda self: self.leases())
    @rule(which=CHOICES, at=CHOICES, word=st.sampled_from(WORDS))
    @observed
    def ack_one(self, which: int, at: int, word: str) -> None:
        group, partition, lease = self.held(which)
        cursor = self.lanes[group, partition].cursor
        self.ack(group, partition, lease, {cursor + at % (lease.last - cursor + 1): word}, one=True)

    @precondition(lambda self: self.leases())
    @rule(which=CHOICES, words=st.lists(st.sampled_from(WORDS), min_size=1, max_size=6))
    @observed
    def ack_batch(self, which: int, words: list[str]) -> None:
        group, partition, lease = self.held(which)
        offsets = range(self.lanes[group, partition].cursor, lease.last + 1)
        self.ack(group, partition, lease, dict(zip(offsets, words, strict=False)))

    @precondition(lambda self: self.leases())
    @rule(which=CHOICES)
    @observed
    def ack_all(self, which: int) -> None:
        group, partition, lease = self.held(which)
        offsets = range(self.lanes[group, partition].cursor, lease.last + 1)
        self.ack(group, partition, lease, dict.fromkeys(offsets, "completed"))

    def held(self, which: int) -> tuple[str, str, Lease]:
        """One of the leases that are held."""
        return chosen(self.leases(), which)

    def ack(self, group: str, partition: str, lease: Lease, words: dict[int, str], one: bool = False) -> None:
        """Acks under a live lease, and moves the model as the contract says."""
        lane = self.lanes[group, partition]
        stop = min((offset for offset, word in words.items() if word in ("failed", "retry")), default=None)
        filed = {offset for offset, word in words.items() if word == "dlq" and (stop is None or offset < stop)}
        reached = [offset for offset in words if stop is None or offset < stop]
        failures = 0 if filed else lane.failures
        cursor = max(reached, default=lane.cursor - 1) + 1
        released = stop is not None or cursor > lease.last
        if stop is not None:
            cursor = max(cursor, stop)
            failures += words[stop] == "failed"
            if failures > RETRY_LIMIT:
                filed.add(stop)
                failures, cursor = 0, stop + 1
        elif released:
            failures = 0
        answers = self.send_acks(group, partition, lease.id, words, one)
        for (offset, word), answer in zip(words.items(), answers, strict=True):
            assert answer["success"] is True
            assert answer["leaseReleased"] is released
            if word != "dlq" or stop is None or offset < stop:  # above a signal it may be filed or not
                assert answer["dlq"] is (offset in filed)
        lane.cursor, lane.failures = cursor, failures
        if released:
            lane.held = None

    def send_acks(
        self, group: str, partition: str, lease_id: str | None, words: dict[int, str], one: bool = False
    ) -> list[dict[str, Any]]:
        """Sends acks; the answers, as many and of the same ids."""
        items: list[dict[str, Any]] = []
        for offset, word in words.items():
            item = {"transactionId": self.pushed[partition][offset].transaction_id, "status": word}
            item["partitionId"] = self.partition_ids[partition]
            items.append(item | ({"leaseId": lease_id} if lease_id else {}))
        named = {"consumerGroup": self.group_name(group)} if group else {}
        if one:
            response = self.call("POST", "ack", json=items[0] | named)
        else:
            response = self.call("POST", "ack/batch", json={"acknowledgments": items} | named)
        assert response.status_code == 200
        answers: list[dict[str, Any]] = response.json()
        assert [answer["index"] for answer in answers] == list(range(len(items)))
        assert [answer["transactionId"] for answer in answers] == [item["transactionId"] for item in items]
        return answers

    @precondition(lambda self: self.dead_batches())
    @rule(which=CHOICES)
    @observed
    def ack_under_a_dead_lease(self, which: int) -> None:
        group, partition, lease = chosen(self.dead_batches(), which)
        (answer,) = self.send_acks(group, partition, lease.id, {self.lanes[group, partition].cursor: "completed"})
        assert answer["success"] is False

    @precondition(lambda self: self.held_below_the_tip())
    @rule(which=CHOICES)
    @observed
    def ack_outside_the_batch(self, which: int) -> None:
        group, partition, lease = chosen(self.held_below_the_tip(), which)
        (answer,) = self.send_acks(group, partition, lease.id, {lease.last + 1: "completed"})
        assert answer["success"] is False

    @precondition(lambda self: self.completed())
    @rule(which=CHOICES)
    @observed
    def ack_again(self, which: int) -> None:
        group, partition, offset = chosen(self.completed(), which)
        (answer,) = self.send_acks(group, partition, None, {offset: "completed"})
        assert (answer["success"], answer["noop"]) == (True, True)

    def dead_batches(self) -> list[tuple[str, str, Lease]]:
        """The dead leases whose batch holds the message after the cursor."""
        return [one for one in self.dead if one[2].first <= self.lanes[one[:2]].cursor <= one[2].last]

    def held_below_the_tip(self) -> list[tuple[str, str, Lease]]:
        """The leases with a message behind their batch."""
        return [one for one in self.leases() if one[2].last + 1 < len(self.pushed[one[1]])]

    def completed(self) -> list[tuple[str, str, int]]:
        """The last completed message of each group and partition."""
        known = [(key, lane) for key, lane in self.lanes.items() if key[1] in self.partition_ids and lane.cursor > 0]
        return [(*key, lane.cursor - 1) for key, lane in known]

    # Leases

    @precondition(lambda self: self.leases())
    @rule(which=CHOICES)
    @observed
    def extend(self, which: int) -> None:
        *_, lease = self.held(which)
        same = [other for *_, other in self.leases() if other.id == lease.id]
        sent_s = time.perf_counter()
        response = self.call("POST", f"lease/{lease.id}/extend", json={"seconds": LONG_LEASE_S})
        assert response.status_code == 200
        assert (response.json()["success"], response.json()["renewed"]) == (True, len(same))
        for other in same:
            other.ends_s = max(other.ends_s, sent_s + LONG_LEASE_S)
            other.over_s = max(other.over_s, time.perf_counter() + LONG_LEASE_S + SLACK_S)

    @precondition(lambda self: self.dead)
    @rule(which=CHOICES)
    @observed
    def extend_a_dead_lease(self, which: int) -> None:
        *_, lease = chosen(self.dead, which)
        answer = self.call("POST", f"lease/{lease.id}/extend", json={"seconds": LONG_LEASE_S}).json()
        assert (answer["success"], answer["renewed"]) == (False, 0)

    @precondition(lambda self: self.waits and any(lease.short for *_, lease in self.leases()))
    @rule()
    @observed
    def wait(self) -> None:
        self.waits -= 1
        until_s = max((lease.wait_s for *_, lease in self.leases() if lease.short), default=0.0)
        time.sleep(max(0.0, until_s - time.perf_counter()))
        self.let_leases_end()


def hunt(url: str, number: int, budget_s: float, shrink_s: float) -> Watch:
    """Runs the machine against a broker until it has found and shrunk something, or the time is up."""
    with httpx.Client(base_url=url, timeout=10, trust_env=False) as http:
        PlainMachine.http = http
        PlainMachine.watch = watch = Watch(budget_s, shrink_s)
        try:
            run_state_machine_as_test(seed(number)(PlainMachine), settings=PLAIN)
        except OutOfTime:
            watch.cut_off = watch.first_s is not None
        except Exception:
            if watch.first_s is None:  # no step failed: something is wrong with the machine itself
                raise
    return watch
