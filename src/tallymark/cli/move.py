"""`tallymark move`: messages from one queue to another, of one broker or of two."""

from __future__ import annotations

import asyncio
import platform
import signal
import sys
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import quote
from uuid import uuid4

import typer

from tallymark.cli.inspect import LOGIN, URL, Login, Url, ask
from tallymark.cli.output import USAGE, fail
from tallymark.cli.topology import Vhost, queue_path
from tallymark.spark.client import api_path

if TYPE_CHECKING:
    from tallymark.shovels.plan import Plan
    from tallymark.shovels.runner import Runner

BATCH: Final = 1000
"""Messages that are moved in one request."""
LOOKED_AT: Final = 10_000
"""Messages that a dry run looks at: the most of one request, as it moves none out of the way."""
MOVED: Final = "moved"


Source = Annotated[str | None, typer.Argument(help="Queue that the messages leave; or --queue.")]
Target = Annotated[
    str | None,
    typer.Argument(help="Queue that they enter; between brokers the same name unless given."),
]
Queue = Annotated[str | None, typer.Option(help="Queue that the messages leave.")]
Origin = Annotated[
    str | None,
    typer.Option("--from", help="Broker that has the queue; that of --url unless given."),
]
To = Annotated[str | None, typer.Option(help="Broker that they go to; that of --url unless given.")]
ToExchange = Annotated[
    str | None, typer.Option(help="Exchange of that broker, in place of a queue.")
]
ToKey = Annotated[
    str | None, typer.Option(help="Routing key there; each message's own unless given.")
]
Count = Annotated[
    int | None, typer.Option(min=1, help="Most messages; without it, all that are ready.")
]
Follow = Annotated[
    bool, typer.Option("--follow", help="Wait for further messages, until interrupted.")
]
Definitions = Annotated[
    bool,
    typer.Option(
        "--definitions",
        help="Move no messages, but exchanges, queues, bindings, policies and users: from the "
        "management interface of a RabbitMQ or a file.",
    ),
]
Name = Annotated[str, typer.Option(help="Name of a move between brokers, by which it is resumed.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would move, and move nothing.")]


def move(
    source: Source = None,
    target: Target = None,
    queue: Queue = None,
    origin: Origin = None,
    to: To = None,
    to_exchange: ToExchange = None,
    to_key: ToKey = None,
    count: Count = None,
    follow: Follow = False,
    definitions: Definitions = False,
    name: Name = "move",
    dry_run: DryRun = False,
    vhost: Vhost = "/",
    url: Url = URL,
    user: Login = LOGIN,
) -> None:
    """Move ready messages to another queue, those first that would be delivered next.

    Within a broker each is moved whole and once, in one step on disk. With --from or --to it goes
    to another broker: amqp:// (RabbitMQ and others over AMQP 0-9-1), amqp10:// (AMQP 1.0), nsq://,
    http:// (another Tallymark: each message once, whatever is killed). Nothing is lost when it is
    killed; the same command goes on. With --definitions what messages need goes there first: --from
    is an http:// address of a management interface, or a file.

    Exit code 1 where some stay: the target is full, or a message cannot be read.
    """
    if definitions:
        if origin is None or source is not None or queue is not None:
            fail("--definitions goes with --from and no queue: all of them are moved", USAGE)
        return _definitions(origin, to or url, user)
    if (source is None) == (queue is None):
        fail("expected the queue that the messages leave, once", USAGE)
    leaves = source if source is not None else str(queue)
    if origin is None and to is None:
        if follow or to_exchange is not None or to_key is not None:
            fail("--follow, --to-exchange and --to-key are for moves with --from or --to", USAGE)
        if target is None:
            fail("expected the queue that the messages enter", USAGE)
        return _within(leaves, target, count, dry_run, vhost, url, user)
    if dry_run:
        fail("--dry-run is for moves within a broker", USAGE)
    here = _address(url, user, vhost)
    table: dict[str, object] = {
        "name": name, "from": origin or here, "queue": leaves, "to": to or here,
        "to-queue": target, "to-exchange": to_exchange, "to-key": to_key,
    }  # fmt: skip
    given = {key: value for key, value in table.items() if value is not None}
    return _between(given, count, follow)


def _within(
    source: str, target: str, count: int | None, dry_run: bool, vhost: str, url: str, user: str
) -> None:
    if source == target:
        fail(f"source and target are both '{source}', expected two queues", USAGE)
    ask(url, user, "GET", queue_path(vhost, target))
    ready = ask(url, user, "GET", queue_path(vhost, source))["messages_ready"]
    left = whole = ready if count is None else min(count, ready)
    found: Counter[str] = Counter()
    run = f"move-{uuid4().hex}"
    while left > 0:
        wanted: dict[str, object] = {
            "oldest": min(left, LOOKED_AT if dry_run else BATCH),
            "run": run,
            "exchange": "",
            "routing_key": target,
            "dry_run": dry_run,
        }
        answer = ask(url, user, "POST", api_path("redrive", vhost, source), wanted)
        batch = Counter(status for status, _ in answer["results"])
        found += batch
        left -= batch[MOVED]
        if dry_run or batch[MOVED] < batch.total() or not batch:
            break
    rest = ""
    if dry_run and found.total() == LOOKED_AT < whole:
        rest = f", {whole - LOOKED_AT:,} more are not looked at"
    print(f"{found[MOVED]:,} {'would be moved' if dry_run else 'moved'} to '{target}'{rest}")
    stayed = ", ".join(f"{n:,} {status}" for status, n in found.items() if status != MOVED)
    if stayed:
        fail(f"stopped at messages that stay in '{source}': {stayed.replace('_', ' ')}")


def _definitions(origin: str, url: str, user: str) -> None:
    """Have the broker at `url` take in the definitions of another, or of a file."""
    from pathlib import Path

    from tallymark.cli.definitions import read, take_in
    from tallymark.shovels.plan import shown

    if "://" not in origin:
        return take_in(read(Path(origin)), origin, None, url, user)
    if not origin.startswith(("http://", "https://")):
        fail(
            f"--from is {shown(origin)!r}, expected http:// or https:// and the address of a "
            "management interface, or a file",
            USAGE,
        )
    found = ask(origin, user, "GET", "/api/definitions")
    return take_in(found, shown(origin), None, url, user)


def _address(url: str, login: str, vhost: str) -> str:
    """Return the broker of --url as an end of a shovel."""
    scheme, slashes, rest = url.rpartition("://")
    if "@" not in rest:
        name, _, password = login.partition(":")
        rest = f"{quote(name, safe='')}:{quote(password, safe='')}@{rest}"
    return f"{scheme or 'http'}{slashes or '://'}{rest.rstrip('/')}/{quote(vhost, safe='')}"


def _between(table: dict[str, Any], count: int | None, follow: bool) -> None:
    from tallymark.shovels.making import attempts_of
    from tallymark.shovels.plan import Plan, PlanRefused
    from tallymark.shovels.runner import Runner
    from tallymark.shovels.shovel import Pace, Shovel

    try:
        plan = Plan.from_table(table)
    except PlanRefused as error:
        fail(str(error), USAGE)
    pace = Pace(most=count, follows=follow, persists=False)

    told = ""

    def failed(shovel: Shovel) -> None:
        nonlocal told
        after = "; trying again until Ctrl-C" if shovel.tries_again else ""
        if shovel.problem + after != told:
            told = shovel.problem + after
            print(f"tallymark: {told}", file=sys.stderr)

    by = f"tallymark move at {platform.node() or 'localhost'}"
    runner = Runner(pace, attempts_of(plan, by, pace), failed)
    asyncio.run(_run(runner))
    shovel = runner.shovel
    print(f"{shovel.moved:,} moved to {_there(plan)}")
    if shovel.problem:
        sys.exit(1)


async def _run(runner: Runner) -> None:
    from tallymark.shovels.ends import ShovelFailed

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, runner.stop)
    await runner.run()
    if not runner.shovel.problem:
        try:
            await runner.forget()
        except ShovelFailed as error:  # mostly for want of the right: what is left moves nothing
            print(f"tallymark: moved, but not cleared away: {error}", file=sys.stderr)


def _there(plan: Plan) -> str:
    from tallymark.shovels.plan import shown

    where = f"exchange '{plan.to_exchange}'" if plan.to_exchange is not None else None
    return f"{where or repr(plan.to_queue or plan.queue)} of {shown(plan.target)}"


def add_to(app: typer.Typer) -> None:
    app.command()(move)
