"""Faults of single requests, put on the wire between the client and the broker, the same on every target.

The runner hands a `Ride` to the client as a request extension; it comes out here, at the transport, untouched. The
transport plays the fault, and tells the ride when the request can have no further effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import httpx

from contract.calls import EXTENSION, Ride
from strategies.schedule import DelayAnswer, DelayRequest, DropConnection, LoseAnswer, LoseRequest

Settles = Callable[[httpx.Response], bool]


def ride_of(extensions: Mapping[str, Any]) -> Ride | None:
    """The ride in the extensions of a request, None for requests that the runner did not make."""
    ride = extensions.get(EXTENSION)
    return ride if isinstance(ride, Ride) else None


def any_answer(_: httpx.Response) -> bool:
    """For brokers that are done when they answer, whatever they answer."""
    return True


class FaultTransport(httpx.AsyncBaseTransport):
    """Plays the fault of each request around another transport.

    `settles` says whether an answer that nobody sees still proves that the broker is done with the request.
    """

    def __init__(self, inner: httpx.AsyncBaseTransport, *, settles: Settles = any_answer) -> None:
        self.inner = inner
        self.pending: set[asyncio.Task[None]] = set()
        self._settles = settles

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Sends one request, with the fault that rides on it."""
        ride = ride_of(request.extensions)
        if ride is None or ride.fault is None:
            return await self.inner.handle_async_request(request)
        fault = ride.fault
        if isinstance(fault, LoseRequest):
            ride.end(acted=False)
            raise httpx.ReadError("connection broken before the request arrived", request=request)
        if isinstance(fault, LoseAnswer):
            await self._send_unseen(request, ride)
            raise httpx.ReadError("connection broken before the answer arrived", request=request)
        if isinstance(fault, DelayRequest):
            self._later(self._send_late(request, ride, fault.ms / 1000))
            raise httpx.ReadTimeout("the client gave up before the request arrived", request=request)
        if isinstance(fault, DelayAnswer):
            return await self._answer_late(request, ride, fault.ms / 1000)
        if isinstance(fault, DropConnection):
            return await self._leave(request, fault.ms / 1000)
        return await self.inner.handle_async_request(request)  # a repetition is two plain requests of the runner

    async def idle(self, timeout_s: float) -> bool:
        """Waits until every delayed request was sent and answered; False when some were not within `timeout_s`."""
        if self.pending:
            await asyncio.wait(self.pending, timeout=timeout_s)
        return not self.pending

    async def drop_pending(self) -> None:
        """Forgets the delayed requests that were not sent yet, and hangs up on those that were."""
        pending = tuple(self.pending)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)

    async def aclose(self) -> None:
        """Drops what is still to be sent and closes the other transport."""
        await self.drop_pending()
        await self.inner.aclose()

    def _later(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work, name="delayed request")
        self.pending.add(task)
        task.add_done_callback(self.pending.discard)

    async def _send_unseen(self, request: httpx.Request, ride: Ride) -> None:
        """Sends the request and reads the whole answer, so that the broker has acted when this returns."""
        response = await self.inner.handle_async_request(request)
        response.request = request
        try:
            await response.aread()
        finally:
            await response.aclose()
        if self._settles(response):
            ride.end()

    async def _send_late(self, request: httpx.Request, ride: Ride, wait_s: float) -> None:
        await asyncio.sleep(wait_s)
        try:
            await self._send_unseen(request, ride)
        except httpx.ConnectError:
            ride.end(acted=False)  # nobody was there to take it
        except httpx.TransportError:
            pass  # its fate stays unknown

    async def _answer_late(self, request: httpx.Request, ride: Ride, wait_s: float) -> httpx.Response:
        response = await self.inner.handle_async_request(request)
        response.request = request
        await response.aread()
        if self._settles(response):
            ride.end()
        await asyncio.sleep(wait_s)
        return response

    async def _leave(self, request: httpx.Request, wait_s: float) -> httpx.Response:
        """Waits so long for the answer and then cancels, which closes the connection under the request."""
        sending = asyncio.get_running_loop().create_task(
            self.inner.handle_async_request(request), name="request of a client that leaves"
        )
        try:
            if wait_s == 0:
                await asyncio.sleep(0)  # lets the request leave
            else:
                await asyncio.wait((sending,), timeout=wait_s)
        finally:
            if not sending.done():
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
        if sending.cancelled():
            raise httpx.ReadError("the client left before the answer arrived", request=request)
        return sending.result()
