"""An issuer of OAuth 2 tokens on 127.0.0.1: key sets, discovery, tokens that are good or not.

with Issuer() as issuer:
    flags = issuer.flags()                       # for a broker that trusts it
    token = issuer.token("read:%2F/orders")
    issuer.rotate()                              # tokens are signed with another key from now on
"""

from __future__ import annotations

import base64
import json
import time
from functools import cache
from typing import Any

from joserfc import jwt
from joserfc.jwk import ECKey, Key, OctKey, OKPKey, RSAKey

from tests.support.http_server import HttpServer

RESOURCE = "tallymark"
EVERYTHING = ("configure:*/*", "write:*/*", "read:*/*")
SECRET = base64.urlsafe_b64encode(b"k" * 32).rstrip(b"=").decode()


@cache
def rsa_key(name: str) -> RSAKey:
    return RSAKey.generate_key(2048, {"kid": name})


@cache
def other_key(algorithm: str) -> Key:
    match algorithm:
        case "ES256":
            return ECKey.generate_key("P-256", {"kid": "curve"})
        case "HS256":
            return OctKey.import_key({"kty": "oct", "k": SECRET, "kid": "shared"})
        case _:
            return OKPKey.generate_key("Ed25519", {"kid": "edwards"})


def encode(part: object) -> str:
    raw = part if isinstance(part, bytes) else json.dumps(part).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def claims(*scopes: str, expires_s: float = 3600, **changed: Any) -> dict[str, Any]:
    """What a token says; None takes a claim away."""
    said: dict[str, Any] = {
        "sub": "ann", "aud": RESOURCE, "exp": int(time.time() + expires_s),
        "scope": " ".join(f"{RESOURCE}.{scope}" for scope in scopes),
        **changed,
    }  # fmt: skip
    return {name: value for name, value in said.items() if value is not None}


def signed(
    said: dict[str, Any], key: Key, algorithm: str = "RS256", header: dict[str, Any] | None = None
) -> str:
    known = {"kid": key.kid} if key.kid else {}
    return jwt.encode({"alg": algorithm, **known, **(header or {})}, said, key, [algorithm])


class Issuer(HttpServer):
    """Serves its key set at /keys and discovery."""

    def __init__(self) -> None:
        self._number = 1
        self.key = rsa_key("key-1")
        """The one that tokens are signed with."""
        self.extra: list[dict[str, Any]] = []
        """More entries of the key set."""
        self.is_away = False
        """Whether it answers 503."""
        self.body: bytes | None = None
        """Answered in place of the key set."""
        self.asked: list[str] = []
        super().__init__()
        self.url = f"http://{self.address}"

    def respond(self, path: str) -> tuple[int, dict[str, str], bytes]:
        self.asked.append(path)
        status, body = self.answer(path)
        return status, {"Location": "/keys"} if status == 302 else {}, body

    def answer(self, path: str) -> tuple[int, bytes]:
        if self.is_away:
            return 503, b""
        if path == "/moved":
            return 302, b""
        if path == "/.well-known/openid-configuration":
            said = {"issuer": self.url, "jwks_uri": f"{self.url}/keys"}
            return 200, json.dumps(said).encode()
        return 200, self.key_set() if self.body is None else self.body

    def key_set(self) -> bytes:
        return json.dumps({"keys": [self.key.as_dict(private=False), *self.extra]}).encode()

    def rotate(self) -> None:
        """The earlier key is gone from the set."""
        self._number += 1
        self.key = rsa_key(f"key-{self._number}")

    def token(self, *scopes: str, expires_s: float = 3600, **changed: Any) -> str:
        said = claims(*scopes, expires_s=expires_s, **{"iss": self.url, **changed})
        return signed(said, self.key)

    def flags(self) -> dict[str, str]:
        return {
            "auth_oauth2_resource_server_id": RESOURCE,
            "auth_oauth2_issuer": self.url,
        }
