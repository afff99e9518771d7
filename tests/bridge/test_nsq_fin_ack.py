"""FINs that are answered, for clients that ask for it: a FIN of nsqd's has no answer [NQ-D11]."""

from __future__ import annotations

import json

from tallymark.wire.nsq.commands import identify
from tallymark.wire.nsq.frames import ERROR, RESPONSE
from tests.bridge.nsq_rig import OK, Frame, NsqPeer, NsqRig, mpub, pub

CLOSE_WAIT = (RESPONSE, b"CLOSE_WAIT")
UNKNOWN = b"FIN 00000000000000ff\n"


def acknowledged(rig: NsqRig) -> NsqPeer:
    """A subscriber that asked for answers to its FINs, and takes nine messages at a time."""
    peer = rig.client()
    ((kind, agreed),) = peer.ask(identify(b'{"feature_negotiation":true,"fin_ack":true}'))
    assert kind == RESPONSE
    assert json.loads(agreed)["fin_ack"] is True
    assert peer.ask(b"SUB t c\n") == [OK]
    peer.send(b"RDY 9\n")
    return peer


def failed(fin: bytes) -> Frame:
    return ERROR, b"E_FIN_FAILED " + fin.strip() + b" failed ID not in flight"


def test_nq_d11_a_fin_is_answered_when_the_disk_has_it() -> None:
    rig = NsqRig()
    peer = acknowledged(rig)
    rig.client().ask(mpub(*[b"%d" % n for n in range(5)]))
    first, *rest = peer.messages()
    assert peer.ask(first.fin()) == [OK]
    rig.hold_disk = True
    assert peer.ask(*[one.fin() for one in rest]) == []
    rig.hold_disk = False
    assert peer.hear() == [OK] * 4
    assert (rig.queue().account.settled, peer.in_flight) == (5, 0)


def test_nq_d11_answers_come_in_the_order_of_the_commands() -> None:
    rig = NsqRig()
    peer = acknowledged(rig)
    rig.client().ask(mpub(b"1", b"2", b"3"))
    one, two, three = [message.fin() for message in peer.messages()]
    rig.hold_disk = True
    told = peer.ask(UNKNOWN, one, one, two, UNKNOWN, three, pub(b"4"), b"CLS\n")
    assert told == [failed(UNKNOWN)], "what waits for nothing and nobody"
    rig.hold_disk = False
    assert [frame for frame in peer.hear() if frame[0] in (RESPONSE, ERROR)] == [
        OK, failed(one), OK, failed(UNKNOWN), OK, OK, CLOSE_WAIT,
    ]  # fmt: skip
    assert peer.bridge.finish_count == 3


def test_nq_d11_who_does_not_ask_hears_of_failures_only() -> None:
    rig = NsqRig()
    peer = rig.consumer(ready=9)
    rig.client().ask(mpub(b"1", b"2"))
    one, two = [message.fin() for message in peer.messages()]
    assert peer.ask(one, UNKNOWN, two) == [failed(UNKNOWN)]
