"""SCRAM-SHA-256 on the server's side [RFC 5802, RFC 7677]: the password is never sent, and the
stored keys do not suffice to log in.

    client-first   n,,n=USER,r=NONCE
    server-first   r=NONCE+OURS,s=SALT,i=ITERATIONS
    client-final   c=biws,r=NONCE+OURS,p=PROOF
    server-final   v=SIGNATURE

Keys of its own stand beside a user's scrypt hash: they follow from the password, which is known
only when it is set. Channel binding is not offered. Whoever reads the keys can try passwords at the
price of PBKDF2, not of scrypt.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import stringprep
import unicodedata
from typing import Final

import msgspec

SCRAM: Final = "SCRAM-SHA-256"
ITERATIONS: Final = 100_000
"""PBKDF2's, for keys made from now on. Stored with them; the client has to do as many."""
SALT: Final = 16
NONCE_MAX: Final = 512
NAME_MAX: Final = 1024
_PROHIBITED: Final = (
    stringprep.in_table_c12, stringprep.in_table_c21_c22, stringprep.in_table_c3,
    stringprep.in_table_c4, stringprep.in_table_c5, stringprep.in_table_c6, stringprep.in_table_c7,
    stringprep.in_table_c8, stringprep.in_table_c9,
)  # fmt: skip


class ScramError(Exception):
    """The client's message is not SCRAM, or not of the mechanism that was offered."""


class ScramKeys(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Keys stored of a password: H(ClientKey) and ServerKey."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes


def make_keys(password: str, salt: bytes, iterations: int = ITERATIONS) -> ScramKeys:
    """Takes tens of milliseconds; call it off the loop."""
    salted = hashlib.pbkdf2_hmac("sha256", saslprep(password).encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    return ScramKeys(salt, iterations, hashlib.sha256(client_key).digest(), server_key)


def saslprep(text: str) -> str:
    """One form for texts that look the same [RFC 4013]. What may not be in a password is left as it
    is: such a password still has to match."""
    mapped = "".join(
        " " if stringprep.in_table_c12(letter) else letter
        for letter in text
        if not stringprep.in_table_b1(letter)
    )
    normal = unicodedata.normalize("NFKC", mapped)
    if any(prohibits(letter) for letter in normal for prohibits in _PROHIBITED):
        return text
    return normal


class ScramServer:
    """One log-in: `first`, who it is about (`name`), then `final`."""

    def __init__(self, nonce: str) -> None:
        """nonce: random, printable and without commas."""
        self._ours = nonce
        self._nonce = ""
        self._gs2 = ""
        self._said = ""
        self.name = ""

    def first(self, response: bytes) -> None:
        """Read client-first. Raises ScramError."""
        text = _decoded(response)
        parts = text.split(",", 2)
        if len(parts) != 3 or parts[0] not in ("n", "y"):
            raise ScramError("expected 'n,,' in front: channel binding is not offered")
        fields = parts[2].split(",")
        if len(fields) < 2 or fields[0][:2] != "n=" or fields[1][:2] != "r=":
            raise ScramError("expected n=USER,r=NONCE")
        name = _unescaped(fields[0][2:])
        if parts[1] not in ("", f"a={fields[0][2:]}"):
            raise ScramError("expected no other identity than the user's own")
        self._gs2 = f"{parts[0]},{parts[1]},"
        self._nonce = fields[1][2:]
        if not 0 < len(self._nonce) <= NONCE_MAX or not 0 < len(name) <= NAME_MAX:
            raise ScramError("expected a nonce and a name")
        self.name = name
        self._said = parts[2]

    def challenge(self, keys: ScramKeys) -> bytes:
        """Server-first."""
        self._nonce += self._ours
        salt = base64.b64encode(keys.salt).decode()
        text = f"r={self._nonce},s={salt},i={keys.iterations}"
        self._said += f",{text}"
        return text.encode()

    def final(self, response: bytes, keys: ScramKeys) -> bytes | None:
        """Read client-final. Server-final, or None: the proof is wrong. Raises ScramError."""
        bare, comma, proof = _decoded(response).rpartition(",p=")
        binding = base64.b64encode(self._gs2.encode()).decode()
        if not comma or bare.split(",")[:2] != [f"c={binding}", f"r={self._nonce}"]:
            raise ScramError("expected c=, r= and p= that match the earlier messages")
        try:
            given = base64.b64decode(proof, validate=True)
        except (binascii.Error, ValueError):
            raise ScramError("p= is no base64") from None
        message = f"{self._said},{bare}".encode()
        signature = hmac.digest(keys.stored_key, message, "sha256")
        if len(given) != len(signature):
            raise ScramError(f"a proof of {len(given)} bytes, expected {len(signature)}")
        client_key = bytes(a ^ b for a, b in zip(given, signature, strict=True))
        if not hmac.compare_digest(hashlib.sha256(client_key).digest(), keys.stored_key):
            return None
        return b"v=" + base64.b64encode(hmac.digest(keys.server_key, message, "sha256"))


def _decoded(response: bytes) -> str:
    try:
        return response.decode()
    except UnicodeDecodeError:
        raise ScramError("not UTF-8") from None


def _unescaped(name: str) -> str:
    """Return a name of client-first without its escapes. Raises ScramError."""
    rest = name.replace("=2C", "").replace("=3D", "")
    if "=" in rest:
        raise ScramError("a name with '=', expected =3D")
    return name.replace("=2C", ",").replace("=3D", "=")
