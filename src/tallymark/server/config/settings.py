"""Every setting of the broker, each declared once: name, default, kind and help.

From the one declaration follow the TOML key (the name), the environment variable
(`TALLYMARK_` + the name in capitals), the flag of `tallymark serve` (`--` + the name with hyphens)
and the line in docs/configuration.md. A flag goes before the environment, the environment before
the file, the file before the default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from tallymark.bridge.permissions import check_vhost_name
from tallymark.engine.errors import PreconditionFailed
from tallymark.server.config import kinds
from tallymark.server.config.kinds import (
    DAY_MS,
    GIB,
    KIB,
    LOCALHOST,
    MIB,
    TLS_VERSIONS,
    Kind,
    choice,
    duration,
    integer,
    setting,
    size,
    words,
)
from tallymark.server.config.nsq import NsqSettings
from tallymark.server.config.policies import POLICIES, ConfiguredPolicy
from tallymark.server.config.shovels import SHOVELS
from tallymark.server.config.slow_consumers import SLOW_CONSUMERS, SlowSettings
from tallymark.server.logs import CATEGORIES, LEVELS
from tallymark.shovels.plan import Plan

ENV_PREFIX: Final = "TALLYMARK_"
MECHANISMS: Final = ("EXTERNAL", "SCRAM-SHA-256", "PLAIN", "AMQPLAIN")
TOKEN_ALGORITHMS: Final = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
    "Ed25519", "HS256", "HS384", "HS512",
)  # fmt: skip
"""Signatures of tokens [RFC 7518 §3.1, RFC 8037, RFC 9864]."""
OAUTH_TABLE: Final = "auth_oauth2"
"""Table of the file whose keys may also be said so: auth_oauth2.issuer [rabbitmq]."""
NSQ_PORTS: Final = ("nsq_port", "nsq_http_port", "nsq_https_port")
"""Settings that enable NSQ when one of them is given."""


class ConfigError(Exception):
    """A setting is unknown or its value is not what it must be. The text names both."""


@dataclass(frozen=True, kw_only=True)
class BrokerSettings:
    """Settings of the broker as a whole. Sizes in bytes, times in the unit of the name."""

    data_dir: Path = setting(
        Path("tallymark-data"), kinds.PATH, "Folder of the journal, the users and the lock."
    )
    host: tuple[str, ...] = setting(
        (LOCALHOST,),
        kinds.NAMES,
        "Addresses to listen on; localhost: 127.0.0.1 and, where the machine has it, ::1. Others "
        "than loopback are refused while there are neither users nor tokens of OAuth 2.",
    )
    amqp_port: int = setting(5672, integer(0, 65535), "Port for AMQP; 0 takes a free one.")
    http_port: int = setting(
        15672, integer(0, 65535), "Port for HTTP (management, metrics, Spark); 0 takes a free one."
    )
    https_port: int = setting(
        15671,
        integer(0, 65535),
        "Port for the same inside TLS; only listened on where there is a certificate.",
    )
    https_cert: Path | None = setting(
        None, kinds.OPTIONAL_PATH, "Certificate, and with it the listener for HTTP inside TLS."
    )
    https_key: Path | None = setting(
        None, kinds.OPTIONAL_PATH, "Its private key; empty: in the same file."
    )
    https_ca_file: Path | None = setting(
        None,
        kinds.OPTIONAL_PATH,
        "Certificates of those that may sign a client's; empty: the system's.",
    )
    https_verify: str = setting(
        "none",
        choice("none", "optional", "require"),
        "Whether clients of HTTP inside TLS show a certificate; they log in all the same.",
    )
    https_min_version: str = setting(
        "tls1.2", choice(*TLS_VERSIONS), "Oldest version of TLS that is spoken."
    )
    http_names: tuple[str, ...] = setting(
        (),
        kinds.NO_OR_NAMES,
        "Names by which requests over HTTP may ask for the broker (header Host), beside addresses, "
        "names without a dot, this machine's and those it listens on: .example.org for all that "
        "end so, * for any. See docs/operations.md.",
    )
    vhosts: tuple[str, ...] = setting(("/",), kinds.NAMES, "Virtual hosts that exist.")
    sync: str = setting(
        "commit",
        choice("commit", "interval", "never", "both"),
        "Time of a confirm: after fdatasync (commit), or after the write, with an fdatasync every "
        "sync_interval_ms (interval) or by the operating system (never). With a journal on "
        "PostgreSQL: after its commit (commit), or that and fdatasync here (both).",
    )
    sync_interval_ms: int = setting(
        200, integer(1, 60_000, "milliseconds"), "Time between fdatasyncs with sync = interval."
    )
    journal: str = setting(
        kinds.LOCAL,
        kinds.JOURNAL,
        "Place of the journal: the data folder (local), or PostgreSQL, of which the folder is then "
        "a copy. See docs/postgresql.md.",
    )
    journal_id: int = setting(
        1, integer(1, (1 << 62)), "Number of the journal, where several brokers share a database."
    )
    standby: bool = setting(
        False,
        kinds.FLAG,
        "Follow the journal on PostgreSQL while another broker leads it, and take over from it.",
    )
    lease: int = setting(
        5_000,
        duration(500, 600_000),
        "Time after which a leader that does not answer is replaced by a standby.",
    )
    segment_size: int = setting(
        64 * MIB, size(1 * MIB, 2 * GIB), "Size of one journal file. Preallocated."
    )
    checkpoint_every: int = setting(
        256 * MIB, size(1 * MIB, 64 * GIB), "Journal growth after which a checkpoint is written."
    )
    ledger_retention: int = setting(
        7 * DAY_MS,
        duration(0, 3650 * DAY_MS),
        "Time for which the ledger's columns are stored after the bodies were released.",
        live=True,
    )
    deliver_after: str = setting(
        "written",
        choice("written", "synced"),
        "Time at which persistent messages are delivered, unless their queue says otherwise: as "
        "soon as they are on their way to the disk (written), or once a confirm could be sent "
        "(synced). Messages of a commit, dead letters and moved messages always wait for that.",
        live=True,
    )
    unreadable: str = setting(
        "skip",
        choice("skip", "pause"),
        "Treatment of messages whose bytes cannot be read: they are quarantined and the queue "
        "goes on with the next ones (skip), or the queue pauses until they are read or dropped "
        "(pause).",
        live=True,
    )
    accept_loss: bool = setting(
        False,
        kinds.FLAG,
        "Start although the journal is corrupt; the log names and counts the lost messages.",
    )
    max_memory: int = setting(
        128 * MIB,
        size(16 * MIB),
        "Budget for message bodies in memory; beyond it they are in the journal only. Memory of "
        "connections is subtracted from it; at twice as much publishers are paused.",
        live=True,
    )
    max_pending: int = setting(
        8 * MIB,
        size(1 * MIB, 4 * GIB),
        "Bytes waiting for the disk above which publishers are no longer read; a confirm waits for "
        "those before it.",
        live=True,
    )
    disk_free_limit: int = setting(
        256 * MIB,
        size(0),
        "Free disk space below which publishing connections are blocked; consumers go on.",
        live=True,
    )
    max_connections: int = setting(
        10_000,
        integer(1, 1_000_000),
        "Connections at a time, of all protocols and HTTP; one more is closed at once. Lowered, "
        "with a warning, to what the system's limit of open files allows.",
    )
    write_high_water: int = setting(
        1 * MIB,
        size(4 * KIB, 1 * GIB),
        "Bytes waiting in a connection's socket above which nothing more is taken from a queue for "
        "it.",
        live=True,
    )
    write_low_water: int = setting(
        0,
        size(0, 1 * GIB),
        "Bytes waiting below which it gets messages again; 0: half of write_high_water.",
        live=True,
    )
    channel_max: int = setting(2047, integer(1, 65535), "Channels per connection, as negotiated.")
    frame_max: int = setting(
        128 * KIB, size(4 * KIB, 16 * MIB), "Largest AMQP frame, as negotiated."
    )
    heartbeat_s: int = setting(
        60,
        integer(0, 65535, "seconds"),
        "Heartbeat interval proposed to clients; 0 proposes none.",
    )
    handshake_timeout_ms: int = setting(
        10_000,
        integer(100, 600_000, "milliseconds"),
        "Time for a client from connecting to connection.open.",
    )
    http_header_timeout: int = setting(
        10_000,
        duration(100, DAY_MS),
        "Time for a client of HTTP from connecting, or from the first byte, to a request's end of "
        "header.",
    )
    http_body_timeout: int = setting(
        20_000,
        duration(100, DAY_MS),
        "Longest pause within the body of a request; all of the body may take 15 times as long.",
    )
    http_answer_timeout: int = setting(
        60_000, duration(100, DAY_MS), "Longest pause of an HTTP client in reading its answer."
    )
    http_idle_timeout: int = setting(
        75_000,
        duration(100, DAY_MS),
        "Time after which an HTTP connection without a request is closed.",
    )
    max_message_size: int = setting(128 * MIB, size(1, 512 * MIB), "Largest message body.")
    amqps_port: int = setting(
        5671,
        integer(0, 65535),
        "Port for AMQP inside TLS; only listened on where there is a certificate.",
    )
    amqps_cert: Path | None = setting(
        None, kinds.OPTIONAL_PATH, "Certificate, and with it the listener for AMQP inside TLS."
    )
    amqps_key: Path | None = setting(
        None, kinds.OPTIONAL_PATH, "Its private key; empty: in the same file."
    )
    amqps_ca_file: Path | None = setting(
        None,
        kinds.OPTIONAL_PATH,
        "Certificates of those that may sign a client's; empty: the system's.",
    )
    amqps_verify: str = setting(
        "none",
        choice("none", "optional", "require"),
        "Whether clients show a certificate. One that can be verified lets its owner log in with "
        "SASL EXTERNAL, as the user of its common name.",
    )
    amqps_min_version: str = setting(
        "tls1.2", choice(*TLS_VERSIONS), "Oldest version of TLS that is spoken."
    )
    sasl_mechanisms: tuple[str, ...] = setting(
        MECHANISMS,
        words(*MECHANISMS),
        "SASL mechanisms for AMQP clients, in the order they are offered. EXTERNAL is offered to "
        "clients with a verified certificate, SCRAM-SHA-256 while every user with a password has "
        "keys for it.",
    )
    anonymous_user: str = setting(
        "",
        kinds.TEXT,
        "User as whom AMQP 1.0 clients act that log in by SASL ANONYMOUS; empty: they are refused.",
    )
    tracing: str = setting(
        "",
        kinds.TEXT,
        "Collector that spans of traced messages are sent to: otlp://HOST[:PORT] (over HTTP, port "
        "4318), otlps:// for TLS; empty: nothing is traced. See docs/tracing.md.",
    )
    auth_oauth2_resource_server_id: str = setting(
        "",
        kinds.TEXT,
        "Name of this broker among the issuer's, which tokens of OAuth 2 have in their audience "
        "(aud); empty: tokens are not taken. See docs/oauth.md.",
    )
    auth_oauth2_issuer: str = setting(
        "",
        kinds.TEXT,
        "Issuer of tokens, as they name it (iss), and where its keys are found when nothing else "
        "is said: a URL; empty: any that has a key of the set.",
    )
    auth_oauth2_jwks_url: str = setting(
        "",
        kinds.TEXT,
        "URL of the key set that tokens are checked with, where it is not the issuer's.",
    )
    auth_oauth2_jwks_file: Path | None = setting(
        None,
        kinds.OPTIONAL_PATH,
        "File with the key set, before any URL; read again when it changes. Symmetric keys come "
        "from here only.",
    )
    auth_oauth2_jwks_refresh: int = setting(
        300_000, duration(10_000, DAY_MS), "Time after which a key set is fetched again."
    )
    auth_oauth2_ca_file: Path | None = setting(
        None,
        kinds.OPTIONAL_PATH,
        "Certificates of those that may sign the issuer's; empty: the system's.",
    )
    auth_oauth2_algorithms: tuple[str, ...] = setting(
        ("RS256", "ES256", "EdDSA", "Ed25519"),
        words(*TOKEN_ALGORITHMS),
        "Signatures that are taken. HS256, HS384 and HS512 need auth_oauth2_jwks_file.",
    )
    auth_oauth2_verify_aud: bool = setting(
        True, kinds.FLAG, "Whether the audience of tokens must name this broker."
    )
    auth_oauth2_scope_prefix: str = setting(
        "{resource_server_id}.",
        kinds.TEXT,
        "How scopes begin that are rights here; empty: all of them are.",
    )
    auth_oauth2_additional_scopes_key: tuple[str, ...] = setting(
        (),
        kinds.NO_OR_NAMES,
        "Claims with scopes beside scope; with dots a path into objects.",
    )
    auth_oauth2_preferred_username_claims: tuple[str, ...] = setting(
        (), kinds.NO_OR_NAMES, "Claims that name the user, before sub and client_id."
    )
    auto_create_queues: str = setting(
        "",
        kinds.PATTERN,
        "Names of queues that are declared, durable, when an AMQP 1.0 client attaches to one that "
        "is not there; empty: none.",
    )
    link_credit: int = setting(
        1000,
        integer(2, 100_000),
        "Messages that an AMQP 1.0 client may publish on a link before the broker grants more.",
    )
    transaction_timeout: int = setting(
        30 * 60_000,
        duration(0, 365 * DAY_MS),
        "How long a transaction of AMQP 1.0 may stay open before it is rolled back and its "
        "connection closed; 0: without limit.",
    )

    @property
    def low_water(self) -> int:
        """write_low_water as it is meant: never above the high one."""
        return min(self.write_low_water or self.write_high_water // 2, self.write_high_water)


@dataclass(frozen=True, kw_only=True)
class Config(NsqSettings, BrokerSettings):
    """Settings of a broker: in the order of BrokerSettings, NsqSettings and these."""

    slow_consumers: SlowSettings = setting(
        SlowSettings(),
        SLOW_CONSUMERS,
        "Limits for subscriptions to topics, and the action on those above them.",
        live=True,
    )
    consumer_statistics_every: int = setting(
        60_000,
        duration(0, DAY_MS),
        "Time between two rows of the ledger about a consumer that is at work; 0: none but the "
        "last.",
        live=True,
    )
    policies: tuple[ConfiguredPolicy, ...] = setting(
        (),
        POLICIES,
        "Policies that are set at every start, in place of those of the same names.",
        live=True,
    )
    definitions: Path | None = setting(
        None,
        kinds.OPTIONAL_PATH,
        "File with definitions, as exported by RabbitMQ or by `tallymark definitions export`, "
        "taken in at every start.",
    )
    shovels: tuple[Plan, ...] = setting(
        (),
        SHOVELS,
        "Shovels that move messages between brokers, with the broker as their process.",
        live=True,
    )
    log_level: str = setting("info", choice(*LEVELS), "Level of every log category.", live=True)
    log_levels: dict[str, str] = setting(
        {},
        kinds.pairs(CATEGORIES, tuple(LEVELS)),
        "Levels of single categories, before log_level.",
        live=True,
    )
    log_format: str = setting("console", choice("console", "json"), "Form of the logs on stderr.")


@dataclass(frozen=True, slots=True)
class Declaration:
    """One setting as the command line and the documentation see it."""

    name: str
    default: Any
    kind: Kind[Any]
    help: str
    live: bool
    """True if a running broker takes a new value."""

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def env(self) -> str:
        return ENV_PREFIX + self.name.upper()


def declarations() -> list[Declaration]:
    """Return all settings in the order of their declaration."""
    plain = Config()
    return [Declaration(f.name, getattr(plain, f.name), **f.metadata) for f in fields(Config)]


DECLARED: Final = {declared.name: declared for declared in declarations()}


def nearest(word: str, valid: list[str]) -> str:
    """`; did you mean X?` for the nearest valid word, or the list of all of them."""
    found = _close(word, valid, 0.5)
    return f"; did you mean '{found[0]}'?" if found else "; valid are: " + ", ".join(valid)


def _close(word: str, valid: list[str], cutoff: float) -> list[str]:
    """The most similar one, where one is similar enough."""
    from difflib import get_close_matches

    return get_close_matches(word, valid, n=1, cutoff=cutoff)


def load(file: Path | None, environ: Mapping[str, str], flags: Mapping[str, str | None]) -> Config:
    """Put the configuration together: flags > environment > file > defaults.

    Raises:
        ConfigError: a key is unknown, a value is refused, or the file cannot be read.
    """
    values: dict[str, object] = {}
    if file is not None:
        values.update(_from_file(file))
    values.update(_from_environment(environ))
    for name, text in flags.items():
        if text is not None:
            values[name] = _parse(DECLARED[name], text, DECLARED[name].flag)
    if "nsq" not in values:
        values["nsq"] = any(name in values for name in NSQ_PORTS)
    config = Config(**values)  # type: ignore[arg-type]  # each was parsed by its kind
    if config.nsq and config.nsq_vhost not in config.vhosts:
        raise ConfigError(
            f"nsq_vhost is '{config.nsq_vhost}', expected one of the vhosts: "
            f"{', '.join(config.vhosts)}"
        )
    _check_journal(config)
    for name in config.vhosts:
        try:
            check_vhost_name(name)
        except PreconditionFailed as error:
            raise ConfigError(f"vhosts has {error}") from None
    for one in config.policies:
        if one.vhost not in config.vhosts:
            raise ConfigError(
                f"policies has '{one.policy.name}' for vhost '{one.vhost}', expected one of "
                f"the vhosts: {', '.join(config.vhosts)}"
            )
    return config


def _check_journal(config: Config) -> None:
    """Raises ConfigError: settings of one home of the journal are given for the other."""
    is_local = config.journal == kinds.LOCAL
    if is_local and config.standby:
        raise ConfigError("standby is true and journal is local, expected postgresql://...")
    allowed = ("commit", "interval", "never") if is_local else ("commit", "both")
    if config.sync not in allowed:
        shown = kinds.JOURNAL.show(config.journal)
        raise ConfigError(
            f"sync is '{config.sync}' and journal is {shown}, expected one of {', '.join(allowed)}"
        )
    if not is_local:
        _check_url(config.journal)


def _check_url(url: str) -> None:
    """Raises ConfigError: psycopg is not installed, or can make nothing of the URL."""
    from importlib.util import find_spec

    if find_spec("psycopg") is None:
        raise ConfigError(
            "journal is on PostgreSQL and psycopg is not installed: "
            "pip install 'tallymark[postgresql]'"
        )
    try:
        from tallymark.journal.postgresql.connection import parameters
    except ImportError as error:
        raise ConfigError(
            f"journal is on PostgreSQL and psycopg cannot be loaded: {error}"
        ) from error
    try:
        parameters(url)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _from_file(file: Path) -> dict[str, object]:
    import tomllib

    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # ValueError: no UTF-8, no TOML, a number too long
        raise ConfigError(f"configuration file {file}: {error}") from error
    except RecursionError:
        raise ConfigError(f"configuration file {file}: arrays or tables too deep") from None
    oauth = table.pop(OAUTH_TABLE, None)
    if isinstance(oauth, dict):
        table |= {f"{OAUTH_TABLE}_{key}": value for key, value in oauth.items()}
    elif oauth is not None:
        raise ConfigError(f"{file}: {OAUTH_TABLE} is {oauth!r}, expected a table")
    values = {}
    for key, value in table.items():
        if key not in DECLARED:
            raise ConfigError(f"{file}: unknown key '{key}'{nearest(key, list(DECLARED))}")
        values[key] = _parse(DECLARED[key], value, f"{file}: {key}")
    return values


def _from_environment(environ: Mapping[str, str]) -> dict[str, object]:
    """Variables with our prefix that no setting has are refused where they look like a misspelt
    one; others belong to someone else (a cluster sets TALLYMARK_SERVICE_HOST and the like)."""
    known = {declared.name.upper(): declared for declared in DECLARED.values()}
    values = {}
    for variable, text in environ.items():
        if not variable.startswith(ENV_PREFIX):
            continue
        word = variable.removeprefix(ENV_PREFIX)
        if word in known:
            values[known[word].name] = _parse(known[word], text, variable)
        elif meant := _close(word, list(known), 0.8):
            raise ConfigError(
                f"unknown environment variable {variable}; did you mean '{ENV_PREFIX}{meant[0]}'?"
            )
    return values


def _parse(declared: Declaration, value: object, source: str) -> object:
    try:
        parsed: object = declared.kind.parse(value)
    except kinds.Wrong as error:
        raise ConfigError(f"{source} {error}") from error
    except ValueError:
        raise ConfigError(f"{source} is {value!r}, expected {declared.kind.expects}") from None
    return parsed
