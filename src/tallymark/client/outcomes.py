"""Outcomes of a message, of which its receiver chooses one [amqp-1.0 §3.4].

Accepted   processed
Rejected   it is invalid; a broker drops or dead-letters it
Released   not processed; a broker makes it available again, at its old place
Modified   as released, with changes: count it as failed, keep it from this receiver, annotate it
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from tallymark.client.arguments import check_choice, check_fields, check_flag, check_type
from tallymark.wire.amqp10.outcomes import Accepted, Error, Modified, Rejected, Released
from tallymark.wire.amqp10.types import Symbol

__all__ = ["Accepted", "Error", "Modified", "Outcome", "Rejected", "Released"]

Outcome: TypeAlias = Accepted | Rejected | Released | Modified

ACCEPTED: Final = Accepted()
RELEASED: Final = Released()
REJECTED: Final = Rejected()

OutcomeName: TypeAlias = Literal["accept", "reject", "release", "modify"]
NAMES: Final[Mapping[object, Outcome]] = {
    "accept": ACCEPTED,
    "reject": REJECTED,
    "release": RELEASED,
    "modify": Modified(delivery_failed=True),
}
"""Outcomes by the names of the calls that choose them."""

DESCRIPTION_MAX: Final = 1_000
"""Characters of an exception's text that go into a rejection."""


def named_outcome(outcome: Outcome | OutcomeName) -> Outcome:
    """Return the outcome of this name; of an outcome, itself. Raises TypeError or ValueError for a
    value that is neither."""
    if isinstance(outcome, str):
        check_choice("outcome", outcome, tuple(NAMES))
        return NAMES[outcome]
    return outcome


def check_outcome(outcome: Outcome) -> None:
    """Raise TypeError or ValueError for a value that is no outcome, or cannot be encoded: at the
    call, and not at the end of the turn, where no caller would get the error."""
    if outcome is ACCEPTED or outcome is RELEASED or outcome is REJECTED:
        return
    if not isinstance(outcome, Accepted | Rejected | Released | Modified):
        raise TypeError(
            f"outcome {outcome!r:.80}, expected an Accepted, Rejected, Released or Modified, such "
            "as ACCEPTED, or a name: " + ", ".join(repr(name) for name in NAMES)
        )
    if isinstance(outcome, Rejected) and not isinstance(outcome.error, Error | None):
        raise TypeError(f"error {outcome.error!r:.80} of a Rejected, expected an Error or None")
    try:
        outcome.encode()
    except (TypeError, ValueError) as error:
        text = f"outcome {outcome!r:.80}, expected values that AMQP has types for: {error}"
        kind = ValueError if isinstance(error, ValueError) else TypeError
        raise kind(text) from error


def rejected(reason: Error | BaseException | str | None) -> Rejected:
    """Return a rejection that says why: an error of the standard's form, or one made of an
    exception or a text (condition amqp:internal-error)."""
    if reason is None:
        return REJECTED
    if isinstance(reason, Error):
        return Rejected(error=reason)
    if isinstance(reason, BaseException):
        reason = f"{type(reason).__name__}: {reason}"
    check_type("reason", reason, str, "text, an exception, an Error or None")
    return Rejected(
        error=Error(condition=Symbol("amqp:internal-error"), description=reason[:DESCRIPTION_MAX])
    )


def modified(
    failed: bool, undeliverable_here: bool, annotations: Mapping[str, object] | None
) -> Modified:
    """Return a Modified. Brokers merge annotations whose keys begin with `x-` over those of the
    message [FC-20]."""
    check_flag("failed", failed)
    check_flag("undeliverable_here", undeliverable_here)
    check_fields("annotations", annotations)
    changes: dict[object, object] | None = None
    if annotations:
        changes = {Symbol(key): value for key, value in annotations.items()}
    return Modified(
        delivery_failed=failed, undeliverable_here=undeliverable_here, message_annotations=changes
    )
