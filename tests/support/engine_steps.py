"""What tests of dead letters do over and over: let a message die, and look where it went."""

from __future__ import annotations

from tallymark.engine.outcomes import ACCEPTED, FAILED, REJECTED
from tallymark.engine.session import Session
from tests.support.engine_rig import Delivery, Held, Rig

REASONS = ("rejected", "expired", "maxlen", "delivery_limit")


def manual() -> Rig:
    """A rig whose clock moves by `advance` only."""
    rig = Rig()
    rig.tick_ms = 0
    return rig


def finish(rig: Rig) -> list[Delivery]:
    """Let everything happen that is due now, as if the time of every pending letter had come; the
    account must hold after it [LC-5]."""
    out = rig.settle_down()
    waiting = list(rig.broker.pending.waiting.values())
    for queue in waiting:
        queue.retry.due_ms = 0
        rig.broker.agenda.mark(queue)
    if waiting:
        out += rig.settle_down()
    rig.broker.check()
    return out


def reject(
    rig: Rig, name: str, n: int = 1, outcome: int = REJECTED, session: Session | None = None
) -> list[Held]:
    """Take n messages off a queue and settle each with an outcome; returns what was taken."""
    session = session or rig.session()
    out = []
    for _ in range(n):
        got = rig.take(session, name)
        assert got is not None, f"{name} is empty"
        rig.broker.settlement.settle(session, got[1], got[1], outcome)
        out.append(got[0])
    finish(rig)
    return out


def drain(rig: Rig, name: str) -> list[Held]:
    """Take and accept everything."""
    session, out = rig.session(), []
    while (got := rig.take(session, name)) is not None:
        rig.broker.settlement.settle(session, got[1], got[1], ACCEPTED)
        out.append(got[0])
    finish(rig)
    return out


def die(rig: Rig, name: str, reason: str, *targets: str) -> None:
    """Everything ready in a queue dies there for a reason; a fanout takes the letters to the
    targets. A policy makes it so, and goes again: other settings of the queue stay."""
    exchange = "to " + " ".join(targets)
    rig.exchange(exchange, "fanout", *[(target, "") for target in targets])
    policy: dict[str, object] = {"dead-letter-exchange": exchange}
    ready = rig.vhost.queues[name].ready
    assert ready, f"{name} is empty"
    if reason == "expired":
        rig.set_policy(name, policy | {"message-ttl": 0})
        finish(rig)
    elif reason == "maxlen":
        rig.set_policy(name, policy | {"max-length": 0})
        finish(rig)
    else:
        rig.set_policy(name, policy | {"delivery-limit": 0})
        reject(rig, name, ready, REJECTED if reason == "rejected" else FAILED)
    rig.set_policy(name, {})
    finish(rig)
