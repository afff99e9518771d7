"""A nsqlookupd that remembers what it was told: protocol V1 on a real socket, in the test's loop.

    async with FakeLookupd() as lookupd:
        ... register with lookupd.address ...
        await lookupd.until(lambda: "topic" in lookupd.topics())

It can be made to be silent, to refuse, to hang up and to come back on its old port.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from tests.support.patience import PATIENCE_S


class Producer:
    """One connection, and what it registered."""

    def __init__(self) -> None:
        self.info: dict[str, Any] = {}
        self.registered: set[tuple[str, str]] = set()
        """(topic, channel), of a topic alone (topic, "")."""
        self.commands: list[str] = []
        self.pings = 0


class FakeLookupd:
    def __init__(self) -> None:
        self.port = 0
        self.producers: list[Producer] = []
        """Connected ones."""
        self.connections = 0
        """Ever."""
        self.silent = False
        """Answers nothing."""
        self.answers: dict[str, bytes] = {}
        """By verb, instead of the usual ones."""
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._changed = asyncio.Event()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def topics(self) -> set[str]:
        return {topic for one in self.producers for topic, _ in one.registered}

    def channels(self, topic: str) -> set[str]:
        return {
            channel
            for one in self.producers
            for name, channel in one.registered
            if name == topic and channel
        }

    async def until(self, holds: Callable[[], bool]) -> None:
        """Return when it holds after something was received, or at once."""
        async with asyncio.timeout(PATIENCE_S):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    async def start(self) -> None:
        """Listen, on the port of the last time if there was one."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Hang up on everybody and listen no more."""
        assert self._server is not None
        self._server.close()
        self.hang_up()
        await self._server.wait_closed()

    def hang_up(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        producer = Producer()
        self._writers.add(writer)
        self.connections += 1
        try:
            if await reader.readexactly(4) != b"  V1":
                return
            self.producers.append(producer)
            while line := await reader.readline():
                command = line.decode().rstrip("\n")
                producer.commands.append(command)
                answer = await self._carry_out(producer, command.split(" "), reader)
                if not self.silent:
                    writer.write(len(answer).to_bytes(4, "big") + answer)
                self._changed.set()
                if answer.startswith(b"E_"):
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # it hung up, as we see below
        finally:
            self._writers.discard(writer)
            if producer in self.producers:
                self.producers.remove(producer)
            self._changed.set()
            writer.close()

    async def _carry_out(
        self, producer: Producer, words: list[str], reader: asyncio.StreamReader
    ) -> bytes:
        verb = words[0]
        if verb == "IDENTIFY":
            size = int.from_bytes(await reader.readexactly(4), "big")
            producer.info = json.loads(await reader.readexactly(size))
        elif verb == "REGISTER":
            producer.registered.add((words[1], words[2] if len(words) > 2 else ""))
        elif verb == "UNREGISTER" and len(words) > 2:
            producer.registered.discard((words[1], words[2]))
        elif verb == "UNREGISTER":
            producer.registered = {one for one in producer.registered if one[0] != words[1]}
        elif verb == "PING":
            producer.pings += 1
        else:
            return b"E_INVALID invalid command"
        if verb in self.answers:
            return self.answers[verb]
        if verb == "IDENTIFY":
            return json.dumps({"tcp_port": self.port, "version": "1.3.0"}).encode()
        return b"OK"
