"""Other people's test suites against this broker: `make interop`.

    python -m tests.interop.suites             fetch, then run all
    python -m tests.interop.suites kombu ...   only these

Suites come from where their clients are published, by pip and npm, into build/interop, with an
environment of their own. They run in a network of their own (`unshare`), because several have the
ports of a broker built in; where that cannot be had, on those ports. For each the tests that passed
are counted, and those that did not are compared with `DIFFERENCES`: what is different here on
purpose. Anything else ends in exit code 1. The table goes to stdout and build/interop/table.md; the
one in docs/interop.md is a copy.
"""

from __future__ import annotations

import fnmatch
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.docs.page import raise_loopback
from tests.support.certificates import Authority
from tests.support.process import BrokerProcess

ROOT: Final = Path(__file__).parents[2]
PLACE: Final = ROOT / "build" / "interop"
PYTHON: Final = PLACE / "venv" / "bin" / "python"
LONGEST_S: Final = 1800
PORTS: Final = {
    "amqp_port": "5672",
    "amqps_port": "5671",
    "http_port": "15672",
    "nsq_port": "0",
    "nsq_http_port": "0",
}


@dataclass(frozen=True)
class Suite:
    """Published tests of one client."""

    name: str
    version: str
    what: str
    run: Callable[[Suite], Results]
    needs: tuple[str, ...] = ()
    """Packages for its environment, besides itself."""
    is_npm: bool = False

    @property
    def folder(self) -> Path:
        return PLACE / f"{self.name}-{self.version}"


@dataclass
class Results:
    passed: int = 0
    skipped: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    """Why, by name of the test."""


DIFFERENCES: Final[dict[str, dict[str, str]]] = {
    "amqpstorm": {
        "*::test_api_cluster_name": "the name in the test is that of its author's server",
    },
}
"""By suite: pattern of the names of tests that fail, and what is different here on purpose."""

NOT_PUBLISHED: Final = {
    "pika": "no sdist or wheel holds the acceptance tests; Debian's mirrors may have no sources",
    "pynsq": "its sdists hold no tests, and Debian has no package of it",
    "rabbitmq-amqp-python-client": "its sdist holds no tests; tests/interop has tests with it",
    "RabbitMQ's AMQP 1.0 client for JavaScript": "not published under a name of its own",
}
"""Clients whose tests are in no package."""


# Fetching


def fetch(suites: list[Suite]) -> None:
    """Everything that takes a network; what is there already is left."""
    PLACE.mkdir(parents=True, exist_ok=True)
    if not PYTHON.exists():
        call(sys.executable, "-m", "venv", PLACE / "venv")
    wanted = [f"{suite.name}=={suite.version}" for suite in suites if not suite.is_npm]
    needs = {need for suite in suites for need in suite.needs}
    call(PYTHON, "-m", "pip", "install", "-q", "pytest", "pytest-timeout", *sorted(needs), *wanted)
    for suite in suites:
        if suite.folder.exists():
            continue
        if suite.is_npm:
            fetch_npm(suite)
        else:
            fetch_sdist(suite)


def fetch_sdist(suite: Suite) -> None:
    sdist = PLACE / "sdist"
    source = f"{suite.name}=={suite.version}"
    options = ("--no-deps", "--no-binary", ":all:", "-d", sdist)
    call(PYTHON, "-m", "pip", "download", "-q", *options, source)
    archive = next(sdist.glob(f"{suite.name.replace('-', '?')}-{suite.version}.tar.gz"))
    unpack(archive, suite)


def fetch_npm(suite: Suite) -> None:
    call("npm", "pack", "--silent", f"{suite.name}@{suite.version}", cwd=PLACE)
    unpack(PLACE / f"{suite.name}-{suite.version}.tgz", suite)
    call("npm", "install", "--silent", "--no-audit", "--no-fund", cwd=suite.folder)


def unpack(archive: Path, suite: Suite) -> None:
    place = PLACE / "unpacked"
    shutil.rmtree(place, ignore_errors=True)
    with tarfile.open(archive) as tar:
        tar.extractall(place, filter="data")
    (inside,) = place.iterdir()
    inside.rename(suite.folder)


def call(*command: str | Path, cwd: Path | None = None) -> None:
    print("+", *command, flush=True)
    subprocess.run([str(word) for word in command], check=True, cwd=cwd or ROOT)


# Running


def pytest_suite(*arguments: str, **environment: str) -> Callable[[Suite], Results]:
    def run(suite: Suite) -> Results:
        report = PLACE / f"{suite.name}.xml"
        report.unlink(missing_ok=True)
        options = ("-q", "-p", "no:cacheprovider", "--timeout", "120", f"--junitxml={report}")
        start(suite, [str(PYTHON), "-m", "pytest", *options, *arguments], environment)
        results = Results()
        for case in ET.parse(report).getroot().iter("testcase"):
            name = f"{case.get('classname')}::{case.get('name')}"
            wrong = case.find("failure")
            if wrong is None:
                wrong = case.find("error")
            if wrong is not None:
                results.failed[name] = str(wrong.get("message"))[:200]
            elif case.find("skipped") is not None:
                results.skipped += 1
            else:
                results.passed += 1
        return results

    return run


def mocha_suite(*arguments: str, **environment: str) -> Callable[[Suite], Results]:
    def run(suite: Suite) -> Results:
        report = PLACE / f"{suite.name}.json"
        report.unlink(missing_ok=True)
        reporter = ("--reporter", "json", "--reporter-option", f"output={report}")
        options = ("--exit", "--timeout", "120000", *reporter)
        start(suite, ["node_modules/.bin/mocha", *options, *arguments], environment)
        found = json.loads(report.read_text())
        failed = {one["fullTitle"]: one["err"].get("message", "") for one in found["failures"]}
        return Results(found["stats"]["passes"], found["stats"]["pending"], failed)

    return run


def start(suite: Suite, command: list[str], environment: dict[str, str]) -> None:
    """Run a suite in its folder; what it prints goes to a file."""
    path = f"{PLACE / 'bin'}{os.pathsep}{os.environ['PATH']}"
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with (PLACE / f"{suite.name}.log").open("w") as log:
        subprocess.run(
            command,
            cwd=suite.folder,
            env={**inherited, "PATH": path, **environment},
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=LONGEST_S,
            check=False,
        )


def provide_nsqd() -> None:
    """`nsqd` on the path of the suites that start one themselves: our command of that name."""
    place = PLACE / "bin"
    place.mkdir(exist_ok=True)
    script = place / "nsqd"
    python_path = os.environ.get("PYTHONPATH", "")
    script.write_text(
        f'#!/bin/sh\nPYTHONPATH="{python_path}" exec {sys.executable} -m tallymark nsqd "$@"\n'
    )
    script.chmod(0o755)


def provide_certificates(folder: Path, suites: list[Suite]) -> dict[str, str]:
    """The broker's; and, where a suite looks for them, its own from the same authority."""
    authority = Authority(folder)
    broker, user = authority.sign("broker"), authority.sign("guest")
    for suite in suites:
        if suite.name == "amqp":
            place = suite.folder / "t" / "certs"
            place.mkdir(exist_ok=True)
            shutil.copy(user.key, place / "client_key.pem")
            shutil.copy(user.cert, place / "client_certificate.pem")
            shutil.copy(authority.own.cert, place / "ca_certificate.pem")
            stranger = folder / "stranger"
            stranger.mkdir()
            wrong = Authority(stranger).sign("guest")
            shutil.copy(wrong.key, place / "client_key_broken.pem")
            shutil.copy(wrong.cert, place / "client_certificate_broken.pem")
    return {"amqps_cert": str(broker.cert), "amqps_key": str(broker.key)}


BROKER: Final = {
    "AMQP_HOST": "127.0.0.1",
    "AMQP_USERNAME": "guest",
    "AMQP_PASSWORD": "guest",
    "AMQP_URI": "amqp://guest:guest@127.0.0.1:5672/%2F",
    "AMQP_HTTP_URL": "http://127.0.0.1:15672",
}

SUITES: Final = [
    Suite(
        "amqp",
        "5.4.2",
        "py-amqp: integration tests, plain and TLS, but for two that go to hosts of the internet",
        pytest_suite("t/integration", "-k", "not default_certs"),
    ),
    Suite(
        "kombu",
        "5.7.0",
        "integration tests over py-amqp",
        pytest_suite("t/integration/test_py_amqp.py"),
    ),
    Suite(
        "amqpstorm",
        "3.1.4",
        "functional tests, also of the management interface",
        pytest_suite(
            "amqpstorm/tests/functional", "--ignore", "amqpstorm/tests/functional/ssl", **BROKER
        ),
        ("requests",),
    ),
    Suite(
        "amqplib",
        "0.10.9",
        "all tests (JavaScript)",
        mocha_suite("-u", "tdd", "--check-leaks", "test/"),
        is_npm=True,
    ),
    Suite(
        "nsqjs",
        "0.13.0",
        "all tests (JavaScript); they start `nsqd`, here `tallymark nsqd`",
        mocha_suite(),
        is_npm=True,
    ),
]


def run(suites: list[Suite], folder: Path) -> list[tuple[Suite, Results]]:
    provide_nsqd()
    flags = {**PORTS, **provide_certificates(folder, suites)}
    found = []
    for suite in suites:
        data = folder / suite.name
        with BrokerProcess(data, **flags):
            found.append((suite, suite.run(suite)))
        shutil.rmtree(data)
        print(f"{suite.name}: {found[-1][1].passed} passed", flush=True)
    return found


def different(suite: Suite, test: str) -> str | None:
    """What the failure of a test is about, where that is on purpose."""
    for pattern, reason in DIFFERENCES.get(suite.name, {}).items():
        if fnmatch.fnmatchcase(test, pattern):
            return reason
    return None


def table(found: list[tuple[Suite, Results]]) -> str:
    lines = [
        "| Suite | | Passed | Skipped by itself | Different on purpose | Failed |",
        "|---|---|---|---|---|---|",
    ]
    for suite, results in found:
        on_purpose = sum(different(suite, test) is not None for test in results.failed)
        lines.append(
            f"| {suite.name} {suite.version} | {suite.what} | {results.passed} | "
            f"{results.skipped} | {on_purpose} | {len(results.failed) - on_purpose} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    names = [word for word in sys.argv[1:] if not word.startswith("-")]
    suites = [suite for suite in SUITES if not names or suite.name in names]
    if "--run" not in sys.argv:
        fetch(suites)
        unshare = shutil.which("unshare")
        has_own = unshare and not subprocess.run([unshare, "-rn", "true"], check=False).returncode
        prefix = [unshare, "-rn"] if unshare and has_own else []
        network = ["--own-network"] if has_own else []
        again = [*prefix, sys.executable, "-m", "tests.interop.suites", "--run", *network, *names]
        return subprocess.run(again, check=False, cwd=ROOT).returncode
    if "--own-network" in sys.argv:
        raise_loopback()
    with tempfile.TemporaryDirectory(dir=PLACE) as folder:
        found = run(suites, Path(folder))
    shown = table(found)
    (PLACE / "table.md").write_text(shown)
    print(shown)
    unexpected = 0
    for suite, results in found:
        for test, why in results.failed.items():
            reason = different(suite, test)
            unexpected += reason is None
            print(f"{suite.name}: {test}: {reason or why}")
    return int(unexpected > 0)


if __name__ == "__main__":
    sys.exit(main())
