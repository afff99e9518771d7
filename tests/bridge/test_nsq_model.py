"""NSQ clients that do anything at any time: every message ends in one place, counts stay true."""

from __future__ import annotations

import random

import pytest

from tallymark.wire.nsq.frames import ERROR, MESSAGE
from tests.bridge.nsq_rig import Message, NsqPeer, NsqRig, dpub, mpub, pub


class World:
    """Three subscribers of one channel at most, and what is known of every message."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.rig = NsqRig()
        self.producer = self.rig.client()
        self.rig.topics.channel("t", "c")
        self.peers: list[NsqPeer] = []
        self.held: dict[NsqPeer, list[Message]] = {}
        """What each client may think it holds; some of it is gone by time."""
        self.sent = 0

    def step(self) -> None:
        chosen = self.random.choice(
            [self.publish, self.subscribe, self.settle, self.settle, self.settle, self.ready,
             self.wait, self.leave, self.empty, self.pause]
        )  # fmt: skip
        chosen()
        self.hear()
        self.check()

    def publish(self) -> None:
        n = self.random.randint(1, 6)
        bodies = [b"%d" % (self.sent + i) for i in range(n)]
        self.sent += n
        kind = self.random.randrange(3)
        if kind == 0:
            self.producer.send(*[pub(body) for body in bodies])
        elif kind == 1:
            self.producer.send(mpub(*bodies))
        else:
            self.producer.send(*[dpub(body, self.random.choice([0, 700])) for body in bodies])

    def subscribe(self) -> None:
        if len(self.peers) < 3:
            peer = self.rig.consumer(self.random.randint(0, 9), msg_timeout=1000)
            self.peers.append(peer)
            self.held[peer] = []

    def settle(self) -> None:
        """Any client settles some of what any client was sent, in any order."""
        if not self.peers:
            return
        peer, owner = self.random.choice(self.peers), self.random.choice(self.peers)
        if self.random.random() < 0.8:
            owner = peer
        messages = self.held[owner]
        some = self.random.sample(messages, self.random.randint(0, len(messages)))
        if self.random.random() < 0.6:
            some.sort(key=messages.index)
        commands = []
        for message in some:
            kind = self.random.random()
            if kind < 0.6:
                commands.append(message.fin())
            elif kind < 0.8:
                commands.append(message.req(self.random.choice([0, 0, 500])))
            else:
                commands.append(message.touch())
        failed = 0
        for frame_kind, content in self._split(peer, peer.ask(*commands)):
            assert content.startswith((b"E_FIN_FAILED", b"E_REQ_FAILED", b"E_TOUCH_FAILED"))
            assert frame_kind == ERROR
            failed += 1
        assert failed <= len(some)

    def ready(self) -> None:
        if self.peers:
            peer = self.random.choice(self.peers)
            peer.send(b"RDY %d\n" % self.random.randint(0, 9))

    def wait(self) -> None:
        self.rig.advance(self.random.choice([1, 300, 1_100]))

    def leave(self) -> None:
        if self.peers and self.random.random() < 0.5:
            peer = self.peers.pop(self.random.randrange(len(self.peers)))
            del self.held[peer]
            self.rig.peers.remove(peer)
            peer.leave()

    def empty(self) -> None:
        if self.random.random() < 0.2:
            self.rig.topics.empty_channel("t", "c")

    def pause(self) -> None:
        paused = self.random.random() < 0.3
        self.rig.topics.pause_channel("t", "c", paused)

    def hear(self) -> None:
        self.producer.hear()
        for peer in self.peers:
            assert self._split(peer, peer.hear()) == []

    def _split(self, peer: NsqPeer, frames: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        """Keeps the messages, returns the rest."""
        others = []
        for kind, content in frames:
            if kind == MESSAGE:
                message = Message(content)
                self.held[peer] = [m for m in self.held[peer] if m.id != message.id] + [message]
            else:
                others.append((kind, content))
        return others

    def check(self) -> None:
        self.rig.broker.check()
        queue = self.rig.queue()
        assert queue.acquired == sum(peer.in_flight for peer in self.peers)
        assert queue.entered == self.sent

    def drain(self) -> None:
        """Nobody disturbs any more: every message comes and is finished once."""
        queue = self.rig.queue()
        self.rig.topics.pause_channel("t", "c", False)
        for peer in self.peers:
            self.rig.peers.remove(peer)
            peer.leave()
        self.rig.advance(5_000)
        left = queue.ready
        last = self.rig.consumer(2500)
        messages = last.messages()
        assert len({m.id for m in messages}) == len(messages) == left
        assert last.ask(*[m.fin() for m in messages]) == []
        assert (queue.ready, queue.acquired, queue.deferred) == (0, 0, 0)
        assert queue.account.settled + sum(queue.account.dropped.values()) == self.sent
        self.rig.broker.check()


@pytest.mark.parametrize("seed", range(60))
def test_nq_a8_clients_that_do_anything_at_any_time(seed: int) -> None:
    world = World(seed)
    for _ in range(60):
        world.step()
    world.drain()
