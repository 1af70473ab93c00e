"""Payloads are any JSON value and come back as the very text (contract 2)."""

import json
import random
import string

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reference_broker import json_text


async def round_trip(driver, text: bytes) -> bytes:
    """What the broker delivers for a payload, cut out of the answer by its known surroundings."""
    pushed = await driver.call("POST", "/api/v1/push", raw=b'{"items":[{"queue":"q","payload":' + text + b"}]}")
    assert pushed.status == 201, pushed.body
    popped = (await driver.pop_answer(autoAck=True)).body
    return popped.split(b'"data":', 1)[1].rsplit(b',"producerSub"', 1)[0]


@pytest.mark.parametrize(
    "text",
    [
        b"null",
        b"true",
        b'""',
        b"0",
        b"-0",
        b"-0.0",
        b"1e400",
        b"1E+2",
        b"1.10",
        b"9" * 5000,
        b"123456789012345678901234567890.5",
        b'"\\ud800"',
        b'"\\udc00\\ud800 x"',
        b'["\\ud800", {"\\udfff": 1e999}]',
        b'"\\u0000\\/\\b"',
        b'"\\ud83d\\ude00"',
        '"日本 👩‍👩‍👧 \x7f \u2028"'.encode(),
        b"[" * 900 + b"]" * 900,
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a":' * 50_000 + b"[]" + b"}" * 50_000,
        b'{"a":1,"a":2}',
        b'{ "spaces" : [ 1 , 2 ] }',
        b"{}",
        b"[ ]",
    ],
    ids=range(24),
)
async def test_a_payload_comes_back_as_the_very_text(driver, text):
    assert await round_trip(driver, text) == text


@pytest.mark.parametrize(
    "text",
    [
        b"NaN",
        b"Infinity",
        b"01",
        b"1.",
        b".5",
        b"+1",
        b"tru",
        b"'a'",
        b'"\x01"',
        b'"\\x"',
        b'"\\ud80"',
        b'"\xff"',
        b'"\xed\xa0\x80"',
        b"[1,]",
        b"[,1]",
        b"[1 2]",
        b'{"a"}',
        b'{"a":1,}',
        b'{"a" 1}',
        b"{1:2}",
        b"{,}",
        b"[1}",
        b"[",
        b"",
        b'["\\ud800", 01]',
        b'["\\ud800" "x"]',
        b"[" * 5000 + b"]" * 4999,
        b"[" * 5000 + b"]" * 5001,
        b'{"a":' * 5000 + b"}" * 5000,
    ],
    ids=range(29),
)
async def test_a_payload_that_is_not_json_is_refused(driver, text):
    pushed = await driver.call("POST", "/api/v1/push", raw=b'{"items":[{"queue":"q","payload":' + text + b"}]}")
    assert pushed.status == 400
    assert await driver.pop() == []


async def test_what_the_fast_parser_refuses_is_read_in_full(driver):
    body = b'{"items":[{"queue":"q","partition":"p","transactionId":"t\\u0031","payload":"\\ud800","m":[[]]}],"x":{}}'
    assert (await driver.call("POST", "/api/v1/push", raw=body)).status == 201
    answer = await driver.pop_answer()
    assert b'"data":"\\ud800"' in answer.body
    assert b'"transactionId":"t1"' in answer.body
    assert b'"partition":"p"' in answer.body


async def test_null_names_count_as_absent_also_beside_an_odd_payload(driver):
    body = b'{"items":[{"queue":"q","partition":null,"transactionId":null,"payload":"\\ud800"}]}'
    answer = await driver.call("POST", "/api/v1/push", raw=body)
    assert answer.json[0]["transaction_id"] == answer.json[0]["message_id"]


@pytest.mark.parametrize(
    "body",
    [
        b'{"items":[{"queue":1,"payload":"\\ud800"}]}',
        b'{"items":[{"payload":"\\ud800"}]}',
        b'{"items":{"payload":"\\ud800"}}',
        b'{"other":["\\ud800"]}',
        b'["\\ud800"]',
        b'{"items":["\\ud800"]}',
        b'{"items":[{"queue":"q","payload":"\\ud800","transactionId":7}]}',
    ],
)
async def test_a_malformed_request_is_refused_also_beside_an_odd_payload(driver, body):
    assert (await driver.call("POST", "/api/v1/push", raw=body)).status == 400


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"))
    | st.just("\ud800")
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
)


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow], database=None)
@given(value=VALUES, escaped=st.booleans(), indent=st.sampled_from([None, 1]))
async def test_any_json_value_comes_back_as_the_very_text(driver_type, value, escaped, indent):
    text = json.dumps(value, ensure_ascii=escaped, indent=indent).replace("\ud800", "\\ud800").encode()
    assert await round_trip(driver_type(), text) == text


def test_the_slow_reader_agrees_with_the_standard_library_on_what_is_json():
    source = random.Random(5)
    alphabet = '[]{},:"\\ \n01-.eEtrufalsn' + string.ascii_letters[:3]
    seeds = ['{"a":[1,2.5e3,"x\\n"],"b":{}}', "[true,false,null]", '"\\u00e9"', "-0.5E-2", '[[],[{"k":""}]]']
    for _ in range(4000):
        text = list(source.choice(seeds))
        for _ in range(source.randrange(3)):
            place = source.randrange(len(text))
            text[place : place + source.randrange(2)] = source.choice(alphabet)
        document = "".join(text)
        assert _slow(document) == _standard(document), document


def _slow(document: str) -> bool:
    try:
        json_text.document(document)
    except json_text.NotJson:
        return False
    return True


def _standard(document: str) -> bool:
    try:
        json.loads(document, parse_constant=_refuse)
    except ValueError:
        return False
    return True


def _refuse(name: str) -> None:
    raise ValueError(name)
