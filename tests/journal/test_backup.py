"""A backup is the folder of one moment, whatever the journal does meanwhile."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tallymark.journal import backup as backups
from tallymark.journal.backup import MANIFEST, NotABackup, back_up, restore
from tallymark.journal.recovery import JournalCorrupt
from tallymark.journal.verify import verify
from tallymark.stored.layout import header_at
from tallymark.stored.records import ENTERED
from tests.journal.builders import TIME, Disk, all_shown, entering
from tests.journal.test_cleaning import checkpoint, fill, settle


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path / "data")


def opened(folder: Path) -> list[tuple[object, ...]]:
    """What a start on the folder finds."""
    disk = Disk(folder)
    found = all_shown(disk.open())
    disk.journal.start()
    disk.journal.close()
    return found


def test_a_backup_beside_the_writer_has_all_that_was_on_disk(disk: Disk, tmp_path: Path) -> None:
    disk.start()
    fill(disk, 1, 10)
    disk.wait()
    taken = back_up(disk.folder, tmp_path / "backup")
    assert taken.position == disk.journal.durable
    fill(disk, 11, 10)
    disk.wait()
    disk.journal.close()

    restored = restore(tmp_path / "backup", tmp_path / "restored")
    assert restored.files == taken.files
    found = opened(tmp_path / "restored")
    assert found == opened(disk.folder)[: len(found)]
    assert len(found) == 20, "ten messages: a payload and an entry each"


def test_sealed_segments_are_linked_and_what_is_written_to_is_not(
    disk: Disk, tmp_path: Path
) -> None:
    disk.start()
    fill(disk, 1, 10)
    disk.wait()
    back_up(disk.folder, tmp_path / "backup")
    *sealed, written = disk.segments()
    assert len(sealed) == 2
    for path in sealed:
        assert path.samefile(tmp_path / "backup" / path.name)
    copy = tmp_path / "backup" / written.name
    assert not written.samefile(copy)
    before = copy.read_bytes()
    fill(disk, 11, 1)
    disk.wait()
    assert copy.read_bytes() == before
    disk.journal.close()


def test_on_another_file_system_files_are_copied(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(errno.EXDEV, "cross-device link", str(source))

    monkeypatch.setattr(os, "link", refuse)
    disk.start()
    fill(disk, 1, 10)
    disk.wait()
    back_up(disk.folder, tmp_path / "backup")
    disk.journal.close()
    first = disk.segments()[0]
    copy = tmp_path / "backup" / first.name
    assert copy.read_bytes() == first.read_bytes()
    assert not copy.samefile(first)
    assert copy.stat().st_mode & 0o777 == 0o600
    assert len(opened(tmp_path / "backup")) == 20


def meanwhile(monkeypatch: pytest.MonkeyPatch, work: Callable[[], None]) -> list[str]:
    """Have this done before the first file is linked; return the names that were asked for."""
    asked: list[str] = []
    link = os.link

    def first(source: Path, target: Path) -> None:
        asked.append(source.name)
        if len(asked) == 1:
            work()
        link(source, target)

    monkeypatch.setattr(os, "link", first)
    return asked


def test_a_segment_that_is_stripped_meanwhile_is_there_as_its_ledger(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.start()
    made = fill(disk, 1, 10)
    disk.wait()

    def strip() -> None:
        settle(disk, made[:4])
        checkpoint(disk, made[4:])
        disk.clean()
        assert disk.names(".ledger")

    asked = meanwhile(monkeypatch, strip)
    back_up(disk.folder, tmp_path / "backup")
    disk.journal.close()
    assert asked.count(asked[0]) == 1
    names = sorted(path.name for path in (tmp_path / "backup").iterdir())
    assert [name for name in names if name.endswith(".ledger")] == disk.names(".ledger")
    assert [name for name in names if name.endswith(".checkpoint")] == disk.names(".checkpoint")
    assert asked[0] not in names, "its bytes were let go of, and so is the link"
    report = verify(tmp_path / "backup")
    assert report.is_sound, report.problems
    assert opened(tmp_path / "backup") == opened(disk.folder)


def test_segments_that_begin_meanwhile_are_in_it(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.start()
    fill(disk, 1, 10)
    disk.wait()

    def go_on() -> None:
        fill(disk, 11, 20)
        disk.wait()

    meanwhile(monkeypatch, go_on)
    taken = back_up(disk.folder, tmp_path / "backup")
    assert taken.position == disk.journal.durable
    disk.journal.close()
    assert len(opened(tmp_path / "backup")) == 60


def at_the_end_of_a_pass(monkeypatch: pytest.MonkeyPatch, work: Callable[[], None]) -> None:
    """Have this done once, when all files have been captured for the first time."""
    settings = backups._settings
    passes: list[Path] = []

    def first(folder: Path) -> list[str]:
        passes.append(folder)
        if len(passes) == 1:
            work()
        return settings(folder)

    monkeypatch.setattr(backups, "_settings", first)


def test_a_segment_that_was_copied_and_is_sealed_then_is_linked(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.start()
    fill(disk, 1, 10)
    disk.wait()
    written = disk.segments()[-1]

    def go_on() -> None:
        fill(disk, 11, 20)
        disk.wait()

    at_the_end_of_a_pass(monkeypatch, go_on)
    taken = back_up(disk.folder, tmp_path / "backup")
    assert taken.position == disk.journal.durable
    assert written.samefile(tmp_path / "backup" / written.name)
    disk.journal.close()
    assert len(opened(tmp_path / "backup")) == 60


def test_a_segment_that_was_copied_and_is_stripped_then_is_there_as_its_ledger(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.start()
    made = fill(disk, 1, 10)
    disk.wait()
    written = disk.segments()[-1]

    def strip() -> None:
        later = fill(disk, 11, 10)
        settle(disk, [*made, *later[:4]])
        checkpoint(disk, later[4:])
        disk.clean()
        assert not written.exists()

    at_the_end_of_a_pass(monkeypatch, strip)
    back_up(disk.folder, tmp_path / "backup")
    disk.journal.close()
    assert not (tmp_path / "backup" / written.name).exists()
    assert (tmp_path / "backup" / written.name).with_suffix(".ledger").exists()
    assert opened(tmp_path / "backup") == opened(disk.folder)


def test_a_folder_that_never_stands_still_is_given_up(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.start()
    fill(disk, 1, 10)
    disk.wait()
    monkeypatch.setattr(backups, "PASSES", 3)
    listed = backups._listed
    passes = []

    def other(folder: Path) -> dict[str, int]:
        passes.append(folder)
        return {**listed(folder), "0000000099-00000000.segment": len(passes)}

    monkeypatch.setattr(backups, "_listed", other)
    with pytest.raises(OSError, match="3 passes"):
        back_up(disk.folder, tmp_path / "backup")
    disk.journal.close()
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_blocks_behind_one_that_was_not_yet_written_are_left_out(
    disk: Disk, tmp_path: Path
) -> None:
    """A copy reads the beginning before and the end after they were written: a block is missing
    that a later one says is on disk, which a start would call corrupt."""
    disk.start(segment_bytes=1 << 20)
    ends = []
    for number in range(1, 5):
        disk.journal.commit(entering(number), TIME)
        disk.wait()
        ends.append(disk.journal.end & 0xFFFFFFFF)
    disk.journal.close(clean=False)
    (segment,) = disk.segments()
    with open(segment, "r+b") as file:
        file.seek(ends[1])
        file.write(bytes(ends[2] - ends[1]))
    assert header_at(segment.read_bytes(), ends[2]) is not None
    taken = back_up(disk.folder, tmp_path / "backup")
    assert taken.position & 0xFFFFFFFF == ends[1]
    assert verify(tmp_path / "backup").is_sound
    assert len(opened(tmp_path / "backup")) == 4


def test_blocks_behind_one_that_is_damaged_are_in_it(disk: Disk, tmp_path: Path) -> None:
    """The anchor says that the block was on disk: a start names what is lost, and has the rest."""
    disk.start(segment_bytes=1 << 20)
    ends = []
    for number in range(1, 5):
        disk.journal.commit(entering(number), TIME)
        disk.wait()
        ends.append(disk.journal.end & 0xFFFFFFFF)
    disk.journal.write_anchor([], [], TIME)
    disk.finish_cleaning()
    disk.journal.close(clean=False)
    (segment,) = disk.segments()
    with open(segment, "r+b") as file:
        file.seek(ends[1])
        file.write(b"damage")
    taken = back_up(disk.folder, tmp_path / "backup")
    assert taken.position & 0xFFFFFFFF == ends[-1]
    with pytest.raises(JournalCorrupt, match=f"bytes {ends[1]} to {ends[2]} are lost"):
        opened(tmp_path / "backup")
    again = Disk(tmp_path / "backup")
    found = again.open(accept_loss=True)
    again.journal.close()
    assert [record.first for record in found if record.kind == ENTERED] == [1, 2, 4]


def test_quarantine_and_settings_are_in_it_and_the_lock_is_not(disk: Disk, tmp_path: Path) -> None:
    disk.start()
    fill(disk, 1, 1)
    disk.wait()
    (disk.folder / "users.json").write_text("{}")
    (disk.folder / "quarantine").mkdir()
    (disk.folder / "quarantine" / "0000000001-00000000.segment").write_bytes(b"found corrupt")
    (disk.folder / "quarantine" / "looked-at").mkdir()
    taken = back_up(disk.folder, tmp_path / "backup")
    disk.journal.close()
    assert {"users.json", "quarantine/0000000001-00000000.segment"} < taken.files.keys()
    assert "lock" not in taken.files
    assert not any(name.startswith("spare-") for name in taken.files)
    restore(tmp_path / "backup", tmp_path / "restored")
    kept = tmp_path / "restored" / "quarantine" / "0000000001-00000000.segment"
    assert kept.read_bytes() == b"found corrupt"
    for path in (tmp_path / "restored").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
    assert not (tmp_path / "restored" / MANIFEST).exists()


def test_targets_that_hold_something_are_refused(disk: Disk, tmp_path: Path) -> None:
    disk.start()
    fill(disk, 1, 1)
    disk.wait()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    (tmp_path / "empty").mkdir()
    back_up(disk.folder, tmp_path / "empty")
    for refused in (lambda: back_up(disk.folder, tmp_path / "full"),
                    lambda: restore(tmp_path / "empty", tmp_path / "full")):  # fmt: skip
        with pytest.raises(FileExistsError, match="empty folder"):
            refused()
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine"]
    disk.journal.close()


@pytest.mark.parametrize("is_there", [True, False])
def test_a_target_may_be_a_link_to_a_folder(disk: Disk, tmp_path: Path, is_there: bool) -> None:
    """As where the data folder is on another disk."""
    disk.start()
    fill(disk, 1, 1)
    disk.wait()
    disk.journal.close()
    links = []
    for name in ("taken", "restored"):
        place = tmp_path / "disk" / name
        place.parent.mkdir(exist_ok=True)
        if is_there:
            place.mkdir()
        links.append(tmp_path / name)
        links[-1].symlink_to(place)
    back_up(disk.folder, links[0])
    restore(*links)
    assert links[1].is_symlink()
    assert opened(tmp_path / "disk" / "restored")
    assert list((tmp_path / "disk").glob(".*")) == []


def test_folders_that_are_no_journal_or_no_whole_backup_are_named(
    disk: Disk, tmp_path: Path
) -> None:
    with pytest.raises(FileNotFoundError):
        back_up(tmp_path / "nowhere", tmp_path / "backup")
    (tmp_path / "other").mkdir()
    with pytest.raises(FileNotFoundError, match="no journal"):
        back_up(tmp_path / "other", tmp_path / "backup")
    with pytest.raises(NotABackup, match=r"there is no backup\.json"):
        restore(tmp_path / "other", tmp_path / "restored")
    disk.start()
    fill(disk, 1, 10)
    disk.wait()
    back_up(disk.folder, tmp_path / "backup")
    disk.journal.close()
    first = disk.segments()[0].name
    (tmp_path / "backup" / first).rename(tmp_path / first)
    with pytest.raises(NotABackup, match=f"{first} is missing"):
        restore(tmp_path / "backup", tmp_path / "restored")
    (tmp_path / "backup" / first).write_bytes(b"short")
    with pytest.raises(NotABackup, match=f"{first} has 5 bytes, expected"):
        restore(tmp_path / "backup", tmp_path / "restored")
    manifest = tmp_path / "backup" / MANIFEST
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "tallymark_backup": 9}))
    with pytest.raises(NotABackup, match="format 9, expected 1"):
        restore(tmp_path / "backup", tmp_path / "restored")
    manifest.write_text("{")
    with pytest.raises(NotABackup, match="cannot be read"):
        restore(tmp_path / "backup", tmp_path / "restored")
    assert not (tmp_path / "restored").exists()


@pytest.mark.parametrize(
    "name",
    ["../users.json", "/{folder}/users.json", "a/b", "quarantine/../../x", "quarantine/", ".."],
)
def test_a_backup_that_names_files_of_other_folders_is_refused(
    name: str, disk: Disk, tmp_path: Path
) -> None:
    """Whoever can change a backup would write where they may not, by the hand that restores it."""
    disk.start()
    disk.journal.close()
    backup, named = tmp_path / "backup", name.replace("{folder}", str(tmp_path).lstrip("/"))
    back_up(disk.folder, backup)
    place = backup / named
    place.parent.mkdir(parents=True, exist_ok=True)
    if not place.is_dir():
        place.write_bytes(b"[]")
    manifest = json.loads((backup / MANIFEST).read_text())
    manifest["files"][named] = place.stat().st_size
    (backup / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(NotABackup, match=f"names {named!r}, expected files of a data folder"):
        restore(backup, tmp_path / "restored")
    assert not (tmp_path / "restored").exists()


@pytest.mark.parametrize(
    "changed",
    [
        {"files": None},
        {"files": {"a": "b"}},
        {"files": ["a"]},
        {"position": None},
        {"position": {}},
    ],
)
def test_a_manifest_that_says_something_else_is_refused(
    changed: dict[str, object], disk: Disk, tmp_path: Path
) -> None:
    disk.start()
    disk.journal.close()
    back_up(disk.folder, tmp_path / "backup")
    manifest = tmp_path / "backup" / MANIFEST
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), **changed}))
    with pytest.raises(NotABackup, match=f"{MANIFEST} cannot be read"):
        restore(tmp_path / "backup", tmp_path / "restored")


def test_a_file_that_cannot_be_read_is_named(disk: Disk, tmp_path: Path) -> None:
    """The system names no file in what it says of a read, a write or a sync."""
    disk.start()
    disk.journal.close()
    taken = tmp_path / "taken"
    back_up(disk.folder, taken)
    said = json.loads((taken / MANIFEST).read_text())
    said["files"]["unreadable"] = 0
    (taken / MANIFEST).write_text(json.dumps(said))
    (taken / "unreadable").symlink_to("/proc/self/mem")
    with pytest.raises(OSError, match="Input/output error") as refused:
        restore(taken, tmp_path / "restored")
    assert refused.value.filename == str(taken / "unreadable")
    assert not (tmp_path / "restored").exists()


def test_a_target_may_be_where_an_empty_file_system_is_mounted(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a folder cannot be replaced: a container's volume."""
    disk.start()
    fill(disk, 1, 10)
    disk.wait()
    disk.journal.close()
    (disk.folder / "quarantine").mkdir()
    (disk.folder / "quarantine" / "0000000001-00000000.segment").write_bytes(b"found corrupt")
    mounted = [tmp_path / "backup", tmp_path / "restored"]
    rename = os.rename
    moved: list[str] = []

    def refuse(source: Path, target: Path) -> None:
        if target in mounted:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(source))
        moved.append(target.name)
        rename(source, target)

    for target in mounted:
        target.mkdir()
    monkeypatch.setattr(os, "rename", refuse)
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) in mounted)
    taken = back_up(disk.folder, mounted[0])
    assert moved[-1] == MANIFEST, "what is not whole is no backup"
    assert restore(*mounted).files == taken.files
    there = {str(p.relative_to(mounted[1])) for p in mounted[1].rglob("*") if p.is_file()}
    assert there == set(taken.files)
    monkeypatch.undo()
    assert len(opened(mounted[1])) == 20
