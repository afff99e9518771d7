"""Tokens of OAuth 2 without sockets of ours: what a good one says, what is refused, and key sets
that change. The issuer is a server on 127.0.0.1; the clocks are the tests' own."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import io
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc.errors import SecurityWarning
from joserfc.jwk import Key, RSAKey

from tallymark.server import loading, logs
from tallymark.server.access.token_keys import (
    FETCH_GAP_MS,
    LARGEST,
    FetchedKeys,
    KeyFile,
    Keys,
    KeysUnavailable,
    keys_of,
    parse_keys,
)
from tallymark.server.access.tokens import LONGEST, Tokens, rules_of, user_of_claims
from tallymark.server.access.user import TokenRefused, TokenUser, User, UsersError
from tallymark.server.access.users import Users, is_token
from tallymark.server.config.settings import Config, ConfigError, load
from tests.support.issuer import (
    RESOURCE,
    SECRET,
    Issuer,
    claims,
    encode,
    other_key,
    rsa_key,
    signed,
)

NOW = time.time()
SECRET_KEY = {"kty": "oct", "k": SECRET, "kid": "shared", "alg": "HS256"}


class Clock:
    """Milliseconds since 1970, or monotonic ones."""

    def __init__(self, ms: int = 0) -> None:
        self.ms = ms

    def __call__(self) -> int:
        return self.ms


def config(**changed: Any) -> Config:
    return Config(auth_oauth2_resource_server_id=RESOURCE, **changed)


@pytest.fixture(autouse=True)
def log() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    logs.configure("info", {}, "json", stream)
    yield stream
    logs.configure("info", {}, "console", sys.stderr)


@pytest.fixture(scope="module")
def key() -> RSAKey:
    return rsa_key("key-1")


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with Issuer() as running:
        yield running


def file_of(folder: Path, *keys: object) -> Path:
    path = folder / "keys.json"
    path.write_text(json.dumps({"keys": keys}))
    return path


def checker(keys: Keys, clock: Callable[[], int] | None = None, **changed: Any) -> Tokens:
    return Tokens(rules_of(config(**changed)), keys, clock or Clock(int(NOW * 1000)))


def user_of(tokens: Tokens, token: str) -> TokenUser:
    return asyncio.run(tokens.check(token))


def refusal(tokens: Tokens, token: str) -> str:
    with pytest.raises(TokenRefused) as refused:
        asyncio.run(tokens.check(token))
    text = str(refused.value)
    for part in token.split("."):
        assert len(part) < 12 or part not in text
    return text


@pytest.fixture
def tokens(tmp_path: Path, key: RSAKey) -> Tokens:
    return checker(KeyFile(file_of(tmp_path, key.as_dict(private=False))))


# -- what a token says


def test_a_good_token_says_who_and_what(tokens: Tokens, key: RSAKey) -> None:
    said = claims("read:*/*", "tag:administrator", "tag:monitoring", scope_of="others")
    user = user_of(tokens, signed(said, key))
    assert (user.name, user.administrator, user.tags) == ("ann", True, ("monitoring",))
    assert user.expires_ms == said["exp"] * 1000
    assert user.scopes is not None
    assert user.scopes.patterns("v") == ("$x", "$x", ".*")


@pytest.mark.parametrize(
    ("changed", "said", "scopes"),
    [
        ({}, {"scope": ["tallymark.read:v/a", "other.read:v/b", 7]}, "a"),
        ({}, {"scope": {"read": "v/a"}}, ""),
        ({}, {"scope": None}, ""),
        ({}, {"scope": "read:v/a"}, ""),
        ({"auth_oauth2_scope_prefix": ""}, {"scope": "read:v/a"}, "a"),
        ({"auth_oauth2_scope_prefix": "api://x/"}, {"scope": "api://x/read:v/a"}, "a"),
        (
            {"auth_oauth2_additional_scopes_key": ("roles",)},
            {"scope": "tallymark.read:v/a", "roles": ["tallymark.read:v/b"]},
            "ab",
        ),
        (
            {"auth_oauth2_additional_scopes_key": ("realm.roles", "more")},
            {"realm": {"roles": "tallymark.read:v/a tallymark.read:v/b"}, "more": 1},
            "ab",
        ),
        (
            {"auth_oauth2_additional_scopes_key": ("authorization.permissions.scopes",)},
            {"authorization": {"permissions": [{"scopes": ["tallymark.read:v/a"]}, {"x": 1}, 5]}},
            "a",
        ),
        (
            {"auth_oauth2_additional_scopes_key": ("extra",)},
            {"extra": {RESOURCE: ["read:v/a", "read:v/b"], "elsewhere": ["read:v/c"]}},
            "ab",
        ),
    ],
)
def test_scopes_are_found_where_issuers_put_them(
    changed: dict[str, Any], said: dict[str, Any], scopes: str
) -> None:
    user = user_of_claims(claims(**said), rules_of(config(**changed)), int(NOW * 1000))
    assert user.scopes is not None
    patterns = user.scopes.patterns("v")
    found = "" if patterns is None else patterns[2]
    assert [name for name in "abc" if name in found] == list(scopes)


@pytest.mark.parametrize(
    ("preferred", "said", "name"),
    [
        ((), {}, "ann"),
        (("user_name", "email"), {"email": "ann@example"}, "ann@example"),
        (("user_name", "email"), {"user_name": 7, "email": "e"}, "e"),
        ((), {"sub": None, "client_id": "shop"}, "shop"),
    ],
)
def test_the_user_is_named_by_the_first_claim_that_does(
    preferred: tuple[str, ...], said: dict[str, Any], name: str
) -> None:
    rules = rules_of(config(auth_oauth2_preferred_username_claims=preferred))
    assert user_of_claims(claims(**said), rules, int(NOW * 1000)).name == name


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"aud": "other"}, "aud is 'other', expected 'tallymark' in it"),
        ({"aud": None}, "aud is None, expected 'tallymark' in it"),
        ({"aud": ["other", 7]}, "aud is ['other', 7], expected 'tallymark' in it"),
        ({"aud": {RESOURCE: 1}}, "aud is {'tallymark': 1}, expected 'tallymark' in it"),
        ({"aud": "tallymarks"}, "aud is 'tallymarks', expected 'tallymark' in it"),
        ({"iss": "https://evil"}, "iss is 'https://evil', expected 'https://good'"),
        ({"iss": None}, "iss is None, expected 'https://good'"),
        ({"exp": None}, "exp is None, expected seconds since 1970"),
        ({"exp": "2099"}, "exp is '2099', expected seconds since 1970"),
        ({"exp": True}, "exp is True, expected seconds since 1970"),
        ({"exp": float("nan")}, "exp is nan, expected seconds since 1970"),
        ({"exp": float("inf")}, "exp is inf, expected seconds since 1970"),
        ({"exp": 10**400}, "expected seconds since 1970"),
        ({"exp": int(NOW) - 60}, "it expired 60"),
        ({"nbf": int(NOW) + 60}, "it is valid in"),
        ({"nbf": "x"}, "nbf is 'x', expected seconds since 1970"),
        ({"sub": None}, "nobody is named, expected one of the claims sub, client_id"),
        ({"sub": ""}, "nobody is named"),
        ({"sub": "x" * 300}, "expected at most 255 printable bytes"),
        ({"sub": "a\nb"}, "sub is 'a\\nb', expected at most 255 printable bytes"),
        ({"scope": ["x"] * 2049}, "2049 scopes, expected at most 2048"),
    ],
)
def test_claims_that_are_refused(said: dict[str, Any], reason: str) -> None:
    rules = rules_of(config(auth_oauth2_issuer="https://good"))
    with pytest.raises(TokenRefused) as refused:
        user_of_claims(claims(**{"iss": "https://good", **said}), rules, int(NOW * 1000))
    assert reason in str(refused.value)


def test_an_audience_in_one_text_or_not_looked_at() -> None:
    now = int(NOW * 1000)
    assert user_of_claims(claims(aud="a tallymark b"), rules_of(config()), now).name == "ann"
    loose = rules_of(config(auth_oauth2_verify_aud=False))
    assert user_of_claims(claims(aud=None), loose, now).name == "ann"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
NAMES = ("iss", "aud", "exp", "nbf", "sub", "client_id", "scope", "roles", "email")


@given(st.dictionaries(st.sampled_from(NAMES), JSON))
def test_whatever_is_claimed_is_a_user_or_refused(said: dict[str, Any]) -> None:
    rules = rules_of(
        config(
            auth_oauth2_additional_scopes_key=("roles", "roles.x"),
            auth_oauth2_preferred_username_claims=("email",),
        )
    )
    try:
        user = user_of_claims({**claims(), **said}, rules, int(NOW * 1000))
    except TokenRefused:
        return
    assert user.expires_ms > NOW * 1000
    assert user.name


# -- attacks on the signature


def tampered(token: str) -> str:
    head, body, signature = token.split(".")
    said = json.loads(base64.urlsafe_b64decode(body + "=="))
    said["scope"] = "tallymark.tag:administrator"
    return f"{head}.{encode(said)}.{signature}"


def unsigned(algorithm: str) -> str:
    return f"{encode({'alg': algorithm})}.{encode(claims())}."


def signed_with_the_public_key(key: Key) -> str:
    """HS256 with the bytes of the RSA key that everybody knows."""
    body = f"{encode({'alg': 'HS256', 'kid': key.kid})}.{encode(claims())}"
    secret = key.as_pem(private=False)  # type: ignore[union-attr]
    return f"{body}.{encode(hmac.digest(secret, body.encode(), hashlib.sha256))}"


def carries(key: Key, name: str, value: object) -> str:
    """Signed by a key that the token itself names or carries."""
    return signed(claims(), rsa_key("mallory"), header={"kid": key.kid, name: value})


ATTACKS: dict[str, Callable[[RSAKey], tuple[str, str]]] = {
    "alg none": lambda key: (unsigned("none"), "alg is 'none', expected one of RS256"),
    "alg None": lambda key: (unsigned("None"), "alg is 'None', expected one of RS256"),
    "no alg": lambda key: (
        f"{encode({'kid': key.kid})}.{encode(claims())}.x", "alg is None, expected one of RS256",
    ),
    "alg is a list": lambda key: (
        f"{encode({'alg': ['RS256']})}.{encode(claims())}.x", "alg is ['RS256'], expected",
    ),
    "HS256 with the public key": lambda key: (
        signed_with_the_public_key(key), "alg is 'HS256', expected one of RS256",
    ),
    "tampered payload": lambda key: (
        tampered(signed(claims(), key)), "signature: BadSignatureError",
    ),
    "another key of that name": lambda key: (
        signed(claims(), rsa_key("mallory"), header={"kid": key.kid}), "signature: BadSignature",
    ),
    "unknown kid": lambda key: (
        signed(claims(), rsa_key("mallory")), "no key 'mallory' for RS256 in the key set",
    ),
    "kid is a path": lambda key: (
        signed(claims(), key, header={"kid": "../../../../dev/null"}),
        "no key '../../../../dev/null' for RS256",
    ),
    "kid is SQL": lambda key: (
        signed(claims(), key, header={"kid": "x' UNION SELECT 'k"}), "no key \"x' UNION",
    ),
    "kid is a URL": lambda key: (
        signed(claims(), key, header={"kid": "http://127.0.0.1:1/k"}), "no key 'http://127",
    ),
    "kid is a number": lambda key: (
        f"{encode({'alg': 'RS256', 'kid': 1})}.{encode(claims())}.x", "kid is 1, expected a text",
    ),
    "carries its key": lambda key: (
        carries(key, "jwk", rsa_key("mallory").as_dict(private=False)), "signature: BadSig",
    ),
    "names its key set": lambda key: (
        carries(key, "jku", "https://evil/keys"), "signature: BadSignatureError",
    ),
    "names its certificate": lambda key: (
        carries(key, "x5u", "https://evil/cert"), "signature: BadSignatureError",
    ),
    "crit": lambda key: (
        f"{encode({'alg': 'RS256', 'kid': key.kid, 'crit': ['b64'], 'b64': False})}.x.y",
        "crit is ['b64'], expected none",
    ),
    "b64 false": lambda key: (
        f"{encode({'alg': 'RS256', 'kid': key.kid, 'b64': False})}.x.y",
        "b64 is False, expected none",
    ),
    "no signature": lambda key: (
        signed(claims(), key).rpartition(".")[0] + ".", "signature: ",
    ),
    "signature cut": lambda key: (signed(claims(), key)[:-4], "signature: "),
    "ES256 of zeros": lambda key: (
        f"{encode({'alg': 'ES256', 'kid': key.kid})}.{encode(claims())}.{encode(bytes(64))}",
        "no key 'key-1' for ES256",
    ),
    "giant": lambda key: (
        signed(claims(x="y" * LONGEST), key), f"bytes, expected at most {LONGEST}",
    ),
    "header is no JSON": lambda key: (f"eyJ.{encode(claims())}.x", "its header is no base64"),
    "header is deep": lambda key: (
        f"{encode(b'[' * 7000)}.{encode(claims())}.x", "its header is no base64 of JSON",
    ),
    "header is a text": lambda key: ("InRleHQi." + "e30.x", "its header is no JSON object"),
    "payload is a list": lambda key: (
        signed_bytes(b"[]", key), "signature: InvalidPayloadError",
    ),
    "payload is deep": lambda key: (
        signed_bytes(b'{"a":' * 1500 + b"1" + b"}" * 1500, key), "signature: RecursionError",
    ),
    "payload is no UTF-8": lambda key: (signed_bytes(b'{"a":"\xff"}', key), "signature: "),
    "encrypted": lambda key: ("eyJhbGciOiJkaXIifQ..AAAA.AAAA.AAAA", "an encrypted token"),
}  # fmt: skip


def signed_bytes(payload: bytes, key: RSAKey) -> str:
    from joserfc import jws

    return jws.serialize_compact({"alg": "RS256", "kid": key.kid}, payload, key)


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_is_refused(attack: str, tokens: Tokens, key: RSAKey) -> None:
    token, reason = ATTACKS[attack](key)
    assert reason in refusal(tokens, token)


@given(st.text(max_size=60), st.text("ey.-_JhbGciOiAQx", max_size=60))
def test_no_text_is_a_token_by_chance(text: str, like: str) -> None:
    tokens = Tokens(rules_of(config()), Keys())
    for one in (text, like, f"ey{like}"):
        with pytest.raises(TokenRefused):
            asyncio.run(tokens.check(one))


def test_a_symmetric_key_is_taken_from_a_file_and_for_its_algorithm_only(
    tmp_path: Path, key: RSAKey
) -> None:
    keys = KeyFile(file_of(tmp_path, SECRET_KEY, key.as_dict(private=False)))
    good = signed(claims(), other_key("HS256"), "HS256")
    tokens = checker(keys, auth_oauth2_algorithms=("RS256", "HS256"))
    assert user_of(tokens, good).name == "ann"
    assert "alg is 'HS256', expected" in refusal(checker(keys), good)
    # The public RSA key is no secret, whatever the token says of it.
    assert "no key 'key-1' for HS256" in refusal(tokens, signed_with_the_public_key(key))


@pytest.mark.parametrize("algorithm", ["ES256", "EdDSA", "Ed25519"])
def test_other_signatures(tmp_path: Path, algorithm: str) -> None:
    other = other_key(algorithm)
    public: dict[str, Any] = dict(other.as_dict(private=False))
    tokens = checker(KeyFile(file_of(tmp_path, public)))
    assert user_of(tokens, signed(claims(), other, algorithm)).name == "ann"


def test_a_token_without_kid_needs_one_key_that_fits(tmp_path: Path, key: RSAKey) -> None:
    nameless = RSAKey.import_key(
        {name: value for name, value in key.as_dict(private=True).items() if name != "kid"}
    )
    token = signed(claims(), nameless)
    curve: dict[str, Any] = dict(other_key("ES256").as_dict(private=False))
    public = key.as_dict(private=False)
    assert user_of(checker(KeyFile(file_of(tmp_path, public, curve))), token).name == "ann"
    second = rsa_key("key-2").as_dict(private=False)
    tokens = checker(KeyFile(file_of(tmp_path, public, second)))
    assert "no key None for RS256" in refusal(tokens, token)


def test_a_token_that_was_good_is_refused_when_it_expires(tmp_path: Path, key: RSAKey) -> None:
    """Its signature is not checked again, its time is."""
    clock = Clock(int(NOW * 1000))
    tokens = checker(KeyFile(file_of(tmp_path, key.as_dict(private=False))), clock)
    token = signed(claims(exp=int(NOW) + 10), key)
    user = user_of(tokens, token)
    assert not tokens.has_expired(user)
    clock.ms = (int(NOW) + 10) * 1000
    assert tokens.has_expired(user)
    assert "it expired 0 s ago" in refusal(tokens, token)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("eyJhbGciOiJub25lIn0.e30.", True), ("eyJlbmMiOiJBMTI4R0NNIn0.a.b.c.d", True),
        ("guest", False), ("ey", False), ("ey.x", False), ("", False), ("key.a.b", False),
        ("eyes.wide.shut", False), ("eyJ.a.b.c.d", False), ("eyJhbGciOiJub25lIn0.e30", False),
        ("WzFd.a.b", False), ("eyé.a.b", False), ("W1tb" * 10_000 + ".a.b", False),
    ],
)  # fmt: skip
def test_a_password_that_looks_like_a_token(text: str, expected: bool) -> None:
    assert is_token(text) is expected


# -- code that is not there


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of what is loaded late; nothing has failed yet."""
    clock = Clock(1_000_000)
    monkeypatch.setattr(loading, "now_ms", clock)
    monkeypatch.setattr(loading, "_failures", {})
    return clock


def test_a_token_that_cannot_be_checked_is_checked_when_its_code_can_be_loaded(
    tmp_path: Path, tokens: Tokens, key: RSAKey, late: Clock, log: io.StringIO,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    who = Users(tmp_path, tokens)
    token = signed(claims(), key)

    def check() -> User | None:
        return asyncio.run(who.check("", token, "127.0.0.1"))

    with monkeypatch.context() as broken:
        broken.setitem(sys.modules, "joserfc.jws", None)
        for _ in range(2):
            with pytest.raises(UsersError, match=r"tokens of OAuth 2 cannot be loaded, see the lo"):
                check()
    with pytest.raises(UsersError):
        check()
    assert log.getvalue().count("users.not_loaded") == 1, "it is not tried each time"
    late.ms += loading.RETRY_MS
    found = check()
    assert found is not None
    assert found.name == "ann"


def test_keys_that_cannot_be_read_by_code_that_is_not_there(
    tmp_path: Path, key: RSAKey, late: Clock, log: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = file_of(tmp_path, key.as_dict(private=False))
    known = KeyFile(path)
    monkeypatch.setitem(sys.modules, "joserfc.jwk", None)
    path.write_text(path.read_text() + " ")
    known.look()
    assert len(known) == 1
    assert "oauth.keys_unreadable" in log.getvalue()
    with pytest.raises(KeysUnavailable, match=r"keys\.json: the code of tokens of OAuth 2"):
        KeyFile(path)
    late.ms += loading.RETRY_MS
    monkeypatch.setitem(sys.modules, "aiohttp", None)

    async def fetch() -> None:
        await FetchedKeys("http://127.0.0.1:1/keys", "", None, Clock(1_000_000)).renew()

    with pytest.raises(KeysUnavailable, match="the code of tokens of OAuth 2 cannot be loaded"):
        asyncio.run(fetch())


# -- key sets


def test_a_file_is_read_again_when_it_changes_and_a_bad_one_changes_nothing(
    tmp_path: Path, key: RSAKey
) -> None:
    path = file_of(tmp_path, key.as_dict(private=False))
    tokens = checker(KeyFile(path))
    first, second = signed(claims(), key), signed(claims(), rsa_key("key-2"))
    assert user_of(tokens, first).name == "ann"
    path.write_text("{")
    assert user_of(tokens, first).name == "ann"
    path.unlink()
    assert user_of(tokens, first).name == "ann"
    file_of(tmp_path, rsa_key("key-2").as_dict(private=False))
    assert user_of(tokens, second).name == "ann"
    assert "no key 'key-1'" in refusal(tokens, first), "withdrawn, though it was good before"


EMPTIED = [b'{"keys": []}', b'{"keys": [{"kty": "RSA", "use": "enc"}]}']
"""Key sets of an issuer that has withdrawn whatever it signed with."""


@pytest.mark.parametrize("emptied", EMPTIED)
def test_a_file_without_a_key_any_more_withdraws_all(
    emptied: bytes, tmp_path: Path, key: RSAKey
) -> None:
    path = file_of(tmp_path)
    with pytest.raises(KeysUnavailable, match=f"{path}: a key set without a key that can be used"):
        KeyFile(path)
    file_of(tmp_path, key.as_dict(private=False))
    tokens = checker(KeyFile(path))
    token = signed(claims(), key)
    assert user_of(tokens, token).name == "ann"
    path.write_bytes(emptied)
    assert "no key 'key-1'" in refusal(tokens, token)
    file_of(tmp_path, key.as_dict(private=False))
    assert user_of(tokens, token).name == "ann"


@pytest.mark.parametrize("emptied", EMPTIED)
def test_an_issuer_without_a_key_any_more_withdraws_all(emptied: bytes, issuer: Issuer) -> None:
    async def play() -> None:
        clock = Clock(1_000_000)
        keys = FetchedKeys(f"{issuer.url}/keys", "", None, clock)
        tokens = checker(keys)
        issuer.body = emptied
        with pytest.raises(TokenRefused, match="no key for it: a key set without a key"):
            await tokens.check(issuer.token())
        issuer.body = None
        clock.ms += FETCH_GAP_MS
        assert (await tokens.check(issuer.token())).name == "ann"
        issuer.body = emptied
        clock.ms += FETCH_GAP_MS
        await keys.renew()
        with pytest.raises(TokenRefused, match="no key 'key-1' for RS256"):
            await tokens.check(issuer.token())

    asyncio.run(play())


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("text", "no JSON object"),
        ({"kty": "lattice"}, "kty is 'lattice', expected RSA, EC, OKP or oct"),
        ({"kty": "RSA", "n": "AQ"}, "Error"),
        ({"kty": "RSA", "n": "AQ", "e": 5}, "Error"),
        ({"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}, "Error"),
        ({"kty": "EC", "crv": "P-999", "x": "AA", "y": "AA"}, "Error"),
        ({"kty": "oct", "k": "c2hvcnQ"}, "5 bytes, expected at least 32"),
        ({"kty": ["RSA"]}, "kty is ['RSA'], expected"),
        ({"kty": "RSA", "use": "enc"}, "use is 'enc', expected sig"),
        ({"kty": "RSA", "key_ops": ["encrypt"]}, "key_ops is without verify"),
        ({"kty": "RSA", "key_ops": 7}, "key_ops is without verify"),
    ],
)
def test_a_key_that_cannot_be_used_is_left_out(
    entry: object, reason: str, key: RSAKey, log: io.StringIO
) -> None:
    data = json.dumps({"keys": [entry, key.as_dict(private=False)]}).encode()
    assert [one.name for one in parse_keys(data, True)] == ["key-1"]
    assert reason in json.loads(log.getvalue())["reason"]


def test_a_short_rsa_key_is_left_out() -> None:
    with pytest.warns(SecurityWarning, match="2048"):
        weak = RSAKey.generate_key(1024).as_dict(private=False)
    assert parse_keys(json.dumps({"keys": [weak]}).encode(), True) == []


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b'{"keys": 7}', b"[" * 100_000, b"\xff", b" " * LARGEST * 2,
     json.dumps({"keys": [{}] * 65}).encode()],
)  # fmt: skip
def test_what_is_no_key_set(data: bytes) -> None:
    with pytest.raises(KeysUnavailable):
        parse_keys(data, True)


def test_keys_are_found_by_discovery_and_another_one_when_a_token_names_it(
    issuer: Issuer,
) -> None:
    async def play() -> None:
        clock = Clock(1_000_000)
        keys = FetchedKeys("", issuer.url, None, clock)
        tokens = checker(keys, auth_oauth2_issuer=issuer.url)
        first = issuer.token()
        assert (await tokens.check(first)).name == "ann"
        assert issuer.asked == ["/.well-known/openid-configuration", "/keys"]
        issuer.rotate()
        second = issuer.token()
        with pytest.raises(TokenRefused, match="no key 'key-2' for RS256"):
            await tokens.check(second)
        assert keys.fetches == 1, "not again so soon, whoever asks"
        clock.ms += FETCH_GAP_MS
        both = await asyncio.gather(tokens.check(second), tokens.check(second))
        assert [user.name for user in both] == ["ann", "ann"]
        assert keys.fetches == 2, "one for both"
        with pytest.raises(TokenRefused, match="no key 'key-1'"):
            await tokens.check(first)

    asyncio.run(play())


def test_known_keys_go_on_while_the_issuer_is_away(issuer: Issuer) -> None:
    async def play() -> None:
        clock = Clock(1_000_000)
        keys = FetchedKeys(f"{issuer.url}/keys", "", None, clock)
        tokens = checker(keys)
        issuer.is_away = True
        with pytest.raises(TokenRefused, match=r"no key for it: http.*: status 503, expected 200"):
            await tokens.check(issuer.token())
        issuer.is_away = False
        clock.ms += FETCH_GAP_MS
        assert (await tokens.check(issuer.token())).name == "ann"
        for trouble in ("away", "nonsense", "huge"):
            issuer.is_away = trouble == "away"
            issuer.body = {"nonsense": b"<html>", "huge": b" " * (LARGEST + 1)}.get(trouble)
            clock.ms += FETCH_GAP_MS
            await keys.renew()
            assert (await tokens.check(issuer.token())).name == "ann"
        assert keys.fetches == 5

    asyncio.run(play())


def test_an_issuer_that_sends_elsewhere_is_not_followed(issuer: Issuer) -> None:
    async def play() -> None:
        moved = checker(FetchedKeys(f"{issuer.url}/moved", "", None, Clock(1_000_000)))
        with pytest.raises(TokenRefused, match="status 302, expected 200"):
            await moved.check(issuer.token())
        other = FetchedKeys("", issuer.url + "/", None, Clock(1_000_000))
        with pytest.raises(TokenRefused, match="the issuer calls itself"):
            await checker(other).check(issuer.token())

    asyncio.run(play())


def test_symmetric_keys_of_an_issuer_are_not_taken(issuer: Issuer) -> None:
    async def play() -> None:
        issuer.extra = [SECRET_KEY]
        tokens = checker(
            FetchedKeys(f"{issuer.url}/keys", "", None, Clock(1_000_000)),
            auth_oauth2_algorithms=("RS256", "HS256"),
        )
        with pytest.raises(TokenRefused, match="no key 'shared' for HS256"):
            await tokens.check(signed(claims(), other_key("HS256"), "HS256"))

    asyncio.run(play())


# -- the configuration


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({}, "without keys, expected auth_oauth2_jwks_file, auth_oauth2_jwks_url or"),
        ({"auth_oauth2_jwks_file": Path("/nowhere")}, "auth_oauth2_jwks_file /nowhere: "),
        ({"auth_oauth2_jwks_url": "http://issuer.example/k"}, "expected https, or http to this"),
        ({"auth_oauth2_issuer": "ftp://127.0.0.1"}, "auth_oauth2_issuer is 'ftp://127.0.0.1'"),
        ({"auth_oauth2_issuer": "http://[::1"}, "auth_oauth2_issuer is 'http://[::1'"),
        ({"auth_oauth2_jwks_url": "https://"}, "auth_oauth2_jwks_url is 'https://'"),
        (
            {"auth_oauth2_issuer": "https://good", "auth_oauth2_algorithms": ("RS256", "HS256")},
            "auth_oauth2_algorithms has HS256, which needs auth_oauth2_jwks_file",
        ),
        (
            {"auth_oauth2_issuer": "https://good", "auth_oauth2_ca_file": Path("/nowhere")},
            "auth_oauth2_ca_file /nowhere: ",
        ),
    ],
)
def test_a_configuration_that_makes_no_sense(changed: dict[str, Any], reason: str) -> None:
    with pytest.raises(KeysUnavailable) as refused:
        keys_of(config(**changed))
    assert reason in str(refused.value)


def test_rabbitmqs_names_are_a_table_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "tallymark.toml"
    file.write_text(
        'auth_oauth2.resource_server_id = "shop"\nauth_oauth2.algorithms = ["ES256"]\n'
        "auth_oauth2.verify_aud = false\n"
    )
    found = load(file, {}, {})
    assert found.auth_oauth2_resource_server_id == "shop"
    assert found.auth_oauth2_algorithms == ("ES256",)
    assert found.auth_oauth2_verify_aud is False
    file.write_text("auth_oauth2.jwks = 1\n")
    with pytest.raises(ConfigError, match="unknown key 'auth_oauth2_jwks'"):
        load(file, {}, {})
    file.write_text("auth_oauth2 = 1\n")
    with pytest.raises(ConfigError, match="auth_oauth2 is 1, expected a table"):
        load(file, {}, {})
    with pytest.raises(ConfigError, match="none"):
        load(None, {"TALLYMARK_AUTH_OAUTH2_ALGORITHMS": "none"}, {})
