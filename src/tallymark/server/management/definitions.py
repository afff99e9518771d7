"""GET and POST /api/definitions, of everything or of one virtual host; administrators only.

An import is answered with 204, as RabbitMQ does, where everything was taken. Where something was
passed over it is 200 and `{"imported": counts, "unsupported": [texts]}`.
"""

from __future__ import annotations

import asyncio

from aiohttp import web

from tallymark.server.access.user import UsersError
from tallymark.server.definitions.document import (
    DefinitionsRefused,
    export_all,
    export_vhost,
    import_definitions,
)
from tallymark.server.http.requests import (
    HttpContext,
    Refused,
    answer,
    require_administrator,
    user_of,
)
from tallymark.server.management.requests import Routes, refused_by_users, uploaded_fields


class Definitions(Routes):
    """Routes under /api/definitions."""

    def __init__(self, http: HttpContext) -> None:
        super().__init__(http)
        self._importing = asyncio.Lock()
        """Lock of imports: each is planned against the result of the one before."""

    def add_to(self, app: web.Application) -> None:
        for path in ("/api/definitions", "/api/definitions/{vhost}", "/api/all-configuration"):
            app.router.add_get(path, self._export)
            app.router.add_post(path, self._import)

    async def _export(self, request: web.Request) -> web.Response:
        require_administrator(request)
        if "vhost" in request.match_info:
            found = export_vhost(self.vhost(request), self.node.broker.quotas)
        else:
            try:
                found = export_all(self.node, self.node.users.current())
            except UsersError as error:
                raise Refused(503, "users_unreadable", str(error)) from error
        name = request.query.get("download")
        exported = answer(found)
        if name:
            exported.headers["Content-Disposition"] = "attachment"
        return exported

    async def _import(self, request: web.Request) -> web.Response:
        require_administrator(request)
        vhost = self.vhost(request).name if "vhost" in request.match_info else None
        value = (await uploaded_fields(request)).value
        async with self._importing:
            try:
                with refused_by_users():
                    by = user_of(request).name
                    imported = await import_definitions(self.node, value, by, vhost)
            except DefinitionsRefused as error:
                raise Refused(400, "bad_request", str(error)) from error
        found = {"imported": imported.counts, "unsupported": imported.unsupported}
        if imported.failed:
            reason = "; ".join(imported.failed)
            return answer(
                {
                    "error": "bad_request",
                    "reason": f"all else was imported: {reason}",
                    **found,
                    "failed": imported.failed,
                },
                400,
            )
        return answer(found) if imported.unsupported else web.Response(status=204)
