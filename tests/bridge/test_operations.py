"""Rules of operations that hold whichever face asks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tallymark.bridge.amqp10.management import Management
from tallymark.bridge.permissions import Access
from tallymark.engine.policies import Policy
from tallymark.wire.amqp091.methods import QueueDeclare
from tests.bridge.rig import Rig
from tests.bridge.test_amqp10_management import ANYTHING, request

Declare = Callable[[Rig, str], None]


def _managed(rig: Rig) -> Management:
    connection = rig.broker.clients.open_connection("/", "guest", "peer")
    return Management(rig.broker, connection, Access("guest", "/", ANYTHING), "node@host")


def _declare_091(rig: Rig, name: str) -> None:
    rig.connect().ask(QueueDeclare(name, durable=True))


def _declare_10(rig: Rig, name: str) -> None:
    assert _managed(rig).answer(request("PUT", f"/queues/{name}", {})).status in (200, 201)


DECLARE: dict[str, Declare] = {"AMQP 0-9-1": _declare_091, "AMQP 1.0": _declare_10}


@pytest.mark.parametrize("face", DECLARE)
def test_a_queue_gets_the_default_type(face: str) -> None:
    rig = Rig()
    rig.broker.registry.set_default_queue_type(rig.broker.vhost("/"), "stream")
    DECLARE[face](rig, "s")
    assert rig.broker.vhost("/").queues["s"].settings.is_stream
    policy = Policy("p", "^classic", {"default-queue-type": "classic"}, apply_to="queues")
    rig.broker.registry.set_policy("/", policy)
    DECLARE[face](rig, "classic")
    assert not rig.broker.vhost("/").queues["classic"].settings.is_stream


@pytest.mark.parametrize("face", DECLARE)
def test_a_queue_that_is_there_fits_whatever_the_default_type_has_become(face: str) -> None:
    rig = Rig()
    DECLARE[face](rig, "q")
    rig.broker.registry.set_default_queue_type(rig.broker.vhost("/"), "quorum")
    DECLARE[face](rig, "q")
    assert "x-queue-type" not in rig.broker.vhost("/").queues["q"].arguments
