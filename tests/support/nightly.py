"""What is too long for every run: see `make nightly`."""

from __future__ import annotations

import os

import pytest

NIGHTLY = os.environ.get("TALLYMARK_NIGHTLY", "") not in ("", "0")
nightly = pytest.mark.skipif(not NIGHTLY, reason="a minute and more: TALLYMARK_NIGHTLY=1 runs it")
