"""The target for an ASGI application in this process: virtual time, kills, lifespan, and applications that are none."""

from __future__ import annotations

import asyncio
import datetime
import itertools
import json
import random
import sys
import threading
import time
import types
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from contract import history
from contract.cli import exit_code
from contract.errors import CouldNotJudge
from contract.explore import explore
from contract.finding import Found, investigate
from contract.history import Fault, Invoke, Note, PhaseEnd, Return
from contract.judge import judge
from contract.targets import App, Simulated, deterministic
from contract.targets import virtual_time as virtual_time_module
from reference_broker import Engine, create_app
from strategies import schedule as s

GROUPS = (s.Group("G", "all"), s.Group("H", "new"))
PUSH = s.Push((s.Item(), s.Item(1)))


def reference(folder: str, **options: Any) -> Any:
    """The reference broker without what makes it repeat itself: its ids are its own."""
    return create_app(folder, **options)


def target(factory: Callable[[str], Any] = reference) -> App:
    return App(factory, name="shop.broker:make")


def play(*steps: s.Step, factory: Callable[[str], Any] = reference) -> history.History:
    return target(factory).play(s.Schedule(steps, 2, GROUPS))


def of(played: history.History, kind: type) -> list[Any]:
    return [event for event in played.events if isinstance(event, kind)]


def refused(factory: Callable[[str], Any]) -> str:
    with pytest.raises(CouldNotJudge) as caught:
        target(factory).capabilities  # noqa: B018
    sentence = str(caught.value)
    assert sentence.count("shop.broker:make") == 1
    assert "\n" not in sentence
    return sentence


# Playing --------------------------------------------------------------------------------------------------------------


def test_it_is_described_by_its_name_and_version() -> None:
    assert target().describe == "shop.broker:make (in process, version 2.0.0-reference)"


def test_the_probe_finds_the_keys_of_real_answers() -> None:
    found = target().capabilities
    assert (found["offset"], found["deliveryAttempt"], found["smallest_lease_s"]) == (True, True, 1)


def test_its_leases_take_virtual_time() -> None:
    begin_s = time.monotonic()
    played = play(PUSH, s.Pop(1, partition=0, lease_s=600), s.Advance(601_000), s.Pop(2, partition=0))
    assert time.monotonic() - begin_s < 5
    first, again = [event.result for event in of(played, Return) if isinstance(event.result, history.PopResult)][:2]
    assert first.message_ids == again.message_ids != ()


def test_a_kill_calls_the_factory_again_with_the_same_folder() -> None:
    folders: list[str] = []

    def factory(folder: str) -> Any:
        folders.append(folder)
        return reference(folder)

    app = target(factory)
    app.probe()
    folders.clear()
    played = app.play(s.Schedule((PUSH, s.KillBroker(50), s.Pop(1)), 2, GROUPS))
    assert len(folders) == 2
    assert len(set(folders)) == 1
    assert not Path(folders[0]).exists()
    assert judge(played).failed == ()


def test_a_kill_ends_what_is_under_way_and_what_the_application_does_besides() -> None:
    alive: list[asyncio.Task[None]] = []

    def factory(folder: str) -> Any:
        alive.append(asyncio.get_running_loop().create_task(asyncio.sleep(10_000)))
        return reference(folder)

    lanes = s.Parallel(((s.Pop(0, wait_ms=5000),), (s.Advance(100), s.KillBroker())))
    played = play(lanes, factory=factory)
    assert of(played, Return)[0].outcome == "unknown"
    assert alive[-2].cancelled()


def test_a_restart_and_a_pause_are_played() -> None:
    played = play(PUSH, s.RestartBroker(), s.PauseBroker(300), s.Pop(1))
    assert [fault.what for fault in of(played, Fault)] == ["stop", "start", "pause", "resume"]
    assert judge(played).failed == ()


def test_storage_faults_cannot_be_had() -> None:
    assert (target().can("kill-broker"), target().can("storage-fault")) == (True, False)


def test_drawn_delays_are_on_the_network() -> None:
    played = play(*[s.Push((s.Item(),), jitter=jitter) for jitter in range(1, 20)])
    pushed = {event.call: event.at_us for event in of(played, Invoke) if event.step}
    assert any(event.at_us > pushed[event.call] for event in of(played, Return) if event.call in pushed)


def test_a_correct_application_stays_clean() -> None:
    exploration = explore(target(), seed=5, schedules=60)
    assert exploration.failures == ()
    assert exploration.schedules == 60


class Forgetful(Engine):
    """An ack moves no cursor."""

    def save_lane(self, lane: Any) -> None:
        lane.committed = -1
        super().save_lane(lane)


def test_a_defect_is_found_and_made_small() -> None:
    app = target(lambda folder: reference(folder, engine=Forgetful))
    schedule = s.Schedule((PUSH, s.Pop(1), s.Ack(1, (s.AckItem(9),)), s.Pop(2), s.Pop(3)), 2, GROUPS)
    played = app.play(schedule)
    assert judge(played).failed
    failure = investigate(Found(schedule, played, judge(played), 0.0), app)
    assert (failure.seen, failure.tries) == (1, 1)
    assert len(failure.schedule.steps) <= 3


# Determinism ----------------------------------------------------------------------------------------------------------


def test_an_application_that_invents_ids_is_deterministic_all_the_same() -> None:
    assert deterministic(target())


def test_two_plays_differ_in_ids_only() -> None:
    first, second = play(PUSH, s.Pop(1)), play(PUSH, s.Pop(1))
    ids = [of(played, Return)[0].result.message_ids for played in (first, second)]
    assert ids[0] != ids[1]
    assert [event.at_us for event in first.events] == [event.at_us for event in second.events]


def moody(folder: str, **options: Any) -> Any:
    """An application that takes its time as it likes."""
    broker, mood = reference(folder, **options), random.Random(uuid.uuid4().int)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(mood.randrange(1000) / 10_000)
        await broker(scope, receive, send)

    return app


def test_an_application_that_does_not_do_the_same_twice_is_confirmed_more_often() -> None:
    app = target(moody)
    assert not deterministic(app)
    schedule = s.Schedule((PUSH, s.Pop(1), s.Ack(1, (s.AckItem(9),)), s.Pop(2)), 2, GROUPS)
    broken = target(lambda folder: moody(folder, engine=Forgetful))
    played = broken.play(schedule)
    failure = investigate(Found(schedule, played, judge(played), 0.0), broken, shrink_s=0.0)
    assert failure.tries >= 3


def test_the_reference_target_is_deterministic() -> None:
    assert deterministic(Simulated())


# Clocks and threads ---------------------------------------------------------------------------------------------------


class RealClock:
    """A clock that cannot be set from outside."""

    def now_ms(self) -> int:
        return int(datetime.datetime.now(datetime.UTC).timestamp() * 1000)


def test_an_application_with_a_clock_that_cannot_be_set_is_refused() -> None:
    assert "reads a clock that cannot be set" in refused(lambda folder: reference(folder, clock=RealClock()))


def threaded(folder: str) -> Any:
    """An application that answers from a thread which the event loop does not know."""
    broker = reference(folder)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def work() -> None:
            time.sleep(0.002)
            loop.call_soon_threadsafe(done.set)

        threading.Thread(target=work).start()
        await done.wait()
        await broker(scope, receive, send)

    return app


def test_threads_of_the_application_are_waited_for() -> None:
    played = play(PUSH, s.Pop(1), s.Ack(1), factory=threaded)
    assert {event.outcome for event in of(played, Return)} == {"ok"}
    assert judge(played).failed == ()


# Lifespan -------------------------------------------------------------------------------------------------------------


class Lived:
    """An application that counts its lifespan events and needs what its start made."""

    def __init__(self, folder: str, *, fails: str = "") -> None:
        self.events: list[str] = []
        self.fails = fails
        self._broker = reference(folder)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            assert scope["state"]["ready"] is True
            await self._broker(scope, receive, send)
            return
        while True:
            event = (await receive())["type"]
            self.events.append(event)
            if event == "lifespan.startup" and self.fails:
                await send({"type": "lifespan.startup.failed", "message": self.fails})
                return
            scope["state"]["ready"] = True
            await send({"type": f"{event}.complete"})
            if event == "lifespan.shutdown":
                return


def test_it_is_told_of_its_start_and_stop() -> None:
    made: list[Lived] = []

    def factory(folder: str) -> Any:
        made.append(Lived(folder))
        return made[-1]

    play(PUSH, s.KillBroker(), s.RestartBroker(), factory=factory)
    events = [app.events for app in made[-3:]]
    assert events == [
        ["lifespan.startup"],  # killed
        ["lifespan.startup", "lifespan.shutdown"],
        ["lifespan.startup", "lifespan.shutdown"],
    ]


def test_one_that_refuses_to_start_is_refused() -> None:
    assert "startup failed: no disk" in refused(lambda folder: Lived(folder, fails="no disk"))


def test_one_that_does_not_come_back_after_a_kill_cannot_be_judged() -> None:
    def factory(folder: str) -> Any:
        seen = Path(folder) / "seen"
        if seen.exists():
            raise OSError("cannot read my own data")
        seen.touch()
        return reference(folder)

    with pytest.raises(CouldNotJudge, match="raised OSError: cannot read my own data when called again on its folder"):
        play(PUSH, s.KillBroker(), s.Pop(1), factory=factory)


# Applications that are none -------------------------------------------------------------------------------------------


def raising(folder: str) -> Any:
    raise RuntimeError("no\nconfig")


def wsgi(environ: Any, start_response: Any) -> list[bytes]:
    return [b"hello"]


@pytest.mark.parametrize(
    ("factory", "word"),
    [
        (raising, "raised RuntimeError: no config when called"),
        (lambda: None, "raised TypeError"),
        (lambda folder: None, "returned an object of type NoneType, not an ASGI application"),
        (lambda folder: sys.exit(3), "raised SystemExit: 3"),
        (lambda folder: wsgi, "raised TypeError"),
        (lambda folder: lambda scope, receive, send: None, "raised TypeError"),
    ],
)
def test_a_factory_of_no_application_is_refused_in_a_sentence(factory: Callable[..., Any], word: str) -> None:
    assert word in refused(factory)


def test_a_factory_may_be_a_coroutine() -> None:
    async def factory(folder: str) -> Any:
        return reference(folder)

    assert judge(play(PUSH, factory=factory)).failed == ()


@pytest.fixture
def module() -> Iterator[Callable[[str], None]]:
    """Makes a module that can be imported, from its text."""
    made = types.ModuleType("shop_broker")

    def make(text: str) -> None:
        exec(text, made.__dict__)

    sys.modules["shop_broker"] = made
    yield make
    del sys.modules["shop_broker"]


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("shop_broker", "names no factory"),
        ("shop_broker:", "names no factory"),
        (":make", "names no factory"),
        ("no_such_shop:make", "No module named 'no_such_shop'"),
        ("shop_broker:makes", "has no attribute 'makes'"),
        ("shop_broker:LIMIT", "is no factory but an object of type int"),
    ],
)
def test_a_name_that_cannot_be_loaded_is_exit_2(
    name: str, word: str, module: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    module("LIMIT = 3")
    assert exit_code(["run", "--broker-app", name]) == 2
    complaint = capsys.readouterr().err
    assert word in complaint
    assert len(complaint.strip().splitlines()) == 1


def test_the_command_line_runs_an_application(
    module: Callable[[str], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module("from reference_broker import create_app as make")
    words = ["run", "--broker-app", "shop_broker:make", "--schedules", "20", "--broker-seed", "3"]
    assert exit_code([*words, "--failures-dir", str(tmp_path)]) == 0
    assert "shop_broker:make (in process, version 2.0.0-reference)" in capsys.readouterr().out


# Bad answers in the middle --------------------------------------------------------------------------------------------


def nonsense(answer: Callable[[Any, Any], Any]) -> Callable[[str], Any]:
    """The reference broker, but `answer(scope, send)` takes over from its tenth request on pushes, pops and acks."""

    def factory(folder: str) -> Any:
        broker, count = reference(folder), [0]

        async def app(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http" and scope["path"].startswith("/api/v1/"):
                count[0] += 1
                if count[0] > 12:
                    await answer(scope, send)
                    return
            await broker(scope, receive, send)

        return app

    return factory


def saying(status: Any, body: bytes, content_type: bytes = b"application/json") -> Callable[[Any, Any], Any]:
    async def answer(scope: Any, send: Any) -> None:
        headers = [(b"content-type", content_type)]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return answer


async def hang(scope: Any, send: Any) -> None:
    await asyncio.sleep(10**9)


async def half(scope: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b'{"messages":[', "more_body": True})


async def nothing(scope: Any, send: Any) -> None:
    """Returns without an answer."""


async def burst(scope: Any, send: Any) -> None:
    raise RuntimeError("broken\nin the middle")


async def leave(scope: Any, send: Any) -> None:
    sys.exit(1)


MESSAGE = {"id": "x", "transactionId": "y", "partition": "p0", "partitionId": "z", "leaseId": "l", "data": 1}
JSON = [
    None, True, 7, -0.5, "text", "", [], {}, [[]], [None], [1, "a"], {"messages": None}, {"messages": 3},
    {"messages": [None]}, {"messages": ["a"]}, {"messages": [{}]}, {"messages": {"0": {}}}, {"success": "yes"},
    {"success": True, "messages": [MESSAGE | {"partition": 7}]}, {"messages": [MESSAGE | {"id": None}]},
    {"messages": [MESSAGE | {"deliveryAttempt": "once", "offset": -1}]}, {"messages": [MESSAGE] * 300},
    [{"index": "zero"}], [{"index": 5, "status": "queued"}], [{"status": 9, "message_id": []}],
    [{"index": 0, "status": "queued", "message_id": "x", "offset": "first"}],
    [{"index": 0, "success": 1, "error": {}, "noop": "no", "dlq": [], "leaseReleased": 0}],
    {"renewed": "all", "success": None}, {"error": {"nested": [1]}}, {"error": "\ud800"},
]  # fmt: skip
STATUSES = (100, 199, 203, 206, 299, 301, 304, 418, 429, 499, 599, 999)
ANSWERS = {
    **{f"json {json.dumps(value)[:40]}": saying(200, json.dumps(value).encode()) for value in JSON},
    **{f"created {json.dumps(value)[:40]}": saying(201, json.dumps(value).encode()) for value in JSON[:8]},
    **{f"status {status}": saying(status, b"{}") for status in STATUSES},
    "status words": saying("200 OK", b""),
    "status none": saying(None, b""),
    "status zero": saying(0, b""),
    "html": saying(200, b"<html><body>It works!</body></html>", b"text/html"),
    "html error": saying(502, b"<html>Bad gateway</html>", b"text/html; charset=nonsense"),
    "bytes": saying(200, b"\x00\xff\xfe"),
    "torn": saying(200, b'{"messages": [{"id": "a'),
    "deep": saying(200, b"[" * 100_000),
    "huge number": saying(200, b'{"messages": 1' + b"0" * 10_000 + b"}"),
    "empty": saying(200, b""),
    "204 with a body": saying(204, b'{"messages": [{}]}'),
    "hang": hang,
    "half": half,
    "nothing": nothing,
    "burst": burst,
    "leave": leave,
}
LONG = s.Schedule(
    (
        PUSH,
        s.Pop(0, lease_s=1),
        s.Ack(0),
        s.Parallel(((s.Push((s.Item(),), jitter=3), s.Pop(1)), (s.Pop(2, group=1, wait_ms=300), s.Ack(2, batch=True)))),
        PUSH,
        s.Pop(3),
        s.Ack(3),
        s.Extend(3),
        s.Configure(lease_time_s=2),
        s.Storm(operations=10, pushers=2, kill_at=50),
        s.RepeatRequest(PUSH),
        s.LoseAnswer(s.Pop(4)),
    ),
    2,
    GROUPS,
)


@pytest.mark.parametrize("name", ANSWERS)
def test_nonsense_in_the_middle_is_recorded_and_judged_without_a_crash(
    name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    played = target(nonsense(ANSWERS[name])).play(LONG)
    assert not played.cut
    assert [end.name for end in of(played, PhaseEnd)] == ["schedule", "heal", "audit", "drain"]
    judgement = judge(played)
    assert [rule for rule in judgement.rules if rule.verdict.name == "ERROR"] == []
    assert list(history.parse(history.to_lines(played)).events) == list(played.events)
    assert "Traceback" not in capfd.readouterr().err


def test_what_the_application_lets_out_stands_in_the_history() -> None:
    played = target(nonsense(burst)).play(LONG)
    assert "the broker raised RuntimeError: broken\nin the middle" in [note.text for note in of(played, Note)]


@pytest.mark.parametrize("name", ["html", "json null", "status 418", "hang", "nothing", "burst", "leave"])
def test_one_that_says_nonsense_from_the_start_is_refused_in_a_sentence(name: str) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await ANSWERS[name](scope, send)

    refused(lambda folder: app)


def test_one_that_never_waits_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual_time_module, "BUSY_LIMIT_S", 0.3)

    async def spin(scope: Any, send: Any) -> None:
        for _ in itertools.count():
            await asyncio.sleep(0)

    with pytest.raises(CouldNotJudge, match="is stuck"):
        target(nonsense(spin)).play(LONG)
