"""The server side in this process: a request's task outlives its client, and only the broker's death ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from client import BrokerClient, Outcome
from contract import history
from contract.calls import EXTENSION, Ride
from contract.targets.faults import FaultTransport
from contract.targets.in_process import MAX_DELAY_MS, DirectASGI, LeanClient
from contract.targets.virtual_time import VirtualLoop, run
from strategies import schedule as s

PUSH = history.PushCall("q", ("p0",), (None,), ("1",))
STEP = s.Push((s.Item(),))


class App:
    """Answers GET /slow?s=N after N seconds, GET /park when its client leaves, everything else at once."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.checkpoint: Callable[[str], Awaitable[None]] | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"]
        self.seen.append("begin " + path)
        await receive()
        if path == "/slow":
            await asyncio.sleep(int(scope["query_string"][2:]))
        elif path == "/park":
            assert (await receive())["type"] == "http.disconnect"
        elif path == "/broken":
            raise ValueError("a mistake")
        elif path == "/child":
            self.child = asyncio.create_task(asyncio.sleep(3600))
        elif path == "/checkpoint" and self.checkpoint is not None:
            for _ in range(200):
                await self.checkpoint("commit")
        elif path == "/half":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            return
        self.seen.append("end " + path)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x-app", b"yes")]})
        await send({"type": "http.response.body", "body": b"part", "more_body": True})
        await send({"type": "http.response.body", "body": path.encode()})


class Bench:
    """An application behind the transports, on a virtual loop."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.app = App()
        self.errors: list[Exception] = []
        self.server = DirectASGI(self.app, failed=self.errors.append)
        self.app.checkpoint = self.server.checkpoint
        self.transport = FaultTransport(self.server, settles=lambda _: False)
        self.http = LeanClient(self.transport)
        self.ended: list[tuple[int, bool | None]] = []
        self.server.follow_tasks(loop)

    def ride(self, fault: s.Faulty | None = None, jitter: int = 0) -> Ride:
        ride = Ride(1, PUSH, jitter, fault, lambda ride: self.ended.append((loop_us(self.loop), ride.acted)))
        ride.outcome_is_unknown()
        return ride

    async def get(self, path: str, fault: s.Faulty | None = None, *, ride: Ride | None = None) -> httpx.Response:
        extensions = {EXTENSION: ride or self.ride(fault)}
        return await self.http.send(httpx.Request("GET", "http://broker" + path, extensions=extensions))


def loop_us(loop: VirtualLoop) -> int:
    return loop.now_us


def on_bench(main: Callable[[Bench], Awaitable[Any]]) -> Bench:
    async def inner(loop: VirtualLoop) -> Bench:
        bench = Bench(loop)
        await main(bench)
        return bench

    return run(inner)


# Plain requests -------------------------------------------------------------------------------------------------------


def test_an_answer_comes_back_whole() -> None:
    async def main(bench: Bench) -> None:
        answer = await bench.get("/a%20b")
        assert (answer.status_code, answer.content, answer.headers["x-app"]) == (200, b"part/a b", "yes")

    on_bench(main)


def test_an_exception_of_the_application_is_a_500() -> None:
    async def main(bench: Bench) -> None:
        answer = await bench.get("/broken")
        assert answer.status_code == 500

    assert [str(error) for error in on_bench(main).errors] == ["a mistake"]


def test_an_answer_that_breaks_off_is_a_broken_connection() -> None:
    async def main(bench: Bench) -> None:
        with pytest.raises(httpx.ReadError):
            await bench.get("/half")

    on_bench(main)


def test_a_client_that_gives_up_does_not_cancel_the_application() -> None:
    async def main(bench: Bench) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await bench.get("/slow?s=5")
        await asyncio.sleep(10)

    bench = on_bench(main)
    assert bench.app.seen == ["begin /slow", "end /slow"]


def test_the_effect_ends_when_the_application_is_done_with_it() -> None:
    async def main(bench: Bench) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await bench.get("/slow?s=5")
        await asyncio.sleep(10)

    assert on_bench(main).ended == [(5_000_000, None)]


def test_the_application_learns_that_its_client_left() -> None:
    async def main(bench: Bench) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await bench.get("/park")
        await asyncio.sleep(1)

    assert on_bench(main).ended == [(2_000_000, None)]


# Faults of a request --------------------------------------------------------------------------------------------------


def test_a_lost_request_never_arrives() -> None:
    async def main(bench: Bench) -> None:
        with pytest.raises(httpx.ReadError):
            await bench.get("/x", s.LoseRequest(STEP))

    bench = on_bench(main)
    assert (bench.app.seen, bench.ended) == ([], [(0, False)])


def test_a_lost_answer_was_acted_upon() -> None:
    async def main(bench: Bench) -> None:
        with pytest.raises(httpx.ReadError):
            await bench.get("/slow?s=3", s.LoseAnswer(STEP))

    bench = on_bench(main)
    assert (bench.app.seen[-1], bench.ended) == ("end /slow", [(3_000_000, None)])


def test_a_delayed_request_fails_at_once_and_arrives_later() -> None:
    async def main(bench: Bench) -> None:
        with pytest.raises(httpx.ReadTimeout):
            await bench.get("/x", s.DelayRequest(STEP, ms=700))
        assert (bench.loop.now_us, bench.app.seen) == (0, [])
        assert await bench.transport.idle(10)

    bench = on_bench(main)
    assert (bench.app.seen, bench.ended) == (["begin /x", "end /x"], [(700_000, None)])


def test_a_delayed_request_to_a_broker_that_is_down_never_acts() -> None:
    async def main(bench: Bench) -> None:
        with pytest.raises(httpx.ReadTimeout):
            await bench.get("/x", s.DelayRequest(STEP, ms=700))
        await bench.server.kill()
        assert await bench.transport.idle(10)

    assert on_bench(main).ended == [(700_000, False)]


def test_a_delayed_answer_comes_later() -> None:
    async def main(bench: Bench) -> None:
        answer = await bench.get("/x", s.DelayAnswer(STEP, ms=900))
        assert (answer.status_code, bench.loop.now_us) == (200, 900_000)

    on_bench(main)


def test_a_client_that_leaves_too_early_gets_no_answer() -> None:
    async def main(bench: Bench) -> None:
        with pytest.raises(httpx.ReadError):
            await bench.get("/slow?s=1", s.DropConnection(STEP, ms=5))
        assert bench.loop.now_us == 5000
        await bench.server.idle(10)

    assert on_bench(main).ended == [(1_000_000, None)]


def test_a_client_that_leaves_late_has_its_answer() -> None:
    async def main(bench: Bench) -> None:
        answer = await bench.get("/slow?s=1", s.DropConnection(STEP, ms=1500))
        assert answer.status_code == 200

    on_bench(main)


def test_a_client_that_leaves_at_once_has_sent_its_request() -> None:
    async def main(bench: Bench) -> None:
        with pytest.raises(httpx.ReadError):
            await bench.get("/slow?s=1", s.DropConnection(STEP, ms=0))
        assert bench.loop.now_us == 0
        await bench.server.idle(10)

    assert on_bench(main).app.seen == ["begin /slow", "end /slow"]


def test_pending_requests_are_dropped_on_demand() -> None:
    async def main(bench: Bench) -> None:
        with pytest.raises(httpx.ReadTimeout):
            await bench.get("/x", s.DelayRequest(STEP, ms=700))
        await bench.transport.drop_pending()
        await asyncio.sleep(5)

    assert on_bench(main).app.seen == []


# Faults of the broker -------------------------------------------------------------------------------------------------


def test_a_kill_breaks_connections_and_ends_effects() -> None:
    async def main(bench: Bench) -> None:
        waiting = asyncio.create_task(bench.get("/slow?s=9"))
        await asyncio.sleep(1)
        await bench.server.kill()
        with pytest.raises(httpx.ReadError, match="the broker died"):
            await waiting

    bench = on_bench(main)
    assert (bench.ended, bench.app.seen) == ([(1_000_000, None)], ["begin /slow"])


def test_a_kill_ends_a_request_that_had_not_begun() -> None:
    async def main(bench: Bench) -> None:
        waiting = asyncio.create_task(bench.get("/x"))
        await asyncio.sleep(0)
        await bench.server.kill()
        with pytest.raises(httpx.ReadError):
            await waiting

    bench = on_bench(main)
    assert (bench.ended, bench.app.seen) == ([(0, None)], [])


def test_a_kill_ends_what_the_application_started_for_itself() -> None:
    async def main(bench: Bench) -> None:
        await bench.get("/child")
        await bench.server.kill()
        assert bench.app.child.cancelled()

    on_bench(main)


def test_after_a_kill_requests_are_refused() -> None:
    async def main(bench: Bench) -> None:
        await bench.server.kill()
        call = await BrokerClient(bench.http).health()
        assert call.outcome is Outcome.REFUSED

    on_bench(main)


def test_a_stop_lets_short_requests_end() -> None:
    async def main(bench: Bench) -> None:
        waiting = asyncio.create_task(bench.get("/slow?s=1"))
        await asyncio.sleep(0)
        await bench.server.stop(grace_s=2)
        assert (await waiting).status_code == 200

    on_bench(main)


def test_a_stop_breaks_long_requests_off() -> None:
    async def main(bench: Bench) -> None:
        waiting = asyncio.create_task(bench.get("/slow?s=5"))
        await asyncio.sleep(0)
        await bench.server.stop(grace_s=2)
        with pytest.raises(httpx.ReadError):
            await waiting
        assert bench.loop.now_us == 2_000_000

    on_bench(main)


def test_a_paused_broker_begins_nothing() -> None:
    async def main(bench: Bench) -> None:
        bench.server.pause()
        waiting = asyncio.create_task(bench.get("/x"))
        await asyncio.sleep(3)
        assert bench.app.seen == []
        bench.server.resume()
        await waiting

    assert on_bench(main).app.seen == ["begin /x", "end /x"]


def test_a_paused_broker_answers_nothing() -> None:
    async def main(bench: Bench) -> None:
        waiting = asyncio.create_task(bench.get("/slow?s=1"))
        await asyncio.sleep(0.5)
        bench.server.pause()
        await asyncio.sleep(3)
        assert not waiting.done()
        bench.server.resume()
        await waiting

    on_bench(main)


def test_a_paused_broker_stops_at_the_next_checkpoint() -> None:
    async def main(bench: Bench) -> None:
        bench.server.pause()
        passing = asyncio.create_task(bench.server.checkpoint("begin"))
        await asyncio.sleep(1)
        assert not passing.done()
        bench.server.resume()
        await passing

    on_bench(main)


def test_a_request_to_a_paused_broker_arrives_though_its_client_left() -> None:
    async def main(bench: Bench) -> None:
        bench.server.pause()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await bench.get("/x")
        bench.server.resume()
        await asyncio.sleep(1)

    assert on_bench(main).app.seen == ["begin /x", "end /x"]


# Interleaving ---------------------------------------------------------------------------------------------------------


async def _delays_us(bench: Bench, jitter: int) -> list[int]:
    found: list[int] = []

    async def measured(name: str) -> None:
        before = bench.loop.now_us
        await bench.server.checkpoint(name)
        found.append(bench.loop.now_us - before)

    bench.app.checkpoint = measured
    await bench.get("/checkpoint", ride=bench.ride(jitter=jitter))
    return found


def test_without_jitter_a_checkpoint_takes_no_time() -> None:
    async def main(bench: Bench) -> None:
        assert set(await _delays_us(bench, 0)) == {0}

    on_bench(main)


def test_about_half_of_the_delays_are_zero() -> None:
    async def main(bench: Bench) -> None:
        assert 70 <= (await _delays_us(bench, 7)).count(0) <= 130

    on_bench(main)


def test_delays_are_short_with_a_heavy_tail() -> None:
    async def main(bench: Bench) -> None:
        delays = await _delays_us(bench, 7)
        assert max(delays) <= MAX_DELAY_MS * 1000
        assert sum(0 < delay <= 3000 for delay in delays) > sum(delay > 3000 for delay in delays) > 0

    on_bench(main)


def test_one_seed_gives_the_same_delays_each_time() -> None:
    async def main(bench: Bench) -> None:
        assert await _delays_us(bench, 7) == await _delays_us(bench, 7)

    on_bench(main)


def test_another_seed_gives_other_delays() -> None:
    async def main(bench: Bench) -> None:
        assert await _delays_us(bench, 7) != await _delays_us(bench, 8)

    on_bench(main)
