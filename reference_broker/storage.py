"""SQLite underneath the broker: the schema, transactions, and nothing else.

Everything that is state lives here: messages, cursors, leases, retry counts, delivery attempts, where groups start.
The engine keeps nothing in memory but who is waiting, so a broker that is killed and started again on the same
storage goes on where it was.

Times are integer milliseconds of the wall clock. Names, ids and payloads are stored as they came.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

FILE_NAME = "broker.sqlite3"
CACHED_STATEMENTS = 256

Row = tuple[Any, ...]

_SCHEMA = """
CREATE TABLE queues (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    namespace TEXT NOT NULL DEFAULT '',
    task TEXT NOT NULL DEFAULT '',
    lease_time_s INTEGER NOT NULL,
    retry_limit INTEGER NOT NULL,
    dead_letter_queue INTEGER NOT NULL,
    dlq_after_max_retries INTEGER NOT NULL,
    dedup_window_s INTEGER NOT NULL,
    delayed_processing_s INTEGER NOT NULL,
    window_buffer_s INTEGER NOT NULL,
    other_options BLOB NOT NULL
);
-- AUTOINCREMENT: the id of a deleted partition never comes back, so an old partitionId cannot reach a new partition.
CREATE TABLE partitions (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    queue_id INTEGER NOT NULL,
    name TEXT NOT NULL,
    next_offset INTEGER NOT NULL DEFAULT 0,
    pushed_ms INTEGER NOT NULL DEFAULT 0,
    UNIQUE (queue_id, name)
);
CREATE TABLE messages (
    partition_id INTEGER NOT NULL,
    offset INTEGER NOT NULL,
    id TEXT NOT NULL,
    transaction_id TEXT NOT NULL,
    pushed_ms INTEGER NOT NULL,
    payload BLOB NOT NULL,
    PRIMARY KEY (partition_id, offset)
) WITHOUT ROWID;
CREATE INDEX messages_by_transaction_id ON messages (partition_id, transaction_id);
-- Keyed by the name of the queue: a group may pop a queue that does not exist yet.
CREATE TABLE groups (
    queue TEXT NOT NULL,
    name TEXT NOT NULL,
    from_ms INTEGER,
    PRIMARY KEY (queue, name)
) WITHOUT ROWID;
-- One row holds all that a group knows about a partition.
-- lease_id NULL: no leased batch. A lease that ran out stays until the partition is taken again: it still bounds acks.
CREATE TABLE cursors (
    partition_id INTEGER NOT NULL,
    group_name TEXT NOT NULL,
    committed INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    lease_id TEXT,
    lease_until_ms INTEGER NOT NULL,
    batch_first INTEGER NOT NULL,
    batch_last INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    served INTEGER NOT NULL,
    settled_lease TEXT,
    settled_answer BLOB,
    PRIMARY KEY (partition_id, group_name)
) WITHOUT ROWID;
CREATE INDEX cursors_by_lease ON cursors (lease_id) WHERE lease_id IS NOT NULL;
CREATE TABLE dead_letters (
    id TEXT PRIMARY KEY,
    partition_id INTEGER NOT NULL,
    group_name TEXT NOT NULL,
    offset INTEGER NOT NULL,
    error TEXT,
    retry_count INTEGER NOT NULL,
    filed_ms INTEGER NOT NULL
);
CREATE INDEX dead_letters_by_partition ON dead_letters (partition_id);
PRAGMA user_version = 1;
"""


class StorageError(Exception):
    """The storage cannot be opened: one sentence that names the place and the reason."""


class StorageRefused(Exception):
    """The storage refused a write; the transaction was rolled back and nothing of it is there."""


class Storage:
    """One SQLite connection. It outlives the app that uses it, so that a broker can be killed in simulation.

    Used as a context manager it is one transaction: committed at the end, undone by an exception.

    A kill in simulation is: cancel the tasks of the app, `rollback()`, make another app on the same storage.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.execute: Callable[..., sqlite3.Cursor] = connection.execute
        self._refusals = 0
        self._changes = 0

    @classmethod
    def in_memory(cls) -> Storage:
        """An empty storage that lives as long as this object."""
        connection = _connect(":memory:")
        connection.deserialize(_empty_image())
        return cls(connection)

    @classmethod
    def open(cls, directory: str | Path) -> Storage:
        """Opens or creates the storage in a directory. What is committed survives the death of the process.

        Raises `StorageError` where the directory cannot be used.
        """
        place = Path(directory)
        connection: sqlite3.Connection | None = None
        try:
            place.mkdir(parents=True, exist_ok=True)
            connection = _connect(str(place / FILE_NAME))
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            return cls._prepared(connection)
        except (OSError, sqlite3.Error, StorageError) as error:
            if connection is not None:
                connection.close()
            reason = error.strerror if isinstance(error, OSError) else error
            raise StorageError(f"cannot use {str(place)!r} as the data directory: {reason}") from error

    @classmethod
    def _prepared(cls, connection: sqlite3.Connection) -> Storage:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            connection.executescript("BEGIN IMMEDIATE;" + _SCHEMA + "COMMIT;")
        elif version != 1:
            raise StorageError(f"its schema has version {version}, this broker reads version 1")
        return cls(connection)

    def begin(self) -> None:
        """Opens a transaction. Transactions never stay open across an `await`."""
        self.execute("BEGIN")
        if self._refusals:
            self._changes = self.connection.total_changes

    def commit(self) -> None:
        """Makes the transaction durable. Raises `StorageRefused` after rolling back."""
        if self._refusals and self.connection.total_changes != self._changes:
            self._refusals -= 1
            self.rollback()
            raise StorageRefused("storage refused the write")
        try:
            self.execute("COMMIT")
        except sqlite3.Error as error:
            self.rollback()
            raise StorageRefused(f"storage refused the write: {error}") from error

    def __enter__(self) -> Storage:
        self.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if kind is None:
            self.commit()
            return
        self.rollback()
        if isinstance(error, sqlite3.OperationalError):  # a full disk, a failed write
            raise StorageRefused(f"storage refused the write: {error}") from error

    def rollback(self) -> None:
        """Undoes the open transaction, if there is one."""
        if self.connection.in_transaction:
            self.execute("ROLLBACK")

    def refuse_writes(self, count: int) -> None:
        """A fault: the next `count` transactions that change something are refused when they commit."""
        self._refusals = count

    def go_away(self) -> None:
        """A fault: every operation is refused until `come_back`."""
        self.execute = _away

    def come_back(self) -> None:
        """Ends `go_away`: everything committed is there."""
        self.execute = self.connection.execute

    def close(self) -> None:
        """Closes the connection; an open transaction is undone. Closing twice is harmless."""
        self.connection.close()

    @property
    def is_open(self) -> bool:
        """False after `close`."""
        try:
            return self.connection.total_changes >= 0
        except sqlite3.ProgrammingError:
            return False


def _away(*_: object) -> sqlite3.Cursor:
    raise StorageRefused("storage is away")


@cache
def _empty_image() -> bytes:
    """An empty database as bytes: loading it is four times faster than creating the tables."""
    storage = Storage._prepared(_connect(":memory:"))
    image = storage.connection.serialize()
    storage.close()
    return image


def _connect(name: str) -> sqlite3.Connection:
    return sqlite3.connect(name, isolation_level=None, cached_statements=CACHED_STATEMENTS, check_same_thread=False)
