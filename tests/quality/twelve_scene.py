"""A stage for small drawn histories: one queue, one reader in focus, and legal goings-on around it.

A scene keeps the state of a broker that does everything right (stored messages, cursors, leases), so that what it
writes into the history is legal whatever is drawn. The kinds of `twelve` write the one fault, or the one legal oddity,
on the *focus*: group `group` on partition `partition`. Noise never touches that reader, and never disturbs what its
calls prove: it happens in other partitions and to other groups.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from contract.history_builder import HistoryBuilder, Stored

NAMES = (
    "p0",
    "G",
    "Default",
    "orders/2024 Q1",
    "a'b\"c\\d",
    "naïve café",
    "заказы",
    "注文キュー",
    "🛒🧾",
    "e\u0301 and é",
    "\u202ertl",
    "line\u2028separator",
    "%2F%00?x=1&y=2#z",
    "UPPER",
    "upper",
    " blank ",
    "0",
    "null",
    "x" * 255,
    "\U0010ffff",
)
PAYLOADS = (
    '{{"n": {0}}}',
    "{0}",
    '"text {0}"',
    "[null, true, {0}.50]",
    '{{"é": "\\u00e9 {0}", "big": 18446744073709551617{0}}}',
)
STATUSES = ("retry", "failed")


@dataclass(slots=True)
class Held:
    """A batch that a reader was given: its lease, until when it lives, and the messages."""

    lease: str
    until_us: int
    messages: list[str]


class Scene:
    """One drawn history under construction. `log` is what the broker stored, in its order."""

    def __init__(self, random: Random) -> None:
        self.random = random
        queue, *names = random.sample(NAMES, 7)
        self.h = HistoryBuilder(queue)
        self.partition, self.elsewhere = names[0], names[1:3]
        self.group, self.others = names[3], names[4:6]
        if random.random() < 0.2:
            self.others[0] = ""
        self.log = self.h.order
        self.log[self.partition] = []  # the audit asks for it, whatever it holds
        self.cursors: dict[tuple[str, str], int] = {}
        self.held: dict[tuple[str, str], Held] = {}
        self.with_offsets = random.random() < 0.5
        self._minted = 0

    # The focus

    def chance(self, share: float) -> bool:
        """True in that share of the draws."""
        return self.random.random() < share

    def between(self, least: int, most: int) -> int:
        """An integer, both ends included."""
        return self.random.randint(least, most)

    def tick(self, most_ms: int = 20) -> None:
        """A little time passes, or none."""
        self.h.advance(self.between(0, most_ms) if self.chance(0.7) else 0)

    def mint(self, count: int = 1) -> list[str]:
        """Fresh message ids."""
        self._minted += count
        return [f"id-{self._minted - left:03}" for left in range(count - 1, -1, -1)]

    def payload(self, name: str) -> str:
        """A payload that no other message has."""
        return self.random.choice(PAYLOADS).format(1 + int(name.split("-")[1]))

    def transaction_ids(self, names: Sequence[str]) -> list[str | None]:
        """Ids of the client for some, none for others."""
        return [f"{self.random.choice(NAMES)[:40]}:{name}" if self.chance(0.3) else None for name in names]

    def push(self, partition: str, count: int, *, store: bool = True) -> list[str]:
        """One answered push. `store` False leaves out what a right broker would do next: store it."""
        names = self.mint(count)
        opened = self.h.begin_push(
            partition,
            *names,
            transaction_ids=self.transaction_ids(names),
            payloads=[self.payload(name) for name in names],
        )
        self.tick(5)
        opened.ok(self.h.push_result(names), 201)
        if store:
            self.store(partition, names)
        return names

    def fill(self, least: int, most: int) -> list[str]:
        """Pushes that many messages to the focus, in requests of any size."""
        left, names = self.between(least, most), []
        while left:
            size = self.between(1, left)
            names += self.push(self.partition, size)
            left -= size
            self.tick()
        return names

    def store(self, partition: str, names: Sequence[str]) -> None:
        """The broker appends these messages."""
        for name in names:
            self.h.place(partition, name)
            if self.with_offsets:
                self.h.offsets[name] = len(self.log[partition]) - 1

    def appear(self, name: str, payload: str, transaction_id: str | None = None) -> None:
        """A message comes out of nowhere."""
        self.h.stored[name] = Stored(self.partition, transaction_id or name, payload)

    def seconds(self) -> int:
        """A length for a lease."""
        return self.between(1, 20)

    def expire(self, lease_s: int) -> None:
        """Waits until a lease that was taken just now is over for certain."""
        self.h.advance(lease_s * 1000 + self.between(1, 500) + 1000)

    def take(self, group: str, messages: Sequence[str], *, lease_s: int | None = None, worker: int = 0) -> str:
        """The focus partition gives exactly these messages to a group."""
        alone = set(self.log) == {self.partition}
        wanted = None if alone and self.chance(0.3) else self.partition
        lease_s = lease_s or self.seconds()
        opened = self.h.begin_pop(group, wanted, worker=worker, lease_s=lease_s, batch=self.batch(messages))
        self.tick(5)
        lease = f"lease {self.h.now_us}/{len(self.h.events)}" if messages else ""
        opened.messages(messages, lease=lease)
        return lease

    def batch(self, messages: Sequence[str]) -> int:
        """A batch size that fits."""
        return max(len(messages), 1) + (self.between(0, 5) if self.chance(0.5) else 0)

    def complete(self, group: str, messages: Sequence[str], lease: str) -> None:
        """Completes a batch, named in full or by its last message, in one call or in several."""
        if self.chance(0.3):
            for name in messages:
                self.h.ack(group, [name], lease=lease)
        else:
            self.h.ack(group, [messages[-1]] if self.chance(0.3) else list(messages), lease=lease)
        self.tick()

    # Legal noise

    def noise(self, *, quick: bool = False) -> None:
        """Some legal goings-on beside the focus. `quick`: no leases are waited for."""
        for _ in range(self.between(0, 2)):
            self.tick()
            deeds = [self._push_elsewhere, self._refused, self._consume, self._consume, self._strangers]
            if not quick:
                deeds.append(self._let_expire)
            self.random.choice(deeds)()

    def _push_elsewhere(self) -> None:
        partition = self.random.choice(self.elsewhere)
        if self.chance(0.6):
            self.push(partition, self.between(1, 3))
            return
        (name,) = self.mint()
        opened = self.h.begin_push(partition, name, payloads=[self.payload(name)])
        self.tick()
        opened.lost()
        if self.chance(0.5):
            self.store(partition, [name])

    def _refused(self) -> None:
        what = self.between(0, 2)
        if what == 0:
            (name,) = self.mint()
            opened = self.h.begin_push(self.random.choice(self.elsewhere), name, payloads=[self.payload(name)])
            opened.refused(400, "bad request")
        elif what == 1:
            self.h.begin_pop(self.random.choice([self.group, *self.others]), self.partition).refused()
        else:
            known = [name for names in self.log.values() for name in names]
            if known:
                group = self.random.choice([self.group, *self.others])
                self.h.begin_ack(group, [self.random.choice(known)], lease="any").refused(503, "not now")

    def _strangers(self) -> None:
        self.h.fault("crash-consumer") if self.chance(0.5) else self.h.note("a step that resolved to nothing")

    def _reader(self) -> tuple[str, str]:
        """Any reader but the one in focus."""
        groups, partitions = [self.group, *self.others], [self.partition, *self.elsewhere]
        keys = [(group, partition) for group in groups for partition in partitions]
        return self.random.choice(keys[1:])  # the first is the focus

    def _consume(self) -> None:
        """Another reader pops, legally, and does something legal with what it got."""
        key = group, partition = self._reader()
        held = self.held.get(key)
        alive = held is not None and self.h.now_us <= held.until_us
        cursor = self.cursors.setdefault(key, 0)
        batch = self.between(1, 4)
        due = [] if alive else self.log.get(partition, [])[cursor : cursor + batch]
        if due and self.chance(0.15):
            self.h.pop(group, partition, due, batch=batch, auto_ack=True)
            self.cursors[key] = cursor + len(due)
            return
        lease_s = self.seconds()
        lease = self.h.pop(group, partition, due, batch=batch, lease_s=lease_s, worker=self.between(1, 3))
        if due:
            self.held[key] = Held(lease, self.h.now_us + lease_s * 1_000_000, due)
            self._settle(key, self.held[key])

    def _settle(self, key: tuple[str, str], held: Held) -> None:
        """Completes, hands back, extends, loses an answer, or forgets."""
        group, cursor = key[0], self.cursors[key]
        self.tick(5)
        what = self.between(0, 5)
        if what <= 1:
            self.h.ack(group, held.messages, lease=held.lease)
            self.cursors[key] = cursor + len(held.messages)
            del self.held[key]
        elif what == 2:
            self.h.ack(group, held.messages[:1], lease=held.lease, statuses="retry")
            del self.held[key]
        elif what == 3:
            self.h.begin_ack(group, held.messages, lease=held.lease).lost()
            if self.chance(0.5):
                self.cursors[key] = cursor + len(held.messages)
                del self.held[key]
        elif what == 4:
            seconds = self.seconds()
            self.h.extend(group, held.lease, seconds)
            held.until_us = max(held.until_us, self.h.now_us + seconds * 1_000_000)

    def _let_expire(self) -> None:
        """Every lease runs out, and a late ack is refused."""
        if not self.held:
            return
        self.h.advance(max(0, max(held.until_us for held in self.held.values()) - self.h.now_us) // 1000 + 1)
        for (group, _), held in self.held.items():
            if self.chance(0.3):
                self.h.ack(group, held.messages[-1:], lease=held.lease, statuses="failed", success=False)
        self.held.clear()

    # The end

    def finish(
        self, given: dict[str, Sequence[str]], *, audit: bool = True, drain: bool = True, optional: bool = False
    ) -> HistoryBuilder:
        """Audit and drain in either order. `given`: what the drain gives in the focus partition, by group.

        Groups of the noise are given everything above their cursor, also in the focus partition, unless `given` names
        them. `optional`: the fault shows without an ending, so any part of it may be missing.
        """
        if optional:
            audit, drain = audit and self.chance(0.5), drain and self.chance(0.5)
        deliveries: dict[tuple[str, str], Sequence[str]] = {}
        for (group, partition), cursor in self.cursors.items():
            deliveries[group, partition] = self.log.get(partition, [])[cursor:]
        for group, messages in given.items():
            deliveries[group, self.partition] = messages
        audit_first = self.chance(0.5)
        if audit and audit_first:
            self.h.audit()
        if drain:
            self.h.drain(deliveries)
        if audit and not audit_first:
            self.h.audit()
        return self.h


def another_value(random: Random, payload: str) -> str:
    """A JSON text of another value: a digit or a letter is changed, or it is wrapped."""
    value = json.loads(payload)
    return json.dumps(random.choice([[value], {"was": value}, f"{payload} "]))
