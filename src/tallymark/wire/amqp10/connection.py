"""Either end of one AMQP 1.0 connection, without I/O and without a clock.

The owner passes bytes and time in, asks for events until there are none, and writes the output of
`take_output`. Bytes are processed only when an event is asked for. So the owner's answer to one
event (such as the refusal of a link) takes effect before the next frame is read, however the bytes
arrived.

Any bytes result in events, or in one fatal `ConnectionFailed`, and never in an exception. The
memory used is bounded: one incomplete frame, the incomplete deliveries on all links up to
`Limits.unfinished_bytes`, and EARLY_MAX bytes sent ahead while the peer waits for our answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast, final

from tallymark.wire.amqp10 import errors
from tallymark.wire.amqp10.ends import NO_CHANNEL, SessionEnd
from tallymark.wire.amqp10.errors import FRAMING_ERROR, DecodeError
from tallymark.wire.amqp10.events import AnyEvent, SaslReceived
from tallymark.wire.amqp10.frames import (
    AMQP,
    AMQP_HEADER,
    HEAD,
    SASL,
    SASL_HEADER,
    frame_head,
    sasl_frame,
)
from tallymark.wire.amqp10.lifecycle import EARLY_MAX, Lifecycle
from tallymark.wire.amqp10.limits import Limits
from tallymark.wire.amqp10.performatives import (
    Begin,
    Close,
    Open,
    Performative,
    Transfer,
    decode_performative,
    name_of,
)
from tallymark.wire.amqp10.receiver_link import ReceiverLink
from tallymark.wire.amqp10.sasl import (
    OK,
    SaslChallenge,
    SaslFrame,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
    decode_sasl,
)
from tallymark.wire.amqp10.scanning import Meaning, Shape, scan_dispositions, scan_transfers
from tallymark.wire.amqp10.session import Session
from tallymark.wire.amqp10.states import (
    AWAITS_HEADER,
    CLOSING,
    OUR_TURN,
    OVER,
    RECEIVING,
    SASL_STATES,
    Input,
    State,
)
from tallymark.wire.line import MonotonicMs

_TRANSFER: Final = 0x14
_DISPOSITION: Final = 0x15

_SASL_INPUTS: Final[dict[type[SaslFrame], Input]] = {
    SaslMechanisms: Input.MECHANISMS,
    SaslInit: Input.INIT,
    SaslChallenge: Input.CHALLENGE,
    SaslResponse: Input.RESPONSE,
    SaslOutcome: Input.OUTCOME,
}


@final
class Connection(Lifecycle):
    """A connection. Not thread-safe; one owner. Times are monotonic milliseconds."""

    __slots__ = (
        "_known_dispositions",
        "_known_transfers",
        "_remote",
        "_sessions",
        "context",
        "is_server",
        "mechanisms",
        "needs_sasl",
        "wants_tags",
    )

    def __init__(
        self,
        limits: Limits,
        *,
        is_server: bool,
        mechanisms: tuple[str, ...] = (),
        needs_sasl: bool = False,
        wants_tags: bool = True,
        trace: Callable[[str], None] | None = None,
    ) -> None:
        """mechanisms: those a server offers; none: no SASL. needs_sasl: the server requires SASL.
        wants_tags: incoming runs of deliveries include delivery-tags. trace: callback for a line
        per frame, see trace.py."""
        super().__init__(limits, trace)
        self.is_server = is_server
        self.mechanisms = mechanisms
        self.needs_sasl = needs_sasl
        self.wants_tags = wants_tags
        self.context: object = None
        """Object of the owner."""
        self._sessions: dict[int, Session] = {}  # by our channel
        self._remote: dict[int, Session] = {}  # by the peer's
        self._known_transfers: dict[bytes, Shape] = {}
        self._known_dispositions: dict[bytes, Meaning] = {}

    @property
    def sessions(self) -> list[Session]:
        """Return the sessions that have not ended on both sides."""
        return list(self._sessions.values())

    @property
    def wants_data(self) -> bool:
        """Return whether the owner should read on. If not, the peer is ahead of our answer (to
        SASL, to its open): up to EARLY_MAX bytes are accepted, then the connection ends."""
        return self.line.wants_data(self.state in OUR_TURN)

    # Input

    def receive_data(self, data: bytes, now_ms: MonotonicMs) -> None:
        """Add received bytes, or continue with earlier ones. Never raises; call next_event for
        their meaning. O(1)."""
        line = self.line
        line.receive(data, now_ms)
        if self._trace_in is not None and data and not line.is_deaf:
            self._trace_in.add(data)
        if self.state in OUR_TURN and line.is_early():
            self._fail(
                errors.RESOURCE_LIMIT_EXCEEDED,
                f"{line.inbox.waiting} bytes sent ahead of our answer, at most {EARLY_MAX} kept",
            )
            self._stop_listening()

    def receive_eof(self) -> None:
        """Note the end of the peer's input. Ended follows the events of earlier input."""
        self.line.is_ended = True

    def receive_broken(self, reason: str) -> None:
        """Note a failure of the transport: Ended follows the events found so far."""
        self._end(reason, False)

    def drop(self, reason: str) -> None:
        """End the connection. Output so far is still written, and no more is added; Ended
        follows."""
        self._end(reason, False)

    def next_event(self) -> AnyEvent | None:
        """Return the next event; None: more bytes, an answer or more time is needed. Never
        raises."""
        events = self._events
        line = self.line
        while not events:
            if self.state is State.END:
                return None
            if self.state in OUR_TURN or not line.inbox.gather():
                if not line.is_ended:
                    return None
                self._end("closed by the peer without a close", False)
                continue
            if line.steps <= 0 and not line.is_ended:
                return None
            line.steps -= 1
            try:
                self._parse()
            except DecodeError as error:
                self._fail(error.condition, error.text)
        return cast(AnyEvent, events.popleft())

    def _parse(self) -> None:
        """Process one frame, or a run of frames; or set the bytes that the inbox needs."""
        inbox = self.line.inbox
        data = inbox.data
        pos = inbox.pos
        end = len(data)
        if self.state is State.OPENED:
            if self._scan(data, pos, end):
                return
        elif self.state in AWAITS_HEADER:
            inbox.advance(pos + HEAD, HEAD)
            self._receive_header(data[pos : pos + HEAD])
            return
        try:
            size, offset, kind, channel = frame_head(data, pos)
        except DecodeError:
            self._stop_listening()
            raise
        if size > self._frame_limit:
            self._stop_listening()
            raise DecodeError(
                f"frame of {size} bytes, at most {self._frame_limit} expected", FRAMING_ERROR
            )
        after = pos + size
        if after > end:
            inbox.need = size
            return
        inbox.advance(after, HEAD)
        self._receive_frame(data, pos + offset, after, kind, channel)

    def _scan(self, data: bytes, pos: int, end: int) -> bool:
        """Try the fast paths. False: the frame must be read singly."""
        if pos + 11 > end or data[pos + 9] != 0x53:
            return False
        code = data[pos + 10]
        if code == _TRANSFER:
            return self._scan_transfers(data, pos, end)
        if code == _DISPOSITION:
            channel = data[pos + 6] << 8 | data[pos + 7]
            session = self._remote.get(channel)
            if session is None:
                return False
            found = scan_dispositions(data, pos, end, channel, self._known_dispositions)
            if found is None:
                return False
            self.line.inbox.advance(found.end, HEAD)
            session.receive_disposition(
                found.role, found.first, found.last, found.settled, found.state
            )
            return True
        return False

    def _scan_transfers(self, data: bytes, pos: int, end: int) -> bool:
        channel = data[pos + 6] << 8 | data[pos + 7]
        session = self._remote.get(channel)
        if session is None:
            return False
        link = session.link_of(_handle_at(data, pos, end))
        if not isinstance(link, ReceiverLink) or not link.may_scan():
            return False
        frame_limit = self._frame_limit
        room = link.room()
        window = session.window_left()
        run = scan_transfers(
            data,
            pos,
            end,
            channel,
            frame_limit,
            link.max_message_size or frame_limit,
            room if room < window else window,
            self._known_transfers,
            self.wants_tags,
        )
        if run is None:
            return False
        self.line.inbox.advance(run.end, HEAD)
        session.receive_run(link, run)
        return True

    def _receive_frame(self, data: bytes, pos: int, end: int, kind: int, channel: int) -> None:
        """Process one complete frame with its body at data[pos:end]."""
        if self.state in OVER and self.state not in CLOSING:
            return
        if self.state in SASL_STATES:
            if kind != SASL:
                raise DecodeError(f"frame of type {kind} where SASL is spoken", FRAMING_ERROR)
            frame, after = decode_sasl(data, pos, end)
            if after != end:
                raise DecodeError(f"{end - after} bytes behind a SASL frame")
            self._receive_sasl(frame)
            return
        if kind != AMQP:
            raise DecodeError(f"frame of type {kind}, expected {AMQP}", FRAMING_ERROR)
        if pos == end:
            return
        performative, after = decode_performative(data, pos, end)
        payload = b""
        if after != end:
            if not isinstance(performative, Transfer):
                raise DecodeError(f"{end - after} bytes behind a {name_of(performative)}")
            payload = data[after:end]
        self._receive_performative(performative, payload, channel)

    # Protocol headers and SASL

    def start(self, sasl: bool) -> None:
        """Send a client's first bytes. With `sasl`, SaslReceived is next; without, call `open`."""
        self._send_moves(Input.SASL_HEADER if sasl else Input.HEADER)
        self.line.out.append(SASL_HEADER if sasl else AMQP_HEADER)

    def _receive_header(self, header: bytes) -> None:
        if header == SASL_HEADER:
            moved = Input.SASL_HEADER
        elif header == AMQP_HEADER:
            moved = Input.HEADER
        else:
            self._refuse_header(header)
            return
        after = RECEIVING.get((self.state, moved))
        if after is None or not self._is_header_wanted(moved):
            self._refuse_header(header)
            return
        self.state = after
        if self.is_server:
            self.line.out.append(header)
            if moved is Input.SASL_HEADER:
                self.line.out.append(sasl_frame(SaslMechanisms(self.mechanisms).encode()))

    def _is_header_wanted(self, moved: Input) -> bool:
        if not self.is_server or self.state is not State.START:
            return True
        return bool(self.mechanisms) if moved is Input.SASL_HEADER else not self.needs_sasl

    def _refuse_header(self, header: bytes) -> None:
        """Answer with the supported protocol header and end [amqp-1.0 §2.2]."""
        wanted = AMQP_HEADER
        if self.is_server:
            if self.mechanisms and self.state is State.START:
                wanted = SASL_HEADER
            self.line.out.append(wanted)
        elif self.state is State.SASL_HDR_SENT:
            wanted = SASL_HEADER
        self._end(f"protocol header {header!r}, expected {wanted!r}", False)

    def _receive_sasl(self, frame: SaslFrame) -> None:
        after = RECEIVING.get((self.state, _SASL_INPUTS[type(frame)]))
        if after is None:
            raise DecodeError(f"{name_of(frame)} in state {self.state.value}", errors.ILLEGAL_STATE)
        self.state = after
        self._events.append(SaslReceived(frame))
        if isinstance(frame, SaslOutcome):
            if frame.code == OK:
                self.line.out.append(AMQP_HEADER)
            else:
                self._end(f"not authenticated: sasl-code {frame.code}", False)

    def sasl_init(
        self, mechanism: str, initial_response: bytes | None = None, hostname: str | None = None
    ) -> None:
        """Send a client's choice of mechanism."""
        self._send_sasl(Input.INIT, SaslInit(mechanism, initial_response, hostname))

    def sasl_response(self, response: bytes) -> None:
        """Send a client's answer to a challenge."""
        self._send_sasl(Input.RESPONSE, SaslResponse(response))

    def sasl_challenge(self, challenge: bytes) -> None:
        """Send a server's challenge."""
        self._send_sasl(Input.CHALLENGE, SaslChallenge(challenge))

    def sasl_outcome(self, code: int, additional_data: bytes | None = None) -> None:
        """Send a server's outcome: 0, or an error code, after which the connection ends."""
        self._send_sasl(Input.OUTCOME, SaslOutcome(code, additional_data))
        if code != OK:
            self._end(f"not authenticated: sasl-code {code}", False)

    def _send_sasl(self, moved: Input, frame: SaslFrame) -> None:
        if self.state is not State.END:
            self._send_moves(moved)
            self.line.out.append(sasl_frame(frame.encode()))

    # Sessions

    def begin(self, begin: Begin | None = None) -> Session:
        """Begin a session. Channel, windows and handle-max in `begin` are set here. Raises
        ValueError if the connection is not open, or has channel-max sessions."""
        if self.state is not State.OPENED:
            raise ValueError(f"begin in state {self.state.value}")
        channel = self._free_channel()
        if channel < 0:
            raise ValueError(f"{len(self._sessions)} sessions, channel-max is {self.channel_max}")
        session = Session(self, channel)
        self._sessions[channel] = session
        session.begin(begin)
        return session

    def _free_channel(self) -> int:
        """Return the lowest free channel; NO_CHANNEL: none is free."""
        sessions = self._sessions
        if len(sessions) > self.channel_max:
            return NO_CHANNEL
        channel = 0
        while channel in sessions:
            channel += 1
        return channel

    def unmap(self, session: SessionEnd) -> None:
        if self._remote.get(session.remote_channel) is session:
            del self._remote[session.remote_channel]

    def forget_session(self, session: SessionEnd) -> None:
        if self._sessions.get(session.channel) is session:
            del self._sessions[session.channel]

    def _receive_performative(
        self, performative: Performative, payload: bytes, channel: int
    ) -> None:
        if isinstance(performative, Open):
            self._receive_open(performative)
        elif isinstance(performative, Close):
            self._receive_close(performative)
        elif self.state in CLOSING:
            return
        elif self.state is not State.OPENED:
            raise DecodeError(
                f"{name_of(performative)} in state {self.state.value}", errors.ILLEGAL_STATE
            )
        else:
            session = self._remote.get(channel)
            if session is not None:
                session.receive(performative, payload)
            elif isinstance(performative, Begin):
                self._receive_begin(performative, channel)
            else:
                raise DecodeError(
                    f"{name_of(performative)} on channel {channel}, which has no session",
                    errors.NOT_ALLOWED,
                )

    def _receive_begin(self, begin: Begin, channel: int) -> None:
        if channel > self.limits.channel_max:
            raise DecodeError(
                f"channel {channel}, at most {self.limits.channel_max} expected", FRAMING_ERROR
            )
        if begin.remote_channel is not None:
            session = self._sessions.get(begin.remote_channel)
            if session is None or session.remote_channel != NO_CHANNEL:
                raise DecodeError(
                    f"begin that answers channel {begin.remote_channel}, on which none was sent",
                    errors.NOT_ALLOWED,
                )
            session.remote_channel = channel
            self._remote[channel] = session
            session.receive(begin, b"")
            return
        ours = self._free_channel()
        if ours < 0:
            raise DecodeError(
                f"{len(self._sessions) + 1} sessions, channel-max is {self.channel_max}",
                errors.NOT_ALLOWED,
            )
        session = Session(self, ours)
        self._sessions[ours] = session
        self._remote[channel] = session
        session.request(begin, channel)

    def count_unfinished(self, change: int) -> None:
        line = self.line
        line.unfinished += change
        most = self.limits.unfinished_bytes()
        if change > 0 and 0 < most < line.unfinished:
            raise DecodeError(
                f"unfinished deliveries of {line.unfinished} bytes on all links together, "
                f"at most {most} allowed",
                errors.RESOURCE_LIMIT_EXCEEDED,
            )

    def _drop_sessions(self) -> None:
        sessions = self._sessions
        self._sessions = {}
        self._remote = {}
        for session in sessions.values():
            session.lose()
        self._known_transfers.clear()
        self._known_dispositions.clear()


def _handle_at(data: bytes, pos: int, end: int) -> int:
    """Return the handle of the transfer frame at `pos`, whose descriptor is there; -1: it is
    incomplete, or has an unusual encoding."""
    if pos + 25 > end:
        return -1
    code = data[pos + 11]
    at = pos + 14 if code == 0xC0 else pos + 20 if code == 0xD0 else end
    if at + 5 > end:
        return -1
    code = data[at]
    if code == 0x43:
        return 0
    if code == 0x52:
        return data[at + 1]
    if code == 0x70:
        return int.from_bytes(data[at + 1 : at + 5], "big")
    return -1
