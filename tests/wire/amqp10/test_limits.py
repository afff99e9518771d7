"""What limits may be, and the error conditions of the standard."""

from __future__ import annotations

import pytest

from tallymark.wire.amqp10 import errors
from tallymark.wire.amqp10.limits import Limits


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_frame_size", 511),
        ("max_frame_size", 2**32),
        ("channel_max", -1),
        ("channel_max", 65536),
        ("handle_max", 2**32),
        ("idle_time_out_ms", -1),
        ("incoming_window", 0),
        ("incoming_window", 2**31),
        ("outgoing_window", 2**32),
        ("max_message_size", -1),
        ("max_message_size", 2**63),
    ],
)
def test_limits_out_of_range_are_refused(field: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{field} {value}, expected"):
        Limits(**{field: value})


def test_unfinished_deliveries_are_limited_by_the_largest_message() -> None:
    assert Limits(max_message_size=1000).unfinished_bytes() == 2000 + 1_048_576
    assert Limits(max_message_size=1000, max_unfinished_bytes=5).unfinished_bytes() == 5
    assert Limits(max_message_size=0).unfinished_bytes() == 0


def test_every_condition_of_the_standard_is_here() -> None:
    """[amqp-1.0 §2.8.15 to §2.8.18, §4.5.8]"""
    expected = {
        "amqp": "internal-error not-found unauthorized-access decode-error "
        "resource-limit-exceeded not-allowed invalid-field not-implemented resource-locked "
        "precondition-failed resource-deleted illegal-state frame-size-too-small",
        "amqp:connection": "forced framing-error redirect",
        "amqp:session": "window-violation errant-link handle-in-use unattached-handle",
        "amqp:link": "detach-forced transfer-limit-exceeded message-size-exceeded redirect stolen",
        "amqp:transaction": "unknown-id rollback timeout",
    }
    names = {f"{group}:{name}" for group, text in expected.items() for name in text.split()}
    assert {value for value in vars(errors).values() if str(value).startswith("amqp:")} == names
