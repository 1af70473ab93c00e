"""Twelve kinds of bad histories, and the legal ones beside them, each a generator.

`TWELVE` and `LEGAL` list the kinds. A kind draws, from a seeded random source, names of partitions and groups, lengths,
positions, batch sizes, legal noise around the fault, and whether there is an audit and a drain where the fault shows
without them. `rules` of a bad kind are the ones that may stand as the headline; a legal kind has none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from contract.history_builder import HistoryBuilder
from twelve_scene import Scene, another_value

Draw = Callable[[Scene], HistoryBuilder]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of history. `rules`: a headline must be one of them; empty for a legal kind."""

    id: str
    write: Draw
    rules: frozenset[str]

    def draw(self, random: Random) -> HistoryBuilder:
        """One history of this kind."""
        return self.write(Scene(random))


TWELVE: list[Kind] = []
LEGAL: list[Kind] = []


def bad(*rules: str) -> Callable[[Draw], Draw]:
    def register(write: Draw) -> Draw:
        TWELVE.append(Kind(write.__name__.replace("_", "-"), write, frozenset(rules)))
        return write

    return register


def legal(write: Draw) -> Draw:
    LEGAL.append(Kind(write.__name__.replace("_", "-"), write, frozenset()))
    return write


# The twelve -------------------------------------------------------------------------------------------------------


@bad(
    "push/stored-is-delivered",
    "order/no-gap-in-batch",
    "order/starts-at-cursor",
    "group/start-position",
    "group/no-group-starts-at-oldest",
)
def acked_push_lost(s: Scene) -> HistoryBuilder:
    """A push was answered "queued", and the message never comes."""
    s.noise()
    s.fill(0, 3)
    s.push(s.partition, s.between(1, 2), store=False)
    s.noise()
    if s.chance(0.5):
        s.fill(1, 3)
        return s.finish({s.group: s.log[s.partition]}, audit=s.chance(0.5))
    before = s.log[s.partition]
    if before:
        s.complete(s.group, before, s.take(s.group, before))
    s.noise()
    s.take(s.group, [], worker=1)
    return s.finish({s.group: []}, optional=True)


@bad(
    "order/starts-at-cursor",
    "push/stored-is-delivered",
    "lease/redelivered-after-expiry",
    "group/independent-cursor",
)
def cursor_skips_a_message(s: Scene) -> HistoryBuilder:
    """The next batch starts above messages that were never completed."""
    s.noise()
    names = s.fill(3, 8)
    done = s.between(1, len(names) - 2)
    skip = s.between(1, len(names) - done - 1)
    given = s.between(done, done + skip)
    lease_s = s.seconds()
    lease = s.take(s.group, names[:given], lease_s=lease_s)
    s.complete(s.group, names[:done], lease)
    if given > done:
        s.expire(lease_s)
    s.noise(quick=True)
    end = s.between(done + skip + 1, len(names))
    s.complete(s.group, names[done + skip : end], s.take(s.group, names[done + skip : end], worker=1))
    return s.finish({s.group: names[end:]}, optional=True)


@bad("push/no-phantom")
def phantom_message(s: Scene) -> HistoryBuilder:
    """A message comes that nobody pushed."""
    s.noise()
    s.fill(0, 3)
    (ghost,) = s.mint()
    s.appear(ghost, s.payload(ghost))
    s.store(s.partition, [ghost])
    s.fill(0, 3)
    s.noise()
    names = s.log[s.partition]
    if s.chance(0.5):
        s.complete(s.group, names, s.take(s.group, names))
        return s.finish({s.group: []}, optional=True)
    return s.finish({s.group: names}, audit=s.chance(0.5))


@bad("lease/redelivered-after-expiry", "order/starts-at-cursor", "push/stored-is-delivered")
def never_redelivered_after_a_crash(s: Scene) -> HistoryBuilder:
    """A consumer died with a batch, its lease ran out, and the batch does not come again."""
    s.noise()
    names = s.fill(1, 6)
    given = s.between(1, len(names))
    lease_s = s.seconds()
    s.take(s.group, names[:given], lease_s=lease_s)
    s.h.fault("crash-consumer")
    s.noise(quick=True)
    if s.chance(0.4):
        return s.finish({s.group: names[given:]}, audit=s.chance(0.5))
    s.expire(lease_s)
    rest = names[given:]
    lease = s.take(s.group, rest, worker=1)
    if rest:
        s.complete(s.group, rest, lease)
    return s.finish({s.group: []}, optional=True)


def _shuffled(s: Scene, names: list[str]) -> list[str]:
    while (turned := s.random.sample(names, len(names))) == names:
        pass
    return turned


@bad("order/one-order-for-all", "order/push-order", "order/no-gap-in-batch", "group/start-position")
def reordered_delivery(s: Scene) -> HistoryBuilder:
    """A redelivery, or another group, sees the messages in another order."""
    s.noise()
    if s.chance(0.5):
        names = s.fill(2, 6)
    else:
        names = s.mint(s.between(2, 5))
        pushes = [s.h.begin_push(s.partition, name, payloads=[s.payload(name)]) for name in names]
        for opened, name in s.random.sample(list(zip(pushes, names, strict=True)), len(names)):
            s.tick(5)
            opened.ok(s.h.push_result([name]), 201)
        s.store(s.partition, names)
    lease_s = s.seconds()
    s.take(s.group, names, lease_s=lease_s)
    s.noise(quick=True)
    if s.chance(0.5):
        s.expire(lease_s)
        s.take(s.group, _shuffled(s, names), worker=1)
    else:
        other = "reader"
        s.take(other, _shuffled(s, names), worker=1)
    return s.finish({s.group: names}, optional=True)


@bad("order/push-order")
def stored_out_of_push_order(s: Scene) -> HistoryBuilder:
    """A push was answered before another was sent, and is stored behind it."""
    s.noise()
    s.fill(0, 3)
    first = s.push(s.partition, s.between(1, 2), store=False)
    s.tick()
    second = s.push(s.partition, s.between(1, 2), store=False)
    s.store(s.partition, second + first)
    s.fill(0, 2)
    names = s.log[s.partition]
    if s.chance(0.5):
        s.complete(s.group, names, s.take(s.group, names))
        return s.finish({s.group: []}, optional=True)
    return s.finish({s.group: names}, audit=s.chance(0.5))


@bad("push/stored-once", "order/one-order-for-all")
def push_stored_twice(s: Scene) -> HistoryBuilder:
    """One answered push is there twice, under its own id or under another."""
    s.noise()
    names = s.fill(1, 4)
    original = s.random.choice(names)
    if s.chance(0.5):
        (copy,) = s.mint()
        known = s.h.stored[original]
        s.appear(copy, known.payload, known.transaction_id if known.transaction_id != original else None)
        s.store(s.partition, [copy])
    else:
        s.with_offsets = False
        s.store(s.partition, [original])
    s.noise()
    seen = s.log[s.partition]
    if s.chance(0.5):
        s.complete(s.group, seen, s.take(s.group, seen))
        return s.finish({s.group: []})
    return s.finish({s.group: seen})


@bad("order/offsets-dense", "push/payload-unchanged")
def one_offset_with_two_values(s: Scene) -> HistoryBuilder:
    """At one offset of a partition there are two messages, or one message with two values."""
    s.with_offsets = True
    s.noise()
    names = s.fill(2, 6)
    lease_s = s.seconds()
    s.complete(s.group, names, s.take(s.group, names, lease_s=lease_s))
    s.noise()
    wrong = s.between(0, len(names) - 1)
    what = s.between(0, 2)
    if what == 0:
        payloads = [s.h.stored[name].payload for name in names]
        payloads[wrong] = another_value(s.random, payloads[wrong])
        opened = s.h.begin_pop("reader", s.partition, batch=len(names))
        opened.messages(names, lease="reader's lease", payloads=payloads)
    else:
        other = (wrong + s.between(1, len(names) - 1)) % len(names)
        right, s.h.offsets[names[wrong]] = s.h.offsets[names[wrong]], s.h.offsets[names[other]]
        s.take("reader", names)
        s.h.offsets[names[wrong]] = right
    return s.finish({s.group: []}, optional=True)


@bad("push/refused-is-not-delivered")
def refused_push_is_delivered(s: Scene) -> HistoryBuilder:
    """The broker said that it did not store a message, and delivers it."""
    s.noise()
    s.fill(0, 2)
    if s.chance(0.5):
        names = s.mint(s.between(1, 2))
        opened = s.h.begin_push(
            s.partition,
            *names,
            transaction_ids=s.transaction_ids(names),
            payloads=[s.payload(name) for name in names],
        )
        s.tick()
        opened.refused(s.random.choice([400, 413, None]), "not stored")
        s.store(s.partition, names)
    else:
        good, denied = s.mint(2)
        payloads = [s.payload(good), s.payload(denied)]
        statuses = ["queued", s.random.choice(["failed", "error"])]
        s.h.push(s.partition, good, denied, payloads=payloads, statuses=statuses)
        if s.with_offsets:
            s.h.offsets[good] = len(s.log[s.partition]) - 1
        (name,) = s.mint()
        s.appear(name, payloads[1])
        s.store(s.partition, [name])
    s.fill(0, 2)
    s.noise()
    seen = s.log[s.partition]
    if s.chance(0.5):
        s.complete(s.group, seen, s.take(s.group, seen))
        return s.finish({s.group: []}, optional=True)
    return s.finish({s.group: seen}, audit=s.chance(0.5))


@bad("delivery/not-after-ack", "ack/completes-prefix", "delivery/auto-ack-once")
def redelivered_after_ack(s: Scene) -> HistoryBuilder:
    """What was completed, and answered so, comes again."""
    s.noise()
    names = s.fill(1, 6)
    done = s.between(1, len(names))
    if s.chance(0.25):
        s.h.pop(s.group, s.partition, names[:done], batch=done, auto_ack=True)
    else:
        s.complete(s.group, names[:done], s.take(s.group, names[:done]))
    s.noise()
    if s.chance(0.3):
        s.h.kill()
    again = s.between(0, done - 1)
    s.complete(s.group, names[again:], s.take(s.group, names[again:], worker=1))
    return s.finish({s.group: []}, optional=True)


@bad("lease/exclusive", "lease/not-before-expiry")
def leased_to_two_consumers(s: Scene) -> HistoryBuilder:
    """Two consumers of a group hold the same partition at once."""
    s.noise()
    names = s.fill(1, 6)
    first = names[: s.between(1, len(names))]
    second = names[: s.between(1, len(names))] if s.chance(0.7) or first == names else names[len(first) :]
    if s.chance(0.4):
        pops = [
            s.h.begin_pop(s.group, s.partition, worker=worker, lease_s=s.seconds(), batch=s.batch(batch))
            for worker, batch in enumerate((first, second))
        ]
        for number, (opened, batch) in enumerate(zip(pops, (first, second), strict=True)):
            s.tick(5)
            opened.messages(batch, lease=f"lease of {number}")
    else:
        lease_s = s.between(5, 20)
        lease = s.take(s.group, first, lease_s=lease_s)
        s.noise(quick=True)
        if len(first) > 1 and s.chance(0.4):
            s.h.ack(s.group, first[:1], lease=lease)
            second = names[1:]
        s.h.advance(s.between(0, lease_s * 1000 - 1000))
        s.take(s.group, second, worker=1)
    return s.finish({s.group: names}, optional=True)


@bad("group/independent-cursor")
def another_group_starved_by_acks(s: Scene) -> HistoryBuilder:
    """What one group acked never comes to another."""
    other = "starved"
    s.noise()
    names = s.fill(1, 6)
    done = s.between(1, len(names))
    own = s.between(0, done - 1)
    if own:
        s.complete(other, names[:own], s.take(other, names[:own], worker=1))
    s.complete(s.group, names[:done], s.take(s.group, names[:done]))
    s.noise()
    rest = names[done:]
    if not rest:
        s.take(other, [], worker=1)
    elif s.chance(0.5):
        s.complete(other, rest, s.take(other, rest, worker=1))
        rest = []
    return s.finish({s.group: names[done:], other: rest}, audit=s.chance(0.5))


# Legal ------------------------------------------------------------------------------------------------------------


@legal
def clean_run(s: Scene) -> HistoryBuilder:
    """Pushes are stored, read and completed."""
    for _ in range(s.between(1, 3)):
        s.noise()
        names = s.fill(1, 4)
        s.noise()
        s.complete(s.group, names, s.take(s.group, names))
    s.noise()
    return s.finish({s.group: [], "late": s.log[s.partition]}, optional=True)


@legal
def redelivery_after_expiry(s: Scene) -> HistoryBuilder:
    """A lease ran out, or its batch was handed back, and the batch comes again."""
    s.noise()
    names = s.fill(1, 6)
    given = names[: s.between(1, len(names))]
    for worker in range(s.between(1, 3)):
        lease_s = s.seconds()
        lease = s.take(s.group, given, lease_s=lease_s, worker=worker)
        s.noise(quick=True)
        if s.chance(0.3):
            s.h.ack(s.group, given[:1], lease=lease, statuses="retry")
        else:
            s.expire(lease_s)
    s.complete(s.group, given, s.take(s.group, given, worker=3))
    return s.finish({s.group: names[len(given) :]}, optional=True)


def _unanswered_push(s: Scene) -> list[str]:
    names = s.mint(s.between(1, 2))
    opened = s.h.begin_push(
        s.partition, *names, transaction_ids=s.transaction_ids(names), payloads=[s.payload(name) for name in names]
    )
    s.tick()
    opened.lost(s.random.choice(["time-out", "broken connection", "500"]))
    return names


@legal
def unanswered_push_that_is_delivered(s: Scene) -> HistoryBuilder:
    """A push without an answer was stored, at once or behind later pushes, perhaps in part."""
    s.noise()
    s.fill(0, 2)
    names = _unanswered_push(s)
    stored = s.random.choice([names, names[:1], names[-1:]])
    if s.chance(0.5):
        s.fill(1, 2)
        s.store(s.partition, stored)
    else:
        s.store(s.partition, stored)
        s.fill(0, 2)
    s.noise()
    seen = s.log[s.partition]
    s.complete(s.group, seen, s.take(s.group, seen))
    return s.finish({s.group: []}, optional=True)


@legal
def unanswered_push_that_is_not_delivered(s: Scene) -> HistoryBuilder:
    """A push without an answer was not stored."""
    s.noise()
    s.fill(0, 2)
    _unanswered_push(s)
    s.fill(0, 2)
    s.noise()
    seen = s.log[s.partition]
    if seen:
        s.complete(s.group, seen, s.take(s.group, seen))
    s.take(s.group, [])
    return s.finish({s.group: []}, optional=True)


def _unanswered_ack(s: Scene) -> tuple[list[str], int]:
    """All names, and how many of them the unanswered ack completes."""
    s.noise()
    names = s.fill(1, 6)
    given = names[: s.between(1, len(names))]
    lease_s = s.seconds()
    lease = s.take(s.group, given, lease_s=lease_s)
    opened = s.h.begin_ack(s.group, given if s.chance(0.5) else given[-1:], lease=lease if s.chance(0.8) else None)
    s.tick()
    opened.lost()
    if s.chance(0.7):
        s.expire(lease_s)
    else:
        s.h.advance(20_000)
    s.noise(quick=True)
    return names, len(given)


@legal
def unanswered_ack_followed_by_a_redelivery(s: Scene) -> HistoryBuilder:
    """An ack without an answer did nothing."""
    names, given = _unanswered_ack(s)
    again = s.between(given, len(names))
    s.complete(s.group, names[:again], s.take(s.group, names[:again], worker=1))
    return s.finish({s.group: names[again:]}, optional=True)


@legal
def unanswered_ack_without_a_redelivery(s: Scene) -> HistoryBuilder:
    """An ack without an answer completed the batch."""
    names, given = _unanswered_ack(s)
    lease = s.take(s.group, names[given:], worker=1)
    if names[given:]:
        s.complete(s.group, names[given:], lease)
    return s.finish({s.group: []}, optional=True)
