// The page's own script: live updates and charts. Pages work without it, but for these two.
"use strict";

(() => {
  const RETRY_MS = 5000;
  let source = null;
  let timer = 0;

  const live = () => document.getElementById("live");

  function tell(text) {
    const state = document.getElementById("state");
    if (state) {
      state.textContent = text;
      state.dataset.state = text;
    }
  }

  function close() {
    clearTimeout(timer);
    if (source) source.close();
    source = null;
  }

  // Stream of the part that changes. There is none while the tab is hidden.
  function open() {
    close();
    const at = live() && live().dataset.live;
    if (!at || document.hidden) return;
    source = new EventSource(`${at}?at=${encodeURIComponent(location.pathname + location.search)}`);
    source.addEventListener("live", (event) => {
      show(JSON.parse(event.data));
      tell("live");
    });
    source.addEventListener("end", (event) => {
      close();
      const why = JSON.parse(event.data);
      if (why === "logged out") location.reload();
      else if (why === "gone") tell("gone");
      else again();
    });
    source.onerror = again;
  }

  function again() {
    close();
    tell("not live");
    timer = setTimeout(open, RETRY_MS);
  }

  // Put the new part in place: what has the focus keeps it, and what is being typed or was opened
  // stays.
  function show(html) {
    const place = live();
    const active = document.activeElement;
    const inside = place.contains(active);
    if (inside && active.matches("input, select, textarea")) return;
    const chosen = document.getSelection();
    if (chosen && !chosen.isCollapsed && place.contains(chosen.anchorNode)) return;
    const opened = [...place.querySelectorAll("details[open][id]")].map((one) => one.id);
    const scrolled = [...place.querySelectorAll(".wide")].map((one) => one.scrollLeft);
    const href = inside && active.getAttribute("href");
    const id = inside && active.id;
    place.innerHTML = html;
    for (const one of opened) document.getElementById(one)?.setAttribute("open", "");
    place.querySelectorAll(".wide").forEach((one, i) => { one.scrollLeft = scrolled[i] || 0; });
    if (inside) {
      const same = (id && document.getElementById(id))
        || (href && [...place.querySelectorAll("a")].find((one) => one.getAttribute("href") === href))
        || (active.matches(".wide") && place.querySelector(".wide"));
      same?.focus({ preventScroll: true });
    }
    if (window.htmx) htmx.process(place);
    document.querySelectorAll("[data-chart]").forEach(append);
  }

  // -- charts: <figure data-chart="ADDRESS">, whose JSON is {"unit", "names", "times", "values"};
  // in the live part <data data-point='{"time", "values"}' data-of="ID"> adds to the figure of that id.

  const charts = new WeakMap();

  function style(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  function short(value) {
    for (const [size, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
      if (Math.abs(value) >= size) return `${+(value / size).toPrecision(3)}${letter}`;
    }
    return String(+value.toPrecision(3));
  }

  function bytes(value) {
    for (const [size, unit] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
      if (Math.abs(value) >= size) return `${+(value / size).toPrecision(3)} ${unit}`;
    }
    return `${value} B`;
  }

  function clock(seconds) {
    const text = new Date(seconds * 1000).toISOString();
    return seconds % 60 ? text.slice(11, 19) : text.slice(11, 16);
  }

  async function draw(figure) {
    const answer = await fetch(figure.dataset.chart, { headers: { Accept: "text/html, application/json" } });
    if (!answer.ok) return;
    const found = await answer.json();
    const place = figure.querySelector(".plot");
    place.replaceChildren();
    const write = found.unit === "bytes" ? bytes : short;
    const ink = style("--dim");
    const grid = { stroke: style("--line"), width: 1 };
    const plot = new uPlot({
      width: place.clientWidth || 320,
      height: 170,
      cursor: { y: false },
      legend: { live: true },
      scales: { y: { range: (_, low, high) => [0, Math.max(high * 1.1, 1)] } },
      axes: [
        { stroke: ink, grid, ticks: grid, space: 60, values: (_, ticks) => ticks.map(clock) },
        { stroke: ink, grid, ticks: grid, size: 68, values: (_, ticks) => ticks.map(write) },
      ],
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
      series: [
        { label: "UTC", value: (_, seconds) => (seconds == null ? "–" : clock(seconds)) },
        ...found.names.map((label, i) => ({
          label,
          stroke: style(`--plot-${i + 1}`),
          width: 1.75,
          value: (_, value) => (value == null ? "–" : write(value)),
        })),
      ],
    }, [found.times, ...found.values], place);
    charts.set(figure, { plot, data: [found.times, ...found.values], at: Date.now() });
  }

  function append(figure) {
    const chart = charts.get(figure);
    const point = document.querySelector(`data[data-of="${figure.id}"]`);
    if (!chart || !point) return;
    const { time, values } = JSON.parse(point.dataset.point);
    const times = chart.data[0];
    if (times.length && time <= times[times.length - 1]) return;
    times.push(time);
    values.forEach((value, i) => chart.data[i + 1].push(value));
    const span = Number(figure.dataset.span);
    while (times.length > 2 && times[0] < time - span) chart.data.forEach((one) => one.shift());
    chart.plot.setData(chart.data);
  }

  function drawAll() {
    document.querySelectorAll("[data-chart]").forEach(draw);
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) close();
    else { open(); drawAll(); }
  });
  window.addEventListener("pagehide", close);
  window.addEventListener("resize", () => {
    document.querySelectorAll("[data-chart]").forEach((figure) => {
      const chart = charts.get(figure);
      if (chart) chart.plot.setSize({ width: figure.querySelector(".plot").clientWidth, height: 170 });
    });
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  document.addEventListener("htmx:pushedIntoHistory", open);
  document.addEventListener("htmx:historyRestore", open);
  window.addEventListener("popstate", () => location.reload());
  open();
  drawAll();
})();
