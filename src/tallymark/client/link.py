"""Life of a sender or receiver: attached, lost with its connection and attached again, closed by
either side."""

from __future__ import annotations

from abc import abstractmethod
from typing import Generic, TypeVar

from tallymark.client.adapter import LinkOwner, LinkPort, SessionPort
from tallymark.client.deliveries import Deliveries
from tallymark.client.errors import ClientError, Closed, LinkClosed, TimedOut
from tallymark.client.turn import TIME_IS_UP, Waiter, answer_to, resolve

P = TypeVar("P", bound=LinkPort)


class Link(LinkOwner, Generic[P]):
    """A sender or receiver for as long as it lives; the port behind it may be replaced."""

    def __init__(self, dispatcher: Deliveries, address: str | None, name: str) -> None:
        self.dispatcher = dispatcher
        self._asked = address
        self.name = name
        self.port: P | None = None
        self.error: ClientError | None = None
        self.ending: ClientError | None = None
        self._opening: P | None = None
        """The port from the beginning of the attach on."""
        self._was_attached = False
        self._attaching: Waiter | None = None
        self._closing: list[Waiter] = []

    @abstractmethod
    def begin(self, session: SessionPort) -> P:
        """Begin to attach."""

    @abstractmethod
    def lose(self, error: ClientError) -> None:
        """Give up what depends on the port, which is gone."""

    @abstractmethod
    def give_up(self, error: ClientError) -> None:
        """Give up what waited for another port: there will be none."""

    @property
    def is_attached(self) -> bool:
        return self.port is not None

    @property
    def is_closed(self) -> bool:
        """Return whether it is closed by either side, or is being closed."""
        return self.error is not None or self.ending is not None

    # Attaching

    async def open(self) -> None:
        """Attach it for the first time; where that fails, or is cancelled, no link remains."""
        try:
            await self.attach()
        except BaseException:
            error = LinkClosed("it was never opened")
            error.was_asked_for = True
            if self.error is None:
                self.begin_close(error)
                self.close(error)
            raise

    async def attach(self) -> None:
        dispatcher = self.dispatcher
        if dispatcher.port is None:
            raise (dispatcher.error or Closed("the session is not there")).copied()
        self._attaching = dispatcher.loop.create_future()
        try:
            self._opening = self.begin(dispatcher.port)
            dispatcher.turn.request()
            if await answer_to(self._attaching, dispatcher.answer_s) is TIME_IS_UP:
                limit_s = dispatcher.answer_s
                raise TimedOut(f"attach to {self._asked!r} not answered in {limit_s} s")
        finally:
            self._attaching = None
        if self.error is not None:  # detached at once
            raise self.error.copied()

    def now_attached(self, port: P) -> None:
        """Note that the peer has attached."""
        self.port = port
        self._was_attached = True
        if self._attaching is not None:
            resolve(self._attaching, None)

    # The end

    async def detach(self) -> None:
        """Close it for the application, and wait for the peer's answer. See `Receiver.close`."""
        if self.error is not None:
            return
        dispatcher = self.dispatcher
        if self.ending is None:
            dispatcher.turn.finish()
            error = LinkClosed("closed by the application")
            error.was_asked_for = True
            was_attached = self.port is not None
            self.begin_close(error)
            if not was_attached:
                self.close(error)
                return
        waiter: Waiter = dispatcher.loop.create_future()
        self._closing.append(waiter)
        if await answer_to(waiter, dispatcher.answer_s) is TIME_IS_UP:
            assert self.ending is not None
            self.close(self.ending)
            raise TimedOut(f"detach of {self.name!r} not answered in {dispatcher.answer_s} s")

    def begin_close(self, error: ClientError) -> None:
        """The application closes it, and the peer has not heard of it yet."""
        self.ending = error
        if self._opening is not None:
            self._opening.close()
            self.dispatcher.turn.request()
        self._lose_port(error)
        self.give_up(error)

    def detached(self, error: ClientError) -> None:
        if self.error is not None:
            return
        by_us = self.ending
        was_open = self._was_attached
        self.close(error if by_us is None else by_us)
        if by_us is None and was_open:
            self.dispatcher.report_loss(error)

    def close(self, error: ClientError) -> None:
        if self.error is None:
            self.error = error
        self._lose_port(error)
        self.give_up(error)
        for waiter in self._closing:
            resolve(waiter, None)
        self._closing.clear()

    def suspend(self, error: ClientError) -> None:
        if self.ending is not None:
            self.close(self.ending)
        else:
            self._lose_port(error)

    def _lose_port(self, error: ClientError) -> None:
        self.port = self._opening = None
        if self._attaching is not None:
            resolve(self._attaching, error)
        self.lose(error)
