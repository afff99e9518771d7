"""A search in a process of its own: `python -m tallymark.journeys`, as the broker starts it.

Standard input has the folder and the fields of `Sought` as a JSON object, standard output gets the
answer as another: what `as_json` gives, or `error`, a text. It yields the processor to the broker.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from tallymark.journeys.search import Sought, TooMany, as_json, search

YIELDS: Final = 10
"""Niceness that is added to the broker's own."""


def main() -> None:
    with suppress(PermissionError):  # where the system forbids even this
        os.nice(YIELDS)
    wanted = json.load(sys.stdin)
    folder = Path(wanted.pop("folder"))
    wanted["places"] = tuple(wanted["places"])
    try:
        said = as_json(search(folder, Sought(**wanted)))
    except (TooMany, FileNotFoundError) as error:
        said = {"error": str(error)}
    json.dump(said, sys.stdout)


if __name__ == "__main__":
    main()
