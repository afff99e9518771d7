"""All hostile behaviours, port by port."""

from __future__ import annotations

from typing import Final

from tests.siege import amqp091, amqp10, nsq, web
from tests.siege.attack import BEHAVIOURS, Behaviour

PORTS: Final = ("amqp", "amqps", "nsq", "http", "nsq_http", "nsq_https")
MODULES: Final = (amqp091, amqp10, nsq, web)
"""Imported for what they put on the list."""
ALL: Final[list[Behaviour]] = sorted(BEHAVIOURS, key=lambda one: PORTS.index(one.port))
