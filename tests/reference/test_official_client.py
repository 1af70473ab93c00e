"""The official client and ours run the same code against the reference broker, with the same result."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from client import fluent

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def broker_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The reference broker as a process of its own, on a free port."""
    command = [
        sys.executable,
        "-m",
        "reference_broker",
        "--data",
        str(tmp_path_factory.mktemp("broker")),
        "--port",
        "0",
    ]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("listening on "), line
        yield line.removeprefix("listening on ").strip()
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()


@pytest.fixture(params=["ours", "official"])
async def queen(request: pytest.FixtureRequest, broker_url: str) -> AsyncIterator[Any]:
    """Either client; the official one takes over signal handlers, which are put back."""
    if request.param == "ours":
        kind: Any = fluent.Queen
    else:
        kind = pytest.importorskip("queen", reason="the official client queen-mq is not installed").Queen
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    client = kind(url=broker_url)
    try:
        yield client
    finally:
        await client.close()
        for number, handler in handlers.items():
            signal.signal(number, handler)


@pytest.fixture
async def queue(queen: Any, request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """A queue of the test's own."""
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    yield name
    await queen.queue(name).delete()


async def test_push_answers_an_element_an_item(queen: Any, queue: str) -> None:
    results = await queen.queue(queue).partition("p").push([{"data": 1}, {"data": 2, "transactionId": "mine"}])
    assert [result["status"] for result in results] == ["queued", "queued"]
    assert results[1]["transaction_id"] == "mine"


async def test_repeated_id_is_a_duplicate(queen: Any, queue: str) -> None:
    await queen.queue(queue).push([{"data": 1, "transactionId": "t"}])
    results = await queen.queue(queue).push([{"data": 2, "transactionId": "t"}])
    assert results[0]["status"] == "duplicate"


@pytest.mark.parametrize("value", [None, True, 1.5, "ключ", [1, [2]], {"a": {"b": []}}], ids=repr)
async def test_value_comes_back(queen: Any, queue: str, value: object) -> None:
    await queen.queue(queue).push([{"data": value}])
    (message,) = await queen.queue(queue).batch(1).pop()
    assert message["data"] == value


async def test_popped_message_says_where_it_is_from(queen: Any, queue: str) -> None:
    await queen.queue(queue).partition("p").push([{"data": 1, "transactionId": "t"}])
    (message,) = await queen.queue(queue).partition("p").group(f"g-{queue}").subscription_mode("all").batch(5).pop()
    assert (message["partition"], message["transactionId"]) == ("p", "t")
    assert message["partitionId"]
    assert message["leaseId"]


async def test_acknowledged_message_does_not_come_again(queen: Any, queue: str) -> None:
    await queen.queue(queue).push([{"data": 1}, {"data": 2}])
    (message,) = await queen.queue(queue).batch(1).pop()
    assert (await queen.ack(message, True))["success"]
    (following,) = await queen.queue(queue).batch(5).pop()
    assert following["data"] == 2


async def test_failed_message_comes_again(queen: Any, queue: str) -> None:
    await queen.queue(queue).push([{"data": 1}])
    group = f"g-{queue}"
    messages = await queen.queue(queue).group(group).subscription_mode("all").batch(5).pop()
    assert (await queen.ack(messages, False, {"group": group, "error": "boom"}))["success"]
    (again,) = await queen.queue(queue).group(group).batch(5).pop()
    assert again["id"] == messages[0]["id"]


async def test_ack_under_a_wrong_lease_is_reported(queen: Any, queue: str) -> None:
    await queen.queue(queue).push([{"data": 1}])
    (message,) = await queen.queue(queue).batch(1).pop()
    wrong = {**message, "leaseId": "019a0000-0000-7000-8000-000000000000"}
    report = await queen.ack(wrong, True)
    assert report["success"] is False
    assert "lease" in report["error"]


async def test_commit_on_delivery_leaves_nothing_to_acknowledge(queen: Any, queue: str) -> None:
    await queen.queue(queue).push([{"data": 1}])
    (message,) = await queen.queue(queue).commit_on_delivery().batch(5).pop()
    assert not message["leaseId"]
    assert await queen.queue(queue).wait(False).batch(5).pop() == []


async def test_consume_acknowledges_what_its_handler_returns_from(queen: Any, queue: str) -> None:
    await queen.queue(queue).partition("p").push([{"data": number} for number in range(5)])
    group, seen = f"g-{queue}", []

    async def handler(message: dict[str, Any]) -> None:
        seen.append(message["data"])

    await queen.queue(queue).group(group).subscription_mode("all").each().batch(2).limit(5).consume(handler)
    assert seen == [0, 1, 2, 3, 4]
    assert await queen.queue(queue).group(group).wait(False).batch(5).pop() == []


async def test_consume_gets_again_what_its_handler_failed_on(queen: Any, queue: str) -> None:
    await queen.queue(queue).partition("p").push([{"data": number} for number in range(3)])
    seen: list[int] = []

    async def handler(message: dict[str, Any]) -> None:
        seen.append(message["data"])
        if len(seen) == 2:
            raise RuntimeError("out of paper")

    builder = queen.queue(queue).group(f"g-{queue}").subscription_mode("all").each().batch(3).limit(4)
    await builder.consume(handler)
    assert seen == [0, 1, 1, 2]


async def test_consume_of_lists(queen: Any, queue: str) -> None:
    await queen.queue(queue).partition("p").push([{"data": number} for number in range(4)])
    seen: list[list[int]] = []

    async def handler(messages: list[dict[str, Any]]) -> None:
        seen.append([message["data"] for message in messages])

    await queen.queue(queue).group(f"g-{queue}").subscription_mode("all").batch(2).limit(4).consume(handler)
    assert seen == [[0, 1], [2, 3]]


async def test_consume_ends_when_idle(queen: Any, queue: str) -> None:
    seen: list[object] = []

    async def handler(message: object) -> None:
        seen.append(message)

    await queen.queue(queue).each().timeout_millis(50).idle_millis(120).consume(handler)
    assert seen == []


async def test_groups_read_the_same_messages(queen: Any, queue: str) -> None:
    await queen.queue(queue).push([{"data": 1}])
    for group in (f"g-{queue}", f"h-{queue}"):
        (message,) = await queen.queue(queue).group(group).subscription_mode("all").batch(5).pop()
        assert message["data"] == 1


async def test_created_queue_has_its_options(queen: Any, queue: str) -> None:
    await queen.queue(queue).config({"retry_limit": 0}).create()
    await queen.queue(queue).push([{"data": 1}])
    (message,) = await queen.queue(queue).batch(1).pop()
    report = await queen.ack(message, False)
    assert report["success"]
    assert report["dlq"] is True
