"""OAuth 2 access tokens: a token that a trusted issuer signed says who its bearer is and what may
be done, as in RabbitMQ's rabbitmq_auth_backend_oauth2.

    header    alg    one of `auth_oauth2_algorithms`, never `none`; the key has to be of its kind
              kid    the key's name in the key set; without one, the only key that fits
    payload   iss    `auth_oauth2_issuer`, if there is one
              aud    has `auth_oauth2_resource_server_id`
              exp    required; nbf    if there is one
              sub    names the user, or what `auth_oauth2_preferred_username_claims` says
              scope  rights and tags behind `auth_oauth2_scope_prefix` (bridge/scopes.py)

Signatures are the library joserfc's. It is optional, and loaded with the first key set. Keys that a
token names or carries itself (jku, jwk, x5u, x5c) are never looked at.
"""

from __future__ import annotations

import base64
import binascii
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

from tallymark.bridge.scopes import Scopes
from tallymark.server.access.token_keys import Keys, KeysUnavailable, keys_of
from tallymark.server.access.user import ADMINISTRATOR, TokenRefused, TokenUser
from tallymark.server.clock import wall_ms
from tallymark.server.config.settings import Config
from tallymark.units import WallMs

LONGEST: Final = 16 * 1024
"""Bytes of a token."""
MOST_SCOPES: Final = 2048
LONGEST_NAME: Final = 255
NAME_CLAIMS: Final = ("sub", "client_id")
"""Name the user where no preferred claim does [rabbitmq]."""
REMEMBERED: Final = 1024
"""Tokens whose signature was found good."""
RESOURCE: Final = "{resource_server_id}"
"""Stands for the setting of that name in the prefix of scopes."""
LATEST_S: Final = 10**12
"""Seconds since 1970 that are no date any more."""
SHOWN: Final = 100


@dataclass(frozen=True, slots=True)
class Rules:
    """Requirements on tokens, from the configuration."""

    resource_server_id: str
    issuer: str
    verify_aud: bool
    scope_prefix: str
    additional_scopes_key: tuple[str, ...]
    preferred_username_claims: tuple[str, ...]
    algorithms: tuple[str, ...]


def rules_of(config: Config) -> Rules:
    resource = config.auth_oauth2_resource_server_id
    return Rules(
        resource,
        config.auth_oauth2_issuer,
        config.auth_oauth2_verify_aud,
        config.auth_oauth2_scope_prefix.replace(RESOURCE, resource),
        config.auth_oauth2_additional_scopes_key,
        config.auth_oauth2_preferred_username_claims,
        config.auth_oauth2_algorithms,
    )


class Tokens:
    """Checks tokens for one node."""

    def __init__(self, rules: Rules, keys: Keys, clock: Callable[[], WallMs] = wall_ms) -> None:
        """clock: gives milliseconds since 1970."""
        self._rules = rules
        self.keys = keys
        self._clock = clock
        self._secret = secrets.token_bytes(32)
        self._known: dict[bytes, dict[str, Any]] = {}
        """Claims by keyed hash of the token: an HTTP client sends it with each request."""
        self._generation = -1

    async def check(self, token: str) -> TokenUser:
        """Return whom a token stands for now. Raises TokenRefused."""
        raw = token.encode("utf-8", "replace")
        if len(raw) > LONGEST:
            raise TokenRefused(f"a token of {len(raw)} bytes, expected at most {LONGEST}")
        self.keys.look()
        if self._generation != self.keys.generation:
            self._known.clear()
            self._generation = self.keys.generation
        digest = blake2b(raw, key=self._secret, digest_size=32).digest()
        claims = self._known.get(digest)
        if claims is None:
            claims = await self._verified(token)
            if len(self._known) >= REMEMBERED:
                self._known.pop(next(iter(self._known)))
            if self._generation == self.keys.generation:
                self._known[digest] = claims
        return user_of_claims(claims, self._rules, self._clock())

    def has_expired(self, user: TokenUser) -> bool:
        return user.expires_ms <= self._clock()

    async def _verified(self, token: str) -> dict[str, Any]:
        """Return the claims of a token with a good signature. Raises TokenRefused."""
        header = header_of(token)
        algorithm, name = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in self._rules.algorithms:
            known = ", ".join(self._rules.algorithms)
            raise TokenRefused(f"alg is {_shown(algorithm)}, expected one of {known}")
        if name is not None and not isinstance(name, str):
            raise TokenRefused(f"kid is {_shown(name)}, expected a text")
        for extension in ("crit", "b64"):
            if extension in header:
                raise TokenRefused(f"{extension} is {_shown(header[extension])}, expected none")
        key = self.keys.find(name, algorithm)
        if key is None:
            try:
                await self.keys.renew()
            except KeysUnavailable as error:
                raise TokenRefused(f"no key for it: {error}") from None
            key = self.keys.find(name, algorithm)
        if key is None:
            raise TokenRefused(f"no key {_shown(name)} for {algorithm} in the key set")
        return key.verify(token, algorithm)


def header_of(token: str) -> dict[str, Any]:
    """Return what a token says of its signature. Raises TokenRefused."""
    encoded, _, rest = token.partition(".")
    if rest.count(".") != 1:
        raise TokenRefused("an encrypted token, expected a signed one")
    try:
        padded = encoded + "=" * (-len(encoded) % 4)
        header = json.loads(base64.b64decode(padded, b"-_", validate=True))
    except (binascii.Error, ValueError, RecursionError):
        raise TokenRefused("its header is no base64 of JSON") from None
    if not isinstance(header, dict):
        raise TokenRefused("its header is no JSON object")
    return header


def user_of_claims(claims: dict[str, Any], rules: Rules, now_ms: WallMs) -> TokenUser:
    """Return the user of a token whose signature is good. now_ms: since 1970. Raises
    TokenRefused."""
    if rules.issuer and claims.get("iss") != rules.issuer:
        raise TokenRefused(f"iss is {_shown(claims.get('iss'))}, expected {rules.issuer!r}")
    if rules.verify_aud and rules.resource_server_id not in _audience(claims.get("aud")):
        raise TokenRefused(
            f"aud is {_shown(claims.get('aud'))}, expected {rules.resource_server_id!r} in it"
        )
    expires_ms = _date_ms(claims, "exp")
    if expires_ms <= now_ms:
        raise TokenRefused(f"it expired {(now_ms - expires_ms) / 1000:g} s ago")
    if "nbf" in claims and _date_ms(claims, "nbf") > now_ms:
        raise TokenRefused(f"it is valid in {(_date_ms(claims, 'nbf') - now_ms) / 1000:g} s")
    name = _name(claims, rules)
    scopes = Scopes(_ours(_scopes(claims, rules), rules.scope_prefix))
    return TokenUser(
        name,
        b"",
        b"",
        administrator=ADMINISTRATOR in scopes.tags,
        tags=tuple(tag for tag in scopes.tags if tag != ADMINISTRATOR),
        scopes=scopes,
        expires_ms=expires_ms,
    )


def _audience(value: object) -> list[str]:
    """One text may hold several, with spaces between [rabbitmq]."""
    if isinstance(value, str):
        return [value, *value.split(" ")]
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def _date_ms(claims: dict[str, Any], name: str) -> int:
    """A NumericDate [RFC 7519 §2] as milliseconds. Raises TokenRefused."""
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < LATEST_S:
        raise TokenRefused(f"{name} is {_shown(value)}, expected seconds since 1970")
    return int(value * 1000)


def _name(claims: dict[str, Any], rules: Rules) -> str:
    wanted = (*rules.preferred_username_claims, *NAME_CLAIMS)
    for claim in wanted:
        name = claims.get(claim)
        if isinstance(name, str) and name:
            if len(name.encode("utf-8", "replace")) > LONGEST_NAME or not name.isprintable():
                raise TokenRefused(
                    f"{claim} is {_shown(name)}, expected at most {LONGEST_NAME} printable bytes"
                )
            return name
    raise TokenRefused(f"nobody is named, expected one of the claims {', '.join(wanted)}")


def _scopes(claims: dict[str, Any], rules: Rules) -> list[str]:
    found = _texts(claims.get("scope"), rules)
    for path in rules.additional_scopes_key:
        places: list[object] = [claims]
        for word in path.split("."):
            places = [value for place in places for value in _step(place, word)]
        for place in places:
            found += _texts(place, rules)
    if len(found) > MOST_SCOPES:
        raise TokenRefused(f"{len(found)} scopes, expected at most {MOST_SCOPES}")
    return found


def _step(place: object, word: str) -> list[object]:
    """Return the values that a word leads to, from an object or each object of a list."""
    places = place if isinstance(place, list) else [place]
    return [one[word] for one in places if isinstance(one, dict) and word in one]


def _texts(value: object, rules: Rules) -> list[str]:
    """Scopes as a text with spaces, as a list, or as an object that has them without prefix by
    resource server [rabbitmq]."""
    before = ""
    if isinstance(value, dict):
        value, before = value.get(rules.resource_server_id), f"{rules.resource_server_id}."
    if isinstance(value, str):
        value = value.split()
    found = value if isinstance(value, list) else []
    return [before + one for one in found if isinstance(one, str)]


def _ours(scopes: list[str], prefix: str) -> list[str]:
    return [scope[len(prefix) :] for scope in scopes if scope.startswith(prefix)]


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


def make_tokens(config: Config) -> Tokens:
    """Return the checker of a configuration's tokens. Raises KeysUnavailable."""
    return Tokens(rules_of(config), keys_of(config))
