"""Faults of push: what is stored, and what the answer says about it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import msgspec

from reference_broker import Engine
from reference_broker.model import Lane, Message, PoppedMessage, PushedItem, PushItem, Tail
from reference_broker.storage import StorageRefused


class LostBehindTheCursor(Engine):
    """A push takes its offset first and is stored a moment later; a reader passes it (seen in Queen up to 0.15)."""

    async def store(self, items: Sequence[PushItem]) -> list[PushedItem]:
        """The tails are written in one transaction, the messages in the next."""
        now_ms = self.now_ms()
        writes: list[tuple[Tail, int, str, PushItem, int]] = []
        real = super().store_message
        self.store_message = lambda *message: writes.append(message)  # type: ignore[assignment,method-assign]
        try:
            with self.storage:
                answers = self.append(items, now_ms)
        finally:
            del self.store_message  # type: ignore[method-assign]
        if self.hook is None:  # about a millisecond, as it was in the real one
            await asyncio.sleep(self.random.random() * 0.002)
        else:
            await self.checkpoint("offset taken, message not stored")
        with self.storage:
            for write in writes:
                real(*write)
        return answers


class AnsweredBeforeDurable(Engine):
    """A push is answered while its record lives in memory only and dies with the process (seen in NATS 2.12)."""

    def recover_on_start(self) -> None:
        """The newest message of each partition was not on disk yet."""
        super().recover_on_start()
        with self.storage:
            newest = "SELECT max(offset) FROM messages m WHERE m.partition_id = messages.partition_id"
            self.storage.execute(f"DELETE FROM messages WHERE offset = ({newest})", ())
            self.storage.execute(
                "UPDATE partitions SET next_offset = coalesce("
                "(SELECT max(offset) + 1 FROM messages WHERE partition_id = partitions.id), 0)",
                (),
            )


class TornWriteDelivered(Engine):
    """After a crash the torn end of the log is read as a message (seen in logs without checksums)."""

    def recover_on_start(self) -> None:
        """Appends a message that nobody pushed to each partition."""
        super().recover_on_start()
        with self.storage:
            for partition_id, offset in self.storage.execute("SELECT id, next_offset FROM partitions", ()).fetchall():
                made_up = self.new_message_id(self.now_ms())
                self.storage.execute(
                    "INSERT INTO messages (partition_id, offset, id, transaction_id, payload, pushed_ms)"
                    " VALUES (?, ?, ?, ?, ?, ?)",
                    (partition_id, offset, made_up, made_up, b'"torn"', self.now_ms()),
                )
                self.storage.execute("UPDATE partitions SET next_offset = ? WHERE id = ?", (offset + 1, partition_id))


class PushSaysQueued(Engine):
    """The storage refuses, and the answer says queued all the same (seen in a port of Queen)."""

    def refused_push(self, items: Sequence[PushItem], refusal: StorageRefused) -> list[PushedItem]:
        """Invents ids."""
        return [
            PushedItem(index, self.new_message_id(self.now_ms()), item.transaction_id or "", item.queue, "queued", 0)
            for index, item in enumerate(items)
        ]


class PushStoredTwice(Engine):
    """A push without a transactionId is retried inside the broker and stored twice."""

    def append_item(self, tail: Tail, index: int, item: PushItem, now_ms: int) -> PushedItem:
        """Stores the first item of a request once more."""
        answer = super().append_item(tail, index, item, now_ms)
        if index == 0 and answer.status == "queued":
            self.store_message(tail, self.take_offset(tail), self.new_message_id(now_ms), item, now_ms)
        return answer


class PayloadIndexShift(Engine):
    """Inside one answer ids and payloads are off by one after the first message (seen in a Redis broker)."""

    def read_run(self, lane: Lane, first: int, limit: int) -> list[Message]:
        """Turns the payloads of a run round."""
        run = super().read_run(lane, first, limit)
        payloads = [message.payload for message in run]
        return [
            msgspec.structs.replace(message, payload=payload)
            for message, payload in zip(run, payloads[1:] + payloads[:1], strict=True)
        ]


class BigNumbersRounded(Engine):
    """Numbers pass through a double and lose digits (seen wherever JSON is parsed on the way)."""

    def store_message(self, tail: Tail, offset: int, message_id: str, item: PushItem, now_ms: int) -> None:
        """Parses integers to doubles and writes them back."""
        try:
            value = json.loads(bytes(item.payload), parse_int=_through_a_double)
            payload = msgspec.Raw(json.dumps(value).encode())
        except (ValueError, OverflowError, RecursionError):
            payload = item.payload
        super().store_message(tail, offset, message_id, msgspec.structs.replace(item, payload=payload), now_ms)


class RefusedPushStored(Engine):
    """The storage fails after the write, the answer says failed, and the message is there."""

    def refused_push(self, items: Sequence[PushItem], refusal: StorageRefused) -> list[PushedItem]:
        """Stores what it refuses, and blames the request."""
        with self.storage:
            self.append(items, self.now_ms())
        return [
            PushedItem(index, None, item.transaction_id, item.queue, "failed", error="refused")
            for index, item in enumerate(items)
        ]


class IdsLowered(Engine):
    """transactionIds lose their case."""

    def message_answers(self, lane: Lane, run: list[Message], lease_id: str) -> list[PoppedMessage]:
        """Answers them upside down."""
        answers = super().message_answers(lane, run, lease_id)
        for answer in answers:
            answer.transaction_id = answer.transaction_id.swapcase()
        return answers


class OffsetsSkip(Engine):
    """Every third offset is left out."""

    def take_offset(self, tail: Tail) -> int:
        """Takes one more where it can be divided by three."""
        offset = super().take_offset(tail)
        return super().take_offset(tail) if offset % 3 == 2 else offset


class PushResultMissing(Engine):
    """The answer of a push leaves the last of several items out."""

    def append(self, items: Sequence[PushItem], now_ms: int) -> list[PushedItem]:
        """Cuts the answer."""
        answers = super().append(items, now_ms)
        return answers[:-1] if len(answers) > 1 else answers


def _through_a_double(text: str) -> int:
    return int(float(text))
