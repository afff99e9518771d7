"""TX-A10 over AMQP 0-9-1: the stories of test_transaction_properties.py at our own broker, which
takes its time; with channel.flow, and without it [TX-D3].

What the broker is asked is followed method by method: which message is settled for good, which
output was sent. At the end the broker itself says what is where.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from typing import cast

import pytest

from tallymark.wire.amqp091.frames import BODY, METHOD, frame_length
from tallymark.wire.amqp091.layouts import decode_method
from tallymark.wire.amqp091.methods import (
    BasicAck,
    BasicDeliver,
    BasicGet,
    BasicNack,
    BasicRecoverOk,
    BasicReject,
    ChannelClose,
    ChannelCloseOk,
    Method,
    TxCommitOk,
    TxRollbackOk,
    TxSelect,
)
from tallymark.wire.amqp10.outcomes import Error
from tests.bridge.rig import Content
from tests.client.test_transaction_properties import ALL, Story, blocked, drain, finish, quietly
from tests.support.amqp091_peer import Peer091, connected091
from tests.support.amqp10_tx_broker import TxBroker
from tests.support.long import longer, sized
from tests.support.virtual_loop import VirtualLoop, run

SEEDS = sized(50, 100, 5_000)
BLOCK = 25


class SlowPeer(Peer091):
    """Its bytes arrive some time later, in their order; and it knows what has become of the
    messages of queue q."""

    def __init__(self, chance: random.Random | None, *, has_flow: bool) -> None:
        super().__init__(has_flow=has_flow)
        self.chance = chance
        self.answers = self._follow
        self.done: list[tuple[str, bytes]] = []
        """Settled for good, in this order."""
        self.refuses: list[Error] = []
        self.coordinators: list[object] = []
        self._tags: dict[int, bytes] = {}
        self._staged: dict[int, tuple[bytes, bool]] = {}
        self._is_selected = False
        self._late: deque[bytes] = deque()
        self._body_of = 0
        self.declare("q")
        self.declare("out")

    def bodies(self, queue: str) -> list[bytes]:
        """Of queue q: what is not settled for good."""
        assert queue == "q"
        return sorted(ALL - {body for _, body in self.done}, key=int)

    def ended(self) -> None:
        self._tags.clear()
        self._staged.clear()
        self._is_selected = False

    # The client's methods

    def _follow(self, channel: int, method: Method) -> bool:
        if channel != 1:
            return False
        if isinstance(method, BasicAck):
            self._settled(method.delivery_tag, method.multiple, True)
        elif isinstance(method, BasicNack):
            self._settled(method.delivery_tag, method.multiple, not method.requeue)
        elif isinstance(method, BasicReject):
            self._settled(method.delivery_tag, False, not method.requeue)
        elif isinstance(method, TxSelect):
            self._is_selected = True
        elif isinstance(method, ChannelClose):
            self.ended()
        return False

    def _settled(self, tag: int, multiple: bool, is_done: bool) -> None:
        known = [one for one in self._tags if one <= tag] if multiple else [tag]
        assert known
        for one in known:
            self._staged[one] = (self._tags.pop(one), is_done)
        if not self._is_selected:
            self._take_effect()

    def _take_effect(self) -> None:
        self.done += [("q", body) for body, is_done in self._staged.values() if is_done]
        self._staged.clear()

    # The broker's

    def send(self, data: bytes) -> None:
        self._learn(data)
        data = self._noted(data)
        if self.chance is None and not self._late:
            self._pass_on(data)
            return
        self._late.append(data)
        if len(self._late) == 1:
            self._wait()

    def _learn(self, data: bytes) -> None:
        pos = 0
        while pos < len(data):
            after = pos + frame_length(data, pos)
            raw = data[pos:after]
            pos = after
            if int.from_bytes(raw[1:3], "big") != 1:
                continue
            if raw[0] == BODY:
                self._tags[self._body_of] = raw[7:-1]
            elif raw[0] == METHOD:
                method = decode_method(raw[7:-1])
                if isinstance(method, BasicDeliver):
                    self._body_of = method.delivery_tag
                elif isinstance(method, TxCommitOk):
                    self._take_effect()
                elif isinstance(method, TxRollbackOk):
                    for tag, (body, _) in self._staged.items():
                        self._tags[tag] = body
                    self._staged.clear()
                elif isinstance(method, BasicRecoverOk):
                    self._tags.clear()
                elif isinstance(method, (ChannelClose, ChannelCloseOk)):
                    self.ended()

    def _wait(self) -> None:
        delay = self.chance.random() / 50 if self.chance is not None else 0
        asyncio.get_running_loop().call_later(delay, self._next)

    def _next(self) -> None:
        self._pass_on(self._late.popleft())
        if self._late:
            self._wait()

    def _pass_on(self, data: bytes) -> None:
        transport = self.transport
        if transport is not None and not transport.is_closing():
            transport.send(data)

    def work(self) -> None:
        """It closes its socket behind what it has said."""
        self.rig.settle_down()
        bridge, transport = self.bridge, self.transport
        if bridge is None or transport is None:
            return
        data = b"".join(bridge.take_output())
        if data:
            self.send(data)
        if bridge.closing:
            asyncio.get_running_loop().call_later(1, transport.end)

    def contents(self, name: str) -> list[bytes]:
        """All that is ready in a queue; it is empty then."""
        found: list[bytes] = []
        while True:
            ((_, heard),) = self.other().ask(BasicGet(name, no_ack=True))
            if not isinstance(heard, Content):
                return found
            found.append(heard.body)


class Story091(Story):
    """Delivery tags begin at 1. With a commit the broker has room for further messages, which may
    come in front of commit-ok: what is staged may take a slot twice so long. Outside of a
    transaction a message and what comes of it are two steps, so what was sent is looked at when all
    is at rest."""

    def holds(self) -> None:
        dispatcher = self.dispatcher
        for consumer in dispatcher.consumers:
            for message in consumer.inbox.buffer:
                assert message.tag > dispatcher.rollback_mark, message
            window = consumer.window
            taken = consumer.flow.credit + window.buffered + window.held
            assert taken <= self.window + len(consumer.inbox.staged), (
                f"{taken} slots of {self.window}: credit {consumer.flow.credit}, "
                f"buffered {window.buffered}, held {window.held}"
            )
            assert min(window.buffered, window.held) >= 0
        done = [body for _, body in self.broker.done]
        assert len(set(done)) == len(done), done


@longer
@pytest.mark.parametrize("has_flow", [True, False])
@pytest.mark.parametrize("block", range(SEEDS // BLOCK))
def test_tx_a10_stop_rollback_commit_and_close_at_any_point(block: int, has_flow: bool) -> None:
    async def main() -> None:
        for seed in range(block * BLOCK, (block + 1) * BLOCK):
            try:
                await told(random.Random(seed), has_flow)
            except BaseException as error:
                error.add_note(f"seed {seed}")
                raise

    run(main, block)


async def told(chance: random.Random, has_flow: bool) -> None:
    peer = SlowPeer(chance if chance.random() < 0.8 else None, has_flow=has_flow)
    peer.put("q", *sorted(ALL, key=int))
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    async with connected091(peer, timeout=5) as connection:
        session = await connection.session()
        story = Story091(cast(TxBroker, peer), session, chance)
        story.last_tag = 0
        story.dispatcher.rollback_mark = 0
        await story.open()
        loop.after_each = story.holds
        reading = asyncio.create_task(story.read())
        async with asyncio.timeout(300):
            for _ in range(3):
                await blocked(story)
            for call in story.calls:
                call.cancel()
            if story.calls:
                await asyncio.wait(story.calls)
            if not session.is_closed:
                await quietly(session.recover)
            await finish(story, reading)
        await session.close()
    loop.after_each = None
    async with connected091(peer) as connection, connection.session() as session:
        await drain(cast(TxBroker, peer), session)
    story.holds()
    assert peer.depth("q") == (0, 0)
    assert {body for _, body in peer.done} == ALL
    out = peer.contents("out")
    assert sorted(set(out) - story.torn) == sorted([b for b in out if b not in story.torn])
    assert ALL - story.torn <= set(out)
