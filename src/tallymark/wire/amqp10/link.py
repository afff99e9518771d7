"""Base of both kinds of links [amqp-1.0 §2.6]: attaching and detaching.

Either side attaches and either side detaches; states.py defines the legal order. An owner's call on
a link that is gone does nothing, since the owner may not know of its end yet.
"""

from __future__ import annotations

from typing import Final

from tallymark.wire.amqp10 import errors
from tallymark.wire.amqp10.ends import NO_HANDLE, LinkEnd, SessionEnd
from tallymark.wire.amqp10.events import LinkAttached, LinkDetached, LinkFailed
from tallymark.wire.amqp10.frames import HEAD
from tallymark.wire.amqp10.outcomes import Error
from tallymark.wire.amqp10.performatives import (
    RCV_FIRST,
    RECEIVER,
    SENDER,
    SND_MIXED,
    Attach,
    Detach,
    Flow,
    Transfer,
)
from tallymark.wire.amqp10.states import LINK_RECEIVING, LINK_SENDING, Input, LinkState

SAFE_NAME: Final = 100
"""Letters of a name that any peer's frames have room for."""


class Link(LinkEnd):
    """Base of the links in sender_link.py and receiver_link.py."""

    __slots__ = ("_asked", "_closes")

    def __init__(self, session: SessionEnd, name: str, is_sender: bool) -> None:
        super().__init__(session, name, is_sender)
        self._closes = True
        self._asked: tuple[int | None, int | None] = (None, None)

    # Attaching

    def answer(
        self,
        attach: Attach,
        snd_settle_mode: int | None = None,
        rcv_settle_mode: int | None = None,
    ) -> None:
        if self.is_gone():
            return
        asked = self.remote_attach
        if asked is None or self.handle != NO_HANDLE:
            raise ValueError(f"answer for a link in state {self.state.value}")
        self._take_modes(asked)
        if snd_settle_mode is not None:
            self.snd_settle_mode = snd_settle_mode
        if rcv_settle_mode is not None:
            self.rcv_settle_mode = rcv_settle_mode
        self._send_attach(attach)

    def attach(self, attach: Attach, snd_mode: int | None, rcv_mode: int | None) -> None:
        """Attach the link, for Session.attach_sender and attach_receiver."""
        self._asked = (snd_mode, rcv_mode)
        self.snd_settle_mode = SND_MIXED if snd_mode is None else snd_mode
        self.rcv_settle_mode = RCV_FIRST if rcv_mode is None else rcv_mode
        self._send_attach(attach)

    def _send_attach(self, attach: Attach) -> None:
        state = LINK_SENDING.get((self.state, Input.ATTACH))
        if state is None:
            raise ValueError(f"attach of a link in state {self.state.value}")
        body = self._encoded(attach)  # raises before any change if a value does not fit its field
        if self.state is LinkState.ATTACH_RCVD and not self._fits(attach, body):
            return
        self.handle = self.session.take_handle()
        self.state = state
        self.session.write(body)

    def _encoded(self, attach: Attach) -> bytes:
        """Set the fields of an attach that are this link's, and encode it."""
        attach.name = self.name
        attach.handle = self.session.free_handle()
        attach.role = SENDER if self.is_sender else RECEIVER
        attach.snd_settle_mode = self.snd_settle_mode
        attach.rcv_settle_mode = self.rcv_settle_mode
        self._fill(attach)
        return attach.encode()

    def _fits(self, attach: Attach, body: bytes) -> bool:
        """Return whether the peer takes an answer of this size. False: the link was refused. One
        without termini, which refuses it, is known to fit [is_answerable]."""
        if self.session.excess(body) <= 0 or (attach.source is None and attach.target is None):
            return True
        most = self.session.connection.max_frame_size
        text = f"an attach of {HEAD + len(body)} bytes is due, max-frame-size is {most}"
        self.fail(errors.FRAME_SIZE_TOO_SMALL, text)
        return False

    def is_answerable(self) -> bool:
        """Return whether the peer, which asks for the link, takes an answer at all: the smallest
        one, which refuses the link, has its name. False: the connection has failed."""
        asked = self.remote_attach
        if len(self.name) <= SAFE_NAME or asked is None:
            return True
        self._take_modes(asked)
        body = self._encoded(Attach())
        if self.session.excess(body) <= 0:
            return True
        size = len(self.name.encode())
        what = f"to answer for a link with a name of {size} bytes an attach"
        self.session.connection.fail_frame_size(HEAD + len(body), what)
        return False

    def _fill(self, attach: Attach) -> None:
        """Set the fields of an attach that only this kind of end has."""
        raise NotImplementedError

    def _adopt(self, attach: Attach) -> None:
        """Take over the fields of the peer's attach that only this kind of end has."""
        raise NotImplementedError

    def request(self, attach: Attach) -> None:
        """Handle the peer's attach of a new link."""
        self.state = LINK_RECEIVING[self.state, Input.ATTACH]
        self.remote_attach = attach
        self.remote_handle = attach.handle
        self._adopt(attach)

    def attached(self, attach: Attach) -> None:
        """Handle the peer's attach that answers ours."""
        terminus = attach.target if self.is_sender else attach.source
        moved = Input.ATTACH_NULL if terminus is None else Input.ATTACH
        self.state = LINK_RECEIVING[self.state, moved]
        self.remote_attach = attach
        self.remote_handle = attach.handle
        if self.state is not LinkState.ATTACHED:
            return
        self._adopt(attach)
        self._take_modes(attach)
        snd, rcv = self._asked
        if snd is not None and snd != self.snd_settle_mode:
            self._fail_mode("snd", snd, self.snd_settle_mode)
        elif rcv is not None and rcv != self.rcv_settle_mode:
            self._fail_mode("rcv", rcv, self.rcv_settle_mode)
        else:
            self.session.emit(LinkAttached(self, attach))

    def _take_modes(self, attach: Attach) -> None:
        """Take over the settle modes of the peer's attach."""
        snd = attach.snd_settle_mode
        rcv = attach.rcv_settle_mode
        self.snd_settle_mode = SND_MIXED if snd is None else snd
        self.rcv_settle_mode = RCV_FIRST if rcv is None else rcv

    def _fail_mode(self, side: str, asked: int, got: int) -> None:
        """Close the link because the peer did not grant a requested mode [FC-9]."""
        self.fail(errors.NOT_ALLOWED, f"{side}-settle-mode {asked} was asked for, not {got}")

    # Detaching

    def detach(self, error: Error | None = None, closed: bool | None = None) -> None:
        if self.state is LinkState.ATTACH_RCVD or self.state is LinkState.DETACH_RCVD:
            self._attach_null()
        moved = Input.DETACH if error is None else Input.DETACH_ERROR
        state = LINK_SENDING.get((self.state, moved))
        if state is None:
            return
        said = Detach(self.handle, self._closes if closed is None else closed, error)
        body = said.encode()
        excess = self.session.excess(body)
        if excess > 0 and error is not None:
            said.error = error.shortened(excess)
            body = said.encode()
        self._let_go()
        if state is not LinkState.DETACH_SENT:
            self._drop()
        self.state = state
        self.session.write(body)
        if state is LinkState.DETACHED:
            self.session.forget_link(self)

    def _attach_null(self) -> None:
        if self.handle == NO_HANDLE:
            asked = self.remote_attach
            assert asked is not None
            self._take_modes(asked)
            self._send_attach(Attach())

    def detached(self, detach: Detach) -> None:
        """Handle the peer's detach."""
        was = self.state
        self.state = LINK_RECEIVING[was, Input.DETACH]
        self._closes = detach.closed
        self._let_go()
        self._drop()
        if self.state is LinkState.DETACHED:
            self.session.forget_link(self)
        self.session.emit(LinkDetached(self, detach.closed, detach.error, was is LinkState.REFUSED))

    def fail(self, condition: str, text: str) -> None:
        """Close the link because the peer broke its rules, and tell the owner."""
        if LINK_SENDING.get((self.state, Input.DETACH_ERROR)) is None and self.handle != NO_HANDLE:
            return
        error = Error(condition, text)
        self.detach(error)
        self.session.emit(LinkFailed(self, error))

    def end(self) -> None:
        """End the link with its session or connection."""
        self.state = LinkState.DETACHED
        self._let_go()
        self._drop()

    def _let_go(self) -> None:
        """Drop output of the link, on which nothing is sent any more."""
        raise NotImplementedError

    def _drop(self) -> None:
        """Drop input of the link, on which nothing is received any more."""
        raise NotImplementedError

    # Other input

    def receive_flow(self, flow: Flow) -> None:
        raise NotImplementedError

    def receive_transfer(self, transfer: Transfer, payload: bytes) -> None:
        raise NotImplementedError
