"""Channels that have no room, by an operator's policy: an OK is never said for what is refused."""

from __future__ import annotations

import pytest

from tallymark.engine.policies import Policy
from tallymark.wire.nsq.frames import ERROR, RESPONSE
from tests.bridge.nsq_rig import OK, NsqRig, dpub, mpub, pub


def rig_with(definition: dict[str, object]) -> NsqRig:
    """Channel c has the policy, d has not."""
    rig = NsqRig()
    for channel in ("c", "d"):
        rig.topics.channel("t", channel)
    rig.broker.registry.set_policy("/", Policy("full", "^t:c$", definition, 0, "queues"))
    return rig


def held(rig: NsqRig) -> tuple[int, int]:
    return rig.queue("t", "c").ready, rig.queue("t", "d").ready


@pytest.mark.parametrize("limit", [{"max-length": 2}, {"max-length-bytes": 2}])
@pytest.mark.parametrize("command", [pub(b"x"), mpub(b"x", b"y"), dpub(b"x", 5000)])
def test_who_cannot_be_served_by_every_channel_is_refused_and_no_channel_has_it(
    limit: dict[str, object], command: bytes
) -> None:
    rig = rig_with({**limit, "overflow": "reject-publish"})
    assert rig.client().ask(pub(b"1"), pub(b"2")) == [OK, OK]
    verb = command.split()[0].decode()
    count = 2 if verb == "MPUB" else 1
    peer = rig.client()
    assert peer.error(command) == (
        f"E_{verb}_FAILED {verb} failed queue 't:c' in vhost '/' has no room for {count} messages "
        "more"
    )
    assert peer.bridge.closing
    assert held(rig) == (2, 2)
    assert rig.queue("t", "d").deferred == 0
    topic = rig.topics.find("t")
    assert topic is not None
    assert topic.message_count == 2
    rig.broker.check()


def test_nq_d5_an_mpub_that_fits_only_in_part_is_refused_as_a_whole() -> None:
    rig = rig_with({"max-length": 3, "overflow": "reject-publish"})
    assert rig.client().ask(mpub(b"1", b"2")) == [OK]
    assert rig.client().error(mpub(b"3", b"4")).startswith("E_MPUB_FAILED ")
    assert held(rig) == (2, 2)
    assert rig.client().ask(mpub(b"3")) == [OK]
    assert held(rig) == (3, 3)


@pytest.mark.parametrize("limit", [{"max-length": 2}, {"max-length-bytes": 2}])
@pytest.mark.parametrize("together", [True, False])
def test_commands_before_the_one_that_is_refused_have_their_ok(
    limit: dict[str, object], together: bool
) -> None:
    rig = rig_with({**limit, "overflow": "reject-publish"})
    peer = rig.client()
    sent = [pub(b"%d" % i) for i in range(4)]
    heard = peer.ask(*sent) if together else [one for each in sent for one in peer.ask(each)]
    assert [kind for kind, _ in heard] == [RESPONSE, RESPONSE, ERROR]
    assert heard[-1][1].endswith(b"has no room for 1 messages more")
    assert held(rig) == (2, 2)
    assert peer.bridge.closing
    rig.broker.check()


def test_deferred_messages_that_come_together_take_no_room_from_each_other() -> None:
    rig = rig_with({"max-length": 2, "overflow": "reject-publish"})
    assert rig.client().ask(*[dpub(b"x", 5000)] * 3) == [OK] * 3
    assert (held(rig), rig.queue("t", "c").deferred) == ((0, 0), 3)


def test_there_is_room_again_when_messages_are_finished_or_the_policy_goes() -> None:
    rig = rig_with({"max-length": 1, "overflow": "reject-publish"})
    assert rig.client().ask(pub(b"1")) == [OK]
    taker = rig.consumer(ready=1)
    taker.ask(taker.message().fin(), b"RDY 0\n")
    assert rig.client().ask(pub(b"2")) == [OK]
    assert rig.client().error(pub(b"3")).startswith("E_PUB_FAILED ")
    rig.broker.registry.delete_policy("/", "full")
    assert rig.client().ask(pub(b"3")) == [OK]
    assert held(rig) == (2, 3)


def test_what_is_dead_lettered_instead_is_taken() -> None:
    definition = {"max-length": 1, "overflow": "reject-publish-dlx", "dead-letter-exchange": ""}
    rig = rig_with({**definition, "dead-letter-routing-key": "dead"})
    dead = rig.vhost_queue("dead")
    assert rig.client().ask(pub(b"1"), pub(b"2")) == [OK, OK]
    assert held(rig) == (1, 2)
    assert dead.ready == 1


def test_another_queue_of_the_exchange_holds_no_producer_back() -> None:
    rig = NsqRig()
    rig.topics.channel("t", "c")
    side = rig.vhost_queue("side", {"x-max-length": 1, "x-overflow": "reject-publish"})
    rig.broker.vhost("/").bind_queue("side", "t", "", {}, 0)
    assert rig.client().ask(pub(b"1"), pub(b"2")) == [OK, OK]
    assert (rig.queue().ready, side.ready) == (2, 1)
