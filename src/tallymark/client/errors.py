"""Errors that a user of the client catches.

Each error says how far it reaches (`scope`: what is gone with it), who caused it (`is_remote`) and
whether trying again can help (`may_retry`). `condition` is the standard's name of the error, for
machines; the text is for people.

    ClientError
      Closed                    what the call was about is gone; `scope` says what went
        ConnectionClosed        the connection, and all that was on it
          ConnectFailed         it never came about
            LoginRefused
          ConnectionLost        it broke
        SessionClosed           the session, and its links
        LinkClosed              this sender or receiver
          LinkRefused           it never came about
      TimedOut                  (also a TimeoutError) the peer did not answer in time
      NotAccepted               a message was sent and its receiver did not accept it
        MessageRejected, MessageReleased, MessageModified
      BatchNotAccepted          some messages of a batch were not accepted
      RequestRefused            the broker did not declare, bind, purge, delete, ... as it was asked
      SettlementRefused         the sender settled a message otherwise than it was asked to
      TransactionError          of a transaction, or of what was done in it
        TransactionRolledBack   nothing of it took effect; what was received comes again
        CommitUncertain         nobody knows whether it was committed
        RollbackUncertain       the session went before the broker had confirmed a rollback
        MessagesReturned        it was committed, and no queue took some of its messages
      NotPossible               (also a RuntimeError) the call makes no sense in this state
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final, Self

from tallymark.client.outcomes import Outcome

NO_USE_TRYING: Final = frozenset(
    (
        "amqp:unauthorized-access",
        "amqp:not-found",
        "amqp:not-allowed",
        "amqp:not-implemented",
        "amqp:invalid-field",
        "amqp:decode-error",
        "amqp:connection:framing-error",
    )
)
"""Conditions of a closed connection for which reconnecting is useless."""
CONDITIONS: Final[Mapping[int, str]] = {
    311: "amqp:link:message-size-exceeded",
    312: "amqp:not-found",
    313: "amqp:not-found",
    320: "amqp:connection:forced",
    402: "amqp:not-found",
    403: "amqp:unauthorized-access",
    404: "amqp:not-found",
    405: "amqp:resource-locked",
    406: "amqp:precondition-failed",
    501: "amqp:connection:framing-error",
    502: "amqp:decode-error",
    503: "amqp:not-allowed",
    504: "amqp:illegal-state",
    505: "amqp:illegal-state",
    506: "amqp:resource-limit-exceeded",
    530: "amqp:not-allowed",
    540: "amqp:not-implemented",
    541: "amqp:internal-error",
}
"""Conditions with the same meaning as a reply code of AMQP 0-9-1 [amqp-1.0 §2.8.15]."""
CODES: Final[Mapping[str, int]] = {
    "amqp:invalid-field": 502,
    **{name: code for code, name in CONDITIONS.items() if name != "amqp:illegal-state"},
}
"""Reply codes with the same meaning as a condition, of several the highest."""
NOTHING_KNOWN: Final[Mapping[object, object]] = {}


class Scope(Enum):
    """Extent of an error: the object that is gone with it."""

    REQUEST = "request"
    """The call alone: nothing else is gone."""
    MESSAGE = "message"
    LINK = "link"
    SESSION = "session"
    CONNECTION = "connection"


class ClientError(Exception):
    """Base of all errors of the client. `condition` is "" where the standard has no name for it."""

    scope = Scope.MESSAGE
    may_retry = False

    def __init__(
        self,
        text: str,
        *,
        condition: str = "",
        info: Mapping[object, object] = NOTHING_KNOWN,
        is_remote: bool = False,
    ) -> None:
        super().__init__(text)
        self.text = text
        self.condition = condition
        self.info = info
        """The peer's additional information, by symbol."""
        self.is_remote = is_remote
        """The peer did it."""
        self.in_doubt = False
        """A message had been sent and its outcome is unknown: the peer may have it."""

    @property
    def code(self) -> int:
        """The reply code of AMQP 0-9-1, whatever the protocol: 506 where a consumer was too slow
        [SC-10]. The peer's own where it gave one; 0: there is none."""
        code = self.info.get("reply-code")
        return code if isinstance(code, int) else CODES.get(self.condition, 0)

    def __str__(self) -> str:
        if not self.condition:
            return self.text
        code = f"{self.code} " if self.code else ""
        return f"{code}{self.condition}: {self.text}"

    def copied(self, in_doubt: bool = False) -> Self:
        """A copy to raise in one more waiting call: tracebacks do not pile up on one object."""
        other = type(self).__new__(type(self), *self.args)
        other.__dict__.update(self.__dict__)
        other.__cause__ = self.__cause__
        other.in_doubt = in_doubt
        return other


class Closed(ClientError):
    """A sender, receiver, session or connection is gone, by either side; see `scope`."""

    was_asked_for = False
    """The application closed it."""


class ConnectionClosed(Closed):
    """The connection is gone: closed by one of the two, or broken."""

    scope = Scope.CONNECTION


class ConnectFailed(ConnectionClosed):
    """The connection could not be opened; trying again may help."""

    may_retry = True


class LoginRefused(ConnectFailed):
    """The peer wants other credentials, or another SASL mechanism."""

    may_retry = False


class ConnectionLost(ConnectionClosed):
    """The connection broke: cut off, silent for too long, or the peer's bytes were not AMQP."""

    may_retry = True


class SessionClosed(Closed):
    """The session has ended, by either side; the connection lives on."""

    scope = Scope.SESSION


class LinkClosed(Closed):
    """The sender or receiver is detached, by either side; its session lives on."""

    scope = Scope.LINK


class LinkRefused(LinkClosed):
    """The peer did not want this sender or receiver, or offered another settle mode than asked."""


class TimedOut(ClientError, TimeoutError):
    """The peer did not answer in time. What the call leaves behind is said where it is made."""

    may_retry = True


class NotAccepted(ClientError):
    """A message was sent, and its receiver settled it with `outcome`, which is not accepted."""

    def __init__(
        self,
        text: str,
        outcome: Outcome,
        *,
        condition: str = "",
        info: Mapping[object, object] = NOTHING_KNOWN,
    ) -> None:
        super().__init__(text, condition=condition, info=info, is_remote=True)
        self.outcome = outcome


class MessageRejected(NotAccepted):
    """The receiver refuses the message; sending it again as it is will not help."""


class MessageReleased(NotAccepted):
    """The receiver does not take the message and did not look at it, as where no queue is bound."""

    may_retry = True


class MessageModified(NotAccepted):
    """The receiver gives the message back, and says what to change: see `outcome`."""

    may_retry = True


class BatchNotAccepted(ClientError):
    """Some messages of a batch were not accepted. `outcomes` has one entry per message, in order:
    its outcome, or the error that kept it from having one."""

    def __init__(self, text: str, outcomes: Sequence[Outcome | ClientError | None]) -> None:
        super().__init__(text, is_remote=True)
        self.outcomes = outcomes


class RequestRefused(ClientError):
    """The broker refuses to declare, bind, purge, delete or describe a queue or an exchange.
    Nothing was changed, and the session goes on. `condition` and `code` say why: 404 it is not
    there, 406 it is there with other properties, 405 it is another connection's, 403 there is no
    permission."""

    scope = Scope.REQUEST


class SettlementRefused(ClientError):
    """The sender of a message settled it otherwise than asked, e.g. because its lock had expired.

    `asked` is what was asked for, `answered` what holds. The message is settled [FC-12].
    """

    def __init__(
        self,
        text: str,
        asked: Outcome,
        answered: Outcome,
        *,
        condition: str = "",
        info: Mapping[object, object] = NOTHING_KNOWN,
    ) -> None:
        super().__init__(text, condition=condition, info=info, is_remote=True)
        self.asked = asked
        self.answered = answered


class NotPossible(ClientError, RuntimeError):
    """The call makes no sense in the present state or mode; nothing has happened."""


class TransactionError(ClientError):
    """A transaction did not end as it was asked to, or something cannot be done in it."""


class TransactionRolledBack(TransactionError):
    """The transaction was rolled back, and nothing of it took effect: by the broker, which would
    not or could not commit it, or with the session; or by the application itself (`was_asked_for`),
    while another of its tasks was still at work in it. What was received in it comes again, in its
    old order."""

    may_retry = True
    was_asked_for = False


class CommitUncertain(TransactionError):
    """The session or the connection went before the broker had answered a commit: all of the
    transaction took effect, or nothing. `in_doubt` is set."""

    def __init__(self, text: str, *, condition: str = "", is_remote: bool = False) -> None:
        super().__init__(text, condition=condition, is_remote=is_remote)
        self.in_doubt = True

    def copied(self, in_doubt: bool = True) -> Self:
        return super().copied(in_doubt)


class RollbackUncertain(TransactionError):
    """The session or the connection went before the broker had confirmed a rollback [TX-D2]. A
    broker rolls back what it finds open then, so that nothing of the transaction took effect; but
    it has not said so, and what was received may come again anywhere, counted as failed."""


class MessagesReturned(TransactionError):
    """The transaction was committed, and for `count` of its messages there was no queue."""

    def __init__(self, text: str, count: int) -> None:
        super().__init__(text, is_remote=True)
        self.count = count
