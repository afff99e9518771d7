"""The source, the broker's wheels, and what is needed to run what they install."""

from __future__ import annotations

import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest

import tallymark
from tests.installing.environments import ROOT, Environment, build
from tests.support.long import long
from tests.support.process import BrokerProcess

pytestmark = long  # builds and environments; what they install is tested by everything else

MADE = (".pyc", ".so")
"""What is no source, wherever it lies."""


def sources() -> set[str]:
    """Files of the packages, as they are named in a wheel."""
    return {
        str(file.relative_to(ROOT / "src"))
        for file in (ROOT / "src").rglob("*")
        if file.is_file() and file.suffix not in MADE and ".egg-info" not in str(file)
    }


def in_wheel(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dist")


@pytest.fixture(scope="module")
def pure(dist: Path) -> Path:
    return build(dist, "pure")


@pytest.fixture(scope="module")
def sdist(dist: Path) -> Path:
    return build(dist, "sdist")


@pytest.fixture(scope="module")
def environment(pure: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """One in which the pure wheel is installed, without extras."""
    found = Environment(tmp_path_factory.mktemp("pure"))
    found.install(pure)
    return found


class Installed(BrokerProcess):
    """A broker that runs with the Python of an environment."""

    def __init__(self, environment: Environment, data_dir: Path) -> None:
        super().__init__(data_dir, is_forked=False)
        self._env = environment.variables
        self._python = str(environment.python)

    def command(self) -> list[str]:
        return [self._python, "-m", "tallymark", *self.arguments()]


def serves(environment: Environment, folder: Path) -> None:
    """A message is published and found, and the broker stops cleanly."""
    with Installed(environment, folder / "data") as broker:
        assert broker.http("PUT", "/api/queues/%2F/q", {"durable": True})[0] == 201
        sent = {"routing_key": "q", "payload": "1", "payload_encoding": "string", "properties": {}}
        broker.http("POST", "/api/exchanges/%2F/amq.default/publish", sent)
        assert broker.queues()["q"]["ready"] == 1
        assert broker.stop() == 0


def test_the_pure_wheel_has_every_file_among_the_sources(pure: Path) -> None:
    assert pure.name == f"tallymark-{tallymark.__version__}-py3-none-any.whl"
    assert in_wheel(pure) == {name for name in sources() if not name.endswith(".c")}


def test_the_sdist_has_every_file_among_the_sources_and_what_builds_them(sdist: Path) -> None:
    head = sdist.name.removesuffix(".tar.gz")
    with tarfile.open(sdist) as archive:
        found = {name.removeprefix(f"{head}/") for name in archive.getnames()}
    assert {f"src/{name}" for name in sources()} <= found
    assert {"setup.py", "pyproject.toml", "README.md", "LICENSE"} <= found
    assert not [name for name in found if name.endswith(MADE)]


def test_what_the_pure_wheel_names_is_enough_to_serve(
    environment: Environment, tmp_path: Path
) -> None:
    command = str(environment.python.parent / "tallymark")
    assert tallymark.__version__ in environment.run(command, "--version")
    assert "(pure)" in environment.run(command, "--version")
    serves(environment, tmp_path)


def test_what_is_built_of_the_sdist_serves(sdist: Path, tmp_path: Path) -> None:
    environment = Environment(tmp_path / "empty")
    environment.install(sdist)
    serves(environment, tmp_path)


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (("demo",), "demo"),
        (("pipeline", "reconcile", "--data-dir", "x"), "spark"),
        (("pipeline", "land", "--queue", "q", "--subscription", "s", "--to", "t"), "spark"),
    ],
    ids=" ".join,
)
def test_a_command_names_the_extra_that_it_needs(
    environment: Environment, words: tuple[str, ...], extra: str
) -> None:
    said = environment.fails("-m", "tallymark", *words)
    assert f"pip install 'tallymark[{extra}]'" in said


def test_a_setting_names_the_extra_that_it_needs(environment: Environment, tmp_path: Path) -> None:
    settings = tmp_path / "tallymark.toml"
    settings.write_text(
        f'data_dir = "{tmp_path / "data"}"\n[auth_oauth2]\nresource_server_id = "tallymark"\n'
        'issuer = "https://127.0.0.1:1"\n'
    )
    said = environment.fails("-m", "tallymark", "serve", "--config", str(settings))
    assert "pip install 'tallymark[oauth]'" in said


@long(ci=False)  # half a minute, where everything was compiled before
@pytest.mark.skipif(
    not tallymark.is_compiled() or not (ROOT / "build" / "stable").exists(),
    reason="tallymark is not compiled here: nothing to build it from quickly (make install)",
)
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler: apt-get install gcc")
def test_the_compiled_wheel_serves_compiled(dist: Path, tmp_path: Path) -> None:
    made = build(dist, "compiled")
    assert "linux" in made.name
    assert {name for name in sources() if not name.endswith(".c")} <= in_wheel(made)
    environment = Environment(tmp_path / "empty")
    environment.install(made)
    said = environment.run(str(environment.python), "-m", "tallymark", "--version")
    assert "compiled" in said
    serves(environment, tmp_path)
