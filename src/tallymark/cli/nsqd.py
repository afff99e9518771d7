"""`tallymark nsqd`: nsqd's own flags, so that a script that starts nsqd can start us instead.

Flags are read as Go reads them: `-name value`, `-name=value`, one hyphen or two; of a true-or-false
flag the value only behind `=`. What there is no use for is accepted and told; what cannot be done
is refused by its name. A file with nsqd's configuration (`-config`) is read the same way.

AMQP and the management interface listen on free ports of 127.0.0.1, unless the environment
(TALLYMARK_AMQP_PORT, ...) says otherwise: several of these can run on one machine, as of nsqd.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tallymark import __version__
from tallymark.cli.output import fail

if TYPE_CHECKING:
    from tallymark.server.config.settings import Config

USAGE: Final = 2
PROTOCOL_VERSION: Final = "1.3.0"
DATA: Final = "tallymark-data"
"""Our folder inside of -data-path."""
METADATA: Final = "nsqd.dat"

_TRUE: Final = ("1", "t", "T", "TRUE", "true", "True")
_FALSE: Final = ("0", "f", "F", "FALSE", "false", "False")
_NS: Final = {"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6,
              "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}  # fmt: skip
_part: Final = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)").match


class FlagError(Exception):
    """A flag is unknown, unsupported, or has a value that it cannot have."""


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag of nsqd."""

    name: str
    read: Callable[[str], str]
    """Translates a value from nsqd's spelling to ours. Raises ValueError: its text says what is
    expected."""
    setting: str = ""
    """Setting of ours that the flag sets; "": it has no effect."""
    is_bool: bool = False
    repeats: bool = False
    note: str = ""
    """Reason why it has no effect."""
    refusal: str = ""
    """Reason why it is refused."""
    key: str = ""
    """Key in nsqd's configuration file, where it is not the name with underscores."""

    @property
    def file_key(self) -> str:
        return self.key or self.name.replace("-", "_")


# -- values


def text(value: str) -> str:
    return value


def integer(value: str) -> str:
    try:
        return str(int(value, 0))
    except ValueError:
        raise ValueError("a whole number") from None


def boolean(value: str) -> str:
    if value in _TRUE:
        return "true"
    if value in _FALSE:
        return "false"
    raise ValueError("true or false")


def duration(value: str) -> str:
    """A time as Go writes it (1h15m30.5s) in whole milliseconds, rounded up."""
    rest = value.removeprefix("+")
    total = Decimal(0)
    if rest != "0":
        if not rest:
            raise ValueError("a time such as 60s, 1m30s or 250ms")
        while rest:
            found = _part(rest)
            if found is None:
                raise ValueError("a time such as 60s, 1m30s or 250ms")
            total += Decimal(found[1]) * _NS[found[2]]
            rest = rest[found.end() :]
    return f"{ceil(total / 10**6)}ms"


def tls_required(value: str) -> str:
    """tcp-https: only the NSQ protocol needs TLS, HTTP does not."""
    return "tcp-https" if value.lower() == "tcp-https" else boolean(value)


def tls_version(value: str) -> str:
    """Return the TLS version to require; versions before 1.2 are raised to it, as they are obsolete
    [RFC 8996]."""
    version = value.lower()
    if version == "ssl3.0":
        return "tls1.2"
    if version in ("tls1.0", "tls1.1", "tls1.2", "tls1.3"):
        return max(version, "tls1.2")
    raise ValueError("one of tls1.0, tls1.1, tls1.2, tls1.3")


def request_method(value: str) -> str:
    if value != "get":
        raise ValueError("get: auth servers are not asked with POST")
    return value


def log_level(value: str) -> str:
    levels = {"debug": "debug", "info": "info", "warn": "warning", "error": "error", "fatal": "off"}
    level = levels.get(value.lower())
    if level is None:
        raise ValueError("one of debug, info, warn, error, fatal")
    return level


def address(value: str) -> str:
    """Return HOST:PORT, where no host stands for every address."""
    host, colon, port = value.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError("ADDRESS:PORT")
    return f"{host.removeprefix('[').removesuffix(']') or '0.0.0.0'} {port}"


def address_or_path(value: str) -> str:
    """Return HOST:PORT, or the path of a socket in the file system."""
    if "/" not in value:
        return address(value)
    if "," in value:
        raise ValueError("a path without a comma")
    return f"{value} 0"


# -- the flags

ALWAYS_ON_DISK: Final = "every OK is on disk already"
EXACT_DEADLINES: Final = "deadlines are exact, there is no scan"
OWN_FILES: Final = "the journal has files of its own, see segment_size"
OWN_IDS: Final = "message ids are counted"
OWN_LOGS: Final = "log lines have a form of their own, see log_format"
ONLY_GET: Final = "auth servers are always asked with GET"
NO_STATSD: Final = "nothing is sent to statsd; GET /metrics and GET /stats have the numbers"

FLAGS: Final = (
    Flag("version", boolean, is_bool=True),
    Flag("config", text),
    Flag("log-level", log_level, "log_level"),
    Flag("log-prefix", text, note=OWN_LOGS),
    Flag("verbose", boolean, is_bool=True, note="as in nsqd; use -log-level"),
    Flag("node-id", integer, note=OWN_IDS, key="id"),
    Flag("worker-id", boolean, is_bool=True, note="as in nsqd; " + OWN_IDS),
    Flag("tcp-address", address_or_path, "nsq_host nsq_port"),
    Flag("http-address", address_or_path, "nsq_http_host nsq_http_port"),
    Flag("https-address", address, "nsq_https_host nsq_https_port"),
    Flag("broadcast-address", text, "nsq_broadcast_address"),
    Flag("broadcast-tcp-port", integer, "nsq_broadcast_tcp_port"),
    Flag("broadcast-http-port", integer, "nsq_broadcast_http_port"),
    Flag("lookupd-tcp-address", text, "lookupd", repeats=True, key="nsqlookupd_tcp_addresses"),
    Flag("auth-http-address", text, "auth_http_address", repeats=True, key="auth_http_addresses"),
    Flag("auth-http-request-method", request_method, note=ONLY_GET),
    Flag("http-client-connect-timeout", duration, "nsq_auth_connect_timeout"),
    Flag("http-client-request-timeout", duration, "nsq_auth_request_timeout"),
    Flag("topology-region", text, "nsq_topology_region"),
    Flag("topology-zone", text, "nsq_topology_zone"),
    Flag("data-path", text, "data_dir"),
    Flag("mem-queue-size", integer, "nsq_mem_queue_size"),
    Flag("max-bytes-per-file", integer, note=OWN_FILES),
    Flag("sync-every", integer, note=ALWAYS_ON_DISK),
    Flag("sync-timeout", duration, note=ALWAYS_ON_DISK),
    Flag("queue-scan-interval", duration, note=EXACT_DEADLINES),
    Flag("queue-scan-refresh-interval", duration, note=EXACT_DEADLINES),
    Flag("queue-scan-selection-count", integer, note=EXACT_DEADLINES),
    Flag("queue-scan-worker-pool-max", integer, note=EXACT_DEADLINES),
    Flag("queue-scan-dirty-percent", text, note=EXACT_DEADLINES),
    Flag("msg-timeout", duration, "nsq_msg_timeout"),
    Flag("max-msg-timeout", duration, "nsq_max_msg_timeout"),
    Flag("max-msg-size", integer, "nsq_max_msg_size"),
    Flag("max-body-size", integer, "nsq_max_body_size"),
    Flag("max-req-timeout", duration, "nsq_max_req_timeout"),
    Flag("max-heartbeat-interval", duration, "nsq_max_heartbeat_interval"),
    Flag("max-rdy-count", integer, "nsq_max_rdy_count"),
    Flag("max-output-buffer-size", integer, "nsq_max_output_buffer_size"),
    Flag("max-output-buffer-timeout", duration, "nsq_max_output_buffer_timeout"),
    Flag("min-output-buffer-timeout", duration, "nsq_min_output_buffer_timeout"),
    Flag("output-buffer-timeout", duration, "nsq_output_buffer_timeout"),
    Flag("max-channel-consumers", integer, "nsq_max_channel_consumers"),
    Flag("statsd-address", text, refusal=NO_STATSD),
    Flag("statsd-interval", duration, refusal=NO_STATSD),
    Flag("statsd-mem-stats", boolean, is_bool=True, refusal=NO_STATSD),
    Flag("statsd-prefix", text, refusal=NO_STATSD),
    Flag("statsd-udp-packet-size", integer, refusal=NO_STATSD),
    Flag("statsd-exclude-ephemeral", boolean, is_bool=True, refusal=NO_STATSD),
    Flag(
        "e2e-processing-latency-percentile",
        text,
        "e2e_processing_latency_percentile",
        repeats=True,
        key="e2e_processing_latency_percentiles",
    ),
    Flag("e2e-processing-latency-window-time", duration, "e2e_processing_latency_window_time"),
    Flag("tls-cert", text, "nsq_tls_cert"),
    Flag("tls-key", text, "nsq_tls_key"),
    Flag("tls-client-auth-policy", text, "nsq_tls_client_auth_policy"),
    Flag("tls-root-ca-file", text, "nsq_tls_root_ca_file"),
    Flag("tls-required", tls_required, "nsq_tls_required", is_bool=True),
    Flag("tls-min-version", tls_version, "nsq_tls_min_version"),
    Flag("deflate", boolean, "nsq_deflate", is_bool=True),
    Flag("max-deflate-level", integer, "nsq_max_deflate_level"),
    Flag("snappy", boolean, "nsq_snappy", is_bool=True),
)
BY_NAME: Final = {flag.name: flag for flag in FLAGS}
BY_KEY: Final = {flag.file_key: flag for flag in FLAGS}
DEFAULTS: Final = {
    "tcp-address": "0.0.0.0:4150",
    "http-address": "0.0.0.0:4151",
    "data-path": "",
}
"""Defaults of nsqd that differ from ours."""
HTTPS: Final = "0.0.0.0:4152"
"""Address on which nsqd listens for HTTPS, if it has a certificate."""

Given = dict[str, list[str]]
"""Flags that were given: values in nsqd's spelling by name."""


def parse(arguments: list[str]) -> Given:
    """Parse the command line's flags. Raises FlagError."""
    given: Given = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word in ("-", "--"):
            raise FlagError(f"unexpected argument {word!r}: nsqd takes flags only")
        name, equals, value = word.removeprefix("-").removeprefix("-").partition("=")
        flag = BY_NAME.get(name)
        if flag is None:
            raise FlagError(f"flag provided but not defined: -{name}{_nearest(name, BY_NAME)}")
        if not equals:
            if flag.is_bool:
                value = "true"
            elif not rest:
                raise FlagError(f"flag needs an argument: -{name}")
            else:
                value = rest.pop(0)
        _add_value(given, flag, value, f"-{name}")
    return given


def read_file(file: Path) -> Given:
    """Read nsqd's configuration file. Raises FlagError."""
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise FlagError(f"failed to load config file {file}: {error}") from None
    given: Given = {}
    for key, value in table.items():
        flag = BY_KEY.get(key)
        if flag is None or key in ("version", "config"):
            raise FlagError(f"{file}: unknown key '{key}'{_nearest(key, BY_KEY)}")
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, dict):
                raise FlagError(f"{file}: {key} is a table, expected a value")
            shown = str(one).lower() if isinstance(one, bool) else str(one)
            _add_value(given, flag, shown, f"{file}: {key}")
    return given


def _add_value(given: Given, flag: Flag, value: str, source: str) -> None:
    if flag.refusal:
        raise FlagError(f"{source} is not supported: {flag.refusal}")
    try:
        flag.read(value)
    except ValueError as error:
        raise FlagError(f"invalid value {value!r} for {source}: expected {error}") from None
    if flag.repeats:
        given.setdefault(flag.name, []).append(value)
    else:
        given[flag.name] = [value]


def _nearest(word: str, valid: Mapping[str, Flag]) -> str:
    found = difflib.get_close_matches(word, list(valid), n=1, cutoff=0.6)
    return f"; did you mean {found[0]}?" if found else ""


def settings(given: Given) -> tuple[dict[str, str], list[str]]:
    """Return our settings as text by name, and notices about flags without effect."""
    values = {
        name: "0"
        for name in ("amqp_port", "http_port")
        if f"TALLYMARK_{name.upper()}" not in os.environ
    }
    notes = []
    if "TALLYMARK_NSQ_HTTP_CONFIG" not in os.environ:
        values["nsq_http_config"] = "true"  # nsqd's has no switch
    whole = {**{name: [value] for name, value in DEFAULTS.items()}, **given}
    if given.get("tls-cert") and "https-address" not in given:
        whole["https-address"] = [HTTPS]
    for name, written in whole.items():
        flag = BY_NAME[name]
        if flag.note:
            notes.append(f"-{name} is without effect: {flag.note}")
        if not flag.setting:
            continue
        read = ",".join(flag.read(value) for value in written)
        names = flag.setting.split()
        parts = read.rsplit(" ", 1) if len(names) > 1 else [read]
        values.update(zip(names, parts, strict=True))
    values["data_dir"] = str(Path(values["data_dir"]) / DATA)
    return values, notes


def configured(arguments: list[str]) -> tuple[Config, list[str]]:
    """Return the configuration, and the notices to show. Raises FlagError, ConfigError."""
    given = parse(arguments)
    if "config" in given and given["config"][0]:
        given = {**read_file(Path(given["config"][0])), **given}
    from tallymark.server.config.settings import load

    values, notes = settings(given)
    path = Path(values["data_dir"]).parent
    if (path / METADATA).exists():
        notes.append(
            f"{path} has data of nsqd: it is not taken over, drain nsqd first (docs/nsq.md)"
        )
    return load(None, os.environ, values), notes


def show_help() -> None:
    print("Usage of tallymark nsqd: nsqd's own flags.\n")
    for flag in FLAGS:
        if flag.refusal:
            print(f"  -{flag.name}\n    \tnot supported: {flag.refusal}")
        elif flag.note:
            print(f"  -{flag.name}\n    \twithout effect: {flag.note}")
        else:
            setting = f"; sets {', '.join(flag.setting.split())}" if flag.setting else ""
            several = "may be given several times" if flag.repeats else "as in nsqd"
            print(f"  -{flag.name}\n    \t{several}{setting}")


def _asks_version(given: Given) -> bool:
    return boolean(given.get("version", ["false"])[0]) == "true"


def main(arguments: list[str]) -> int:
    """Run a broker in nsqd's place; returns the exit code."""
    if any(word in ("-h", "-help", "--help", "--h") for word in arguments):
        show_help()
        return 0
    from tallymark.server.config.settings import ConfigError

    try:
        if _asks_version(parse(arguments)):
            print(f"nsqd v{PROTOCOL_VERSION} (tallymark {__version__})")
            return 0
        config, notes = configured(arguments)
    except (FlagError, ConfigError) as error:
        fail(str(error), USAGE)
    for note in notes:
        print(f"tallymark nsqd: {note}", file=sys.stderr)
    from tallymark.server.run import run

    def read() -> Config:
        try:
            return configured(arguments)[0]
        except FlagError as error:
            raise ConfigError(str(error)) from error

    return run(config, read)
