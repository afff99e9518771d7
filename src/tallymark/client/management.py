"""A connection's way to declare and delete: one port of the adapter's, made when first needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from tallymark.client.errors import ClientError, TimedOut
from tallymark.client.topology import QueueState, Request
from tallymark.client.turn import Turn
from tallymark.client.waiting import TIME_IS_UP, Waiter, answer_to, resolve

if TYPE_CHECKING:
    from tallymark.client.adapter import Adapter, ManagementPort


@final
class Management:
    """Requests of one connection to declare and delete, for as long as it lives; the port goes with
    the socket."""

    __slots__ = ("_adapter", "_port", "_turn", "_waiting")

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._adapter: Adapter | None = None
        self._port: ManagementPort | None = None
        self._waiting: set[Waiter] = set()

    async def ask(self, adapter: Adapter, request: Request, timeout_s: float) -> QueueState | None:
        """Have it done. Returns the queue that the answer tells of, if it tells of one.

        Raises RequestRefused, NotPossible, TimedOut, and ConnectionClosed, in doubt, where the
        connection goes before the answer."""
        if self._port is None or adapter is not self._adapter:
            self._port = adapter.manage()
            self._adapter = adapter
        waiter: Waiter = self._turn.loop.create_future()
        self._waiting.add(waiter)
        try:
            self._port.ask(request, waiter)
            self._turn.request()
            answer = await answer_to(waiter, timeout_s)
        finally:
            self._waiting.discard(waiter)
        if answer is TIME_IS_UP:
            raise TimedOut(f"{request}: not answered in {timeout_s} s")
        assert answer is None or isinstance(answer, QueueState), answer
        return answer

    def lost(self, error: ClientError) -> None:
        """The socket is gone."""
        self._port = None
        self._adapter = None
        for waiter in list(self._waiting):
            resolve(waiter, error.again(in_doubt=True))
