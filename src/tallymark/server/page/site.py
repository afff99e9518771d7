"""The site: routes of the page, who may see it, its forms, and what every answer of it says.

Of browsers it asks a session, which begins with the form at /ui/login; a user that sends its
password with each request needs none. Every form that changes something carries a token that other
sites cannot know; guard.py has turned away requests that other sites sent, and names in `Host` that
are not ours. Answers let the browser load nothing from elsewhere and run nothing that is not a file
of ours.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import quote, urlsplit

from aiohttp import web
from aiohttp.web_urldispatcher import UrlDispatcher, UrlMappingMatchInfo
from jinja2 import Template

from tallymark import __version__
from tallymark.server.access import audit
from tallymark.server.access.user import User, UsersError
from tallymark.server.http.guard import credentials
from tallymark.server.http.requests import USER, HttpContext, Refused, answer, told_path, user_of
from tallymark.server.logs import log_of
from tallymark.server.node import node_name
from tallymark.server.page.flow import Flows
from tallymark.server.page.live import Live
from tallymark.server.page.pages import PAGES
from tallymark.server.page.rendering import Assets, environment
from tallymark.server.page.sessions import Session, Sessions
from tallymark.server.page.view import ROOT, Context, Form, Moved, Page, View

LOGIN: Final = "/ui/login"
LOGOUT: Final = "/ui/logout"
LIVE: Final = "/ui/live"
ACTION: Final = "action"
TOKEN: Final = "form_token"
COOKIE: Final = "tallymark-session"
MOST_SAID: Final = 1000
"""Texts of what was done that wait to be shown."""
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
FOREVER: Final = "public, max-age=31536000, immutable"

log = log_of("http")


class Site:
    """The page of one broker."""

    def __init__(self, http: HttpContext, pages: tuple[Page, ...] = PAGES) -> None:
        self._http = http
        self._node = http.node
        self._assets = Assets()
        self._templates = environment(self._assets)
        self.sessions = Sessions(self._node.loop.time, self._as_now)
        self.live = Live(self._node.loop)
        self._flows = Flows(self._node)
        self._said: dict[str, tuple[str, str]] = {}
        """Texts of what was done and not shown yet, with their users, by a random name."""
        self._pages = pages
        self._router = UrlDispatcher()
        for page in pages:
            self._router.add_get(page.path, self._shows(page))
            if page.actions:
                self._router.add_post(page.path, self._acts(page))
        self._router.add_get(LOGIN, self._ask_login)
        self._router.add_post(LOGIN, self._login)
        self._router.add_post(LOGOUT, self._logout)
        self._router.add_get(LIVE, self._follow)
        self._router.add_get(ROOT + "static/{name}", self._static)

    def close(self) -> None:
        """End every live page and session."""
        self.live.close()
        self.sessions.end_all()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a request for the page. Raises what `http/server.py` answers."""
        wanted, found = await self._resolved(request, request.clone())
        if found.http_exception is not None:
            raise found.http_exception
        if _is_open(request.path):
            return await found.handler(wanted)
        user = await self._user(request)
        if user is None:
            return self._to_login(request)
        request[USER] = wanted[USER] = user
        return await found.handler(wanted)

    async def _resolved(
        self, request: web.Request, wanted: web.Request
    ) -> tuple[web.Request, UrlMappingMatchInfo]:
        """Return the wanted request, with what the site's routes make of its path."""
        found = await self._router.resolve(wanted)
        found.add_app(request.app)
        found.current_app = request.app
        wanted._match_info = found
        return wanted, found

    async def refused(self, request: web.Request, status: int, reason: str) -> web.Response:
        """Return the page that says why a request was refused."""
        user = request.get(USER, None)
        text = self._template("refused.html").render(
            **self._frame(request, user, "Not done"), status=status, reason=reason
        )
        return _html(text, status)

    # -- who it is

    def _as_now(self, user: User) -> User | None:
        try:
            return self._node.users.as_now(user)
        except UsersError as error:
            log.error("login.impossible", error=str(error))
            return None

    def _session(self, request: web.Request) -> Session | None:
        number = request.cookies.get(_cookie(request))
        return None if number is None else self.sessions.find(number)

    async def _user(self, request: web.Request) -> User | None:
        """Return the user of a session or, without one, of a password that came along."""
        session = self._session(request)
        if session is not None:
            return session.user
        given = credentials(request.headers.get("Authorization", ""))
        return None if given is None else await self._checked(request, *given)

    async def _checked(
        self, request: web.Request, scheme: str, name: str, secret: str
    ) -> User | None:
        try:
            user = await self._node.users.check(name, secret, request.remote or "")
        except UsersError as error:
            log.error("login.impossible", error=str(error))
            user = None
        if user is None:
            audit.login_refused("HTTP", request.remote or "", name, scheme)
        return user

    def _form_token(self, request: web.Request) -> str:
        session = self._session(request)
        return self.sessions.form_token(request[USER]) if session is None else session.form_token

    def _to_login(self, request: web.Request) -> web.Response:
        if request.method != "GET" or request.path == LIVE or "HX-Request" in request.headers:
            here = request.headers.get("HX-Current-URL", "/")
            refused = _html("", 401)
            refused.headers["HX-Redirect"] = _login_address(urlsplit(here).path or "/")
            return refused
        return _moved(_login_address(request.rel_url.raw_path_qs))

    # -- log-in and log-out

    async def _ask_login(self, request: web.Request) -> web.Response:
        if await self._user(request) is not None:
            return _moved(_own(request.query.get("to", "/")))
        return self._login_form(request, request.query.get("to", "/"), "", 200)

    def _login_form(self, request: web.Request, to: str, problem: str, status: int) -> web.Response:
        is_new = not self._asks_everybody()
        text = self._template("login.html").render(
            **self._frame(request, None, "Log in"), to=_own(to), problem=problem, is_new=is_new
        )
        return _html(text, status)

    def _asks_everybody(self) -> bool:
        try:
            return self._node.users.asks_everybody
        except UsersError:
            return True

    async def _login(self, request: web.Request) -> web.Response:
        form = await _form(request)
        name, to = form.get("name", ""), form.get("to", "/")
        user = await self._checked(request, "form", name, form.get("password", ""))
        if user is None:
            return self._login_form(request, to, "User name and password do not match.", 403)
        self.sessions.end(request.cookies.get(_cookie(request), ""))
        log.info("page.login", user=user.name, peer=request.remote)
        moved = _moved(_own(to))
        moved.set_cookie(
            _cookie(request), self.sessions.begin(user), httponly=True, samesite="Strict", path="/",
            secure=request.secure,
        )  # fmt: skip
        return moved

    async def _logout(self, request: web.Request) -> web.Response:
        self._check_token(request, await _form(request))
        self.sessions.end(request.cookies.get(_cookie(request), ""))
        log.info("page.logout", user=request[USER].name, peer=request.remote)
        moved = _moved(LOGIN)
        moved.del_cookie(_cookie(request), path="/")
        return moved

    # -- pages and their forms

    def _shows(self, page: Page) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def show(request: web.Request) -> web.StreamResponse:
            view = self._view(request, page)
            data = page.data.get(request.query.get("data", ""))
            if data is not None:
                return _json(await data(view))
            return _html(await self._rendered(view, page, self._take_said(request)))

        return show

    def _acts(self, page: Page) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def act(request: web.Request) -> web.StreamResponse:
            view, form = self._view(request, page), await _form(request)
            self._check_token(request, form)
            action = page.actions.get(form.get(ACTION, ""))
            if action is None:
                raise Refused(400, "bad_request", f"there is no action {form.get(ACTION, '')!r}")
            result = await action(view, form)
            user = user_of(request)
            audit.request_done(
                "page", request.remote or "", user.name, form[ACTION], told_path(request), 200
            )
            if isinstance(result, dict):
                return _html(await self._rendered(view, page, "", result))
            moved = result if isinstance(result, Moved) else Moved(request.raw_path, result)
            return _moved(_with(moved.to, "said", self._say(user.name, moved.text)))

        return act

    def _view(self, request: web.Request, page: Page) -> View:
        """Raises Refused 403: the page is not for this user."""
        user = user_of(request)
        if not page.is_for(user):
            raise Refused(
                403, "access_refused", f"{page.title}: not for user '{user.name}', see its tags"
            )
        return View(self._http, request, self._form_token(request), self._flows)

    async def _rendered(
        self, view: View, page: Page, said: str, result: Context | None = None
    ) -> str:
        shown = {**await page.show(view), "result": result}
        frame = self._frame(view.request, view.user, page.title, page.is_live)
        return self._template(page.template).render({**frame, **shown, "view": view, "said": said})

    def _frame(
        self, request: web.Request, user: User | None, title: str, is_live: bool = False
    ) -> Context:
        """Return what layout.html needs for every page."""
        return {
            "title": title, "user": user, "node_name": node_name(), "version": __version__,
            "menu": [] if user is None else self._menu(request.path, user),
            "alarms": [] if user is None else sorted(self._node.alarms.active),
            "said": "", "live": "",
            "form_token": "" if user is None else self._form_token(request),
            "live_at": LIVE if is_live else "",
        }  # fmt: skip

    def _menu(self, path: str, user: User) -> list[tuple[str, str, bool]]:
        """Return word, address and whether it is the present one, of each page in the menu."""
        return [
            (page.nav, page.path, path == page.path or (
                page.path != "/" and path.startswith(page.path + "/")))
            for page in self._pages if page.nav and page.is_for(user)
        ]  # fmt: skip

    def _check_token(self, request: web.Request, form: Form) -> None:
        """Raises Refused 403: the form is not one that this user was given."""
        given, own = form.get(TOKEN, ""), self._form_token(request)
        if not hmac.compare_digest(given.encode(), own.encode()):
            raise Refused(
                403,
                "form_refused",
                "the form is not of this session: go back, reload and try again",
            )

    def _say(self, user: str, text: str) -> str:
        """Keep a text for the next page of the user; return its name."""
        while len(self._said) >= MOST_SAID:
            del self._said[next(iter(self._said))]
        name = secrets.token_urlsafe(9)
        self._said[name] = (user, text)
        return name

    def _take_said(self, request: web.Request) -> str:
        user, text = self._said.pop(request.query.get("said", ""), ("", ""))
        return text if user == request[USER].name else ""

    def _template(self, name: str) -> Template:
        return self._templates.get_template(name)

    # -- live pages and files

    async def _follow(self, request: web.Request) -> web.StreamResponse:
        """Send the part of a page that changes, as it changes."""
        at = _own(request.query.get("at", "/"))
        wanted, found = await self._resolved(request, request.clone(rel_url=at))
        page = next((one for one in self._pages if _is_route(found, one)), None)
        if page is None or not page.is_live:
            raise Refused(400, "bad_request", f"{wanted.path}: there is no such live page")
        wanted[USER] = request[USER]
        has_session = self._session(request) is not None
        view = self._view(wanted, page)
        template = self._template(page.template)

        def stays() -> bool:
            """Return whether the session goes on, or the user that came without one is there."""
            if has_session:
                return self._session(request) is not None
            return self._as_now(request[USER]) is not None

        async def make() -> str:
            self._node.tell_time()
            self._view(wanted, page)  # its rights may be others by now
            shown = {**self._frame(wanted, view.user, page.title), **await page.show(view)}
            context = template.new_context({**shown, "view": view, "result": None})
            return "".join(template.blocks["live"](context))

        return await self.live.stream(request, request[USER].name, stays, make)

    async def _static(self, request: web.Request) -> web.Response:
        found = self._assets.found(request.match_info["name"])
        if found is None:
            raise web.HTTPNotFound
        body, kind = found
        return web.Response(
            body=body, content_type=kind, charset="utf-8",
            headers={**HEADERS, "Cache-Control": FOREVER},
        )  # fmt: skip


def _is_open(path: str) -> bool:
    """Return whether a path is for everybody: the form to log in, and the files that it needs."""
    return path == LOGIN or path.startswith(ROOT + "static/")


def _is_route(found: Any, page: Page) -> bool:
    resource = found.route.resource
    return resource is not None and resource.canonical == page.path


def _cookie(request: web.Request) -> str:
    """Return the cookie's name: browsers do not tell the ports of a machine apart."""
    return f"{COOKIE}-{request.url.port}"


def _own(address: str) -> str:
    """Return an address on this site; "/" for any other."""
    parts = urlsplit(address)
    is_own = address.startswith("/") and not parts.netloc and "\\" not in address
    is_own = is_own and address.isprintable() and not address.startswith(("//", LIVE, LOGIN))
    return address if is_own else "/"


def _login_address(to: str) -> str:
    return LOGIN if to == "/" else f"{LOGIN}?to={quote(to, safe='')}"


def _with(address: str, name: str, value: str) -> str:
    """Return an address with one more parameter, and without what asks for confirmation."""
    path = urlsplit(address).path
    return f"{path}?{name}={value}"


async def _form(request: web.Request) -> Form:
    """Return the fields of a form. Raises Refused 400, 413."""
    if request.content_type != "application/x-www-form-urlencoded":
        raise Refused(415, "unsupported_media_type", "expected a form")
    return {name: str(value) for name, value in (await request.post()).items()}


def _html(text: str, status: int = 200) -> web.Response:
    return web.Response(
        text=text, status=status, content_type="text/html",
        headers={**HEADERS, "Cache-Control": "no-store"},
    )  # fmt: skip


def _json(value: object) -> web.Response:
    made = answer(value)
    made.headers.update(HEADERS)
    made.headers["Cache-Control"] = "no-store"
    return made


def _moved(to: str) -> web.Response:
    moved = _html("", 303)
    moved.headers["Location"] = to
    return moved
