"""IDENTIFY: a client's properties and requested settings, and the settings in effect [NQ-6].

The body is read as Go's encoding/json reads it: keys in any case, unknown keys passed over, null
as if absent, but a value of the wrong type is an error.
"""

from __future__ import annotations

import json
from typing import Final, final

from tallymark.wire.nsq.errors import E_BAD_BODY, E_IDENTIFY_FAILED, WireError
from tallymark.wire.nsq.limits import Limits

HEARTBEAT_MIN_MS: Final = 1000
OUTPUT_BUFFER_MIN: Final = 64
MSG_TIMEOUT_MIN_MS: Final = 1000
SAMPLE_RATE_MAX: Final = 99
DEFLATE_LEVEL: Final = 6
"""Level of deflate if the client requests none."""


@final
class Identify:
    """Settings in effect: those the client requested, else the server's."""

    __slots__ = (
        "client_id",
        "deflate",
        "deflate_level",
        "feature_negotiation",
        "fin_ack",
        "heartbeat_interval_ms",
        "hostname",
        "msg_timeout_ms",
        "output_buffer_size",
        "output_buffer_timeout_ms",
        "sample_rate",
        "snappy",
        "tls_v1",
        "topology_region",
        "topology_zone",
        "user_agent",
    )

    def __init__(self, limits: Limits) -> None:
        self.client_id = ""
        self.hostname = ""
        self.user_agent = ""
        self.feature_negotiation = False
        self.heartbeat_interval_ms = limits.client_timeout_ms // 2
        """Heartbeat interval, ms; 0: none."""
        self.output_buffer_size = limits.output_buffer_size
        """Size of the output buffer, bytes; 1: not buffered."""
        self.output_buffer_timeout_ms = limits.output_buffer_timeout_ms
        """Time-out of the output buffer, ms; 0: only a full buffer is written."""
        self.tls_v1 = False
        self.snappy = False
        self.deflate = False
        self.deflate_level = DEFLATE_LEVEL
        self.sample_rate = 0
        """Percentage of the messages to deliver; 0: all."""
        self.fin_ack = False
        """True if each FIN is answered, once it is on disk [NQ-D11]."""
        self.msg_timeout_ms = limits.msg_timeout_ms
        self.topology_region = ""
        self.topology_zone = ""


def decode_identify(body: bytes, limits: Limits) -> Identify:
    """Return the settings in effect after this body. Raises WireError E_BAD_BODY or
    E_IDENTIFY_FAILED."""
    fields = _Fields(_decode_object(body))
    asked_heartbeat = fields.integer("heartbeat_interval", 64)
    asked_buffer = fields.integer("output_buffer_size", 64)
    asked_flush = fields.integer("output_buffer_timeout", 64)
    asked_level = fields.integer("deflate_level", 64)
    asked_rate = fields.integer("sample_rate", 32)
    asked_timeout = fields.integer("msg_timeout", 64)
    found = Identify(limits)
    found.client_id = fields.text("client_id")
    found.hostname = fields.text("hostname")
    found.user_agent = fields.text("user_agent")
    found.topology_region = fields.text("topology_region")
    found.topology_zone = fields.text("topology_zone")
    found.feature_negotiation = fields.flag("feature_negotiation")
    wants_tls = fields.flag("tls_v1")
    wants_snappy = fields.flag("snappy")
    wants_deflate = fields.flag("deflate")
    wants_fin_ack = fields.flag("fin_ack")

    _set_heartbeat(found, asked_heartbeat, limits)
    _set_output_buffer(found, asked_buffer, asked_flush, limits)
    if not 0 <= asked_rate <= SAMPLE_RATE_MAX:
        raise _invalid("sample rate", asked_rate)
    found.sample_rate = asked_rate
    if asked_timeout:
        if not MSG_TIMEOUT_MIN_MS <= asked_timeout <= limits.max_msg_timeout_ms:
            raise _invalid("msg timeout", asked_timeout)
        found.msg_timeout_ms = asked_timeout

    if found.feature_negotiation:
        found.fin_ack = wants_fin_ack
        found.tls_v1 = wants_tls and limits.tls_available
        found.snappy = wants_snappy and limits.snappy_enabled
        found.deflate = wants_deflate and limits.deflate_enabled
        if found.deflate and asked_level > 0:
            found.deflate_level = asked_level
        found.deflate_level = min(found.deflate_level, limits.max_deflate_level)
        if found.snappy and found.deflate:
            raise WireError(E_IDENTIFY_FAILED, "cannot enable both deflate and snappy compression")
    return found


def _set_heartbeat(found: Identify, asked: int, limits: Limits) -> None:
    if asked == -1:
        found.heartbeat_interval_ms = 0
    elif asked:
        if not HEARTBEAT_MIN_MS <= asked <= limits.max_heartbeat_interval_ms:
            raise _invalid("heartbeat interval", asked)
        found.heartbeat_interval_ms = asked


def _set_output_buffer(found: Identify, size: int, timeout: int, limits: Limits) -> None:
    if timeout == -1:
        found.output_buffer_timeout_ms = 0
    elif timeout:
        least = limits.min_output_buffer_timeout_ms
        if not least <= timeout <= limits.max_output_buffer_timeout_ms:
            raise _invalid("output buffer timeout", timeout)
        found.output_buffer_timeout_ms = timeout
    if size == -1:
        found.output_buffer_size = 1
        found.output_buffer_timeout_ms = 0
    elif size:
        if not OUTPUT_BUFFER_MIN <= size <= limits.max_output_buffer_size:
            raise _invalid("output buffer size", size)
        found.output_buffer_size = size


def _invalid(what: str, value: int) -> WireError:
    return WireError(E_BAD_BODY, f"IDENTIFY {what} ({value}) is invalid")


def encode_answer(identify: Identify, limits: Limits) -> bytes:
    """Return the answer's data: `OK`, or JSON for a client that negotiates features."""
    if not identify.feature_negotiation:
        return b"OK"
    answer: dict[str, object] = {
        "max_rdy_count": limits.max_rdy_count,
        "version": limits.version,
        "max_msg_timeout": limits.max_msg_timeout_ms,
        "msg_timeout": identify.msg_timeout_ms,
        "tls_v1": identify.tls_v1,
        "deflate": identify.deflate,
        "deflate_level": identify.deflate_level,
        "max_deflate_level": limits.max_deflate_level,
        "snappy": identify.snappy,
        "sample_rate": identify.sample_rate,
        "auth_required": limits.auth_required,
        "output_buffer_size": identify.output_buffer_size,
        "output_buffer_timeout": identify.output_buffer_timeout_ms,
        "topology_region": limits.topology_region,
        "topology_zone": limits.topology_zone,
    }
    if identify.fin_ack:
        answer["fin_ack"] = True  # unknown to nsqd: only clients that asked for it see it
    return encode_json(answer)


def encode_json(value: dict[str, object]) -> bytes:
    """Return JSON in Go's form, without spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _decode_object(body: bytes) -> dict[str, object]:
    """Return the JSON object with keys in lower case. Raises WireError for anything else."""
    try:
        value = json.loads(body.decode("utf-8", "replace"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise _undecodable() from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _undecodable()
    return {str(key).lower(): item for key, item in value.items()}


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _undecodable() -> WireError:
    return WireError(E_BAD_BODY, "IDENTIFY failed to decode JSON body")


@final
class _Fields:
    """Typed access to the fields; a value of another type is a WireError."""

    __slots__ = ("_values",)

    def __init__(self, values: dict[str, object]) -> None:
        self._values = values

    def integer(self, key: str, bits: int) -> int:
        value = self._values.get(key)
        if value is None:
            return 0
        if type(value) is not int:
            raise _undecodable()
        number = int(value)
        if not -(1 << (bits - 1)) <= number < 1 << (bits - 1):
            raise _undecodable()
        return number

    def flag(self, key: str) -> bool:
        value = self._values.get(key)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise _undecodable()
        return value

    def text(self, key: str) -> str:
        """Return a text. Unpaired surrogates become U+FFFD, as in Go, so that it can be encoded."""
        value = self._values.get(key)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise _undecodable()
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
