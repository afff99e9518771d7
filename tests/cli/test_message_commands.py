"""`tallymark get`, `publish`, `purge`, `move`, `top`, --watch and completion, as a user types
them."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tallymark.cli.app import build
from tallymark.cli.completion import complete
from tallymark.cli.output import print_table
from tallymark.cli.top import COLUMNS, SPARE, Seen, rows_of
from tallymark.cli.watching import again
from tests.server.management import connect
from tests.support import forked
from tests.support.patience import PATIENCE_S, until
from tests.support.process import BrokerProcess

LONG = "a.queue.with.a.rather.long.name.that.people.do.give.to.queues"
NARROW = 80


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(Path(tmp_path_factory.mktemp("cli")) / "data") as running:
        for name in ("a", "b", LONG):
            status, _ = running.http("PUT", f"/api/queues/%2F/{name}", {"durable": True})
            assert status == 201
        full = {"durable": True, "arguments": {"x-max-length": 1, "x-overflow": "reject-publish"}}
        assert running.http("PUT", "/api/queues/%2F/small", full)[0] == 201
        yield running


@pytest.fixture(autouse=True)
def empty(broker: BrokerProcess) -> None:
    for name in ("a", "b", "small"):
        assert broker.http("DELETE", f"/api/queues/%2F/{name}/contents")[0] == 204


def run(broker: BrokerProcess, *words: str, code: int = 0, stdin: str = "", **environ: str) -> Any:
    """A command in this process: what it wrote to `stdout` and `stderr`."""
    environ = {"TALLYMARK_URL": broker.url, **environ}
    done = CliRunner().invoke(build(words[0]), list(words), env=environ, input=stdin)
    assert done.exit_code == code, (done.exit_code, done.stdout, done.stderr, done.exception)
    return done


def got(broker: BrokerProcess, queue: str, *flags: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(
        run(broker, "get", queue, "--count", "100", "--json", *flags).stdout
    )
    return rows


def bodies(broker: BrokerProcess, queue: str, *flags: str) -> list[str]:
    return [row["payload"] for row in got(broker, queue, *flags)]


def test_a_message_is_published_looked_at_taken_and_purged(broker: BrokerProcess) -> None:
    properties = '{"message_id": "7", "headers": {"own": 1}}'
    assert run(broker, "publish", "a", "one", "--properties", properties).stdout == (
        "published, 3 bytes\n"
    )
    run(broker, "publish", "a", stdin="two")
    (first, second) = got(broker, "a")
    assert (first["payload"], second["payload"]) == ("one", "two")
    assert first["properties"] == {"headers": {"own": 1}, "message_id": "7", "delivery_mode": 2}
    assert bodies(broker, "a", "--take") == ["one", "two"]
    assert run(broker, "get", "a").stdout == "no messages\n"
    run(broker, "publish", "a", "three", "--transient")
    assert run(broker, "purge", "a").stdout == "queue 'a' of vhost '/' purged\n"
    assert bodies(broker, "a") == []


def test_a_body_is_the_bytes_that_were_typed(broker: BrokerProcess) -> None:
    """Also where they are no UTF-8: as any others that an argument can have."""
    assert "published, 3 bytes" in run(broker, "publish", "a", "b\udcff!").stdout
    [message] = json.loads(run(broker, "get", "a", "--take", "--json").stdout)
    assert message["payload_encoding"] == "base64"
    assert base64.b64decode(message["payload"]) == b"b\xff!"


def test_what_no_queue_takes_is_said(broker: BrokerProcess) -> None:
    (line,) = run(broker, "publish", "nobody", "x", code=1).stderr.splitlines()
    assert line == (
        "tallymark: no queue takes what is published to 'amq.default' with key 'nobody'"
    )
    (line,) = run(broker, "publish", "a", "x", "--properties", "[]", code=2).stderr.splitlines()
    assert line == "tallymark: --properties is '[]', expected a JSON object"


def test_messages_move_in_their_order(broker: BrokerProcess) -> None:
    for body in ("one", "two", "three"):
        run(broker, "publish", "a", body)
    assert run(broker, "move", "a", "b", "--count", "2", "--dry-run").stdout == (
        "2 would be moved to 'b'\n"
    )
    assert bodies(broker, "b") == []
    assert run(broker, "move", "a", "b", "--count", "2").stdout == "2 moved to 'b'\n"
    assert (bodies(broker, "a"), bodies(broker, "b")) == (["three"], ["one", "two"])
    assert run(broker, "move", "a", "b").stdout == "1 moved to 'b'\n"
    assert bodies(broker, "b") == ["one", "two", "three"]
    assert run(broker, "move", "a", "b").stdout == "0 moved to 'b'\n"


def test_a_dry_run_counts_more_than_a_batch_and_says_where_it_stops(broker: BrokerProcess) -> None:
    with connect(broker) as connection:
        channel = connection.channel()
        for _ in range(1_500):
            channel.basic_publish("", "a", b"x")
        until(lambda: broker.queues()["a"]["ready"] == 1_500)
        assert run(broker, "move", "a", "b", "--dry-run").stdout == "1,500 would be moved to 'b'\n"
        for _ in range(8_502):
            channel.basic_publish("", "a", b"x")
        until(lambda: broker.queues()["a"]["ready"] == 10_002)
    assert run(broker, "move", "a", "b", "--dry-run").stdout == (
        "10,000 would be moved to 'b', 2 more are not looked at\n"
    )
    exactly = run(broker, "move", "a", "b", "--dry-run", "--count", "10000").stdout
    assert exactly == "10,000 would be moved to 'b'\n"


def test_what_does_not_fit_stays(broker: BrokerProcess) -> None:
    for body in ("one", "two", "three"):
        run(broker, "publish", "a", body)
    done = run(broker, "move", "a", "small", code=1)
    assert done.stdout == "1 moved to 'small'\n"
    assert done.stderr == "tallymark: stopped at messages that stay in 'a': 2 full\n"
    assert (bodies(broker, "small"), bodies(broker, "a")) == (["one"], ["two", "three"])


def test_a_move_to_nowhere_is_refused(broker: BrokerProcess) -> None:
    assert "no queue 'none'" in run(broker, "move", "a", "none", code=1).stderr
    assert "expected two queues" in run(broker, "move", "a", "a", code=2).stderr


@pytest.mark.parametrize(
    "body", [{"run": "r"}, {"run": "r", "oldest": 1, "messages": []}, {"run": "r", "oldest": 0}]
)
def test_a_redrive_names_its_messages_in_one_way(
    broker: BrokerProcess, body: dict[str, object]
) -> None:
    assert broker.http("POST", "/api/tallymark/redrive/%2F/a", body)[0] == 400


# -- live


def test_top_shows_queues_and_ends_after_its_rounds(broker: BrokerProcess) -> None:
    run(broker, "publish", "a", "one")
    said = run(broker, "top", "--rounds", "2", "--interval", "0.1").stdout
    assert said.count("5 queues") == 0
    assert said.count("4 queues") == 2
    assert said.count("ready 1, in flight 0") == 2
    assert LONG in said
    assert "expected one of" in run(broker, "top", "--sort", "size", code=2).stderr


def seen(at: float, **entered: int) -> Seen:
    counts = {"settled": 0, "dead_lettered": 0, "ready": 0, "acquired": 0}
    rows = [
        {"id": 1 + at, "vhost": "/", "name": name, "entered": n, **counts}
        for at, (name, n) in enumerate(entered.items())
    ]
    return Seen(at, {}, {}, rows)


def test_rates_are_of_the_time_between_two_screens() -> None:
    now = seen(12.0, old=70, again=3, new=500)
    rates = {row["name"]: row["in_s"] for row in rows_of(seen(10.0, old=50, again=900), now)}
    assert rates == {"old": 10, "again": 0, "new": 0}
    assert [row["in_s"] for row in rows_of(None, now)] == [0, 0, 0]


def test_a_name_stays_in_one_line_of_a_narrow_top() -> None:
    name = "orders.of.the.eu"
    counts = {"consumers": 2, "deferred": 0}
    rows = [row | counts | {"queue": name} for row in rows_of(None, seen(1.0, **{name: 7}))]
    console = Console(width=50, file=io.StringIO())
    print_table(console, rows, COLUMNS, SPARE)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert name in shown
    assert "ready" in shown.split("not shown here")[0]


def test_a_queue_declared_anew_has_no_rate_of_the_one_before() -> None:
    before, now = seen(10.0, q=900), seen(12.0, q=1000)
    now.queues[0]["id"] = 2
    assert [row["in_s"] for row in rows_of(before, now)] == [0]


def test_what_is_watched_is_shown_until_somebody_ends_it() -> None:
    did: list[object] = []

    def wait(seconds: float) -> None:
        did.append(seconds)
        if len(did) == 4:
            raise KeyboardInterrupt

    again(0.5, lambda: did.append("shown"), wait)
    assert did == ["shown", 0.5, "shown", 0.5]


def test_a_list_is_shown_again_and_again_until_ctrl_c(broker: BrokerProcess) -> None:
    command = [*forked.COMMAND, "queues", "--watch", "0.1"]
    environ = {**os.environ, "TALLYMARK_URL": broker.url}
    process = forked.popen(command, environ, sys.stderr)
    assert process.stdout is not None
    with process.stdout:
        for _ in range(2):
            while "consumers" not in process.stdout.readline():
                assert process.poll() is None
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0


def test_a_move_says_once_that_a_side_is_away_and_that_it_tries_again(
    broker: BrokerProcess,
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        away = f"amqp://guest:guest@127.0.0.1:{nobody.getsockname()[1]}"
        command = [sys.executable, "-m", "tallymark", "move", "a", "--from", away, "--to"]
        process = subprocess.Popen(
            [*command, broker.url], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        try:
            assert process.stderr is not None
            first = process.stderr.readline()
            assert first.startswith("tallymark: source /queues/a: ")
            assert first.endswith("; trying again until Ctrl-C\n")
            process.send_signal(signal.SIGINT)
            assert process.stderr.read() == ""
            assert process.wait(PATIENCE_S) == 1
        finally:
            process.kill()
            process.wait()
            process.stderr.close()


def test_what_answers_without_http_is_shown_and_harms_no_terminal(broker: BrokerProcess) -> None:
    url = f"http://127.0.0.1:{broker.amqp_port}"
    (line,) = run(broker, "queues", "--url", url, code=1).stderr.splitlines()
    told = "'AMQP\\x00\\x00\\t\\x01', expected an answer over HTTP"
    assert line == f"tallymark: {url}: no broker answers: {told}"


# -- the terminal


@pytest.mark.parametrize(
    "words",
    [
        ("queues",), ("exchanges",), ("connections",), ("consumers",), ("status",),
        ("get", "a"), ("top", "--rounds", "1"), ("limits", "list"), ("policy", "list"),
        ("feature", "list"), ("subscription", "list"), ("quarantine", "list"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_table_fits_the_terminal(broker: BrokerProcess, words: tuple[str, ...]) -> None:
    """Nothing of it is cut: what is left out is named."""
    run(broker, "publish", "a", "word " * 100)
    said = run(broker, *words, COLUMNS=str(NARROW), FORCE_COLOR="1", NO_COLOR="1").stdout
    lines = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", said).splitlines()
    assert lines
    assert max(len(line.rstrip()) for line in lines) <= NARROW


@pytest.mark.parametrize(
    ("words", "expected", "other"),
    [
        ("qu", {"queue", "queues", "quarantine"}, "serve"),
        ("queue b", {"bind"}, "create"),
        ("queues --wa", {"--watch"}, "--json"),
        ("serve --amqp-p", {"--amqp-port"}, "--config"),
        ("move --d", {"--dry-run"}, "--count"),
    ],
)
def test_a_shell_completes_commands_and_flags(
    words: str,
    expected: set[str],
    other: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("_TALLYMARK_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"tallymark {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split())))
    with pytest.raises(SystemExit) as ended:
        complete()
    assert ended.value.code == 0
    found = set(capsys.readouterr().out.split())
    assert expected <= found
    assert other not in found


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell_asks_for_completions(broker: BrokerProcess, shell: str) -> None:
    said = run(broker, "completion", shell)
    assert f"_TALLYMARK_COMPLETE=complete_{shell}" in said.stdout


def test_the_script_for_bash_is_one(broker: BrokerProcess, tmp_path: Path) -> None:
    script = tmp_path / "completion"
    script.write_text(run(broker, "completion", "bash").stdout)
    program = tmp_path / "tallymark"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m tallymark "$@"\n')
    program.chmod(0o755)
    asked = (
        f"source {script}; COMP_WORDS=(tallymark quar); COMP_CWORD=1; "
        f"_tallymark_completion {program}; echo ${{COMPREPLY[@]}}"
    )
    done = subprocess.run(
        ["bash", "-c", asked], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert done.stdout.split() == ["quarantine"], done


def test_a_shell_that_is_not_known_is_refused(broker: BrokerProcess) -> None:
    done = run(broker, "completion", "tcsh", code=2)
    assert done.stderr == "tallymark: shell is 'tcsh', expected one of bash, zsh, fish\n"


@pytest.mark.parametrize("flag", ["--first", "--last"])
def test_a_number_that_no_message_has_gives_up_none_of_those_that_cannot_be_read(
    broker: BrokerProcess, flag: str
) -> None:
    """0 meant that there was no such flag, and so all of them."""
    refusal = run(broker, "quarantine", "drop", "a", flag, "0", code=2).stderr
    assert flag in refusal
    assert "greater than or equal to 1" in refusal
    assert run(broker, "quarantine", "drop", "a", flag, "1").stdout.startswith("0 messages")
