"""A server's end of one NSQ connection, protocol V2, without I/O and without a clock.

The owner passes bytes and time in, asks for events until there are none, and writes the output of
`take_output`. Bytes are processed only when an event is asked for. So the owner's answer to one
event takes effect before the next command is read, however the bytes arrived.

Any bytes result in events, or in one fatal `ProtocolFailure` with nsqd's text, and never in an
exception. The memory used is bounded by the size of one command (Limits.max_body_size,
max_msg_size), or by EARLY_MAX bytes sent ahead while the client waits for our answer.

Where nsqd's answer depends on more than the bytes, or where it reads beyond the size in a command,
this connection is stricter:
- An MPUB ends with its body. nsqd reads on behind a body that is too short for its messages, and
  takes the bytes behind the last message for a command.
- A number of more than 64 bits is too big; nsqd lets it wrap.
- A second IDENTIFY after a layer was added is refused; nsqd adds one more layer.
"""

from __future__ import annotations

from typing import Final, final

from tallymark.wire.line import NEVER, MonotonicMs
from tallymark.wire.nsq.commands import MAGIC
from tallymark.wire.nsq.errors import (
    E_AUTH_DISABLED,
    E_AUTH_FIRST,
    E_BAD_BODY,
    E_BAD_MESSAGE,
    E_BAD_PROTOCOL,
    E_INVALID,
    WireError,
    as_text,
)
from tallymark.wire.nsq.events import (
    AuthReceived,
    ClsReceived,
    Event,
    FinReceived,
    IdentifyReceived,
    PublishReceived,
    RdyReceived,
    ReqReceived,
    SubReceived,
    TouchReceived,
)
from tallymark.wire.nsq.identify import decode_identify
from tallymark.wire.nsq.kernel import (
    RUN_BYTES,
    ids_of,
    scan_fins,
    scan_publishes,
    scan_requeues,
    scan_touches,
    unpack_ids,
)
from tallymark.wire.nsq.lifecycle import EARLY_MAX, Lifecycle
from tallymark.wire.nsq.limits import LINE_MAX, Limits
from tallymark.wire.nsq.parsing import (
    PublishLine,
    body_size,
    channel_name,
    check_id,
    message_id,
    message_size,
    mpub_cuts,
    publish_line,
    rdy_count,
    req_delay,
    topic_name,
)
from tallymark.wire.nsq.states import (
    COMMANDS,
    OUR_TURN,
    RENEWALS,
    SETTLING,
    VERBS,
    State,
)

__all__ = ["Connection", "Limits"]

FINS_BYTES: Final = 1024
"""Bytes of FINs that are one step of work: they may all be refused one by one."""
NOPS_BYTES: Final = 256
"""Bytes of NOPs that are one step of work."""
LINES_MAX: Final = 1024
"""Number of valid command lines of PUB and DPUB that are cached."""
KNOWN_LINE_MAX: Final = 128
"""Maximum size of a cached line in bytes: name, delay and not much more."""


@final
class Connection(Lifecycle):
    """A server's connection. Not thread-safe; one owner. Times are monotonic milliseconds."""

    __slots__ = ()

    # Input

    def receive_data(self, data: bytes, now_ms: MonotonicMs) -> None:
        """Add received bytes, or continue with earlier ones. Never raises; call next_event for
        their meaning. O(1)."""
        line = self.line
        line.receive(data, now_ms)
        if self._state in OUR_TURN and line.is_early():
            self._end(f"more than {EARLY_MAX} bytes sent ahead of our answer", False)

    def next_event(self) -> Event | None:
        """Return the next event; None: more bytes, an answer or more time is needed. Never
        raises."""
        events = self._events
        line = self.line
        inbox = line.inbox
        while not events:
            if not self._is_reading:
                if self._state is not State.UPGRADING or not line.is_ended:
                    return None
                self._end("closed by the peer during an upgrade", False, State.ENDED)
                continue
            if line.is_ended:
                inbox.gather_all()
                if inbox.pos == len(inbox.data):
                    is_clean = self._state is not State.MAGIC
                    self._end("closed by the peer", is_clean, State.ENDED)
                    continue
            elif not inbox.gather() or line.steps <= 0:
                return None
            line.steps -= 1
            try:
                self._parse()
            except WireError as error:
                self._fail(error)
        return events.popleft()

    def take_unread(self) -> bytes:
        """Return the bytes behind IDENTIFY, which are input of the layer to be added."""
        return self.line.inbox.take()

    # Commands

    def _parse(self) -> None:
        """Process one command, or a run of them; or set what the inbox waits for."""
        inbox = self.line.inbox
        data = inbox.data
        pos = inbox.pos
        if self._state is State.MAGIC:
            self._read_magic()
            return
        if self._is_free:
            if data.startswith(b"FIN ", pos):
                after = scan_fins(data, pos)
                if after > pos and self._state in SETTLING:
                    inbox.advance(after, 1)
                    self.line.steps -= (after - pos) // FINS_BYTES
                    self._events.append(FinReceived(ids_of(data[pos:after], b"FIN ")))
                    return
            elif data.startswith(b"NOP\n", pos):
                end = pos + NOPS_BYTES
                while pos < end and data.startswith(b"NOP\n", pos):
                    pos += 4
                inbox.advance(pos, 1)
                return
        newline = data.find(b"\n", pos, pos + LINE_MAX)
        if newline < 0:
            self._lack_newline()
            return
        line = data[pos : newline + 1]
        known = self._known.get(line)
        if known is not None:
            self._publish(known)
            return
        stripped = line[:-2] if line.endswith(b"\r\n") else line[:-1]
        self._command(line, stripped.split(b" "))

    def _read_magic(self) -> None:
        inbox = self.line.inbox
        data = inbox.data
        if len(data) < len(MAGIC):
            self._end("closed by the peer in its first 4 bytes", False, State.ENDED)
            return
        inbox.advance(len(MAGIC), 1)
        if not data.startswith(MAGIC):
            raise WireError(E_BAD_PROTOCOL, "")
        self._set_state(State.INIT)
        self.line.deadline_ms = NEVER
        self._set_heartbeats()

    def _lack_newline(self) -> None:
        """Handle input without a complete line. Like nsqd, a line that overflows the reader's
        buffer ends the connection without an error."""
        inbox = self.line.inbox
        if len(inbox.data) - inbox.pos >= LINE_MAX:
            self._end(f"no newline in {LINE_MAX} bytes", False)
        elif self.line.is_ended:
            self._end("closed by the peer in the middle of a command line", False, State.ENDED)
        else:
            inbox.await_line(LINE_MAX)

    def _command(self, line: bytes, params: list[bytes]) -> None:
        """Process a command whose line is not cached."""
        verb = params[0]
        if not self._is_free and verb != b"IDENTIFY":
            raise WireError(E_INVALID, f"cannot {as_text(verb)} in current state (TLS required)")
        if verb not in VERBS:
            raise WireError(E_INVALID, f"invalid command {as_text(verb)}")
        after = COMMANDS.get((self._state, verb))
        if after is None and self.is_renewable:
            after = RENEWALS.get((self._state, verb))
        if after is None:
            raise WireError(E_INVALID, f"cannot {as_text(verb)} in current state")
        if verb == b"PUB" or verb == b"DPUB":
            known = publish_line(line, params, self.limits)
            if len(line) <= KNOWN_LINE_MAX:
                if len(self._known) >= LINES_MAX:
                    self._known.clear()
                self._known[line] = known
            self._publish(known)
        elif verb == b"MPUB":
            self._mpub(len(line), params)
        elif verb == b"IDENTIFY" or verb == b"AUTH":
            self._identify_or_auth(len(line), params, after)
        elif verb == b"FIN" or verb == b"REQ" or verb == b"TOUCH":
            self._settle(line, params)
        else:
            self.line.inbox.advance(self.line.inbox.pos + len(line), 1)
            if verb == b"RDY":
                if after is State.SUBSCRIBED:
                    count = rdy_count(params, self.limits.max_rdy_count)
                    self._events.append(RdyReceived(count))
            elif verb == b"SUB":
                self._sub(params)
            elif verb == b"CLS":
                self._events.append(ClsReceived())
            self._set_state(after)

    # Publishing

    def _publish(self, known: PublishLine) -> None:
        """Process the stretch of messages that begins with this line."""
        inbox = self.line.inbox
        data = inbox.data
        pos = inbox.pos
        line = known.line
        cuts = scan_publishes(data, pos, len(data), line, self.limits.max_msg_size)
        size = cuts[len(cuts) - 1]
        if not size:
            self._lack_message(known)
            return
        self._check_authorized(known.verb)
        inbox.advance(pos + size, 1)
        raw = data[pos : pos + size]
        self._events.append(
            PublishReceived(known.verb, known.topic, raw, cuts, len(line) + 4, known.delay_ms)
        )

    def _lack_message(self, known: PublishLine) -> None:
        """Handle an incomplete message behind the line: wait for it, or fail if it is malformed."""
        inbox = self.line.inbox
        verb = known.verb
        start = inbox.pos + len(known.line) + 4
        if self._await(start, E_BAD_MESSAGE, f"{verb} failed to read message body size"):
            return
        size = message_size(inbox.data, start - 4, verb, self.limits.max_msg_size)
        self._await(start + size, E_BAD_MESSAGE, f"{verb} failed to read message body")

    def _mpub(self, line_size: int, params: list[bytes]) -> None:
        if len(params) < 2:
            raise WireError(E_INVALID, "MPUB insufficient number of parameters")
        topic = topic_name(params)
        self._check_authorized("MPUB")
        inbox = self.line.inbox
        data = inbox.data
        start = inbox.pos + line_size + 4
        if self._await(start, E_BAD_BODY, "MPUB failed to read body size"):
            return
        size = body_size(data, start - 4, "MPUB", self.limits.max_body_size)
        after = start + size
        if after > len(data) and not self.line.is_ended:
            inbox.need = after - inbox.pos
            return
        cuts = mpub_cuts(data, start, min(after, len(data)), self.limits)
        last = start + 4 + cuts[len(cuts) - 1]
        if last != after:
            raise WireError(
                E_BAD_BODY, f"MPUB body size {size}, but its messages take {last - start}"
            )
        inbox.advance(after, 1)
        self._events.append(PublishReceived("MPUB", topic, data[start + 4 : after], cuts, 4, 0))

    def _check_authorized(self, verb: str) -> None:
        if not self._is_authorized:
            raise WireError(E_AUTH_FIRST, f"AUTH required before {verb}")

    def _await(self, until: int, code: str, text: str) -> bool:
        """Return whether the bytes up to `until` must be waited for. Raises WireError if none will
        come."""
        inbox = self.line.inbox
        if until <= len(inbox.data):
            return False
        if self.line.is_ended:
            raise WireError(code, text)
        inbox.need = until - inbox.pos
        return True

    # Opening

    def _identify_or_auth(self, line_size: int, params: list[bytes], after: State) -> None:
        verb = as_text(params[0])
        if verb == "AUTH" and len(params) != 1:
            raise WireError(E_INVALID, "AUTH invalid number of parameters")
        if verb == "IDENTIFY" and self.layers:
            raise WireError(E_INVALID, "cannot IDENTIFY in current state")
        inbox = self.line.inbox
        data = inbox.data
        start = inbox.pos + line_size + 4
        if self._await(start, E_BAD_BODY, f"{verb} failed to read body size"):
            return
        size = body_size(data, start - 4, verb, self.limits.max_body_size)
        if self._await(start + size, E_BAD_BODY, f"{verb} failed to read body"):
            return
        body = data[start : start + size]
        inbox.advance(start + size, 1)
        if verb == "IDENTIFY":
            self.identify = decode_identify(body, self.limits)
            self._events.append(IdentifyReceived(self.identify))
        elif not self.limits.auth_required:
            raise WireError(E_AUTH_DISABLED, "AUTH disabled")
        elif self._is_authorized and not self.is_renewable:
            raise WireError(E_INVALID, "AUTH already set")
        else:
            self._before_auth = self._state
            self._events.append(AuthReceived(body))
        self._set_state(after)

    # Consuming

    def _sub(self, params: list[bytes]) -> None:
        if not self.identify.heartbeat_interval_ms:
            raise WireError(E_INVALID, "cannot SUB with heartbeats disabled")
        if len(params) < 3:
            raise WireError(E_INVALID, "SUB insufficient number of parameters")
        topic = topic_name(params)
        channel = channel_name(params)
        self._check_authorized("SUB")
        self._events.append(SubReceived(topic, channel))

    def _settle(self, line: bytes, params: list[bytes]) -> None:
        """Process FIN, TOUCH or REQ: one, or a run of them."""
        inbox = self.line.inbox
        data = inbox.data
        pos = inbox.pos
        inbox.advance(pos + len(line), 1)
        if params[0] == b"REQ":
            message_id(params, 3)
            delay_ms = req_delay(params, self.limits.max_req_timeout_ms)
            check_id(params)
            ids = unpack_ids(scan_requeues(data, pos, min(len(data), pos + RUN_BYTES), line[20:]))
            inbox.advance(pos + len(ids) * len(line), 1)
            self._events.append(ReqReceived(ids, delay_ms))
            return
        digits = message_id(params, 2)
        check_id(params)
        ids = unpack_ids(digits)
        if params[0] == b"FIN":
            self._events.append(FinReceived(ids))
            return
        after = scan_touches(data, pos)
        if after > pos:
            inbox.advance(after, 1)
            ids = ids_of(data[pos:after], b"TOUCH ")
        self._events.append(TouchReceived(ids))
