"""RabbitMQ's management interface, as of 3.10: all groups of its routes, by module.

    overview      the broker as a whole
    health        health checks
    vhosts        virtual hosts
    users         users, permissions
    topics        topic permissions
    limits        limits of users and virtual hosts
    topology      queues, exchanges, bindings
    messages      publish, get, purge
    connections   connections, channels, consumers
    policies      policies, operator policies
    definitions   export and import of everything
    cluster       what matters where there are several nodes, or plugins

docs/management.md says what differs from RabbitMQ's.
"""

from __future__ import annotations

from aiohttp import web

from tallymark.server.http.requests import HttpContext
from tallymark.server.management.cluster import Cluster
from tallymark.server.management.connections import Connections
from tallymark.server.management.definitions import Definitions
from tallymark.server.management.health import Health
from tallymark.server.management.limits import LimitRoutes
from tallymark.server.management.messages import Messages
from tallymark.server.management.overview import Overview
from tallymark.server.management.policies import Policies
from tallymark.server.management.topics import TopicPermissions
from tallymark.server.management.topology import Topology
from tallymark.server.management.users import UsersAndPermissions
from tallymark.server.management.vhosts import VirtualHosts


def add_management(http: HttpContext, app: web.Application) -> None:
    Overview(http).add_to(app)
    Health(http).add_to(app)
    VirtualHosts(http).add_to(app)
    UsersAndPermissions(http).add_to(app)
    TopicPermissions(http).add_to(app)
    LimitRoutes(http).add_to(app)
    Topology(http).add_to(app)
    Messages(http).add_to(app)
    Connections(http).add_to(app)
    Policies(http, operator=False).add_to(app)
    Policies(http, operator=True).add_to(app)
    Definitions(http).add_to(app)
    Cluster(http).add_to(app)
