"""The commands as a user types them, against a real broker."""

from __future__ import annotations

import io
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from msgspec import structs
from rich.console import Console
from typer.testing import CliRunner

from tallymark.cli import user
from tallymark.cli.app import build
from tallymark.cli.inspect import QUEUE_COLUMNS, spare_columns
from tallymark.cli.output import print_table
from tallymark.server.access.user import make_user
from tallymark.server.access.users import load, save
from tests.server.faces import nsq_http
from tests.support import forked
from tests.support.process import BrokerProcess


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(Path(tmp_path_factory.mktemp("cli")) / "data") as running:
        idle = pika.ConnectionParameters(port=running.amqp_port, heartbeat=0)  # for minutes
        connection = pika.BlockingConnection(idle)
        channel = connection.channel()
        channel.queue_declare("orders", durable=True)
        channel.confirm_delivery()
        for i in range(3):
            channel.basic_publish("", "orders", b"%d" % i, pika.BasicProperties(delivery_mode=2))
        running.http("POST", "/api/tallymark/subscriptions/%2F/orders/table/attach", {})
        yield running
        connection.close()


def run(
    *arguments: str, code: int = 0, url: str = "", stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    environ = {"TALLYMARK_URL": url} if url else None
    done = forked.run(*arguments, env=environ, stdin=stdin)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("queues", "orders"),
        ("exchanges", "amq.topic"),
        ("connections", "guest"),
        ("status", "commit"),
    ],
)
def test_lists_are_tables_for_people_and_json_for_scripts(
    broker: BrokerProcess, command: str, shown: str
) -> None:
    assert shown in run(command, url=broker.url).stdout
    answer = json.loads(run(command, "--json", url=broker.url).stdout)
    assert shown in json.dumps(answer)


def test_the_columns_of_the_queues_add_up_in_a_pipe(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path / "data") as broker,
        pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port)) as connection,
    ):
        channel = connection.channel()
        letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "letters"}
        channel.queue_declare("letters")
        channel.queue_declare("dying", arguments=letters)
        kept = {
            **letters,
            "x-dead-letter-exchange": "no",
            "x-dead-letter-strategy": "at-least-once",
        }
        channel.queue_declare("stuck", durable=True, arguments=kept)
        channel.confirm_delivery()
        for queue in ("dying", "stuck"):
            for _ in range(3):
                channel.basic_publish("", queue, b"x")
            channel.basic_nack(channel.basic_get(queue)[0].delivery_tag, requeue=False)
            channel.basic_ack(channel.basic_get(queue)[0].delivery_tag)
        channel.queue_declare("letters", passive=True)  # answered: so is what was sent before
        lines = run("queues", url=broker.url).stdout.splitlines()
    for name in ("dead letter pending", "dead lettered", "dropped"):
        assert sum(name in line for line in lines) == 1
    counts = {
        line.split()[1]: [int(word) for word in line.split() if word.isdigit()]
        for line in lines
        if line.startswith(" /")
    }
    # what entered, what waits (the last: quarantined), settled, dead lettered
    assert counts["dying"][:10] == [3, 1, 0, 0, 0, 0, 0, 0, 1, 1]
    assert counts["stuck"][:10] == [3, 1, 0, 0, 0, 0, 1, 0, 1, 0]


def test_a_paused_queue_is_shown_as_such(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        for path in ("topic/create?topic=t", "channel/create?topic=t&channel=c"):
            assert nsq_http(broker, "POST", f"/{path}", b"", "")[0] == 200
        assert "paused" not in run("queues", url=broker.url).stdout
        assert nsq_http(broker, "POST", "/channel/pause?topic=t&channel=c", b"", "")[0] == 200
        lines = [line.rstrip() for line in run("queues", url=broker.url).stdout.splitlines()]
    assert [line.split()[1] for line in lines if line.endswith("yes")] == ["t:c"]
    assert any(line.endswith("paused") for line in lines)


def test_a_narrow_terminal_keeps_the_counts_that_are_not_nothing() -> None:
    row: dict[str, object] = {
        "vhost": "/", "name": "q", "durable": True, "entered": 10, "ready": 3, "acquired": 2,
        "leased": 2, "deferred": 0, "staged": 0, "dead_letter_pending": 1,
        "quarantined": 0, "settled": 0,
        "dead_lettered": 4, "dropped": {},
        "ready_bytes": 100, "consumers": 1,
    }  # fmt: skip
    console = Console(width=80, file=io.StringIO())
    print_table(console, [row], QUEUE_COLUMNS, spare_columns([row]))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    for name in ("entered", "ready", "acquired", "dead letter pending", "dead lettered"):
        assert name in shown.split("not shown here")[0]
    assert "settled, dropped, quarantined, staged, deferred, leased" in " ".join(
        shown.split("not shown here")[1].split()
    )


def test_a_subscription_is_listed_and_dropped(broker: BrokerProcess) -> None:
    (row,) = json.loads(run("subscription", "list", "--json", url=broker.url).stdout)
    assert (row["queue"], row["name"]) == ("orders", "table")
    run("subscription", "drop", "orders", "table", url=broker.url)
    assert json.loads(run("subscription", "list", "--json", url=broker.url).stdout) == []
    refused = run("subscription", "drop", "orders", "table", url=broker.url, code=1)
    assert "no subscription 'table' on queue 'orders'" in refused.stderr


def test_a_log_level_is_changed_while_it_runs(broker: BrokerProcess) -> None:
    run("log-level", "http", "debug", url=broker.url)
    assert broker.http("GET", "/api/tallymark/log-levels")[1]["http"] == "debug"
    refused = run("log-level", "htp", "debug", url=broker.url, code=1)
    assert "did you mean 'http'?" in refused.stderr


def test_what_cannot_be_asked_is_told_in_one_line(broker: BrokerProcess) -> None:
    for arguments, url, code in (
        (["queues"], "http://127.0.0.1:1", 1),
        (["queues", "--user", "guest:wrong"], broker.url, 1),
        (["queues"], "nonsense://x", 2),
    ):
        done = run(*arguments, url=url, code=code)
        assert done.stderr.startswith("tallymark: ")
        assert len(done.stderr.splitlines()) == 1
        assert done.stderr.count("127.0.0.1") <= 1
    for arguments in (
        ["user", "add", "ann", "--password", "x", "--data-dir", "/proc/zz"],
        ["journal", "verify", "/proc/zz"],
    ):
        done = run(*arguments, code=1)
        assert done.stderr.startswith("tallymark: ")
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "words", [("get", "q\udcff"), ("purge", "q\udcff"), ("queues", "--user", "me\udcff:x")]
)
def test_words_that_are_no_utf_8_are_told_in_one_line(
    broker: BrokerProcess, words: tuple[str, ...]
) -> None:
    """A name pasted from a terminal of another encoding."""
    done = run(*words, url=broker.url, code=2)
    assert done.stderr.startswith("tallymark: '")
    assert done.stderr.endswith("', expected text in UTF-8\n")
    assert len(done.stderr.splitlines()) == 1


def test_status_shows_names_and_positions_as_such(broker: BrokerProcess) -> None:
    lines = [line.split() for line in run("status", url=broker.url).stdout.splitlines()]
    assert ["broker", "pid", str(broker.pid)] in lines
    assert ["journal", "data", "dir", str(broker.data_dir)] in lines
    (end,) = (line[2] for line in lines if line[:2] == ["journal", "end"])
    assert end.startswith("0x")


def test_a_folder_without_a_journal_is_not_called_sound(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    for more in ((), ("--json",)):
        done = run("journal", "verify", str(tmp_path), *more, code=1)
        assert done.stderr == f"tallymark: no journal in {tmp_path}\n"
        assert done.stdout == ""


@pytest.mark.parametrize("width", [30, 60, 80, 200])
def test_a_name_is_never_cut_however_narrow_the_terminal(width: int) -> None:
    name = "".join(f"queue-{n}." for n in range(9))
    row = {"name": name, "ready": 1234567, "ready_bytes": 1234567890, "consumers": 1}
    console = Console(width=width, file=io.StringIO())
    print_table(console, [row], list(row), ["ready_bytes", "consumers"])
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(len(line.rstrip()) <= width for line in shown.splitlines())
    assert "1,234,567" in shown
    assert ("1,234,567,890" in shown) == (width == 200)
    assert name in "".join(line.split()[0] for line in shown.splitlines() if line.split())
    assert ("not shown here: ready bytes" in " ".join(shown.split())) == (width < 200)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("paid\x1b[1A\x1b[2K", r"paid\x1b[1A\x1b[2K"), ("a\x08b", r"a\x08b"),
        ("a\x9b2J", r"a\x9b2J"),
        ("one\n/ two", r"one\n/ two"), ("\u202edeksab", r"\u202edeksab"), ("Köln ☕", "Köln ☕"),
    ],
)  # fmt: skip
def test_a_name_cannot_write_elsewhere_on_the_terminal(name: str, shown: str) -> None:
    console = Console(width=80, file=io.StringIO())
    print_table(console, [{"name": name}], ["name"], [])
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert [line.strip() for line in lines][3:] == [shown, ""]


def test_a_body_cannot_write_elsewhere_on_the_terminal(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        run("queue", "create", "forged", url=broker.url)
        run("publish", "forged", "\x1b[2Jnone\r\n", url=broker.url)
        assert r"\x1b[2Jnone\r\n" in run("get", "forged", url=broker.url).stdout


def test_a_data_folder_is_described_beside_a_running_broker(broker: BrokerProcess) -> None:
    assert "sound" in run("journal", "verify", str(broker.data_dir)).stdout
    report = json.loads(run("journal", "verify", str(broker.data_dir), "--json").stdout)
    assert report["sound"] is True
    assert report["rows"]["entered"] == 3


def test_a_damaged_journal_is_told_and_not_served(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with BrokerProcess(folder) as broker:
        connection = pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port))
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        for _ in range(5):
            channel.basic_publish("", "q", b"x" * 500, pika.BasicProperties(delivery_mode=2))
        broker.kill()
    (segment,) = (file for file in folder.iterdir() if b"x" * 500 in file.read_bytes())
    data = bytearray(segment.read_bytes())
    data[data.index(b"x" * 500) - 60] ^= 1  # what says where messages are; a body costs itself only
    segment.write_bytes(data)
    damaged = run("journal", "verify", str(folder), code=4)
    assert "DAMAGED" in damaged.stdout
    refused = run(
        "serve",
        "--data-dir",
        str(folder),
        "--amqp-port",
        "0",
        "--http-port",
        "0",
        "--no-nsq",
        code=4,
    )
    assert refused.stdout == ""
    assert "accept-loss" in refused.stderr or "accept_loss" in refused.stderr
    with BrokerProcess(folder, accept_loss="true") as broker:
        assert broker.queues()["q"]["ready"] < 5


def test_users_are_kept_in_the_data_folder(tmp_path: Path) -> None:
    folder = ["--data-dir", str(tmp_path / "data")]
    assert "no data folder" in run("user", "list", *folder, code=1).stderr
    (tmp_path / "data").mkdir()
    assert "no users: guest/guest from" in run("user", "list", *folder).stdout
    colon = run("user", "add", "a:b", "--password", "x", *folder, code=1).stderr
    assert "expected a name without ':'" in colon
    run("user", "add", "ann", "--password", "-", "--vhost", "/", *folder, stdin="secret\n")
    run("user", "add", "root", "--password", "x", "--administrator", *folder)
    rows = json.loads(run("user", "list", "--json", *folder).stdout)
    assert [(row["name"], row["vhost"], row["administrator"]) for row in rows] == [
        ("ann", "/", False),
        ("root", "*", True),
    ]
    known = load(tmp_path / "data")
    save(tmp_path / "data", {**known, "zoe": make_user("zoe", "x", False, {})})
    zoe = json.loads(run("user", "list", "--json", *folder).stdout)[2:]
    nothing = dict.fromkeys(("vhost", "configure", "write", "read"))
    assert zoe == [{"name": "zoe", "administrator": False, **nothing}]
    assert "zoe" in run("user", "list", *folder).stdout
    assert "exists" in run("user", "add", "ann", "--password", "x", *folder, code=1).stderr
    with BrokerProcess(tmp_path / "data") as broker:
        assert broker.http("GET", "/api/tallymark/overview", user="ann:secret")[0] == 200
        run("user", "passwd", "ann", "--password", "changed", *folder)
        assert broker.http("GET", "/api/tallymark/overview", user="ann:secret")[0] == 401
        assert broker.http("GET", "/api/tallymark/overview", user="ann:changed")[0] == 200
        run("user", "delete", "ann", *folder)
        assert broker.http("GET", "/api/tallymark/overview", user="ann:changed")[0] == 401
    assert "no user 'ann'" in run("user", "delete", "ann", *folder, code=1).stderr


@pytest.mark.parametrize("command", ["add", "passwd"])
def test_what_a_broker_changes_while_somebody_types_a_password_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    ann, eve = (make_user(name, "x", False, {}) for name in ("ann", "eve"))
    save(tmp_path, {"ann": ann, "eve": eve})

    def typed(given: str | None) -> str:
        """Eve is deleted meanwhile, and Ann may do more."""
        save(tmp_path, {"ann": structs.replace(ann, administrator=True, tags=("monitoring",))})
        return "secret"

    monkeypatch.setattr(user, "_secret", typed)
    name = {"add": "bob", "passwd": "ann"}[command]
    done = CliRunner().invoke(build("user"), ["user", command, name, "--data-dir", str(tmp_path)])
    assert done.exit_code == 0, done.stderr
    found = load(tmp_path)
    assert sorted(found) == sorted({"ann", name})
    assert (found["ann"].administrator, found["ann"].tags) == (True, ("monitoring",))
    assert found[name].accepts("secret")


def test_settings_are_checked_before_anything_starts(tmp_path: Path) -> None:
    file = tmp_path / "t.toml"
    file.write_text("sync = 'interval'\n")
    shown = run("check-config", "--config", str(file), "--max-memory", "1GiB").stdout
    assert "sync = interval" in shown.splitlines()
    assert "max_memory = 1GiB" in shown.splitlines()
    file.write_text("snyc = 'interval'\n")
    refused = run("serve", "--config", str(file), code=2)
    assert refused.stderr.strip().endswith("unknown key 'snyc'; did you mean 'sync'?")
    assert "expected one of" in run("serve", "--sync", "often", code=2).stderr
    for wrong in ("tracing = 'http://x'", "http_port = 5672", "amqps_cert = 'nowhere.pem'"):
        file.write_text(wrong)
        for command in ("serve", "check-config"):
            assert wrong.split()[0] in run(command, "--config", str(file), code=2).stderr


def test_a_start_is_refused_where_the_users_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "users.json").write_text("garbage")
    refused = run(
        "serve", "--data-dir", str(tmp_path), "--amqp-port", "0", "--http-port", "0", code=2
    )
    assert "users.json: JSON is malformed" in refused.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["users.json"]


def test_help_names_every_command() -> None:
    shown = run("--help").stdout
    commands = (
        "serve", "queues", "status", "policy", "feature", "user", "journal", "pipeline", "demo",
    )  # fmt: skip
    for command in commands:
        assert command in shown
    assert "TALLYMARK_AMQP_PORT" in run("serve", "--help").stdout.replace("\n", "")


def test_a_data_folder_in_the_home_is_the_one_that_is_served(tmp_path: Path) -> None:
    """A shell leaves --data-dir=~/data as it is; serve takes it for a folder of the home."""
    home = {"HOME": str(tmp_path)}
    user = ("user", "add", "--password", "x")
    done = forked.run(*user, "ann", "--data-dir=~/data", env=home)
    assert (done.returncode, done.stdout) == (0, "user 'ann' added\n"), done.stderr
    done = forked.run(*user, "bob", env={**home, "TALLYMARK_DATA_DIR": "~/data"})
    assert done.returncode == 0, done.stderr
    assert load(tmp_path / "data").keys() == {"ann", "bob"}
    done = forked.run("user", "list", "--data-dir=~nobody.of.that.name/data")
    assert (done.returncode, "who has no home" in done.stderr) == (2, True)


def test_a_password_that_is_no_text_is_refused(tmp_path: Path) -> None:
    words = ["user", "add", "ann", "--password", "-", "--data-dir", str(tmp_path)]
    done = CliRunner().invoke(build("user"), words, input=b"p\xe4ss\n")
    assert (done.exit_code, "expected text in UTF-8" in done.stderr) == (2, True)
    assert load(tmp_path) == {}
