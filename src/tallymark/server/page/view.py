"""A page, and a view of it: one request as the function that shows a page sees it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias
from urllib.parse import quote, urlencode

from aiohttp import web

from tallymark.server.access.user import User, sees_everything
from tallymark.server.http.requests import HttpContext, user_of
from tallymark.server.management.requests import Routes
from tallymark.server.node import Node
from tallymark.server.page.flow import Flows

Context: TypeAlias = dict[str, Any]
"""Names in a template, and their values."""
Form: TypeAlias = Mapping[str, str]


class View:
    """One request for a page. Raises what its `routes` raise; the site answers with it."""

    def __init__(
        self, http: HttpContext, request: web.Request, form_token: str, flows: Flows
    ) -> None:
        self.http = http
        self.flows = flows
        self.request = request
        self.form_token = form_token
        self.routes = Routes(http)
        """Rights and operations of the user, as the HTTP interface has them: `vhosts`, `vhost`,
        `operations`. What a user sees and may do is decided there and nowhere else."""

    @property
    def node(self) -> Node:
        return self.http.node

    @property
    def user(self) -> User:
        """The user with the rights of now. Raises Refused 401."""
        return user_of(self.request)

    @property
    def names(self) -> Mapping[str, str]:
        """Parts of the path that the page's path has in braces."""
        return self.request.match_info

    def asked(self, name: str, default: str = "") -> str:
        """Return a parameter of the query."""
        return self.request.query.get(name, default)

    async def part(self) -> None:
        """Wait until one more part of long work may be done: some 50 rows, a millisecond. Raises
        Refused: the browser has gone."""
        await self.http.part(self.request)

    def with_query(self, **changes: object) -> str:
        """Return the address of this page with other parameters; None removes one."""
        query = {name: value for name, value in self.request.query.items() if name != "said"}
        for name, value in changes.items():
            if value is None:
                query.pop(name, None)
            else:
                query[name] = str(value)
        return self.request.rel_url.raw_path + (f"?{urlencode(query)}" if query else "")


Show: TypeAlias = Callable[[View], Awaitable[Context]]
Act: TypeAlias = Callable[[View, Form], Awaitable["str | Context | Moved"]]
"""Function of an action. It returns a text that says what was done, to be shown on the page it is
then; or what is to be shown beside it, as the result of a trial; or Moved."""


@dataclass(frozen=True, slots=True)
class Moved:
    """The result of an action after which another page is shown, with a text."""

    to: str
    text: str


def anybody(user: User) -> bool:
    return True


def administrators(user: User) -> bool:
    return user.administrator


def watchers(user: User) -> bool:
    """Administrators, and users with the tag `monitoring`."""
    return sees_everything(user)


@dataclass(frozen=True, slots=True)
class Page:
    """One page. path: as aiohttp's router takes it. title: of the window and the heading.
    template: file in templates/. nav: its word in the menu; "": not in it. actions: by the word
    that a form's button has as `action`. data: JSON for its charts, by the parameter `data`."""

    path: str
    title: str
    template: str
    show: Show
    nav: str = ""
    is_for: Callable[[User], bool] = anybody
    is_live: bool = True
    actions: Mapping[str, Act] = field(default_factory=dict)
    data: Mapping[str, Show] = field(default_factory=dict)


ROOT: Final = "/ui/"
"""Beginning of the paths of all pages but the first."""


def at(*names: str, **query: object) -> str:
    """Return the address of a page: `at("queues", vhost, name)` is /ui/queues/%2F/orders."""
    path = ROOT + "/".join(quote(name, safe="") for name in names)
    return f"{path}?{urlencode(query)}" if query else path
