"""Feature flags: which of the stored forms that newer versions read are written [DL-19, DL-20].

Every version of this broker reads every form; a flag is enabled when no older version will be
started on the folder again. So flags go one way: what was written in a newer form stays so.

They are kept in the data folder's features.json, `{"enabled": [names]}`, replaced atomically. A new
folder has all of them on. A folder with a journal and without the file was written by a version
that had no flags: there they are off until somebody enables them. A copy of a journal that is in a
database may be without the file as well, since it gets there only after the first blocks: every
version that can have such a journal has flags, so that they are on.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from tallymark.engine.errors import NotFound, PreconditionFailed
from tallymark.journal.files import Files
from tallymark.stored.layout import FORMAT, WHOLE
from tallymark.stored.segment import parsed_checkpoint, parsed_name

FILE: Final = "features.json"
REMEDY: Final = (
    "Mend the file, or put back that of a backup; without it all flags are off, until they are "
    "enabled again"
)
"""Remedy for a damaged file of a folder with a journal."""


class FeaturesError(Exception):
    """The file cannot be read as feature flags; the text says why."""


@dataclass(frozen=True, slots=True)
class Flag:
    """One feature flag. needs: the flag that must be on before, "" for none."""

    name: str
    help: str
    needs: str = ""


FLAGS: Final = {
    flag.name: flag
    for flag in (
        Flag(
            "message_containers",
            "A message's dead-letter history is stored beside the message, with times in "
            "milliseconds and the last death (form 2).",
        ),
        Flag(
            "message_containers_deaths_v2",
            "A dead-letter history is stored as a list, newest death first (form 3).",
            "message_containers",
        ),
        Flag(
            "payload_checksums",
            "Each body in the journal has a checksum of its own, beside that of its block's "
            "columns (block format 2).",
        ),
    )
}
"""Feature flags by name."""


class _Stored(msgspec.Struct, forbid_unknown_fields=True):
    enabled: list[str]


class Features:
    """The flags of one data folder."""

    def __init__(self, folder: Path, enabled: frozenset[str]) -> None:
        self._folder = folder
        self.enabled = enabled
        """Names."""

    @staticmethod
    def open(folder: Path, is_copy: bool = False) -> Features:
        """The flags as the folder has them; in a new folder all on, and the file written. Call it
        before the folder gets its journal. is_copy: of a journal that is in a database.

        Raises: FeaturesError, OSError.
        """
        try:
            return Features(folder, _enabled_in(folder))
        except FileNotFoundError:
            if not is_copy and _has_journal(folder):
                return Features(folder, frozenset())
            features = Features(folder, frozenset(FLAGS))
            features._save(features.enabled)
            return features

    @property
    def death_form(self) -> int:
        """The form in which a message's first death is stored: 1, 2 or 3 [DL-19]."""
        if "message_containers_deaths_v2" in self.enabled:
            return 3
        return 2 if "message_containers" in self.enabled else 1

    @property
    def block_version(self) -> int:
        """The format version of the journal's blocks."""
        return FORMAT if "payload_checksums" in self.enabled else WHOLE

    def enable(self, name: str) -> bool:
        """Switch a flag on for good; it is on disk when this returns. False: it was on. May block.

        Raises: NotFound (no such flag), PreconditionFailed (another one must be on first), OSError
        (nothing has changed).
        """
        flag = FLAGS.get(name)
        if flag is None:
            raise NotFound(f"no feature flag '{name}', expected one of " + ", ".join(FLAGS))
        if name in self.enabled:
            return False
        if flag.needs and flag.needs not in self.enabled:
            raise PreconditionFailed(
                f"feature flag '{name}' needs '{flag.needs}', which is not enabled"
            )
        enabled = self.enabled | {name}
        self._save(enabled)
        self.enabled = enabled
        return True

    def _save(self, enabled: frozenset[str]) -> None:
        stored = _Stored([name for name in FLAGS if name in enabled])
        data = msgspec.json.format(msgspec.json.encode(stored), indent=1) + b"\n"
        Files().replace(self._folder, FILE, [[data]])


def check_features(folder: Path) -> None:
    """Look whether the file, where there is one, can be read. Raises FeaturesError."""
    with suppress(FileNotFoundError):
        _enabled_in(folder)


def _enabled_in(folder: Path) -> frozenset[str]:
    """Return the names of the flags in the file. Raises FeaturesError, FileNotFoundError."""
    try:
        stored = msgspec.json.decode((folder / FILE).read_bytes(), type=_Stored)
    except FileNotFoundError:
        raise
    except (OSError, msgspec.MsgspecError) as error:
        raise FeaturesError(f"{folder / FILE}: {error}. {REMEDY}") from error
    return _checked(folder, stored.enabled)


def _has_journal(folder: Path) -> bool:
    return any(
        parsed_name(file.name) is not None or parsed_checkpoint(file.name) is not None
        for file in folder.iterdir()
    )


def _checked(folder: Path, names: list[str]) -> frozenset[str]:
    for name in names:
        if name not in FLAGS:
            raise FeaturesError(
                f"{folder / FILE}: unknown feature flag '{name}', expected of "
                f"{', '.join(FLAGS)}: enabled by a newer version?"
            )
        needs = FLAGS[name].needs
        if needs and needs not in names:
            raise FeaturesError(f"{folder / FILE}: '{name}' is enabled and '{needs}' is not")
    return frozenset(names)
