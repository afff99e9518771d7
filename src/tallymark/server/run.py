"""`tallymark serve`: from a configuration to a running broker and to its clean end.

Order at start: the ports are taken (nothing listens yet), the folder's lock, recovery, the
journal's thread, listeners, the ready line. At a stop the same backwards, with a checkpoint, so
that the next start has nothing to replay. A start that finds a port taken leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import json
import os
import platform
import resource
import secrets
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tallymark import __version__, is_compiled
from tallymark.bridge.amqp091.lifecycle import Settings as Settings091
from tallymark.engine.quotas import Quotas
from tallymark.journal.files import Files, FolderInUse
from tallymark.journal.postgresql.errors import (
    AnotherLeads,
    LeadLost,
    NotUsable,
    WentBack,
    went_back,
)
from tallymark.journal.postgresql.marks import forget_marks
from tallymark.journal.recovery import JournalCorrupt
from tallymark.server import amqp10, logs, supervisor
from tallymark.server.access import audit, users
from tallymark.server.access.limits import LimitsError, load_limits
from tallymark.server.access.tls import Certificates, Tls, TlsRefused
from tallymark.server.access.user import GUEST, UsersError
from tallymark.server.amqp import AmqpClient, Settings
from tallymark.server.clock import wall_ms
from tallymark.server.config.kinds import LOCAL, is_loopback, show_size
from tallymark.server.config.reload import on_signal
from tallymark.server.config.settings import Config, ConfigError
from tallymark.server.doors import RESERVED
from tallymark.server.features import FeaturesError, check_features
from tallymark.server.handshakes import Listener, listen_for
from tallymark.server.heap import bound_heap
from tallymark.server.http.web import Web
from tallymark.server.listening import Bound, CannotServe, address_of
from tallymark.server.node import Node, node_name
from tallymark.server.nsq.service import NsqService, limits_of
from tallymark.server.opening import make_folder, open_node, tokens_of
from tallymark.server.replay import NotUnderstood
from tallymark.server.tasks import add_tasks
from tallymark.server.turns import JournalFailed
from tallymark.wire.amqp091.limits import Limits
from tallymark.wire.line import SHARE

if TYPE_CHECKING:
    pass

STOPPED: Final = 0
FAILED: Final = 1
REFUSED: Final = 2
IN_USE: Final = 3
JOURNAL: Final = 4
LED: Final = 5
"""Another broker leads the journal, or has taken the lead."""

AWAY_S: Final = 30.0
"""Seconds for which a stop waits for a database that is away. What is not in it then was not
confirmed."""
OTHER_FILES: Final = 1024
"""Open files besides connections: journal, listeners, outgoing connections; and connections
accepted at once before the first of them is refused."""
OTHER_SHARE: Final = 4
"""Fraction of the allowed open files that is reserved for other uses, where the system allows
few."""

log = logs.log_of("server")


class StartRefused(Exception):
    """The broker must not start like this; the text says why."""


SWITCH_S: Final = 0.0005
"""Seconds after which a thread that wants to run interrupts the one that does. The journal's writer
runs three times for a sync, for some microseconds each; with Python's 5 ms a busy loop made each
confirm wait for 15 ms and more."""


def run(config: Config, read: Callable[[], Config] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; returns the process's exit code.

    read: gives the configuration as it is when it is to be read again, or raises ConfigError.
    """
    logs.configure(config.log_level, config.log_levels, config.log_format)
    sys.setswitchinterval(SWITCH_S)
    bound_heap()
    try:
        check_start(config)
        most = _connections_allowed(config.max_connections)
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_serve(config, most, read))
    except (
        StartRefused,
        UsersError,
        FeaturesError,
        LimitsError,
        NotUnderstood,
        NotUsable,
    ) as error:
        logs.tell(str(error))
        return REFUSED
    except FolderInUse as error:
        logs.tell(str(error))
        return IN_USE
    except (AnotherLeads, LeadLost, WentBack) as error:
        logs.tell(str(error))
        return code_of_failure(error)
    except JournalCorrupt as error:
        logs.tell(str(error))
        if config.journal != LOCAL:
            forget_marks(config.data_dir, Files())
        return JOURNAL
    except CannotServe as error:
        logs.tell(str(error))
        return FAILED
    except OSError as error:
        logs.tell(f"cannot serve: {error}{room(config, error)}")
        return FAILED
    finally:
        logs.drop_unwritten()


def code_of_failure(error: BaseException) -> int:
    """Return the exit code of a broker that its journal fails, at its start or later: LED where
    another broker leads, or has led since, else JOURNAL."""
    return LED if isinstance(error, AnotherLeads | LeadLost) else JOURNAL


def room(config: Config, error: OSError) -> str:
    """Return what a full disk needs, for the end of its error; nothing for another error."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return ""
    size = show_size(config.segment_size)
    return f": a start needs room for a segment ({size}) in the data folder {config.data_dir}"


def check_start(config: Config) -> None:
    """Look at all that a start is refused for before it looks at the journal. Raises StartRefused,
    UsersError, LimitsError, FeaturesError or CannotServe."""
    if config.data_dir.exists() and not config.data_dir.is_dir():
        raise CannotServe(f"data folder {config.data_dir} is not a folder")
    check_settings(config)
    if config.journal == LOCAL:
        _check_users(config)
        load_limits(config.data_dir, Quotas())
        check_features(config.data_dir)


def check_settings(config: Config) -> None:
    """Look at what settings say together, and at the files and packages that they need; not at
    the data folder. Raises StartRefused or UsersError."""
    _check_ports(config)
    tokens_of(config)
    _check_tracing(config)
    _certificates(config)


def _check_users(config: Config) -> None:
    """Check who may log in: that users.json can be read, since nobody could log in otherwise; and
    the hosts, where no definitions that are taken later say more."""
    users.load(config.data_dir)
    if config.definitions is None:
        _check_hosts(config)
        _check_anonymous(config)


def _check_tracing(config: Config) -> None:
    """Raises StartRefused: the collector's address is none, or the library is not installed."""
    if not config.tracing:
        return
    from tallymark.server.tracing.exporter import TracingUnavailable, check_installed, endpoint_of

    try:
        endpoint_of(config.tracing)
        check_installed()
    except TracingUnavailable as error:
        raise StartRefused(str(error)) from None


def _check_ports(config: Config) -> None:
    """No two listeners want the same port, though each may take a free one. Raises StartRefused."""
    names = ["amqp_port", "http_port"]
    if config.amqps_cert is not None:
        names.append("amqps_port")
    if config.https_cert is not None:
        names.append("https_port")
    if config.nsq:
        names += ["nsq_port", "nsq_http_port"]
        if config.nsq_tls_cert is not None:
            names.append("nsq_https_port")
    taken: dict[int, str] = {}
    for name in names:
        port = getattr(config, name)
        if port and port in taken:
            raise StartRefused(f"{taken[port]} and {name} are both {port}, expected two")
        taken[port] = name


def _certificates(config: Config) -> Certificates:
    """Raises StartRefused: one cannot be used, or settings of NSQ do not go together."""
    try:
        found = Certificates(config)
        if config.nsq:
            limits_of(config, found.nsq is not None)
    except (TlsRefused, ValueError) as error:
        raise StartRefused(str(error)) from None
    return found


def _check_hosts(config: Config) -> None:
    """Refuse to listen beyond this machine while guest/guest is accepted. Raises StartRefused."""
    open_hosts = [host for host in config.host if not is_loopback(host)]
    if config.auth_oauth2_resource_server_id:
        return
    if open_hosts and not users.load(config.data_dir):
        raise StartRefused(
            f"host is {', '.join(open_hosts)}, expected a loopback address while no users are "
            f"configured: add one with `tallymark user add NAME --data-dir {config.data_dir}`"
        )


def _check_anonymous(config: Config) -> None:
    """Refuse an `anonymous_user` that is not there: no client could log in as it. Raises
    StartRefused or UsersError."""
    name = config.anonymous_user
    known = set(users.load(config.data_dir))
    if not known and not config.auth_oauth2_resource_server_id:
        known.add(GUEST)
    if name and name not in known:
        raise StartRefused(
            f"anonymous_user is {name!r}, and there is no such user: add it with "
            f"`tallymark user add {name} --data-dir {config.data_dir}`"
        )


def _connections_allowed(wanted: int) -> int:
    """Return the number of connections that may be open: as configured, or fewer where the system
    limits open files. Many systems begin with 1024 and let a process ask for more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = wanted + RESERVED + OTHER_FILES
    if soft == resource.RLIM_INFINITY or soft >= files:
        return wanted
    most = files if hard == resource.RLIM_INFINITY else min(files, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(most, soft), hard))
    others = RESERVED + min(OTHER_FILES, most // OTHER_SHARE)
    allowed = max(1, min(wanted, most - others))
    if allowed < wanted:
        log.warning("connections.limited", max_connections=allowed, wanted=wanted, files=most)
    return allowed


def _loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


async def _serve(config: Config, max_connections: int, read: Callable[[], Config] | None) -> int:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_unexpected)
    stop: asyncio.Future[int] = loop.create_future()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _resolve, stop, number)
    hangups = _Hangups(loop)
    stop.add_done_callback(lambda _: hangups.end())
    with contextlib.ExitStack() as held:
        held.callback(hangups.end)
        tls = _certificates(config)
        bound = Bound(config, tls, held)
        make_folder(config.data_dir)
        if config.journal == LOCAL:
            node = open_node(config, loop)
            _set_up(node, tls, max_connections, read)
            return await _run(node, stop, bound, tls, hangups.serves)
        from tallymark.server.cluster import take_lead

        lead = await take_lead(config, bound, stop)
        if lead is None:
            return STOPPED
        try:
            _check_users(config)
            node = open_node(config, loop, replay=lead.replay, home=lead.home())
            lead.lead(node)
            _set_up(node, tls, max_connections, read)
            return await _run(node, stop, bound, tls, hangups.serves)
        finally:
            await lead.let_go()


def _set_up(
    node: Node, tls: Certificates, max_connections: int, read: Callable[[], Config] | None
) -> None:
    """Give a node what the process has."""
    config = node.config
    node.doors.limit = max_connections
    node.read_config = None if read is None else _checked(read)
    node.certificates = tls
    if config.tracing:
        from tallymark.server.tracing.tracing import Tracing

        node.tracing = Tracing(config.tracing, node_name(), node.broker)
        node.tracer = node.tracing.tracer


def _checked(read: Callable[[], Config]) -> Callable[[], Config]:
    """Return the function that reads the configuration again and raises ConfigError, too, where
    the next start would be refused for it."""

    def checked() -> Config:
        config = read()
        try:
            check_settings(config)
            _check_anonymous(config)
        except (StartRefused, UsersError) as error:
            raise ConfigError(str(error)) from error
        return config

    return checked


class _Hangups:
    """SIGHUP, which ends a process that says nothing of it: so a start takes it, and a standby. The
    configuration is read again when the broker serves."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._node: Node | None = None
        self._came_early = False
        self._loop = loop
        loop.add_signal_handler(signal.SIGHUP, self._came)

    def _came(self) -> None:
        if self._node is not None:
            on_signal(self._node)
        else:
            self._came_early = True
            log.info("config.reload_waits", reason="the broker does not serve yet")

    def serves(self, node: Node) -> None:
        """The broker serves from now on."""
        self._node = node
        if self._came_early:
            on_signal(node)

    def end(self) -> None:
        """Pass over SIGHUP from now on: the broker stops, and no configuration matters any more.
        The loop's end would have it end the process before its exit code is given."""
        self._loop.remove_signal_handler(signal.SIGHUP)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


async def _run(
    node: Node,
    stop: asyncio.Future[int],
    bound: Bound,
    tls: Certificates,
    serves: Callable[[Node], None] | None = None,
) -> int:
    """Listen until a signal, or until the broker fails; then close everything. serves: is called
    when all listeners are open."""
    web: Web | None = None
    service: NsqService | None = None
    listeners: list[Listener] = []
    encrypted: list[Listener] = []
    try:
        if node.config.definitions is not None:
            await _take_definitions(node, node.config.definitions)
        if node.config.nsq:
            service = NsqService(node, tls.nsq)
        settings = amqp_settings(node)
        listeners = [await _listen(node, settings, one, None) for one in bound.amqp]
        encrypted = [await _listen(node, settings, one, tls.amqp) for one in bound.amqps]
        nsq_http = (bound.nsq_http, bound.nsq_https, tls.nsq)
        web = Web(node, (bound.http, bound.https, tls.http), service, nsq_http)
        web.amqp, web.amqps = _addresses(listeners), _addresses(encrypted)
        if service is not None:
            await service.start(bound.nsq, bound.nsq_http, bound.nsq_https)
        web.listen()
        add_tasks(node)
        node.tasks.start()
        node.shovels.use(node.config.shovels)
        _announce(listeners, encrypted, web, service)
        if serves is not None:
            serves(node)
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 100)
        gc.enable()
        ends: set[asyncio.Future[Any]] = {stop, node.failed, web.failed}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if web.failed.done():
            web.failed.result()
    finally:
        supervisor.tell_stopping()
        await node.shovels.stop()
        for listener in [*listeners, *encrypted]:
            listener.close()
        if service is not None:
            service.close_listeners()
        if web is not None:
            await web.stop()
        if service is not None:
            await service.stop()
        code = await _close(node)
    return code


def amqp_settings(node: Node) -> Settings:
    """Settings of AMQP clients, from the configuration."""
    config = node.config
    limits = Limits(
        channel_max=config.channel_max,
        frame_max=config.frame_max,
        heartbeat_s=config.heartbeat_s,
        max_message_bytes=config.max_message_size,
        handshake_timeout_ms=config.handshake_timeout_ms,
        steps=SHARE,
    )
    return Settings(
        Settings091(
            limits,
            f"Python {platform.python_version()}",
            lambda: secrets.token_urlsafe(16),
            node.clients.replies,
            node.mechanisms,
            audit.access_refused,
        ),
        amqp10.settings_of(node, node_name()),
    )


async def _listen(
    node: Node, settings: Settings, bound: socket.socket, tls: Tls | None
) -> Listener:
    handshake_s = node.config.handshake_timeout_ms / 1000
    return await listen_for(
        node.loop, node.doors, lambda: AmqpClient(node, settings), bound, tls, handshake_s
    )


async def _take_definitions(node: Node, file: Path) -> None:
    """Raises StartRefused."""
    from tallymark.server.definitions.document import DefinitionsRefused, load_file

    try:
        await load_file(node, file)
    except DefinitionsRefused as error:
        raise StartRefused(str(error)) from error
    _check_hosts(node.config)
    _check_anonymous(node.config)


def _announce(
    listeners: list[Listener],
    encrypted: list[Listener],
    web: Web,
    service: NsqService | None,
) -> None:
    """The one line on stdout: every listener is open."""
    open_ = {"amqp": _addresses(listeners), "http": web.addresses}
    if encrypted:
        open_["amqps"] = _addresses(encrypted)
    if web.tls_addresses:
        open_["https"] = web.tls_addresses
    if service is not None:
        open_ |= service.listening()
    ready = {
        "ready": True,
        "pid": os.getpid(),
        **{name: addresses[0] for name, addresses in open_.items()},
        "compiled": is_compiled(),
        "version": __version__,
        "listeners": open_,
    }
    print(json.dumps(ready), flush=True)
    log.info("broker.ready", **open_, compiled=is_compiled(), version=__version__)
    supervisor.tell_ready(f"Tallymark {__version__} serves AMQP on port {open_['amqp'][0][1]}")


def _addresses(listeners: list[Listener]) -> list[tuple[str, int]]:
    return [address_of(one) for server in listeners for one in server.sockets]


async def _close(node: Node) -> int:
    """Say goodbye, checkpoint, close the journal."""
    giving_up = node.loop.call_later(AWAY_S, node.journal.end_waiting)
    try:
        return await _closed(node)
    finally:
        giving_up.cancel()


async def _closed(node: Node) -> int:
    """Close everything, however long that takes; return the exit code."""
    await node.tasks.stop()
    if not node.failed.done():
        with contextlib.suppress(JournalFailed):  # raised below
            await node.goodbye()
    node.housekeeping.close()
    node.end()
    if node.tracing is not None:
        await asyncio.to_thread(node.tracing.exporter.stop)
    if not node.failed.done():
        await node.settings_files.run()  # what was written since the last look
        await node.housekeeping.last_checkpoint()
        await asyncio.to_thread(node.journal.close)
        node.housekeeping.journal_closed()
    if node.failed.done():
        reason = node.failed.result()
        if went_back(reason):
            node.journal.leave_anchor(wall_ms())
        logs.tell(f"the broker failed and stops: {reason}")
        return code_of_failure(reason)
    log.info("broker.stopped")
    return STOPPED


def _resolve(future: asyncio.Future[int], number: int) -> None:
    if not future.done():
        future.set_result(number)


def _unexpected(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an exception that no callback or task caught: a bug, which the broker survives."""
    error = context.get("exception")
    trace = "".join(traceback.format_exception(error)) if error is not None else ""
    log.error("server.unexpected", message=context.get("message"), trace=trace)
