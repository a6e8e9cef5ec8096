"""A server in the event loop of a test, and the wait for what comes of it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from tests.processes import HANG_S
from tests.virtual import VirtualLoop

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(answer: Handler | web.Application, port: int = 0, host: str = "127.0.0.1") -> AsyncIterator[str]:
    """Base URL of an application, or of a handler of all requests; a client that leaves cancels its handler."""
    if isinstance(answer, web.Application):
        app = answer
    else:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield f"http://{host}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def until(true: Callable[[], Any], seconds: float = 30.0) -> None:
    """Wait, in the time of the loop; TimeoutError after `seconds`, or HANG_S of real time if that is longer."""
    is_virtual = isinstance(asyncio.get_running_loop(), VirtualLoop)
    async with asyncio.timeout(seconds if is_virtual else max(seconds, HANG_S)):
        while not true():  # noqa: ASYNC110 -- what is waited for is a number that has no event
            await asyncio.sleep(0.005)
