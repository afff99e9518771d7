"""The housekeeping tasks of a node: our own, and those of installed packages.

Packages name theirs by the entry point group `tallymark.housekeeping`: a name, and a function that
makes the task for a node:

    def make(node: Node) -> Task: ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from tallymark.server.access.users import Users
from tallymark.server.config.settings import Config
from tallymark.server.consumer_ledger import ConsumerLedger
from tallymark.server.heap import HeapTrim
from tallymark.server.installed import installed
from tallymark.server.logs import log_of
from tallymark.server.node import Node
from tallymark.server.sampler import Sampler
from tallymark.server.schedule import Schedule, Task
from tallymark.server.slow.policies import with_installed

GROUP: Final = "tallymark.housekeeping"
TASKS: Final[dict[str, Callable[[Node], Task]]] = {
    "slow-consumers": lambda node: node.slow_consumers,
    "users": lambda node: node.rights,
    "settings-files": lambda node: node.settings_files,
    "consumer-statistics": ConsumerLedger,
    "heap": HeapTrim,
    "samples": Sampler,
}
"""Our own."""

log = log_of("server")


def add_key_refresh(tasks: Schedule, users: Users, config: Config) -> None:
    """Add the task that fetches the keys of tokens, where tokens are taken."""
    if users.tokens is not None:
        from tallymark.server.access.token_keys import KeyRefresh

        refresh = KeyRefresh(users.tokens.keys, config.auth_oauth2_jwks_refresh)
        tasks.add("oauth-keys", refresh)


def add_tasks(node: Node) -> None:
    """Add all tasks to the node's schedule."""
    add_key_refresh(node.tasks, node.users, node.config)
    for name, make in with_installed(TASKS, _installed()).items():
        try:
            node.tasks.add(name, make(node))
        except Exception as error:  # whatever a stranger's function raises
            log.error("entry_point.failed", group=GROUP, name=name, error=repr(error))


def _installed() -> Iterable[Any]:
    return installed(GROUP)
