"""Lifecycle of a server's NSQ connection: its state, its end, time-outs, answers and layers.
connection.py handles commands."""

from __future__ import annotations

from collections import deque
from typing import Final

from tallymark.wire.line import IN_TIME, LATE, NEVER, Line, MonotonicMs
from tallymark.wire.nsq.commands import MAGIC
from tallymark.wire.nsq.errors import (
    WireError,
)
from tallymark.wire.nsq.events import (
    Event,
    PeerClosed,
    ProtocolFailure,
    UpgradeDue,
)
from tallymark.wire.nsq.frames import (
    CLOSE_WAIT_FRAME,
    ERROR,
    HEARTBEAT_FRAME,
    OK_FRAME,
    RESPONSE,
    frame,
)
from tallymark.wire.nsq.identify import Identify, encode_answer, encode_json
from tallymark.wire.nsq.limits import Limits
from tallymark.wire.nsq.parsing import (
    PublishLine,
)
from tallymark.wire.nsq.states import (
    OUR_TURN,
    OVER,
    READING,
    State,
)
from tallymark.wire.nsq.upgrades import TLS, due_layers

UPGRADE_TIMEOUT_MS: Final = 5_000
"""Time-out for a layer to become ready, ms: nsqd's time-out for a TLS handshake."""
EARLY_MAX: Final = 1_048_576
"""Bytes accepted ahead while the client waits for our answer; see Lifecycle.wants_data."""


class Lifecycle:
    """Base of `Connection`."""

    __slots__ = (
        "_before_auth",
        "_events",
        "_is_authorized",
        "_is_free",
        "_is_reading",
        "_known",
        "_layers",
        "_state",
        "identify",
        "is_renewable",
        "layers",
        "limits",
        "line",
    )

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.line = Line(
            len(MAGIC), HEARTBEAT_FRAME, limits.steps, limits.client_timeout_ms, EARLY_MAX, True
        )
        self.identify = Identify(limits)
        """Negotiated settings of the client; our defaults before IDENTIFY."""
        self.layers: list[str] = []
        """Active layers, the outermost first."""
        self._layers: deque[str] = deque()  # layers to be added
        self._state = State.MAGIC
        self._is_reading = True  # `_state in READING`, which costs more
        self._events: deque[Event] = deque()
        self._known: dict[bytes, PublishLine] = {}
        self._is_authorized = not limits.auth_required
        self._before_auth = State.INIT
        self.is_renewable = False
        """True if another AUTH may come, with a secret in place of the first one: not in nsqd."""
        self._is_free = not limits.tls_required  # commands other than IDENTIFY may come

    @property
    def state(self) -> State:
        return self._state

    @property
    def wants_data(self) -> bool:
        """Return whether the owner should read on. If not, the client is ahead of our answer
        (IDENTIFY, AUTH, an upgrade): up to EARLY_MAX bytes are accepted, then the connection
        ends."""
        return self.line.wants_data(self._state in OUR_TURN)

    @property
    def write_timeout_ms(self) -> int:
        """Milliseconds for which a write may be blocked before the client counts as gone [NQ-7]; 0:
        no limit."""
        return self.identify.heartbeat_interval_ms

    # Endings

    def _fail(self, error: WireError) -> None:
        """Report the peer's error to the owner. A fatal one is the last event but PeerClosed."""
        self._events.append(ProtocolFailure(error))
        if error.is_fatal:
            self.refuse()

    def refuse(self) -> None:
        """Stop reading: the owner found a fatal error, and sends it in its order among the
        answers."""
        if self._state not in OVER:
            self._set_state(State.FAILED)
            self.line.stop_listening()
            self._known.clear()
            self.line.deadline_ms = NEVER

    def _set_state(self, state: State) -> None:
        self._state = state
        self._is_reading = state in READING

    def _end(self, reason: str, clean: bool, state: State = State.CLOSED) -> None:
        if self._state is State.CLOSED or self._state is State.ENDED:
            return
        self._set_state(state)
        self.line.stop_listening()
        self._known.clear()
        self._layers.clear()
        self.line.deadline_ms = NEVER
        self._events.append(PeerClosed(reason, clean))

    def receive_eof(self) -> None:
        """Note the end of the peer's input. PeerClosed follows the events of earlier input; answers
        that are still due are sent."""
        self.line.is_ended = True

    def receive_broken(self, reason: str) -> None:
        """Note a failure of the transport or a layer: PeerClosed follows the events found so
        far."""
        self._end(reason, False)

    # Time

    def _set_heartbeats(self) -> None:
        interval_ms = self.identify.heartbeat_interval_ms
        self.line.set_heartbeats(interval_ms, 2 * interval_ms)

    def _has_heartbeats(self) -> bool:
        return self._state not in OVER and self._state is not State.UPGRADING

    def next_deadline(self) -> MonotonicMs | None:
        """Return when tick is due; None: never."""
        return self.line.next_deadline(self._has_heartbeats())

    def tick(self, now_ms: MonotonicMs) -> None:
        """Send a due heartbeat, and detect a peer that is dead or too slow (PeerClosed)."""
        line = self.line
        found = line.tick(now_ms, False, self._has_heartbeats())
        if found == IN_TIME or self._state in OVER:
            return
        if found != LATE:
            self._end(f"nothing received for {line.silence_ms} ms", False)
        elif self._state is State.UPGRADING:
            self._end(f"no {self._layers[0]} after {UPGRADE_TIMEOUT_MS} ms", False)
        else:
            waited = self.limits.client_timeout_ms
            self._end(f"no protocol header after {waited} ms", False)

    # Output

    def take_output(self, now_ms: MonotonicMs) -> list[bytes]:
        """Take the output to write; see Line.take."""
        return self.line.take(now_ms)

    def send_ok(self, count: int = 1) -> None:
        """Append OK for `count` commands."""
        self._send(OK_FRAME * count)

    def send_close_wait(self) -> None:
        """Append the answer to CLS."""
        self._send(CLOSE_WAIT_FRAME)

    def send_messages(self, frames: bytes) -> None:
        """Append message frames made by kernel.encode_messages."""
        self._send(frames)

    def send_error(self, error: WireError) -> None:
        """Append an error frame. After a fatal one nothing is sent, and PeerClosed follows."""
        if self._state is State.CLOSED:
            return
        self.line.out.append(frame(ERROR, error.payload))
        if error.is_fatal:
            self._end(str(error), False)

    def send_identify(self) -> None:
        """Append the answer to IdentifyReceived. If layers are to be added, UpgradeDue follows."""
        if self._state is not State.IDENTIFYING:
            return
        identify = self.identify
        self._send(frame(RESPONSE, encode_answer(identify, self.limits)))
        self._set_heartbeats()
        self._layers.extend(due_layers(identify))
        self._upgrade_or_go_on()

    def upgraded(self) -> None:
        """Append OK inside the layer that is now in place."""
        if self._state is not State.UPGRADING:
            return
        layer = self._layers.popleft()
        self.layers.append(layer)
        if layer == TLS:
            self._is_free = True
        self._send(OK_FRAME)
        self._set_heartbeats()
        self._upgrade_or_go_on()

    def _upgrade_or_go_on(self) -> None:
        if self._layers:
            self._set_state(State.UPGRADING)
            self.line.set_deadline(UPGRADE_TIMEOUT_MS)
            self._events.append(UpgradeDue(self._layers[0], self.identify.deflate_level))
        else:
            self._set_state(State.INIT)
            self.line.deadline_ms = NEVER

    def send_auth(self, identity: str, identity_url: str, permission_count: int) -> None:
        """Append the answer to AuthReceived: the secret gives `permission_count` permissions."""
        if self._state is not State.AUTHENTICATING:
            return
        answer: dict[str, object] = {
            "identity": identity,
            "identity_url": identity_url,
            "permission_count": permission_count,
        }
        self._send(frame(RESPONSE, encode_json(answer)))
        self._is_authorized = True
        self._set_state(self._before_auth)

    def _send(self, frames: bytes) -> None:
        if self._state is not State.CLOSED:
            self.line.out.append(frames)
