"""Three consumer groups, two queues: a flow that checks its own outcome.

    orders (a partition per customer) ──┬─ group billing: charge, push to shipping, ack
                                        └─ group analytics: reads the same messages by its own cursor
    shipping (a partition per customer) ── group warehouse: ships in the order of the charges

Run it:

    python examples/multi_queue_flow.py                 against the embedded reference broker
    python examples/multi_queue_flow.py --crash         billing fails once between its push and its ack
    python examples/multi_queue_flow.py --url http://127.0.0.1:6632 --client official

Delivery is at least once, so a message may come again. What must hold: every order is billed, analytics saw each
customer's orders in order, every shipment arrived in order, nothing is lost. Exit code 0: it held; 1: it did not;
2: the flow could not be run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from client import Queen, parse_url

BATCH = 10
PARK_MILLIS = 500
START_S = 30.0

Message = dict[str, Any]


class CannotRunError(Exception):
    """The flow cannot be run: one sentence for the user."""


@dataclass(slots=True)
class Books:
    """What was meant to happen and what each group saw. An order is a number; its customer has a partition."""

    orders: int
    customers: int
    crash: bool
    charged: Counter[int] = field(default_factory=Counter)
    billed: set[int] = field(default_factory=set)
    crashed_at: int | None = None
    shipments_pushed: int = 0
    analytics: dict[str, list[int]] = field(default_factory=dict)
    warehouse: dict[str, list[int]] = field(default_factory=dict)

    def customer_of(self, order: int) -> str:
        return f"customer-{order % self.customers}"

    def orders_of(self, customer: str) -> list[int]:
        return [order for order in range(self.orders) if self.customer_of(order) == customer]

    def names(self) -> list[str]:
        return [f"customer-{number}" for number in range(min(self.customers, self.orders))]


class Flow:
    """The flow itself. It uses of `Queen` only what our client and the official one have in common."""

    def __init__(self, queen: Any, books: Books, run: str, idle_millis: int) -> None:
        self.queen = queen
        self.books = books
        self.orders_queue = f"orders-{run}"
        self.shipping_queue = f"shipping-{run}"
        self.run_name = run
        self.idle_millis = idle_millis
        self.done = {group: asyncio.Event() for group in ("billing", "analytics", "warehouse")}

    async def run(self) -> None:
        """Plays all parts side by side. Returns when each group has seen everything, or nothing more comes."""
        async with asyncio.TaskGroup() as parts:
            parts.create_task(self.take_orders())
            parts.create_task(self.consume(self.orders_queue, "billing", self.bill))
            parts.create_task(self.consume(self.orders_queue, "analytics", self.analyse))
            parts.create_task(self.consume(self.shipping_queue, "warehouse", self.ship))

    async def take_orders(self) -> None:
        """Pushes each customer's orders, a few at a time, so that the customers' pushes alternate."""
        books = self.books
        waiting = {customer: books.orders_of(customer) for customer in books.names()}
        while waiting:
            for customer, orders in list(waiting.items()):
                batch = [{"data": {"order": order, "customer": customer}} for order in orders[:5]]
                await self.queen.queue(self.orders_queue).partition(customer).push(batch)
                waiting[customer] = orders[5:]
            waiting = {customer: orders for customer, orders in waiting.items() if orders}

    async def consume(self, queue: str, group: str, handler: Callable[[Message], Awaitable[None]]) -> None:
        """One group. The idle time ends it when a message is lost, the limit when a broker never stops repeating."""
        await (
            self.queen.queue(queue)
            .group(f"{group}-{self.run_name}")
            .subscription_mode("all")
            .each()
            .batch(BATCH)
            .timeout_millis(PARK_MILLIS)
            .idle_millis(self.idle_millis)
            .limit(4 * self.books.orders + 100)
            .consume(handler, signal=self.done[group])
        )

    async def bill(self, message: Message) -> None:
        """Charges the order and asks for its shipment; the ack follows when this returns."""
        books, order, customer = self.books, message["data"]["order"], message["data"]["customer"]
        books.charged[order] += 1  # a real one would charge only an order that it has not charged yet
        await self.queen.queue(self.shipping_queue).partition(customer).push([{"data": message["data"]}])
        books.shipments_pushed += 1
        if books.crash and books.crashed_at is None and order >= books.orders // 2:
            books.crashed_at = order
            raise RuntimeError(f"billing crashes after it pushed the shipment of order {order}")
        books.billed.add(order)
        if len(books.billed) == books.orders:
            self.done["billing"].set()

    async def analyse(self, message: Message) -> None:
        """Notes the order under the partition that it came from."""
        seen = self.books.analytics
        seen.setdefault(message["partition"], []).append(message["data"]["order"])
        if _different(seen) >= self.books.orders:
            self.done["analytics"].set()

    async def ship(self, message: Message) -> None:
        """Notes the shipment; after a crash it waits for the one that comes twice."""
        books, order = self.books, message["data"]["order"]
        books.warehouse.setdefault(message["partition"], []).append(order)
        crashed = books.crashed_at
        twice = not books.crash or (
            crashed is not None and books.warehouse.get(books.customer_of(crashed), []).count(crashed) > 1
        )
        if twice and _different(books.warehouse) >= books.orders:
            self.done["warehouse"].set()

    async def clean_up(self) -> None:
        """Deletes both queues, whatever happened before."""
        for queue in (self.orders_queue, self.shipping_queue):
            try:
                await self.queen.queue(queue).delete()
            except Exception as error:
                print(f"queue {queue} was not deleted: {error}", file=sys.stderr)


def _different(seen: dict[str, list[int]]) -> int:
    return len({order for orders in seen.values() for order in orders})


# Checks -----------------------------------------------------------------------------------------------------------


def failures(books: Books) -> Iterator[str]:
    """One sentence for everything that did not hold."""
    yield from _lost("order", "was never billed", set(range(books.orders)) - books.billed)
    yield from _in_order("analytics", "order", books, books.analytics)
    yield from _in_order("warehouse", "shipment", books, books.warehouse)
    if books.crash and books.crashed_at is None:
        yield "billing never came to the order at which it was to crash"
    elif books.crashed_at is not None:
        arrivals = books.warehouse.get(books.customer_of(books.crashed_at), []).count(books.crashed_at)
        if arrivals < 2:
            yield f"the shipment of order {books.crashed_at} was pushed twice and arrived {arrivals} times"


def _in_order(group: str, what: str, books: Books, seen: dict[str, list[int]]) -> Iterator[str]:
    """Each customer's orders in the order of the pushes; a repetition is allowed, a jump is not."""
    for customer in books.names():
        expected = books.orders_of(customer)
        first_seen = list(dict.fromkeys(seen.get(customer, [])))
        yield from _lost(what, f"never came to {group} for {customer}", set(expected) - set(first_seen))
        if set(first_seen) <= set(expected) and first_seen != [order for order in expected if order in first_seen]:
            yield f"{group} saw the {what}s of {customer} out of order: {_some(first_seen)}"
    for customer, orders in seen.items():
        strange = [order for order in orders if books.customer_of(order) != customer or order >= books.orders]
        if strange:
            yield f"{group} got {what}s in partition {customer!r} that do not belong there: {_some(strange)}"


def _lost(what: str, why: str, missing: set[int]) -> Iterator[str]:
    if missing:
        yield f"{what} {_some(sorted(missing))} {why}"


def _some(numbers: list[int]) -> str:
    shown = ", ".join(str(number) for number in numbers[:8])
    return shown if len(numbers) <= 8 else f"{shown} and {len(numbers) - 8} more"


def account(books: Books) -> str:
    """What happened, a line a part."""
    read = sum(map(len, books.analytics.values()))
    shipped = sum(map(len, books.warehouse.values()))
    lines = [
        f"orders     {books.orders} orders of {len(books.names())} customers, a partition each",
        f"billing    billed {len(books.billed)} orders, pushed {books.shipments_pushed} shipments",
        f"analytics  read {read} orders by its own cursor",
        f"warehouse  got {shipped} shipments",
    ]
    if books.crashed_at is not None:
        lines.insert(2, f"           crashed at order {books.crashed_at} between push and ack; the order came back")
    return "\n".join(lines)


# Running ----------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def embedded_broker() -> AsyncIterator[str]:
    """Starts the reference broker as a process of its own on a free port; gives its URL and ends it."""
    with tempfile.TemporaryDirectory(prefix="multi-queue-flow-") as data:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "reference_broker", "--data", data, "--port", "0"), stdout=asyncio.subprocess.PIPE
        )
        try:
            yield await _listening(process)
        finally:
            await _end(process)


async def _listening(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    try:
        line = (await asyncio.wait_for(process.stdout.readline(), START_S)).decode().strip()
    except TimeoutError:
        raise CannotRunError(f"the reference broker did not start within {START_S:g} s") from None
    words = line.rpartition("listening on ")
    if not words[1]:
        hint = "try: python -m reference_broker --help"
        raise CannotRunError(f"the reference broker did not start, it said {line!r}; {hint}")
    return words[2]


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), 10)
    except TimeoutError:
        process.kill()
        await process.wait()


@contextlib.asynccontextmanager
async def broker_at(url: str | None) -> AsyncIterator[str]:
    """The broker to use: the one that runs at `url`, else the embedded one."""
    if url is not None:
        try:
            yield parse_url(url)
        except ValueError as error:
            raise CannotRunError(str(error)) from None
        return
    async with embedded_broker() as started:
        yield started


def queen_class(client: str) -> Any:
    """The `Queen` to use: ours, or that of the package `queen-mq`."""
    if client == "official":
        try:
            from queen import Queen as OfficialQueen
        except ImportError:
            raise CannotRunError("the official client is not installed; try: pip install queen-mq") from None
        return OfficialQueen
    return Queen


async def play(options: argparse.Namespace) -> Books:
    """Runs the flow once and cleans up. Raises `CannotRunError`."""
    books = Books(options.orders, options.customers, options.crash)
    make_queen = queen_class(options.client)
    async with broker_at(options.url) as url:
        print(f"broker     {url}{'' if options.url else ' (embedded reference broker)'}")
        queen = make_queen(url=url)
        flow = Flow(queen, books, uuid.uuid4().hex[:12], options.idle_millis)
        try:
            await flow.run()
        except* Exception as group:
            raise CannotRunError(f"the flow broke off: {_first(group)}") from group
        finally:
            await flow.clean_up()
            await queen.close()
    return books


async def play_until_told_to_stop(options: argparse.Namespace) -> Books:
    """`play`, which cleans up on SIGTERM too."""
    playing = asyncio.create_task(play(options))
    with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # not everywhere, not in every thread
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, playing.cancel)
    return await playing


def _first(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


def _count(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() else 0
    if not 0 < number <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number between 1 and 1000000")
    return number


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Orders, billing, shipping: a flow over two queues and three groups.")
    parser.add_argument("--url", help="a running broker; without it the embedded reference broker is started")
    parser.add_argument("--orders", type=_count, default=200, help="how many orders (default: %(default)s)")
    parser.add_argument("--customers", type=_count, default=8, help="how many customers (default: %(default)s)")
    parser.add_argument("--crash", action="store_true", help="billing fails once between its push and its ack")
    parser.add_argument("--client", choices=("ours", "official"), default="ours", help="which client to use")
    idle = "a group gives up when nothing came for so long (default: %(default)s)"
    parser.add_argument("--idle-millis", type=_count, default=3000, help=idle)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    try:
        books = asyncio.run(play_until_told_to_stop(options))
    except CannotRunError as error:
        print(error, file=sys.stderr)
        return 2
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("stopped before the end; the queues are deleted", file=sys.stderr)
        return 2
    print(account(books))
    found = list(failures(books))
    for failure in found:
        print(f"FAILED     {failure}")
    if not found:
        print("all checks held: everything billed, everything in order, nothing lost")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
