"""The table of client/outcome.py, row by row, against a transport that answers what the test says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx
import pytest

from client import AckItem, BrokerClient, Call, Outcome, PopAnswer, PushAnswer, PushItem
from client.outcome import names_storage

ITEM = PushItem("q", "p", b"1", "t1")
QUEUED = '{"index":%d,"message_id":"m%d","transaction_id":"t","queueName":"q","status":"queued"}'
ONE_QUEUED = "[" + QUEUED % (0, 0) + "]"
MESSAGE = '{"id":"m","transactionId":"t","data":1,"partitionId":"7","partition":"p","leaseId":"L"}'


def client_of(answer: Callable[[httpx.Request], httpx.Response]) -> BrokerClient:
    return BrokerClient.connect("http://broker.test", transport=httpx.MockTransport(answer), timeout_s=2.0)


def answering(status: int, body: str | bytes = b"", **headers: str) -> BrokerClient:
    return client_of(lambda request: httpx.Response(status, content=body, headers=headers))


def raising(error: Exception) -> BrokerClient:
    def answer(request: httpx.Request) -> httpx.Response:
        raise error

    return client_of(answer)


def error_body(error: str) -> str:
    return f'{{"success":false,"error":"{error}"}}'


def pop_body(message: str, *, head: str = "") -> str:
    return f'{{{head}"messages":[{message}]}}'


async def push(status: int, body: str | bytes, items: int = 1) -> Call[PushAnswer]:
    async with answering(status, body) as client:
        return await client.push([ITEM] * items)


async def pop(status: int, body: str | bytes = b"") -> Call[PopAnswer]:
    async with answering(status, body) as client:
        return await client.pop("q")


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (httpx.ConnectError("refused"), Outcome.REFUSED),
        (httpx.ConnectTimeout("slow"), Outcome.REFUSED),
        (httpx.PoolTimeout("full"), Outcome.REFUSED),
        (httpx.UnsupportedProtocol("gopher"), Outcome.REFUSED),
        (httpx.InvalidURL("too long"), Outcome.REFUSED),
        (httpx.ReadTimeout("slow"), Outcome.UNKNOWN),
        (httpx.WriteTimeout("slow"), Outcome.UNKNOWN),
        (httpx.ReadError("reset"), Outcome.UNKNOWN),
        (httpx.WriteError("reset"), Outcome.UNKNOWN),
        (httpx.CloseError("reset"), Outcome.UNKNOWN),
        (httpx.RemoteProtocolError("torn"), Outcome.UNKNOWN),
        (httpx.LocalProtocolError("header"), Outcome.UNKNOWN),
        (httpx.ProxyError("proxy"), Outcome.UNKNOWN),
        (httpx.DecodingError("gzip"), Outcome.UNKNOWN),
        (ConnectionResetError("reset"), Outcome.UNKNOWN),
        (EOFError(), Outcome.UNKNOWN),
    ],
)
async def test_exception_has_its_outcome(error: Exception, outcome: Outcome) -> None:
    async with raising(error) as client:
        call = await client.push([ITEM])
    assert (call.outcome, call.status, call.value) == (outcome, None, None)
    assert type(error).__name__ in call.why


async def test_mistake_of_ours_stays_loud() -> None:
    async with raising(ZeroDivisionError()) as client:
        with pytest.raises(ZeroDivisionError):
            await client.push([ITEM])


async def test_connection_to_a_closed_port_is_refused(unused_tcp_port: int) -> None:
    async with BrokerClient.connect(f"http://127.0.0.1:{unused_tcp_port}") as client:
        call = await client.push([ITEM])
    assert call.outcome is Outcome.REFUSED


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 409, 410, 413, 415, 422, 429, 431])
async def test_4xx_is_refused(status: int) -> None:
    call = await push(status, '{"error":"no"}')
    assert (call.outcome, call.status) == (Outcome.REFUSED, status)
    assert str(status) in call.why


@pytest.mark.parametrize("status", [408, 499, 500, 502, 503, 504])
async def test_gave_up_or_5xx_is_unknown(status: int) -> None:
    call = await push(status, ONE_QUEUED)
    assert (call.outcome, call.status, call.value) == (Outcome.UNKNOWN, status, None)


async def test_redirect_is_unknown_and_not_followed() -> None:
    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.url.path)
        return httpx.Response(307, headers={"location": "/elsewhere"})

    async with client_of(answer) as client:
        call = await client.push([ITEM])
    assert call.outcome is Outcome.UNKNOWN
    assert "/elsewhere" in call.why
    assert seen == ["/api/v1/push"]


@pytest.mark.parametrize(
    "body",
    [
        "",
        "<!DOCTYPE html><html></html>",
        '[{"index":0,"mess',
        "[1]",
        "{}",
        "null",
        "[]",
        '[{"index":0}]',
        b"\xff\xfe",
        "[[[",
    ],
)
async def test_2xx_that_is_no_answer_is_unknown(body: str | bytes) -> None:
    call = await push(201, body)
    assert (call.outcome, call.status, call.value) == (Outcome.UNKNOWN, 201, None)
    assert call.why


async def test_html_is_called_no_answer_of_a_broker() -> None:
    assert "not a broker's answer" in (await push(201, "<html></html>")).why


async def test_nothing_is_retried() -> None:
    count = 0

    def answer(request: httpx.Request) -> httpx.Response:
        nonlocal count
        count += 1
        return httpx.Response(503)

    async with client_of(answer) as client:
        await client.push([ITEM])
    assert count == 1


async def test_200_for_a_push_is_ok_with_an_oddity() -> None:
    call = await push(200, ONE_QUEUED)
    assert call.outcome is Outcome.OK
    assert call.oddities == ("status 200 instead of 201",)


async def test_documented_push_has_no_oddity() -> None:
    call = await push(201, ONE_QUEUED)
    assert (call.outcome, call.oddities, call.why) == (Outcome.OK, (), "")


async def test_results_of_another_number_are_unknown() -> None:
    call = await push(201, ONE_QUEUED, items=2)
    assert call.outcome is Outcome.UNKNOWN
    assert call.why == "1 results for 2 items"


async def test_indexes_that_do_not_match_are_unknown() -> None:
    call = await push(201, f"[{QUEUED % (0, 0)},{QUEUED % (0, 1)}]", items=2)
    assert call.outcome is Outcome.UNKNOWN
    assert "indexes" in call.why


async def test_results_out_of_order_are_aligned_by_index() -> None:
    call = await push(201, f"[{QUEUED % (1, 11)},{QUEUED % (0, 10)}]", items=2)
    assert call.value is not None
    assert [item.message_id for item in call.value] == ["m10", "m11"]
    assert call.oddities == ("results out of the order of the items",)


async def test_results_without_index_are_taken_in_order() -> None:
    call = await push(201, '[{"status":"queued","message_id":"a"},{"status":"queued","message_id":"b"}]', items=2)
    assert call.value is not None
    assert [item.message_id for item in call.value] == ["a", "b"]
    assert call.oddities == ("results without an index",)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [("connection closed", Outcome.UNKNOWN), ("pool timed out", Outcome.UNKNOWN), ("no such queue", Outcome.REFUSED)],
)
async def test_error_as_the_whole_body_of_a_2xx(error: str, outcome: Outcome) -> None:
    call = await push(200, error_body(error))
    assert call.outcome is outcome
    assert error in call.why


@pytest.mark.parametrize(
    ("result", "unknown", "oddities"),
    [
        ('"status":"error","error":"storage is away"', True, 0),
        ('"status":"failed","error":"pool exhausted"', True, 0),
        ('"status":"storage error"', True, 1),
        ('"status":"error","error":"payload is too large"', False, 0),
        ('"status":"failed"', False, 0),
        ('"status":"buffered","message_id":"m"', False, 0),
        ('"status":"duplicate","message_id":"m"', False, 0),
        ('"status":"perhaps"', True, 1),
    ],
)
async def test_status_of_one_item_is_unknown_for_that_item_only(result: str, unknown: bool, oddities: int) -> None:
    call = await push(201, f'[{QUEUED % (0, 0)},{{"index":1,{result}}}]', items=2)
    assert call.value is not None
    assert [item.unknown for item in call.value] == [False, unknown]
    assert len(call.oddities) == oddities


async def test_ack_that_names_storage_is_unknown_for_that_item_only() -> None:
    body = (
        '[{"index":0,"success":true,"error":null,"noop":false,"dlq":false,"leaseReleased":true},'
        '{"index":1,"success":false,"error":"connection closed"},'
        '{"index":2,"success":false,"error":"invalid or expired lease"}]'
    )
    async with answering(200, body) as client:
        call = await client.ack_batch([AckItem("t", "7")] * 3)
    assert call.outcome is Outcome.OK
    assert call.value is not None
    assert [item.unknown for item in call.value] == [False, True, False]
    assert [item.success for item in call.value] == [True, False, False]
    assert (call.value[0].noop, call.value[0].dlq, call.value[0].lease_released) == (False, False, True)
    assert (call.value[1].noop, call.value[1].dlq, call.value[1].lease_released) == (None, None, None)


async def test_single_ack_answered_by_an_object_is_read() -> None:
    async with answering(200, '{"success":true}') as client:
        call = await client.ack(AckItem("t", "7"))
    assert call.value is not None
    assert call.value[0].success
    assert call.oddities == ("the answer is an object instead of an array",)


async def test_single_ack_answered_by_a_storage_error_is_unknown() -> None:
    async with answering(200, '{"success":false,"error":"db error"}') as client:
        call = await client.ack(AckItem("t", "7"))
    assert call.value is not None
    assert call.value[0].unknown


async def test_flag_of_another_type_does_not_hide_the_ack() -> None:
    async with answering(200, '[{"index":0,"success":true,"noop":"yes"}]') as client:
        call = await client.ack(AckItem("t", "7"))
    assert call.value is not None
    assert call.value[0].noop is None
    assert call.oddities == ("noop is 'yes' instead of true or false",)


async def test_204_is_an_empty_pop() -> None:
    assert await pop(204) == Call(Outcome.OK, 204, "", PopAnswer())


async def test_empty_list_of_messages_is_an_empty_pop_with_an_oddity() -> None:
    call = await pop(200, '{"success":true,"messages":[]}')
    assert call.value == PopAnswer()
    assert call.oddities == ("an empty list of messages instead of 204",)


@pytest.mark.parametrize("body", ["", "{}", "[]", '{"messages":{}}', '{"messages":[{"id":"m"}]}', '{"messages":[{"id'])
async def test_pop_without_readable_messages_is_unknown(body: str) -> None:
    assert (await pop(200, body)).outcome is Outcome.UNKNOWN


@pytest.mark.parametrize(("error", "outcome"), [("connection closed", Outcome.UNKNOWN), ("bad group", Outcome.REFUSED)])
async def test_pop_that_reports_an_error(error: str, outcome: Outcome) -> None:
    assert (await pop(200, error_body(error))).outcome is outcome


async def test_message_of_a_minimal_broker_is_read() -> None:
    call = await pop(200, pop_body(MESSAGE, head='"leaseId":"L",'))
    assert call.value is not None
    (message,) = call.value.messages
    assert (message.attempt, message.offset, message.lease_id, message.data) == (None, None, "L", b"1")
    assert call.oddities == ()


async def test_message_without_lease_takes_that_of_the_call() -> None:
    call = await pop(200, pop_body(MESSAGE.replace(',"leaseId":"L"', ""), head='"leaseId":"L",'))
    assert call.value is not None
    assert call.value.messages[0].lease_id == "L"


async def test_no_lease_is_the_empty_text() -> None:
    call = await pop(200, pop_body(MESSAGE.replace('"L"', "null"), head='"leaseId":null,'))
    assert call.value is not None
    assert (call.value.lease_id, call.value.messages[0].lease_id) == ("", "")


async def test_number_as_partition_id_is_read_as_text() -> None:
    call = await pop(200, pop_body(MESSAGE.replace('"7"', "7")))
    assert call.value is not None
    assert call.value.messages[0].partition_id == "7"


async def test_offset_of_another_type_does_not_hide_the_message() -> None:
    call = await pop(200, pop_body(MESSAGE.replace('"data"', '"offset":"x","deliveryAttempt":1.5,"data"')))
    assert call.value is not None
    assert (call.value.messages[0].offset, call.value.messages[0].attempt) == (None, None)
    assert len(call.oddities) == 2


async def test_message_without_partition_takes_that_of_the_call() -> None:
    text = MESSAGE.replace(',"partition":"p"', "")
    call = await pop(200, pop_body(text, head='"partition":"p0","partitionId":"7",'))
    assert call.value is not None
    assert call.value.messages[0].partition == "p0"
    assert call.oddities == ("a message without a partition",)


async def test_message_of_no_known_partition_is_unknown() -> None:
    text = MESSAGE.replace(',"partition":"p"', "")
    call = await pop(200, pop_body(text, head='"partition":"p0","partitionId":"8",'))
    assert call.outcome is Outcome.UNKNOWN


async def test_message_without_data_is_read_as_null() -> None:
    call = await pop(200, pop_body(MESSAGE.replace('"data":1,', "")))
    assert call.value is not None
    assert call.value.messages[0].data == b"null"
    assert call.oddities == ("a message without data, read as null",)


async def test_extension_of_a_dead_lease_is_an_answer() -> None:
    async with answering(200, '{"leaseId":"L","success":false,"renewed":0}') as client:
        call = await client.extend("L", seconds=5)
    assert call.value is not None
    assert (call.outcome, call.value.success, call.value.renewed) == (Outcome.OK, False, 0)


async def test_extension_that_names_storage_is_unknown() -> None:
    async with answering(200, '{"success":false,"renewed":0,"error":"db error"}') as client:
        call = await client.extend("L", seconds=5)
    assert call.outcome is Outcome.UNKNOWN


async def test_extension_without_count_says_so() -> None:
    async with answering(200, '{"success":true}') as client:
        call = await client.extend("L", seconds=5)
    assert call.value is not None
    assert call.value.renewed == 1
    assert call.oddities == ("no number in renewed",)


@pytest.mark.parametrize(
    ("status", "body", "outcome"),
    [
        (200, '{"queue":"q","deleted":true}', Outcome.OK),
        (200, '{"deleted":false,"message":"nothing"}', Outcome.OK),
        (204, "", Outcome.OK),
        (200, '{"error":"connection closed"}', Outcome.UNKNOWN),
        (200, '{"success":false,"error":"protected"}', Outcome.REFUSED),
        (404, "", Outcome.REFUSED),
    ],
)
async def test_deletion(status: int, body: str, outcome: Outcome) -> None:
    async with answering(status, body) as client:
        assert (await client.delete_queue("q")).outcome is outcome


async def test_configure_answered_by_a_plain_object_is_done() -> None:
    async with answering(200, '{"configured":true}') as client:
        assert (await client.configure("q", {"leaseTime": 5})).ok


async def test_health_of_a_ready_broker() -> None:
    async with answering(200, '{"status":"healthy","version":"1.3.0"}') as client:
        call = await client.health()
    assert call.value is not None
    assert (call.value.ready, call.value.version) == (True, "1.3.0")


async def test_health_of_a_broker_that_is_not_ready() -> None:
    async with answering(503, '{"version":"1.3.0"}') as client:
        call = await client.health()
    assert call.value is not None
    assert (call.value.ready, call.value.version, call.oddities) == (False, "1.3.0", ())


async def test_health_of_something_else_is_unknown() -> None:
    async with answering(200, "<html></html>") as client:
        assert (await client.health()).outcome is Outcome.UNKNOWN


async def test_health_without_connection_is_refused() -> None:
    async with raising(httpx.ConnectError("refused")) as client:
        assert (await client.health()).outcome is Outcome.REFUSED


async def test_call_that_takes_too_long_is_unknown() -> None:
    class Slow(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            await asyncio.sleep(60)
            raise AssertionError

    async with BrokerClient.connect("http://broker.test", transport=Slow()) as client:
        call = await client.push([ITEM], timeout_s=0.02)
    assert (call.outcome, call.why) == (Outcome.UNKNOWN, "no answer within 0.02 s")


async def test_answer_that_breaks_off_is_unknown() -> None:
    async def torn(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 201 Created\r\ncontent-length: 500\r\n\r\n" + ONE_QUEUED.encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(torn, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, BrokerClient.connect(f"http://127.0.0.1:{port}") as client:
        call = await client.push([ITEM])
    assert call.outcome is Outcome.UNKNOWN


async def test_empty_pop_that_reports_an_error_is_no_empty_pop() -> None:
    assert (await pop(200, '{"success":false,"error":"connection closed","messages":[]}')).outcome is Outcome.UNKNOWN


async def test_messages_under_success_false_are_read_with_an_oddity() -> None:
    call = await pop(200, pop_body(MESSAGE, head='"success":false,'))
    assert call.value is not None
    assert len(call.value.messages) == 1
    assert call.oddities == ("success is false with messages",)


async def test_push_offset_of_another_type_does_not_hide_the_result() -> None:
    call = await push(201, '[{"index":0,"message_id":"m","status":"queued","offset":"7"}]')
    assert call.value is not None
    assert call.value[0].offset is None
    assert call.oddities == ("offset is '7' instead of a number",)


async def test_stored_without_an_id_is_an_oddity() -> None:
    call = await push(201, '[{"index":0,"status":"queued"}]')
    assert call.value is not None
    assert call.value[0].message_id is None
    assert call.oddities == ("queued without a message_id",)


async def test_offset_is_handed_on() -> None:
    call = await push(201, '[{"index":0,"message_id":"m","status":"queued","offset":7}]')
    assert call.value is not None
    assert call.value[0].offset == 7


@pytest.mark.parametrize("body", ["{}", '{"success":"yes"}', "[]"])
async def test_extension_without_success_is_unknown(body: str) -> None:
    async with answering(200, body) as client:
        assert (await client.extend("L", seconds=5)).outcome is Outcome.UNKNOWN


async def test_health_without_version_is_an_oddity() -> None:
    async with answering(200, '{"status":"healthy"}') as client:
        call = await client.health()
    assert call.value is not None
    assert (call.value.version, call.oddities) == ("", ("no version",))


@pytest.mark.parametrize(
    ("text", "storage"),
    [
        ("pool timed out", True),
        ("Connection closed", True),
        ("db error", True),
        ("PostgreSQL is restarting", True),
        ("storage unavailable", True),
        ("invalid or expired lease", False),
        ("already committed", False),
        ("unresolvable", False),
        ("", False),
        (None, False),
    ],
)
def test_storage_is_told_from_other_reasons(text: str | None, storage: bool) -> None:
    assert names_storage(text) is storage


async def test_reason_is_one_short_printable_line() -> None:
    call = await push(400, "\x1b[31m" + "x" * 5000 + "\n")
    assert call.why.isprintable()
    assert len(call.why) < 200
