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

from tallymark.engine.errors import PreconditionFailed
from tallymark.engine.vhost import VirtualHost
from tallymark.journal.files import Files
from tallymark.journal.home import Home
from tallymark.journal.journal import Journal
from tallymark.journal.postgresql.marks import forget_copy
from tallymark.journal.recovery import Opened
from tallymark.journal.threads import REAL, Threads
from tallymark.server.access.limits import load_limits
from tallymark.server.config.reload import set_policies
from tallymark.server.config.settings import Config
from tallymark.server.features import Features
from tallymark.server.listening import CannotServe
from tallymark.server.logs import log_of
from tallymark.server.node import Node
from tallymark.server.replay import Replay
from tallymark.server.slow.policies import slow_policies
from tallymark.server.turns import Relay

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
KEYS_FROM: Final = ("auth_oauth2_issuer", "auth_oauth2_jwks_url", "auth_oauth2_jwks_file")
"""Settings of which a configuration that takes tokens has one."""
NO_COPY: Final = "with the URL of the database it is refused: what is written now is only here"

log = log_of("server")


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
    replay: Replay | None = None,
    home: Home | None = None,
) -> Node:
    """Recover the data folder and start the journal.

    files, threads: the journal's, where they are not the machine's.
    replay: that of the folder so far, where it has begun.
    home: of the journal, where it has one beside the folder.

    Raises:
        FolderInUse, JournalCorrupt, NotUnderstood, FeaturesError, OSError.
    """
    began = time.perf_counter()
    relay = Relay(loop)
    features = Features.open(config.data_dir, is_copy=home is not None)
    if replay is None:
        replay = Replay(Opened(config.data_dir, config.accept_loss))
    journal = Journal(
        config.data_dir,
        relay.failed,
        sync=config.sync,
        interval_ms=config.sync_interval_ms,
        segment_bytes=config.segment_size,
        version=features.block_version,
        files=files,
        threads=threads,
        opened=replay.opened,
        home=home,
    )
    broker = replay.broker
    broker.dead_letters.death_form = features.death_form
    broker.deliver_after_sync(config.deliver_after == "synced")
    broker.contents.pause_unreadable(config.unreadable == "pause")
    load_limits(config.data_dir, broker.quotas)
    gc.disable()  # everything made here stays
    replay.finish(journal)
    for vhost in config.vhosts:
        broker.registry.add_vhost(vhost)
    broker.slow.rules = config.slow_consumers.rules
    broker.registry.policy_checks.append(slow_policies().check)
    set_policies(broker, config.policies)
    for made in broker.vhosts.values():
        made.name_seed = secrets.token_bytes(32)
        _tell_policies(made)
    if home is None and forget_copy(config.data_dir, files or Files()):
        log.warning("folder.copy_no_more", folder=str(config.data_dir), effect=NO_COPY)
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


def _tell_policies(vhost: VirtualHost) -> None:
    """Warn of stored policies that do not do what they say: their pattern is refused today, or they
    name a policy for slow consumers of a package that is not installed any more."""
    found = vhost.policy_table.problems()
    for policy in [*vhost.policies.values(), *vhost.operator_policies.values()]:
        try:
            slow_policies().check(policy)
        except PreconditionFailed as error:
            found.append((policy.name, str(error)))
    for name, problem in found:
        log.warning("policy.without_effect", policy=name, vhost=vhost.name, reason=problem)


def tokens_of(config: Config) -> Tokens | None:
    """Return the checker of tokens; None: the configuration says nothing of tokens.

    Raises:
        KeysUnavailable: it does, and there can be no keys, or the library is not installed; or it
            says where keys are and not who the broker is.
    """
    if not config.auth_oauth2_resource_server_id:
        for name in KEYS_FROM:
            if getattr(config, name):
                from tallymark.server.access.token_keys import KeysUnavailable

                raise KeysUnavailable(
                    f"{name} without auth_oauth2_resource_server_id, expected both: no token would "
                    "be taken"
                )
        return None
    from tallymark.server.access.tokens import make_tokens

    return make_tokens(config)
