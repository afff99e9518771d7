"""Reading the configuration again while the broker runs, by SIGHUP or over HTTP.

Everything is read and checked first; only then what may change at run time changes, at once. Where
anything is refused nothing changes [SC-A6]. Settings are *live* by their declaration in
settings.py; others that changed are named, and wait for the next start.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tallymark.engine.broker import Broker
from tallymark.engine.errors import BrokerError
from tallymark.engine.policies import without_effect
from tallymark.server import logs, shovels, supervisor
from tallymark.server.access.tls import Certificates, TlsRefused
from tallymark.server.config.policies import ConfiguredPolicy
from tallymark.server.config.settings import DECLARED, Config, ConfigError
from tallymark.server.loading import NotLoaded, failed_to_load
from tallymark.server.logs import AUDIT, log_of
from tallymark.server.node import Node

log = log_of("server")


class ReloadRefused(Exception):
    """The configuration is not taken; the old one stays. The text says why."""


@dataclass(frozen=True, slots=True)
class Reloaded:
    """Result of reading the configuration again, by names of settings."""

    changed: list[str]
    """Settings in effect now."""
    waiting: list[str]
    """Settings in effect from the next start on."""


def reload(node: Node) -> Reloaded:
    """Read the configuration again, and take over what may change at run time. Raises
    ReloadRefused."""
    if node.read_config is None:
        raise ReloadRefused("this broker was not started from a configuration")
    try:
        new = node.read_config()
        _check(node.broker, new)
        certificates = Certificates(node.config)
        if new.shovels:
            shovels.load()
    except ImportError as error:
        failure = failed_to_load("the configuration", "server", error)
        log.error("config.refused", reason=str(failure))
        raise ReloadRefused(str(failure)) from error
    except (ConfigError, BrokerError, TlsRefused, NotLoaded) as error:
        log.error("config.refused", reason=str(error))
        raise ReloadRefused(str(error)) from error
    return _take(node, new, certificates)


def on_signal(node: Node) -> None:
    """Handle SIGHUP."""
    supervisor.tell_reloading()
    try:
        found = reload(node)
    except ReloadRefused as error:  # logged where it was refused
        supervisor.tell_ready(f"configuration refused, the old one stays: {error}")
    else:
        supervisor.tell_ready(f"configuration read again, {len(found.changed)} settings changed")


def _take(node: Node, new: Config, certificates: Certificates) -> Reloaded:
    old = node.config
    other = [name for name in DECLARED if getattr(new, name) != getattr(old, name)]
    changed = [name for name in other if DECLARED[name].live]
    node.config = replace(old, **{name: getattr(new, name) for name in changed})
    if "slow_consumers" in changed:
        node.slow_consumers.use_rules()
    if "shovels" in changed:
        node.shovels.use(new.shovels)
    if "policies" in changed:
        set_policies(node.broker, new.policies)
    _set_levels(old, new)
    node.buffers.limits_changed()
    if "write_high_water" in changed or "write_low_water" in changed:
        for client in node.clients:
            client.limit_output()
    if node.certificates is not None:
        node.certificates.take(certificates)
    node.tasks.replan()
    node.broker.deliver_after_sync(node.config.deliver_after == "synced")
    node.broker.contents.pause_unreadable(node.config.unreadable == "pause")
    node.housekeeping.limits_changed()
    node.schedule()
    waiting = [name for name in other if name not in changed]
    log.info("config.reloaded", changed=changed, at_next_start=waiting)
    AUDIT.info("config.reloaded", changed=changed, at_next_start=waiting)
    return Reloaded(changed, waiting)


def _set_levels(old: Config, new: Config) -> None:
    """Set the level of each category for which the configuration says another than before. What was
    set over HTTP stays for the others."""
    for category in logs.CATEGORIES:
        before, now = (one.log_levels.get(category, one.log_level) for one in (old, new))
        if now != before:
            logs.set_level(category, now)


def _check(broker: Broker, config: Config) -> None:
    """Check the configured policies against the running broker. Raises BrokerError."""
    for one in config.policies:
        broker.vhost(one.vhost)
        broker.registry.check_policy(one.policy)


def set_policies(broker: Broker, policies: Iterable[ConfiguredPolicy]) -> None:
    """Set the configuration's policies, over those set at run time under the same names."""
    for one in policies:
        broker.registry.set_policy(one.vhost, one.policy, one.operator)
        AUDIT.info("policy.set", vhost=one.vhost, policy=one.policy.name, by="configuration")
        idle = without_effect(one.policy)
        if idle:
            log.warning("policy.without_effect", vhost=one.vhost, policy=one.policy.name, keys=idle)
