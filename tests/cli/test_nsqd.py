"""`tallymark nsqd`: nsqd's flags as Go reads them, what follows from them, and a real start."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tallymark.cli.nsqd import FLAGS, ONLY_GET, FlagError, configured, duration, parse
from tallymark.server.config.settings import DECLARED, ConfigError
from tests.support import forked
from tests.support.patience import PATIENCE_S


def config(*arguments: str) -> dict[str, object]:
    found, _ = configured(list(arguments))
    return {name: getattr(found, name) for name in DECLARED}


@pytest.mark.parametrize(
    "arguments",
    [
        ("-max-rdy-count", "7"),
        ("--max-rdy-count", "7"),
        ("-max-rdy-count=7",),
        ("--max-rdy-count=7",),
        ("-max-rdy-count=0x7",),
        ("-max-rdy-count=9", "-max-rdy-count=7"),
    ],
)
def test_flags_in_every_form_of_go(arguments: tuple[str, ...]) -> None:
    assert config(*arguments)["nsq_max_rdy_count"] == 7


def test_a_true_or_false_flag_takes_its_value_behind_an_equals_sign_only() -> None:
    assert config("-snappy=false")["nsq_snappy"] is False
    assert config("-snappy=F", "-deflate=0")["nsq_deflate"] is False
    assert config("-snappy")["nsq_snappy"] is True
    with pytest.raises(FlagError, match="unexpected argument 'false'"):
        parse(["-snappy", "false"])


@pytest.mark.parametrize(
    ("text", "ms"),
    [("60s", 60_000), ("1h15m30.5s", 4_530_500), ("250ms", 250), ("0", 0), ("1.5h", 5_400_000),
     ("1500us", 2), ("1ns", 1), ("+2s", 2000), (".5s", 500), ("0.3s", 300)],
)  # fmt: skip
def test_durations_of_go(text: str, ms: int) -> None:
    assert duration(text) == f"{ms}ms"


@pytest.mark.parametrize("text", ["", "60", "s", "1x", "-1s", "1 s", "1s1", "1d"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="a time such as 60s"):
        duration(text)


def test_flags_that_may_be_given_several_times() -> None:
    found = config(
        "-lookupd-tcp-address", "a:4160", "--lookupd-tcp-address=b:4160",
        "-auth-http-address=auth:80", "-e2e-processing-latency-percentile=1.0,0.99",
        "-e2e-processing-latency-percentile=0.5",
    )  # fmt: skip
    assert found["lookupd"] == ("a:4160", "b:4160")
    assert found["auth_http_address"] == ("auth:80",)
    assert found["e2e_processing_latency_percentile"] == (1.0, 0.99, 0.5)


def test_the_defaults_are_those_of_nsqd() -> None:
    found = config()
    assert (found["nsq_host"], found["nsq_port"]) == (("0.0.0.0",), 4150)
    assert (found["nsq_http_host"], found["nsq_http_port"]) == (("0.0.0.0",), 4151)
    assert found["data_dir"] == Path("tallymark-data")
    assert (found["amqp_port"], found["http_port"]) == (0, 0)
    assert found["host"] == ("localhost",)
    assert found["sync"] == "commit"
    assert found["nsq_mem_queue_size"] == 10_000
    assert found["nsq_msg_timeout"] == 60_000
    assert found["nsq_max_msg_timeout"] == 900_000
    assert found["nsq_max_req_timeout"] == 3_600_000
    assert found["nsq_max_msg_size"] == 1 << 20
    assert found["nsq_max_body_size"] == 5 << 20
    assert found["nsq_max_rdy_count"] == 2500
    assert found["e2e_processing_latency_window_time"] == 600_000


def test_every_flag_does_what_it_says(tmp_path: Path) -> None:
    found = config(
        "-tcp-address=127.0.0.1:5150", "-http-address", "[::1]:5151", "-broadcast-address=box",
        "-broadcast-tcp-port=1", "-broadcast-http-port=2", f"-data-path={tmp_path}",
        "-mem-queue-size=5", "-msg-timeout=10s", "-max-msg-timeout=1m", "-max-msg-size=2000",
        "-max-body-size=9000", "-max-req-timeout=2h", "-max-heartbeat-interval=30s",
        "-max-output-buffer-size=1024", "-max-output-buffer-timeout=1s",
        "-min-output-buffer-timeout=10ms", "-output-buffer-timeout=100ms",
        "-max-channel-consumers=3", "-max-deflate-level=4", "-log-level=warn",
        "-http-client-connect-timeout=1s", "-http-client-request-timeout=3s",
        "-e2e-processing-latency-window-time=1m",
    )  # fmt: skip
    expected = {
        "nsq_host": ("127.0.0.1",), "nsq_port": 5150, "nsq_http_host": ("::1",),
        "nsq_http_port": 5151, "nsq_broadcast_address": "box", "nsq_broadcast_tcp_port": 1,
        "nsq_broadcast_http_port": 2, "data_dir": tmp_path / "tallymark-data",
        "nsq_mem_queue_size": 5, "nsq_msg_timeout": 10_000, "nsq_max_msg_timeout": 60_000,
        "nsq_max_msg_size": 2000, "nsq_max_body_size": 9000, "nsq_max_req_timeout": 7_200_000,
        "nsq_max_heartbeat_interval": 30_000, "nsq_max_output_buffer_size": 1024,
        "nsq_max_output_buffer_timeout": 1000, "nsq_min_output_buffer_timeout": 10,
        "nsq_output_buffer_timeout": 100, "nsq_max_channel_consumers": 3,
        "nsq_max_deflate_level": 4, "log_level": "warning", "nsq_auth_connect_timeout": 1000,
        "nsq_auth_request_timeout": 3000, "e2e_processing_latency_window_time": 60_000,
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected
    assert config("-tcp-address=:5150")["nsq_host"] == ("0.0.0.0",)


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_what_a_flag_sets_exists(flag: object) -> None:
    names = getattr(flag, "setting").split()  # noqa: B009
    assert [name for name in names if name not in DECLARED] == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["-nonsense"], "flag provided but not defined: -nonsense"),
        (["-max-rdy-cuont=1"], "did you mean max-rdy-count?"),
        (["-max-rdy-count"], "flag needs an argument: -max-rdy-count"),
        (["-max-rdy-count=x"], "invalid value 'x' for -max-rdy-count: expected a whole number"),
        (["-msg-timeout=60"], "invalid value '60' for -msg-timeout: expected a time such as"),
        (["-snappy=maybe"], "expected true or false"),
        (["-log-level=loud"], "expected one of debug, info, warn, error, fatal"),
        (["-tcp-address=4150"], "expected ADDRESS:PORT"),
        (["-statsd-address=s:8125"], "-statsd-address is not supported: nothing is sent to statsd"),
        (["topic"], "unexpected argument 'topic'"),
        (["-"], "unexpected argument '-'"),
        (["-config=/nowhere/nsqd.cfg"], "failed to load config file /nowhere/nsqd.cfg"),
    ],
)
def test_refusals_name_the_flag(arguments: list[str], told: str) -> None:
    with pytest.raises(FlagError) as refused:
        configured(arguments)
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("ssl3.0", "tls1.2"),
        ("tls1.0", "tls1.2"),
        ("TLS1.1", "tls1.2"),
        ("TLS1.2", "tls1.2"),
        ("tls1.3", "tls1.3"),
    ],
)
def test_tls_versions_as_nsqd_takes_them(value: str, expected: str) -> None:
    assert config(f"-tls-min-version={value}")["nsq_tls_min_version"] == expected


def test_a_value_that_we_cannot_have_is_refused_by_our_setting() -> None:
    with pytest.raises(ConfigError, match="nsq-max-rdy-count"):
        configured(["-max-rdy-count=-5"])
    with pytest.raises(ConfigError, match="HOST:PORT"):
        configured(["-lookupd-tcp-address=nowhere"])


def test_what_is_without_effect_is_told() -> None:
    _, notes = configured(
        ["-queue-scan-selection-count=20", "-queue-scan-interval=1s", "-sync-every=1", "-verbose"]
    )
    scan = "deadlines are exact, there is no scan"
    assert f"-queue-scan-selection-count is without effect: {scan}" in notes
    assert f"-queue-scan-interval is without effect: {scan}" in notes
    assert "-sync-every is without effect: every OK is on disk already" in notes
    assert len(notes) == 4


def test_a_configuration_file_of_nsqd_is_read_below_the_flags(tmp_path: Path) -> None:
    file = tmp_path / "nsqd.cfg"
    file.write_text(
        'max_rdy_count = 5\nmsg_timeout = "5s"\nsnappy = false\n'
        'nsqlookupd_tcp_addresses = ["a:1", "b:2"]\ne2e_processing_latency_percentiles = [0.5]\n'
    )
    found = config("-config", str(file), "-max-rdy-count=6")
    assert (found["nsq_max_rdy_count"], found["nsq_msg_timeout"]) == (6, 5000)
    assert found["nsq_snappy"] is False
    assert found["lookupd"] == ("a:1", "b:2")
    assert found["e2e_processing_latency_percentile"] == (0.5,)
    file.write_text("max_rdy_cuont = 5")
    with pytest.raises(FlagError, match="unknown key 'max_rdy_cuont'; did you mean max_rdy_count"):
        configured(["-config", str(file)])


def test_nq_18_data_of_nsqd_is_noticed_and_not_taken_over(tmp_path: Path) -> None:
    (tmp_path / "nsqd.dat").write_text("{}")
    _, notes = configured(["-data-path", str(tmp_path)])
    assert len(notes) == 1
    assert "data of nsqd: it is not taken over" in notes[0]


# -- as a user types it


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.run("nsqd", *arguments)


def test_auth_servers_are_asked_with_get() -> None:
    _, notes = configured(["-auth-http-request-method=get"])
    assert notes == ["-auth-http-request-method is without effect: " + ONLY_GET]
    for method in ("post", "GET", ""):  # nsqd takes no capitals
        with pytest.raises(FlagError, match=f"invalid value '{method}' .* expected get: "):
            configured([f"-auth-http-request-method={method}"])


def test_version_and_help() -> None:
    done = run("-version=false", "-config=/nowhere")  # it goes on as without the flag
    assert (done.returncode, done.stdout) == (2, "")
    done = run("-version")
    assert (done.returncode, done.stdout.startswith("nsqd v1.3.0 (tallymark ")) == (0, True)
    done = run("--help")
    assert done.returncode == 0
    for flag in FLAGS:
        assert f"  -{flag.name}\n" in done.stdout


def test_a_refusal_is_one_line_and_code_2() -> None:
    done = run("-statsd-address=x:1")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("tallymark: -statsd-address is not supported")
    assert len(done.stderr.splitlines()) == 1


def test_it_starts_like_nsqd(tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "tallymark", "nsqd", "-tcp-address=127.0.0.1:0",
        "--http-address", "127.0.0.1:0", "-data-path", str(tmp_path), "-broadcast-address=box",
        "--queue-scan-worker-pool-max=9", "-max-msg-size=10",
    ]  # fmt: skip
    errors = tmp_path / "stderr"
    with errors.open("wb") as log:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env={**os.environ}
        )
    assert process.stdout is not None
    try:
        ready = json.loads(process.stdout.readline())
        url = f"http://127.0.0.1:{ready['nsq_http'][1]}"
        with urllib.request.urlopen(f"{url}/info", timeout=PATIENCE_S) as response:
            about = json.loads(response.read())
        assert about["broadcast_address"] == "box"
        assert about["tcp_port"] == ready["nsq"][1]
        with urllib.request.urlopen(
            f"{url}/pub?topic=t", b"m" * 10, timeout=PATIENCE_S
        ) as response:
            assert response.read() == b"OK"
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(PATIENCE_S)
        process.stdout.close()
    assert code == 0
    assert (tmp_path / "tallymark-data" / "lock").exists()
    assert "-queue-scan-worker-pool-max is without effect" in errors.read_text()
