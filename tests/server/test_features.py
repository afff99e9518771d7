"""Feature flags: the file, one way, and what is refused [DL-19, DL-20]."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tallymark.engine.errors import NotFound, PreconditionFailed
from tallymark.engine.ledger import definition_record
from tallymark.engine.record import Record
from tallymark.journal.verify import verify
from tallymark.server.config.settings import Config
from tallymark.server.features import FILE, FLAGS, Features, FeaturesError
from tallymark.server.opening import open_node
from tallymark.server.rehearsal import rehearse
from tallymark.stored.layout import HEADER
from tallymark.units import WallMs
from tests.journal.builders import Disk, entering, make_newer
from tests.support.memory_home import MemoryHome
from tests.support.process import BrokerDied, BrokerProcess

FIRST, SECOND = "message_containers", "message_containers_deaths_v2"
THIRD = "payload_checksums"
SEGMENT = "0000000001-0000abcd.segment"


def stored(folder: Path) -> list[str]:
    found: list[str] = json.loads((folder / FILE).read_text())["enabled"]
    return found


def test_dl_19_a_new_folder_has_all_flags_and_writes_the_newest_form(tmp_path: Path) -> None:
    (tmp_path / "users.json").write_text("[]")  # a user may be added before the first start
    features = Features.open(tmp_path)
    assert features.enabled == {FIRST, SECOND, THIRD} == set(FLAGS)
    assert (features.death_form, features.block_version) == (3, 2)
    assert stored(tmp_path) == [FIRST, SECOND, THIRD]
    (tmp_path / SEGMENT).write_bytes(b"")
    assert Features.open(tmp_path).death_form == 3


@pytest.mark.parametrize("file", [SEGMENT, "0000000001-0000abcd.ledger", f"{1:016x}.checkpoint"])
def test_dl_19_a_folder_from_before_the_flags_has_none(tmp_path: Path, file: str) -> None:
    (tmp_path / file).write_bytes(b"")
    features = Features.open(tmp_path)
    assert (features.enabled, features.death_form) == (frozenset(), 1)
    assert features.block_version == 1
    assert not (tmp_path / FILE).exists()


def test_a_copy_of_a_journal_in_a_database_has_all_where_its_leader_died_at_once(
    tmp_path: Path,
) -> None:
    """The file gets to the database up to a second after the first blocks. Who led next switched
    every flag off, for good (pairs 8501377, 8501720)."""
    home = MemoryHome()
    loop = asyncio.new_event_loop()
    (tmp_path / SEGMENT).write_bytes(b"")
    node = open_node(Config(data_dir=tmp_path), loop, home=home)
    assert node.features.enabled == set(FLAGS)
    assert node.journal.version == 2
    assert stored(tmp_path) == [FIRST, SECOND, THIRD]
    node.journal.close()
    loop.close()


def test_flags_are_enabled_one_after_the_other_and_stay_so(tmp_path: Path) -> None:
    (tmp_path / SEGMENT).write_bytes(b"")
    features = Features.open(tmp_path)
    with pytest.raises(PreconditionFailed, match=f"'{SECOND}' needs '{FIRST}', which is not"):
        features.enable(SECOND)
    assert (features.enabled, (tmp_path / FILE).exists()) == (frozenset(), False)
    assert features.enable(FIRST)
    assert (features.death_form, stored(tmp_path)) == (2, [FIRST])
    assert not features.enable(FIRST)
    assert features.enable(SECOND)
    assert (features.death_form, stored(tmp_path)) == (3, [FIRST, SECOND])
    assert Features.open(tmp_path).death_form == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == [SEGMENT, FILE]


def test_an_unknown_flag_is_refused_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=f"no feature flag 'x', expected one of {FIRST}, {SECOND}"):
        Features.open(tmp_path).enable("x")


def test_a_flag_that_cannot_be_stored_is_not_enabled(tmp_path: Path) -> None:
    (tmp_path / SEGMENT).write_bytes(b"")
    features = Features.open(tmp_path)
    (tmp_path / (FILE + ".tmp")).mkdir()  # stands where the new file would be written
    with pytest.raises(OSError, match="features"):
        features.enable(FIRST)
    assert features.death_form == 1


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "truncated"),
        ("[]", "Expected `object`"),
        ('{"enabled": "all"}', "Expected `array`"),
        ('{"enabled": [], "disabled": []}', "unknown field `disabled`"),
        ('{"enabled": ["x"]}', "unknown feature flag 'x', expected of "),
        (json.dumps({"enabled": [SECOND]}), f"'{SECOND}' is enabled and '{FIRST}' is not"),
    ],
)
def test_dl_20_a_file_that_is_not_understood_is_refused_not_guessed_at(
    tmp_path: Path, content: str, told: str
) -> None:
    (tmp_path / FILE).write_text(content)
    with pytest.raises(FeaturesError, match=r"features\.json: ") as refused:
        Features.open(tmp_path)
    assert told in str(refused.value)


def test_flags_over_http(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with BrokerProcess(folder) as broker:
        rows = broker.http("GET", "/api/tallymark/features")[1]["features"]
        assert [row["name"] for row in rows] == [FIRST, SECOND, THIRD]
        assert all(row["enabled"] for row in rows)
    assert stored(folder) == [FIRST, SECOND, THIRD]
    (folder / FILE).unlink()  # as a version without flags leaves it
    with BrokerProcess(folder) as broker:
        path = "/api/tallymark/features/"
        status, answer = broker.http("PUT", path + SECOND)
        assert (status, answer["error"]) == (400, "bad_request")
        assert f"needs '{FIRST}'" in answer["reason"]
        assert broker.http("PUT", path + "nonsense")[0] == 404
        (folder / (FILE + ".tmp")).mkdir()  # stands where the new file would be written
        status, answer = broker.http("PUT", path + FIRST)
        assert (status, answer["error"]) == (500, "internal_error")
        assert f"feature flag '{FIRST}' cannot be stored" in answer["reason"]
        (folder / (FILE + ".tmp")).rmdir()
        assert broker.http("PUT", path + FIRST)[1]["enabled"] is True
        assert stored(folder) == [FIRST]
        status, answer = broker.http("PUT", path + FIRST, {"enabled": False})
        assert (status, answer["reason"]) == (
            400,
            f"enabled is false: feature flag '{FIRST}' cannot be disabled",
        )
        assert broker.http("DELETE", path + FIRST)[0] == 405
        rows = broker.http("GET", "/api/tallymark/features")[1]["features"]
        assert [row["enabled"] for row in rows] == [True, False, False]
        assert "feature.enabled" in broker.log()


def test_only_an_administrator_enables_a_flag(tmp_path: Path) -> None:
    from tallymark.server.access import users
    from tallymark.server.access.user import Permission, make_user

    folder = tmp_path / "data"
    folder.mkdir()
    users.save(folder, {"ann": make_user("ann", "x", False, {"*": Permission()})})
    with BrokerProcess(folder) as broker:
        assert broker.http("GET", "/api/tallymark/features", user="ann:x")[0] == 200
        assert broker.http("PUT", f"/api/tallymark/features/{FIRST}", user="ann:x")[0] == 403


def test_a_broker_does_not_start_on_flags_of_a_newer_version(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / FILE).write_text('{"enabled": ["shape_of_2040"]}')
    with pytest.raises(BrokerDied, match=r"(?s)exit code 2.*unknown feature flag 'shape_of_2040'"):
        BrokerProcess(folder).start()
    assert [file.name for file in folder.iterdir()] == [FILE]


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (Record(99, 7, 1, 1, 0), "record of unknown kind 99"),
        (definition_record(b'{"op":"shape_of_2040","vhost":"/"}'), "op 'shape_of_2040'"),
    ],
)
def test_a_broker_does_not_start_on_records_of_a_newer_version(
    tmp_path: Path, record: Record, text: str
) -> None:
    """They would be undone, or mean something else to whoever passes over them."""
    folder = tmp_path / "data"
    folder.mkdir()
    disk = Disk(folder)
    disk.start()
    disk.journal.commit([record], WallMs(1))
    disk.journal.close()
    with pytest.raises(BrokerDied, match=rf"(?s)exit code 2.*{text}: written by a newer version"):
        BrokerProcess(folder).start()
    assert text in " ".join(rehearse(folder))


@pytest.mark.parametrize("is_seal", [False, True], ids=["first block", "seal"])
def test_a_broker_does_not_start_on_blocks_of_a_newer_version(
    tmp_path: Path, is_seal: bool
) -> None:
    """Each segment that is complete ends with a seal of the version that wrote it."""
    folder = tmp_path / "data"
    folder.mkdir()
    disk = Disk(folder)
    disk.start()
    disk.journal.commit(entering(1), WallMs(1))
    disk.journal.close()
    segment = disk.segments()[-1]
    make_newer(segment, segment.stat().st_size - HEADER if is_seal else 0)
    before = segment.read_bytes()
    text = "block of format version 3, this program reads 1 to 2"
    with pytest.raises(BrokerDied, match=rf"(?s)exit code 2.*is not understood: {text}"):
        BrokerProcess(folder).start()
    assert segment.read_bytes() == before
    assert text in " ".join(rehearse(folder))
    assert verify(folder).problems == [f"{segment.name}: {text}"]
