"""Session [amqp-1.0 §2.5]: its beginning and end, its links, and what comes for them."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import final

from tallymark.wire.amqp10 import errors
from tallymark.wire.amqp10.ends import ConnectionEnd, LinkEnd
from tallymark.wire.amqp10.errors import FRAMING_ERROR, DecodeError
from tallymark.wire.amqp10.events import (
    FlowReceived,
    LinkRequested,
    SessionBegun,
    SessionEnded,
    SessionFailed,
    SessionRequested,
)
from tallymark.wire.amqp10.link import Link
from tallymark.wire.amqp10.outcomes import Error
from tallymark.wire.amqp10.performatives import (
    RECEIVER,
    Attach,
    Begin,
    Detach,
    Disposition,
    End,
    Flow,
    Performative,
    Transfer,
)
from tallymark.wire.amqp10.receiver_link import ReceiverLink
from tallymark.wire.amqp10.scanning import Transfers
from tallymark.wire.amqp10.sender_link import SenderLink
from tallymark.wire.amqp10.serial import add
from tallymark.wire.amqp10.session_flow import SessionFlow
from tallymark.wire.amqp10.states import (
    SESSION_ENDING,
    SESSION_RECEIVING,
    SESSION_SENDING,
    Input,
    LinkState,
    SessionState,
)


@final
class Session(SessionFlow):
    __slots__ = (
        "_attaching",
        "_free_handles",
        "_has_begun",
        "_has_peer_seen_begin",
        "_links",
        "_next_handle",
        "_remote",
    )

    def __init__(self, connection: ConnectionEnd, channel: int) -> None:
        super().__init__(connection, channel)
        self._has_begun = False
        self._has_peer_seen_begin = False  # as far as it has shown
        self._links: dict[LinkEnd, Link] = {}
        self._remote: dict[int, Link] = {}  # by the peer's handle
        self._attaching: dict[tuple[str, bool], Link] = {}  # by name and whether we send
        self._next_handle = 0
        self._free_handles: list[int] = []

    @property
    def links(self) -> list[Link]:
        """Return the links that are not detached on both sides."""
        return list(self._links.values())

    # Beginning and ending

    def begin(self, begin: Begin | None = None) -> None:
        if self.is_gone():
            return
        after = SESSION_SENDING.get((self.state, Input.BEGIN))
        if after is None:
            raise ValueError(f"begin of a session in state {self.state.value}")
        if begin is None:
            begin = Begin()
        limits = self.connection.limits
        begin.remote_channel = None if self.remote_channel < 0 else self.remote_channel
        begin.incoming_window = self.incoming_window
        begin.outgoing_window = limits.outgoing_window
        begin.handle_max = limits.handle_max
        body = begin.encode()
        self.state = after
        self._has_begun = True
        self._incoming_left = self.incoming_window
        self.outbox.start_ids(begin.next_outgoing_id)
        self.write(body)

    def end(self, error: Error | None = None) -> None:
        if self.is_gone():
            return
        if not self._has_begun and self.remote_begin is not None:
            self.begin()  # an end without a begin before it would be of no session
        moved = Input.END if error is None else Input.END_ERROR
        after = SESSION_SENDING.get((self.state, moved))
        if after is None:
            return
        body = End(error).encode()
        excess = self.excess(body)
        if excess > 0 and error is not None:
            body = End(error.shortened(excess)).encode()
        self.drop()
        self.state = after
        self.write(body)
        if after is SessionState.UNMAPPED:
            self.connection.forget_session(self)

    def fail(self, condition: str, text: str) -> None:
        """End the session because the peer broke its rules, and tell the owner."""
        if self.is_gone() or self.state in SESSION_ENDING:
            return
        error = Error(condition, text)
        self.end(error)
        self.emit(SessionFailed(self, error))

    def drop(self) -> None:
        """Drop the session's links and their deliveries."""
        self.outbox.clear()
        links = list(self._links.values())
        self._links = {}
        self._remote.clear()
        self._attaching.clear()
        for link in links:
            link.end()

    def lose(self) -> None:
        """End the session with its connection."""
        self.drop()
        self.state = SessionState.UNMAPPED
        self.outbox.let_go()

    def is_gone(self) -> bool:
        """Return whether the session has ended on both sides, or with the connection."""
        return self.state is SessionState.UNMAPPED and (
            self._has_begun or self.remote_begin is not None
        )

    # Links

    def attach_sender(
        self,
        attach: Attach,
        snd_settle_mode: int | None = None,
        rcv_settle_mode: int | None = None,
    ) -> SenderLink:
        """Attach a link on which we send. Handle, role, modes and, unless given, the initial
        delivery-count in `attach` are set here. A given mode must be granted [FC-9]; None means the
        peer's choice.

        ValueError: the session is not mapped, the peer takes no more links, or one of that name is
        being attached."""
        link = SenderLink(self, self.outbox, attach.name)
        self._attach(link, attach, snd_settle_mode, rcv_settle_mode)
        return link

    def attach_receiver(
        self,
        attach: Attach,
        snd_settle_mode: int | None = None,
        rcv_settle_mode: int | None = None,
    ) -> ReceiverLink:
        """Attach a link on which we receive, as `attach_sender` does for sending."""
        link = ReceiverLink(self, self.in_flight, attach.name)
        self._attach(link, attach, snd_settle_mode, rcv_settle_mode)
        return link

    def _attach(self, link: Link, attach: Attach, snd: int | None, rcv: int | None) -> None:
        if self.state is not SessionState.MAPPED:
            raise ValueError(f"attach in a session in state {self.state.value}")
        key = (link.name, link.is_sender)
        if key in self._attaching:
            raise ValueError(f"a link of the name {link.name!r} is being attached")
        if not self._has_room():
            raise ValueError(f"{len(self._links)} links, the peer takes no more")
        self._links[link] = link
        self._attaching[key] = link
        try:
            link.attach(attach, snd, rcv)
        except (ValueError, TypeError):  # something in it does not fit its field
            del self._links[link]
            del self._attaching[key]
            raise

    def _has_room(self) -> bool:
        most = None if self.remote_begin is None else self.remote_begin.handle_max
        return most is None or len(self._links) <= most

    def free_handle(self) -> int:
        return self._free_handles[0] if self._free_handles else self._next_handle

    def take_handle(self) -> int:
        if self._free_handles:
            return heappop(self._free_handles)
        self._next_handle += 1
        return self._next_handle - 1

    def forget_link(self, link: LinkEnd) -> None:
        if self._links.pop(link, None) is not None:
            heappush(self._free_handles, link.handle)

    def _receive_attach(self, attach: Attach) -> None:
        limits = self.connection.limits
        if attach.handle > limits.handle_max:
            raise DecodeError(
                f"handle {attach.handle}, at most {limits.handle_max} expected", FRAMING_ERROR
            )
        if attach.handle in self._remote:
            self.fail(errors.HANDLE_IN_USE, f"attach with handle {attach.handle}, which is in use")
            return
        we_send = attach.role == RECEIVER
        link = self._attaching.pop((attach.name, we_send), None)
        if link is not None:
            self._remote[attach.handle] = link
            link.attached(attach)
            return
        if not self._has_room():
            self.fail(errors.NOT_ALLOWED, f"{len(self._links)} links, your own handle-max")
            return
        link = (
            SenderLink(self, self.outbox, attach.name)
            if we_send
            else ReceiverLink(self, self.in_flight, attach.name)
        )
        self._links[link] = link
        self._remote[attach.handle] = link
        link.request(attach)
        if link.is_answerable():
            self.emit(LinkRequested(link, attach))

    def _receive_detach(self, detach: Detach) -> None:
        link = self._remote.pop(detach.handle, None)
        if link is None:
            self._fail_handle("detach", detach.handle)
        else:
            link.detached(detach)

    def _fail_handle(self, what: str, handle: int) -> None:
        self.fail(
            errors.UNATTACHED_HANDLE, f"{what} with handle {handle}, which no link is attached to"
        )

    # Input

    def receive(self, performative: Performative, payload: bytes) -> None:
        """Handle a performative on the session's channel, except the begin that made it."""
        if isinstance(performative, Begin):
            self._receive_begin(performative)
        elif isinstance(performative, End):
            self._receive_end(performative)
        elif self.state in SESSION_ENDING or self.state is SessionState.END_RCVD:
            return
        elif isinstance(performative, Transfer):
            self._receive_transfer(performative, payload)
        elif isinstance(performative, Flow):
            self._receive_flow(performative)
        elif isinstance(performative, Disposition):
            first = performative.first
            last = first if performative.last is None else performative.last
            self.receive_disposition(
                performative.role, first, last, performative.settled, performative.state
            )
        elif isinstance(performative, Attach):
            self._receive_attach(performative)
        elif isinstance(performative, Detach):
            self._receive_detach(performative)

    def request(self, begin: Begin, channel: int) -> None:
        """Handle the peer's begin of a new session."""
        self.remote_channel = channel
        self._map(begin, SESSION_RECEIVING[self.state, Input.BEGIN])
        self.emit(SessionRequested(self, begin))

    def _receive_begin(self, begin: Begin) -> None:
        after = SESSION_RECEIVING.get((self.state, Input.BEGIN))
        if after is None or self.remote_begin is not None:
            raise DecodeError(
                f"begin on channel {self.remote_channel}, which has a session",
                errors.ILLEGAL_STATE,
            )
        self._has_peer_seen_begin = True
        self._map(begin, after)
        if after is SessionState.MAPPED:
            self.emit(SessionBegun(self, begin))

    def _map(self, begin: Begin, state: SessionState) -> None:
        self.state = state
        self.remote_begin = begin
        self.next_incoming_id = begin.next_outgoing_id
        self.outbox.window = begin.incoming_window
        self.remote_outgoing_window = begin.outgoing_window

    def _receive_end(self, end: End) -> None:
        after = SESSION_RECEIVING.get((self.state, Input.END))
        if after is None:
            raise DecodeError(f"end of a session in state {self.state.value}", errors.ILLEGAL_STATE)
        self.drop()
        self.state = after
        self.connection.unmap(self)
        if after is SessionState.UNMAPPED:
            self.connection.forget_session(self)
        self.emit(SessionEnded(self, end.error))

    # Windows

    def _receive_flow(self, flow: Flow) -> None:
        seen = flow.next_incoming_id
        if seen is not None:
            self._has_peer_seen_begin = True
        elif self._has_peer_seen_begin:
            self.fail(errors.NOT_ALLOWED, "flow without next-incoming-id")  # [FC-6]
            return
        self.outbox.open(seen, flow.incoming_window)
        self.remote_outgoing_window = flow.outgoing_window
        handle = flow.handle
        if handle is None:
            if flow.echo:
                self.flow()
            if flow.properties is not None:
                self.emit(FlowReceived(self, None, 0, flow.properties))
        else:
            link = self._remote.get(handle)
            if link is None:
                self._fail_handle("flow", handle)
                return
            if link.state is LinkState.ATTACHED or link.state is LinkState.ATTACH_RCVD:
                link.receive_flow(flow)
        self.outbox.flush()

    # Receiving

    def link_of(self, handle: int) -> Link | None:
        """Return the link with this handle of the peer."""
        return self._remote.get(handle)

    def receive_run(self, link: ReceiverLink, run: Transfers) -> None:
        """Receive a run of whole deliveries, as many as credit and window allow."""
        count = len(run)
        if self.is_next_delivery(run.first) and self._count_frames(count):
            self._last_received = add(run.first, count - 1)
            link.receive_run(run)
            self._open_window()

    def _receive_transfer(self, transfer: Transfer, payload: bytes) -> None:
        if not self._count_frames(1):
            return
        link = self._remote.get(transfer.handle)
        if link is None:
            self._fail_handle("transfer", transfer.handle)
            return
        link.receive_transfer(transfer, payload)
        self._open_window()
