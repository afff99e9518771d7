"""Policies for slow consumers: actions on a subscription that is above a limit [SC-6].

    delete, topicDelete   disconnect it [SC-7]; options delete-persistent (false), scope (session)
    drop-oldest           its oldest messages are dropped until it is at its limits [SC-D7]
    dead-letter           they go to the queue's dead-letter exchange
    flow                  publishers to it are paused until it is below its limits again
    notify                nothing; it is in log, ledger and metrics anyway

Names are compared without case. Others come with installed packages, by the entry point group
`tallymark.slow_consumer_policies`: a name, and a function that makes an action of its options.

    def make(options: Mapping[str, object]) -> Action: ...   # raises ValueError for wrong ones

An action gets one slow subscription and can change only that one, by the object's methods.
It returns what it did, for log and ledger, or None where it changed nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from tallymark.engine.errors import PreconditionFailed
from tallymark.engine.policies import Policy
from tallymark.engine.slow.actions import SlowSubscription
from tallymark.engine.slow.rules import slow_policy_of
from tallymark.server.config.kinds import FLAG
from tallymark.server.installed import installed
from tallymark.server.logs import log_of

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP: Final = "tallymark.slow_consumer_policies"
NOTIFY: Final = "notify"
SESSION: Final = "session"
LINK: Final = "link"

Options = Mapping[str, object]
Action = Callable[[SlowSubscription], dict[str, object] | None]
Make = Callable[[Options], Action]

log = log_of("server")


def disconnect(options: Options) -> Action:
    _check_names(options, ("delete-persistent", "scope"))
    given = options.get("delete-persistent", False)
    try:
        delete_persistent = FLAG.parse(given)
    except ValueError:
        raise ValueError(f"delete-persistent is {given!r}, expected {FLAG.expects}") from None
    scope = options.get("scope", SESSION)
    if scope not in (SESSION, LINK):
        raise ValueError(f"scope is {scope!r}, expected {SESSION} or {LINK}")

    def act(slow: SlowSubscription) -> dict[str, object] | None:
        if not slow.disconnect(delete_persistent, scope == SESSION):
            return None
        return {"disconnected": True, "queue_deleted": True}

    return act


def drop_oldest(options: Options) -> Action:
    _check_names(options, ())

    def act(slow: SlowSubscription) -> dict[str, object] | None:
        count = slow.drop_oldest()
        return {"dropped": count} if count else None

    return act


def dead_letter(options: Options) -> Action:
    _check_names(options, ())

    def act(slow: SlowSubscription) -> dict[str, object] | None:
        count = slow.dead_letter()
        return {"dead_lettered": count} if count else None

    return act


def flow(options: Options) -> Action:
    _check_names(options, ())

    def act(slow: SlowSubscription) -> dict[str, object] | None:
        return {"publishers_held": True} if slow.hold_publishers() else None

    return act


def notify(options: Options) -> Action:
    _check_names(options, ())
    return lambda slow: None


def _check_names(options: Options, known: tuple[str, ...]) -> None:
    for name in options:
        if name not in known:
            raise ValueError(f"unknown option '{name}', expected {', '.join(known) or 'none'}")


BUILT_IN: Final[dict[str, Make]] = {
    "delete": disconnect,
    "topicDelete": disconnect,
    "drop-oldest": drop_oldest,
    "dead-letter": dead_letter,
    "flow": flow,
    NOTIFY: notify,
}


class SlowPolicies:
    """Slow-consumer policies by name."""

    def __init__(self, makes: Mapping[str, Make]) -> None:
        self._makes = {name.casefold(): make for name, make in makes.items()}
        self.names = list(makes)
        self._made: dict[tuple[str, str], Action] = {}

    def action(self, name: str, options: Options) -> Action:
        """Return a policy's action with these options; the same object for the same ones.

        Raises ValueError: the name is unknown, or the options are not what it takes.
        """
        make = self._makes.get(name.casefold())
        if make is None:
            known = ", ".join(self.names)
            raise ValueError(f"slow consumer policy '{name}' is unknown, expected one of: {known}")
        key = (name.casefold(), json.dumps(options, sort_keys=True, default=repr))
        action = self._made.get(key)
        if action is None:
            try:
                action = self._made[key] = make(options)
            except ValueError as error:
                raise ValueError(f"slow consumer policy '{name}': {error}") from error
        return action

    def check(self, policy: Policy) -> None:
        """Check that the slow-consumer policy named in a broker's policy exists. Raises
        PreconditionFailed."""
        name, options = slow_policy_of(policy.definition)
        if name:
            try:
                self.action(name, options)
            except ValueError as error:
                raise PreconditionFailed(str(error)) from error


@cache
def slow_policies() -> SlowPolicies:
    """Our own and those of installed packages. One that cannot be loaded is told and left out."""
    return SlowPolicies(with_installed(BUILT_IN, installed(GROUP)))


def with_installed(own: Mapping[str, Any], found: Iterable[EntryPoint]) -> dict[str, Any]:
    """Return our own entries by name, and those of installed packages beside them. Ours cannot be
    replaced."""
    known = dict(own)
    taken = {name.casefold() for name in own}
    for point in found:
        if point.name.casefold() in taken:
            log.warning("entry_point.name_taken", group=point.group, name=point.name)
            continue
        try:
            known[point.name] = point.load()
        except Exception as error:  # whatever a stranger's module raises
            log.error("entry_point.failed", group=point.group, name=point.name, error=repr(error))
    return known
