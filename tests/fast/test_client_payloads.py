"""Payloads come and go byte for byte, also those that a JSON parser refuses."""

from __future__ import annotations

import json

import httpx
import pytest

from client import BrokerClient, Outcome, PushItem
from client.json_text import TextError, elements, members, scalar

AWKWARD = [
    b"null",
    b"1e400",
    b"-0",
    b"1.0",
    b"9" * 6000,
    b'"\\ud800"',
    b'"\\udc00\\ud800"',
    b'{"\\ud800":[{}, [], "]}"]}',
    b'"\\u0000"',
    b"[" * 3000 + b"]" * 3000,
    b'{"a":' * 3000 + b"{}" + b"}" * 3000,
    b'{"a":1, "a" : 2 }',
    '"ключ 🗝 "'.encode(),
    b'"a\\"b\\\\"',
    b"NaN",
]
MESSAGE = b'{"id":"m%d","transactionId":"t","traceId":null,"data":%s,"partitionId":"7","partition":"p","leaseId":"L"}'


def pop_body(*payloads: bytes) -> bytes:
    messages = b",".join([MESSAGE % (number, payload) for number, payload in enumerate(payloads)])
    return b'{"success":true,"leaseId":"L","messages":[' + messages + b'],"partitionsClaimed":1}'


def answering(status: int, body: bytes) -> BrokerClient:
    transport = httpx.MockTransport(lambda request: httpx.Response(status, content=body))
    return BrokerClient.connect("http://broker.test", transport=transport)


@pytest.mark.parametrize("payload", AWKWARD, ids=lambda payload: repr(payload[:12]))
async def test_payload_is_delivered_byte_for_byte(payload: bytes) -> None:
    async with answering(200, pop_body(b"1", payload, b"2")) as client:
        call = await client.pop("q")
    assert call.outcome is Outcome.OK
    assert call.value is not None
    assert [message.data for message in call.value.messages] == [b"1", payload, b"2"]
    assert [message.id for message in call.value.messages] == ["m0", "m1", "m2"]
    assert (call.value.lease_id, call.value.messages[1].lease_id) == ("L", "L")


@pytest.mark.parametrize("payload", AWKWARD, ids=lambda payload: repr(payload[:12]))
async def test_payload_is_sent_byte_for_byte(payload: bytes) -> None:
    sent: list[bytes] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request.content)
        return httpx.Response(400)

    async with BrokerClient.connect("http://broker.test", transport=httpx.MockTransport(answer)) as client:
        await client.push([PushItem("q", None, payload)])
    assert sent == [b'{"items":[{"queue":"q","payload":' + payload + b"}]}"]


async def test_lone_surrogate_in_an_id_is_read() -> None:
    body = pop_body(b"1").replace(b'"t"', b'"\\ud800"')
    async with answering(200, body) as client:
        call = await client.pop("q")
    assert call.value is not None
    assert call.value.messages[0].transaction_id == "\ud800"


async def test_lone_surrogate_in_a_push_answer_is_read() -> None:
    async with answering(201, b'[{"index":0,"status":"queued","transaction_id":"\\ud800"}]') as client:
        call = await client.push([PushItem("q", None, b"1")])
    assert call.value is not None
    assert call.value[0].transaction_id == "\ud800"


async def test_lone_surrogate_in_an_id_is_sent_as_its_escape() -> None:
    sent: list[bytes] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request.content)
        return httpx.Response(400)

    async with BrokerClient.connect("http://broker.test", transport=httpx.MockTransport(answer)) as client:
        await client.push([PushItem("q", None, b"1", "\ud800")])
    assert b'"transactionId":"\\ud800"' in sent[0]


async def test_data_that_is_not_utf8_is_handed_on_with_an_oddity() -> None:
    async with answering(200, pop_body(b'"\xff"')) as client:
        call = await client.pop("q")
    assert call.value is not None
    assert call.value.messages[0].data == b'"\xff"'
    assert call.oddities == ("data that is not UTF-8",)


async def test_missing_data_beside_an_awkward_payload_is_read_as_null() -> None:
    body = pop_body(b'"\\ud800"', b"1").replace(b'"data":1,', b"")
    async with answering(200, body) as client:
        call = await client.pop("q")
    assert call.value is not None
    assert [message.data for message in call.value.messages] == [b'"\\ud800"', b"null"]


async def test_awkward_body_without_messages_is_unknown() -> None:
    async with answering(200, b'{"queue":"\\ud800"}') as client:
        assert (await client.pop("q")).outcome is Outcome.UNKNOWN


@pytest.mark.parametrize("cut", [1, 20, 60, 150, 6000])
async def test_cut_answer_with_an_awkward_payload_is_unknown(cut: int) -> None:
    async with answering(200, pop_body(b"[" * 3000 + b"]" * 3000)[:-cut]) as client:
        assert (await client.pop("q")).outcome is Outcome.UNKNOWN


def test_members_agree_with_the_standard_parser() -> None:
    text = b' { "a" : [1, {"b": "x,}"}] ,"c\\n":{} , "d":-1.5e3,"a":"last" }\n'
    assert {name: json.loads(raw) for name, raw in members(text).items()} == json.loads(text)


def test_elements_agree_with_the_standard_parser() -> None:
    text = b' [ 1 ,"]", [], {} , [[2]], null ] '
    assert [json.loads(raw) for raw in elements(text)] == json.loads(text)


@pytest.mark.parametrize("text", [b"[]", b" [ ] "])
def test_empty_array_has_no_elements(text: bytes) -> None:
    assert elements(text) == []


def test_empty_object_has_no_members() -> None:
    assert members(b"{ }") == {}


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[",
        b"[1",
        b"[1,",
        b"[1,]",
        b"[,1]",
        b"[1 2]",
        b"[1]]",
        b"[1}",
        b"[{1:2}]",
        b'[{"a" 1}]',
        b'["a]',
        b"{}",
        b"[[1,]]",
        b"[[1 2]]",
        b'[{"a":1,}]',
        b'[{"a":}]',
        b'[{"a":1 "b":2}]',
        b"[:]",
        b"[[}]",
    ],
)
def test_broken_array_is_an_error(text: bytes) -> None:
    with pytest.raises(TextError):
        elements(text)


@pytest.mark.parametrize(
    "text", [b"", b"{", b'{"a"', b'{"a":', b'{"a":1', b'{"a":1,}', b'{"a",1}', b"{1:2}", b'{"a":1}x', b"[]", b'{"a":1]']
)
def test_broken_object_is_an_error(text: bytes) -> None:
    with pytest.raises(TextError):
        members(text)


@pytest.mark.parametrize("text", [b"[" * 100_000, b"9" * 6000, b"x"])
def test_scalar_that_cannot_be_read_is_an_error(text: bytes) -> None:
    with pytest.raises(TextError):
        scalar(text)
