"""AUTH over HTTP: asks an auth server what an NSQ client may do with its secret, as nsqd does.

    GET http://ADDRESS/auth?remote_ip=...&tls=true|false&secret=...&common_name=...

An address with a scheme is taken as the whole URL. Several are tried one after the other, beginning
with a random one. The answer holds for its ttl; who uses it (bridge/nsq/auth.py) asks again then.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from tallymark.bridge.nsq.auth import AuthAnswerError, AuthState, decode_answer
from tallymark.server.clock import now_ms
from tallymark.server.loading import NotLoaded, loading
from tallymark.server.logs import log_of

if TYPE_CHECKING:
    from aiohttp import ClientSession

ANSWER_MAX: Final = 4 << 20
"""Bytes of the longest answer."""
ACCEPT: Final = "application/vnd.nsq; version=1.0"

log = log_of("nsq")


class AuthUnavailable(Exception):
    """No auth server gave a valid answer; the text says for each why. It shows no secret."""


class Authorities:
    """The auth servers of a broker."""

    def __init__(
        self,
        addresses: Sequence[str],
        connect_timeout_ms: int,
        request_timeout_ms: int,
        choose: Callable[[int], int] = random.randrange,
    ) -> None:
        """choose: picks one of so many to begin with."""
        self._addresses = tuple(addresses)
        self._connect_s = connect_timeout_ms / 1000
        self._request_s = request_timeout_ms / 1000
        self._choose = choose
        self._session: ClientSession | None = None

    async def query(self, remote_ip: str, tls: bool, common_name: str, secret: bytes) -> AuthState:
        """Return the auth server's answer for a secret that came from this address. `common_name`:
        of the client's certificate, or "".

        Raises:
            AuthUnavailable: none of them can be asked.
        """
        values: dict[str, str | bytes] = {
            "remote_ip": remote_ip, "tls": "true" if tls else "false", "secret": secret,
            "common_name": common_name,
        }  # fmt: skip
        query = urlencode(values)
        first = self._choose(len(self._addresses))
        reasons = []
        for address in self._addresses[first:] + self._addresses[:first]:
            try:
                return await self._ask(address, query)
            except AuthAnswerError as error:
                reason = f"failed to auth against {address} - {error}"
                log.warning("auth.failed", address=address, error=str(error), peer=remote_ip)
                reasons.append(reason)
        raise AuthUnavailable("; ".join(reasons))

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _ask(self, address: str, query: str) -> AuthState:
        try:
            with loading("the client of auth servers", "nsq"):
                from aiohttp import ClientError, ClientSession, ClientTimeout
                from yarl import URL
        except NotLoaded as error:
            raise AuthAnswerError(f"cannot be asked: {error}") from error
        if self._session is None:
            timeout = ClientTimeout(total=self._request_s, sock_connect=self._connect_s)
            self._session = ClientSession(timeout=timeout)
        url = f"{address}?{query}" if "://" in address else f"http://{address}/auth?{query}"
        try:
            async with self._session.get(
                URL(url, encoded=True), headers={"Accept": ACCEPT}
            ) as response:
                body = await response.content.read(ANSWER_MAX + 1)
                while len(body) <= ANSWER_MAX and (more := await response.content.readany()):
                    body += more
                status = response.status
        except TimeoutError:
            raise AuthAnswerError(f"no answer within {self._request_s:g} s") from None
        except (ClientError, OSError, ValueError) as error:
            # Of the error only what kind it is: its text may show the URL and so the secret.
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise AuthAnswerError(f"cannot be asked: {reason}") from None
        if status != 200:
            raise AuthAnswerError(f"got response {status}")
        if len(body) > ANSWER_MAX:
            raise AuthAnswerError(f"answer of more than {ANSWER_MAX} bytes")
        return decode_answer(body, now_ms())
