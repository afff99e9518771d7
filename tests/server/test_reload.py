"""Reading the configuration again: what counts as changed, and what then happens."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.management import call
from tests.support.issuer import Issuer
from tests.support.patience import PATIENCE_S, until
from tests.support.process import BrokerProcess


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "tallymark.toml"
    found.write_text("")
    return found


@pytest.fixture
def broker(tmp_path: Path, file: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", config=str(file)) as running:
        yield running


def reload(broker: BrokerProcess) -> dict[str, list[str]]:
    status, answer = broker.http("POST", "/api/tallymark/config/reload")
    assert status == 200, answer
    return dict(answer)


def shovel(broker: BrokerProcess, password: str, batch: int) -> str:
    """A table of the configuration: a shovel from `a` to `b`."""
    address = f"amqp://guest:{password}@127.0.0.1:{broker.amqp_port}"
    table = {
        "name": "s", "from": address, "queue": "a", "to": address, "to-queue": "b", "batch": batch
    }  # fmt: skip
    return "[[shovels]]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in table.items())


HUNG_UP = """
import asyncio, os, signal
from tallymark.server import run
opened, listens = run.open_node, run._listen
def hung_up(*given, **more):
    os.kill(os.getpid(), signal.SIGHUP)
    return opened(*given, **more)
async def late(*given):
    await asyncio.sleep(0.1)
    return await listens(*given)
run.open_node, run._listen = hung_up, late
from tallymark.cli.main import main
main()
"""


STOPPED = """
import os, signal
from tallymark.server import run
drop = run.logs.drop_unwritten
def ended():
    os.kill(os.getpid(), signal.SIGHUP)
    print(signal.getsignal(signal.SIGHUP).name, flush=True)
    drop()
run.logs.drop_unwritten = ended
from tallymark.cli.main import main
main()
"""


def test_a_hangup_after_the_stop_leaves_the_exit_code_as_it_is(tmp_path: Path, file: Path) -> None:
    """It ended the process while Python was finalized, which takes all handlers away, so that a
    supervisor took a clean stop for a crash."""
    command = [sys.executable, "-c", STOPPED, "serve", "--data-dir", str(tmp_path / "data")]
    command += ["--config", str(file), "--amqp-port", "0", "--http-port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.terminate()
        assert process.stdout.readline() == "SIG_IGN\n"
        assert process.wait(PATIENCE_S) == 0


def test_a_hangup_during_the_start_is_done_when_the_broker_serves(
    tmp_path: Path, file: Path
) -> None:
    """It ended the process, as it does where nobody handles it; a standby, too."""
    command = [sys.executable, "-c", HUNG_UP, "serve", "--data-dir", str(tmp_path / "data")]
    command += ["--config", str(file), "--amqp-port", "0", "--http-port", "0"]
    log = (tmp_path / "log").open("w+")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, f"ended with {process.wait(PATIENCE_S)} instead of being ready"
        until(lambda: "config.reloaded" in (tmp_path / "log").read_text())
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
    log.close()
    text = (tmp_path / "log").read_text()
    said = re.findall(r"config\.reload\w+|broker\.ready", text)
    assert said[:3] == ["config.reload_waits", "broker.ready", "config.reloaded"]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("amqps_key = 'broker.key'", "amqps_key without amqps_cert"),
        ("https_cert = 'missing.pem'", "missing.pem"),
        ("auth_oauth2_issuer = 'https://issuer.example'", "auth_oauth2_resource_server_id"),
        ("tracing = 'http://collector.example'", "otlp://"),
        ("anonymous_user = 'nobody'", "anonymous_user is 'nobody', and there is no such user"),
    ],
)
def test_what_the_next_start_would_be_refused_for_refuses_a_reload(
    broker: BrokerProcess, file: Path, wrong: str, reason: str
) -> None:
    """It was named as in effect with the next start, which then did not come about."""
    file.write_text(f"{wrong}\nmax_pending = '9MiB'\n")
    status, answer = broker.http("POST", "/api/tallymark/config/reload")
    assert (status, answer["error"]) == (400, "bad_request")
    assert reason in answer["reason"]
    assert "config.refused" in broker.log()
    file.write_text("max_pending = '9MiB'\n")
    assert reload(broker)["changed"] == ["max_pending"]  # nothing had changed


def test_a_damaged_key_set_refuses_a_reload_and_the_known_keys_go_on(
    tmp_path: Path, file: Path
) -> None:
    """Whatever else the file says: the next start would be refused, and nobody would be there."""
    issuer = Issuer()
    keys = tmp_path / "keys.json"
    keys.write_bytes(issuer.key_set())
    oauth = f"auth_oauth2_resource_server_id = 'tallymark'\nauth_oauth2_jwks_file = '{keys}'\n"
    file.write_text(oauth)
    admin = f"Bearer {issuer.token('read:*/*', 'tag:administrator')}"
    path = "tallymark/config/reload"
    with BrokerProcess(tmp_path / "data", config=str(file)) as broker:
        file.write_text(oauth + "max_pending = '9MiB'\n")
        keys.write_text("{")
        status, _, answer = call(broker, "POST", path, Authorization=admin)
        assert status == 400
        assert f"auth_oauth2_jwks_file {keys}: no JSON" in answer["reason"]
        keys.write_bytes(issuer.key_set())
        status, _, answer = call(broker, "POST", path, Authorization=admin)
        assert (status, answer["changed"]) == (200, ["max_pending"])


def test_a_shovel_takes_another_password_and_another_batch(
    broker: BrokerProcess, file: Path
) -> None:
    for queue in "ab":
        broker.http("PUT", f"/api/queues/%2F/{queue}", {"durable": True})

    def row() -> dict[str, Any]:
        *_, newest = broker.http("GET", "/api/tallymark/shovels")[1]["shovels"]  # one may be ending
        return dict(newest)

    file.write_text(shovel(broker, "wrong", 5))
    assert reload(broker)["changed"] == ["shovels"]
    until(lambda: row()["failures"] > 0, what=row)
    file.write_text(shovel(broker, "guest", 5))
    assert reload(broker)["changed"] == ["shovels"]
    until(lambda: row()["state"] == "running", what=row)
    file.write_text(shovel(broker, "guest", 6))
    assert reload(broker)["changed"] == ["shovels"]
    assert reload(broker) == {"changed": [], "at_next_start": []}


def test_a_level_that_was_set_over_http_stays_while_the_file_says_the_same_of_it(
    broker: BrokerProcess, file: Path
) -> None:
    def levels() -> dict[str, str]:
        found = broker.http("GET", "/api/tallymark/log-levels")[1]
        return {category: found[category] for category in ("http", "amqp", "nsq")}

    broker.http("PUT", "/api/tallymark/log-levels", {"http": "debug", "nsq": "error"})
    file.write_text('log_levels = { amqp = "warning" }\n')
    assert reload(broker)["changed"] == ["log_levels"]
    assert levels() == {"http": "debug", "amqp": "warning", "nsq": "error"}
    file.write_text('log_level = "warning"\nlog_levels = { amqp = "warning", nsq = "info" }\n')
    assert reload(broker)["changed"] == ["log_level", "log_levels"]
    assert levels() == {"http": "warning", "amqp": "warning", "nsq": "error"}


IMPORTS_LATE = """
from tallymark.server.config import settings
read = settings._from_file
def late(file):
    if "gone" in file.read_text():
        raise ImportError("of another version")
    return read(file)
settings._from_file = late
"""


def test_code_that_a_reload_needs_and_cannot_load_refuses_it(tmp_path: Path, file: Path) -> None:
    """Whatever part of the configuration it is for."""
    (tmp_path / "sitecustomize.py").write_text(IMPORTS_LATE)
    env = {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    with BrokerProcess(tmp_path / "data", env=env, config=str(file)) as broker:
        file.write_text("max_pending = '9MiB' # gone\n")
        status, answer = broker.http("POST", "/api/tallymark/config/reload")
        assert (status, answer["error"]) == (400, "bad_request")
        assert "the code of the configuration cannot be loaded" in answer["reason"]
        assert "config.refused" in broker.log()
        file.write_text("max_pending = '9MiB'\n")
        assert reload(broker)["changed"] == ["max_pending"]
