"""Finding out what answers before it is judged: is it a broker, of which version, what do its answers carry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from client import AckItem, BrokerClient, Call, Outcome, PushItem
from contract.calls import QUEUE_MODE
from contract.errors import CouldNotJudge

SMALLEST_LEASE_S = 1
HEALTH_LIMIT_S = 10.0
WAIT_MS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Whom we ask, in words: `place` as in "the broker at http://...", and what to do if nobody or another answers."""

    place: str
    silent: str
    foreign: str


async def version_of(client: BrokerClient, asked: Asked, *, timeout_s: float) -> str:
    """The version that /health reports. Raises `CouldNotJudge` where that is no ready broker."""
    health = await client.health(timeout_s=min(timeout_s, HEALTH_LIMIT_S))
    if health.value is None:
        raise CouldNotJudge(_not_healthy(health, asked))
    if not health.value.ready:
        raise CouldNotJudge(f"the broker {asked.place} says that it is not ready (503); wait until it is")
    if not health.value.version:
        raise CouldNotJudge(
            f"what answers {asked.place} has a /health without a version, so it is no broker that we know; "
            f"{asked.foreign}"
        )
    return health.value.version


async def abilities_of(client: BrokerClient, queue: str, asked: Asked) -> dict[str, bool]:
    """Whether real answers carry `offset` and `deliveryAttempt`, and whether there is a `seek`.

    Raises `CouldNotJudge` where pushes and pops come to nothing.
    """
    pushed = await client.push([PushItem(queue, "p0", b'{"probe":1}')])
    if pushed.value is None or pushed.value[0].status != "queued":
        word = pushed.why if pushed.value is None else f"status {pushed.value[0].status!r}"
        raise CouldNotJudge(_no_use("a first push", pushed, word, asked))
    for group in ("", f"{queue}-group"):  # where one of them starts is for the rules to judge
        mode = "all" if group else None
        popped = await client.pop(queue, group=group, batch=1, lease_s=SMALLEST_LEASE_S, wait_ms=WAIT_MS, mode=mode)
        if popped.value is None:
            raise CouldNotJudge(_no_use("a first pop", popped, popped.why, asked))
        if popped.value.messages:
            break
    else:
        word = f"no message within {WAIT_MS / 1000:g} s, with a group and without"
        raise CouldNotJudge(_no_use("a first pop", popped, word, asked))
    message = popped.value.messages[0]
    lease_id = message.lease_id or popped.value.lease_id or None
    await client.ack(AckItem(message.transaction_id, message.partition_id, "completed", lease_id), group=group)
    sought = await client.seek(queue, QUEUE_MODE, to_end=True)
    return {
        "offset": pushed.value[0].offset is not None or message.offset is not None,
        "deliveryAttempt": message.attempt is not None,
        "seek": sought.outcome is not Outcome.REFUSED,
    }


def _not_healthy(answer: Call[Any], asked: Asked) -> str:
    """Why the health answer is none, in one sentence with what to do next."""
    if answer.status is None:
        return f"no broker answers {asked.place} ({answer.why}); {asked.silent}"
    if answer.status in (401, 403):
        return f"the broker {asked.place} refuses us (status {answer.status}); give a valid token or header"
    return f"what answers {asked.place} is not a broker (/health: {answer.why or answer.status}); {asked.foreign}"


def _no_use(what: str, answer: Call[Any], word: str, asked: Asked) -> str:
    if answer.status in (401, 403):
        return f"the broker {asked.place} refuses {what} (status {answer.status}); give a valid token or header"
    return f"{what} {asked.place} came to nothing ({word}); see to the broker's storage and run again"
