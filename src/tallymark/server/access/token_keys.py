"""Key sets that tokens are checked with [RFC 7517]: a file's, or an issuer's over HTTP.

A file is read again when it changed. An issuer's set is fetched at the start, every
`auth_oauth2_jwks_refresh`, and when a token names a key that is not known: then at most once in
FETCH_GAP_MS, whoever asks, so that strangers cannot have the broker knock at the issuer's door.
While the issuer is away, or a file is no key set, the keys that were there last go on. A set
without a key that can be used withdraws them all, but a broker does not begin with one.

Symmetric keys (HS256) come from a file only: whoever can read one can make tokens.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from tallymark.server.access.user import TokenRefused, UsersError
from tallymark.server.clock import now_ms
from tallymark.server.config.kinds import is_loopback
from tallymark.server.config.settings import Config
from tallymark.server.loading import NotLoaded, loading
from tallymark.server.logs import log_of

if TYPE_CHECKING:
    from joserfc.jwk import Key as LibraryKey

FETCH_GAP_MS: Final = 5000
"""Between two fetches."""
FETCH_S: Final = 5.0
"""Longest time of one."""
LARGEST: Final = 256 * 1024
"""Bytes of a key set."""
MOST_KEYS: Final = 64
LEAST_RSA_BITS: Final = 2048
LEAST_SECRET_BYTES: Final = 32
DISCOVERY: Final = "/.well-known/openid-configuration"
KINDS: Final = {
    "RS": ("RSA", ""), "PS": ("RSA", ""), "HS": ("oct", ""), "Ed": ("OKP", "Ed25519"),
    "ES256": ("EC", "P-256"), "ES384": ("EC", "P-384"), "ES512": ("EC", "P-521"),
}  # fmt: skip
"""Type and curve of the key that goes with an algorithm, by how its name begins."""
LONGEST_HEADER: Final = 8192
"""Letters of a token's header: some issuers put certificates there."""
AT_ONCE_S: Final = 0.01
CODE: Final = "tokens of OAuth 2"
NO_KEYS: Final = "a key set without a key that can be used"

log = log_of("users")


class KeysUnavailable(UsersError):
    """There is no key set; the text says why."""


class VerifyingKey:
    """One public key, or one secret."""

    __slots__ = ("_key", "algorithm", "curve", "kind", "name")

    def __init__(self, data: dict[str, Any], key: LibraryKey) -> None:
        self.name = data.get("kid")
        self.kind = data["kty"]
        self.curve = data.get("crv", "")
        self.algorithm = data.get("alg")
        """The only one that it is for; None: any that fits."""
        self._key = key

    def fits(self, algorithm: str) -> bool:
        kind, curve = KINDS.get(algorithm) or KINDS[algorithm[:2]]
        return (
            self.kind == kind and curve in ("", self.curve) and self.algorithm in (None, algorithm)
        )

    def verify(self, token: str, algorithm: str) -> dict[str, Any]:
        """Return the claims. Raises TokenRefused, NotLoaded."""
        with loading(CODE, "users"):
            from joserfc import jwt
            from joserfc.errors import JoseError
            from joserfc.jws import JWSRegistry
        try:
            registry = JWSRegistry(algorithms=[algorithm], strict_check_header=False)
            registry.max_header_length = LONGEST_HEADER
            return jwt.decode(token, self._key, registry=registry).claims
        except (JoseError, ValueError, RecursionError) as error:
            raise TokenRefused(f"signature: {type(error).__name__}") from None


class Keys:
    """A key set that can become another one."""

    def __init__(self) -> None:
        self._keys: list[VerifyingKey] = []
        self.generation = 0
        """Counts the sets there were: what was found good by an earlier one is checked again."""

    def find(self, name: str | None, algorithm: str) -> VerifyingKey | None:
        """The key of this name (`kid`), or the only one where a token names none, if it goes with
        the algorithm."""
        fitting = [key for key in self._keys if key.fits(algorithm)]
        if name is not None:
            fitting = [key for key in fitting if key.name == name]
        return fitting[0] if len(fitting) == 1 else None

    def look(self) -> None:
        """Take on what changed, where that can be seen without waiting."""

    async def renew(self) -> None:
        """A key is missing: ask for the set again, if that may be done. Raises KeysUnavailable:
        there never was a set."""

    def take(self, found: list[VerifyingKey]) -> None:
        self._keys = found
        self.generation += 1
        tell = log.info if found else log.error
        tell("oauth.keys", keys=[str(key.name) for key in found])

    def __len__(self) -> int:
        return len(self._keys)


class KeyFile(Keys):
    """A key set of the operator's."""

    def __init__(self, path: Path) -> None:
        """Raises KeysUnavailable."""
        super().__init__()
        self._path = path
        self._stamp = self._stamp_now()
        found = self._read()
        if not found:
            raise KeysUnavailable(f"auth_oauth2_jwks_file {path}: {NO_KEYS}")
        self.take(found)

    def look(self) -> None:
        stamp = self._stamp_now()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self.take(self._read())
        except KeysUnavailable as error:
            log.error("oauth.keys_unreadable", error=str(error))

    def _stamp_now(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _read(self) -> list[VerifyingKey]:
        try:
            with self._path.open("rb") as file:
                return parse_keys(file.read(LARGEST + 1), has_secrets=True)
        except (OSError, KeysUnavailable, NotLoaded) as error:
            raise KeysUnavailable(f"auth_oauth2_jwks_file {self._path}: {error}") from None


class FetchedKeys(Keys):
    """An issuer's key set."""

    def __init__(
        self,
        url: str,
        issuer: str,
        tls: ssl.SSLContext | None,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        """url: the set's; empty: what the issuer's discovery document says. clock: monotonic
        milliseconds."""
        super().__init__()
        self._url = url
        self._issuer = issuer
        self._tls = tls
        self._clock = clock
        self._not_before = 0
        self._fetching: asyncio.Task[None] | None = None
        self._problem = "not fetched yet"
        self.fetches = 0

    async def renew(self) -> None:
        if self._fetching is None and self._clock() >= self._not_before:
            self._not_before = self._clock() + FETCH_GAP_MS
            self._fetching = asyncio.create_task(self._fetch())
        if self._fetching is not None:
            await asyncio.shield(self._fetching)  # others wait for it as well
        if not self.generation:
            raise KeysUnavailable(self._problem)

    async def _fetch(self) -> None:
        self.fetches += 1
        try:
            url = self._url or await self._discovered()
            found = parse_keys(await self._get(url), has_secrets=False)
            if not found and not self.generation:
                raise KeysUnavailable(NO_KEYS)
            self.take(found)
            self._problem = ""
        except (KeysUnavailable, NotLoaded) as error:
            self._problem = str(error)
            log.error("oauth.keys_unavailable", error=str(error), known=len(self))
        finally:
            self._fetching = None

    async def _discovered(self) -> str:
        """Return the URL of the keys that the issuer names [OpenID Connect Discovery §4]."""
        document = _json(await self._get(self._issuer.rstrip("/") + DISCOVERY))
        if document.get("issuer") != self._issuer:
            raise KeysUnavailable(
                f"the issuer calls itself {document.get('issuer')!r}, expected {self._issuer!r}"
            )
        url = document.get("jwks_uri")
        if not isinstance(url, str):
            raise KeysUnavailable(f"jwks_uri is {url!r}, expected a URL")
        check_url("jwks_uri", url)
        return url

    async def _get(self, url: str) -> bytes:
        with loading(CODE, "users"):
            from aiohttp import ClientError, ClientSession, ClientTimeout
        try:
            async with (
                ClientSession(timeout=ClientTimeout(total=FETCH_S)) as session,
                session.get(url, allow_redirects=False, ssl=self._tls or True) as response,
            ):
                body = await response.content.read(LARGEST + 1)
                while len(body) <= LARGEST and (more := await response.content.readany()):
                    body += more
                status = response.status
        except TimeoutError:
            raise KeysUnavailable(f"{url}: no answer within {FETCH_S:g} s") from None
        except (ClientError, OSError, ValueError) as error:
            raise KeysUnavailable(f"{url}: {type(error).__name__}: {error}") from None
        if status != 200:
            raise KeysUnavailable(f"{url}: status {status}, expected 200")
        return body


class KeyRefresh:
    """A housekeeping task: fetches an issuer's key set at the start and from time to time, so that
    a key that the issuer has withdrawn is withdrawn here."""

    def __init__(self, keys: Keys, period_ms: int) -> None:
        self._keys = keys
        self._period_s = period_ms / 1000
        self._has_begun = False

    def period_s(self) -> float:
        return self._period_s if self._has_begun else AT_ONCE_S

    async def run(self) -> None:
        self._has_begun = True
        try:
            await self._keys.renew()
        except KeysUnavailable:
            return  # told where it was found


def parse_keys(data: bytes, has_secrets: bool) -> list[VerifyingKey]:
    """Return the usable keys of a set; others are named in the log and left out.

    Raises KeysUnavailable: it is no key set. Raises NotLoaded.
    """
    with loading(CODE, "users"):
        from joserfc.errors import SecurityWarning
    # It warns of short keys, which are left out here, and of the name EdDSA, which issuers say.
    warnings.simplefilter("ignore", SecurityWarning)
    if len(data) > LARGEST:
        raise KeysUnavailable(f"a key set of more than {LARGEST} bytes")
    entries = _json(data).get("keys")
    if not isinstance(entries, list) or len(entries) > MOST_KEYS:
        raise KeysUnavailable(f"keys is {type(entries).__name__}, expected at most {MOST_KEYS}")
    found: list[VerifyingKey] = []
    for entry in entries:
        try:
            found.append(_parsed(entry, has_secrets))
        except KeysUnavailable as error:
            name = entry.get("kid") if isinstance(entry, dict) else None
            log.warning("oauth.key_left_out", kid=str(name)[:100], reason=str(error))
    return found


def _parsed(entry: object, has_secrets: bool) -> VerifyingKey:
    """Raises KeysUnavailable, NotLoaded."""
    with loading(CODE, "users"):
        from joserfc.errors import JoseError
        from joserfc.jwk import import_key
    if not isinstance(entry, dict):
        raise KeysUnavailable("no JSON object")
    kind = entry.get("kty")
    if not isinstance(kind, str) or kind not in {known for known, _ in KINDS.values()}:
        raise KeysUnavailable(f"kty is {kind!r:.100}, expected RSA, EC, OKP or oct")
    if kind == "oct" and not has_secrets:
        raise KeysUnavailable("a symmetric key, expected it in auth_oauth2_jwks_file only")
    if entry.get("use", "sig") != "sig":
        raise KeysUnavailable(f"use is {entry['use']!r:.100}, expected sig")
    uses = entry.get("key_ops", ["verify"])
    if not isinstance(uses, list) or "verify" not in uses:
        raise KeysUnavailable("key_ops is without verify")
    try:
        key = import_key(entry)
        size = key.raw_value
    except (JoseError, ValueError, TypeError, KeyError) as error:
        raise KeysUnavailable(f"{type(error).__name__}") from None
    if isinstance(size, bytes):
        if len(size) < LEAST_SECRET_BYTES:
            raise KeysUnavailable(f"{len(size)} bytes, expected at least {LEAST_SECRET_BYTES}")
    elif kind == "RSA" and getattr(size, "key_size", 0) < LEAST_RSA_BITS:
        raise KeysUnavailable(f"less than {LEAST_RSA_BITS} bits")
    return VerifyingKey(entry, key)


def _json(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise KeysUnavailable(f"no JSON: {type(error).__name__}") from None
    if not isinstance(found, dict):
        raise KeysUnavailable(f"JSON of {type(found).__name__}, expected an object")
    return found


def check_url(name: str, url: str) -> None:
    """Raises KeysUnavailable unless what comes from there cannot be changed on its way."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        is_safe = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))
    except ValueError:
        is_safe, host = False, ""
    if not is_safe or not host:
        raise KeysUnavailable(f"{name} is {url!r}, expected https, or http to this machine")


def keys_of(config: Config) -> Keys:
    """Raises KeysUnavailable."""
    try:
        import joserfc  # noqa: F401
    except ImportError:
        raise KeysUnavailable(
            "auth_oauth2_resource_server_id needs the package joserfc: "
            "pip install 'tallymark[oauth]'"
        ) from None
    symmetric = [name for name in config.auth_oauth2_algorithms if name.startswith("HS")]
    if config.auth_oauth2_jwks_file is not None:
        return KeyFile(config.auth_oauth2_jwks_file)
    if symmetric:
        raise KeysUnavailable(
            f"auth_oauth2_algorithms has {symmetric[0]}, which needs auth_oauth2_jwks_file"
        )
    url, issuer = config.auth_oauth2_jwks_url, config.auth_oauth2_issuer
    if not url and not issuer:
        raise KeysUnavailable(
            "auth_oauth2_resource_server_id without keys, expected auth_oauth2_jwks_file, "
            "auth_oauth2_jwks_url or auth_oauth2_issuer"
        )
    check_url("auth_oauth2_jwks_url" if url else "auth_oauth2_issuer", url or issuer)
    tls = None
    if config.auth_oauth2_ca_file is not None:
        try:
            tls = ssl.create_default_context(cafile=config.auth_oauth2_ca_file)
        except (OSError, ValueError) as error:
            raise KeysUnavailable(
                f"auth_oauth2_ca_file {config.auth_oauth2_ca_file}: {error}"
            ) from None
    return FetchedKeys(url, issuer, tls)
