"""Long random runs of the reference broker beside a model of a few lines, which has to answer the same every time."""

import random
from dataclasses import dataclass, field

import pytest

PARTITIONS = ("p", "r", "s")
GROUPS = ("__QUEUE_MODE__", "g", "h")
WINDOW_S = 20
RETRY_LIMIT = 1


@dataclass
class Cursor:
    """What a group knows of a partition."""

    done: int = 0
    failures: int = 0
    batch: tuple[int, int] = (0, 0)
    lease: object = None
    until: float = 0
    attempt: int = 0
    turn: int = 0


@dataclass
class Model:
    """The contract, in plain Python. Offsets are list indexes; `done` and batches are half-open."""

    now: float = 0
    turn: int = 0
    logs: dict[str, list[tuple[str, float]]] = field(default_factory=dict)
    starts: dict[str, set[str]] = field(default_factory=dict)
    cursors: dict[tuple[str, str], Cursor] = field(default_factory=dict)
    dead: list[tuple[str, str, int]] = field(default_factory=list)

    def push(self, partition, name):
        log = self.logs.setdefault(partition, [])
        for offset in range(len(log) - 1, -1, -1):
            if log[offset][0] == name:
                if self.now - log[offset][1] < WINDOW_S:
                    return ("duplicate", offset)
                break
        log.append((name, self.now))
        return ("queued", len(log) - 1)

    def pop(self, group, partition, batch, cap, lease, seconds, mode):
        if group != "__QUEUE_MODE__" and group not in self.starts:
            self.starts[group] = set()
            for name, log in self.logs.items() if mode == "new" else ():
                self.cursors[group, name] = Cursor(done=len(log))
        names = [partition] if partition else sorted(self.logs, key=lambda name: self.cursor(group, name).turn)
        got = []
        claimed = 0
        for name in names:
            cursor = self.cursor(group, name)
            log = self.logs.get(name, [])
            live = cursor.lease is not None and self.now < cursor.until
            if live or cursor.done >= len(log) or claimed == (cap or 99) or len(got) >= batch:
                continue
            end = min(len(log), cursor.done + batch - len(got))
            inside = cursor.batch[0] <= cursor.done < cursor.batch[1]
            cursor.attempt = cursor.attempt + 1 if inside else 1
            cursor.batch = (cursor.done, end)
            cursor.lease, cursor.until = lease, self.now + seconds
            self.turn += 1
            cursor.turn = self.turn
            claimed += 1
            got += [(name, offset, log[offset][0], cursor.attempt) for offset in range(cursor.done, end)]
        return got

    def cursor(self, group, partition):
        return self.cursors.setdefault((group, partition), Cursor())

    def ack(self, group, partition, items, lease):
        """Items are (offset, word) with words that are known; answers (success, dlq, released) for each."""
        cursor = self.cursor(group, partition)
        if lease is not None and (cursor.lease is not lease or self.now >= cursor.until):
            return [(False, False, False) for _ in items]
        reach = cursor.batch[1] if cursor.lease is not None else 10**9
        inside = [cursor.done <= offset < reach for offset, _ in items]
        before, had_lease = cursor.done, cursor.lease is not None
        acting = [item for item, ok in zip(items, inside, strict=True) if ok and (had_lease or item[1] == "completed")]
        stops = [offset for offset, word in acting if word in ("failed", "retry")]
        stop = min(stops, default=10**9)
        words = {offset: {word for at, word in acting if at == offset} for offset, _ in acting}
        if stops and "dlq" in words[stop]:
            return None  # several words for one message: left to the tests of acks
        filed = [offset for offset, word in acting if word == "dlq" and offset < stop]
        released = False
        cursor.done = max([cursor.done] + [offset + 1 for offset, _ in acting if offset < stop])
        if filed:
            cursor.failures = 0
        if stops:
            released = True
            cursor.done = max(cursor.done, stop)
            if "failed" in words[stop]:
                cursor.failures += 1
                if cursor.failures > RETRY_LIMIT:
                    cursor.failures, cursor.done = 0, stop + 1
                    filed.append(stop)
        elif had_lease and acting and cursor.done >= cursor.batch[1]:
            released, cursor.failures = True, 0
        if released:
            cursor.lease = None
        self.dead += [(group, partition, offset) for offset in sorted(set(filed))]
        answers = []
        for (offset, word), ok in zip(items, inside, strict=True):
            if ok:
                answers.append((True, word != "completed" and offset in filed, released))
            else:
                answers.append((offset < before and word == "completed", False, False))
        return answers


class Run:
    """One random run: each step is done by both sides and compared."""

    def __init__(self, driver, seed):
        self.driver = driver
        self.source = random.Random(seed)
        self.model = Model()
        self.batches = []
        self.number = 0

    async def step(self):
        choice = self.source.choices(
            [self.push, self.pop, self.ack, self.advance, self.restart], weights=[4, 5, 5, 2, 0.3]
        )[0]
        await choice()

    async def push(self):
        names = [f"m{self.source.randrange(25)}" for _ in range(self.source.randrange(1, 4))]
        names = list(dict.fromkeys(names))
        partition = self.source.choice(PARTITIONS)
        pushed = await self.driver.push(*names, partition=partition)
        assert [(item["status"], item["offset"]) for item in pushed] == [
            self.model.push(partition, name) for name in names
        ]

    async def pop(self):
        group = self.source.choice(GROUPS)
        partition = self.source.choice((None, *PARTITIONS))
        batch, cap = self.source.randrange(1, 6), self.source.randrange(0, 4)
        seconds = self.source.randrange(1, 8)
        mode = self.source.choice(("new", "all"))
        query = {"consumerGroup": group, "batch": batch, "partitions": cap, "leaseSeconds": seconds}
        messages = await self.driver.pop("q", partition, subscriptionMode=mode, **query)
        lease = object()
        expected = self.model.pop(group, partition, batch, 1 if partition else cap, lease, seconds, mode)
        assert [
            (message["partition"], message["offset"], message["transactionId"], message["deliveryAttempt"])
            for message in messages
        ] == expected
        if messages:
            self.batches.append((group, lease, messages))

    async def ack(self):
        if not self.batches:
            return
        group, lease, messages = self.source.choice(self.batches[-4:])
        partition = self.source.choice(messages)["partition"]
        own = [message for message in messages if message["partition"] == partition]
        log = [name for name, _ in self.model.logs[partition]]
        chosen = self.source.sample(own, self.source.randrange(1, len(own) + 1))
        if any(log.count(message["transactionId"]) > 1 for message in chosen):
            return  # an id stored twice may mean either message
        pairs = [
            (message, self.source.choice(("completed", "completed", "failed", "retry", "dlq"))) for message in chosen
        ]
        fenced = self.source.random() < 0.7
        settled = self.model.cursor(group, partition).lease is not lease and fenced
        if settled:
            return  # the ack that released a lease may be answered again
        expected = self.model.ack(
            group, partition, [(message["offset"], word) for message, word in pairs], lease if fenced else None
        )
        changes = {} if fenced else {"lease": None}
        results = await self.driver.ack_all(*pairs, **changes)
        answers = [(result["success"], result["dlq"], result["leaseReleased"]) for result in results]
        assert answers == expected
        letters = await self.driver.dead_letters()
        assert [(one["consumerGroup"], one["partition"], one["offset"]) for one in letters] == sorted(
            self.model.dead, key=lambda one: letters_order(one, letters)
        )

    async def advance(self):
        seconds = self.source.choice((0.5, 1, 3, 8))
        self.driver.clock.advance(seconds)
        self.model.now += seconds

    async def restart(self):
        self.driver.kill_and_restart()


def letters_order(one, letters):
    """Where a dead letter stands in the answer; those of one moment come by partition and offset."""
    places = [(letter["consumerGroup"], letter["partition"], letter["offset"]) for letter in letters]
    return places.index(one) if one in places else len(places)


@pytest.mark.parametrize("seed", range(60))
async def test_a_random_run_agrees_with_the_model(driver, seed):
    run = Run(driver, seed)
    await driver.configure(retryLimit=RETRY_LIMIT, dedupWindowSeconds=WINDOW_S)
    for _ in range(120):
        await run.step()
