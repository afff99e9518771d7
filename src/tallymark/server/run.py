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
import stat
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tallymark import __version__, is_compiled
from tallymark.bridge.amqp091.connection import Settings as Settings091
from tallymark.bridge.amqp091.format import Amqp091Format
from tallymark.bridge.amqp091.publish import FORMAT
from tallymark.bridge.amqp10.format import Amqp10Format
from tallymark.bridge.amqp10.front import FORMAT as FORMAT_10
from tallymark.bridge.nsq.format import NsqFormat
from tallymark.engine.broker import Broker
from tallymark.engine.restore import Restorer, drop_lost, put_aside, take_apart
from tallymark.engine.snapshot import live_payloads, missing_since, packed_payloads
from tallymark.journal.journal import Journal
from tallymark.journal.lock import FolderInUse, FolderLock
from tallymark.journal.recovery import JournalCorrupt
from tallymark.server import amqp10, logs
from tallymark.server.access import audit, users
from tallymark.server.access.limits import LimitsError, load_limits
from tallymark.server.access.tls import Certificates, Tls, TlsRefused
from tallymark.server.access.user import UsersError
from tallymark.server.amqp import AmqpClient, Settings
from tallymark.server.clock import both_ms
from tallymark.server.config.kinds import LOCALHOST, is_loopback
from tallymark.server.config.reload import on_signal, set_policies
from tallymark.server.config.settings import Config
from tallymark.server.doors import RESERVED
from tallymark.server.features import Features, FeaturesError
from tallymark.server.handshakes import Listener, listen_for
from tallymark.server.http.web import Web
from tallymark.server.listening import address_of, bind_path, is_path
from tallymark.server.node import Node, node_name
from tallymark.server.nsq.service import NsqService, limits_of
from tallymark.server.slow.policies import slow_policies
from tallymark.server.tasks import add_tasks
from tallymark.server.turns import JournalFailed
from tallymark.wire.amqp091.limits import Limits
from tallymark.wire.line import SHARE
from tallymark.wire.nsq import kernel as nsq

if TYPE_CHECKING:
    from tallymark.server.access.tokens import Tokens

STOPPED: Final = 0
FAILED: Final = 1
REFUSED: Final = 2
IN_USE: Final = 3
JOURNAL: Final = 4

ABSENT: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""Errors of binding an address of a family that this machine has not got, as a name such as
localhost may have."""
LOOPBACKS: Final = ((socket.AF_INET, ("127.0.0.1",)), (socket.AF_INET6, ("::1",)))
"""Loopback addresses of the name localhost, whatever a resolver says of it: clients that try one
family after the other are to find the same broker."""
OTHERS: Final = 0o077
"""Bits of a file's mode that give group and others rights."""
OUR_FILES: Final = (
    "*.segment", "*.ledger", "*.checkpoint", "lock", "users.json*", "features.json*", "tail.json*",
    "limits.json*",
    "quarantine",
)  # fmt: skip
"""Files of a data folder, as patterns."""
OTHER_FILES: Final = 1024
"""Open files besides connections: journal, listeners, outgoing connections; and connections
accepted at once before the first of them is refused."""
OTHER_SHARE: Final = 4
"""Fraction of the allowed open files that is reserved for other uses, where the system allows
few."""

log = logs.log_of("server")


class StartRefused(Exception):
    """The broker must not start like this; the text says why."""


class CannotServe(Exception):
    """The machine does not provide what a start needs: a port, the folder. The text names it."""


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
    try:
        _check(config)
        most = _connections_allowed(config.max_connections)
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_serve(config, most, read))
    except (StartRefused, UsersError, FeaturesError, LimitsError) as error:
        print(f"tallymark: {error}", file=sys.stderr)
        return REFUSED
    except FolderInUse as error:
        print(f"tallymark: {error}", file=sys.stderr)
        return IN_USE
    except JournalCorrupt as error:
        print(f"tallymark: {error}", file=sys.stderr)
        return JOURNAL
    except CannotServe as error:
        print(f"tallymark: {error}", file=sys.stderr)
        return FAILED
    except OSError as error:
        print(f"tallymark: cannot serve: {error}", file=sys.stderr)
        return FAILED


def _check(config: Config) -> None:
    if config.data_dir.exists() and not config.data_dir.is_dir():
        raise CannotServe(f"data folder {config.data_dir} is not a folder")
    _check_ports(config)
    tokens_of(config)
    if config.definitions is None:
        _check_hosts(config)


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
    with contextlib.ExitStack() as held:
        tls = _certificates(config)
        bound = Bound(config, tls, held)
        _make_folder(config.data_dir)
        node = _open(config, loop)
        node.doors.limit = max_connections
        node.read_config = read
        node.certificates = tls
        loop.add_signal_handler(signal.SIGHUP, on_signal, node)
        return await _run(node, stop, bound, tls)


class Bound:
    """The ports, taken but not listened on yet. Raises as _bind."""

    def __init__(self, config: Config, tls: Certificates, held: contextlib.ExitStack) -> None:
        self.amqp = _bind(config, config.host, config.amqp_port, "--amqp-port", held)
        self.amqps: list[socket.socket] = []
        if tls.amqp is not None:
            self.amqps = _bind(config, config.host, config.amqps_port, "--amqps-port", held)
        self.http = _bind(config, config.host, config.http_port, "--http-port", held)
        self.https: list[socket.socket] = []
        if tls.http is not None:
            self.https = _bind(config, config.host, config.https_port, "--https-port", held)
        self.nsq: list[socket.socket] = []
        self.nsq_http: list[socket.socket] = []
        self.nsq_https: list[socket.socket] = []
        if config.nsq:
            self.nsq = _bind(config, config.nsq_host, config.nsq_port, "--nsq-port", held, True)
            port = config.nsq_http_port
            self.nsq_http = _bind(config, config.nsq_http_host, port, "--nsq-http-port", held, True)
            if tls.nsq is not None:
                port = config.nsq_https_port
                self.nsq_https = _bind(
                    config, config.nsq_https_host, port, "--nsq-https-port", held
                )


def _bind(
    config: Config,
    hosts: tuple[str, ...],
    port: int,
    flag: str,
    held: contextlib.ExitStack,
    paths: bool = False,
) -> list[socket.socket]:
    """Take a port on every one of the addresses, without listening yet. paths: an address may be a
    socket in the file system.

    Raises:
        CannotServe: one cannot be had.
        FolderInUse: it is taken, and by a broker on this data folder, so that is what to say.
    """
    bound: dict[Any, socket.socket] = {}
    for host in hosts:
        if paths and is_path(host):
            try:
                bound[host] = bind_path(host, held)
            except OSError as error:
                raise CannotServe(f"socket {host}: {error.strerror or error}") from error
            continue
        found = _addresses_of(host, port)
        absent: OSError | None = None
        for family, address in found:
            try:
                if address not in bound:
                    bound[address] = _bound(family, address, held, _port_of(bound))
            except OSError as error:
                if error.errno not in ABSENT:
                    raise _no_port(config, port, address[0], flag, error) from error
                absent = error
        if absent is not None and not any(address in bound for _, address in found):
            raise _no_port(config, port, host, flag, absent)
    return list(bound.values())


def _no_port(config: Config, port: int, host: str, flag: str, error: OSError) -> Exception:
    if error.errno != errno.EADDRINUSE:
        return CannotServe(f"port {port} on {host} ({flag}): {error.strerror or error}")
    try:
        if (config.data_dir / "lock").exists():
            FolderLock(config.data_dir).release()
    except FolderInUse as used:
        return used
    except OSError:
        pass  # the error is about the port
    return CannotServe(f"port {port} on {host} is in use: choose another with {flag}")


def _addresses_of(host: str, port: int) -> list[tuple[int, Any]]:
    """Address families and addresses of a listening address. Raises CannotServe."""
    if host == LOCALHOST:
        return [(family, (*address, port)) for family, address in LOOPBACKS]
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise CannotServe(f"host {host!r}: {error.strerror or error}") from error
    return [(family, address) for family, _, _, _, address in found]


def _port_of(bound: dict[Any, socket.socket]) -> int:
    """Return the first bound address's port; 0: none is bound yet."""
    return address_of(next(iter(bound.values())))[1] if bound else 0


def _bound(family: int, address: Any, held: contextlib.ExitStack, wish: int = 0) -> socket.socket:
    """Raises OSError. wish: the port to take where any free one will do, if it can be had."""
    if address[1] == 0 and wish:
        with contextlib.suppress(OSError):
            return _bound(family, (address[0], wish, *address[2:]), held)
    made = held.enter_context(socket.socket(family, socket.SOCK_STREAM))
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    made.bind(address)
    return made


def _make_folder(folder: Path) -> None:
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


async def _run(node: Node, stop: asyncio.Future[int], bound: Bound, tls: Certificates) -> int:
    """Listen until a signal, or until the broker fails; then close everything."""
    web: Web | None = None
    service: NsqService | None = None
    listeners: list[Listener] = []
    encrypted: list[Listener] = []
    try:
        if node.config.definitions is not None:
            await _take_definitions(node, node.config.definitions)
        if node.config.nsq:
            service = NsqService(node, tls.nsq)
        settings = _settings(node)
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
        _announce(listeners, encrypted, web, service)
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 100)
        gc.enable()
        ends: set[asyncio.Future[Any]] = {stop, node.failed, web.failed}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if web.failed.done():
            web.failed.result()
    finally:
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


def _open(config: Config, loop: asyncio.AbstractEventLoop) -> Node:
    """Recover the data folder and start the journal.

    Raises:
        FolderInUse, JournalCorrupt, FeaturesError, OSError.
    """
    began = time.perf_counter()
    node: Node | None = None

    # The journal's threads may speak before there is a node: the loop hears them after that.
    def synced() -> None:
        if node is not None:
            node.synced()

    def fail(error: OSError) -> None:
        if node is not None:
            node.fail(error)

    def on_synced() -> None:
        loop.call_soon_threadsafe(synced)

    def on_failure(error: OSError) -> None:
        loop.call_soon_threadsafe(fail, error)

    features = Features.open(config.data_dir)
    journal = Journal.open(
        config.data_dir,
        on_synced,
        on_failure,
        sync=config.sync,
        interval_ms=config.sync_interval_ms,
        segment_bytes=config.segment_size,
        accept_loss=config.accept_loss,
        version=features.block_version,
    )
    broker = Broker(journal.fetch)
    broker.formats[FORMAT] = Amqp091Format()
    broker.formats[nsq.FORMAT] = NsqFormat()
    broker.formats[FORMAT_10] = Amqp10Format()
    broker.dead_letters.death_form = features.death_form
    broker.deliver_after_sync(config.deliver_after == "synced")
    broker.pause_unreadable(config.unreadable == "pause")
    load_limits(config.data_dir, broker.quotas)
    broker.clock.read(*both_ms())
    _restore(broker, journal)
    for vhost in config.vhosts:
        broker.add_vhost(vhost)
    broker.slow.rules = config.slow_consumers.rules
    broker.policy_checks.append(slow_policies().check)
    set_policies(broker, config.policies)
    for made in broker.vhosts.values():
        made.name_seed = secrets.token_bytes(32)
        for name, problem in made.policy_table.problems():
            log.warning("policy.without_effect", policy=name, vhost=made.name, reason=problem)
    journal.start()
    node = Node(config, features, broker, journal, loop, tokens_of(config))
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


def _restore(broker: Broker, journal: Journal) -> None:
    """Replay the journal. The collector rests meanwhile: everything made here stays."""
    gc.disable()
    restorer = Restorer(broker)
    restorer.run(journal.recovered())
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
    broker.pack_all(1 << 62)


def _settings(node: Node) -> Settings:
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


def _addresses(listeners: list[Listener]) -> list[tuple[str, int]]:
    return [address_of(one) for server in listeners for one in server.sockets]


async def _close(node: Node) -> int:
    """Say goodbye, checkpoint, close the journal."""
    await node.tasks.stop()
    if not node.failed.done():
        with contextlib.suppress(JournalFailed):  # raised below
            await node.goodbye()
    node.housekeeping.close()
    node.end()
    if not node.failed.done():
        await node.housekeeping.last_checkpoint()
        await asyncio.to_thread(node.journal.close)
        node.housekeeping.journal_closed()
    if node.failed.done():
        print(f"tallymark: the broker failed and stops: {node.failed.result()}", file=sys.stderr)
        return JOURNAL
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
