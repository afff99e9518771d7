"""Page of the answer: one HTML file that needs nothing else, in the style of the report's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from html import escape
from typing import Any, Final

from tallymark import __version__
from tallymark.spark.report import charts, words
from tallymark.spark.report.script import SCRIPT
from tallymark.spark.report.style import STYLE
from tallymark.whatif.comparison import faithfulness_text, took

MEASURES: Final = (
    ("depth", "Messages there"), ("oldest_ms", "Age of the oldest, ms"), ("bytes", "Bytes there"),
)  # fmt: skip
MOST_QUEUES: Final = 12
"""Queues of a world that are drawn: those that differ most."""


def html(
    results: Sequence[Mapping[str, Any]], question: str = "", lacks: Mapping[str, int] | None = None
) -> str:
    """Return the page. results: of the world as it was, then of each change. lacks: gaps of the
    ledger, with counts."""
    base = results[0]
    title = f"What if {question}?" if question else "What would have happened"
    body = "".join(_world(base, one, not question) for one in results[1:])
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>"
        f"<header><h1>{escape(title)}</h1>"
        f'<p class="lead">{escape(_stretch(base))}{escape(faithfulness_text(base["faithfulness"]))}'
        f"</p></header>{_sweep(results)}{body}{_faithful(base, lacks or {})}"
        f"<footer>Tallymark {escape(__version__)}, from the ledger, played again</footer>"
        f"</main><script>{SCRIPT}</script></body></html>\n"
    )


def _stretch(base: Mapping[str, Any]) -> str:
    """Return which traffic was played: from when to when."""
    times = [at for one in base["queues"].values() for at in one["series"]["at_ms"]]
    if not times:
        return ""
    step = min(
        (one["series"]["at_ms"][1] - one["series"]["at_ms"][0]
         for one in base["queues"].values() if len(one["series"]["at_ms"]) > 1), default=0,
    )  # fmt: skip
    begin, end = (
        datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
        for at in (min(times) - step, max(times))
    )
    return f"The traffic from {begin} to {end}; all times are UTC. "


def _sweep(results: Sequence[Mapping[str, Any]]) -> str:
    if len(results) < 3:
        return ""
    rows = "".join(
        f'<tr><td class="text"><a href="#{_anchor(one)}">{escape(one["name"])}</a></td>'
        f"<td>{_yes(one['verdict'])}</td>"
        f'<td class="text">{escape("; ".join(one["verdict"]["why"][:3]))}</td></tr>'
        for one in results[1:]
    )
    head = '<tr><th class="text">world</th><th>may be</th><th class="text">why not</th></tr>'
    return f'<section><h2>Worlds</h2><div class="wide"><table>{head}{rows}</table></div></section>'


def _yes(found: Mapping[str, Any]) -> str:
    kind, word = ("good", "yes") if found["good"] else ("bad", found["text"].split(",")[0].lower())
    return f'<span class="chip {kind}">{escape(word.split(":")[0])}</span>'


def _anchor(one: Mapping[str, Any]) -> str:
    return f"w{blake2b(one['name'].encode(), digest_size=6).hexdigest()}"


def _world(base: Mapping[str, Any], one: Mapping[str, Any], is_named: bool) -> str:
    found = one["verdict"]
    kind = "good" if found["good"] else "bad"
    why = "".join(f"<li>{escape(text)}</li>" for text in found["why"])
    told = "".join(f"<li>{escape(text)}</li>" for text in one["differences"])
    share = one["drawn"] / one["delivered"] if one["delivered"] else 0.0
    rests = (
        f'<p class="lead">{escape(words.percent(share))} of the deliveries rest on answers '
        "or times that were drawn from what consumers did with other messages.</p>"
    )
    largest = f"<h3>The largest differences</h3><ul>{told}</ul>" if told else ""
    return (
        f'<section id="{_anchor(one)}"><h2>{escape(one["name"]) if is_named else "Answer"}</h2>'
        f'<div class="verdict {kind}"><b>{escape(found["text"])}</b><ul>{why}</ul></div>'
        f"{largest}{rests}{_table(base, one)}{_charts(base, one)}</section>"
    )


def _table(base: Mapping[str, Any], one: Mapping[str, Any]) -> str:
    """Return tables of accounts, what was beside what would have been: of the queues that differ,
    and folded away those that do not."""
    differ, alike, count = [], [], 0
    for queue in sorted({*base["queues"], *one["queues"]}):
        rows = list(_rows_of(queue, base["queues"].get(queue), one["queues"].get(queue)))
        if any(before != after for _, _, before, after in rows):
            differ += rows
        else:
            alike += rows
            count += bool(rows)
    out = _shown(differ) if differ else '<p class="none">No queue would have been different.</p>'
    if alike:
        queues = "1 queue" if count == 1 else f"{count} queues"
        out += f"<details><summary>{queues} as before</summary>{_shown(alike)}</details>"
    return out


def _rows_of(
    queue: str, was: Mapping[str, Any] | None, told: Mapping[str, Any] | None
) -> Iterator[tuple[str, str, str, str]]:
    """Yield queue, measure, and its two values."""
    accounts = [one["account"] if one else {} for one in (was, told)]
    for name in sorted({*accounts[0], *accounts[1]}, key=lambda name: (name != "entered", name)):
        before, after = (account.get(name, 0) for account in accounts)
        if before or after:
            yield queue, name, words.count(before), words.count(after)
    for key in ("p50", "p99"):
        before_text, after_text = (_settled_after(one, key) for one in (was, told))
        if before_text or after_text:
            yield queue, f"settled after, {key}", before_text, after_text


def _shown(rows: Sequence[tuple[str, str, str, str]]) -> str:
    cells, last = [], ""
    for queue, name, before, after in rows:
        shown = escape(after) if before == after else f"<b>{escape(after)}</b>"
        cells.append(
            f'<tr><td class="text">{escape(queue) if queue != last else ""}</td>'
            f'<td class="text">{escape(name)}</td><td>{escape(before)}</td><td>{shown}</td></tr>'
        )
        last = queue
    head = (
        '<tr><th class="text">queue</th><th class="text">messages</th>'
        "<th>was</th><th>would have been</th></tr>"
    )
    return f'<div class="wide"><table>{head}{"".join(cells)}</table></div>'


def _settled_after(told: Mapping[str, Any] | None, key: str) -> str:
    if told is None or not told["account"].get("settled"):
        return ""
    return took(told["latency_ms"][key])


def _charts(base: Mapping[str, Any], one: Mapping[str, Any]) -> str:
    changed = [
        (abs(_area(base, queue) - _area(one, queue)), queue)
        for queue in one["queues"]
        if queue in base["queues"]
    ]
    out = []
    for weight, queue in sorted(changed, key=lambda c: (-c[0], c[1]))[:MOST_QUEUES]:
        if not weight and len(changed) > 1:
            continue
        for measure, name in MEASURES:
            was, told = (x["queues"][queue]["series"] for x in (base, one))
            times = was["at_ms"]
            step = times[1] - times[0] if len(times) > 1 else 1000
            points = [
                {"at_ms": at - step, "was": a, "would": b}
                for at, a, b in zip(times, was[measure], told[measure], strict=True)
            ]
            drawn = charts.lines(points, {"was": "Was", "would": "Would have been"}, step)
            if drawn:
                out.append(f"<h3>{escape(queue)}: {escape(name)}</h3>{drawn}")
    return "".join(out)


def _area(world: Mapping[str, Any], queue: str) -> int:
    return sum(world["queues"][queue]["series"]["depth"])


def _faithful(base: Mapping[str, Any], lacks: Mapping[str, int]) -> str:
    """Return how far the world without a change is what happened."""
    found = base["faithfulness"]
    rows = "".join(
        f'<tr><td class="text">{escape(q["queue"])}</td><td>{words.count(q["messages"])}</td>'
        f"<td>{'yes' if q['is_same'] and q['is_same_by_hour'] else 'no'}</td>"
        f"<td>{words.count(q['same'])}</td><td>{words.count(q['near'])}</td></tr>"
        for q in found["queues"]
    )
    head = (
        '<tr><th class="text">queue</th><th>messages</th><th>same account, hour by hour</th>'
        f"<th>same fate</th><th>within {found['near_ms']} ms</th></tr>"
    )
    gaps = "".join(f"<li>{escape(what)}: {words.count(n)}</li>" for what, n in lacks.items())
    told = f"<h3>Not in the ledger</h3><ul>{gaps}</ul>" if gaps else ""
    return (
        "<section><h2>How far to trust this</h2><p>The same traffic without a change, beside what "
        f'the ledger says happened.</p><div class="wide"><table>{head}{rows}</table></div>{told}'
        "</section>"
    )
