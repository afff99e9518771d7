"""The script of the report's page: all plots show the part of the time that is drawn over one.

The page is whole without it: it loads nothing and knows no names. Plots over time say in data-
attributes which time they show, and where (charts.py).
"""

from __future__ import annotations

from typing import Final

SCRIPT: Final = """
(() => {
  "use strict";
  const NS = "http://www.w3.org/2000/svg", MIN = 4;
  const bar = document.getElementById("window"), text = bar.querySelector("span");
  const make = (name, attributes, parent) => {
    const one = document.createElementNS(NS, name);
    for (const key in attributes) one.setAttribute(key, attributes[key]);
    return parent.appendChild(one);
  };
  const stamp = (ms, span) => {
    const iso = new Date(ms).toISOString();
    if (span > 2 * 864e5) return iso.slice(5, 16).replace("T", " ");
    return span > 3e5 ? iso.slice(11, 16) : iso.slice(11, span > 5e3 ? 19 : 21);
  };
  const plots = [...document.querySelectorAll("svg.time")].map((svg, number) => {
    const plot = { svg, pane: svg.querySelector(".pane"), ticks: svg.querySelector(".ticks") };
    for (const key of ["first", "last", "left", "right", "top", "bottom"])
      plot[key] = Number(svg.dataset[key]);
    const clip = make("clipPath", { id: "clip" + number }, svg);
    const wide = plot.right - plot.left;
    make("rect", { x: plot.left, y: 0, width: wide, height: plot.bottom + 1 }, clip);
    const frame = make("g", { "clip-path": "url(#clip" + number + ")" }, svg);
    frame.appendChild(plot.pane);
    plot.drawn = plot.ticks && plot.ticks.innerHTML;
    return plot;
  });
  const show = (begin, end) => {
    for (const p of plots) {
      const wide = p.right - p.left, scale = (p.last - p.first) / (end - begin);
      const at = p.left + (begin - p.first) / (p.last - p.first) * wide;
      p.pane.setAttribute("transform",
        "matrix(" + scale + " 0 0 1 " + (p.left - scale * at) + " 0)");
      if (!p.ticks) continue;
      p.ticks.textContent = "";
      for (let i = 0; i < 6; i++) {
        const x = p.left + wide * (i + 0.5) / 6;
        make("line", { "class": "axis", x1: x, x2: x, y1: p.bottom, y2: p.bottom + 5 }, p.ticks);
        make("text", { "class": "tick", x: x, y: p.bottom + 20 }, p.ticks).textContent =
          stamp(begin + (end - begin) * (i + 0.5) / 6, end - begin);
      }
    }
    const iso = (ms) => new Date(ms).toISOString().slice(0, 19).replace("T", " ");
    text.textContent = iso(begin) + " to " + iso(end) + " UTC";
    bar.hidden = false;
  };
  const reset = () => {
    for (const p of plots) {
      p.pane.removeAttribute("transform");
      if (p.ticks) p.ticks.innerHTML = p.drawn;
    }
    bar.hidden = true;
    shown = null;
  };
  let shown = null;
  for (const p of plots) {
    let from = null, brush = null;
    const where = (event) => {
      const box = p.svg.getBoundingClientRect();
      const x = (event.clientX - box.left) / box.width * p.svg.viewBox.baseVal.width;
      return Math.min(Math.max(x, p.left), p.right);
    };
    const time = (x) => {
      const [begin, end] = shown || [p.first, p.last];
      return begin + (x - p.left) / (p.right - p.left) * (end - begin);
    };
    p.svg.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      from = where(event);
      brush = make("rect", { "class": "brush", y: p.top, height: p.bottom - p.top }, p.svg);
      p.svg.setPointerCapture(event.pointerId);
    });
    p.svg.addEventListener("pointermove", (event) => {
      if (from === null) return;
      const to = where(event);
      brush.setAttribute("x", Math.min(from, to));
      brush.setAttribute("width", Math.abs(to - from));
    });
    const end = (event) => {
      if (from === null) return;
      const to = where(event), low = Math.min(from, to), high = Math.max(from, to);
      brush.remove();
      from = brush = null;
      if (event.type === "pointerup" && high - low > MIN) {
        const begin = time(low), until = time(high);
        show(...(shown = [begin, until]));
      }
    };
    p.svg.addEventListener("pointerup", end);
    p.svg.addEventListener("pointercancel", end);
    p.svg.addEventListener("dblclick", reset);
  }
  bar.querySelector("button").addEventListener("click", reset);
})();
""".strip()
