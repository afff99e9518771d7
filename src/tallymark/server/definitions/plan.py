"""Import plans of definitions files, checked before anything is done.

A file is a RabbitMQ export, of 3.x or 4.x, or our own (the same layout). Reading it sorts what it
says into three: what can be done, what this broker does not offer (`unsupported`: passed over and
named) and what is wrong (`problems`: then nothing is done at all). Wrong is what is malformed, what
names things that are not there, and what contradicts things that are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from tallymark.bridge.identity import BROKER
from tallymark.bridge.operations import NSQ_CHANNEL, NSQ_TOPIC, arguments_of
from tallymark.bridge.permissions import check_vhost_name
from tallymark.engine.arguments import (
    QUEUE_ARGUMENTS,
    QUEUE_TYPES,
    QUEUE_WITHOUT_EFFECT,
    check_lasting,
    check_queue_arguments,
    may_take_default_type,
)
from tallymark.engine.broker import Broker
from tallymark.engine.equivalence import check_same_arguments, check_same_flag
from tallymark.engine.errors import BrokerError, PreconditionFailed
from tallymark.engine.exchange import (
    DELAYED,
    DELAYED_TYPE,
    TYPES,
    Exchange,
    check_exchange_arguments,
    check_same_exchange,
    make_exchange,
)
from tallymark.engine.names import named
from tallymark.engine.policies import Policy, policy_fields, policy_from, without_effect
from tallymark.engine.quotas import OF_USERS, OF_VHOSTS, check_limit
from tallymark.engine.topology import PREDECLARED
from tallymark.engine.vhost import VirtualHost, check_description
from tallymark.server.access.user import (
    Permission,
    TopicPermission,
    User,
    UsersError,
    check_name,
    check_permission,
    check_topic_permission,
    hashed_user,
    tagged,
    tags_from,
)
from tallymark.server.management.requests import shown_of
from tallymark.server.management.vhosts import PROTECTED, UNDEFINED
from tallymark.server.parts import cut

SHA256: Final = "rabbit_password_hashing_sha256"
KNOWN_QUEUE_ARGUMENTS: Final = frozenset((*QUEUE_ARGUMENTS, NSQ_TOPIC, NSQ_CHANNEL))
OPERATOR_POLICY: Final = "operator_policy"
VHOST_LIMITS: Final = "vhost-limits"
LIMITS: Final = "limits"
"""Name of the one parameter that holds a virtual host's limits."""
ABOUT: Final = (
    "rabbit_version", "rabbitmq_version", "product_name", "product_version", *BROKER,
    "rabbitmq_definition_format", "original_cluster_name", "original_vhost_name", "explanation",
)  # fmt: skip
"""Keys with which a file describes itself."""
SECTIONS: Final = (
    "users", "vhosts", "permissions", "topic_permissions", "parameters", "global_parameters",
    "policies", "queues", "exchanges", "bindings",
)  # fmt: skip
OF_A_VHOST: Final = ("parameters", "policies", "queues", "exchanges", "bindings")
"""Sections of a file that is about one virtual host; its entries do not name it."""
OF_ONE: Final = ("metadata", "description", "tags", "default_queue_type", "limits")
"""Keys beside its sections with which a file about one virtual host describes it."""
OWN: Final = frozenset(name for name, _, _ in PREDECLARED)
"""Exchanges that every virtual host has."""
SHORT: Final = 255
"""Bytes of a name or key, at most [amqp-0.9.1 shortstr]."""

Entry = Mapping[str, Any]
Name = tuple[str, str]
"""Virtual host and name."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Metadata:
    """Metadata of a virtual host in a file; None: the file does not say, and it stays."""

    description: str | None
    tags: tuple[str, ...] | None
    is_protected: bool | None


@dataclass(frozen=True, slots=True)
class NewQueue:
    vhost: str
    name: str
    durable: bool
    auto_delete: bool
    arguments: dict[str, Any]
    is_typed: bool
    """True if the file says of which type it is, and no default applies."""


@dataclass(frozen=True, slots=True)
class NewBinding:
    vhost: str
    source: str
    to_queue: bool
    destination: str
    key: str
    arguments: dict[str, Any]


@dataclass(slots=True)
class Plan:
    """Definitions to make, in the order of the fields; see the module's text for the last two."""

    vhosts: list[str] = field(default_factory=list)
    default_types: dict[str, str] = field(default_factory=dict)
    """Default queue types by virtual host."""
    metadata: dict[str, Metadata] = field(default_factory=dict)
    users: dict[str, User] = field(default_factory=dict)
    """Users without their permissions; existing users keep theirs."""
    passwords: dict[str, str] = field(default_factory=dict)
    """Passwords by user, of users that come with a password instead of its hash."""
    permissions: list[tuple[str, str, Permission]] = field(default_factory=list)
    """Permissions as (user, virtual host, permission)."""
    topic_permissions: list[tuple[str, str, str, TopicPermission]] = field(default_factory=list)
    """Topic permissions as (user, virtual host, exchange, permission)."""
    user_limits: dict[str, dict[str, int]] = field(default_factory=dict)
    vhost_limits: dict[str, dict[str, int]] = field(default_factory=dict)
    policies: list[tuple[str, Policy, bool]] = field(default_factory=list)
    """Virtual host, policy, whether it is an operator's."""
    queues: dict[Name, NewQueue] = field(default_factory=dict)
    exchanges: dict[Name, Exchange] = field(default_factory=dict)
    bindings: list[NewBinding] = field(default_factory=list)
    unsupported: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def counts(self) -> dict[str, int]:
        """Return the number of definitions of each kind."""
        return {
            "users": len(self.users),
            "vhosts": len(self.vhosts),
            "permissions": len(self.permissions),
            "topic_permissions": len(self.topic_permissions),
            "policies": len(self.policies),
            "queues": len(self.queues),
            "exchanges": len(self.exchanges),
            "bindings": len(self.bindings),
        }


class Wrong(Exception):
    """An entry is malformed; the text says why."""


def _vhosts_named(value: dict[str, Any]) -> set[str]:
    """Return the virtual hosts that queues, exchanges and the like are said to be of."""
    sections = [value[name] for name in OF_A_VHOST if isinstance(value.get(name), list)]
    entries = [one for section in sections for one in section if isinstance(one, dict)]
    return {one["vhost"] for one in entries if isinstance(one.get("vhost"), str)}


class Planning:
    """A plan in the making: definitions are checked some entries at a time, against the broker's
    state as it is then."""

    def __init__(self, broker: Broker, users: Mapping[str, User], vhost: str | None) -> None:
        """vhost: the file is about this one, which exists; None: about the whole broker."""
        self._broker = broker
        self._users = users
        self._vhost = vhost
        self._is_about_one = False
        """True if the entries name one virtual host at most: it is the one that they go to,
        whatever it is called there."""
        self._passed_over: set[tuple[str, str, str]] = set()
        """Unsupported queues and exchanges as (kind, vhost, name); bindings to them are unsupported
        too."""
        self._users_passed_over: set[str] = set()
        """Users with names that none can have here; their permissions are unsupported too."""
        self.plan = Plan()

    def read(self, value: object) -> Iterator[None]:
        """Check definitions; yields after some of their entries, where a caller may do something
        else. At the end `plan` is whole."""
        plan = self.plan
        if not isinstance(value, dict):
            plan.problems.append("expected a JSON object with users, vhosts, queues, ...")
            return
        for section in value:
            if section in ABOUT or (self._vhost is not None and section in OF_ONE):
                continue
            if section not in SECTIONS:
                plan.unsupported.append(f"section '{section}': not known")
            elif self._vhost is not None and section not in OF_A_VHOST and value[section]:
                plan.unsupported.append(f"section '{section}': not of one virtual host")
        self._is_about_one = len(_vhosts_named(value)) <= 1
        everything: dict[str, Callable[[Entry], None]] = {
            "vhosts": self._read_vhost,
            "users": self._read_user,
            "permissions": self._read_permission,
            "topic_permissions": self._read_topic_permission,
            "parameters": self._read_parameter,
            "global_parameters": self._read_global_parameter,
            "policies": self._read_policy,
            "queues": self._read_queue,
            "exchanges": self._read_exchange,
            "bindings": self._read_binding,
        }
        if self._vhost is not None:
            try:
                self._read_about(self._vhost, {key: value[key] for key in OF_ONE if key in value})
            except (Wrong, UsersError) as error:
                plan.problems.append(str(error))
        for section, read in everything.items():
            if self._vhost is None or section in OF_A_VHOST:
                for some in self._parts_of(section, value.get(section)):
                    self._read_entries(section, some, read)
                    yield

    def _parts_of(self, section: str, entries: Any) -> Iterator[list[tuple[int, Any]]]:
        """Yield the entries of a section with their numbers, some at a time."""
        if entries is None:
            return
        if not isinstance(entries, list):
            self.plan.problems.append(f"section '{section}' is no list")
            return
        yield from cut(enumerate(entries))

    def _read_entries(
        self, section: str, entries: list[tuple[int, Any]], read: Callable[[Entry], None]
    ) -> None:
        for number, entry in entries:
            what = f"{section}[{number}]"
            if not isinstance(entry, dict):
                found = shown_of(section, entry)
                self.plan.problems.append(f"{what} is {found}, expected an object")
                continue
            if "name" in entry:
                what += f" '{entry['name']}'"
            if self._is_of_another_vhost(entry):
                self._pass_over(f"{what}: of vhost '{entry['vhost']}', not of '{self._vhost}'")
                continue
            try:
                read(entry)
            except (Wrong, BrokerError, UsersError) as error:
                self.plan.problems.append(f"{what}: {error}")

    def _is_of_another_vhost(self, entry: Entry) -> bool:
        """Return whether an entry is of another virtual host than the file is to be taken for."""
        if self._vhost is None or self._is_about_one:
            return False
        return entry.get("vhost") not in (None, self._vhost)

    def _pass_over(self, text: str) -> None:
        self.plan.unsupported.append(text)

    # -- users and virtual hosts

    def _read_vhost(self, entry: Entry) -> None:
        name = _get(entry, "name", str)
        check_vhost_name(name)
        self.plan.vhosts.append(name)
        self._read_about(name, entry)

    def _read_about(self, name: str, entry: Entry) -> None:
        """Read what an entry, or a file about one virtual host, says of it. Raises Wrong,
        UsersError."""
        about = {**_get(entry, "metadata", dict, {}), **entry}
        if about.get("tracing"):
            self._pass_over(f"vhost '{name}': tracing {about['tracing']!r} is not kept")
        limits = _get(about, "limits", dict, {})
        if limits:  # empty where RabbitMQ has them as a parameter
            self.plan.vhost_limits[name] = self._limits(f"vhost '{name}'", limits, OF_VHOSTS)
        self.plan.metadata[name] = self._metadata(name, about)
        queue_type = about.get("default_queue_type")
        if queue_type in QUEUE_TYPES:
            self.plan.default_types[name] = queue_type
        elif queue_type not in (None, "", UNDEFINED):
            self._pass_over(f"vhost '{name}': default_queue_type {queue_type!r}")

    def _metadata(self, name: str, about: Entry) -> Metadata:
        """Raises Wrong, UsersError."""
        description: str | None = None
        tags: tuple[str, ...] | None = None
        is_protected: bool | None = None
        if about.get("description") is not None:
            description = _get(about, "description", str)
        if about.get("tags") is not None:
            tags = tuple(tags_from(about["tags"]))
        if about.get(PROTECTED) is not None:
            is_protected = _get(about, PROTECTED, bool)
        try:
            check_description(description or "", tags or ())
        except PreconditionFailed as error:
            self._pass_over(f"vhost '{name}': {error}: neither description nor tags are kept")
            return Metadata(None, None, is_protected)
        return Metadata(description, tags, is_protected)

    def _read_user(self, entry: Entry) -> None:
        name = _get(entry, "name", str)
        if ":" in name:  # RabbitMQ has such users, whom HTTP's basic authentication cannot name
            self._users_passed_over.add(name)
            self._pass_over(f"user '{name}': names with ':' are not offered")
            return
        check_name(name)
        if entry.get("limits") is not None:
            given = _get(entry, "limits", dict)
            self.plan.user_limits[name] = self._limits(f"user '{name}'", given, OF_USERS)
        user = self._credentials(name, entry)
        self.plan.users[name] = tagged(user, tags_from(entry.get("tags", [])))

    def _credentials(self, name: str, entry: Entry) -> User:
        if entry.get("password_hash") is None and entry.get("password"):
            self.plan.passwords[name] = _get(entry, "password", str)
            return hashed_user(name, "", SHA256)
        self.plan.passwords.pop(name, None)  # of an earlier entry
        algorithm = _get(entry, "hashing_algorithm", str, SHA256)
        password_hash = _get(entry, "password_hash", str, "")
        try:
            return hashed_user(name, password_hash, algorithm)
        except UsersError as error:
            if algorithm == SHA256:
                raise
            self._pass_over(f"{error}: the user cannot log in until it gets a new password")
            return hashed_user(name, "", SHA256)

    def _user_of(self, entry: Entry) -> str | None:
        """Return the user that permissions are for; None: one that is passed over, as they are."""
        user = _get(entry, "user", str)
        if user in self._users_passed_over:
            self._pass_over(f"permissions of user '{user}' in vhost '{self._vhost_of(entry)}'")
            return None
        if user not in self.plan.users and user not in self._users:
            raise Wrong(f"user '{user}' is neither there nor in the file")
        return user

    def _read_permission(self, entry: Entry) -> None:
        user, vhost = self._user_of(entry), self._vhost_of(entry)
        permission = Permission(
            _get(entry, "configure", str), _get(entry, "write", str), _get(entry, "read", str)
        )
        check_permission(vhost, permission)
        if user is None:
            return
        self.plan.permissions.append((user, vhost, permission))

    def _read_topic_permission(self, entry: Entry) -> None:
        user, vhost = self._user_of(entry), self._vhost_of(entry)
        exchange = _get(entry, "exchange", str)
        permission = TopicPermission(_get(entry, "write", str), _get(entry, "read", str))
        check_topic_permission(vhost, exchange, permission)
        if user is None:
            return
        self.plan.topic_permissions.append((user, vhost, exchange, permission))

    # -- parameters and policies

    def _read_parameter(self, entry: Entry) -> None:
        component, name = _get(entry, "component", str), _get(entry, "name", str)
        vhost = self._vhost_of(entry)
        if component == OPERATOR_POLICY:
            value = _get(entry, "value", dict)
            self._plan_policy(vhost, name, value, True)
        elif component == VHOST_LIMITS and name == LIMITS:
            given = _get(entry, "value", dict)
            self.plan.vhost_limits[vhost] = self._limits(f"vhost '{vhost}'", given, OF_VHOSTS)
        else:
            where = ": shovels are in the configuration" if component == "shovel" else ""
            self._pass_over(f"parameter '{name}' of {component} in vhost '{vhost}'{where}")

    def _limits(self, of: str, given: Entry, known: tuple[str, ...]) -> dict[str, int]:
        """Raises Wrong, PreconditionFailed."""
        found: dict[str, int] = {}
        for name, value in given.items():
            if name not in known:
                self._pass_over(f"{of}: limit '{name}'")
            elif isinstance(value, bool) or not isinstance(value, int):
                raise Wrong(f"limit {name} is {value!r}, expected a whole number")
            else:
                check_limit(name, value)
                found[name] = value
        return found

    def _read_global_parameter(self, entry: Entry) -> None:
        self._pass_over(f"global parameter '{entry.get('name')}'")

    def _read_policy(self, entry: Entry) -> None:
        self._plan_policy(self._vhost_of(entry), _get(entry, "name", str), entry, False)

    def _plan_policy(self, vhost: str, name: str, entry: Entry, operator: bool) -> None:
        what = f"{'operator policy' if operator else 'policy'} '{name}' in vhost '{vhost}'"
        policy = policy_from(name, policy_fields(entry), operator)
        self._broker.registry.check_policy(policy)
        for key in without_effect(policy):
            self._pass_over(f"{what}: key '{key}' is kept, without effect")
        self.plan.policies.append((vhost, policy, operator))

    # -- topology

    def _read_queue(self, entry: Entry) -> None:
        name, vhost = _short(entry, "name"), self._vhost_of(entry)
        arguments = _arguments(entry)
        what = named("queue", name, vhost)
        if not name:
            self._skip("queue", vhost, name, "each import would make another, with a new name")
            return
        kind = entry.get("type")
        for type in (kind, arguments.get("x-queue-type")):
            if isinstance(type, str) and type not in (*QUEUE_TYPES, "", UNDEFINED):
                self._skip("queue", vhost, name, f"type '{type}' is not offered")
                return
        if kind in ("quorum", "stream"):
            arguments.setdefault("x-queue-type", kind)
        durable = _get(entry, "durable", bool, False)
        auto_delete = _get(entry, "auto_delete", bool, False)
        is_typed = kind in QUEUE_TYPES
        if not is_typed:
            arguments = self._with_default_type(vhost, name, durable, auto_delete, arguments)
        queue = NewQueue(vhost, name, durable, auto_delete, arguments, is_typed)
        current = self._there(vhost)
        there = None if current is None else current.queues.get(name)
        if there is not None:
            if there.exclusive_owner:
                raise Wrong(f"{what} is a connection's own")
            check_same_flag("durable", what, queue.durable, there.durable)
            check_same_flag("auto_delete", what, queue.auto_delete, there.auto_delete)
            check_same_arguments(QUEUE_ARGUMENTS, what, arguments, there.arguments)
        elif name.startswith("amq."):
            self._skip("queue", vhost, name, "names with amq. are given by the broker")
            return
        check_queue_arguments(what, arguments)
        check_lasting(what, arguments, queue.durable, False, queue.auto_delete)
        planned = self.plan.queues.setdefault((vhost, name), queue)
        if planned is not queue:
            if planned != queue:
                raise Wrong(f"{what} is in the file twice, with other properties")
            return
        for argument in arguments:
            if argument in QUEUE_WITHOUT_EFFECT:
                self._pass_over(f"{what}: argument '{argument}' is kept, without effect")
            elif argument.startswith("x-") and argument not in KNOWN_QUEUE_ARGUMENTS:
                self._pass_over(f"{what}: argument '{argument}' is kept, not known")

    def _with_default_type(
        self, vhost: str, name: str, durable: bool, auto_delete: bool, arguments: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the arguments of a queue as a client's declaration would have them. A policy of
        the file is seen only when it is made."""
        default = self.plan.default_types.get(vhost, "")
        there = self._there(vhost)
        if there is not None:
            return there.with_type(name, durable, False, auto_delete, arguments, default)
        takes_it = may_take_default_type(name, durable, False, auto_delete, arguments)
        return {**arguments, "x-queue-type": default} if default and takes_it else arguments

    def _read_exchange(self, entry: Entry) -> None:
        name, vhost = _short(entry, "name"), self._vhost_of(entry)
        type, arguments = _get(entry, "type", str), _arguments(entry)
        what = named("exchange", name, vhost)
        behaves = arguments.get(DELAYED_TYPE, type) if type == DELAYED else type
        if behaves not in TYPES:
            self._skip("exchange", vhost, name, f"type '{behaves}' is not offered")
            return
        made = make_exchange(
            name, type, _get(entry, "durable", bool, False),
            _get(entry, "auto_delete", bool, False), _get(entry, "internal", bool, False),
            arguments,
        )  # fmt: skip
        there = self.plan.exchanges.get((vhost, name)) or self._exchange_there(vhost, name)
        if there is not None:
            check_same_exchange(
                vhost, there, type, made.durable, made.auto_delete, made.internal, arguments
            )
            if name in OWN:
                return
        elif name.startswith("amq."):
            self._skip("exchange", vhost, name, "names with amq. are given by the broker")
            return
        check_exchange_arguments(what, type, arguments)
        self.plan.exchanges[vhost, name] = made

    def _read_binding(self, entry: Entry) -> None:
        vhost = self._vhost_of(entry)
        source, destination = _get(entry, "source", str), _get(entry, "destination", str)
        kind = _get(entry, "destination_type", str)
        if kind not in ("queue", "exchange"):
            raise Wrong(f"destination_type is {kind!r}, expected queue or exchange")
        binding = NewBinding(
            vhost, source, kind == "queue", destination, _short(entry, "routing_key", ""),
            _arguments(entry),
        )  # fmt: skip
        if not source:
            if binding.to_queue and binding.key == destination:
                return  # every queue has it
            raise Wrong("a binding from the default exchange, expected none but of queues' names")
        if not destination and not binding.to_queue:
            raise Wrong("a binding to the default exchange, expected none")
        for end, name in (("exchange", source), (kind, destination)):
            if (end, vhost, name) in self._passed_over or self._is_of_a_plugin(end, vhost, name):
                self._pass_over(
                    f"binding from '{source}' to {kind} '{destination}' in vhost '{vhost}' with "
                    f"key '{binding.key}'"
                )
                return
        origin = self.plan.exchanges.get((vhost, source)) or self._exchange_there(vhost, source)
        if origin is None:
            raise Wrong(f"no {named('exchange', source, vhost)}")
        if not self._has(kind, vhost, destination):
            raise Wrong(f"no {named(kind, destination, vhost)}")
        origin.check_binding(binding.key, binding.arguments, binding.to_queue)
        self.plan.bindings.append(binding)

    # -- what there is

    def _vhost_of(self, entry: Entry) -> str:
        if self._vhost is not None:
            return self._vhost
        vhost = _get(entry, "vhost", str)
        if vhost not in self._broker.vhosts and vhost not in self.plan.vhosts:
            raise Wrong(f"vhost '{vhost}' is neither there nor in the file")
        return vhost

    def _there(self, vhost: str) -> VirtualHost | None:
        return self._broker.vhosts.get(vhost)

    def _exchange_there(self, vhost: str, name: str) -> Exchange | None:
        there = self._there(vhost)
        if there is not None:
            return there.exchanges.get(name)
        for predeclared, type, internal in PREDECLARED:
            if predeclared == name:
                return make_exchange(name, type, True, False, internal, {})
        return None

    def _is_of_a_plugin(self, kind: str, vhost: str, name: str) -> bool:
        """Return whether an end of a binding is an exchange that RabbitMQ makes by itself, and does
        not export: amq.rabbitmq.log, amq.rabbitmq.event."""
        is_given = kind == "exchange" and name.startswith("amq.")
        return is_given and self._exchange_there(vhost, name) is None

    def _has(self, kind: str, vhost: str, name: str) -> bool:
        if kind == "exchange":
            planned = (vhost, name) in self.plan.exchanges
            return planned or self._exchange_there(vhost, name) is not None
        there = self._there(vhost)
        return (vhost, name) in self.plan.queues or (there is not None and name in there.queues)

    def _skip(self, kind: str, vhost: str, name: str, why: str) -> None:
        self._passed_over.add((kind, vhost, name))
        self._pass_over(f"{named(kind, name, vhost)}: {why}")


_NOTHING: Final = object()


def _get(entry: Entry, name: str, kind: type[T], default: object = _NOTHING) -> T:
    """A field of an entry. Raises Wrong."""
    found = entry.get(name)
    if found is None and default is not _NOTHING:
        found = default
    if kind is dict and found == []:
        found = {}
    if not isinstance(found, kind):
        if found is None:
            raise Wrong(f"{name} is missing")
        raise Wrong(f"{name} is {shown_of(name, found)}, expected {WORDS[kind]}")
    return found


def _short(entry: Entry, name: str, default: object = _NOTHING) -> str:
    """Return a name or routing key, which has to fit in a short string. Raises Wrong."""
    found = _get(entry, name, str, default)
    size = len(found.encode("utf-8", "surrogatepass"))
    if size > SHORT:
        raise Wrong(f"{name} of {size} bytes, expected {SHORT} at most")
    return found


def _arguments(entry: Entry) -> dict[str, Any]:
    """Arguments, such as a client could have declared. Raises Wrong, InvalidCommand."""
    return arguments_of(dict(_get(entry, "arguments", dict, {})))


WORDS: Final[dict[type, str]] = {str: "text", bool: "true or false", dict: "an object"}
