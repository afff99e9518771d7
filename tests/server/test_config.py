"""Settings: precedence, refusals, and the documentation that follows from the declarations."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest

from tallymark.cli.serving import spelled_out
from tallymark.server.access import users
from tallymark.server.access.user import UsersError, make_user
from tallymark.server.config.kinds import is_loopback
from tallymark.server.config.settings import DECLARED, ConfigError, load
from tallymark.server.run import StartRefused, check_settings, check_start, room

DOCUMENT = Path(__file__).parents[2] / "docs" / "configuration.md"


def toml(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "tallymark.toml"
    file.write_text(text)
    return file


def test_a_flag_goes_before_the_environment_before_the_file_before_the_default(
    tmp_path: Path,
) -> None:
    file = toml(tmp_path, "amqp_port = 1\nhttp_port = 2\nframe_max = '64KiB'\n")
    environ = {"TALLYMARK_AMQP_PORT": "3", "TALLYMARK_HTTP_PORT": "4"}
    config = load(file, environ, {"amqp_port": "5", "http_port": None})
    assert (config.amqp_port, config.http_port) == (5, 4)
    assert (config.frame_max, config.channel_max) == (65536, 2047)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("amqp_prot = 1", "unknown key 'amqp_prot'; did you mean 'amqp_port'?"),
        ("zzzz = 1", "unknown key 'zzzz'; valid are: data_dir, host, "),
        ("amqp_port = 70000", "amqp_port is 70000, expected a whole number from 0 to 65535"),
        ("amqp_port = true", "amqp_port is True, expected a whole number"),
        ("sync = 'often'", "sync is 'often', expected one of commit, interval, never"),
        (f"max_memory = '{'9' * 400}'", "expected a size such as 512MiB, from 16MiB"),
        (f"amqp_port = {'9' * 5000}", "configuration file "),
        ("host = " + "[" * 20_000, "tallymark.toml: arrays or tables too deep"),
        ('data_dir = "a\\u0000b"', "data_dir is 'a\\x00b', expected a path"),
        ('data_dir = "~nobody.of.that.name/x"', "data_dir is '~nobody.of.that.name/x', expected a"),
        ("max_memory = '12 parsecs'", "expected a size such as 512MiB, from 16MiB"),
        ("ledger_retention = 'long'", "expected a time such as 500ms"),
        ("log_levels = {amqp = 'loud'}", "expected key=level pairs"),
        ("host = []", "host is [], expected a name, or several"),
        (
            "nsq_tls_client_auth_policy = 'any'",
            "is 'any', expected one of require, require-verify, or empty for none",
        ),
        ("amqp_port = ", "Invalid value"),
    ],
)
def test_a_refusal_names_the_value_and_the_expectation(
    tmp_path: Path, text: str, told: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        load(toml(tmp_path, text), {}, {})
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"amqps_verify": "require"}, "amqps_verify without amqps_cert"),
        ({"amqps_key": "a.key"}, "amqps_key without amqps_cert"),
        ({"amqps_ca_file": "ca.pem"}, "amqps_ca_file without amqps_cert"),
        ({"https_verify": "optional"}, "https_verify without https_cert"),
        ({"https_key": "a.key"}, "https_key without https_cert"),
        ({"https_ca_file": "ca.pem"}, "https_ca_file without https_cert"),
        ({"nsq": "true", "nsq_tls_key": "a.key"}, "nsq_tls_key without nsq_tls_cert"),
        (
            {"auth_oauth2_issuer": "https://login.example.org"},
            "auth_oauth2_issuer without auth_oauth2_resource_server_id",
        ),
        (
            {"auth_oauth2_jwks_file": "keys.json"},
            "auth_oauth2_jwks_file without auth_oauth2_resource_server_id",
        ),
    ],
)
def test_settings_that_would_do_nothing_without_another_are_refused(
    flags: dict[str, str], told: str
) -> None:
    with pytest.raises((StartRefused, UsersError), match=told):
        check_settings(load(None, {}, flags))
    check_settings(load(None, {}, {"nsq_tls_key": "a.key", "auth_oauth2_verify_aud": "false"}))


def test_an_anonymous_user_that_is_not_there_is_refused(tmp_path: Path) -> None:
    def check(**flags: str) -> None:
        check_start(load(None, {}, {"data_dir": str(tmp_path), **flags}))

    told = "anonymous_user is 'nobody', and there is no such user: add it with"
    with pytest.raises(StartRefused, match=told):
        check(anonymous_user="nobody")
    check(anonymous_user="guest")
    users.save(tmp_path, {"nobody": make_user("nobody", "secret", False, {})})
    check(anonymous_user="nobody")
    with pytest.raises(StartRefused, match="anonymous_user is 'guest'"):
        check(anonymous_user="guest")
    users.save(tmp_path, {})
    check(anonymous_user="nobody", definitions="made-by-it.json")  # asked when they are taken in


def test_a_misspelt_variable_is_refused_and_somebody_elses_is_not() -> None:
    with pytest.raises(ConfigError, match="did you mean 'TALLYMARK_MAX_MEMORY'"):
        load(None, {"TALLYMARK_MAX_MEMROY": "1GiB"}, {})
    load(None, {"TALLYMARK_SERVICE_HOST": "10.0.0.1", "TALLYMARK_URL": "http://x"}, {})


@pytest.mark.parametrize(
    ("text", "size"),
    [("16777216", 16777216), ("512MiB", 512 << 20), ("1.5 GiB", 3 << 29), ("20MB", 20_000_000)],
)
def test_sizes(text: str, size: int) -> None:
    assert load(None, {}, {"max_memory": text}).max_memory == size


@pytest.mark.parametrize("name", list(DECLARED))
def test_every_default_is_accepted_as_text_and_shown_as_it_is_written(name: str) -> None:
    declared = DECLARED[name]
    shown = declared.kind.show(declared.default)
    assert getattr(load(None, {}, {name: shown}), name) == declared.default


@pytest.mark.parametrize("name", list(DECLARED))
def test_every_setting_is_documented(name: str) -> None:
    declared = DECLARED[name]
    default = declared.kind.show(declared.default) or "none"
    row = f"| `{name}` | `{declared.env}` | `{declared.flag}` | `{default}` |"
    lines = [line for line in DOCUMENT.read_text().splitlines() if line.startswith(row)]
    assert len(lines) == 1, f"docs/configuration.md: expected one row beginning {row}"
    assert declared.help in lines[0]
    assert f"Expected: {declared.kind.expects}" in lines[0]


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True),
        ("0.0.0.0", False), ("::", False), ("192.168.1.1", False), ("example.org", False),
    ],
)  # fmt: skip
def test_what_counts_as_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_settings_of_one_home_of_the_journal_are_refused_with_the_other() -> None:
    url = "postgresql://ann:secret@pg1,pg2/tallymark"
    assert load(None, {}, {"journal": url, "standby": "true", "sync": "both"}).standby
    assert DECLARED["journal"].kind.show(url) == "postgresql://ann@pg1,pg2/tallymark"
    with pytest.raises(ConfigError, match="standby is true and journal is local"):
        load(None, {}, {"standby": "true"})
    with pytest.raises(ConfigError, match="sync is 'both' and journal is local, expected one of"):
        load(None, {}, {"sync": "both"})
    with pytest.raises(ConfigError, match=r"'never' and journal is postgresql://ann@pg1,pg2/"):
        load(None, {}, {"journal": url, "sync": "never"})
    with pytest.raises(ConfigError, match=r"'/srv/journal', expected local, or a URL postgresql"):
        load(None, {}, {"journal": "/srv/journal"})
    with pytest.raises(ConfigError, match=r"journal is 'pg://ann@db/x', expected local, or a URL"):
        load(None, {}, {"journal": "pg://ann:secret@db/x"})


def test_a_url_that_is_none_is_refused_without_its_password() -> None:
    pytest.importorskip("psycopg")
    for url in ("postgresql://ann:secret@[pg1/x", "postgresql://ann:sec%zzret@pg1/x"):
        with pytest.raises(ConfigError, match="journal 'postgresql://ann@") as refused:
            load(None, {}, {"journal": url})
        assert "sec" not in str(refused.value)


def test_a_library_of_postgresql_that_cannot_be_loaded_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As psycopg without libpq, at a start; and after its upgrade, at a reload."""
    pytest.importorskip("psycopg")
    monkeypatch.setitem(sys.modules, "tallymark.journal.postgresql.connection", None)
    with pytest.raises(ConfigError, match="PostgreSQL and psycopg cannot be loaded: import of"):
        load(None, {}, {"journal": "postgresql://ann@pg1/tallymark"})


def test_a_full_disk_is_told_with_what_a_start_needs() -> None:
    config = load(None, {}, {"data_dir": "there", "segment_size": "2MiB"})
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert (
        room(config, full) == ": a start needs room for a segment (2MiB) in the data folder there"
    )
    assert room(config, OSError(errno.EROFS, os.strerror(errno.EROFS))) == ""


def test_a_flag_that_is_true_or_false_may_stand_alone() -> None:
    assert spelled_out(["serve", "--standby", "--lease", "2s", "--accept-loss"]) == [
        "serve", "--standby", "true", "--lease", "2s", "--accept-loss", "true",
    ]  # fmt: skip
    assert spelled_out(["serve", "--standby", "false"]) == ["serve", "--standby", "false"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[shovels]\nname = "s"\nfrom = "amqp://me:secret@x"', "shovels is one table, [shovels]"),
        ('shovels = ["amqp://me:secret@x"]', "shovels number 1 is str, expected tables with name"),
        ("shovels = \"[{'from': 'amqp://me:secret@x'}]\"", "shovels is no JSON, expected tables"),
    ],
)
def test_shovels_that_are_refused_are_not_shown(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(toml(tmp_path, text), {}, {})
    assert expected in str(refused.value)
    assert "secret" not in str(refused.value)
