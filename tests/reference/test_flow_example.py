"""The example flow: it holds on a correct broker, and it says so when a broker loses or reorders."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from client import BrokerClient
from reference_broker import create_app

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "multi_queue_flow.py"
RUN_S = 60

needs_official_client = pytest.mark.skipif(
    importlib.util.find_spec("queen") is None, reason="the official client queen-mq is not installed"
)


def run(*options: str) -> subprocess.CompletedProcess[str]:
    """The example as a user runs it."""
    return subprocess.run(
        [sys.executable, str(EXAMPLE), "--orders", "60", "--customers", "5", *options],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )


# As a user runs it ------------------------------------------------------------------------------------------------


def test_flow_holds_on_the_embedded_broker() -> None:
    result = run()
    assert result.returncode == 0, result.stdout + result.stderr
    assert "billed 60 orders, pushed 60 shipments" in result.stdout
    assert "all checks held" in result.stdout
    assert result.stderr == ""


def test_embedded_broker_is_ended() -> None:
    port = int(re.search(r"http://127\.0\.0\.1:(\d+)", run("--orders", "1").stdout)[1])  # type: ignore[index]
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_crash_between_push_and_ack_ships_twice_and_loses_nothing() -> None:
    result = run("--crash")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "billed 60 orders, pushed 61 shipments" in result.stdout
    assert "crashed at order" in result.stdout
    assert "got 61 shipments" in result.stdout


def test_flow_that_is_told_to_stop_cleans_up(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "TMPDIR": str(tmp_path)}
    command = [sys.executable, str(EXAMPLE), "--orders", "100000"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        port = int(re.search(r"http://127\.0\.0\.1:(\d+)", process.stdout.readline())[1])  # type: ignore[index]
        process.terminate()
        _, told = process.communicate(timeout=RUN_S)
    assert process.returncode == 2
    assert told == "stopped before the end; the queues are deleted\n"
    assert list(tmp_path.iterdir()) == []
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


@needs_official_client
@pytest.mark.parametrize("crash", [[], ["--crash"]], ids=["plain", "crash"])
def test_flow_holds_with_the_official_client(crash: list[str]) -> None:
    result = run("--client", "official", *crash)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "all checks held" in result.stdout


# In this process, against a broker with a fault ---------------------------------------------------------------------


class Faulty(httpx.AsyncBaseTransport):
    """The reference broker in process, behind a `fault` that may answer or change a request; keeps the deletions."""

    def __init__(self, app: Any, fault: Fault) -> None:
        self._broker = httpx.ASGITransport(app)
        self._fault = fault
        self.deleted: list[str] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.method == "DELETE":
            self.deleted.append(request.url.path.rpartition("/")[2])
        faked = self._fault(request, None)
        if faked is not None:
            return faked
        response = await self._broker.handle_async_request(request)
        body = await response.aread()
        answer = httpx.Response(response.status_code, content=body)
        return self._fault(request, answer) or answer


Fault = Callable[[httpx.Request, httpx.Response | None], httpx.Response | None]
Play = Callable[..., int]


@pytest.fixture
def example() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("multi_queue_flow", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture
def play(
    example: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Fault], tuple[int, Faulty]]]:
    broker = create_app(tmp_path)
    connect = BrokerClient.connect

    def with_fault(fault: Fault) -> tuple[int, Faulty]:
        transport = Faulty(broker, fault)
        monkeypatch.setattr(
            BrokerClient, "connect", lambda url, **options: connect(url, transport=transport, **options)
        )
        options = ["--url", "http://broker.test", "--orders", "20", "--customers", "2", "--idle-millis", "600"]
        return example.main(options), transport

    yield with_fault
    broker.close()


def lose_push_to(queue: str, number: int) -> Fault:
    """Answers push `number` to a queue as if it were stored, and does not store it."""
    count = 0

    def fault(request: httpx.Request, answer: httpx.Response | None) -> httpx.Response | None:
        nonlocal count
        if answer is not None or not request.url.path.endswith("/push"):
            return None
        items = json.loads(request.content)["items"]
        if not items[0]["queue"].startswith(queue):
            return None
        count += 1
        if count != number:
            return None
        stored = [
            {"index": index, "message_id": "m", "transaction_id": "t", "status": "queued"}
            for index in range(len(items))
        ]
        return httpx.Response(201, json=stored)

    return fault


def test_flow_holds_in_process(play: Callable[[Fault], tuple[int, Faulty]]) -> None:
    code, transport = play(lambda request, answer: None)
    assert code == 0
    assert sorted(name.partition("-")[0] for name in transport.deleted) == ["orders", "shipping"]


@pytest.mark.parametrize(
    ("queue", "number", "told"),
    [("shipping", 7, "never came to warehouse"), ("orders", 2, "was never billed")],
)
def test_lost_message_is_told_and_does_not_hang(
    queue: str, number: int, told: str, play: Callable[[Fault], tuple[int, Faulty]], capsys: pytest.CaptureFixture[str]
) -> None:
    began_s = time.monotonic()
    code, transport = play(lose_push_to(queue, number))
    assert code == 1
    assert told in capsys.readouterr().out
    assert len(transport.deleted) == 2
    assert time.monotonic() - began_s < 20


def test_reordered_messages_are_told(
    play: Callable[[Fault], tuple[int, Faulty]], capsys: pytest.CaptureFixture[str]
) -> None:
    def reverse(request: httpx.Request, answer: httpx.Response | None) -> httpx.Response | None:
        if answer is None or answer.status_code != 200 or "analytics" not in request.url.query.decode():
            return None
        body = answer.json()
        body["messages"].reverse()
        return httpx.Response(200, json=body)

    code, _ = play(reverse)
    assert code == 1
    assert "analytics saw the orders of customer-" in capsys.readouterr().out


def test_push_without_answer_ends_the_flow_and_cleans_up(
    play: Callable[[Fault], tuple[int, Faulty]], capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(request: httpx.Request, answer: httpx.Response | None) -> httpx.Response | None:
        if request.url.path.endswith("/push"):
            raise httpx.ReadError("connection reset")
        return None

    code, transport = play(broken)
    told = capsys.readouterr().err
    assert code == 2
    assert "the flow broke off" in told
    assert "connection reset" in told
    assert len(transport.deleted) == 2


# What cannot be run -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["127.0.0.1:6632", "http://127.0.0.1:port"])
@pytest.mark.parametrize("client", ["ours", "official"])
def test_wrong_url_is_one_sentence(
    url: str, client: str, example: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    if client == "official":
        pytest.importorskip("queen", reason="the official client queen-mq is not installed")
    assert example.main(["--url", url, "--client", client]) == 2
    told = capsys.readouterr().err
    assert url in told
    assert told.count("\n") == 1


def test_missing_official_client_is_one_sentence(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "queen", None)
    assert example.main(["--client", "official"]) == 2
    assert capsys.readouterr().err == "the official client is not installed; try: pip install queen-mq\n"


def test_broker_that_is_not_there_is_told(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        assert example.main(["--url", url]) == 2
    assert "the flow broke off: CallFailedError" in capsys.readouterr().err


def test_broker_that_does_not_start_is_told(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(example.sys, "executable", "true")
    assert example.main([]) == 2
    assert "the reference broker did not start" in capsys.readouterr().err


@pytest.mark.parametrize("orders", ["0", "-1", "x", "1.5", "10000000"])
def test_wrong_number_is_named(orders: str, example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        example.main(["--orders", orders])
    assert left.value.code == 2
    assert repr(orders) in capsys.readouterr().err


# The checks themselves --------------------------------------------------------------------------------------------


def books_of(example: ModuleType, **changes: Any) -> Any:
    """Four orders of two customers that went through."""
    seen = {"customer-0": [0, 2], "customer-1": [1, 3]}
    books = example.Books(4, 2, False, billed={0, 1, 2, 3}, analytics=dict(seen), warehouse=dict(seen))
    for name, value in changes.items():
        setattr(books, name, value)
    return books


def test_right_books_have_no_failure(example: ModuleType) -> None:
    assert list(example.failures(books_of(example))) == []


def test_repetition_is_no_failure(example: ModuleType) -> None:
    again = {"customer-0": [0, 2, 0, 2], "customer-1": [1, 1, 3]}
    assert list(example.failures(books_of(example, warehouse=again))) == []


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"billed": {0, 1, 2}}, "order 3 was never billed"),
        (
            {"analytics": {"customer-0": [2, 0], "customer-1": [1, 3]}},
            "analytics saw the orders of customer-0 out of order",
        ),
        ({"warehouse": {"customer-0": [0, 2], "customer-1": [3]}}, "shipment 1 never came to warehouse for customer-1"),
        ({"warehouse": {"customer-0": [0, 2, 1], "customer-1": [1, 3]}}, "do not belong there: 1"),
        ({"warehouse": {"customer-0": [0, 2], "customer-1": [1, 3], "Default": [9]}}, "do not belong there: 9"),
        ({"crash": True}, "billing never came to the order"),
        ({"crash": True, "crashed_at": 2}, "order 2 was pushed twice and arrived 1 times"),
    ],
)
def test_wrong_books_are_told(example: ModuleType, changes: dict[str, Any], told: str) -> None:
    found = list(example.failures(books_of(example, **changes)))
    assert len(found) == 1
    assert told in found[0]
