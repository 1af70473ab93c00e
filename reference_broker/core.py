"""What every part of the engine stands on: storage, time, ids, checkpoints, queues, and waking."""

from __future__ import annotations

import random as random_module
import re
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import lru_cache

from reference_broker.model import BEFORE_THE_FIRST, Clock, Lane, Malformed, Pop, Queue, QueueOptions
from reference_broker.storage import Row, Storage
from reference_broker.waiting import Parking, Waiter

LONGEST_NAME_CHARACTERS = 255
LONGEST_ID_BYTES = 65_535

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")

LANE_COLUMNS = (
    "p.id, p.name, p.next_offset, p.pushed_ms, c.committed, c.failures, c.lease_id, c.lease_until_ms, c.batch_first,"
    " c.batch_last, c.attempt, c.served, c.settled_lease, c.settled_answer"
)
QUEUE_COLUMNS = (
    "q.lease_time_s, q.retry_limit, q.dead_letter_queue, q.dlq_after_max_retries, q.dedup_window_s,"
    " q.delayed_processing_s, q.window_buffer_s"
)
_CREATE_QUEUE = (
    "INSERT INTO queues (name, namespace, task, lease_time_s, retry_limit, dead_letter_queue, dlq_after_max_retries,"
    " dedup_window_s, delayed_processing_s, window_buffer_s, other_options)"
    " VALUES (?, '', '', ?, ?, ?, ?, ?, ?, ?, '{}')"
)
_SAVE_LANE = (
    "INSERT INTO cursors (committed, failures, lease_id, lease_until_ms, batch_first, batch_last, attempt, served,"
    " settled_lease, settled_answer, partition_id, group_name) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (partition_id, group_name) DO UPDATE SET committed = excluded.committed,"
    " failures = excluded.failures, lease_id = excluded.lease_id, lease_until_ms = excluded.lease_until_ms,"
    " batch_first = excluded.batch_first, batch_last = excluded.batch_last, attempt = excluded.attempt,"
    " served = excluded.served, settled_lease = excluded.settled_lease, settled_answer = excluded.settled_answer"
)
_START_AT_THE_TIP = (
    "INSERT INTO cursors (partition_id, group_name, committed, failures, lease_until_ms, batch_first, batch_last,"
    " attempt, served) SELECT id, ?, next_offset - 1, 0, 0, -1, -1, 0, 0 FROM partitions WHERE queue_id = ?"
    " ON CONFLICT (partition_id, group_name) DO UPDATE SET committed = max(committed, excluded.committed)"
)
_FIRST_SINCE = "SELECT offset FROM messages WHERE partition_id = ? AND pushed_ms >= ? ORDER BY offset LIMIT 1"

Checkpoint = Callable[[str], Awaitable[None]]


class WallClock:
    """The clock of the machine."""

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        return time.time_ns() // 1_000_000


class Core:
    """State of one running broker and what its parts share.

    `storage` holds everything that must survive; this object only knows who waits. `random` and `clock` are the only
    sources of ids, so a seeded run replays bit for bit. An engine that is made anew on the same storage in such a run
    should go on with the same `random`, or its ids may repeat.

    `hook` is awaited at the storage boundary and nowhere inside a transaction; None costs nothing.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        clock: Clock | None = None,
        random: random_module.Random | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        self.storage = storage
        self.clock: Clock = clock or WallClock()
        self.random = random or random_module.Random()
        self.hook = checkpoint
        self.parking = Parking()
        self.stopping = False
        self.turn = 0
        self.recover_on_start()

    def recover_on_start(self) -> None:
        """Takes up what an earlier engine left on this storage. Committed state is complete, so little is to do."""
        self.storage.rollback()
        self.storage.refuse_writes(0)  # the fault belongs to the process that is gone
        (self.turn,) = self.storage.execute("SELECT coalesce(max(served), 0) FROM cursors").fetchone()

    async def checkpoint(self, name: str) -> None:
        """Lets others run here, if the harness says so."""
        if self.hook is not None:
            await self.hook(name)

    # Time and ids -------------------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """The one reading of the clock that a transaction works with."""
        return self.clock.now_ms()

    def new_message_id(self, now_ms: int) -> str:
        """A UUIDv7: 48 bits of milliseconds, then random bits."""
        bits = self.random.getrandbits(74)
        value = (now_ms & 0xFFFF_FFFF_FFFF) << 80 | 0x7 << 76 | (bits >> 62) << 64 | 0b10 << 62 | bits & (1 << 62) - 1
        return _as_uuid(value)

    def new_lease_id(self) -> str:
        """A UUIDv4."""
        bits = self.random.getrandbits(122)
        value = (bits >> 74) << 80 | 0x4 << 76 | (bits >> 62 & 0xFFF) << 64 | 0b10 << 62 | bits & (1 << 62) - 1
        return _as_uuid(value)

    # Names --------------------------------------------------------------------------------------------------------

    def check_name(self, what: str, name: str, *, may_be_empty: bool = False) -> None:
        """Refuses a name that cannot be stored. Raises `Malformed`."""
        if not name and not may_be_empty:
            raise Malformed(f"{what} is empty; a name has 1 to {LONGEST_NAME_CHARACTERS} characters")
        if len(name) > LONGEST_NAME_CHARACTERS:
            raise Malformed(f"{what} has {len(name)} characters; a name has 1 to {LONGEST_NAME_CHARACTERS}")
        self.check_characters(what, name)

    def check_id(self, what: str, value: str) -> None:
        """Refuses an id that cannot be stored. Raises `Malformed`."""
        if len(value) > LONGEST_ID_BYTES // 4 and len(value.encode()) > LONGEST_ID_BYTES:
            raise Malformed(f"{what} has {len(value.encode())} bytes; at most {LONGEST_ID_BYTES}")
        self.check_characters(what, value)

    def check_characters(self, what: str, value: str) -> None:
        """Refuses control characters, and nothing else. Raises `Malformed`."""
        if not value.isprintable() and _CONTROL.search(value):
            raise Malformed(f"{what} holds a control character: {value[:80]!r}")

    # Queues, groups, lanes ----------------------------------------------------------------------------------------

    def create_queue(self, name: str, options: QueueOptions) -> int:
        """Stores a new queue and answers its id."""
        return self.storage.execute(_CREATE_QUEUE, (name, *_as_row(options))).lastrowid or 0

    def find_options(self, row: Row) -> QueueOptions:
        """The options of a queue from its stored columns."""
        lease, limit, letters, after, dedup, delay, window = row
        return QueueOptions(lease, limit, bool(letters), bool(after), dedup, delay, window)

    def register_group(self, pop: Pop, queue: Queue | None) -> None:
        """Decides, once and for the whole queue, where a group starts that was never here.

        The queue may not exist yet. Partitions that come to exist later have no cursor and are read from their first
        message. `new` writes down the tip of each partition now; a time is kept and looked up when it is needed.
        """
        self.storage.execute(
            "INSERT INTO groups (queue, name, from_ms) VALUES (?, ?, ?)", (pop.queue, pop.group, pop.start_from_ms)
        )
        if pop.start_new and queue is not None:
            self.storage.execute(_START_AT_THE_TIP, (pop.group, queue.id))

    def start_cursor(self, partition_id: int, next_offset: int, from_ms: int | None) -> int:
        """The cursor of a group that has none in this partition."""
        if from_ms is None:
            return BEFORE_THE_FIRST
        first = self.storage.execute(_FIRST_SINCE, (partition_id, from_ms)).fetchone()
        return next_offset - 1 if first is None else int(first[0]) - 1

    def lane_of(self, row: Row, group: str, from_ms: int | None) -> Lane:
        """What a group knows about a partition, from `LANE_COLUMNS`."""
        if row[4] is None:
            return Lane(group, row[0], row[1], row[2], row[3], self.start_cursor(row[0], row[2], from_ms))
        return Lane(group, *row)

    def save_lane(self, lane: Lane) -> None:
        """Writes a lane back."""
        self.storage.execute(
            _SAVE_LANE,
            (
                lane.committed,
                lane.failures,
                lane.lease_id,
                lane.lease_until_ms,
                lane.batch_first,
                lane.batch_last,
                lane.attempt,
                lane.served,
                lane.settled_lease,
                lane.settled_answer,
                lane.partition_id,
                lane.group,
            ),
        )

    def lease_is_live(self, lane: Lane, now_ms: int) -> bool:
        """True while nobody else of the group may have the partition. A lease ends exactly at its time."""
        return lane.lease_id is not None and now_ms < lane.lease_until_ms

    # Waking -------------------------------------------------------------------------------------------------------

    def wake(self, queue: str, partition: str | None = None) -> None:
        """Lets parked pops try again: those of a queue, or those that a partition of it concerns."""
        for waiter in self.parking.of(queue):
            if partition is None or waiter.pop.partition is None or waiter.pop.partition == partition:
                waiter.wake()

    def client_left(self, waiter: Waiter) -> None:
        """The client of a parked pop went away."""
        waiter.leave()

    def stop(self) -> None:
        """Ends the waiting: parked pops are answered as empty, new ones do not park."""
        self.stopping = True
        for waiter in self.parking.all():
            waiter.wake()


def iso_time(at_ms: int) -> str:
    """A time as the wire has it."""
    return f"{_iso_second(at_ms // 1000)}.{at_ms % 1000:03d}Z"


@lru_cache(maxsize=64)
def _iso_second(at_s: int) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _as_row(options: QueueOptions) -> Row:
    return (
        options.lease_time,
        options.retry_limit,
        options.dead_letter_queue,
        options.dlq_after_max_retries,
        options.dedup_window_seconds,
        options.delayed_processing,
        options.window_buffer,
    )


def _as_uuid(value: int) -> str:
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
