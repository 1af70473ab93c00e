"""The virtual clock: it jumps, it never drifts, it says when nothing can happen any more."""

from __future__ import annotations

import asyncio
import gc
import time
import warnings

import pytest

from contract.targets.virtual_time import DeadlockError, VirtualLoop, run


def test_an_hour_costs_no_real_time() -> None:
    async def main(loop: VirtualLoop) -> int:
        await asyncio.sleep(3600)
        return loop.now_us

    began_s = time.monotonic()
    assert run(main) == 3_600_000_000
    assert time.monotonic() - began_s < 1


def test_a_wait_of_many_days_ends_at_its_time() -> None:
    async def main(loop: VirtualLoop) -> int:
        await asyncio.sleep(1_000_000)  # asyncio itself never waits longer than a day at once
        return loop.now_us

    assert run(main) == 1_000_000_000_000


def test_waits_add_up_without_drift() -> None:
    async def main(loop: VirtualLoop) -> int:
        for _ in range(1000):
            await asyncio.sleep(0.001)
        return loop.now_us

    assert run(main) == 1_000_000


def test_time_stands_still_while_tasks_work() -> None:
    async def main(loop: VirtualLoop) -> int:
        for _ in range(100):
            await asyncio.sleep(0)
        return loop.now_us

    assert run(main) == 0


def test_sleepers_wake_in_the_order_of_their_times() -> None:
    woken: list[int] = []

    async def sleeper(number: int) -> None:
        await asyncio.sleep(number / 1000)
        woken.append(number)

    async def main(loop: VirtualLoop) -> None:
        await asyncio.gather(*(sleeper(number) for number in (3, 1, 2)))

    run(main)
    assert woken == [1, 2, 3]


def test_a_deadlock_names_the_waiting_tasks() -> None:
    async def main(loop: VirtualLoop) -> None:
        parked = asyncio.create_task(asyncio.Event().wait(), name="parked pop")
        await parked

    with pytest.raises(DeadlockError, match=r"every task waits and no timer is left: .*parked pop \(Event\.wait\)"):
        run(main)


def test_a_thread_is_waited_for_in_real_time() -> None:
    async def main(loop: VirtualLoop) -> tuple[str, int]:
        answer = await asyncio.to_thread(lambda: time.sleep(0.02) or "done")  # type: ignore[func-returns-value]
        return answer, loop.now_us

    assert run(main) == ("done", 0)


def test_the_clock_jumps_again_after_a_thread() -> None:
    async def main(loop: VirtualLoop) -> int:
        await asyncio.to_thread(time.sleep, 0.001)
        await asyncio.sleep(60)
        return loop.now_us

    assert run(main) == 60_000_000


def test_an_error_comes_out() -> None:
    async def main(loop: VirtualLoop) -> None:
        await asyncio.sleep(1)
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        run(main)


def test_tasks_that_are_left_are_cancelled_and_awaited() -> None:
    ended: list[str] = []

    async def left() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append("left")

    async def main(loop: VirtualLoop) -> None:
        loop.left = asyncio.create_task(left())  # type: ignore[attr-defined]
        await asyncio.sleep(1)

    run(main)
    assert ended == ["left"]


def test_a_loop_closes_without_a_warning() -> None:
    async def main(loop: VirtualLoop) -> None:
        await asyncio.sleep(1)

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        run(main)
        gc.collect()
    assert [str(warning.message) for warning in seen] == []


def test_a_timeout_works_on_virtual_time() -> None:
    async def main(loop: VirtualLoop) -> int:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await asyncio.Event().wait()
        return loop.now_us

    assert run(main) == 30_000_000
