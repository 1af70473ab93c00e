"""The URL target against the reference broker as a process: probing, lanes, faults on the wire, cleaning up."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from client import PushItem
from contract import history
from contract.errors import CouldNotJudge
from contract.history import EffectEnd, Invoke, Note, PhaseEnd, Return
from contract.profile import QUEEN_2
from contract.targets import Url
from contract.targets import url as url_module
from strategies import schedule as s

ROOT = Path(__file__).parents[2]

PUSH = s.Push((s.Item(),))
GROUPS = (s.Group("A", "all"), s.Group("B", "new"))


class Server:
    """A reference broker in a process of its own, ended by its id."""

    def __init__(self, data: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "reference_broker", "--data", str(data), "--port", "0"],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().split()[-1]
        self.wait_until_healthy()

    def wait_until_healthy(self) -> None:
        for _ in range(200):
            try:
                if httpx.get(self.url + "/health").status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.05)
        raise AssertionError("the broker did not start")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(10)
        if self.process.stdout is not None:
            self.process.stdout.close()

    def messages(self, queue: str) -> list[Any]:
        """Everything in a queue, read from the start by a group of the test's own."""
        answer = httpx.get(
            f"{self.url}/api/v1/pop/queue/{queue}",
            params={"consumerGroup": f"reader-{time.monotonic_ns()}", "subscriptionMode": "all", "autoAck": "true",
                    "partitions": "0"},
        )  # fmt: skip
        return [] if answer.status_code == 204 else [message["data"] for message in answer.json()["messages"]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = Server(tmp_path_factory.mktemp("broker"))
    yield started
    started.end()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real time is dear: this broker is at rest milliseconds after its last answer."""
    changed = msgspec.structs.replace(QUEEN_2, late_effect_s=0.05, wildcard_settle_s=0.05, named_settle_s=0.05)
    monkeypatch.setattr(url_module, "for_version", lambda _: changed)


def of(played: history.History, kind: type) -> list[Any]:
    return [event for event in played.events if isinstance(event, kind)]


def play(server: Server, *steps: s.Step, **world: Any) -> history.History:
    return Url(server.url).play(s.Schedule(steps, **world))


def returned(played: history.History, step: str) -> Return:
    call = next(event.call for event in of(played, Invoke) if event.step == step)
    found: Return = next(event for event in of(played, Return) if event.call == call)
    return found


def queue_of(played: history.History) -> str:
    return played.header.queues[0]


# Probing --------------------------------------------------------------------------------------------------------------


def test_the_probe_finds_the_keys_of_real_answers(server: Server) -> None:
    found = Url(server.url).capabilities
    assert (found["offset"], found["deliveryAttempt"], found["smallest_lease_s"]) == (True, True, 1)


def test_the_target_is_described_with_its_version(server: Server) -> None:
    target = Url(server.url)
    assert target.describe == f"{server.url} (version {target.capabilities['version']})"


def test_a_password_in_the_url_is_never_shown(server: Server) -> None:
    target = Url(server.url.replace("http://", "http://user:secret@"))
    assert "secret" not in target.describe


def test_the_probe_leaves_nothing_behind(server: Server) -> None:
    target = Url(server.url, run_token="probing")
    target.probe()
    assert server.messages("bc-probing-probe-q") == []


def test_faults_of_the_broker_do_not_happen_here(server: Server) -> None:
    target = Url(server.url)
    assert (target.can("kill-broker"), target.can("lose-answer")) == (False, True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_nobody_at_the_address_cannot_be_judged() -> None:
    url = f"http://127.0.0.1:{_free_port()}"
    with pytest.raises(CouldNotJudge, match=rf"^no broker answers at {url} \(.*\); start it or correct the address$"):
        Url(url).probe()


@pytest.mark.parametrize("url", ["localhost:6632", "ftp://host", "http://", "http://host:99999"])
def test_an_address_that_is_none_cannot_be_judged(url: str) -> None:
    with pytest.raises(CouldNotJudge, match="give the address of a running broker"):
        Url(url)


def test_no_lane_cannot_be_judged() -> None:
    with pytest.raises(CouldNotJudge, match="0 lanes"):
        Url("http://127.0.0.1:1", lanes=0)


def test_a_file_of_authorities_that_is_not_there_cannot_be_judged(tmp_path: Path) -> None:
    with pytest.raises(CouldNotJudge, match=r"CA file .*nothing\.pem"):
        Url("https://127.0.0.1:1", ca_file=tmp_path / "nothing.pem")


@pytest.fixture
def other() -> Iterator[Callable[..., str]]:
    """Starts servers that are no brokers: each answers every request in one way."""
    running: list[ThreadingHTTPServer] = []

    def start(status: int, body: bytes, kind: str, *, only: str = "") -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                healthy = only and only not in self.path
                self.send_response(200 if healthy else status)
                text = b'{"status":"healthy","version":"2.0.0"}' if healthy else body
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_POST = do_DELETE = do_GET  # noqa: N815

            def log_message(self, format: str, *_: object) -> None:
                """Silent."""

        listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        running.append(listening)
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{listening.server_port}"

    yield start
    for listening in running:
        listening.shutdown()
        listening.server_close()


def test_a_web_page_is_no_broker(other: Callable[..., str]) -> None:
    with pytest.raises(CouldNotJudge, match=r"is not a broker .*check the address and the path prefix"):
        Url(other(200, b"<html>welcome</html>", "text/html")).probe()


def test_json_without_a_version_is_no_broker(other: Callable[..., str]) -> None:
    with pytest.raises(CouldNotJudge, match="without a version"):
        Url(other(200, b'{"status":"ok"}', "application/json")).probe()


def test_a_broker_that_wants_credentials_says_so(other: Callable[..., str]) -> None:
    with pytest.raises(CouldNotJudge, match=r"refuses us \(status 401\); give a valid token or header"):
        Url(other(401, b"no", "text/plain")).probe()


def test_a_broker_that_wants_credentials_for_pushes_says_so(other: Callable[..., str]) -> None:
    with pytest.raises(CouldNotJudge, match=r"refuses a first push \(status 401\)"):
        Url(other(401, b"no", "text/plain", only="/api/")).probe()


def test_a_broker_that_is_not_ready_cannot_be_judged(other: Callable[..., str]) -> None:
    with pytest.raises(CouldNotJudge, match="not ready"):
        Url(other(503, b'{"status":"starting","version":"1.3.0"}', "application/json")).probe()


# Playing --------------------------------------------------------------------------------------------------------------


def test_a_schedule_is_recorded_to_its_end(server: Server) -> None:
    played = play(server, PUSH, s.Pop(1, lease_s=1), s.Ack(1), groups=GROUPS)
    assert [event.complete for event in of(played, PhaseEnd)] == [True] * 4
    assert not played.cut


def test_every_history_can_be_read(server: Server) -> None:
    played = play(server, PUSH, s.Pop(1, lease_s=1), s.Ack(1), groups=GROUPS)
    assert history.parse(history.to_lines(played)) == played


def test_lanes_share_their_waiting(server: Server) -> None:
    target = Url(server.url, lanes=8)
    target.probe()
    began_s = time.monotonic()
    target.play_many([s.Schedule((s.Advance(1000),))] * 8)
    assert time.monotonic() - began_s < 4


def test_histories_come_in_the_order_of_the_schedules(server: Server) -> None:
    schedules = [s.Schedule((s.Advance(ms),)) for ms in (400, 10, 200)]
    played = Url(server.url, lanes=2).play_many(schedules)
    assert [found.header.schedule for found in played] == schedules


def test_no_two_schedules_share_a_name(server: Server) -> None:
    target = Url(server.url, lanes=2)
    played = target.play_many([s.Schedule((PUSH, s.Pop(1, lease_s=1)), 1, GROUPS)] * 3)
    played += target.play_many([s.Schedule((PUSH, s.Pop(1, lease_s=1)), 1, GROUPS)])
    names = [
        {event.request.group for event in of(found, Invoke) if hasattr(event.request, "group")} | {queue_of(found)}
        for found in played
    ]
    assert sum(len(found) for found in names) == len(set().union(*names))


def test_many_lanes_deliver_only_their_own(server: Server) -> None:
    played = Url(server.url, lanes=6).play_many(
        [s.Schedule((PUSH, PUSH, s.Pop(1, lease_s=1)), 1, (s.Group("A", "all"),))] * 6
    )
    assert [returned(found, "3").result.payloads for found in played] == [('{"n":1}', '{"n":2}')] * 6  # type: ignore[union-attr]


def test_what_is_written_is_what_is_returned(server: Server, tmp_path: Path) -> None:
    played = Url(server.url).play(s.Schedule((PUSH,)), path=tmp_path / "history.jsonl")
    assert history.read(tmp_path / "history.jsonl") == played


def test_no_schedules_need_no_broker_time(server: Server) -> None:
    assert Url(server.url).play_many([]) == []


# Faults on the wire ---------------------------------------------------------------------------------------------------


def test_a_lost_answer_was_acted_upon(server: Server) -> None:
    played = play(server, s.LoseAnswer(PUSH), s.Pop(1, lease_s=1), groups=(s.Group("A", "all"),))
    assert returned(played, "1").outcome == "unknown"
    assert returned(played, "2").result.payloads == ('{"n":1}',)  # type: ignore[union-attr]


def test_a_lost_answer_has_an_effect_end(server: Server) -> None:
    assert [(end.call, end.acted) for end in of(play(server, s.LoseAnswer(PUSH)), EffectEnd)] == [(1, None)]


def test_a_lost_request_never_acts(server: Server) -> None:
    played = play(server, s.LoseRequest(PUSH), s.Pop(1, lease_s=1), groups=(s.Group("A", "all"),))
    assert [(end.call, end.acted) for end in of(played, EffectEnd)] == [(1, False)]
    assert returned(played, "2").result == history.PopResult()


def test_a_delayed_request_acts_later(server: Server) -> None:
    played = play(
        server,
        s.DelayRequest(PUSH, ms=200),
        s.Pop(1, lease_s=1),
        s.Advance(500),
        s.Pop(2, lease_s=1),
        groups=(s.Group("A", "all"),),
    )
    assert returned(played, "2").result == history.PopResult()
    assert returned(played, "4").result.payloads == ('{"n":1}',)  # type: ignore[union-attr]


def test_a_delayed_answer_comes_later(server: Server) -> None:
    played = play(server, s.DelayAnswer(PUSH, ms=300))
    assert (returned(played, "1").outcome, returned(played, "1").at_us >= 300_000) == ("ok", True)


def test_a_repetition_stores_twice_what_has_no_id(server: Server) -> None:
    played = play(server, s.RepeatRequest(PUSH), s.Advance(200), s.Pop(1, lease_s=1), groups=(s.Group("A", "all"),))
    assert returned(played, "3").result.payloads == ('{"n":1}', '{"n":1}')  # type: ignore[union-attr]


def test_a_parked_pop_that_is_left_is_unknown_without_an_effect_end(server: Server) -> None:
    played = play(server, s.DropConnection(s.Pop(1, wait_ms=600, lease_s=1), ms=100), groups=(s.Group("A", "all"),))
    assert returned(played, "1").outcome == "unknown"
    assert of(played, EffectEnd) == []


def test_a_fault_of_the_broker_is_noted(server: Server) -> None:
    notes = [(note.step, note.text) for note in of(play(server, s.KillBroker()), Note)]
    assert ("1", "not supported: kill-broker") in notes


def test_a_stall_of_this_process_is_noted(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    slept = asyncio.sleep

    async def stalling(seconds: float) -> None:
        await slept(seconds)
        if seconds == 0.123:
            time.sleep(0.3)  # noqa: ASYNC251  (that is the point)

    monkeypatch.setattr(asyncio, "sleep", stalling)
    played = play(server, s.Advance(123), s.Advance(200))
    stalls = [int(note.text.removeprefix("stalled ")) for note in of(played, Note) if note.text.startswith("stalled")]
    assert max(stalls) >= 200


# Cleaning up ----------------------------------------------------------------------------------------------------------


def test_own_queues_are_deleted(server: Server) -> None:
    played = play(server, PUSH)
    assert server.messages(queue_of(played)) == []


def test_own_queues_are_deleted_after_a_failure(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def failing(world: Any, *_: Any) -> Any:
        await world.client("x").push([PushItem(world.queue, "p0", b"1")])
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(url_module, "run_schedule", failing)
    with pytest.raises(RuntimeError, match="a mistake of ours"):
        Url(server.url, run_token="failing").play(s.Schedule(()), path=tmp_path / "history.jsonl")
    assert server.messages("bc-failing-1-q") == []


def test_nothing_else_is_touched(server: Server) -> None:
    httpx.post(
        server.url + "/api/v1/push",
        json={"items": [{"queue": "somebody-else", "partition": "p0", "payload": {"n": 1}}]},
    )
    Url(server.url, lanes=4).play_many([s.Schedule((PUSH, s.Pop(1, lease_s=1), s.Ack(1)), 1, GROUPS)] * 4)
    assert server.messages("somebody-else") == [{"n": 1}]


INTERRUPTED = """
import sys
from pathlib import Path
from contract.targets import Url
from strategies import schedule as s
target = Url(sys.argv[1], run_token="interrupted", lanes=3)
target.probe()
print("playing", flush=True)
paths = [Path(sys.argv[2], str(number)) for number in range(3)]
target.play_many([s.Schedule((s.Push((s.Item(),)), s.Advance(60_000)))] * 3, paths=paths)
"""


def test_own_queues_are_deleted_after_ctrl_c(server: Server, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, server.url, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    with process.stdout:
        process.stdout.readline()
        _wait_for(lambda: all(server.messages(f"bc-interrupted-{number}-q") for number in (1, 2, 3)))
        process.send_signal(signal.SIGINT)
        assert process.wait(10) != 0
    assert [server.messages(f"bc-interrupted-{number}-q") for number in (1, 2, 3)] == [[], [], []]
    assert history.read(tmp_path / "0").cut


def _wait_for(condition: Callable[[], bool]) -> None:
    for _ in range(200):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("it did not happen within 10 s")


# A broker that dies ---------------------------------------------------------------------------------------------------


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[Server]:
    started = Server(tmp_path / "broker")
    yield started
    started.end()


def _kill_when_pushed(mortal: Server, queue: str) -> threading.Thread:
    def wait_and_kill() -> None:
        _wait_for(lambda: bool(mortal.messages(queue)))
        mortal.kill()

    thread = threading.Thread(target=wait_and_kill)
    thread.start()
    return thread


def test_a_broker_that_dies_cannot_be_judged(mortal: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(url_module, "BACK_AGAIN_S", 0.5)
    target = Url(mortal.url, run_token="dying", lanes=1)
    target.probe()
    paths = [tmp_path / "1.jsonl", tmp_path / "2.jsonl"]
    killer = _kill_when_pushed(mortal, "bc-dying-1-q")
    with pytest.raises(CouldNotJudge, match=r"stopped answering after 1 of 2 schedules .*is on disk; start it again"):
        target.play_many([s.Schedule((PUSH, s.Advance(1500), PUSH))] * 2, paths=paths)
    killer.join()
    kept = history.read(paths[0])
    phases = {event.name: event for event in of(kept, PhaseEnd)}
    assert (phases["drain"].complete, phases["audit"].complete) == (False, False)
    assert phases["drain"].why.startswith("the broker cannot be reached")
    assert target.left_behind == ["bc-dying-1-q"]


def test_paths_and_schedules_must_be_as_many(server: Server) -> None:
    with pytest.raises(ValueError, match="1 paths for 2 schedules"):
        Url(server.url).play_many([s.Schedule(()), s.Schedule(())], paths=[None])


def test_the_header_knows_broker_and_lane(server: Server) -> None:
    header = play(server).header
    assert (header.profile, header.lane, json.loads(json.dumps(header.capabilities))["offset"]) == ("2.x", 0, True)
    assert header.wall_clock.endswith("+00:00")
