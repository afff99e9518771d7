"""A nsqlookupd for programs: brokers register with it over TCP, consumers ask it over HTTP."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType

from aiohttp import web

from tests.support.nsqlookupd import FakeLookupd


class Lookup:
    """It runs in a thread of its own, from the block's begin to its end."""

    def __init__(self) -> None:
        self.tcp_address = ""
        self.http_address = ""
        self._loop = asyncio.new_event_loop()
        self._ending = asyncio.Event()
        self._is_there = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nsqlookupd")

    def __enter__(self) -> Lookup:
        self._thread.start()
        self._is_there.wait()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._is_there.set()
            self._loop.close()

    async def _serve(self) -> None:
        async with FakeLookupd() as lookupd:

            async def lookup(request: web.Request) -> web.Response:
                topic = request.query["topic"]
                if topic not in lookupd.topics():
                    return web.json_response({"message": "TOPIC_NOT_FOUND"}, status=404)
                having = [
                    one.info
                    for one in lookupd.producers
                    if topic in {name for name, _ in one.registered}
                ]
                return web.json_response({"channels": [], "producers": having})

            app = web.Application()
            app.router.add_get("/lookup", lookup)
            runner = web.AppRunner(app)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.tcp_address = lookupd.address
            self.http_address = "http://{}:{}".format(*runner.addresses[0])
            self._is_there.set()
            await self._ending.wait()
            await runner.cleanup()
