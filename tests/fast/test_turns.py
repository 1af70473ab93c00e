"""Who may go on where lanes share a broker: turns side by side, and one lane alone."""

from __future__ import annotations

import asyncio

from contract.targets.turns import Turns
from contract.targets.virtual_time import run


class Log:
    """What happened, with the virtual second at which it did."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.lines: list[tuple[str, float]] = []

    def add(self, what: str) -> None:
        self.lines.append((what, asyncio.get_running_loop().time()))

    async def turn(self, lane: int, *, after: float, lasts: float) -> None:
        await asyncio.sleep(after)
        async with self.turns.turn(lane):
            self.add(f"{lane} begins")
            await asyncio.sleep(lasts)
            self.add(f"{lane} ends")

    async def alone(self, lane: int, *, after: float, lasts: float, inside: bool = False) -> None:
        await asyncio.sleep(after)
        if inside:
            async with self.turns.turn(lane):
                await self.alone(lane, after=0, lasts=lasts)
            return
        async with self.turns.alone(lane):
            self.add(f"{lane} alone")
            await asyncio.sleep(lasts)
            self.add(f"{lane} done")


def played(*work: object) -> list[tuple[str, float]]:
    log = Log()

    async def main(_: object) -> None:
        await asyncio.gather(*(make(log) for make in work))  # type: ignore[operator]

    run(main)
    return log.lines


def test_turns_go_on_side_by_side() -> None:
    lines = played(lambda log: log.turn(1, after=0, lasts=2), lambda log: log.turn(2, after=1, lasts=2))
    assert lines == [("1 begins", 0), ("2 begins", 1), ("1 ends", 2), ("2 ends", 3)]


def test_alone_waits_for_the_turns_of_others() -> None:
    lines = played(lambda log: log.turn(1, after=0, lasts=5), lambda log: log.alone(2, after=1, lasts=1))
    assert lines == [("1 begins", 0), ("1 ends", 5), ("2 alone", 5), ("2 done", 6)]


def test_no_turn_begins_while_somebody_waits_to_be_alone() -> None:
    lines = played(
        lambda log: log.turn(1, after=0, lasts=5),
        lambda log: log.alone(2, after=1, lasts=1),
        lambda log: log.turn(3, after=2, lasts=1),
    )
    assert lines[-2:] == [("3 begins", 6), ("3 ends", 7)]


def test_two_that_ask_inside_their_turns_do_not_wait_for_each_other() -> None:
    lines = played(
        lambda log: log.alone(1, after=0, lasts=2, inside=True), lambda log: log.alone(2, after=0, lasts=2, inside=True)
    )
    assert lines == [("1 alone", 0), ("1 done", 2), ("2 alone", 2), ("2 done", 4)]


def test_one_that_is_cancelled_holds_nobody_up() -> None:
    log = Log()

    async def main(_: object) -> None:
        busy = asyncio.create_task(log.turn(1, after=0, lasts=5))
        asking = asyncio.create_task(log.alone(2, after=1, lasts=1))
        await asyncio.sleep(2)
        asking.cancel()
        await log.turn(3, after=0, lasts=1)
        await busy

    run(main)
    assert ("3 begins", 2) in log.lines
