"""Environment variables of whoever asks a broker over HTTP: TLS files, and the user.

The command line sets them from its options, and Spark's workers inherit them.
"""

from __future__ import annotations

from typing import Final

CA_FILE: Final = "TALLYMARK_CA_FILE"
CERT_FILE: Final = "TALLYMARK_CERT_FILE"
KEY_FILE: Final = "TALLYMARK_KEY_FILE"
USER: Final = "TALLYMARK_USER"
"""`NAME:PASSWORD`."""
