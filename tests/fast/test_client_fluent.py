"""The fluent client against a broker of a few lines: one partition a queue, a cursor a group."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import defaultdict
from typing import Any
from urllib.parse import parse_qs, unquote

import httpx
import pytest

from client import BrokerClient, Outcome
from client.fluent import CallFailedError, Queen


class TinyBroker:
    """Answers push, pop, ack, configure and delete; keeps every request for the tests to look at."""

    def __init__(self) -> None:
        self.stored: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.cursor: dict[tuple[str, str], int] = defaultdict(int)
        self.requests: list[tuple[str, str, dict[str, Any]]] = []
        self.next_answers: list[httpx.Response | Exception] = []

    def queen(self) -> Queen:
        return Queen(broker=BrokerClient.connect("http://broker.test", transport=httpx.MockTransport(self.answer)))

    def sent(self, path: str) -> list[dict[str, Any]]:
        """What was sent to the paths that hold `path`: the bodies, or the query parameters of a pop."""
        return [what for _, where, what in self.requests if path in where]

    def answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.raw_path.decode().partition("?")[0]
        if request.content:
            what = json.loads(request.content)
        else:
            what = {name: values[0] for name, values in parse_qs(request.url.query.decode()).items()}
        self.requests.append((request.method, path, what))
        if self.next_answers:
            given = self.next_answers.pop(0)
            if isinstance(given, Exception):
                raise given
            return given
        if path.endswith("/push"):
            return self.push(what)
        if "/pop/queue/" in path:
            return self.pop(unquote(path.split("/")[5]), what)
        if "/ack" in path:
            return self.ack(what)
        return httpx.Response(200, json={})

    def push(self, body: dict[str, Any]) -> httpx.Response:
        results = []
        for index, item in enumerate(body["items"]):
            lane = self.stored[item["queue"]]
            message_id = f"{item['queue']}-{len(lane)}"
            lane.append(
                {
                    "id": message_id,
                    "transactionId": item.get("transactionId", message_id),
                    "data": item["payload"],
                    "partition": item["partition"],
                    "partitionId": item["queue"],
                    "leaseId": "L",
                }
            )
            results.append({"index": index, "message_id": message_id, "transaction_id": message_id, "status": "queued"})
        return httpx.Response(201, json=results)

    def pop(self, queue: str, parameters: dict[str, str]) -> httpx.Response:
        start = self.cursor[queue, parameters.get("consumerGroup", "")]
        messages = self.stored[queue][start : start + int(parameters.get("batch", "200"))]
        return httpx.Response(200, json={"leaseId": "L", "messages": messages}) if messages else httpx.Response(204)

    def ack(self, body: dict[str, Any]) -> httpx.Response:
        group = body.get("consumerGroup", "")
        items = body.get("acknowledgments", [body])
        for item in items:
            ids = [message["transactionId"] for message in self.stored[item["partitionId"]]]
            if item["status"] == "completed":
                self.cursor[item["partitionId"], group] = ids.index(item["transactionId"]) + 1
        return httpx.Response(200, json=[{"index": index, "success": True} for index in range(len(items))])


@pytest.fixture
def broker() -> TinyBroker:
    return TinyBroker()


async def test_push_and_pop(broker: TinyBroker) -> None:
    async with broker.queen() as queen:
        results = await queen.queue("q").partition("p").push([{"data": {"n": 1}}, {"data": [2]}])
        messages = await queen.queue("q").pop()
    assert [result["message_id"] for result in results] == ["q-0", "q-1"]
    assert [(message["data"], message["partition"]) for message in messages] == [({"n": 1}, "p"), ([2], "p")]


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({"data": 1}, {"payload": 1}),
        ({"payload": 1}, {"payload": 1}),
        ({"n": 1}, {"payload": {"n": 1}}),
        ({"data": None, "transactionId": "t"}, {"payload": None, "transactionId": "t"}),
        ("text", {"payload": "text"}),
        (7, {"payload": 7}),
    ],
)
async def test_what_a_pushed_value_means(broker: TinyBroker, given: object, sent: dict[str, Any]) -> None:
    async with broker.queen() as queen:
        await queen.queue("q").push(given)
    assert broker.sent("/push") == [{"items": [{"queue": "q", "partition": "Default", **sent}]}]


async def test_value_that_is_not_json_is_not_sent(broker: TinyBroker) -> None:
    async with broker.queen() as queen:
        with pytest.raises(ValueError, match="JSON"):
            await queen.queue("q").push([float("nan")])
    assert broker.requests == []


async def test_push_that_is_not_stored_raises(broker: TinyBroker) -> None:
    broker.next_answers = [httpx.Response(201, json=[{"index": 0, "status": "failed", "error": "too large"}])]
    async with broker.queen() as queen:
        with pytest.raises(CallFailedError, match="too large"):
            await queen.queue("q").push([1])


async def test_push_of_unknown_outcome_raises_with_the_outcome(broker: TinyBroker) -> None:
    broker.next_answers = [httpx.ReadError("reset")]
    async with broker.queen() as queen:
        with pytest.raises(CallFailedError, match=r"push to queue 'q': unknown, ReadError: reset") as caught:
            await queen.queue("q").push([1])
    assert caught.value.call.outcome is Outcome.UNKNOWN
    assert len(broker.requests) == 1


async def test_pop_sends_what_was_set(broker: TinyBroker) -> None:
    async with broker.queen() as queen:
        builder = queen.queue("q").group("g").batch(5).partitions(3).timeout_millis(50).subscription_from("now")
        assert await builder.commit_on_delivery().pop() == []
    assert broker.sent("/pop") == [
        {
            "batch": "5",
            "partitions": "3",
            "consumerGroup": "g",
            "wait": "true",
            "timeout": "50",
            "autoAck": "true",
            "subscriptionFrom": "now",
        }
    ]


async def test_pop_that_is_refused_raises(broker: TinyBroker) -> None:
    broker.next_answers = [httpx.Response(400)]
    async with broker.queen() as queen:
        with pytest.raises(CallFailedError, match="pop of queue 'q': refused"):
            await queen.queue("q").wait(False).pop()


async def test_each_message_is_handled_and_acknowledged_in_order(broker: TinyBroker) -> None:
    seen: list[int] = []

    async def handler(message: dict[str, Any]) -> None:
        assert len(broker.sent("/ack")) == len(seen)
        seen.append(message["data"])

    async with broker.queen() as queen:
        await queen.queue("q").push([1, 2, 3])
        await queen.queue("q").group("g").subscription_mode("all").each().batch(2).limit(3).consume(handler)
    assert seen == [1, 2, 3]
    assert [ack["transactionId"] for ack in broker.sent("/ack")] == ["q-0", "q-1", "q-2"]
    assert {ack["leaseId"] for ack in broker.sent("/ack")} == {"L"}


async def test_list_is_handled_and_acknowledged_at_once(broker: TinyBroker) -> None:
    seen: list[list[int]] = []

    def handler(messages: list[dict[str, Any]]) -> None:
        seen.append([message["data"] for message in messages])

    async with broker.queen() as queen:
        await queen.queue("q").push([1, 2, 3])
        await queen.queue("q").batch(2).limit(3).consume(handler)
    assert seen == [[1, 2], [3]]
    assert [len(ack["acknowledgments"]) for ack in broker.sent("/ack/batch")] == [2, 1]


async def test_batch_of_one_hands_out_the_message_itself(broker: TinyBroker) -> None:
    seen: list[dict[str, Any]] = []
    async with broker.queen() as queen:
        await queen.queue("q").push([1])
        await queen.queue("q").batch(1).limit(1).consume(seen.append)
    assert seen[0]["data"] == 1


async def test_failed_handler_reports_failed_and_the_message_comes_back(broker: TinyBroker) -> None:
    seen: list[int] = []

    async def handler(message: dict[str, Any]) -> None:
        seen.append(message["data"])
        if len(seen) == 2:
            raise RuntimeError("out of paper")

    async with broker.queen() as queen:
        await queen.queue("q").push([1, 2, 3])
        await queen.queue("q").each().limit(4).consume(handler)
    assert seen == [1, 2, 2, 3]
    assert [ack["status"] for ack in broker.sent("/ack")] == ["completed", "failed", "completed", "completed"]
    assert broker.sent("/ack")[1]["error"] == "out of paper"


async def test_consume_never_takes_more_than_its_limit(broker: TinyBroker) -> None:
    async with broker.queen() as queen:
        await queen.queue("q").push([1, 2, 3])
        await queen.queue("q").batch(10).limit(2).consume(lambda messages: None)
    assert broker.sent("/pop")[0]["batch"] == "2"


async def test_consume_ends_when_idle(broker: TinyBroker) -> None:
    async with broker.queen() as queen, asyncio.timeout(5):
        await queen.queue("q").idle_millis(50).consume(lambda messages: None)
    assert int(broker.sent("/pop")[0]["timeout"]) <= 50


async def test_broker_that_does_not_park_is_not_asked_without_pause(broker: TinyBroker) -> None:
    async with broker.queen() as queen:
        await queen.queue("q").idle_millis(250).consume(lambda messages: None)
    assert len(broker.sent("/pop")) <= 4


async def test_signal_ends_consume_between_messages(broker: TinyBroker) -> None:
    stop, seen = asyncio.Event(), []

    def handler(message: dict[str, Any]) -> None:
        seen.append(message["data"])
        stop.set()

    async with broker.queen() as queen:
        await queen.queue("q").push([1, 2])
        await queen.queue("q").each().consume(handler, signal=stop)
    assert seen == [1]


async def test_without_auto_ack_the_error_of_the_handler_ends_consume(broker: TinyBroker) -> None:
    def handler(messages: list[dict[str, Any]]) -> None:
        raise RuntimeError("mine")

    async with broker.queen() as queen:
        await queen.queue("q").push([1])
        with pytest.raises(RuntimeError, match="mine"):
            await queen.queue("q").auto_ack(False).consume(handler)
    assert broker.sent("/ack") == []


async def test_refused_pop_ends_consume(broker: TinyBroker) -> None:
    broker.next_answers = [httpx.Response(403)]
    async with broker.queen() as queen:
        with pytest.raises(CallFailedError, match="403"):
            await queen.queue("q").consume(lambda messages: None)


async def test_broken_connection_does_not_end_consume(broker: TinyBroker, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[int] = []
    async with broker.queen() as queen:
        await queen.queue("q").push([1])
        broker.next_answers = [httpx.ReadError("reset")]
        with caplog.at_level(logging.WARNING):
            await queen.queue("q").limit(1).consume(lambda messages: seen.append(messages[0]["data"]))
    assert seen == [1]
    assert "reset" in caplog.text


async def test_ack_that_is_not_taken_is_logged(broker: TinyBroker, caplog: pytest.LogCaptureFixture) -> None:
    def handler(messages: list[dict[str, Any]]) -> None:
        refusal = [{"index": 0, "success": False, "error": "invalid or expired lease"}]
        broker.next_answers = [httpx.Response(200, json=refusal)]

    async with broker.queen() as queen:
        await queen.queue("q").push([1])
        with caplog.at_level(logging.WARNING):
            await queen.queue("q").limit(1).consume(handler)
    assert "invalid or expired lease" in caplog.text


def test_commit_on_delivery_is_not_for_consume(broker: TinyBroker) -> None:
    async def run() -> None:
        async with broker.queen() as queen:
            await queen.queue("q").commit_on_delivery().consume(lambda messages: None)

    with pytest.raises(ValueError, match="commit_on_delivery"):
        asyncio.run(run())


async def test_ack_of_one_message(broker: TinyBroker) -> None:
    async with broker.queen() as queen:
        await queen.queue("q").push([1])
        (message,) = await queen.queue("q").group("g").pop()
        report = await queen.ack(message, True, {"group": "g"})
    assert report == {"success": True, "error": None, "noop": None, "dlq": None}
    assert broker.sent("/ack")[0]["consumerGroup"] == "g"


async def test_ack_of_many_messages(broker: TinyBroker) -> None:
    async with broker.queen() as queen:
        await queen.queue("q").push([1, 2])
        report = await queen.ack(await queen.queue("q").pop(), "retry")
    assert report["success"]
    assert len(report["results"]) == 2
    assert {item["status"] for item in broker.sent("/ack/batch")[0]["acknowledgments"]} == {"retry"}


async def test_ack_of_nothing_sends_nothing(broker: TinyBroker) -> None:
    async with broker.queen() as queen:
        assert await queen.ack([]) == {"success": True, "results": []}
    assert broker.requests == []


async def test_ack_reports_a_broken_connection(broker: TinyBroker) -> None:
    broker.next_answers = [httpx.ReadError("reset")]
    async with broker.queen() as queen:
        report = await queen.ack({"transactionId": "t", "partitionId": "7"}, False)
    assert report == {"success": False, "error": "unknown, ReadError: reset"}


async def test_ack_without_partition_id_is_named(broker: TinyBroker) -> None:
    async with broker.queen() as queen:
        with pytest.raises(ValueError, match="partitionId"):
            await queen.ack({"transactionId": "t"})


async def test_create_sends_the_options_by_their_wire_names(broker: TinyBroker) -> None:
    async with broker.queen() as queen:
        await queen.queue("q").config({"lease_time": 5, "dlq_after_max_retries": True}).create()
    assert broker.sent("/configure") == [{"queue": "q", "options": {"leaseTime": 5, "dlqAfterMaxRetries": True}}]


async def test_delete(broker: TinyBroker) -> None:
    async with broker.queen() as queen:
        await queen.queue("a/b").delete()
    assert broker.requests == [("DELETE", "/api/v1/resources/queues/a%2Fb", {})]


def test_queue_needs_a_name(broker: TinyBroker) -> None:
    with pytest.raises(ValueError, match="empty"):
        broker.queen().queue("")


@pytest.mark.parametrize("options", [{}, {"url": "http://h", "broker": object()}])
def test_queen_needs_a_url_or_a_client(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="either"):
        Queen(**options)


async def test_queen_of_a_url_closes_its_connections() -> None:
    queen = Queen(url="http://broker.test", timeout_millis=100, bearer_token="t", headers={"a": "b"})
    async with queen:
        pass
    assert queen._broker._http.is_closed


def test_wrong_url_is_named() -> None:
    with pytest.raises(ValueError, match="'nowhere'"):
        Queen(url="nowhere")
