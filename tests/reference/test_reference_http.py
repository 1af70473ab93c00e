"""The HTTP side of the reference broker: status codes, limits, and what a bad request leaves behind."""

import asyncio

import pytest

import reference_broker

LIMIT = 64 * 1024 * 1024


async def test_health_is_200_with_the_version(driver):
    answer = await driver.call("GET", "/health")
    assert (answer.status, answer.json) == (200, {"status": "healthy", "version": "2.0.0-reference"})


async def test_health_is_503_when_the_broker_stopped(driver):
    driver.broker.close()
    assert (await driver.call("GET", "/health")).status == 503


async def test_health_is_503_when_the_storage_is_gone(driver):
    driver.storage.close()
    assert (await driver.call("GET", "/health")).status == 503


async def test_answers_are_json_with_their_length(driver):
    answer = await driver.call("GET", "/health")
    assert answer.headers == {"content-type": "application/json", "content-length": str(len(answer.body))}


@pytest.mark.parametrize(
    "path",
    ["/api/v1/nope", "/api/v1", "/api/v1/push/", "/nope", "/api/v1/pop/queue/q/partition/p/more", "/api/v1/pop/queue/"],
)
async def test_an_unknown_path_is_404(driver, path):
    assert (await driver.call("GET", path)).status == 404


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/v1/push"),
        ("POST", "/api/v1/pop/queue/q"),
        ("POST", "/api/v1/pop/queue/q/partition/p"),
        ("GET", "/api/v1/ack"),
        ("PUT", "/api/v1/ack/batch"),
        ("GET", "/api/v1/lease/x/extend"),
        ("GET", "/api/v1/configure"),
        ("GET", "/api/v1/resources/queues/q"),
        ("POST", "/api/v1/dlq"),
        ("POST", "/api/v1/consumer-groups/g"),
        ("POST", "/health"),
    ],
)
async def test_a_wrong_method_is_405_and_says_which_is_right(driver, method, path):
    answer = await driver.call(method, path)
    assert answer.status == 405
    assert answer.headers["allow"]


async def test_a_head_request_does_not_pop(driver):
    await driver.push("a")
    assert (await driver.call("HEAD", "/api/v1/pop/queue/q")).status == 405
    assert await driver.pop_ids() == ["a"]


async def test_a_body_over_the_limit_is_413_in_plain_text(driver):
    body = b'{"items":[{"queue":"q","payload":"' + b"x" * LIMIT + b'"}]}'
    answer = await driver.call("POST", "/api/v1/push", raw=body)
    assert answer.status == 413
    assert answer.headers["content-type"].startswith("text/plain")
    assert await driver.pop() == []


async def test_a_declared_length_over_the_limit_is_413_unread(driver):
    length = ((b"content-length", b"%d" % (LIMIT + 1)),)
    assert (await driver.call("POST", "/api/v1/push", raw=b"{}", headers=length)).status == 413


def scope_of(path, method="POST"):
    return {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [],
    }


async def answered(driver, parts):
    """The statuses sent for a push whose body comes in these parts."""
    sent = []

    async def receive():
        return parts.pop(0)

    async def send(message):
        sent.append(message)

    await driver.broker(scope_of("/api/v1/push"), receive, send)
    return [message["status"] for message in sent if "status" in message]


async def test_a_body_may_come_in_parts(driver):
    body = b'{"items":[{"queue":"q","payload":1,"transactionId":"a"}]}'
    parts = [{"type": "http.request", "body": body[:9], "more_body": True}, {"type": "http.request", "body": body[9:]}]
    assert await answered(driver, parts) == [201]
    assert await driver.pop_ids() == ["a"]


async def test_a_body_in_parts_over_the_limit_is_413(driver):
    parts = [{"type": "http.request", "body": b" " * (LIMIT // 2 + 1), "more_body": True} for _ in range(3)]
    assert await answered(driver, parts) == [413]


async def test_a_client_that_leaves_while_sending_changes_nothing(driver):
    body = b'{"items":[{"queue":"q","payload":1}]}'
    parts = [{"type": "http.request", "body": body, "more_body": True}, {"type": "http.disconnect"}]
    assert await answered(driver, parts) == []
    assert await driver.pop() == []


async def test_an_unexpected_failure_is_500_and_the_broker_lives_on(driver_type, caplog):
    class Broken(reference_broker.Engine):
        def append(self, items, now_ms):
            raise ZeroDivisionError

    driver = driver_type(Broken)
    body = {"items": [{"queue": "q", "payload": 1}]}
    assert (await driver.call("POST", "/api/v1/push", body)).status == 500
    assert "ZeroDivisionError" in caplog.text
    assert await driver.pop() == []


async def test_the_server_can_start_and_stop_it(driver):
    messages = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
    sent = []

    async def receive():
        return messages.pop(0)

    async def send(message):
        sent.append(message["type"])

    await driver.broker({"type": "lifespan", "asgi": {"version": "3.0"}}, receive, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


async def test_many_requests_at_once_are_all_answered(driver):
    await asyncio.gather(*(driver.push(f"m{number}") for number in range(50)))
    assert len(await driver.pop()) == 50


def test_the_public_list_is_sorted_and_there():
    assert reference_broker.__all__ == sorted(reference_broker.__all__)
    assert all(hasattr(reference_broker, name) for name in reference_broker.__all__)
