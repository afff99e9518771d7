"""The journal's files, read in place by programs that may: option `readSegments`.

The broker says where messages lie (`places`, for administrators only) and its plan keeps them there
while a batch is read; no byte of them goes through a socket. The files must be seen under the same
path as by the broker: the same machine, or a folder that both have.
"""

from __future__ import annotations

import json
import mmap
from collections import OrderedDict
from typing import Final

import pyarrow as pa

MOST_OPEN: Final = 8
"""Files of one task at a time: their pages are the page cache's, so they cost addresses only."""


class Segments:
    """Segment files, mapped into memory one by one as they are needed."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, pa.Buffer] = OrderedDict()
        self._paths: dict[int, str] = {}

    def of_answer(self, header: str) -> Segments:
        """Itself, knowing the paths that an answer's header names."""
        self._paths = {int(number): str(path) for number, path in json.loads(header).items()}
        return self

    def segment(self, number: int) -> pa.Buffer:
        """Return all bytes of a segment. Raises LookupError, naming it, where it cannot be read."""
        path = self._paths.get(number)
        if path is None:
            raise LookupError(f"the broker named no file for segment {number}")
        found = self._open.get(path)
        if found is None:
            try:
                with open(path, "rb") as file:
                    found = pa.py_buffer(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
            except OSError as error:
                raise LookupError(
                    f"option readSegments: {path} cannot be read here ({error.strerror}); "
                    "executors need the broker's data folder under the same path"
                ) from error
            self._open[path] = found
            if len(self._open) > MOST_OPEN:
                self._open.popitem(last=False)
        else:
            self._open.move_to_end(path)
        return found
