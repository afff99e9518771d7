"""The report as one HTML page that needs nothing else: style, plots and a script are in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any, Final

from tallymark import __version__
from tallymark.spark.report import charts, words
from tallymark.spark.report.findings import STATES
from tallymark.spark.report.pathmap import draw
from tallymark.spark.report.script import SCRIPT
from tallymark.spark.report.style import STYLE
from tallymark.stored.records import UNSURE

Data = dict[str, Any]
MOST_ROWS: Final = 12
"""Rows of a table that are shown at once; the others unfold."""
MOST_FOLDED: Final = 1000
"""Rows that unfold: short-lived consumers come in any number, and a browser holds the page."""
MOST_BARS: Final = 15
MOST_WHYS: Final = 3
"""Reasons of a queue that stand beside its name."""
OVER_TIME: Final = {"p50_ms": "p50", "p95_ms": "p95", "p99_ms": "p99"}
ACCOUNTED: Final = ("entered", "there", "settled", "dead_lettered", "dropped", "difference")
SHOWN: Final = ("p50", "p90", "p95", "p99", "p999", "longest")
FLOW: Final = {
    "entered": "Published",
    "settled": "Settled",
    "returned": "Given back",
    "dead_lettered": "Dead-lettered",
    "dropped": "Dropped",
}


def html(data: Data, title: str = "What became of the messages") -> str:
    """Return the page that shows the result of findings.collect."""
    written = [(key, name, write(data)) for key, name, write in CHAPTERS]
    told = [one for one in written if one[2]]
    body = "".join(
        f'<section id="{key}"><h2>{escape(name)}</h2>{text}</section>' for key, name, text in told
    )
    links = "".join(f'<a href="#{key}">{escape(name)}</a>' for key, name, _ in told)
    silent = [name for _, name, text in written if not text]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>"
        f"<header><h1>{escape(title)}</h1>{_lead(data)}</header>"
        f"{_verdict(data)}{_tiles(data)}<nav>{links}</nav>{WINDOW}{body}{_silent(silent)}"
        f"<footer>Tallymark {escape(__version__)}, from the ledger, which is the journal itself"
        f"</footer></main><script>{SCRIPT}</script></body></html>\n"
    )


WINDOW: Final = (
    '<p id="window" hidden>Shown: <span></span> <button type="button">all of the time</button></p>'
)
"""A line that is there while a part of the time is looked at."""


def _verdict(data: Data) -> str:
    found = data["verdict"]
    kind = "good" if found["good"] else "bad"
    told = "".join(
        f"<li><b>{escape(one['queue'])}</b>: {escape('; '.join(one['why'][:MOST_WHYS]))}"
        f"{_more(len(one['why']) - MOST_WHYS)}</li>"
        for one in found["queues"][:MOST_ROWS]
    )
    rest = _more(len(found["queues"]) - MOST_ROWS)
    listed = f"<ul>{told}</ul>{rest}" if told else ""
    return f'<div class="verdict {kind}"><b>{escape(found["text"])}</b>{listed}</div>'


def _more(count: int) -> str:
    return f"; {words.count(count)} more" if count > 0 else ""


def _silent(names: Sequence[str]) -> str:
    if not names:
        return ""
    return f'<p class="lead">Nothing to say of: {escape(", ".join(names))}</p>'


def _lead(data: Data) -> str:
    if not data["from"]:
        return '<p class="lead">The ledger tells of no message.</p>'
    begin, end, as_of = (
        f'<span class="time">{_time(data[name])}</span>' for name in ("from", "to", "as_of")
    )
    source = f" of {escape(data['source'])}" if data.get("source") else ""
    return f'<p class="lead">{begin} to {end} UTC, from the ledger{source} as of {as_of} UTC.</p>'


def _tiles(data: Data) -> str:
    totals = data["totals"]
    tiles = [
        (words.count(totals["entered"]), "entered a queue"),
        (words.count(totals["settled"]), "settled"),
        (words.count(totals["returned"] + totals["deferred"]), "given back"),
        (words.count(totals["dead_lettered"]), "dead-lettered"),
        (words.count(totals["dropped"]), "dropped"),
    ]
    if totals[UNSURE]:
        tiles.append((words.count(totals[UNSURE]), "may have been delivered before a crash"))
    inner = "".join(f'<div class="tile"><b>{n}</b><span>{name}</span></div>' for n, name in tiles)
    return f'<div class="tiles">{inner}</div>'


# -- chapters


def _account(data: Data) -> str:
    found = data["account"]
    if not found:
        return ""
    lead = (
        '<p class="lead">Every message that entered a queue is there, settled, dead-lettered '
        "or dropped. The difference is what these do not add up to; "
        "<code>tallymark pipeline reconcile</code> has the details.</p>"
    )
    columns = (
        ("queue", _text("queue")),
        *((name.replace("_", "-"), _number(name)) for name in ACCOUNTED),
    )
    shown = lead + _table(found["queues"], columns)
    if not found["faults"]:
        return shown
    faults = (
        ("queue", _text("queue")),
        ("sequences", lambda r: f"{r['first']:,} to {r['last']:,}"),
        ("what", _text("fault")),
        ("message id", lambda r: "-" if r["message_id"] is None else str(r["message_id"])),
    )
    return f"{shown}<h3>What breaks it</h3>{_table(found['faults'], faults)}"


def _cards(
    data: Data,
    rows: list[Any],
    figures: Callable[[Any], str],
    plot: Callable[[Any, int, int], str],
) -> str:
    """Return a card for each of these queues: name, figures and plot. All plots span the time of
    all queues. plot: is given a queue's points, and the first and last time, ms since 1970."""
    first = min(row["points"][0][0] for row in data["depth"])
    last = max(row["points"][-1][0] for row in data["depth"])
    cards = [
        f'<div class="topic"><p><b>{escape(row["queue"])}</b> <span class="figures">'
        f"{figures(row)}</span></p>{plot(row['points'], first, last)}</div>"
        for row in rows
    ]
    return f'<div class="topics">{"".join(cards)}</div>'


def _depth(data: Data) -> str:
    rows = data["depth"]
    if not rows:
        return ""
    every = data["bucket_ms"]
    most = [row for row in sorted(rows, key=lambda one: -one["deepest"]) if row["deepest"]]
    cards = _cards(
        data,
        most[:MOST_ROWS],
        lambda row: (
            f"{words.count(row['depth'])} at the end, {words.count(row['deepest'])} at most"
        ),
        lambda points, first, last: charts.depth(points, first, last, every),
    )
    columns = (
        ("queue", _text("queue")),
        ("at the end", _number("depth")),
        ("at most", _number("deepest")),
        ("grew by", _number("grew")),
    )
    lead = '<p class="lead">Messages in each queue, in whatever state, deepest first.</p>'
    deepest = sorted(rows, key=lambda one: (-one["depth"], one["queue"]))
    return lead + cards + _table(deepest, columns, fold=True)


def _traffic(data: Data) -> str:
    rows = data["depth"]
    if not rows:
        return ""
    every = data["bucket_ms"]
    cards = _cards(
        data,
        rows[:MOST_ROWS],
        lambda row: f"{words.count(row['entered'])} in, {words.count(row['ended'])} out",
        lambda points, first, last: charts.spark(
            [(p[0], p[1]) for p in points], first, last, every
        ),
    )
    columns = (
        ("queue", _text("queue")),
        ("entered", _number("entered")),
        ("left", _number("ended")),
    )
    lead = f"Messages that entered each queue, in steps of {words.duration(every)}, busiest first."
    shown = f'<p class="lead">{lead}</p>{cards}'
    return _flow(data) + "<h3>Queue by queue</h3>" + shown + _table(rows, columns, fold=True)


def _flow(data: Data) -> str:
    if not data["flow"]:
        return ""
    every = words.duration(data["bucket_ms"])
    return (
        f'<p class="lead">Messages in steps of {every}. What the broker moved from queue to queue '
        "is left out.</p>" + charts.lines(data["flow"], FLOW, data["bucket_ms"])
    )


def _latency(data: Data) -> str:
    rows = data["latency"]
    if not rows:
        return ""
    lead = (
        '<p class="lead">End-to-end latency: from entering a queue, or an NSQ channel, to being '
        "settled by its consumer, each message counted. Over time of all queues, then of each, "
        "slowest first by p99.</p>"
    )
    columns = (
        ("queue", _text("queue")),
        ("messages", lambda r: words.count(r["count"])),
        *((p.replace("999", "99.9"), _took(f"{p}_ms")) for p in SHOWN),
    )
    over_time = charts.durations(data["latency_over_time"], OVER_TIME, data["bucket_ms"])
    return lead + over_time + charts.ranges(rows[:MOST_BARS]) + _table(rows, columns)


def _topics(data: Data) -> str:
    topics = data["topics"]
    if not topics:
        return ""
    first = min(t["points"][0][0] for t in topics)
    last = max(t["points"][-1][0] for t in topics)
    cards = []
    for topic in topics[:MOST_ROWS]:
        queues = ", ".join(f"{name} {words.brief(n)}" for name, n in topic["queues"].items())
        picture = charts.spark(topic["points"], first, last, data["bucket_ms"])
        cards.append(
            f'<div class="topic"><p><b>{escape(topic["topic"])}</b> '
            f'<span class="figures">{words.count(topic["consumed"])} consumed, '
            f"{words.rate(topic['per_second'])}</span></p>{picture}"
            f'<p class="figures">{escape(queues)}</p></div>'
        )
    columns = (
        ("topic", _text("topic")),
        ("consumed", lambda r: words.count(r["consumed"])),
        ("rate", lambda r: words.rate(r["per_second"])),
    )
    more = _table(topics, columns, fold=True) if len(topics) > MOST_ROWS else ""
    return (
        '<p class="lead">A topic is the exchange that a message was published to (an NSQ topic is '
        "one); what came through the default exchange counts for its queue. Of transient messages "
        "the ledger keeps no exchange.</p>"
        f'<div class="topics">{"".join(cards)}</div>{more}'
    )


def _deliveries(data: Data) -> str:
    rows = [row for row in data["deliveries"] if row["deliveries"]]
    if not rows:
        return ""
    again = [row for row in rows if row["redelivered"] or row["timed_out"]]
    lead = (
        '<p class="lead">Deliveries that were not the first of their message, and those that '
        "ended because their time was over, as a share of all deliveries of the queue.</p>"
    )
    bars = [
        (
            row["queue"],
            (row["redelivery_rate"] * 100,),
            f"{words.percent(row['redelivery_rate'])} of {words.brief(row['deliveries'])}",
        )
        for row in again[:MOST_BARS]
    ]
    plot = charts.bars(bars)
    columns = (
        ("queue", _text("queue")),
        ("deliveries", lambda r: words.count(r["deliveries"])),
        ("again", lambda r: words.count(r["redelivered"])),
        ("rate", lambda r: words.percent(r["redelivery_rate"])),
        ("timed out", lambda r: words.count(r["timed_out"])),
        ("rate", lambda r: words.percent(r["timeout_rate"])),
        ("given back by", lambda r: _reasons(r["given_back"])),
    )
    return lead + plot + _table(rows, columns)


def _paths(data: Data) -> str:
    paths = data["paths"]
    if not paths["edges"] and not paths["drops"]:
        return ""
    lead = (
        '<p class="lead">Which way messages went that died in a queue, and why; and what was '
        "redriven.</p>"
    )
    if paths["cycles"]:
        named = "; ".join(" → ".join([*group, group[0]]) for group in paths["cycles"])
        lead += f'<p><span class="chip bad">cycles</span> {escape(named)}</p>'
    elif paths["edges"]:
        lead += '<p><span class="chip good">no cycles</span></p>'
    edges = _table(
        paths["edges"],
        (
            ("from", _text("source")),
            ("to", _text("target")),
            ("cause", _text("cause")),
            ("messages", lambda r: words.count(r["count"])),
        ),
    )
    drops = _table(
        paths["drops"],
        (
            ("dropped from", _text("queue")),
            ("cause", _text("cause")),
            ("messages", lambda r: words.count(r["count"])),
        ),
    )
    if paths["drops"]:
        drops = f"<h3>Dropped</h3>{drops}"
    return lead + draw(paths) + (edges if paths["edges"] else "") + drops


def _consumers(data: Data) -> str:
    rows = data["consumers"]
    if not rows:
        return ""
    held = [row for row in rows if row["p95_ms"] is not None]
    bars = [
        (
            _who(row),
            (row["p50_ms"], row["p95_ms"] - row["p50_ms"]),
            f"{words.duration(row['p50_ms'])} to {words.duration(row['p95_ms'])}",
        )
        for row in held[:MOST_BARS]
    ]
    columns = (
        ("", lambda r: str(r["rank"])),
        ("queue", _text("queue")),
        ("consumer", _consumer),
        ("delivered", lambda r: words.count(r["delivered"])),
        ("settled", lambda r: words.count(r["settled"])),
        ("rate", lambda r: words.rate(r["per_second"])),
        ("p50", _took("p50_ms")),
        ("p95", _took("p95_ms")),
        ("longest", _took("longest_ms")),
        ("refused", lambda r: words.count(r["refused"])),
        ("given back", lambda r: words.count(r["given_back"])),
        ("timed out", lambda r: words.count(r["timed_out"])),
    )
    slow = data["slow_consumers"]
    found = ""
    if slow:
        found = "<h3>Found to be too slow by the broker</h3>" + _table(
            slow,
            (
                ("queue", _text("queue")),
                ("consumer", lambda r: str(r["consumer"])),
                ("what", _text("event")),
                ("when", lambda r: _time(r["at"])),
            ),
        )
    return (
        '<p class="lead">How long consumers held a message before they settled, refused or '
        "returned it; slowest first by p95. Consumers that settle nothing by hand stand at the "
        "end.</p>" + charts.bars(bars, ("p50", "to p95")) + _table(rows, columns) + found
    )


def _credit(data: Data) -> str:
    rows = data["credit"]
    limit = words.duration(data["stalled_ms"])
    lead = (
        '<p class="lead">Links that held messages at the end. <i>Leaked</i>: some for longer than '
        f"{limit}, though the link has settled others since. <i>Stalled</i>: it has settled "
        "nothing since.</p>"
    )
    if not rows:
        return ""
    colours = dict(zip(STATES, ("bad", "warn", "", "good"), strict=True))
    columns = (
        ("queue", _text("queue")),
        ("link", _text("link")),
        ("holds", lambda r: words.count(r["held"])),
        ("the oldest for", _took("oldest_ms")),
        ("settled last", lambda r: _ago(r["settled_ms_ago"])),
        ("state", lambda r: f'<span class="chip {colours[r["state"]]}">{r["state"]}</span>'),
    )
    return lead + _table(rows, columns, raw=("state",))


def _duplicates(data: Data) -> str:
    rows = data["duplicates"]
    lead = (
        '<p class="lead">Messages that consumers were handed more than once, and publishes that a '
        "deduplicating queue passed over because it knew their id.</p>"
    )
    if not rows:
        return ""
    columns = (
        ("queue", _text("queue")),
        ("handed out again", lambda r: words.count(r["seen_again"])),
        ("most deliveries of one", lambda r: words.count(r["most_deliveries"])),
        ("publishes passed over", lambda r: words.count(r["passed_over"])),
    )
    bars = [
        (
            row["queue"],
            (row["seen_again"], row["passed_over"]),
            words.count(row["seen_again"] + row["passed_over"]),
        )
        for row in rows[:MOST_BARS]
    ]
    plot = charts.bars(bars, ("handed out again", "passed over"))
    return lead + plot + _table(rows, columns)


def _inversions(data: Data) -> str:
    rows = data["inversions"]
    lead = (
        '<p class="lead">Deliveries that came after a later message of their queue had been '
        "handed out: because it was given back or rolled back meanwhile, or on its first delivery "
        "(priorities, deferral, filters).</p>"
    )
    if not rows:
        return ""
    columns = (
        ("queue", _text("queue")),
        ("after a return", lambda r: words.count(r["after_return"])),
        ("on first delivery", lambda r: words.count(r["first_delivery"])),
        ("furthest, in places", lambda r: words.count(r["furthest"])),
    )
    bars = [
        (
            row["queue"],
            (row["after_return"], row["first_delivery"]),
            words.count(row["after_return"] + row["first_delivery"]),
        )
        for row in rows[:MOST_BARS]
    ]
    return lead + charts.bars(bars, ("after a return", "on first delivery")) + _table(rows, columns)


CHAPTERS: Final[tuple[tuple[str, str, Callable[[Data], str]], ...]] = (
    ("account", "Is every message accounted for?", _account),
    ("depth", "Is a backlog growing?", _depth),
    ("flow", "How much goes through?", _traffic),
    ("latency", "How long do messages take?", _latency),
    ("consumers", "Which consumers are slow?", _consumers),
    ("credit", "Does anybody hold messages and not settle them?", _credit),
    ("deliveries", "What is delivered again?", _deliveries),
    ("paths", "Where do messages die, and where do they go?", _paths),
    ("topics", "What is consumed of each topic?", _topics),
    ("duplicates", "What came twice?", _duplicates),
    ("inversions", "What came out of order?", _inversions),
)
"""Questions that an operator asks, those first that cannot wait; one that has no answer in this
ledger is left out."""


# -- parts

Column = tuple[str, Callable[[dict[str, Any]], str]]
TEXTS: Final = ("queue", "topic", "from", "to", "cause", "dropped from", "link", "consumer",
                "given back by", "state", "what", "when")  # fmt: skip


def _table(
    rows: Sequence[dict[str, Any]],
    columns: Sequence[Column],
    raw: Sequence[str] = (),
    fold: bool = False,
) -> str:
    """raw: columns whose cells are HTML already. fold: all of it unfolds."""
    most = 0 if fold else MOST_ROWS
    out = "" if fold else _rows(rows[:most], columns, raw)
    if len(rows) > most:
        end = most + MOST_FOLDED
        rest = _rows(rows[most:end], columns, raw)
        if len(rows) > end:
            rest += _none(f"{words.count(len(rows) - end)} more, which the report as JSON has.")
        what = "all" if fold else f"{words.count(len(rows) - most)} more"
        out += f"<details><summary>{what}</summary>{rest}</details>"
    return out


def _rows(rows: Sequence[dict[str, Any]], columns: Sequence[Column], raw: Sequence[str]) -> str:
    kinds = [' class="text"' if name in TEXTS else "" for name, _ in columns]
    head = "".join(
        f"<th{kind}>{escape(name)}</th>" for kind, (name, _) in zip(kinds, columns, strict=True)
    )
    body = []
    for row in rows:
        cells = [
            f"<td{kind}>{cell(row) if name in raw else escape(cell(row))}</td>"
            for kind, (name, cell) in zip(kinds, columns, strict=True)
        ]
        body.append(f"<tr>{''.join(cells)}</tr>")
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _number(key: str) -> Callable[[dict[str, Any]], str]:
    return lambda row: words.count(row[key])


def _text(key: str) -> Callable[[dict[str, Any]], str]:
    return lambda row: str(row[key])


def _took(key: str) -> Callable[[dict[str, Any]], str]:
    return lambda row: words.duration(row[key])


def _ago(ms: int | None) -> str:
    return "never" if ms is None else f"{words.duration(ms)} before"


def _reasons(given_back: dict[str, int]) -> str:
    return ", ".join(f"{reason} {words.count(n)}" for reason, n in sorted(given_back.items()))


def _who(row: dict[str, Any]) -> str:
    return f"{row['queue']}, {_consumer(row)}"


def _consumer(row: dict[str, Any]) -> str:
    """Its number comes first: a program that comes again has the same name each time."""
    return f"{row['consumer']} {row['name']}".strip()


def _none(text: str) -> str:
    return f'<p class="none">{escape(text)}</p>'


def _time(iso: str) -> str:
    return iso.replace("T", " ").removesuffix("Z")
