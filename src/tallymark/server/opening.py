"""From a data folder to a node: recovery, and the journal's start."""

from __future__ import annotations

import asyncio
import gc
import os
import secrets
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tallymark.bridge.amqp091.format import Amqp091Format
from tallymark.bridge.amqp10.format import Amqp10Format
from tallymark.bridge.nsq.format import NsqFormat
from tallymark.engine.broker import Broker
from tallymark.engine.restore import (
    Restorer,
    drop_lost,
    live_payloads,
    missing_since,
    packed_payloads,
    put_aside,
    take_apart,
)
from tallymark.journal.files import Files
from tallymark.journal.journal import Journal
from tallymark.journal.threads import REAL, Threads
from tallymark.server.access.limits import load_limits
from tallymark.server.clock import both_ms
from tallymark.server.config.reload import set_policies
from tallymark.server.config.settings import Config
from tallymark.server.features import Features
from tallymark.server.listening import CannotServe
from tallymark.server.logs import log_of
from tallymark.server.node import Node
from tallymark.server.slow.policies import slow_policies
from tallymark.server.turns import Relay
from tallymark.stored.formats import AMQP091, AMQP10, NSQ
from tallymark.stored.layout import LayoutError
from tallymark.units import Position

if TYPE_CHECKING:
    from tallymark.server.access.tokens import Tokens

OTHERS: Final = 0o077
"""Bits of a file's mode that give group and others rights."""
OUR_FILES: Final = (
    "*.segment", "*.ledger", "*.checkpoint", "lock", "users.json*", "features.json*", "tail.json*",
    "limits.json*",
    "quarantine",
)  # fmt: skip
"""Files of a data folder, as patterns."""


log = log_of("server")


class NotUnderstood(Exception):
    """The data folder has what this version does not know; the text says what."""


def make_folder(folder: Path) -> None:
    """Make the data folder, which only the broker's user may read: it holds messages and password
    hashes."""
    is_data_folder = next(folder.glob("*.segment"), None) is not None
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise CannotServe(f"data folder {folder} cannot be made: {reason}") from error
    if is_data_folder:
        _close_to_others(folder)
    elif folder.stat().st_mode & OTHERS:
        log.warning("folder.open_to_others", folder=str(folder), mode=f"{folder.stat().st_mode:o}")


def _close_to_others(folder: Path) -> None:
    """Take the rights of group and others from the data folder and its files: earlier versions gave
    them."""
    closed = 0
    for path in [folder, *(path for name in OUR_FILES for path in folder.glob(name))]:
        found = path.lstat()
        is_ours = found.st_uid == os.geteuid() and not stat.S_ISLNK(found.st_mode)
        if is_ours and found.st_mode & OTHERS:
            path.chmod(stat.S_IMODE(found.st_mode) & ~OTHERS)
            closed += 1
    if closed:
        log.warning("folder.closed_to_others", folder=str(folder), files=closed)


def open_node(
    config: Config,
    loop: asyncio.AbstractEventLoop,
    files: Files | None = None,
    threads: Threads = REAL,
) -> Node:
    """Recover the data folder and start the journal.

    files, threads: the journal's, where they are not the machine's.

    Raises:
        FolderInUse, JournalCorrupt, NotUnderstood, FeaturesError, OSError.
    """
    began = time.perf_counter()
    relay = Relay(loop)
    features = Features.open(config.data_dir)
    journal = Journal(
        config.data_dir,
        relay.failed,
        sync=config.sync,
        interval_ms=config.sync_interval_ms,
        segment_bytes=config.segment_size,
        accept_loss=config.accept_loss,
        version=features.block_version,
        files=files,
        threads=threads,
    )
    broker = Broker(journal.fetch)
    broker.formats[AMQP091] = Amqp091Format()
    broker.formats[NSQ] = NsqFormat()
    broker.formats[AMQP10] = Amqp10Format()
    broker.dead_letters.death_form = features.death_form
    broker.deliver_after_sync(config.deliver_after == "synced")
    broker.contents.pause_unreadable(config.unreadable == "pause")
    load_limits(config.data_dir, broker.quotas)
    broker.clock.read(*both_ms())
    _restore(broker, journal, config.data_dir)
    for vhost in config.vhosts:
        broker.registry.add_vhost(vhost)
    broker.slow.rules = config.slow_consumers.rules
    broker.registry.policy_checks.append(slow_policies().check)
    set_policies(broker, config.policies)
    for made in broker.vhosts.values():
        made.name_seed = secrets.token_bytes(32)
        for name, problem in made.policy_table.problems():
            log.warning("policy.without_effect", policy=name, vhost=made.name, reason=problem)
    journal.start()
    node = Node(config, features, broker, journal, loop, tokens_of(config))
    relay.turns = node
    node.housekeeping.begin()
    node.schedule()
    log.info(
        "broker.recovered",
        queues=len(broker.queues),
        ready=sum(queue.ready for queue in broker.queues.values()),
        seconds=round(time.perf_counter() - began, 3),
        sync=config.sync,
    )
    return node


def tokens_of(config: Config) -> Tokens | None:
    """Return the checker of tokens; None: the configuration says nothing of tokens.

    Raises:
        KeysUnavailable: it does, and there can be no keys, or the library is not installed.
    """
    if not config.auth_oauth2_resource_server_id:
        return None
    from tallymark.server.access.tokens import make_tokens

    return make_tokens(config)


def _restore(broker: Broker, journal: Journal, folder: Path) -> None:
    """Replay the journal. The collector rests meanwhile: everything made here stays. Raises
    NotUnderstood."""
    gc.disable()
    restorer = Restorer(broker)
    try:
        restorer.run(journal.recovered())
    except (LayoutError, ValueError) as error:
        raise NotUnderstood(f"the journal in {folder} is not understood: {error}") from error
    if journal.anchor is not None:
        said = journal.anchor
        for problem in missing_since(broker, said.queues, said.subscriptions):
            journal.missing(problem)
    journal.unbalanced(restorer.unbalanced)
    gone: set[int] = set()
    packed = packed_payloads(broker)
    lost = [p for p in live_payloads(broker) if not journal.retain(p.position, p.size)]
    for payload in packed:
        gone.update(journal.retain_packed(payload))
    if gone:
        lost += take_apart(broker, gone)
    if lost:
        log.error("messages.lost", count=drop_lost(broker, lost))
    if journal.damaged:
        log.error("messages.damaged", count=put_aside(broker, journal.damaged))
    broker.pack_all(Position(1 << 62))  # a restored message can be read back wherever it is
