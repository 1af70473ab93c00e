"""What goes over the wire: paths, query strings, bodies, headers; and what a client refuses to be made of."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx
import pytest

from client import AckItem, BrokerClient, PushItem, parse_url

# A self-signed certificate made for this test.
AUTHORITY = b"""-----BEGIN CERTIFICATE-----
MIIBiTCCAS+gAwIBAgIUEbbnEBPuZz7w2htHBsVBGvhuzQgwCgYIKoZIzj0EAwIw
GTEXMBUGA1UEAwwOdGVzdC1hdXRob3JpdHkwIBcNMjYxMjAxMTc1NDMwWhgPMjEy
NjExMDcxNzU0MzBaMBkxFzAVBgNVBAMMDnRlc3QtYXV0aG9yaXR5MFkwEwYHKoZI
zj0CAQYIKoZIzj0DAQcDQgAEbc/5CIjMowI5KOu5znPUTHVCfnUhywa6cL2jUyYd
U6oaXy6ssJ5ZUKfwpV6STCkqoQfRtEf2Pe8jzDBgD3u3BqNTMFEwHQYDVR0OBBYE
FBGi7a9wwKQ2ijWhNDga5WgPJ3S9MB8GA1UdIwQYMBaAFBGi7a9wwKQ2ijWhNDga
5WgPJ3S9MA8GA1UdEwEB/wQFMAMBAf8wCgYIKoZIzj0EAwIDSAAwRQIgcRuVqqnP
ZPlmHUQ6i6TTJACjnAGq6PewsiENyRA7BTYCIQCyZ9nmuYfjIqaOE7XFFbsbHmcw
j7q2NjXhpgJ4V7aPYw==
-----END CERTIFICATE-----
"""

Use = Callable[[BrokerClient], Awaitable[object]]


async def sent_by(use: Use, **options: object) -> httpx.Request:
    """The one request that `use` sends."""
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(404)

    url = str(options.pop("url", "http://broker.test"))
    transport = httpx.MockTransport(answer)
    async with BrokerClient.connect(url, transport=transport, **options) as client:  # type: ignore[arg-type]
        await use(client)
    (request,) = seen
    return request


async def test_push_names_only_what_is_given() -> None:
    items = [PushItem("q", "p", b'{"a": 1}', "t"), PushItem("q", None, b"null")]
    request = await sent_by(lambda client: client.push(items))
    assert (request.method, request.url.path) == ("POST", "/api/v1/push")
    assert json.loads(request.content) == {
        "items": [
            {"queue": "q", "partition": "p", "transactionId": "t", "payload": {"a": 1}},
            {"queue": "q", "payload": None},
        ]
    }


async def test_empty_push_is_sent() -> None:
    request = await sent_by(lambda client: client.push([]))
    assert request.content == b'{"items":[]}'


async def test_plain_pop_has_no_query() -> None:
    request = await sent_by(lambda client: client.pop("q"))
    assert (request.method, request.url.raw_path) == ("GET", b"/api/v1/pop/queue/q")


async def test_pop_sends_what_is_set() -> None:
    request = await sent_by(
        lambda client: client.pop(
            "q",
            partition="p",
            group="g",
            batch=5,
            partitions=0,
            lease_s=2,
            wait_ms=100,
            auto_ack=True,
            mode="all",
            from_="now",
            conflation=True,
            parameters={"extra": "a&b"},
        )
    )
    assert request.url.raw_path == (
        b"/api/v1/pop/queue/q/partition/p?batch=5&partitions=0&consumerGroup=g&leaseSeconds=2&wait=true&timeout=100"
        b"&autoAck=true&subscriptionMode=all&subscriptionFrom=now&conflation=true&extra=a%26b"
    )


async def test_empty_group_is_no_group() -> None:
    request = await sent_by(lambda client: client.pop("q", group=""))
    assert request.url.query == b""


@pytest.mark.parametrize(
    "name", ["a/b", 'say "x"', "a b", "ключ", "🗝", "..", ".", "a%2Fb", "?x=1#y", "a+b&c=d", "\x7f", "\ud800", "x" * 300]
)
async def test_name_is_one_segment_of_the_path(name: str) -> None:
    request = await sent_by(lambda client: client.pop(name, partition=name, group=name))
    path, _, query = request.url.raw_path.decode().partition("?")
    segments = path.split("/")
    assert segments[:5] == ["", "api", "v1", "pop", "queue"]
    assert segments[6] == "partition"
    assert len(segments) == 8
    assert unquote(segments[5], errors="surrogatepass") == name
    assert unquote(segments[7], errors="surrogatepass") == name
    assert unquote(query.removeprefix("consumerGroup="), errors="surrogatepass") == name


async def test_ack_of_one_carries_the_group_in_the_item() -> None:
    item = AckItem("t", "7", "failed", "L", "boom")
    request = await sent_by(lambda client: client.ack(item, group="g"))
    assert request.url.path == "/api/v1/ack"
    assert json.loads(request.content) == {
        "transactionId": "t",
        "partitionId": "7",
        "status": "failed",
        "leaseId": "L",
        "error": "boom",
        "consumerGroup": "g",
    }


async def test_ack_without_extras_is_short() -> None:
    request = await sent_by(lambda client: client.ack(AckItem("t", "7")))
    assert json.loads(request.content) == {"transactionId": "t", "partitionId": "7"}


async def test_ack_of_many_carries_the_group_at_the_top() -> None:
    items = [AckItem("t1", "7", "completed", "L"), AckItem("t2", "7")]
    request = await sent_by(lambda client: client.ack_batch(items, group="g"))
    assert request.url.path == "/api/v1/ack/batch"
    assert json.loads(request.content) == {
        "consumerGroup": "g",
        "acknowledgments": [
            {"transactionId": "t1", "partitionId": "7", "status": "completed", "leaseId": "L"},
            {"transactionId": "t2", "partitionId": "7"},
        ],
    }


async def test_ack_of_many_without_group() -> None:
    request = await sent_by(lambda client: client.ack_batch([]))
    assert request.content == b'{"acknowledgments":[]}'


async def test_extend() -> None:
    request = await sent_by(lambda client: client.extend("a/b", seconds=7))
    assert request.url.raw_path == b"/api/v1/lease/a%2Fb/extend"
    assert json.loads(request.content) == {"seconds": 7}


async def test_delete() -> None:
    request = await sent_by(lambda client: client.delete_queue("a/b"))
    assert (request.method, request.url.raw_path) == ("DELETE", b"/api/v1/resources/queues/a%2Fb")


async def test_seek_to_the_end() -> None:
    request = await sent_by(lambda client: client.seek("a/b", "g", to_end=True))
    assert (request.method, request.url.raw_path) == ("POST", b"/api/v1/consumer-groups/g/queues/a%2Fb/seek")
    assert json.loads(request.content) == {"toEnd": True}


async def test_seek_of_one_partition_to_a_time() -> None:
    request = await sent_by(lambda client: client.seek("q", "g", partition="p/1", timestamp="1970-01-01T00:00:00Z"))
    assert request.url.raw_path == b"/api/v1/consumer-groups/g/queues/q/partitions/p%2F1/seek"
    assert json.loads(request.content) == {"timestamp": "1970-01-01T00:00:00Z"}


@pytest.mark.parametrize("target", [{}, {"to_end": True, "timestamp": "1970-01-01T00:00:00Z"}])
async def test_a_seek_to_nowhere_or_two_places_is_not_sent(target: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="a seek goes to the end or to a time"):
        await sent_by(lambda client: client.seek("q", "g", **target))


async def test_configure() -> None:
    request = await sent_by(lambda client: client.configure("q", {"leaseTime": 5}, namespace="n", task="t"))
    assert request.url.path == "/api/v1/configure"
    assert json.loads(request.content) == {"queue": "q", "namespace": "n", "task": "t", "options": {"leaseTime": 5}}


async def test_health() -> None:
    request = await sent_by(lambda client: client.health())
    assert (request.method, request.url.path) == ("GET", "/health")


async def test_body_has_its_type_and_length() -> None:
    request = await sent_by(lambda client: client.push([]))
    assert request.headers["content-type"] == "application/json"
    assert request.headers["content-length"] == "12"
    assert request.headers["host"] == "broker.test"


async def test_token_and_headers_are_sent() -> None:
    request = await sent_by(lambda client: client.pop("q"), bearer_token="secret", headers={"X-Lane": "1"})
    assert request.headers["authorization"] == "Bearer secret"
    assert request.headers["x-lane"] == "1"


async def test_header_of_the_caller_wins() -> None:
    headers = {"Host": "other", "User-Agent": "mine", "Accept": "text/plain"}
    request = await sent_by(lambda client: client.pop("q"), headers=headers)
    assert request.headers.get_list("host") == ["other"]
    assert request.headers.get_list("user-agent") == ["mine"]
    assert request.headers.get_list("accept") == ["text/plain"]


@pytest.mark.parametrize(
    ("url", "prefix"),
    [
        ("http://broker.test/queen", ""),
        ("http://broker.test/queen/", ""),
        ("http://broker.test", "queen"),
        ("http://broker.test/", "/queen/"),
    ],
)
async def test_path_prefix_stands_in_front(url: str, prefix: str) -> None:
    request = await sent_by(lambda client: client.pop("q"), url=url, path_prefix=prefix)
    assert request.url.path == "/queen/api/v1/pop/queue/q"


async def test_path_of_the_url_comes_before_the_prefix() -> None:
    request = await sent_by(lambda client: client.health(), url="http://broker.test/a", path_prefix="b/c")
    assert request.url.path == "/a/b/c/health"


async def test_extensions_are_passed_on_untouched() -> None:
    fault = object()
    request = await sent_by(lambda client: client.push([], extensions={"fault": fault}))
    assert request.extensions["fault"] is fault


async def test_connecting_gives_up_before_the_call_does() -> None:
    request = await sent_by(lambda client: client.pop("q", timeout_s=1.0))
    assert request.extensions["timeout"] == {"connect": 0.9, "read": 1.0, "write": 1.0, "pool": 0.9}


async def test_parked_pop_has_longer_than_its_wait() -> None:
    request = await sent_by(lambda client: client.pop("q", wait_ms=60_000), timeout_s=2.0)
    assert request.extensions["timeout"]["read"] == 65.0


async def test_client_that_is_handed_in_is_used_and_not_closed() -> None:
    class Lean(httpx.AsyncClient):
        async def send(self, request: httpx.Request, **options: object) -> httpx.Response:
            return httpx.Response(200, json={"version": request.headers["x-lane"]}, request=request)

    http = Lean(transport=httpx.MockTransport(lambda request: httpx.Response(500)), headers={"X-Lane": "3"})
    async with BrokerClient(http) as client:
        call = await client.health()
    assert call.value is not None
    assert call.value.version == "3"
    assert not http.is_closed
    await http.aclose()


async def test_client_that_is_handed_in_keeps_its_base_url() -> None:
    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(str(request.url))
        return httpx.Response(404)

    async with httpx.AsyncClient(base_url="http://b.test/x/", transport=httpx.MockTransport(answer)) as http:
        await BrokerClient(http, path_prefix="y").pop("q")
    assert seen == ["http://b.test/x/y/api/v1/pop/queue/q"]


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:6632",
        "localhost",
        "",
        "ftp://broker",
        "http://",
        "http://h:abc",
        "http://h:99999",
        "http://h:0",
        "http:///x",
        "http://h?x=1",
        "http://h#x",
        "http://[::1",
        "http://a b",
        "//h",
    ],
)
def test_wrong_url_is_named_in_one_sentence(url: str) -> None:
    with pytest.raises(ValueError, match="broker URL") as caught:
        BrokerClient.connect(url)
    assert repr(url) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://h", "https://h:8443/x", "http://[::1]:80/", "http://user:word@h:1"])
def test_right_url_is_taken(url: str) -> None:
    assert parse_url(url).startswith("http")


@pytest.mark.parametrize("url", ["https://broker.test", "http://broker.test"])
async def test_client_without_ca_file_opens_and_closes(url: str) -> None:
    async with BrokerClient.connect(url):
        pass


async def test_ca_file_is_taken(tmp_path: Path) -> None:
    authorities = tmp_path / "authorities.pem"
    authorities.write_bytes(AUTHORITY)
    async with BrokerClient.connect("https://broker.test", ca_file=authorities):
        pass


def test_missing_ca_file_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "nowhere.pem"
    with pytest.raises(ValueError, match=r"nowhere\.pem"):
        BrokerClient.connect("https://broker.test", ca_file=missing)


def test_ca_file_that_is_none_is_named(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("no certificate", encoding="utf-8")
    with pytest.raises(ValueError, match=r"wrong\.pem"):
        BrokerClient.connect("https://broker.test", ca_file=wrong)


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan")])
def test_time_out_must_be_positive(timeout_s: float) -> None:
    with pytest.raises(ValueError, match="timeout_s"):
        BrokerClient.connect("http://broker.test", timeout_s=timeout_s)


@pytest.mark.parametrize("name", ["", "a b", "a:b", "a\n", "ключ"])
def test_header_name_that_cannot_be_sent_is_named(name: str) -> None:
    with pytest.raises(ValueError, match="header name"):
        BrokerClient.connect("http://broker.test", headers={name: "x"})


def test_header_value_that_cannot_be_sent_is_refused() -> None:
    with pytest.raises(ValueError, match="'X-Lane'"):
        BrokerClient.connect("http://broker.test", headers={"X-Lane": "a\nb"})


def test_token_that_cannot_be_sent_is_refused_without_showing_it() -> None:
    with pytest.raises(ValueError, match="bearer token") as caught:
        BrokerClient.connect("http://broker.test", bearer_token="sécret")
    assert "cret" not in str(caught.value)


def test_public_names_are_sorted() -> None:
    import client

    assert client.__all__ == sorted(client.__all__)
    assert all(hasattr(client, name) for name in client.__all__)
