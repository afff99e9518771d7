"""The first page: what waits, what moves, what runs low and what is wrong, in plain words."""

from __future__ import annotations

from tallymark.server.page.view import Context, Page, View


async def show(view: View) -> Context:
    vhosts = view.routes.vhosts(view.request)
    queues = [queue for vhost in vhosts for queue in vhost.queues.values()]
    sums = await view.routes.sums(view.request, queues)
    return {"sums": sums, "queues": len(queues)}


PAGE = Page("/", "Overview", "overview.html", show, nav="Overview")
