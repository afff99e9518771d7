"""Any bytes, with a whole broker behind: clients are told one of nsqd's errors or what they asked
for, and the account of every queue balances [NQ-A4, LC-5].

As tests/wire/nsq/test_fuzz.py: TALLYMARK_FUZZ_BYTES and TALLYMARK_FUZZ_SEED.
"""

from __future__ import annotations

import random

from tallymark.wire.nsq.frames import ERROR, split_frames
from tallymark.wire.nsq.limits import Limits
from tests.bridge.nsq_rig import NsqPeer, NsqRig
from tests.support.nsq_traffic import BYTES, SEED, TEXTS, pieces, traffic

LIMITS = Limits(max_msg_size=300, max_body_size=1000, max_rdy_count=50)
AT_ONCE = 4
"""Clients that are connected at the same time."""
LIVES = 200
"""Clients of one broker, one after the other."""


def feed(rig: NsqRig, peer: NsqPeer, raw: bytes, chance: random.Random) -> None:
    for piece in pieces(chance, raw):
        peer.send(piece)
        while peer.bridge.upgrade is not None:  # a layer that does nothing
            rest = peer.bridge.take_unread()
            peer.bridge.upgraded()
            peer.send(rest)
        if chance.random() < 0.5:
            rig.settle_down()
    rig.settle_down()


def check_errors(peer: NsqPeer) -> int:
    """Every error it heard is one that nsqd has; returns how many there were."""
    frames, rest = split_frames(peer._raw)
    assert rest == b""
    errors = [content for kind, content in frames if kind == ERROR]
    for content in errors:
        assert TEXTS.fullmatch(content) or content.endswith(b" client does not own message"), (
            content
        )
    return len(errors)


def test_nq_a4_damaged_traffic_leaves_a_sound_broker() -> None:
    chance = random.Random(SEED)
    fed = errors = 0
    while fed < BYTES:
        rig = NsqRig(LIMITS)
        for _ in range(LIVES):
            raw = traffic(chance)
            fed += len(raw)
            peer = NsqPeer(rig)
            feed(rig, peer, raw, chance)
            if chance.random() < 0.3:
                rig.advance(chance.choice([1, 100, 2_000, 70_000]))
            if len(rig.peers) > AT_ONCE:
                gone = rig.peers.pop(chance.randrange(len(rig.peers)))
                gone.bridge.eof()
                rig.settle_down()
                errors += check_errors(gone)
        rig.broker.check()
    assert errors > 100
