"""Page of the answer: one HTML file that needs nothing else, in the style of the report's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


def html(results: Sequence[Mapping[str, Any]], question: str = "") -> str:
    """Return the page. results: of the world as it was, then of each change."""
    base = results[0]
    title = question or "What would have happened"
    body = "".join(_world(base, one) for one in results[1:])
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>"
        f"<header><h1>{escape(title)}</h1>"
        f'<p class="lead">{escape(faithfulness_text(base["faithfulness"]))}</p></header>'
        f"{_sweep(results)}{body}{_faithful(base)}"
        f"<footer>Tallymark {escape(__version__)}, from the ledger, played again</footer>"
        f"</main><script>{SCRIPT}</script></body></html>\n"
    )


def _sweep(results: Sequence[Mapping[str, Any]]) -> str:
    if len(results) < 3:
        return ""
    rows = "".join(
        f"<tr><td>{escape(one['name'])}</td><td>{'yes' if one['verdict']['good'] else 'no'}</td>"
        f"<td>{escape('; '.join(one['verdict']['why'][:3]))}</td></tr>"
        for one in results[1:]
    )
    head = "<tr><th>world</th><th>may be</th><th>why not</th></tr>"
    return f"<section><h2>Worlds</h2><table>{head}{rows}</table></section>"


def _world(base: Mapping[str, Any], one: Mapping[str, Any]) -> str:
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
        f"<section><h2>{escape(one['name'])}</h2>"
        f'<div class="verdict {kind}"><b>{escape(found["text"])}</b><ul>{why}</ul></div>'
        f"{largest}{rests}{_table(base, one)}{_charts(base, one)}</section>"
    )


def _table(base: Mapping[str, Any], one: Mapping[str, Any]) -> str:
    """Return a table of accounts, what was beside what would have been."""
    rows = []
    for queue in sorted({*base["queues"], *one["queues"]}):
        was, told = base["queues"].get(queue), one["queues"].get(queue)
        names = sorted({*(was or told)["account"], *(told or was)["account"]})
        for name in names:
            before = was["account"].get(name, 0) if was else 0
            after = told["account"].get(name, 0) if told else 0
            rows.append((queue, name, words.count(before), words.count(after)))
        for name, key in (("p50", "p50"), ("p99", "p99")):
            before, after = (_settled_after(x, key) for x in (was, told))
            rows.append((queue, f"settled after, {name}", before, after))
    cells = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    head = "<tr><th>queue</th><th>messages</th><th>was</th><th>would have been</th></tr>"
    return f"<table>{head}{cells}</table>"


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


def _faithful(base: Mapping[str, Any]) -> str:
    """Return how far the world without a change is what happened."""
    found = base["faithfulness"]
    rows = "".join(
        f"<tr><td>{escape(q['queue'])}</td><td>{words.count(q['messages'])}</td>"
        f"<td>{'yes' if q['is_same'] and q['is_same_by_hour'] else 'no'}</td>"
        f"<td>{words.count(q['same'])}</td><td>{words.count(q['near'])}</td></tr>"
        for q in found["queues"]
    )
    head = (
        "<tr><th>queue</th><th>messages</th><th>same account, hour by hour</th>"
        f"<th>same fate</th><th>within {found['near_ms']} ms</th></tr>"
    )
    return (
        "<section><h2>How far to trust this</h2><p>The same traffic without a change, beside what "
        f"the ledger says happened.</p><table>{head}{rows}</table></section>"
    )
